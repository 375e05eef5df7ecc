// SPDX-License-Identifier: GPL-2.0

//! Requests, their data, and the right to end them.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)\
//! C header: [`include/linux/bvec.h`](srctree/include/linux/bvec.h)
//!
//! Long: what a driver does with a request is here.

use crate::base::{
    compat,
    scatterlist::{
        Segment,
        Segmented, //
    },
    sync::random_u64, //
};
use crate::bindings;
use crate::block::{
    mq::{
        operations::Operations,
        pr::PrChange, //
    },
    BlkError,
    BlkResult, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::Result,
    types::Opaque, //
};

/// A type that has exactly one owner at a time, an [`Owned`].
///
/// See [`Owned`] for an example.
///
/// # Safety
///
/// `release` may be called from any context, and from any thread if the type is `Send`.
pub(crate) unsafe trait Ownable {
    /// Gives the object back to where it came from.
    ///
    /// # Safety
    ///
    /// The caller owns the object, and uses it no more.
    unsafe fn release(this: NonNull<Self>);
}

/// The one owner of an object that C allocated.
///
/// # Examples
///
/// ```
/// # use crate::block::{mq::{Operations, Owned, Request}, BlkResult};
/// /// A place for a request that the hardware has. If it drops with one, that ends with an error.
/// struct Slot<T: Operations>(Option<Owned<Request<T>>>);
///
/// impl<T: Operations> Slot<T> {
///     fn done(&mut self, result: BlkResult) {
///         if let Some(rq) = self.0.take() {
///             rq.complete(result);
///         }
///     }
/// }
/// ```
///
/// # Invariants
///
/// The pointee is valid, and no other `Owned` of it exists.
pub(crate) struct Owned<T: Ownable>(NonNull<T>);

// SAFETY: It is a unique pointer, so that sending it sends the object.
unsafe impl<T: Ownable + Send> Send for Owned<T> {}
// SAFETY: A shared reference to it is good for shared references to the object only.
unsafe impl<T: Ownable + Sync> Sync for Owned<T> {}

impl<T: Ownable> Owned<T> {
    /// Takes the object without releasing it.
    #[inline]
    fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).0
    }
}

impl<T: Ownable> Deref for Owned<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariants.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Ownable> Drop for Owned<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariants, this is the owner; it is gone after this.
        unsafe { T::release(self.0) };
    }
}

/// The part of a request that is behind C's `struct request`: our header, then the driver's data.
///
/// Only the function that has the right to end the request accesses the header.
pub(super) struct Pdu<T: Operations> {
    /// Counts the times that blk-mq has given the request to the driver.
    generation: u32,
    /// The status that the request ends with, from [`Owned::complete`] to the end.
    status: bindings::blk_status_t,
    /// The change of the persistent reservation that the request is for, and its token.
    pr: (PrChange, u32),
    data: T::RequestData,
}

impl<T: Operations> Pdu<T> {
    /// The PDU of a request; C's `blk_mq_rq_to_pdu()`.
    #[inline(always)]
    fn of(rq: *mut bindings::request) -> *mut Self {
        // blk-mq puts it behind the request, aligned as the request itself.
        const { assert!(align_of::<Self>() <= align_of::<bindings::request>()) };
        rq.wrapping_add(1).cast()
    }

