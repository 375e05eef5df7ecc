// SPDX-License-Identifier: GPL-2.0

//! The data of a request.
//!
//! C header: [`include/linux/bvec.h`](srctree/include/linux/bvec.h)

use crate::base::{
    compat,
    scatterlist::Segment, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

/// The segments of a request, multi-page: C's `rq_for_each_bvec()`, but that what goes on in the
/// same page, as of bios that were merged, is one segment. So with a `virt_boundary` of a page
/// there is never more than one segment more than pages.
///
/// See [`Request`](super::Request) for an example.
///
/// # Invariants
///
/// - `bio` is null, or a bio of a request that lives for `'a`.
/// - If `left` is not 0, `bvec` points to a bvec of `bio`, `done` is below its length, and it and
///   the ones behind it hold at least `left` bytes from `done` on.
pub(crate) struct Segments<'a> {
    bio: *const bindings::bio,
    bvec: *const bindings::bio_vec,
    done: u32,
    left: u32,
    /// The segment that is next.
    next: Option<Segment>,
    _request: PhantomData<&'a ()>,
}

impl Segments<'_> {
    /// Returns no segments.
    #[inline]
    pub(super) fn none() -> Self {
        Self {
            next: None,
            bio: core::ptr::null(),
            bvec: core::ptr::null(),
            done: 0,
            left: 0,
            _request: PhantomData,
        }
    }

    /// Returns the segments of a list of bios.
    ///
    /// # Safety
    ///
    /// `bio` is null, or the first bio with data of a request that lives for `'a`.
    #[inline]
    pub(super) unsafe fn new(bio: *const bindings::bio) -> Self {
        let mut segments = Self::none();
        // SAFETY: By the safety requirements.
        unsafe { segments.enter(bio) };
        segments
    }

    /// Goes to the start of `bio`.
    ///
    /// # Safety
    ///
    /// `bio` is null, or a bio with data of a request that lives for `'a`.
    #[inline]
    unsafe fn enter(&mut self, bio: *const bindings::bio) {
        // INVARIANT: By the safety requirements. `bi_iter` says where the data of the bio is.
        self.bio = bio;
        if bio.is_null() {
            self.left = 0;
            return;
        }
        // SAFETY: By the safety requirements. The struct is packed, so it is copied out.
        let iter = unsafe { (*bio).bi_iter };
        // SAFETY: `bi_idx` is an index into `bi_io_vec`, or one behind it if there is no data.
        self.bvec = unsafe { (*bio).bi_io_vec.add(iter.bi_idx as usize) };
        self.done = compat::bi_offset(iter);
        self.left = iter.bi_size;
    }
}

impl Segments<'_> {
    /// Returns the next bvec.
    #[inline]
    fn bvec(&mut self) -> Option<Segment> {
        while self.left == 0 {
            if self.bio.is_null() {
                return None;
            }
            // SAFETY: By the type invariants; the bios of a request are a list that ends with null,
            // all of the same operation.
            unsafe { self.enter((*self.bio).bi_next) };
        }
        // SAFETY: By the type invariants, as `left` is not 0.
        let bvec = unsafe { *self.bvec };
        let len = bvec.bv_len.wrapping_sub(self.done).min(self.left);
        // SAFETY: A bvec with data has a page.
        let page = unsafe { NonNull::new_unchecked(bvec.bv_page) };
        // SAFETY: It is the page of a bvec.
        let segment = unsafe { Segment::new(page, bvec.bv_offset.wrapping_add(self.done), len) };
        // INVARIANT: The rest of the bio begins with the next bvec, if there is a rest.
        self.left = self.left.wrapping_sub(len);
        self.bvec = self.bvec.wrapping_add(1);
        self.done = 0;
        Some(segment)
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let mut segment = match self.next.take() {
            Some(segment) => segment,
            None => self.bvec()?,
        };
        while segment.ends_in_page() {
            match self.bvec() {
                Some(next) if segment.append(&next) => {}
                next => {
                    self.next = next;
                    break;
                }
            }
        }
        Some(segment)
    }
}
