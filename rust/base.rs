// SPDX-License-Identifier: GPL-2.0

//! What the driver needs of the kernel beside RDMA and the block layer: locks, work, timers,
//! configfs, debugfs.
//!
//! Nothing here knows farblk, RDMA or block devices.

#![allow(unsafe_code)]

pub(crate) mod bounce;
pub(crate) mod clock;
pub(crate) mod compat;
pub(crate) mod completion;
pub(crate) mod configfs;
pub(crate) mod contents;
pub(crate) mod crypto;
pub(crate) mod debugfs;
pub(crate) mod errno;
#[cfg(farblk_samples)]
pub(crate) mod file;
pub(crate) mod free;
#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
mod kunit;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod net;
pub(crate) mod owned_queue;
#[cfg(farblk_samples)]
pub(crate) mod param;
pub(crate) mod percpu_ref;
pub(crate) mod periodic;
pub(crate) mod random;
pub(crate) mod ratelimit;
pub(crate) mod rcu;
pub(crate) mod scatterlist;
pub(crate) mod spinlock;
pub(crate) mod sync;
pub(crate) mod timer;
pub(crate) mod trace;
pub(crate) mod tracepoint;
pub(crate) mod users;
pub(crate) mod workqueue;
