// SPDX-License-Identifier: GPL-2.0

//! The block driver of a map: sends each request on one of the paths.
//!
//! [`Multipath`] is the driver that blk-mq calls, and what the requests of a map see of it: which
//! paths are up, and how I/O is treated ([`Mode`]). It keeps the requests whose path was lost,
//! which are *requeued*, until the map's work item *replays* them: sends them again on another
//! path.
//!
//! It also keeps the counters of the map, and notes writes and flushes, as a flush must fail after
//! the server has lost its cache.
//!
//! Long: what blk-mq calls and what becomes of its requests is in this file.

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
        Arc,
        ArcBorrow,
        SetOnce, //
    },
};

use crate::base::{
    clock,
    rcu::RcuSlot,
    sync::{
        new_irqsave_spinlock,
        without_io,
        IrqSaveSpinLock, //
    },
    trace::{
        self,
        RequestId, //
    },
};
use crate::block::{
    mq::{
        Borrowed,
        Command,
        IdleRequest,
        Operations,
        Owned,
        PrReport,
        Refused,
        Request,
        Timeout, //
    },
    status_code,
    BlkError,
    BlkResult, //
};
use crate::client::{
    events::Events,
    io::{
        persistent,
        queue::IoQueue, //
    },
    params::Policy,
};
use crate::proto::persistent::REPORT_SIZE;
use crate::session::{
    flush::Flushes,
    map::Mode,
    PathId,
    PATHS_MAX, //
};
use crate::stats::{
    Op,
    QueueStats,
    Totals, //
};

/// The queues of a path. The index is the hardware queue.
pub(in crate::client) type Queues = KVec<IoQueue>;

/// A request whose path was lost, with its hardware queue.
struct Requeued {
    hw_queue: u16,
    request: Owned<Request<Multipath>>,
}

/// The data of a hardware queue: its index.
pub(in crate::client) struct HwQueue(u16);

/// The driver's data of a request.
#[pin_data]
pub(in crate::client) struct RequestData {
    /// 1 while the request is being replayed, else 0.
    replayed: Atomic<u32>,
    /// The number of a flush, as [`Flushes::begin`] returned it.
    flush: Atomic<u64>,
    /// When the request was given to the driver, in ns, if blk-mq has not noted when it began.
    began_ns: Atomic<u64>,
}

/// The block driver of a map.
#[pin_data]
pub(in crate::client) struct Multipath {
    /// A [`Mode`], as a number.
    mode: Atomic<u32>,
    policy: Policy,
    /// Bit mask of the paths that take I/O. Only the map's work item changes it.
    up: Atomic<u32>,
    /// Not 0 once a path was up.
    was_up: Atomic<u32>,
    paths: [RcuSlot<Queues>; PATHS_MAX],
    /// The path at which round-robin begins to search.
    next: Atomic<u32>,
    /// The requests whose paths were lost. The capacity suffices for every request of the disk.
    #[pin]
    requeued: IrqSaveSpinLock<KVVec<Requeued>>,
    /// Number of replayed requests that are in flight.
    replayed: Atomic<u32>,
    /// 1 if the server answered a replayed request, else 0.
    replay_answered: Atomic<u32>,
    /// 1 if a write was complete since the last flush began, else 0.
    dirty: Atomic<u32>,
    #[pin]
    flushes: IrqSaveSpinLock<Flushes>,
    /// The counters of each hardware queue. They live as long as the disk, whatever becomes of
    /// the paths.
    stats: SetOnce<KVVec<QueueStats>>,
    events: Arc<Events>,
}

#[vtable]
impl Operations for Multipath {
    type QueueData = Arc<Multipath>;
    type HwData = Arc<HwQueue>;
    type RequestData = RequestData;

    fn new_request_data() -> impl PinInit<RequestData, Error> {
        try_pin_init!(RequestData {
            replayed: Atomic::new(0),
            flush: Atomic::new(0),
            began_ns: Atomic::new(0),
        })
    }

    fn init_hctx(_: Borrowed<'_, Arc<Multipath>>, index: u32) -> Result<Arc<HwQueue>> {
        let hw_queue = HwQueue(u16::try_from(index)?);
        without_io(|| Ok(Arc::new(hw_queue, GFP_KERNEL)?))
    }

