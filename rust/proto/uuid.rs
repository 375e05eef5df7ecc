// SPDX-License-Identifier: GPL-2.0

//! UUIDs of hosts, maps, exports and instances.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use core::fmt;
use core::str::FromStr;

/// A UUID. Its bytes have the order of the text form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// The UUID of all zeroes. It means "none", and is refused on the wire.
    pub const NIL: Self = Self([0; 16]);

    /// Length of the text form in bytes.
    pub const TEXT_LEN: usize = 36;

    /// Makes a UUID of these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Makes a UUID of version 4 from 16 random bytes.
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns true if this is [`Uuid::NIL`].
    pub fn is_nil(&self) -> bool {
        *self == Self::NIL
    }

    /// Parses a UUID that must not be nil; `what` is the fault to report if it is.
    pub(super) fn from_wire(bytes: [u8; 16], what: &'static str) -> Result<Self, Malformed> {
        match Self(bytes) {
            Self::NIL => Err(Malformed(what)),
            uuid => Ok(uuid),
        }
    }
}

/// Returns true if the text form has a dash before this byte.
const fn dash_before(byte: usize) -> bool {
    matches!(byte, 4 | 6 | 8 | 10)
}

impl FromStr for Uuid {
    type Err = Malformed;

    /// Parses the form of 36 characters, in upper or lower case.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        const FAULT: Malformed = Malformed("not a UUID");

        let mut chars = text.chars();
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            if dash_before(i) && chars.next() != Some('-') {
                return Err(FAULT);
            }
            for _ in 0..2 {
                let digit = chars.next().and_then(|c| c.to_digit(16)).ok_or(FAULT)?;
                // CAST: a hexadecimal digit is less than 16.
                *byte = (*byte << 4) | digit as u8;
            }
        }
        match chars.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(FAULT),
        }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if dash_before(i) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
