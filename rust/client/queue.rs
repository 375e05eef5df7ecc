// SPDX-License-Identifier: GPL-2.0

//! One I/O connection: a queue pair that reads and writes the server's slabs.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt,
    sync::Arc, //
};

use crate::block::{
    mq::{
        Command,
        IdleRequest,
        Owned,
        Refused,
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
    disk::Disk, //
};
use crate::failure::Failure;
use crate::proto::{
    Connection,
    Geometry, //
};
use crate::rdma::{
    cm::CmEvents,
    cq::{
        Cq,
        PollContext, //
    },
    dma::DmaBuffer,
    pd::Pd,
    qp::{
        Qp,
        QpCaps,
        QpHandler, //
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

/// Requests of more segments than one work request takes that may be in flight at once; the others
/// wait, as they do when the send queue is full.
const LARGE: u16 = 16;
/// Work requests of a large request beyond the one that every request has.
const LARGE_WR: u32 = 8;

/// Where the slabs are.
pub(super) struct Grants {
    /// Size and slabs.
    pub(super) geometry: Geometry,
    /// The server's memory; the index is the slab.
    pub(super) slabs: KVec<RemoteRange>,
    /// Zeroes, for requests to write them.
    pub(super) zeroes: Arc<DmaBuffer>,
}

impl Grants {
    /// The server's memory behind `len` bytes from `offset` on; `None` if it is not all in one slab.
    fn locate(&self, offset: u64, len: u32) -> Option<RemoteRange> {
        let place = self.geometry.locate(offset, len)?;
        let slab = self.slabs.get(usize::try_from(place.slab).ok()?)?;
        Some(RemoteRange {
            addr: slab.addr.checked_add(place.offset.into())?,
            rkey: slab.rkey,
        })
    }
}

/// What a posted work request owns: the request whose pages it moves.
pub(super) type Posted = Owned<Request<Disk>>;

impl SendOwner for Posted {
    type Memory = Self;

    #[inline]
    fn memory(&self) -> Option<&Self> {
        Some(self)
    }
}

/// Completions of an I/O queue pair.
pub(super) struct Handler(Arc<dyn Watcher>);

impl QpHandler for Handler {
    type Send = Posted;
    /// The server sends nothing.
    type Recv = KBox<DmaBuffer>;

    #[inline]
    fn send_done(&self, _: &Qp<Self>, request: Posted, result: Result<(), WcError>) {
        request.complete(result.map_err(|_| BlkError::Transport));
    }

    fn recv_done(&self, _: &Qp<Self>, _: KBox<DmaBuffer>, _: Result<Received<'_>, WcError>) {}

    fn error(&self) {
        self.0.lost();
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
pub(super) struct Connector<'a> {
    /// Where the server is.
    pub(super) target: &'a Target,
    /// The protection domain of the session.
    pub(super) pd: &'a Arc<Pd>,
    /// What the server calls the session.
    pub(super) session: u64,
    /// Epoch of the path.
    pub(super) epoch: u64,
    /// Requests in flight per queue.
    pub(super) depth: u16,
    /// Where the slabs are.
    pub(super) grants: Arc<Grants>,
    /// Who hears that a connection is lost.
    pub(super) watcher: Arc<dyn Watcher>,
    /// When to give up.
    pub(super) deadline: Deadline,
}

/// A connected I/O queue pair.
pub(super) struct Queue {
    qp: Arc<Qp<Handler>>,
    grants: Arc<Grants>,
}

impl Queue {
    /// Connects queue `index`. May sleep.
    pub(super) fn connect(common: &Connector<'_>, index: u16) -> Result<Self, Failure> {
        let events = Arc::new(Events(common.watcher.clone()), GFP_KERNEL)?;
        let id = common.target.resolve(events, common.deadline)?;
        let device = common.pd.device();
        let limits = device.limits();
        let caps = QpCaps {
            slots: common.depth,
            send_wr: (u32::from(common.depth) + u32::from(LARGE) * LARGE_WR)
                .min(limits.max_qp_wr.saturating_sub(1)),
            recv_wr: 1,
            large: LARGE,
            keys: 0,
            segments: 0,
        };
        let vector = u32::from(index) % limits.num_comp_vectors.max(1);
        let entries = caps.send_cqes() + caps.recv_cqes();
        let cq = Cq::alloc(device, entries, vector, PollContext::Softirq)?;
        let handler = Handler(common.watcher.clone());
        let qp = Qp::create(&id, common.pd, &cq, &cq, caps, handler)?;
        let connection = Connection::Io {
            session: common.session,
            queue: index,
        };
        common
            .target
            .connect(&id, connection, common.epoch, common.deadline)?;
        Ok(Self {
            qp,
            grants: common.grants.clone(),
        })
    }

    /// Segments that a request may have.
    pub(super) fn max_segments(&self) -> u16 {
        u16::try_from(self.qp.max_segments()).unwrap_or(u16::MAX)
    }

    /// Posts a request, and all that were posted before it if it is the `last` one. Atomic context.
    #[inline]
    pub(super) fn submit(
        &self,
        request: Owned<IdleRequest<Disk>>,
        last: bool,
    ) -> Result<(), Refused<Disk>> {
        let request = request.start();
        let len = request.bytes();
        let offset = request.sector() << kernel::block::SECTOR_SHIFT;
        let Some(remote) = self.grants.locate(offset, len) else {
            return Err(request.refuse(BlkError::IoError));
        };
        let slot = request.tag();
        let posted = match request.command() {
            Command::Read => self.qp.rdma(slot, RdmaOp::Read, remote, request, last),
            Command::Write => self.qp.rdma(slot, RdmaOp::Write, remote, request, last),
            Command::WriteZeroes => {
                let zeroes = &self.grants.zeroes;
                // CAST: a u32 fits a usize on every platform with RDMA.
                let len = len as usize;
                self.qp
                    .write_repeated(slot, remote, zeroes, len, request, last)
            }
            _ => return Err(request.refuse(BlkError::NotSupported)),
        };
        posted.map_err(|(error, request)| {
            if last {
                self.qp.ring();
            }
            request.refuse(match error {
                EAGAIN => BlkError::Resource,
                _ => BlkError::Transport,
            })
        })
    }

    /// Shows what the queue did. Any context.
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "work_requests {} doorbells {} completions {}",
            self.qp.posted(),
            self.qp.doorbells(),
            self.qp.completions()
        )
    }

    /// Posts what [`Queue::submit`] left. Atomic context.
    pub(super) fn commit(&self) {
        self.qp.ring();
    }
}
