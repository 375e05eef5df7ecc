// SPDX-License-Identifier: GPL-2.0

//! Locks, completions and random numbers that the kernel crate lacks.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)\
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)\
//! C header: [`include/linux/random.h`](srctree/include/linux/random.h)

#![allow(unsafe_code)]

use kernel::{
    ffi::{
        c_char,
        c_ulong, //
    },
    prelude::*,
    sync::lock::{
        Backend,
        Lock, //
    },
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
    types::Opaque,
};

use crate::bindings;

/// A spinlock that saves and disables the interrupts of this CPU while it is held.
///
/// Unlike [`kernel::sync::SpinLock`] the same lock may be taken by a task, by a softirq (such as a
/// completion queue's) and by an interrupt handler.
pub(crate) type IrqSaveSpinLock<T> = Lock<T, IrqSaveSpinLockBackend>;

/// Creates an [`IrqSaveSpinLock`] initialiser with the given name and a new lock class.
///
/// Without a name it uses the file name and the line number.
macro_rules! new_irqsave_spinlock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::IrqSaveSpinLock::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_irqsave_spinlock;

/// A `spinlock_t` taken by `spin_lock_irqsave`.
pub(crate) struct IrqSaveSpinLockBackend;

// SAFETY: `spinlock_t` ensures mutual exclusion. `relock` is the default one, which calls `lock`.
unsafe impl Backend for IrqSaveSpinLockBackend {
    type State = bindings::spinlock_t;
    /// The interrupt state to restore.
    type GuardState = c_ulong;

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: By the safety requirements `ptr` is valid for writes, and `name` and `key` stay
        // valid for reads.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: By the safety requirements `ptr` points at an initialised lock.
        unsafe { bindings::spin_lock_irqsave(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: By the safety requirements `ptr` points at an initialised lock; `flags` is valid
        // for a write.
        unsafe { bindings::spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState) {
        // SAFETY: By the safety requirements the caller owns the lock; `guard_state` is what taking
        // it returned.
        unsafe { bindings::spin_unlock_irqrestore(ptr, *guard_state) }
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: By the safety requirements `ptr` points at an initialised lock.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}

/// Signals once that something is done; like [`kernel::sync::Completion`], but with timeouts.
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

    /// Wakes one waiter, or lets the next one pass. Any context.
    pub(crate) fn complete(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::complete(self.inner.get()) }
    }

    /// Wakes all waiters and lets all later ones pass, until [`Completion::reinit`]. Any context.
    pub(crate) fn complete_all(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::complete_all(self.inner.get()) }
    }

    /// Makes it not done again. A concurrent `complete` or wait may or may not be forgotten.
    pub(crate) fn reinit(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::reinit_completion(self.inner.get()) }
    }

    /// Waits until it is done. Sleeps; no signal ends it.
    pub(crate) fn wait(&self) {
        // SAFETY: The completion is initialised and in place while `self` is borrowed.
        unsafe { bindings::wait_for_completion(self.inner.get()) }
    }

    /// Waits at most `timeout` milliseconds, then gives [`ETIMEDOUT`]. Sleeps; no signal ends it.
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

/// A random number fit for secrets. Any context.
pub(crate) fn random_u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::get_random_u64() }
}

/// Fills `buffer` with random bytes fit for secrets. Any context.
pub(crate) fn random_bytes(buffer: &mut [u8]) {
    // SAFETY: `buffer` is valid for writes of its length.
    unsafe { bindings::get_random_bytes(buffer.as_mut_ptr().cast(), buffer.len()) }
}
