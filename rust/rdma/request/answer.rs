// SPDX-License-Identifier: GPL-2.0

//! How requests are answered, and how they end.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::EPROTO;
use crate::bindings;
#[cfg(doc)]
use crate::rdma::qp::QpHandler;
use crate::rdma::{
    qp::{
        Qp,
        SendSlot, //
    },
    request::{
        progress::{
            is_done,
            is_to_answer,
            is_to_invalidate,
            is_with_device,
            ANSWERED,
            FAILED,
            INVALID,
            PARKED,
            REQUEST,
            RKEY_SHIFT,
            SENT,
            WATCHED, //
        },
        RequestHandler,
        RequestSlot, //
    },
    wc::{
        Received,
        WcError, //
    },
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Full,
        Relaxed, //
    },
    types::Opaque, //
};

impl<H: RequestHandler> Qp<H> {
    /// Notes that the peer has answered the request in `slot` by the message `answer`.
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
    pub(crate) fn answered(&self, slot: u16, answer: Received<'_>) -> Result {
        let slot = self.slot(slot).ok_or(EINVAL)?;
        if !answer.is_of(self.as_raw()) {
            return Err(EINVAL);
        }
        let new = loop {
            let old = slot.ulp.progress.load(Acquire);
            if !is_to_answer(old) {
                return Err(EINVAL);
            }
            let mut new = old | ANSWERED;
            // The message is one that came after the request with this key, and not after an older
            // one: only one message of the queue pair is handled at a time, each ends one request
            // at most, and there are 256 keys.
            if let Some(rkey) = answer.invalidated() {
                if u64::from(rkey) != old >> RKEY_SHIFT {
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
            if slot.ulp.progress.cmpxchg(old, new, Full).is_ok() {
                break new;
            }
        };
        if new & PARKED != 0 {
            self.send_cq.cq().start_waiting();
        }
        if is_done(new) {
            // SAFETY: The bits that were just set have made it so.
            unsafe { self.finish_request(slot) };
            return Ok(());
        }
        if is_to_invalidate(new) {
            self.invalidate(slot, new);
        }
        if self.reaps {
            self.send_cq.cq().reap();
        }
        Ok(())
    }

    /// Returns how many remote keys this side has invalidated since the peer did not. Any context.
    pub(crate) fn invalidations(&self) -> u64 {
        self.extra_posted.load(Relaxed)
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
        let progresses = || slots().map(|slot| &slot.ulp.progress);
        let is_watched = |progress| progress & WATCHED != 0 && is_with_device(progress);
        if !progresses().any(|progress| is_watched(progress.load(Relaxed))) {
            for progress in progresses() {
                let old = progress.load(Relaxed);
                if is_with_device(old) {
                    // If it has changed, somebody has just gone on with it. A request after it with
                    // the same key may be watched in its place.
                    let _ = progress.cmpxchg(old, old | WATCHED, Relaxed);
                }
            }
            self.ulp.watches.fetch_add(1, Relaxed);
        }
        self.ulp.watches.load(Relaxed)
    }

    /// Sets bits in the progress of a request; returns what it is then.
    #[inline]
    fn advance(&self, slot: &SendSlot<H>, bits: u64) -> u64 {
        let mut old = slot.ulp.progress.load(Relaxed);
        loop {
            match slot.ulp.progress.cmpxchg(old, old | bits, Full) {
                Ok(_) => return old | bits,
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
    pub(super) unsafe fn request_sent(
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
            return Some(unsafe { Self::end_request(slot) });
        }
        if is_to_invalidate(now) {
            self.invalidate(slot, now);
        }
        None
    }

    /// Posts the `LOCAL_INV` of the request in `slot`.
    #[cold]
    fn invalidate(&self, slot: &SendSlot<H>, progress: u64) {
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
        // CAST: The key is the upper half.
        wr.ex.invalidate_rkey = (progress >> RKEY_SHIFT) as u32;
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
                self.advance(slot, INVALID);
                // SAFETY: It was the last that was missing.
                unsafe { self.finish_request(slot) };
            }
            Err(error) => {
                // SAFETY: All others are done with the slot.
                unsafe { (*slot.body.get()).error = Some(error) };
                self.note_error();
            }
        }
    }

    /// Gives back the request in `slot`.
    ///
    /// # Safety
    ///
    /// It must be done, and the caller be the one who has made it so.
    #[inline]
    unsafe fn finish_request(&self, slot: &SendSlot<H>) {
        // SAFETY: The caller is the one who may use the slot. As the request is done, its work
        // requests have completed, and the peer has no access any more.
        unsafe { self.finish(slot, Self::end_request(slot)) };
    }

    /// Claims the slot of a request that is to be given back, and returns its result.
    ///
    /// # Safety
    ///
    /// As for [`Self::finish_request`].
    #[inline]
    unsafe fn end_request(slot: &SendSlot<H>) -> Result<(), WcError> {
        // Before its progress is reset, so that no task that drains the queue pair takes it for
        // something that it has to end. Pairs with `is_left()`.
        slot.set_unposted();
        // SAFETY: Nobody else uses the slot of a request that is done.
        unsafe { (*slot.body.get()).error.take() }.map_or(Ok(()), Err)
    }

    /// Resets the progress of the request in `slot`, which is being freed.
    #[inline]
    pub(super) fn forget(&self, slot: &SendSlot<H>) {
        if slot.ulp.progress.xchg(0, Full) & PARKED != 0 {
            self.send_cq.cq().stop_waiting();
        }
    }
}

/// Returns true if the caller, which drains the queue pair, has to end what was posted in `slot`. A
/// request cannot be answered any more after this. Returns false if nothing is posted, or if the
/// request is done: then the function that made it so is just giving it back.
pub(super) fn is_left<H: RequestHandler>(slot: &SendSlot<H>) -> bool {
    let mut progress = slot.ulp.progress.load(Acquire);
    while progress & REQUEST != 0 {
        if is_done(progress) {
            return false;
        }
        match slot
            .ulp
            .progress
            .cmpxchg(progress, progress | ANSWERED, Full)
        {
            Ok(_) => break,
            Err(now) => progress = now,
        }
    }
    // Only now: the function that ends a request changes its state before its progress.
    slot.is_posted()
}

/// Handles the completion of a slot's `LOCAL_INV`.
///
/// # Safety
///
/// Must only be called by the RDMA core or a completion queue, once, for the completion of a work
/// request with the `inv_cqe` of a [`SendSlot<H>`] that was posted.
pub(super) unsafe extern "C" fn inv_done<H: RequestHandler>(
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
