// SPDX-License-Identifier: GPL-2.0

//! Requests to a peer: a message, and the access that the peer has to memory until it has answered.
//!
//! A request ends when three things have happened, in whatever order: its work requests have
//! completed, the peer has answered, and the peer has no access to the owner's memory any more. So
//! what is given back is never touched again.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::{
        EPROTO,
        ESHUTDOWN, //
    },
    scatterlist::Segmented, //
};
use crate::bindings;
use crate::rdma::{
    dma::Direction,
    qp::{
        fast_reg_mr::{
            FastRegMr,
            MemoryShape, //
        },
        slot::{
            Body,
            SendSlot,
            Wr, //
        },
        Qp,
        QpHandler,
        Transport, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        Carry,
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::atomic::{
        Acquire,
        Full,
        Relaxed,
        Release, //
    }, //
};

// The progress of a request: these bits, and the remote key in the upper half. The function that
// sets the bit that makes `is_done()` true ends the request, and no other uses the slot then.

/// There is a request.
const REQUEST: u64 = 1;
/// Its work requests have completed.
const SENT: u64 = 1 << 1;
/// They have failed.
const FAILED: u64 = 1 << 2;
/// The peer has answered.
const ANSWERED: u64 = 1 << 3;
/// The peer has no access.
const INVALID: u64 = 1 << 4;
/// It is counted by [`AnyCq::start_waiting`](crate::rdma::cq::AnyCq::start_waiting).
const PARKED: u64 = 1 << 5;
/// Where the remote key begins.
const RKEY_SHIFT: u32 = 32;

/// Returns the progress of an RDMA READ into a region with this key: it is a request that nobody
/// answers, and that ends when its work requests have completed, of which the last one invalidates
/// the key. If it fails, the peer may have access until the region is deregistered.
pub(super) fn of_read(rkey: u32) -> u64 {
    REQUEST | ANSWERED | u64::from(rkey) << RKEY_SHIFT
}

/// Returns true if a request can be given back. One that has failed need not be answered.
#[inline]
fn is_done(progress: u64) -> bool {
    progress & INVALID != 0
        && (progress & FAILED != 0 || progress & (SENT | ANSWERED) == SENT | ANSWERED)
}

/// Returns true if there is a request that can be answered. One that has failed, and to which the
/// peer has no access, is done: the function that made it so is just giving it back.
#[inline]
fn is_to_answer(progress: u64) -> bool {
    progress & (REQUEST | ANSWERED) == REQUEST && progress & (FAILED | INVALID) != FAILED | INVALID
}

/// Returns true if all that is missing is that the peer has no access any more. The registration
/// has run if the work request behind it has completed: before that, there would be nothing to
/// invalidate.
#[inline]
fn is_to_invalidate(progress: u64) -> bool {
    progress & (SENT | ANSWERED | INVALID) == SENT | ANSWERED
}

impl<H: QpHandler> Qp<H> {
    /// Chains a request: the owner's message, and what it is to `carry`.
    ///
    /// `prepare` writes the message. If the peer is given access to the owner's memory, `prepare`
    /// gets the place where the peer finds it. Then the slot must be one of those with a memory
    /// region, and the memory must have no gaps between pages. The peer has access from when the
    /// message is sent, and to nothing else. If the memory is more than the slot's region covers,
    /// the request takes one of the large regions until it comes back.
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
        prepare: impl FnOnce(&mut H::Send, Option<RemoteRange>) -> Result,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let access = match carry {
                Carry::Access(op) => {
                    let memory = owner.memory().ok_or(EINVAL)?;
                    let shape = MemoryShape::of(memory)?;
                    let key = self.choose_key(slot, body, &shape)?;
                    // SAFETY: The slot was claimed, so that its own key is not used by anybody
                    // else, and neither is a large one that was taken. The last request with it, if
                    // any, has been given back, so that it is invalid.
                    Some((op, key, unsafe { key.renew(&shape) }))
                }
                Carry::Nothing | Carry::Inline => None,
            };
            body.request = true;
            let progress = match &access {
                Some((.., range)) => REQUEST | u64::from(range.rkey) << RKEY_SHIFT,
                None => REQUEST | INVALID,
            };
            slot.progress.store(progress, Release);
            prepare(owner, access.as_ref().map(|(.., range)| *range))?;

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
            if let Some((op, key, range)) = access {
                let memory = owner.memory().ok_or(EINVAL)?;
                let direction = match op {
                    RdmaOp::Read => Direction::ToDevice,
                    RdmaOp::Write if memory.writable() => Direction::FromDevice,
                    RdmaOp::Write => return Err(EINVAL),
                };
                // SAFETY: As above. The memory stays, as `Segmented` promises, since the owner lies
                // in the slot until it is unmapped.
                unsafe { key.map(&self.pd, memory, direction, range.addr, &mut body.listed) }?;
                // SAFETY: A slot has two work requests, which are its array's.
                let next = unsafe { body.wrs.add(1) };
                let reg = key.reg_wr(op, range.rkey, slot.chained_wr(next.cast()));
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

    /// Chooses the key of a request for memory of this shape: the slot's own, or a large one, which
    /// goes to `body`.
    #[inline]
    pub(super) fn choose_key<'a>(
        &'a self,
        slot: &'a SendSlot<H>,
        body: &mut Body,
        shape: &MemoryShape,
    ) -> Result<&'a FastRegMr> {
        let own = slot.key().ok_or(EINVAL)?;
        let key = if own.covers(shape) {
            own
        } else {
            let index = self.large_keys.take(shape)?;
            body.large_key = Some(index);
            self.large_keys.get(index).ok_or(EINVAL)?
        };
        // The handler may post a request after the queue pair was drained.
        match key.is_gone() {
            true => Err(ESHUTDOWN),
            false => Ok(key),
        }
    }

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
        let slot = self.sends.get(usize::from(slot)).ok_or(EINVAL)?;
        if !answer.is_of(self.as_raw()) {
            return Err(EINVAL);
        }
        let new = loop {
            let old = slot.progress.load(Acquire);
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
                if old & SENT != 0 || !self.registers_again {
                    new |= INVALID;
                }
            }
            if self.reaps && !is_done(new) {
                new |= PARKED;
            }
            if slot.progress.cmpxchg(old, new, Full).is_ok() {
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
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Sets bits in the progress of a request; returns what it is then.
    #[inline]
    fn advance(&self, slot: &SendSlot<H, T>, bits: u64) -> u64 {
        let mut old = slot.progress.load(Relaxed);
        loop {
            match slot.progress.cmpxchg(old, old | bits, Full) {
                Ok(_) => return old | bits,
                Err(now) => old = now,
            }
        }
    }

    /// Notes that the work requests of the request in `slot` have completed.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion, which must not use the slot afterwards.
    #[inline]
    pub(super) unsafe fn request_sent(&self, slot: &SendSlot<H, T>, result: Result<(), WcError>) {
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
            unsafe { self.finish_request(slot) };
        } else if is_to_invalidate(now) {
            self.invalidate(slot, now);
        }
    }

    /// Posts the `LOCAL_INV` of the request in `slot`.
    #[cold]
    fn invalidate(&self, slot: &SendSlot<H, T>, progress: u64) {
        let mut wr = slot.inv_wr();
        // CAST: The key is the upper half.
        wr.ex.invalidate_rkey = (progress >> RKEY_SHIFT) as u32;
        let mut sq = self.sq.lock();
        // What is left of a request that cannot be invalidated comes back when the queue pair goes.
        if sq.closed {
            return;
        }
        let mut bad = core::ptr::null();
        // SAFETY: By the type invariants the queue pair is valid, and there is room for one such
        // work request of each slot. The device copies it; the slot stays until it has completed.
        let ret = unsafe { bindings::ib_post_send(self.as_raw(), &wr, &mut bad) };
        self.doorbells
            .store(self.doorbells.load(Relaxed).wrapping_add(1), Relaxed);
        let invalidations = self.invalidations.load(Relaxed);
        self.invalidations
            .store(invalidations.wrapping_add(1), Relaxed);
        if to_result(ret).is_err() {
            sq.closed = true;
            drop(sq);
            self.note_error();
        }
    }

    /// Handles the completion of the `LOCAL_INV` of `slot`.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[cold]
    pub(super) unsafe fn inv_completed(&self, slot: &SendSlot<H, T>, wc: &bindings::ib_wc) {
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
    unsafe fn finish_request(&self, slot: &SendSlot<H, T>) {
        // Before its progress is reset, so that no task that drains the queue pair takes it for
        // something that it has to end. Pairs with `request_ends()`.
        slot.set_unposted();
        // SAFETY: Nobody else uses the slot of a request that is done.
        let error = unsafe { (*slot.body.get()).error.take() };
        // SAFETY: As above; and neither the device nor the peer uses what it owns.
        unsafe { self.finish(slot, error.map_or(Ok(()), Err)) };
    }

    /// Resets the progress of the request in `slot`, which is being freed.
    #[inline]
    pub(super) fn forget(&self, slot: &SendSlot<H, T>) {
        if slot.progress.xchg(0, Full) & PARKED != 0 {
            self.send_cq.cq().stop_waiting();
        }
    }

    /// Returns true if the caller, which drains the queue pair, has to end what was posted in
    /// `slot`. A request cannot be answered any more after this. Returns false if nothing is
    /// posted, or if the request is done: then the function that made it so is just giving it back.
    pub(super) fn request_ends(&self, slot: &SendSlot<H, T>) -> bool {
        let mut progress = slot.progress.load(Acquire);
        while progress & REQUEST != 0 {
            if is_done(progress) {
                return false;
            }
            match slot.progress.cmpxchg(progress, progress | ANSWERED, Full) {
                Ok(_) => break,
                Err(now) => progress = now,
            }
        }
        // Only now: the function that ends a request changes its state before its progress.
        slot.is_posted()
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
        for progress in 0..PARKED << 1 {
            let done = is_done(progress);
            // An answer is the end only of what was not done.
            check!(!is_to_answer(progress) || !done);
            // Nor is there anything left to invalidate.
            check!(!is_to_invalidate(progress) || !is_done(progress & !FAILED));
            // Whatever comes then does not undo it.
            for bit in [SENT, FAILED, ANSWERED, INVALID, PARKED] {
                check!(!done || is_done(progress | bit));
            }
        }
        check!(is_to_answer(REQUEST) && is_to_answer(REQUEST | SENT | INVALID));
        check!(!is_to_answer(0) && !is_to_answer(REQUEST | FAILED | INVALID));
        Ok(())
    }
}
