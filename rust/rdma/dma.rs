// SPDX-License-Identifier: GPL-2.0

//! Memory that is mapped for a device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::scatterlist::{
    PageChunks,
    Segment,
    Segmented, //
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    might_sleep, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Who writes memory: C's `enum dma_data_direction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The CPU writes and the device reads.
    ToDevice,
    /// The device writes and the CPU reads.
    FromDevice,
    /// Both do both.
    Bidirectional,
}

impl Direction {
    /// The C value.
    #[inline]
    pub(super) fn as_raw(self) -> i32 {
        match self {
            Self::Bidirectional => 0,
            Self::ToDevice => 1,
            Self::FromDevice => 2,
        }
    }

    /// Whether the device may read.
    #[inline]
    pub(super) fn device_reads(self) -> bool {
        self != Self::FromDevice
    }

    /// Whether the device may write.
    #[inline]
    pub(super) fn device_writes(self) -> bool {
        self != Self::ToDevice
    }
}

/// The most bytes of a [`DmaBuffer`].
const MAX_BUFFER: usize = PAGE_SIZE << 8;

/// Physically contiguous pages, zeroed at first, that are mapped for a device as long as they exist.
///
/// # Invariants
///
/// - `page` is the first of `1 << order` pages that are ours alone and in the direct map at `virt`.
/// - They are mapped for `device` at `addr`, in `direction`.
struct Pages {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
    addr: u64,
    order: u32,
    direction: Direction,
    device: Arc<Device>,
}

// SAFETY: Pages and mappings belong to no thread.
unsafe impl Send for Pages {}

