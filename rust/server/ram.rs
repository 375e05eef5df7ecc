// SPDX-License-Identifier: GPL-2.0

//! The one-sided data path of a session: the I/O connections on which its client reads and writes
//! the memory of an export of RAM, in regions that it shares with other clients.

#![forbid(unsafe_code)]

pub(super) mod regions;

use core::ops::Range;

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::errno::ENOTCONN;
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
        Workqueue, //
    },
    device::Device,
    dma::DmaBuffer,
    mr,
    pd::Pd,
    qp::{
        Qp,
        QpCaps,
        QpHandler, //
    },
    remnant::ObjectRef,
    wc::{
        Received,
        WcError, //
    }, //
};
use crate::server::{
    backend::Ram,
    none,
    session::Session, //
};

use self::regions::{
    Regions, //
    Registered,
    Registrar,
    Registration,
};

/// On these queue pairs the server registers one slab at a time, and posts nothing else. Not every
/// HCA takes zero.
const CAPS: QpCaps = QpCaps {
    slots: 1,
    send_wr: 1,
    recv_wr: 1,
    sges: 1,
    large: 0,
};

/// A session's I/O connections.
///
/// The drop ends the client's access, and sleeps.
pub(super) struct Slabs {
    /// Those that are up, by their index.
    queues: KVec<Option<ObjectRef<Qp<Handler>>>>,
    /// The completion queue of all I/O queue pairs.
    cq: Cq<Workqueue>,
    pd: Arc<Pd>,
    regions: Arc<Regions>,
}

impl Slabs {
    /// Makes a data path with up to `queues` connections. May sleep.
    pub(super) fn new(
        device: &Arc<Device>,
        ram: &Ram,
        access: Access,
        queues: u16,
    ) -> Result<Self> {
        let cqes = (CAPS.send_cqes() + CAPS.recv_cqes()) * u32::from(queues);
        let access = match access.writes() {
            true => mr::Access::RemoteReadWrite,
            false => mr::Access::RemoteRead,
        };
        let geometry = ram.geometry_on(device)?;
        let regions = ram.regions.get(device, (geometry, &ram.memory), access)?;
        Ok(Self {
            queues: none(usize::from(queues))?,
            cq: Cq::<Workqueue>::alloc(device, cqes, 0)?,
            pd: regions.pd().ok_or(ENOTCONN)?,
            regions,
        })
    }

    /// Returns the size of the export and of its slabs.
    pub(super) fn geometry(&self) -> &Geometry {
        self.regions.geometry()
    }

    /// Returns true if there may be an I/O connection `queue`, and there is none.
    pub(super) fn is_free(&self, queue: u16) -> bool {
        matches!(self.queues.get(usize::from(queue)), Some(None))
    }

    /// Makes the queue pair of an I/O connection. May sleep.
    pub(super) fn connect(
        &self,
        id: &Arc<CmId>,
        session: &Arc<Session>,
    ) -> Result<ObjectRef<Qp<Handler>>> {
        let handler = Handler {
            session: session.clone(),
            registered: Registered::new()?,
        };
        Qp::create(id, &self.pd, &self.cq, &self.cq, CAPS, handler)
    }

    /// Keeps I/O connection `queue`, which was accepted.
    pub(super) fn keep(&mut self, queue: u16, qp: ObjectRef<Qp<Handler>>) {
        if let Some(place) = self.queues.get_mut(usize::from(queue)) {
            *place = Some(qp);
        }
    }

    /// Returns an I/O connection, if there is one.
    pub(super) fn connection(&self) -> Option<&Qp<Handler>> {
        self.queues.iter().flatten().next().map(|qp| &**qp)
    }

    /// Registers a slab for clients, by an I/O connection of this one. Returns false if it was
    /// registered before. Fails as [`Regions::register`] does. May sleep.
    pub(super) fn open(&self, connection: &Qp<Handler>, slab: u32) -> Result<bool> {
        self.regions.register(connection, slab)
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
            let remote = self.regions.remote(slab).ok_or(NoRoom)?;
            writer.push(&Grant {
                addr: remote.addr,
                length: self.geometry().slab_len(slab).ok_or(NoRoom)?,
                rkey: remote.rkey,
            })?;
        }
        writer.finish()
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        // All fail first, so that they drain in the same time.
        let queues = self.queues.iter().flatten();
        if queues.filter(|qp| !qp.revoke()).count() != 0 {
            // The device may serve the peer as long as it has such a queue pair, and it may refuse
            // to destroy that.
            self.regions.revoke();
        }
    }
}

/// Receives the completions of an I/O queue pair. There are none but those of registrations, as the
/// server posts nothing else.
pub(super) struct Handler {
    session: Arc<Session>,
    registered: Arc<Registered>,
}

impl Registrar for Handler {
    fn registered(&self) -> &Registered {
        &self.registered
    }
}

impl QpHandler for Handler {
    type Send = Registration;
    type Recv = KBox<DmaBuffer>;
    type Ulp = ();

    fn send_done(&self, _: &Qp<Self>, registration: Registration, result: Result<(), WcError>) {
        self.registered.put(registration, result);
    }

    fn recv_done(&self, _: &Qp<Self>, _: KBox<DmaBuffer>, _: Result<Received<'_>, WcError>) {
        self.session.count_completion();
    }

    fn error(&self) {
        self.session.lose();
    }
}
