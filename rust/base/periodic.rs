// SPDX-License-Identifier: GPL-2.0

//! Work that is done periodically.
//!
//! The kernel crate's `DelayedWork` can be queued, and that is all: it has no functions that cancel
//! an item or wait for one. A module that goes must do both, or the item runs when its code is
//! gone. Neither can be added from outside without more unsafe code than there is here, as the
//! queue owns a reference to the item, which has to be found again when it is cancelled.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

// UPSTREAM: upstream/tree/base/periodic.rs takes the place of this file, with patch 0015 of
// upstream/rust.

#![allow(unsafe_code)]

use core::pin::Pin;

use kernel::{
    prelude::*,
    time::Msecs,
    types::Opaque, //
};

use crate::bindings;

/// What a [`PeriodicWork`] does.
///
/// # Examples
///
/// ```
/// # use crate::base::periodic::PeriodicHandler;
/// # use kernel::sync::{atomic::{Atomic, Relaxed}, Arc};
/// struct Sizes {
///     checks: Atomic<u64>,
/// }
///
/// impl PeriodicHandler for Arc<Sizes> {
///     fn run(&self) {
///         self.checks.fetch_add(1, Relaxed);
///     }
/// }
/// ```
pub(crate) trait PeriodicHandler: Send + Sync + 'static {
    /// Called again and again, never twice at a time, by a worker of `system_freezable_wq`. May
    /// sleep, but must not drop the [`PeriodicWork`].
    fn run(&self);
}

#[repr(C)]
#[pin_data]
struct Inner<T> {
    // First: the address of the work is that of the whole.
    #[pin]
    work: Opaque<bindings::delayed_work>,
    /// Jiffies.
    interval: kernel::ffi::c_ulong,
    value: T,
}

/// Calls [`PeriodicHandler::run`] every so many milliseconds until it is dropped.
///
/// # Context
///
/// Dropping it waits for a call that is under way, and may sleep.
///
/// # Examples
///
/// ```
/// # use crate::base::periodic::{PeriodicHandler, PeriodicWork};
/// # use kernel::prelude::*;
/// # fn example<T: PeriodicHandler>(sizes: T) -> Result {
/// // Once a second, until it drops.
/// let checks = PeriodicWork::new(sizes, 1_000)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// `work` is initialised with [`run`] and is the first field of an [`Inner`], which stays in place.
/// It is disabled by `drop()` and by nothing else.
pub(crate) struct PeriodicWork<T: PeriodicHandler>(Pin<KBox<Inner<T>>>);

// SAFETY: A delayed work belongs to no thread, and `T` is `Send`.
unsafe impl<T: PeriodicHandler> Send for PeriodicWork<T> {}
// SAFETY: As above; `&PeriodicWork` gives access to nothing but what `run` shares.
unsafe impl<T: PeriodicHandler> Sync for PeriodicWork<T> {}

impl<T: PeriodicHandler> PeriodicWork<T> {
    /// Starts to call `value`'s [`PeriodicHandler::run`], for the first time after `interval`. May
    /// sleep.
    pub(crate) fn new(value: T, interval: Msecs) -> Result<Self> {
        // SAFETY: The function has no requirements.
        let interval = unsafe { bindings::__msecs_to_jiffies(interval) };
        let inner = KBox::pin_init(
            pin_init!(Inner {
                work <- Opaque::ffi_init(|work| {
                    // SAFETY: It is memory for a `delayed_work` that will not move.
                    unsafe { bindings::farblk_init_delayed_work(work, Some(run::<T>)) }
                }),
                interval,
                value,
            }),
            GFP_KERNEL,
        )?;
        // INVARIANT: It was initialised just now; `KBox` keeps it in place.
        let this = Self(inner);
        // SAFETY: By the type invariants.
        unsafe { bindings::farblk_queue_delayed_work(this.0.work.get(), interval) };
        Ok(this)
    }
}

/// # Safety
///
/// Called by a worker only, for the work of a [`PeriodicWork<T>`].
unsafe extern "C" fn run<T: PeriodicHandler>(work: *mut bindings::work_struct) {
    // SAFETY: By the invariants of `PeriodicWork` the work is the first field of a `delayed_work`,
    // and that of an `Inner`, which `drop()` keeps until no worker runs this.
    let inner = unsafe { &*work.cast::<Inner<T>>() };
    inner.value.run();
    // SAFETY: As above. It does nothing once the work is disabled.
    unsafe { bindings::farblk_queue_delayed_work(inner.work.get(), inner.interval) };
}

impl<T: PeriodicHandler> Drop for PeriodicWork<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants it is initialised. No worker runs it afterwards, nor can
        // it be queued again.
        unsafe { bindings::disable_delayed_work_sync(self.0.work.get()) };
    }
}
