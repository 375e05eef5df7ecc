// SPDX-License-Identifier: GPL-2.0

//! An I/O queue: one connection to the server, for one hardware queue and one path.
//!
//! It moves data in one of two ways ([`DataPath`]): by RDMA READs and WRITEs of the server's
//! memory, or by commands that the server carries out. A request that is over, or whose connection
//! is, goes back to the [`Multipath`].
//!
//! A command has the tag of its request. The server answers it with a response, or with the data of
//! a small read; both are received. A command is sent only if the server has a receive for it
//! (*credit*) and the queue has a receive for its answer.
//!
//! Long: what one I/O executes between the block layer and the queue pair is in this file.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    fmt,
    page::PAGE_SIZE,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use crate::base::{
    bounce::{
        BounceBuffer,
        Bounced, //
    },
    errno::{
        EBADMSG,
        EPROTO,
        ESHUTDOWN, //
    },
    sync::Place, //
};
use crate::block::{
    mq::{
        self,
        Owned, //
    },
    BlkError,
    BlkResult, //
};
use crate::client::{
    deadline::Deadline,
    events::PathEvents,
    io::{
        bounces::{
            self,
            Bounces, //
        },
        multipath::Multipath,
        persistent,
        protected::Protected,
        slabs::Slabs, //
    },
    target::Target, //
};
use crate::link::{
    cipher::{
        BadFrame,
        Cipher, //
    },
    failure::Failure, //
};
use crate::proto::{
    command,
    frame,
    response,
    wire::IO_SIZE_MAX,
    Command,
    Delivery,
    Malformed,
    Operation,
    Protection,
    Remote,
    Response,
    Span,
    Status,
    Terms,
    Transfer, //
};
use crate::rdma::{
    cm::CmId,
    cq::{
        AnyCq,
        Cq,
        Direct,
        Softirq, //
    },
    device::Device,
    dma::{
        Direction,
        DmaBuffer, //
    },
    pd::Pd,
    qp::{
        Qp,
        QpCaps,
        QpHandler, //
    },
    remnant::ObjectRef,
    request::{
        Ask,
        Carry,
        RequestCaps,
        RequestHandler,
        Requests,
        Undrained, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use crate::session::clock::{
    Progress,
    SENT_MIN_MS, //
};

/// Number of requests that may be in flight at once and have more segments than one work request
/// takes. Other such requests wait, as they do when the send queue is full.
const LARGE: u16 = 16;
/// Number of work requests that such a request needs beside the one that every request has.
const LARGE_WR: u32 = 8;
/// A cache line, in bytes: two messages should not share one.
const CACHE_LINE: usize = 64;
/// Number of receives that are made at a time, at most. For the largest answers they are one
/// allocation of 256 KiB.
const RECEIVES_BATCH: u32 = 16;

/// Allocates the memory of receives: [`DmaBuffer::alloc`] or [`DmaBuffer::alloc_free`].
type AllocReceives = fn(&Arc<Device>, usize, Direction) -> Result<DmaBuffer>;
/// A request of the map.
type Request = Owned<mq::Request<Multipath>>;
/// A request that was not posted, with the reason.
type Unsent = (BlkError, Request);

/// How a queue moves data.
pub(in crate::client) enum DataPath {
    /// By RDMA READs and WRITEs of the server's memory, once [`IoQueue::set_slabs`] was called.
    OneSided,
    /// By commands to the server. The number is how many may be in flight at first.
    Commands(Terms, u16),
}

/// The parameters that all queues of a path have in common.
pub(in crate::client) struct QueueConfig<'a> {
    /// The address of the server.
    pub(in crate::client) target: &'a Target,
    /// The protection domain of the session.
    pub(in crate::client) pd: &'a Arc<Pd>,
    /// Requests in flight per queue.
    pub(in crate::client) depth: u16,
    /// How the queues move data.
    pub(in crate::client) data_path: DataPath,
    /// The protection of the commands.
    pub(in crate::client) protection: Protection,
    /// The bounce buffers of the path, if its commands have a protection, or its device needs them.
    pub(in crate::client) bounces: Option<Arc<Bounces>>,
    /// Receives the events of the connections.
    pub(in crate::client) events: PathEvents,
    /// The driver whose requests the queues carry.
    pub(in crate::client) owner: &'a Arc<Multipath>,
    /// When the attempt to connect is given up.
    pub(in crate::client) deadline: Deadline,
}

/// The limits of a read or write.
#[derive(Clone, Copy)]
pub(in crate::client) struct IoLimits {
    /// Number of segments.
    pub(in crate::client) segments: u16,
    /// Number of bytes, wherever in a page they begin.
    pub(in crate::client) bytes: u32,
    /// There may be gaps between the pages: they need not be in one memory region.
    pub(in crate::client) gaps: bool,
}

impl IoLimits {
    /// No request is within these limits.
    pub(in crate::client) const NOTHING: Self = Self {
        segments: 0,
        bytes: 0,
        gaps: false,
    };
}

/// The completion queue of the receives of a queue, and without commands of the sends.
#[derive(Clone)]
enum ReceiveCq {
    /// It raises no interrupt. Only tasks that wait for I/O poll it
    /// ([`Operations::poll`](mq::Operations::poll)).
    Polled(Cq<Direct>),
    /// Its interrupts tell of completions.
    Interrupts(Cq<Softirq>),
}

impl ReceiveCq {
    fn alloc(device: &Arc<Device>, entries: u32, vector: u32, polled: bool) -> Result<Self> {
        Ok(match polled {
            true => Self::Polled(Cq::<Direct>::alloc(device, entries, vector)?),
            false => Self::Interrupts(Cq::<Softirq>::alloc(device, entries, vector)?),
        })
    }

    fn any(&self) -> &ObjectRef<AnyCq> {
        match self {
            Self::Polled(cq) => cq,
            Self::Interrupts(cq) => cq,
        }
    }
}

/// An I/O queue.
pub(in crate::client) struct IoQueue {
    qp: ObjectRef<Qp<Handler>>,
    cq: ReceiveCq,
    /// The server's memory, once it is known, if the queue is one-sided.
    slabs: Option<Arc<Slabs>>,
    limits: IoLimits,
    /// Not 0 if requests may wait for a doorbell: about how many.
    held: Atomic<u32>,
    /// A [`Progress`]: time in ms and number of completions when a request was found late last, or
    /// instead of these what [`Qp::watch_answered`] returned, if the queue has commands.
    progress: [Atomic<u64>; 2],
}

impl IoQueue {
    /// Makes a queue for hardware queue `hw_queue`. The caller calls [`Self::prepare`], and
    /// connects the id. May sleep.
    pub(in crate::client) fn new(
        config: &QueueConfig<'_>,
        hw_queue: u16,
        polled: bool,
    ) -> Result<(Self, Arc<CmId>), Failure> {
        let cm_events = Arc::new(config.events.clone(), GFP_KERNEL)?;
        let id = config.target.resolve(cm_events, config.deadline)?;
        let device = config.pd.device();
        if let (Some(timeout), DataPath::Commands(..)) =
            (device.quirks().ack_timeout(), &config.data_path)
        {
            let _ = id.set_ack_timeout(timeout);
        }
        let limits = device.limits();
        let vector = u32::from(hw_queue) % limits.num_comp_vectors.max(1);
        let depth = u32::from(config.depth);
        // The largest request whose memory needs a region; `None` if requests need none.
        let largest = match &config.data_path {
            DataPath::OneSided if !device.reads_need_regions() => None,
            DataPath::OneSided => Some(IO_SIZE_MAX),
            DataPath::Commands(terms, _) => Some(terms.limits.max_io),
        };
        let caps = match &config.data_path {
            DataPath::OneSided => QpCaps {
                slots: config.depth,
                send_wr: match largest {
                    None => depth + u32::from(LARGE) * LARGE_WR,
                    // The registration of the memory, and the READ.
                    Some(_) => 2 * depth + u32::from(LARGE) * LARGE_WR,
                }
                .min(limits.max_qp_wr.saturating_sub(1)),
                recv_wr: 1,
                sges: QpCaps::MAX_SGES,
                large: LARGE,
            },
            DataPath::Commands(terms, _) => QpCaps {
                slots: config.depth,
                // The registration of the memory, and the command.
                send_wr: 2 * depth,
                recv_wr: depth,
                // The command, and the data that follow it.
                sges: 1 + pages(terms.inline_size),
                ..QpCaps::default()
            },
        };
        let caps: RequestCaps = match largest {
            None => caps.into(),
            Some(bytes) => RequestCaps::with_regions(caps, device, bytes),
        };
        let (cq, send_cq, commands) = match &config.data_path {
            DataPath::OneSided => {
                let entries = caps.send_cqes() + caps.recv_cqes();
                let cq = ReceiveCq::alloc(device, entries, vector, polled)?;
                (cq.clone(), cq.any().clone(), None)
            }
            // The completion of a send is polled when its response is there, so it needs no
            // interrupt.
            DataPath::Commands(terms, credit) => {
                let inline_read = match id.is_iwarp() {
                    true => 0,
                    false => terms.inline_size,
                };
                (
                    ReceiveCq::alloc(device, caps.recv_cqes(), vector, polled)?,
                    Cq::<Direct>::alloc(device, caps.send_cqes(), vector)?.into(),
                    Some(Commands::new(config, terms, *credit, inline_read)?),
                )
            }
        };
        let handler = Handler {
            commands,
            events: config.events.clone(),
            owner: config.owner.clone(),
            hw_queue,
            state: Atomic::new(CONNECTING),
        };
        let qp = Qp::create(&id, config.pd, &send_cq, cq.any(), caps, handler)?;
        let (segments, bytes) = match largest {
            None => (qp.max_segments(), u32::MAX),
            Some(_) => (
                caps.large_region_pages
                    .min(RequestCaps::MAX_REGION_SEGMENTS),
                caps.large_region_pages
                    .saturating_sub(1)
                    .saturating_mul(device.region_page_size()),
            ),
        };
        let limits = IoLimits {
            segments: u16::try_from(segments).unwrap_or(u16::MAX),
            bytes: match config.bounces {
                Some(_) => bytes.min(bounces::MAX),
                None => bytes,
            },
            gaps: largest.is_none(),
        };
        Ok((
            Self {
                qp,
                cq,
                slabs: None,
                limits,
                held: Atomic::new(0),
                progress: [Atomic::new(0), Atomic::new(u64::MAX)],
            },
            id,
        ))
    }

    /// Makes and posts the receives of a new queue. May sleep.
    pub(in crate::client) fn prepare(&self) -> Result {
        self.post_receives(DmaBuffer::alloc)
    }

    /// Sets where a one-sided queue finds the server's memory.
    pub(in crate::client) fn set_slabs(&mut self, slabs: &Arc<Slabs>) {
        self.slabs = Some(slabs.clone());
    }

    /// Sets the cipher of a queue whose commands have a protection.
    pub(in crate::client) fn set_cipher(&self, cipher: Arc<Cipher>) {
        let commands = self.commands();
        if let Some(protected) = commands.and_then(|commands| commands.protected.as_ref()) {
            protected.set_cipher(cipher);
        }
    }

    /// Returns the limits of a read or write on this queue.
    pub(in crate::client) fn limits(&self) -> IoLimits {
        self.limits
    }

    #[inline]
    fn commands(&self) -> Option<&Commands> {
        self.qp.handler().commands.as_ref()
    }

    /// Posts a request, and with `last` rings the doorbell for all that were posted before it.
    /// Returns the request with [`BlkError::Resource`] if there is no room for it now, or if the
    /// connection has failed. Any context.
    #[inline]
    pub(in crate::client) fn send(&self, request: Request, last: bool) -> Result<(), Unsent> {
        if last && self.held.load(Relaxed) != 0 {
            self.held.store(0, Relaxed);
        }
        let sent = match self.commands() {
            Some(commands) => self.command(commands, request, last),
            None => self.access(request, last),
        };
        match (&sent, last) {
            // Another CPU that shares the queue may have found nothing to ring for since the store
            // above: this one has taken that over, also if its own request is refused.
            (Err(_), true) => self.qp.ring(),
            (Ok(()), false) => {
                // Only now that the request is queued, for `commit()`. An increment may be lost
                // when several CPUs send at once; it is not 0 nevertheless.
                let held = self.held.load(Relaxed).saturating_add(1);
                self.held.store(held, Relaxed);
            }
            _ => {}
        }
        sent
    }

    /// Posts an RDMA READ or WRITE of the server's memory.
    #[inline]
    fn access(&self, request: Request, last: bool) -> Result<(), Unsent> {
        let (slot, len, command) = (request.tag(), request.bytes(), request.command());
        let Some(slabs) = &self.slabs else {
            return Err((BlkError::IoError, request));
        };
        let Some(remote) = slabs.locate(request.sector() << SECTOR_SHIFT, len) else {
            // What concerns reservations has no place.
            let error = match command {
                mq::Command::Reserve | mq::Command::Report => BlkError::NotSupported,
                _ => BlkError::IoError,
            };
            return Err((error, request));
        };
        let posted = Posted {
            memory: Bounced::new(request, None),
            command: None,
        };
        let posted = match command {
            mq::Command::Read => self.qp.rdma(slot, RdmaOp::Read, remote, posted, last),
            mq::Command::Write => self.qp.rdma(slot, RdmaOp::Write, remote, posted, last),
            mq::Command::WriteZeroes => {
                let zeroes = &slabs.zeroes;
                // CAST: A u32 fits a usize on every platform with RDMA.
                let len = len as usize;
                self.qp
                    .write_repeated(slot, remote, zeroes, len, posted, last)
            }
            _ => return Err((BlkError::NotSupported, posted.memory.into_both().0)),
        };
        posted.map_err(|(error, posted)| self.unsent(error, posted.memory))
    }

    /// Posts a command to the server.
    #[inline]
    fn command(&self, commands: &Commands, request: Request, last: bool) -> Result<(), Unsent> {
        let tag = request.tag();
        let (operation, carry) = match commands.plan(&request) {
            Ok(plan) => plan,
            Err(error) => return Err((error, request)),
        };
        let buffer = match commands.take_bounce(&request, carry) {
            Ok(buffer) => buffer,
            Err(error) => return Err((error, request)),
        };
        let memory = Bounced::new(request, buffer);
        let Some(command) = commands.begin(tag) else {
            return Err((BlkError::Resource, commands.release(memory)));
        };
        let posted = Posted {
            memory,
            command: Some(command),
        };
        let prepare = |posted: &mut Posted, ask| match &mut posted.command {
            Some(message) => commands.write(message, tag, operation, &posted.memory, ask),
            None => Err(EINVAL),
        };
        let posted = self.qp.request(tag, carry, posted, prepare, last);
        posted.map_err(|(error, Posted { memory, command })| {
            commands.abandon(tag, command);
            self.unsent(error, memory)
        })
    }

    /// Returns a request whose posting has failed.
    #[cold]
    fn unsent(&self, error: Error, memory: Bounced<Request>) -> Unsent {
        let error = match error {
            EAGAIN | ESHUTDOWN | ENOMEM => BlkError::Resource,
            _ => BlkError::IoError,
        };
        (error, self.qp.handler().release(memory))
    }

    /// Rings the doorbell for what [`Self::send`] posted without `last`, if there is something. Any
    /// context but hard interrupt.
    pub(in crate::client) fn commit(&self) {
        if self.held.load(Relaxed) != 0 {
            self.held.store(0, Relaxed);
            self.qp.ring();
        }
    }

    /// Handles the completions that are there, if no interrupt tells of them, and returns their
    /// number. Any context but hard interrupt.
    #[inline]
    pub(in crate::client) fn poll(&self) -> u32 {
        match &self.cq {
            ReceiveCq::Polled(cq) => cq.reap(),
            ReceiveCq::Interrupts(_) => 0,
        }
    }

    /// Returns about how many work requests are in flight or wait for a doorbell. Any context.
    #[inline]
    pub(in crate::client) fn in_flight(&self) -> u32 {
        self.qp.in_flight().wrapping_add(self.held.load(Relaxed))
    }

    /// Returns the number of completions so far. As long as it rises, the server is there. Any
    /// context.
    pub(in crate::client) fn completions(&self) -> u64 {
        self.qp.completions()
    }

    /// Takes note of a request that is late at `now`, in ms. Returns true if it is the HCA that has
    /// something to do, and has not done it for `timeout_ms`: no work request has completed on a
    /// one-sided queue, or a command was answered and its work requests have not completed, for
    /// which it has 5 s at least. A command that was not answered may wait for a server that has
    /// ended the connection: then this makes the queue pair fail. Only the map's work item calls
    /// this.
    pub(in crate::client) fn is_stuck(&self, now: u64, timeout_ms: u64) -> bool {
        // No task may be polling just now.
        self.poll();
        let (seen, timeout_ms) = match self.commands() {
            Some(_) => {
                self.qp.probe();
                (self.qp.watch_answered(), timeout_ms.max(SENT_MIN_MS))
            }
            None if self.qp.in_flight() == 0 => return false,
            None => (self.completions(), timeout_ms),
        };
        let [at_ms, completions] = &self.progress;
        let mut progress = Progress {
            at_ms: at_ms.load(Relaxed),
            completions: completions.load(Relaxed),
        };
        let stuck = progress.is_missing(now, seen, timeout_ms);
        at_ms.store(progress.at_ms, Relaxed);
        completions.store(progress.completions, Relaxed);
        stuck
    }

    /// Makes and posts receives for as many commands as the server allows in flight, if memory is
    /// free: I/O goes on with fewer. If it is not, answers ask for it again only with `ask_again`.
    /// May sleep. The caller must not let allocations wait for memory: I/O that waits may have to
    /// end before.
    pub(in crate::client) fn grow(&self, ask_again: bool) {
        let posted = self.post_receives(DmaBuffer::alloc_free);
        if let Some(commands) = self.commands() {
            if posted.is_ok() || ask_again {
                commands.growing.store(0, Relaxed);
            }
        }
    }

    /// Makes and posts the receives that are missing. May sleep.
    fn post_receives(&self, alloc: AllocReceives) -> Result {
        let Some(commands) = self.commands() else {
            return Ok(());
        };
        while commands.missing() > 0 {
            for receive in commands.make_receives(self.cq.any().device(), alloc)? {
                self.qp.recv(receive).map_err(|(error, _)| error)?;
                commands.receives.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    /// Notes that the connection is up, and that the path relies on it from now on; reports it as
    /// lost if it was meanwhile. Any context.
    pub(in crate::client) fn set_up(&self) {
        let handler = self.qp.handler();
        if handler.state.cmpxchg(CONNECTING, UP, Relaxed).is_err() {
            handler.events.lost();
        }
    }

    /// Makes the connection fail. May sleep.
    pub(in crate::client) fn fail(&self) {
        self.qp.fail();
    }

    /// Ends all requests. When it returns with success, nothing touches their memory any more.
    /// Requests that could not be ended go back to their owner when all queues of the path have
    /// been dropped. May sleep.
    pub(in crate::client) fn drain(&self) -> Result<(), Undrained> {
        self.qp.drain()
    }

    /// Prints the counters. Any context.
    pub(in crate::client) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "work_requests {} doorbells {} completions {} interrupts {} invalidations {}",
            self.qp.posted(),
            self.qp.doorbells(),
            self.qp.completions(),
            self.cq.any().interrupts(),
            self.qp.invalidations(),
        )
    }
}

/// Returns the number of pages that `bytes` bytes can touch.
const fn pages(bytes: u32) -> u32 {
    bytes / PAGE_SIZE as u32 + 1
}

/// The owner of a posted work request: the request whose pages it moves, or the bounce buffer in
/// place of them, and its command.
struct Posted {
    memory: Bounced<Request>,
    command: Option<KBox<DmaBuffer>>,
}

impl SendOwner for Posted {
    type Memory = Bounced<Request>;

    #[inline]
    fn memory(&self) -> Option<&Self::Memory> {
        Some(&self.memory)
    }

    #[inline]
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        let message = self.command.as_ref()?;
        Some((message, message.len()))
    }
}

/// The connection is being made: its failure is that of the attempt, which may make do without it.
const CONNECTING: u32 = 0;
/// The connection is up: its failure is the path's.
const UP: u32 = 1;
/// The connection has failed.
const FAILED: u32 = 2;

/// Handles the completions of a queue.
struct Handler {
    /// `None` if the queue is one-sided.
    commands: Option<Commands>,
    events: PathEvents,
    owner: Arc<Multipath>,
    hw_queue: u16,
    /// [`CONNECTING`], [`UP`] or [`FAILED`].
    state: Atomic<u32>,
}

impl Handler {
    /// Reports a message that answers no command. If the queue pair has failed before, by itself or
    /// because the path is closed, that is no fault of the server: the commands were given back,
    /// and the answers that it had sent still come.
    #[cold]
    fn unexpected(&self, qp: &Qp<Self>, what: Malformed) {
        if !qp.has_failed() {
            self.events.violated(what);
        }
    }

    /// Reports an answer or data with a wrong check. See [`Self::unexpected`].
    #[cold]
    fn forged(&self, qp: &Qp<Self>) {
        if !qp.has_failed() {
            self.events.forged();
        }
    }

    /// Reports an answer that the queue pair has refused with this error, and forgets it.
    #[cold]
    fn refuse(&self, qp: &Qp<Self>, commands: &Commands, answer: &Answer, error: Error) {
        commands.forget(answer.tag);
        if error == EPROTO {
            let what = "a response that invalidates what is not its own";
            return self.events.violated(Malformed(what));
        }
        self.unexpected(qp, NOT_IN_FLIGHT);
    }

    /// Returns the request whose memory the device is done with.
    #[inline]
    fn release(&self, memory: Bounced<Request>) -> Request {
        match &self.commands {
            Some(commands) => commands.release(memory),
            None => memory.into_both().0,
        }
    }
}

impl QpHandler for Handler {
    type Send = Posted;
    type Recv = KBox<DmaBuffer>;
    type Ulp = Requests;

    /// Ends a request: it was answered, or will not be, and the server has no access to its memory.
    #[inline]
    fn send_done(&self, qp: &Qp<Self>, posted: Posted, result: Result<(), WcError>) {
        let Posted { memory, command } = posted;
        let mut status = result.map_err(|_| BlkError::Transport);
        if let (Some(commands), Some(command)) = (&self.commands, command) {
            let Finished {
                status: answer,
                receive,
                forged,
            } = commands.finish(&memory, command, result.is_ok());
            status = status.and(answer);
            if forged {
                self.forged(qp);
            }
            // The receive must be there before another command can need it.
            if let Some(receive) = receive {
                let _ = qp.recv(receive);
            }
            commands.in_flight.fetch_sub(1, Relaxed);
        }
        self.owner.end(self.hw_queue, self.release(memory), status);
    }

    /// Takes an answer. The request ends here if its work requests have completed.
    #[inline]
    fn recv_done(
        &self,
        qp: &Qp<Self>,
        buffer: KBox<DmaBuffer>,
        received: Result<Received<'_>, WcError>,
    ) {
        if let Err(WcError::Unexpected { .. }) = received {
            let what = "an RDMA WRITE with immediate data, which is no message";
            return self.events.violated(Malformed(what));
        }
        let (Some(commands), Ok(received)) = (&self.commands, received) else {
            return;
        };
        let (answer, buffer) = match (&commands.protected, received.immediate()) {
            (None, None) => (commands.respond(qp, &buffer, received.len()), Some(buffer)),
            (None, Some(immediate)) => (
                commands.deliver(qp, immediate, buffer, received.len()),
                None,
            ),
            (Some(protected), immediate) => {
                match commands.open(qp, protected, buffer, received.len(), immediate) {
                    (Err(BadFrame::Forged), buffer) => {
                        buffer.map(|buffer| qp.recv(buffer));
                        return self.forged(qp);
                    }
                    (Err(BadFrame::Malformed(what)), buffer) => (Err(what), buffer),
                    (Ok(answer), buffer) => (Ok(answer), buffer),
                }
            }
        };
        // The receive must be there before another command can need it.
        if let Some(buffer) = buffer {
            let _ = qp.recv(buffer);
        }
        match answer {
            Ok(answer) => {
                let is_it = |generation| answer.is_of(generation);
                if let Err(error) = qp.answered(answer.tag, received, is_it) {
                    self.refuse(qp, commands, &answer, error);
                }
            }
            Err(malformed) => self.unexpected(qp, malformed),
        }
        if commands.should_grow() {
            self.events.credited();
        }
    }

    fn error(&self) {
        if self.state.xchg(FAILED, Relaxed) != CONNECTING {
            self.events.lost();
        }
    }
}

impl RequestHandler for Handler {
    type Parked = Posted;

    fn park(&self, posted: Posted) -> Posted {
        posted
    }

    /// The command goes with the connection. Whether the server has carried it out is unknown.
    fn send_released(&self, posted: Posted) {
        let request = self.release(posted.memory);
        self.owner
            .end(self.hw_queue, request, Err(BlkError::Transport));
    }
}

/// The command of one tag.
///
/// The queue pair knows whether a command is in flight and not answered, and whether an answer is
/// its own. It is asked before anything else. Then what the answer was is stored here, before the
/// queue pair is told of it: only a command that was answered looks at it.
struct Slot {
    /// The buffer for the command; empty while the command is in flight.
    message: Place<DmaBuffer>,
    /// Length of the answer if it has to be data, in bytes; else 0.
    expected: Atomic<u32>,
    /// The code of the [`Status`] of the answer.
    status: Atomic<u32>,
    /// The answer, if it was data.
    data: Place<DmaBuffer>,
}

/// What a response violates that is one to no command, or to one that was answered.
const NOT_IN_FLIGHT: Malformed = Malformed("a response to a command that is not in flight");

/// An answer, as it has come: which command it is for.
struct Answer {
    tag: u16,
    /// The generation of the command, as far as `mask` has it.
    generation: u32,
    mask: u32,
}

impl Answer {
    fn of_response(response: &Response) -> Self {
        Self {
            tag: response.tag,
            generation: response.generation,
            mask: u32::MAX,
        }
    }

    fn of_delivery(delivery: &Delivery) -> Self {
        Self {
            tag: delivery.tag,
            generation: delivery.generation,
            mask: Delivery::GENERATION,
        }
    }

    /// Returns true if it is for the command of this generation.
    #[inline]
    fn is_of(&self, generation: u32) -> bool {
        generation & self.mask == self.generation
    }
}

/// How a command has ended.
struct Finished {
    /// Its result: [`BlkError::Transport`] if it was not answered.
    status: BlkResult,
    /// The receive that the answer used up, if it was data.
    receive: Option<KBox<DmaBuffer>>,
    /// The data that the server has written are not what it has sent the check of.
    forged: bool,
}

/// The commands of a queue. The index of a slot is the tag.
struct Commands {
    slots: KVec<Slot>,
    /// Number of commands in flight.
    in_flight: Atomic<u32>,
    /// Number of commands that the server has receives for.
    credit: Atomic<u32>,
    /// Number of answers that the queue has receives for.
    receives: Atomic<u32>,
    /// 1 while more receives are being made, else 0.
    growing: Atomic<u32>,
    /// 1 if a command had to wait for credit since the last command was sent, else 0.
    pressed: Atomic<u32>,
    /// Largest write whose data follow the command, in bytes.
    inline_size: u32,
    /// Largest read whose data are the answer, in bytes.
    inline_read: u32,
    /// `None` if commands and answers are sent as they are.
    protected: Option<Protected>,
    /// The bounce buffers, if there is a protection, or the device needs them.
    bounces: Option<Arc<Bounces>>,
    /// The device registers whole pages only.
    whole_pages: bool,
}

impl Commands {
    /// Makes the commands of a queue under `terms`. `credit` of them may be in flight at first,
    /// once there are receives. Reads of up to `inline_read` bytes are answered with their data.
    /// May sleep.
    fn new(config: &QueueConfig<'_>, terms: &Terms, credit: u16, inline_read: u32) -> Result<Self> {
        let device = config.pd.device();
        let depth = usize::from(terms.depth);
        let mut slots = KVec::with_capacity(depth, GFP_KERNEL)?;
        let (protected, size) = match config.protection.is_on() {
            true => (Some(Protected::new(terms.depth)?), frame::COMMAND_SIZE),
            false => (None, command::SIZE),
        };
        let stride = size.next_multiple_of(CACHE_LINE);
        let memory = DmaBuffer::alloc(device, depth * stride, Direction::ToDevice)?;
        for mut message in memory.split(stride) {
            message.truncate(size)?;
            let slot = Slot {
                message: Place::new(KBox::new(message, GFP_KERNEL)?),
                expected: Atomic::new(0),
                status: Atomic::new(0),
                data: Place::empty(),
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            in_flight: Atomic::new(0),
            credit: Atomic::new(credit.into()),
            receives: Atomic::new(0),
            growing: Atomic::new(0),
            pressed: Atomic::new(0),
            inline_size: terms.inline_size,
            inline_read,
            protected,
            bounces: config.bounces.clone(),
            whole_pages: device.loses_offsets(),
        })
    }

    /// Takes the buffer for the command of `tag`. Returns `None` if there is no receive for the
    /// command or for its answer: the caller must wait until another command has ended.
    #[inline]
    fn begin(&self, tag: u16) -> Option<KBox<DmaBuffer>> {
        let slot = self.slots.get(usize::from(tag))?;
        let max = self.credit.load(Relaxed).min(self.receives.load(Relaxed));
        if self.in_flight.fetch_add(1, Relaxed) >= max {
            self.in_flight.fetch_sub(1, Relaxed);
            self.pressed.store(1, Relaxed);
            return None;
        }
        let message = slot.message.take();
        if message.is_none() {
            self.in_flight.fetch_sub(1, Relaxed);
        }
        message
    }

    /// Ends a command that was not sent.
    #[cold]
    fn abandon(&self, tag: u16, message: Option<KBox<DmaBuffer>>) {
        if let (Some(slot), Some(message)) = (self.slots.get(usize::from(tag)), message) {
            drop(slot.message.put(message));
            self.in_flight.fetch_sub(1, Relaxed);
        }
    }

    /// Takes the bounce buffer for a request that needs one: the server sees that in place of the
    /// memory. Fails with [`BlkError::Resource`] if none is free. Any context.
    #[inline]
    fn take_bounce(
        &self,
        request: &Request,
        carry: Carry,
    ) -> BlkResult<Option<KBox<BounceBuffer>>> {
        let Some(bounces) = &self.bounces else {
            return Ok(None);
        };
        let whole_pages = self.whole_pages && matches!(carry, Carry::Access(_));
        let needs = match &self.protected {
            Some(_) => carry != Carry::Nothing,
            None => whole_pages && !is_whole_pages(request),
        };
        match needs {
            true => bounces
                .take(request.bytes(), whole_pages)
                .ok_or(BlkError::Resource)
                .map(Some),
            false => Ok(None),
        }
    }

    /// Returns the request of `memory`, whose bounce buffer is free again. Any context.
    #[inline]
    fn release(&self, memory: Bounced<Request>) -> Request {
        let (request, buffer) = memory.into_both();
        if let Some(buffer) = buffer {
            self.put_bounce(buffer);
        }
        request
    }

    #[cold]
    fn put_bounce(&self, buffer: KBox<BounceBuffer>) {
        if let Some(bounces) = &self.bounces {
            bounces.put(buffer);
        }
    }

    /// Chooses the command for a request, and how its work request carries the data.
    #[inline]
    fn plan(&self, request: &Request) -> BlkResult<(Operation, Carry)> {
        let span = Span {
            offset: request.sector() << SECTOR_SHIFT,
            len: request.bytes(),
        };
        // The address of the data is known only when the memory has been registered.
        let remote = Transfer::Remote(Remote { addr: 0, rkey: 0 });
        Ok(match request.command() {
            mq::Command::Read => {
                let (to, carry) = match span.len <= self.inline_read {
                    true => (Transfer::Inline, Carry::Nothing),
                    false => (remote, Carry::Access(RdmaOp::Write)),
                };
                (Operation::Read { span, to }, carry)
            }
            mq::Command::Write => {
                let (from, carry) = match span.len <= self.inline_size {
                    true => (Transfer::Inline, Carry::Inline),
                    false => (remote, Carry::Access(RdmaOp::Read)),
                };
                let write = Operation::Write {
                    span,
                    from,
                    fua: request.fua(),
                    atomic: request.atomic(),
                };
                (write, carry)
            }
            mq::Command::Flush => (Operation::Flush, Carry::Nothing),
            mq::Command::Discard => (Operation::Discard { span }, Carry::Nothing),
            mq::Command::WriteZeroes => {
                let no_unmap = request.no_unmap();
                (Operation::WriteZeroes { span, no_unmap }, Carry::Nothing)
            }
            mq::Command::SecureErase => (Operation::SecureErase { span }, Carry::Nothing),
            mq::Command::Reserve => (persistent::operation(request)?, Carry::Nothing),
            mq::Command::Report => (persistent::report(self.inline_read)?, Carry::Nothing),
            mq::Command::Unsupported(_) => return Err(BlkError::NotSupported),
        })
    }

    /// Writes the command of `tag` into `message`. `range` is where the server finds the data, if
    /// the command tells it; `memory` has those of a write.
    #[inline]
    fn write(
        &self,
        message: &mut DmaBuffer,
        tag: u16,
        mut operation: Operation,
        memory: &Bounced<Request>,
        ask: Ask,
    ) -> Result {
        if let (
            Operation::Read {
                to: Transfer::Remote(remote),
                ..
            }
            | Operation::Write {
                from: Transfer::Remote(remote),
                ..
            },
            Some(RemoteRange { addr, rkey }),
        ) = (&mut operation, ask.range)
        {
            *remote = Remote { addr, rkey };
        }
        let slot = self.slots.get(usize::from(tag)).ok_or(EINVAL)?;
        slot.expected.store(operation.answer_len(), Relaxed);
        let mut bytes = [0; command::SIZE];
        let command = Command {
            tag,
            generation: ask.generation,
            pressed: self.pressed.load(Relaxed) != 0 && self.pressed.xchg(0, Relaxed) != 0,
            operation,
        };
        command.encode(&mut bytes).map_err(|_| EINVAL)?;
        match &self.protected {
            None => {
                if memory.buffer().is_some() && matches!(operation, Operation::Write { .. }) {
                    memory.fill()?;
                }
                message.copy_in(0, &bytes)
            }
            Some(protected) => protected.seal(tag, message, &bytes, &operation, memory),
        }
    }

    /// Takes note of a received message of `len` bytes. Returns which command it answers.
    #[inline]
    fn respond(
        &self,
        qp: &Qp<Handler>,
        message: &DmaBuffer,
        len: u32,
    ) -> Result<Answer, Malformed> {
        let mut bytes = [0; response::SIZE];
        let whole = message.copy_out(0, &mut bytes).is_ok();
        // CAST: 16.
        if !whole || len != response::SIZE as u32 {
            return Err(Malformed("the response has the wrong length"));
        }
        let response = Response::parse(&bytes)?;
        let answer = Answer::of_response(&response);
        let slot = self.slot(qp, &answer)?;
        if response.status == Status::Ok && slot.expected.load(Relaxed) != 0 {
            return Err(Malformed("a read was answered without its data"));
        }
        slot.status.store(response.status.code().into(), Relaxed);
        self.grant(response.credit)?;
        Ok(answer)
    }

    /// Forgets the data of an answer to `tag`, whose command has ended without it meanwhile.
    #[cold]
    fn forget(&self, tag: u16) {
        if let Some(slot) = self.slots.get(usize::from(tag)) {
            drop(slot.data.take());
        }
    }

    /// Opens the received frame of `len` bytes in `buffer`, and takes note of it. Returns which
    /// command it answers, and the buffer if the frame had no data.
    fn open(
        &self,
        qp: &Qp<Handler>,
        protected: &Protected,
        mut buffer: KBox<DmaBuffer>,
        len: u32,
        immediate: Option<u32>,
    ) -> (Result<Answer, BadFrame>, Option<KBox<DmaBuffer>>) {
        let answered = protected.open(&mut buffer, len).and_then(|opened| {
            let response = Response::parse(&opened.response)?;
            let answer = Answer::of_response(&response);
            let slot = self.slot(qp, &answer)?;
            let ok = response.status == Status::Ok;
            let expected = match ok {
                true => slot.expected.load(Relaxed),
                false => 0,
            };
            if opened.data != expected {
                return Err(Malformed("an answer has not the data that were asked for").into());
            }
            protected.note(response.tag, &opened, ok)?;
            slot.status.store(response.status.code().into(), Relaxed);
            self.grant(response.credit)?;
            Ok((slot, answer, expected != 0))
        });
        let (slot, answer, has_data) = match answered {
            Ok(answer) => answer,
            Err(bad) => return (Err(bad), Some(buffer)),
        };
        let buffer = match has_data {
            true => {
                // The place is empty.
                drop(slot.data.put(buffer));
                None
            }
            false => Some(buffer),
        };
        let answer = match immediate {
            None => Ok(answer),
            Some(_) => Err(Malformed("immediate data where there are none").into()),
        };
        (answer, buffer)
    }

    /// Takes note of `len` bytes of received data with `immediate`. Returns which command they
    /// answer.
    #[inline]
    fn deliver(
        &self,
        qp: &Qp<Handler>,
        immediate: u32,
        data: KBox<DmaBuffer>,
        len: u32,
    ) -> Result<Answer, Malformed> {
        let delivery = Delivery::parse(immediate);
        let answer = Answer::of_delivery(&delivery);
        let slot = self.slot(qp, &answer)?;
        if len == 0 || len != slot.expected.load(Relaxed) {
            return Err(Malformed("data that no command asked for"));
        }
        self.grant(delivery.credit)?;
        slot.status.store(Status::Ok.code().into(), Relaxed);
        // The place is empty.
        drop(slot.data.put(data));
        Ok(answer)
    }

    /// Returns the slot of the command that waits for this answer.
    #[inline]
    fn slot(&self, qp: &Qp<Handler>, answer: &Answer) -> Result<&Slot, Malformed> {
        let slot = self.slots.get(usize::from(answer.tag));
        let slot = slot.ok_or(Malformed("a response to a tag beyond the depth"))?;
        match qp.asks(answer.tag, |generation| answer.is_of(generation)) {
            true => Ok(slot),
            false => Err(NOT_IN_FLIGHT),
        }
    }

    #[inline]
    fn grant(&self, credit: u16) -> Result<(), Malformed> {
        if usize::from(credit) > self.slots.len() {
            return Err(Malformed("a credit beyond the depth"));
        }
        // The server may send answers in another order than it wrote them, and an older answer has
        // less credit. The handlers of one queue do not run in parallel.
        if u32::from(credit) > self.credit.load(Relaxed) {
            self.credit.store(credit.into(), Relaxed);
        }
        Ok(())
    }

    /// Returns true if more receives are needed, once until [`IoQueue::grow`] is called.
    #[inline]
    fn should_grow(&self) -> bool {
        self.missing() != 0 && self.growing.load(Relaxed) == 0 && self.growing.xchg(1, Relaxed) == 0
    }

    /// Returns the number of receives that are missing.
    #[inline]
    fn missing(&self) -> u32 {
        let (credit, receives) = (self.credit.load(Relaxed), self.receives.load(Relaxed));
        credit.saturating_sub(receives)
    }

    /// Makes receives of those that are missing, at most [`RECEIVES_BATCH`]; none if none is
    /// missing. The caller posts them. May sleep.
    fn make_receives(
        &self,
        device: &Arc<Device>,
        alloc: AllocReceives,
    ) -> Result<KVec<KBox<DmaBuffer>>> {
        let mut receives = KVec::new();
        // CAST: A small number.
        let mut count = self.missing().min(RECEIVES_BATCH) as usize;
        if count == 0 {
            return Ok(receives);
        }
        // A receive holds a response, or the data of a read.
        // CAST: A u32 fits a usize on every platform with RDMA.
        let data = self.inline_read as usize;
        let size = match self.protected {
            None => response::SIZE.max(data),
            // They are decrypted where they lie.
            Some(_) => (frame::RESPONSE_SIZE + data).next_multiple_of(CACHE_LINE),
        };
        // If memory is fragmented, smaller pieces do.
        let memory = loop {
            match alloc(device, count * size, Direction::FromDevice) {
                Err(_) if count > 1 => count /= 2,
                memory => break memory?,
            }
        };
        for receive in memory.split(size) {
            receives.push(KBox::new(receive, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(receives)
    }

    /// Ends the command for a request, whose memory the server cannot access any more; `sent` tells
    /// if its work requests have succeeded. The caller must post the receive that the answer used
    /// up before another command begins.
    #[inline]
    fn finish(
        &self,
        memory: &Bounced<Request>,
        mut message: KBox<DmaBuffer>,
        sent: bool,
    ) -> Finished {
        let mut finished = Finished {
            status: Err(BlkError::Transport),
            receive: None,
            forged: false,
        };
        let Some(slot) = self.slots.get(usize::from(memory.memory().tag())) else {
            return finished;
        };
        let has_data = slot.expected.load(Relaxed) != 0;
        if has_data {
            finished.receive = slot.data.take();
        }
        // A request that was sent, and is over, was answered.
        // CAST: It was stored as a u16.
        let answer = sent.then(|| Status::try_from(slot.status.load(Relaxed) as u16));
        finished.status = match answer {
            None | Some(Err(_)) => Err(BlkError::Transport),
            // This cannot be, and the memory of the reader has nothing of it.
            Some(Ok(Status::Ok)) if has_data && finished.receive.is_none() => {
                Err(BlkError::Transport)
            }
            Some(Ok(Status::Ok)) => {
                match self.take_data(memory, finished.receive.as_deref(), &mut message) {
                    Ok(()) => Ok(()),
                    // What was forged is read again on another connection.
                    Err(EBADMSG) => {
                        finished.forged = true;
                        Err(BlkError::Transport)
                    }
                    Err(_) => Err(BlkError::IoError),
                }
            }
            Some(Ok(status)) => status.into(),
        };
        // The place is empty: `begin` took the buffer out for the command.
        drop(slot.message.put(message));
        finished
    }

    /// Brings the data of a read to the memory of its request, unless the server has written them
    /// there. Fails with `EBADMSG` if their check is wrong.
    #[inline]
    fn take_data(
        &self,
        memory: &Bounced<Request>,
        received: Option<&DmaBuffer>,
        message: &mut DmaBuffer,
    ) -> Result {
        let request = memory.memory();
        let start = match self.protected {
            Some(_) => frame::RESPONSE_SIZE,
            None => 0,
        };
        match (received, &self.protected) {
            // CAST: A u32 fits a usize on every platform with RDMA.
            (Some(data), _) => data.copy_to(start, request.bytes() as usize, request),
            (None, None) if memory.buffer().is_none() => Ok(()),
            _ if request.command() != mq::Command::Read => Ok(()),
            (None, Some(protected)) => protected.open_data(request.tag(), message, memory),
            (None, None) => memory.empty(),
        }
    }
}

/// Returns true if the memory of a request is whole pages. It has no gaps between pages.
#[inline]
fn is_whole_pages(request: &Request) -> bool {
    let offset = request.segments().next().map_or(0, |first| first.offset());
    (offset | request.bytes()) % PAGE_SIZE as u32 == 0
}
