// SPDX-License-Identifier: GPL-2.0

//! How the bytes of an export are cut into slabs.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use super::wire::SLABS_MAX;

/// Base-two logarithm of the slab size in bytes, within [`SlabShift::MIN`] and [`SlabShift::MAX`].
///
/// The length of a slab always fits into 32 bits, as that of a work request has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabShift(u8);

impl SlabShift {
    /// Slabs of 64 KiB.
    pub const MIN: u8 = 16;
    /// Slabs of 2 GiB.
    pub const MAX: u8 = 31;

    /// The shift.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The slab size, in bytes.
    pub const fn bytes(self) -> u32 {
        1 << self.0
    }
}

impl TryFrom<u8> for SlabShift {
    type Error = Malformed;

    fn try_from(shift: u8) -> Result<Self, Malformed> {
        if (Self::MIN..=Self::MAX).contains(&shift) {
            Ok(Self(shift))
        } else {
            Err(Malformed("the slab shift is not within 16 and 31"))
        }
    }
}

/// Where a range of bytes lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the slab.
    pub slab: u32,
    /// First byte of the range within the slab.
    pub offset: u32,
}

/// Size of an export and of its slabs. All slabs are of the same size, but the last may be shorter.
///
/// # Invariants
///
/// `size` is not zero, and there are at most [`SLABS_MAX`] slabs. So `size` is at most 2^51 and
/// fits into a signed file offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    size: u64,
    shift: SlabShift,
}

impl Geometry {
    /// An export of `size` bytes in slabs of `shift`.
    pub fn new(size: u64, shift: SlabShift) -> Result<Self, Malformed> {
        if size == 0 {
            return Err(Malformed("the size is zero"));
        }
        if (size - 1) >> shift.0 >= u64::from(SLABS_MAX) {
            return Err(Malformed("there are more than 1048576 slabs"));
        }
        // INVARIANT: Just checked; the last slab's index is less than `SLABS_MAX`.
        Ok(Self { size, shift })
    }

    /// Size of the export, in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Size of the slabs.
    pub const fn shift(&self) -> SlabShift {
        self.shift
    }

    /// Number of slabs.
    pub const fn slabs(&self) -> u32 {
        // CAST: By the type invariants, the number of slabs fits.
        ((self.size - 1) >> self.shift.0) as u32 + 1
    }

    /// Length of slab `slab`, in bytes; `None` if there is no such slab.
    pub fn slab_len(&self, slab: u32) -> Option<u32> {
        let last = self.slabs() - 1;
        if slab > last {
            return None;
        }
        let full = self.shift.bytes();
        if slab < last {
            return Some(full);
        }
        // CAST: masked to less than a slab.
        let rest = (self.size & u64::from(full - 1)) as u32;
        Some(if rest == 0 { full } else { rest })
    }

    /// The slab that holds the byte at `offset`; `None` beyond the end.
    pub const fn slab_of(&self, offset: u64) -> Option<u32> {
        if offset < self.size {
            // CAST: By the type invariants, the number of slabs fits.
            Some((offset >> self.shift.0) as u32)
        } else {
            None
        }
    }

    /// Finds `len` bytes from `offset` on.
    ///
    /// `None` if the range is empty, is not within the export or crosses the end of a slab.
    pub fn locate(&self, offset: u64, len: u32) -> Option<Place> {
        let slab = self.slab_of(offset)?;
        // CAST: masked to less than a slab.
        let offset = (offset & u64::from(self.shift.bytes() - 1)) as u32;
        let end = offset.checked_add(len)?;
        if len == 0 || end > self.slab_len(slab)? {
            return None;
        }
        Some(Place { slab, offset })
    }
}
