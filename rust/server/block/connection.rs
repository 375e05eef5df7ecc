// SPDX-License-Identifier: GPL-2.0

//! An I/O connection to an export of a block device.

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
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    errno::ESHUTDOWN,
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
    workqueue::OwnedQueue, //
};
use crate::proto::{
    self,
    command,
    response,
    Access,
    CommandError,
    Extent,
    Malformed,
    Name,
    Response,
    Terms, //
};
use crate::rdma::{
    cm::CmId,
    cq::{
        Cq,
        CqNotify,
        PollContext, //
    },
    dma::{
        Direction,
        DmaBuffer, //
    },
    qp::{
        Qp,
        QpCaps,
        QpHandler, //
    },
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
        poller::{
            Poller,
            Receive,
            Seat, //
        },
    },
    session::Session, //
};

/// There is a command; its generation is below.
const RUNNING: u64 = 1 << 32;

/// Commands that a client of `depth` may have in flight: the device's queues, which have a power of two of
/// entries, two for each command, need one more for the end.
pub(in crate::server) fn credit_max(depth: u16) -> u16 {
    depth.saturating_sub(1).max(1)
}

/// Why a command cannot be begun or go on.
enum Waiting {
    /// The HCA is not done with the answer of the one before it.
    Room(proto::Command, KBox<Recv>),
    /// The same, and all that is to be done is to refuse it.
    Refusal(Response),
    /// There is no memory for its data.
    Memory(KBox<Command>),
}

impl Waiting {
    /// The tag that has to be free for it.
    fn room(&self) -> Option<u16> {
        match self {
            Self::Room(command, _) => Some(command.tag),
            Self::Refusal(response) => Some(response.tag),
            Self::Memory(_) => None,
        }
    }
}

/// The commands of a connection.
struct Commands {
    /// Those that are not in flight. There is room for all.
    rest: KVec<KBox<Command>>,
    /// How many there are.
    made: u16,
    /// Whether a command is in flight; the index is the tag.
    taken: KVec<bool>,
    /// How many are in flight.
    flying: usize,
    /// Those that wait, in order. There is room for one of each tag.
    waiting: KVec<Waiting>,
    /// Those that have to wait for the backing. There is room for all.
    blocked: KVec<KBox<Command>>,
    /// What more of them are made with; gone once the connection is being closed.
    hold: Option<Arc<Hold>>,
    /// Nothing may begin any more.
    closed: bool,
}

impl Commands {
    /// Whether a command with this tag could begin.
    fn has_room(&self, tag: u16) -> bool {
        !self.rest.is_empty() && self.taken.get(usize::from(tag)) == Some(&false)
    }

    /// Takes the room for a command with this tag, if there is some.
    fn take(&mut self, tag: u16) -> Option<KBox<Command>> {
        let taken = self
            .taken
            .get_mut(usize::from(tag))
            .filter(|taken| !**taken)?;
        let mut command = self.rest.pop()?;
        command.set_tag(tag);
        *taken = true;
        self.flying += 1;
        Some(command)
    }

    /// Takes back what [`Commands::take`] gave.
    fn put(&mut self, command: KBox<Command>) {
        if let Some(taken) = self.taken.get_mut(usize::from(command.tag())) {
            *taken = false;
        }
        self.flying = self.flying.saturating_sub(1);
        // There is room for all.
        let _ = self.rest.push_within_capacity(command);
    }
}

/// A connection.
#[pin_data]
pub(in crate::server) struct Queue {
    session: Arc<Session>,
    label: Label,
    /// The export.
    pub(in crate::server) block: Arc<Block>,
    access: Access,
    terms: Terms,
    /// Who looks after it.
    pub(in crate::server) poller: Arc<Poller>,
    /// Of its sends; it wakes the poller only when that is waiting for something.
    cq: Arc<Cq>,
    #[pin]
    commands: IrqSaveSpinLock<Commands>,
    /// Commands that the client may have in flight.
    credit: Atomic<u32>,
    /// Commands that were not answered yet.
    owed: Atomic<u32>,
    /// The same of each tag: [`RUNNING`] and the generation of the command, or 0.
    unanswered: KVec<Atomic<u64>>,
    /// More credit was asked for.
    pressed: Atomic<u32>,
    /// How many wait.
    waiting: Atomic<usize>,
    /// Receives that were used up, and as many were posted for them.
    receives: Atomic<u64>,
    /// How many had to, so far.
    waits: Atomic<u64>,
    /// RDMA READs under way.
    fetching: Atomic<isize>,
    /// What comes in is not to begin any more.
    draining: Atomic<u32>,
    /// No command is in flight, nor will be.
    #[pin]
    idle: Completion,
    /// No [`Hold`] is there any more.
    released: Arc<Completion>,
    blocked: Arc<OwnedQueue>,
    #[pin]
    work: Work<Queue>,
}

