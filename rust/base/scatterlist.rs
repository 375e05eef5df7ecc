// SPDX-License-Identifier: GPL-2.0

//! Memory as lists of segments: what `block` and `rdma` share.
//!
//! C header: [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

// UPSTREAM: upstream/tree/base/scatterlist.rs takes the place of this file, with patches of
// upstream/rust.

#![allow(unsafe_code)]

use crate::base::contents::Contents;
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// A physically contiguous piece of memory.
///
/// It is only a description. That the memory exists is promised by the [`Segmented`] it came from.
///
/// # Invariants
///
/// `page` has been that of memory, so that its address can be calculated.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    page: NonNull<bindings::page>,
    offset: u32,
    len: u32,
}

impl Segment {
    /// Describes `len` bytes that start `offset` bytes after the start of `page`.
    ///
    /// `offset` may exceed a page, as it does in a multi-page `bio_vec`.
    ///
    /// # Safety
    ///
    /// `page` must be that of memory.
    #[inline]
    pub(crate) unsafe fn new(page: NonNull<bindings::page>, offset: u32, len: u32) -> Self {
        // INVARIANT: By the safety requirements.
        Self { page, offset, len }
    }

    /// Returns the page that [`Self::offset`] counts from.
    #[inline]
    pub(crate) fn page(&self) -> NonNull<bindings::page> {
        self.page
    }

    /// Returns the start, in bytes from the start of the page.
    #[inline]
    pub(crate) fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the end, in bytes from the start of the page.
    #[inline]
    fn end(&self) -> usize {
        // CAST: a u32 fits a usize on every platform with RDMA.
        self.offset as usize + self.len as usize
    }

    /// Returns true if the segment ends within a page.
    #[inline]
    pub(crate) fn ends_in_page(&self) -> bool {
        self.end() % PAGE_SIZE != 0
    }

    /// Appends `next` and returns true, if that continues this one in the page where this one ends.
    #[inline]
    pub(crate) fn append(&mut self, next: &Self) -> bool {
        let physical = |segment: &Self, at: usize| {
            // SAFETY: By the type invariants. Only the page's number is looked at.
            let page = unsafe { bindings::farblk_page_to_phys(segment.page.as_ptr()) };
            page.wrapping_add(at as u64)
        };
        let follows = self.ends_in_page()
            && physical(self, self.end()) == physical(next, next.offset as usize);
        match self.len.checked_add(next.len) {
            Some(len) if follows => {
                self.len = len;
                true
            }
            _ => false,
        }
    }
}

/// Something that consists of memory that a device may access.
///
/// # Safety
///
/// From any call of a method until `self` is dropped or mutably borrowed, all of this must hold:
///
/// - [`segments`](Self::segments) yields the same segments at every call, and each describes
///   physically contiguous pages of the kernel's direct map that are allocated and stay in place,
/// - [`writable`](Self::writable) answers the same at every call,
/// - devices may read the memory, and if it is `writable()`, may also write it: nothing relies on
///   it being constant, and no Rust reference to it exists.
pub(crate) unsafe trait Segmented {
    /// Returns true if a device may write the memory.
    fn writable(&self) -> bool;

    /// Returns the memory, in order.
    fn segments(&self) -> impl Iterator<Item = Segment> + '_;
}

/// The [`Segmented`] of owners that have no such memory: it has no values.
pub(crate) enum NoMemory {}

// SAFETY: There is no value of this type.
unsafe impl Segmented for NoMemory {
    fn writable(&self) -> bool {
        match *self {}
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        core::iter::empty()
    }
}

/// Returns true if NUMA node `node` exists and is online, or if it is -1, which means any node. Any
/// context.
pub(crate) fn node_online(node: i32) -> bool {
    // SAFETY: The function has no requirements.
    unsafe { bindings::farblk_node_online(node) }
}

/// Returns how many bytes of memory this host can allocate without swapping; `MemAvailable` of
/// /proc/meminfo. Any context.
pub(crate) fn available_memory() -> u64 {
    // SAFETY: The function has no requirements.
    let pages = unsafe { bindings::si_mem_available() };
    // It may be negative for a moment.
    u64::try_from(pages).unwrap_or(0) * PAGE_SIZE as u64
}

