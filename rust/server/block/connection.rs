// SPDX-License-Identifier: GPL-2.0

//! An I/O connection to an export of a block device: its slots for commands, and its credit.
//!
//! [`OpenConnection`](super::connections::OpenConnection) makes and closes it;
//! [`command`](super::command) has the way of a command through it, and [`waiting`](super::waiting)
//! has what happens to a command that cannot go on yet.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, impl_has_work, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    workqueue::Work,
};

use crate::base::{
    errno::ESHUTDOWN,
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock,
        Released, //
    },
    workqueue::OwnedQueue, //
};
use crate::proto::{
    frame,
    response,
    Access,
    Name,
    Protection,
    Terms, //
};
use crate::rdma::{
    cq::{
        Cq,
        Manual, //
    },
    dma::{
        Direction,
        DmaBuffer, //
    },
    qp::Qp,
    remnant::ObjectRef, //
};
use crate::server::{
    backend::Block,
    block::{
        command::{
            Command,
            Handler, //
        },
        line::{
            Line,
            LineState,
            Lines, //
        },
        poller::{
            Polled,
            Poller, //
        },
        protected::Protected,
    },
    memory::{
        account::Account,
        overdue::{
            Overdue,
            Progress, //
        },
    },
    persistent::Membership,
    session::Session,
    stats::ConnectionStats, //
};

/// The credit of a connection at first: commands that its client may have in flight. A busy client
/// asks for more, and has twice as much each time; one that is idle costs both hosts memory for so
/// many receives.
pub(super) const CREDIT_FIRST: u16 = 4;

/// Bytes from one framed answer to the next in memory.
const CACHE_LINE: usize = 64;
/// Nanoseconds of a millisecond.
const NSEC_PER_MSEC: u64 = 1_000_000;
/// The least time between two looks whether the HCA is overdue, in ms: a poller that is busy while
/// others wait would look again and again.
const LOOK_MIN_MS: u64 = 200;
const _: () = assert!(frame::RESPONSE_SIZE <= CACHE_LINE);

/// Returns the most credit of a connection of `depth`. A device's queues have a power of two of
/// entries, of which each command takes two, and the end of the connection takes one more.
pub(super) fn credit_max(depth: u16) -> u16 {
    depth.saturating_sub(1).max(1)
}

/// The slots of a connection and the commands that wait.
pub(super) struct Slots {
    /// The slots with no command in them. There is capacity for all.
    pub(super) free: KVec<KBox<Command>>,
    /// The number of all slots.
    made: u16,
    /// The number of slots that are taken.
    pub(super) in_flight: usize,
    /// The commands that wait in lines.
    pub(super) lines: Lines<KBox<Command>>,
    /// The commands that wait until fewer RDMA READs are under way. There is capacity for all.
    pub(super) fetching: KVec<KBox<Command>>,
    /// The commands that [`Connection::submit_later`] got. There is capacity for all.
    pub(super) later: KVec<KBox<Command>>,
    /// The commands that [`Connection::answer_later`] got. There is capacity for all.
    pub(super) finished: KVec<KBox<Command>>,
    /// The reference that new slots get; `None` once the connection is being closed.
    pub(super) owner: Option<Arc<ConnectionRef>>,
    /// No command may begin any more, and those that wait are dropped: the session is to end. Who
    /// sets this, and then finds none in flight, knows that none will be.
    pub(super) draining: bool,
    /// No command may begin any more: the connection is being closed.
    pub(super) closed: bool,
    /// The commands whose data are to be fetched: those that [`Connection::fetch`] got.
    pub(super) fetches: Progress,
    /// Whether the HCA is overdue.
    overdue: Overdue,
}

impl Slots {
    /// Makes no slots, and capacity for `depth` of them. May sleep.
    fn new(depth: usize) -> Result<Self> {
        Ok(Self {
            free: KVec::with_capacity(depth, GFP_KERNEL)?,
            made: 0,
            in_flight: 0,
            lines: Lines::new(depth)?,
            fetching: KVec::with_capacity(depth, GFP_KERNEL)?,
            later: KVec::with_capacity(depth, GFP_KERNEL)?,
            finished: KVec::with_capacity(depth, GFP_KERNEL)?,
            owner: None,
            draining: false,
            closed: false,
            fetches: Progress::default(),
            overdue: Overdue::default(),
        })
    }

