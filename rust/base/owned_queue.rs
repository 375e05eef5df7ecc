// SPDX-License-Identifier: GPL-2.0

//! Workqueues that a value owns.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

// UPSTREAM: upstream/tree/base/owned_queue.rs takes the place of this file, with patch 0014 of
// upstream/rust.

#![allow(unsafe_code)]

use core::{
    ops::{
        BitOr,
        Deref, //
    },
    ptr::NonNull,
};

use kernel::{
    prelude::*,
    workqueue::Queue, //
};

use crate::bindings;

/// The properties of an [`OwnedQueue`].
///
/// See [`OwnedQueue`] for an example.
#[derive(Clone, Copy)]
pub(crate) struct WqFlags(bindings::wq_flags);

impl WqFlags {
    /// Items run even if there is no memory for another worker.
    pub(crate) const MEM_RECLAIM: Self = Self(bindings::wq_flags_WQ_MEM_RECLAIM);
    /// Items are run by workers with a high priority.
    pub(crate) const HIGHPRI: Self = Self(bindings::wq_flags_WQ_HIGHPRI);
}

impl BitOr for WqFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A workqueue that is destroyed when this value is dropped, after it has run its items. That
/// sleeps, and an item of the workqueue must not do it.
///
/// # Examples
///
/// ```
/// # use crate::base::owned_queue::{OwnedQueue, WqFlags};
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// let queue = OwnedQueue::new_ordered(c"recover", WqFlags::MEM_RECLAIM)?;
/// queue.flush();
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// The pointer is a valid work queue, which this value owns.
pub(crate) struct OwnedQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: A work queue may be used and destroyed by any task.
unsafe impl Send for OwnedQueue {}
// SAFETY: As above.
unsafe impl Sync for OwnedQueue {}

impl OwnedQueue {
    /// Creates a workqueue whose items run one at a time, in order. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn new_ordered(name: &CStr, flags: WqFlags) -> Result<Self> {
        // SAFETY: `name` is a C string, which is copied.
        let queue = unsafe { bindings::alloc_ordered_workqueue(name.as_char_ptr(), flags.0) };
        // INVARIANT: The queue was just made and is ours.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }

    /// Creates a workqueue whose items run on the CPU that queued them, up to `max_active` at a
    /// time on each; 0 is the default. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn new_percpu(name: &CStr, flags: WqFlags, max_active: u32) -> Result<Self> {
        Self::new(name, bindings::wq_flags_WQ_PERCPU | flags.0, max_active)
    }

    /// Creates a workqueue whose items run on any CPU, up to `max_active` at a time; 0 is the
    /// default. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn new_unbound(name: &CStr, flags: WqFlags, max_active: u32) -> Result<Self> {
        Self::new(name, bindings::wq_flags_WQ_UNBOUND | flags.0, max_active)
    }

    fn new(name: &CStr, flags: bindings::wq_flags, max_active: u32) -> Result<Self> {
        let max_active = max_active.min(bindings::wq_consts_WQ_MAX_ACTIVE) as kernel::ffi::c_int;
        // SAFETY: `name` is a C string, which is copied.
        let queue = unsafe { bindings::alloc_workqueue(name.as_char_ptr(), flags, max_active) };
        // INVARIANT: The queue was just made and is ours.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }

    /// Waits until all items that were queued before have run. Sleeps. An item of the workqueue
    /// must not call it: it would wait for itself.
    pub(crate) fn flush(&self) {
        // SAFETY: By the type invariants the queue is valid.
        unsafe { bindings::flush_workqueue(self.0.as_ptr()) }
    }
}

impl Deref for OwnedQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        // SAFETY: By the type invariants the queue is valid as long as `self` is.
        unsafe { Queue::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for OwnedQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the queue is valid and ours; nobody can add to it any
        // more, save for items that still run, which is allowed.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) }
    }
}
