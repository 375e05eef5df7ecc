// SPDX-License-Identifier: GPL-2.0

//! Memory regions that remote peers may access for as long as they exist.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    dma::SgMapping,
    might_sleep,
    pd::{
        Parking,
        Pd, //
    },
    wr::RemoteRange, //
};
use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic, //
        },
        Arc, //
    },
};

/// What a peer may do with a memory region.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::SgMapping, mr::{Access, Mr}, pd::Pd};
/// # use kernel::{prelude::*, sync::Arc};
/// /// A memory region that peers read, and of which the first also write.
/// fn alloc(pd: &Arc<Pd>, memory: &Arc<SgMapping>, is_first: bool) -> Result<Mr> {
///     let access = match is_first {
///         true => Access::RemoteReadWrite,
///         false => Access::RemoteRead,
///     };
///     Mr::alloc(pd, memory, access)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// RDMA READ.
    RemoteRead,
    /// RDMA READ and RDMA WRITE.
    RemoteReadWrite,
}

impl Access {
    /// The C flags.
    fn as_raw(self) -> u32 {
        match self {
            Self::RemoteRead => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            Self::RemoteReadWrite => {
                bindings::ib_access_flags_IB_ACCESS_REMOTE_READ
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            }
        }
    }
}

/// A memory region over an [`SgMapping`], at an address that a peer cannot guess.
///
/// Peers can access it from when [`Qp::reg_mr`](super::qp::Qp::reg_mr) of it runs until it is
/// dropped; dropping waits until no access is under way. What it covers is unmapped and freed only
/// after that; if that fails, when the protection domain goes.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::SgMapping,
/// #     mr::{Access, Mr},
/// #     pd::Pd,
/// #     qp::{Qp, QpHandler},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<H: QpHandler<Send = Mr>>(
/// #     qp: &Qp<H>,
/// #     pd: &Arc<Pd>,
/// #     memory: &Arc<SgMapping>,
/// # ) -> Result {
/// let mr = Mr::alloc(pd, memory, Access::RemoteRead)?;
/// // It has no key yet.
/// assert!(mr.remote().is_none());
/// // The work request registers it. When it has completed, `send_done` of the handler gets the
/// // region, and `remote()` is what the peer has to be told.
/// qp.reg_mr(0, mr, true).map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `raw` is a memory region of `pd` over `mapping` that is deregistered by `drop()` and nothing
///   else. Its address range does not wrap around.
/// - `registered` is 0 until a `REG_MR` of the region has completed with success.
pub(crate) struct Mr {
    raw: NonNull<bindings::ib_mr>,
    access: Access,
    atomics: bool,
    registered: Atomic<u32>,
    // Dropped only once the region is deregistered.
    mapping: ManuallyDrop<KBox<Parking<Arc<SgMapping>>>>,
    pd: Arc<Pd>,
}

// SAFETY: `ib_mr` belongs to no thread.
unsafe impl Send for Mr {}

// SAFETY: `registered` is atomic, and nothing else changes.
unsafe impl Sync for Mr {}

