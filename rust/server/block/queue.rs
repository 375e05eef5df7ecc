// SPDX-License-Identifier: GPL-2.0

//! The queues of I/O connections, and the pollers that receive their commands.
//!
//! A [`IoQueue`] is one I/O connection: a queue pair with the commands of one client. A [`Poller`]
//! looks after the queues of one completion vector: it has the completion queue and, where the
//! device can do that, the shared receive queue in which their commands come in. Its worker is the
//! only one that begins commands ([`QpHandler::recv_done`]). They end where the backing device or
//! the HCA ends them, in any context.
//!
//! A command that cannot go on waits in a FIFO of its queue: for a slot, while the HCA is not done
//! with the answers before it; for memory; until fewer RDMA READs are under way; or for a task that
//! may sleep. Those that come in later do not overtake it.

// Long: all that a command meets between the HCA and its own file.

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
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    errno::ESHUTDOWN,
    free::FreeSet,
    sync::{
        self,
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock,
        Place,
        Released, //
    },
    workqueue::OwnedQueue, //
};
use crate::block::bio::plugged;
use crate::link::cipher::BadFrame;
use crate::proto::{
    command,
    frame::{
        self,
        Number, //
    },
    response,
    wire::INLINE_MAX,
    Access,
    Extent,
    Name,
    Protection,
    Terms, //
};
use crate::rdma::{
    cq::{
        Cq,
        CqNotify,
        Manual, //
    },
    device::Device,
    dma::{
        Direction,
        DmaBuffer, //
    },
    pd::Pd,
    qp::{
        Qp,
        QpHandler, //
    },
    remnant::ObjectRef,
    request::{
        RequestHandler,
        Requests, //
    },
    srq::Srq,
    wc::{
        Received,
        WcError, //
    },
};
use crate::server::{
    backend::Block,
    block::{
        command::{
            Command,
            Recv, //
        },
        fifo::Fifo,
        protected::Protected, //
    },
    memory::{
        overdue::{
            Overdue,
            Progress, //
        },
        receives::Receives,
        Client,
        Piece,
        PieceLen,
        Pool,
        PoolEvents,
        Requester,
        CHUNK, //
    },
    persistent::Membership,
    session::Session,
    stats::ConnectionStats, //
};

/// The credit of a queue at first: commands that its client may have in flight. A busy client asks
/// for more, and has twice as much each time; one that is idle costs both hosts memory for so many
/// receives.
pub(super) const CREDIT_FIRST: u16 = 4;
/// The credit that a busy client gets however much memory receives have.
const CREDIT_SURE: u16 = 16;
/// Bytes of a cache line: no two commands, nor two framed answers, share one.
const CACHE_LINE: usize = 64;
const _: () = assert!(frame::RESPONSE_SIZE <= CACHE_LINE);
/// Receives that are allocated together.
const RECVS_AT_ONCE: usize = 32;
const _: () = assert!(RECVS_AT_ONCE * INLINE_MAX as usize <= CHUNK);
/// Nanoseconds of a millisecond.
const NSEC_PER_MSEC: u64 = 1_000_000;
/// The least time between two looks whether the HCA is overdue, in ms: a poller that is busy while
/// others wait would look again and again.
const LOOK_MIN_MS: u64 = 200;
/// The number of commands that are received from one look for completed answers to the next one. It
/// is less than a queue hands over at a time, and so are the commands that keep their memory.
const REAP_EVERY: u64 = 4;
/// The number of answers that are sealed before other work gets the CPU.
const ANSWERS_AT_ONCE: usize = 8;
/// Queues that a poller can have: there is a bit of a word for each.
const QUEUES_MAX: usize = u64::BITS as usize;
/// Receives that a poller has entries for, unless one queue wants more: those of 59 idle queues
/// (see [`CREDIT_FIRST`]), or of one of depth 128 that is busy and 28 that are idle. A device's
/// queues have a power of two of entries, and some leave one empty: there they take 32 KiB for
/// receives and 16 KiB for completions.
const RECVS: u32 = 255;
/// Receives beyond those that clients rely on, on a device that may lose one with a queue pair that
/// fails: it makes do with these until the queue's own are not relied on any more.
const SPARE: u32 = 16;
/// How often a task that shows a poller looks whether its worker is busy, once in a millisecond.
const BUSY_LOOKS: u32 = 50;
/// Completions that are handled before the chained answers are posted.
const BATCH: u32 = 32;
/// The longest time for which a worker polls before others of its CPU have their turn, in us. Those
/// of the same kind, also of other drivers, do not show as tasks that want the CPU.
const TURN_US: i64 = 50;

/// The queue pair of a [`IoQueue`], which handles its completions.
pub(super) type QueuePair = Qp<Arc<IoQueue>>;

/// Returns the most credit of a queue of `depth`. A device's queues have a power of two of entries,
/// of which each command takes two, and the end of the connection takes one more.
pub(super) fn credit_max(depth: u16) -> u16 {
    depth.saturating_sub(1).max(1)
}

/// The commands that are in nobody's hands.
///
/// They are claimed by the poller's worker, and by the handler of a receive, which a task that
/// closes another queue of the poller may run at the same time.
struct Slots {
    /// The commands, by the index of their slot.
    commands: KVec<Place<Command>>,
    /// Which of them are free. To take one is a full barrier: who ends the queue sees that it is
    /// taken, or who has taken it sees that the queue ends.
    free: FreeSet,
    /// The number of commands that were made. Changed with the waiters locked.
    made: Atomic<usize>,
}

impl Slots {
    /// Makes room for `depth` commands. May sleep.
    fn new(depth: usize) -> Result<Self> {
        let mut commands = KVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            commands.push(Place::empty(), GFP_KERNEL)?;
        }
        Ok(Self {
            commands,
            free: FreeSet::taken(depth)?,
            made: Atomic::new(0),
        })
    }

    /// Takes a free command.
    fn take(&self) -> Option<KBox<Command>> {
        self.commands.get(self.free.take()?)?.take()
    }

    /// Returns true if all commands are free.
    fn are_free(&self) -> bool {
        // A command that is seen to be free has been counted in `made`.
        self.free.count() == self.made.load(Relaxed)
    }
}

/// In which FIFO a command waits for memory.
#[derive(Clone, Copy)]
enum Line {
    /// Memory that all hosts share.
    Common,
    /// Memory that fits the reserved memory of the client. These commands do not wait for those
    /// that are larger, which wait for what other hosts have.
    Reserved,
}

/// The memory that commands of a queue wait for.
struct LineState {
    /// Asks for the memory of the first one.
    requester: Requester,
    /// The number of commands that wait. Changed with the waiters locked.
    waiting: Atomic<usize>,
}

impl LineState {
    fn new(requester: Requester) -> Self {
        Self {
            requester,
            waiting: Atomic::new(0),
        }
    }

