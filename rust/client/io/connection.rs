// SPDX-License-Identifier: GPL-2.0

//! One I/O connection to the server.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
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
    errno::{
        EOPNOTSUPP,
        ESHUTDOWN, //
    },
    sync::without_io, //
};
use crate::block::{
    mq::{
        self,
        Owned,
        Request, //
    },
    BlkError, //
};
use crate::client::{
    control::{
        Deadline,
        Target,
        Watcher, //
    },
    io::{
        disk::Disk,
        ledger::Io,
        slabs::Slabs,
        tags::Commands, //
    },
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    command,
    Connection,
    Malformed,
    Terms, //
};
use crate::rdma::{
    cm::CmEvents,
    cq::{
        Cq,
        PollContext, //
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
        QpHandler,
        Undrained, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        SendOwner, //
    },
};
use crate::session::clock::Progress;

/// Requests of more segments than one work request takes that may be in flight at once; the others
/// wait, as they do when the send queue is full.
const LARGE: u16 = 16;
/// The pages of the memory region that each request has of its own: 64 KiB.
const KEY_PAGES: u32 = 16;
/// Requests of more than these that may be in flight at once; the others wait.
const LARGE_KEYS: u16 = 8;
/// Work requests of a large request beyond the one that every request has.
const LARGE_WR: u32 = 8;

/// How a connection reaches the export.
pub(in crate::client) enum Reach {
    /// By its own RDMA READs and WRITEs of the server's memory.
    Slabs(Arc<Slabs>),
    /// By commands to the server, so many in flight at first.
    Commands(Terms, u16),
}

/// What a posted work request owns: the request whose pages it moves, and its command.
pub(in crate::client) struct Posted {
    request: Owned<Request<Disk>>,
    command: Option<KBox<DmaBuffer>>,
}

impl SendOwner for Posted {
    type Memory = Owned<Request<Disk>>;

    #[inline]
    fn memory(&self) -> Option<&Self::Memory> {
        Some(&self.request)
    }

    #[inline]
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        Some((self.command.as_ref()?, command::SIZE))
    }
}

/// Completions of an I/O queue pair.
pub(in crate::client) struct Handler {
    /// `None` if the server is not asked.
    commands: Option<Commands>,
    watcher: Arc<dyn Watcher>,
    /// Where requests go when they are over.
    io: Arc<Io>,
    /// The hardware queue.
    index: u16,
}

impl QpHandler for Handler {
    type Send = Posted;
    type Recv = KBox<DmaBuffer>;

    #[inline]
    fn send_done(&self, qp: &Qp<Self>, posted: Posted, result: Result<(), WcError>) {
        let Posted { request, command } = posted;
        let mut status = result.map_err(|_| BlkError::Transport);
        if let (Some(commands), Some(command)) = (&self.commands, command) {
            let (answer, receive) = commands.finish(&request, command);
            status = status.and(answer);
            // Before another command can want it.
            if let Some(receive) = receive {
                let _ = qp.recv(receive);
            }
            commands.land();
        }
        self.io.end(self.index, request, status);
    }

    #[inline]
    fn recv_done(
        &self,
        qp: &Qp<Self>,
        buffer: KBox<DmaBuffer>,
        received: Result<Received<'_>, WcError>,
    ) {
        if let Err(WcError::Unexpected { .. }) = received {
            let what = "an RDMA WRITE with immediate data, which is no message";
            return self.watcher.violated(Malformed(what));
        }
        let (Some(commands), Ok(received)) = (&self.commands, received) else {
            return;
        };
        let tag = match received.immediate() {
            Some(immediate) => commands.deliver(immediate, buffer, received.len()),
            None => {
                let tag = commands.respond(&buffer, received.len());
                // Before another command can want it.
                let _ = qp.recv(buffer);
                tag
            }
        };
        let answered = tag.and_then(|tag| {
            qp.answered(tag, received.into_invalidated())
                .map_err(|_| Malformed("a response that invalidates what is not its own"))
        });
        if let Err(malformed) = answered {
            self.watcher.violated(malformed);
        }
        if commands.should_grow() {
            self.watcher.credited();
        }
    }

    fn error(&self) {
        self.watcher.lost();
    }
}

/// The connection manager's word that an I/O connection is gone.
struct Events(Arc<dyn Watcher>);

impl CmEvents for Events {
    fn disconnected(&self) {
        self.0.lost();
    }
}

