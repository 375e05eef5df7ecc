// SPDX-License-Identifier: GPL-2.0

//! Protection of the I/O of a `block` export against changes, and against being read, on its way.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use core::fmt;
use core::str::FromStr;

/// Protection of the messages and data on the I/O connections of a session. An export and its maps
/// have to agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Protection {
    /// No protection beyond that of the transport: `none`.
    None = 0,
    /// Each message and its data have a checksum, CRC32C, which finds accidental changes: `crc32c`.
    Digest = 1,
    /// Each message and its data are encrypted and authenticated: `seal`. Needs a key.
    Seal = 2,
}

impl Protection {
    /// All of them, in the order of the numbers on the wire.
    pub const ALL: [Self; 3] = [Self::None, Self::Digest, Self::Seal];

    /// Returns the word for it: `none`, `crc32c` or `seal`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Digest => "crc32c",
            Self::Seal => "seal",
        }
    }

    /// Returns true unless it is [`Protection::None`].
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns true if both sides need to have proved a key to each other.
    pub const fn needs_key(self) -> bool {
        matches!(self, Self::Seal)
    }
}

impl TryFrom<u8> for Protection {
    type Error = Malformed;

    fn try_from(number: u8) -> Result<Self, Malformed> {
        Self::ALL
            .into_iter()
            .find(|protection| *protection as u8 == number)
            .ok_or(Malformed("the protection is not known"))
    }
}

impl FromStr for Protection {
    type Err = Malformed;

    fn from_str(word: &str) -> Result<Self, Malformed> {
        Self::ALL
            .into_iter()
            .find(|protection| protection.as_str() == word)
            .ok_or(Malformed("neither none, crc32c nor seal"))
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
