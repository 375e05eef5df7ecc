// SPDX-License-Identifier: GPL-2.0

//! Exports of block devices: commands come in on queues, and pollers carry them out.

#![forbid(unsafe_code)]

pub(in crate::server) mod adapter;
mod command;
pub(in crate::server) mod connections;
mod fifo;
mod protected;
mod queue;
