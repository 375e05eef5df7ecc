// SPDX-License-Identifier: GPL-2.0

//! Address handles: where datagrams go.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::EOPNOTSUPP,
    workqueue::Deferred, //
};
use crate::bindings;
use crate::rdma::{
    cm::CmId,
    device::Device,
    might_sleep,
    pd::Pd,
    qp::Connected,
    wc::datagram::Sender, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::Arc, //
};

/// The Q_Key of the queue pairs for datagrams that belong to a [`CmId`].
pub(crate) const UDP_QKEY: u32 = bindings::RDMA_UDP_QKEY;

/// An address, as the core has resolved it: C's `struct rdma_ah_attr`.
///
/// # Invariants
///
/// `raw` has the references that `rdma_destroy_ah_attr()` drops, which `drop()` and nothing else
/// calls. It is an address of a port of `device`.
pub(super) struct AhAttr {
    raw: bindings::rdma_ah_attr,
    device: Arc<Device>,
}

// SAFETY: What it refers to are counted objects of the core, which belong to no thread.
unsafe impl Send for AhAttr {}

// SAFETY: As above, and it does not change.
unsafe impl Sync for AhAttr {}

impl AhAttr {
    /// Copies `attr`, an address of a port of `device`.
    ///
    /// # Safety
    ///
    /// `attr` must be valid, as the core has resolved it, and `device` its device.
    pub(super) unsafe fn copy(attr: *const bindings::rdma_ah_attr, device: Arc<Device>) -> Self {
        let mut raw = pin_init::zeroed();
        // SAFETY: The caller gives a valid address, and `raw` is valid for a write.
        unsafe { bindings::rdma_copy_ah_attr(&mut raw, attr) };
        // INVARIANT: The copy has references of its own.
        Self { raw, device }
    }

    /// Makes the address of the peer of a connection, as the core makes it for the queue pair of
    /// that. With RoCE this may look up the route. Fails with `EOPNOTSUPP` if `id` has no path,
    /// which is so with iWARP, and with the core's error. May sleep.
    ///
    /// # Safety
    ///
    /// `id` must be a valid id of a port of `device`, whose route was resolved and does not change.
    pub(super) unsafe fn of_route(
        id: *mut bindings::rdma_cm_id,
        device: Arc<Device>,
    ) -> Result<Self> {
        // SAFETY: The caller gives a valid id.
        let (path, port_num, sgid_attr) = unsafe {
            let route = &raw const (*id).route;
            let sgid_attr = (*route).addr.dev_addr.sgid_attr;
            ((*route).path_rec, (*id).port_num, sgid_attr)
        };
        if path.is_null() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: By the safety requirements the path is there and does not change. The core notes
        // in it that it has looked up the route: that is for the copy.
        let mut path = unsafe { *path };
        let mut raw = pin_init::zeroed();
        // SAFETY: The device is registered, by its invariants; the id holds a reference to the GID
        // attribute, which may be null; the rest is valid for the call.
        to_result(unsafe {
            bindings::ib_init_ah_attr_from_path(
                device.as_raw(),
                port_num,
                &mut path,
                &mut raw,
                sgid_attr,
            )
        })?;
        // INVARIANT: As it has succeeded, `raw` has its references.
        Ok(Self { raw, device })
    }

    /// The destination GID, and its LID where there are LIDs.
    pub(super) fn target(&self) -> (bindings::ib_gid, u16) {
        let lid = match self.raw.type_ {
            // SAFETY: The address is one of OPA. A multicast LID is cut to 16 bits, as the core has
            // it in `ib_attach_mcast()`.
            bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_OPA => unsafe {
                self.raw.__bindgen_anon_1.opa.dlid as u16
            },
            // SAFETY: The address is one of InfiniBand, with LIDs of 16 bits.
            bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB => unsafe {
                self.raw.__bindgen_anon_1.ib.dlid
            },
            _ => 0,
        };
        (self.raw.grh.dgid, lid)
    }

    /// Makes the address of the sender of a datagram that came in by port `port_num` of `device`.
    /// With RoCE this looks up the sender's neighbour entry, and so may wait for the network.
    ///
    /// Fails with `EPROTOTYPE` or `EINVAL` if the datagram does not say where it came from, with
    /// `ENODATA` or `ENOENT` if it came to an address that the port has no more, with
    /// `EHOSTUNREACH` and the like if there is no way back, and with `ENOMEM`. May sleep.
    fn of_sender(device: &Arc<Device>, port_num: u32, sender: &Sender) -> Result<Self> {
        let (wc, grh) = sender.as_raw();
        let mut raw = pin_init::zeroed();
        // SAFETY: The device is registered, by its invariants; the rest is valid for the call.
        to_result(unsafe {
            bindings::ib_init_ah_attr_from_wc(device.as_raw(), port_num, wc, grh, &mut raw)
        })?;
        // INVARIANT: As it has succeeded, `raw` has its references.
        Ok(Self {
            raw,
            device: device.clone(),
        })
    }
}

impl Drop for AhAttr {
    fn drop(&mut self) {
        // SAFETY: By the type invariants it has its references, and is not used again.
        unsafe { bindings::rdma_destroy_ah_attr(&mut self.raw) };
    }
}

/// An address in the form in which the device sends to it: C's `struct ib_ah`.
///
/// # Context
///
/// Dropping it sleeps.
///
/// # Invariants
///
/// `raw` is an address handle of `pd` that is destroyed by `drop()` and by nothing else.
struct AddressHandle {
    raw: NonNull<bindings::ib_ah>,
    pd: Arc<Pd>,
}