    #[inline]
    fn queue_rq(
        hw: ArcBorrow<'_, HwQueue>,
        this: ArcBorrow<'_, Multipath>,
        request: Owned<IdleRequest<Self>>,
        last: bool,
    ) -> Result<(), Refused<Self>> {
        // The queue of the disk does without statistics (`iostats`).
        if request.start_time_ns() == 0 {
            request.data().began_ns.store(clock::now_ns(), Relaxed);
        }
        if !this.is(Mode::Flow) {
            // The disk is about to be quiesced; until then the block layer tries again every 3 ms.
            if !this.is(Mode::Fail) {
                return Err(request.refuse(BlkError::Resource));
            }
            this.count(hw.0, &request, false);
            return Err(request.refuse(BlkError::Transport));
        }
        trace::submit(|| {
            let id = id(hw.0, &request);
            (id, request.op(), request.sector(), request.bytes())
        });
        this.send(hw.0, request.start(), last)
            .map_err(|(error, request)| {
                if !matches!(error, BlkError::Resource) {
                    this.count(hw.0, &request, false);
                }
                request.refuse(error)
            })
    }

    fn commit_rqs(hw: ArcBorrow<'_, HwQueue>, this: ArcBorrow<'_, Multipath>) {
        this.commit(hw.0);
    }

    fn poll(hw: ArcBorrow<'_, HwQueue>, this: ArcBorrow<'_, Multipath>) -> u32 {
        let mut found = 0;
        this.each_up(|queues| {
            if let Some(queue) = queues.get(usize::from(hw.0)) {
                found += queue.poll();
            }
        });
        found
    }

    /// The request stays in flight. The map's work item closes a path whose RDMA READs and WRITEs
    /// do not complete, or whose commands do not although they were answered, or whose connection
    /// is gone; a late command is waited for otherwise.
    fn timeout(hw: ArcBorrow<'_, HwQueue>, this: ArcBorrow<'_, Multipath>, _tag: u16) -> Timeout {
        if this.is(Mode::Flow) || this.is(Mode::Replay) {
            this.events.late(hw.0);
        }
        Timeout::Reset
    }

    const PR_REPORT_SIZE: usize = REPORT_SIZE;

    fn parse_pr_report(bytes: &[u8]) -> Option<PrReport> {
        persistent::parse(bytes)
    }

    /// Every task that may have written what the server lost has had the disk open until now.
    fn last_close(this: ArcBorrow<'_, Multipath>) {
        this.flushes.lock().closed();
    }
}

impl Multipath {
    /// Takes back a request that a queue has taken. With [`BlkError::Transport`] the server did not
    /// answer it, and may or may not have carried it out. Any context.
    #[inline]
    pub(in crate::client) fn end(
        &self,
        hw_queue: u16,
        request: Owned<Request<Self>>,
        status: BlkResult,
    ) {
        trace::answer(|| (id(hw_queue, &request), request.op(), status_code(status)));
        match (request.command(), &status) {
            (Command::Write, Ok(())) if self.dirty.load(Relaxed) == 0 && !request.fua() => {
                self.dirty.store(1, Relaxed);
            }
            (Command::WriteZeroes | Command::Discard | Command::SecureErase, Ok(())) => {
                self.dirty.store(1, Relaxed);
            }
            (Command::Flush, Ok(())) => {
                let number = request.data().flush.load(Relaxed);
                self.flushes.lock().complete(number);
            }
            _ => {}
        }
        let replayed = request.data().replayed.load(Relaxed) != 0;
        if replayed {
            request.data().replayed.store(0, Relaxed);
        }
        let answered = !matches!(status, Err(BlkError::Transport));
        match status {
            Err(BlkError::Transport) => self.requeue(Requeued { hw_queue, request }),
            status => self.complete(hw_queue, request, status),
        }
        if replayed {
            if answered {
                self.replay_answered.store(1, Relaxed);
            }
            self.replayed.fetch_sub(1, Relaxed);
            self.events.wake();
        }
    }

