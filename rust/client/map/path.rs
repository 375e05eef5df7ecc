// SPDX-License-Identifier: GPL-2.0

//! One path of a map, as its session knows it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::errno::{
    ENOTCONN,
    ESTALE, //
};
use crate::client::map::{
    connect::Route,
    connected::Path, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::Text;
use crate::session::{
    map::Fault,
    PathState, //
};

/// What others may know of a path.
#[derive(Clone, Copy)]
pub(crate) struct PathStatus {
    /// Where it stands.
    pub(crate) state: PathState,
    /// The RDMA device in use.
    pub(crate) device: Option<Text>,
    /// How long the server took for the last heartbeat, in ns.
    pub(crate) rtt_ns: u64,
    /// How often it came up again.
    pub(crate) reconnects: u64,
    /// When the next attempt will be made, in ms from now.
    pub(crate) next_try_ms: Option<u64>,
    /// Why it was lost, or could not be brought up; `None` while it is up.
    pub(crate) failure: Option<Failure>,
    /// When it was lost, or began to be wanted; `None` if it is not.
    pub(crate) since: Option<Instant<Monotonic>>,
}

impl PathStatus {
    /// That of a path that nobody wants.
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

/// One path, as the session's work item knows it: what there is to act on, and to show.
pub(in crate::client) struct Lane {
    /// Who connects and closes it, while it is wanted.
    pub(in crate::client) route: Option<Arc<Route>>,
    /// While it is connected.
    pub(in crate::client) path: Option<Path>,
    /// When the last ping was sent, if it was not answered.
    pub(in crate::client) asked: Option<Instant<Monotonic>>,
    /// It was up before.
    pub(in crate::client) was_up: bool,
    /// The completions that were seen at the last heartbeat.
    pub(in crate::client) completions: u64,
    /// Something was heard since the last heartbeat.
    pub(in crate::client) heard: bool,
    /// What others may know.
    pub(in crate::client) status: PathStatus,
}

impl Lane {
    /// A path that nobody wants.
    pub(in crate::client) const NONE: Self = Self {
        route: None,
        path: None,
        asked: None,
        was_up: false,
        completions: 0,
        heard: false,
        status: PathStatus::NONE,
    };

    /// What the user is told of a lost connection.
    pub(in crate::client) fn lost(&self) -> Failure {
        match &self.route {
            Some(route) => fail!(ENOTCONN, "the connection to {} was lost", route.target.addr),
            None => ENOTCONN.into(),
        }
    }

    /// What the user is told of a path that is let go of.
    pub(in crate::client) fn blame(&self, fault: Fault) -> Failure {
        let Some(route) = &self.route else {
            return ENOTCONN.into();
        };
        let addr = route.target.addr;
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
            Fault::Broken => self.lost(),
            Fault::Silent => fail!(ETIMEDOUT, "the server does not answer any more"),
        }
    }
}
