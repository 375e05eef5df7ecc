// SPDX-License-Identifier: GPL-2.0

//! Replies to a peer's requests.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
use crate::rdma::{
    qp::{
        Qp,
        Wr, //
    },
    request::RequestHandler,
    wr::{
        RdmaOp,
        RemoteRange, //
    },
};
use kernel::prelude::*;

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
