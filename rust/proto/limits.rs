// SPDX-License-Identifier: GPL-2.0

//! What a client may ask of an export in one I/O, and what is best for it.

#![forbid(unsafe_code)]

use super::atomic::AtomicLimits;
use super::export::BlockSize;
use super::refusal::Malformed;
use super::wire::{self, IO_HINT_MAX, IO_SIZE_MAX, IO_SIZE_MIN, PHYSICAL_BLOCK_SIZE_MAX};

/// The limits of an export as a block device; the names are those of the kernel's `queue_limits`,
/// the unit is always the byte.
///
/// Those of a [`LoginReply`](super::LoginReply) that was read keep to what is said of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Unit of addressing.
    pub logical_block_size: BlockSize,
    /// Unit that is written without reading first: a power of two, not less than the logical block
    /// size, at most [`PHYSICAL_BLOCK_SIZE_MAX`].
    pub physical_block_size: u32,
    /// Smallest I/O that costs no more than a larger one: a positive multiple of the physical block
    /// size, at most [`IO_HINT_MAX`].
    pub io_min: u32,
    /// I/O size liked best: a multiple of the physical block size, at most [`IO_HINT_MAX`]; 0 for
    /// none.
    pub io_opt: u32,
    /// Most in one read or write: a multiple of the logical block size, from [`IO_SIZE_MIN`] to
    /// [`IO_SIZE_MAX`].
    pub max_io: u32,
    /// Most in one discard: a multiple of the logical block size; 0 if there are no discards.
    pub max_discard: u32,
    /// Unit of discards: a multiple of the logical block size; 0 if and only if there are none.
    pub discard_granularity: u32,
    /// Most in one write of zeroes: a multiple of the logical block size; 0 if there are none.
    pub max_write_zeroes: u32,
    /// Atomic writes; only of a `block` export.
    pub atomic: AtomicLimits,
    /// Most in one secure erase: a multiple of the logical block size; 0 if there are none. Only of
    /// a `block` export.
    pub max_secure_erase: u32,
    /// Unit of secure erases: a multiple of the logical block size; 0 if and only if there are
    /// none.
    pub secure_erase_granularity: u32,
    /// Whether what was written may be lost until it is flushed.
    pub write_cache: bool,
    /// Whether a write can be made to last by itself; only with a write cache.
    pub fua: bool,
    /// Whether seeking costs time.
    pub rotational: bool,
}

impl BlockLimits {
    /// Those of an export that only reads and writes, all sizes at the same cost.
    pub const fn plain(logical_block_size: BlockSize) -> Self {
        Self {
            logical_block_size,
            physical_block_size: logical_block_size.get(),
            io_min: logical_block_size.get(),
            io_opt: 0,
            max_io: IO_SIZE_MAX,
            max_discard: 0,
            discard_granularity: 0,
            max_write_zeroes: 0,
            atomic: AtomicLimits::NONE,
            max_secure_erase: 0,
            secure_erase_granularity: 0,
            write_cache: false,
            fua: false,
            rotational: false,
        }
    }

    /// The nearest to these that keep to what is said of the fields; these need not.
    pub fn fitted(self) -> Self {
        let block = self.logical_block_size.get();
        let physical = self
            .physical_block_size
            .checked_next_power_of_two()
            .unwrap_or(PHYSICAL_BLOCK_SIZE_MAX)
            .clamp(block, PHYSICAL_BLOCK_SIZE_MAX);
        let max_io = round_down(self.max_io.clamp(IO_SIZE_MIN, IO_SIZE_MAX), block);
        let max_discard = round_down(self.max_discard, block);
        let max_secure_erase = round_down(self.max_secure_erase, block);
        let granularity = |max, granularity| match max {
            0 => 0,
            _ => round_down(granularity, block).max(block),
        };
        Self {
            physical_block_size: physical,
            io_min: round_down(self.io_min.min(IO_HINT_MAX), physical).max(physical),
            // A part of a stripe would be worse than none.
            io_opt: match self.io_opt {
                0..=IO_HINT_MAX => round_down(self.io_opt, physical),
                _ => 0,
            },
            max_io,
            max_discard,
            discard_granularity: granularity(max_discard, self.discard_granularity),
            max_write_zeroes: round_down(self.max_write_zeroes, block),
            atomic: self.atomic.within(self.logical_block_size, max_io),
            max_secure_erase,
            secure_erase_granularity: granularity(max_secure_erase, self.secure_erase_granularity),
            fua: self.fua && self.write_cache,
            ..self
        }
    }

