// SPDX-License-Identifier: GPL-2.0

//! Waiting for something that is done once.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

// UPSTREAM: upstream/tree/base/completion.rs takes the place of this file, with patch 0003 of
// upstream/rust.

#![allow(unsafe_code)]

use kernel::{
    error::to_result,
    prelude::*,
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
    types::Opaque, //
};

use crate::bindings;

/// How long a task sleeps at most that waits for I/O, in ms: less than what makes a task count as
/// hung, which is seconds to minutes (`kernel.hung_task_timeout_secs`).
const IO_WAIT_MS: Msecs = 5_000;

/// Signals once that something is done; like [`kernel::sync::Completion`], but with timeouts.
///
/// # Examples
///
/// ```
/// # use crate::base::sync::Completion;
/// # use kernel::{prelude::*, sync::Arc};
/// # fn begin(done: Arc<Completion>) -> Result { Ok(()) }
/// # fn example() -> Result {
/// let done = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
/// begin(done.clone())?;
/// // Fails with `ETIMEDOUT` unless somebody calls `done.complete()` within 5 seconds.
/// done.wait_timeout(5_000)?;
/// # Ok(())
/// # }
/// ```
#[pin_data]
pub(crate) struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be used by any task.
unsafe impl Send for Completion {}
// SAFETY: A `struct completion` has its own lock.
unsafe impl Sync for Completion {}

impl Completion {
    /// Creates an initialiser of a completion that is not done.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid for writes.
                unsafe { bindings::init_completion(slot) }
            }),
        })
    }

    /// Wakes one waiter, or lets the next one pass. Any context but NMI.
    pub(crate) fn complete(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::complete(self.inner.get()) }
    }

    /// Wakes all waiters and lets all later ones pass, until [`Completion::reinit`]. Any context
    /// but NMI, and on `PREEMPT_RT` not in a hard interrupt.
    pub(crate) fn complete_all(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::complete_all(self.inner.get()) }
    }

    /// Makes it not done again. It may or may not undo a concurrent [`Self::complete`].
    pub(crate) fn reinit(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::reinit_completion(self.inner.get()) }
    }

    /// Returns true if it is done: a wait would be over at once. Any context.
    pub(crate) fn is_done(&self) -> bool {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::completion_done(self.inner.get()) }
    }

    /// Waits until it is done. Sleeps; no signal ends it.
    pub(crate) fn wait(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::wait_for_completion(self.inner.get()) }
    }

    /// Waits until it is done. Sleeps. Fails with `EINTR` if the task is killed before. A task that
    /// waits here for minutes is not reported as hung, as it can be ended.
    pub(crate) fn wait_killable(&self) -> Result {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        let outcome = unsafe { bindings::wait_for_completion_killable(self.inner.get()) };
        // The kernel's `ERESTARTSYS` is not for user space.
        to_result(outcome).map_err(|_| EINTR)
    }

    /// Waits until I/O is done, which takes as long as a device does. Sleeps; no signal ends it. A
    /// task that waits here for minutes is not reported as hung, as one in the kernel's
    /// `blk_wait_io()` is not: the device hangs, not the task.
    pub(crate) fn wait_io(&self) {
        while self.wait_timeout(IO_WAIT_MS).is_err() {}
    }

    /// Waits until it is done, for at most `timeout` milliseconds; then fails with [`ETIMEDOUT`].
    /// Sleeps; no signal ends it.
    pub(crate) fn wait_timeout(&self, timeout: Msecs) -> Result {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        let left = unsafe {
            bindings::wait_for_completion_timeout(self.inner.get(), msecs_to_jiffies(timeout))
        };
        if left == 0 {
            return Err(ETIMEDOUT);
        }
        Ok(())
    }
}
