// SPDX-License-Identifier: GPL-2.0

//! A poller: receives the commands of the I/O connections of one completion vector, in a worker of
//! its own, and has what these share: receives, memory, and the answers that are to be posted.
//!
//! All that a command does happens in that worker, except for what follows when the backing device
//! ends a bio: that may be any context.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant, //
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
    frame,
    Name,
    Protection, //
};
use crate::rdma::{
    cq::{
        Cq,
        CqNotify,
        Manual, //
    },
    device::Device,
    pd::Pd,
    qp::{
        Qp,
        QpHandler, //
    },
    remnant::ObjectRef,
    srq::Srq,
};
use crate::server::{
    block::{
        credit::ReceiveCredit,
        recv::Recv,
        turn::Turn,
        vigil::Vigil, //
    },
    memory::{
        account::{
            Account,
            Requester, //
        },
        buddy::{
            PieceLen,
            PIECE_MIN, //
        },
        pool::{
            Piece,
            Pool, //
        },
        receives::Receives,
        state::PoolEvents, //
    },
};

/// I/O connections that a poller can have: there is a bit of a word for each.
pub(super) const CONNECTIONS_MAX: usize = u64::BITS as usize;
/// Receives that a poller has entries for, unless one connection wants more: those of 59 idle
/// connections (see [`CREDIT_FIRST`](super::connection::CREDIT_FIRST)), or of one of depth 128 that
/// is busy and 28 that are idle. A device's queues have a power of two of entries, and some leave
/// one empty: there they take 32 KiB for receives and 16 KiB for completions.
const RECVS: u32 = 255;
/// Receives beyond those that clients rely on, on a device that may lose one with a queue pair that
/// fails: it makes do with these until the connection's own are not relied on any more.
const SPARE: u32 = 16;
/// How often a task that shows a poller looks whether its worker is busy, once in a millisecond.
const BUSY_LOOKS: u32 = 50;
/// Completions that are handled before the chained answers are posted.
const BATCH: u32 = 32;
/// Small pieces of memory that a poller keeps for itself.
const STASH: usize = 32;

/// Returns the number of receives of a shared receive queue that no client may rely on.
pub(super) fn spare(device: &Device) -> u32 {
    match device.quirks().loses_receives() {
        true => SPARE,
        false => 0,
    }
}

/// An I/O connection as its poller sees it.
pub(in crate::server) trait Polled: Send + Sync + Sized + 'static {
    /// Handles the completions of the queue pair.
    type Handler: QpHandler<Recv = KBox<Recv>>;

    /// Handles the completions of sends, lets commands that wait go on, and looks whether others
    /// wait for what its client has. Runs in the poller's worker.
    fn progress(&self, qp: &Qp<Self::Handler>);

    /// Returns how many commands the client may have in flight now. Any context.
    fn credit(&self) -> u16;

    /// Returns how much more credit the client could use. Any context.
    fn credit_wanted(&self) -> u16;

    /// Makes sure that there are `count` commands in all. Calls must not be concurrent. May sleep.
    fn make_commands(&self, count: u16) -> Result;

    /// Grants `more` credit, for which there are receives. The client learns of it with the next
    /// answer. Any context.
    fn grant_credit(&self, more: u16);

    /// Shows what the connection did, and how many interrupts its poller had. May sleep.
    fn show(
        &self,
        qp: &Qp<Self::Handler>,
        interrupts: u64,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result;
}

/// The queue that a connection receives its commands from.
pub(in crate::server) enum ReceiveQueue<'a, H: QpHandler> {
    /// The poller's shared receive queue.
    Shared(&'a ObjectRef<Srq<H>>),
    /// A queue of its own, with so many receives, that completes on the poller's completion queue.
    Own(&'a Arc<Pd>, &'a Cq<Manual>, u32),
}

/// What the HCA has for a poller, and the connections that use it.
pub(super) struct Hca<C: Polled> {
    // Fields drop in this order.
    pub(super) connections: KVec<Entry<C>>,
    cq: Cq<Manual>,
    pd: Arc<Pd>,
    turn: Turn,
}

