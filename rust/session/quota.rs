// SPDX-License-Identifier: GPL-2.0

//! What one client host may have of what the server has for all of them.
//!
//! An *account* is a host that has an entry, or all hosts together that have none. A host has at
//! most half of the sessions, half of the memory for I/O connections, and half of the registrants
//! of persistent reservations; the hosts without an entry have a quarter. So one host leaves a
//! quarter to others, also if it comes under its name and under names that it invents. More is
//! refused.
//!
//! I/O connections need memory while they are idle, too: for their queues, and for the commands
//! that may come. A session that asks for more than fits its part of that gets shorter queues. That
//! part depends on nothing but the memory of the server. A map that comes back has a disk which
//! needs what it had: it asks for that, and gets it, or is refused until its account has less. A
//! quarter of the memory is for these: maps that come first do not take what a disk is in need of.

#![forbid(unsafe_code)]

/// The sessions of a port, at most. An account has its part of so many on all ports together.
pub const SESSIONS_MAX: usize = 4096;

/// All I/O connections may have the server's memory divided by this.
const MEMORY_PART: u64 = 4;
/// The first login of a session may have the server's memory, rounded down to a power of two,
/// divided by this: one of each path of a map is at most the half that a host may have.
const SESSION_PART: u64 = 64;
/// The memory of a session, in bytes: that of its control connection.
const SESSION_BYTES: u64 = 64 << 10;
/// The memory of an I/O connection without commands, in bytes, and what each command adds. That is
/// between what they take with devices that have their rings in their own memory, and with those
/// that are software.
const QUEUE_BYTES: u64 = 32 << 10;
const COMMAND_BYTES: u64 = 1 << 10;

/// Returns the bytes of memory of a session with `queues` I/O connections of `depth` commands each.
pub const fn bytes_of(queues: u16, depth: u16) -> u64 {
    // CAST: To a larger type.
    SESSION_BYTES + queues as u64 * (QUEUE_BYTES + depth as u64 * COMMAND_BYTES)
}

/// The part of everything that an account may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// That of a host that has an entry.
    Half,
    /// That of all hosts that have none.
    Quarter,
}

impl Part {
    /// Returns how much that is of `all`, rounded down.
    pub const fn of(self, all: u64) -> u64 {
        match self {
            Self::Half => all / 2,
            Self::Quarter => all / 4,
        }
    }
}

/// What an account has, or all have, or a session adds to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sessions that are logged in.
    pub sessions: u64,
    /// Bytes of memory of these, and of their I/O connections.
    pub bytes: u64,
}

impl Usage {
    /// Returns the sum.
    pub const fn plus(self, more: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_add(more.sessions),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }
}

/// Why a session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// Its account would have too many sessions.
    Sessions,
    /// Its account would have too much memory.
    Memory,
    /// All together would.
    MemoryOfAll,
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory for all sessions.
    bytes: u64,
    /// Bytes of it that the first login of a session may have.
    session: u64,
}

impl Limits {
    /// Returns those of a server with `memory` bytes. What a session may have is that of a power of
    /// two, so that it is the same when the next kernel has a little less.
    pub const fn new(memory: u64) -> Self {
        let rounded = match memory.checked_ilog2() {
            Some(log) => 1 << log,
            None => 0,
        };
        Self {
            bytes: memory / MEMORY_PART,
            session: rounded / SESSION_PART,
        }
    }

    /// Returns the depth that the first login of a session gets which asks for `queues` with
    /// `depth`: at least 1, unless it asks for none.
    pub fn depth(&self, queues: u16, depth: u16) -> u16 {
        let bytes = self.session.saturating_sub(SESSION_BYTES) / u64::from(queues.max(1));
        let commands = bytes.saturating_sub(QUEUE_BYTES) / COMMAND_BYTES;
        let fitting = u16::try_from(commands).unwrap_or(u16::MAX);
        depth.min(fitting.max(1))
    }

    /// Fails if an account that has `own`, and may have `part`, must not have `more`, where all
    /// accounts have `all`. A map that `resumes` has a disk already.
    pub fn check(
        &self,
        part: Part,
        own: Usage,
        all: Usage,
        more: Usage,
        resumes: bool,
    ) -> Result<(), Exceeded> {
        let (own, all) = (own.plus(more), all.plus(more));
        let for_all = if resumes {
            self.bytes
        } else {
            self.bytes / 4 * 3
        };
        // CAST: To a type that is no smaller.
        if own.sessions > part.of(SESSIONS_MAX as u64) {
            Err(Exceeded::Sessions)
        } else if own.bytes > part.of(self.bytes) {
            Err(Exceeded::Memory)
        } else if all.bytes > for_all {
            Err(Exceeded::MemoryOfAll)
        } else {
            Ok(())
        }
    }
}