impl_has_work! {
    impl HasWork<Self> for Queue { self.work }
}

/// What an administrator knows a connection by.
#[derive(Clone, Copy)]
pub(in crate::server) struct Label {
    /// The export.
    pub(in crate::server) export: Name,
    /// The client host.
    pub(in crate::server) host: Name,
    /// Which connection of the session.
    pub(in crate::server) index: u16,
}

/// What a connection belongs to.
pub(in crate::server) struct Parts<'a> {
    /// The session that hears of its end.
    pub(in crate::server) session: &'a Arc<Session>,
    /// What it is called.
    pub(in crate::server) label: Label,
    /// The export.
    pub(in crate::server) block: &'a Arc<Block>,
    /// What the client may do.
    pub(in crate::server) access: Access,
    /// What was agreed on.
    pub(in crate::server) terms: Terms,
    /// Where commands wait for the backing.
    pub(in crate::server) blocked: &'a Arc<OwnedQueue>,
}

/// What a queue pair of a connection calls.
pub(in crate::server) struct Handler(pub(in crate::server) Arc<Queue>);

/// A connection with its queue pair.
pub(in crate::server) struct Connection {
    pub(in crate::server) queue: Arc<Queue>,
    pub(in crate::server) qp: Arc<Qp<Handler>>,
}

/// What commands have of their connection. One that ends in an interrupt may be the last to drop it, but
/// never the last to drop what is in it, for which one has to sleep: the owner waits for the end of this
/// first.
pub(in crate::server) struct Hold {
    // Fields drop in this order.
    pub(in crate::server) queue: Arc<Queue>,
    pub(in crate::server) qp: Arc<Qp<Handler>>,
    _released: Released,
}

/// Tells of its drop.
struct Released(Arc<Completion>);

