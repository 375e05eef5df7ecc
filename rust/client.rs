// SPDX-License-Identifier: GPL-2.0

//! The client: maps exports of other hosts as disks.
//!
//! A file imports only files below it in this list, but that `io/queue` gives requests back to
//! `io/multipath`:
//!
//! - `map`: a map and its work item, with `runtime`, `connect` and `stats` below it.
//! - `io/disk` and `io/multipath`: the disk of a map, and its block driver with the counters.
//! - `io/queue`: one I/O connection, with `io/protected`, `io/bounces`, `io/slabs` and
//!   `io/persistent` below it.
//! - `discovery`: what a server is asked without a login.
//! - `control`: control connections.
//! - `target`: the address of a server, and how a connection to it is made.
//! - `deadline`: how long an attempt to connect may take.
//! - `events`: the mailbox of a map, which all the files above post to.
//! - `params` and `host`: the parameters of a map, and this host.

#![forbid(unsafe_code)]

mod control;
mod deadline;
mod discovery;
mod events;
pub(crate) mod host;
pub mod io;
mod map;
mod params;
mod target;

pub(crate) use discovery::{
    discover,
    Pings,
    INTERVAL_MAX_US,
    PINGS_MAX, //
};
pub(crate) use map::{
    Files as MapFiles,
    Map,
    PathStatus,
    Status, //
};
pub(crate) use params::{
    Options,
    Params,
    Policy, //
};
pub(crate) use target::Target;