    #[inline]
    fn is_waited_in(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

/// The commands of a queue that cannot go on.
struct Waiters {
    /// Messages that wait for a slot.
    slotless: Fifo<Recv>,
    /// Commands that wait for memory, see [`Line`].
    common: Fifo<Command>,
    reserved: Fifo<Command>,
    /// Writes that wait until fewer RDMA READs are under way.
    fetching: Fifo<Command>,
    /// Commands for which the backing device has to wait.
    later: Fifo<Command>,
    /// Commands that the backing device has done, and whose answer is sealed in a task.
    finished: Fifo<Command>,
    /// The reference that new commands get; `None` once the queue is being closed.
    owner: Option<Arc<QueueRef>>,
    /// The commands whose data are to be fetched: those that [`IoQueue::fetch`] got.
    fetches: Progress,
    /// Whether the HCA is overdue.
    overdue: Overdue,
}

impl Waiters {
    fn line(&mut self, line: Line) -> &mut Fifo<Command> {
        match line {
            Line::Common => &mut self.common,
            Line::Reserved => &mut self.reserved,
        }
    }
}

/// An I/O connection to an export of a block device: what completion handlers, commands and the
/// poller share of it.
///
/// [`OpenQueue`](super::connections) makes and closes it.
#[pin_data]
pub(super) struct IoQueue {
    pub(super) session: Arc<Session>,
    label: Label,
    /// The export.
    pub(super) block: Arc<Block>,
    access: Access,
    /// What persistent reservations leave to it.
    pub(super) membership: Arc<Membership>,
    pub(super) terms: Terms,
    poller: Arc<Poller>,
    /// The bit by which the poller knows it.
    bit: u64,
    common: LineState,
    reserved: LineState,
    /// Commands that are in nobody's hands may keep memory.
    keeps: Atomic<bool>,
    /// The completion queue of its sends. It wakes the poller only when the poller waits for
    /// something.
    cq: Cq<Manual>,
    slots: Slots,
    #[pin]
    waiters: IrqSaveSpinLock<Waiters>,
    /// The number of messages that wait for a slot. Changed with the waiters locked.
    slotless: Atomic<usize>,
    /// No command may begin any more, and those that wait are dropped: the session is to end. Once
    /// this is set, commands in flight only become fewer.
    draining: Atomic<bool>,
    /// No command may begin any more: the queue is being closed.
    closed: Atomic<bool>,
    /// Commands that the client may have in flight.
    credit: Atomic<u32>,
    /// The tags of commands that are not answered yet.
    tags: KVec<Atomic<bool>>,
    /// The client has asked for more credit.
    credit_asked: Atomic<bool>,
    /// How often commands had to wait so far: for a slot, or for memory.
    waits: Atomic<u64>,
    /// Receives that have completed. As many were posted for them.
    receives: Atomic<u64>,
    /// The counters of commands. Those that are not answered yet are in flight.
    pub(super) stats: ConnectionStats,
    /// RDMA READs under way. Changed with the waiters locked.
    fetches: Atomic<usize>,
    /// The most of them: what the client's device serves at a time, and the own one can ask for.
    /// One more would hold up all that is posted behind it, also answers.
    fetches_max: usize,
    /// When [`IoQueue::look`] looked last, in ms.
    looked_ms: Atomic<u64>,
    /// No command is in flight, nor will be.
    #[pin]
    idle: Completion,
    /// The workqueue of commands for which the backing device has to wait.
    later: Arc<OwnedQueue>,
    /// The workqueue on which answers are sealed.
    worker: Arc<OwnedQueue>,
    /// `None` if commands and answers are sent as they are.
    pub(super) protected: Option<Protected>,
    /// Answers invalidate the keys of their commands: both devices can do that.
    pub(super) invalidates: bool,
    #[pin]
    work: Work<IoQueue, 0>,
    #[pin]
    answer_work: Work<IoQueue, 1>,
}

impl_has_work! {
    impl HasWork<Self, 0> for IoQueue { self.work }
    impl HasWork<Self, 1> for IoQueue { self.answer_work }
}

/// The names by which an administrator knows a queue.
#[derive(Clone, Copy)]
pub(super) struct Label {
    /// The export.
    pub(super) export: Name,
    /// The client host.
    pub(super) host: Name,
    /// The index of the queue in its session.
    pub(super) index: u16,
}

/// What a queue is made for.
pub(super) struct QueueConfig<'a> {
    /// The session, which ends if the connection breaks.
    pub(super) session: &'a Arc<Session>,
    pub(super) label: Label,
    /// The export.
    pub(super) block: &'a Arc<Block>,
    /// What the client host has of the memory.
    pub(super) client: &'a Arc<Client>,
    /// The access that the client has.
    pub(super) access: Access,
    /// The terms that the client agreed to at login.
    pub(super) terms: Terms,
    /// The workqueue of commands for which the backing device has to wait.
    pub(super) later: &'a Arc<OwnedQueue>,
    /// The workqueue on which answers are sealed.
    pub(super) worker: &'a Arc<OwnedQueue>,
    /// The protection on which both sides have agreed.
    pub(super) protection: Protection,
    /// Answers may invalidate the keys of their commands.
    pub(super) invalidates: bool,
    /// The most RDMA READs under way.
    pub(super) fetches_max: u8,
    /// What persistent reservations leave to the session.
    pub(super) membership: &'a Arc<Membership>,
}

/// The reference that commands have to their queue.
///
/// A command that ends in an interrupt may drop the last one. It never drops the last reference to
/// what is in here, for which one has to sleep: who closes the queue waits for this drop first.
pub(super) struct QueueRef {
    // Fields drop in this order.
    pub(super) queue: Arc<IoQueue>,
    pub(super) qp: ObjectRef<QueuePair>,
    released: Released,
}

impl IoQueue {
    /// Makes a queue with no commands yet, whose sends complete on `cq`. May sleep.
    pub(super) fn new(
        config: &QueueConfig<'_>,
        credit: &ReceiveCredit,
        cq: Cq<Manual>,
    ) -> Result<Arc<Self>> {
        let poller = &credit.poller;
        let depth = usize::from(config.terms.depth);
        let waiters = Waiters {
            slotless: Fifo::new(),
            common: Fifo::new(),
            reserved: Fifo::new(),
            fetching: Fifo::new(),
            later: Fifo::new(),
            finished: Fifo::new(),
            owner: None,
            fetches: Progress::default(),
            overdue: Overdue::default(),
        };
        let mut tags = KVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            tags.push(Atomic::new(false), GFP_KERNEL)?;
        }
        let protected = match config.protection.is_on() {
            true => Some(Protected::new(config.terms.depth)?),
            false => None,
        };
        let line = || Requester::new(config.client, poller.number).map(LineState::new);
        let (common, reserved) = (line()?, line()?);
        let (slots, stats) = (Slots::new(depth)?, config.block.stats.connection()?);
        Arc::pin_init(
            pin_init!(Self {
                session: config.session.clone(),
                label: config.label,
                block: config.block.clone(),
                access: config.access,
                membership: config.membership.clone(),
                terms: config.terms,
                poller: poller.clone(),
                bit: credit.bit,
                common,
                reserved,
                keeps: Atomic::new(false),
                cq,
                slots,
                waiters <- new_irqsave_spinlock!(waiters, "IoQueue::waiters"),
                slotless: Atomic::new(0),
                draining: Atomic::new(false),
                closed: Atomic::new(false),
                credit: Atomic::new(credit.credit.into()),
                tags,
                credit_asked: Atomic::new(false),
                waits: Atomic::new(0),
                receives: Atomic::new(0),
                stats,
                fetches: Atomic::new(0),
                fetches_max: config.fetches_max.into(),
                looked_ms: Atomic::new(0),
                idle <- Completion::new(),
                later: config.later.clone(),
                worker: config.worker.clone(),
                protected,
                invalidates: config.invalidates,
                work <- new_work!("IoQueue::work"),
                answer_work <- new_work!("IoQueue::answer_work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes the commands and receives for the first credit. May sleep.
    pub(super) fn prepare(self: &Arc<Self>, qp: &ObjectRef<QueuePair>) -> Result {
        let credit = self.credit();
        let owner = QueueRef {
            queue: self.clone(),
            qp: qp.clone(),
            released: Released::new()?,
        };
        self.waiters.lock().owner = Some(Arc::new(owner, GFP_KERNEL)?);
        self.make_commands(credit)?;
        match self.poller.has_srq {
            true => Ok(()),
            false => {
                let post = |recv| qp.recv(recv);
                self.poller.make_recvs(&mut credit.into(), true, post)
            }
        }
    }

    /// Returns the completion queue of its sends.
    pub(super) fn cq(&self) -> &Cq<Manual> {
        &self.cq
    }

    /// Returns the poller that looks after it.
    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }

    #[inline]
    fn line(&self, line: Line) -> &LineState {
        match line {
            Line::Common => &self.common,
            Line::Reserved => &self.reserved,
        }
    }

    /// Returns what the client may do with the export now. Any context.
    #[inline]
    pub(super) fn extent(&self) -> Extent {
        let extent = self.block.extent();
        Extent {
            access: extent.access.min(self.access),
            ..extent
        }
    }

    /// Returns true if the queue is being closed. Any context.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Returns true if no command may begin any more. Any context.
    #[inline]
    fn is_ending(&self) -> bool {
        self.is_closed() || self.draining.load(Relaxed)
    }

    /// Lets no command begin any more. Any context.
    pub(super) fn shut(&self) {
        self.closed.xchg(true, Full);
    }

    /// Lets no more commands begin: those that come in, and those that wait for memory or for a
    /// slot, are left unanswered. Returns true if the client has the answers to all that have
    /// begun. May sleep.
    pub(super) fn drain(&self, qp: &QueuePair) -> bool {
        self.draining.xchg(true, Full);
        self.drop_all_waiting(qp);
        self.cq.reap();
        let idle = self.slots.are_free();
        if !idle {
            // The poller sees to what has yet to complete.
            self.poller.attend();
        }
        idle
    }

    /// Lets no command begin any more, and ends those that wait. Once `idle` completes, all
    /// commands are free. Returns the reference that they were made with. May sleep.
    fn end_waiting(&self, qp: &QueuePair) -> Option<Arc<QueueRef>> {
        self.shut();
        let (owner, lists) = {
            let mut waiters = self.waiters.lock();
            let Waiters {
                owner,
                fetching,
                later,
                finished,
                ..
            } = &mut *waiters;
            let lists = [fetching, later, finished];
            let lists = lists.map(|list| core::mem::replace(list, Fifo::new()));
            (owner.take(), lists)
        };
        self.drop_all_waiting(qp);
        for mut list in lists {
            while let Some(command) = list.pop() {
                command.end(self, qp);
            }
        }
        if self.slots.are_free() {
            self.idle.complete_all();
        }
        owner
    }

    /// Ends all commands, and waits until the backing device and the HCA are done with them. `wait`
    /// waits for the completion that is done then. May sleep.
    pub(super) fn close(&self, qp: &QueuePair, wait: impl FnOnce(&Completion)) {
        let owner = self.end_waiting(qp);
        wait(&self.idle);
        let released = owner.as_ref().map(|owner| owner.released.completion());
        drop(owner);
        // Nothing takes a command any more, and none is made without `owner`.
        for place in &self.slots.commands {
            drop(place.take());
        }
        // A task that has just given back the last command may not have dropped its reference yet.
        if let Some(released) = released {
            released.wait();
        }
    }

    /// Asks the poller for more credit, because the client could use it.
    #[cold]
    pub(super) fn ask_for_credit(&self) {
        let full = self.credit() >= credit_max(self.terms.depth);
        if !full && !self.credit_asked.xchg(true, Relaxed) {
            self.poller.extend_credit();
        }
    }

    /// Ends the session because a command will not be answered: the client would wait for it for
    /// ever. Any context.
    #[cold]
    pub(super) fn lose_session(&self) {
        // A queue that is being closed is so because its session ends, or because of a logout,
        // whose reply is still to be sent.
        if !self.is_closed() {
            self.session.lose();
        }
    }

    /// Ends the session because of what the client has sent. While the queue drains, nothing that
    /// it sends is answered, so it may use tags again and have more in flight than it may.
    #[cold]
    pub(super) fn violation(&self) {
        if !self.draining.load(Relaxed) {
            self.session.violation();
        }
    }

    /// Ends the session because a command, or its data, has another check than its own, also while
    /// the queue drains: that command is not answered.
    #[cold]
    pub(super) fn forgery(&self) {
        self.session.forgery();
    }

    /// Marks a tag as used by a command that was received. Returns false if the client may not use
    /// the tag now, or if the number of its frame is not a newer one.
    ///
    /// The poller's worker calls this for a message that has waited, and the handler of a receive,
    /// which may run at the same time: the tag is taken first, and only who has it looks at the
    /// number.
    #[inline]
    pub(super) fn begin_tag(&self, tag: u16, number: Option<Number>) -> bool {
        let Some(used) = self.tags.get(usize::from(tag)) else {
            return false;
        };
        if used.xchg(true, Acquire) {
            return false;
        }
        match self.protected.as_ref().zip(number) {
            Some((protected, number)) => protected.note(tag, number),
            None => true,
        }
    }

    /// Lets the client use a tag again: its command is about to be answered. Any context.
    #[inline]
    pub(super) fn end_tag(&self, tag: u16) {
        if let Some(used) = self.tags.get(usize::from(tag)) {
            used.store(false, Release);
        }
        self.stats.leave();
    }

    /// Takes a command for a message that has come in, if one is free. That the HCA is done with
    /// its last answer may be known only now. Messages that wait come first.
    #[inline]
    fn take(&self) -> Option<KBox<Command>> {
        if self.slotless.load(Relaxed) > 0 {
            return None;
        }
        self.take_free().or_else(|| {
            self.cq.reap();
            self.take_free()
        })
    }

    /// Takes a command, if one is known to be free.
    #[inline]
    fn take_free(&self) -> Option<KBox<Command>> {
        let index = self.slots.free.take()?;
        if self.is_ending() {
            self.unclaim(index);
            return None;
        }
        self.slots.commands.get(index)?.take()
    }

    /// Gives back a command that has ended. Any context.
    #[inline]
    pub(super) fn put(&self, command: KBox<Command>) {
        let index = usize::from(command.slot());
        if let Some(place) = self.slots.commands.get(index) {
            // It was taken from there.
            drop(place.put(command));
        }
        self.unclaim(index);
    }

    /// Marks a command as free, and tells who closes the queue if it was the last one: either this
    /// sees that the queue is closed, or [`IoQueue::end_waiting`] sees that all are free.
    #[inline]
    fn unclaim(&self, index: usize) {
        self.slots.free.put(index);
        if self.is_closed() && self.slots.are_free() {
            self.idle.complete_all();
        }
    }

    /// Posts a receive again that is not needed any more, or frees it if there are more than were
    /// promised. Any context.
    #[inline]
    pub(super) fn put_recv(&self, qp: &QueuePair, recv: KBox<Recv>) {
        let mut recv = recv;
        if self.poller.surplus.load(Relaxed) {
            // Its slot of the queue is free before it is counted so: others may want it at once.
            drop(core::mem::take(recv.header.kept_slot()));
            if !self.poller.keeps_receive() {
                return drop(recv);
            }
        }
        if let Err((_, recv)) = qp.recv(recv) {
            // The queue pair, or the poller, is closed.
            drop(recv);
            self.poller.lose_receive();
        }
    }

    /// Returns true if a slot may keep memory for its next command: none waits for memory. Any
    /// context.
    #[inline]
    pub(super) fn may_keep(&self) -> bool {
        !self.poller.pool.is_short() && !self.is_ending()
    }

    /// Gives back a command that has ended and keeps memory. Any context.
    #[inline]
    pub(super) fn put_keeping(&self, command: KBox<Command>) {
        self.put(command);
        // Pairs with `free_kept()`: that clears the flag before it looks for free commands.
        if !self.keeps.load(Relaxed) {
            self.keeps.xchg(true, Full);
        }
        // Pairs with `Pool::change()`: a command that has begun to wait meanwhile is seen here, or
        // the poller, which is told of it, sees the flag and that this one is free.
        if self.poller.pool.is_short() {
            self.poller.attend();
        }
    }

    /// Frees the memory that commands keep which are in nobody's hands. May sleep.
    fn free_kept(&self) {
        if !self.keeps.xchg(false, Full) {
            return;
        }
        self.free_kept_of(|| self.take_free());
        // Meanwhile a message may have found no slot.
        if self.is_waited_for() {
            self.poller.attend();
        }
    }

    /// Frees the memory that the commands keep which `take` returns, and gives them back.
    fn free_kept_of(&self, take: impl Fn() -> Option<KBox<Command>>) {
        let mut commands = Fifo::new();
        while let Some(mut command) = take() {
            command.free_kept();
            commands.push(command);
        }
        while let Some(command) = commands.pop() {
            self.put(command);
        }
    }

    /// Returns true if what is chained is to be posted at once, rather than at the end of a round
    /// of the poller's worker. Any context.
    #[inline]
    pub(super) fn posts_now(&self) -> bool {
        !self.poller.batch.load(Relaxed)
    }

    /// Sees to it that what was chained is posted, unless it was `posted` at once. Any context.
    #[inline]
    pub(super) fn post(&self, qp: &QueuePair, posted: bool) {
        if !posted && self.poller.chained(self.bit) {
            qp.ring();
        }
    }

    /// Handles the completions of answers in another task than the poller's worker. That worker is
    /// told if commands wait: there may be a slot for them now, and no other completion may come.
    #[inline]
    pub(super) fn reap(&self) {
        self.cq.reap();
        if self.is_waited_for() {
            self.poller.attend();
        }
    }

    /// Returns true if a command waits for a slot or for memory. Any context.
    #[inline]
    fn is_waited_for(&self) -> bool {
        self.slotless.load(Relaxed) > 0
            || self.common.is_waited_in()
            || self.reserved.is_waited_in()
    }

    /// Ends the session if the HCA is overdue with what it was asked to do on the queue, and others
    /// are in need of the memory that the client's host has. To be called about once a second, or
    /// more often. Any context.
    pub(super) fn look(&self, qp: &QueuePair) {
        let now_ms = ConnectionStats::now_ns() / NSEC_PER_MSEC;
        if now_ms.saturating_sub(self.looked_ms.load(Relaxed)) < LOOK_MIN_MS {
            return;
        }
        self.looked_ms.store(now_ms, Relaxed);
        let (begun, ended) = qp.sends();
        let sends = Progress { begun, ended };
        let requester = &self.common.requester;
        let held = match sends.is_busy() {
            false => 0,
            true => requester.held(),
        };
        let overdue = {
            let mut waiters = self.waiters.lock();
            let waiters: &mut Waiters = &mut waiters;
            waiters.overdue.look(now_ms, sends, waiters.fetches, held)
        };
        if overdue && !self.is_closed() && !self.session.is_lost() && requester.keeps_from_others()
        {
            self.session.overdue();
        }
    }

    /// Handles the completions of sends, lets commands that wait go on, and looks whether others
    /// wait for what the client has. Asks for an interrupt of the next completion of a send only if
    /// the poller waits for one. Runs in the poller's worker.
    fn progress(self: &Arc<Self>, qp: &QueuePair) {
        loop {
            // A task that handles completions just now has the poller look again afterwards. To
            // wait for it here could be for ever: it may need this CPU.
            let reaped = self.cq.try_reap();
            if self.poller.pool.is_short() {
                self.free_kept();
            }
            let interested = self.resume(qp)
                || self.fetches.load(Relaxed) > 0
                // No command begins meanwhile.
                || self.poller.pool.is_short() && !self.slots.are_free();
            if reaped.is_none() || !interested || !self.cq.arm() {
                break;
            }
        }
        if self.poller.pool.is_short() {
            self.look(qp);
        }
    }

    /// Returns how many commands the client may have in flight now. Any context.
    #[inline]
    pub(super) fn credit(&self) -> u16 {
        // The credit is never more than the depth.
        u16::try_from(self.credit.load(Relaxed)).unwrap_or(u16::MAX)
    }

    /// Returns how much more credit the client could use. Any context.
    fn credit_wanted(&self) -> u16 {
        let credit = self.credit();
        match self.credit_asked.load(Relaxed) {
            false => 0,
            true => credit.min(credit_max(self.terms.depth).saturating_sub(credit)),
        }
    }

    /// Grants `more` credit, for which there are receives. The client learns of it with the next
    /// answer. Any context.
    fn grant_credit(&self, more: u16) {
        self.credit.fetch_add(more.into(), Relaxed);
        self.credit_asked.store(false, Relaxed);
    }

    /// Makes sure that there are `count` commands in all. Calls must not be concurrent. May sleep.
    fn make_commands(&self, count: u16) -> Result {
        let missing = usize::from(count).saturating_sub(self.slots.made.load(Relaxed));
        if missing == 0 {
            return Ok(());
        }
        let (size, stride) = match &self.protected {
            Some(_) => (frame::RESPONSE_SIZE, CACHE_LINE),
            None => (response::SIZE, response::SIZE),
        };
        let responses = DmaBuffer::alloc(self.cq.device(), missing * stride, Direction::ToDevice)?;
        for mut response in responses.split(stride) {
            response.truncate(size)?;
            let (bio, slot) = (Command::bio()?, KBox::new_uninit(GFP_KERNEL)?);
            // The lock is held until it is in its place: who closes the queue takes `owner`, and
            // then all commands.
            let waiters = self.waiters.lock();
            let owner = waiters.owner.clone().ok_or(ESHUTDOWN)?;
            let index = self.slots.made.load(Relaxed);
            let command = Command::new(owner, u16::try_from(index)?, response, bio);
            self.slots.made.store(index + 1, Relaxed);
            self.put(KBox::write(slot, command));
            drop(waiters);
        }
        Ok(())
    }

    /// Shows what the queue did, and how many interrupts its poller had. May sleep.
    fn show(&self, qp: &QueuePair, interrupts: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The completions of the last answers may not have been reaped yet.
        self.reap();
        writeln!(
            f,
            "export {} host {} queue {} vector {} work_requests {} doorbells {} completions {} \
             credit {} waits {} own {} interrupts {interrupts}",
            self.label.export,
            self.label.host,
            self.label.index,
            self.poller.vector(),
            qp.posted() + self.receives.load(Relaxed),
            qp.doorbells(),
            qp.completions(),
            self.credit(),
            self.waits.load(Relaxed),
            self.common.requester.reserved(),
        )
    }
}

impl QpHandler for Arc<IoQueue> {
    type Send = KBox<Command>;
    type Recv = KBox<Recv>;
    type Ulp = Requests;

    #[inline]
    fn recv_done(
        &self,
        qp: &Qp<Self>,
        mut recv: KBox<Recv>,
        received: Result<Received<'_>, WcError>,
    ) {
        // No atomic addition: one completion is handled at a time.
        let receives = self.receives.load(Relaxed);
        self.receives.store(receives + 1, Relaxed);
        let Ok(received) = received else {
            return self.put_recv(qp, recv);
        };
        // Most often what has completed are the answers to the commands before this one, which
        // nobody waits for as long as there are slots.
        if receives % REAP_EVERY == 0 || self.fetches.load(Relaxed) > 0 {
            self.reap();
        }
        if self.stats.enter() > self.credit.load(Relaxed) {
            self.put_recv(qp, recv);
            return self.violation();
        }
        recv.len = received.len();
        match self.take() {
            Some(command) => command.receive(self, qp, recv),
            None => self.wait_for_slot(qp, recv),
        }
    }

    #[inline]
    fn send_done(&self, qp: &Qp<Self>, command: KBox<Command>, result: Result<(), WcError>) {
        command.sent(self, qp, result.is_ok());
    }

    fn error(&self) {
        self.lose_session();
    }
}

impl RequestHandler for Arc<IoQueue> {
    /// The memory that the data of a write are read into.
    type Parked = Option<Piece>;

    /// Nothing of the command but its memory stays: who closes the queue waits for its commands.
    fn park(&self, command: KBox<Command>) -> Option<Piece> {
        command.park()
    }
}

/// What commands wait for.
impl IoQueue {
    /// Lets a message wait for a slot, behind those that do so already. Runs in the poller's
    /// worker.
    #[cold]
    fn wait_for_slot(&self, qp: &QueuePair, recv: KBox<Recv>) {
        let refused = {
            let mut waiters = self.waiters.lock();
            match self.is_ending() {
                true => Some(recv),
                false => {
                    waiters.slotless.push(recv);
                    self.slotless
                        .store(self.slotless.load(Relaxed) + 1, Relaxed);
                    None
                }
            }
        };
        match refused {
            None => self.note_wait(),
            Some(mut recv) => {
                let Recv {
                    header, data, len, ..
                } = &mut *recv;
                let opened = self.protected.as_ref();
                let opened = opened.map(|protected| protected.open(header, data, *len));
                self.put_recv(qp, recv);
                match opened {
                    Some(Err(BadFrame::Forged)) => self.forgery(),
                    _ => self.lose_command(),
                }
            }
        }
    }

    /// Gives a command the memory that it needs, or lets it wait. Runs in the poller's worker.
    pub(super) fn provide(
        self: &Arc<Self>,
        qp: &QueuePair,
        mut command: KBox<Command>,
        len: PieceLen,
    ) {
        if let Some(memory) = command.take_kept(len) {
            return command.supply(self, qp, memory);
        }
        let line = if self.reserved.requester.fits_reserved(len) {
            Line::Reserved
        } else {
            Line::Common
        };
        let state = self.line(line);
        // Commands that wait already come first.
        if !state.is_waited_in() {
            if let Some(memory) = self.poller.pool.get(len, &state.requester) {
                return command.supply(self, qp, memory);
            }
        }
        let refused = {
            let mut waiters = self.waiters.lock();
            match self.is_ending() {
                true => Some(command),
                false => {
                    waiters.line(line).push(command);
                    state
                        .waiting
                        .store(state.waiting.load(Relaxed) + 1, Relaxed);
                    None
                }
            }
        };
        match refused {
            None => self.note_wait(),
            Some(command) => {
                command.end(self, qp);
                state.requester.cancel();
                self.lose_command();
            }
        }
    }

    /// Counts a command that waits, and has the poller's worker try again.
    fn note_wait(&self) {
        self.waits.fetch_add(1, Relaxed);
        self.poller.attend();
    }

    /// Ends the session for a command that could not wait, unless the queue drains: then no answer
    /// is owed.
    fn lose_command(&self) {
        if !self.draining.load(Relaxed) {
            self.lose_session();
        }
    }

    /// Ends the commands that wait for a slot or for memory. They are not answered. Frees what the
    /// slots keep. To be called by the owner of the queue, once [`IoQueue::is_ending`].
    fn drop_all_waiting(&self, qp: &QueuePair) {
        while let Some(recv) = self.take_slotless() {
            self.put_recv(qp, recv);
        }
        for line in [Line::Common, Line::Reserved] {
            while let Some(command) = self.take_first(line, |_| true) {
                command.end(self, qp);
            }
            // The poller's worker does the same if it has asked for memory meanwhile.
            self.line(line).requester.cancel();
        }
        // A worker does not take free commands any more: it could give one back to a queue that is
        // closed already.
        self.free_kept_of(|| self.slots.take());
    }

    /// Takes the first message that waits for a slot.
    fn take_slotless(&self) -> Option<KBox<Recv>> {
        let mut waiters = self.waiters.lock();
        let recv = waiters.slotless.pop()?;
        self.slotless
            .store(self.slotless.load(Relaxed) - 1, Relaxed);
        Some(recv)
    }

    /// Takes the first command that waits for memory, if `which` is true for it.
    fn take_first(
        &self,
        line: Line,
        which: impl FnOnce(&Command) -> bool,
    ) -> Option<KBox<Command>> {
        let mut waiters = self.waiters.lock();
        let fifo = waiters.line(line);
        fifo.first().filter(|command| which(command))?;
        let command = fifo.pop()?;
        let waiting = &self.line(line).waiting;
        waiting.store(waiting.load(Relaxed) - 1, Relaxed);
        Some(command)
    }

    /// Lets the commands that wait go on, those of a FIFO in order, until one cannot. Returns true
    /// if some are left. Runs in the poller's worker.
    fn resume(self: &Arc<Self>, qp: &QueuePair) -> bool {
        if !self.is_waited_for() {
            return false;
        }
        while self.slotless.load(Relaxed) > 0 {
            let Some(command) = self.take_free() else {
                break;
            };
            match self.take_slotless() {
                Some(recv) => command.receive(self, qp, recv),
                // They were dropped meanwhile.
                None => self.put(command),
            }
        }
        self.resume_line(qp, Line::Common);
        self.resume_line(qp, Line::Reserved);
        self.is_waited_for()
    }

    fn resume_line(self: &Arc<Self>, qp: &QueuePair, line: Line) {
        let requester = &self.line(line).requester;
        loop {
            let wanted = {
                let mut waiters = self.waiters.lock();
                let first = waiters.line(line).first();
                first.and_then(|command| command.memory_wanted().ok().flatten())
            };
            let Some(len) = wanted else { return };
            let Some(memory) = self.poller.pool.get(len, requester) else {
                // The first one waits on, if it was not dropped meanwhile.
                if self.is_ending() {
                    requester.cancel();
                }
                return;
            };
            let wants =
                |command: &Command| matches!(command.memory_wanted(), Ok(Some(it)) if it == len);
            match self.take_first(line, wants) {
                Some(command) => command.supply(self, qp, memory),
                // It was dropped meanwhile, and so are all others.
                None => return,
            }
        }
    }

    /// Fetches the data of a write, or lets it wait until fewer are fetched. Runs in the poller's
    /// worker.
    pub(super) fn fetch(self: &Arc<Self>, qp: &QueuePair, command: KBox<Command>) {
        let refused = self.defer(command, |waiters| {
            waiters.fetches.begun = waiters.fetches.begun.wrapping_add(1);
            &mut waiters.fetching
        });
        match refused {
            None => self.fetch_more(qp),
            // It is not answered: the queue is being closed.
            Some(command) => command.end(self, qp),
        }
    }

    /// Notes that an RDMA READ has completed, and begins others that wait. Any context.
    pub(super) fn fetched(self: &Arc<Self>, qp: &QueuePair) {
        self.end_fetch();
        self.fetch_more(qp);
    }

    fn end_fetch(&self) {
        let mut waiters = self.waiters.lock();
        waiters.fetches.ended = waiters.fetches.ended.wrapping_add(1);
        self.fetches.fetch_sub(1, Relaxed);
    }

    /// Begins as many RDMA READs as may be under way, in order. Any context.
    fn fetch_more(self: &Arc<Self>, qp: &QueuePair) {
        loop {
            let next = {
                let mut waiters = self.waiters.lock();
                let fetches = self.fetches.load(Relaxed);
                let next = match fetches < self.fetches_max {
                    true => waiters.fetching.pop(),
                    false => None,
                };
                self.fetches
                    .store(fetches + usize::from(next.is_some()), Relaxed);
                next
            };
            let Some(command) = next else { return };
            // Somebody has to see its completion, which may come before this returns.
            self.poller.attend();
            if let Err((status, command)) = command.fetch(self, qp) {
                self.end_fetch();
                command.answer(self, qp, status);
            }
        }
    }

    /// Appends a command to a FIFO, unless the queue is being closed: then it is returned.
    fn defer(
        &self,
        command: KBox<Command>,
        fifo: impl FnOnce(&mut Waiters) -> &mut Fifo<Command>,
    ) -> Option<KBox<Command>> {
        let mut waiters = self.waiters.lock();
        if self.is_closed() {
            return Some(command);
        }
        fifo(&mut waiters).push(command);
        None
    }

    /// Submits a command in a task of its own, which may wait for the backing device. Any context.
    pub(super) fn submit_later(self: &Arc<Self>, qp: &QueuePair, mut command: KBox<Command>) {
        command.free_kept();
        match self.defer(command, |waiters| &mut waiters.later) {
            None => {
                let _ = self.later.enqueue::<Arc<Self>, 0>(self.clone());
            }
            Some(command) => command.end(self, qp),
        }
    }

    /// Makes the answer of a command that the backing device has done in a task of its own. Any
    /// context.
    pub(super) fn answer_later(self: &Arc<Self>, qp: &QueuePair, command: KBox<Command>) {
        match self.defer(command, |waiters| &mut waiters.finished) {
            None => {
                let _ = self.worker.enqueue::<Arc<Self>, 1>(self.clone());
            }
            Some(command) => command.end(self, qp),
        }
    }
}

impl WorkItem<0> for IoQueue {
    type Pointer = Arc<Self>;

    /// Submits the commands that [`IoQueue::submit_later`] got.
    fn run(this: Arc<Self>) {
        loop {
            let Some(command) = this.waiters.lock().later.pop() else {
                return;
            };
            let owner = command.owner();
            command.submit(&this, &owner.qp, false);
        }
    }
}

impl WorkItem<1> for IoQueue {
    type Pointer = Arc<Self>;

    /// Answers the commands that [`IoQueue::answer_later`] got, some at a time: others want the
    /// CPU, too.
    fn run(this: Arc<Self>) {
        for _ in 0..ANSWERS_AT_ONCE {
            let Some(command) = this.waiters.lock().finished.pop() else {
                return;
            };
            let owner = command.owner();
            command.answer_finished(&this, &owner.qp);
        }
        let _ = this.worker.enqueue::<Arc<Self>, 1>(this.clone());
    }
}

/// Returns the number of receives of a shared receive queue that no client may rely on.
fn spare(device: &Device) -> u32 {
    match device.quirks().loses_receives() {
        true => SPARE,
        false => 0,
    }
}

/// The queue that a connection receives its commands from.
pub(super) enum ReceiveQueue<'a> {
    /// The poller's shared receive queue.
    Shared(&'a ObjectRef<Srq<Arc<IoQueue>>>),
    /// A queue of its own, with so many receives, that completes on the poller's completion queue.
    Own(&'a Arc<Pd>, &'a Cq<Manual>, u32),
}

/// The credit of a queue, and the promise of its poller to have receives for it: the receive queue
/// must never run dry, as the connections of some devices do not survive that. The promise ends
/// with the drop, in any context.
pub(super) struct ReceiveCredit {
    poller: Arc<Poller>,
    /// The bit by which the poller knows the queue.
    bit: u64,
    /// Commands that the client may have in flight.
    credit: u16,
    /// Promised receives: as many as `credit`, or, in a receive queue of its own, as many as the
    /// credit may ever become.
    promised: u16,
    /// The queue has ended, and may have taken a receive with it.
    lost: bool,
}

impl ReceiveCredit {
    /// Returns the poller that keeps the receives.
    pub(super) fn poller(&self) -> &Arc<Poller> {
        &self.poller
    }
}

impl Drop for ReceiveCredit {
    fn drop(&mut self) {
        let poller = &self.poller;
        let lost = self.lost || poller.device.quirks().loses_receives();
        let misses = poller.has_srq && self.credit > 0 && lost;
        poller.receives(|receives| {
            receives.withdraw(self.promised.into());
            if misses {
                receives.miss();
            }
        });
        poller.shared.lock().users &= !self.bit;
    }
}

/// What the HCA has for a poller, and the queues that use it.
struct Hca {
    // Fields drop in this order.
    queues: KVec<Entry>,
    cq: Cq<Manual>,
    pd: Arc<Pd>,
    /// When the worker has handled completions last, if it polls.
    busy: Instant<Monotonic>,
}

/// A queue that a poller looks after.
struct Entry {
    queue: Arc<IoQueue>,
    qp: ObjectRef<QueuePair>,
    credit: ReceiveCredit,
}

/// What a poller's queues share in any context.
struct Shared {
    /// `None` once the poller is closed, or if each queue has a receive queue of its own.
    srq: Option<ObjectRef<Srq<Arc<IoQueue>>>>,
    /// The number of receives, and how many of them are promised.
    receives: Receives,
    /// The bits of the [`ReceiveCredit`]s.
    users: u64,
}

/// A poller: the owner of a completion queue, whose completions are handled by its worker.
#[pin_data]
pub(super) struct Poller {
    vector: u32,
    /// The number by which the pool knows it.
    number: usize,
    device: Arc<Device>,
    /// The queues share a receive queue. Not every device can do that.
    has_srq: bool,
    pool: Arc<Pool>,
    inline_size: u32,
    /// Bytes of a message before its inline data.
    header: usize,
    /// How long the worker polls for more commands before it waits for an interrupt, in us.
    poll_us: u32,
    worker: Arc<OwnedQueue>,
    /// The workqueue on which receives and commands are made.
    maker: Arc<OwnedQueue>,
    /// The worker holds this lock while it runs.
    #[pin]
    hca: Mutex<Option<Hca>>,
    #[pin]
    shared: IrqSaveSpinLock<Shared>,
    /// The shared receive queue has more receives than are promised. Changed with `shared` locked.
    surplus: Atomic<bool>,
    /// The worker posts what is chained after its round: it clears this, then it takes `chained`.
    batch: Atomic<bool>,
    /// The bits of the queues with work requests that are chained, and that the worker posts.
    chained: Atomic<u64>,
    /// A queue wants the worker to look after it.
    attention: Atomic<bool>,
    /// The number of tasks that wait for `hca`.
    visitors: Atomic<u32>,
    #[pin]
    work: Work<Poller, 0>,
    #[pin]
    credit_work: Work<Poller, 1>,
}

impl_has_work! {
    impl HasWork<Self, 0> for Poller { self.work }
    impl HasWork<Self, 1> for Poller { self.credit_work }
}

/// Wakes a poller.
struct Wake(Arc<Poller>);

impl CqNotify for Wake {
    fn notify(&self) {
        self.0.wake();
    }
}

impl PoolEvents for Wake {
    fn memory_changed(&self) {
        self.0.attend();
    }

    fn retry(&self) {
        self.0.extend_credit();
    }
}

impl Poller {
    /// Makes a poller of completion vector `vector`, with no queues, and with receives for at least
    /// one of `credit`, at most [`Poller::credit_max`].
    ///
    /// The pool knows it by `number`, its next one. [`Poller::close`] must be its end. May sleep.
    pub(super) fn new(
        pd: &Arc<Pd>,
        (vector, number, credit): (u32, usize, u16),
        pool: &Arc<Pool>,
        (inline_size, protection): (u32, Protection),
        poll_us: u32,
        (worker, maker): (&Arc<OwnedQueue>, &Arc<OwnedQueue>),
    ) -> Result<Arc<Self>> {
        let device = pd.device();
        let has_srq = device.has_srq();
        let spare = spare(device);
        let wanted = (u32::from(credit) + spare + 1).next_power_of_two() - 1;
        let (max, spare, ends) = match has_srq {
            true => (device.limits().max_srq_wr, spare, 0),
            // CAST: 64.
            false => (u32::MAX, 0, QUEUES_MAX as u32),
        };
        let receives = max.min(RECVS.max(wanted));
        let shared = Shared {
            srq: None,
            receives: Receives::new(receives, spare),
            users: 0,
        };
        let queues = KVec::with_capacity(QUEUES_MAX, GFP_KERNEL)?;
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
                poll_us,
                worker: worker.clone(),
                maker: maker.clone(),
                hca <- new_mutex!(None, "Poller::hca"),
                shared <- new_irqsave_spinlock!(shared, "Poller::shared"),
                surplus: Atomic::new(false),
                batch: Atomic::new(false),
                chained: Atomic::new(0),
                attention: Atomic::new(false),
                visitors: Atomic::new(0),
                work <- new_work!("Poller::work"),
                credit_work <- new_work!("Poller::credit_work"),
            }),
            GFP_KERNEL,
        )?;
        let wake = Arc::new(Wake(this.clone()), GFP_KERNEL)?;
        // With receives of its own, the end of each queue takes an entry, too.
        let cq = Cq::<Manual>::alloc(device, receives + ends, vector, wake.clone())?;
        let srq = has_srq.then(|| Srq::create(pd, &cq, receives, QUEUES_MAX, None));
        let srq = srq.transpose()?;
        pool.add_poller(number, wake)?;
        cq.arm();
        this.shared.lock().srq = srq;
        *this.hca.lock() = Some(Hca {
            queues,
            cq,
            pd: pd.clone(),
            busy: Instant::now(),
        });
        Ok(this)
    }