/// Returns how many bytes of memory this host has. Any context.
pub(crate) fn total_memory() -> u64 {
    // SAFETY: The function has no requirements.
    let pages = unsafe { bindings::farblk_totalram_pages() };
    // CAST: An unsigned long has at most 64 bits.
    pages as u64 * PAGE_SIZE as u64
}

/// The order of the largest chunk that is tried: 2 MiB, whatever the size of a page. Larger ones
/// would be rare, and what does not fill the last one is wasted.
const LARGEST_ORDER: usize = ((2 << 20) / PAGE_SIZE).ilog2() as usize;

/// Zeroed memory in power-of-two chunks on a NUMA node.
///
/// The memory is for devices. The CPU gets at it by [`PageChunks::contents`].
///
/// # Context
///
/// The last reference must be dropped where sleeping is allowed.
///
/// # Examples
///
/// ```
/// # use crate::base::scatterlist::PageChunks;
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// // 64 MiB from any NUMA node, in chunks of 2 MiB if there are such.
/// let memory = PageChunks::alloc(64 << 20, -1)?;
/// let mut first = [0; 16];
/// for contents in memory.contents(0, first.len()) {
///     contents.read(&mut first)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `chunks` holds pages from `farblk_alloc_pages()` that this object owns: first the
///   `count[LARGEST_ORDER]` chunks of that order, then those of the next smaller one, and so on.
/// - `len` is a multiple of `PAGE_SIZE`, greater than 0, and at most the sum of the chunks' sizes.
pub(crate) struct PageChunks {
    chunks: KVVec<NonNull<bindings::page>>,
    count: [usize; LARGEST_ORDER + 1],
    len: usize,
}

// SAFETY: Pages belong to no thread.
unsafe impl Send for PageChunks {}

// SAFETY: The methods that take a shared reference only read the fields.
unsafe impl Sync for PageChunks {}

impl PageChunks {
    /// The size in bytes of the largest chunk.
    pub(crate) const CHUNK: usize = PAGE_SIZE << LARGEST_ORDER;

    /// Allocates all of [`PageChunksBuilder`] at once. May sleep.
    pub(crate) fn alloc(len: usize, node: i32) -> Result<Arc<Self>> {
        let mut builder = PageChunksBuilder::new(len, node)?;
        builder.grow(len)?;
        builder.finish()
    }

    /// Returns the size in bytes of the smallest chunk.
    pub(crate) fn chunk_size(&self) -> usize {
        let smallest = self.count.iter().position(|count| *count > 0);
        PAGE_SIZE << smallest.unwrap_or(0)
    }

    /// Overwrites the memory with zeroes, chunk by chunk, as long as `goes_on` returns true, which
    /// gets the bytes that are done. Returns true if all are.
    ///
    /// Devices must not access the memory meanwhile, or what they find and leave there is
    /// undefined. May sleep, and takes long if the memory is large.
    pub(crate) fn clear(&self, mut goes_on: impl FnMut(usize) -> bool) -> bool {
        let mut done = 0;
        for (page, size) in self.iter() {
            if !goes_on(done) {
                return false;
            }
            // SAFETY: By the type invariants the pages are ours. No Rust reference to their
            // contents exists, and nothing relies on them being constant.
            unsafe { bindings::farblk_clear_pages(page.as_ptr(), size / PAGE_SIZE) };
            done += size;
        }
        true
    }