/// A connection that a poller looks after.
pub(super) struct Entry<C: Polled> {
    pub(super) connection: Arc<C>,
    pub(super) qp: ObjectRef<Qp<C::Handler>>,
    pub(super) credit: ReceiveCredit<C>,
}

/// What a poller's connections share in any context.
pub(super) struct Shared<C: Polled> {
    /// `None` once the poller is closed, or if each connection has a receive queue of its own.
    srq: Option<ObjectRef<Srq<C::Handler>>>,
    /// The number of receives, and how many of them are promised.
    pub(super) receives: Receives,
    /// The bits of the [`ReceiveCredit`]s.
    pub(super) users: u64,
    /// Small pieces of memory.
    stash: KVec<Piece>,
}

impl<C: Polled> Shared<C> {
    /// Posts a receive. Gives it back if that fails.
    pub(super) fn post_recv(&self, recv: KBox<Recv>) -> Result<(), (Error, KBox<Recv>)> {
        match &self.srq {
            Some(srq) => srq.recv(recv),
            None => Err((ENODEV, recv)),
        }
    }
}

/// A poller.
#[pin_data]
pub(in crate::server) struct Poller<C: Polled> {
    vector: u32,
    /// The number by which the pool knows it.
    number: usize,
    pub(super) device: Arc<Device>,
    /// The connections share a receive queue. Not every device can do that.
    pub(super) has_srq: bool,
    pub(super) pool: Arc<Pool>,
    pub(super) inline_size: u32,
    /// Bytes of a message before its inline data.
    pub(super) header: usize,
    worker: Arc<OwnedQueue>,
    /// The worker holds this lock while it runs.
    #[pin]
    pub(super) hca: Mutex<Option<Hca<C>>>,
    #[pin]
    pub(super) shared: IrqSaveSpinLock<Shared<C>>,
    /// The worker posts what is chained after its round: it clears this, then it takes `chained`.
    batch: Atomic<u32>,
    /// The bits of the connections with answers that are chained, and that the worker posts.
    chained: Atomic<u64>,
    /// The workqueue on which receives and commands are made.
    maker: Arc<OwnedQueue>,
    /// A connection wants the worker to look after it.
    attention: Atomic<u32>,
    /// The number of tasks that wait for `hca`.
    visitors: Atomic<u32>,
    #[pin]
    work: Work<Poller<C>, 0>,
    #[pin]
    credit_work: Work<Poller<C>, 1>,
}

impl_has_work! {
    impl{C: Polled} HasWork<Self, 0> for Poller<C> { self.work }
    impl{C: Polled} HasWork<Self, 1> for Poller<C> { self.credit_work }
}

/// Wakes a poller.
struct Wake<C: Polled>(Arc<Poller<C>>);

impl<C: Polled> CqNotify for Wake<C> {
    fn notify(&self) {
        self.0.wake();
    }
}

impl<C: Polled> PoolEvents for Wake<C> {
    fn memory_changed(&self) {
        self.0.attend();
    }

    fn retry(&self) {
        self.0.extend_credit();
    }
}

