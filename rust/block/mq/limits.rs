// SPDX-License-Identifier: GPL-2.0

//! What a disk can do.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::bindings;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

// Macros with a cast, which bindgen does not take; asserted in `rust/helpers/block.c`.
const BLK_FEAT_WRITE_CACHE: bindings::blk_features_t = 1 << 0;
const BLK_FEAT_FUA: bindings::blk_features_t = 1 << 1;
const BLK_FEAT_ROTATIONAL: bindings::blk_features_t = 1 << 2;
const BLK_FEAT_SYNCHRONOUS: bindings::blk_features_t = 1 << 6;

/// Bytes in the sectors that block devices count in, whatever their blocks are; `SECTOR_SHIFT`.
const SECTOR_SHIFT: u32 = 9;

/// The limits of a disk; C's `struct queue_limits`, of which it has the names. Sectors are of 512
/// bytes.
///
/// They may be anything, so that they can come from elsewhere: [`GenDiskBuilder::build`] checks them.
///
/// [`GenDiskBuilder::build`]: super::GenDiskBuilder::build
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The smallest unit of I/O, in bytes: a power of two, from 512 to the page size.
    pub(crate) logical_block_size: u32,
    /// The smallest unit that is written without reading first, in bytes: a power of two.
    pub(crate) physical_block_size: u32,
    /// The most in one read or write: a page at least.
    pub(crate) max_hw_sectors: u32,
    /// The most segments in one read or write.
    pub(crate) max_segments: u16,
    /// The most in one segment, in bytes: a page at least. It counts a longer piece of memory as
    /// several segments, but [`Request::segments`] does not cut it.
    ///
    /// [`Request::segments`]: super::Request::segments
    pub(crate) max_segment_size: u32,
    /// No read, write or write zeroes crosses a multiple of this; 0 for no such thing. Discards do
    /// cross it.
    pub(crate) chunk_sectors: u32,
    /// The alignment of segments in memory, in bytes minus one: below the page size; 0 for 511.
    pub(crate) dma_alignment: u32,
    /// The most in one write zeroes; 0 if it is not supported.
    pub(crate) max_write_zeroes_sectors: u32,
    /// The most in one discard; 0 if it is not supported.
    pub(crate) max_discard_sectors: u32,
    /// The unit of discards, in bytes.
    pub(crate) discard_granularity: u32,
    /// It has a volatile cache, so that flushes are needed.
    pub(crate) write_cache: bool,
    /// It can write past its cache.
    pub(crate) fua: bool,
    /// Seeking costs time.
    pub(crate) rotational: bool,
    /// I/O is over so soon that it is not worth letting it run in the background, as of RAM.
    pub(crate) synchronous: bool,
}

impl Default for Limits {
    /// What every device can do.
    fn default() -> Self {
        Self {
            logical_block_size: 512,
            physical_block_size: 512,
            max_hw_sectors: 255,
            max_segments: 128,
            max_segment_size: 65536,
            chunk_sectors: 0,
            dma_alignment: 0,
            max_write_zeroes_sectors: 0,
            max_discard_sectors: 0,
            discard_granularity: 0,
            write_cache: false,
            fua: false,
            rotational: false,
            synchronous: false,
        }
    }
}

impl Limits {
    /// The C limits, or `EINVAL`: it refuses what C would take for a bug of the driver.
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
        {
            return Err(EINVAL);
        }

        let mut features = 0;
        for (has, feature) in [
            (self.write_cache, BLK_FEAT_WRITE_CACHE),
            (self.fua, BLK_FEAT_FUA),
            (self.rotational, BLK_FEAT_ROTATIONAL),
            (self.synchronous, BLK_FEAT_SYNCHRONOUS),
        ] {
            if has {
                features |= feature;
            }
        }

        Ok(bindings::queue_limits {
            features,
            logical_block_size: self.logical_block_size,
            physical_block_size: self.physical_block_size,
            max_hw_sectors: self.max_hw_sectors,
            max_segments: self.max_segments,
            max_segment_size: self.max_segment_size,
            chunk_sectors: self.chunk_sectors,
            dma_alignment: self.dma_alignment,
            max_write_zeroes_sectors: self.max_write_zeroes_sectors,
            max_hw_discard_sectors: self.max_discard_sectors,
            discard_granularity: self.discard_granularity,
            ..pin_init::zeroed()
        })
    }
}
