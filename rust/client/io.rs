// SPDX-License-Identifier: GPL-2.0

//! The I/O of a map: from its disk to the connections of its paths, and back.

#![forbid(unsafe_code)]

pub(in crate::client) mod connection;
pub(in crate::client) mod disk;
pub(in crate::client) mod ledger;
pub(in crate::client) mod slabs;
pub mod tag;
mod tags;