impl Drop for Released {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// A send has completed, and the poller waits for that.
struct Wake(Arc<Poller>);

impl CqNotify for Wake {
    fn notify(&self) {
        self.0.call();
    }
}

impl Connection {
    /// Makes the queue pair on a bound `id`, ready to receive commands. [`Connection::close`] must be
    /// its end. May sleep.
    pub(in crate::server) fn new(id: &Arc<CmId>, seat: Seat, parts: &Parts<'_>) -> Result<Self> {
        let device = id.device()?;
        let poller = seat.poller().clone();
        let credit = seat.credit();
        let depth = parts.terms.depth;
        let caps = QpCaps {
            slots: depth,
            // The data of a read and its answer; what is fetched for a write comes before that.
            send_wr: 2 * u32::from(credit_max(depth)),
            recv_wr: 0,
            // The data of a command are one piece of the pool.
            sges: 1,
            large: 0,
            keys: 0,
            key_pages: 0,
            large_keys: 0,
            large_key_pages: 0,
        };
        let wake = Arc::new(Wake(poller.clone()), GFP_KERNEL)?;
        let vector = poller.vector();
        let cq = Cq::alloc(&device, caps.send_cqes(), vector, PollContext::Manual(wake))?;
        let room = usize::from(depth);
        let commands = Commands {
            rest: KVec::with_capacity(room, GFP_KERNEL)?,
            made: 0,
            flying: 0,
            taken: KVec::from_elem(false, room, GFP_KERNEL)?,
            waiting: KVec::with_capacity(room, GFP_KERNEL)?,
            blocked: KVec::with_capacity(room, GFP_KERNEL)?,
            hold: None,
            closed: false,
        };
        let mut unanswered = KVec::with_capacity(room, GFP_KERNEL)?;
        for _ in 0..room {
            unanswered.push(Atomic::new(0), GFP_KERNEL)?;
        }
        let released = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let queue = Arc::pin_init(
            pin_init!(Queue {
                session: parts.session.clone(),
                label: parts.label,
                block: parts.block.clone(),
                access: parts.access,
                terms: parts.terms,
                poller,
                cq,
                commands <- new_irqsave_spinlock!(commands, "Queue::commands"),
                credit: Atomic::new(credit.into()),
                owed: Atomic::new(0),
                unanswered,
                pressed: Atomic::new(0),
                waiting: Atomic::new(0),
                receives: Atomic::new(0),
                waits: Atomic::new(0),
                fetching: Atomic::new(0),
                draining: Atomic::new(0),
                idle <- Completion::new(),
                released,
                blocked: parts.blocked.clone(),
                work <- new_work!("Queue::work"),
            }),
            GFP_KERNEL,
        )?;
        let qp = queue.poller.add(seat, &queue, |receive| {
            let handler = Handler(queue.clone());
            match receive {
                Receive::Shared(srq) => Qp::create_on(id, srq, &queue.cq, caps, handler),
                Receive::Own(pd, cq, recv_wr) => {
                    let caps = QpCaps { recv_wr, ..caps };
                    Qp::create(id, pd, &queue.cq, cq, caps, handler)
                }
            }
        })?;
        let connection = Self { queue, qp };
        let made = connection.make_commands(credit);
        match made.and_then(|()| connection.queue.poller.begin(&connection.qp, credit)) {
            Ok(()) => Ok(connection),
            Err(error) => {
                connection.close();
                Err(error)
            }
        }
    }

    /// Makes room for its first commands. May sleep.
    fn make_commands(&self, count: u16) -> Result {
        let queue = &self.queue;
        let hold = Hold {
            queue: queue.clone(),
            qp: self.qp.clone(),
            _released: Released(queue.released.clone()),
        };
        let hold = Arc::new(hold, GFP_KERNEL)?;
        queue.commands.lock().hold = Some(hold);
        queue.make_commands(count)
    }

    /// Lets no more commands begin: what comes in is left unanswered. Whether the client has the answers
    /// to all that have begun. May sleep.
    pub(in crate::server) fn drain(&self) -> bool {
        let queue = &self.queue;
        queue.draining.store(1, Relaxed);
        // What the worker is about to begin counts.
        queue.poller.pause();
        queue.cq.reap();
        let commands = queue.commands.lock();
        commands.flying == 0 && commands.waiting.is_empty()
    }

    /// Lets the HCA begin nothing more. May sleep.
    pub(in crate::server) fn cut(&self) {
        self.queue.commands.lock().closed = true;
        self.qp.fail();
    }

    /// Ends all commands, and waits until the backing and the HCA are done with them: what the client
    /// was not told of has happened or will never do. May sleep, as long as the backing takes.
    pub(in crate::server) fn close(&self) {
        let queue = &self.queue;
        let (hold, waiting, blocked) = {
            let mut commands = queue.commands.lock();
            commands.closed = true;
            if commands.flying == 0 {
                queue.idle.complete_all();
            }
            (
                commands.hold.take(),
                core::mem::take(&mut commands.waiting),
                core::mem::take(&mut commands.blocked),
            )
        };
        for waiting in waiting {
            queue.drop_waiting(waiting);
        }
        blocked.into_iter().for_each(Command::end);
        // What was posted comes back. It gives the client no access to anything.
        let _ = self.qp.drain();
        // What the backing has comes back, too.
        queue.idle.wait();
        let rest = core::mem::take(&mut queue.commands.lock().rest);
        drop((hold, rest));
        // Who has just put the last one there may not be through.
        queue.released.wait();
        queue.poller.remove(queue);
    }
}

impl Queue {
    /// What the client may do with the export now. Any context.
    fn extent(&self) -> Extent {
        let extent = self.block.extent();
        Extent {
            access: extent.access.min(self.access),
            ..extent
        }
    }