    /// Returns the chunks with their sizes in bytes.
    fn iter(&self) -> impl Iterator<Item = (NonNull<bindings::page>, usize)> + '_ {
        let orders = (0..=LARGEST_ORDER)
            .rev()
            .flat_map(|order| core::iter::repeat(order).take(self.count[order]));
        self.chunks
            .iter()
            .zip(orders)
            .map(|(page, order)| (*page, PAGE_SIZE << order))
    }

    /// Returns the contents of the `len` bytes at `offset`; none if these are not all inside.
    pub(crate) fn contents(
        &self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = Contents<'_>> + '_ {
        self.segments(offset, len).map(|segment| {
            // SAFETY: By the type invariants the pages are ours as long as `self` exists, and in
            // the direct map; no Rust reference to their contents exists.
            unsafe { Contents::new(segment) }
        })
    }

    /// Returns the segments of the `len` bytes at `offset`, one per chunk that they touch.
    ///
    /// There are none if these bytes are not all inside. The segments are valid as long as `self`
    /// is.
    pub(crate) fn segments(
        &self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = Segment> + Clone + '_ {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let (start, end) = if inside {
            (offset, offset + len)
        } else {
            (0, 0)
        };
        // Whole orders are skipped at once, so that the cost does not grow with `offset`.
        let mut first = 0;
        let mut base = 0;
        let mut skipped = [0; LARGEST_ORDER + 1];
        for order in (0..=LARGEST_ORDER).rev() {
            let size = PAGE_SIZE << order;
            let skip = ((start - base) / size).min(self.count[order]);
            skipped[order] = skip;
            first += skip;
            base += skip * size;
            if skip < self.count[order] {
                break;
            }
        }
        let mut orders = (0..=LARGEST_ORDER).rev().flat_map(move |order| {
            core::iter::repeat(order).take(self.count[order] - skipped[order])
        });
        let mut chunks = self.chunks.get(first..).unwrap_or(&[]).iter();
        core::iter::from_fn(move || {
            if base >= end {
                return None;
            }
            let page = *chunks.next()?;
            let size = PAGE_SIZE << orders.next()?;
            let from = start.saturating_sub(base);
            let to = size.min(end - base);
            base += size;
            // SAFETY: By the type invariants the page is one of ours. CAST: Both are at most the
            // largest chunk's size.
            Some(unsafe { Segment::new(page, from as u32, (to - from) as u32) })
        })
    }
}

/// [`PageChunks`] that are being allocated.
///
/// Dropping it frees what was allocated.
///
/// # Examples
///
/// ```
/// # use crate::base::{scatterlist::{PageChunks, PageChunksBuilder}, sync::fatal_signal_pending};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(len: usize) -> Result<Arc<PageChunks>> {
/// let mut builder = PageChunksBuilder::new(len, -1)?;
/// // In steps, as it may take long, and the user may change his mind.
/// while builder.is_incomplete() {
///     if fatal_signal_pending() {
///         return Err(EINTR);
///     }
///     builder.grow(1 << 30)?;
/// }
/// builder.finish()
/// # }
/// ```
pub(crate) struct PageChunksBuilder {
    /// The memory that is allocated so far.
    memory: PageChunks,
    /// The bytes that are missing; a multiple of `PAGE_SIZE`.
    missing: usize,
    /// The order of the next chunk that is tried.
    order: usize,
    node: i32,
}

impl PageChunksBuilder {
    /// Prepares to allocate `len` bytes of zeroed memory, from NUMA node `node` first, or from
    /// anywhere when it is -1.
    ///
    /// Fails with `EINVAL` if `len` is no positive multiple of the page size, and with `ENOMEM` if
    /// so much is not available now.
    pub(crate) fn new(len: usize, node: i32) -> Result<Self> {
        if len == 0 || len % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        // Later than this, the whole system would run out of memory before the allocation fails.
        if len as u64 > available_memory() {
            return Err(ENOMEM);
        }
        // INVARIANT: Nothing is owned yet, and nobody but `drop()`, which does not use `len`, sees
        // it before `finish()`, when it is positive.
        let memory = PageChunks {
            chunks: KVVec::new(),
            count: [0; LARGEST_ORDER + 1],
            len: 0,
        };
        Ok(Self {
            memory,
            missing: len,
            order: LARGEST_ORDER,
            node,
        })
    }

    /// Returns how many bytes are allocated.
    pub(crate) fn len(&self) -> usize {
        self.memory.len
    }

