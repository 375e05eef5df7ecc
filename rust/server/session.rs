// SPDX-License-Identifier: GPL-2.0

//! One client's session on one export: a path of a map, from its login to its end.
//!
//! The session's state changes on its own ordered workqueue only: the connection manager and
//! completions leave what came in and enqueue the work. Its I/O is not done there: the client of an
//! export of RAM reads and writes the slabs by itself, and the commands to a block device are carried
//! out by the [pollers](super::poller).

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::Msecs,
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    errno::{
        ENOTCONN,
        EPROTO,
        ESHUTDOWN, //
    },
    sync::{
        self,
        without_io,
        Completion, //
    },
    workqueue::OwnedQueue, //
};
use crate::link::channel::{
    Channel,
    Link,
    Linked,
    MESSAGES, //
};
use crate::proto::{
    wire::{
        CONNECT_REPLY_MAX,
        DEPTH_MAX,
        MESSAGE_MAX,
        REJECT_MAX, //
    },
    Access,
    Backing,
    ConnectReply,
    Event,
    Extent,
    Fence,
    GrantRequest,
    ListReplyWriter,
    ListRequest,
    Login,
    LoginReply,
    LogoutReply,
    Message,
    NoRoom,
    Refusal,
    Refused,
    Reject,
    Request,
    Terms, //
};
use crate::rdma::{
    cm::{
        self,
        CmEvents,
        CmId,
        ConnParam, //
    },
    device::Device, //
};
use crate::server::{
    backend::Backend,
    block::{
        connection::credit_max,
        connections::Connections, //
    },
    export::Export,
    port::{
        self,
        Port, //
    },
    ram::Slabs, //
};
use crate::session::{
    clock::Silence,
    reservation::LOOK_MS,
    Epoch,
    PATHS_MAX, //
};

/// How long a client may take from connecting to its first message.
const LOGIN_TIMEOUT_MS: Msecs = 5000;
/// 40.96 ms: how long a client waits when a hostile one has used up all receives of a poller. It does so
/// [`RETRY_COUNT`](crate::RETRY_COUNT) times at most, in which that one has to be gone.
const RNR_TIMER: u8 = 24;
/// 4.096 us x 2^19 = 2.1 s: how long the HCA waits for an acknowledgement before it sends again.
const ACK_TIMEOUT: u8 = 19;
/// I/O connections a session may have.
const QUEUES_MAX: u16 = 64;
/// How long to wait between two looks at the commands of a session that is to end.
const DRAIN_MS: Msecs = 20;
/// Commands that an I/O connection may have in flight at first.
pub(super) const CREDIT: u16 = 16;

/// A connection that came in and was not answered yet.
struct Arrival {
    id: Arc<CmId>,
    version: u16,
    /// READs that the client wants to have under way.
    reads: u8,
    /// READs that the client lets the server have under way.
    served: u8,
}

/// What came in and waits for the workqueue.
struct Arrivals {
    /// Cleared once, when the session is over: nothing may be left here then.
    open: bool,
    control: Option<Arrival>,
    io: KVec<(u16, Arrival)>,
}

/// What a granted login holds.
struct Use {
    means: Means,
    export: Arc<Export>,
    /// What was asked for, and granted.
    access: Access,
    /// What the client was told last of the export.
    told: (u32, Extent),
    /// Fences that were asked for and are not there yet; the index is the path.
    fences: [Option<Epoch>; PATHS_MAX],
}

/// How the client does its I/O.
enum Means {
    /// By itself.
    Slabs(Slabs),
    /// By commands.
    Connections(Connections),
}

/// What only the session's own workqueue touches.
struct State {
    // Fields drop in this order: queue pairs and memory regions before their protection domain.
    used: Option<Use>,
    channel: Option<Channel<Session>>,
    /// Since the client has an export no more, or none yet.
    silence: Silence,
    over: bool,
}