    /// Makes the driver of a map without paths, whose I/O waits. May sleep.
    ///
    /// Posts late requests to `events`, and wakes its work item when a replayed request has ended,
    /// and when a request was requeued while I/O fails.
    pub(in crate::client) fn new(policy: Policy, events: Arc<Events>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                mode: Atomic::new(Mode::Hold as u32),
                policy,
                up: Atomic::new(0),
                was_up: Atomic::new(0),
                paths: [const { RcuSlot::empty() }; PATHS_MAX],
                next: Atomic::new(0),
                requeued <- new_irqsave_spinlock!(KVVec::new(), "Multipath::requeued"),
                replayed: Atomic::new(0),
                replay_answered: Atomic::new(0),
                dirty: Atomic::new(0),
                flushes <- new_irqsave_spinlock!(Flushes::new(), "Multipath::flushes"),
                stats: SetOnce::new(),
                events,
            }),
            GFP_KERNEL,
        )
    }

    /// Makes sure that `requests` requests can be requeued. Must be called before the first request
    /// of a new path. May sleep.
    pub(in crate::client) fn reserve(&self, requests: usize) -> Result {
        if self.requeued.lock().capacity() >= requests {
            return Ok(());
        }
        let mut larger = KVVec::with_capacity(requests, GFP_KERNEL)?;
        let mut requeued = self.requeued.lock();
        // The task of another path may have been faster.
        if requeued.capacity() < requests {
            // Other paths may have been lost already.
            while let Some(request) = requeued.pop() {
                let _ = larger.push_within_capacity(request);
            }
            core::mem::swap(&mut *requeued, &mut larger);
        }
        // The lock is released before the memory that is not used any more is freed.
        drop(requeued);
        Ok(())
    }

    /// Sets how I/O is treated from now on. A request that is on its way to a path may still be
    /// treated in the old way, until the disk is quiesced. Any context.
    pub(in crate::client) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u32, Relaxed);
    }

    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Relaxed) == mode as u32
    }

    /// Makes the counters of the hardware queues, of which there are `queues`. Must be called
    /// before the first request; a second call changes nothing. May sleep.
    pub(in crate::client) fn allocate_stats(&self, queues: u16) -> Result {
        let mut stats = KVVec::with_capacity(usize::from(queues), GFP_KERNEL)?;
        for _ in 0..queues {
            stats.push(QueueStats::new(), GFP_KERNEL)?;
        }
        self.stats.populate(stats);
        Ok(())
    }

    /// Returns the sum of the counters. Any context.
    pub(in crate::client) fn totals(&self) -> Totals {
        Totals::of(self.stats.as_ref().into_iter().flatten())
    }

    #[inline]
    fn stats_of(&self, hw_queue: u16) -> Option<&QueueStats> {
        self.stats.as_ref()?.get(usize::from(hw_queue))
    }

    /// Counts a request that ends now.
    #[inline]
    fn count(&self, hw_queue: u16, request: &Request<Self>, succeeded: bool) {
        let op = match request.command() {
            Command::Read => Op::Read,
            Command::Write => Op::Write,
            Command::Flush => Op::Flush,
            Command::Discard | Command::SecureErase => Op::Discard,
            Command::WriteZeroes => Op::WriteZeroes,
            Command::Reserve | Command::Report | Command::Unsupported(_) => return,
        };
        let began_ns = match request.start_time_ns() {
            0 => request.data().began_ns.load(Relaxed),
            ns => ns,
        };
        if let Some(stats) = self.stats_of(hw_queue) {
            stats.ended(op, request.bytes(), succeeded, began_ns);
        }
    }

    /// Ends a request.
    #[inline]
    fn complete(&self, hw_queue: u16, request: Owned<Request<Self>>, status: BlkResult) {
        self.count(hw_queue, &request, status.is_ok());
        request.complete(status);
    }

    /// Lets requests take a path. Only the map's work item calls this. May sleep.
    pub(in crate::client) fn add_path(&self, path: PathId, queues: Arc<Queues>) {
        if let Some(slot) = self.paths.get(usize::from(path)) {
            slot.replace(Some(queues));
            self.was_up.store(1, Relaxed);
            self.up.store(self.up.load(Relaxed) | bit(path), Relaxed);
        }
    }

    /// Returns true if the path takes I/O, and is not the only one. Any context.
    pub(in crate::client) fn has_other_than(&self, path: PathId) -> bool {
        let up = self.up.load(Relaxed);
        up & bit(path) != 0 && up != bit(path)
    }

    /// Returns true if a path was up ever. Any context.
    pub(in crate::client) fn was_up(&self) -> bool {
        self.was_up.load(Relaxed) != 0
    }

    /// Lets requests take a path no more. No request is being sent on it when this returns. Only
    /// the map's work item calls this. May sleep.
    pub(in crate::client) fn remove_path(&self, path: PathId) {
        if let Some(slot) = self.paths.get(usize::from(path)) {
            self.up.store(self.up.load(Relaxed) & !bit(path), Relaxed);
            drop(slot.replace(None));
        }
    }

    /// Rings a doorbell on each path on which requests of a hardware queue wait for one. Atomic
    /// context.
    fn commit(&self, hw_queue: u16) {
        self.each_up(|queues| {
            if let Some(queue) = queues.get(usize::from(hw_queue)) {
                queue.commit();
            }
        });
    }

    /// Rings the doorbells of all queues that are up, for requests of batches that the block layer
    /// does not end once the disk is quiesced: it keeps the rest of a batch, and commits nothing.
    /// The caller has quiesced the disk. Any context but hard interrupt.
    pub(in crate::client) fn ring(&self) {
        self.each_up(|queues| queues.iter().for_each(IoQueue::commit));
    }

    /// Sends a request on one of the paths, or returns it with the error. Atomic context.
    #[inline]
    fn send(
        &self,
        hw_queue: u16,
        request: Owned<Request<Self>>,
        last: bool,
    ) -> Result<(), (BlkError, Owned<Request<Self>>)> {
        if matches!(request.command(), Command::Flush) {
            let mut flushes = self.flushes.lock();
            if flushes.must_fail() {
                return Err((BlkError::IoError, request));
            }
            // The flush need not cover writes that complete from now on.
            let dirty = self.dirty.xchg(0, Full) != 0;
            request.data().flush.store(flushes.begin(dirty), Relaxed);
        }
        let (path, alone) = self.choose(hw_queue);
        // CAST: The index of a path.
        trace::post(|| (id(hw_queue, &request), path as u8));
        let queues = self.paths.get(path).and_then(RcuSlot::get);
        let sent = match queues
            .as_ref()
            .and_then(|queues| queues.get(usize::from(hw_queue)))
        {
            Some(queue) => queue.send(request, last),
            // The path is being removed.
            None => Err((BlkError::Resource, request)),
        };
        if last && !alone {
            // Other paths may have other requests of the batch.
            self.commit(hw_queue);
        }
        sent
    }

    /// Returns the index of the path for a request, and whether it is the only path that is up.
    #[inline]
    fn choose(&self, hw_queue: u16) -> (usize, bool) {
        let up = self.up.load(Relaxed);
        // CAST: The index of a bit.
        let first = up.trailing_zeros() as usize;
        match up & up.wrapping_sub(1) {
            0 => (first, true),
            _ => (self.choose_among(up, first, hw_queue), false),
        }
    }

    fn choose_among(&self, up: u32, first: usize, hw_queue: u16) -> usize {
        match self.policy {
            Policy::RoundRobin => {
                let begin = self.next.load(Relaxed) % u32::BITS;
                let chosen = match up >> begin {
                    0 => first,
                    rest => (begin + rest.trailing_zeros()) as usize,
                };
                // CAST: As above. It does no harm if two CPUs choose the same path.
                self.next.store(chosen as u32 + 1, Relaxed);
                chosen
            }
            Policy::MinInflight => {
                let in_flight = |path: usize| {
                    let queues = self.paths.get(path)?.get()?;
                    Some(queues.get(usize::from(hw_queue))?.in_flight())
                };
                (0..PATHS_MAX)
                    .filter(|path| up & (1 << path) != 0)
                    .min_by_key(|path| in_flight(*path).unwrap_or(u32::MAX))
                    .unwrap_or(first)
            }
        }
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

    /// Handles the completions that no interrupt tells of, and that no task may be polling for.
    fn poll_all(&self) {
        self.each_up(|queues| {
            for queue in queues.iter() {
                queue.poll();
            }
        });
    }

    #[cold]
    fn requeue(&self, requeued: Requeued) {
        // Cannot fail: `reserve` was called for every request of the disk.
        let refused = self.requeued.lock().push_within_capacity(requeued);
        drop(refused);
        // The work item may have failed the requeued requests before this one was among them.
        if self.is(Mode::Fail) {
            self.events.wake();
        }
    }

    /// Returns true if there are requeued requests. Any context.
    pub(in crate::client) fn has_requeued(&self) -> bool {
        !self.requeued.lock().is_empty()
    }

    /// Replays requeued requests, as many as the paths take now. Returns true if every requeued
    /// request was sent again and has ended; otherwise the work item is woken when one of them
    /// ends. Only the map's work item calls this.
    pub(in crate::client) fn replay(&self) -> bool {
        // All I/O waits for the replay, but no task may be polling for the requests that hold it
        // up.
        self.poll_all();
        // On a path that fails now, requests come back as fast as they are sent.
        let count = self.requeued.lock().len();
        for _ in 0..count {
            let next = self.requeued.lock().pop();
            let Some(Requeued { hw_queue, request }) = next else {
                break;
            };
            request.data().replayed.store(1, Relaxed);
            self.replayed.fetch_add(1, Relaxed);
            let Err((error, request)) = self.send(hw_queue, request, true) else {
                if let Some(stats) = self.stats_of(hw_queue) {
                    stats.retried();
                }
                continue;
            };
            request.data().replayed.store(0, Relaxed);
            self.replayed.fetch_sub(1, Relaxed);
            match error {
                BlkError::Resource | BlkError::Transport => {
                    self.requeue(Requeued { hw_queue, request });
                    return false;
                }
                error => self.complete(hw_queue, request, Err(error)),
            }
        }
        self.replayed.load(Relaxed) == 0 && !self.has_requeued()
    }

    /// Returns true if the server answered a replayed request since the last call. Only the map's
    /// work item calls this.
    pub(in crate::client) fn take_replay_answered(&self) -> bool {
        self.replay_answered.xchg(0, Relaxed) != 0
    }

    /// Ends the requeued requests with an error. Only the map's work item calls this.
    pub(in crate::client) fn fail_requeued(&self) {
        loop {
            let next = self.requeued.lock().pop();
            match next {
                Some(Requeued { hw_queue, request }) => {
                    self.complete(hw_queue, request, Err(BlkError::Transport));
                }
                None => return,
            }
        }
    }

    /// Notes that the server has another instance of the export, so that what was in its volatile
    /// cache may be gone. Only the map's work item calls this, while I/O waits and no request is in
    /// flight.
    pub(in crate::client) fn instance_changed(&self) {
        let mut flushes = self.flushes.lock();
        // Writes that complete from now on are in the cache of the new instance.
        let dirty = self.dirty.xchg(0, Full) != 0;
        flushes.restarted(dirty);
    }

    /// Notes that the server has flushed, after it had answered all commands. Only the map's work
    /// item calls this.
    pub(in crate::client) fn server_flushed(&self) {
        // The answers of queues that nobody has polled are there, too.
        self.poll_all();
        let mut flushes = self.flushes.lock();
        // A write whose answer comes only now counts as not flushed, which does no harm.
        self.dirty.store(0, Relaxed);
        flushes.flushed();
    }

    /// Returns true if flushes fail because writes were lost with the server's cache. Any context.
    pub(in crate::client) fn has_lost_writes(&self) -> bool {
        self.flushes.lock().have_lost()
    }

    /// Prints the counters of the queues. Any context.
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

/// Returns what tracepoints show of a request.
fn id(hw_queue: u16, request: &Request<Multipath>) -> RequestId {
    RequestId {
        dev: request.dev(),
        hw_queue,
        tag: request.tag(),
    }
}

fn bit(path: PathId) -> u32 {
    1_u32.checked_shl(path.into()).unwrap_or(0)
}
