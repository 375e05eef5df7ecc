// SPDX-License-Identifier: GPL-2.0

//! The limits of a disk.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::{
    bindings::{
        self,
        blk_features_t, //
    },
    block::SECTOR_SHIFT, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

// The features of a queue: macros with a cast, which bindgen does not take; asserted in
// `rust/helpers/block.c`.
/// There is a volatile cache.
pub(in crate::block) const BLK_FEAT_WRITE_CACHE: blk_features_t = 1 << 0;
/// A write can go past the volatile cache.
pub(in crate::block) const BLK_FEAT_FUA: blk_features_t = 1 << 1;
/// Seeking costs time.
pub(in crate::block) const BLK_FEAT_ROTATIONAL: blk_features_t = 1 << 2;
/// I/O ends at once.
pub(in crate::block) const BLK_FEAT_SYNCHRONOUS: blk_features_t = 1 << 6;
/// There are atomic writes.
pub(in crate::block) const BLK_FEAT_ATOMIC_WRITES: blk_features_t = 1 << 14;

/// The limits of a disk; C's `struct queue_limits`, of which it has the names. Sectors are of 512
/// bytes.
///
/// They may have any value, so that they can come from another host:
/// [`GenDiskBuilder::build_numbered`] checks them.
///
/// [`GenDiskBuilder::build_numbered`]: super::GenDiskBuilder::build_numbered
///
/// # Examples
///
/// ```
/// # use crate::block::mq::Limits;
/// /// A device of blocks of 4 KiB, with a cache, which discards in units of 1 MiB.
/// fn limits() -> Limits {
///     Limits {
///         logical_block_size: 4096,
///         physical_block_size: 4096,
///         max_hw_sectors: (1 << 20) / 512,
///         max_discard_sectors: u32::MAX,
///         discard_granularity: 1 << 20,
///         write_cache: true,
///         fua: true,
///         ..Limits::default()
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The smallest unit of I/O, in bytes: a power of two, from 512 to the page size.
    pub(crate) logical_block_size: u32,
    /// The smallest unit that is written without reading first, in bytes: a power of two.
    pub(crate) physical_block_size: u32,
    /// The preferred smallest I/O, in bytes; 0 for the physical block size.
    pub(crate) io_min: u32,
    /// The preferred size of I/O, in bytes; 0 if there is none.
    pub(crate) io_opt: u32,
    /// The size of the largest read or write: at least a page.
    pub(crate) max_hw_sectors: u32,
    /// The number of segments of a read or write, at most.
    pub(crate) max_segments: u16,
    /// The size of the largest segment, in bytes: at least a page. The block layer counts a longer
    /// piece of memory as several segments, but [`Request::segments`] does not split it.
    ///
    /// [`Request::segments`]: super::Request::segments
    pub(crate) max_segment_size: u32,
    /// No read, write or write zeroes crosses a multiple of this; 0 if there is no such limit.
    /// Discards may cross it.
    pub(crate) chunk_sectors: u32,
    /// The alignment of segments in memory, in bytes minus one: below the page size; 0 for 511.
    pub(crate) dma_alignment: u32,
    /// All segments of a request but the first begin, and all but the last end, at a multiple of
    /// one more than this, in bytes; 0 if there is no such limit.
    pub(crate) virt_boundary: u32,
    /// The size of the largest write zeroes; 0, or less than a block, if they are not supported.
    pub(crate) max_write_zeroes_sectors: u32,
    /// The size of the largest discard; 0, or less than a block, if they are not supported.
    pub(crate) max_discard_sectors: u32,
    /// The unit of discards, in bytes.
    pub(crate) discard_granularity: u32,
    /// Where the first unit of discards begins, in bytes.
    pub(crate) discard_alignment: u32,
    /// The size of the largest secure erase; 0, or less than a block, if they are not supported.
    /// Their unit is [`Self::discard_granularity`].
    pub(crate) max_secure_erase_sectors: u32,
    /// The unit of atomic writes, in bytes: a power of two; 0 if they are not supported.
    pub(crate) atomic_write_unit_min: u32,
    /// The size of the largest atomic write, in bytes: a power of two. Atomic writes are merged up
    /// to this size.
    pub(crate) atomic_write_unit_max: u32,
    /// No atomic write crosses a multiple of this, a power of two in bytes; 0 if there is no such
    /// limit.
    pub(crate) atomic_write_boundary: u32,
    /// The disk has a volatile cache, so that flushes are needed.
    pub(crate) write_cache: bool,
    /// The disk can write past its cache. Has no meaning without one.
    pub(crate) fua: bool,
    /// The disk is rotational: seeking costs time.
    pub(crate) rotational: bool,
    /// I/O ends so soon, as that of RAM, that it is not worth running it in the background.
    pub(crate) synchronous: bool,
}

