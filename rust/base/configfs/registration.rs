// SPDX-License-Identifier: GPL-2.0

//! The groups that keep a subsystem registered.

use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};

use crate::base::{
    errno::ESHUTDOWN,
    sync::Completion, //
};

/// Counts the groups that `mkdir(2)` made in a subsystem, so that it is not unregistered before
/// they are gone.
#[pin_data]
pub(super) struct Registration {
    #[pin]
    users: SpinLock<Users>,
    /// Done when there are no users and can be no more.
    #[pin]
    idle: Completion,
}

struct Users {
    count: usize,
    closed: bool,
}

impl Registration {
    /// Creates an initialiser of a registration without users.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            users <- new_spinlock!(Users {
                count: 0,
                closed: false,
            }),
            idle <- Completion::new(),
        })
    }

    /// Adds a user. Fails with [`ESHUTDOWN`] if the registration is closed.
    pub(super) fn join(self: &Arc<Self>) -> Result<User> {
        let mut users = self.users.lock();
        if users.closed {
            return Err(ESHUTDOWN);
        }
        users.count += 1;
        Ok(User(self.clone()))
    }

    /// Closes the registration: there are no new users, and it waits until the last one is gone.
    /// Sleeps.
    pub(super) fn close(&self) {
        let count = {
            let mut users = self.users.lock();
            users.closed = true;
            users.count
        };
        if count > 0 {
            pr_warn!("configfs: waiting until {count} directories are removed\n");
            self.idle.wait();
        }
    }
}

/// One count of a [`Registration`].
pub(super) struct User(Arc<Registration>);

impl Drop for User {
    fn drop(&mut self) {
        let mut users = self.0.users.lock();
        users.count -= 1;
        if users.closed && users.count == 0 {
            self.0.idle.complete_all();
        }
    }
}
