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

use crate::block::bio::plugged;
use crate::buddy::{
    CHUNK,
    PIECE_MIN, //
};
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
    command::Recv,
    pool::{
        Piece,
        Pool, //
    },
    queue::{
        Handler,
        Queue, //
    },
};
use crate::sync::{
    new_irqsave_spinlock,
    IrqSaveSpinLock, //
};
use crate::workqueue::OwnedQueue;

/// I/O connections that a poller can have.
const CONNECTIONS_MAX: usize = 256;
/// Receives that a poller can have.
const RECVS_MAX: u32 = 4096;
/// Receives beyond those that clients rely on: `rdma_rxe` may lose one with a queue pair that fails.
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
    connections: KVec<(Arc<Queue>, Arc<Qp<Handler>>)>,
    cq: Arc<Cq>,
}

/// What is at hand in any context.
struct Hand {
    /// Where receives are posted; gone once the poller is closed.
    srq: Option<Arc<Srq<Handler>>>,
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
pub(super) struct Poller {
    vector: usize,
    device: Arc<Device>,
    pool: Arc<Pool>,
    inline_size: u32,
    worker: Arc<OwnedQueue>,
    /// The lock that the worker holds as long as it runs.
    #[pin]
    hca: Mutex<Option<Hca>>,
    #[pin]
    hand: IrqSaveSpinLock<Hand>,
    /// Receives that there are, wherever they are.
    recvs: Atomic<u32>,
    /// Receives that clients rely on.
    promised: Atomic<u32>,
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

impl Poller {
    /// A poller of completion vector `vector`, with no connections. [`Poller::close`] must be its end.
    /// May sleep.
    pub(super) fn new(
        pd: &Arc<Pd>,
        vector: usize,
        pool: &Arc<Pool>,
        inline_size: u32,
        (worker, maker): (&Arc<OwnedQueue>, &Arc<OwnedQueue>),
    ) -> Result<Arc<Self>> {
        let device = pd.device();
        let receives = device.limits().max_srq_wr.min(RECVS_MAX);
        let hand = Hand {
            srq: None,
            stash: KVec::with_capacity(STASH, GFP_KERNEL)?,
            chained: KVec::with_capacity(CONNECTIONS_MAX, GFP_KERNEL)?,
            batch: false,
        };
        let connections = KVec::with_capacity(CONNECTIONS_MAX, GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                vector,
                device: device.clone(),
                pool: pool.clone(),
                inline_size,
                worker: worker.clone(),
                hca <- new_mutex!(None, "Poller::hca"),
                hand <- new_irqsave_spinlock!(hand, "Poller::hand"),
                recvs: Atomic::new(0),
                promised: Atomic::new(0),
                maker: maker.clone(),
                attention: Atomic::new(0),
                work <- new_work!("Poller::work"),
                growth <- new_work!("Poller::growth"),
            }),
            GFP_KERNEL,
        )?;
        let context = PollContext::Manual(Arc::new(Wake(this.clone()), GFP_KERNEL)?);
        let cq = Cq::alloc(device, receives, u32::try_from(vector)?, context)?;
        let srq = Srq::create(pd, &cq, receives, CONNECTIONS_MAX)?;
        cq.arm();
        this.hand.lock().srq = Some(srq);
        *this.hca.lock() = Some(Hca { connections, cq });
        pool.set_poller(vector, Some(this.clone()));
        Ok(this)
    }

    /// Lets go of the HCA and of all memory. There must be no connections any more. May sleep.
    pub(super) fn close(&self) {
        self.pool.set_poller(self.vector, None);
        let (srq, stash) = {
            let mut hand = self.hand.lock();
            (hand.srq.take(), core::mem::take(&mut hand.stash))
        };
        drop((srq, stash));
        let hca = core::mem::take(&mut *self.hca.lock());
        drop(hca);
    }

    /// Has the worker look at everything. Any context.
    pub(super) fn wake(self: &Arc<Self>) {
        let _ = self.worker.enqueue::<Arc<Self>, 0>(self.clone());
    }

    /// Has the worker look after connections, too, that have set their own mark. Any context.
    pub(super) fn call(self: &Arc<Self>) {
        self.attention.store(1, Relaxed);
        self.wake();
    }

    /// Makes a connection on the shared receive queue, with receives for `credit` commands, and looks
    /// after it from then on. May sleep.
    pub(super) fn add(
        &self,
        queue: &Arc<Queue>,
        credit: u16,
        create: impl FnOnce(&Arc<Srq<Handler>>) -> Result<Arc<Qp<Handler>>>,
    ) -> Result<Arc<Qp<Handler>>> {
        self.provide(credit)?;
        let mut hca = self.hca.lock();
        let hca: &mut Option<Hca> = &mut hca;
        let hca = hca.as_mut().ok_or(ENODEV)?;
        if hca.connections.len() >= CONNECTIONS_MAX {
            return Err(EBUSY);
        }
        let srq = self.hand.lock().srq.clone().ok_or(ENODEV)?;
        let qp = create(&srq)?;
        let _ = hca
            .connections
            .push_within_capacity((queue.clone(), qp.clone()));
        self.promised.fetch_add(credit.into(), Relaxed);
        Ok(qp)
    }

