// SPDX-License-Identifier: GPL-2.0

//! An I/O connection to the server: one queue pair, for one hardware queue and one path.
//!
//! It moves data in one of two ways ([`DataPath`]): by RDMA READs and WRITEs of the server's
//! memory, or by commands that the server carries out. Requests that are over, or whose connection
//! is, go back to their [`RequestOwner`].

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
    bounce::Bounced,
    errno::ESHUTDOWN, //
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
    deadline::Deadline,
    events::PathEvents,
    io::{
        bounces::{
            self,
            Bounces, //
        },
        commands::{
            AllocReceives,
            Commands, //
        },
        handler::{
            Handler,
            Posted,
            RequestOwner,
            CONNECTING, //
        },
        protected::Protected,
        slabs::Slabs, //
    },
    target::Target,
};
use crate::link::{
    cipher::Cipher,
    failure::Failure, //
};
use crate::proto::{
    wire::IO_SIZE_MAX,
    Protection,
    Terms, //
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
    dma::DmaBuffer,
    pd::Pd,
    qp::{
        Qp,
        QpCaps, //
    },
    remnant::ObjectRef,
    request::{
        RequestCaps,
        Undrained, //
    },
    wr::RdmaOp,
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

/// How a connection moves data.
pub(in crate::client) enum DataPath {
    /// By RDMA READs and WRITEs of the server's memory, once [`Connection::set_slabs`] was called.
    OneSided,
    /// By commands to the server. The number is how many may be in flight at first.
    Commands(Terms, u16),
}

/// The parameters that all I/O connections of a path have in common.
pub(in crate::client) struct ConnectionConfig<'a, T> {
    /// The address of the server.
    pub(in crate::client) target: &'a Target,
    /// The protection domain of the session.
    pub(in crate::client) pd: &'a Arc<Pd>,
    /// Requests in flight per connection.
    pub(in crate::client) depth: u16,
    /// How the connections move data.
    pub(in crate::client) data_path: DataPath,
    /// The protection of the commands.
    pub(in crate::client) protection: Protection,
    /// The bounce buffers of the path, if its commands have a protection, or its device needs them.
    pub(in crate::client) bounces: Option<Arc<Bounces>>,
    /// Receives the events of the connections.
    pub(in crate::client) events: PathEvents,
    /// The driver whose requests the connections carry.
    pub(in crate::client) owner: &'a Arc<T>,
    /// When the attempt to connect is given up.
    pub(in crate::client) deadline: Deadline,
}

impl<T> ConnectionConfig<'_, T> {
    /// Makes the protection of a connection. May sleep.
    fn protected(&self, terms: &Terms) -> Result<Option<Protected>> {
        match self.protection.is_on() {
            true => Ok(Some(Protected::new(terms.depth)?)),
            false => Ok(None),
        }
    }

    /// Returns the most bytes that bounce buffers allow in one read or write.
    fn bytes_max(&self) -> u32 {
        match self.bounces {
            Some(_) => bounces::MAX,
            None => u32::MAX,
        }
    }
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

/// A request that was not posted, with the reason.
type Unsent<T> = (BlkError, Owned<Request<T>>);
/// The result of posting the work request of a request.
type PostResult<T> = Result<(), (Error, Posted<T>)>;

/// The completion queue of the receives of an I/O connection, and without commands of the sends.
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

/// An I/O connection.
pub(in crate::client) struct Connection<T: RequestOwner> {
    qp: ObjectRef<Qp<Handler<T>>>,
    cq: ReceiveCq,
    /// The server's memory, once it is known, if the connection is one-sided.
    slabs: Option<Arc<Slabs>>,
    limits: IoLimits,
    /// A [`Progress`]: time in ms and number of completions when a request was found late last, or
    /// instead of these what [`Qp::watch_answered`] returned, if the connection has commands.
    progress: [Atomic<u64>; 2],
}

impl<T: RequestOwner> Connection<T> {
    /// Makes a connection for hardware queue `hw_queue`. The caller calls [`Self::prepare`], and
    /// connects the id. May sleep.
    pub(in crate::client) fn new(
        config: &ConnectionConfig<'_, T>,
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
                    Some(Commands::new(
                        device,
                        terms,
                        *credit,
                        inline_read,
                        (config.protected(terms)?, config.bounces.clone()),
                    )?),
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
        Ok((
            Self {
                qp,
                cq,
                slabs: None,
                limits: IoLimits {
                    segments: u16::try_from(segments).unwrap_or(u16::MAX),
                    bytes: bytes.min(config.bytes_max()),
                    gaps: largest.is_none(),
                },
                progress: [Atomic::new(0), Atomic::new(u64::MAX)],
            },
            id,
        ))
    }

    /// Makes and posts the receives of a new connection. May sleep.
    pub(in crate::client) fn prepare(&self) -> Result {
        self.post_receives(DmaBuffer::alloc)
    }

    /// Sets where a one-sided connection finds the server's memory.
    pub(in crate::client) fn set_slabs(&mut self, slabs: &Arc<Slabs>) {
        self.slabs = Some(slabs.clone());
    }

    /// Sets the cipher of a connection whose commands have a protection.
    pub(in crate::client) fn set_cipher(&self, cipher: Arc<Cipher>) {
        if let Some(protected) = self.qp.handler().protected() {
            protected.set_cipher(cipher);
        }
    }