impl Default for Limits {
    /// Returns C's defaults: blocks of 512 bytes, small requests, and nothing that only some
    /// devices can do. A device of larger blocks has to set their size.
    fn default() -> Self {
        Self {
            logical_block_size: 512,
            physical_block_size: 512,
            io_min: 0,
            io_opt: 0,
            max_hw_sectors: 255,
            max_segments: 128,
            max_segment_size: 65536,
            chunk_sectors: 0,
            dma_alignment: 0,
            virt_boundary: 0,
            max_write_zeroes_sectors: 0,
            max_discard_sectors: 0,
            discard_granularity: 0,
            discard_alignment: 0,
            max_secure_erase_sectors: 0,
            atomic_write_unit_min: 0,
            atomic_write_unit_max: 0,
            atomic_write_boundary: 0,
            write_cache: false,
            fua: false,
            rotational: false,
            synchronous: false,
        }
    }
}

impl Limits {
    /// Returns the C limits of a new disk. Fails with `EINVAL` for values that C would report as a
    /// bug of the driver.
    pub(super) fn to_queue_limits(self) -> Result<bindings::queue_limits> {
        let page_size = PAGE_SIZE as u32;
        let block_sectors = self.logical_block_size >> SECTOR_SHIFT;

        if !self.logical_block_size.is_power_of_two()
            || !(512..=page_size).contains(&self.logical_block_size)
            || !self.physical_block_size.is_power_of_two()
            || self.physical_block_size < self.logical_block_size
            || self.max_hw_sectors < page_size >> SECTOR_SHIFT
            || self.max_segments == 0
            || self.max_segment_size < page_size
            || self.chunk_sectors % block_sectors != 0
            || !self.dma_alignment.wrapping_add(1).is_power_of_two()
            || self.dma_alignment >= page_size
            || !self.virt_boundary.wrapping_add(1).is_power_of_two()
            || !self.are_atomic_writes_valid()
        {
            return Err(EINVAL);
        }
        let mut limits = pin_init::zeroed();
        self.update(&mut limits);
        Ok(limits)
    }

    /// Returns true if C takes the limits of atomic writes as they are.
    fn are_atomic_writes_valid(&self) -> bool {
        let (min, max) = (self.atomic_write_unit_min, self.atomic_write_unit_max);
        let boundary = self.atomic_write_boundary;
        if min == 0 {
            return true;
        }
        min.is_power_of_two()
            && max.is_power_of_two()
            && self.logical_block_size <= min
            && min <= max
            && max >> SECTOR_SHIFT <= self.max_hw_sectors
            && (boundary == 0 || boundary.is_power_of_two() && max <= boundary)
            // C allows chunks beside them, but no disk of ours has both.
            && self.chunk_sectors == 0
    }

    /// Replaces the limits of a disk by these, for which [`Self::to_queue_limits`] succeeds. What
    /// blk-mq and the user have set stays.
    pub(super) fn update(self, limits: &mut bindings::queue_limits) {
        // blk-mq splits at multiples of these. Block sizes are powers of two.
        let whole_blocks =
            |sectors: u32| sectors & !((self.logical_block_size >> SECTOR_SHIFT) - 1);

        for (has, feature) in [
            (self.write_cache, BLK_FEAT_WRITE_CACHE),
            (self.fua, BLK_FEAT_FUA),
            (self.rotational, BLK_FEAT_ROTATIONAL),
            (self.synchronous, BLK_FEAT_SYNCHRONOUS),
            (self.atomic_write_unit_min != 0, BLK_FEAT_ATOMIC_WRITES),
        ] {
            limits.features &= !feature;
            if has {
                limits.features |= feature;
            }
        }
        limits.logical_block_size = self.logical_block_size;
        limits.physical_block_size = self.physical_block_size;
        limits.io_min = self.io_min;
        limits.io_opt = self.io_opt;
        limits.max_hw_sectors = self.max_hw_sectors;
        limits.max_segments = self.max_segments;
        // With a boundary there is no such limit, as C has it.
        limits.max_segment_size = match self.virt_boundary {
            0 => self.max_segment_size,
            _ => u32::MAX,
        };
        limits.virt_boundary_mask = self.virt_boundary as usize;
        limits.chunk_sectors = self.chunk_sectors;
        limits.dma_alignment = self.dma_alignment;
        limits.max_write_zeroes_sectors = whole_blocks(self.max_write_zeroes_sectors);
        limits.max_hw_discard_sectors = whole_blocks(self.max_discard_sectors);
        limits.discard_granularity = self.discard_granularity;
        limits.discard_alignment = self.discard_alignment;
        limits.max_secure_erase_sectors = whole_blocks(self.max_secure_erase_sectors);
        // What was merged can only be written at once if it is no larger than one atomic write.
        limits.atomic_write_hw_max = self.atomic_write_unit_max;
        limits.atomic_write_hw_unit_min = self.atomic_write_unit_min;
        limits.atomic_write_hw_unit_max = self.atomic_write_unit_max;
        limits.atomic_write_hw_boundary = self.atomic_write_boundary;
    }
}