    /// Returns true if commands may begin.
    #[inline]
    pub(super) fn lets_begin(&self) -> bool {
        !self.closed && !self.draining
    }

    /// Takes a slot, if one is free, for a command with this tag.
    #[inline]
    pub(super) fn take_free(&mut self, tag: u16) -> Option<KBox<Command>> {
        let mut slot = self.free.pop()?;
        slot.tag = tag;
        self.in_flight += 1;
        Some(slot)
    }
}

/// What completion handlers, commands and the poller share of a connection.
#[pin_data]
pub(in crate::server) struct Connection {
    pub(super) session: Arc<Session>,
    label: Label,
    /// The export.
    pub(super) block: Arc<Block>,
    pub(super) access: Access,
    /// What persistent reservations leave to it.
    pub(super) membership: Arc<Membership>,
    pub(super) terms: Terms,
    /// The poller that looks after it.
    pub(super) poller: Arc<Poller<Connection>>,
    /// The bit by which the poller knows it.
    pub(super) bit: u64,
    /// The lines of commands that wait for memory.
    common: LineState,
    own: LineState,
    /// The completion queue of its sends. It wakes the poller only when the poller waits for
    /// something.
    pub(super) cq: Cq<Manual>,
    #[pin]
    pub(super) slots: IrqSaveSpinLock<Slots>,
    /// Commands that the client may have in flight.
    pub(super) credit: Atomic<u32>,
    /// For each tag, the command that is not answered yet; 0 if there is none.
    pub(super) tags: KVec<Atomic<u64>>,
    /// The client has asked for more credit.
    credit_asked: Atomic<u32>,
    /// How often commands had to wait so far: for a slot, or for memory.
    pub(super) waits: Atomic<u64>,
    /// Receives that have completed. As many were posted for them.
    pub(super) receives: Atomic<u64>,
    /// The counters of commands. Those that are not answered yet are in flight.
    pub(super) stats: ConnectionStats,
    /// RDMA READs under way. Changed with the slots locked.
    pub(super) fetches: Atomic<usize>,
    /// The most of them: what the client's device serves at a time, and the own one can ask for.
    /// One more would hold up all that is posted behind it, also answers.
    pub(super) fetches_max: usize,
    /// When [`Connection::look`] looked last, in ms.
    looked_ms: Atomic<u64>,
    /// No command is in flight, nor will be.
    #[pin]
    pub(super) idle: Completion,
    /// The workqueue of commands for which the backing device has to wait.
    pub(super) later: Arc<OwnedQueue>,
    /// The workqueue on which answers are sealed.
    pub(super) worker: Arc<OwnedQueue>,
    /// `None` if commands and answers are sent as they are.
    pub(super) protected: Option<Protected>,
    /// Answers invalidate the keys of their commands: both devices can do that.
    pub(super) invalidates: bool,
    #[pin]
    work: Work<Connection, 0>,
    #[pin]
    answer_work: Work<Connection, 1>,
}

impl_has_work! {
    impl HasWork<Self, 0> for Connection { self.work }
    impl HasWork<Self, 1> for Connection { self.answer_work }
}

/// The names by which an administrator knows a connection.
#[derive(Clone, Copy)]
pub(super) struct Label {
    /// The export.
    pub(super) export: Name,
    /// The client host.
    pub(super) host: Name,
    /// The index of the connection in its session.
    pub(super) index: u16,
}

/// What a connection is made for.
pub(super) struct ConnectionConfig<'a> {
    /// The session, which ends if the connection breaks.
    pub(super) session: &'a Arc<Session>,
    /// The names of the connection.
    pub(super) label: Label,
    /// The export.
    pub(super) block: &'a Arc<Block>,
    /// The account of the client.
    pub(super) account: &'a Arc<Account>,
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

/// The reference that commands have to their connection.
///
/// A command that ends in an interrupt may drop the last one. It never drops the last reference to
/// what is in here, for which one has to sleep:
/// [`OpenConnection::close`](super::connections::OpenConnection) waits for this drop first.
pub(super) struct ConnectionRef {
    // Fields drop in this order.
    pub(super) connection: Arc<Connection>,
    pub(super) qp: ObjectRef<Qp<Handler>>,
    pub(super) released: Released,
}

