// SPDX-License-Identifier: GPL-2.0

//! Sessions: what becomes of I/O while paths come and go, as pure functions from events to states
//! and actions. The page `sessions.rst` has the whole.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests. The code around it in `client` and `server` posts events and performs the actions.

#![forbid(unsafe_code)]

pub mod account;
pub mod budget;
pub mod chunks;
pub mod clock;
pub mod flush;
pub mod half_open;
pub mod map;
pub mod persistent;
pub mod quota;
pub mod reservation;
pub mod stranger;

use core::fmt;

/// Index of a path in its map, below [`PATHS_MAX`].
pub type PathId = u8;
/// How often a path was connected: all that is done on it carries the number.
pub type Epoch = u64;
/// The key of a map's registration with an export: it is valid until another map has the export.
pub type ReservationKey = u64;

/// Paths of a map.
pub const PATHS_MAX: usize = 8;

/// Where a map stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not connected and not asked to be.
    Disabled,
    /// Connecting for the first time.
    Connecting,
    /// The device does I/O.
    Live,
    /// No path is up, or what one left behind is not settled: I/O waits.
    Reconnecting,
    /// I/O waited for too long: it fails until a path is up.
    Failed,
    /// The contents are not those that were there before, or that were expected: I/O fails.
    Stale,
    /// Another map has the export: I/O fails.
    Evicted,
}

impl State {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Disabled,
        Self::Connecting,
        Self::Live,
        Self::Reconnecting,
        Self::Failed,
        Self::Stale,
        Self::Evicted,
    ];

    /// The word that configfs shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Reconnecting => "reconnecting",
            Self::Failed => "failed",
            Self::Stale => "stale",
            Self::Evicted => "evicted",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Not connected and not asked to be.
    Disabled,
    /// An attempt is under way.
    Connecting,
    /// It carries I/O.
    Live,
    /// The next attempt will be made in a while.
    Waiting,
    /// It was lost or is not wanted any more; its queue pairs are being drained.
    Closing,
}

impl PathState {
    /// The word that configfs shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Waiting => "waiting",
            Self::Closing => "closing",
        }
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
