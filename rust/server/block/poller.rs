// SPDX-License-Identifier: GPL-2.0

//! The server's end of a completion vector: it receives the commands of the I/O connections there and
//! answers them.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
    workqueue::OwnedQueue, //
};
use crate::block::bio::plugged;
use crate::proto::{
    command,
    wire::INLINE_MAX, //
};
use crate::rdma::{
    cq::{
        Cq,
        CqNotify,
        PollContext, //
    },
    device::Device,
    dma::{
        Direction,
        DmaBuffer, //
    },
    pd::Pd,
    qp::Qp,
    srq::Srq, //
};
use crate::server::{
    block::{
        command::Recv,
        connection::{
            Handler,
            Queue, //
        },
    },
    memory::{
        buddy::{
            CHUNK,
            PIECE_MIN, //
        },
        pool::{
            Piece,
            Pool, //
        },
        receives::Receives, //
    },
};

/// I/O connections that a poller can have.
const CONNECTIONS_MAX: usize = 64;
/// Receives that a poller has room for, unless one connection wants more: those of 14 idle connections
/// (see [`CREDIT`](crate::server::session::CREDIT)), or of one of depth 128 that is busy and 6 that are
/// idle. A device's queues have a power of two of entries, and `rdma_rxe` leaves one empty: there they
/// take 32 KiB for receives and 16 KiB for completions.
const RECVS: u32 = 255;
/// Receives beyond those that clients rely on: `rdma_rxe` may lose one with a queue pair that fails, and
/// makes do with these until the connection's own are not relied on any more.
const SPARE: u32 = 16;
/// Receives that are allocated together.
const RECVS_AT_ONCE: usize = 32;
const _: () = assert!(RECVS_AT_ONCE * INLINE_MAX as usize <= CHUNK);
/// Completions that are handled before what is chained is posted.
const BATCH: u32 = 32;
/// Small pieces of memory that are kept at hand.
const STASH: usize = 32;
/// Bytes of a small piece.
const SMALL: u32 = PIECE_MIN as u32;
/// Bytes from a command to the next one in memory: a cache line.
const HEADER: usize = 64;
const _: () = assert!(command::SIZE <= HEADER);

/// What the HCA has, and who uses it.
struct Hca {
    // Fields drop in this order.
    connections: KVec<Member>,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
}

/// Where a connection receives its commands.
pub(in crate::server) enum Receive<'a> {
    /// In the poller's shared receive queue.
    Shared(&'a Arc<Srq<Handler>>),
    /// In a queue of its own, of so many receives, that completes here.
    Own(&'a Arc<Pd>, &'a Arc<Cq>, u32),
}

/// A connection that a poller looks after.
struct Member {
    queue: Arc<Queue>,
    qp: Arc<Qp<Handler>>,
    seat: Seat,
}

/// What is at hand in any context.
struct Hand {
    /// Where receives are posted; gone once the poller is closed. None if each connection has receives
    /// of its own.
    srq: Option<Arc<Srq<Handler>>>,
    receives: Receives,
    /// How many [`Seat`]s there are.
    seats: usize,
    /// Small pieces of memory.
    stash: KVec<Piece>,
    /// Connections with answers that are chained and not posted. There is room for each.
    chained: KVec<Arc<Qp<Handler>>>,
    /// The worker handles completions, and posts what is chained when it is through.
    batch: bool,
}

/// A poller. What its connections do happens in its worker, save for the answer of a command that the
/// backing takes its time for.
#[pin_data]
pub(in crate::server) struct Poller {
    vector: u32,
    /// What the pool knows it by.
    number: usize,
    device: Arc<Device>,
    /// The connections share their receives. Not every device can do that.
    shared: bool,
    pool: Arc<Pool>,
    inline_size: u32,
    worker: Arc<OwnedQueue>,
    /// The lock that the worker holds as long as it runs.
    #[pin]
    hca: Mutex<Option<Hca>>,
    #[pin]
    hand: IrqSaveSpinLock<Hand>,
    /// Where more of them are made.
    maker: Arc<OwnedQueue>,
    /// A connection wants the worker to look after it.
    attention: Atomic<u32>,
    #[pin]
    work: Work<Poller, 0>,
    #[pin]
    growth: Work<Poller, 1>,
}

