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

/// Counts the groups of a subsystem, so that it is not unregistered before those that `mkdir(2)`
/// made are gone, and its owner does not end before all are.
#[pin_data]
pub(super) struct Registration {
    #[pin]
    users: SpinLock<Users>,
    /// Done when only the lasting users are left, and there can be no more.
    #[pin]
    idle: Completion,
    /// Done when these are gone, too.
    #[pin]
    gone: Completion,
}

struct Users {
    count: usize,
    /// The users that stay until the subsystem is unregistered.
    lasting: usize,
    closed: bool,
}

impl Registration {
    /// Creates a registration without users. Sleeps.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                users <- new_spinlock!(Users {
                    count: 0,
                    lasting: 0,
                    closed: false,
                }),
                idle <- Completion::new(),
                gone <- Completion::new(),
            }),
            GFP_KERNEL,
        )
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

    /// Makes the users that there are lasting: those of the root, and of its default groups.
    pub(super) fn keep_users(&self) {
        let mut users = self.users.lock();
        users.lasting = users.count;
    }

    /// Closes the registration: no more can join, and it waits until only lasting users are left.
    /// Sleeps.
    pub(super) fn close(&self) {
        let count = {
            let mut users = self.users.lock();
            users.closed = true;
            users.count - users.lasting
        };
        if count > 0 {
            pr_warn!("configfs: waiting until {count} directories are removed\n");
            self.idle.wait();
        }
    }

    /// Waits until the lasting users of a closed registration are gone. Sleeps.
    pub(super) fn wait(&self) {
        if self.users.lock().count > 0 {
            self.gone.wait();
        }
    }
}

/// One count of a [`Registration`].
pub(super) struct User(Arc<Registration>);

impl Clone for User {
    fn clone(&self) -> Self {
        self.0.users.lock().count += 1;
        Self(self.0.clone())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut users = self.0.users.lock();
        users.count -= 1;
        if users.closed && users.count == users.lasting {
            self.0.idle.complete_all();
        }
        if users.closed && users.count == 0 {
            self.0.gone.complete_all();
        }
    }
}
