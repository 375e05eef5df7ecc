// SPDX-License-Identifier: GPL-2.0

//! Memory of the server for the data of commands, and receives for the commands themselves.

#![forbid(unsafe_code)]

pub mod buddy;
pub(in crate::server) mod pool;
pub mod receives;
