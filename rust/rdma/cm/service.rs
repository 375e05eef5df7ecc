// SPDX-License-Identifier: GPL-2.0

//! Services of datagrams, and how their queue pairs are found: service ID resolution (SIDR).
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use crate::base::{
    errno::{
        EADDRNOTAVAIL,
        ECONNRESET,
        EOPNOTSUPP, //
    },
    net::SockaddrStorage, //
};
use crate::bindings;
use crate::rdma::{
    ah::{
        AhAttr,
        Destination, //
    },
    cm::{
        shared::{
            Phase,
            Shared, //
        },
        CmError,
        CmEvents,
        CmId,
        ConnParam,
        PrivateData, //
    },
    device::Device,
    pd::Pd,
    qp::{
        Connected,
        Ud, //
    },
};
use core::net::SocketAddr;
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};

/// Where a service was found, or a group is.
pub(super) struct Found {
    pub(super) attr: AhAttr,
    qp_num: u32,
    qkey: u32,
}

impl Found {
    /// Notes where an event says that the service or group is.
    ///
    /// # Safety
    ///
    /// `event` must be `RDMA_CM_EVENT_ESTABLISHED` or `RDMA_CM_EVENT_MULTICAST_JOIN` of an id for
    /// datagrams of `device`, as the core called the handler with it.
    pub(super) unsafe fn new(event: *const bindings::rdma_cm_event, device: Arc<Device>) -> Self {
        // SAFETY: The caller promises that the union holds `ud`.
        let ud = unsafe { &raw const (*event).param.ud };
        // SAFETY: As above; the address is one of the id's device, resolved.
        unsafe {
            Self {
                attr: AhAttr::copy(&raw const (*ud).ah_attr, device),
                qp_num: (*ud).qp_num,
                qkey: (*ud).qkey,
            }
        }
    }

    /// Makes its destination. May sleep.
    pub(super) fn destination(&self, pd: &Arc<Pd>) -> Result<Destination> {
        Destination::new(pd, &self.attr, self.qp_num, self.qkey)
    }
}

/// A service of datagrams that was found by [`CmId::find`].
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     ah::Destination,
/// #     cm::CmId,
/// #     qp::{Qp, QpHandler, Ud},
/// # };
/// # use kernel::prelude::*;
/// # fn example<H: QpHandler<Ud>>(id: &CmId<Ud>, qp: &Qp<H, Ud>) -> Result<Destination> {
/// // The id was resolved to the address of the server before `qp` was made on it.
/// let service = id.find(b"version 1", 5_000).map_err(|error| error.to_error())?;
/// if !service.private_data().starts_with(b"version 1") {
///     return Err(EINVAL);
/// }
/// qp.destination(&service)
/// # }
/// ```
pub(crate) struct Service {
    found: Found,
    private_data: PrivateData,
}

impl Service {
    /// Returns the private data of the answer, which InfiniBand and RoCE pad with zeroes to 136
    /// bytes.
    pub(crate) fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Makes the destination of its queue pair. May sleep.
    pub(in crate::rdma) fn destination(&self, pd: &Arc<Pd>) -> Result<Destination> {
        self.found.destination(pd)
    }
}

impl<T: Connected> CmId<T> {
    /// Makes the address of the peer: the one that the packets of the connection go to. The id must
    /// be resolved, or have been made of a request.
    ///
    /// Fails with `ENODEV` if the id has no device, or that is being removed, with `EINVAL` if it
    /// has no route, with `EOPNOTSUPP` if the transport is iWARP, and with the core's error.
    pub(in crate::rdma) fn peer_attr(&self) -> Result<AhAttr> {
        let device = self.device()?;
        if !self.shared().is_routed() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariants the id is valid, and bound to a port of the device. The
        // route is known, and does not change.
        unsafe { AhAttr::of_route(self.as_raw(), device) }
    }
}

