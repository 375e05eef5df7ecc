// SPDX-License-Identifier: GPL-2.0

//! A path that is connected: its control connection and its I/O connections.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    io::{
        connection::Connection,
        disk::DiskLimits,
        multipath::Connections, //
    },
};
use crate::link::failure::Failure;
use crate::proto::{
    Event,
    Fence,
    Ping, //
};
use crate::rdma::device::Name as DeviceName;
use crate::session::{
    map::{
        Admission,
        Drained,
        Extent,
        Told, //
    },
    Epoch,
    PathId, //
};

/// How long a map that leaves waits for the answer to its logout, in ms. A task that forces the end
/// waits for it, then up to 5 s for the device to drain the path, and some 20 ms for each of 64
/// queue pairs that do not drain: all that takes less than 10 s.
const FAREWELL_TIMEOUT_MS: u32 = 2_000;

/// A path that is connected.
pub(in crate::client) struct ConnectedPath {
    // The I/O connections are dropped before the control connection, which ends the session on the
    // server.
    /// The I/O connections.
    pub(in crate::client) connections: Arc<Connections>,
    pub(super) control: ControlConnection,
    /// The epoch of the path.
    pub(in crate::client) epoch: Epoch,
    /// What the path can do for a disk.
    pub(in crate::client) limits: DiskLimits,
    /// The time that the server took for its first answer, in ms.
    pub(super) first_answer_ms: u32,
}

impl ConnectedPath {
    /// Returns what `session::map` has to know of the server, the export and the path.
    pub(in crate::client) fn admission(&self) -> Admission {
        let login = &self.limits.login;
        Admission {
            server: login.server(),
            export: u128::from_be_bytes(*login.export_uuid.as_bytes()),
            instance: u128::from_be_bytes(*login.instance.as_bytes()),
            volatile: login.geometry().is_some(),
            reservation_key: login.reservation_key,
            lease_ms: login.lease_ms,
            remembered: login.remembered,
            extent: Extent {
                number: login.extent_number,
                size: login.extent.size,
                writable: login.extent.access.writes(),
            },
            limits: self.limits.to_compare(),
        }
    }

    /// Returns the next event that the server has sent, if there is one. May sleep, but does not
    /// wait for the server.
    pub(in crate::client) fn event(&mut self) -> Result<Option<Event>, Failure> {
        self.control.event()
    }

    /// Asks the server for a fence of another path. Gives `EAGAIN` if there is no buffer for the
    /// message. May sleep, but does not wait for the answer.
    pub(in crate::client) fn fence(&mut self, path: PathId, epoch: Epoch) -> Result {
        let fence = Fence { path, epoch };
        self.control
            .post(|sequence, buf| fence.encode(sequence, buf))
    }

    /// Sends a ping, which the server has to answer. Gives `EAGAIN` if there is no buffer for the
    /// message. May sleep, but does not wait for the answer.
    pub(in crate::client) fn ping(&mut self) -> Result {
        self.control
            .post(|sequence, buf| Ping.encode(sequence, buf))
    }

    /// Returns the name of the RDMA device.
    pub(in crate::client) fn device(&self) -> DeviceName {
        self.control.channel().pd().device().name()
    }

    /// Tells the server that the map leaves. May sleep.
    pub(super) fn log_out(&mut self) -> Told {
        let deadline = Deadline::start().sooner(FAREWELL_TIMEOUT_MS);
        let server = self.limits.login.server();
        self.control.log_out(server, deadline)
    }

    /// Ends all requests with an error. If the result is clean, nothing touches their memory any
    /// more; otherwise the other requests come back when the path is dropped. May sleep.
    pub(super) fn drain(&self) -> Drained {
        // All connections fail before the first is waited for, so that the HCA has one time to
        // drain all of them. Nothing is said by the control connection any more.
        self.control.channel().fail();
        self.connections.iter().for_each(Connection::fail);
        let drained = self.connections.iter().map(Connection::drain);
        match drained.fold(Ok(()), Result::and) {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Unclean,
        }
    }
}