    /// Returns the limits of a read or write on this connection.
    pub(in crate::client) fn limits(&self) -> IoLimits {
        self.limits
    }

    /// Posts a request, and with `last` rings the doorbell for all that were posted before it.
    /// Returns the request with [`BlkError::Resource`] if there is no room for it now, or if the
    /// connection has failed. Any context.
    #[inline]
    pub(in crate::client) fn send(
        &self,
        request: Owned<Request<T>>,
        last: bool,
    ) -> Result<(), Unsent<T>> {
        let posted = match &self.slabs {
            Some(slabs) => self.access(slabs, request, last)?,
            None => self.command(request, last)?,
        };
        posted.map_err(|(error, posted)| {
            let Posted { memory, command } = posted;
            if let (Some(commands), Some(command)) = (&self.qp.handler().commands, command) {
                let _ = commands.finish(&memory, command, false);
                commands.land();
            }
            let request = self.qp.handler().release(memory);
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

    /// Posts an RDMA READ or WRITE of the server's memory.
    #[inline]
    fn access(
        &self,
        slabs: &Slabs,
        request: Owned<Request<T>>,
        last: bool,
    ) -> Result<PostResult<T>, Unsent<T>> {
        let len = request.bytes();
        let offset = request.sector() << kernel::block::SECTOR_SHIFT;
        let Some(remote) = slabs.locate(offset, len) else {
            // What concerns reservations has no place.
            let error = match request.command() {
                mq::Command::Reserve | mq::Command::Report => BlkError::NotSupported,
                _ => BlkError::IoError,
            };
            return Err((error, request));
        };
        let (slot, command) = (request.tag(), request.command());
        let posted = Posted {
            memory: Bounced::new(request, None),
            command: None,
        };
        Ok(match command {
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
        })
    }

    /// Posts a command to the server.
    #[inline]
    fn command(&self, request: Owned<Request<T>>, last: bool) -> Result<PostResult<T>, Unsent<T>> {
        let tag = request.tag();
        let Some(commands) = &self.qp.handler().commands else {
            return Err((BlkError::IoError, request));
        };
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
            let request = self.qp.handler().release(memory);
            return Err((BlkError::Resource, request));
        };
        let posted = Posted {
            memory,
            command: Some(command),
        };
        let prepare = |posted: &mut Posted<T>, range| match &mut posted.command {
            Some(message) => commands.write(message, tag, operation, &posted.memory, range),
            None => Err(EINVAL),
        };
        Ok(self.qp.request(tag, carry, posted, prepare, last))
    }

    /// Rings the doorbell for what [`Self::send`] posted without `last`. Any context but hard
    /// interrupt.
    pub(in crate::client) fn commit(&self) {
        self.qp.ring();
    }

    /// Handles the completions that are there, and returns their number. Atomic context.
    #[inline]
    pub(in crate::client) fn poll(&self) -> u32 {
        match &self.cq {
            ReceiveCq::Polled(cq) => cq.reap(),
            ReceiveCq::Interrupts(_) => 0,
        }
    }

    /// Polls like [`Self::poll`] if no interrupt tells of completions. No task may be waiting for
    /// the I/O of this connection just now, so that it would not end by itself. Any context.
    pub(in crate::client) fn catch_up(&self) {
        self.poll();
    }

    /// Returns the number of work requests in flight, which may be slightly out of date. Any
    /// context.
    #[inline]
    pub(in crate::client) fn in_flight(&self) -> u32 {
        self.qp.in_flight()
    }

    /// Returns the number of completions so far. As long as it rises, the server is there. Any
    /// context.
    pub(in crate::client) fn completions(&self) -> u64 {
        self.qp.completions()
    }

    /// Takes note of a request that is late at `now`, in ms. Returns true if it is the HCA that has
    /// something to do, and has not done it for `timeout_ms`: no work request has completed on a
    /// one-sided connection, or a command was answered and its work requests have not completed,
    /// for which it has 5 s at least. Only the map's work item calls this.
    pub(in crate::client) fn is_stuck(&self, now: u64, timeout_ms: u64) -> bool {
        self.catch_up();
        let (seen, timeout_ms) = match self.slabs {
            Some(_) if self.in_flight() == 0 => return false,
            Some(_) => (self.completions(), timeout_ms),
            None => (self.qp.watch_answered(), timeout_ms.max(SENT_MIN_MS)),
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
        if let Some(commands) = &self.qp.handler().commands {
            if posted.is_ok() || ask_again {
                commands.grown();
            }
        }
    }

    /// Makes and posts the receives that are missing. May sleep.
    fn post_receives(&self, alloc: AllocReceives) -> Result {
        let Some(commands) = &self.qp.handler().commands else {
            return Ok(());
        };
        loop {
            let receives = commands.make_receives(self.cq.any().device(), alloc)?;
            if receives.is_empty() {
                return Ok(());
            }
            for receive in receives {
                self.qp.recv(receive).map_err(|(error, _)| error)?;
                commands.grow();
            }
        }
    }

    /// Notes that the connection is up, and that the path relies on it from now on. Any context.
    pub(in crate::client) fn set_up(&self) {
        self.qp.handler().set_up();
    }

    /// Makes the connection fail. May sleep.
    pub(in crate::client) fn fail(&self) {
        self.qp.fail();
    }

    /// Ends all requests. When it returns with success, nothing touches their memory any more.
    /// Requests that could not be ended go back to their owner when all connections of the path
    /// have been dropped. May sleep.
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
