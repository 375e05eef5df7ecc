// SPDX-License-Identifier: GPL-2.0
// Long: all of a request, whose fields are its own.

//! Requests to a peer: a message, and the access that the peer has to memory until it has answered.
//!
//! This is a layer above verbs ([`qp`](crate::rdma::qp)), which queue pairs have whose handler is a
//! [`RequestHandler`]. A request ends when three things have happened, in whatever order: its work
//! requests have completed, the peer has answered, and the peer has no access to the owner's memory
//! any more. So what is given back is never touched again. The peer's side of it is
//! [`Qp::reply`](crate::rdma::qp::Qp::reply).
//!
//! # Why not `rdma_rw` and `mr_pool`
//!
//! The kernel has two helpers above verbs, which are for other users:
//!
//! - `rdma_rw` (`drivers/infiniband/core/rw.c`) does the RDMA READs and WRITEs of the side that
//!   answers; there is nothing in it for the side that asks and lends its memory.
//!   `rdma_rw_ctx_init()` allocates work requests and segments for each I/O of more than one
//!   segment, and for each that needs a region, with `GFP_KERNEL`. So it can run neither in a
//!   completion handler in softirq nor in the way of memory that is being freed.
//!   `rdma_rw_ctx_init_bvec()` avoids that where an IOMMU makes one range of all, and in no other
//!   case of several segments. `rdma_rw_ctx_post()` posts without asking what the device did not
//!   take, so that after an error nobody knows which of the memory the device still uses.
//! - `mr_pool` (`drivers/infiniband/core/mr_pool.c`) is a list of memory regions, for `rdma_rw` and
//!   for the side that asks. `ib_mr_pool_get()` and `ib_mr_pool_put()` take a spinlock that all
//!   requests of the queue pair share, each for each request. When a region may be used again, its
//!   caller has to know: that is what `nvme-rdma` counts in its requests.
//!
//! Here a request has a fixed *slot* with a region of its own, made with the queue pair:
//!
//! - Nothing is allocated for a request. A block device has to write memory out in order that some
//!   is freed, so what it allocates on the way may never come.
//! - Requests share no lock but that of the send queue, which is needed to post. The number of the
//!   slot goes to the peer and comes back with the answer, so that finding the request takes no
//!   search either. A few large regions are shared, for memory that is more than a slot's region
//!   covers: one compare-and-exchange takes one.
//! - How far a request is, and its generation, which tells it from those before it in its slot, is
//!   one atomic word of the slot, see [`RequestSlot`]. A request is given back, and its region may
//!   be registered anew, when that word says so and no earlier; of the contexts that complete and
//!   answer just one ends the request.
//! - A region that cannot be deregistered stays with what it covers ([`Undrained`]). A pool ignores
//!   that failure, and the memory is freed.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::{
        EOPNOTSUPP,
        EPROTO,
        ESHUTDOWN, //
    },
    free::FreeSet,
    scatterlist::Segmented,
    sync::random_u64, //
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    dma::{
        Direction,
        DmaPiece, //
    },
    might_sleep,
    pd::{
        Parking,
        Pd, //
    },
    qp::{
        is_posted,
        Body,
        Qp,
        QpCaps,
        QpHandler,
        Rc,
        SendSlot,
        Ulp,
        Wr,
        ULP_BIT, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        RemoteRange,
        SendOwner, //
    }, //
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
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        }, //
        Arc,
        Mutex,
    },
    types::Opaque, //
};

/// The upper-layer protocol of queue pairs that send requests; see [`RequestHandler`].
///
/// See [`RequestHandler`] for an example.
pub(crate) enum Requests {}

/// What requests have in a queue pair.
#[pin_data]
pub(crate) struct RequestState<H: RequestHandler> {
    large: LargeMrs,
    /// A registration may run again until the message behind it has completed.
    registers_again: bool,
    /// How often [`Qp::watch_answered`] had nothing left to watch.
    watches: Atomic<u64>,
    /// There is room for a work request of [`Qp::probe`].
    can_probe: bool,
    /// One is under way. The next one must not be posted before.
    pub(super) probing: Atomic<bool>,
    /// How many there were.
    probes: Atomic<u64>,
    probe_cqe: Opaque<bindings::ib_cqe>,
    /// Requests that could not be given back; `None` if there are no memory regions.
    #[pin]
    parked: Mutex<Parkable<H>>,
}

/// What requests have in a slot.
///
/// # Invariants
///
/// - The word of the slot says how far the request in it is, see [`REQUEST`]. One function makes it
///   [`is_done`], and that one uses the slot from then on.
/// - `lent` is accessed by the function that may use the slot, see [`Qp`].
/// - `region`, and from when `lent` names it the large region, are registered at most from when the
///   slot is posted until it is cleared; nobody else uses them while the slot is not free.
/// - A `LOCAL_INV` with `inv_cqe` is posted at most once for each request, when nothing but its
///   completion is missing. So the slot is not free as long as it is under way.
#[repr(C)]
pub(crate) struct RequestSlot {
    lent: UnsafeCell<Lent>,
    /// The generation of the last request. Changed by the function that has claimed the slot.
    generation: Atomic<u32>,
    /// The key that the peer was told. Changed by the function that has claimed the slot.
    rkey: Atomic<u32>,
    /// The slot's own region, if it has one.
    region: Option<FastRegMr>,
    /// For a `LOCAL_INV`.
    inv_cqe: Opaque<bindings::ib_cqe>,
}

/// The memory that the request in a slot lends to the peer.
struct Lent {
    /// The large region that is used, rather than the slot's own.
    large: Option<usize>,
    /// So many entries of the region's list were mapped.
    mapped: Option<(Direction, i32)>,
}

// SAFETY: `Shared` has regions that are used by those who use their slot, or have taken them, and
// what else it has is atomic, locked or constant. So is what `Slot` has, but for what the function
// uses that may use the slot. The word lets one function end a slot that was kept, and
// `is_left()` none any more. `clear()` is called when the access has ended; `end()` ends it by
// deregistering the regions.
unsafe impl<H: RequestHandler> Ulp<H, Rc> for Requests {
    type Caps = RequestCaps;
    type Shared = RequestState<H>;
    type Slot = RequestSlot;
    type Outcome = Result<(), Undrained>;

    fn sizes(caps: &RequestCaps) -> (QpCaps, u32) {
        (caps.qp, caps.extra_wr())
    }

    fn make(pd: &Arc<Pd>, caps: &RequestCaps) -> Result<impl PinInit<RequestState<H>>> {
        if caps.regions > caps.qp.slots {
            return Err(EINVAL);
        }
        let large = LargeMrs::alloc(pd, caps.large_regions, caps.large_region_pages)?;
        let parked = Parked::new(caps.regions)?;
        let registers_again = pd.device().quirks().registers_again();
        let can_probe = caps.extra_wr() != 0;
        Ok(pin_init!(RequestState {
            large,
            registers_again,
            watches: Atomic::new(0),
            can_probe,
            probing: Atomic::new(false),
            probes: Atomic::new(0),
            probe_cqe: Opaque::new(bindings::ib_cqe {
                done: Some(probe_done::<H>),
            }),
            parked <- new_mutex!(parked, "RequestState::parked"),
        }))
    }

