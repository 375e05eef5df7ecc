// SPDX-License-Identifier: GPL-2.0

//! Waiting for something that is done once: the completion of the kernel crate, with times in
//! milliseconds.

use core::ops::Deref;

use kernel::{
    prelude::*,
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
};

/// How long a task sleeps at most that waits for I/O, in ms: less than what makes a task count as
/// hung, which is seconds to minutes (`kernel.hung_task_timeout_secs`).
const IO_WAIT_MS: Msecs = 5_000;

/// Signals once that something is done.
#[pin_data]
pub(crate) struct Completion {
    #[pin]
    inner: kernel::sync::Completion,
}

impl Completion {
    /// Creates an initialiser of a completion that is not done.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- kernel::sync::Completion::new(),
        })
    }

    /// Waits until it is done. Sleeps; no signal ends it.
    pub(crate) fn wait(&self) {
        self.wait_for_completion();
    }

    /// Waits until it is done. Sleeps. Fails with `EINTR` if the task is killed before.
    pub(crate) fn wait_killable(&self) -> Result {
        // The kernel's `ERESTARTSYS` is not for user space.
        self.wait_for_completion_killable().map_err(|_| EINTR)
    }

    /// Waits until I/O is done, which takes as long as a device does. Sleeps; no signal ends it. A
    /// task that waits here for minutes is not reported as hung, as one in the kernel's
    /// `blk_wait_io()` is not: the device hangs, not the task.
    pub(crate) fn wait_io(&self) {
        let step = msecs_to_jiffies(IO_WAIT_MS);
        while self.wait_for_completion_io_timeout(step).is_err() {}
    }

    /// Waits until it is done, for at most `timeout` milliseconds; then fails with [`ETIMEDOUT`].
    /// Sleeps; no signal ends it.
    pub(crate) fn wait_timeout(&self, timeout: Msecs) -> Result {
        self.wait_for_completion_timeout(msecs_to_jiffies(timeout))?;
        Ok(())
    }
}

impl Deref for Completion {
    type Target = kernel::sync::Completion;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}
