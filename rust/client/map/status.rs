// SPDX-License-Identifier: GPL-2.0

//! What the user sees of a map and of its paths, and the words for what is wrong with them.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::time::{
    Instant,
    Monotonic, //
};

use crate::base::errno::{
    ENOTCONN,
    ESTALE, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    LoginReply,
    Text, //
};
use crate::session::{
    map::Fault,
    PathState,
    State, //
};

/// The status of a map.
#[derive(Clone, Copy)]
pub(crate) struct Status {
    /// The state.
    pub(crate) state: State,
    /// The name of the disk, once there is one.
    pub(crate) disk: Option<Text>,
    /// The server's description of the export, once a path was up.
    pub(crate) login: Option<LoginReply>,
    /// Why I/O does not flow, or flushes fail.
    pub(crate) failure: Option<Failure>,
    /// When the state changed last.
    pub(crate) since: Instant<Monotonic>,
}

/// The status of a path.
#[derive(Clone, Copy)]
pub(crate) struct PathStatus {
    /// The state.
    pub(crate) state: PathState,
    /// The RDMA device in use.
    pub(crate) device: Option<Text>,
    /// The time that the server took to answer the last ping, in ns.
    pub(crate) rtt_ns: u64,
    /// How often the path came up again.
    pub(crate) reconnects: u64,
    /// Time until the next attempt to connect, in ms.
    pub(crate) next_try_ms: Option<u64>,
    /// Why the path was lost, or could not be connected; `None` while it is up.
    pub(crate) failure: Option<Failure>,
    /// When the path was added or closed last; `None` if it is not part of the map.
    pub(crate) since: Option<Instant<Monotonic>>,
}

impl PathStatus {
    /// The status of a path that is not part of the map.
    pub(in crate::client) const NONE: Self = Self {
        state: PathState::Disabled,
        device: None,
        rtt_ns: 0,
        reconnects: 0,
        next_try_ms: None,
        failure: None,
        since: None,
    };
}

/// Returns the words for a map whose writes were lost with the cache of the server.
pub(super) fn lost_writes() -> Failure {
    fail!(
        EIO,
        "writes were lost with the server's cache: flushes fail until nobody has the disk open"
    )
}

/// Returns the words for a map whose export has other contents than before. Those of a `volatile`
/// export are gone with its instance.
pub(super) fn stale(volatile: bool) -> Failure {
    match volatile {
        true => fail!(
            ESTALE,
            "the contents are gone: the server has another instance of the export"
        ),
        false => fail!(
            ESTALE,
            "the server has another export of this name: its UUID is not the same"
        ),
    }
}

/// Returns the words for a map that was disabled while its server could not be reached.
pub(super) fn untold() -> Failure {
    fail!(
        ENOTCONN,
        "the server could not be told: it keeps the map's place until its lease ends"
    )
}

/// Returns the words for a path to `addr` that is closed because of `fault`.
pub(super) fn closed(addr: SocketAddr, fault: Fault) -> Failure {
    match fault {
        Fault::OtherServer => fail!(
            ESTALE,
            "{addr} is another server than the one that the map is at"
        ),
        Fault::OtherExport => fail!(
            ESTALE,
            "{addr} has another export of this name: its UUID is not the same"
        ),
        Fault::OtherTenure => fail!(
            EACCES,
            "{addr} says that another map has the export, but other paths work"
        ),
        Fault::Overtaken => fail!(
            EAGAIN,
            "the attempt began before the server began anew; it is tried again"
        ),
        Fault::Misfit(why) => fail!(EINVAL, "{why}: the disk needs it; map it anew"),
        Fault::Broken => fail!(ENOTCONN, "the connection to {addr} was lost"),
        Fault::Silent => fail!(ETIMEDOUT, "the server does not answer any more"),
    }
}