    /// Closes the poller if it has no queues, and returns whether it did. Must not be called while
    /// a queue is being added. May sleep.
    pub(super) fn close_if_unused(&self) -> bool {
        let unused = self.shared.lock().users == 0;
        if unused {
            self.close();
        }
        unused
    }

    /// Releases the HCA and all memory. There must be no queues any more, except for such as are
    /// being dropped. May sleep.
    pub(super) fn close(&self) {
        self.pool.remove_poller(self.number);
        let srq = self.shared.lock().srq.take();
        drop(srq);
        let hca = core::mem::take(&mut *self.visit(|| self.hca.lock()));
        drop(hca);
    }

    /// Lets the worker handle completions. Any context.
    fn wake(self: &Arc<Self>) {
        let _ = self.worker.enqueue::<Arc<Self>, 0>(self.clone());
    }

    /// Lets the worker look after the queues that wait for something, too. Any context.
    pub(super) fn attend(self: &Arc<Self>) {
        self.attention.store(true, Release);
        self.wake();
    }

    /// Gives queues the credit that they want, if there is memory, in a task of its own. Any
    /// context.
    fn extend_credit(self: &Arc<Self>) {
        let _ = self.maker.enqueue::<Arc<Self>, 1>(self.clone());
    }

    /// Makes the queue pair of a queue with `create`, and looks after the queue from then on. May
    /// sleep.
    pub(super) fn add(
        &self,
        credit: ReceiveCredit,
        queue: &Arc<IoQueue>,
        create: impl FnOnce(ReceiveQueue<'_>) -> Result<ObjectRef<QueuePair>>,
    ) -> Result<ObjectRef<QueuePair>> {
        let mut hca = self.visit(|| self.hca.lock());
        let hca: &mut Option<Hca> = &mut hca;
        let hca = hca.as_mut().ok_or(ENODEV)?;
        let srq = self.shared.lock().srq.clone();
        let qp = create(match &srq {
            Some(srq) => ReceiveQueue::Shared(srq),
            None => ReceiveQueue::Own(&hca.pd, &hca.cq, credit.promised.into()),
        })?;
        // Cannot fail: there is capacity for each `ReceiveCredit`.
        let _ = hca.queues.push_within_capacity(Entry {
            queue: queue.clone(),
            qp: qp.clone(),
            credit,
        });
        Ok(qp)
    }

    /// Stops looking after a queue: once this returns, the worker does not touch it. May sleep.
    pub(super) fn remove(&self, queue: &Arc<IoQueue>) {
        let mut hca = self.visit(|| self.hca.lock());
        let hca: &mut Option<Hca> = &mut hca;
        let removed = hca.as_mut().and_then(|hca| {
            let mut entries = hca.queues.iter();
            let place = entries.position(|entry| Arc::ptr_eq(&entry.queue, queue))?;
            hca.queues.remove(place).ok()
        });
        drop(removed.map(|mut entry| {
            entry.credit.lost = entry.qp.has_lost_receives();
            entry
        }));
    }

    /// Returns the completion vector.
    #[inline]
    pub(super) fn vector(&self) -> u32 {
        self.vector
    }

    /// Changes the number of receives. Any context.
    fn receives<R>(&self, change: impl FnOnce(&mut Receives) -> R) -> R {
        let mut shared = self.shared.lock();
        let result = change(&mut shared.receives);
        let surplus = self.has_srq && shared.receives.has_surplus();
        self.surplus.store(surplus, Relaxed);
        result
    }

    /// Returns true if a receive that has come back is to be posted again, and counts it as freed
    /// if not. Any context.
    #[cold]
    fn keeps_receive(&self) -> bool {
        self.receives(Receives::keep)
    }

    /// Counts a receive as freed that could not be posted again. Any context.
    #[cold]
    fn lose_receive(&self) {
        if self.has_srq {
            self.receives(|receives| receives.lose(1));
        }
    }

    /// Notes that a work request of the queue with this `bit` was chained. Returns true if the
    /// caller has to post it; otherwise the worker does so at the end of its round. Any context.
    #[inline]
    fn chained(&self, bit: u64) -> bool {
        let mut chained = self.chained.load(Relaxed);
        // Also if the bit is set: only so does the worker, which takes it, see what was chained.
        while let Err(now) = self.chained.cmpxchg(chained, chained | bit, Full) {
            chained = now;
        }
        // Either this sees that the worker has ended its round just now, or that sees the bit.
        !self.batch.load(Relaxed)
    }

    /// Shows what the queues of `export` did, or that the worker was busy for [`BUSY_LOOKS`] ms: it
    /// may sleep in a disk that hangs. May sleep.
    pub(super) fn show(&self, export: &Name, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        let hca: &Option<Hca> = &hca;
        hca.iter().try_for_each(|hca| {
            let interrupts = hca.cq.interrupts();
            let mut entries = hca.queues.iter();
            entries.try_for_each(|entry| entry.queue.show(&entry.qp, interrupts, f))
        })
    }

    /// Handles the commands that were received. With `poll_us` it looks for more for so long, as
    /// long as no other task wants the CPU. Returns true if there may be more: others have their
    /// turn first.
    fn watch(self: &Arc<Self>, hca: &mut Hca) -> bool {
        if self.poll_us == 0 {
            return self.poll(hca) == BATCH || hca.cq.arm();
        }
        let begun = Instant::now();
        loop {
            let handled = self.poll(hca);
            if handled > 0 {
                hca.busy = Instant::now();
            }
            if handled == BATCH {
                return true;
            }
            // Without what a batch needs: there may be nothing for long, and answers of other CPUs
            // are not to wait for this one.
            loop {
                let now = Instant::now();
                let quiet = now - hca.busy >= Delta::from_micros(self.poll_us.into());
                if quiet || self.is_wanted() || !sync::may_look_on() {
                    return hca.cq.arm();
                }
                if now - begun > Delta::from_micros(TURN_US) {
                    return true;
                }
                if hca.cq.poll(1) > 0 {
                    hca.busy = now;
                    break;
                }
            }
        }
    }

    /// Returns true if queues wait for something, or a task for the lock of the worker.
    fn is_wanted(&self) -> bool {
        self.visitors.load(Relaxed) > 0 || self.attention.load(Relaxed) || self.pool.is_short()
    }

    /// Takes the lock that the worker holds while it runs, with `take`. May sleep.
    fn visit<T>(&self, take: impl FnOnce() -> T) -> T {
        self.visitors.fetch_add(1, Relaxed);
        let taken = take();
        self.visitors.fetch_sub(1, Relaxed);
        taken
    }

    /// Handles commands that were received, at most [`BATCH`], and returns how many they were.
    fn poll(self: &Arc<Self>, hca: &mut Hca) -> u32 {
        self.batch.store(true, Relaxed);
        let handled = plugged(|| {
            let handled = hca.cq.poll(BATCH);
            if self.pool.is_short() || self.attention.load(Relaxed) {
                // Pairs with `attend()`.
                self.attention.xchg(false, Acquire);
                for entry in &hca.queues {
                    entry.queue.progress(&entry.qp);
                }
            }
            handled
        });
        self.batch.store(false, Relaxed);
        // Pairs with `chained()`.
        let chained = self.chained.xchg(0, Full);
        if chained != 0 {
            let entries = hca.queues.iter();
            let ringing = entries.filter(|entry| entry.credit.bit & chained != 0);
            ringing.for_each(|entry| entry.qp.ring());
        }
        handled
    }
}

impl WorkItem<0> for Poller {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut hca = this.hca.lock();
        let hca: &mut Option<Hca> = &mut hca;
        if let Some(hca) = hca {
            if this.watch(hca) {
                this.wake();
            }
        }
    }
}

/// The receives of a poller, and the credit that they are promised for.
impl Poller {
    /// Returns the most credit that a queue can have on `device`.
    pub(super) fn credit_max(device: &Device) -> u16 {
        let limits = device.limits();
        let receives = match device.has_srq() {
            true => limits.max_srq_wr.saturating_sub(spare(device)),
            // Draining takes one.
            false => limits.max_qp_wr.saturating_sub(1),
        };
        u16::try_from(receives).unwrap_or(u16::MAX)
    }

