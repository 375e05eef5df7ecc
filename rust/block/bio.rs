// SPDX-License-Identifier: GPL-2.0

//! I/O on block devices.
//!
//! C header: [`include/linux/bio.h`](srctree/include/linux/bio.h)
//!
//! A [`Bio`] is allocated in advance, with room for all that an I/O needs, so that an I/O allocates
//! nothing and cannot fail for lack of memory. [`Bio::submit`] takes it together with an owner of
//! the memory that is read or written. [`BioOwner::end_io`] gives both back, once, with the result.

// UPSTREAM: upstream/tree/block/bio.rs takes the place of this file, with patch 0012 of
// upstream/rust.

use crate::base::{
    percpu_ref::User,
    scatterlist::{
        Segment,
        Segmented, //
    },
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

/// The operation of an I/O.
///
/// See [`BioRequest`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BioOp {
    /// Reads into the owner's memory.
    Read,
    /// Writes the owner's memory.
    Write,
    /// Makes every write that has ended durable. It has no place and no length.
    Flush,
    /// Discards the blocks: their content may be lost.
    Discard,
    /// Makes the blocks read as zeroes.
    WriteZeroes,
    /// Erases the blocks so that their content cannot be got back.
    SecureErase,
}

/// A request to a block device.
///
/// # Examples
///
/// ```
/// # use crate::block::bio::{BioOp, BioRequest};
/// # fn example() {
/// // A write of 4 KiB at 1 MiB that is past the cache of the device when it ends.
/// let write = BioRequest {
///     fua: true,
///     ..BioRequest::new(BioOp::Write, (1 << 20) / 512, 4096)
/// };
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct BioRequest {
    /// The operation.
    pub(crate) op: BioOp,
    /// Where it begins, in units of 512 bytes; a multiple of the logical block size.
    pub(crate) sector: u64,
    /// The length, in bytes; a multiple of the logical block size, and not 0.
    pub(crate) bytes: u32,
    /// A write is durable when it ends.
    pub(crate) fua: bool,
    /// Every write that has ended is made durable before this write begins.
    pub(crate) preflush: bool,
    /// After a failure, all of a write or nothing of it is on the device. It goes to the device as
    /// one C bio, which the block layer does not split: if it does not fit, it ends with
    /// [`BlkError::Invalid`].
    pub(crate) atomic: bool,
    /// A write zeroes keeps the space of its blocks allocated.
    pub(crate) no_unmap: bool,
    /// The I/O ends with [`BlkError::Again`] rather than wait for a resource; with
    /// [`BlkError::NotSupported`] if [`Bdev::nowait`] is false.
    pub(crate) nowait: bool,
    /// The priority, C's `IOPRIO_PRIO_VALUE`; that of the task if it has no class, or an unknown
    /// one.
    pub(crate) ioprio: u16,
}

impl BioRequest {
    /// Returns a request with none of the flags.
    #[inline]
    pub(crate) fn new(op: BioOp, sector: u64, bytes: u32) -> Self {
        Self {
            op,
            sector,
            bytes,
            fua: false,
            preflush: false,
            atomic: false,
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
            BioOp::SecureErase => bindings::req_op_REQ_OP_SECURE_ERASE,
        };
        if self.op == BioOp::Write && self.fua {
            opf |= flag(bindings::req_flag_bits___REQ_FUA);
        }
        if self.op == BioOp::Write && self.preflush {
            opf |= PREFLUSH;
        }
        if self.op == BioOp::Write && self.atomic {
            opf |= flag(bindings::req_flag_bits___REQ_ATOMIC);
        }
        if self.op == BioOp::WriteZeroes && self.no_unmap {
            opf |= flag(bindings::req_flag_bits___REQ_NOUNMAP);
        }
        if self.nowait {
            opf |= flag(bindings::req_flag_bits___REQ_NOWAIT);
        }
        opf
    }

    /// Returns true if the operation has data.
    #[inline]
    fn has_data(&self) -> bool {
        matches!(self.op, BioOp::Read | BioOp::Write)
    }
}

/// A value that owns the memory of an I/O, and receives its end.
///
/// From [`Bio::submit`] to [`BioOwner::end_io`] the value stays in place, and is neither dropped
/// nor borrowed mutably.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::{scatterlist::Segmented, sync::Completion},
/// #     block::{bio::{Bio, BioOwner}, BlkResult},
/// # };
/// # use kernel::sync::Arc;
/// /// An I/O on some memory, for which a task waits.
/// struct Io<M> {
///     memory: M,
///     done: Arc<Completion>,
/// }
///
/// impl<M: Segmented + Send + 'static> BioOwner for Io<M> {
///     type Memory = M;
///
///     fn memory(&self) -> Option<&M> {
///         Some(&self.memory)
///     }
///
///     fn end_io(self, bio: Bio<Self>, result: BlkResult) {
///         // `bio` could be used for the next I/O; here it drops, and so does the memory.
///         self.done.complete();
///     }
/// }
/// ```
pub(crate) trait BioOwner: Sized + Send + 'static {
    /// The type of the memory; [`NoMemory`](crate::base::scatterlist::NoMemory) if there is none.
    type Memory: Segmented;

    /// Returns the memory, of which the first [`BioRequest::bytes`] bytes are read or written.
    ///
    /// # Context
    ///
    /// Called by [`Bio::submit`].
    fn memory(&self) -> Option<&Self::Memory>;

    /// The I/O has ended.
    ///
    /// # Context
    ///
    /// Any, also hard interrupts, and also within [`Bio::submit`]. Must not sleep, drop the
    /// [`Bdev`], or submit.
    fn end_io(self, bio: Bio<Self>, result: BlkResult);
}