    fn make_slot(pd: &Arc<Pd>, caps: &RequestCaps, index: u16) -> Result<RequestSlot> {
        let region = (index < caps.regions)
            .then(|| FastRegMr::alloc(pd, caps.region_pages))
            .transpose()?;
        // INVARIANT: There is no request, and the region was not registered yet.
        Ok(RequestSlot {
            lent: UnsafeCell::new(Lent {
                large: None,
                mapped: None,
            }),
            // CAST: Any number will do.
            generation: Atomic::new(random_u64() as u32),
            rkey: Atomic::new(0),
            region,
            inv_cqe: Opaque::new(bindings::ib_cqe {
                done: Some(inv_done::<H>),
            }),
        })
    }

    #[inline]
    unsafe fn read_into_region(
        qp: &Qp<H>,
        slot: &SendSlot<H>,
        owner: &H::Send,
        body: &mut Body,
        remote: RemoteRange,
    ) -> Result {
        // SAFETY: The caller promises the same.
        unsafe { qp.read_by_region(slot, owner, body, remote) }
    }

    #[inline]
    unsafe fn completed(
        qp: &Qp<H>,
        slot: &SendSlot<H>,
        result: Result<(), WcError>,
    ) -> Option<Result<(), WcError>> {
        if slot.word() & REQUEST == 0 {
            return Some(result);
        }
        // SAFETY: The caller promises the same.
        unsafe { qp.request_sent(slot, result) }
    }

    #[inline]
    unsafe fn clear(qp: &Qp<H>, slot: &SendSlot<H>) {
        // SAFETY: The caller promises that nobody else uses the slot.
        let lent = unsafe { &mut *slot.ulp.lent.get() };
        if let (Some(mapped), Some(region)) = (lent.mapped.take(), qp.region_of(slot, lent.large)) {
            // SAFETY: The device is done with it, and nobody else uses it.
            unsafe { region.unmap(&qp.pd, mapped) };
        }
        if let Some(index) = lent.large.take() {
            // SAFETY: The region was not registered, or is not any more.
            unsafe { qp.ulp.large.put(index) };
        }
        qp.stop_waiting_for(slot);
    }

    fn is_left(slot: &SendSlot<H>) -> bool {
        is_left(slot)
    }

    unsafe fn end(qp: &Qp<H>, slot: &SendSlot<H>) -> bool {
        // SAFETY: The caller promises the same.
        unsafe { qp.end_access(slot) }
    }

    fn outcome(state: &RequestState<H>, stopped: Result) -> Result<(), Undrained> {
        let parked = count_parked(&state.parked.lock());
        let lost = stopped.is_err();
        match lost || parked != 0 {
            true => Err(Undrained { parked, lost }),
            false => Ok(()),
        }
    }

    fn retire(state: &RequestState<H>, pd: &Pd, handler: H) {
        let parked = state.parked.lock().take();
        retire_parked(parked, pd, handler);
    }
}

impl<H: RequestHandler> Qp<H> {
    /// Returns the region that a request in `slot` uses: its own, or the large one of this number.
    #[inline]
    fn region_of<'a>(
        &'a self,
        slot: &'a SendSlot<H>,
        large: Option<usize>,
    ) -> Option<&'a FastRegMr> {
        match large {
            Some(index) => self.ulp.large.get(index),
            None => slot.ulp.region.as_ref(),
        }
    }
}

/// The sizes of a queue pair with requests.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     cq::{Cq, Softirq},
/// #     device::Device,
/// #     qp::QpCaps,
/// #     request::RequestCaps,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// // 16 requests at once, each of which takes up to two work requests.
/// let qp = QpCaps {
///     slots: 16,
///     send_wr: 32,
///     recv_wr: 16,
///     sges: 4,
///     ..QpCaps::default()
/// };
/// // Each may be about up to 1 MiB of memory.
/// let caps = RequestCaps::with_regions(qp, device, 1 << 20);
/// let cq = Cq::<Softirq>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestCaps {
    /// Those of the queue pair. A region is registered by a work request of its own, which
    /// [`QpCaps::send_wr`] must count.
    pub(crate) qp: QpCaps,
    /// The slots that have a memory region, so that the peer can be given access to their memory:
    /// the first ones.
    pub(crate) regions: u16,
    /// The pages that such a region has, of [`Device::region_page_size`] bytes; it covers as many
    /// segments, but not more than [`Self::MAX_REGION_SEGMENTS`].
    ///
    /// [`Device::region_page_size`]: crate::rdma::device::Device::region_page_size
    pub(crate) region_pages: u32,
    /// Slots at once that need a large region, as their memory is more than their own covers.
    pub(crate) large_regions: u16,
    /// The pages of the regions for these.
    pub(crate) large_region_pages: u32,
}

impl RequestCaps {
    /// The segments that a memory region covers at most.
    pub(crate) const MAX_REGION_SEGMENTS: u32 = FastRegMr::MAX_SEGMENTS;

    /// The bytes of the region that each slot has, by [`Self::with_regions`].
    const SMALL_REGION: u32 = 64 << 10;
    /// The large regions that there are then.
    const LARGE_REGIONS: u16 = 8;

    /// Returns sizes with a memory region for each slot. What does not fit, up to `bytes` bytes as
    /// far as `device` has such regions, takes one of a few large ones; when these are in use,
    /// other such requests fail with `EAGAIN`.
    ///
    /// Both ends of a connection have as many large regions, so the one that answers large requests
    /// by RDMA READs has a region for each that the other one can send.
    pub(crate) fn with_regions(qp: QpCaps, device: &Device, bytes: u32) -> Self {
        let page_size = device.region_page_size();
        // Wherever in a page they begin.
        let pages = (bytes / page_size + 1).min(device.limits().max_fast_reg_page_list_len);
        let small = (Self::SMALL_REGION / page_size).max(2);
        Self {
            qp,
            regions: qp.slots,
            region_pages: pages.min(small),
            large_regions: match pages > small {
                true => Self::LARGE_REGIONS,
                false => 0,
            },
            large_region_pages: pages,
        }
    }