impl<C: Polled> Poller<C> {
    /// Makes a poller of completion vector `vector`, with no connections, and with receives for at
    /// least one of `credit`, at most [`Poller::credit_max`].
    ///
    /// The pool knows it by `number`, its next one. [`Poller::close`] must be its end. May sleep.
    pub(in crate::server) fn new(
        pd: &Arc<Pd>,
        (vector, number, credit): (u32, usize, u16),
        pool: &Arc<Pool>,
        (inline_size, protection): (u32, Protection),
        vigil: Vigil,
        (worker, maker): (&Arc<OwnedQueue>, &Arc<OwnedQueue>),
    ) -> Result<Arc<Self>> {
        let device = pd.device();
        let has_srq = device.has_srq();
        let spare = spare(device);
        let wanted = (u32::from(credit) + spare + 1).next_power_of_two() - 1;
        let (max, spare, ends) = match has_srq {
            true => (device.limits().max_srq_wr, spare, 0),
            false => (u32::MAX, 0, CONNECTIONS_MAX as u32),
        };
        let receives = max.min(RECVS.max(wanted));
        let shared = Shared {
            srq: None,
            receives: Receives::new(receives, spare),
            users: 0,
            stash: KVec::with_capacity(STASH, GFP_KERNEL)?,
        };
        let connections = KVec::with_capacity(CONNECTIONS_MAX, GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                vector,
                number,
                device: device.clone(),
                has_srq,
                pool: pool.clone(),
                inline_size,
                header: match protection.is_on() {
                    true => frame::COMMAND_SIZE,
                    false => command::SIZE,
                },
                worker: worker.clone(),
                hca <- new_mutex!(None, "Poller::hca"),
                shared <- new_irqsave_spinlock!(shared, "Poller::shared"),
                batch: Atomic::new(0),
                chained: Atomic::new(0),
                maker: maker.clone(),
                attention: Atomic::new(0),
                visitors: Atomic::new(0),
                work <- new_work!("Poller::work"),
                credit_work <- new_work!("Poller::credit_work"),
            }),
            GFP_KERNEL,
        )?;
        let wake = Arc::new(Wake(this.clone()), GFP_KERNEL)?;
        // With receives of its own, the end of each connection takes an entry, too.
        let cq = Cq::<Manual>::alloc(device, receives + ends, vector, wake.clone())?;
        let srq = has_srq.then(|| Srq::create(pd, &cq, receives, CONNECTIONS_MAX, None));
        let srq = srq.transpose()?;
        pool.add_poller(number, wake)?;
        cq.arm();
        this.shared.lock().srq = srq;
        *this.hca.lock() = Some(Hca {
            connections,
            cq,
            pd: pd.clone(),
            turn: Turn::new(vigil),
        });
        Ok(this)
    }

    /// Closes the poller if it has no connections, and returns whether it did. Must not be called
    /// while a connection is being added. May sleep.
    pub(in crate::server) fn close_if_unused(&self) -> bool {
        let unused = self.shared.lock().users == 0;
        if unused {
            self.close();
        }
        unused
    }

    /// Releases the HCA and all memory. There must be no connections any more, except for such as
    /// are being dropped. May sleep.
    pub(in crate::server) fn close(&self) {
        self.pool.remove_poller(self.number);
        let (srq, stash) = {
            let mut shared = self.shared.lock();
            (shared.srq.take(), core::mem::take(&mut shared.stash))
        };
        drop((srq, stash));
        let hca = core::mem::take(&mut *self.visit(|| self.hca.lock()));
        drop(hca);
    }

    /// Lets the worker handle completions. Any context.
    fn wake(self: &Arc<Self>) {
        let _ = self.worker.enqueue::<Arc<Self>, 0>(self.clone());
    }

    /// Lets the worker call [`Polled::progress`] of the connections, too. Any context.
    pub(in crate::server) fn attend(self: &Arc<Self>) {
        self.attention.store(1, Release);
        self.wake();
    }

    /// Gives connections the credit that they want, if there is memory, in a task of its own. Any
    /// context.
    pub(in crate::server) fn extend_credit(self: &Arc<Self>) {
        let _ = self.maker.enqueue::<Arc<Self>, 1>(self.clone());
    }

    /// Makes the queue pair of a connection with `create`, and looks after the connection from then
    /// on. May sleep.
    pub(in crate::server) fn add(
        &self,
        credit: ReceiveCredit<C>,
        connection: &Arc<C>,
        create: impl FnOnce(ReceiveQueue<'_, C::Handler>) -> Result<ObjectRef<Qp<C::Handler>>>,
    ) -> Result<ObjectRef<Qp<C::Handler>>> {
        let mut hca = self.visit(|| self.hca.lock());
        let hca: &mut Option<Hca<C>> = &mut hca;
        let hca = hca.as_mut().ok_or(ENODEV)?;
        let srq = self.shared.lock().srq.clone();
        let qp = create(match &srq {
            Some(srq) => ReceiveQueue::Shared(srq),
            None => ReceiveQueue::Own(&hca.pd, &hca.cq, credit.promised.into()),
        })?;
        // Cannot fail: there is capacity for each `ReceiveCredit`.
        let _ = hca.connections.push_within_capacity(Entry {
            connection: connection.clone(),
            qp: qp.clone(),
            credit,
        });
        Ok(qp)
    }

    /// Stops looking after a connection: once this returns, the worker does not touch it. May
    /// sleep.
    pub(in crate::server) fn remove(&self, connection: &Arc<C>) {
        let mut hca = self.visit(|| self.hca.lock());
        let hca: &mut Option<Hca<C>> = &mut hca;
        let removed = hca.as_mut().and_then(|hca| {
            let mut entries = hca.connections.iter();
            let place = entries.position(|entry| Arc::ptr_eq(&entry.connection, connection))?;
            hca.connections.remove(place).ok()
        });
        drop(removed.map(|mut entry| {
            entry.credit.lost = entry.qp.has_lost_receives();
            entry
        }));
    }

    /// Returns true if the connections share a receive queue.
    #[inline]
    pub(in crate::server) fn has_srq(&self) -> bool {
        self.has_srq
    }

    /// Returns the completion vector.
    #[inline]
    pub(in crate::server) fn vector(&self) -> u32 {
        self.vector
    }

    /// Posts a receive to the shared receive queue again, or frees it if there are more than were
    /// promised. Any context.
    pub(in crate::server) fn put_recv(&self, recv: KBox<Recv>) {
        let mut shared = self.shared.lock();
        let surplus = match shared.receives.keep() {
            true => shared.post_recv(recv).err().map(|(_, recv)| {
                // The poller is closed.
                shared.receives.lose(1);
                recv
            }),
            false => Some(recv),
        };
        drop(shared);
        drop(surplus);
    }

    /// Makes a requester of memory for a connection of this poller. May sleep.
    pub(in crate::server) fn requester(&self, account: &Arc<Account>) -> Result<Requester> {
        Requester::new(account, self.number)
    }

    /// Returns memory for `len` bytes. If there is none yet, the worker calls [`Polled::progress`]
    /// when there is, and the connection has to ask again. Runs in the poller's worker.
    pub(in crate::server) fn get(&self, len: PieceLen, requester: &Requester) -> Option<Piece> {
        if len.bytes() == PIECE_MIN {
            let at_hand = || self.shared.lock().stash.pop();
            if let Some(mut piece) = self.pool.get_small(requester, at_hand) {
                // Cannot fail: it has as many bytes.
                return piece.fit(len).ok().map(|()| piece);
            }
        }
        self.pool.get(len, requester)
    }

    /// Takes back memory. Any context.
    pub(in crate::server) fn put(&self, mut piece: Piece) {
        if !piece.release() || self.pool.is_short() {
            return drop(piece);
        }
        let full = self.shared.lock().stash.push_within_capacity(piece);
        drop(full);
        // Who has begun to wait meanwhile has the stash given back after that, or is seen here.
        self.give_back();
    }

    /// Returns true if a connection of any poller waits for memory. Any context.
    pub(in crate::server) fn is_short(&self) -> bool {
        self.pool.is_short()
    }

    /// Gives the stash back to the pool while a connection waits for memory. Any context.
    fn give_back(&self) {
        while self.pool.is_short() {
            let piece = self.shared.lock().stash.pop();
            if piece.is_none() {
                return;
            }
        }
    }

    /// Notes that an answer of the connection with this `bit` was chained. Returns true if the
    /// caller has to post it; otherwise the worker does so at the end of its round. Any context.
    pub(in crate::server) fn chained(&self, bit: u64) -> bool {
        if self.batch.load(Relaxed) == 0 {
            return true;
        }
        let mut chained = self.chained.load(Relaxed);
        // Also if the bit is set: only so does the worker, which takes it, see what was chained.
        while let Err(now) = self.chained.cmpxchg(chained, chained | bit, Full) {
            chained = now;
        }
        // Either this sees that the worker has ended its round just now, or that sees the bit.
        self.batch.load(Relaxed) == 0
    }

    /// Shows what the connections to `export` did, or that the worker was busy for [`BUSY_LOOKS`]
    /// ms: it may sleep in a disk that hangs. May sleep.
    pub(in crate::server) fn show(&self, export: &Name, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let look = |first| match first {
            true => self.hca.try_lock(),
            false => {
                fsleep(Delta::from_millis(1));
                self.hca.try_lock()
            }
        };
        let hca = self.visit(|| (0..=BUSY_LOOKS).find_map(|looks| look(looks == 0)));
        let Some(hca) = hca else {
            return writeln!(f, "export {export} vector {} busy", self.vector);
        };
        let hca: &Option<Hca<C>> = &hca;
        hca.iter().try_for_each(|hca| {
            let interrupts = hca.cq.interrupts();
            let mut entries = hca.connections.iter();
            entries.try_for_each(|entry| entry.connection.show(&entry.qp, interrupts, f))
        })
    }

    /// Lets the commands of all connections that wait for something go on.
    fn progress(&self, hca: &Hca<C>) {
        for entry in &hca.connections {
            entry.connection.progress(&entry.qp);
        }
    }

    /// Handles the commands that were received, and looks for more as long as that pays and no
    /// other task wants the CPU. Returns true if there may be more: others have their turn first.
    fn watch(self: &Arc<Self>, hca: &mut Hca<C>) -> bool {
        if !hca.turn.is_on() {
            return self.poll(hca) == BATCH || hca.cq.arm();
        }
        let mut now = hca.turn.begin();
        loop {
            let handled = self.poll(hca);
            if handled > 0 {
                hca.turn.handled(now);
            }
            if handled == BATCH {
                return true;
            }
            // Without what a batch needs: there may be nothing for long, and answers of other CPUs
            // are not to wait for this one.
            loop {
                now = Instant::now();
                if self.is_wanted() || !hca.turn.goes_on(now) {
                    return hca.cq.arm();
                }
                if hca.turn.is_over(now) {
                    return true;
                }
                if hca.cq.poll(1) > 0 {
                    hca.turn.handled(now);
                    break;
                }
            }
        }
    }

    /// Returns true if connections wait for something, or a task for the lock of the worker.
    fn is_wanted(&self) -> bool {
        self.visitors.load(Relaxed) > 0 || self.attention.load(Relaxed) != 0 || self.pool.is_short()
    }

    /// Takes the lock that the worker holds while it runs, with `take`. May sleep.
    fn visit<T>(&self, take: impl FnOnce() -> T) -> T {
        self.visitors.fetch_add(1, Relaxed);
        let taken = take();
        self.visitors.fetch_sub(1, Relaxed);
        taken
    }

    /// Handles commands that were received, at most [`BATCH`], and returns how many they were.
    fn poll(self: &Arc<Self>, hca: &mut Hca<C>) -> u32 {
        self.batch.store(1, Relaxed);
        let handled = plugged(|| {
            let handled = hca.cq.poll(BATCH);
            if self.attention.xchg(0, Acquire) != 0 || self.pool.is_short() {
                self.give_back();
                self.progress(hca);
            }
            handled
        });
        self.batch.store(0, Relaxed);
        // Pairs with `chained()`.
        let chained = self.chained.xchg(0, Full);
        if chained != 0 {
            let entries = hca.connections.iter();
            let ringing = entries.filter(|entry| entry.credit.bit() & chained != 0);
            ringing.for_each(|entry| entry.qp.ring());
        }
        handled
    }
}

impl<C: Polled> WorkItem<0> for Poller<C> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut hca = this.hca.lock();
        let hca: &mut Option<Hca<C>> = &mut hca;
        if let Some(hca) = hca {
            if this.watch(hca) {
                this.wake();
            }
        }
    }
}
