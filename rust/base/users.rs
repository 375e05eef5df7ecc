// SPDX-License-Identifier: GPL-2.0

//! Counts of users.
//!
//! C header: [`include/linux/percpu-refcount.h`](srctree/include/linux/percpu-refcount.h)

// UPSTREAM: upstream/tree/base/users.rs takes the place of this file, with patches of
// upstream/rust.

#![allow(unsafe_code)]

use crate::base::sync::Completion;
use crate::bindings;
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

/// Counts the users of something, so that the one who takes it away can wait for them; C's
/// `struct percpu_ref`.
///
/// Until the count is shut, each CPU counts for itself, so that CPUs do not contend for it.
///
/// Dropping it shuts it and waits as [`Users::wait`] does; it sleeps.
///
/// # Examples
///
/// ```
/// # use crate::base::users::Users;
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// let users = KBox::pin_init(Users::new(), GFP_KERNEL)?;
/// // Each I/O is one from its beginning to its end.
/// let user = users.get().ok_or(ENODEV)?;
/// drop(user);
/// // There are no new ones after this, and none is left.
/// users.wait();
/// assert!(users.get().is_none());
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `count` is initialised, with [`Users::released`]. Its first reference is given back when
///   `shut` turns from 0 to 1, and not before; each [`User`] is another one.
/// - `gone` is done when no reference is left.
#[pin_data(PinnedDrop)]
pub(crate) struct Users {
    #[pin]
    gone: Completion,
    shut: Atomic<i32>,
    #[pin]
    count: Opaque<bindings::percpu_ref>,
}

// SAFETY: A `struct percpu_ref` belongs to no thread.
unsafe impl Send for Users {}
// SAFETY: As above, and its functions may be called by several threads at once.
unsafe impl Sync for Users {}

impl Users {
    /// Creates an initialiser of a count without users, which is not shut. May sleep.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        // INVARIANT: `percpu_ref_init` makes the first reference.
        try_pin_init!(Self {
            gone <- Completion::new(),
            shut: Atomic::new(0),
            count <- Opaque::try_ffi_init(|slot: *mut bindings::percpu_ref| {
                // SAFETY: `slot` is valid for writes, and stays in place as `Users` is pinned.
                to_result(unsafe {
                    bindings::percpu_ref_init(slot, Some(Self::released), 0, bindings::GFP_KERNEL)
                })
            }),
        })
    }

    /// # Safety
    ///
    /// Called by C only, when the last reference of the count of a `Users` has been given back.
    unsafe extern "C" fn released(count: *mut bindings::percpu_ref) {
        // SAFETY: By the safety requirements. `Opaque` has the layout of what is in it.
        let users = unsafe { kernel::container_of!(count.cast::<Opaque<_>>(), Self, count) };
        // SAFETY: `Users` is not freed before this has made `gone` done, and C does not touch the
        // count afterwards.
        unsafe { (*users).gone.complete_all() };
    }

    /// Returns a new user, or `None` once the count is shut. Any context.
    #[inline]
    pub(crate) fn get(&self) -> Option<User> {
        // SAFETY: By the type invariants the count is initialised.
        if unsafe { bindings::percpu_ref_tryget_live(self.count.get()) } {
            // INVARIANT: The reference was just taken.
            Some(User(NonNull::from(self)))
        } else {
            None
        }
    }

    /// Shuts the count: there are no new users from then on. Can be repeated. Any context.
    pub(crate) fn shut(&self) {
        if self.shut.xchg(1, Full) == 0 {
            // SAFETY: By the type invariants the count is initialised, and its first reference was
            // not given back yet, as only the first to get here does so.
            unsafe { bindings::percpu_ref_kill(self.count.get()) };
        }
    }

    /// Shuts the count and waits until the last user is gone. Can be repeated.
    ///
    /// # Context
    ///
    /// Sleeps, for some milliseconds at least. Hangs if the caller is a user itself.
    pub(crate) fn wait(&self) {
        self.shut();
        self.gone.wait_io();
    }
}

