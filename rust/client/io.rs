// SPDX-License-Identifier: GPL-2.0

//! The I/O of a map: its disk, its block driver, and the I/O connections of its paths.

#![forbid(unsafe_code)]

pub(in crate::client) mod bounces;
pub(in crate::client) mod commands;
pub(in crate::client) mod connection;
pub(in crate::client) mod disk;
pub(in crate::client) mod handler;
pub(in crate::client) mod multipath;
pub(in crate::client) mod persistent;
pub(in crate::client) mod protected;
pub(in crate::client) mod slabs;
pub(in crate::client) mod stats;
pub mod tag;