/// Runs `f` with a plug: the I/O that it submits goes to the devices when `f` returns, or when it
/// sleeps.
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

/// The most vectors of a C bio.
const MAX_VECS: usize = bindings::BIO_MAX_VECS as usize;

/// The C bios of a [`Bio`], and their vectors.
struct CBios {
    /// One for every [`MAX_VECS`] of `vecs`.
    bios: KVec<MaybeUninit<bindings::bio>>,
    vecs: KVec<MaybeUninit<bindings::bio_vec>>,
}

/// The data of a [`Bio`].
struct Inner<O: BioOwner> {
    bios: CBios,
    owner: Option<O>,
    /// Keeps the device.
    user: Option<User>,
    /// The C bios that have not ended.
    left: Atomic<i32>,
    /// The C status of the first one that failed.
    status: Atomic<i32>,
}

/// The means of one I/O at a time, on any device: a C `struct bio`, or several.
///
/// # Examples
///
/// ```
/// # use crate::block::{bdev::Bdev, bio::{Bio, BioOp, BioOwner, BioRequest}};
/// # use kernel::prelude::*;
/// # fn example<O: BioOwner>(bdev: &Bdev, owner: O) -> Result {
/// // Allocated before it is needed: for memory in up to 256 pieces.
/// let bio = Bio::new(256)?;
/// // The end of it, also a failure, comes by `end_io` of the owner.
/// bio.submit(bdev, BioRequest::new(BioOp::Read, 0, 1 << 20), owner);
/// # Ok(())
/// # }
/// ```
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
    /// Allocates what an I/O with memory in at most `pieces` pieces needs. Memory that is
    /// physically contiguous is one piece, even if it comes in several segments. Every
    /// `BIO_MAX_VECS` pieces are a C bio, which has to end with a logical block: if there are more,
    /// each should be of whole blocks. Fails with `ENOMEM`.
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
            bios: CBios { bios, vecs },
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

    /// Submits a request; [`BioOwner::end_io`] is called with the result.
    ///
    /// Some requests end with [`BlkError::Invalid`] and do not reach the device: those whose place
    /// or length is no multiple of the logical block size; whose memory is too short, is in too
    /// many pieces, is not aligned as the device needs it (C's `dma_alignment`) or, for a read,
    /// must not be written by devices; and those that would change a device that was opened for
    /// reading. One beyond the end of the device ends with [`BlkError::IoError`].
    ///
    /// The block layer splits requests that are too large for the device, but for atomic writes.
    ///
    /// # Context
    ///
    /// A task that may sleep, also with [`BioRequest::nowait`]. Not [`BioOwner::end_io`].
    pub(crate) fn submit(self, bdev: &Bdev, request: BioRequest, owner: O) {
        let inner = core::mem::ManuallyDrop::new(self).0.as_ptr();
        // SAFETY: By the type invariants it is valid and nobody else's, until it is submitted.
        let this = unsafe { &mut *inner };
        this.owner = Some(owner);
        this.user = bdev.user();
        this.status.store(0, Relaxed);

        let first = this.bios.bios.as_mut_ptr().cast::<bindings::bio>();
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

    /// Gives the owner and the `Bio` back.
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
        // Dropping the device waits for this user, and so for the end of `end_io`.
        drop(user);
    }
}

impl<O: BioOwner> Inner<O> {
    /// Initialises the C bios and returns how many they are; on an error none is initialised.
    #[inline]
    fn fill(&mut self, bdev: &Bdev, request: &BioRequest) -> BlkResult<usize> {
        if self.user.is_none() {
            return Err(BlkError::Offline);
        }
        if request.op == BioOp::Flush {
            self.bios.init(0, bdev, request, 0)?;
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
            let bio = self.bios.init(0, bdev, request, 0)?;
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
            self.bios
                .fill(bdev, request, in_block, memory.segments(), &mut count)
        };
        if result.is_err() {
            // SAFETY: So many are initialised, and none was submitted.
            unsafe { self.bios.uninit(count) };
        }
        result.map(|()| count)
    }
}

impl CBios {
    /// Adds memory to as many C bios as it takes. `count` is set to the number of those that are
    /// initialised, also on an error.
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
                // Two C bios are two writes, of which one may fail.
                if done & in_block != 0 || request.atomic {
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

    /// Initialises an empty C bio for the part of the request that begins after `done` bytes. Fails
    /// with [`BlkError::Invalid`] if there is no C bio left.
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
