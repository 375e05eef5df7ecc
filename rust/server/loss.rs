// SPDX-License-Identifier: GPL-2.0

//! Why the server ends sessions, as the kernel log says it.

#![forbid(unsafe_code)]

/// Why the server ends a session.
#[derive(Clone, Copy)]
pub(super) enum Loss {
    /// Nothing was heard of the client for too long.
    Silent,
    /// The map or its host has connected anew, or another path of the map had this one fenced.
    Replaced,
    /// The administrator has changed what the client may do.
    Denied,
    /// Another map has taken away its right by a persistent reservation.
    Preempted,
    /// The client broke the protocol.
    Violation,
    /// What came was not what the client has sent.
    Forgery,
    /// The client's HCA kept memory for too long that others wait for.
    Overdue,
    /// The device of the export is gone, or has no room.
    Unavailable,
    /// The administrator disables the port.
    Closed,
}

impl Loss {
    /// Returns the words of the kernel log; `None` for what its reader has done, or need not know.
    pub(super) fn words(self) -> Option<&'static str> {
        Some(match self {
            Self::Silent => "nothing was heard of it for too long",
            Self::Denied => "the administrator has ended its session",
            Self::Preempted => "preempted by a persistent reservation",
            Self::Violation => "it broke the protocol",
            Self::Forgery => "what it sent was changed on its way",
            Self::Overdue => "its HCA is overdue, and others wait for memory",
            Self::Unavailable => "the export is unavailable",
            Self::Replaced | Self::Closed => return None,
        })
    }
}
