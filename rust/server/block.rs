// SPDX-License-Identifier: GPL-2.0

//! Exports of block devices: commands come in on connections, pollers carry them out.

#![forbid(unsafe_code)]

pub(in crate::server) mod adapter;
pub(in crate::server) mod command;
pub(in crate::server) mod connection;
pub(in crate::server) mod connections;
pub(in crate::server) mod poller;
