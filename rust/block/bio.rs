// SPDX-License-Identifier: GPL-2.0

//! I/O on block devices.
//!
//! C header: [`include/linux/bio.h`](srctree/include/linux/bio.h)
//!
//! A [`Bio`] is made in advance, with room for all that an I/O needs, so that nothing is allocated
//! and nothing can fail for lack of memory when there is I/O. [`Bio::submit`] takes it together with
//! an owner of the memory that is read or written. Both come back by [`BioOwner::end_io`], once, with
//! how it went, whatever that was.

use crate::base::{
    scatterlist::{
        Segment,
        Segmented, //
    },
    users::User, //
};
use crate::bindings;
use crate::block::{
    bdev::Bdev,
    status::{
        from_blk_status,
        BlkError,
        BlkResult, //
    },
    SECTOR_SHIFT, //
};
use core::{
    mem::MaybeUninit,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    }, //
};

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BioOp {
    /// Reads into the owner's memory.
    Read,
    /// Writes the owner's memory.
    Write,
    /// Makes every write that has ended lasting. It has no place and no length.
    Flush,
    /// Forgets what is there.
    Discard,
    /// Makes it read as zeroes.
    WriteZeroes,
}

/// What is wanted of a block device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BioRequest {
    /// What to do.
    pub(crate) op: BioOp,
    /// Where, in units of 512 bytes; a whole block.
    pub(crate) sector: u64,
    /// How much, in bytes; whole blocks, and one at least.
    pub(crate) bytes: u32,
    /// A write is lasting when it ends.
    pub(crate) fua: bool,
    /// Every write that has ended is made lasting before this write begins.
    pub(crate) preflush: bool,
    /// Zeroes are to keep their space.
    pub(crate) no_unmap: bool,
    /// It ends with [`BlkError::Again`] rather than wait for something; with
    /// [`BlkError::NotSupported`] if the device has not [`Bdev::nowait`].
    pub(crate) nowait: bool,
    /// C's `IOPRIO_PRIO_VALUE`; that of the task if it has no class, or one that is not known.
    pub(crate) ioprio: u16,
}

impl BioRequest {
    /// A request with none of the flags.
    #[inline]
    pub(crate) fn new(op: BioOp, sector: u64, bytes: u32) -> Self {
        Self {
            op,
            sector,
            bytes,
            fua: false,
            preflush: false,
            no_unmap: false,
            nowait: false,
            ioprio: 0,
        }
    }

    /// C's `bi_opf`.
    #[inline]
    fn opf(&self) -> bindings::blk_opf_t {
        const fn flag(bit: bindings::req_flag_bits) -> bindings::blk_opf_t {
            1 << bit
        }
        // A peer waits for it, as a task does for direct I/O.
        const WRITE: bindings::blk_opf_t = bindings::req_op_REQ_OP_WRITE
            | flag(bindings::req_flag_bits___REQ_SYNC)
            | flag(bindings::req_flag_bits___REQ_IDLE);
        const PREFLUSH: bindings::blk_opf_t = flag(bindings::req_flag_bits___REQ_PREFLUSH);

        let mut opf = match self.op {
            BioOp::Read => bindings::req_op_REQ_OP_READ,
            BioOp::Write => WRITE,
            // The block layer makes the flush of it.
            BioOp::Flush => WRITE | PREFLUSH,
            BioOp::Discard => bindings::req_op_REQ_OP_DISCARD,
            BioOp::WriteZeroes => bindings::req_op_REQ_OP_WRITE_ZEROES,
        };
        if self.op == BioOp::Write && self.fua {
            opf |= flag(bindings::req_flag_bits___REQ_FUA);
        }
        if self.op == BioOp::Write && self.preflush {
            opf |= PREFLUSH;
        }
        if self.op == BioOp::WriteZeroes && self.no_unmap {
            opf |= flag(bindings::req_flag_bits___REQ_NOUNMAP);
        }
        if self.nowait {
            opf |= flag(bindings::req_flag_bits___REQ_NOWAIT);
        }
        opf
    }

    /// Whether it has data.
    #[inline]
    fn has_data(&self) -> bool {
        matches!(self.op, BioOp::Read | BioOp::Write)
    }
}

