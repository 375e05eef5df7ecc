// SPDX-License-Identifier: GPL-2.0

//! Counts of users, those of the kernel crate. Its block devices have them; here they are tested.

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
pub(crate) use kernel::sync::percpu_ref::PercpuRef;
