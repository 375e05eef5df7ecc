// SPDX-License-Identifier: GPL-2.0

//! The memory regions of a queue pair, which each request registers anew: a small one of each slot,
//! and a few large ones that the slots share.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::scatterlist::Segmented;
use crate::bindings;
use crate::rdma::{
    dma::{
        Direction,
        DmaPiece, //
    },
    might_sleep,
    pd::Pd,
    qp::Free,
    wr::{
        RdmaOp,
        RemoteRange, //
    },
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// A memory region, and room for the list of the segments that it covers.
///
/// It gets another key at each registration. Its address is random, and reveals nothing of where
/// the memory is.
///
/// # Invariants
///
/// - `mr` is a memory region of `pd` of `pages` pages of `page_size` bytes, until `state` is
///   [`GONE`].
/// - `base` is a multiple of the page size, from where on so many pages do not wrap around.
/// - `list` is an initialised table.
pub(super) struct FastRegMr {
    mr: NonNull<bindings::ib_mr>,
    pd: Arc<Pd>,
    state: Atomic<u32>,
    base: u64,
    pages: u32,
    page_size: u32,
    list: KVVec<UnsafeCell<bindings::scatterlist>>,
}

// SAFETY: `ib_mr` belongs to no thread.
unsafe impl Send for FastRegMr {}

/// The region may be used.
const LIVE: u32 = 0;
/// It could not be deregistered, or is just being: peers may have access.
const STUCK: u32 = 1;
/// It was deregistered.
const GONE: u32 = 2;

/// The size of the memory that a [`FastRegMr`] is to cover.
pub(super) struct MemoryShape {
    segments: usize,
    /// The bytes.
    len: u64,
    /// The offset of the first of them in its page of memory.
    offset: u32,
}

impl MemoryShape {
    /// Returns the shape of `piece`.
    #[inline]
    pub(super) fn of_piece(piece: &DmaPiece) -> Self {
        Self {
            segments: 1,
            len: piece.len().into(),
            // CAST: Less than a page.
            offset: (piece.addr() % PAGE_SIZE as u64) as u32,
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the shape of `memory`. Fails with `EINVAL` if it is empty.
    #[inline]
    pub(super) fn of(memory: &impl Segmented) -> Result<Self> {
        let mut segments = memory.segments().filter(|segment| !segment.is_empty());
        let first = segments.next().ok_or(EINVAL)?;
        let this = Self {
            segments: 1,
            len: first.len().into(),
            offset: first.offset(),
        };
        Ok(segments.fold(this, |this, segment| Self {
            segments: this.segments + 1,
            len: this.len + u64::from(segment.len()),
            ..this
        }))
    }

    /// Returns the offset of the first byte in its page of `page_size` bytes.
    #[inline]
    fn offset(&self, page_size: u32) -> u64 {
        u64::from(self.offset % page_size)
    }

    /// Returns how many pages of `page_size` bytes the memory touches. If it has gaps they may be
    /// more, but then it cannot be mapped.
    #[inline]
    fn pages(&self, page_size: u32) -> u64 {
        (self.offset(page_size) + self.len).div_ceil(page_size.into())
    }
}

impl FastRegMr {
    /// The segments that a region covers at most. With one more, a list would take twice the
    /// memory.
    pub(super) const MAX_SEGMENTS: u32 = 256;

    /// Allocates a memory region of `pages` pages of [`region_page_size`] bytes, to be used by
    /// queue pairs of `pd`. It covers as many segments, but not more than [`Self::MAX_SEGMENTS`].
    ///
    /// Fails with `EINVAL` if the device has no such regions, with `ENOMEM`, and with the device's
    /// error.
    ///
    /// [`region_page_size`]: crate::rdma::device::Device::region_page_size
    ///
    /// # Context
    ///
    /// May sleep; so may dropping it.
    pub(super) fn alloc(pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        let limits = pd.device().limits();
        if pages == 0 || !limits.mem_mgt_extensions || pages > limits.max_fast_reg_page_list_len {
            return Err(EINVAL);
        }
        let entries = pages.min(Self::MAX_SEGMENTS);
        let mut list = KVVec::with_capacity(entries as usize, GFP_KERNEL)?;
        for _ in 0..entries {
            list.push(
                UnsafeCell::new(bindings::scatterlist::default()),
                GFP_KERNEL,
            )?;
        }
        // SAFETY: There are so many entries.
        unsafe { bindings::farblk_sg_init_table(UnsafeCell::raw_get(list.as_ptr()), entries) };
        let page_size = pd.device().region_page_size();
        let size = (u64::from(pages) * u64::from(page_size)).next_power_of_two();
        // SAFETY: The domain is valid by its invariants.
        let mr = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;
        // INVARIANT: The region was just allocated. The base is a multiple of `size` with the
        // highest bit clear. The table was initialised above.
        Ok(Self {
            mr: NonNull::new(mr).ok_or(ENOMEM)?,
            pd: pd.clone(),
            state: Atomic::new(LIVE),
            base: (crate::base::sync::random_u64() >> 1) & !(size - 1),
            pages,
            page_size,
            list,
        })
    }

    /// The C object, which is valid until it is deregistered.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.mr.as_ptr()
    }

    /// Returns the local key, once [`Self::renew`] has taken another one.
    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: By the type invariants the region is valid.
        unsafe { (*self.as_raw()).lkey }
    }

    /// Returns true if the region was deregistered, or that was tried.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.state.load(Relaxed) != LIVE
    }

    /// Returns true if there is room for memory of this shape.
    #[inline]
    pub(super) fn covers(&self, shape: &MemoryShape) -> bool {
        shape.segments <= self.list.len() && shape.pages(self.page_size) <= self.pages.into()
    }

    /// Takes another key, and returns where a peer will find memory of this shape once it is mapped
    /// and registered.
    ///
    /// # Safety
    ///
    /// The region must not be registered, nor used by anybody else.
    #[inline]
    pub(super) unsafe fn renew(&self, shape: &MemoryShape) -> RemoteRange {
        // SAFETY: By the type invariants the region is valid, and nobody else uses it.
        let rkey = unsafe {
            // CAST: The low byte is ours to choose.
            let rkey = bindings::ib_inc_rkey((*self.as_raw()).rkey);
            bindings::ib_update_fast_reg_key(self.as_raw(), rkey as u8);
            (*self.as_raw()).rkey
        };
        RemoteRange {
            addr: self.base + shape.offset(self.page_size),
            rkey,
        }
    }

    /// Maps `memory` for the device of `pd`, and makes the region cover it, beginning at `addr`.
    /// Also on failure `mapped` is set to what [`Self::unmap`] must undo.
    ///
    /// Fails with `EINVAL` if the memory has gaps or is more than the region covers, and with
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// As for [`Self::renew`]. `memory` must stay until it is unmapped.
    #[inline]
    pub(super) unsafe fn map(
        &self,
        pd: &Pd,
        memory: &impl Segmented,
        direction: Direction,
        addr: u64,
        mapped: &mut Option<(Direction, i32)>,
    ) -> Result {
        let limit = pd.device().limits().dma_max_seg_size;
        let mut entries = self.list.iter();
        let mut count = 0;
        let mut len = 0;
        for segment in memory.segments() {
            if segment.is_empty() {
                continue;
            }
            if segment.len() > limit {
                return Err(EINVAL);
            }
            let entry = entries.next().ok_or(EINVAL)?;
            // SAFETY: The entry is one of an initialised table, and nobody else uses it.
            unsafe {
                bindings::farblk_sg_set_page(
                    entry.get(),
                    segment.page().as_ptr(),
                    segment.len(),
                    segment.offset(),
                )
            };
            count += 1;
            len += u64::from(segment.len());
        }
        let list = UnsafeCell::raw_get(self.list.as_ptr());
        // SAFETY: The device is registered. So many entries describe memory that is valid, may be
        // accessed in this direction, and stays so until it is unmapped.
        let nents = unsafe {
            bindings::farblk_dma_map_sg(pd.device().as_raw(), list, count, direction.as_raw())
        };
        if nents <= 0 {
            return Err(ENOMEM);
        }
        *mapped = Some((direction, count));
        // SAFETY: So many entries are mapped for the device, and the caller promises the rest.
        unsafe { self.cover(nents, len, addr) }
    }

    /// Makes the region cover `piece`, which must be for the device of the region, beginning at
    /// `addr`. Fails with `EINVAL` if it is more than the region covers.
    ///
    /// # Safety
    ///
    /// As for [`Self::renew`].
    #[inline]
    pub(super) unsafe fn map_piece(&self, piece: &DmaPiece, addr: u64) -> Result {
        let entry = self.list.first().ok_or(EINVAL)?;
        // SAFETY: The entry is one of an initialised table, and nobody else uses it.
        unsafe { bindings::farblk_sg_set_dma(entry.get(), piece.addr(), piece.len()) };
        // SAFETY: The piece is mapped for as long as it exists. The caller promises the rest.
        unsafe { self.cover(1, piece.len().into(), addr) }
    }

    /// Makes the region cover the first `nents` entries of the list, which have `len` bytes,
    /// beginning at `addr`. Fails with `EINVAL` if they have gaps or are more than it covers.
    ///
    /// # Safety
    ///
    /// As for [`Self::renew`]. The entries must have DMA addresses of the device of the region.
    #[inline]
    unsafe fn cover(&self, nents: i32, len: u64, addr: u64) -> Result {
        let list = UnsafeCell::raw_get(self.list.as_ptr());
        // SAFETY: By the type invariants the region is valid. The caller promises that nobody else
        // uses it, and that so many entries are mapped for its device.
        unsafe {
            let mr = self.as_raw();
            let size = self.page_size;
            let done = bindings::ib_map_mr_sg(mr, list, nents, core::ptr::null_mut(), size);
            let start = bindings::sg_dma_address(list) % u64::from(size);
            // Gaps between pages, or more of them than there is room for.
            if done != nents || (*mr).length != len || start != addr - self.base {
                return Err(EINVAL);
            }
            (*mr).iova = addr;
        }
        Ok(())
    }

    /// Unmaps what [`Self::map`] has mapped.
    ///
    /// # Safety
    ///
    /// It must not be registered any more, nor the list be used by anybody else.
    #[inline]
    pub(super) unsafe fn unmap(&self, pd: &Pd, (direction, count): (Direction, i32)) {
        let list = UnsafeCell::raw_get(self.list.as_ptr());
        // SAFETY: So many entries were mapped in this direction.
        unsafe {
            bindings::farblk_dma_unmap_sg(pd.device().as_raw(), list, count, direction.as_raw())
        };
    }

    /// The work request that registers what was mapped for the peer to do `op`, after `renew()` has
    /// given `rkey`.
    #[inline]
    pub(super) fn reg_wr(
        &self,
        op: RdmaOp,
        rkey: u32,
        wr: bindings::ib_send_wr,
    ) -> bindings::ib_reg_wr {
        let access = match op {
            RdmaOp::Read => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            RdmaOp::Write => {
                bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            }
        };
        bindings::ib_reg_wr {
            wr: bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
                ..wr
            },
            mr: self.as_raw(),
            key: rkey,
            // CAST: Flags fit, see the definition of `enum ib_access_flags`.
            access: access as i32,
        }
    }

    /// Deregisters the region, if that was not done yet, and waits until no access is under way.
    /// After a failure the peer may still have access; all later calls fail with `EIO`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn deregister(&self) -> Result {
        might_sleep();
        match self.state.cmpxchg(LIVE, STUCK, Full) {
            Ok(_) => {}
            Err(GONE) => return Ok(()),
            Err(_) => return Err(EIO),
        }
        // SAFETY: By the type invariants the region is ours, and this is not called again.
        let ret = unsafe { bindings::ib_dereg_mr_user(self.as_raw(), core::ptr::null_mut()) };
        if let Err(error) = to_result(ret) {
            self.pd.keep();
            return Err(error);
        }
        // INVARIANT: It was deregistered.
        self.state.store(GONE, Relaxed);
        Ok(())
    }
}

