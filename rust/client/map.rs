// SPDX-License-Identifier: GPL-2.0

//! One map: its session with the server, and its paths.

#![forbid(unsafe_code)]

pub(in crate::client) mod connect;
pub(in crate::client) mod connected;
pub(in crate::client) mod owner;
pub(in crate::client) mod path;
mod runtime;
