// SPDX-License-Identifier: GPL-2.0

//! Memory as lists of segments: what `block` and `rdma` share.
//!
//! It is memory before it is mapped: that of a bio, of a request or of [`PageChunks`]. The kernel
//! crate's `scatterlist` of today is about memory that is mapped. An entry of its `SGTable` tells a
//! DMA address and a length, but no page. Such a table is either of memory of `vmalloc()` that it
//! owns, mapped for the device of a driver, or one that C code has made. What it could do for
//! mappings is said in `rdma/dma.rs`.
//!
//! C header: [`include/linux/scatterlist.h`](srctree/include/linux/scatterlist.h)

// UPSTREAM: upstream/tree/base/scatterlist.rs takes the place of this file, with patches 0005, 0008
// and 0009 of upstream/rust.

#![allow(unsafe_code)]

use crate::base::{
    contents::Contents,
    memory::{
        available_memory,
        NumaNode, //
    },
};
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
/// See [`Segmented`] for an example.
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

    /// Returns true if it has no bytes.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
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
/// # Examples
///
/// ```
/// # use crate::base::scatterlist::Segmented;
/// /// Returns how many bytes a device finds, and in how many pieces.
/// fn size(memory: &impl Segmented) -> (u64, usize) {
///     memory.segments().fold((0, 0), |(bytes, pieces), segment| {
///         (bytes + u64::from(segment.len()), pieces + 1)
///     })
/// }
/// ```
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
///
/// # Examples
///
/// ```
/// # use crate::base::scatterlist::{NoMemory, Segmented};
/// /// A command, which may have data.
/// trait Command {
///     type Data: Segmented;
///
///     fn data(&self) -> Option<&Self::Data> {
///         None
///     }
/// }
///
/// /// One that never has.
/// struct Flush;
///
/// impl Command for Flush {
///     type Data = NoMemory;
/// }
/// ```
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
/// # use crate::base::{memory::NumaNode, scatterlist::PageChunks};
/// # use kernel::prelude::*;
/// # fn example() -> Result {
/// // 64 MiB from any NUMA node, in chunks of 2 MiB if there are such.
/// let memory = PageChunks::alloc(64 << 20, NumaNode::NO_NODE)?;
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
    #[cfg_attr(not(CONFIG_FARBLK_KUNIT_TEST), allow(dead_code))]
    pub(crate) fn alloc(len: usize, node: NumaNode) -> Result<Arc<Self>> {
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
/// # use crate::base::{memory::NumaNode, scatterlist::{PageChunks, PageChunksBuilder}};
/// # use crate::base::sync::fatal_signal_pending;
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(len: usize) -> Result<Arc<PageChunks>> {
/// let mut builder = PageChunksBuilder::new(len, NumaNode::NO_NODE)?;
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
    node: NumaNode,
}

impl PageChunksBuilder {
    /// Prepares to allocate `len` bytes of zeroed memory, from NUMA node `node` first.
    ///
    /// Fails with `EINVAL` if `len` is no positive multiple of the page size, and with `ENOMEM` if
    /// so much is not available now or the node is not online.
    pub(crate) fn new(len: usize, node: NumaNode) -> Result<Self> {
        if len == 0 || len % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        // Later than this, the whole system would run out of memory before the allocation fails.
        if len as u64 > available_memory() || !node.is_online() {
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
            // CAST: A small number.
            let (node, order) = (self.node.as_raw(), self.order as u32);
            // SAFETY: The function has no requirements beyond the context.
            let page = unsafe { bindings::farblk_alloc_pages(node, order, true) };
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