/// What the I/O connections of a session have in common.
pub(in crate::client) struct Connector<'a> {
    /// Where the server is.
    pub(in crate::client) target: &'a Target,
    /// The protection domain of the session.
    pub(in crate::client) pd: &'a Arc<Pd>,
    /// What the server calls the session.
    pub(in crate::client) session: u64,
    /// Epoch of the path.
    pub(in crate::client) epoch: u64,
    /// Requests in flight per queue.
    pub(in crate::client) depth: u16,
    /// How they reach the export.
    pub(in crate::client) reach: Reach,
    /// Who hears that a connection is lost.
    pub(in crate::client) watcher: Arc<dyn Watcher>,
    /// Where requests go when they are over.
    pub(in crate::client) io: &'a Arc<Io>,
    /// When to give up.
    pub(in crate::client) deadline: Deadline,
}

/// What a request may be at most.
#[derive(Clone, Copy)]
pub(in crate::client) struct Most {
    /// Its segments.
    pub(in crate::client) segments: u16,
    /// Its bytes, wherever in a page they begin.
    pub(in crate::client) bytes: u32,
}

impl Most {
    /// No request can be.
    pub(in crate::client) const NOTHING: Self = Self {
        segments: 0,
        bytes: 0,
    };
}

/// A connected I/O queue pair.
pub(in crate::client) struct Queue {
    qp: Arc<Qp<Handler>>,
    /// Where its responses complete.
    cq: Arc<Cq>,
    /// Nobody looks there but who waits for I/O.
    polled: bool,
    slabs: Option<Arc<Slabs>>,
    most: Most,
    /// What there was when a request was found late: when, in ms, and how many completions.
    late: [Atomic<u64>; 2],
}

impl Queue {
    /// Connects queue `index`, which is `polled` or not. May sleep.
    pub(in crate::client) fn connect(
        common: &Connector<'_>,
        index: u16,
        polled: bool,
    ) -> Result<Self, Failure> {
        let events = Arc::new(Events(common.watcher.clone()), GFP_KERNEL)?;
        let id = common.target.resolve(events, common.deadline)?;
        let device = common.pd.device();
        if id.is_iwarp() && matches!(common.reach, Reach::Slabs(_)) {
            return Err(fail!(EOPNOTSUPP, "a ram export cannot be read over iWARP"));
        }
        if let (Some(timeout), Reach::Commands(..)) = (device.quirks().ack_timeout(), &common.reach)
        {
            let _ = id.set_ack_timeout(timeout);
        }
        let limits = device.limits();
        let vector = u32::from(index) % limits.num_comp_vectors.max(1);
        let context = match polled {
            true => PollContext::Direct,
            false => PollContext::Softirq,
        };
        let depth = u32::from(common.depth);
        // Of a memory region for the largest request.
        let region = |terms: &Terms| {
            let most = limits.max_fast_reg_page_list_len;
            pages(terms.limits.max_io).min(most)
        };
        let caps = match &common.reach {
            Reach::Slabs(_) => QpCaps {
                slots: common.depth,
                send_wr: (depth + u32::from(LARGE) * LARGE_WR)
                    .min(limits.max_qp_wr.saturating_sub(1)),
                recv_wr: 1,
                sges: QpCaps::MAX_SGES,
                large: LARGE,
                keys: 0,
                key_pages: 0,
                large_keys: 0,
                large_key_pages: 0,
            },
            Reach::Commands(terms, _) => QpCaps {
                slots: common.depth,
                // The registration of the memory, and the command.
                send_wr: 2 * depth,
                recv_wr: depth,
                // The command, and the data that it carries.
                sges: 1 + pages(terms.inline_size),
                large: 0,
                keys: common.depth,
                key_pages: region(terms).min(KEY_PAGES),
                large_keys: match region(terms) {
                    ..=KEY_PAGES => 0,
                    _ => LARGE_KEYS,
                },
                large_key_pages: region(terms),
            },
        };
        let (cq, send_cq, commands) = match &common.reach {
            Reach::Slabs(_) => {
                let entries = caps.send_cqes() + caps.recv_cqes();
                let cq = Cq::alloc(device, entries, vector, context)?;
                (cq.clone(), cq, None)
            }
            // The end of a send is looked for when its response is there: no interrupt of its own.
            Reach::Commands(terms, credit) => {
                let inline_read = match id.is_iwarp() {
                    true => 0,
                    false => terms.inline_size,
                };
                (
                    Cq::alloc(device, caps.recv_cqes(), vector, context)?,
                    Cq::alloc(device, caps.send_cqes(), vector, PollContext::Direct)?,
                    Some(Commands::new(device, terms, *credit, inline_read)?),
                )
            }
        };
        let handler = Handler {
            commands,
            watcher: common.watcher.clone(),
            io: common.io.clone(),
            index,
        };
        let qp = Qp::create(&id, common.pd, &send_cq, &cq, caps, handler)?;
        if let Some(commands) = &qp.handler().commands {
            while let Some(missing) = Missing::of(commands, device) {
                provide(&qp, commands, missing.make()?)?;
            }
        }
        let slabs = match &common.reach {
            Reach::Slabs(slabs) => Some(slabs.clone()),
            Reach::Commands(..) => None,
        };
        let connection = Connection::Io {
            session: common.session,
            queue: index,
        };
        common
            .target
            .connect(&id, connection, common.epoch, common.deadline)?;
        let (segments, bytes) = match &common.reach {
            Reach::Slabs(_) => (qp.max_segments(), u32::MAX),
            Reach::Commands(terms, _) => (
                region(terms).min(QpCaps::MAX_KEY_SEGMENTS),
                region(terms)
                    .saturating_sub(1)
                    .saturating_mul(PAGE_SIZE as u32),
            ),
        };
        let most = Most {
            segments: u16::try_from(segments).unwrap_or(u16::MAX),
            bytes,
        };
        Ok(Self {
            qp,
            cq,
            polled,
            slabs,
            most,
            late: [Atomic::new(0), Atomic::new(u64::MAX)],
        })
    }

