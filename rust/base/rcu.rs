// SPDX-License-Identifier: GPL-2.0

//! A shared value that is read often and replaced rarely.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

// UPSTREAM: upstream/tree/base/rcu.rs takes the place of this file, with patches of upstream/rust.

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

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_rcu)]
mod tests {
    use super::*;
    use crate::{
        base::sync::Completion,
        base::workqueue::OwnedQueue, //
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        prelude::*,
        sync::atomic::Relaxed,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// Counts those of its kind that exist.
    struct Counted(Arc<Atomic<i32>>, u32);

    impl Counted {
        fn new(count: &Arc<Atomic<i32>>, number: u32) -> Result<Arc<Self>> {
            count.fetch_add(1, Relaxed);
            Ok(Arc::new(Self(count.clone(), number), GFP_KERNEL)?)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    fn number(slot: &RcuSlot<Counted>) -> Option<u32> {
        slot.get().map(|value| value.1)
    }

    #[test]
    fn slot_has_what_was_put_in_last() -> Result {
        let count = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let slot = RcuSlot::empty();
        check!(number(&slot).is_none());
        check!(slot.replace(None).is_none());
        check!(slot.replace(Some(Counted::new(&count, 1)?)).is_none());
        check!(number(&slot) == Some(1));
        let old = slot.replace(Some(Counted::new(&count, 2)?));
        check!(old.as_ref().map(|old| old.1) == Some(1) && number(&slot) == Some(2));
        drop(old);
        check!(count.load(Relaxed) == 1);
        let old = slot.replace(None);
        check!(old.is_some_and(|old| old.1 == 2) && number(&slot).is_none());
        check!(count.load(Relaxed) == 0);
        Ok(())
    }

    /// Reads a slot in a task of its own.
    #[pin_data]
    struct Reader {
        place: RcuSlot<Counted>,
        left: Atomic<i32>,
        #[pin]
        got: Completion,
        #[pin]
        work: Work<Reader>,
    }

    impl_has_work! {
        impl HasWork<Self> for Reader { self.work }
    }

    impl WorkItem for Reader {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            let value = this.place.get();
            this.got.complete();
            for _ in 0..50 {
                kernel::time::delay::udelay(kernel::time::Delta::from_millis(1));
            }
            this.left.store(1, Relaxed);
            drop(value);
        }
    }

    #[test]
    fn who_replaces_waits_for_who_reads() -> Result {
        let count = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let reader = Arc::pin_init(
            pin_init!(Reader {
                place: RcuSlot::empty(),
                left: Atomic::new(0),
                got <- Completion::new(),
                work <- new_work!("Reader::work"),
            }),
            GFP_KERNEL,
        )?;
        reader.place.replace(Some(Counted::new(&count, 1)?));
        let queue = OwnedQueue::ordered(c"farblk_kunit")?;
        check!(queue.enqueue(reader.clone()).is_ok());
        reader.got.wait();
        let old = reader.place.replace(None);
        check!(reader.left.load(Relaxed) == 1);
        drop(old);
        check!(count.load(Relaxed) == 0);
        Ok(())
    }
}
