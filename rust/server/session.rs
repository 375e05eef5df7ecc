// SPDX-License-Identifier: GPL-2.0

//! One client's session on one export.
//!
//! The session's state changes on its own ordered workqueue only: the connection manager and
//! completions leave what came in and enqueue the work. For an export of RAM the server then has
//! nothing to do: the client reads and writes the slabs by itself until one side ends the session.

#![forbid(unsafe_code)]

use core::ops::Range;

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        Arc,
        Mutex, //
    },
    time::Msecs,
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::channel::{
    Channel,
    Link,
    Linked, //
};
use crate::errno::{
    ENOTCONN,
    EPROTO, //
};
use crate::proto::{
    wire::{
        CONNECT_REPLY_MAX,
        MESSAGE_MAX,
        REJECT_MAX, //
    },
    Backing,
    BlockLimits,
    BlockSize,
    ConnectReply,
    Extent,
    Grant,
    GrantReplyWriter,
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
    Request, //
};
use crate::rdma::{
    cm::{
        self,
        CmEvents,
        CmId,
        ConnParam, //
    },
    cq::{
        Cq,
        PollContext, //
    },
    dma::{
        Direction,
        DmaBuffer,
        SgMapping, //
    },
    mr::{
        self,
        Mr, //
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
    wr::SendOwner, //
};
use crate::scatterlist::NoMemory;
use crate::server::{
    export::Export,
    port::{
        self,
        Port, //
    },
};
use crate::sync::{
    self,
    Completion, //
};
use crate::workqueue::OwnedQueue;

/// How long a client may take from connecting to its first message.
const LOGIN_TIMEOUT_MS: Msecs = 5000;
/// I/O connections a session may have.
const QUEUES_MAX: u16 = 64;
/// An I/O queue pair of the server posts nothing for an export of RAM; not every HCA takes zero.
const IO_CAPS: QpCaps = QpCaps {
    slots: 1,
    send_wr: 1,
    recv_wr: 1,
    large: 0,
    keys: 0,
    segments: 0,
};

/// A connection that came in and was not answered yet.
struct Arrival {
    id: Arc<CmId>,
    version: u16,
    /// READs that the client wants to have in flight.
    reads: u8,
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
    export: Arc<Export>,
    login: Login,
    /// Of all I/O queue pairs.
    cq: Arc<Cq>,
    /// The I/O connections that are up; the index is the queue.
    queues: KVec<Option<Arc<Qp<IoHandler>>>>,
    /// The registered slabs; the index is the slab.
    grants: KVec<Option<Mr>>,
}

/// What only the session's own workqueue touches.
struct State {
    // Fields drop in this order: queue pairs and memory regions before their protection domain.
    used: Option<Use>,
    channel: Option<Channel<Session>>,
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
        self.link.cut();
        Self::notify(self);
        self.over.wait();
    }

    /// Takes the control connection. From the port's connection handler.
    pub(super) fn accept_control(
        self: &Arc<Self>,
        request: cm::ConnectRequest<'_>,
        version: u16,
    ) -> Result {
        let arrival = self.arrival(request, version)?;
        self.arrivals.lock().control = Some(arrival);
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
        let reads = request.responder_resources();
        let events = Arc::new(Events(self.clone()), GFP_KERNEL)?;
        Ok(Arrival {
            id: request.into_id(events)?,
            version,
            reads,
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
        loop {
            let channel = state.channel.as_mut().ok_or(ENOTCONN)?;
            match channel.try_receive(&mut message)? {
                Some(len) => self.answer(state, message.get(..len).ok_or(EPROTO)?)?,
                None if self.link.is_lost() => return Err(ENOTCONN),
                None => return Ok(()),
            }
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
        accept(&arrival, 0)?;
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
        let Some(place @ None) = used.queues.get_mut(usize::from(queue)) else {
            return refuse(&arrival.id, Refusal::BadQueue);
        };
        let handler = IoHandler(self.clone());
        let (id, pd, cq) = (&arrival.id, channel.pd(), &used.cq);
        match Qp::create(id, pd, cq, cq, IO_CAPS, handler) {
            Ok(qp) => {
                let reads = id
                    .device()
                    .map_or(1, |device| device.limits().max_qp_rd_atom);
                let reads = u8::try_from(reads).unwrap_or(u8::MAX).min(arrival.reads);
                if accept(&arrival, reads).is_ok() {
                    *place = Some(qp);
                }
            }
            Err(_) => refuse(id, Refusal::NoMemory),
        }
    }

    /// Answers a request. What cannot be understood at all ends the session.
    fn answer(self: &Arc<Self>, state: &mut State, bytes: &[u8]) -> Result {
        let message = Message::parse(bytes).map_err(|_| EPROTO)?;
        let sequence = message.sequence();
        let done = match message.request() {
            Ok(Request::Login(login)) => self.login(state, sequence, &login),
            Ok(Request::Grant(request)) => self.grant(state, sequence, &request),
            Ok(Request::List(request)) => self.list(state, sequence, &request),
            Ok(Request::Logout) => self.logout(state, sequence),
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
        let queues = login.queues.min(QUEUES_MAX);
        let cqes = (IO_CAPS.send_cqes() + IO_CAPS.recv_cqes()) * u32::from(queues);
        let cq = Cq::alloc(device, cqes, 0, PollContext::Softirq).map_err(no_memory)?;
        let (mut slots, mut grants) = (KVec::new(), KVec::new());
        fill(&mut slots, usize::from(queues)).map_err(no_memory)?;
        let slabs = usize::try_from(export.geometry.slabs()).map_err(|_| Refusal::Internal)?;
        fill(&mut grants, slabs).map_err(no_memory)?;
        let access = export.attach(self.clone(), &self.port.name, login)?;
        let answer = LoginReply {
            session: self.id,
            export_uuid: export.spec.uuid,
            instance: export.instance,
            extent: Extent {
                size: export.geometry.size(),
                access,
            },
            limits: BlockLimits {
                physical_block_size: BlockSize::MAX.get(),
                ..BlockLimits::plain(export.spec.block_size)
            }
            .fitted(),
            backing: Backing::Ram(export.geometry.shift()),
            queues,
        };
        self.port.exports.stats.logins.count();
        state.used = Some(Use {
            export,
            login: *login,
            cq,
            queues: slots,
            grants,
        });
        Ok(reply(state, |buf| answer.encode(sequence, buf)))
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
        let slabs = request.slabs(&used.export.geometry)?;
        for slab in slabs.clone() {
            if used.register(channel, slab).map_err(no_memory)? {
                self.port.exports.stats.grants.count();
            }
        }
        let used = &*used;
        Ok(channel.send(|buf| used.write_grants(slabs, sequence, buf)))
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
        export.detach(self);
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
            export.detach(self);
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
        if this.serve(&mut state).is_err() {
            this.finish(&mut state);
        }
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

impl Use {
    /// Registers a slab unless it is registered; tells whether it did.
    fn register(&mut self, channel: &mut Channel<Session>, slab: u32) -> Result<bool> {
        let index = usize::try_from(slab)?;
        let Some(place @ None) = self.grants.get_mut(index) else {
            return Ok(false);
        };
        let geometry = &self.export.geometry;
        let len = geometry.slab_len(slab).ok_or(EINVAL)?;
        let start = u64::from(slab) << geometry.shift().get();
        // A memory region is made of whole pages; the allocation is, too.
        let len = usize::try_from(len)?.next_multiple_of(kernel::page::PAGE_SIZE);
        let mapping = SgMapping::map(
            channel.pd().device(),
            &self.export.memory,
            usize::try_from(start)?,
            len,
            Direction::Bidirectional,
        )?;
        let access = match self.login.access.writes() {
            true => mr::Access::RemoteReadWrite,
            false => mr::Access::RemoteRead,
        };
        *place = Some(channel.register(&mapping, access)?);
        Ok(true)
    }

    /// Writes the reply that grants `slabs`, all of which are registered.
    fn write_grants(
        &self,
        slabs: Range<u32>,
        sequence: u32,
        buf: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let mut writer = GrantReplyWriter::new(buf, sequence, slabs.start)?;
        for slab in slabs {
            let mr = usize::try_from(slab)
                .ok()
                .and_then(|index| self.grants.get(index)?.as_ref());
            let remote = mr.and_then(Mr::remote).ok_or(NoRoom)?;
            writer.push(&Grant {
                addr: remote.addr,
                length: self.export.geometry.slab_len(slab).ok_or(NoRoom)?,
                rkey: remote.rkey,
            })?;
        }
        writer.finish()
    }
}

/// Sends a reply on the control connection.
fn reply(state: &mut State, encode: impl FnOnce(&mut [u8]) -> Result<usize, NoRoom>) -> Result {
    state.channel.as_mut().ok_or(ENOTCONN)?.send(encode)
}

/// Makes `list` that many times `None`.
fn fill<T>(list: &mut KVec<Option<T>>, count: usize) -> Result {
    list.reserve(count, GFP_KERNEL)?;
    for _ in 0..count {
        list.push(None, GFP_KERNEL)?;
    }
    Ok(())
}

fn no_memory(_: Error) -> Refused {
    Refusal::NoMemory.into()
}

/// Accepts a connection on whose id there is a queue pair.
fn accept(arrival: &Arrival, reads: u8) -> Result {
    let mut data = [0; CONNECT_REPLY_MAX];
    let answer = ConnectReply {
        version: arrival.version,
    };
    let len = answer.encode(&mut data).map_err(|NoRoom| EMSGSIZE)?;
    arrival.id.accept(&ConnParam {
        private_data: data.get(..len).unwrap_or(&[]),
        retry_count: crate::RETRY_COUNT,
        rnr_retry_count: crate::RETRY_COUNT,
        responder_resources: reads,
        initiator_depth: 0,
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

/// Completions of an I/O queue pair. There are none as long as the client does one-sided I/O.
struct IoHandler(Arc<Session>);

impl IoHandler {
    fn count(&self) {
        self.0.port.exports.stats.io_completions.count();
    }
}

/// Nothing is ever sent.
enum Nothing {}

impl SendOwner for Nothing {
    type Memory = NoMemory;
}

impl QpHandler for IoHandler {
    type Send = Nothing;
    type Recv = KBox<DmaBuffer>;

    fn send_done(&self, _: &Qp<Self>, _: Nothing, _: Result<(), WcError>) {
        self.count();
    }

    fn recv_done(&self, _: &Qp<Self>, _: KBox<DmaBuffer>, _: Result<Received<'_>, WcError>) {
        self.count();
    }

    fn error(&self) {
        self.0.link.cut();
        Session::notify(&self.0);
    }
}
