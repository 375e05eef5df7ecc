// SPDX-License-Identifier: GPL-2.0

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
//! - How far a request is, and the key that its peer was told, is one atomic word of its slot, see
//!   `progress.rs`. A request is given back, and its region may be registered anew, when that word
//!   says so and no earlier; of the contexts that complete and answer just one ends the request.
//! - A region that cannot be deregistered stays with what it covers ([`Undrained`]). A pool ignores
//!   that failure, and the memory is freed.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod answer;
mod caps;
mod fast_reg_mr;
mod handler;
mod parked;
mod post;
mod progress;
mod read;
mod reply;

pub(crate) use self::{
    caps::RequestCaps,
    handler::RequestHandler,
    parked::Undrained,
    post::Carry,
    reply::Reply, //
};
use crate::bindings;
use crate::rdma::{
    dma::Direction,
    pd::Pd,
    qp::{
        Body,
        Qp,
        QpCaps,
        Rc,
        SendSlot,
        Ulp, //
    },
    request::{
        answer::inv_done,
        fast_reg_mr::{
            FastRegMr,
            LargeMrs, //
        },
        parked::{
            Parkable,
            Parked, //
        },
    },
    wc::WcError,
    wr::RemoteRange, //
};
use core::cell::UnsafeCell;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
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
    /// Requests that could not be given back; `None` if there are no memory regions.
    #[pin]
    parked: Mutex<Parkable<H>>,
}

/// What requests have in a slot.
///
/// # Invariants
///
/// - `progress` says how far the request in the slot is, see [`progress`]; it is 0 if there is
///   none, which is so while the slot is free. One function makes it
///   [`is_done`](progress::is_done), and that one uses the slot from then on.
/// - `lent` is accessed by the function that may use the slot, see [`Qp`].
/// - `region`, and from when `lent` names it the large region, are registered at most from when the
///   slot is posted until it is cleared; nobody else uses them while the slot is not free.
/// - A `LOCAL_INV` with `inv_cqe` is posted at most once for each request, when nothing but its
///   completion is missing. So the slot is not free as long as it is under way.
#[repr(C)]
pub(crate) struct RequestSlot {
    // What each completion reads comes first, next to what it reads of the slot itself.
    progress: Atomic<u64>,
    lent: UnsafeCell<Lent>,
    /// The slot's own region, if it has one.
    region: Option<FastRegMr>,
    /// For a `LOCAL_INV`.
    inv_cqe: Opaque<bindings::ib_cqe>,
}

/// The memory that the request in a slot lends to the peer.
struct Lent {
    /// The large region that is used, rather than the slot's own.
    large: Option<u32>,
    /// So many entries of the region's list were mapped.
    mapped: Option<(Direction, i32)>,
}

// SAFETY: `Shared` has regions that are used by those who use their slot, or have taken them, and
// what else it has is atomic, locked or constant. So is what `Slot` has, but for what the function
// uses that may use the slot. `progress` lets one function end a slot that was kept, and
// `is_left()` none any more. `clear()` is called when the access has ended; `end()` ends it by
// deregistering the regions.
unsafe impl<H: RequestHandler> Ulp<H, Rc> for Requests {
    type Caps = RequestCaps;
    type Shared = RequestState<H>;
    type Slot = RequestSlot;
    type Outcome = Result<(), Undrained>;

    fn sizes(caps: &RequestCaps) -> (QpCaps, u32) {
        // Each region may have to be invalidated.
        (caps.qp, caps.regions.into())
    }

    fn make(pd: &Arc<Pd>, caps: &RequestCaps) -> Result<impl PinInit<RequestState<H>>> {
        if caps.regions > caps.qp.slots {
            return Err(EINVAL);
        }
        let large = LargeMrs::alloc(pd, caps.large_regions, caps.large_region_pages)?;
        let parked = Parked::new(caps.regions)?;
        let registers_again = pd.device().quirks().registers_again();
        Ok(pin_init!(RequestState {
            large,
            registers_again,
            watches: Atomic::new(0),
            parked <- new_mutex!(parked, "RequestState::parked"),
        }))
    }

    fn make_slot(pd: &Arc<Pd>, caps: &RequestCaps, index: u16) -> Result<RequestSlot> {
        let region = (index < caps.regions)
            .then(|| FastRegMr::alloc(pd, caps.region_pages))
            .transpose()?;
        // INVARIANT: There is no request, and the region was not registered yet.
        Ok(RequestSlot {
            progress: Atomic::new(0),
            lent: UnsafeCell::new(Lent {
                large: None,
                mapped: None,
            }),
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
        if slot.ulp.progress.load(Relaxed) == 0 {
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
        if slot.ulp.progress.load(Relaxed) != 0 {
            qp.forget(slot);
        }
    }

    fn is_left(slot: &SendSlot<H>) -> bool {
        answer::is_left(slot)
    }

    unsafe fn end(qp: &Qp<H>, slot: &SendSlot<H>) -> bool {
        // SAFETY: The caller promises the same.
        unsafe { qp.end_access(slot) }
    }

    fn outcome(state: &RequestState<H>, stopped: Result) -> Result<(), Undrained> {
        let parked = parked::count(&state.parked.lock());
        let lost = stopped.is_err();
        match lost || parked != 0 {
            true => Err(Undrained { parked, lost }),
            false => Ok(()),
        }
    }

    fn retire(state: &RequestState<H>, pd: &Pd, handler: H) {
        let parked = state.parked.lock().take();
        parked::retire(parked, pd, handler);
    }
}

impl<H: RequestHandler> Qp<H> {
    /// Returns the region that a request in `slot` uses: its own, or the large one of this number.
    #[inline]
    fn region_of<'a>(&'a self, slot: &'a SendSlot<H>, large: Option<u32>) -> Option<&'a FastRegMr> {
        match large {
            Some(index) => self.ulp.large.get(index),
            None => slot.ulp.region.as_ref(),
        }
    }
}
