// SPDX-License-Identifier: GPL-2.0

//! The I/O of a map: which path a request takes, and what becomes of it when that is lost.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

use crate::base::{
    rcu::RcuSlot,
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};
use crate::block::{
    mq::{
        Command,
        IdleRequest,
        Owned,
        Refused,
        Request, //
    },
    BlkError,
    BlkResult, //
};
use crate::client::io::{
    connection::Queue,
    disk::Disk, //
};
use crate::session::{
    flush::Flushes,
    map::Mode,
    PathId,
    PATHS_MAX, //
};

/// How a request chooses among several paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The one with the least to do.
    MinInflight,
    /// Each in turn.
    RoundRobin,
}

impl Policy {
    /// The word that configfs shows.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::MinInflight => "min-inflight",
            Self::RoundRobin => "round-robin",
        }
    }

    /// The policy of that name.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::MinInflight, Self::RoundRobin]
            .into_iter()
            .find(|policy| policy.as_str() == word)
    }
}

/// The I/O connections of a path; the index is the hardware queue.
pub(in crate::client) type Queues = KVec<Queue>;

/// Who is to see to a map's I/O.
pub(in crate::client) trait Keeper: Send + Sync {
    /// A request of a hardware queue is in flight for longer than the user wants. Any context.
    fn late(&self, queue: u16);

    /// A request that was sent again has ended, or was lost again. Any context.
    fn resent(&self);

    /// A request was left behind that is to fail. Any context.
    fn stranded(&self);
}

/// A request whose path was lost, and its hardware queue.
pub(in crate::client) struct Stranded {
    queue: u16,
    request: Owned<Request<Disk>>,
}

/// What belongs to a request beside its slot in the queue pair.
#[pin_data]
pub(in crate::client) struct RequestData {
    /// Whether it was sent again: 1 or 0.
    resent: Atomic<u32>,
    /// Of a flush: its number.
    flush: Atomic<u64>,
}

impl RequestData {
    /// That of a request which nobody has sent.
    pub(in crate::client) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            resent: Atomic::new(0),
            flush: Atomic::new(0),
        })
    }
}

/// The I/O of a map.
#[pin_data]
pub(in crate::client) struct Io {
    /// A [`Mode`], as a number.
    mode: Atomic<u32>,
    policy: Policy,
    /// Bit by bit, the paths that take I/O. Changed by the session alone.
    up: Atomic<u32>,
    paths: [RcuSlot<Queues>; PATHS_MAX],
    /// Where round-robin begins to look.
    turn: Atomic<u32>,
    /// Requests whose paths were lost. There is room for all that there are.
    #[pin]
    stranded: IrqSaveSpinLock<KVVec<Stranded>>,
    /// Requests that were sent again and did not end yet.
    resent: Atomic<u32>,
    /// One of them was answered: 1 or 0.
    replay_answered: Atomic<u32>,
    /// Whether a write was complete since the last flush began: 1 or 0.
    dirty: Atomic<u32>,
    #[pin]
    flushes: IrqSaveSpinLock<Flushes>,
    keeper: Arc<dyn Keeper>,
}

