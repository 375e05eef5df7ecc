// SPDX-License-Identifier: GPL-2.0

//! Immediate data and solicited events: RDMA WRITEs that the peer notices, and messages that wake
//! it.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
use crate::rdma::{
    qp::{
        Connected,
        Qp,
        QpHandler,
        Transport,
        Wr, //
    },
    wc::Written,
    wr::{
        Announcement,
        RemoteRange, //
    },
};
use kernel::prelude::*;

impl<H: QpHandler<T>, T: Connected> Qp<H, T> {
    /// Chains an RDMA WRITE of the owner's memory to `remote`, or of no bytes if there is no
    /// `remote`, of which the peer's handler receives `announcement` when the data are there:
    /// [`QpHandler::write_received`].
    ///
    /// That takes a receive of the peer, whose buffers stay as they are. While the peer has none,
    /// the device tries again, as with a message; the data may be there before. The memory must fit
    /// in the segments of one work request, or this fails with `EINVAL`.
    ///
    /// Otherwise like [`Self::write`]. `EOPNOTSUPP` over iWARP, which has no immediate data.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn write_with_immediate(
        &self,
        slot: u16,
        remote: Option<RemoteRange>,
        announcement: Announcement,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            if self.iwarp {
                return Err(EOPNOTSUPP);
            }
            let range = match remote {
                Some(range) => {
                    self.gather_in_one(owner, body)?;
                    range
                }
                None => RemoteRange { addr: 0, rkey: 0 },
            };
            if remote.is_some() && body.nr_sge == 0 {
                return Err(EINVAL);
            }
            let mut end = range.addr;
            for index in 0..body.nr_sge as usize {
                // SAFETY: The first `nr_sge` segments are initialised.
                let length = unsafe { (*body.sges.add(index)).length };
                end = end.checked_add(length.into()).ok_or(EINVAL)?;
            }
            let mut wr = bindings::ib_send_wr {
                sg_list: body.sges,
                // CAST: At most 32.
                num_sge: body.nr_sge as i32,
                opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
                ..slot.last_wr()
            };
            wr.send_flags |= announcement.flags();
            wr.ex.imm_data = announcement.immediate.to_be();
            let rdma = bindings::ib_rdma_wr {
                wr,
                remote_addr: range.addr,
                rkey: range.rkey,
            };
            // SAFETY: The slot was claimed, and has a work request.
            unsafe { body.wrs.write(Wr { rdma }) };
            body.nr_wr = 1;
            body.opcode = bindings::ib_wc_opcode_IB_WC_RDMA_WRITE;
            Ok(())
        })
    }

    /// Chains a send of the owner's message that wakes a peer whose completion queue is armed by
    /// [`Cq::arm_solicited`](crate::rdma::cq::Cq::arm_solicited). It has immediate data if there
    /// are some.
    ///
    /// Otherwise like [`Self::send`]. `EOPNOTSUPP` for immediate data over iWARP.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn send_solicited(
        &self,
        slot: u16,
        immediate: Option<u32>,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            if self.iwarp && immediate.is_some() {
                return Err(EOPNOTSUPP);
            }
            let sge = self.message(owner)?;
            // SAFETY: A slot has room for at least one segment.
            unsafe { body.push_sge(sge.addr, sge.length, sge.lkey) };
            let mut send = bindings::ib_send_wr {
                sg_list: body.sges,
                num_sge: 1,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..slot.last_wr()
            };
            send.send_flags |= bindings::ib_send_flags_IB_SEND_SOLICITED;
            if let Some(immediate) = immediate {
                send.opcode = bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM;
                send.ex.imm_data = immediate.to_be();
            }
            // SAFETY: The slot was claimed, and has a work request.
            unsafe { body.wrs.write(Wr { send }) };
            body.nr_wr = 1;
            Ok(())
        })
    }
}

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Offers a receive that was no message to the handler. Returns the owner if it is no RDMA
    /// WRITE with immediate data either, or the handler takes none.
    ///
    /// To be called by the handler of the completion `wc`.
    #[cold]
    pub(super) fn offer_write(&self, owner: H::Recv, wc: &bindings::ib_wc) -> Result<(), H::Recv> {
        match Written::new(wc) {
            Some(written) => self.handler.write_received(self, owner, written),
            None => Err(owner),
        }
    }
}