    /// Initialises the PDU. On an error there is none.
    ///
    /// # Safety
    ///
    /// `rq` is followed by `size_of::<Self>()` bytes that nobody else uses; they do not move until
    /// [`Self::drop_in_place`].
    pub(super) unsafe fn init(rq: *mut bindings::request) -> Result {
        let this = Self::of(rq);
        // SAFETY: By the safety requirements; the caller does not touch the data on an error.
        unsafe { compat::raw_try_init(&raw mut (*this).data, T::new_request_data()) }?;
        // SAFETY: By the safety requirements.
        unsafe {
            (&raw mut (*this).generation).write(random_u64() as u32);
            (&raw mut (*this).status).write(0);
            (&raw mut (*this).pr).write((PrChange::None, 0));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// [`Self::init`] succeeded for `rq`, which is not used again.
    pub(super) unsafe fn drop_in_place(rq: *mut bindings::request) {
        // SAFETY: By the safety requirements.
        unsafe { Self::of(rq).drop_in_place() };
    }

    /// Sets the change of the persistent reservation that the request is for.
    ///
    /// # Safety
    ///
    /// `rq` has a PDU, and the driver has not got it yet.
    pub(super) unsafe fn set_pr(rq: *mut bindings::request, change: PrChange, token: u32) {
        // SAFETY: By the safety requirements.
        unsafe { (*Self::of(rq)).pr = (change, token) };
    }

    /// Ends the request with the status that is kept in the PDU.
    ///
    /// # Safety
    ///
    /// `rq` has a PDU, and the caller has the right to end it, which goes with this call.
    #[inline]
    pub(super) unsafe fn end(rq: *mut bindings::request) {
        // SAFETY: By the safety requirements.
        unsafe { bindings::blk_mq_end_request(rq, (*Self::of(rq)).status) };
    }
}

/// The command of a request.
///
/// See [`Operations`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Reads [`Request::bytes`] from [`Request::sector`] on into [`Request::segments`].
    Read,
    /// Writes [`Request::segments`]; with [`Request::fua`], past every volatile cache.
    Write,
    /// Makes every write durable that was completed before.
    Flush,
    /// Discards [`Request::bytes`] from [`Request::sector`] on. It has no segments.
    Discard,
    /// Makes [`Request::bytes`] from [`Request::sector`] on read as zeroes; with
    /// [`Request::no_unmap`], their space stays allocated. It has no segments.
    WriteZeroes,
    /// Erases the same for good. It has no segments.
    SecureErase,
    /// Changes the persistent reservation by [`Request::pr_change`]. It has no segments.
    Reserve,
    /// Reads the persistent reservation into [`Request::segments`].
    Report,
    /// An operation (`REQ_OP_*`) that the block layer does not send, as no limit allows it.
    Unsupported(u8),
}

/// A request; C's `struct request`.
///
/// # Examples
///
/// ```
/// # use crate::block::{mq::{Command, Operations, Request}, BlkError, BlkResult};
/// /// Returns what to tell the hardware of a request: where it is, its bytes, and its pieces.
/// fn describe<T: Operations>(rq: &Request<T>) -> BlkResult<(u64, u32, usize)> {
///     match rq.command() {
///         Command::Read | Command::Write if !rq.fua() => {
///             Ok((rq.sector(), rq.bytes(), rq.segments().count()))
///         }
///         _ => Err(BlkError::NotSupported),
///     }
/// }
/// ```
///
/// # Invariants
///
/// It is a valid request of a tag set of `T`, has an initialised [`Pdu`], and is the driver's.
#[repr(transparent)]
pub(crate) struct Request<T: Operations> {
    rq: Opaque<bindings::request>,
    _p: PhantomData<T>,
}

// SAFETY: What its methods read does not change while the request is the driver's, blk-mq lets it
// end on any CPU, and `RequestData` is `Send`.
unsafe impl<T: Operations> Send for Request<T> {}
// SAFETY: Shared references only read, and give shared references to `RequestData` only.
unsafe impl<T: Operations> Sync for Request<T> where T::RequestData: Sync {}

impl<T: Operations> Request<T> {
    /// Returns the command.
    #[inline]
    pub(crate) fn command(&self) -> Command {
        let op = self.op();
        match bindings::req_op::from(op) {
            bindings::req_op_REQ_OP_READ => Command::Read,
            bindings::req_op_REQ_OP_WRITE => Command::Write,
            bindings::req_op_REQ_OP_FLUSH => Command::Flush,
            bindings::req_op_REQ_OP_DISCARD => Command::Discard,
            bindings::req_op_REQ_OP_WRITE_ZEROES => Command::WriteZeroes,
            bindings::req_op_REQ_OP_SECURE_ERASE => Command::SecureErase,
            bindings::req_op_REQ_OP_DRV_OUT => Command::Reserve,
            bindings::req_op_REQ_OP_DRV_IN => Command::Report,
            _ => Command::Unsupported(op),
        }
    }

    /// Returns the number of the operation, C's `req_op()`.
    #[inline]
    pub(crate) fn op(&self) -> u8 {
        // SAFETY: By the type invariants.
        let flags = unsafe { (*self.rq.get()).cmd_flags };
        // REQ_OP_MASK, which the C side asserts to be the low byte.
        (flags & 0xff) as u8
    }

