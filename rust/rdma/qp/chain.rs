// SPDX-License-Identifier: GPL-2.0

//! The send queue of a queue pair: how slots are chained, posted, completed and freed.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::ESHUTDOWN;
use crate::bindings;
use crate::rdma::{
    qp::{
        slot::{
            Body,
            SendSlot, //
        },
        Qp,
        QpHandler,
        Transport,
        Ulp,
        SIGNALED_ALSO, //
    },
    wc::WcError,
    wr::SendOwner, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{
        Acquire,
        Relaxed,
        Release, //
    }, //
};

/// The chain of work requests, and the count of those that are chained or in flight.
///
/// # Invariants
///
/// - `first` and `last` are both null, or the ends of a chain of work requests of taken slots,
///   whole slots each, that were not posted.
pub(super) struct SendQueue {
    first: *mut bindings::ib_send_wr,
    last: *mut bindings::ib_send_wr,
    /// The work requests in the chain.
    pending: u32,
    /// All work requests that were ever in the chain, modulo 2^32.
    used: u32,
    /// Nothing may be chained any more. Set with the lock held, by [`Qp::close`] and by the
    /// functions that fail to post; never cleared.
    pub(super) closed: bool,
    /// The [`Unposted`] that exist.
    giving_back: u32,
}

// SAFETY: Work requests belong to no thread.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// Returns a queue with an empty chain.
    pub(super) fn new() -> Self {
        Self {
            first: core::ptr::null_mut(),
            last: core::ptr::null_mut(),
            pending: 0,
            used: 0,
            closed: false,
            giving_back: 0,
        }
    }

    /// Takes the chain out. It must be posted or given back.
    #[inline]
    fn take(&mut self) -> *mut bindings::ib_send_wr {
        self.last = core::ptr::null_mut();
        self.pending = 0;
        core::mem::replace(&mut self.first, core::ptr::null_mut())
    }
}

/// Work requests that were taken out of the chain and that the device did not take, to be given
/// back by [`Qp::give_back`] once the queue is not locked any more.
///
/// # Invariants
///
/// - `first` is null, or the first work request of a chain that was not posted, of whole slots. The
///   function that has the `Unposted` is the only one to use these slots, which are claimed and not
///   posted.
/// - [`SendQueue::giving_back`] counts it.
struct Unposted {
    first: *mut bindings::ib_send_wr,
    error: Error,
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Posts the chain.
    ///
    /// If the device refuses a part of it, the queue pair has failed, and what was not posted comes
    /// back through [`QpHandler::send_done`] before this returns.
    ///
    /// # Context
    ///
    /// Any but hard interrupt; also hard interrupt if all that is chained are messages and RDMA
    /// WRITEs, of a [`DmaPiece`](crate::rdma::dma::DmaPiece). Does not sleep.
    pub(crate) fn ring(&self) {
        let mut sq = self.sq.lock();
        let unposted = self.post_chain(&mut sq);
        drop(sq);
        self.post_failed(unposted);
    }

    /// Claims `slot` for `owner`, calls `build` to fill in the work requests, and chains them.
    ///
    /// `build` must leave in `body` what must be undone, also on failure.
    #[inline]
    pub(in crate::rdma) fn post(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
        build: impl FnOnce(&SendSlot<H, T>, &mut H::Send, &mut Body) -> Result,
    ) -> Result<(), (Error, H::Send)> {
        let Some(slot) = self.sends.get(usize::from(slot)) else {
            return Err((EINVAL, owner));
        };
        if !slot.claim() {
            return Err((EBUSY, owner));
        }
        let result = {
            // SAFETY: The slot was claimed, so nobody else uses it. The owner stays here, borrowed,
            // until the device is done with what `build` borrowed from it.
            let (place, body) = unsafe { (&mut *slot.owner.get(), &mut *slot.body.get()) };
            let owner = place.insert(owner);
            body.reset(slot.inline_sges(), slot.own_wrs());
            build(slot, owner, body).map(|()| body.nr_wr)
        };
        let Err(error) = result.and_then(|nr_wr| self.chain(slot, nr_wr, last)) else {
            return Ok(());
        };
        // SAFETY: The slot is still ours, as it was not chained. So no region was registered.
        match unsafe { self.clear(slot) } {
            Some(owner) => Err((error, owner)),
            // It was stored above.
            None => Ok(()),
        }
    }

