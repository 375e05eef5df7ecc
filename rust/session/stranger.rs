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

/// The datagrams that each side of an echo looks at, be they of the other side or not: a client may
/// send about as many as messages, and some more come late or are lost.
const DATAGRAMS_MAX: u32 = 1024;

/// The bytes of the pages that what the connections of a client host have to measure with may take,
/// and those of all hosts: scratch regions, and the buffers of queue pairs that echo datagrams. A
/// connection has one of each at most, and for no longer than [`STAY_MAX_MS`].
///
/// A host may have the largest of each with pages of up to 64 KiB.
const SCRATCH_OWN_MAX: u32 = 320 << 10;
const SCRATCH_ALL_MAX: u32 = 4 << 20;

/// Returns true if a client host whose connections have `own` bytes may have `size` more, where
/// those of all hosts have `all`.
pub const fn may_have_scratch(own: u32, all: u32, size: u32) -> bool {
    own.saturating_add(size) <= SCRATCH_OWN_MAX && all.saturating_add(size) <= SCRATCH_ALL_MAX
}

/// Returns the bytes of the pages of `page` bytes that a region of `size` bytes takes.
pub fn in_pages(size: u32, page: u32) -> u32 {
    let page = page.max(1);
    size.div_ceil(page).saturating_mul(page)
}

/// Returns how many letters a server has for a client that has `count` datagrams under way. One is
/// there to receive again when its answer has left, and the next datagram may be faster: so there
/// are more than are under way.
pub const fn echo_letters(count: u16) -> u16 {
    count.saturating_add(count / 2).saturating_add(4)
}

/// Returns true if one more datagram is looked at by a side that has received `count`.
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
