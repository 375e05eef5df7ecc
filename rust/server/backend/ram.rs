// SPDX-License-Identifier: GPL-2.0

//! Memory behind an export.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    page::PAGE_SIZE,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

use crate::base::{
    memory::available_memory,
    scatterlist::{
        PageChunks,
        PageChunksBuilder, //
    },
    sync::{
        fatal_signal_pending,
        Released, //
    },
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    BlockLimits,
    BlockSize,
    Geometry,
    SlabShift,
    Uuid, //
};
use crate::rdma::device::Device;
use crate::server::{
    backend::source::{
        random_uuid,
        Source, //
    },
    ram::regions::RegionList, //
};

/// Shift of the largest slab. A slab has one grant and one memory region.
const SLAB_SHIFT_MAX: u32 = 29;
/// Largest number of zero bytes that a client writes in one request.
const WRITE_ZEROES_MAX: u32 = 1 << 20;

/// Bytes that are allocated before the task looks for a signal and at what is available.
const GROWTH: usize = 4 * PageChunks::CHUNK;
/// Shift from bytes to the MiB of messages.
const MIB_SHIFT: u32 = 20;

/// Zeroed memory in slabs.
pub(crate) struct Ram {
    /// The memory regions of its clients. First: they are gone before the memory is.
    pub(crate) regions: RegionList,
    /// Its size in bytes.
    pub(crate) size: u64,
    /// The memory.
    pub(crate) memory: Arc<PageChunks>,
    /// Random for each allocation.
    instance: Uuid,
    /// The number of times that contents were overwritten with zeroes.
    scrubs: Atomic<u64>,
    block_size: BlockSize,
    /// Set when a client may have written to the memory since it was last all zeroes.
    used: Atomic<u32>,
    // Last: the memory is released when it is dropped. Its regions share it, and sessions those;
    // sessions are over before the export lets go of it.
    pub(super) released: Released,
}

impl Ram {
    /// Allocates and zeroes the memory, and keeps `allocated` up to date with how many bytes there
    /// are.
    ///
    /// Fails with `ENOMEM` when less than `ram_reserve` would remain available on this host, and
    /// with `EINTR` when the task is killed. May sleep, and takes long.
    pub(super) fn new(source: &Source, allocated: &Atomic<u64>) -> Result<Self, Failure> {
        let size = source.size;
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
        allocated.store(0, Relaxed);
        let memory = allocate(source, allocated)?;
        Ok(Self {
            regions: RegionList::new()?,
            size,
            memory,
            instance: random_uuid(),
            scrubs: Atomic::new(0),
            block_size,
            used: Atomic::new(0),
            released: Released::new()?,
        })
    }

    /// Returns how the memory is cut into slabs for the clients of a device. Fails with `EINVAL` if
    /// they would be too many. Any context.
    pub(crate) fn geometry_on(&self, device: &Device) -> Result<Geometry> {
        let shift = device.region_shift(self.memory.chunk_size());
        // CAST: A small number.
        SlabShift::try_from(shift.min(SLAB_SHIFT_MAX) as u8)
            .and_then(|shift| Geometry::new(self.size, shift))
            .map_err(|_| EINVAL)
    }

    /// Returns the limits of the memory as a block device.
    pub(super) fn limits(&self) -> BlockLimits {
        BlockLimits {
            physical_block_size: BlockSize::MAX.get(),
            max_write_zeroes: WRITE_ZEROES_MAX,
            ..BlockLimits::plain(self.block_size)
        }
        .fitted()
    }
}

impl Ram {
    /// Returns the identity of the contents, which is another one once they were overwritten with
    /// zeroes. Any context.
    pub(super) fn instance(&self) -> Uuid {
        let mut bytes = *self.instance.as_bytes();
        let scrubs = self.scrubs.load(Relaxed).to_le_bytes();
        bytes
            .iter_mut()
            .zip(scrubs)
            .for_each(|(byte, scrub)| *byte ^= scrub);
        Uuid::from_bytes(bytes)
    }

    /// Notes that a client may write to the memory from now on. Any context.
    pub(crate) fn note_use(&self) {
        self.used.store(1, Relaxed);
    }

    /// Overwrites the memory with zeroes, unless it is zeroes yet, as [`PageChunks::clear`] does.
    /// No client may have access to it. Returns true if it is zeroes then. May sleep, and takes
    /// long.
    pub(crate) fn clear(&self, goes_on: impl FnMut(usize) -> bool) -> bool {
        if self.used.load(Relaxed) == 0 {
            return true;
        }
        if !self.memory.clear(goes_on) {
            return false;
        }
        self.scrubs.fetch_add(1, Relaxed);
        self.used.store(0, Relaxed);
        true
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // What was there is nobody else's business. An export that is closed has done this.
        self.clear(|_| true);
    }
}

/// Allocates the memory of an export, chunk by chunk.
fn allocate(source: &Source, allocated: &Atomic<u64>) -> Result<Arc<PageChunks>, Failure> {
    let &Source {
        size,
        numa_node,
        ram_reserve: reserve,
        ..
    } = source;
    let available = available_memory();
    if size.saturating_add(reserve) > available {
        return Err(fail!(
            ENOMEM,
            "size ({} MiB) and ram_reserve ({} MiB) are more than the {} MiB available",
            size >> MIB_SHIFT,
            reserve >> MIB_SHIFT,
            available >> MIB_SHIFT
        ));
    }
    let bytes = usize::try_from(size).ok().and_then(allocation);
    let bytes = bytes.ok_or_else(|| fail!(EINVAL, "size {size} is too large"))?;
    let mut memory = PageChunksBuilder::new(bytes, numa_node)?;
    while memory.is_incomplete() {
        let done = u64::try_from(memory.len()).unwrap_or(u64::MAX);
        allocated.store(done.min(size), Relaxed);
        let done = done >> MIB_SHIFT;
        if fatal_signal_pending() {
            return Err(fail!(EINTR, "killed after {done} MiB were allocated"));
        }
        let available = available_memory();
        if available < reserve {
            return Err(fail!(
                ENOMEM,
                "only {} MiB are available after {done} MiB of {} MiB; ram_reserve is {} MiB",
                available >> MIB_SHIFT,
                size >> MIB_SHIFT,
                reserve >> MIB_SHIFT
            ));
        }
        memory.grow(GROWTH).map_err(|error| {
            fail!(
                error,
                "out of memory after {done} MiB of {} MiB",
                size >> MIB_SHIFT
            )
        })?;
    }
    Ok(memory.finish()?)
}

/// Returns the bytes to allocate for an export of `size` bytes: so many that the last chunk is no
/// smaller than the others, because the smallest chunk is the page size of the memory regions.
fn allocation(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(match size > PageChunks::CHUNK {
        true => PageChunks::CHUNK,
        false => PAGE_SIZE,
    })
}