    /// What a request may be at most.
    pub(in crate::client) fn most(&self) -> Most {
        self.most
    }

    /// Posts a request, and all that were posted before it if it is the `last` one. It comes back with
    /// [`BlkError::Resource`] if there is no room for it now, or the connection has failed. Any context.
    #[inline]
    pub(in crate::client) fn send(&self, request: Owned<Request<Disk>>, last: bool) -> Outcome {
        let posted = match &self.slabs {
            Some(slabs) => self.access(slabs, request, last)?,
            None => self.command(request, last)?,
        };
        posted.map_err(|(error, posted)| {
            let Posted { request, command } = posted;
            if let (Some(commands), Some(command)) = (&self.qp.handler().commands, command) {
                let _ = commands.finish(&request, command);
                commands.land();
            }
            if last {
                self.qp.ring();
            }
            let error = match error {
                EAGAIN | ESHUTDOWN | ENOMEM => BlkError::Resource,
                _ => BlkError::IoError,
            };
            (error, request)
        })
    }

    /// Reads or writes the server's memory.
    #[inline]
    fn access(
        &self,
        slabs: &Slabs,
        request: Owned<Request<Disk>>,
        last: bool,
    ) -> Outcome<Result<(), (Error, Posted)>> {
        let len = request.bytes();
        let offset = request.sector() << kernel::block::SECTOR_SHIFT;
        let Some(remote) = slabs.locate(offset, len) else {
            return Err((BlkError::IoError, request));
        };
        let (slot, command) = (request.tag(), request.command());
        let posted = Posted {
            request,
            command: None,
        };
        Ok(match command {
            mq::Command::Read => self.qp.rdma(slot, RdmaOp::Read, remote, posted, last),
            mq::Command::Write => self.qp.rdma(slot, RdmaOp::Write, remote, posted, last),
            mq::Command::WriteZeroes => {
                let zeroes = &slabs.zeroes;
                // CAST: a u32 fits a usize on every platform with RDMA.
                let len = len as usize;
                self.qp
                    .write_repeated(slot, remote, zeroes, len, posted, last)
            }
            _ => return Err((BlkError::NotSupported, posted.request)),
        })
    }

    /// Asks the server.
    #[inline]
    fn command(
        &self,
        request: Owned<Request<Disk>>,
        last: bool,
    ) -> Outcome<Result<(), (Error, Posted)>> {
        let tag = request.tag();
        let Some(commands) = &self.qp.handler().commands else {
            return Err((BlkError::IoError, request));
        };
        let (operation, carry) = match commands.plan(&request) {
            Ok(plan) => plan,
            Err(error) => return Err((error, request)),
        };
        let Some(command) = commands.begin(tag) else {
            return Err((BlkError::Resource, request));
        };
        let posted = Posted {
            request,
            command: Some(command),
        };
        let prepare = |posted: &mut Posted, range| match &mut posted.command {
            Some(message) => commands.write(message, tag, operation, range),
            None => Err(EINVAL),
        };
        Ok(self.qp.request(tag, carry, posted, prepare, last))
    }

