// SPDX-License-Identifier: GPL-2.0

//! The server: ports that listen, sessions that log in, exports they use.

#![forbid(unsafe_code)]

mod export;
mod host;
mod port;
mod session;

pub(crate) use export::{
    Export,
    Exports,
    Ports,
    Spec, //
};
pub(crate) use host::{
    Host,
    Hosts, //
};
pub(crate) use port::Port;
