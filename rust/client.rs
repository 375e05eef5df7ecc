// SPDX-License-Identifier: GPL-2.0

//! The client: maps, each a session with a server and a disk.

#![forbid(unsafe_code)]

mod control;
mod discovery;
pub(crate) mod host;
pub mod io;
mod map;

pub(crate) use control::Target;
pub(crate) use discovery::discover;
pub(crate) use io::ledger::Policy;
pub(crate) use map::{
    owner::{
        Params,
        Session,
        Status, //
    },
    path::PathStatus, //
};