    pub(super) fn from_wire(wire: &wire::LoginReply) -> Result<Self, Malformed> {
        const KNOWN: u8 = wire::FEATURE_WRITE_CACHE | wire::FEATURE_FUA | wire::FEATURE_ROTATIONAL;

        let has = |feature| wire.features & feature != 0;
        if wire.features & !KNOWN != 0 {
            return Err(Malformed("unknown feature"));
        }
        let limits = Self {
            logical_block_size: wire.logical_block_size.get().try_into()?,
            physical_block_size: wire.physical_block_size.get(),
            io_min: wire.io_min.get(),
            io_opt: wire.io_opt.get(),
            max_io: wire.max_io.get(),
            max_discard: wire.max_discard.get(),
            discard_granularity: wire.discard_granularity.get(),
            max_write_zeroes: wire.max_write_zeroes.get(),
            atomic: AtomicLimits {
                max: wire.atomic_max.get(),
                unit_min: wire.atomic_unit_min.get(),
                unit_max: wire.atomic_unit_max.get(),
                boundary: wire.atomic_boundary.get(),
            },
            max_secure_erase: wire.max_secure_erase.get(),
            secure_erase_granularity: wire.secure_erase_granularity.get(),
            write_cache: has(wire::FEATURE_WRITE_CACHE),
            fua: has(wire::FEATURE_FUA),
            rotational: has(wire::FEATURE_ROTATIONAL),
        };
        // One rule for both sides: what is sound is what fitting leaves as it is.
        let sound = limits.fitted();
        for (is_sound, fault) in [
            (
                limits.physical_block_size == sound.physical_block_size,
                "the physical block size is not a power of two, or too small or large",
            ),
            (
                (limits.io_min, limits.io_opt) == (sound.io_min, sound.io_opt),
                "the I/O sizes are not multiples of the physical block size, or too large",
            ),
            (
                limits.max_io == sound.max_io,
                "the largest I/O is not within its bounds or not of whole blocks",
            ),
            (
                limits.max_discard == sound.max_discard
                    && limits.discard_granularity == sound.discard_granularity,
                "the discards are not of whole blocks",
            ),
            (
                limits.max_write_zeroes == sound.max_write_zeroes,
                "the writes of zeroes are not of whole blocks",
            ),
            (
                limits.atomic == sound.atomic,
                "the sizes of atomic writes contradict each other or the largest I/O",
            ),
            (
                limits.max_secure_erase == sound.max_secure_erase
                    && limits.secure_erase_granularity == sound.secure_erase_granularity,
                "the secure erases are not of whole blocks",
            ),
            (limits.fua == sound.fua, "FUA without a write cache"),
        ] {
            if !is_sound {
                return Err(Malformed(fault));
            }
        }
        Ok(limits)
    }

    pub(super) fn features(&self) -> u8 {
        [
            (self.write_cache, wire::FEATURE_WRITE_CACHE),
            (self.fua, wire::FEATURE_FUA),
            (self.rotational, wire::FEATURE_ROTATIONAL),
        ]
        .into_iter()
        .filter_map(|(has, feature)| has.then_some(feature))
        .fold(0, |all, feature| all | feature)
    }
}

/// Rounds down to a multiple of a power of two.
fn round_down(size: u32, unit: u32) -> u32 {
    size & unit.wrapping_neg()
}
