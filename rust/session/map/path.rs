// SPDX-License-Identifier: GPL-2.0

//! What the machine of a map knows of one path.

#![forbid(unsafe_code)]

use crate::session::{
    clock::{Backoff, Heartbeat},
    Epoch, PathId, ReservationKey,
};

/// How far a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// There is nothing, and nothing is to be.
    Off,
    /// To be connected.
    Due,
    /// To be connected later.
    Waiting,
    /// An attempt is under way.
    Connecting,
    /// I/O may take it.
    Up,
    /// Its memory is still in use.
    Closing,
}

/// The state of a fence that a path owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FenceRequest {
    /// It was not asked for.
    None,
    /// It is to be asked for on this path as soon as there is room.
    Unsent(PathId),
    /// It was asked for on this path.
    Sent(PathId),
}

/// A path.
///
/// # Invariants
///
/// - `fenced <= epoch` and `used <= epoch`.
/// - While the path is up, `used == epoch` and `fenced == epoch - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    /// The user wants it.
    pub(super) wanted: bool,
    pub(super) phase: Phase,
    /// The last epoch that was given out; 0 for none.
    pub(super) epoch: Epoch,
    /// The last one that may have carried I/O.
    pub(super) used: Epoch,
    /// No I/O of this one and those before it will reach the export any more.
    pub(super) fenced: Epoch,
    /// Whether the fence that it owes was asked for.
    pub(super) fence: FenceRequest,
    /// The attempt that is under way broke already.
    pub(super) broken: bool,
    /// Something was answered on it since it came up.
    pub(super) proven: bool,
    /// It was up since it is wanted.
    pub(super) was_up: bool,
    /// An attempt has ended since it is wanted.
    pub(super) tried: bool,
    /// The device did not drain it.
    pub(super) unclean: bool,
    /// It leads to another server.
    pub(super) foreign: bool,
    /// The reservation key and the instance that the map knew when the attempt to connect began.
    pub(super) asked: Option<(ReservationKey, u128)>,
    /// What was asked to be drained, and to be closed, and is not yet.
    pub(super) draining: u8,
    pub(super) closing: u8,
    pub(super) backoff: Backoff,
    pub(super) heartbeat: Heartbeat,
}

impl Path {
    /// A path that the user does not want.
    pub(super) const NONE: Self = Self {
        wanted: false,
        phase: Phase::Off,
        epoch: 0,
        used: 0,
        fenced: 0,
        fence: FenceRequest::None,
        broken: false,
        proven: false,
        was_up: false,
        tried: false,
        unclean: false,
        foreign: false,
        asked: None,
        draining: 0,
        closing: 0,
        backoff: Backoff::new(),
        heartbeat: Heartbeat::new(true),
    };

    /// Returns true if I/O may take it.
    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Returns true if I/O that the client has given up may still reach the export.
    pub(super) fn owes_fence(&self) -> bool {
        !self.is_up() && self.fenced < self.used
    }

    /// Returns true if requests that were sent on it may still be about to come back.
    pub(super) fn owes_requests(&self) -> bool {
        self.unclean || self.phase == Phase::Closing && self.used == self.epoch
    }
}