impl_has_work! {
    impl HasWork<Self, 0> for Poller { self.work }
    impl HasWork<Self, 1> for Poller { self.growth }
}

/// What the HCA wakes a poller by.
struct Wake(Arc<Poller>);

impl CqNotify for Wake {
    fn notify(&self) {
        self.0.wake();
    }
}

impl Hand {
    /// Posts a receive; it comes back if that is refused.
    fn post_recv(&self, recv: KBox<Recv>) -> Result<(), (Error, KBox<Recv>)> {
        match &self.srq {
            Some(srq) => srq.recv(recv),
            None => Err((ENODEV, recv)),
        }
    }
}

/// A place for a connection that is made or was, with receives for the commands that its client may have
/// in flight. They are promised until this drops, in any context.
pub(in crate::server) struct Seat {
    poller: Arc<Poller>,
    credit: u16,
    /// Receives that are promised: for the credit, or, if they are the connection's own, for the most
    /// that it may ever get.
    promised: u16,
}

impl Seat {
    /// Whose place it is.
    pub(in crate::server) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    /// Commands that there are receives for.
    pub(in crate::server) fn credit(&self) -> u16 {
        self.credit
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut hand = self.poller.hand.lock();
        hand.receives.withdraw(self.promised.into());
        if self.poller.shared && self.credit > 0 && self.poller.device.quirks().loses_receives() {
            hand.receives.miss();
        }
        hand.seats -= 1;
    }
}