    /// Reserves `credit` for a new queue. Fails with `ENOSPC` if the poller has too many queues, or
    /// too few receives for one that would have `max` commands in flight. May sleep.
    pub(super) fn reserve(self: &Arc<Self>, credit: u16, max: u16) -> Result<ReceiveCredit> {
        let bit = {
            let mut shared = self.shared.lock();
            let bit = 1_u64.checked_shl(shared.users.trailing_ones());
            let bit = bit.filter(|_| shared.receives.available() >= max.into());
            let bit = bit.ok_or(ENOSPC)?;
            shared.users |= bit;
            bit
        };
        let mut reserved = ReceiveCredit {
            poller: self.clone(),
            bit,
            credit: 0,
            promised: 0,
            lost: false,
        };
        match self.has_srq {
            true => {
                self.promise(credit, true)?;
                reserved.promised = credit;
            }
            false => {
                self.receives(|receives| receives.promise(max.into()))
                    .ok_or(ENOSPC)?;
                reserved.promised = max;
            }
        }
        reserved.credit = credit;
        Ok(reserved)
    }

    /// Makes sure that the shared receive queue has receives for `count` more commands, `first` if
    /// they are the first ones of a queue. Once this returns, a client may rely on them. Fails with
    /// `ENOSPC` if the queue has too few entries. May sleep.
    fn promise(&self, count: u16, first: bool) -> Result {
        let missing = self.receives(|receives| receives.promise(count.into()));
        let mut missing = missing.ok_or(ENOSPC)?;
        let srq = self.shared.lock().srq.clone();
        let made = match &srq {
            Some(srq) => self.make_recvs(&mut missing, first, |recv| srq.recv(recv)),
            None => Err(ENODEV),
        };
        if made.is_err() {
            self.receives(|receives| {
                receives.lose(missing);
                receives.withdraw(count.into());
            });
        }
        made
    }

