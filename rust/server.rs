// SPDX-License-Identifier: GPL-2.0

//! The server: its ports listen, sessions come in through them and log in to exports.

#![forbid(unsafe_code)]

use kernel::prelude::*;

mod accept;
mod backend;
pub mod block;
mod control;
mod export;
mod host;
mod loss;
mod members;
pub mod memory;
mod persistent;
mod port;
mod ports;
mod proof;
pub(crate) mod quota;
mod ram;
mod scrub;
mod session;
mod sessions;
mod spec;
pub(crate) mod stats;

pub(crate) use backend::LastClose;
pub(crate) use block::adapter::Connections;
pub(crate) use export::{
    Export,
    ExportMonitor,
    Exports, //
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
    PortMonitor, //
};
pub(crate) use spec::Spec;

/// Makes a list of `count` times `None`. May sleep.
fn none<T>(count: usize) -> Result<KVec<Option<T>>> {
    let mut list = KVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        list.push(None, GFP_KERNEL)?;
    }
    Ok(list)
}
