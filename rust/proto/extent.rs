// SPDX-License-Identifier: GPL-2.0

//! How much there is of an export, and what may be done with it.

#![forbid(unsafe_code)]

use super::export::{Access, BlockSize};
use super::refusal::Malformed;

/// What may change of an export while clients use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Size, in bytes: a multiple of the logical block size that fits into a signed file offset. An
    /// export that is there has at least one block; later 0 says that nothing is left of it.
    pub size: u64,
    /// What the client may do.
    pub access: Access,
}

impl Extent {
    /// Whether `len` bytes from `offset` on, which is at least one, are all there.
    pub fn contains(&self, offset: u64, len: u32) -> bool {
        len != 0
            && offset
                .checked_add(len.into())
                .is_some_and(|end| end <= self.size)
    }

    /// Reads the fields of a message about an export of blocks of `block`.
    pub(super) fn from_wire(size: u64, access: u8, block: BlockSize) -> Result<Self, Malformed> {
        if i64::try_from(size).is_err() {
            return Err(Malformed("the size does not fit into a file offset"));
        }
        if !block.divides(size) {
            return Err(Malformed("the size is not a multiple of the block size"));
        }
        let access = access.try_into()?;
        Ok(Self { size, access })
    }
}
