// SPDX-License-Identifier: GPL-2.0

//! The I/O of a map: its disk, its block driver, and the queues of its paths.

#![forbid(unsafe_code)]

pub(in crate::client) mod bounces;
pub(in crate::client) mod disk;
pub(in crate::client) mod multipath;
mod persistent;
mod protected;
pub(in crate::client) mod queue;
pub(in crate::client) mod slabs;