    /// Returns the device number of the disk, C's `disk_devt()`.
    pub(crate) fn dev(&self) -> u32 {
        // SAFETY: By the type invariants; a request is of a disk that was added, which stays until
        // the request has ended, and whose number does not change.
        let (major, minor) = unsafe {
            let disk = (*(*self.rq.get()).q).disk;
            ((*disk).major, (*disk).first_minor)
        };
        // CAST: Neither is negative. C's `MKDEV()`.
        (major as u32) << bindings::MINORBITS | minor as u32
    }

    /// Returns where the request begins, in units of 512 bytes. For a flush, which has no place, it
    /// returns `u64::MAX`: look at [`Request::command`] before calculating.
    #[inline]
    pub(crate) fn sector(&self) -> u64 {
        // SAFETY: By the type invariants.
        unsafe { (*self.rq.get()).__sector }
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        // SAFETY: By the type invariants.
        unsafe { (*self.rq.get()).__data_len }
    }

    /// Returns the number of the request, below the queue depth of its [`TagSet`]. No other request
    /// of the same hardware queue has the same number until this one ends.
    ///
    /// [`TagSet`]: super::TagSet
    #[inline]
    pub(crate) fn tag(&self) -> u16 {
        // CAST: What the driver has got has a tag, and a tag is below `BLK_MQ_MAX_DEPTH`, 10240.
        // SAFETY: By the type invariants.
        unsafe { (*self.rq.get()).tag as u16 }
    }

    /// Returns when the block layer made the request, in ns of the monotonic clock; 0 if the queue
    /// keeps no statistics (`iostats`). Of merged requests, this is the oldest one's.
    #[inline]
    pub(crate) fn start_time_ns(&self) -> u64 {
        // SAFETY: By the type invariants.
        unsafe { (*self.rq.get()).start_time_ns }
    }

    /// Returns how often this request was given to the driver, counted from a random number on; it
    /// wraps.
    ///
    /// With an I/O scheduler, and for flushes, a tag is used by several requests, each of which
    /// counts for itself: that two of them have the same number is unlikely, but possible.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        // SAFETY: By the type invariants; only blk-mq's giving it to the driver changes it.
        unsafe { (*Pdu::<T>::of(self.rq.get())).generation }
    }

    /// Returns the driver's part of the request.
    #[inline]
    pub(crate) fn data(&self) -> &T::RequestData {
        // SAFETY: By the type invariants; no mutable reference to it is ever made.
        unsafe { &(*Pdu::<T>::of(self.rq.get())).data }
    }

    #[inline]
    fn has_flag(&self, bit: bindings::req_flag_bits) -> bool {
        // SAFETY: By the type invariants.
        let flags = unsafe { (*self.rq.get()).cmd_flags };
        flags & (1 << bit) != 0
    }

    /// Returns true if a write must be past every volatile cache when it ends. Never for a disk
    /// without
    /// [`Limits::fua`]: then a [`Command::Flush`] follows.
    ///
    /// [`Limits::fua`]: super::Limits::fua
    #[inline]
    pub(crate) fn fua(&self) -> bool {
        self.has_flag(bindings::req_flag_bits___REQ_FUA)
    }

    /// Returns true if all of a write or nothing must be on the disk after a failure.
    #[inline]
    pub(crate) fn atomic(&self) -> bool {
        self.has_flag(bindings::req_flag_bits___REQ_ATOMIC)
    }

    /// Returns the change of the persistent reservation of [`Command::Reserve`], and its token:
    /// that of each change of a disk is another one.
    pub(crate) fn pr_change(&self) -> (PrChange, u32) {
        // SAFETY: By the type invariants; it is set before the driver gets the request.
        unsafe { (*Pdu::<T>::of(self.rq.get())).pr }
    }

    /// Returns true if a write zeroes must keep the space of its blocks allocated.
    #[inline]
    pub(crate) fn no_unmap(&self) -> bool {
        self.has_flag(bindings::req_flag_bits___REQ_NOUNMAP)
    }

    /// Returns true if a task calls [`Operations::poll`] until the request ends.
    #[inline]
    pub(crate) fn polled(&self) -> bool {
        self.has_flag(bindings::req_flag_bits___REQ_POLLED)
    }

    /// Returns the data of a read or write, in order: each segment is physically contiguous, and
    /// may span pages. Other commands have none.
    ///
    /// User space may change these pages at any time (by a mapped file, or direct I/O).
    #[inline]
    pub(crate) fn segments(&self) -> Segments<'_> {
        match self.command() {
            Command::Read | Command::Write | Command::Report => {
                // SAFETY: By the type invariants. It is the first of the list, or null. The bios of
                // a request stay until it ends, which is after the borrow of it.
                unsafe { Segments::new((*self.rq.get()).bio) }
            }
            _ => Segments::none(),
        }
    }
}

