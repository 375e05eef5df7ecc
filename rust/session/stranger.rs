// SPDX-License-Identifier: GPL-2.0

//! What a server does for a client that is not logged in: of most such clients it knows nothing,
//! and anybody may be one.

#![forbid(unsafe_code)]

/// The messages that a connection may send without a login. A client that measures round trips
/// sends many; all others send one.
const REQUESTS_MAX: u32 = 512;
/// The longest time that a connection may stay without a login, in ms, whatever it sends: a port
/// carries only so many.
const STAY_MAX_MS: u32 = 10_000;

/// The datagrams of a connection that are looked at, be they of its client or not: it may send
/// about as many as messages, and some more come late or are lost.
const DATAGRAMS_MAX: u32 = 1024;

/// The bytes that what the connections of a client host have to measure with may have, and those of
/// all hosts: scratch regions, and the buffers of queue pairs that echo datagrams. A connection has
/// one of each at most, and for no longer than [`STAY_MAX_MS`].
const SCRATCH_OWN_MAX: u32 = 256 << 10;
const SCRATCH_ALL_MAX: u32 = 4 << 20;

/// Returns true if a client host whose connections have `own` bytes may have `size` more, where
/// those of all hosts have `all`.
pub const fn may_have_scratch(own: u32, all: u32, size: u32) -> bool {
    own.saturating_add(size) <= SCRATCH_OWN_MAX && all.saturating_add(size) <= SCRATCH_ALL_MAX
}

/// Returns true if one more datagram of a connection is looked at that has received `count`.
pub const fn may_look_at_datagram(count: u32) -> bool {
    count < DATAGRAMS_MAX
}

/// Counts the messages that a connection has sent without a login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests(u32);

impl Requests {
    /// Counts a message. Returns true if it is one too many.
    pub fn count(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 > REQUESTS_MAX
    }
}

/// Counts the looks at a connection that is not logged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    looks: u32,
}

impl Stay {
    /// A look, which comes every `look_ms`. Returns true if the connection has stayed for too long.
    pub fn look(&mut self, look_ms: u32) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.looks > STAY_MAX_MS.div_ceil(look_ms.max(1))
    }
}
