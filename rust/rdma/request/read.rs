// SPDX-License-Identifier: GPL-2.0

//! RDMA READs into a memory region.
//!
//! With iWARP a READ tells the peer a key for the memory that the data go to, and the device takes
//! them as it takes an RDMA WRITE of the peer: the region must allow that. So such a READ registers
//! the region of its slot in front of it, for remote writing, and invalidates it when the data are
//! there. The peer could write to that memory only while the READ is under way. If the READ fails,
//! its owner stays where it is until the region is deregistered, as with a request.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::scatterlist::Segmented;
use crate::bindings;
use crate::rdma::{
    dma::Direction,
    qp::{
        Body,
        Qp,
        SendSlot,
        Wr, //
    },
    request::{
        fast_reg_mr::MemoryShape,
        progress,
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

impl<H: RequestHandler> Qp<H> {
    /// Maps the owner's memory, and fills in the work requests that register it and read into it.
    ///
    /// # Safety
    ///
    /// The caller must have claimed the slot, and `owner` and `body` be in it.
    #[inline]
    pub(super) unsafe fn read_by_region(
        &self,
        slot: &SendSlot<H>,
        owner: &H::Send,
        body: &mut Body,
        remote: RemoteRange,
    ) -> Result {
        let piece = owner.piece();
        let shape = match (piece, owner.memory()) {
            (Some(piece), _) if piece.is_for(self.pd.device()) => MemoryShape::of_piece(piece),
            (None, Some(memory)) if memory.writable() => MemoryShape::of(memory)?,
            _ => return Err(EINVAL),
        };
        let length = u32::try_from(shape.len())?;
        // SAFETY: The slot was claimed.
        let region = unsafe { self.choose_region(slot, &shape) }?;
        // SAFETY: By the invariants of `RequestSlot` the region is not registered, and nobody else
        // uses it.
        let sink = unsafe { region.renew(&shape) };
        let reading = progress::of_read(sink.rkey);
        slot.ulp.progress.store(reading, Release);
        match (piece, owner.memory()) {
            (Some(piece), _) => {
                piece.sync_for_device();
                body.reads_piece = true;
                // SAFETY: As above.
                unsafe { region.map_piece(piece, sink.addr) }?;
            }
            (None, Some(memory)) => {
                let direction = Direction::FromDevice;
                // SAFETY: The slot was claimed.
                let mapped = unsafe { &mut (*slot.ulp.lent.get()).mapped };
                // SAFETY: As above. The memory stays, as `Segmented` promises, since the owner lies
                // in the slot until it is unmapped.
                unsafe { region.map(&self.pd, memory, direction, sink.addr, mapped) }?;
            }
            (None, None) => return Err(EINVAL),
        }
        // SAFETY: A slot has room for at least one segment.
        unsafe { body.push_sge(sink.addr, length, region.lkey()) };
        // SAFETY: A slot has two work requests, which are its array's.
        let next = unsafe { body.wrs.add(1) };
        // The peer writes what we read.
        let reg = region.reg_wr(RdmaOp::Write, sink.rkey, slot.chained_wr(next.cast()));
        let mut read = bindings::ib_send_wr {
            sg_list: body.sges,
            num_sge: 1,
            opcode: bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
            ..slot.last_wr()
        };
        read.ex.invalidate_rkey = sink.rkey;
        let read = bindings::ib_rdma_wr {
            wr: read,
            remote_addr: remote.addr,
            rkey: remote.rkey,
        };
        // SAFETY: The slot was claimed, and there is room for two.
        unsafe {
            body.wrs.write(Wr { reg });
            next.write(Wr { rdma: read });
        }
        body.nr_wr = 2;
        body.opcode = bindings::ib_wc_opcode_IB_WC_RDMA_READ;
        Ok(())
    }
}
