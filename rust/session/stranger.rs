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