    /// Chains the `nr_wr` work requests of `slot`, which was claimed, and posts the chain if
    /// `last`.
    ///
    /// On success the slot must not be used any more.
    #[inline]
    fn chain(&self, slot: &SendSlot<H, T>, nr_wr: u32, last: bool) -> Result {
        let (head, tail) = self.ends(slot, nr_wr);
        let mut sq = self.sq.lock();
        if sq.closed {
            return Err(ESHUTDOWN);
        }
        let in_flight = sq.used.wrapping_sub(self.done.load(Acquire));
        if nr_wr > self.send_wr.wrapping_sub(in_flight) {
            return Err(if nr_wr > self.send_wr { EINVAL } else { EAGAIN });
        }
        sq.used = sq.used.wrapping_add(nr_wr);
        sq.pending += nr_wr;
        if sq.last.is_null() {
            sq.first = head;
        } else {
            // SAFETY: By the invariants of `SendQueue` it is a work request that was not posted.
            unsafe { (*sq.last).next = head };
        }
        sq.last = tail;
        slot.set_posted();
        if last {
            let unposted = self.post_chain(&mut sq);
            drop(sq);
            self.post_failed(unposted);
        }
        Ok(())
    }

    /// The first and the last work request of `slot`.
    #[inline]
    fn ends(
        &self,
        slot: &SendSlot<H, T>,
        nr_wr: u32,
    ) -> (*mut bindings::ib_send_wr, *mut bindings::ib_send_wr) {
        // SAFETY: The caller has claimed the slot.
        let wrs = unsafe { (*slot.body.get()).wrs };
        // SAFETY: There are that many.
        (wrs.cast(), unsafe { wrs.add(nr_wr as usize - 1) }.cast())
    }

    /// Posts the chain. Returns what the device did not take, if it has failed.
    #[inline]
    fn post_chain(&self, sq: &mut SendQueue) -> Option<Unposted> {
        let pending = sq.pending;
        let first = sq.take();
        if first.is_null() {
            return None;
        }
        let mut bad = core::ptr::null();
        // SAFETY: There was a chain, so that `close()` was not called, and by the type invariants
        // the queue pair is valid as long as the lock is held. By those of `SendQueue` the chain is
        // one of work requests whose slots are taken, so that what they refer to is valid until
        // they complete. The device copies the work requests themselves. It may complete one before
        // it has read that one's link to the next; but a slot is freed only when the function that
        // posts it has stored `send_posted`, or has released the lock: see `send_completed()`.
        let ret = unsafe { bindings::ib_post_send(self.as_raw(), first, &mut bad) };
        self.doorbells
            .store(self.doorbells.load(Relaxed).wrapping_add(1), Relaxed);
        let posted = self.send_posted.load(Relaxed);
        // Pairs with the load in `is_being_posted()`.
        self.send_posted
            .store(posted.wrapping_add(pending.into()), Release);
        match to_result(ret) {
            Ok(()) => None,
            Err(error) => {
                sq.closed = true;
                // SAFETY: The rest of the chain was not posted, and was taken out of `sq`.
                Some(unsafe { Self::reclaim(sq, bad.cast_mut(), error) })
            }
        }
    }

    /// Tells the handler of the failure, and gives back what `post_chain()` did not post.
    #[inline]
    fn post_failed(&self, unposted: Option<Unposted>) {
        if let Some(unposted) = unposted {
            self.note_error();
            self.give_back(unposted);
        }
    }

    /// Lets nothing more be posted, and gives back what is chained.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep.
    pub(in crate::rdma) fn close(&self) {
        let mut sq = self.sq.lock();
        sq.closed = true;
        let first = sq.take();
        // SAFETY: The chain was taken out of `sq`, and was not posted.
        let unposted = unsafe { Self::reclaim(&mut sq, first, ESHUTDOWN) };
        drop(sq);
        self.rq.close();
        self.give_back(unposted);
    }

