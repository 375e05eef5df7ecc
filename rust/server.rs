// SPDX-License-Identifier: GPL-2.0

//! The server: ports that listen, sessions that log in, exports they use.

#![forbid(unsafe_code)]

mod backend;
mod block;
mod export;
mod host;
mod members;
pub mod memory;
mod port;
mod ram;
mod session;
pub(crate) mod stats;

pub(crate) use backend::Source;
pub(crate) use block::adapter::Adapters;
pub(crate) use export::{
    Export,
    Exports,
    Ports,
    Spec,
    Watch, //
};
pub(crate) use host::{
    Host,
    Hosts, //
};
pub(crate) use members::{
    HostKey,
    Members, //
};
pub(crate) use port::{
    Port,
    PortWatch, //
};
