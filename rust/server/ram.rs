// SPDX-License-Identifier: GPL-2.0

//! What a session has of an export of RAM: the slabs that are open to it, and the I/O connections by
//! which it reaches them.

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
use crate::server::session::Session;

/// The server posts nothing; not every HCA takes zero.
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
    // Fields drop in this order: nobody can reach the memory any more before it may be used anew.
    /// The I/O connections that are up; the index is the queue.
    queues: KVec<Option<Arc<Qp<Handler>>>>,
    /// The registered slabs; the index is the slab.
    grants: KVec<Option<Mr>>,
    /// Of all I/O queue pairs.
    cq: Arc<Cq>,
    geometry: Geometry,
    memory: Arc<PageChunks>,
    access: mr::Access,
}

impl Slabs {
    /// Nothing open, no connections, and room for `queues` of them. May sleep.
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

    /// The size of the export, and of its slabs.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The place of I/O connection `queue`, if it is free.
    pub(super) fn has_room(&self, queue: u16) -> bool {
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

    /// Keeps an I/O connection that was accepted.
    pub(super) fn keep(&mut self, queue: u16, qp: Arc<Qp<Handler>>) {
        if let Some(place) = self.queues.get_mut(usize::from(queue)) {
            *place = Some(qp);
        }
    }

    /// Opens a slab to the session unless it is open; tells whether it did. May sleep.
    pub(super) fn open(&mut self, channel: &mut Channel<Session>, slab: u32) -> Result<bool> {
        let index = usize::try_from(slab)?;
        let Some(place @ None) = self.grants.get_mut(index) else {
            return Ok(false);
        };
        let len = self.geometry.slab_len(slab).ok_or(EINVAL)?;
        let start = u64::from(slab) << self.geometry.shift().get();
        // A memory region is made of whole pages; the allocation is, too.
        let len = usize::try_from(len)?.next_multiple_of(kernel::page::PAGE_SIZE);
        let mapping = SgMapping::map(
            channel.pd().device(),
            &self.memory,
            usize::try_from(start)?,
            len,
            Direction::Bidirectional,
        )?;
        *place = Some(channel.register(&mapping, self.access)?);
        Ok(true)
    }

    /// Writes the reply that grants `slabs`, all of which are open.
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

/// So many times `None`.
pub(super) fn none<T>(count: usize) -> Result<KVec<Option<T>>> {
    let mut list = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        list.push(None, GFP_KERNEL)?;
    }
    Ok(list)
}

/// Completions of an I/O queue pair. There are none: the client does its I/O by itself.
pub(super) struct Handler(Arc<Session>);

/// Nothing is ever sent.
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
