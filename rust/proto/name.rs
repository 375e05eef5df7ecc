// SPDX-License-Identifier: GPL-2.0

//! Names of exports, maps and hosts.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use super::wire::NAME_SIZE;
use core::fmt;
use core::str::FromStr;

/// A name: 1 to [`Name::MAX`] of the characters `A-Z a-z 0-9 . _ : -`, not starting with a dot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Zero beyond `len`.
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Name {
    /// Longest name, in bytes.
    pub const MAX: usize = NAME_SIZE - 1;

    /// Checks `name`. Fails if it is not a valid name.
    pub fn new(name: &[u8]) -> Result<Self, Malformed> {
        if name.is_empty() {
            return Err(Malformed("the name is empty"));
        }
        if name.first() == Some(&b'.') {
            return Err(Malformed("the name starts with a dot"));
        }
        let allowed = |c: &u8| c.is_ascii_alphanumeric() || b"._:-".contains(c);
        if !name.iter().all(allowed) {
            return Err(Malformed("the name has a character that is not allowed"));
        }
        let mut bytes = [0; Self::MAX];
        bytes
            .get_mut(..name.len())
            .ok_or(Malformed("the name is too long"))?
            .copy_from_slice(name);
        // CAST: a name that fitted is not longer than `MAX`.
        let len = name.len() as u8;
        Ok(Self { bytes, len })
    }

    /// Returns the name as a string.
    pub fn as_str(&self) -> &str {
        self.bytes
            .get(..usize::from(self.len))
            .and_then(|bytes| core::str::from_utf8(bytes).ok())
            .unwrap_or("")
    }

    /// Parses a name field: the name, then only zeroes.
    pub(super) fn from_wire(field: &[u8; NAME_SIZE]) -> Result<Self, Malformed> {
        let len = field.iter().position(|&c| c == 0).unwrap_or(NAME_SIZE);
        let (name, padding) = field
            .split_at_checked(len)
            .ok_or(Malformed("the name is too long"))?;
        if padding.iter().any(|&c| c != 0) {
            return Err(Malformed("the name is followed by something"));
        }
        Self::new(name)
    }

    /// Returns the name field: the name, then zeroes.
    pub(super) fn to_wire(self) -> [u8; NAME_SIZE] {
        let mut field = [0; NAME_SIZE];
        for (to, from) in field.iter_mut().zip(self.bytes) {
            *to = from;
        }
        field
    }
}

impl FromStr for Name {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        Self::new(name.as_bytes())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
