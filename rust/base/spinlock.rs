// SPDX-License-Identifier: GPL-2.0

//! A spinlock that is also taken where interrupts are disabled.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

// UPSTREAM: upstream/tree/base/spinlock.rs takes the place of this file: the kernel crate has
// `SpinLockIrq`, but 7.2 does not.

#![allow(unsafe_code)]

use kernel::{
    ffi::c_char,
    sync::lock::{
        Backend,
        Lock, //
    },
};

use crate::bindings;

/// A spinlock that disables the interrupts of this CPU while it is held.
///
/// Unlike [`kernel::sync::SpinLock`] the same lock may be taken by a task, by a softirq (such as a
/// completion queue's) and by an interrupt handler.
///
/// Several may be released in any order: each CPU counts how many it holds, and releasing the last
/// one restores the interrupts as they were before the first one. (The kernel crate's `SpinLockIrq`
/// does the same, but 7.2 does not have it.)
///
/// # Examples
///
/// ```
/// # use crate::base::sync::{new_irqsave_spinlock, IrqSaveSpinLock};
/// # use kernel::prelude::*;
/// /// What a task adds to, and a completion queue takes from.
/// #[pin_data]
/// struct Credits {
///     #[pin]
///     free: IrqSaveSpinLock<u32>,
/// }
///
/// impl Credits {
///     fn new(free: u32) -> impl PinInit<Self> {
///         pin_init!(Self {
///             free <- new_irqsave_spinlock!(free, "Credits::free"),
///         })
///     }
///
///     fn add(&self) {
///         *self.free.lock() += 1;
///     }
/// }
/// ```
pub(crate) type IrqSaveSpinLock<T> = Lock<T, IrqSaveSpinLockBackend>;

/// Creates an [`IrqSaveSpinLock`] initialiser with the given name and a new lock class.
///
/// Without a name it uses the file name and the line number.
macro_rules! new_irqsave_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::base::spinlock::IrqSaveSpinLock::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_irqsave_spinlock;

/// A `spinlock_t` taken with interrupts disabled.
///
/// See [`IrqSaveSpinLock`] for an example.
pub(crate) struct IrqSaveSpinLockBackend;

// SAFETY: `spinlock_t` ensures mutual exclusion. `relock` is the default one, which calls `lock`.
unsafe impl Backend for IrqSaveSpinLockBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the safety requirements `ptr` is valid for writes, and `name` and `key` stay
        // valid for reads.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: By the safety requirements `ptr` points at an initialised lock.
        unsafe { bindings::farblk_spin_lock(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: By the safety requirements `ptr` points at an initialised lock.
        unsafe { bindings::farblk_spin_trylock(ptr) }.then_some(())
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, (): &Self::GuardState) {
        // SAFETY: By the safety requirements the caller owns the lock. Guards stay in the context
        // that took them, and that on its CPU while interrupts are disabled.
        unsafe { bindings::farblk_spin_unlock(ptr) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By the safety requirements `ptr` points at an initialised lock.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
