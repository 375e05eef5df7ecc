// SPDX-License-Identifier: GPL-2.0

//! What is reported to the machine of a map.

#![forbid(unsafe_code)]

use super::admission::{Admission, Extent};
use crate::session::{clock::Timer, Epoch, PathId};

/// Why an attempt to connect ended without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The next one may do better.
    Transient,
    /// The server does not let this map in, or not any more.
    Denied,
}

/// How a path was drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drained {
    /// All its requests have come back.
    Clean,
    /// The device did not do it: requests may come back until the path is closed.
    Unclean,
}

/// Whether a server has heard on a path that the map leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// There was no server to tell: none had let the map in, or the map goes on.
    NotNeeded,
    /// A server had let the map in, and did not confirm that the map leaves.
    NoAnswer,
    /// This server has confirmed it.
    Server(u128),
}

/// What happened. What is about an epoch of a path means nothing once that epoch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The user wants a path.
    Add(PathId),
    /// The user does not want it any more.
    Remove(PathId),
    /// The user wants the map no more.
    Disable,
    /// The disk has appeared.
    Appeared,
    /// A timer other than [`Timer::Heartbeat`] has elapsed.
    Elapsed(Timer),
    /// [`Timer::Heartbeat`] of a path has elapsed; whether anything was heard on the path since the
    /// last time.
    Heartbeat(PathId, bool),
    /// A path is connected, and carried no I/O yet.
    Connected {
        /// The path.
        path: PathId,
        /// Its epoch.
        epoch: Epoch,
        /// What the server says on it.
        admission: Admission,
        /// How long ago the client sent the last login or ping that the server has answered on a
        /// path that was let in, in ms; 0 if there was none.
        silent_ms: u32,
    },
    /// A path could not be connected; nothing of the attempt is left.
    Refused(PathId, Epoch, Failure),
    /// A path broke, or does not answer, or does not keep to the protocol.
    Lost(PathId, Epoch),
    /// The server has answered a ping on a path.
    Pong(PathId, Epoch),
    /// The server tells of the extent on a path.
    Extent(PathId, Epoch, Extent),
    /// The server tells on a path that it has flushed the device of the export, after the last
    /// command of all paths.
    Flushed {
        /// The path.
        path: PathId,
        /// Its epoch.
        epoch: Epoch,
        /// The instance of the export.
        instance: u128,
        /// The number of its extent.
        number: u32,
    },
    /// The first answer to [`Close`](super::Action::Close): the path touches no memory any more, if
    /// it is clean.
    /// `requeued` says whether any requests of lost paths have come back and were not sent again.
    Drained {
        /// The path.
        path: PathId,
        /// Its epoch.
        epoch: Epoch,
        /// How it was drained.
        how: Drained,
        /// There are requeued requests.
        requeued: bool,
    },
    /// The second answer to [`Close`](super::Action::Close): nothing of the path is left.
    Closed {
        /// The path.
        path: PathId,
        /// Whether a server has heard on it that the map leaves.
        told: Told,
        /// There are requeued requests.
        requeued: bool,
    },
    /// The server said on a path, `via`, that no I/O of `path` up to `epoch` will reach the export.
    Fenced {
        /// The path on which that was said.
        via: PathId,
        /// The path that is fenced.
        path: PathId,
        /// Its last epoch that is.
        epoch: Epoch,
    },
    /// There was no room to send what [`Fence`](super::Action::Fence) asked for on a path.
    FenceNotSent(PathId),
    /// The answer to [`Replay`](super::Action::Replay).
    Replayed {
        /// Every requeued request was sent and is complete.
        done: bool,
    },
    /// A request that was replayed has ended; `answered` if the server answered it, else it was
    /// requeued.
    ReplayEnded {
        /// The server answered it.
        answered: bool,
    },
    /// A request came back and was requeued, while I/O fails.
    Requeued,
}
