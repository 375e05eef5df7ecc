// SPDX-License-Identifier: GPL-2.0

//! One path of a map: its connector, its connections, and its status.

#![forbid(unsafe_code)]

use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::errno::ENOTCONN;
use crate::client::{
    io::connection::Connection,
    map::{
        connect::{
            Attempt,
            ConnectedPath,
            Connector,
            Outcome, //
        },
        status::{
            self,
            PathStatus, //
        },
    },
};
use crate::proto::Text;
use crate::session::{
    map::Fault,
    Epoch, //
};

/// One path of a map. Only the map's work item uses it.
pub(in crate::client) struct Path {
    /// Connects and closes the path; `None` if it is not part of the map.
    connector: Option<Arc<Connector>>,
    /// The connections, while there are any.
    pub(in crate::client) connected: Option<ConnectedPath>,
    /// The status. [`PathStatus::state`] and [`PathStatus::next_try_ms`] are filled in when it is
    /// read.
    pub(in crate::client) status: PathStatus,
    /// When the last ping was sent, if the server has not answered it.
    ping_sent: Option<Instant<Monotonic>>,
    /// The path was up before.
    was_up: bool,
    /// The server has sent an event since the last call of [`Self::has_heard`].
    heard: bool,
    /// The number of completions at the last call of [`Self::has_heard`].
    completions: u64,
}

impl Path {
    /// A path that is not part of the map.
    pub(in crate::client) const NONE: Self = Self {
        connector: None,
        connected: None,
        status: PathStatus::NONE,
        ping_sent: None,
        was_up: false,
        heard: false,
        completions: 0,
    };

    /// Makes a path that `connector` connects.
    pub(in crate::client) fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector: Some(connector),
            status: PathStatus {
                since: Some(Instant::now()),
                ..PathStatus::NONE
            },
            ..Self::NONE
        }
    }

    /// Begins an attempt to connect. May sleep, but does not wait for the outcome.
    pub(in crate::client) fn connect(&self, attempt: Attempt) {
        if let Some(connector) = &self.connector {
            connector.connect(attempt);
        }
    }

    /// Takes the oldest outcome of the connector. May sleep.
    pub(in crate::client) fn take_outcome(&self) -> Option<Outcome> {
        self.connector.as_ref()?.take_outcome()
    }

    /// Begins to close the path, as [`Connector::close`]. May sleep, but does not wait for the
    /// outcomes.
    pub(in crate::client) fn close(&mut self, epoch: Epoch, leave: bool) {
        self.status.since = Some(Instant::now());
        let connected = self.connected.take();
        if let Some(connector) = &self.connector {
            connector.close(epoch, connected, leave);
        }
    }

    /// Notes that I/O takes the path.
    pub(in crate::client) fn set_up(&mut self) {
        let device = self.connected.as_ref().map(ConnectedPath::device);
        self.status.device = device.map(|device| Text::from(device.as_str()));
        self.status.reconnects += u64::from(self.was_up);
        self.status.failure = None;
        self.was_up = true;
        self.ping_sent = None;
        self.heard = true;
    }

    /// Notes that the path is closed because of `fault`.
    pub(in crate::client) fn set_fault(&mut self, fault: Fault) {
        self.status.failure = Some(match &self.connector {
            Some(connector) => status::closed(connector.target.addr, fault),
            None => ENOTCONN.into(),
        });
    }

    /// Notes that a connection was lost, unless the reason is known already.
    pub(in crate::client) fn set_lost(&mut self) {
        if self.status.failure.is_none() {
            self.set_fault(Fault::Broken);
        }
    }

    /// Notes that the server has sent an event.
    pub(in crate::client) fn set_heard(&mut self) {
        self.heard = true;
    }

    /// Returns true if the server has sent an event, or a work request has completed, since the
    /// last call.
    pub(in crate::client) fn has_heard(&mut self) -> bool {
        let Some(connected) = &self.connected else {
            return false;
        };
        let connections = connected.connections.iter();
        let completions = connections.map(Connection::completions).sum();
        let heard = self.heard || completions != self.completions;
        self.completions = completions;
        self.heard = false;
        heard
    }

    /// Sends a ping. May sleep, but does not wait for the answer.
    pub(in crate::client) fn ping(&mut self) {
        // If there is no buffer for it, earlier pings are still being sent, and they will do.
        if self
            .connected
            .as_mut()
            .is_some_and(|path| path.ping().is_ok())
        {
            self.ping_sent.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that the server has answered a ping.
    pub(in crate::client) fn pong(&mut self) {
        if let Some(sent) = self.ping_sent.take() {
            self.status.rtt_ns = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(0);
        }
    }

    /// Returns true if a hardware queue has a late request, and its connection makes no progress.
    /// See [`Connection::is_stuck`].
    pub(in crate::client) fn is_stuck(&self, hw_queue: u16, now: u64, timeout_ms: u64) -> bool {
        let connected = self.connected.as_ref();
        connected
            .and_then(|connected| connected.connections.get(usize::from(hw_queue)))
            .is_some_and(|connection| connection.is_stuck(now, timeout_ms))
    }

    /// Makes receives for the commands that the server allows in flight. May sleep.
    pub(in crate::client) fn grow(&self) {
        if let Some(connected) = &self.connected {
            connected.connections.iter().for_each(Connection::grow);
        }
    }
}