impl CmId<Ud> {
    /// Makes an id that is bound to the local address of `connection`, in its network namespace, so
    /// that a queue pair for datagrams can be created beside that of the connection: on the same
    /// port, for [`Destination::beside`]. Nobody is told where it is, and nobody can find it.
    ///
    /// Fails with `EOPNOTSUPP` if the core binds that address to no port, or to another one:
    /// several devices may share a network interface, and some connections outlive their address.
    /// The core says the same where no port number of UDP is left.
    /// Fails with `ENODEV` if the connection has no device, or that is being removed; with
    /// `EAFNOSUPPORT`; with `ENOMEM`, and with the other errors of [`Self::bind`].
    pub(crate) fn beside<T: Connected>(
        connection: &CmId<T>,
        events: Arc<dyn CmEvents>,
    ) -> Result<Arc<Self>> {
        let device = connection.device()?;
        let ((mut addr, _), _) = connection.ends()?;
        addr.set_port(0);
        let devices = connection.shared().devices();
        // SAFETY: The id of the connection is valid, and holds a reference to its namespace, which
        // does not change.
        let this = unsafe {
            let net = (*connection.as_raw()).route.addr.dev_addr.net;
            Self::create(devices, net, events)
        }?;
        this.bind(addr).map_err(|error| match error {
            EINVAL | ENODEV | EADDRNOTAVAIL => EOPNOTSUPP,
            error => error,
        })?;
        // The core takes the first port that has the address.
        let is_beside = Arc::ptr_eq(&this.device()?, &device);
        match is_beside && this.port_num() == connection.port_num() {
            true => Ok(this),
            false => Err(EOPNOTSUPP),
        }
    }

    /// Binds the id to `addr` of this host, so that a queue pair can be created for it. The port,
    /// which is a port of SIDR and not one of the queue pair, may be 0.
    ///
    /// Fails with `EADDRNOTAVAIL` or `ENODEV` if no RDMA device has the address, with `EADDRINUSE`,
    /// with `EINVAL` if the id is bound or resolved, and with `EBUSY` while it is being resolved.
    pub(crate) fn bind(&self, addr: SocketAddr) -> Result {
        let addr = SockaddrStorage::from(addr);
        // The core does not expect that the address is resolved meanwhile.
        self.shared()
            .start(Phase::Addr)
            .map_err(|error| error.to_error())?;
        let bound = self.bind_now(&addr);
        self.shared().end();
        bound
    }

    fn bind_now(&self, addr: &SockaddrStorage) -> Result {
        // SAFETY: By the type invariants the id is valid. The address is, and is only read: C lacks
        // a `const`.
        to_result(unsafe { bindings::rdma_bind_addr(self.as_raw(), addr.as_ptr().cast_mut()) })?;
        // SAFETY: By the type invariants the id is valid. It is bound, so that its device does not
        // change.
        if unsafe { (*self.as_raw()).device }.is_null() {
            // The address of all devices.
            return Err(ENODEV);
        }
        // SAFETY: The id is valid and has a device.
        unsafe { Shared::bind(self.shared.as_arc_borrow(), self.as_raw()) }
    }

    /// Asks the address that the id was resolved to for the queue pair of the service at its port,
    /// with at most 180 bytes of private data, and waits `timeout_ms` milliseconds for the answer.
    ///
    /// Fails with [`CmError::Rejected`] if there is no such service or it refuses, with
    /// [`CmError::Unreachable`] or [`CmError::Timeout`] if nobody answers, with
    /// [`CmError::DeviceRemoved`], and with [`CmError::Errno`] for what the core says, which
    /// includes that the id was not resolved, or has found a service.
    pub(crate) fn find(&self, private_data: &[u8], timeout_ms: u32) -> Result<Service, CmError> {
        let param = ConnParam {
            private_data,
            retry_count: 0,
            rnr_retry_count: 0,
            responder_resources: 0,
            initiator_depth: 0,
        };
        let mut param = param.as_raw::<Ud>().map_err(CmError::Errno)?;
        self.shared.start(Phase::Connect)?;
        // SAFETY: By the type invariants the id is valid. The parameters are valid for the call.
        let started = to_result(unsafe { bindings::rdma_connect(self.as_raw(), &mut param) });
        let private_data = self.shared.finish(started, timeout_ms)?;
        let found = self.shared.take_found();
        Ok(Service {
            // It was noted with the answer.
            found: found.ok_or(CmError::Errno(ECONNRESET))?,
            private_data,
        })
    }
}