    /// Returns how many work requests there are at once beside those of the slots: each region may
    /// have to be invalidated, and there may be one of [`Qp::probe`].
    const fn extra_wr(&self) -> u32 {
        match self.regions {
            0 => 0,
            // CAST: To a larger type.
            regions => regions as u32 + 1,
        }
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its sends.
    pub(crate) const fn send_cqes(&self) -> u32 {
        self.qp.send_cqes().saturating_add(self.extra_wr())
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its receives.
    pub(crate) const fn recv_cqes(&self) -> u32 {
        self.qp.recv_cqes()
    }
}

/// These sizes, without memory regions: the peer is given access to nothing.
impl From<QpCaps> for RequestCaps {
    fn from(qp: QpCaps) -> Self {
        Self {
            qp,
            ..Self::default()
        }
    }
}

/// The handler of a queue pair that sends requests.
///
/// # Context
///
/// What [`Qp::answered`] ends comes back by [`QpHandler::send_done`] in the context of its caller.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::DmaBuffer,
/// #     qp::{Qp, QpHandler},
/// #     request::{RequestHandler, Requests},
/// #     wc::{Received, WcError},
/// #     wr::SendOwner,
/// # };
/// /// Sends one request at a time, of which slot 0 has the owner until it is answered.
/// struct Client;
///
/// # struct Request(DmaBuffer);
/// # impl SendOwner for Request {
/// #     type Memory = crate::base::scatterlist::NoMemory;
/// # }
/// impl QpHandler for Client {
///     type Send = Request;
///     type Recv = DmaBuffer;
///     type Ulp = Requests;
///
///     fn recv_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, got: Result<Received<'_>, WcError>) {
///         if let Ok(answer) = got {
///             let _ = qp.answered(0, answer, |_| true);
///             let _ = qp.recv(buffer);
///         }
///     }
///
///     fn send_done(&self, qp: &Qp<Self>, request: Request, result: Result<(), WcError>) {
///         // It is answered, or failed, and the peer has no access to its memory any more.
///     }
///
///     fn error(&self) {}
/// }
///
/// impl RequestHandler for Client {
///     type Parked = Request;
///
///     fn park(&self, request: Request) -> Request {
///         request
///     }
/// }
/// ```
pub(crate) trait RequestHandler: QpHandler<Rc, Ulp = Requests> {
    /// What stays of the owner of a send whose memory the peer may still access; see
    /// [`Self::park`].
    type Parked: Send + 'static;

    /// A send will not be given back by [`QpHandler::send_done`]: its memory region could not be
    /// deregistered, so that the peer may still access its memory. [`Undrained`] counts it.
    ///
    /// What is returned must own that memory. It comes back by [`Self::send_released`].
    ///
    /// # Context
    ///
    /// That in which the queue pair is drained or dropped. May sleep.
    fn park(&self, owner: Self::Send) -> Self::Parked;

    /// A send that was parked is over: the last reference to the protection domain was dropped, and
    /// with it the last queue pair by which the peer could access the memory. The queue pair of the
    /// send is gone, too.
    ///
    /// The handler is dropped after the last of these calls. It must not hold a reference to the
    /// protection domain, nor must what was parked, or there is no such call.
    ///
    /// # Context
    ///
    /// That in which the last reference to the protection domain is dropped. May sleep.
    fn send_released(&self, parked: Self::Parked) {
        drop(parked);
    }
}

/// There is a request: a bit of the word of its slot, as are those that say how far it is. Its
/// generation is in the upper half.
const REQUEST: u64 = ULP_BIT;
/// Its work requests have completed.
const SENT: u64 = ULP_BIT << 1;
/// They have failed.
const FAILED: u64 = ULP_BIT << 2;
/// The peer has answered.
const ANSWERED: u64 = ULP_BIT << 3;
/// The peer has no access.
const INVALID: u64 = ULP_BIT << 4;
/// It is counted by [`AnyCq::start_waiting`](crate::rdma::cq::AnyCq::start_waiting).
const PARKED: u64 = ULP_BIT << 5;
/// It was answered, and not done, when [`Qp::watch_answered`](crate::rdma::qp::Qp::watch_answered)
/// looked.
const WATCHED: u64 = ULP_BIT << 6;
/// Where the generation begins.
const GENERATION_SHIFT: u32 = 32;

/// The bits of an RDMA READ into a region: it is a request that nobody answers, and that ends when
/// its work requests have completed, of which the last one invalidates the key. If it fails, the
/// peer may have access until the region is deregistered.
const READ: u64 = REQUEST | ANSWERED;

/// So many requests of a slot have generations that follow each other; that of the next one is
/// random. A key comes again after 256 registrations, so a peer that invalidates a key cannot know
/// the generation of the request that has it when the key is in use again.
const GENERATIONS: u32 = 128;

/// Returns the generation of the request after one with generation `last`.
#[inline]
fn next_generation(last: u32) -> u32 {
    let next = last.wrapping_add(1);
    match next % GENERATIONS {
        // CAST: Any number will do.
        0 => random_u64() as u32 / GENERATIONS * GENERATIONS,
        _ => next,
    }
}

/// Returns the generation of the request in a slot with this word.
#[inline]
fn generation(word: u64) -> u32 {
    // CAST: The upper half.
    (word >> GENERATION_SHIFT) as u32
}

/// Returns true if a request can be given back. One that has failed need not be answered.
#[inline]
fn is_done(word: u64) -> bool {
    word & INVALID != 0 && (word & FAILED != 0 || word & (SENT | ANSWERED) == SENT | ANSWERED)
}

/// Returns true if there is a request that can be answered. One that has failed, and to which the
/// peer has no access, is done: the function that made it so is just giving it back.
#[inline]
fn is_to_answer(word: u64) -> bool {
    word & (REQUEST | ANSWERED) == REQUEST && word & (FAILED | INVALID) != FAILED | INVALID
}

/// Returns true if all that is missing is that the peer has no access any more. The registration
/// has run if the work request behind it has completed: before that, there would be nothing to
/// invalidate.
#[inline]
fn is_to_invalidate(word: u64) -> bool {
    word & (SENT | ANSWERED | INVALID) == SENT | ANSWERED
}

/// Returns true if the peer has answered a request, and the device is not done with it: its work
/// requests have not completed, or the one that invalidates its key.
#[inline]
fn is_with_device(word: u64) -> bool {
    word & (REQUEST | ANSWERED) == REQUEST | ANSWERED && !is_done(word)
}

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
struct FastRegMr {
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
struct MemoryShape {
    segments: usize,
    /// The bytes.
    len: u64,
    /// The offset of the first of them in its page of memory.
    offset: u32,
}

impl MemoryShape {
    /// Returns the shape of `piece`.
    #[inline]
    fn of_piece(piece: &DmaPiece) -> Self {
        Self {
            segments: 1,
            len: piece.len().into(),
            // CAST: Less than a page.
            offset: (piece.addr() % PAGE_SIZE as u64) as u32,
        }
    }

    /// Returns the number of bytes.
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }

    /// Returns the shape of `memory`. Fails with `EINVAL` if it is empty.
    #[inline]
    fn of(memory: &impl Segmented) -> Result<Self> {
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
    const MAX_SEGMENTS: u32 = 256;

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
    fn alloc(pd: &Arc<Pd>, pages: u32) -> Result<Self> {
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
            base: (random_u64() >> 1) & !(size - 1),
            pages,
            page_size,
            list,
        })
    }

    /// The C object, which is valid until it is deregistered.
    #[inline]
    fn as_raw(&self) -> *mut bindings::ib_mr {
        self.mr.as_ptr()
    }

    /// Returns the local key, once [`Self::renew`] has taken another one.
    #[inline]
    fn lkey(&self) -> u32 {
        // SAFETY: By the type invariants the region is valid.
        unsafe { (*self.as_raw()).lkey }
    }

    /// Returns true if the region was deregistered, or that was tried.
    #[inline]
    fn is_gone(&self) -> bool {
        self.state.load(Relaxed) != LIVE
    }

    /// Returns true if there is room for memory of this shape.
    #[inline]
    fn covers(&self, shape: &MemoryShape) -> bool {
        shape.segments <= self.list.len() && shape.pages(self.page_size) <= self.pages.into()
    }

    /// Takes another key, and returns where a peer will find memory of this shape once it is mapped
    /// and registered.
    ///
    /// # Safety
    ///
    /// The region must not be registered, nor used by anybody else.
    #[inline]
    unsafe fn renew(&self, shape: &MemoryShape) -> RemoteRange {
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
    unsafe fn map(
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
    unsafe fn map_piece(&self, piece: &DmaPiece, addr: u64) -> Result {
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
    unsafe fn unmap(&self, pd: &Pd, (direction, count): (Direction, i32)) {
        let list = UnsafeCell::raw_get(self.list.as_ptr());
        // SAFETY: So many entries were mapped in this direction.
        unsafe {
            bindings::farblk_dma_unmap_sg(pd.device().as_raw(), list, count, direction.as_raw())
        };
    }

    /// The work request that registers what was mapped for the peer to do `op`, after `renew()` has
    /// given `rkey`.
    #[inline]
    fn reg_wr(&self, op: RdmaOp, rkey: u32, wr: bindings::ib_send_wr) -> bindings::ib_reg_wr {
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
    fn deregister(&self) -> Result {
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
struct LargeMrs {
    keys: KVec<FastRegMr>,
    free: FreeSet,
}

impl LargeMrs {
    /// Allocates `count` regions of `pages` pages, like [`FastRegMr::alloc`].
    ///
    /// # Context
    ///
    /// May sleep; so may dropping it.
    fn alloc(pd: &Arc<Pd>, count: u16, pages: u32) -> Result<Self> {
        let free = FreeSet::free(count.into())?;
        let mut keys = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for _ in 0..count {
            keys.push(FastRegMr::alloc(pd, pages)?, GFP_KERNEL)?;
        }
        // INVARIANT: None was registered yet.
        Ok(Self { keys, free })
    }

    /// Returns the region of this number.
    #[inline]
    fn get(&self, index: usize) -> Option<&FastRegMr> {
        self.keys.get(index)
    }

    /// Takes a region for memory of this shape, and returns its number. Fails with `EAGAIN` if none
    /// is free, and with `EINVAL` if they are too small.
    #[inline]
    fn take(&self, shape: &MemoryShape) -> Result<usize> {
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
    unsafe fn put(&self, index: usize) {
        // INVARIANT: The caller promises that it is not registered.
        self.free.put(index);
    }
}

/// What a request carries in addition to its message.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     qp::Qp,
/// #     request::{Carry, RequestHandler},
/// #     wr::{RdmaOp, RemoteRange},
/// # };
/// # use kernel::prelude::*;
/// # trait Write { fn set_place(&mut self, place: RemoteRange) -> Result; }
/// # fn example<H: RequestHandler>(qp: &Qp<H>, slot: u16, write: H::Send) -> Result
/// # where H::Send: Write {
/// // A write to a disk of the peer: the peer reads the data, and may do so until it has answered.
/// let carry = Carry::Access(RdmaOp::Read);
/// qp.request(slot, carry, write, |write, ask| write.set_place(ask.range.ok_or(EINVAL)?), true)
///     .map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carry {
    /// Nothing.
    Nothing,
    /// The owner's memory, behind the message. With the message it must fit in the segments of one
    /// work request.
    Inline,
    /// The right of the peer to do this operation on the owner's memory, until the request is
    /// answered.
    ///
    /// The *peer* does the operation: it reads what is to be written to its disk, for example.
    Access(RdmaOp),
}

/// What a request has to tell the peer.
///
/// See [`Carry`] for an example.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// Tells the request from those before it in its slot. The peer has to send it back with the
    /// answer, or a part of it.
    pub(crate) generation: u32,
    /// Where the peer finds the owner's memory, if it is given access to that.
    pub(crate) range: Option<RemoteRange>,
}

impl<H: RequestHandler> Qp<H> {
    /// Chains a request: the owner's message, and what it is to `carry`.
    ///
    /// `prepare` writes the message, of what it is given. If the peer is given access to the
    /// owner's memory, the slot must be one of those with a memory region, and the memory must have
    /// no gaps between pages. The peer has access from when the message is sent, and to nothing
    /// else. If the memory is more than the slot's region covers, the request takes one of the
    /// large regions until it comes back.
    ///
    /// The owner comes back through [`QpHandler::send_done`] when the work requests have completed,
    /// [`Self::answered`] was called, *and* the peer's access has ended. After a failure of the
    /// queue pair it comes back as soon as the work requests have been flushed, but not before the
    /// queue pair is drained or dropped if they have succeeded, or the peer might still have
    /// access. So a caller that does not wait for the answer any more has to drain the queue pair.
    ///
    /// Otherwise like [`Self::rdma`]. It also fails with `EAGAIN` if no large region is free, and
    /// with the error of `prepare`.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    #[inline]
    pub(crate) fn request(
        &self,
        slot: u16,
        carry: Carry,
        owner: H::Send,
        prepare: impl FnOnce(&mut H::Send, Ask) -> Result,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let access = match carry {
                Carry::Access(op) => {
                    let memory = owner.memory().ok_or(EINVAL)?;
                    let shape = MemoryShape::of(memory)?;
                    // SAFETY: The slot was claimed.
                    let region = unsafe { self.choose_region(slot, &shape) }?;
                    // SAFETY: By the invariants of `RequestSlot` the region is not registered, and
                    // nobody else uses it.
                    Some((op, region, unsafe { region.renew(&shape) }))
                }
                Carry::Nothing | Carry::Inline => None,
            };
            // SAFETY: The slot was claimed.
            let is_large = unsafe { (*slot.ulp.lent.get()).large.is_some() };
            let generation = match is_large {
                // The key of a large region comes again after requests of any slots.
                // CAST: Any number will do.
                true => random_u64() as u32,
                false => next_generation(slot.ulp.generation.load(Relaxed)),
            };
            slot.ulp.generation.store(generation, Relaxed);
            body.ulp_bits = REQUEST | u64::from(generation) << GENERATION_SHIFT;
            let range = access.as_ref().map(|(.., range)| *range);
            if range.is_none() {
                body.ulp_bits |= INVALID;
            }
            let rkey = range.map_or(0, |range| range.rkey);
            slot.ulp.rkey.store(rkey, Relaxed);
            prepare(owner, Ask { generation, range })?;

            let message = self.message(owner)?;
            // SAFETY: A slot has room for at least one segment.
            unsafe { body.push_sge(message.addr, message.length, message.lkey) };
            let mut send = bindings::ib_send_wr {
                sg_list: body.sges,
                num_sge: 1,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..slot.last_wr()
            };
            if matches!(carry, Carry::Inline) {
                self.gather_in_one(owner, body)?;
                // CAST: At most 32.
                send.num_sge = body.nr_sge as i32;
            }
            if let Some((op, region, range)) = access {
                let memory = owner.memory().ok_or(EINVAL)?;
                let direction = match op {
                    RdmaOp::Read => Direction::ToDevice,
                    RdmaOp::Write if memory.writable() => Direction::FromDevice,
                    RdmaOp::Write => return Err(EINVAL),
                };
                // SAFETY: The slot was claimed.
                let mapped = unsafe { &mut (*slot.ulp.lent.get()).mapped };
                // SAFETY: As above. The memory stays, as `Segmented` promises, since the owner lies
                // in the slot until it is unmapped.
                unsafe { region.map(&self.pd, memory, direction, range.addr, mapped) }?;
                // SAFETY: A slot has two work requests, which are its array's.
                let next = unsafe { body.wrs.add(1) };
                let reg = region.reg_wr(op, range.rkey, slot.chained_wr(next.cast()));
                // SAFETY: The slot was claimed.
                unsafe { body.wrs.write(Wr { reg }) };
                body.nr_wr = 1;
            }
            // SAFETY: As above.
            unsafe { body.wrs.add(body.nr_wr as usize).write(Wr { send }) };
            body.nr_wr += 1;
            Ok(())
        })
    }

    /// Chooses a region for memory of this shape: that of `slot`, or a large one, which is noted in
    /// the slot until that is cleared.
    ///
    /// # Safety
    ///
    /// The caller must have claimed the slot.
    #[inline]
    unsafe fn choose_region<'a>(
        &'a self,
        slot: &'a SendSlot<H>,
        shape: &MemoryShape,
    ) -> Result<&'a FastRegMr> {
        let own = slot.ulp.region.as_ref().ok_or(EINVAL)?;
        let region = if own.covers(shape) {
            own
        } else {
            let index = self.ulp.large.take(shape)?;
            // SAFETY: The caller has claimed the slot.
            unsafe { (*slot.ulp.lent.get()).large = Some(index) };
            self.ulp.large.get(index).ok_or(EINVAL)?
        };
        // The handler may post a request after the queue pair was drained.
        match region.is_gone() {
            true => Err(ESHUTDOWN),
            false => Ok(region),
        }
    }
}

impl<H: RequestHandler> Qp<H> {
    /// Returns true if the request in `slot` waits for its answer, and `is_it` says that it is the
    /// one, by its generation. What the caller learns of the request after that is true of this
    /// one, or the request ends without an answer.
    ///
    /// # Context
    ///
    /// A handler of receives: no other answer is handled meanwhile. Does not sleep.
    #[inline]
    pub(crate) fn asks(&self, slot: u16, is_it: impl Fn(u32) -> bool) -> bool {
        let Some(slot) = self.slot(slot) else {
            return false;
        };
        // Acquire: what the function did that posted the request happened before.
        let word = slot.word();
        is_posted(word) && is_to_answer(word) && is_it(generation(word))
    }

    /// Notes that the peer has answered the request in `slot` by the message `answer`, if `is_it`
    /// says so of the request's generation.
    ///
    /// If that has invalidated another key than the request's, the peer violates the protocol: the
    /// queue pair is closed, and this fails with `EPROTO`. If the message has invalidated no key,
    /// or the registration may run again (see
    /// [`Quirks::registers_again`](crate::rdma::quirks::Quirks::registers_again)), the key is
    /// invalidated here. Fails with `EINVAL` if the message is another queue pair's, if there is no
    /// such request, if it was answered already, or if it has failed and is being given back.
    ///
    /// [`QpHandler::send_done`] may be called before this returns. If the sends complete in a
    /// [`Direct`](crate::rdma::cq::Direct) queue of their own, and the
    /// request's has not yet, an interrupt is requested, so that no caller has to poll for it.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    #[inline]
    pub(crate) fn answered(
        &self,
        slot: u16,
        answer: Received<'_>,
        is_it: impl Fn(u32) -> bool,
    ) -> Result {
        let slot = self.slot(slot).ok_or(EINVAL)?;
        if !answer.is_of(self.as_raw()) {
            return Err(EINVAL);
        }
        let new = loop {
            let old = slot.word();
            if !is_posted(old) || !is_to_answer(old) || !is_it(generation(old)) {
                return Err(EINVAL);
            }
            let mut new = old | ANSWERED;
            if let Some(rkey) = answer.invalidated() {
                if rkey != slot.ulp.rkey.load(Relaxed) {
                    // If the request has just failed, this may be the key of the next one.
                    if slot.word() != old {
                        continue;
                    }
                    self.close();
                    self.note_error();
                    return Err(EPROTO);
                }
                // Else the registration may run once more. The region is invalidated here when it
                // cannot.
                if old & SENT != 0 || !self.ulp.registers_again {
                    new |= INVALID;
                }
            }
            if self.reaps && !is_done(new) {
                new |= PARKED;
            }
            // Else it is not the request any more that was looked at: the next one has another
            // generation.
            if slot.change(old, new).is_ok() {
                break new;
            }
        };
        if new & PARKED != 0 {
            self.send_cq.cq().start_waiting();
        }
        if is_done(new) {
            // SAFETY: The bits that were just set have made it so.
            unsafe { self.finish_request(slot, new) };
            return Ok(());
        }
        if is_to_invalidate(new) {
            self.invalidate(slot);
        }
        if self.reaps {
            self.send_cq.cq().reap();
        }
        Ok(())
    }

    /// Returns how many remote keys this side has invalidated since the peer did not. Any context.
    pub(crate) fn invalidations(&self) -> u64 {
        let probes = self.ulp.probes.load(Relaxed);
        self.extra_posted.load(Relaxed).saturating_sub(probes)
    }

    /// Finds out whether the connection is still there, which a request that was sent and waits for
    /// its answer does not tell: writes no bytes to the peer, of which nobody there takes notice.
    /// The device of a peer that has no such queue pair any more does not acknowledge that, and
    /// after the retries this queue pair fails.
    ///
    /// Does nothing while an earlier one is under way, if there are no memory regions, and over
    /// iWARP, where the end of a connection is always noticed. [`Self::completions`] does not count
    /// it: it says nothing of the peer but that its device works.
    ///
    /// Any context but hard interrupt.
    pub(crate) fn probe(&self) {
        if !self.ulp.can_probe || self.iwarp {
            return;
        }
        // The completion of the last one may be there.
        if self.reaps {
            self.send_cq.cq().reap();
        }
        if self.ulp.probing.xchg(true, Full) {
            return;
        }
        self.ulp
            .probes
            .store(self.ulp.probes.load(Relaxed).wrapping_add(1), Relaxed);
        let wr = bindings::ib_rdma_wr {
            wr: bindings::ib_send_wr {
                __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                    wr_cqe: self.ulp.probe_cqe.get(),
                },
                opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED,
                ..pin_init::zeroed()
            },
            ..pin_init::zeroed()
        };
        // SAFETY: There is room for one, and none is under way. The entry is in `self`, which stays
        // until it has completed.
        unsafe { self.post_extra(&wr.wr) };
    }

    /// Looks for requests that the peer has answered and the device is not done with. Returns the
    /// same number as the call before if one of those that were so then still is, and else another
    /// one: such a request waits for the acknowledgment of the peer's HCA, for its `LOCAL_INV`, or
    /// for a completion that was lost.
    ///
    /// Any context but hard interrupt. Calls must not be concurrent.
    pub(crate) fn watch_answered(&self) -> u64 {
        // What is there already counts, also if nothing has told of it.
        if self.reaps {
            self.send_cq.cq().reap();
        }
        let slots = || (0..u16::MAX).map_while(|index| self.slot(index));
        let is_watched = |word| word & WATCHED != 0 && is_with_device(word);
        if !slots().any(|slot| is_watched(slot.word())) {
            for slot in slots() {
                let old = slot.word();
                if is_with_device(old) {
                    // If it has changed, somebody has just gone on with it. A request after it with
                    // the same key may be watched in its place.
                    let _ = slot.change(old, old | WATCHED);
                }
            }
            self.ulp.watches.fetch_add(1, Relaxed);
        }
        self.ulp.watches.load(Relaxed)
    }

    /// Sets bits of a request; returns the word as it is then.
    #[inline]
    fn advance(&self, slot: &SendSlot<H>, bits: u64) -> u64 {
        let mut old = slot.word();
        loop {
            match slot.change(old, old | bits) {
                Ok(()) => return old | bits,
                Err(now) => old = now,
            }
        }
    }

    /// Notes that the work requests of the request in `slot` have completed. Returns the result of
    /// the request if that is done now.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion, which must not use the slot afterwards if
    /// this returns `None`.
    #[inline]
    unsafe fn request_sent(
        &self,
        slot: &SendSlot<H>,
        result: Result<(), WcError>,
    ) -> Option<Result<(), WcError>> {
        let bit = match result {
            // SAFETY: The caller is the handler of the completion.
            Ok(()) => match unsafe { (*slot.body.get()).opcode } {
                // It has invalidated its own key.
                bindings::ib_wc_opcode_IB_WC_RDMA_READ => SENT | INVALID,
                _ => SENT,
            },
            Err(error) => {
                // SAFETY: The caller is the handler of the completion.
                unsafe { (*slot.body.get()).error = Some(error) };
                FAILED
            }
        };
        let now = self.advance(slot, bit);
        if is_done(now) {
            // SAFETY: The bit that was just set has made it so.
            return Some(unsafe { Self::end_request(slot, now) });
        }
        if is_to_invalidate(now) {
            self.invalidate(slot);
        }
        None
    }

    /// Posts the `LOCAL_INV` of the request in `slot`.
    #[cold]
    fn invalidate(&self, slot: &SendSlot<H>) {
        let rkey = slot.ulp.rkey.load(Relaxed);
        // The completion needs the whole slot.
        let slot = core::ptr::from_ref(slot).cast_mut();
        let mut wr = bindings::ib_send_wr {
            __bindgen_anon_1: bindings::ib_send_wr__bindgen_ty_1 {
                // SAFETY: The field is in the slot.
                wr_cqe: unsafe { core::ptr::addr_of_mut!((*slot).ulp.inv_cqe) }.cast(),
            },
            opcode: bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
            send_flags: bindings::ib_send_flags_IB_SEND_SIGNALED,
            ..pin_init::zeroed()
        };
        wr.ex.invalidate_rkey = rkey;
        // What is left of a request that cannot be invalidated comes back when the queue pair goes.
        // SAFETY: There is one for each slot with a region, by the invariants of `RequestSlot`, and
        // the slot stays until it has completed.
        unsafe { self.post_extra(&wr) };
    }

    /// Handles the completion of the `LOCAL_INV` of `slot`.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[cold]
    unsafe fn inv_completed(&self, slot: &SendSlot<H>, wc: &bindings::ib_wc) {
        self.count_send_completion();
        match WcError::check(wc, bindings::ib_wc_opcode_IB_WC_LOCAL_INV) {
            Ok(_) => {
                let now = self.advance(slot, INVALID);
                // SAFETY: It was the last that was missing.
                unsafe { self.finish_request(slot, now) };
            }
            Err(error) => {
                // SAFETY: All others are done with the slot.
                unsafe { (*slot.body.get()).error = Some(error) };
                self.note_error();
            }
        }
    }

    /// Gives back the request in `slot`, whose word is `word`.
    ///
    /// # Safety
    ///
    /// It must be done, and the caller be the one who has made it so.
    #[inline]
    unsafe fn finish_request(&self, slot: &SendSlot<H>, word: u64) {
        // SAFETY: The caller is the one who may use the slot. As the request is done, its work
        // requests have completed, and the peer has no access any more.
        unsafe { self.finish(slot, Self::end_request(slot, word)) };
    }

    /// Claims the slot of a request that is to be given back, and returns its result.
    ///
    /// # Safety
    ///
    /// As for [`Self::finish_request`].
    #[inline]
    unsafe fn end_request(slot: &SendSlot<H>, word: u64) -> Result<(), WcError> {
        slot.set_ending(word);
        // SAFETY: Nobody else uses the slot of a request that is done.
        unsafe { (*slot.body.get()).error.take() }.map_or(Ok(()), Err)
    }

    /// Undoes what [`Self::answered`] did for the request in `slot`, if there is one, which is
    /// being freed.
    #[inline]
    fn stop_waiting_for(&self, slot: &SendSlot<H>) {
        if slot.word() & PARKED != 0 {
            self.send_cq.cq().stop_waiting();
        }
    }
}

/// Returns true if the caller, which drains the queue pair, has to end what was posted in `slot`. A
/// request cannot be answered any more after this. Returns false if nothing is posted, or if the
/// request is done: then the function that made it so is just giving it back.
fn is_left<H: RequestHandler>(slot: &SendSlot<H>) -> bool {
    let mut word = slot.word();
    while is_posted(word) && !is_done(word) {
        // What is no request ends now in any case.
        match slot.change(word, word | ANSWERED) {
            Ok(()) => return true,
            Err(now) => word = now,
        }
    }
    false
}

/// Handles the completion of a slot's `LOCAL_INV`.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `inv_cqe` of a [`SendSlot<H>`] that was posted.
unsafe extern "C" fn inv_done<H: RequestHandler>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion.
    let wc = unsafe { &*wc };
    // SAFETY: It is that of a work request with this field of a slot, which exists until all
    // completions of it were handled, and no other can come.
    let slot = unsafe {
        let cqe = wc
            .__bindgen_anon_1
            .wr_cqe
            .cast::<Opaque<bindings::ib_cqe>>();
        let ours = kernel::container_of!(cqe, RequestSlot, inv_cqe);
        &*kernel::container_of!(ours, SendSlot<H>, ulp)
    };
    if !slot.is_posted() {
        return;
    }
    // SAFETY: The slot is posted, and this is the handler of its completion.
    unsafe { slot.qp().inv_completed(slot, wc) };
}