// SAFETY: Requests are completed in softirq, or by `blk_mq_end_request`, both from any context.
unsafe impl<T: Operations> Ownable for Request<T> {
    #[inline]
    unsafe fn release(this: NonNull<Self>) {
        // SAFETY: By the safety requirements of this function.
        unsafe { Self::complete(this, Err(BlkError::IoError)) };
    }
}

impl<T: Operations> Request<T> {
    /// # Safety
    ///
    /// The caller owns the request, which is started, and uses it no more.
    #[inline]
    unsafe fn complete(this: NonNull<Self>, result: BlkResult) {
        let rq = this.as_ptr().cast::<bindings::request>();
        let status = match result {
            Ok(()) => bindings::BLK_STS_OK as bindings::blk_status_t,
            Err(error) => error.as_raw(),
        };
        // SAFETY: The PDU is initialised, by the type invariants, and its header is the owner's.
        unsafe { (*Pdu::<T>::of(rq)).status = status };
        // SAFETY: The request is valid, started, and ours to end. With `true`, blk-mq has passed
        // that right on to `OperationsVTable::complete_callback`.
        if !unsafe { bindings::blk_mq_complete_request_remote(rq) } {
            // SAFETY: As above, and it has not been passed on.
            unsafe { Pdu::<T>::end(rq) };
        }
    }
}

impl<T: Operations> Owned<Request<T>> {
    /// Ends the request: in softirq, maybe on another CPU, or here. Any context but NMI.
    #[inline]
    pub(crate) fn complete(self, result: BlkResult) {
        // SAFETY: By the type invariants of `Owned`, which is consumed; an `Owned<Request>` is
        // started.
        unsafe { Request::complete(self.into_raw(), result) };
    }

    /// Gives the request back: the result must be the error of the same [`Operations::queue_rq`]
    /// that got it.
    #[inline]
    pub(crate) fn refuse(self, status: BlkError) -> Refused<T> {
        Refused {
            rq: RefusedRequest::Started(self),
            status,
        }
    }
}

// SAFETY: The pages of a request belong to it until it ends, and it does not end while its owner is
// there; nor does what it wants change. They are of the direct map, as the disk does not take
// memory of PCI devices. A read wants them written. No Rust code makes references to them.
unsafe impl<T: Operations> Segmented for Owned<Request<T>> {
    #[inline]
    fn writable(&self) -> bool {
        matches!(self.command(), Command::Read | Command::Report)
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        Request::segments(self)
    }
}

/// The segments of a request, multi-page: C's `rq_for_each_bvec()`, but that what goes on in the
/// same page, as of bios that were merged, is one segment. So with a `virt_boundary` of a page
/// there is never more than one segment more than pages.
///
/// See [`Request`] for an example.
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
    fn none() -> Self {
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
    unsafe fn new(bio: *const bindings::bio) -> Self {
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

    /// Appends to a segment what goes on where it ends.
    #[inline(never)]
    fn extend(&mut self, mut segment: Segment) -> Segment {
        while segment.ends_in_page() {
            match self.bvec() {
                Some(next) if segment.append(&next) => {}
                next => {
                    self.next = next;
                    break;
                }
            }
        }
        segment
    }
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let segment = match self.next.take() {
            Some(segment) => segment,
            None => self.bvec()?,
        };
        Some(match segment.ends_in_page() {
            false => segment,
            true => self.extend(segment),
        })
    }
}

/// A request that has not been started: its timer does not run.
///
/// # Examples
///
/// ```
/// # use crate::block::{mq::{IdleRequest, Operations, Owned, Refused, Request}, BlkError};
/// /// What `Operations::queue_rq` does first: without room, blk-mq shall come again.
/// fn start<T: Operations>(
///     rq: Owned<IdleRequest<T>>,
///     has_room: bool,
/// ) -> Result<Owned<Request<T>>, Refused<T>> {
///     match has_room {
///         true => Ok(rq.start()),
///         false => Err(rq.refuse(BlkError::Resource)),
///     }
/// }
/// ```
///
/// # Invariants
///
/// Those of [`Request`], and the request is idle.
#[repr(transparent)]
pub(crate) struct IdleRequest<T: Operations>(Request<T>);

