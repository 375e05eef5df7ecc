// SPDX-License-Identifier: GPL-2.0

//! Workqueues that a value owns, those of the kernel crate.

pub(crate) use kernel::workqueue::{
    OwnedQueue,
    WqFlags, //
};
