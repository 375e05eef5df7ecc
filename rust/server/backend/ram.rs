// SPDX-License-Identifier: GPL-2.0

//! Memory behind an export.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    page::PAGE_SIZE,
    sync::Arc, //
};

use crate::base::scatterlist::PageChunks;
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    BlockLimits,
    BlockSize,
    Geometry,
    Malformed,
    SlabShift,
    Uuid, //
};
use crate::server::backend::{
    random_uuid,
    Source, //
};

/// Largest slab: a grant, a memory region and a unit of eviction.
const SLAB_SHIFT_MAX: u32 = 26;
/// Chunks a slab may have: a memory region has a page for each, and not every HCA takes more.
const SLAB_CHUNKS_SHIFT: u32 = 8;
/// Most zeroes that a client is to write in one request.
const WRITE_ZEROES_MAX: u32 = 1 << 20;

/// Zeroed memory in slabs.
pub(crate) struct Ram {
    /// Its size and slabs.
    pub(crate) geometry: Geometry,
    /// The memory.
    pub(crate) memory: Arc<PageChunks>,
    /// Random for each allocation: other contents, other instance.
    pub(crate) instance: Uuid,
    block_size: BlockSize,
}

impl Ram {
    /// Allocates and zeroes the memory. May sleep, and takes long.
    pub(super) fn new(source: &Source) -> Result<Self, Failure> {
        let &Source {
            size, numa_node, ..
        } = source;
        let block_size = source.block_size.unwrap_or(BlockSize::MAX);
        if size == 0 {
            return Err(fail!(EINVAL, "size is not set"));
        }
        if size % u64::from(block_size.get()) != 0 {
            return Err(fail!(
                EINVAL,
                "size {size} is not a multiple of the block size {}",
                block_size.get()
            ));
        }
        let memory = usize::try_from(size)
            .ok()
            .and_then(allocation)
            .ok_or(EINVAL)
            .and_then(|size| PageChunks::alloc(size, numa_node))
            .map_err(|error| {
                fail!(
                    error,
                    "cannot allocate {size} bytes on NUMA node {numa_node}"
                )
            })?;
        let shift = (memory.chunk_size().ilog2() + SLAB_CHUNKS_SHIFT).min(SLAB_SHIFT_MAX);
        let geometry = u8::try_from(shift)
            .map_err(|_| Malformed("the chunks are too large"))
            .and_then(SlabShift::try_from)
            .and_then(|shift| Geometry::new(size, shift))
            .map_err(|Malformed(why)| fail!(EINVAL, "{why}"))?;
        Ok(Self {
            geometry,
            memory,
            instance: random_uuid(),
            block_size,
        })
    }

    /// The limits as a block device.
    pub(super) fn limits(&self) -> BlockLimits {
        BlockLimits {
            physical_block_size: BlockSize::MAX.get(),
            max_write_zeroes: WRITE_ZEROES_MAX,
            ..BlockLimits::plain(self.block_size)
        }
        .fitted()
    }
}

/// Bytes to allocate for `size` bytes: so many that the last chunk is no smaller than the others,
/// because the smallest chunk is the page size of the memory regions.
fn allocation(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(match size > PageChunks::CHUNK {
        true => PageChunks::CHUNK,
        false => PAGE_SIZE,
    })
}