// SAFETY: The fields do not change. Who may access the memory is up to the types that share it.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates pages for `len` bytes, at most `max`, on NUMA node `node`, or anywhere when it is -1,
    /// and maps them.
    fn alloc(
        device: &Arc<Device>,
        len: usize,
        max: usize,
        node: i32,
        direction: Direction,
    ) -> Result<Arc<Self>> {
        if len == 0 || len > max {
            return Err(EINVAL);
        }
        let order = len.div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros();
        // SAFETY: The function has no requirements beyond the context.
        let page = unsafe { bindings::farblk_alloc_pages(node, order) };
        let page = NonNull::new(page).ok_or(ENOMEM)?;
        // SAFETY: The page was just allocated, and not in high memory.
        let virt = unsafe { bindings::farblk_page_address(page.as_ptr()) }.cast::<u8>();
        let mut addr = 0;
        let mapped = NonNull::new(virt).ok_or(ENOMEM).and_then(|virt| {
            // SAFETY: The device is registered by its invariants, and the pages are ours.
            to_result(unsafe {
                bindings::farblk_dma_map_page(
                    device.as_raw(),
                    page.as_ptr(),
                    0,
                    PAGE_SIZE << order,
                    direction.as_raw(),
                    &mut addr,
                )
            })?;
            Ok(virt)
        });
        let virt = match mapped {
            Ok(virt) => virt,
            Err(error) => {
                // SAFETY: The pages are ours and nothing uses them.
                unsafe { bindings::__free_pages(page.as_ptr(), order) };
                return Err(error);
            }
        };
        // INVARIANT: The pages were allocated and mapped just so.
        let this = Self {
            page,
            virt,
            addr,
            order,
            direction,
            device: device.clone(),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Makes what the CPU, or another device, wrote to a range inside visible to the device.
    #[inline]
    fn sync_for_device(&self, offset: usize, len: usize) {
        if self.device.uses_virt_dma() {
            return;
        }
        // SAFETY: By the type invariants the memory is mapped just so.
        unsafe {
            bindings::farblk_dma_sync_for_device(
                self.device.as_raw(),
                self.addr + offset as u64,
                len,
                self.direction.as_raw(),
            )
        };
    }

    /// Makes what the device wrote to a range inside visible to the CPU.
    #[inline]
    fn sync_for_cpu(&self, offset: usize, len: usize) {
        if self.device.uses_virt_dma() {
            return;
        }
        // SAFETY: By the type invariants the memory is mapped just so.
        unsafe {
            bindings::farblk_dma_sync_for_cpu(
                self.device.as_raw(),
                self.addr + offset as u64,
                len,
                self.direction.as_raw(),
            )
        };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the memory is mapped just so, and ours. That it is being
        // dropped shows that nothing which refers to it is in a posted work request.
        unsafe {
            bindings::farblk_dma_unmap_page(
                self.device.as_raw(),
                self.addr,
                PAGE_SIZE << self.order,
                self.direction.as_raw(),
            );
            bindings::__free_pages(self.page.as_ptr(), self.order);
        }
    }
}

/// A buffer that the CPU writes and reads too, mapped for a device as long as it exists.
///
/// # Invariants
///
/// - `0 < len`, and the `len` bytes at `offset` are inside `pages`. No other buffer has any of them,
///   and no [`DmaMemory`] has these pages.
pub(crate) struct DmaBuffer {
    pages: Arc<Pages>,
    offset: usize,
    len: usize,
}

impl DmaBuffer {
    /// Allocates a buffer of `len` bytes, at most 1 MiB, zeroed, near the device and maps it.
    ///
    /// # Context
    ///
    /// May sleep. Dropping it does not sleep.
    pub(crate) fn alloc(device: &Arc<Device>, len: usize, direction: Direction) -> Result<Self> {
        let node = device.numa_node();
        // INVARIANT: The pages suffice for `len` bytes, and nobody else knows them.
        Ok(Self {
            pages: Pages::alloc(device, len, MAX_BUFFER, node, direction)?,
            offset: 0,
            len,
        })
    }

    /// Splits the buffer into buffers of `len` bytes, in order; what is left at the end is lost.
    ///
    /// The memory is freed when the last of them is. Where the device and the CPU do not see the
    /// same caches, buffers that are written at the same time should not share a cache line.
    ///
    /// # Context
    ///
    /// Any. Does not allocate.
    pub(crate) fn split(self, len: usize) -> impl Iterator<Item = Self> {
        let count = self.len.checked_div(len).unwrap_or(0);
        (0..count).map(move |index| {
            // INVARIANT: They are pieces of `self`, which is not used any more, and do not overlap.
            Self {
                pages: self.pages.clone(),
                offset: self.offset + index * len,
                len,
            }
        })
    }

    /// Makes the buffer shorter: its first `len` bytes; `EINVAL` if it has fewer, or that is none.
    pub(crate) fn truncate(&mut self, len: usize) -> Result {
        if len == 0 || len > self.len {
            return Err(EINVAL);
        }
        // INVARIANT: The buffer only gets shorter.
        self.len = len;
        Ok(())
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where the device finds the memory.
    #[inline]
    pub(super) fn addr(&self) -> u64 {
        self.pages.addr + self.offset as u64
    }

    /// Who writes the memory.
    #[inline]
    pub(super) fn direction(&self) -> Direction {
        self.pages.direction
    }

    /// Whether the buffer is mapped for `device`.
    #[inline]
    pub(super) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.pages.device, device)
    }

    /// Makes what the CPU wrote visible to the device.
    #[inline]
    pub(super) fn sync_for_device(&self) {
        self.pages.sync_for_device(self.offset, self.len);
    }

    /// Makes what the device wrote visible to the CPU.
    #[inline]
    pub(super) fn sync_for_cpu(&self) {
        self.pages.sync_for_cpu(self.offset, self.len);
    }

    /// The memory from `offset` on, if `len` bytes from there are inside.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                // SAFETY: By the type invariants the range is inside the pages.
                Ok(unsafe { self.pages.virt.as_ptr().add(self.offset + offset) })
            }
            _ => Err(EINVAL),
        }
    }

    /// Copies `data` to `offset`. Gives `EINVAL`, and copies nothing, if it does not fit.
    pub(crate) fn copy_in(&mut self, offset: usize, data: &[u8]) -> Result {
        let to = self.at(offset, data.len())?;
        // SAFETY: The range was checked to be inside the memory, which by the type invariants is
        // this buffer's alone, and which the exclusive reference shows to be in no posted work
        // request.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Copies from `offset` to `data`. Gives `EINVAL`, and copies nothing, if there is not as much.
    pub(crate) fn copy_out(&self, offset: usize, data: &mut [u8]) -> Result {
        let from = self.at(offset, data.len())?;
        // SAFETY: The range was checked to be inside the memory, which by the type invariants is
        // this buffer's alone. Nobody writes it: the CPU does so through an exclusive reference, and
        // a device while a queue pair has exclusive access to the buffer.
        unsafe { core::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Copies the first `len` bytes to the start of `memory`. Gives `EINVAL` if there are not as many
    /// here or there, or the memory is not to be written.
    pub(crate) fn copy_to(&self, len: usize, memory: &impl Segmented) -> Result {
        let mut from = self.at(0, len)?.cast_const();
        let mut left = len;
        if !memory.writable() {
            return Err(EINVAL);
        }
        for segment in memory.segments() {
            let part = left.min(segment.len() as usize);
            // SAFETY: As `Segmented` promises, the segment's pages are allocated, are those of the
            // direct map, and may be written, with no reference to them. So much of the buffer is left,
            // which nobody writes, as in `copy_out()`; they do not overlap, as the buffer's memory is
            // its own. It is C that writes, as others may do so at the same time: a device, a task that
            // has mapped the pages, or another copy to them.
            unsafe {
                let to = bindings::farblk_page_address(segment.page().as_ptr()).cast::<u8>();
                let to = to.add(segment.offset() as usize);
                bindings::farblk_copy_racy(to.cast(), from.cast(), part);
                from = from.add(part);
            }
            left -= part;
            if left == 0 {
                return Ok(());
            }
        }
        match left {
            0 => Ok(()),
            _ => Err(EINVAL),
        }
    }
}

/// Zeroed memory for devices, mapped for one of them as long as it exists.
///
/// It is handed out in pieces. The CPU does not access it through this type.
///
/// # Context
///
/// Dropping it, and its pieces, does not sleep.
///
/// # Invariants
///
/// - No [`DmaBuffer`] has these pages.
pub(crate) struct DmaMemory {
    pages: Arc<Pages>,
}

impl DmaMemory {
    /// The most bytes that there can be at once: 2 MiB with pages of 4 KiB.
    pub(crate) const MAX: usize = PAGE_SIZE << 9;

    /// Allocates `len` bytes, at most [`Self::MAX`] and rounded up to a power of two of pages, on NUMA
    /// node `node`, or anywhere when it is -1, and maps them for both to write.
    ///
    /// Gives `ENOMEM` also if there is not as much in one piece.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn alloc(device: &Arc<Device>, len: usize, node: i32) -> Result<Self> {
        // INVARIANT: Nobody else knows the pages.
        Ok(Self {
            pages: Pages::alloc(device, len, Self::MAX, node, Direction::Bidirectional)?,
        })
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> usize {
        PAGE_SIZE << self.pages.order
    }

    /// The `len` bytes at `offset`; `EINVAL` if they are none, or not all inside.
    ///
    /// It is up to the caller that pieces which are used at the same time do not overlap: otherwise
    /// their contents get mixed up, but nothing worse.
    ///
    /// # Context
    ///
    /// Any. Does not allocate.
    pub(crate) fn piece(&self, offset: usize, len: usize) -> Result<DmaPiece> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() && len != 0 => {
                // INVARIANT: It was checked. CAST: The memory has at most 2 MiB.
                Ok(DmaPiece {
                    pages: self.pages.clone(),
                    offset: offset as u32,
                    len: len as u32,
                })
            }
            _ => Err(EINVAL),
        }
    }
}