impl Mr {
    /// Allocates a memory region over all of `mapping`, with a random address and key.
    ///
    /// The address is a multiple of the length, rounded up to a power of two. Fails with `EINVAL`
    /// if the device has no such regions, if the mapping is another device's or needs more pages
    /// than a region can have, or if the mapping does not allow the device what `access` says; and
    /// with the device's error.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping it.
    pub(crate) fn alloc(pd: &Arc<Pd>, mapping: &Arc<SgMapping>, access: Access) -> Result<Self> {
        let device = pd.device();
        let limits = device.limits();
        let page_size = mapping.page_size();
        let pages = u32::try_from(mapping.len().div_ceil(page_size))?;
        let direction = mapping.direction();
        if !Arc::ptr_eq(mapping.device(), device)
            || !limits.mem_mgt_extensions
            || pages > limits.max_fast_reg_page_list_len
            || !direction.device_reads()
            || (access == Access::RemoteReadWrite && !direction.device_writes())
        {
            return Err(EINVAL);
        }
        let parking = Parking::new(mapping.clone())?;
        // SAFETY: The domain is valid by its invariants.
        let raw = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;
        // INVARIANT: The region was just allocated; it covers nothing yet.
        let this = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            access,
            atomics: false,
            registered: Atomic::new(0),
            mapping: ManuallyDrop::new(parking),
            pd: pd.clone(),
        };
        let (entries, count) = mapping.entries();
        // SAFETY: The region is ours, and the entries are mapped for its device.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                raw,
                entries,
                count,
                core::ptr::null_mut(),
                u32::try_from(page_size)?,
            )
        };
        // SAFETY: The region is ours.
        if mapped != count || unsafe { (*raw).length } != mapping.len() as u64 {
            return Err(EINVAL);
        }
        // Devices look for the first byte where the address says that it is in its page.
        let align = (mapping.len() as u64)
            .checked_next_power_of_two()
            .ok_or(EINVAL)?
            .max(page_size as u64);
        // SAFETY: The function has no requirements.
        let random = unsafe { bindings::get_random_u64() };
        // The key's low byte is ours to choose; the rest of it is the device's.
        // SAFETY: The region is ours, and not posted yet.
        // INVARIANT: The address is a multiple of `align >= len` with the highest bit clear, so
        // that adding `len` does not overflow.
        unsafe {
            (*raw).iova = (random >> 1) & !(align - 1);
            bindings::ib_update_fast_reg_key(raw, bindings::get_random_u64() as u8);
        }
        Ok(this)
    }

    /// The C object, which is valid as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.raw.as_ptr()
    }

    /// Also allows peers atomic operations. To be called before the region is registered.
    ///
    /// The connection has to allow them, too: one of `rdma_cm` does so if its
    /// [`responder_resources`](super::cm::ConnParam::responder_resources) are not 0, as for RDMA
    /// READs. So this right is all that keeps peers from atomic operations elsewhere.
    ///
    /// Fails with `EOPNOTSUPP` if the device does none, and with `EINVAL` if the mapping does not
    /// allow it to write, or the region is registered.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn with_atomics(mut self) -> Result<Self> {
        if self.pd.device().atomics().is_none() {
            return Err(EOPNOTSUPP);
        }
        if !self.mapping.value.direction().device_writes() || self.remote().is_some() {
            return Err(EINVAL);
        }
        self.atomics = true;
        Ok(self)
    }

    /// The C access flags.
    #[inline]
    pub(super) fn access(&self) -> i32 {
        let atomics = match self.atomics {
            true => {
                bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC
                    | bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            }
            false => 0,
        };
        // CAST: Flags fit, see the definition of `enum ib_access_flags`.
        (self.access.as_raw() | atomics) as i32
    }

    /// Returns the key that `REG_MR` gives the region.
    #[inline]
    pub(super) fn key(&self) -> u32 {
        // SAFETY: By the type invariants the region is valid.
        unsafe { (*self.as_raw()).rkey }
    }

    /// Returns the protection domain.
    #[inline]
    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the address at which peers find the first byte.
    pub(super) fn iova(&self) -> u64 {
        // SAFETY: By the type invariants the region is valid.
        unsafe { (*self.as_raw()).iova }
    }

    /// Returns the flag to be set to 1 when a `REG_MR` has completed with success.
    #[inline]
    pub(super) fn registered(&self) -> &Atomic<u32> {
        &self.registered
    }

    /// Returns what a peer needs to access the region, or `None` if it is not registered. Any
    /// context.
    pub(crate) fn remote(&self) -> Option<RemoteRange> {
        if self.registered.load(Acquire) == 0 {
            return None;
        }
        Some(RemoteRange {
            addr: self.iova(),
            rkey: self.key(),
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the region is ours. A work request that refers to it
        // would own it, so there is none.
        let ret = unsafe { bindings::ib_dereg_mr_user(self.as_raw(), core::ptr::null_mut()) };
        // SAFETY: `mapping` is not used again.
        let mapping = unsafe { ManuallyDrop::take(&mut self.mapping) };
        if ret != 0 {
            // Peers may still have access.
            pr_err!(
                "cannot deregister a memory region: {}; its memory is kept with its domain\n",
                ret
            );
            self.pd.keep();
            self.pd.park(mapping);
        }
    }
}