/// Who an I/O belongs to, and whose memory it reads or writes.
///
/// From [`Bio::submit`] to [`BioOwner::end_io`] it stays in place, and is neither dropped nor borrowed
/// mutably.
pub(crate) trait BioOwner: Sized + Send + 'static {
    /// The type of the memory; [`NoMemory`](crate::base::scatterlist::NoMemory) if there is none.
    type Memory: Segmented;

    /// The memory that is read or written: its first [`BioRequest::bytes`] bytes.
    ///
    /// # Context
    ///
    /// Called by [`Bio::submit`].
    fn memory(&self) -> Option<&Self::Memory>;

    /// The I/O has ended.
    ///
    /// # Context
    ///
    /// Any, also hard interrupts, and also within [`Bio::submit`]. Must not sleep, drop the [`Bdev`],
    /// or submit.
    fn end_io(self, bio: Bio<Self>, result: BlkResult);
}

/// Runs `f`, and hands what it submits to the devices when it is over, or when it sleeps.
///
/// # Context
///
/// A task that may sleep.
pub(crate) fn plugged<R>(f: impl FnOnce() -> R) -> R {
    let mut plug = MaybeUninit::<bindings::blk_plug>::uninit();
    // SAFETY: The plug is valid for writes, and stays in place until it is finished.
    unsafe { bindings::blk_start_plug(plug.as_mut_ptr()) };
    let result = f();
    // SAFETY: This task has started it.
    unsafe { bindings::blk_finish_plug(plug.as_mut_ptr()) };
    result
}

/// The most pieces of memory in a C bio.
const MAX_VECS: usize = bindings::BIO_MAX_VECS as usize;

/// Memory for C's bios.
struct Room {
    /// One for every [`MAX_VECS`] of `vecs`.
    bios: KVec<MaybeUninit<bindings::bio>>,
    vecs: KVec<MaybeUninit<bindings::bio_vec>>,
}

/// What a [`Bio`] has.
struct Inner<O: BioOwner> {
    room: Room,
    owner: Option<O>,
    /// Keeps the device.
    user: Option<User>,
    /// The C bios that have not ended.
    left: Atomic<i32>,
    /// The C status of the first one that failed.
    status: Atomic<i32>,
}

/// Room for one I/O at a time on any device; C's `struct bio`, or several.
///
/// # Invariants
///
/// The pointer came from `KBox::into_raw`, and is ours: no C bio in it is in flight.
pub(crate) struct Bio<O: BioOwner>(NonNull<Inner<O>>);

// SAFETY: It is a unique pointer to what is `Send`; memory for C bios belongs to no thread.
unsafe impl<O: BioOwner> Send for Bio<O> {}
// SAFETY: `&Bio` gives access to nothing that changes.
unsafe impl<O: BioOwner> Sync for Bio<O> {}

