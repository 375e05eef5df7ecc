// SPDX-License-Identifier: GPL-2.0

//! What a reservation asks for, and what it has to know of the administrator's rules.

#![forbid(unsafe_code)]

use super::login::SessionId;

/// What the code around a [`Reservation`](super::Reservation) is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Tell a session to end: its queue pairs, its I/O and its memory regions. Ends with
    /// [`Reservation::left`](super::Reservation::left).
    End(SessionId),
    /// Have a session ask again for the fences that it waits for.
    Retry(SessionId),
    /// Start the lease of a registration, in ms; [`Reservation::lapse`](super::Reservation::lapse)
    /// when it is over.
    Arm(u64, u32),
    /// Stop it.
    Disarm(u64),
    /// Count a map that took the place of one whose lease was over.
    CountTakeover,
    /// Count a map that was evicted by the administrator.
    CountEviction,
    /// Count a client from which nothing was heard for too long.
    CountKeepAliveTimeout,
}

/// What the administrator says of a host now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It is not admitted, or any more.
    None,
    /// It may read.
    Read,
    /// It may read and write.
    Write,
}

impl Admission {
    /// Returns whether a map that wants to write, or not, may do so.
    pub const fn writes(self, wanted: bool) -> bool {
        wanted && matches!(self, Self::Write)
    }
}
