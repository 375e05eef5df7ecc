// SPDX-License-Identifier: GPL-2.0

//! Multicast groups: what is sent to one arrives at all of its members.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use crate::base::{
    errno::ECONNRESET,
    net::{
        Net,
        SockaddrStorage, //
    },
};
use crate::bindings;
use crate::rdma::{
    ah::Destination,
    client::Devices,
    cm::{
        service::Found,
        shared::Phase,
        CmError,
        CmEvents,
        CmId, //
    },
    device::Device,
    pd::Pd,
    qp::Ud, //
};
use core::net::{
    IpAddr,
    SocketAddr, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};

/// The membership of this host in a multicast group, by the port of one address.
///
/// The group is left when the last reference is dropped; a queue pair that is attached to it has
/// one. With RoCE v2 the network is told by IGMP, and there are no IPv6 groups; with InfiniBand the
/// subnet manager is told.
///
/// # Context
///
/// The last reference must be dropped where sleeping is allowed.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::net::Net,
/// #     rdma::{
/// #         client::Devices,
/// #         cm::{CmEvents, Group},
/// #         qp::{Qp, QpHandler, Ud},
/// #     },
/// # };
/// # use core::net::{IpAddr, Ipv4Addr};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Ud>>(
/// #     devices: &Arc<Devices>,
/// #     qp: &Qp<H, Ud>,
/// #     own: IpAddr,
/// #     events: Arc<dyn CmEvents>,
/// # ) -> Result {
/// let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
/// let group = Group::join(devices, &Net::current(), own, group, events, 5_000)
///     .map_err(|error| error.to_error())?;
/// // The queue pair receives what members send, and can send to them.
/// qp.attach(&group)?;
/// let members = qp.destination_of_group(&group)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// `id` has joined the group, and has no queue pair: the core has no multicast for ids of the
/// kernel that have one.
pub(crate) struct Group {
    found: Found,
    device: Arc<Device>,
    // Dropping it leaves the group.
    id: Arc<CmId<Ud>>,
}

impl Group {
    /// Joins `group` by the port that has the address `source`, in network namespace `net`, and
    /// waits `timeout_ms` milliseconds for the network. `events` receives
    /// [`CmEvents::disconnected`] if the address or the device goes away.
    ///
    /// Fails with [`CmError::Unreachable`] if the network refuses, with [`CmError::Timeout`], with
    /// [`CmError::DeviceRemoved`], and with [`CmError::Errno`] of `EADDRNOTAVAIL` or `ENODEV` if no
    /// RDMA device has the source, of `EINVAL` if `group` is no multicast address, and of what the
    /// core says. May sleep.
    pub(crate) fn join(
        devices: &Arc<Devices>,
        net: &Net,
        source: IpAddr,
        group: IpAddr,
        events: Arc<dyn CmEvents>,
        timeout_ms: u32,
    ) -> Result<Arc<Self>, CmError> {
        if !group.is_multicast() {
            return Err(CmError::Errno(EINVAL));
        }
        let id = CmId::<Ud>::new(devices, net, events).map_err(CmError::Errno)?;
        id.bind(SocketAddr::new(source, 0))
            .map_err(CmError::Errno)?;
        let device = id.device().map_err(CmError::Errno)?;
        let shared = id.shared();
        let addr = SockaddrStorage::from(SocketAddr::new(group, 0));
        shared.start(Phase::Join)?;
        // SAFETY: The id is valid by its invariants, has a device and no queue pair, and nobody
        // else has it. The address is valid, and is only read: C lacks a `const`.
        let started = to_result(unsafe {
            bindings::rdma_join_multicast(
                id.as_raw(),
                addr.as_ptr().cast_mut(),
                FULL_MEMBER,
                core::ptr::null_mut(),
            )
        });
        shared.finish(started, timeout_ms)?;
        let found = shared.take_found();
        let this = Self {
            // It was noted with the answer.
            found: found.ok_or(CmError::Errno(ECONNRESET))?,
            device,
            id,
        };
        Arc::new(this, GFP_KERNEL).map_err(|error| CmError::Errno(error.into()))
    }

    /// Returns true if the network has ended the membership, as a subnet manager may: nothing is
    /// received any more. Nobody is told of that; it may be joined again. May sleep.
    pub(crate) fn has_left(&self) -> bool {
        self.id.shared().has_left()
    }

    /// Has the membership look as if the network had ended it.
    #[cfg(CONFIG_FARBLK_KUNIT_TEST)]
    pub(in crate::rdma) fn end_membership(&self) {
        self.id.shared().leave();
    }

    /// Returns true if it is a group of port `number` of `device`.
    pub(in crate::rdma) fn is_for(&self, device: &Arc<Device>, number: u32) -> bool {
        // There is no number while the device goes.
        number != 0 && Arc::ptr_eq(&self.device, device) && self.id.port_num() == number
    }

    /// Returns true if both are memberships in the same group: drivers do not count how often a
    /// queue pair is attached to one.
    pub(in crate::rdma) fn is_same(&self, other: &Self) -> bool {
        let ((ours, our_lid), (theirs, their_lid)) =
            (self.found.attr.target(), other.found.attr.target());
        // SAFETY: All variants of the union are plain bytes.
        let gids = unsafe { ours.raw == theirs.raw };
        gids && our_lid == their_lid
    }

    /// Lets a queue pair receive what is sent to the group. Fails with the device's error. May
    /// sleep.
    ///
    /// # Safety
    ///
    /// `qp` must be a valid queue pair of the device, which is detached before it is destroyed.
    pub(in crate::rdma) unsafe fn attach(&self, qp: *mut bindings::ib_qp) -> Result {
        let (mut gid, lid) = self.found.attr.target();
        // SAFETY: The caller gives a valid queue pair; the GID is valid for the call.
        to_result(unsafe { bindings::ib_attach_mcast(qp, &mut gid, lid) })
    }

    /// Undoes [`Self::attach`]. May sleep.
    ///
    /// # Safety
    ///
    /// `qp` must be a valid queue pair that is attached.
    pub(in crate::rdma) unsafe fn detach(&self, qp: *mut bindings::ib_qp) {
        let (mut gid, lid) = self.found.attr.target();
        // SAFETY: The caller gives a valid queue pair; the GID is valid for the call.
        let ret = unsafe { bindings::ib_detach_mcast(qp, &mut gid, lid) };
        if ret != 0 {
            // As the core counts it as attached, it would not have the driver destroy it: the
            // device would go on to use what was posted.
            pr_err!(
                "cannot detach a queue pair from a multicast group: {}\n",
                ret
            );
            // SAFETY: The caller gives a valid queue pair that the core has counted so.
            unsafe { bindings::farblk_forget_mcast(qp) };
        }
    }

    /// Makes the destination of all members. May sleep.
    pub(in crate::rdma) fn destination(&self, pd: &Arc<Pd>) -> Result<Destination> {
        self.found.destination(pd)
    }
}

/// A member that sends and receives: bit `FULLMEMBER_JOIN` of the core.
const FULL_MEMBER: u8 = 1 << 0;
