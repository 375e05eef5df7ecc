// SPDX-License-Identifier: GPL-2.0

//! The parameters of a map.

#![forbid(unsafe_code)]

use kernel::sync::Arc;

use crate::base::errno::ENOKEY;
use crate::client::host::{
    Host,
    Identity, //
};
use crate::link::{
    failure::{
        fail,
        Failure, //
    },
    keys::{
        KeySlot,
        Psk, //
    },
};
use crate::proto::{
    Access,
    Name,
    Protection,
    Uuid, //
};

/// How a map chooses among several paths for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The path whose connection has the fewest work requests in flight.
    MinInflight,
    /// Each path in turn.
    RoundRobin,
}

impl Policy {
    /// Returns the word that configfs shows.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::MinInflight => "min-inflight",
            Self::RoundRobin => "round-robin",
        }
    }

    /// Returns the policy of that name.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::MinInflight, Self::RoundRobin]
            .into_iter()
            .find(|policy| policy.as_str() == word)
    }
}

/// The parameters of a map, which do not change while it is enabled.
pub(crate) struct Params {
    /// This host.
    pub(crate) host: Arc<Host>,
    /// The identity of this host when the map was enabled. Servers find the map by it, also when
    /// one of its paths is connected again.
    pub(crate) identity: Identity,
    /// The name of the map on this host.
    pub(crate) name: Name,
    /// The map's identity at the server.
    pub(crate) uuid: Uuid,
    /// The incarnation of the map: larger each time that a map of this host is enabled; never 0.
    pub(crate) incarnation: u64,
    /// The key that servers must prove, and this host proves, if any. It may change at any time:
    /// connections that are made later use it.
    pub(crate) key: Arc<KeySlot>,
    /// What the user asks for.
    pub(crate) options: Options,
}

impl Params {
    /// Returns the key, if any. Fails with `ENOKEY` if there is none and the protection needs one.
    /// May sleep.
    pub(crate) fn key(&self) -> Result<Option<Arc<Psk>>, Failure> {
        let protection = self.options.protection;
        match self.key.get() {
            None if protection.needs_key() => Err(fail!(
                ENOKEY,
                "protection={protection} needs a key, and the map has none"
            )),
            key => Ok(key),
        }
    }
}

/// What the user asks for. Each field is an attribute in configfs.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// The name of the export.
    pub(crate) export: Name,
    /// The access that the login asks for.
    pub(crate) access: Access,
    /// Number of hardware queues with interrupts; 0 for one per CPU.
    pub(crate) queues: u16,
    /// Number of hardware queues that are polled.
    pub(crate) poll_queues: u16,
    /// Requests in flight per hardware queue.
    pub(crate) depth: u16,
    /// Largest write that is sent with its command, in bytes.
    pub(crate) inline_size: u32,
    /// Protection of the I/O, which has to be that of the export.
    pub(crate) protection: Protection,
    /// Time after which a request is late, in ms.
    pub(crate) io_timeout_ms: u32,
    /// How long I/O waits for a path, in ms; `None` for ever.
    pub(crate) no_path_timeout_ms: Option<u32>,
    /// Interval of the heartbeats, in ms; 0 for none.
    pub(crate) heartbeat_ms: u32,
    /// The longest delay between two attempts to connect, in ms.
    pub(crate) reconnect_max_ms: u32,
    /// How requests choose among paths.
    pub(crate) policy: Policy,
    /// The only instance of the export to accept; `None` for any.
    pub(crate) expect_instance: Option<Uuid>,
}
