// SPDX-License-Identifier: GPL-2.0

//! What tasks and interrupts share, and what a task may wait for.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)\
//! C header: [`include/linux/sched/signal.h`](srctree/include/linux/sched/signal.h)

#![allow(unsafe_code)]

use core::marker::PhantomData;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full, //
        },
        Arc, //
    },
};

use crate::bindings;

pub(crate) use super::{
    completion::Completion,
    random::{
        random_bytes,
        random_u64, //
    },
    spinlock::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};

/// Completes a [`Completion`] when it is dropped. The last field of a struct, it tells that all the
/// other fields are dropped.
///
/// # Examples
///
/// ```
/// # use crate::base::sync::Released;
/// # use kernel::{prelude::*, sync::Arc};
/// struct Session {
///     name: KVec<u8>,
///     // Last: when it drops, all else of the session is gone.
///     released: Released,
/// }
///
/// fn end(session: Arc<Session>) {
///     let released = session.released.completion();
///     drop(session);
///     // Others may still have references.
///     released.wait();
/// }
/// ```
pub(crate) struct Released(Arc<Completion>);

impl Released {
    /// Makes the completion. May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Arc::pin_init(Completion::new(), GFP_KERNEL)?))
    }

    /// Returns the completion. Any context.
    pub(crate) fn completion(&self) -> Arc<Completion> {
        self.0.clone()
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// Calls `f`. While it runs, allocations of this task do not wait for I/O, which might wait for
/// this task (`GFP_NOIO`).
///
/// # Context
///
/// Tasks only.
pub(crate) fn without_io<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: Both change a flag of this task only, and `f` comes back here: a panic does not
    // unwind.
    let flags = unsafe { bindings::memalloc_noio_save() };
    let value = f();
    // SAFETY: As above; the flags are those from before.
    unsafe { bindings::memalloc_noio_restore(flags) };
    value
}

/// Calls `f`. While it runs, allocations of this task may use the memory that the system reserves
/// for tasks that free memory (`PF_MEMALLOC`), and do not wait for memory to be freed. They fail if
/// there is none.
///
/// Only for work without which I/O cannot go on, as memory may not become free before that.
///
/// # Context
///
/// Tasks only.
pub(crate) fn with_reserves<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: Both change a flag of this task only, and `f` comes back here: a panic does not
    // unwind.
    let flags = unsafe { bindings::memalloc_noreclaim_save() };
    let value = f();
    // SAFETY: As above; the flags are those from before.
    unsafe { bindings::memalloc_noreclaim_restore(flags) };
    value
}

/// A place for a box, which functions take out and put back.
///
/// # Examples
///
/// ```
/// # use crate::base::sync::Place;
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// // A spare buffer that interrupts may take: they cannot wait for memory.
/// let spare = Place::new(KBox::new([0u8; 64], GFP_KERNEL)?);
/// if let Some(buffer) = spare.take() {
///     let _ = spare.put(buffer);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// The pointer is null, or from [`KBox::into_raw`] and nobody else's.
pub(crate) struct Place<T: Send>(Atomic<*mut T>, PhantomData<T>);

impl<T: Send> Place<T> {
    /// Returns an empty place.
    pub(crate) fn empty() -> Self {
        // INVARIANT: It is null.
        Self(Atomic::new(core::ptr::null_mut()), PhantomData)
    }

    /// Returns a place with `value` in it.
    pub(crate) fn new(value: KBox<T>) -> Self {
        // INVARIANT: It comes from `into_raw`.
        Self(Atomic::new(KBox::into_raw(value)), PhantomData)
    }

    fn swap(&self, value: *mut T) -> Option<KBox<T>> {
        let past = self.0.xchg(value, Full);
        // SAFETY: By the type invariants it comes from `into_raw`, and it was taken out.
        (!past.is_null()).then(|| unsafe { KBox::from_raw(past) })
    }

    /// Takes out the box, if there is one. Any context.
    #[inline]
    pub(crate) fn take(&self) -> Option<KBox<T>> {
        self.swap(core::ptr::null_mut())
    }

    /// Puts `value` in, and returns the box that was there before. Any context.
    #[inline]
    pub(crate) fn put(&self, value: KBox<T>) -> Option<KBox<T>> {
        // INVARIANT: It comes from `into_raw`.
        self.swap(KBox::into_raw(value))
    }
}

impl<T: Send> Drop for Place<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Returns true if the current task was killed. Any context. For functions that a task of user
/// space calls and that take long.
pub(crate) fn fatal_signal_pending() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::farblk_fatal_signal_pending() }
}

/// Returns true if a signal waits for the current task. Any context. For functions that may end
/// early and return what they have.
pub(crate) fn signal_pending() -> bool {
    kernel::current!().signal_pending()
}

/// Returns true if no other task waits for this CPU, so that one that only looks whether there is
/// something to do may go on. Any context.
pub(crate) fn may_look_on() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::farblk_may_look_on() }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_sync)]
mod tests {
    use super::*;
    use crate::{
        base::owned_queue::{
            OwnedQueue,
            WqFlags, //
        },
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        sync::atomic::Relaxed,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// A lock, two completions, and a task that uses them.
    #[pin_data]
    struct Shared {
        #[pin]
        value: IrqSaveSpinLock<u32>,
        #[pin]
        go: Completion,
        #[pin]
        done: Completion,
        #[pin]
        work: Work<Shared>,
    }

    impl_has_work! {
        impl HasWork<Self> for Shared { self.work }
    }

    impl WorkItem for Shared {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            this.go.wait();
            *this.value.lock() += 1;
            this.done.complete();
        }
    }