/// Handles the completion of a work request of [`Qp::probe`]. If it has failed, so has the queue
/// pair, which the flushed receives tell.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `probe_cqe` of a [`RequestState<H>`].
unsafe extern "C" fn probe_done<H: RequestHandler>(
    _cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: The caller gives a valid completion, of a work request with this field of a state,
    // which exists until it was handled.
    let state = unsafe {
        let cqe = (*wc)
            .__bindgen_anon_1
            .wr_cqe
            .cast::<Opaque<bindings::ib_cqe>>();
        &*kernel::container_of!(cqe, RequestState<H>, probe_cqe)
    };
    state.probing.store(false, Relaxed);
}

/// What a reply does in addition to sending a message.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     qp::Qp,
/// #     request::{Reply, RequestHandler},
/// #     wr::RemoteRange,
/// # };
/// # use kernel::prelude::*;
/// # fn example<H: RequestHandler>(
/// #     qp: &Qp<H>,
/// #     slot: u16,
/// #     place: RemoteRange,
/// #     answer: H::Send,
/// # ) -> Result {
/// // The answer to a read of a disk: the data go where the peer wants them, and when it gets the
/// // message, they are there, and this side's right to write there has ended.
/// let reply = Reply {
///     write: Some(place),
///     invalidate: Some(place.rkey),
///     ..Reply::default()
/// };
/// qp.reply(slot, reply, answer, true).map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    /// If set, the owner's memory is the message, and this its immediate data. Not over iWARP.
    pub(crate) immediate: Option<u32>,
    /// If set, the owner's memory follows its message. With the message it must fit in the segments
    /// of one work request.
    pub(crate) append: bool,
    /// If set, the owner's memory is written there first.
    pub(crate) write: Option<RemoteRange>,
    /// If set, the message invalidates this remote key of the peer.
    pub(crate) invalidate: Option<u32>,
}

