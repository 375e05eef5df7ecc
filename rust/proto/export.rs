// SPDX-License-Identifier: GPL-2.0

//! Properties of an export: its kind, its block sizes, and the access of a client.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use core::fmt;
use core::str::FromStr;

/// Access of a client to an export, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Access {
    /// Reading only: `ro`.
    ReadOnly = 0,
    /// Reading and writing: `rw`.
    ReadWrite = 1,
}

impl Access {
    /// Returns the word for it: `ro` or `rw`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        }
    }

    /// Returns true if writing is allowed.
    pub const fn writes(self) -> bool {
        matches!(self, Self::ReadWrite)
    }
}

impl TryFrom<u8> for Access {
    type Error = Malformed;

    fn try_from(access: u8) -> Result<Self, Malformed> {
        match access {
            0 => Ok(Self::ReadOnly),
            1 => Ok(Self::ReadWrite),
            _ => Err(Malformed("the access is neither 0 nor 1")),
        }
    }
}

impl FromStr for Access {
    type Err = Malformed;

    fn from_str(word: &str) -> Result<Self, Malformed> {
        match word {
            "ro" => Ok(Self::ReadOnly),
            "rw" => Ok(Self::ReadWrite),
            _ => Err(Malformed("the access is neither ro nor rw")),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Kind of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A block device of the server, accessed by commands: `block`.
    Block = 0,
    /// RAM of the server, accessed by RDMA READ and WRITE: `ram`.
    Ram = 1,
}

impl Kind {
    /// Returns the word for it: `block` or `ram`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Ram => "ram",
        }
    }
}

impl TryFrom<u8> for Kind {
    type Error = Malformed;

    fn try_from(kind: u8) -> Result<Self, Malformed> {
        match kind {
            0 => Ok(Self::Block),
            1 => Ok(Self::Ram),
            _ => Err(Malformed("the kind of the export is neither 0 nor 1")),
        }
    }
}

impl FromStr for Kind {
    type Err = Malformed;

    fn from_str(word: &str) -> Result<Self, Malformed> {
        match word {
            "block" => Ok(Self::Block),
            "ram" => Ok(Self::Ram),
            _ => Err(Malformed("the kind is neither block nor ram")),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A logical or physical block size: 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSize(u32);

impl BlockSize {
    /// 512 bytes.
    pub const MIN: Self = Self(512);
    /// 4096 bytes.
    pub const MAX: Self = Self(4096);

    /// Returns the size in bytes.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns true if this number of bytes is a multiple of the block size.
    pub const fn divides(self, bytes: u64) -> bool {
        // The block size is a power of two.
        // CAST: From 32 to 64 bits; no function for it is `const`.
        bytes & (self.0 as u64 - 1) == 0
    }
}

impl TryFrom<u32> for BlockSize {
    type Error = Malformed;

    fn try_from(bytes: u32) -> Result<Self, Malformed> {
        if bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&Self(bytes)) {
            Ok(Self(bytes))
        } else {
            Err(Malformed("the block size is not 512, 1024, 2048 or 4096"))
        }
    }
}