// SAFETY: `ib_ah` belongs to no thread.
unsafe impl Send for AddressHandle {}

// SAFETY: It does not change.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Creates a handle of `attr`. Fails with `EINVAL` if that is another device's, with `ENOMEM`,
    /// and with the device's error. May sleep.
    fn create(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Self> {
        if !Arc::ptr_eq(pd.device(), &attr.device) {
            return Err(EINVAL);
        }
        let mut raw = attr.raw;
        // SAFETY: The domain is valid by its invariants. The address is one of its device. What the
        // core changes in the copy it changes back.
        let raw = from_err_ptr(unsafe {
            bindings::rdma_create_ah(
                pd.as_raw(),
                &mut raw,
                bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE,
            )
        })?;
        // INVARIANT: It was just created.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            pd: pd.clone(),
        })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants it is ours. Nothing that was posted uses it: the
        // owner of a send keeps the handle until the completion.
        let ret = unsafe {
            bindings::rdma_destroy_ah_user(
                self.raw.as_ptr(),
                bindings::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE,
                core::ptr::null_mut(),
            )
        };
        if ret != 0 {
            self.pd.keep();
        }
    }
}

/// Where a datagram goes: an address handle, the number of a queue pair there and its Q_Key.
///
/// Clones share the handle.
///
/// # Context
///
/// May be dropped in any context: the last one may be that of a send that has completed. Drivers do
/// not expect a handle to be destroyed there, whatever flags say: some take a lock that tasks take
/// with softirqs enabled. So another task does it.
///
/// # Examples
///
/// Two queue pairs for datagrams beside a connection, whose peers have told each other the numbers:
///
/// ```
/// # use crate::rdma::{
/// #     ah::Destination,
/// #     cm::CmId,
/// #     pd::Pd,
/// #     qp::{Qp, QpHandler, Ud},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Ud>>(
/// #     connection: &CmId,
/// #     pd: &Arc<Pd>,
/// #     qp: &Qp<H, Ud>,
/// #     peer: (u32, u32),
/// # ) -> Result {
/// let (number, qkey) = peer;
/// let peer = Destination::beside(connection, pd, (number, qkey))?;
/// // A longer message would be lost.
/// pr_info!("datagrams to queue pair {}: {} bytes\n", number, peer.mtu());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub(crate) struct Destination {
    ah: Arc<Deferred<AddressHandle>>,
    qp_num: u32,
    qkey: u32,
    mtu: u32,
    /// What [`AhAttr::target`] returns.
    gid: [u8; 16],
    lid: u16,
}

impl Destination {
    /// Makes the destination of queue pair `qp_num` of the peer of `connection`, on the port by
    /// which the peer has that connection. The queue pair that sends there is created on an id of
    /// [`CmId::beside`].
    ///
    /// Fails with `EINVAL` if the connection is another device's, with `ENODEV` if it has no
    /// device, or that is being removed, with `EOPNOTSUPP` if the transport is iWARP, with
    /// `ENOMEM`, and with the core's and the device's error.
    ///
    /// # Context
    ///
    /// Sleeps.
    pub(crate) fn beside<T: Connected>(
        connection: &CmId<T>,
        pd: &Arc<Pd>,
        (qp_num, qkey): (u32, u32),
    ) -> Result<Self> {
        Self::new(pd, &connection.peer_attr()?, qp_num, qkey)
    }

    /// Makes the destination of queue pair `qp_num` at `attr`. May sleep.
    pub(super) fn new(pd: &Arc<Pd>, attr: &AhAttr, qp_num: u32, qkey: u32) -> Result<Self> {
        let ah = AddressHandle::create(pd, attr)?;
        let port_num = attr.raw.port_num;
        let (gid, lid) = attr.target();
        Ok(Self {
            ah: Arc::new(Deferred::new(pd.device().release(), ah)?, GFP_KERNEL)?,
            qp_num,
            qkey,
            mtu: pd.device().port(port_num)?.mtu,
            // SAFETY: All variants of the union are plain bytes.
            gid: unsafe { gid.raw },
            lid,
        })
    }

    /// Returns true if a datagram says that it comes from there: from the queue pair, and from the
    /// address. Any context.
    #[inline]
    pub(crate) fn has_sent(&self, sender: &Sender) -> bool {
        let is_there = match sender.address() {
            Ok((Some(gid), _)) => gid == self.gid,
            // It has not left its subnet.
            Ok((None, lid)) => lid == self.lid && lid != 0,
            Err(_) => false,
        };
        is_there && sender.qp_num() == self.qp_num
    }

    /// Makes the destination of what is sent back to the sender of a datagram. May sleep.
    pub(super) fn of_sender(pd: &Arc<Pd>, port_num: u32, sender: &Sender) -> Result<Self> {
        let attr = AhAttr::of_sender(pd.device(), port_num, sender)?;
        Self::new(pd, &attr, sender.qp_num(), UDP_QKEY)
    }

    /// Returns how many bytes a datagram can have, as the port was when the destination was made.
    /// What is longer than the port takes when it is sent is lost.
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Fills in a work request. Fails with `EINVAL` if the destination is another domain's.
    #[inline]
    pub(super) fn wr(&self, pd: &Arc<Pd>, wr: bindings::ib_send_wr) -> Result<bindings::ib_ud_wr> {
        if !Arc::ptr_eq(&self.ah.pd, pd) {
            return Err(EINVAL);
        }
        Ok(bindings::ib_ud_wr {
            wr,
            ah: self.ah.raw.as_ptr(),
            remote_qpn: self.qp_num,
            remote_qkey: self.qkey,
            ..pin_init::zeroed()
        })
    }
}