/// A piece of [`DmaMemory`], which it keeps.
///
/// It is what a queue pair sends and receives without mapping it, and, as it is [`Segmented`], what
/// other devices access as well.
///
/// # Invariants
///
/// - `0 < len`, and the `len` bytes at `offset` are inside `pages`, which are those of a
///   [`DmaMemory`].
pub(crate) struct DmaPiece {
    pages: Arc<Pages>,
    offset: u32,
    len: u32,
}

impl DmaPiece {
    /// The size in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Makes the piece shorter or longer: `len` bytes from where it begins; `EINVAL` if they are none,
    /// or not all inside the memory.
    ///
    /// As with [`DmaMemory::piece`] it is up to the caller that pieces do not overlap.
    pub(crate) fn resize(&mut self, len: u32) -> Result {
        let end = (self.offset as usize).checked_add(len as usize);
        match end {
            Some(end) if end <= PAGE_SIZE << self.pages.order && len != 0 => {
                // INVARIANT: It was checked.
                self.len = len;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    /// Where the device finds the memory.
    #[inline]
    pub(super) fn addr(&self) -> u64 {
        self.pages.addr + u64::from(self.offset)
    }

    /// Whether the memory is mapped for `device`.
    #[inline]
    pub(super) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.pages.device, device)
    }

    /// Makes what was written visible to the device.
    #[inline]
    pub(super) fn sync_for_device(&self) {
        let (offset, len) = (self.offset as usize, self.len as usize);
        self.pages.sync_for_device(offset, len);
    }

    /// Makes what the device wrote visible to all others.
    #[inline]
    pub(super) fn sync_for_cpu(&self) {
        let (offset, len) = (self.offset as usize, self.len as usize);
        self.pages.sync_for_cpu(offset, len);
    }
}

// SAFETY: By the type invariants the segment is one of pages of the direct map that `pages` keeps,
// and no `DmaBuffer` has them, so that there are no references to it. The fields change only through
// an exclusive reference.
unsafe impl Segmented for DmaPiece {
    #[inline]
    fn writable(&self) -> bool {
        true
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        // SAFETY: By the type invariants the page is one of ours.
        core::iter::once(unsafe { Segment::new(self.pages.page, self.offset, self.len) })
    }
}

/// A range of [`PageChunks`] that is mapped for a device.
///
/// # Invariants
///
/// - `table` was allocated by `sg_alloc_table()` and is freed by `drop()` and nothing else.
/// - It describes `len` bytes of `memory`, mapped for `device` in `direction` to the first
///   `mapped` entries.
/// - All these begin at a multiple of `page_size`, which is a power of two and which the device
///   supports, and all but the last end at one.
pub(crate) struct SgMapping {
    table: bindings::sg_table,
    mapped: i32,
    len: usize,
    page_size: usize,
    direction: Direction,
    device: Arc<Device>,
    _memory: Arc<PageChunks>,
}

// SAFETY: Mappings belong to no thread.
unsafe impl Send for SgMapping {}

// SAFETY: The fields do not change.
unsafe impl Sync for SgMapping {}

impl SgMapping {
    /// Maps the `len` bytes at `offset` of `memory` for `device`.
    ///
    /// Gives `EINVAL` if that is not a range of whole pages inside `memory`.
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
            _memory: memory.clone(),
        };
        // INVARIANT: `best_page_size()` finds a size for which the invariant is true.
        this.page_size = this.best_page_size(memory.chunk_size().max(PAGE_SIZE))?;
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// The largest page size for a memory region over the mapping.
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
        while size >= PAGE_SIZE {
            if size <= max && bits & (size as u64 - 1) == 0 && self.device.has_page_size(size) {
                return Ok(size);
            }
            size /= 2;
        }
        Err(EINVAL)
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The mapped entries, for `ib_map_mr_sg()`, which does not change them.
    pub(super) fn entries(&self) -> (*mut bindings::scatterlist, i32) {
        (self.table.sgl, self.mapped)
    }

    /// The page size of memory regions over the mapping.
    pub(super) fn page_size(&self) -> usize {
        self.page_size
    }

    /// The device.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Who writes the memory.
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }
}

/// Page sizes beyond this many times two are not tried.
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
