// SPDX-License-Identifier: GPL-2.0

//! The interrupts of completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    AnyCq,
    CLOSED, //
};
use crate::bindings;
#[cfg(doc)]
use crate::rdma::cq::{
    Direct,
    Manual,
    Softirq, //
};
use core::ffi::c_void;
use kernel::{
    sync::atomic::Relaxed,
    types::Opaque, //
};

/// Handles an interrupt of a queue that is [`Softirq`], or [`Direct`] or
/// [`Manual`]: these take one only if they have requested it.
///
/// # Safety
///
/// Must only be called by the driver, for a completion queue with a [`AnyCq`] as its context.
pub(super) unsafe extern "C" fn comp_handler(_cq: *mut bindings::ib_cq, context: *mut c_void) {
    // SAFETY: The context is a `AnyCq` that exists at least as long as the C object.
    let this = unsafe { &*context.cast::<AnyCq>() };
    this.interrupts.fetch_add(1, Relaxed);
    if !this.direct {
        // A software device calls this in a task.
        // SAFETY: By the type invariants the work is initialised, and `release()` waits for it.
        if !unsafe { bindings::farblk_irq_work_queue(this.irq_work.get()) } {
            this.forward();
        }
        return;
    }
    // The device may have refused to destroy a queue that nobody looks at any more.
    if this.state.load(Relaxed) != CLOSED {
        this.reschedule();
    }
}

/// Calls the core's own handler of interrupts, in an interrupt.
///
/// # Safety
///
/// Must only be called by `irq_work`, for the work of a [`AnyCq`].
pub(super) unsafe extern "C" fn irq_work_fn(work: *mut bindings::irq_work) {
    // SAFETY: It is the work of a `AnyCq`, whose `release()` waits for it.
    let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), AnyCq, irq_work) };
    // An interrupt may be late: then the C object may be gone.
    if this.state.load(Relaxed) != CLOSED {
        this.forward();
    }
}

/// Handles the completions that the interrupt has announced, in softirq.
///
/// # Safety
///
/// Must only be called by the workqueue, for the work of a [`AnyCq`].
pub(super) unsafe extern "C" fn work_fn(work: *mut bindings::work_struct) {
    // SAFETY: It is the work of a `AnyCq`, whose `release()` waits for it.
    let this = unsafe { &*kernel::container_of!(Opaque::cast_from(work), AnyCq, work) };
    this.reap();
}
