// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
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
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

/// Where completions are handled.
#[derive(Clone, Copy)]
pub(crate) enum PollContext {
    /// In softirq, on the CPU of the interrupt: handlers must not sleep.
    Softirq,
    /// In the RDMA core's workqueue `ib-comp-wq`: handlers may sleep, but hold up others.
    Workqueue,
}

/// A completion queue, which calls the handlers of its queue pairs.
///
/// It handles one completion at a time.
///
/// # Invariants
///
/// - `raw` is a completion queue of `device` with at least `entries` entries that is freed by
///   `drop()` and by nothing else.
/// - `reserved <= entries`; it is the most completions that may be in the queue at once.
pub(crate) struct Cq {
    raw: NonNull<bindings::ib_cq>,
    device: Arc<Device>,
    entries: u32,
    reserved: Atomic<u32>,
}

// SAFETY: `ib_cq` belongs to no thread.
unsafe impl Send for Cq {}

// SAFETY: The fields that change are atomic, and the C object is only handed to the core.
unsafe impl Sync for Cq {}

impl Cq {
    /// Allocates a completion queue of `entries` entries whose interrupt is completion vector
    /// `vector`, modulo their number.
    ///
    /// The entries must suffice for all work requests of all its queue pairs: the sum of their
    /// [`send_cqes`](super::qp::QpCaps::send_cqes) and
    /// [`recv_cqes`](super::qp::QpCaps::recv_cqes). Gives `EINVAL` if the device has no queue of
    /// that many.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping the last reference, which must not happen in a completion.
    pub(crate) fn alloc(
        device: &Arc<Device>,
        entries: u32,
        vector: u32,
        context: PollContext,
    ) -> Result<Arc<Self>> {
        let limits = device.limits();
        if entries == 0 || entries > limits.max_cqe {
            return Err(EINVAL);
        }
        let context = match context {
            PollContext::Softirq => bindings::ib_poll_context_IB_POLL_SOFTIRQ,
            PollContext::Workqueue => bindings::ib_poll_context_IB_POLL_WORKQUEUE,
        };
        // SAFETY: The device is registered by its invariants, and the name is static.
        let raw = from_err_ptr(unsafe {
            bindings::__ib_alloc_cq(
                device.as_raw(),
                core::ptr::null_mut(),
                i32::try_from(entries)?,
                i32::try_from(vector % limits.num_comp_vectors.max(1))?,
                context,
                MODULE_NAME.as_char_ptr(),
            )
        })?;
        // INVARIANT: The queue was just allocated on `device`; nothing is reserved.
        let this = Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            device: device.clone(),
            entries,
            reserved: Atomic::new(0),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// The C object, which is valid as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.raw.as_ptr()
    }

    /// Sets `entries` entries aside for a queue of a queue pair, or gives `ENOSPC`.
    pub(super) fn reserve(self: &Arc<Self>, entries: u32) -> Result<Reservation> {
        let mut old = self.reserved.load(Relaxed);
        loop {
            let new = old.checked_add(entries).ok_or(ENOSPC)?;
            if new > self.entries {
                return Err(ENOSPC);
            }
            match self.reserved.cmpxchg(old, new, Relaxed) {
                Ok(_) => {
                    // INVARIANT: `reserved` was raised by `entries`.
                    return Ok(Reservation {
                        cq: self.clone(),
                        entries,
                    });
                }
                Err(now) => old = now,
            }
        }
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the queue is ours. Queue pairs hold a reference to
        // `self`, so none is left.
        unsafe { bindings::ib_free_cq(self.as_raw()) };
    }
}

/// Entries of a completion queue that are set aside, and a reference to the queue.
///
/// # Invariants
///
/// - `cq.reserved` includes `entries`.
pub(super) struct Reservation {
    cq: Arc<Cq>,
    entries: u32,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cq.reserved.fetch_sub(self.entries, Relaxed);
    }
}