impl Poller {
    /// A poller of completion vector `vector`, with no connections, and with room for one of `credit`,
    /// at most [`Poller::credit_max`].
    /// The pool knows it by `number`, its next one. [`Poller::close`] must be its end. May sleep.
    pub(in crate::server) fn new(
        pd: &Arc<Pd>,
        (vector, number, credit): (u32, usize, u16),
        pool: &Arc<Pool>,
        inline_size: u32,
        (worker, maker): (&Arc<OwnedQueue>, &Arc<OwnedQueue>),
    ) -> Result<Arc<Self>> {
        let device = pd.device();
        let shared = device.has_srq();
        let wanted = (u32::from(credit) + SPARE + 1).next_power_of_two() - 1;
        let (most, spare, ends) = match shared {
            true => (device.limits().max_srq_wr, SPARE, 0),
            false => (u32::MAX, 0, CONNECTIONS_MAX as u32),
        };
        let receives = most.min(RECVS.max(wanted));
        let hand = Hand {
            srq: None,
            receives: Receives::new(receives, spare),
            seats: 0,
            stash: KVec::with_capacity(STASH, GFP_KERNEL)?,
            chained: KVec::with_capacity(CONNECTIONS_MAX, GFP_KERNEL)?,
            batch: false,
        };
        let connections = KVec::with_capacity(CONNECTIONS_MAX, GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                vector,
                number,
                device: device.clone(),
                shared,
                pool: pool.clone(),
                inline_size,
                worker: worker.clone(),
                hca <- new_mutex!(None, "Poller::hca"),
                hand <- new_irqsave_spinlock!(hand, "Poller::hand"),
                maker: maker.clone(),
                attention: Atomic::new(0),
                work <- new_work!("Poller::work"),
                growth <- new_work!("Poller::growth"),
            }),
            GFP_KERNEL,
        )?;
        let context = PollContext::Manual(Arc::new(Wake(this.clone()), GFP_KERNEL)?);
        // The end of each connection takes an entry, too, if its receives are its own.
        let cq = Cq::alloc(device, receives + ends, vector, context)?;
        let srq = shared.then(|| Srq::create(pd, &cq, receives, CONNECTIONS_MAX));
        let srq = srq.transpose()?;
        pool.add_poller(number, this.clone())?;
        cq.arm();
        this.hand.lock().srq = srq;
        *this.hca.lock() = Some(Hca {
            connections,
            cq,
            pd: pd.clone(),
        });
        Ok(this)
    }

    /// The most credit that a connection can have on `device`.
    pub(in crate::server) fn credit_max(device: &Device) -> u16 {
        let limits = device.limits();
        let receives = match device.has_srq() {
            true => limits.max_srq_wr.saturating_sub(SPARE),
            // Draining takes one.
            false => limits.max_qp_wr.saturating_sub(1),
        };
        u16::try_from(receives).unwrap_or(u16::MAX)
    }

    /// Whether the connections share their receives.
    pub(in crate::server) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Posts the receives that a connection begins with, if they are its own. May sleep.
    pub(in crate::server) fn begin(&self, qp: &Arc<Qp<Handler>>, credit: u16) -> Result {
        match self.shared {
            true => Ok(()),
            false => self.make_recvs(&mut credit.into(), |recv| qp.recv(recv)),
        }
    }

    /// Closes it if it has no connections; whether it did. Not while somebody asks for a seat. May sleep.
    pub(in crate::server) fn retire(&self) -> bool {
        let empty = self.hand.lock().seats == 0;
        if empty {
            self.close();
        }
        empty
    }

    /// Lets go of the HCA and of all memory. There must be no connections any more, save for such as are
    /// being dropped. May sleep.
    pub(in crate::server) fn close(&self) {
        self.pool.remove_poller(self.number);
        let (srq, stash) = {
            let mut hand = self.hand.lock();
            (hand.srq.take(), core::mem::take(&mut hand.stash))
        };
        drop((srq, stash));
        let hca = core::mem::take(&mut *self.hca.lock());
        drop(hca);
    }

    /// Has the worker look at everything. Any context.
    pub(in crate::server) fn wake(self: &Arc<Self>) {
        let _ = self.worker.enqueue::<Arc<Self>, 0>(self.clone());
    }

    /// Has the worker look after connections, too, that have set their own mark. Any context.
    pub(in crate::server) fn call(self: &Arc<Self>) {
        self.attention.store(1, Relaxed);
        self.wake();
    }

    /// A place for a connection, with receives for `credit` commands. `ENOSPC` if there is no room for
    /// that, or for one that would have `most` commands in flight. May sleep.
    pub(in crate::server) fn seat(self: &Arc<Self>, credit: u16, most: u16) -> Result<Seat> {
        {
            let mut hand = self.hand.lock();
            if hand.seats >= CONNECTIONS_MAX || hand.receives.room() < most.into() {
                return Err(ENOSPC);
            }
            hand.seats += 1;
        }
        let mut seat = Seat {
            poller: self.clone(),
            credit: 0,
            promised: 0,
        };
        match self.shared {
            true => {
                self.promise(credit)?;
                seat.promised = credit;
            }
            false => {
                let mut hand = self.hand.lock();
                hand.receives.promise(most.into()).ok_or(ENOSPC)?;
                seat.promised = most;
            }
        }
        seat.credit = credit;
        Ok(seat)
    }

    /// Makes a connection, and looks after it from then on. May sleep.
    pub(in crate::server) fn add(
        &self,
        seat: Seat,
        queue: &Arc<Queue>,
        create: impl FnOnce(Receive<'_>) -> Result<Arc<Qp<Handler>>>,
    ) -> Result<Arc<Qp<Handler>>> {
        let mut hca = self.hca.lock();
        let hca: &mut Option<Hca> = &mut hca;
        let hca = hca.as_mut().ok_or(ENODEV)?;
        let srq = self.hand.lock().srq.clone();
        let qp = create(match &srq {
            Some(srq) => Receive::Shared(srq),
            None => Receive::Own(&hca.pd, &hca.cq, seat.promised.into()),
        })?;
        // There is room for each seat.
        let _ = hca.connections.push_within_capacity(Member {
            queue: queue.clone(),
            qp: qp.clone(),
            seat,
        });
        Ok(qp)
    }

    /// Waits until the worker is through with what it is about to do. May sleep.
    pub(in crate::server) fn pause(&self) {
        drop(self.hca.lock());
    }

    /// No longer looks after a connection: once this returns, the worker does not touch it. May sleep.
    pub(in crate::server) fn remove(&self, queue: &Arc<Queue>) {
        let mut hca = self.hca.lock();
        let hca: &mut Option<Hca> = &mut hca;
        let removed = hca.as_mut().and_then(|hca| {
            let mut members = hca.connections.iter();
            let place = members.position(|member| Arc::ptr_eq(&member.queue, queue))?;
            hca.connections.remove(place).ok()
        });
        drop(removed);
    }

    /// Makes sure of receives for `count` commands more. Once this returns, a client may rely on them:
    /// the queue must never run dry, as `rdma_rxe` would not stand that. `ENOSPC` if there is no room.
    /// May sleep.
    fn promise(&self, count: u16) -> Result {
        let missing = self.hand.lock().receives.promise(count.into());
        let mut missing = missing.ok_or(ENOSPC)?;
        let made = self.make_recvs(&mut missing, |recv| self.hand.lock().post_recv(recv));
        if made.is_err() {
            let mut hand = self.hand.lock();
            hand.receives.lose(missing);
            hand.receives.withdraw(count.into());
        }
        made
    }

    /// Makes receives, has them posted, and counts them down. May sleep.
    fn make_recvs(
        &self,
        missing: &mut u32,
        mut post: impl FnMut(KBox<Recv>) -> Result<(), (Error, KBox<Recv>)>,
    ) -> Result {
        let size = usize::try_from(self.inline_size)?;
        while *missing > 0 {
            let count = RECVS_AT_ONCE.min(usize::try_from(*missing)?);
            let headers = DmaBuffer::alloc(&self.device, count * HEADER, Direction::FromDevice)?;
            let memory = Arc::new(self.pool.get_lasting(count * size)?, GFP_KERNEL)?;
            for (index, mut header) in headers.split(HEADER).take(count).enumerate() {
                // What is behind the command goes to the data.
                header.truncate(command::SIZE)?;
                let recv = Recv {
                    header,
                    data: memory.piece(index * size, size)?,
                    _memory: memory.clone(),
                };
                let recv = KBox::new(recv, GFP_KERNEL)?;
                post(recv).map_err(|(error, _)| error)?;
                *missing -= 1;
            }
        }
        Ok(())
    }

    /// Posts a receive that is not needed any more again, if it was promised. Any context.
    pub(in crate::server) fn put_recv(&self, recv: KBox<Recv>) {
        let mut hand = self.hand.lock();
        let surplus = match hand.receives.keep() {
            true => hand.post_recv(recv).err().map(|(_, recv)| {
                // The poller is closed.
                hand.receives.lose(1);
                recv
            }),
            false => Some(recv),
        };
        drop(hand);
        drop(surplus);
    }

    /// Memory for `len` bytes, or `None` if the command has to wait. Any context.
    pub(in crate::server) fn get(&self, len: u32) -> Option<Piece> {
        if len <= SMALL && !self.pool.is_short() {
            let piece = self.hand.lock().stash.pop();
            if let Some(mut piece) = piece {
                return piece.fit(len).is_ok().then_some(piece);
            }
        }
        self.pool.get(len, self.number)
    }

    /// Takes back memory. Any context.
    pub(in crate::server) fn put(&self, piece: Piece) {
        let surplus = if piece.is_small() && !self.pool.is_short() {
            let full = self.hand.lock().stash.push_within_capacity(piece);
            full.err().map(|error| error.0)
        } else {
            Some(piece)
        };
        drop(surplus);
    }

    /// Gives the stash back if somebody waits for memory.
    fn give_back(&self) {
        while self.pool.is_short() {
            let piece = self.hand.lock().stash.pop();
            if piece.is_none() {
                return;
            }
        }
    }

    /// The completion vector.
    #[inline]
    pub(in crate::server) fn vector(&self) -> u32 {
        self.vector
    }

    /// Whether somebody waits for memory. Any context.
    pub(in crate::server) fn is_short(&self) -> bool {
        self.pool.is_short()
    }

    /// A connection wants more credit, or there may be some now. Any context.
    pub(in crate::server) fn want_credit(self: &Arc<Self>) {
        let _ = self.maker.enqueue::<Arc<Self>, 1>(self.clone());
    }

    /// An answer was chained. Whether it is to be posted by the caller, or else the worker does so when
    /// it is through. Any context.
    pub(in crate::server) fn chained(&self, qp: &Arc<Qp<Handler>>) -> bool {
        let mut hand = self.hand.lock();
        if !hand.batch {
            return true;
        }
        if hand.chained.iter().any(|other| Arc::ptr_eq(other, qp)) {
            return false;
        }
        hand.chained.push_within_capacity(qp.clone()).is_err()
    }

    /// Shows what the connections did. May sleep.
    pub(in crate::server) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hca = self.hca.lock();
        let hca: &Option<Hca> = &hca;
        let mut connections = hca.iter().flat_map(|hca| &hca.connections);
        connections.try_for_each(|member| member.queue.show(&member.qp, f))
    }

    /// Looks after all connections.
    fn look(&self, hca: &Hca) {
        let (mut resumed, mut short) = (false, false);
        for member in &hca.connections {
            let (some, wait) = member.queue.look();
            resumed |= some;
            short |= wait;
        }
        // Who was served goes to the end of the line.
        if resumed || !short {
            self.pool.leave(self.number);
        }
        if short {
            self.pool.wait(self.number);
        }
    }

    /// Handles what has come in. Returns whether there may be more.
    fn poll(self: &Arc<Self>, hca: &Hca) -> bool {
        self.hand.lock().batch = true;
        let handled = plugged(|| {
            let handled = hca.cq.poll(BATCH);
            if self.attention.xchg(0, Relaxed) != 0 || self.pool.is_short() {
                self.give_back();
                self.look(hca);
            }
            handled
        });
        let mut chained = {
            let mut hand = self.hand.lock();
            hand.batch = false;
            core::mem::take(&mut hand.chained)
        };
        for qp in chained.drain_all() {
            qp.ring();
        }
        // Nobody has put anything there meanwhile.
        core::mem::swap(&mut self.hand.lock().chained, &mut chained);
        handled == BATCH || hca.cq.arm()
    }
}

