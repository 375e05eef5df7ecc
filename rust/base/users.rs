// SPDX-License-Identifier: GPL-2.0

//! Users of what may go away: of a value, and of the code of this module.

#![allow(unsafe_code)]

use crate::bindings;

pub(crate) use super::percpu_ref::{
    User,
    Users, //
};

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
        base::{
            completion::Completion,
            workqueue::OwnedQueue, //
        },
        kunit::check,
    };
    use kernel::{
        impl_has_work, new_work,
        prelude::*,
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