#[pinned_drop]
impl PinnedDrop for Users {
    fn drop(self: Pin<&mut Self>) {
        self.wait();
        // SAFETY: By the type invariants the count is initialised, and no reference is left.
        unsafe { bindings::percpu_ref_exit(self.count.get()) };
    }
}

/// A user that a [`Users`] counts until this is dropped. It may be dropped in any context.
///
/// # Invariants
///
/// This is a reference of the count of a `Users`, which is therefore valid: it is pinned, and
/// dropping it waits for this.
pub(crate) struct User(NonNull<Users>);

// SAFETY: `Users` is `Sync`, and its references belong to no thread.
unsafe impl Send for User {}
// SAFETY: `&User` gives access to nothing.
unsafe impl Sync for User {}

impl Drop for User {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariants. It is a place, not a reference, as the `Users` may be
        // gone before the function returns.
        let count = unsafe { &raw const (*self.0.as_ptr()).count };
        // SAFETY: By the type invariants this is a reference, which is given back here.
        unsafe { bindings::percpu_ref_put(Opaque::cast_into(count)) };
    }
}

/// Keeps the code of this module for those who are about to leave it: waits for them when it drops.
///
/// A callback that drops a [`User`], completes something or releases a lock as its last step lets
/// the task go on that unloads the module. But then it has yet to return, and it may be preempted
/// before it does. (For interrupts and softirqs the kernel waits by itself.)
///
/// To be dropped after all else of the module. Sleeps for a grace period, up to some seconds.
pub(crate) struct CodeUsers;

impl Drop for CodeUsers {
    fn drop(&mut self) {
        // SAFETY: Sleeping is allowed where modules are unloaded. It waits until every task has
        // slept of its own accord, or was in user space: callbacks do not sleep after that last
        // step.
        unsafe { bindings::farblk_synchronize_rcu_tasks() };
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_users)]
mod tests {
    use super::*;
    use crate::{
        base::workqueue::OwnedQueue, //
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        sync::Arc,
        workqueue::{
            Work,
            WorkItem, //
        },
    };

    /// Waits for users in a task of its own.
    #[pin_data]
    struct Waiter {
        #[pin]
        users: Users,
        #[pin]
        done: Completion,
        #[pin]
        work: Work<Waiter>,
    }

    impl_has_work! {
        impl HasWork<Self> for Waiter { self.work }
    }

    impl WorkItem for Waiter {
        type Pointer = Arc<Self>;

        fn run(this: Arc<Self>) {
            this.users.wait();
            this.done.complete();
        }
    }

    #[test]
    fn users_come_until_shut() -> Result {
        let users = KBox::pin_init(Users::new(), GFP_KERNEL)?;
        let first = users.get();
        let second = users.get();
        check!(first.is_some() && second.is_some());
        users.shut();
        users.shut();
        check!(users.get().is_none());
        drop((first, second));
        users.wait();
        users.wait();
        check!(users.get().is_none());
        Ok(())
    }

    #[test]
    fn users_are_waited_for() -> Result {
        let waiter = Arc::pin_init(
            try_pin_init!(Waiter {
                users <- Users::new(),
                done <- Completion::new(),
                work <- new_work!("Waiter::work"),
            }? Error),
            GFP_KERNEL,
        )?;
        let queue = OwnedQueue::ordered(c"farblk_kunit")?;
        let first = waiter.users.get();
        let second = waiter.users.get();
        check!(queue.enqueue(waiter.clone()).is_ok());
        check!(waiter.done.wait_timeout(100) == Err(ETIMEDOUT));
        drop(first);
        check!(waiter.done.wait_timeout(100) == Err(ETIMEDOUT));
        drop(second);
        check!(waiter.done.wait_timeout(10_000) == Ok(()));
        Ok(())
    }

    #[test]
    fn users_that_nobody_used_go_at_once() -> Result {
        let users = KBox::pin_init(Users::new(), GFP_KERNEL)?;
        drop(users);
        let users = KBox::pin_init(Users::new(), GFP_KERNEL)?;
        users.wait();
        Ok(())
    }
}