    /// No longer looks after a connection: once this returns, the worker does not touch it. May sleep.
    pub(super) fn remove(&self, queue: &Arc<Queue>) {
        let mut hca = self.hca.lock();
        let hca: &mut Option<Hca> = &mut hca;
        let removed = hca.as_mut().and_then(|hca| {
            let place = hca
                .connections
                .iter()
                .position(|(other, _)| Arc::ptr_eq(other, queue))?;
            self.promised.fetch_sub(queue.credit().into(), Relaxed);
            hca.connections.remove(place).ok()
        });
        drop(removed);
    }

    /// Posts so many receives more that as many can be promised to a client. May sleep.
    fn provide(&self, count: u16) -> Result {
        let wanted = self.promised.load(Relaxed) + u32::from(count) + SPARE;
        let missing = wanted.saturating_sub(self.recvs.load(Relaxed));
        let missing = usize::try_from(missing)?;
        if missing == 0 {
            return Ok(());
        }
        let size = usize::try_from(self.inline_size)?;
        for first in (0..missing).step_by(RECVS_AT_ONCE) {
            let count = RECVS_AT_ONCE.min(missing - first);
            let headers = DmaBuffer::alloc(&self.device, count * HEADER, Direction::FromDevice)?;
            let memory = Arc::new(self.pool.get_lasting(count * size)?, GFP_KERNEL)?;
            for (index, mut header) in headers.split(HEADER).enumerate() {
                // What is behind the command goes to the data.
                header.truncate(command::SIZE)?;
                let recv = Recv {
                    header,
                    data: memory.piece(index * size, size)?,
                    _memory: memory.clone(),
                };
                let recv = KBox::new(recv, GFP_KERNEL)?;
                self.recvs.fetch_add(1, Relaxed);
                self.post_recv(recv);
            }
        }
        Ok(())
    }

    /// Posts a receive that is not needed any more again, if it was promised. Any context.
    pub(super) fn put_recv(&self, recv: KBox<Recv>) {
        if self.recvs.load(Relaxed) > self.promised.load(Relaxed) + SPARE {
            self.recvs.fetch_sub(1, Relaxed);
            return;
        }
        self.post_recv(recv);
    }

    fn post_recv(&self, recv: KBox<Recv>) {
        let hand = self.hand.lock();
        let refused = match &hand.srq {
            Some(srq) => srq.recv(recv).err().map(|(_, recv)| recv),
            None => Some(recv),
        };
        drop(hand);
        if refused.is_some() {
            // The poller is closed, or there are more of them than it has room for.
            self.recvs.fetch_sub(1, Relaxed);
        }
    }

    /// Memory for `len` bytes, or `None` if the command has to wait. Any context.
    pub(super) fn get(&self, len: u32) -> Option<Piece> {
        if len <= SMALL && !self.pool.is_short() {
            let piece = self.hand.lock().stash.pop();
            if let Some(mut piece) = piece {
                return piece.fit(len).is_ok().then_some(piece);
            }
        }
        self.pool.get(len, self.vector)
    }

    /// Takes back memory. Any context.
    pub(super) fn put(&self, piece: Piece) {
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
    pub(super) fn vector(&self) -> u32 {
        u32::try_from(self.vector).unwrap_or(0)
    }

    /// Whether somebody waits for memory. Any context.
    pub(super) fn is_short(&self) -> bool {
        self.pool.is_short()
    }

    /// A connection wants more credit. Any context.
    pub(super) fn want_credit(self: &Arc<Self>) {
        let _ = self.maker.enqueue::<Arc<Self>, 1>(self.clone());
    }

    /// An answer was chained. Whether it is to be posted by the caller, or else the worker does so when
    /// it is through. Any context.
    pub(super) fn chained(&self, qp: &Arc<Qp<Handler>>) -> bool {
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
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hca = self.hca.lock();
        let hca: &Option<Hca> = &hca;
        let mut connections = hca.iter().flat_map(|hca| &hca.connections);
        connections.try_for_each(|(queue, qp)| queue.show(qp, f))
    }

    /// Looks after all connections.
    fn look(&self, hca: &Hca) {
        let (mut resumed, mut short) = (false, false);
        for (queue, _) in &hca.connections {
            let (some, wait) = queue.look();
            resumed |= some;
            short |= wait;
        }
        // Who was served goes to the end of the line.
        if resumed || !short {
            self.pool.leave(self.vector);
        }
        if short {
            self.pool.wait(self.vector);
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
            let queue = {
                let hca = this.hca.lock();
                let hca: &Option<Hca> = &hca;
                match hca.as_ref().and_then(|hca| hca.connections.get(index)) {
                    Some((queue, _)) => queue.clone(),
                    None => return,
                }
            };
            let more = queue.credit_wanted();
            if more == 0 {
                continue;
            }
            if this.provide(more).is_err() {
                // There may be memory when it is wanted again.
                queue.give_credit(0);
                continue;
            }
            let hca = this.hca.lock();
            let hca: &Option<Hca> = &hca;
            let mut connections = hca.iter().flat_map(|hca| &hca.connections);
            if connections.any(|(other, _)| Arc::ptr_eq(other, &queue)) {
                this.promised.fetch_add(more.into(), Relaxed);
                queue.give_credit(more);
            }
        }
    }
}
