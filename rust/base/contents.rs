// SPDX-License-Identifier: GPL-2.0

//! The contents of memory that devices, and tasks that have mapped it, may write at any time: no
//! Rust reference to them may exist, so that only C reads and writes them.

// UPSTREAM: upstream/tree/base/contents.rs takes the place of this file, with patch 0005 of
// upstream/rust.

use crate::base::scatterlist::{
    Segment,
    Segmented, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ops::Range, //
};
use kernel::prelude::*;

/// The contents of a physically contiguous piece of memory, for as long as something that has the
/// memory is borrowed.
///
/// # Examples
///
/// ```
/// # use crate::base::contents::Contents;
/// # use kernel::prelude::*;
/// /// Counts in the first 8 bytes.
/// fn count(contents: &Contents<'_>) -> Result<u64> {
///     let mut number = [0; 8];
///     // Others may write there now or later: what was read is all there is to rely on.
///     contents.read(&mut number)?;
///     let number = u64::from_le_bytes(number).wrapping_add(1);
///     contents.part(0..8)?.write(&number.to_le_bytes())?;
///     Ok(number)
/// }
/// ```
///
/// # Invariants
///
/// During `'a` the segment's pages are allocated, are those of the direct map, and may be read and
/// written by the CPU; no Rust reference to their contents exists.
pub(crate) struct Contents<'a>(Segment, PhantomData<&'a ()>);

impl<'a> Contents<'a> {
    /// Takes the contents of a segment.
    ///
    /// # Safety
    ///
    /// During `'a` the segment's pages must be allocated, be those of the direct map, and no Rust
    /// reference to the contents may exist.
    #[inline]
    pub(crate) unsafe fn new(segment: Segment) -> Self {
        // INVARIANT: By the safety requirements.
        Self(segment, PhantomData)
    }

    /// Returns where they are.
    #[inline]
    pub(in crate::base) fn segment(&self) -> Segment {
        self.0
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // CAST: A u32 fits a usize on every platform with RDMA.
        self.0.len() as usize
    }

    /// Returns the bytes of `range` of them. Fails with `EINVAL` if they are not all inside.
    #[inline]
    pub(crate) fn part(&self, range: Range<usize>) -> Result<Self> {
        let len = range.end.checked_sub(range.start).ok_or(EINVAL)?;
        if range.end > self.len() {
            return Err(EINVAL);
        }
        // CAST: Both are within the segment.
        let (start, len) = (range.start as u32, len as u32);
        let offset = self.0.offset().checked_add(start).ok_or(EINVAL)?;
        // SAFETY: The page is that of a segment.
        let part = unsafe { Segment::new(self.0.page(), offset, len) };
        // INVARIANT: They are a part of contents for which the invariant is true.
        Ok(Self(part, PhantomData))
    }

    /// Copies `bytes` to the start. Fails with `EINVAL` if there is less room. Any context.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result {
        if bytes.len() > self.len() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariants there is so much memory, which may be written. It is C
        // that does, as others may at the same time.
        unsafe {
            bindings::farblk_copy_racy(self.as_ptr().cast(), bytes.as_ptr().cast(), bytes.len())
        };
        Ok(())
    }

    /// Copies the start to `bytes`. Fails with `EINVAL` if there is less. Any context.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result {
        if bytes.len() > self.len() {
            return Err(EINVAL);
        }
        // SAFETY: As in `write()`, for reading.
        unsafe {
            bindings::farblk_copy_racy(bytes.as_mut_ptr().cast(), self.as_ptr().cast(), bytes.len())
        };
        Ok(())
    }

    /// Returns the address of the first byte.
    #[inline]
    pub(in crate::base) fn as_ptr(&self) -> *mut u8 {
        address(&self.0)
    }
}

// SAFETY: By the type invariants, during `'a`; nothing changes the segment.
unsafe impl Segmented for Contents<'_> {
    fn writable(&self) -> bool {
        true
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        core::iter::once(self.0)
    }
}

/// Returns the address of the first byte of a segment of the direct map.
#[inline]
fn address(segment: &Segment) -> *mut u8 {
    // SAFETY: By the invariants of `Segment` the page is that of memory.
    let page = unsafe { bindings::farblk_page_address(segment.page().as_ptr()) };
    page.cast::<u8>().wrapping_add(segment.offset() as usize)
}

/// Copies the first `len` bytes of `from` to the start of `to`.
///
/// Fails with `EINVAL` if one of them has fewer, or if `to` may not be written; a part may have
/// been copied then. Others may write either at the same time: then the copy has some of both.
///
/// # Context
///
/// Any. Does not sleep.
pub(crate) fn copy(len: usize, from: &impl Segmented, to: &impl Segmented) -> Result {
    if !to.writable() {
        return Err(EINVAL);
    }
    let mut left = len;
    let mut targets = to.segments();
    let mut target: Option<(*mut u8, usize)> = None;
    for segment in from.segments() {
        let (mut source, mut rest) = (address(&segment), segment.len() as usize);
        while left > 0 && rest > 0 {
            let (place, room) = match target.take() {
                Some(target) => target,
                None => {
                    let next = targets.next().ok_or(EINVAL)?;
                    (address(&next), next.len() as usize)
                }
            };
            let part = left.min(rest).min(room);
            // SAFETY: As `Segmented` promises, both segments are allocated memory of the direct
            // map, `to` may be written, and there are no references to either. So much is left of
            // both. It is C that copies, as others may write at the same time, and the two may
            // overlap.
            unsafe { bindings::farblk_copy_racy(place.cast(), source.cast(), part) };
            source = source.wrapping_add(part);
            rest -= part;
            left -= part;
            if part < room {
                target = Some((place.wrapping_add(part), room - part));
            }
        }
        if left == 0 {
            break;
        }
    }
    match left {
        0 => Ok(()),
        _ => Err(EINVAL),
    }
}