    /// Whether nothing may begin any more. Any context.
    pub(in crate::server) fn is_closed(&self) -> bool {
        self.commands.lock().closed
    }

    /// Shows what the connection did. May sleep.
    pub(in crate::server) fn show(
        &self,
        qp: &Qp<Handler>,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        // Nobody has looked yet whether the last answers were sent.
        self.cq.reap();
        writeln!(
            f,
            "export {} host {} queue {} vector {} work_requests {} doorbells {} completions {} credit {} waits {}",
            self.label.export,
            self.label.host,
            self.label.index,
            self.poller.vector(),
            qp.posted() + self.receives.load(Relaxed),
            qp.doorbells(),
            qp.completions(),
            self.credit(),
            self.waits.load(Relaxed),
        )
    }

    /// A message came in.
    fn receive(&self, recv: KBox<Recv>, len: u32) {
        if self.draining.load(Relaxed) != 0 {
            return self.put_recv(recv);
        }
        let mut header = [0; command::SIZE];
        let copied = recv.header.copy_out(0, &mut header);
        if !self.owe() {
            self.put_recv(recv);
            return self.violation();
        }
        // Cannot fail: the buffer is as long as a command.
        let parsed = copied.map(|()| command::parse(&header, len, &self.terms, self.extent()));
        match parsed.unwrap_or(Err(Malformed("the command was not received").into())) {
            Ok(command) if self.claim(command.tag, command.generation) => self.admit(command, recv),
            Err(CommandError::Refused(response, _))
                if self.claim(response.tag, response.generation) =>
            {
                self.put_recv(recv);
                self.refuse(response);
            }
            _ => {
                self.put_recv(recv);
                self.violation();
            }
        }
    }

    /// Commands that the client may have in flight now. Any context.
    pub(in crate::server) fn credit(&self) -> u16 {
        // It is never more than the depth.
        u16::try_from(self.credit.load(Relaxed)).unwrap_or(u16::MAX)
    }

    /// How much more credit would be good. Any context.
    pub(in crate::server) fn credit_wanted(&self) -> u16 {
        let credit = self.credit();
        match self.pressed.load(Relaxed) {
            0 => 0,
            _ => credit.min(credit_max(self.terms.depth).saturating_sub(credit)),
        }
    }

    /// There are receives for so many commands more. The client hears of it with the next answer. Any
    /// context.
    pub(in crate::server) fn give_credit(&self, more: u16) {
        self.credit.fetch_add(more.into(), Relaxed);
        self.pressed.store(0, Relaxed);
    }

    /// A command was received. Whether the client may have as many in flight.
    fn owe(&self) -> bool {
        let owed = self.owed.fetch_add(1, Relaxed) + 1;
        owed <= self.credit.load(Relaxed)
    }

    /// A command was received, in the poller's worker. Whether its tag was free for the client to use.
    fn claim(&self, tag: u16, generation: u32) -> bool {
        let free = |place: &&Atomic<u64>| place.load(Relaxed) == 0;
        let place = self.unanswered.get(usize::from(tag)).filter(free);
        let running = RUNNING | u64::from(generation);
        place
            .inspect(|place| place.store(running, Relaxed))
            .is_some()
    }

    /// The client wants more credit.
    #[cold]
    fn press(&self) {
        if self.credit() < credit_max(self.terms.depth) && self.pressed.xchg(1, Relaxed) == 0 {
            self.poller.want_credit();
        }
    }

    /// Command `tag` is about to be answered. Any context.
    pub(in crate::server) fn settle(&self, tag: u16) {
        if let Some(place) = self.unanswered.get(usize::from(tag)) {
            place.store(0, Relaxed);
        }
        self.owed.fetch_sub(1, Relaxed);
    }

    /// Ends the session because a command will not be answered: the client would wait for it for ever. A
    /// connection that is being closed does that anyway. Any context.
    #[cold]
    pub(super) fn abandon(&self) {
        // What is closed by a logout does not end the session, whose reply is yet to be sent.
        if !self.is_closed() {
            self.session.lose();
        }
    }

    /// The client does not keep to the protocol.
    #[cold]
    pub(in crate::server) fn violation(&self) {
        self.session.violation();
    }