    /// Claims the slots of a chain that was not posted, so that no other function ends them: the
    /// lock is still held, so that for all others they are still chained.
    ///
    /// If the chain begins within a slot, that slot is left as it is, and ends when the queue pair
    /// is drained: its first work requests were posted.
    ///
    /// # Safety
    ///
    /// `first` must be null, or the rest of a chain that was taken out of `sq`, and no work request
    /// of which was posted.
    #[cold]
    unsafe fn reclaim(
        sq: &mut SendQueue,
        first: *mut bindings::ib_send_wr,
        error: Error,
    ) -> Unposted {
        let mut whole = first;
        let (mut wr, mut start) = (first, first);
        while !wr.is_null() {
            // SAFETY: The slots of the rest of the chain are posted, as far as all others can see,
            // so that its work requests are valid.
            let next = unsafe { (*wr).next };
            // SAFETY: As above.
            if let Some(slot) = unsafe { Self::ends_slot(wr) } {
                // SAFETY: The slot was taken out of the chain, so that nobody else uses it.
                let head: *mut bindings::ib_send_wr = unsafe { (*slot.body.get()).wrs.cast() };
                if head == start {
                    slot.set_unposted();
                } else {
                    whole = next;
                }
                start = next;
            }
            wr = next;
        }
        sq.giving_back += 1;
        // INVARIANT: Only the first slot can be one of which something was posted; all others are
        // claimed.
        Unposted {
            first: whole,
            error,
        }
    }

    /// The slot whose last work request `wr` is, if it is the last one of a slot.
    ///
    /// # Safety
    ///
    /// `wr` must be valid, and one of a slot of a queue pair of this type.
    #[inline]
    unsafe fn ends_slot<'a>(wr: *const bindings::ib_send_wr) -> Option<&'a SendSlot<H, T>> {
        // SAFETY: By the safety requirements.
        let (flags, opcode, cqe) = unsafe {
            let cqe = (*wr).__bindgen_anon_1.wr_cqe;
            ((*wr).send_flags, (*wr).opcode, cqe)
        };
        let ends = match flags & SIGNALED_ALSO {
            bindings::ib_send_flags_IB_SEND_SIGNALED => true,
            // A message that is solicited. Plain RDMA operations are not, and have this for another
            // reason.
            SIGNALED_ALSO => {
                opcode != bindings::ib_wr_opcode_IB_WR_RDMA_WRITE
                    && opcode != bindings::ib_wr_opcode_IB_WR_RDMA_READ
            }
            _ => false,
        };
        if !ends {
            return None;
        }
        // SAFETY: Only a slot's last work request has these flags, with the slot's first field as
        // its completion entry.
        Some(unsafe { &*cqe.cast::<SendSlot<H, T>>() })
    }

    /// Gives the slots of a chain back to the handler.
    #[cold]
    fn give_back(&self, unposted: Unposted) {
        let mut wr = unposted.first;
        while !wr.is_null() {
            // SAFETY: By the type invariants of `Unposted` the rest of the chain is valid.
            let (next, slot) = unsafe { ((*wr).next, Self::ends_slot(wr)) };
            if let Some(slot) = slot {
                let result = Err(WcError::NotCompleted(unposted.error));
                // SAFETY: By the type invariants of `Unposted` nobody else uses the slot, and none
                // of its work requests was posted, so that no region was registered.
                unsafe { self.finish(slot, result) };
            }
            wr = next;
        }
        // INVARIANT: It was counted by `reclaim()`, and is gone.
        self.sq.lock().giving_back -= 1;
    }

    /// Waits until all that was chained and not posted came back. The queue pair must be closed.
    ///
    /// # Context
    ///
    /// Sleeps. Must not be called by a method of the handler.
    pub(super) fn wait_given_back(&self) {
        while self.sq.lock().giving_back != 0 {
            // SAFETY: Sleeping is allowed here.
            unsafe { bindings::msleep(1) };
        }
    }

    /// Frees `slot` and hands its owner to the handler.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, the device be done with it, and the access
    /// of the peer by it have ended. The caller must not use it afterwards.
    #[inline]
    pub(in crate::rdma) unsafe fn finish(
        &self,
        slot: &SendSlot<H, T>,
        result: Result<(), WcError>,
    ) {
        // SAFETY: The caller promises the same.
        if let Some(owner) = unsafe { self.clear(slot) } {
            self.handler.send_done(self, owner, T::sent(result));
        }
    }

