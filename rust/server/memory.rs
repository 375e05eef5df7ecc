// SPDX-License-Identifier: GPL-2.0

//! The memory of the server for the data of commands, and the number of its receives.

#![forbid(unsafe_code)]

pub(in crate::server) mod account;
pub mod arbiter;
pub mod buddy;
pub(in crate::server) mod budget;
pub mod overdue;
mod pieces;
pub(in crate::server) mod pool;
pub mod receives;
pub mod share;
pub(in crate::server) mod state;