    /// Makes `missing` receives, posts each with `post`, and counts `missing` down. `first` if they
    /// are the first ones of a queue, which it has in any case. May sleep.
    fn make_recvs(
        &self,
        missing: &mut u32,
        first: bool,
        mut post: impl FnMut(KBox<Recv>) -> Result<(), (Error, KBox<Recv>)>,
    ) -> Result {
        let size = usize::try_from(self.inline_size)?;
        while *missing > 0 {
            let count = RECVS_AT_ONCE.min(usize::try_from(*missing)?);
            let stride = self.header.next_multiple_of(CACHE_LINE);
            let headers = DmaBuffer::alloc(&self.device, count * stride, Direction::FromDevice)?;
            let memory = Arc::new(self.pool.get_lasting(count * size, first)?, GFP_KERNEL)?;
            for (index, mut header) in headers.split(stride).take(count).enumerate() {
                // The bytes that follow the command go to the inline data.
                header.truncate(self.header)?;
                let recv = Recv {
                    header,
                    data: memory.piece(index * size, size)?,
                    _memory: memory.clone(),
                    len: 0,
                    next: None,
                };
                let recv = KBox::new(recv, GFP_KERNEL)?;
                post(recv).map_err(|(error, _)| error)?;
                *missing -= 1;
            }
        }
        Ok(())
    }