    /// Unmaps and gives back what the work requests of `slot` use, frees the slot and returns its
    /// owner.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, the device be done with it, and the access
    /// of the peer by it have ended. The caller must not use it afterwards.
    #[inline]
    pub(super) unsafe fn clear(&self, slot: &SendSlot<H, T>) -> Option<H::Send> {
        // SAFETY: The caller promises that nobody else uses the slot.
        let (owner, body) = unsafe { (&mut *slot.owner.get(), &mut *slot.body.get()) };
        if let (Some(direction), false) = (body.mapped.take(), self.virt_dma) {
            for index in body.premapped..body.nr_sge {
                // SAFETY: So many segments were stored, and these were mapped in this direction.
                unsafe {
                    let sge = body.sges.add(index as usize).read();
                    bindings::farblk_dma_unmap_page(
                        self.pd.device().as_raw(),
                        sge.addr,
                        sge.length as usize,
                        direction.as_raw(),
                    );
                }
            }
        }
        // SAFETY: The caller promises the same.
        unsafe { H::Ulp::clear(self, slot) };
        if let (true, Some(piece)) = (body.reads_piece, owner.as_ref().and_then(H::Send::piece)) {
            piece.sync_for_cpu();
        }
        if let Some(index) = body.large.take() {
            self.large.put(index);
        }
        let buffer = body.buffer.take();
        let owner = owner.take();
        slot.release();
        drop(buffer);
        owner
    }

    /// Handles the completion of the last work request of `slot`.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[inline]
    pub(super) unsafe fn send_completed(&self, slot: &SendSlot<H, T>, wc: &bindings::ib_wc) {
        self.count_send_completion();
        // SAFETY: By the type invariants the handler of completions may use the slot.
        let body = unsafe { &mut *slot.body.get() };
        let mut result = WcError::check(wc, body.opcode).map(|_| ());
        if let Some(error) = body.error.take() {
            result = Err(error);
        }
        if let (Ok(()), Some(mark)) = (result, &body.mark) {
            let mut ends = body.ends(self.read_sges);
            // SAFETY: It was put there. The owner is still in place, and keeps the memory.
            if ends.any(|end| unsafe { mark.is_at(end) }) {
                result = Err(WcError::Unfinished);
            }
        }
        if result.is_err() {
            self.note_error();
        } else if !body.success.is_null() {
            // SAFETY: The flag was borrowed from the owner, which is still in place.
            unsafe { (*body.success).store(1, Release) };
        }
        // All of the slot's work requests have completed, as they do so in order. One completion is
        // handled at a time, so no read-modify-write is needed. Pairs with the load in `chain()`.
        let done = self.done.load(Relaxed).wrapping_add(body.nr_wr);
        self.done.store(done, Release);
        if self.is_being_posted(done) {
            drop(self.sq.lock());
        }
        // SAFETY: This is the handler of the completion.
        if let Some(result) = unsafe { H::Ulp::completed(self, slot, result) } {
            // SAFETY: As above. All work requests of the slot have completed, and as there is a
            // result, `Ulp` says that the peer has no access by it any more.
            unsafe { self.finish(slot, result) };
        }
    }

    /// Returns true if the function that posts the last of the `done` work requests, which have
    /// completed, is still doing so: the device may still read that work request. A software device
    /// completes what it was given while it takes the rest of the chain. Then the slot must not be
    /// freed before the lock was released. May also return true for no reason.
    #[inline]
    fn is_being_posted(&self, done: u32) -> bool {
        // The work requests of slots complete in the order in which they were posted, and
        // `send_posted` counts a chain when all of it was posted. So it counts fewer than `done`
        // before that, and no other chain is counted meanwhile, as the lock is held.
        //
        // Acquire: if it counts the chain, the device has read that.
        // CAST: Both modulo 2^32, and the difference is small.
        let posted = self.send_posted.load(Acquire) as u32;
        (posted.wrapping_sub(done) as i32) < 0
    }

    /// Handles the completion of another work request of `slot`. It must be an error, unless the
    /// work request has asked for a completion.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[cold]
    pub(super) unsafe fn send_failed(&self, slot: &SendSlot<H, T>, wc: &bindings::ib_wc) {
        self.count_send_completion();
        let error = match WcError::check(wc, wc.opcode) {
            Err(error) => error,
            Ok(_) if self.data_flags != 0 => return,
            Ok(_) => WcError::Unexpected { opcode: wc.opcode },
        };
        // SAFETY: By the type invariants the handler of completions may use the slot.
        let body = unsafe { &mut *slot.body.get() };
        body.error.get_or_insert(error);
        self.note_error();
    }

    /// Counts a completion of the send queue. To be called by its handler.
    #[inline]
    pub(in crate::rdma) fn count_send_completion(&self) {
        let completions = self.send_completions.load(Relaxed);
        self.send_completions
            .store(completions.wrapping_add(1), Relaxed);
    }
}
