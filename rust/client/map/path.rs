// SPDX-License-Identifier: GPL-2.0

//! One path of a map, as its session knows it.

#![forbid(unsafe_code)]

use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::sync;
use crate::client::map::{
    connect::Route,
    connected::Path,
    owner::Params, //
};
use crate::link::failure::Failure;
use crate::proto::{
    Query,
    Text, //
};
use crate::session::{
    backoff::Backoff,
    doubt::Doubts,
    pulse::Pulse,
    Epoch,
    PathState,
    PATHS_MAX, //
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

/// One path, as the workqueue knows it.
pub(in crate::client) struct Lane {
    /// Who connects and closes it, while it is wanted.
    pub(in crate::client) route: Option<Arc<Route>>,
    /// While it is up.
    pub(in crate::client) path: Option<Path>,
    /// The time between attempts.
    pub(in crate::client) backoff: Backoff,
    /// Whether the server is there.
    pub(in crate::client) pulse: Pulse,
    /// The next attempt, in ms since the session began.
    pub(in crate::client) retry_at: Option<u64>,
    /// The end of the period in which something is to be heard.
    pub(in crate::client) beat_at: Option<u64>,
    /// When the last question for life was asked, if it was not answered.
    pub(in crate::client) asked: Option<Instant<Monotonic>>,
    /// Fences of other paths that are to be asked for, by path: up to which epoch, or 0.
    pub(in crate::client) fences: [Epoch; PATHS_MAX],
    /// What the route has still to drain, and to close.
    pub(in crate::client) draining: u32,
    pub(in crate::client) closing: u32,
    /// It was up before.
    pub(in crate::client) was_up: bool,
    /// The last question for life, in ms since the session began.
    pub(in crate::client) pinged_at: u64,
    /// The completions that were seen at the last beat.
    pub(in crate::client) completions: u64,
    /// Something was heard since the last beat.
    pub(in crate::client) heard: bool,
    /// Commands that the server did not know of when it was asked.
    pub(in crate::client) doubts: Doubts<Query>,
    /// The last epoch that was lost.
    pub(in crate::client) lost: Epoch,
    /// An attempt has ended since the path was wanted.
    pub(in crate::client) tried: bool,
    /// What others may know.
    pub(in crate::client) status: PathStatus,
}

impl Lane {
    /// A path that nobody wants.
    pub(in crate::client) const NONE: Self = Self {
        route: None,
        path: None,
        backoff: Backoff::new(),
        pulse: Pulse::new(),
        retry_at: None,
        beat_at: None,
        asked: None,
        fences: [0; PATHS_MAX],
        draining: 0,
        closing: 0,
        was_up: false,
        pinged_at: 0,
        completions: 0,
        heard: false,
        doubts: Doubts::new(),
        lost: 0,
        tried: false,
        status: PathStatus::NONE,
    };

    /// Milliseconds until the next attempt; fewer if it is `urgent`.
    pub(in crate::client) fn pause(&mut self, params: &Params, urgent: bool) -> u64 {
        // CAST: Any bits will do.
        let random = sync::random_u64() as u32;
        let most_ms = params.reconnect_max_ms;
        self.backoff.next(most_ms, urgent, random).into()
    }

    /// Has the route close a path, or an attempt.
    pub(in crate::client) fn close(&mut self, epoch: Epoch, path: Option<Path>, leave: bool) {
        if let Some(route) = &self.route {
            self.draining += 1;
            self.closing += 1;
            route.close(epoch, path, leave);
        }
    }
}
