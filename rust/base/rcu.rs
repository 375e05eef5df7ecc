// SPDX-License-Identifier: GPL-2.0

//! A shared value that is read often and replaced rarely.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

// UPSTREAM: upstream/tree/base/rcu.rs takes the place of this file, with patch 0002 of
// upstream/rust.

#![allow(unsafe_code)]

use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::{
        null_mut,
        NonNull, //
    },
};

use kernel::sync::{
    atomic::{
        Acquire,
        Atomic,
        Full, //
    },
    rcu::Guard,
    Arc, //
};

use crate::bindings;

/// A place for an [`Arc`], or for none.
///
/// A reader takes no lock and counts no reference. A task that replaces the `Arc` waits until no
/// reader uses the old one any more.
///
/// # Examples
///
/// ```
/// # use crate::base::rcu::RcuSlot;
/// struct Path {
///     depth: u32,
/// }
///
/// /// Called for each I/O. Must not sleep while it has the path.
/// fn depth(current: &RcuSlot<Path>) -> u32 {
///     current.get().map_or(0, |path| path.depth)
/// }
///
/// /// Called when a path is lost: afterwards no I/O uses it, so it may drop here.
/// fn lose(current: &RcuSlot<Path>) {
///     drop(current.replace(None));
/// }
/// ```
///
/// # Invariants
///
/// The pointer is null, or from [`Arc::into_raw`] with the reference that this gave away. Only
/// [`RcuSlot::replace`] takes a pointer out while there are readers, and gives the reference up
/// only after a grace period.
pub(crate) struct RcuSlot<T: Send + Sync>(Atomic<*mut T>, PhantomData<Arc<T>>);

impl<T: Send + Sync> RcuSlot<T> {
    /// Returns an empty slot.
    pub(crate) const fn empty() -> Self {
        // INVARIANT: It is null.
        Self(Atomic::new(null_mut()), PhantomData)
    }

    /// Returns the value, if there is one. Any context. The caller must not sleep until the result
    /// is dropped.
    #[inline]
    pub(crate) fn get(&self) -> Option<RcuRef<'_, T>> {
        let guard = Guard::new();
        // INVARIANT: The slot had it when `guard` was there already.
        Some(RcuRef {
            value: NonNull::new(self.0.load(Acquire))?,
            _guard: guard,
            _slot: PhantomData,
        })
    }

    /// Puts `new` in, and returns the old value. When this returns, no reader uses the old value
    /// any more.
    ///
    /// # Context
    ///
    /// Sleeps for a grace period, some tens of milliseconds, if there was something. The caller
    /// must not hold a result of [`Self::get`], as for every function that sleeps: where RCU
    /// readers can be preempted this hangs, and lockdep reports it; elsewhere the result is not
    /// protected any more.
    pub(crate) fn replace(&self, new: Option<Arc<T>>) -> Option<Arc<T>> {
        let new = new.map_or(null_mut(), |new| Arc::into_raw(new).cast_mut());
        // INVARIANT: It is null or comes from `into_raw`, and the old one is given up below only.
        let old = NonNull::new(self.0.xchg(new, Full))?;
        // SAFETY: The function has no requirements beyond the context.
        unsafe { bindings::synchronize_rcu() };
        // SAFETY: By the type invariants it is from `into_raw`; it was taken out, so that nobody
        // else gives the reference up, and after the grace period no reader has it.
        Some(unsafe { Arc::from_raw(old.as_ptr()) })
    }
}

impl<T: Send + Sync> Drop for RcuSlot<T> {
    fn drop(&mut self) {
        let value = self.0.load(Acquire);
        if !value.is_null() {
            // SAFETY: By the type invariants it is from `into_raw`, with its reference. There is no
            // `RcuRef` left, as each borrows the slot.
            drop(unsafe { Arc::from_raw(value) });
        }
    }
}

/// A value that is in an [`RcuSlot`], or was replaced just now. It holds the RCU read lock: its
/// owner must not sleep until it is dropped.
///
/// See [`RcuSlot`] for an example.
///
/// # Invariants
///
/// `value` was in the slot when `_guard` was there already: by the invariants of `RcuSlot` the
/// reference of the slot is there until this is dropped.
pub(crate) struct RcuRef<'a, T: Send + Sync> {
    value: NonNull<T>,
    _guard: Guard,
    _slot: PhantomData<&'a RcuSlot<T>>,
}

impl<T: Send + Sync> Deref for RcuRef<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariants it is valid as long as this is there.
        unsafe { self.value.as_ref() }
    }
}
