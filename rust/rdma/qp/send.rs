// SPDX-License-Identifier: GPL-2.0

//! The send queue of a queue pair.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::{
        EOPNOTSUPP,
        ESHUTDOWN, //
    },
    scatterlist::Segmented, //
};
use crate::bindings;
use crate::rdma::{
    dma::{
        Direction,
        DmaBuffer, //
    },
    qp::{
        slot::{
            Body,
            SendSlot,
            Wr, //
        },
        Qp,
        QpHandler, //
    },
    quirks::Mark,
    wc::WcError,
    wr::{
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

/// What is chained, and what is in flight.
///
/// # Invariants
///
/// - `first` and `last` are both null, or the ends of a chain of work requests of taken slots, whole
///   slots each, that were not posted.
pub(super) struct SendQueue {
    first: *mut bindings::ib_send_wr,
    last: *mut bindings::ib_send_wr,
    /// The work requests in the chain.
    pending: u32,
    /// All work requests that were ever in the chain, modulo 2^32.
    used: u32,
    /// Nothing may be chained or posted any more.
    pub(super) closed: bool,
}

// SAFETY: Work requests belong to no thread.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// A queue with nothing chained.
    pub(super) fn new() -> Self {
        Self {
            first: core::ptr::null_mut(),
            last: core::ptr::null_mut(),
            pending: 0,
            used: 0,
            closed: false,
        }
    }

    /// Takes the chain.
    #[inline]
    pub(super) fn take(&mut self) -> *mut bindings::ib_send_wr {
        self.last = core::ptr::null_mut();
        self.pending = 0;
        core::mem::replace(&mut self.first, core::ptr::null_mut())
    }
}

impl<H: QpHandler> Qp<H> {
    /// Chains an RDMA READ or RDMA WRITE between the owner's memory and the peer's.
    ///
    /// With `last`, the doorbell is rung too, as by [`Self::ring`], but under the same lock.
    ///
    /// On failure the owner comes back and nothing is chained, but what was before still is, even
    /// if `last`. The errors are: `EBUSY` if the slot is taken; `EAGAIN` if there is no room until a
    /// request has completed; `ENOMEM` if memory cannot be mapped; `ESHUTDOWN` after a failure;
    /// `EOPNOTSUPP` for RDMA READ over iWARP; and `EINVAL` for what can never be.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn rdma(
        &self,
        slot: u16,
        op: RdmaOp,
        remote: RemoteRange,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let per_wr = match op {
                // The peer would need a remote key for our memory.
                RdmaOp::Read if self.iwarp => return Err(EOPNOTSUPP),
                RdmaOp::Read => self.read_sges,
                RdmaOp::Write => self.write_sges,
            };
            self.gather(owner, body, op, per_wr)?;
            self.build_rdma(slot, body, op, per_wr, remote, false)?;
            if self.marks && op == RdmaOp::Read {
                let mark = Mark::new();
                for end in body.ends(per_wr) {
                    // SAFETY: As READs need marks, the addresses are those of memory in the direct map. It
                    // is `writable()`, as `gather()` has checked, or a piece's.
                    unsafe { mark.put(end) };
                }
                body.mark = Some(mark);
            }
            Ok(())
        })
    }

    /// Adds the segments of the owner's memory, for `op`.
    #[inline]
    pub(super) fn gather(
        &self,
        owner: &H::Send,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
    ) -> Result {
        if let Some(piece) = owner.piece() {
            if !piece.is_for(self.pd.device()) {
                return Err(EINVAL);
            }
            piece.sync_for_device();
            body.reads_piece = op == RdmaOp::Read;
            self.make_room(body, per_wr)?;
            // SAFETY: Room was made.
            unsafe { body.push_sge(piece.addr(), piece.len(), self.lkey) };
            return Ok(());
        }
        let memory = owner.memory().ok_or(EINVAL)?;
        let direction = match op {
            RdmaOp::Read if !memory.writable() => return Err(EINVAL),
            RdmaOp::Read => Direction::FromDevice,
            RdmaOp::Write => Direction::ToDevice,
        };
        body.mapped = Some(direction);
        body.premapped = body.nr_sge;
        for segment in memory.segments() {
            if segment.len() == 0 {
                continue;
            }
            self.make_room(body, per_wr)?;
            let mut addr = 0;
            // SAFETY: The device is registered. The memory is valid, may be accessed in this
            // direction, and stays so, as `Segmented` promises, since the owner lies in the
            // slot until it is unmapped.
            to_result(unsafe {
                bindings::farblk_dma_map_page(
                    self.pd.device().as_raw(),
                    segment.page().as_ptr(),
                    segment.offset() as usize,
                    segment.len() as usize,
                    direction.as_raw(),
                    &mut addr,
                )
            })?;
            // SAFETY: Room was made.
            unsafe { body.push_sge(addr, segment.len(), self.lkey) };
        }
        Ok(())
    }

    /// The segment of the owner's message.
    #[inline]
    pub(super) fn message(&self, owner: &H::Send) -> Result<bindings::ib_sge> {
        let (buffer, len) = owner.message().ok_or(EINVAL)?;
        if len == 0
            || len > buffer.len()
            || !buffer.is_for(self.pd.device())
            || !buffer.direction().device_reads()
        {
            return Err(EINVAL);
        }
        buffer.sync_for_device();
        Ok(bindings::ib_sge {
            addr: buffer.addr(),
            // CAST: A buffer has at most 1 MiB.
            length: len as u32,
            lkey: self.lkey,
        })
    }

    /// Chains an RDMA WRITE of `len` bytes: those of `buffer` over and over. `owner` comes back with
    /// the completion, but has no other part in it.
    ///
    /// Otherwise like [`Self::rdma`].
    pub(crate) fn write_repeated(
        &self,
        slot: u16,
        remote: RemoteRange,
        buffer: &Arc<DmaBuffer>,
        len: usize,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, _owner, body| {
            if !buffer.is_for(self.pd.device()) || !buffer.direction().device_reads() {
                return Err(EINVAL);
            }
            let mut left = len;
            while left > 0 {
                self.make_room(body, self.write_sges)?;
                let part = left.min(buffer.len());
                // SAFETY: Room was made. CAST: A buffer has at most 1 MiB.
                unsafe { body.push_sge(buffer.addr(), part as u32, self.lkey) };
                left -= part;
            }
            body.buffer = Some(buffer.clone());
            self.build_rdma(slot, body, RdmaOp::Write, self.write_sges, remote, false)
        })
    }

    /// Chains a send of the owner's message. Otherwise like [`Self::rdma`].
    pub(crate) fn send(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let sge = self.message(owner)?;
            self.make_room(body, self.write_sges)?;
            // SAFETY: Room was made.
            unsafe { body.push_sge(sge.addr, sge.length, sge.lkey) };
            body.nr_wr = 1;
            let wr = Wr {
                send: bindings::ib_send_wr {
                    sg_list: body.sges,
                    num_sge: 1,
                    opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                    ..slot.last_wr()
                },
            };
            // SAFETY: The slot was claimed, and has a work request.
            unsafe { body.wrs.write(wr) };
            Ok(())
        })
    }

    /// Chains the registration of the owner's memory region, which must be of this protection
    /// domain and not be registered. Otherwise like [`Self::rdma`].
    ///
    /// Peers may access the region as soon as that runs. [`Mr::remote`](super::mr::Mr::remote) tells
    /// how once it has completed.
    pub(crate) fn reg_mr(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let mr = owner.mr().ok_or(EINVAL)?;
            if !Arc::ptr_eq(mr.pd(), &self.pd) {
                return Err(EINVAL);
            }
            body.mr = mr;
            body.nr_wr = 1;
            body.opcode = bindings::ib_wc_opcode_IB_WC_REG_MR;
            let wr = Wr {
                reg: bindings::ib_reg_wr {
                    wr: bindings::ib_send_wr {
                        opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
                        ..slot.last_wr()
                    },
                    mr: mr.as_raw(),
                    key: mr.key(),
                    access: mr.access(),
                },
            };
            // SAFETY: The slot was claimed, and has a work request.
            unsafe { body.wrs.write(wr) };
            Ok(())
        })
    }

    /// Hands all that is chained to the device.
    ///
    /// If the device does not take it, the queue pair has failed, and what was not posted comes back
    /// through [`QpHandler::send_done`] before this returns.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep.
    pub(crate) fn ring(&self) {
        let mut sq = self.sq.lock();
        let rejected = self.post_chain(&mut sq);
        drop(sq);
        self.post_failed(rejected);
    }

    /// Claims `slot` for `owner`, lets `build` fill in the work requests, and chains them.
    ///
    /// `build` must leave in `body` what must be undone, also on failure.
    #[inline]
    pub(super) fn post(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
        build: impl FnOnce(&SendSlot<H>, &mut H::Send, &mut Body) -> Result,
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
        // SAFETY: The slot is still ours, as it was not chained.
        match unsafe { self.clear(slot) } {
            Some(owner) => Err((error, owner)),
            // It was stored above.
            None => Ok(()),
        }
    }

    /// Chains the `nr_wr` work requests of `slot`, which was claimed, and posts the chain if `last`.
    ///
    /// On success the slot must not be used any more.
    #[inline]
    fn chain(&self, slot: &SendSlot<H>, nr_wr: u32, last: bool) -> Result {
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
            let rejected = self.post_chain(&mut sq);
            drop(sq);
            self.post_failed(rejected);
        }
        Ok(())
    }

    /// The first and the last work request of `slot`.
    #[inline]
    fn ends(
        &self,
        slot: &SendSlot<H>,
        nr_wr: u32,
    ) -> (*mut bindings::ib_send_wr, *mut bindings::ib_send_wr) {
        // SAFETY: The caller has claimed the slot.
        let wrs = unsafe { (*slot.body.get()).wrs };
        // SAFETY: There are that many.
        (wrs.cast(), unsafe { wrs.add(nr_wr as usize - 1) }.cast())
    }

    /// Posts the chain. Returns the first work request that was not posted, and the error.
    #[inline]
    fn post_chain(&self, sq: &mut SendQueue) -> Option<(*mut bindings::ib_send_wr, Error)> {
        let pending = sq.pending;
        let first = sq.take();
        if first.is_null() {
            return None;
        }
        let mut bad = core::ptr::null();
        // SAFETY: By the type invariants the queue pair is valid. By those of `SendQueue` the chain
        // is one of work requests whose slots are taken, so that what they refer to is valid until
        // they complete. The device copies the work requests themselves.
        let ret = unsafe { bindings::ib_post_send(self.as_raw(), first, &mut bad) };
        self.doorbells
            .store(self.doorbells.load(Relaxed).wrapping_add(1), Relaxed);
        let posted = self.send_posted.load(Relaxed);
        self.send_posted
            .store(posted.wrapping_add(pending.into()), Relaxed);
        match to_result(ret) {
            Ok(()) => None,
            Err(error) => {
                sq.closed = true;
                Some((bad.cast_mut(), error))
            }
        }
    }

    /// Gives back what `post_chain()` did not post.
    #[inline]
    fn post_failed(&self, rejected: Option<(*mut bindings::ib_send_wr, Error)>) {
        if let Some((bad, error)) = rejected {
            self.note_error();
            // SAFETY: The rest of the chain was not posted, and was taken from `sq`.
            unsafe { self.give_back(bad, error) };
        }
    }

    /// Gives back the slots of a chain.
    ///
    /// If the chain begins within a slot, that slot is kept until the queue pair is drained: its first
    /// work requests were posted.
    ///
    /// # Safety
    ///
    /// `first` must be null, or the rest of a chain that was taken from `sq`, and no work request of
    /// which was posted since.
    pub(super) unsafe fn give_back(&self, first: *mut bindings::ib_send_wr, error: Error) {
        let mut wr = first;
        let mut partial = !first.is_null();
        while !wr.is_null() {
            // SAFETY: The slots of the rest of the chain are taken, so it is valid.
            let (next, flags, cqe) =
                unsafe { ((*wr).next, (*wr).send_flags, (*wr).__bindgen_anon_1.wr_cqe) };
            if flags & bindings::ib_send_flags_IB_SEND_SIGNALED != 0 {
                // SAFETY: Only a slot's last work request has the flag, with `cqe` its first field.
                let slot = unsafe { &*cqe.cast::<SendSlot<H>>() };
                // SAFETY: The slot was taken from the chain.
                let nr_wr = unsafe { (*slot.body.get()).nr_wr };
                let (head, _) = self.ends(slot, nr_wr);
                if !partial || head == first {
                    let result = Err(WcError::NotCompleted(error));
                    // SAFETY: None of the slot's work requests was posted.
                    unsafe { self.finish(slot, result) };
                }
                partial = false;
            }
            wr = next;
        }
    }

    /// Frees `slot` and hands its owner to the handler.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, and the device be done with it.
    #[inline]
    pub(super) unsafe fn finish(&self, slot: &SendSlot<H>, result: Result<(), WcError>) {
        // SAFETY: The caller promises the same.
        if let Some(owner) = unsafe { self.clear(slot) } {
            self.handler.send_done(self, owner, result);
        }
    }

    /// Undoes what was done for the work requests of `slot`, frees it and returns its owner.
    ///
    /// # Safety
    ///
    /// The caller must be the one who may use the slot, and the device be done with it, its key
    /// included. Neither may be used by the caller afterwards.
    #[inline]
    pub(super) unsafe fn clear(&self, slot: &SendSlot<H>) -> Option<H::Send> {
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
        if let Some(listed) = body.listed.take() {
            let key = match body.large_key {
                Some(index) => self.large_keys.get(index),
                None => slot.key(),
            };
            if let Some(key) = key {
                // SAFETY: The device is done with it, and nobody else uses it.
                unsafe { key.unmap(&self.pd, listed) };
            }
        }
        if let Some(index) = body.large_key.take() {
            // SAFETY: A slot is cleared only if its key was not registered, or is not any more.
            unsafe { self.large_keys.put(index) };
        }
        if let (true, Some(piece)) = (body.reads_piece, owner.as_ref().and_then(H::Send::piece)) {
            piece.sync_for_cpu();
        }
        if body.request {
            self.forget(slot);
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

    /// Makes room for one more segment, of which a work request can have `per_wr`.
    #[inline]
    fn make_room(&self, body: &mut Body, per_wr: u32) -> Result {
        let room = match body.large {
            None => per_wr,
            Some(_) => Self::MAX_SEGMENTS,
        };
        if body.nr_sge < room {
            return Ok(());
        }
        if body.large.is_some() || self.large.is_empty() {
            return Err(EINVAL);
        }
        let (index, sges, wrs) = self.large.take().ok_or(EAGAIN)?;
        // SAFETY: There are `nr_sge` segments in the slot's array, which has fewer than the large
        // one. The large one was just taken, so it is another.
        unsafe { core::ptr::copy_nonoverlapping(body.sges, sges, body.nr_sge as usize) };
        body.large = Some(index);
        body.sges = sges;
        body.wrs = wrs;
        Ok(())
    }

    /// Fills in the work requests of an RDMA operation over all segments, `per_wr` each. If they are
    /// `followed` by another one, it is to be filled in behind them.
    #[inline]
    pub(super) fn build_rdma(
        &self,
        slot: &SendSlot<H>,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        remote: RemoteRange,
        followed: bool,
    ) -> Result {
        let (opcode, completes_as) = match op {
            RdmaOp::Read => (
                bindings::ib_wr_opcode_IB_WR_RDMA_READ,
                bindings::ib_wc_opcode_IB_WC_RDMA_READ,
            ),
            RdmaOp::Write => (
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
                bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
            ),
        };
        if !followed {
            body.opcode = completes_as;
        }
        let nr_wr = body.nr_sge.div_ceil(per_wr.max(1));
        if nr_wr == 0 {
            return Err(EINVAL);
        }
        let mut remote_addr = remote.addr;
        for index in 0..nr_wr {
            let start = index * per_wr;
            let num_sge = per_wr.min(body.nr_sge - start);
            // SAFETY: `start` is less than `nr_sge`.
            let sg_list = unsafe { body.sges.add(start as usize) };
            // SAFETY: `index` is less than `nr_wr`, for which there is room: one in the slot, and in
            // a large array enough for all its segments.
            let wr = unsafe { body.wrs.add(index as usize) };
            let common = if index + 1 == nr_wr && !followed {
                slot.last_wr()
            } else {
                // SAFETY: This is not the last, and there is room for one more.
                slot.chained_wr(unsafe { wr.add(1) }.cast())
            };
            // SAFETY: See above; the slot was claimed.
            unsafe {
                wr.write(Wr {
                    rdma: bindings::ib_rdma_wr {
                        wr: bindings::ib_send_wr {
                            sg_list,
                            // CAST: At most 32.
                            num_sge: num_sge as i32,
                            opcode,
                            ..common
                        },
                        remote_addr,
                        rkey: remote.rkey,
                    },
                })
            };
            for sge in 0..num_sge as usize {
                // SAFETY: `start + sge` is less than `nr_sge`.
                let length = unsafe { (*sg_list.add(sge)).length };
                remote_addr = remote_addr.checked_add(length.into()).ok_or(EINVAL)?;
            }
        }
        body.nr_wr = nr_wr;
        Ok(())
    }

    /// Handles the completion of the last work request of `slot`.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[inline]
    pub(super) unsafe fn send_completed(&self, slot: &SendSlot<H>, wc: &bindings::ib_wc) {
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
        } else if !body.mr.is_null() {
            // SAFETY: The region was borrowed from the owner, which is still in place.
            unsafe { (*body.mr).set_registered() };
        }
        // All of the slot's work requests have completed, as they do so in order. One completion is
        // handled at a time, so no read-modify-write is needed. Pairs with the load in `chain()`.
        let done = self.done.load(Relaxed);
        self.done.store(done.wrapping_add(body.nr_wr), Release);
        if body.request {
            // SAFETY: As above.
            return unsafe { self.request_sent(slot, result) };
        }
        // SAFETY: As above.
        unsafe { self.finish(slot, result) };
    }

    /// Handles the completion of another work request of `slot`, which must be an error: it has not asked
    /// for a completion.
    ///
    /// # Safety
    ///
    /// Must be called by the handler of that completion.
    #[cold]
    pub(super) unsafe fn send_failed(&self, slot: &SendSlot<H>, wc: &bindings::ib_wc) {
        self.count_send_completion();
        let error = match WcError::check(wc, wc.opcode) {
            Err(error) => error,
            Ok(_) => WcError::Unexpected { opcode: wc.opcode },
        };
        // SAFETY: By the type invariants the handler of completions may use the slot.
        let body = unsafe { &mut *slot.body.get() };
        body.error.get_or_insert(error);
        self.note_error();
    }

    #[inline]
    pub(super) fn count_send_completion(&self) {
        let completions = self.send_completions.load(Relaxed);
        self.send_completions
            .store(completions.wrapping_add(1), Relaxed);
    }
}