impl WorkItem<0> for Poller {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let hca = this.hca.lock();
        if let Some(hca) = &*hca {
            if this.poll(hca) {
                this.wake();
            }
        }
    }
}

impl WorkItem<1> for Poller {
    type Pointer = Arc<Self>;

    /// More credit is wanted.
    fn run(this: Arc<Self>) {
        for index in 0..CONNECTIONS_MAX {
            let (queue, qp, own) = {
                let hca = this.hca.lock();
                let hca: &Option<Hca> = &hca;
                match hca.as_ref().and_then(|hca| hca.connections.get(index)) {
                    Some(Member { queue, qp, seat }) => {
                        (queue.clone(), qp.clone(), seat.promised - seat.credit)
                    }
                    None => return,
                }
            };
            // If there is no room or no memory, the pool has this asked again.
            let room = match this.shared {
                true => this.hand.lock().receives.room(),
                false => own.into(),
            };
            let more = queue.credit_wanted();
            let more = more.min(u16::try_from(room).unwrap_or(u16::MAX));
            if more == 0 {
                continue;
            }
            let made = queue.make_commands(queue.credit() + more);
            let made = made.and_then(|()| match this.shared {
                true => this.promise(more),
                false => this.make_recvs(&mut more.into(), |recv| qp.recv(recv)),
            });
            // The owner of the connection may wait for it to be let go of.
            drop(qp);
            if made.is_err() {
                continue;
            }
            let mut hca = this.hca.lock();
            let hca: &mut Option<Hca> = &mut hca;
            let mut members = hca.iter_mut().flat_map(|hca| &mut hca.connections);
            match members.find(|member| Arc::ptr_eq(&member.queue, &queue)) {
                Some(member) => {
                    member.seat.credit += more;
                    if this.shared {
                        member.seat.promised += more;
                    }
                    queue.give_credit(more);
                }
                None if this.shared => this.hand.lock().receives.withdraw(more.into()),
                None => {}
            }
        }
    }
}