    /// Work requests that were posted and did not complete yet, about. Any context.
    #[inline]
    pub(in crate::client) fn in_flight(&self) -> u32 {
        self.qp.in_flight()
    }

    /// Completions so far: as long as they come, the server is there. Any context.
    pub(in crate::client) fn completions(&self) -> u64 {
        self.qp.completions()
    }

    /// A request is late at `now`, in ms. Returns true if the connection accesses the server's memory by
    /// itself, and nothing completed on it for `timeout_ms`. By the session's work item only.
    pub(in crate::client) fn is_stuck(&self, now: u64, timeout_ms: u64) -> bool {
        self.catch_up();
        if self.slabs.is_none() || self.in_flight() == 0 {
            return false;
        }
        let [at_ms, completions] = &self.late;
        let mut progress = Progress {
            at_ms: at_ms.load(Relaxed),
            completions: completions.load(Relaxed),
        };
        let stuck = progress.is_missing(now, self.completions(), timeout_ms);
        at_ms.store(progress.at_ms, Relaxed);
        completions.store(progress.completions, Relaxed);
        stuck
    }

    /// Makes receives for as many commands as the server allows in flight. Without memory for more it
    /// is left at that: the next answer is another occasion. May sleep.
    pub(in crate::client) fn grow(&self) {
        let Some(commands) = &self.qp.handler().commands else {
            return;
        };
        while let Some(missing) = Missing::of(commands, self.cq.device()) {
            // The memory may be wanted for I/O that waits for this.
            let made = without_io(|| missing.make());
            if made
                .and_then(|receives| provide(&self.qp, commands, receives))
                .is_err()
            {
                break;
            }
        }
        commands.grown();
    }

    /// Looks for responses, if nothing else does; returns how many there were. Atomic context.
    #[inline]
    pub(in crate::client) fn poll(&self) -> u32 {
        self.cq.reap()
    }

    /// As [`Queue::poll`], for those whose I/O nobody may be waiting for just now: it would not end by
    /// itself. Any context.
    pub(in crate::client) fn catch_up(&self) {
        if self.polled {
            self.poll();
        }
    }

    /// Lets the connection fail. May sleep.
    pub(in crate::client) fn fail(&self) {
        self.qp.fail();
    }

    /// Ends all requests; when it returns, nobody touches their memory any more. Those that could not be
    /// ended fail when all connections of the path are dropped. May sleep.
    pub(in crate::client) fn drain(&self) -> Result<(), Undrained> {
        self.qp.drain()
    }

    /// Shows what the queue did. Any context.
    pub(in crate::client) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "work_requests {} doorbells {} completions {} interrupts {} invalidations {}",
            self.qp.posted(),
            self.qp.doorbells(),
            self.qp.completions(),
            self.cq.interrupts(),
            self.qp.invalidations(),
        )
    }

    /// Posts what [`Queue::send`] left. Atomic context.
    pub(in crate::client) fn commit(&self) {
        self.qp.ring();
    }
}

/// What answers are received into.
type Receives = KVec<KBox<DmaBuffer>>;

/// Receives that are missing.
struct Missing {
    device: Arc<Device>,
    count: usize,
    size: usize,
}

impl Missing {
    /// Those that are made at once, at most: of the largest answers they are one allocation of 256 KiB.
    const BATCH: u32 = 16;

    fn of(commands: &Commands, device: &Arc<Device>) -> Option<Self> {
        let count = commands.missing().min(Self::BATCH);
        (count != 0).then(|| Self {
            device: device.clone(),
            // CAST: A small number.
            count: count as usize,
            size: commands.answer_size(),
        })
    }

    /// Makes them, or the first of them. May sleep.
    fn make(&self) -> Result<Receives> {
        let mut receives = KVec::with_capacity(self.count, GFP_KERNEL)?;
        let memory = DmaBuffer::alloc(&self.device, self.count * self.size, Direction::FromDevice)?;
        for receive in memory.split(self.size) {
            receives.push(KBox::new(receive, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(receives)
    }
}

/// Posts receives for answers.
fn provide(qp: &Qp<Handler>, commands: &Commands, receives: Receives) -> Result {
    for receive in receives {
        qp.recv(receive).map_err(|(error, _)| error)?;
        commands.grow();
    }
    Ok(())
}

/// What becomes of a request; or why it comes back.
type Outcome<T = ()> = core::result::Result<T, (BlkError, Owned<Request<Disk>>)>;

/// The pages that so many bytes can touch.
const fn pages(bytes: u32) -> u32 {
    bytes / PAGE_SIZE as u32 + 1
}