impl<O: BioOwner> Bio<O> {
    /// Room for an I/O with memory in `pieces` pieces at most. What is physically contiguous is one
    /// piece, even if it comes in several segments.
    ///
    /// # Context
    ///
    /// May sleep. Dropping it does not.
    pub(crate) fn new(pieces: usize) -> Result<Self> {
        let mut vecs = KVec::with_capacity(pieces, GFP_KERNEL)?;
        for _ in 0..pieces {
            vecs.push(MaybeUninit::uninit(), GFP_KERNEL)?;
        }
        let count = pieces.div_ceil(MAX_VECS).max(1);
        let mut bios = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            bios.push(MaybeUninit::uninit(), GFP_KERNEL)?;
        }
        let inner = Inner {
            room: Room { bios, vecs },
            owner: None,
            user: None,
            left: Atomic::new(0),
            status: Atomic::new(0),
        };
        let inner = KBox::into_raw(KBox::new(inner, GFP_KERNEL)?);
        // INVARIANT: As the type wants.
        // SAFETY: A box is not at address 0.
        Ok(Self(unsafe { NonNull::new_unchecked(inner) }))
    }

    /// Does what is wanted, or begins to; [`BioOwner::end_io`] tells the outcome.
    ///
    /// What can never be ends with [`BlkError::Invalid`], without the device hearing of it: a place
    /// or a length that is not in whole blocks; memory that there is too little of, that is in too
    /// many pieces or, for a read, that must not be written; and a request that changes what is on a
    /// device that was opened to read. What is beyond the end of the device ends with
    /// [`BlkError::IoError`].
    ///
    /// The device, or the block layer, splits what is too large for it.
    ///
    /// # Context
    ///
    /// A task that may sleep, even if it is not to wait; but not [`BioOwner::end_io`].
    pub(crate) fn submit(self, bdev: &Bdev, request: BioRequest, owner: O) {
        let inner = core::mem::ManuallyDrop::new(self).0.as_ptr();
        // SAFETY: By the type invariants it is valid and nobody else's, until it is submitted.
        let this = unsafe { &mut *inner };
        this.owner = Some(owner);
        this.user = bdev.user();
        this.status.store(0, Relaxed);

        let first = this.room.bios.as_mut_ptr().cast::<bindings::bio>();
        match this.fill(bdev, &request) {
            Ok(count) => {
                // CAST: There is one for every `MAX_VECS` of a vector.
                this.left.store(count as i32, Relaxed);
                for index in 0..count {
                    // SAFETY: `fill` has made it ready. It is the bio's own until it is submitted,
                    // and keeps all the others from being freed.
                    unsafe {
                        let bio = first.add(index);
                        (*bio).bi_private = inner.cast();
                        (*bio).bi_end_io = Some(Self::end_io_callback);
                        bindings::submit_bio(bio);
                    }
                }
            }
            Err(error) => {
                // SAFETY: Nothing was submitted, so it is still ours alone.
                unsafe { Self::finish(inner, Err(error)) };
            }
        }
    }

    /// # Safety
    ///
    /// Called by C only, for a bio that `submit` submitted.
    unsafe extern "C" fn end_io_callback(bio: *mut bindings::bio) {
        // SAFETY: By the safety requirements; it has ended, so that nobody else uses it.
        let (inner, status) = unsafe {
            bindings::bio_uninit(bio);
            ((*bio).bi_private.cast::<Inner<O>>(), (*bio).bi_status)
        };
        // SAFETY: It stays until the last bio, of which this is not one yet, has ended. Both are
        // atomic, and other bios do not use the rest.
        let (left, first) = unsafe { (&(*inner).left, &(*inner).status) };
        if status != 0 {
            let _ = first.cmpxchg(0, status.into(), Relaxed);
        }
        // What other bios have done comes before this, and the end after it.
        if left.fetch_sub(1, Full) == 1 {
            // CAST: A status is what was stored there.
            let result = from_blk_status(first.load(Relaxed) as bindings::blk_status_t);
            // SAFETY: That was the last one.
            unsafe { Self::finish(inner, result) };
        }
    }

    /// Gives the owner all back.
    ///
    /// # Safety
    ///
    /// No C bio of `inner`, which `submit` got, is in flight, and nobody uses it after this.
    unsafe fn finish(inner: *mut Inner<O>, result: BlkResult) {
        // SAFETY: By the safety requirements.
        let (owner, user) = unsafe { ((*inner).owner.take(), (*inner).user.take()) };
        // INVARIANT: By the safety requirements it is ours.
        // SAFETY: A box is not at address 0.
        let bio = Self(unsafe { NonNull::new_unchecked(inner) });
        if let Some(owner) = owner {
            owner.end_io(bio, result);
        }
        // Who drops the device waits for this, and so for the end of `end_io`.
        drop(user);
    }
}

impl<O: BioOwner> Inner<O> {
    /// Makes the C bios ready and returns how many it takes; on an error none is.
    #[inline]
    fn fill(&mut self, bdev: &Bdev, request: &BioRequest) -> BlkResult<usize> {
        if self.user.is_none() {
            return Err(BlkError::Offline);
        }
        if request.op == BioOp::Flush {
            self.room.init(0, bdev, request, 0)?;
            return Ok(1);
        }
        if request.op != BioOp::Read && !bdev.writable() {
            return Err(BlkError::Invalid);
        }
        // A power of two.
        let block_size = bdev.logical_block_size();
        let in_block = block_size.wrapping_sub(1);
        if request.bytes == 0
            || request.bytes & in_block != 0
            || request.sector & u64::from(in_block >> SECTOR_SHIFT) != 0
            // The end must not wrap for the check against the end of the device.
            || request
                .sector
                .checked_add((request.bytes >> SECTOR_SHIFT).into())
                .is_none()
        {
            return Err(BlkError::Invalid);
        }
        if !request.has_data() {
            let bio = self.room.init(0, bdev, request, 0)?;
            // SAFETY: The bio is initialised, and has no data.
            unsafe { (*bio).bi_iter.bi_size = request.bytes };
            return Ok(1);
        }
        // The owner is in its place, and stays there until the last bio has ended.
        let memory = self.owner.as_ref().and_then(O::memory);
        let memory = memory.ok_or(BlkError::Invalid)?;
        if request.op == BioOp::Read && !memory.writable() {
            return Err(BlkError::Invalid);
        }
        let mut count = 0;
        // SAFETY: `memory` is a part of the owner, which stays where it is, and is not dropped nor
        // borrowed mutably, until the last bio has ended. For a read it is writable.
        let result = unsafe {
            self.room
                .fill(bdev, request, in_block, memory.segments(), &mut count)
        };
        if result.is_err() {
            // SAFETY: So many are initialised, and none was submitted.
            unsafe { self.room.uninit(count) };
        }
        result.map(|()| count)
    }
}