    /// Returns true if [`Self::grow`] has more to allocate.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.missing > 0
    }

    /// Allocates `len` bytes more, in whole chunks, or all that is missing if that is less.
    ///
    /// Chunks of 2 MiB are tried first; where the memory is too fragmented for them, chunks of half
    /// the size, and so on down to a page. Fails with `ENOMEM` if there is not enough memory or no
    /// such node; what was allocated stays.
    ///
    /// # Context
    ///
    /// May sleep, for long if `len` is large.
    pub(crate) fn grow(&mut self, len: usize) -> Result {
        let rest = self.missing.saturating_sub(len);
        while self.missing > rest {
            // A chunk that is larger than what is missing would be wasted.
            while self.order > 0 && PAGE_SIZE << self.order > self.missing {
                self.order -= 1;
            }
            self.memory.chunks.reserve(1, GFP_KERNEL)?;
            // SAFETY: The function has no requirements beyond the context.
            let page = unsafe { bindings::farblk_alloc_pages(self.node, self.order as u32, true) };
            match NonNull::new(page) {
                Some(page) => {
                    // INVARIANT: `order` only goes down, so the chunk's place is the end. `reserve`
                    // made room, so that the push cannot fail and leak the pages. `len` grows by
                    // what the chunks do.
                    self.memory.chunks.push(page, GFP_KERNEL)?;
                    self.memory.count[self.order] += 1;
                    self.memory.len += PAGE_SIZE << self.order;
                    self.missing -= PAGE_SIZE << self.order;
                }
                None if self.order > 0 => self.order -= 1,
                None => return Err(ENOMEM),
            }
            // SAFETY: The function has no requirements beyond the context.
            unsafe { bindings::farblk_cond_resched() };
        }
        Ok(())
    }

    /// Returns the memory. Fails with `EINVAL` if it is not complete, and with `ENOMEM`. May sleep.
    pub(crate) fn finish(self) -> Result<Arc<PageChunks>> {
        match self.missing {
            0 => Ok(Arc::new(self.memory, GFP_KERNEL)?),
            _ => Err(EINVAL),
        }
    }
}

impl Drop for PageChunks {
    fn drop(&mut self) {
        for (index, (page, size)) in self.iter().enumerate() {
            let order = (size / PAGE_SIZE).trailing_zeros();
            // SAFETY: By the type invariants the chunk is ours and of this order. Each is visited
            // once, and nothing uses `chunks` afterwards.
            unsafe { bindings::__free_pages(page.as_ptr(), order) };
            if index % 64 == 0 {
                // SAFETY: The function has no requirements beyond the context.
                unsafe { bindings::farblk_cond_resched() };
            }
        }
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_scatterlist)]
mod tests {
    use super::*;
    use crate::{
        base::sync::fatal_signal_pending,
        kunit::check, //
    };

    /// Returns true if the segments of a range are all of it, in whole chunks but for the ends.
    fn covers(memory: &PageChunks, offset: usize, len: usize) -> bool {
        let mut sum = 0;
        for segment in memory.segments(offset, len) {
            let end = segment.offset() as usize + segment.len() as usize;
            if segment.len() == 0 || end > PageChunks::CHUNK {
                return false;
            }
            // Only the first begins within a chunk.
            if sum > 0 && segment.offset() != 0 {
                return false;
            }
            sum += segment.len() as usize;
        }
        sum == len
    }

    #[test]
    fn memory_is_whole_pages_that_exist() -> Result {
        for len in [0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1] {
            check!(PageChunks::alloc(len, -1).err() == Some(EINVAL));
        }
        // More than there is: refused at once, and nothing is left of it.
        for len in [1 << 44, usize::MAX - PAGE_SIZE + 1] {
            check!(PageChunks::alloc(len, -1).err() == Some(ENOMEM));
        }
        Ok(())
    }

    #[test]
    fn memory_comes_piece_by_piece() -> Result {
        let len = 2 * PageChunks::CHUNK + 3 * PAGE_SIZE;
        let mut builder = PageChunksBuilder::new(len, -1)?;
        check!(builder.len() == 0 && builder.is_incomplete());
        let mut steps = 0;
        while builder.is_incomplete() {
            let before = builder.len();
            builder.grow(PAGE_SIZE)?;
            check!(builder.len() > before);
            steps += 1;
        }
        check!(steps >= 4 && builder.len() == len);
        let memory = builder.finish()?;
        check!(covers(&memory, 0, len));
        // What is not complete is nothing, and is freed.
        let mut builder = PageChunksBuilder::new(len, -1)?;
        builder.grow(PageChunks::CHUNK)?;
        check!(builder.finish().err() == Some(EINVAL));
        check!(!fatal_signal_pending() && available_memory() <= total_memory());
        Ok(())
    }

