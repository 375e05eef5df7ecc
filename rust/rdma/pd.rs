// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Device,
    might_sleep,
    MODULE_NAME, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

/// A protection domain: a key gives access only through a queue pair of the same domain.
///
/// # Invariants
///
/// - `raw` is a protection domain of `device` that is freed by `drop()` and by nothing else.
pub(crate) struct Pd {
    raw: NonNull<bindings::ib_pd>,
    device: Arc<Device>,
}

// SAFETY: `ib_pd` belongs to no thread.
unsafe impl Send for Pd {}

// SAFETY: The methods only read what does not change.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain. There is no global remote key.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping the last reference.
    pub(crate) fn alloc(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: The device is registered by its invariants, and the name is static.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_alloc_pd(device.as_raw(), 0, MODULE_NAME.as_char_ptr())
        })?;
        // INVARIANT: The domain was just allocated on `device`.
        let this = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            device: device.clone(),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// The C object, which is valid as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    /// The local key of all memory that is mapped for the device.
    pub(super) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: By the type invariants the domain is valid; the key does not change.
        unsafe { (*self.as_raw()).local_dma_lkey }
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the domain is ours. What was created in it holds a
        // reference to `self`, so that it is gone. Kernel users give no `udata`.
        let ret = unsafe { bindings::ib_dealloc_pd_user(self.as_raw(), core::ptr::null_mut()) };
        if ret != 0 {
            pr_warn!("cannot free a protection domain: {}\n", ret);
        }
    }
}
