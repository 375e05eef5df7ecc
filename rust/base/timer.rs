// SPDX-License-Identifier: GPL-2.0

//! A one-shot timer; C's `struct timer_list`.
//!
//! It needs no task and no memory, so that what memory reclaim waits for may depend on it.
//!
//! C header: [`include/linux/timer.h`](srctree/include/linux/timer.h)

// UPSTREAM: upstream/tree/base/timer.rs takes the place of this file, with patches of
// upstream/rust.

#![allow(unsafe_code)]

use core::pin::Pin;

use kernel::{
    prelude::*,
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
    types::Opaque, //
};

use crate::bindings;

/// What a [`Timer`] does.
///
/// # Examples
///
/// ```
/// # use crate::base::{sync::Completion, timer::TimerHandler};
/// # use kernel::{prelude::*, sync::Arc};
/// #[pin_data]
/// struct Deadline {
///     #[pin]
///     over: Completion,
/// }
///
/// impl TimerHandler for Arc<Deadline> {
///     fn expired(&self) {
///         self.over.complete_all();
///     }
/// }
/// ```
pub(crate) trait TimerHandler: Send + Sync + 'static {
    /// Called when the time that was set has come, never twice at a time, in softirq. Must not drop
    /// the timer, but may set it again.
    fn expired(&self);
}

#[repr(C)]
#[pin_data]
struct Inner<T> {
    // First: the address of the timer is that of the whole.
    #[pin]
    timer: Opaque<bindings::timer_list>,
    value: T,
}

/// Calls [`TimerHandler::expired`] once at the time that was last set, if it was.
///
/// # Context
///
/// Dropping it waits for a call that is under way, and may sleep. No lock that `expired` takes may
/// be held then.
///
/// # Examples
///
/// ```
/// # use crate::base::timer::{Timer, TimerHandler};
/// # use kernel::prelude::*;
/// # fn example<T: TimerHandler>(deadline: T) -> Result {
/// let timer = Timer::new(deadline)?;
/// timer.set(60_000);
/// // An answer has come.
/// timer.clear();
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// `timer` is initialised with [`run`] and is the first field of an [`Inner`], which stays in
/// place. It is shut down by `drop()` and by nothing else.
pub(crate) struct Timer<T: TimerHandler>(Pin<KBox<Inner<T>>>);

// SAFETY: A timer belongs to no thread, and `T` is `Send`.
unsafe impl<T: TimerHandler> Send for Timer<T> {}
// SAFETY: A timer has a lock of its own, and `T` is `Sync`.
unsafe impl<T: TimerHandler> Sync for Timer<T> {}

impl<T: TimerHandler> Timer<T> {
    /// Makes a timer that is not set. May sleep.
    pub(crate) fn new(value: T) -> Result<Self> {
        let inner = KBox::pin_init(
            pin_init!(Inner {
                timer <- Opaque::ffi_init(|timer| {
                    // SAFETY: It is memory for a `timer_list` that will not move.
                    unsafe { bindings::farblk_timer_setup(timer, Some(run::<T>)) }
                }),
                value,
            }),
            GFP_KERNEL,
        )?;
        // INVARIANT: It was initialised just now; `KBox` keeps it in place.
        Ok(Self(inner))
    }

    /// Sets the timer to expire in `ms` milliseconds, give or take a jiffy, and not when it was set
    /// to before. With 0 that is as soon as possible, but not before this returns if interrupts or
    /// softirqs are disabled. Any context.
    pub(crate) fn set(&self, ms: Msecs) {
        // SAFETY: By the type invariants the timer is initialised.
        unsafe { bindings::farblk_mod_timer(self.0.timer.get(), msecs_to_jiffies(ms)) };
    }

    /// Stops the timer, until it is set again. Does not wait for a handler that runs. Any context.
    pub(crate) fn clear(&self) {
        // SAFETY: By the type invariants the timer is initialised.
        unsafe { bindings::timer_delete(self.0.timer.get()) };
    }
}

/// # Safety
///
/// Called by the kernel only, for the timer of a [`Timer<T>`].
unsafe extern "C" fn run<T: TimerHandler>(timer: *mut bindings::timer_list) {
    // SAFETY: By the invariants of `Timer` the timer is the first field of an `Inner`, which
    // `drop()` keeps until this does not run any more.
    let inner = unsafe { &*timer.cast::<Inner<T>>() };
    inner.value.expired();
}

impl<T: TimerHandler> Drop for Timer<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants it is initialised. Its handler does not run afterwards,
        // nor can it be set again.
        unsafe { bindings::timer_shutdown_sync(self.0.timer.get()) };
    }
}
