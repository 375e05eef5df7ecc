// SPDX-License-Identifier: GPL-2.0

//! Random numbers, those of the kernel crate.

pub(crate) use kernel::random::{
    get_random_bytes as random_bytes,
    get_random_u64 as random_u64, //
};
