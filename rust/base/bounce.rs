// SPDX-License-Identifier: GPL-2.0

//! Bounce buffers: memory that a device accesses in place of other memory.

use crate::base::{
    contents::{
        copy,
        Contents, //
    },
    scatterlist::{
        PageChunks,
        Segment,
        Segmented, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    bindings::page,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// A physically contiguous buffer, a part of [`PageChunks`], and a private part of as many bytes
/// behind it.
///
/// Devices access the buffer only. What is sent is made in the private part, and what was received
/// is checked there, so that a device that accesses the buffer late sees and changes nothing that
/// is not on the wire.
///
/// # Context
///
/// The last one must be dropped where sleeping is allowed.
///
/// # Examples
///
/// ```
/// # use crate::base::{bounce::BounceBuffer, memory::NumaNode, scatterlist::PageChunks};
/// # use kernel::{page::PAGE_SIZE, prelude::*};
/// # fn example(data: &[u8; 512]) -> Result {
/// let memory = PageChunks::alloc(2 * PAGE_SIZE, NumaNode::NO_NODE)?;
/// let mut buffer = BounceBuffer::new(&memory, 0, PAGE_SIZE as u32)?;
/// buffer.set_len(512, false)?;
/// // What is being made ready, such as by a cipher, no device sees.
/// buffer.private().write(data)?;
/// buffer.publish()?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - The `2 * size` bytes that begin `offset` bytes after the start of `page` are a part of one
///   chunk of `_memory`. `0 < len <= span <= size`.
pub(crate) struct BounceBuffer {
    _memory: Arc<PageChunks>,
    page: NonNull<page>,
    offset: u32,
    size: u32,
    len: u32,
    span: u32,
}

// SAFETY: Pages belong to no thread.
unsafe impl Send for BounceBuffer {}

// SAFETY: The methods that take a shared reference only read the fields.
unsafe impl Sync for BounceBuffer {}

impl BounceBuffer {
    /// Makes a buffer of the `2 * size` bytes at `offset` of `memory`, the second half of which is
    /// its private part. Fails with `EINVAL` if they are not all in one chunk.
    ///
    /// The caller should make no buffers that overlap: their contents would be mixed up. It does no
    /// other harm.
    pub(crate) fn new(memory: &Arc<PageChunks>, offset: usize, size: u32) -> Result<Self> {
        // CAST: A u32 fits a usize on every platform with RDMA.
        let mut segments = memory.segments(offset, 2 * size as usize);
        let segment = segments.next().ok_or(EINVAL)?;
        if Some(segment.len()) != size.checked_mul(2) {
            return Err(EINVAL);
        }
        // INVARIANT: A segment of `memory` is in one chunk, and is not empty.
        Ok(Self {
            _memory: memory.clone(),
            page: segment.page(),
            offset: segment.offset(),
            size,
            len: size,
            span: size,
        })
    }

    /// Returns the most bytes that it has room for.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Uses the first `len` bytes. If devices can be given no less than `whole_pages`, they get
    /// what is left of the last page, too: it has what they got before. Fails with `EINVAL` if
    /// there are fewer bytes, or `len` is 0.
    pub(crate) fn set_len(&mut self, len: u32, whole_pages: bool) -> Result {
        let span = match whole_pages {
            true => len
                .checked_next_multiple_of(PAGE_SIZE as u32)
                .ok_or(EINVAL)?,
            false => len,
        };
        if len == 0 || span > self.size {
            return Err(EINVAL);
        }
        // INVARIANT: It was checked.
        (self.len, self.span) = (len, span);
        Ok(())
    }

    /// Returns the contents of the private part, as long as the bytes in use.
    #[inline]
    pub(crate) fn private(&self) -> Contents<'_> {
        let offset = self.offset + self.size;
        // SAFETY: By the type invariants they are in the same pages as those of `contents()`.
        unsafe { Contents::new(Segment::new(self.page, offset, self.len)) }
    }

    /// Copies the private part to the bytes in use: it is ready for devices. Any context.
    pub(crate) fn publish(&self) -> Result {
        copy(self.contents().len(), &self.private(), &self.contents())
    }

    /// Copies the bytes in use to the private part: devices are done with it. Any context.
    pub(crate) fn fetch(&self) -> Result {
        copy(self.contents().len(), &self.contents(), &self.private())
    }

    /// Returns the segment of the first `len` bytes, at most `span`.
    #[inline]
    fn segment(&self, len: u32) -> Segment {
        // SAFETY: By the type invariants the page is one of `_memory`.
        unsafe { Segment::new(self.page, self.offset, len) }
    }

    /// Returns the contents of the bytes in use.
    #[inline]
    pub(crate) fn contents(&self) -> Contents<'_> {
        // SAFETY: By the type invariants they are in pages of the direct map, which `_memory` keeps
        // as long as `self` has it. `PageChunks` gives no references to its contents.
        unsafe { Contents::new(self.segment(self.len)) }
    }
}