    /// Takes the room for command `tag`, if it is free.
    fn take(&self, tag: u16) -> Option<KBox<Command>> {
        let mut commands = self.commands.lock();
        match commands.closed {
            true => None,
            false => commands.take(tag),
        }
    }

    /// Makes room for `count` commands in all, at most [`credit_max`]. Not twice at a time. May sleep.
    pub(in crate::server) fn make_commands(&self, count: u16) -> Result {
        let missing = count.saturating_sub(self.commands.lock().made);
        if missing == 0 {
            return Ok(());
        }
        let len = usize::from(missing) * response::SIZE;
        let responses = DmaBuffer::alloc(self.cq.device(), len, Direction::ToDevice)?;
        for response in responses.split(response::SIZE) {
            let (bio, room) = (Command::bio()?, KBox::new_uninit(GFP_KERNEL)?);
            let mut commands = self.commands.lock();
            // Only now: the end of the connection waits for it.
            let hold = commands.hold.clone().ok_or(ESHUTDOWN)?;
            let command = KBox::write(room, Command::new(hold, response, bio));
            commands.made += 1;
            // There is room for all.
            let _ = commands.rest.push_within_capacity(command);
        }
        Ok(())
    }
}

impl Queue {
    /// Begins a command, or lets it wait.
    fn admit(&self, command: proto::Command, recv: KBox<Recv>) {
        if command.pressed {
            self.press();
        }
        // What waits for room is behind the answer of the command before it.
        match self.take(command.tag) {
            Some(room) => room.begin(&command, recv),
            None => self.wait(Waiting::Room(command, recv)),
        }
    }

    /// Refuses a command, now or later.
    fn refuse(&self, response: Response) {
        match self.take(response.tag) {
            Some(room) => room.refuse(&response),
            None => self.wait(Waiting::Refusal(response)),
        }
    }

    /// Posts a receive that is not needed any more again. Any context.
    pub(in crate::server) fn put_recv(&self, recv: KBox<Recv>) {
        if self.poller.is_shared() {
            return self.poller.put_recv(recv);
        }
        // Once the connection is being closed, it goes.
        let hold = self.commands.lock().hold.clone();
        if let Some(hold) = hold {
            drop(hold.qp.recv(recv));
        }
    }

    /// Gives a command the memory it needs, or lets it wait.
    pub(in crate::server) fn provide(&self, command: KBox<Command>, len: u32) {
        // Those that wait are first.
        if self.waiting.load(Relaxed) == 0 {
            if let Some(memory) = self.poller.get(len) {
                return command.supply(memory);
            }
        }
        self.wait(Waiting::Memory(command));
    }

    /// Lets a command wait until the worker tries again.
    fn wait(&self, waiting: Waiting) {
        let refused = {
            let mut commands = self.commands.lock();
            match commands.closed {
                true => Some(waiting),
                false => {
                    let full = commands.waiting.push_within_capacity(waiting).err();
                    self.waiting.store(commands.waiting.len(), Relaxed);
                    full.map(|full| full.0)
                }
            }
        };
        self.waits.fetch_add(1, Relaxed);
        match refused {
            None => self.poller.call(),
            Some(waiting) => {
                self.drop_waiting(waiting);
                self.abandon();
            }
        }
    }

    fn drop_waiting(&self, waiting: Waiting) {
        match waiting {
            Waiting::Room(_, recv) => self.put_recv(recv),
            Waiting::Refusal(_) => {}
            Waiting::Memory(command) => command.end(),
        }
    }

    /// Lets a command wait for the backing, in a task of its own. Any context.
    pub(in crate::server) fn block(self: &Arc<Self>, command: KBox<Command>) {
        let refused = {
            let mut commands = self.commands.lock();
            match commands.closed {
                true => Some(command),
                false => commands
                    .blocked
                    .push_within_capacity(command)
                    .err()
                    .map(|full| full.0),
            }
        };
        match refused {
            None => {
                let _ = self.blocked.enqueue(self.clone());
            }
            Some(command) => {
                command.end();
                self.abandon();
            }
        }
    }

    /// `by` more RDMA READs are under way. Any context.
    pub(in crate::server) fn fetches(&self, by: isize) {
        self.fetching.fetch_add(by, Relaxed);
        if by > 0 {
            self.poller.call();
        }
    }

