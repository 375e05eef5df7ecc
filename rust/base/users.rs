// SPDX-License-Identifier: GPL-2.0

//! Users of the code of this module.

#![allow(unsafe_code)]

use crate::bindings;

/// Keeps the code of this module for those who are about to leave it: waits for them when it drops.
///
/// A callback that drops a reference, completes something or releases a lock as its last step lets
/// the task go on that unloads the module. But then it has yet to return, and it may be preempted
/// before it does. (For interrupts and softirqs the kernel waits by itself.)
///
/// To be dropped after all else of the module. Sleeps for a grace period, up to some seconds.
///
/// # Examples
///
/// ```
/// # use crate::base::users::CodeUsers;
/// /// A module, whose fields drop in this order.
/// struct Driver<T> {
///     devices: T,
///     _code: CodeUsers,
/// }
/// ```
pub(crate) struct CodeUsers;

impl Drop for CodeUsers {
    fn drop(&mut self) {
        // SAFETY: Sleeping is allowed where modules are unloaded. It waits until every task has
        // slept of its own accord, or was in user space: callbacks do not sleep after that last
        // step.
        unsafe { bindings::farblk_synchronize_rcu_tasks() };
    }
}