impl Room {
    /// Puts memory into as many C bios as it takes. Counts in `count` those that are initialised,
    /// also on an error.
    ///
    /// # Safety
    ///
    /// The segments are of a [`Segmented`], writable if this is a read, which is not dropped nor
    /// borrowed mutably until the bios have ended.
    #[inline]
    unsafe fn fill(
        &mut self,
        bdev: &Bdev,
        request: &BioRequest,
        in_block: u32,
        segments: impl Iterator<Item = Segment>,
        count: &mut usize,
    ) -> BlkResult {
        let mut bio = self.init(0, bdev, request, 0)?;
        *count = 1;
        let mut left = request.bytes;
        for segment in segments {
            let len = segment.len().min(left);
            if len == 0 {
                continue;
            }
            let (page, offset) = (segment.page().as_ptr(), segment.offset());
            // SAFETY: The bio is initialised. By the safety requirements the page exists.
            if unsafe { bindings::bio_add_page(bio, page, len, offset) } == 0 {
                let done = request.bytes - left;
                if done & in_block != 0 {
                    return Err(BlkError::Invalid);
                }
                bio = self.init(*count, bdev, request, done)?;
                *count += 1;
                // SAFETY: As above.
                if unsafe { bindings::bio_add_page(bio, page, len, offset) } == 0 {
                    return Err(BlkError::Invalid);
                }
            }
            left -= len;
            if left == 0 {
                return Ok(());
            }
        }
        Err(BlkError::Invalid)
    }

    /// Makes an empty C bio of what is wanted, `done` bytes later; [`BlkError::Invalid`] if there is
    /// no room.
    #[inline]
    fn init(
        &mut self,
        index: usize,
        bdev: &Bdev,
        request: &BioRequest,
        done: u32,
    ) -> BlkResult<*mut bindings::bio> {
        let bio = self.bios.get_mut(index).ok_or(BlkError::Invalid)?;
        let bio = bio.as_mut_ptr();
        let (table, len) = match self.vecs.chunks_mut(MAX_VECS).nth(index) {
            // CAST: There are at most `MAX_VECS`.
            Some(vecs) => (vecs.as_mut_ptr().cast(), vecs.len() as u16),
            None => (core::ptr::null_mut(), 0),
        };
        let sector = match request.op {
            BioOp::Flush => 0,
            _ => request.sector + u64::from(done >> SECTOR_SHIFT),
        };
        // Schedulers have an array of the classes.
        let ioprio = match u32::from(request.ioprio) >> bindings::IOPRIO_CLASS_SHIFT {
            0..=bindings::IOPRIO_CLASS_IDLE => request.ioprio,
            _ => 0,
        };
        // SAFETY: The bio is valid for writes, and not in flight; so is the table, for `len` vecs.
        // All of it, and the device, stay until it has ended.
        unsafe {
            bindings::bio_init(bio, bdev.as_raw(), table, len, request.opf());
            (*bio).bi_iter.bi_sector = sector;
            (*bio).bi_ioprio = ioprio;
        }
        Ok(bio)
    }

    /// Undoes [`Self::init`] of the first `count`.
    ///
    /// # Safety
    ///
    /// So many are initialised, and none of them is in flight.
    #[cold]
    unsafe fn uninit(&mut self, count: usize) {
        for bio in self.bios.iter_mut().take(count) {
            // SAFETY: By the safety requirements.
            unsafe { bindings::bio_uninit(bio.as_mut_ptr()) };
        }
    }
}

impl<O: BioOwner> Drop for Bio<O> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants it came from `into_raw`, and is ours.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}