    /// Posts what was chained, unless the worker is about to. Any context.
    pub(in crate::server) fn post(&self, qp: &Arc<Qp<Handler>>) {
        if self.poller.chained(qp) {
            qp.ring();
        }
    }

    /// A command has ended. Any context.
    pub(in crate::server) fn put(&self, command: KBox<Command>) {
        let mut commands = self.commands.lock();
        commands.put(command);
        if commands.closed && commands.flying == 0 {
            self.idle.complete_all();
        }
    }

    /// Goes on with what waits. Returns whether something did, and whether something still waits for
    /// memory. From the poller's worker.
    fn resume(&self) -> (bool, bool) {
        let mut resumed = false;
        loop {
            let first = {
                let mut commands = self.commands.lock();
                let room = commands.waiting.first().and_then(Waiting::room);
                let free = room.is_none_or(|tag| commands.has_room(tag));
                let first = free.then(|| commands.waiting.remove(0).ok()).flatten();
                self.waiting.store(commands.waiting.len(), Relaxed);
                first
            };
            match first {
                None => return (resumed, false),
                Some(Waiting::Room(command, recv)) => self.admit(command, recv),
                Some(Waiting::Refusal(response)) => self.refuse(response),
                Some(Waiting::Memory(command)) => {
                    let len = command.memory_wanted().unwrap_or(0);
                    match self.poller.get(len) {
                        Some(memory) => command.supply(memory),
                        None => {
                            self.wait_again(command);
                            return (resumed, true);
                        }
                    }
                }
            }
            resumed = true;
        }
    }

    /// Puts a command back to where it was taken from.
    fn wait_again(&self, command: KBox<Command>) {
        let mut commands = self.commands.lock();
        if commands.closed {
            drop(commands);
            return command.end();
        }
        // There is room: it was taken out just now, and nobody else is let in twice.
        let waiting = &mut commands.waiting;
        let full = waiting.push_within_capacity(Waiting::Memory(command)).err();
        if full.is_none() {
            waiting.rotate_right(1);
        }
        self.waiting.store(waiting.len(), Relaxed);
        drop(commands);
        if let Some(full) = full {
            self.drop_waiting(full.0);
            self.abandon();
        }
    }

    /// Handles what the HCA is done with, and goes on with what waits; what it does later wakes the
    /// poller if that is needed. Returns whether something went on, and whether something waits for
    /// memory. From the poller's worker.
    pub(in crate::server) fn look(&self) -> (bool, bool) {
        let mut resumed = false;
        loop {
            self.cq.reap();
            let (some, short) = self.resume();
            resumed |= some;
            let interested = self.fetching.load(Relaxed) > 0
                || self.waiting.load(Relaxed) > 0
                || self.poller.is_short();
            if !interested || !self.cq.arm() {
                return (resumed, short);
            }
        }
    }
}

impl WorkItem for Queue {
    type Pointer = Arc<Self>;

    /// Lets the backing do what it could not do at once.
    fn run(this: Arc<Self>) {
        loop {
            let command = this.commands.lock().blocked.remove(0);
            match command {
                Ok(command) => command.submit(false),
                Err(_) => return,
            }
        }
    }
}

impl QpHandler for Handler {
    type Send = KBox<Command>;
    type Recv = KBox<Recv>;

    #[inline]
    fn send_done(&self, _: &Qp<Self>, command: KBox<Command>, result: Result<(), WcError>) {
        command.posted(result.is_ok());
    }

    #[inline]
    fn recv_done(&self, _: &Qp<Self>, recv: KBox<Recv>, received: Result<Received<'_>, WcError>) {
        let queue = &self.0;
        // One completion is handled at a time.
        let receives = queue.receives.load(Relaxed);
        queue.receives.store(receives + 1, Relaxed);
        match received {
            Ok(received) => {
                // The answer to the command before this one, most often.
                queue.cq.reap();
                queue.receive(recv, received.len());
            }
            Err(_) => queue.put_recv(recv),
        }
    }

    fn error(&self) {
        self.0.abandon();
    }
}
