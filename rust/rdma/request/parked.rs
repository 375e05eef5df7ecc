// SPDX-License-Identifier: GPL-2.0

//! Requests whose memory the peer may still access after their queue pair was drained.

use crate::rdma::{
    pd::{
        Parking,
        Pd, //
    },
    qp::{
        Qp,
        SendSlot, //
    },
    request::{
        fast_reg_mr::FastRegMr,
        RequestHandler, //
    },
};
use kernel::prelude::*;

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
pub(super) type Parkable<H> = Option<KBox<Parking<Parked<H>>>>;

/// The requests of a queue pair that could not be given back.
///
/// The drop gives them to the handler: that of the queue pair, which has none any more by then.
pub(super) struct Parked<H: RequestHandler> {
    /// What stays of their owners. The capacity suffices for each slot that has a memory region.
    rests: KVVec<H::Parked>,
    /// The handler, once the queue pair is gone.
    handler: Option<H>,
}

impl<H: RequestHandler> Parked<H> {
    /// Makes room for the requests of so many slots with a memory region; `None` if there are no
    /// such slots. May sleep.
    pub(super) fn new(slots: u16) -> Result<Parkable<H>> {
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
pub(super) fn count<H: RequestHandler>(parked: &Parkable<H>) -> u32 {
    // CAST: There are at most as many as slots.
    let count = |parking: &KBox<Parking<Parked<H>>>| parking.value.rests.len() as u32;
    parked.as_ref().map_or(0, count)
}

/// Parks the requests of a queue pair of `pd` that is gone with that, and its handler with them, to
/// give them back to.
pub(super) fn retire<H: RequestHandler>(parked: Parkable<H>, pd: &Pd, handler: H) {
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
    pub(super) unsafe fn end_access(&self, slot: &SendSlot<H>) -> bool {
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
                self.forget(slot);
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
