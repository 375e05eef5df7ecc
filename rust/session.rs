// SPDX-License-Identifier: GPL-2.0

//! The states of a map's session and the legal moves between them, as a pure function.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests. The shell in `client` posts events and performs what the new state asks for.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod export;
pub mod map;
pub mod pulse;

use core::fmt;

/// Index of a path in its map, below [`PATHS_MAX`].
pub type PathId = u8;
/// How often a path was connected: all that is done on it carries the number.
pub type Epoch = u64;
/// What a map has an export under, as long as nobody else had it.
pub type Tenure = u64;

/// Paths of a map.
pub const PATHS_MAX: usize = 8;

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected and not asked to be.
    Disabled,
    /// Connecting, logging in, collecting grants.
    Connecting,
    /// The device does I/O.
    Live,
    /// The connection was lost: the device fails its I/O.
    Failed,
    /// The server's contents are not those that were expected.
    Stale,
}

/// What happens to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The user enables the map.
    Enable,
    /// The path is up and the disk is there.
    Connected,
    /// The path could not be brought up.
    Refused,
    /// The server's instance is not the expected one.
    InstanceDiffers,
    /// The connection broke.
    Lost,
    /// The user disables the map; the disk is gone.
    Disable,
}

impl State {
    /// All states, for the tests.
    pub const ALL: [Self; 5] = [
        Self::Disabled,
        Self::Connecting,
        Self::Live,
        Self::Failed,
        Self::Stale,
    ];

    /// The state after `event`; `None` if the event has no meaning here and changes nothing.
    pub const fn next(self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Disabled | Self::Stale, Event::Enable) => Some(Self::Connecting),
            (Self::Connecting, Event::Connected) => Some(Self::Live),
            (Self::Connecting, Event::Refused) => Some(Self::Disabled),
            (Self::Connecting, Event::InstanceDiffers) => Some(Self::Stale),
            (Self::Connecting | Self::Live, Event::Lost) => Some(Self::Failed),
            (Self::Live | Self::Failed | Self::Stale, Event::Disable) => Some(Self::Disabled),
            _ => None,
        }
    }

    /// The word that configfs shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Failed => "failed",
            Self::Stale => "stale",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