impl Reply {
    /// Returns a reply that is the owner's memory with `immediate`, and does nothing else.
    pub(crate) fn with_immediate(immediate: u32) -> Self {
        Self {
            immediate: Some(immediate),
            ..Self::default()
        }
    }
}

impl<H: RequestHandler> Qp<H> {
    /// Chains a send of the owner's message, of its memory, or of both, after an RDMA WRITE of all
    /// its memory if `reply` has one. The peer has the data when it gets the message. There is one
    /// completion.
    ///
    /// Otherwise like [`Self::rdma`]. `EOPNOTSUPP` for immediate data over iWARP.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn reply(
        &self,
        slot: u16,
        reply: Reply,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            if let Some(remote) = reply.write {
                self.gather(owner, body, RdmaOp::Write, self.write_sges)?;
                self.build_rdma(slot, body, RdmaOp::Write, self.write_sges, remote, true)?;
            }
            // SAFETY: There is room for one more segment than those of the memory.
            let sge = unsafe { body.sges.add(body.nr_sge as usize) };
            let mut wr = bindings::ib_send_wr {
                sg_list: sge,
                num_sge: 1,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..slot.last_wr()
            };
            if let Some(immediate) = reply.immediate {
                if self.iwarp {
                    return Err(EOPNOTSUPP);
                }
                if reply != Reply::with_immediate(immediate) {
                    return Err(EINVAL);
                }
                self.gather_in_one(owner, body)?;
                // CAST: At most 32.
                wr.num_sge = body.nr_sge as i32;
                wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM;
                wr.ex.imm_data = immediate.to_be();
            } else {
                let message = self.message(owner)?;
                // SAFETY: As above.
                unsafe { sge.write(message) };
            }
            if reply.append {
                if reply.immediate.is_some() || reply.write.is_some() {
                    return Err(EINVAL);
                }
                // INVARIANT: The message was just written there.
                body.nr_sge += 1;
                self.gather_in_one(owner, body)?;
                // As above.
                wr.num_sge = body.nr_sge as i32;
            }
            if let Some(rkey) = reply.invalidate {
                wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV;
                wr.ex.invalidate_rkey = rkey;
            }
            // SAFETY: The slot was claimed, and there is room for one more work request than those
            // of the memory.
            unsafe { body.wrs.add(body.nr_wr as usize).write(Wr { send: wr }) };
            body.nr_wr += 1;
            Ok(())
        })
    }
}