    /// Gives the queue at `index` more credit, if it wants some and there is memory for it. Returns
    /// false if there is no such queue. May sleep.
    fn extend_credit_of(&self, index: usize) -> bool {
        let (queue, qp, own) = {
            let hca = self.hca.lock();
            let hca: &Option<Hca> = &hca;
            let Some(entry) = hca.as_ref().and_then(|hca| hca.queues.get(index)) else {
                return false;
            };
            // It may not be needed soon. What is needed is taken again.
            entry.queue.free_kept();
            let own = entry.credit.promised - entry.credit.credit;
            (entry.queue.clone(), entry.qp.clone(), own)
        };
        let available = match self.has_srq {
            true => self.shared.lock().receives.available(),
            false => own.into(),
        };
        let more = queue.credit_wanted();
        let more = more.min(u16::try_from(available).unwrap_or(u16::MAX));
        if more == 0 {
            return true;
        }
        let all = queue.credit() + more;
        let first = all <= CREDIT_SURE;
        let made = queue.make_commands(all);
        let mut missing = u32::from(more);
        let made = made.and_then(|()| match self.has_srq {
            true => self.promise(more, first),
            false => self.make_recvs(&mut missing, first, |recv| qp.recv(recv)),
        });
        // The owner of the queue may wait for this reference to go.
        drop(qp);
        let more = match made {
            Ok(()) => more,
            // What a queue of its own has got is there for good.
            // CAST: At most `more`.
            Err(_) if !self.has_srq => more - missing as u16,
            Err(_) => 0,
        };
        if more == 0 {
            // The pool asks for another attempt later.
            return true;
        }
        let mut hca = self.hca.lock();
        let hca: &mut Option<Hca> = &mut hca;
        let mut entries = hca.iter_mut().flat_map(|hca| &mut hca.queues);
        match entries.find(|entry| Arc::ptr_eq(&entry.queue, &queue)) {
            Some(entry) => {
                entry.credit.credit += more;
                if self.has_srq {
                    entry.credit.promised += more;
                }
                queue.grant_credit(more);
            }
            None if self.has_srq => self.receives(|receives| receives.withdraw(more.into())),
            None => {}
        }
        true
    }
}

impl WorkItem<1> for Poller {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for index in 0..QUEUES_MAX {
            if !this.extend_credit_of(index) {
                return;
            }
        }
    }
}