impl<T: Operations> IdleRequest<T> {
    /// Takes a request that blk-mq gives to the driver.
    ///
    /// # Safety
    ///
    /// `rq` has a PDU, is idle, and is the driver's to end.
    #[inline]
    pub(super) unsafe fn receive(rq: *mut bindings::request) -> (Owned<Self>, Turn) {
        // SAFETY: By the safety requirements.
        let generation = unsafe {
            let generation = &mut (*Pdu::<T>::of(rq)).generation;
            *generation = generation.wrapping_add(1);
            *generation
        };
        // SAFETY: A request is not at address 0.
        let this = unsafe { NonNull::new_unchecked(rq.cast::<Self>()) };
        // INVARIANT: By the safety requirements; no other `Owned` of it has been left, as the right
        // to end it came back to blk-mq.
        (Owned(this), Turn { rq, generation })
    }
}

impl<T: Operations> Deref for IdleRequest<T> {
    type Target = Request<T>;

    #[inline]
    fn deref(&self) -> &Request<T> {
        &self.0
    }
}

// SAFETY: `blk_mq_end_request` may be called from any context.
unsafe impl<T: Operations> Ownable for IdleRequest<T> {
    #[inline]
    unsafe fn release(this: NonNull<Self>) {
        let rq = this.as_ptr().cast::<bindings::request>();
        // SAFETY: The request is valid and the caller's to end. It need not be started for that.
        unsafe { bindings::blk_mq_end_request(rq, BlkError::IoError.as_raw()) };
    }
}

impl<T: Operations> Owned<IdleRequest<T>> {
    /// Starts the request: from now on it may time out.
    #[inline]
    pub(crate) fn start(self) -> Owned<Request<T>> {
        let this = self.into_raw().cast::<Request<T>>();
        // SAFETY: By the type invariants, the request is valid, idle and the driver's.
        unsafe { bindings::blk_mq_start_request(this.as_ptr().cast()) };
        // INVARIANT: The pointer was taken out of the only `Owned`.
        Owned(this)
    }

    /// Gives the request back: the result must be the error of the same [`Operations::queue_rq`]
    /// that got it.
    #[inline]
    pub(crate) fn refuse(self, status: BlkError) -> Refused<T> {
        Refused {
            rq: RefusedRequest::Idle(self),
            status,
        }
    }
}

enum RefusedRequest<T: Operations> {
    Idle(Owned<IdleRequest<T>>),
    Started(Owned<Request<T>>),
}

/// A request that [`Operations::queue_rq`] gives back, and why.
///
/// - [`BlkError::Resource`]: blk-mq keeps it and tries again, in 3 ms or when another request of
///   the hardware queue ends. This is the way to say that there is no room for it now.
/// - [`BlkError::DevResource`]: the same without the 3 ms, so only if another request of this
///   hardware queue is in flight and the room comes with its end.
/// - Anything else ends the request with that status.
///
/// It makes no difference whether the request was started: blk-mq makes a started one idle again.
///
/// See [`IdleRequest`] for an example.
pub(crate) struct Refused<T: Operations> {
    rq: RefusedRequest<T>,
    status: BlkError,
}

/// Identifies one call of `queue_rq`: the request, and its generation.
pub(super) struct Turn {
    rq: *mut bindings::request,
    generation: u32,
}

impl<T: Operations> Refused<T> {
    /// Gives the request back to blk-mq by the return value of `queue_rq`, which this returns.
    ///
    /// Only the request of that very call can be given back so: blk-mq would mistake another one
    /// for it. If a driver returns another request, that is ended here.
    #[cold]
    pub(super) fn hand_back(self, turn: Turn) -> bindings::blk_status_t {
        let Refused { rq, status } = self;
        let raw = match &rq {
            RefusedRequest::Idle(rq) => rq.0.cast::<bindings::request>().as_ptr(),
            RefusedRequest::Started(rq) => rq.0.cast::<bindings::request>().as_ptr(),
        };
        // SAFETY: By the invariants of `Owned` and `Request`, it is valid with a PDU; we own it.
        let generation = unsafe { (*Pdu::<T>::of(raw)).generation };
        if raw == turn.rq && generation == turn.generation {
            // The right to end it goes back to blk-mq.
            core::mem::forget(rq);
            status.as_raw()
        } else {
            drop(rq);
            bindings::BLK_STS_OK as bindings::blk_status_t
        }
    }
}
