// SPDX-License-Identifier: GPL-2.0

//! What a login asks for, and how it is answered.

#![forbid(unsafe_code)]

use crate::session::{Epoch, PathId, ReservationKey};

/// Names a session of the server; never 0, and never used again.
pub type SessionId = u64;
/// The life of a map: its host, the map, the boot of the host, and the incarnation of the map.
pub(super) type Life<H> = (H, u128, u64, u64);

/// What a login says of itself, and what the export's administrator says of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Login<H> {
    /// The session that logs in.
    pub session: SessionId,
    /// Its host, as the administrator tells hosts apart: one never takes the place of another.
    pub host: H,
    /// The map, among those of the host.
    pub map: u128,
    /// Random for each life of the host's kernel.
    pub boot: u64,
    /// Larger each time that a map of the host is enabled, as long as `boot` is the same.
    pub incarnation: u64,
    /// The key to resume; `None` if the map was never let in since it was enabled.
    pub resume: Option<ReservationKey>,
    /// Index of the path.
    pub path: PathId,
    /// Epoch of the path.
    pub epoch: Epoch,
    /// Whether the map wants to write.
    pub writes: bool,
    /// How long the map holds I/O without a path, in ms; `None` for ever.
    pub no_path_timeout_ms: Option<u32>,
    /// How often the client gives a sign of life, in ms; 0 if it promises none.
    pub heartbeat_ms: u32,
    /// The number of messages that the session has had so far.
    pub heard: u64,
}

/// What a login was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The key of the registration.
    pub key: ReservationKey,
    /// Whether the server knew the key that the login resumes.
    pub remembered: bool,
    /// The lease of the registration.
    pub lease_ms: u32,
}

/// Why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The export is being disabled, or was enabled anew since the login came.
    Closed,
    /// The epoch of the path is over, or a newer life of the map or of its host is in.
    Superseded,
    /// Another map had the export since, or the administrator took it away.
    Evicted,
    /// As many maps are registered as may be; the number of the registration that is the oldest.
    Busy(u64),
}

/// How a login goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The path is up.
    Grant(Granted),
    /// This session was told to end; the login has to be judged again when it is over.
    After(SessionId),
    /// The login is refused.
    Refuse(Reason),
}

impl<H: Copy> Login<H> {
    /// The life of the map that logs in.
    pub(super) fn life(&self) -> Life<H> {
        (self.host, self.map, self.boot, self.incarnation)
    }
}
