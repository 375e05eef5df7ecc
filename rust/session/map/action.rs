// SPDX-License-Identifier: GPL-2.0

//! What the machine of a map asks for.

#![forbid(unsafe_code)]

use super::admission::Extent;
use crate::session::{
    clock::{Delay, Timer},
    Epoch, PathId, ReservationKey,
};

/// Why a path that was connected is let go of at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It leads to another server.
    OtherServer,
    /// It leads to another export of that name.
    OtherExport,
    /// The server does not remember the map, which may have lost the export to another one.
    OtherReservation,
    /// The attempt to connect began before another path learned what the server says now.
    Overtaken,
    /// The disk cannot do its I/O over it.
    Misfit(&'static str),
    /// It broke before it was up.
    Broken,
    /// The server did not answer any more.
    Silent,
}

/// What the code around the machine is to do. A path is meant with its current epoch, unless the
/// action names another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A timer is to run; if it runs already, the earlier of both ends counts.
    Arm(Timer, Delay),
    /// [`Timer::Lease`] is to run, for so many ms. They count from when the client sent the last
    /// login or ping that the server has answered.
    ArmLease(u32),
    /// A timer is not to run any more.
    Disarm(Timer),
    /// Connect a path; ends with [`Connected`](super::Event::Connected) or
    /// [`Refused`](super::Event::Refused).
    Connect {
        /// The path.
        path: PathId,
        /// Its new epoch.
        epoch: Epoch,
        /// The reservation key to resume, if the map was let in before.
        resume: Option<ReservationKey>,
        /// I/O waits for it.
        urgent: bool,
    },
    /// Let I/O take a path that was connected.
    Open(PathId),
    /// Let I/O take a path no more, and let go of the path, or of the attempt; ends with
    /// [`Drained`](super::Event::Drained) and then [`Closed`](super::Event::Closed).
    Close {
        /// The path.
        path: PathId,
        /// Its epoch.
        epoch: Epoch,
        /// Tell the server that the map leaves it.
        leave: bool,
    },
    /// A path is about to be closed for this reason.
    Blame(PathId, Fault),
    /// Send a ping on a path.
    Ping(PathId),
    /// Ask the server, on the first path, for a fence of the second one.
    Fence {
        /// The path to ask on; it is up.
        via: PathId,
        /// The path to fence.
        path: PathId,
        /// Its newest epoch that had I/O.
        epoch: Epoch,
    },
    /// Treat I/O in this way from now on.
    SetMode(Mode),
    /// Send the requeued requests again, as many as there is room for; ends with
    /// [`Replayed`](super::Event::Replayed).
    Replay,
    /// End the requeued requests with an error.
    FailRequeued,
    /// The export has another instance than before: writes that are complete and not flushed may be
    /// gone. No path to the one before is left.
    InstanceChanged,
    /// The server has flushed: the writes that are complete last.
    Flushed,
    /// The extent of the export is this now.
    Resize(Extent),
}

/// How I/O is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It waits, and so do requeued requests.
    Hold,
    /// Requeued requests are sent on paths that are up; all other I/O waits.
    Replay,
    /// It is sent on paths that are up.
    Flow,
    /// It fails, and so do requeued requests.
    Fail,
}

/// Why a session cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The contents of the export are not those that were there before.
    Stale,
    /// Another map has the export.
    Evicted,
    /// The user has disabled the map.
    Disabled,
}

/// Whether a server knows that a map which was disabled has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Farewell {
    /// The server knows it, or keeps no place for the map.
    Told,
    /// The server could not be told: it keeps the map's place until the lease ends.
    Untold,
}