impl ConnectionRef {
    /// Makes the reference that the commands of a connection share. May sleep.
    pub(super) fn new(
        connection: &Arc<Connection>,
        qp: &ObjectRef<Qp<Handler>>,
    ) -> Result<Arc<Self>> {
        let this = Self {
            connection: connection.clone(),
            qp: qp.clone(),
            released: Released::new()?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }
}

impl Connection {
    /// Makes a connection with no slots yet, whose sends complete on `cq`. May sleep.
    pub(super) fn new(
        config: &ConnectionConfig<'_>,
        poller: &Arc<Poller<Self>>,
        cq: Cq<Manual>,
        (credit, bit): (u16, u64),
    ) -> Result<Arc<Self>> {
        let depth = usize::from(config.terms.depth);
        let slots = Slots::new(depth)?;
        let stats = config.block.stats.connection()?;
        let common = LineState::new(poller.requester(config.account)?);
        let own = LineState::new(poller.requester(config.account)?);
        let mut tags = KVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            tags.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let protected = match config.protection.is_on() {
            true => Some(Protected::new(config.terms.depth)?),
            false => None,
        };
        Arc::pin_init(
            pin_init!(Self {
                session: config.session.clone(),
                label: config.label,
                block: config.block.clone(),
                access: config.access,
                membership: config.membership.clone(),
                terms: config.terms,
                poller: poller.clone(),
                bit,
                common,
                own,
                cq,
                slots <- new_irqsave_spinlock!(slots, "Connection::slots"),
                credit: Atomic::new(credit.into()),
                tags,
                credit_asked: Atomic::new(0),
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
                work <- new_work!("Connection::work"),
                answer_work <- new_work!("Connection::answer_work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns what the commands of a line wait with.
    #[inline]
    pub(super) fn line(&self, line: Line) -> &LineState {
        match line {
            Line::Common => &self.common,
            Line::Own => &self.own,
        }
    }

    /// Sets the reference that slots are made with. Any context.
    pub(super) fn set_owner(&self, owner: Arc<ConnectionRef>) {
        self.slots.lock().owner = Some(owner);
    }

    /// Lets no command begin any more. Any context.
    pub(super) fn shut(&self) {
        self.slots.lock().closed = true;
    }

    /// Returns true if no command may begin any more. Any context.
    pub(super) fn is_closed(&self) -> bool {
        self.slots.lock().closed
    }

    /// Lets no command begin any more, of those that come in and of those that wait. Any context.
    pub(super) fn begin_drain(&self) {
        self.slots.lock().draining = true;
    }

    /// Returns true if no command is in flight. Any context.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.lock().in_flight == 0
    }

    /// Lets no command begin any more, and ends those that wait. Once [`Connection::idle`]
    /// completes, all slots are free. Returns the reference that they were made with. May sleep.
    pub(super) fn end_waiting(&self) -> Option<Arc<ConnectionRef>> {
        let (owner, lists) = {
            let mut slots = self.slots.lock();
            let slots: &mut Slots = &mut slots;
            slots.closed = true;
            if slots.in_flight == 0 {
                self.idle.complete_all();
            }
            let lists = [&mut slots.fetching, &mut slots.later, &mut slots.finished];
            (slots.owner.take(), lists.map(core::mem::take))
        };
        self.drop_all_waiting();
        lists.into_iter().flatten().for_each(Command::end);
        owner
    }

    /// Frees the slots, none of which is taken. May sleep.
    pub(super) fn free_slots(&self) {
        let free = core::mem::take(&mut self.slots.lock().free);
        drop(free);
    }

    /// Asks the poller for more credit, because the client could use it.
    #[cold]
    pub(super) fn ask_for_credit(&self) {
        if self.credit() < credit_max(self.terms.depth) && self.credit_asked.xchg(1, Relaxed) == 0 {
            self.poller.extend_credit();
        }
    }

    /// Ends the session because a command will not be answered: the client would wait for it for
    /// ever. Any context.
    #[cold]
    pub(super) fn lose_session(&self) {
        // A connection that is being closed does so because its session ends, or because of a
        // logout, whose reply is still to be sent.
        if !self.is_closed() {
            self.session.lose();
        }
    }

    /// Ends the session because of what the client has sent. While the connection drains, nothing
    /// that it sends is answered, so it may use tags again and have more in flight than it may.
    #[cold]
    pub(super) fn violation(&self) {
        if !self.slots.lock().draining {
            self.session.violation();
        }
    }

    /// Ends the session because a command, or its data, has another check than its own, also while
    /// the connection drains: that command is not answered.
    #[cold]
    pub(super) fn forgery(&self) {
        self.session.forgery();
    }

    /// Handles the completions of answers in another task than the poller's worker. That worker is
    /// told if commands wait: there may be a slot for them now, and no other completion may come.
    pub(super) fn reap(&self) {
        self.cq.reap();
        if !self.slots.lock().lines.is_empty() {
            self.poller.attend();
        }
    }

    /// Ends the session if the HCA is overdue with what it was asked to do on the connection, and
    /// others are in need of the memory that the client's host has. To be called about once a
    /// second, or more often. Any context.
    pub(super) fn look(&self, qp: &Qp<Handler>) {
        let now_ms = ConnectionStats::now_ns() / NSEC_PER_MSEC;
        if now_ms.saturating_sub(self.looked_ms.load(Relaxed)) < LOOK_MIN_MS {
            return;
        }
        self.looked_ms.store(now_ms, Relaxed);
        let (begun, ended) = qp.sends();
        let sends = Progress { begun, ended };
        let kept = match sends.is_busy() {
            false => 0,
            true => self.common.requester.kept(),
        };
        let overdue = {
            let mut slots = self.slots.lock();
            let slots: &mut Slots = &mut slots;
            let overdue = slots.overdue.look(now_ms, sends, slots.fetches, kept);
            overdue && !slots.closed
        };
        let requester = &self.common.requester;
        if overdue && !self.session.is_lost() && requester.keeps_from_others() {
            self.session.overdue();
        }
    }
}

impl Polled for Connection {
    type Handler = Handler;

    /// Asks for an interrupt of the next completion of a send only if the poller waits for one.
    fn progress(&self, qp: &Qp<Handler>) {
        loop {
            // A task that handles completions just now has the poller look again afterwards. To
            // wait for it here could be for ever: it may need this CPU.
            let reaped = self.cq.try_reap();
            let interested = self.resume()
                || self.fetches.load(Relaxed) > 0
                // No command begins meanwhile.
                || self.poller.is_short() && !self.is_idle();
            if reaped.is_none() || !interested || !self.cq.arm() {
                break;
            }
        }
        if self.poller.is_short() {
            self.look(qp);
        }
    }

    #[inline]
    fn credit(&self) -> u16 {
        // The credit is never more than the depth.
        u16::try_from(self.credit.load(Relaxed)).unwrap_or(u16::MAX)
    }

    fn credit_wanted(&self) -> u16 {
        let credit = self.credit();
        match self.credit_asked.load(Relaxed) {
            0 => 0,
            _ => credit.min(credit_max(self.terms.depth).saturating_sub(credit)),
        }
    }

    fn make_commands(&self, count: u16) -> Result {
        let missing = count.saturating_sub(self.slots.lock().made);
        if missing == 0 {
            return Ok(());
        }
        let (size, stride) = match &self.protected {
            Some(_) => (frame::RESPONSE_SIZE, CACHE_LINE),
            None => (response::SIZE, response::SIZE),
        };
        let len = usize::from(missing) * stride;
        let responses = DmaBuffer::alloc(self.cq.device(), len, Direction::ToDevice)?;
        for mut response in responses.split(stride) {
            response.truncate(size)?;
            let (bio, slot) = (Command::bio()?, KBox::new_uninit(GFP_KERNEL)?);
            let mut slots = self.slots.lock();
            // The reference is taken under the lock, as the end of the connection waits for it.
            let owner = slots.owner.clone().ok_or(ESHUTDOWN)?;
            let command = Command::new(owner, slots.made, response, bio);
            let command = KBox::write(slot, command);
            slots.made += 1;
            // Cannot fail: there is capacity for all.
            let _ = slots.free.push_within_capacity(command);
        }
        Ok(())
    }

    fn grant_credit(&self, more: u16) {
        self.credit.fetch_add(more.into(), Relaxed);
        self.credit_asked.store(0, Relaxed);
    }

    fn show(&self, qp: &Qp<Handler>, interrupts: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            self.common.requester.own(),
        )
    }
}
