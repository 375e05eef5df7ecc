// SPDX-License-Identifier: GPL-2.0

//! Counts of users.
//!
//! C header: [`include/linux/percpu-refcount.h`](srctree/include/linux/percpu-refcount.h)

// UPSTREAM: upstream/tree/base/percpu_ref.rs takes the place of this file, with patch 0004 of
// upstream/rust.

#![allow(unsafe_code)]

use core::ptr::NonNull;

use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{
        Atomic,
        Full, //
    },
    types::Opaque, //
};

use crate::{
    base::completion::Completion,
    bindings, //
};

/// Counts the users of something, so that the one who takes it away can wait for them; C's
/// `struct percpu_ref`.
///
/// Until the count is killed, each CPU counts for itself, so that CPUs do not contend for it.
///
/// Dropping it kills the count and waits as [`PercpuRef::kill_and_wait`] does; it sleeps.
///
/// # Examples
///
/// ```
/// # use crate::base::percpu_ref::PercpuRef;
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// let users = KBox::pin_init(PercpuRef::new(), GFP_KERNEL)?;
/// // Each I/O is one from its beginning to its end.
/// let user = users.tryget_live().ok_or(ENODEV)?;
/// drop(user);
/// // There are no new ones after this, and none is left.
/// users.kill_and_wait();
/// assert!(users.tryget_live().is_none());
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `count` is initialised, with [`PercpuRef::released`]. Its first reference is given back when
///   `killed` turns from 0 to 1, and not before; each [`User`] is another one.
/// - `gone` is done when no reference is left.
#[pin_data(PinnedDrop)]
pub(crate) struct PercpuRef {
    #[pin]
    gone: Completion,
    killed: Atomic<i32>,
    #[pin]
    count: Opaque<bindings::percpu_ref>,
}

// SAFETY: A `struct percpu_ref` belongs to no thread.
unsafe impl Send for PercpuRef {}
// SAFETY: As above, and its functions may be called by several threads at once.
unsafe impl Sync for PercpuRef {}

impl PercpuRef {
    /// Creates an initialiser of a count without users, which is not killed. May sleep.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        // INVARIANT: `percpu_ref_init` makes the first reference.
        try_pin_init!(Self {
            gone <- Completion::new(),
            killed: Atomic::new(0),
            count <- Opaque::try_ffi_init(|slot: *mut bindings::percpu_ref| {
                // SAFETY: `slot` is valid for writes, and stays in place as `PercpuRef` is pinned.
                to_result(unsafe {
                    bindings::percpu_ref_init(slot, Some(Self::released), 0, bindings::GFP_KERNEL)
                })
            }),
        })
    }

    /// # Safety
    ///
    /// Called by C only, when the last reference of the count of a `PercpuRef` has been given
    /// back.
    unsafe extern "C" fn released(count: *mut bindings::percpu_ref) {
        // SAFETY: By the safety requirements. `Opaque` has the layout of what is in it.
        let users = unsafe { kernel::container_of!(count.cast::<Opaque<_>>(), Self, count) };
        // SAFETY: The `PercpuRef` is not freed before this has made `gone` done, and C does not
        // touch the count afterwards.
        unsafe { (*users).gone.complete_all() };
    }

    /// Returns a new user, or `None` once the count is killed. Any context.
    #[inline]
    pub(crate) fn tryget_live(&self) -> Option<User> {
        // SAFETY: By the type invariants the count is initialised.
        if unsafe { bindings::percpu_ref_tryget_live(self.count.get()) } {
            // INVARIANT: The reference was just taken.
            Some(User(NonNull::from(self)))
        } else {
            None
        }
    }

    /// Kills the count: there are no new users from then on. Can be repeated. Any context but NMI,
    /// and on `PREEMPT_RT` only where preemption is enabled.
    pub(crate) fn kill(&self) {
        if self.killed.xchg(1, Full) == 0 {
            // SAFETY: By the type invariants the count is initialised, and its first reference was
            // not given back yet, as only the first to get here does so.
            unsafe { bindings::percpu_ref_kill(self.count.get()) };
        }
    }

    /// Kills the count and waits until the last user is gone. Can be repeated.
    ///
    /// # Context
    ///
    /// Sleeps, for some milliseconds at least. Hangs if the caller is a user itself.
    pub(crate) fn kill_and_wait(&self) {
        self.kill();
        self.gone.wait_io();
    }
}

#[pinned_drop]
impl PinnedDrop for PercpuRef {
    fn drop(self: Pin<&mut Self>) {
        self.kill_and_wait();
        // SAFETY: By the type invariants the count is initialised, and no reference is left.
        unsafe { bindings::percpu_ref_exit(self.count.get()) };
    }
}

/// A user that a [`PercpuRef`] counts until this is dropped. It may be dropped in any context but
/// NMI, and on `PREEMPT_RT` not in a hard interrupt.
///
/// See [`PercpuRef`] for an example.
///
/// # Invariants
///
/// This is a reference of the count of a `PercpuRef`, which is therefore valid: it is pinned, and
/// dropping it waits for this.
pub(crate) struct User(NonNull<PercpuRef>);

// SAFETY: `PercpuRef` is `Sync`, and its references belong to no thread.
unsafe impl Send for User {}
// SAFETY: `&User` gives access to nothing.
unsafe impl Sync for User {}

impl Drop for User {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariants. It is a place, not a reference, as the `PercpuRef` may be
        // gone before the function returns.
        let count = unsafe { &raw const (*self.0.as_ptr()).count };
        // SAFETY: By the type invariants this is a reference, which is given back here.
        unsafe { bindings::percpu_ref_put(Opaque::cast_into(count)) };
    }
}