impl Drop for FastRegMr {
    fn drop(&mut self) {
        // What it covered was given back, so that it is not registered, or its owner is parked.
        let _ = self.deregister();
    }
}

/// Memory regions that a queue pair's slots share.
///
/// # Invariants
///
/// - A region that is free, as `free` tells, is not registered.
pub(super) struct LargeMrs {
    keys: KVec<FastRegMr>,
    free: Free,
}

impl LargeMrs {
    /// Allocates `count <= 64` regions of `pages` pages, like [`FastRegMr::alloc`].
    ///
    /// # Context
    ///
    /// May sleep; so may dropping it.
    pub(super) fn alloc(pd: &Arc<Pd>, count: u16, pages: u32) -> Result<Self> {
        let free = Free::new(count)?;
        let mut keys = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for _ in 0..count {
            keys.push(FastRegMr::alloc(pd, pages)?, GFP_KERNEL)?;
        }
        // INVARIANT: None was registered yet.
        Ok(Self { keys, free })
    }

    /// Returns the region of this number.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&FastRegMr> {
        self.keys.get(index as usize)
    }

    /// Takes a region for memory of this shape, and returns its number. Fails with `EAGAIN` if none
    /// is free, and with `EINVAL` if they are too small.
    #[inline]
    pub(super) fn take(&self, shape: &MemoryShape) -> Result<u32> {
        // They are all alike.
        match self.keys.first() {
            Some(key) if key.covers(shape) => self.free.take().ok_or(EAGAIN),
            _ => Err(EINVAL),
        }
    }

    /// Gives back a region that [`Self::take`] has returned, and that the caller does not use any
    /// more.
    ///
    /// # Safety
    ///
    /// It must not be registered any more.
    pub(super) unsafe fn put(&self, index: u32) {
        // INVARIANT: The caller promises that it is not registered.
        self.free.put(index);
    }
}