impl<H: RequestHandler> Qp<H> {
    /// Maps the owner's memory, and fills in the work requests that register it and read into it.
    ///
    /// # Safety
    ///
    /// The caller must have claimed the slot, and `owner` and `body` be in it.
    #[inline]
    unsafe fn read_by_region(
        &self,
        slot: &SendSlot<H>,
        owner: &H::Send,
        body: &mut Body,
        remote: RemoteRange,
    ) -> Result {
        let piece = owner.piece();
        let shape = match (piece, owner.memory()) {
            (Some(piece), _) if piece.is_for(self.pd.device()) => MemoryShape::of_piece(piece),
            (None, Some(memory)) if memory.writable() => MemoryShape::of(memory)?,
            _ => return Err(EINVAL),
        };
        let length = u32::try_from(shape.len())?;
        // SAFETY: The slot was claimed.
        let region = unsafe { self.choose_region(slot, &shape) }?;
        // SAFETY: By the invariants of `RequestSlot` the region is not registered, and nobody else
        // uses it.
        let sink = unsafe { region.renew(&shape) };
        body.ulp_bits = READ;
        match (piece, owner.memory()) {
            (Some(piece), _) => {
                piece.sync_for_device();
                body.reads_piece = true;
                // SAFETY: As above.
                unsafe { region.map_piece(piece, sink.addr) }?;
            }
            (None, Some(memory)) => {
                let direction = Direction::FromDevice;
                // SAFETY: The slot was claimed.
                let mapped = unsafe { &mut (*slot.ulp.lent.get()).mapped };
                // SAFETY: As above. The memory stays, as `Segmented` promises, since the owner lies
                // in the slot until it is unmapped.
                unsafe { region.map(&self.pd, memory, direction, sink.addr, mapped) }?;
            }
            (None, None) => return Err(EINVAL),
        }
        // SAFETY: A slot has room for at least one segment.
        unsafe { body.push_sge(sink.addr, length, region.lkey()) };
        // SAFETY: A slot has two work requests, which are its array's.
        let next = unsafe { body.wrs.add(1) };
        // The peer writes what we read.
        let reg = region.reg_wr(RdmaOp::Write, sink.rkey, slot.chained_wr(next.cast()));
        let mut read = bindings::ib_send_wr {
            sg_list: body.sges,
            num_sge: 1,
            opcode: bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
            ..slot.last_wr()
        };
        read.ex.invalidate_rkey = sink.rkey;
        let read = bindings::ib_rdma_wr {
            wr: read,
            remote_addr: remote.addr,
            rkey: remote.rkey,
        };
        // SAFETY: The slot was claimed, and there is room for two.
        unsafe {
            body.wrs.write(Wr { reg });
            next.write(Wr { rdma: read });
        }
        body.nr_wr = 2;
        body.opcode = bindings::ib_wc_opcode_IB_WC_RDMA_READ;
        Ok(())
    }
}

