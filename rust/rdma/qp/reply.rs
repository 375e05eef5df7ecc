// SPDX-License-Identifier: GPL-2.0

//! Replies to a peer's requests.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    slot::Wr,
    Qp,
    QpHandler, //
};
use crate::{
    bindings,
    rdma::wr::{
        RdmaOp,
        Reply, //
    }, //
};
use kernel::prelude::*;

impl<H: QpHandler> Qp<H> {
    /// Chains a send of the owner's message, after an RDMA WRITE of all its memory if `reply` has
    /// one. The peer has the data when it gets the message. There is one completion.
    ///
    /// Otherwise like [`Self::rdma`].
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
            let message = self.message(owner)?;
            // SAFETY: As above.
            unsafe { sge.write(message) };
            let mut wr = bindings::ib_send_wr {
                sg_list: sge,
                num_sge: 1,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..slot.last_wr()
            };
            if let Some(rkey) = reply.invalidate {
                wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV;
                wr.ex.invalidate_rkey = rkey;
            }
            // SAFETY: The slot was claimed, and there is room for one more work request than those of
            // the memory.
            unsafe { body.wrs.add(body.nr_wr as usize).write(Wr { send: wr }) };
            body.nr_wr += 1;
            Ok(())
        })
    }
}
