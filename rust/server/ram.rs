// SPDX-License-Identifier: GPL-2.0

//! The one-sided data path of a session: the slabs of an export of RAM that are registered for it,
//! and the I/O connections on which its client reads and writes them.

#![forbid(unsafe_code)]

use core::ops::Range;

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::scatterlist::{
    NoMemory,
    PageChunks, //
};
use crate::link::channel::Channel;
use crate::proto::{
    Access,
    Geometry,
    Grant,
    GrantReplyWriter,
    NoRoom, //
};
use crate::rdma::{
    cm::CmId,
    cq::{
        Cq,
        PollContext, //
    },
    device::Device,
    dma::{
        Direction,
        DmaBuffer,
        SgMapping, //
    },
    mr::{
        self,
        Mr, //
    },
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
    wr::SendOwner, //
};
use crate::server::{
    none,
    session::Session, //
};

/// The server posts nothing on these queue pairs, but not every HCA takes zero.
const CAPS: QpCaps = QpCaps {
    slots: 1,
    send_wr: 1,
    recv_wr: 1,
    sges: 1,
    large: 0,
    keys: 0,
    key_pages: 0,
    large_keys: 0,
    large_key_pages: 0,
};

/// A session's slabs and I/O connections.
pub(super) struct Slabs {
    // Fields drop in this order: the client cannot reach the memory any more when it may be used
    // again.
    /// The I/O connections that are up, by their index.
    queues: KVec<Option<Arc<Qp<Handler>>>>,
    /// The memory regions of the slabs, by the index of the slab.
    grants: KVec<Option<Mr>>,
    /// The completion queue of all I/O queue pairs.
    cq: Arc<Cq>,
    geometry: Geometry,
    memory: Arc<PageChunks>,
    access: mr::Access,
}

impl Slabs {
    /// Makes a data path with no registered slabs and up to `queues` connections. May sleep.
    pub(super) fn new(
        device: &Arc<Device>,
        geometry: Geometry,
        memory: &Arc<PageChunks>,
        access: Access,
        queues: u16,
    ) -> Result<Self> {
        let cqes = (CAPS.send_cqes() + CAPS.recv_cqes()) * u32::from(queues);
        Ok(Self {
            queues: none(usize::from(queues))?,
            grants: none(usize::try_from(geometry.slabs())?)?,
            cq: Cq::alloc(device, cqes, 0, PollContext::Softirq)?,
            geometry,
            memory: memory.clone(),
            access: match access.writes() {
                true => mr::Access::RemoteReadWrite,
                false => mr::Access::RemoteRead,
            },
        })
    }

    /// Returns the size of the export and of its slabs.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns true if there may be an I/O connection `queue`, and there is none.
    pub(super) fn is_free(&self, queue: u16) -> bool {
        matches!(self.queues.get(usize::from(queue)), Some(None))
    }

    /// Makes the queue pair of an I/O connection. May sleep.
    pub(super) fn connect(
        &self,
        id: &Arc<CmId>,
        pd: &Arc<Pd>,
        session: &Arc<Session>,
    ) -> Result<Arc<Qp<Handler>>> {
        Qp::create(id, pd, &self.cq, &self.cq, CAPS, Handler(session.clone()))
    }

    /// Keeps I/O connection `queue`, which was accepted.
    pub(super) fn keep(&mut self, queue: u16, qp: Arc<Qp<Handler>>) {
        if let Some(place) = self.queues.get_mut(usize::from(queue)) {
            *place = Some(qp);
        }
    }

    /// Registers a slab for the client. Returns false if it was registered before. May sleep.
    pub(super) fn open(&mut self, channel: &mut Channel<Session>, slab: u32) -> Result<bool> {
        let index = usize::try_from(slab)?;
        let Some(place @ None) = self.grants.get_mut(index) else {
            return Ok(false);
        };
        let len = self.geometry.slab_len(slab).ok_or(EINVAL)?;
        let start = u64::from(slab) << self.geometry.shift().get();
        // A memory region consists of whole pages, and so does the allocation.
        let len = usize::try_from(len)?.next_multiple_of(kernel::page::PAGE_SIZE);
        let mapping = SgMapping::map(
            channel.pd().device(),
            &self.memory,
            usize::try_from(start)?,
            len,
            match self.access {
                mr::Access::RemoteReadWrite => Direction::Bidirectional,
                mr::Access::RemoteRead => Direction::ToDevice,
            },
        )?;
        *place = Some(channel.register(&mapping, self.access)?);
        Ok(true)
    }

    /// Writes the reply that grants `slabs`, all of which are registered.
    pub(super) fn write_grants(
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
                length: self.geometry.slab_len(slab).ok_or(NoRoom)?,
                rkey: remote.rkey,
            })?;
        }
        writer.finish()
    }
}

/// Receives the completions of an I/O queue pair. There are none, as the server posts nothing.
pub(super) struct Handler(Arc<Session>);

/// The owner of a send: there is none.
pub(super) enum Nothing {}

impl SendOwner for Nothing {
    type Memory = NoMemory;
}

impl QpHandler for Handler {
    type Send = Nothing;
    type Recv = KBox<DmaBuffer>;

    fn send_done(&self, _: &Qp<Self>, _: Nothing, _: Result<(), WcError>) {
        self.0.count_completion();
    }

    fn recv_done(&self, _: &Qp<Self>, _: KBox<DmaBuffer>, _: Result<Received<'_>, WcError>) {
        self.0.count_completion();
    }

    fn error(&self) {
        self.0.lose();
    }
}