/// Some requests could not be given back: their memory regions could not be deregistered, so the
/// peer may still have access to their memory.
///
/// They come back by [`RequestHandler::send_released`] when the last reference to the protection
/// domain is dropped: then no queue pair is left by which the peer could reach their memory. The
/// regions and the domain stay with the device for ever, as does the mapping of the memory for DMA.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{qp::Qp, request::{RequestHandler, Undrained}};
/// # use kernel::prelude::*;
/// /// Ends a connection. All its requests have come back then, but for those that are told here.
/// fn end<H: RequestHandler>(qp: &Qp<H>) {
///     match qp.drain() {
///         Ok(()) => {}
///         Err(Undrained { lost: true, .. }) => pr_err!("the device keeps requests\n"),
///         Err(Undrained { parked, .. }) => pr_err!("{} requests keep their memory\n", parked),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undrained {
    /// The number of these requests.
    pub(crate) parked: u32,
    /// The device has neither drained nor destroyed the queue pair, so no request that was posted
    /// can be given back: each comes back if the device completes it after all, or when it destroys
    /// the queue pair. To drain it once more tries that, and so does the removal of the device once
    /// nothing refers to the queue pair.
    pub(crate) lost: bool,
}

/// Room for the requests of a queue pair that cannot be given back; `None` if it has no memory
/// regions.
type Parkable<H> = Option<KBox<Parking<Parked<H>>>>;