impl Io {
    /// I/O that waits for a path.
    pub(in crate::client) fn new(policy: Policy, keeper: Arc<dyn Keeper>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                mode: Atomic::new(Mode::Hold as u32),
                policy,
                up: Atomic::new(0),
                paths: [const { RcuSlot::empty() }; PATHS_MAX],
                turn: Atomic::new(0),
                stranded <- new_irqsave_spinlock!(KVVec::new(), "Io::stranded"),
                resent: Atomic::new(0),
                replay_answered: Atomic::new(0),
                dirty: Atomic::new(0),
                flushes <- new_irqsave_spinlock!(Flushes::new(), "Io::flushes"),
                keeper,
            }),
            GFP_KERNEL,
        )
    }

    /// Makes room for so many requests in all. Before the first of a new path. May sleep.
    pub(in crate::client) fn reserve(&self, requests: usize) -> Result {
        if self.stranded.lock().capacity() >= requests {
            return Ok(());
        }
        let mut room = KVVec::with_capacity(requests, GFP_KERNEL)?;
        let mut stranded = self.stranded.lock();
        // Another path may have made more.
        if stranded.capacity() < requests {
            // Some may be there: other paths were lost.
            while let Some(request) = stranded.pop() {
                let _ = room.push_within_capacity(request);
            }
            core::mem::swap(&mut *stranded, &mut room);
        }
        // What is not used any more is freed without the lock.
        drop(stranded);
        Ok(())
    }

    /// How I/O is treated from now on. Requests that are on their way to a queue may not have heard of
    /// it, until the disk is quiesced. Any context.
    pub(in crate::client) fn turn(&self, mode: Mode) {
        self.mode.store(mode as u32, Relaxed);
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Relaxed) == mode as u32
    }

    /// A path is up. May sleep.
    pub(in crate::client) fn open(&self, path: PathId, queues: Arc<Queues>) {
        if let Some(slot) = self.paths.get(usize::from(path)) {
            slot.replace(Some(queues));
            self.up.store(self.up.load(Relaxed) | bit(path), Relaxed);
        }
    }

    /// A path is to be let go of: nothing is given to it any more when this returns. May sleep.
    pub(in crate::client) fn shut(&self, path: PathId) {
        if let Some(slot) = self.paths.get(usize::from(path)) {
            self.up.store(self.up.load(Relaxed) & !bit(path), Relaxed);
            drop(slot.replace(None));
        }
    }

    /// Takes a request of hardware queue `queue`. Atomic context.
    #[inline]
    pub(in crate::client) fn submit(
        &self,
        queue: u16,
        request: Owned<IdleRequest<Disk>>,
        last: bool,
    ) -> Result<(), Refused<Disk>> {
        if !self.is(Mode::Flow) {
            return Err(request.refuse(match self.is(Mode::Fail) {
                true => BlkError::Transport,
                // The disk is about to be quiesced; until then it asks again every 3 ms.
                false => BlkError::Resource,
            }));
        }
        let request = request.start();
        self.send(queue, request, last)
            .map_err(|(error, request)| request.refuse(error))
    }

    /// Sends a request on one of the paths.
    #[inline]
    fn send(
        &self,
        queue: u16,
        request: Owned<Request<Disk>>,
        last: bool,
    ) -> Result<(), (BlkError, Owned<Request<Disk>>)> {
        if matches!(request.command(), Command::Flush) {
            let mut flushes = self.flushes.lock();
            if flushes.must_fail() {
                return Err((BlkError::IoError, request));
            }
            // What is complete from now on it need not cover.
            let dirty = self.dirty.xchg(0, Full) != 0;
            request.data().flush.store(flushes.begin(dirty), Relaxed);
        }
        let (path, alone) = self.choose(queue);
        let queues = self.paths.get(path).and_then(RcuSlot::get);
        match queues
            .as_ref()
            .and_then(|queues| queues.get(usize::from(queue)))
        {
            // The last one that comes rings for its own path only.
            Some(queue) => queue.send(request, last || !alone),
            // The path is being let go of.
            None => Err((BlkError::Resource, request)),
        }
    }

    /// The path for a request, and whether it is the only one.
    #[inline]
    fn choose(&self, queue: u16) -> (usize, bool) {
        let up = self.up.load(Relaxed);
        // CAST: Indices of bits.
        let first = up.trailing_zeros() as usize;
        match up & up.wrapping_sub(1) {
            0 => (first, true),
            _ => (self.choose_among(up, first, queue), false),
        }
    }

    fn choose_among(&self, up: u32, first: usize, queue: u16) -> usize {
        match self.policy {
            Policy::RoundRobin => {
                let turn = self.turn.load(Relaxed) % u32::BITS;
                let next = match up >> turn {
                    0 => first,
                    rest => (turn + rest.trailing_zeros()) as usize,
                };
                // CAST: As above. That two CPUs may choose the same one does no harm.
                self.turn.store(next as u32 + 1, Relaxed);
                next
            }
            Policy::MinInflight => {
                let in_flight = |path: usize| {
                    let queues = self.paths.get(path)?.get()?;
                    Some(queues.get(usize::from(queue))?.in_flight())
                };
                (0..PATHS_MAX)
                    .filter(|path| up & (1 << path) != 0)
                    .min_by_key(|path| in_flight(*path).unwrap_or(u32::MAX))
                    .unwrap_or(first)
            }
        }
    }

    /// Posts what [`Io::submit`] left. Atomic context.
    pub(in crate::client) fn commit(&self, queue: u16) {
        self.each_up(|queues| {
            if let Some(queue) = queues.get(usize::from(queue)) {
                queue.commit();
            }
        });
    }

    /// Looks for responses on a queue that is polled. Atomic context.
    pub(in crate::client) fn poll(&self, queue: u16) -> u32 {
        let mut found = 0;
        self.each_up(|queues| {
            if let Some(queue) = queues.get(usize::from(queue)) {
                found += queue.poll();
            }
        });
        found
    }

    #[inline]
    fn each_up(&self, mut visit: impl FnMut(&Queues)) {
        let mut up = self.up.load(Relaxed);
        while up != 0 {
            // CAST: The index of a bit.
            let path = up.trailing_zeros() as usize;
            up &= up.wrapping_sub(1);
            if let Some(queues) = self.paths.get(path).and_then(RcuSlot::get) {
                visit(&queues);
            }
        }
    }

    /// Whether I/O is sent on the paths that are up. Any context.
    pub(in crate::client) fn flows(&self) -> bool {
        self.is(Mode::Flow)
    }

    /// A request takes long. Any context.
    pub(in crate::client) fn late(&self, queue: u16) {
        if self.is(Mode::Flow) || self.is(Mode::Replay) {
            self.keeper.late(queue);
        }
    }

    /// A request of hardware queue `queue` is over, or its path is: then it is kept. Any context.
    #[inline]
    pub(in crate::client) fn end(
        &self,
        queue: u16,
        request: Owned<Request<Disk>>,
        status: BlkResult,
    ) {
        match (request.command(), &status) {
            (Command::Write, Ok(())) if self.dirty.load(Relaxed) == 0 && !request.fua() => {
                self.dirty.store(1, Relaxed);
            }
            (Command::WriteZeroes | Command::Discard, Ok(())) => self.dirty.store(1, Relaxed),
            (Command::Flush, Ok(())) => {
                let number = request.data().flush.load(Relaxed);
                self.flushes.lock().complete(number);
            }
            _ => {}
        }
        let resent = request.data().resent.load(Relaxed) != 0;
        if resent {
            request.data().resent.store(0, Relaxed);
        }
        let answered = !matches!(status, Err(BlkError::Transport));
        match status {
            Err(BlkError::Transport) => self.strand(Stranded { queue, request }),
            status => request.complete(status),
        }
        if resent {
            if answered {
                self.replay_answered.store(1, Relaxed);
            }
            self.resent.fetch_sub(1, Relaxed);
            self.keeper.resent();
        }
    }

    /// Whether a request that was sent again was answered since the last call. In a task.
    pub(in crate::client) fn take_replay_answered(&self) -> bool {
        self.replay_answered.xchg(0, Relaxed) != 0
    }

    #[cold]
    fn strand(&self, stranded: Stranded) {
        let refused = self.stranded.lock().push_within_capacity(stranded);
        if let Err(error) = refused {
            // It cannot be: there is room for all.
            drop(error);
        }
        // Who fails them may have looked before.
        if self.is(Mode::Fail) {
            self.keeper.stranded();
        }
    }

    /// Whether requests were left behind by paths that were lost. Any context.
    pub(in crate::client) fn has_stranded(&self) -> bool {
        !self.stranded.lock().is_empty()
    }

    /// Sends requests again that were left behind, as many as there is room for; [`Keeper::resent`]
    /// calls for more. Whether there is nothing more to be sent, nor to be waited for. In a task.
    pub(in crate::client) fn resend(&self) -> bool {
        // All I/O waits for these, whether or not somebody polls for them.
        self.each_up(|queues| queues.iter().for_each(Queue::catch_up));
        // On a path that fails meanwhile they come back as fast as they are sent.
        let there = self.stranded.lock().len();
        for _ in 0..there {
            let next = self.stranded.lock().pop();
            let Some(Stranded { queue, request }) = next else {
                break;
            };
            request.data().resent.store(1, Relaxed);
            self.resent.fetch_add(1, Relaxed);
            match self.send(queue, request, true) {
                Ok(()) => {}
                Err((BlkError::Resource | BlkError::Transport, request)) => {
                    request.data().resent.store(0, Relaxed);
                    self.resent.fetch_sub(1, Relaxed);
                    self.strand(Stranded { queue, request });
                    return false;
                }
                Err((error, request)) => {
                    request.data().resent.store(0, Relaxed);
                    self.resent.fetch_sub(1, Relaxed);
                    request.complete(Err(error));
                }
            }
        }
        self.resent.load(Relaxed) == 0 && !self.has_stranded()
    }

    /// Ends with an error the requests that were left behind. In a task.
    pub(in crate::client) fn fail_stranded(&self) {
        loop {
            let next = self.stranded.lock().pop();
            match next {
                Some(Stranded { request, .. }) => request.complete(Err(BlkError::Transport)),
                None => return,
            }
        }
    }

    /// Notes that the server has another instance: what it had in a volatile cache may be gone. In a
    /// task, while I/O waits and no request is in flight.
    pub(in crate::client) fn server_restarted(&self) {
        let mut flushes = self.flushes.lock();
        // The writes that are complete from now on are the new instance's.
        let dirty = self.dirty.xchg(0, Full) != 0;
        flushes.restarted(dirty);
    }

    /// Returns true if flushes fail, as writes were lost with the server's cache. Any context.
    pub(in crate::client) fn has_lost_writes(&self) -> bool {
        self.flushes.lock().have_lost()
    }

    /// Notes that nobody has the disk open any more. Any context.
    pub(super) fn closed(&self) {
        self.flushes.lock().closed();
    }

    /// Shows what the connections did. Any context.
    pub(in crate::client) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, slot) in self.paths.iter().enumerate() {
            let Some(queues) = slot.get() else {
                continue;
            };
            for (index, queue) in queues.iter().enumerate() {
                write!(f, "path {path} queue {index} ")?;
                queue.show(f)?;
            }
        }
        Ok(())
    }
}

fn bit(path: PathId) -> u32 {
    1_u32.checked_shl(path.into()).unwrap_or(0)
}
