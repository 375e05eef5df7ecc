// SPDX-License-Identifier: GPL-2.0

//! Replies to a peer's requests.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
use crate::rdma::{
    qp::{
        slot::Wr,
        Qp,
        QpHandler, //
    },
    wr::{
        RdmaOp,
        Reply, //
    },
};
use kernel::prelude::*;

impl<H: QpHandler> Qp<H> {
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