/// The requests of a queue pair that could not be given back.
///
/// The drop gives them to the handler: that of the queue pair, which has none any more by then.
struct Parked<H: RequestHandler> {
    /// What stays of their owners. The capacity suffices for each slot that has a memory region.
    rests: KVVec<H::Parked>,
    /// The handler, once the queue pair is gone.
    handler: Option<H>,
}

impl<H: RequestHandler> Parked<H> {
    /// Makes room for the requests of so many slots with a memory region; `None` if there are no
    /// such slots. May sleep.
    fn new(slots: u16) -> Result<Parkable<H>> {
        if slots == 0 {
            return Ok(None);
        }
        Ok(Some(Parking::new(Self {
            rests: KVVec::with_capacity(slots.into(), GFP_KERNEL)?,
            handler: None,
        })?))
    }

    /// Adds what stays of the owner of a request.
    fn push(&mut self, rest: H::Parked) {
        // Cannot fail: only slots with a memory region, one request of each, get here.
        if let Err(error) = self.rests.push_within_capacity(rest) {
            // Leaked memory is better than memory that a peer writes after it was freed.
            core::mem::forget(error);
        }
    }
}

impl<H: RequestHandler> Drop for Parked<H> {
    fn drop(&mut self) {
        if let Some(handler) = &self.handler {
            while let Some(rest) = self.rests.pop() {
                handler.send_released(rest);
            }
        }
    }
}

/// Returns the number of requests that are parked.
fn count_parked<H: RequestHandler>(parked: &Parkable<H>) -> u32 {
    // CAST: There are at most as many as slots.
    let count = |parking: &KBox<Parking<Parked<H>>>| parking.value.rests.len() as u32;
    parked.as_ref().map_or(0, count)
}

/// Parks the requests of a queue pair of `pd` that is gone with that, and its handler with them, to
/// give them back to.
fn retire_parked<H: RequestHandler>(parked: Parkable<H>, pd: &Pd, handler: H) {
    if let Some(mut parking) = parked.filter(|parking| !parking.value.rests.is_empty()) {
        parking.value.handler = Some(handler);
        pd.park(parking);
    }
}

impl<H: RequestHandler> Qp<H> {
    /// Deregisters the regions of the request in `slot`, if there is one, so that the peer has no
    /// access any more. Returns false if that is not possible: then the owner was taken out of the
    /// slot, and is parked with the protection domain when the queue pair goes.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, which was posted, and the device be done
    /// with it.
    unsafe fn end_access(&self, slot: &SendSlot<H>) -> bool {
        // SAFETY: The caller promises that nobody else uses the slot.
        let large = unsafe { (*slot.ulp.lent.get()).large };
        let large = large.and_then(|index| self.ulp.large.get(index));
        let mut keys = [slot.ulp.region.as_ref(), large].into_iter().flatten();
        if let Err(error) = keys.try_for_each(FastRegMr::deregister) {
            pr_err!(
                "cannot deregister a memory region: {}; a request waits for its domain\n",
                error.to_errno()
            );
            // SAFETY: As above. The slot stays taken, and its memory mapped.
            if let Some(owner) = unsafe { (*slot.owner.get()).take() } {
                self.stop_waiting_for(slot);
                slot.lose();
                let rest = self.handler().park(owner);
                // There is room: the slot has a memory region.
                if let Some(parked) = &mut *self.ulp.parked.lock() {
                    parked.value.push(rest);
                }
            }
            return false;
        }
        true
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_rdma_progress)]
mod tests {
    use super::*;
    use crate::kunit::check;

    /// The function that makes a request done ends it: no other must find that it has made it so.
    #[test]
    fn request_is_done_once() -> Result {
        for bits in 0..WATCHED / ULP_BIT << 1 {
            let word = bits * ULP_BIT;
            let done = is_done(word);
            // An answer is the end only of what was not done.
            check!(!is_to_answer(word) || !done);
            // Nor is there anything left to invalidate.
            check!(!is_to_invalidate(word) || !is_done(word & !FAILED));
            // Who waits for the peer does not wait for the device.
            check!(!is_with_device(word) || !is_to_answer(word) && !done);
            // Whatever comes then does not undo it.
            for bit in [SENT, FAILED, ANSWERED, INVALID, PARKED, WATCHED] {
                check!(!done || is_done(word | bit));
            }
        }
        check!(is_to_answer(REQUEST) && is_to_answer(REQUEST | SENT | INVALID));
        check!(is_with_device(REQUEST | ANSWERED) && !is_with_device(REQUEST | SENT | INVALID));
        check!(!is_with_device(0) && !is_with_device(REQUEST | ANSWERED | SENT | INVALID));
        check!(!is_to_answer(0) && !is_to_answer(REQUEST | FAILED | INVALID));
        Ok(())
    }
}