    impl Shared {
        fn new() -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    value <- new_irqsave_spinlock!(0),
                    go <- Completion::new(),
                    done <- Completion::new(),
                    work <- new_work!("Shared::work"),
                }),
                GFP_KERNEL,
            )
        }
    }

    #[test]
    fn spinlock_has_one_holder() -> Result {
        let shared = Shared::new()?;
        let mut guard = shared.value.lock();
        let second = shared.value.try_lock().is_some();
        *guard = 7;
        drop(guard);
        check!(!second);
        let value = shared.value.try_lock().map(|value| *value);
        check!(value == Some(7));
        // Both ways of taking it were undone.
        check!(*shared.value.lock() == 7);
        Ok(())
    }

    /// It is a debug kernel that complains, if interrupts are not as they should be.
    #[test]
    fn spinlock_disables_interrupts_and_restores_what_was() -> Result {
        let outer = Arc::pin_init(new_irqsave_spinlock!(()), GFP_KERNEL)?;
        let inner = Arc::pin_init(new_irqsave_spinlock!(()), GFP_KERNEL)?;
        let guard = outer.lock();
        drop(inner.lock());
        drop(inner.try_lock());
        // SAFETY: The function has no requirements.
        unsafe { bindings::lockdep_assert_irqs_disabled() };
        drop(guard);
        let guard = outer.try_lock();
        // SAFETY: As above.
        unsafe { bindings::lockdep_assert_irqs_disabled() };
        drop(guard);
        // SAFETY: As above.
        unsafe { bindings::farblk_might_sleep() };
        Ok(())
    }

    /// Released in the order in which they were taken.
    #[test]
    fn spinlocks_are_released_in_any_order() -> Result {
        let first = Arc::pin_init(new_irqsave_spinlock!(()), GFP_KERNEL)?;
        let second = Arc::pin_init(new_irqsave_spinlock!(()), GFP_KERNEL)?;
        let outer = first.lock();
        let inner = second.lock();
        drop(outer);
        // SAFETY: The function has no requirements.
        let disabled = unsafe { bindings::farblk_irqs_disabled() };
        drop(inner);
        // SAFETY: As above.
        let enabled = unsafe { !bindings::farblk_irqs_disabled() };
        // Or the tests that follow would not be able to sleep.
        // SAFETY: Interrupts are enabled in a task that may sleep.
        unsafe { bindings::farblk_irqs_enable() };
        check!(disabled && enabled);
        Ok(())
    }

    #[test]
    fn completion_times_out_until_it_is_done() -> Result {
        let shared = Shared::new()?;
        check!(shared.go.wait_timeout(1) == Err(ETIMEDOUT));
        check!(shared.go.wait_timeout(0) == Err(ETIMEDOUT));
        shared.go.complete();
        check!(shared.go.wait_timeout(0) == Ok(()));
        // It let one pass.
        check!(shared.go.wait_timeout(0) == Err(ETIMEDOUT));
        shared.go.complete();
        shared.go.complete();
        shared.go.wait();
        check!(shared.go.wait_timeout(0) == Ok(()));
        check!(shared.go.wait_timeout(0) == Err(ETIMEDOUT));
        Ok(())
    }

    #[test]
    fn completion_lets_all_pass_until_it_is_made_anew() -> Result {
        let shared = Shared::new()?;
        shared.go.complete_all();
        for _ in 0..3 {
            shared.go.wait();
            check!(shared.go.is_done());
            check!(shared.go.wait_timeout(0) == Ok(()));
            check!(shared.go.wait_killable() == Ok(()));
        }
        shared.go.reinit();
        check!(shared.go.wait_timeout(0) == Err(ETIMEDOUT));
        Ok(())
    }

    #[test]
    fn completion_wakes_another_task() -> Result {
        let shared = Shared::new()?;
        let queue = OwnedQueue::new_ordered(c"farblk_kunit", WqFlags::MEM_RECLAIM)?;
        check!(queue.enqueue(shared.clone()).is_ok());
        check!(shared.done.wait_timeout(20) == Err(ETIMEDOUT));
        check!(*shared.value.lock() == 0);
        shared.go.complete();
        check!(shared.done.wait_timeout(10_000) == Ok(()));
        check!(*shared.value.lock() == 1);
        check!(queue.enqueue(shared.clone()).is_ok());
        shared.go.complete();
        check!(shared.done.wait_killable() == Ok(()));
        check!(*shared.value.lock() == 2);
        Ok(())
    }

    /// Notes at its drop whether the completion is not done yet.
    struct Early(Arc<Completion>, Arc<Atomic<u32>>);

    impl Drop for Early {
        fn drop(&mut self) {
            let early = self.0.wait_timeout(0).is_err();
            self.1.store(early.into(), Relaxed);
        }
    }

    struct Owner {
        _field: Early,
        _released: Released,
    }

    #[test]
    fn released_completes_after_the_other_fields() -> Result {
        let early = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let released = Released::new()?;
        let completion = released.completion();
        let owner = Owner {
            _field: Early(completion.clone(), early.clone()),
            _released: released,
        };
        check!(completion.wait_timeout(0) == Err(ETIMEDOUT));
        drop(owner);
        check!(completion.wait_timeout(0) == Ok(()));
        check!(early.load(Relaxed) == 1);
        Ok(())
    }

    #[test]
    fn random_numbers_differ() -> Result {
        let (mut first, mut second) = ([0; 32], [0; 32]);
        random_bytes(&mut first);
        random_bytes(&mut second);
        check!(first != second && first != [0; 32]);
        check!(random_u64() != random_u64());
        Ok(())
    }
}
