// SPDX-License-Identifier: GPL-2.0

//! The client: maps, each a session with a server and a disk.

#![forbid(unsafe_code)]

mod commands;
mod control;
mod discovery;
mod disk;
mod io;
mod lane;
mod path;
mod queue;
mod route;
mod session;
mod shell;
mod slabs;

pub(crate) use control::Target;
pub(crate) use discovery::discover;
pub(crate) use io::Policy;
pub(crate) use lane::PathStatus;
pub(crate) use session::{
    Params,
    Session,
    Status, //
};
