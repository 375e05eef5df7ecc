// SPDX-License-Identifier: GPL-2.0

//! The server: ports that listen, sessions that log in, exports they use.

#![forbid(unsafe_code)]

mod adapter;
mod backend;
mod clients;
mod command;
mod connections;
mod custody;
mod export;
mod host;
mod poller;
mod pool;
mod port;
mod queue;
mod session;
mod slabs;

pub(crate) use adapter::Adapters;
pub(crate) use backend::Source;
pub(crate) use custody::Keeper;
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
pub(crate) use port::{
    Port,
    PortWatch, //
};