/// A session.
#[pin_data]
pub(crate) struct Session {
    /// Random, so that it cannot be guessed by who has not logged in.
    id: u64,
    port: Arc<Port>,
    queue: OwnedQueue,
    #[pin]
    link: Link,
    #[pin]
    arrivals: Mutex<Arrivals>,
    #[pin]
    state: Mutex<State>,
    /// No command may begin any more, and once those that have are answered the session ends.
    draining: Atomic<u32>,
    /// The session holds nothing any more.
    #[pin]
    over: Completion,
    #[pin]
    work: Work<Session>,
}

impl_has_work! {
    impl HasWork<Self> for Session { self.work }
}

impl Session {
    /// A session without a connection. May sleep.
    pub(super) fn new(port: Arc<Port>) -> Result<Arc<Self>> {
        let queue = OwnedQueue::ordered(c"farblk_session")?;
        let arrivals = Arrivals {
            open: true,
            control: None,
            io: KVec::new(),
        };
        let state = State {
            used: None,
            channel: None,
            silence: silence(0),
            over: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                id: sync::random_u64() | 1,
                port,
                queue,
                link <- Link::new(),
                arrivals <- new_mutex!(arrivals, "Session::arrivals"),
                state <- new_mutex!(state, "Session::state"),
                draining: Atomic::new(0),
                over <- Completion::new(),
                work <- new_work!("Session::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// What a client names to add an I/O connection; never 0.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Ends the session and waits until it holds nothing any more. Not from its own workqueue. May
    /// sleep.
    pub(super) fn end(self: &Arc<Self>) {
        self.lose();
        self.over.wait();
    }

    /// Lets no more commands begin, and has the session end when all that have are answered. Any context.
    pub(super) fn drain(self: &Arc<Self>) {
        self.draining.store(1, Relaxed);
        Self::notify(self);
    }

    /// As [`Session::drain`], and waits until the session holds nothing any more. Not from its own
    /// workqueue. May sleep, as long as the backing takes.
    pub(super) fn retire(self: &Arc<Self>) {
        loop {
            self.drain();
            if self.is_over(DRAIN_MS) {
                return;
            }
        }
    }

    /// Whether the session holds nothing any more, now or within `timeout`. May sleep.
    pub(super) fn is_over(&self, timeout: Msecs) -> bool {
        self.over.wait_timeout(timeout).is_ok()
    }

    /// Whether it is about to end, as its client is gone or somebody wants it to. Any context.
    pub(super) fn is_lost(&self) -> bool {
        self.link.is_lost()
    }

    /// Messages of the client so far. Any context.
    pub(super) fn heard(&self) -> u64 {
        self.link.heard()
    }

    /// Ends the session if its client does not log in, and says nothing: there is no room for many of
    /// these. Once in [`LOOK_MS`]. May sleep.
    pub(super) fn look(self: &Arc<Self>) {
        // Whoever has the lock is at something that the client said.
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        let heard = self.heard();
        if state.used.is_some() {
            state.silence = silence(heard);
        } else if state.silence.look(heard) {
            self.lose();
        }
    }

    /// An I/O connection broke, or the session has to go. Any context.
    pub(super) fn lose(self: &Arc<Self>) {
        self.link.cut();
        Self::notify(self);
    }

    /// The client does not keep to the protocol. Any context.
    #[cold]
    pub(super) fn violation(self: &Arc<Self>) {
        self.port.exports.stats.violations.count();
        self.lose();
    }

    /// A one-sided I/O connection had a completion. Any context.
    pub(super) fn count_completion(&self) {
        self.port.exports.stats.io_completions.count();
    }

    /// A number that spreads the I/O connections of different sessions over the completion vectors.
    pub(super) fn spread(&self) -> usize {
        usize::try_from(self.id >> 32).unwrap_or(0)
    }

    /// Takes the control connection. From the port's connection handler.
    pub(super) fn accept_control(
        self: &Arc<Self>,
        request: cm::ConnectRequest<'_>,
        version: u16,
    ) -> Result {
        let mut arrivals = self.arrivals.lock();
        if !arrivals.open {
            return Err(ESHUTDOWN);
        }
        arrivals.control = Some(self.arrival(request, version)?);
        drop(arrivals);
        Self::notify(self);
        Ok(())
    }

    /// Takes an I/O connection. From the port's connection handler.
    pub(super) fn accept_io(
        self: &Arc<Self>,
        request: cm::ConnectRequest<'_>,
        version: u16,
        queue: u16,
    ) {
        let mut arrivals = self.arrivals.lock();
        if !arrivals.open {
            return port::reject(request, Refusal::BadSession.into());
        }
        if arrivals.io.len() >= usize::from(QUEUES_MAX)
            || arrivals.io.reserve(1, GFP_KERNEL).is_err()
        {
            return port::reject(request, Refusal::NoMemory.into());
        }
        if let Ok(arrival) = self.arrival(request, version) {
            let _ = arrivals.io.push_within_capacity((queue, arrival));
        }
        drop(arrivals);
        Self::notify(self);
    }

    fn arrival(self: &Arc<Self>, request: cm::ConnectRequest<'_>, version: u16) -> Result<Arrival> {
        let (reads, served) = (request.responder_resources(), request.initiator_depth());
        let events = Arc::new(Events(self.clone()), GFP_KERNEL)?;
        Ok(Arrival {
            id: request.into_id(events)?,
            version,
            reads,
            served,
        })
    }

    /// Looks at all that came in; an error ends the session.
    fn serve(self: &Arc<Self>, state: &mut State) -> Result {
        let control = self.arrivals.lock().control.take();
        if let Some(arrival) = control {
            self.open_control(state, arrival)?;
        }
        loop {
            let arrival = self.arrivals.lock().io.pop();
            match arrival {
                Some((queue, arrival)) => self.open_io(state, queue, arrival),
                None => break,
            }
        }
        let mut message = KVec::from_elem(0, MESSAGE_MAX, GFP_KERNEL)?;
        // There are no more than these; for what comes in meanwhile this runs again. A client that never
        // stops to ask is not to hold up the end.
        for _ in 0..MESSAGES {
            let channel = state.channel.as_mut().ok_or(ENOTCONN)?;
            match channel.try_receive(&mut message)? {
                Some(len) => self.answer(state, message.get(..len).ok_or(EPROTO)?)?,
                None => break,
            }
        }
        // What was said before counts: it may have been a logout.
        if self.link.is_lost() {
            return Err(ENOTCONN);
        }
        self.tell(state)?;
        self.answer_fences(state)?;
        let draining = self.draining.load(Relaxed) != 0;
        let drained = |used: &Use| match &used.means {
            Means::Slabs(_) => true,
            Means::Connections(connections) => connections.drain(),
        };
        match draining && state.used.as_ref().is_none_or(drained) {
            true => Err(ESHUTDOWN),
            false => Ok(()),
        }
    }

    /// Accepts the control connection and waits for what it wants.
    fn open_control(self: &Arc<Self>, state: &mut State, arrival: Arrival) -> Result {
        let mut channel = match Channel::new(arrival.id.clone(), self.clone()) {
            Ok(channel) => channel,
            Err(error) => {
                refuse(&arrival.id, Refusal::NoMemory);
                return Err(error);
            }
        };
        accept(&arrival, 0, 0)?;
        let mut message = KVec::from_elem(0, MESSAGE_MAX, GFP_KERNEL)?;
        let len = channel.receive(&mut message, LOGIN_TIMEOUT_MS)?;
        state.channel = Some(channel);
        self.answer(state, message.get(..len).ok_or(EPROTO)?)
    }

    /// Accepts or refuses an I/O connection.
    fn open_io(self: &Arc<Self>, state: &mut State, queue: u16, arrival: Arrival) {
        let (Some(channel), Some(used)) = (&state.channel, &mut state.used) else {
            return refuse(&arrival.id, Refusal::BadState);
        };
        let id = &arrival.id;
        let limits = channel.pd().device().limits();
        match &mut used.means {
            Means::Slabs(slabs) if slabs.has_room(queue) => {
                match slabs.connect(id, channel.pd(), self) {
                    Ok(qp) => {
                        let served = at_most(arrival.reads, limits.max_qp_rd_atom);
                        if accept(&arrival, served, 0).is_ok() {
                            slabs.keep(queue, qp);
                        }
                    }
                    Err(_) => refuse(id, Refusal::NoMemory),
                }
            }
            Means::Connections(connections) if connections.has_room(queue) => {
                match connections.connect(id, queue, self) {
                    Ok(()) => {
                        // With none a READ would wait for ever, and keep its memory.
                        let reads = at_most(arrival.served, limits.max_qp_init_rd_atom).max(1);
                        if accept(&arrival, 0, reads).is_err() {
                            connections.disconnect(queue);
                        }
                    }
                    Err(_) => refuse(id, Refusal::NoMemory),
                }
            }
            _ => refuse(id, Refusal::BadQueue),
        }
    }

    /// Answers a request. What cannot be understood at all ends the session.
    fn answer(self: &Arc<Self>, state: &mut State, bytes: &[u8]) -> Result {
        let message = Message::parse(bytes).map_err(|_| {
            self.port.exports.stats.violations.count();
            EPROTO
        })?;
        let sequence = message.sequence();
        let done = match message.request() {
            Ok(Request::Login(login)) => self.login(state, sequence, &login),
            Ok(Request::Grant(request)) => self.grant(state, sequence, &request),
            Ok(Request::List(request)) => self.list(state, sequence, &request),
            Ok(Request::Logout) => self.logout(state, sequence),
            Ok(Request::Ping) => Ok(reply(state, |buf| Event::Pong.encode(buf))),
            Ok(Request::Fence(fence)) => self.fence(state, fence),
            Err(malformed) => Err(malformed.into()),
        };
        match done {
            Ok(sent) => sent,
            Err(refused) => reply(state, |buf| message.refuse(&refused, buf)),
        }
    }

    fn login(
        self: &Arc<Self>,
        state: &mut State,
        sequence: u32,
        login: &Login,
    ) -> Result<Result, Refused> {
        if state.used.is_some() {
            return Err(Refusal::BadState.into());
        }
        let device = state
            .channel
            .as_ref()
            .ok_or(Refusal::BadState)?
            .pd()
            .device();
        let export = self.port.exports.find(&login.export)?;
        // Nothing is made for who is not let in.
        let writes = export.check(&self.port.name, login)?;
        let access = match writes {
            true => Access::ReadWrite,
            false => Access::ReadOnly,
        };
        let queues = login.queues.min(QUEUES_MAX);
        let limits = export.backend.limits();
        let (means, backing) = match &export.backend {
            Backend::Ram(ram) => {
                let slabs = Slabs::new(device, ram.geometry, &ram.memory, access, queues)
                    .map_err(no_memory)?;
                (Means::Slabs(slabs), Backing::Ram(ram.geometry.shift()))
            }
            Backend::Block(block) => {
                let user = self.port.exports.adapters.get(device).map_err(no_memory)?;
                let terms = Terms {
                    depth: login.depth.min(depth_max(device)),
                    inline_size: login.inline_size.min(user.adapter.inline_size),
                    limits,
                };
                let backing = Backing::Block {
                    depth: terms.depth,
                    credit: credit_max(terms.depth).min(CREDIT),
                    inline_size: terms.inline_size,
                };
                let names = (login.export, login.host_name);
                let connections = Connections::new(user, block, access, terms, names, queues)
                    .map_err(no_memory)?;
                (Means::Connections(connections), backing)
            }
        };
        let granted = export.attach(self, &self.port.name, login, writes)?;
        // The number first: what is read then is no older than that.
        let number = export.backend.extent_number();
        let extent = Extent {
            size: export.backend.extent().size,
            access: login.access,
        };
        let answer = LoginReply {
            session: self.id,
            export_uuid: export.spec.uuid,
            instance: export.backend.instance(),
            extent,
            limits,
            backing,
            queues,
            tenure: granted.key,
            remembered: granted.remembered,
            server_id: export.server_id,
            lease_ms: granted.lease_ms,
            extent_number: number,
        };
        if export.backend.extent().access.min(access) < login.access {
            // The reply tells of what was asked for. What is true follows as an event, and is newer.
            export.backend.renumber();
        }
        self.port.exports.stats.logins.count();
        state.used = Some(Use {
            means,
            export,
            access,
            told: (number, extent),
            fences: [None; PATHS_MAX],
        });
        Ok(reply(state, |buf| answer.encode(sequence, buf)))
    }

    /// Tells the client what has become of the export, if that is news. A client that has asked for
    /// nothing has nothing to be told.
    fn tell(&self, state: &mut State) -> Result {
        let Some(used) = &mut state.used else {
            return Ok(());
        };
        let number = used.export.backend.extent_number();
        let extent = used.export.backend.extent();
        let extent = Extent {
            access: extent.access.min(used.access),
            ..extent
        };
        if (number, extent) == used.told {
            return Ok(());
        }
        used.told = (number, extent);
        reply(state, |buf| Event::Extent { number, extent }.encode(buf))
    }

    /// Has a path fenced. It is answered when that is done; see [`Session::answer_fences`].
    fn fence(&self, state: &mut State, fence: Fence) -> Result<Result, Refused> {
        let used = state.used.as_mut().ok_or(Refusal::BadState)?;
        // There is such a path: it was parsed.
        if let Some(asked) = used.fences.get_mut(usize::from(fence.path)) {
            *asked = (*asked).max(Some(fence.epoch));
        }
        Ok(Ok(()))
    }

    /// Answers the fences that are there by now.
    fn answer_fences(&self, state: &mut State) -> Result {
        for path in (0..).take(PATHS_MAX) {
            let Some(used) = &mut state.used else {
                return Ok(());
            };
            let Some(asked) = used.fences.get_mut(usize::from(path)) else {
                return Ok(());
            };
            let Some(epoch) = *asked else { continue };
            if used.export.fence(self, Fence { path, epoch }) {
                *asked = None;
                reply(state, |buf| Event::Fenced { path, epoch }.encode(buf))?;
            }
        }
        Ok(())
    }

    fn grant(
        &self,
        state: &mut State,
        sequence: u32,
        request: &GrantRequest,
    ) -> Result<Result, Refused> {
        let (Some(channel), Some(used)) = (&mut state.channel, &mut state.used) else {
            return Err(Refusal::BadState.into());
        };
        let Means::Slabs(slabs) = &mut used.means else {
            return Err(Refusal::BadState.into());
        };
        let wanted = request.slabs(slabs.geometry())?;
        for slab in wanted.clone() {
            if slabs.open(channel, slab).map_err(no_memory)? {
                self.port.exports.stats.grants.count();
            }
        }
        let slabs = &*slabs;
        Ok(channel.send(|buf| slabs.write_grants(wanted, sequence, buf)))
    }

    fn list(
        &self,
        state: &mut State,
        sequence: u32,
        request: &ListRequest,
    ) -> Result<Result, Refused> {
        Ok(reply(state, |buf| {
            let mut writer = ListReplyWriter::new(buf, sequence, request.first)?;
            let mut total: u32 = 0;
            let mut room = true;
            self.port.exports.for_each(|export| {
                let Some(entry) = export.entry(&self.port.name, request) else {
                    return;
                };
                room = room && (total < request.first || writer.push(&entry).is_ok());
                total = total.saturating_add(1);
            });
            writer.finish(total)
        }))
    }

    /// Lets go of the export before the client hears of it, which may then log in anew at once.
    fn logout(&self, state: &mut State, sequence: u32) -> Result<Result, Refused> {
        let used = state.used.take().ok_or(Refusal::BadState)?;
        let export = used.export.clone();
        drop(used);
        export.detach(self, true);
        Ok(reply(state, |buf| LogoutReply.encode(sequence, buf)))
    }

    /// Lets go of everything. The memory of the export is out of the client's reach afterwards.
    fn finish(&self, state: &mut State) {
        if state.over {
            return;
        }
        state.over = true;
        let used = state.used.take();
        let export = used.as_ref().map(|used| used.export.clone());
        drop(used);
        if let Some(export) = export {
            export.detach(self, false);
        }
        state.channel = None;
        // No arrival may stay: it would keep the session alive, and the session it.
        let (control, io) = {
            let mut arrivals = self.arrivals.lock();
            arrivals.open = false;
            (arrivals.control.take(), core::mem::take(&mut arrivals.io))
        };
        drop((control, io));
        self.port.forget(self);
        self.over.complete_all();
    }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut state = this.state.lock();
        if state.over {
            return;
        }
        // Memory may be scarce because somebody's swap space waits for just this.
        without_io(|| {
            if this.serve(&mut state).is_err() {
                this.finish(&mut state);
            }
        });
    }
}

impl Linked for Session {
    fn link(&self) -> &Link {
        &self.link
    }

    fn notify(this: &Arc<Self>) {
        let _ = this.queue.enqueue(this.clone());
    }
}

/// That of a client that has said so much by now, and is to say something soon: it has as long as clients
/// have at least.
fn silence(heard: u64) -> Silence {
    Silence::new(1, LOOK_MS, heard)
}

/// Sends a reply on the control connection.
fn reply(state: &mut State, encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> Result {
    state.channel.as_mut().ok_or(ENOTCONN)?.send(encode)
}

/// The smaller one.
fn at_most(count: u8, limit: u32) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX).min(count)
}

/// Commands in flight per I/O connection that a device can do: for each it has two sends.
fn depth_max(device: &Device) -> u16 {
    let sends = device.limits().max_qp_wr.saturating_sub(1);
    u16::try_from(sends / 2)
        .unwrap_or(u16::MAX)
        .clamp(1, DEPTH_MAX)
}

fn no_memory(_: Error) -> Refused {
    Refusal::NoMemory.into()
}

/// Accepts a connection on whose id there is a queue pair; the client may have `served` READs under
/// way, and the server `reads`.
fn accept(arrival: &Arrival, served: u8, reads: u8) -> Result {
    let mut data = [0; CONNECT_REPLY_MAX];
    let answer = ConnectReply {
        version: arrival.version,
    };
    let len = answer.encode(&mut data).map_err(|NoRoom| EMSGSIZE)?;
    arrival.id.set_min_rnr_timer(RNR_TIMER)?;
    // Else it would be what the client wants, and that may be hours.
    arrival.id.set_ack_timeout(ACK_TIMEOUT)?;
    arrival.id.accept(&ConnParam {
        private_data: data.get(..len).unwrap_or(&[]),
        retry_count: crate::RETRY_COUNT,
        rnr_retry_count: crate::RETRY_COUNT,
        responder_resources: served,
        initiator_depth: reads,
    })
}

/// Refuses a connection with its reason.
fn refuse(id: &CmId, refusal: Refusal) {
    let mut data = [0; REJECT_MAX];
    let len = Reject(refusal.into()).encode(&mut data).unwrap_or(0);
    // The client notices by itself if even this fails.
    let _ = id.reject(data.get(..len).unwrap_or(&[]));
}

/// What the connection manager tells a session.
struct Events(Arc<Session>);

impl CmEvents for Events {
    fn disconnected(&self) {
        self.0.link.cut();
        Session::notify(&self.0);
    }
}
