// SPDX-License-Identifier: GPL-2.0

//! The extent of an export: its size, and the access to it.

#![forbid(unsafe_code)]

use super::export::{Access, BlockSize};
use super::refusal::Malformed;

/// The properties of an export that may change while clients use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Size in bytes: a multiple of the logical block size that fits into a signed file offset;
    /// never 0. While the device is gone the export is unavailable, and keeps its last size.
    pub size: u64,
    /// Access of the client.
    pub access: Access,
}

impl Extent {
    /// Returns true if the extent contains the `len` bytes at `offset`. `len` is not 0.
    pub fn contains(&self, offset: u64, len: u32) -> bool {
        len != 0
            && offset
                .checked_add(len.into())
                .is_some_and(|end| end <= self.size)
    }

    /// Parses the fields of a message about an export with this logical block size.
    pub(super) fn from_wire(size: u64, access: u8, block: BlockSize) -> Result<Self, Malformed> {
        if i64::try_from(size).is_err() {
            return Err(Malformed("the size does not fit into a file offset"));
        }
        if size == 0 {
            return Err(Malformed("the size is zero"));
        }
        if !block.divides(size) {
            return Err(Malformed("the size is not a multiple of the block size"));
        }
        let access = access.try_into()?;
        Ok(Self { size, access })
    }
}
