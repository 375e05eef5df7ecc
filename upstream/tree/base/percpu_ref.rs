// SPDX-License-Identifier: GPL-2.0

//! Counts of users, those of the kernel crate.

pub(crate) use kernel::sync::percpu_ref::{
    User,
    Users, //
};