    #[test]
    fn memory_is_in_chunks_and_zeroed() -> Result {
        let len = PageChunks::CHUNK + 5 * PAGE_SIZE;
        let memory = PageChunks::alloc(len, -1)?;
        check!(memory.chunk_size() == PAGE_SIZE);
        check!(memory.iter().map(|(_, size)| size).sum::<usize>() == len);
        for (page, size) in memory.iter() {
            // SAFETY: The page is one of `memory`, in the direct map; nobody writes there.
            let bytes = unsafe {
                let start = bindings::farblk_page_address(page.as_ptr()).cast::<u8>();
                core::slice::from_raw_parts(start, size)
            };
            check!(bytes.iter().all(|byte| *byte == 0));
        }
        Ok(())
    }

    #[test]
    fn segments_are_the_range_or_nothing() -> Result {
        let len = PageChunks::CHUNK + 7 * PAGE_SIZE;
        let memory = PageChunks::alloc(len, -1)?;
        for (offset, part) in [
            (0, len),
            (0, 1),
            (len - 1, 1),
            (PageChunks::CHUNK, PAGE_SIZE),
            (PageChunks::CHUNK - 1, 2),
            (PageChunks::CHUNK + 3 * PAGE_SIZE + 5, 2 * PAGE_SIZE),
            (5, len - 10),
        ] {
            check!(covers(&memory, offset, part));
        }
        for (offset, part) in [
            (0, 0),
            (0, len + 1),
            (len, 1),
            (1, len),
            (usize::MAX, 2),
            (2, usize::MAX),
        ] {
            check!(memory.segments(offset, part).count() == 0);
        }
        Ok(())
    }

    #[test]
    fn segments_of_neighbours_do_not_overlap() -> Result {
        let pages = 12;
        let memory = PageChunks::alloc(pages * PAGE_SIZE, -1)?;
        let mut seen = KVec::new();
        for index in 0..pages {
            for segment in memory.segments(index * PAGE_SIZE, PAGE_SIZE) {
                // SAFETY: The page is one of `memory`, in the direct map.
                let start = unsafe { bindings::farblk_page_address(segment.page().as_ptr()) };
                let start = start.addr() + segment.offset() as usize;
                check!(segment.len() as usize == PAGE_SIZE && !seen.contains(&start));
                seen.push(start, GFP_KERNEL)?;
            }
        }
        check!(seen.len() == pages);
        Ok(())
    }

    #[test]
    fn segments_go_on_in_their_page_only() -> Result {
        let memory = PageChunks::alloc(4 * PAGE_SIZE, -1)?;
        let page = memory.segments(0, 1).next().ok_or(EIO)?.page();
        // SAFETY: The page is one of `memory`.
        let at = |offset: usize, len| unsafe { Segment::new(page, offset as u32, len) };
        let mut segment = at(512, 512);
        let rest = PAGE_SIZE as u32 - 2048;
        check!(segment.append(&at(1024, 1024)) && segment.append(&at(2048, rest)));
        check!(segment.offset() == 512 && segment.len() == rest + 1536);
        // At the end of a page a segment ends.
        check!(!segment.ends_in_page() && !segment.append(&at(PAGE_SIZE, 512)));
        // The next page may be given as itself or by its distance from the first.
        let other = memory.segments(PAGE_SIZE, 1).next().ok_or(EIO)?;
        let mut long = at(0, PAGE_SIZE as u32 + 100);
        // SAFETY: As above.
        let next = unsafe { Segment::new(other.page(), other.offset() + 100, 8) };
        check!(long.append(&next));
        check!(!long.append(&at(PAGE_SIZE + 109, 8)) && !long.append(&at(PAGE_SIZE + 107, 8)));
        check!(long.len() == PAGE_SIZE as u32 + 108);
        Ok(())
    }

    #[test]
    fn any_node_is_online() -> Result {
        check!(node_online(-1) && node_online(0));
        check!(!node_online(i32::MAX) && !node_online(-2));
        Ok(())
    }
}
