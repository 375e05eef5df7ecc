// SPDX-License-Identifier: GPL-2.0

//! Memory of any kind, mapped for a device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::EOPNOTSUPP,
    scatterlist::PageChunks, //
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    dma::Direction,
    might_sleep, //
};
use kernel::{
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// A range of [`PageChunks`] that is mapped for a device.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::scatterlist::PageChunks,
/// #     rdma::{device::Device, dma::{Direction, SgMapping}},
/// # };
/// # use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// let pages = PageChunks::alloc(16 * PAGE_SIZE, device.numa_node())?;
/// let memory = SgMapping::map(device, &pages, 0, 16 * PAGE_SIZE, Direction::Bidirectional)?;
/// memory.write(0, b"what peers find there")?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `table` was allocated by `sg_alloc_table()` and is freed by `drop()` and nothing else.
/// - It describes the `len` bytes at `offset` of `memory`, which has them, mapped for `device` in
///   `direction` to the first `mapped` entries.
/// - All these begin at a multiple of `page_size`, which is a power of two and which the device
///   supports, and all but the last end at one.
pub(crate) struct SgMapping {
    table: bindings::sg_table,
    mapped: i32,
    len: usize,
    page_size: usize,
    direction: Direction,
    device: Arc<Device>,
    memory: Arc<PageChunks>,
    offset: usize,
}

// SAFETY: Mappings belong to no thread.
unsafe impl Send for SgMapping {}

// SAFETY: The fields do not change.
unsafe impl Sync for SgMapping {}

impl SgMapping {
    /// Maps the `len` bytes at `offset` of `memory` for `device`.
    ///
    /// Fails with `EINVAL` if that is not a range of whole pages inside `memory`, or the device has
    /// no page size for it, and with `ENOMEM`. Fails with `EOPNOTSUPP` if the device would see a
    /// copy of the memory, in a bounce buffer: no other mapping would see what its peers write.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping the last reference.
    pub(crate) fn map(
        device: &Arc<Device>,
        memory: &Arc<PageChunks>,
        offset: usize,
        len: usize,
        direction: Direction,
    ) -> Result<Arc<Self>> {
        if len == 0 || len % PAGE_SIZE != 0 || offset % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        // An entry is at most as long as the device takes.
        let max = device.limits().dma_max_seg_size as usize;
        let max = PAGE_SIZE << (max / PAGE_SIZE).checked_ilog2().unwrap_or(0);
        let pieces = || {
            memory.segments(offset, len).flat_map(move |segment| {
                let (start, end) = (segment.offset() as usize, segment.len() as usize);
                (0..end)
                    .step_by(max)
                    .map(move |at| (segment.page(), start + at, max.min(end - at)))
            })
        };
        let count = u32::try_from(pieces().count())?;
        if count == 0 {
            return Err(EINVAL);
        }
        let mut table = bindings::sg_table::default();
        // SAFETY: `table` is zeroed, as the function wants it.
        to_result(unsafe { bindings::sg_alloc_table(&mut table, count, bindings::GFP_KERNEL) })?;
        let mut entry = table.sgl;
        for (page, offset, len) in pieces() {
            // SAFETY: The table has as many entries as there are pieces. CAST: Both are less than
            // the size of a chunk.
            unsafe {
                bindings::farblk_sg_set_page(entry, page.as_ptr(), len as u32, offset as u32);
                entry = bindings::sg_next(entry);
            }
        }
        // SAFETY: The device is registered by its invariants, and the table describes pages that
        // `memory` owns.
        let mapped = unsafe {
            bindings::farblk_dma_map_sg(
                device.as_raw(),
                table.sgl,
                count as i32,
                direction.as_raw(),
            )
        };
        if mapped <= 0 {
            // SAFETY: The table was allocated above.
            unsafe { bindings::sg_free_table(&mut table) };
            return Err(ENOMEM);
        }
        let mut this = Self {
            table,
            mapped,
            len,
            page_size: 0,
            direction,
            device: device.clone(),
            memory: memory.clone(),
            offset,
        };
        if this.is_copy() {
            return Err(EOPNOTSUPP);
        }
        // INVARIANT: `best_page_size()` finds a size for which the invariant is true.
        this.page_size = this.best_page_size(memory.chunk_size().max(PAGE_SIZE))?;
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Returns true if the device sees a copy of any of the memory.
    fn is_copy(&self) -> bool {
        let mut entry = self.table.sgl;
        for index in 1..=self.mapped {
            // SAFETY: By the type invariants there are `mapped` mapped entries.
            if unsafe { self.device.sees_copy(bindings::sg_dma_address(entry)) } {
                return true;
            }
            if index < self.mapped {
                // SAFETY: This is not the last entry.
                entry = unsafe { bindings::sg_next(entry) };
            }
        }
        false
    }

    /// Returns the largest page size, at most `max`, for a memory region over the mapping.
    fn best_page_size(&self, max: usize) -> Result<usize> {
        let mut bits = 0;
        let mut entry = self.table.sgl;
        for index in 1..=self.mapped {
            // SAFETY: By the type invariants there are `mapped` mapped entries.
            let (addr, len) =
                unsafe { (bindings::sg_dma_address(entry), bindings::sg_dma_len(entry)) };
            bits |= addr;
            if index < self.mapped {
                bits |= u64::from(len);
                // SAFETY: This is not the last entry.
                entry = unsafe { bindings::sg_next(entry) };
            }
        }
        let mut size = PAGE_SIZE << LARGEST_PAGE_SHIFT;
        // CAST: It is small.
        let smallest = self.device.region_page_size() as usize;
        while size >= smallest {
            if size <= max && bits & (size as u64 - 1) == 0 && self.device.has_page_size(size) {
                return Ok(size);
            }
            size /= 2;
        }
        Err(EINVAL)
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies from `offset` on to `bytes`. Fails with `EINVAL` if there is not as much. What a peer
    /// writes meanwhile may be there in part. Any context.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result {
        self.check(offset, bytes.len())?;
        self.sync(bindings::farblk_dma_sync_for_cpu);
        let mut rest = bytes;
        for part in self.memory.contents(self.offset + offset, rest.len()) {
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            part.read(now)?;
            rest = later;
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`. Fails with `EINVAL`, and copies nothing, if they do not fit. Any
    /// context.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        self.check(offset, bytes.len())?;
        let mut rest = bytes;
        for part in self.memory.contents(self.offset + offset, rest.len()) {
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            part.write(now)?;
            rest = later;
        }
        self.sync(bindings::farblk_dma_sync_for_device);
        Ok(())
    }

    /// Fails with `EINVAL` if the `len` bytes at `offset` are not all inside.
    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Calls one of the DMA API's functions that make what one side wrote visible to the other, for
    /// each piece of the memory.
    fn sync(&self, sync: unsafe extern "C" fn(*mut bindings::ib_device, u64, usize, i32)) {
        if self.device.uses_virt_dma() {
            return;
        }
        let mut entry = self.table.sgl;
        for index in 1..=self.mapped {
            // SAFETY: By the type invariants there are `mapped` mapped entries, mapped just so.
            unsafe {
                sync(
                    self.device.as_raw(),
                    bindings::sg_dma_address(entry),
                    bindings::sg_dma_len(entry) as usize,
                    self.direction.as_raw(),
                );
                if index < self.mapped {
                    entry = bindings::sg_next(entry);
                }
            }
        }
    }

    /// Returns the mapped entries, for `ib_map_mr_sg()`, which does not change them.
    pub(in crate::rdma) fn entries(&self) -> (*mut bindings::scatterlist, i32) {
        (self.table.sgl, self.mapped)
    }

    /// Returns the page size of memory regions over the mapping.
    pub(in crate::rdma) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns the device.
    pub(in crate::rdma) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Which side writes the memory.
    pub(in crate::rdma) fn direction(&self) -> Direction {
        self.direction
    }
}

/// The largest page size that is tried is `PAGE_SIZE` shifted by this.
const LARGEST_PAGE_SHIFT: u32 = 9;

impl Drop for SgMapping {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the table is mapped just so, and ours. Memory regions
        // over it hold a reference to `self`, so none is left.
        unsafe {
            bindings::farblk_dma_unmap_sg(
                self.device.as_raw(),
                self.table.sgl,
                self.table.orig_nents as i32,
                self.direction.as_raw(),
            );
            bindings::sg_free_table(&mut self.table);
        }
    }
}
