// SPDX-License-Identifier: GPL-2.0

//! What the samples share: the names that they use of floors 0 and 1, the parameters, and the
//! registration with the RDMA core; and below it connections, and servers of them.

pub(crate) use crate::{
    base::{
        crypto,
        errno::{
            self,
            ECONNRESET,
            EPROTO,
            ESHUTDOWN, //
        },
        file,
        param::{
            param,
            Text, //
        },
        sync::{
            random_u64,
            Completion, //
        },
        workqueue::OwnedQueue, //
    },
    rdma::{
        client::{
            self,
            Devices, //
        },
        cm::{
            CmError,
            CmEvents,
            CmId,
            ConnParam,
            ConnectRequest,
            Listen,
            Listener, //
        },
        cq::{
            Cq,
            Softirq, //
        },
        device::Device,
        dma::{
            Direction,
            DmaBuffer,
            DmaMemory,
            DmaPiece,
            SgMapping, //
        },
        mr::{
            Access,
            Mr, //
        },
        pd::Pd,
        qp::{
            Connected,
            Qp,
            QpCaps,
            QpHandler,
            Rc,
            Transport,
            Uc,
            Unacknowledged, //
        },
        remnant::ObjectRef,
        srq::Srq,
        wc::{
            Received,
            WcError,
            Written, //
        },
        wr::{
            atomic::{
                AtomicOp,
                AtomicResult,
                RemoteAtomic, //
            },
            Announcement,
            RdmaOp,
            RemoteRange,
            SendOwner, //
        },
    },
};
pub(crate) use core::net::SocketAddr;
pub(crate) use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

mod connection;
mod datagram;
mod server;

pub(crate) use self::{
    connection::*,
    datagram::*,
    server::*, //
};
use crate::base::{
    net::Net,
    users::CodeUsers,
    workqueue::{
        ReleaseHandle,
        ReleaseQueue, //
    }, //
};

param!(LISTEN: SocketAddr, "listen", "Serve clients at this ADDRESS:PORT");
param!(CONNECT: SocketAddr, "connect", "Be the client of the server at this ADDRESS:PORT");

/// How long a sample waits for anything.
pub(crate) const TIMEOUT_MS: u32 = 10_000;
/// The work requests that a connection has under way, in each direction.
pub(crate) const DEPTH: u16 = 16;

/// The sizes of the queue pairs.
pub(crate) const CAPS: QpCaps = QpCaps {
    slots: DEPTH,
    send_wr: DEPTH as u32,
    recv_wr: DEPTH as u32,
    sges: 1,
    large: 0,
};

/// The parameters of connections: how often what is lost is sent again, and how many RDMA READs and
/// atomic operations may be under way, without which there are none.
pub(crate) const PARAM: ConnParam<'_> = ConnParam {
    private_data: &[],
    retry_count: 7,
    rnr_retry_count: 7,
    responder_resources: 4,
    initiator_depth: 4,
};

/// The module as a client of the RDMA core.
pub(crate) struct Sample;

client::rdma_client!(Sample);

impl client::Client for Sample {
    type OwnerModule = crate::LocalModule;

    /// Here is nothing to do: connections are told of the removal, too, and so are listeners, as
    /// each is at the address of one device.
    fn remove(&self, _device: &Arc<Device>) {}
}

/// What a module has from its beginning to its end. Its fields drop in this order: the devices when
/// nothing uses them any more, then what waits for the last code of the module.
pub(crate) struct Host {
    registration: client::Registration<Sample>,
    release: ReleaseQueue,
    _code: CodeUsers,
}

impl Host {
    /// Registers the module with the RDMA core. Fails if it was given no address.
    pub(crate) fn new() -> Result<Self> {
        if LISTEN.get().is_none() && CONNECT.get().is_none() {
            pr_err!("say listen=ADDRESS:PORT, connect=ADDRESS:PORT, or both\n");
            return Err(EINVAL);
        }
        // Locals drop in the reverse order, if what follows fails.
        let code = CodeUsers;
        let release = ReleaseQueue::new(c"rdma_sample_release")?;
        Ok(Self {
            registration: client::Registration::new(Sample, release.handle())?,
            release,
            _code: code,
        })
    }

    /// Makes the id of a connection to be, whose events go to `events`.
    pub(crate) fn id<T: Connected>(&self, events: Arc<dyn CmEvents>) -> Result<Arc<CmId<T>>> {
        CmId::new(self.devices(), &Net::current(), events)
    }

    /// Listens at `addr`, for clients whose requests go to `listen`.
    pub(crate) fn listen<T: Transport>(
        &self,
        addr: SocketAddr,
        listen: Arc<dyn Listen<T>>,
    ) -> Result<Listener<T>> {
        Listener::new(self.devices(), &Net::current(), addr, 16, listen)
    }

    /// Returns the handle of what drops workqueues, from any of their tasks.
    pub(crate) fn release(&self) -> &ReleaseHandle {
        self.release.handle()
    }

    /// Returns the devices that connections can use.
    pub(crate) fn devices(&self) -> &Arc<Devices> {
        self.registration.devices()
    }
}
