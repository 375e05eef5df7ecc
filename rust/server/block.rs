// SPDX-License-Identifier: GPL-2.0

//! Exports of block devices: commands come in on connections, and pollers carry them out.

#![forbid(unsafe_code)]

pub(in crate::server) mod adapter;
mod command;
mod connection;
pub(in crate::server) mod connections;
mod credit;
mod line;
mod poller;
mod protected;
mod reception;
mod recv;
mod turn;
pub mod vigil;
mod waiting;