// SAFETY: As for `contents()`. What the methods return changes only through an exclusive reference.
unsafe impl Segmented for BounceBuffer {
    #[inline]
    fn writable(&self) -> bool {
        true
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        core::iter::once(self.segment(self.span))
    }
}

/// Memory, and a bounce buffer that devices access in its place, if there is one.
///
/// The caller copies between the two. So a device, and a peer that it lets access the buffer, never
/// see the memory, and see of its contents what was published.
///
/// # Examples
///
/// ```
/// # use crate::base::{bounce::{BounceBuffer, Bounced}, scatterlist::Segmented};
/// # use kernel::prelude::*;
/// # use kernel::alloc::KBox;
/// # fn example<M: Segmented>(memory: M, buffer: KBox<BounceBuffer>) -> Result {
/// // A device is given the buffer in place of the memory.
/// let bounced = Bounced::new(memory, Some(buffer));
/// bounced.fill()?;
/// // Here the device has read the buffer, or written it.
/// bounced.empty()?;
/// # Ok(())
/// # }
/// ```
pub(crate) struct Bounced<M: Segmented> {
    memory: M,
    buffer: Option<KBox<BounceBuffer>>,
}

impl<M: Segmented> Bounced<M> {
    /// Puts `buffer`, if there is one, in place of `memory`.
    #[inline]
    pub(crate) fn new(memory: M, buffer: Option<KBox<BounceBuffer>>) -> Self {
        Self { memory, buffer }
    }

    /// Returns the memory.
    #[inline]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the buffer that is in place of the memory.
    #[inline]
    pub(crate) fn buffer(&self) -> Option<&BounceBuffer> {
        self.buffer.as_deref()
    }

    /// Returns both.
    #[inline]
    pub(crate) fn into_both(self) -> (M, Option<KBox<BounceBuffer>>) {
        (self.memory, self.buffer)
    }

    /// Copies the memory to the buffer. Fails with `EINVAL` if there is no buffer, or it is longer.
    /// Any context.
    pub(crate) fn fill(&self) -> Result {
        let contents = self.buffer().ok_or(EINVAL)?.contents();
        copy(contents.len(), &self.memory, &contents)
    }

    /// Copies the buffer to the memory: devices are done with it. Fails as [`Self::copy_out`]. Any
    /// context.
    pub(crate) fn empty(&self) -> Result {
        let contents = self.buffer().ok_or(EINVAL)?.contents();
        copy(contents.len(), &contents, &self.memory)
    }

    /// Copies the memory to the private part of the buffer. Fails with `EINVAL` if there is no
    /// buffer, or it is longer. Any context.
    pub(crate) fn copy_in(&self) -> Result {
        let buffer = self.buffer().ok_or(EINVAL)?;
        copy(buffer.private().len(), &self.memory, &buffer.private())
    }

    /// Copies the private part of the buffer to the memory. Fails with `EINVAL` if there is no
    /// buffer, or it is longer, or the memory may not be written. Any context.
    pub(crate) fn copy_out(&self) -> Result {
        let buffer = self.buffer().ok_or(EINVAL)?;
        copy(buffer.private().len(), &buffer.private(), &self.memory)
    }
}

// SAFETY: Both are `Segmented`, and which of them it is never changes.
unsafe impl<M: Segmented> Segmented for Bounced<M> {
    #[inline]
    fn writable(&self) -> bool {
        match &self.buffer {
            Some(buffer) => buffer.writable(),
            None => self.memory.writable(),
        }
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let mut bounced = self
            .buffer()
            .map(|buffer| Some(buffer.segment(buffer.span)));
        let mut memory = self.memory.segments();
        core::iter::from_fn(move || match &mut bounced {
            None => memory.next(),
            Some(segment) => segment.take(),
        })
    }
}
