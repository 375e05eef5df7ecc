// SPDX-License-Identifier: GPL-2.0

//! How requests are posted.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::ESHUTDOWN,
    scatterlist::Segmented, //
};
use crate::bindings;
#[cfg(doc)]
use crate::rdma::qp::QpHandler;
use crate::rdma::{
    dma::Direction,
    qp::{
        Qp,
        SendSlot,
        Wr, //
    },
    request::{
        fast_reg_mr::{
            FastRegMr,
            MemoryShape, //
        },
        progress::{
            INVALID,
            REQUEST,
            RKEY_SHIFT, //
        },
        RequestHandler, //
    },
    wr::{
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use kernel::{
    prelude::*,
    sync::atomic::Release, //
};

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
/// qp.request(slot, carry, write, |write, place| write.set_place(place.ok_or(EINVAL)?), true)
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

impl<H: RequestHandler> Qp<H> {
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
                    // SAFETY: The slot was claimed.
                    let region = unsafe { self.choose_region(slot, &shape) }?;
                    // SAFETY: By the invariants of `RequestSlot` the region is not registered, and
                    // nobody else uses it.
                    Some((op, region, unsafe { region.renew(&shape) }))
                }
                Carry::Nothing | Carry::Inline => None,
            };
            let progress = match &access {
                Some((.., range)) => REQUEST | u64::from(range.rkey) << RKEY_SHIFT,
                None => REQUEST | INVALID,
            };
            slot.ulp.progress.store(progress, Release);
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
    pub(super) unsafe fn choose_region<'a>(
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
