// SPDX-License-Identifier: GPL-2.0

//! What is posted to the send queue of a queue pair: the work requests of each operation.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    errno::EOPNOTSUPP,
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
        Connected,
        Qp,
        QpHandler,
        Transport,
        Ulp, //
    },
    quirks::Mark,
    wr::{
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Returns the segment of the owner's message. Fails with `EINVAL` if the device cannot send
    /// it.
    #[inline]
    pub(in crate::rdma) fn message(&self, owner: &H::Send) -> Result<bindings::ib_sge> {
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
}

impl<H: QpHandler> Qp<H> {
    /// Chains an RDMA READ or RDMA WRITE between the owner's memory and the peer's.
    ///
    /// If `last`, the chain is posted, too, as by [`Self::ring`], but under the same lock.
    ///
    /// On failure the owner is returned and nothing is chained; what was chained before stays so,
    /// even if `last`. The errors are: `EBUSY` if the slot is in use; `EAGAIN` if there is no room
    /// until a request has completed; `ENOMEM` if memory cannot be mapped; `ESHUTDOWN` after the
    /// queue pair has failed; and `EINVAL` for what is never possible.
    ///
    /// If [`Device::reads_need_regions`](crate::rdma::device::Device::reads_need_regions), an RDMA
    /// READ needs a memory region for where the data go, which a handler with
    /// [`Requests`](crate::rdma::request::Requests) has, as
    /// [`RequestCaps`](crate::rdma::request::RequestCaps) says. Then the memory must have no gaps
    /// between pages, `EAGAIN` may mean that no large region is free, and the owner of a READ that
    /// has failed may not come back before the queue pair is drained. With other handlers it fails
    /// with `EOPNOTSUPP`.
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
                RdmaOp::Read if self.reads_need_regions => {
                    // SAFETY: These are what `post()` gives.
                    return unsafe { H::Ulp::read_into_region(self, slot, owner, body, remote) };
                }
                RdmaOp::Read => self.read_sges,
                RdmaOp::Write => self.write_sges,
            };
            self.gather(owner, body, op, per_wr)?;
            self.build_access(slot, body, op, per_wr, remote)?;
            if self.marks && op == RdmaOp::Read {
                let mark = Mark::new();
                for end in body.ends(per_wr) {
                    // SAFETY: As READs need marks, the addresses are those of memory in the direct
                    // map. It is `writable()`, as `gather()` has checked, or a piece's.
                    unsafe { mark.put(end) };
                }
                body.mark = Some(mark);
            }
            Ok(())
        })
    }

    /// Chains an RDMA READ or RDMA WRITE of no bytes. It needs no key. A READ shows how long the
    /// peer's device takes to answer; a WRITE has no effect but that the device gets it. `owner`
    /// comes back with the completion; its memory is not used.
    ///
    /// Otherwise like [`Self::rdma`]; but a READ fails with `EOPNOTSUPP` if the peer's device may
    /// answer it with bytes, as some do.
    pub(crate) fn rdma_nothing(
        &self,
        slot: u16,
        op: RdmaOp,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, _owner, body| {
            // There is no memory of the peer's of which a byte could be read instead.
            if op == RdmaOp::Read && self.read_sink.is_some() {
                return Err(EOPNOTSUPP);
            }
            self.add_empty(slot, body, op, None);
            Ok(())
        })
    }
}

impl<H: QpHandler<T>, T: Connected> Qp<H, T> {
    /// Maps the owner's memory for `op`, and adds its segments, of which a work request can have
    /// `per_wr`.
    #[inline]
    pub(in crate::rdma) fn gather(
        &self,
        owner: &H::Send,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
    ) -> Result {
        self.gather_as(owner, body, op, per_wr, false)
    }

    /// Maps the owner's memory to be sent or written by one work request, and adds its segments to
    /// those that this has already. Fails with `EINVAL` if they are too many then.
    #[inline]
    pub(in crate::rdma) fn gather_in_one(&self, owner: &H::Send, body: &mut Body) -> Result {
        self.gather_as(owner, body, RdmaOp::Write, self.write_sges, true)
    }

    /// Maps the owner's memory for `op`, and adds its segments. A work request can have `per_wr` of
    /// them; if all must be `in_one`, those that are there already count.
    #[inline]
    fn gather_as(
        &self,
        owner: &H::Send,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        in_one: bool,
    ) -> Result {
        if let Some(piece) = owner.piece() {
            if !piece.is_for(self.pd.device()) {
                return Err(EINVAL);
            }
            piece.sync_for_device();
            body.reads_piece = op == RdmaOp::Read;
            self.make_room(body, per_wr, in_one)?;
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
            if segment.is_empty() {
                continue;
            }
            self.make_room(body, per_wr, in_one)?;
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

    /// Chains an RDMA WRITE of `len` bytes, which repeats those of `buffer`. `owner` comes back
    /// with the completion; its memory is not used.
    ///
    /// Otherwise like [`Self::write`].
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
            // It may have been written since it was mapped.
            buffer.sync_for_device();
            let mut left = len;
            while left > 0 {
                self.make_room(body, self.write_sges, false)?;
                let part = left.min(buffer.len());
                // SAFETY: Room was made. CAST: A buffer has at most 1 MiB.
                unsafe { body.push_sge(buffer.addr(), part as u32, self.lkey) };
                left -= part;
            }
            body.buffer = Some(buffer.clone());
            self.build_access(slot, body, RdmaOp::Write, self.write_sges, remote)
        })
    }

    /// Chains a send of the owner's message. Otherwise like [`Self::write`].
    pub(crate) fn send(
        &self,
        slot: u16,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            let sge = self.message(owner)?;
            self.make_room(body, self.write_sges, false)?;
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

    /// Chains an RDMA WRITE of the owner's memory to the peer's.
    ///
    /// What a success tells is [`Transport::Sent`]: with
    /// [`Rc`](crate::rdma::qp::Rc) that the data are in the peer's memory, with
    /// [`Uc`](crate::rdma::qp::Uc) only that they have left, so that the owner's memory may be
    /// changed. A peer that has to know sends a message.
    ///
    /// Otherwise like [`Self::rdma`](Qp::rdma), which reliable queue pairs have for both
    /// directions.
    pub(crate) fn write(
        &self,
        slot: u16,
        remote: RemoteRange,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        self.post(slot, owner, last, |slot, owner, body| {
            self.gather(owner, body, RdmaOp::Write, self.write_sges)?;
            self.build_access(slot, body, RdmaOp::Write, self.write_sges, remote)
        })
    }

    /// Adds an RDMA READ or RDMA WRITE of no bytes behind what `body` has, as its last work
    /// request. If `remote` is given, the peer allows a byte to be read there.
    #[inline]
    fn add_empty(
        &self,
        slot: &SendSlot<H, T>,
        body: &mut Body,
        op: RdmaOp,
        remote: Option<RemoteRange>,
    ) {
        let (opcode, completes_as) = opcodes(op);
        // SAFETY: There is room for one more segment than those of the memory.
        let sge = unsafe { body.sges.add(body.nr_sge as usize) };
        // A driver for iWARP may want a segment, be it an empty one.
        let (segment, remote) = match (&self.read_sink, remote) {
            (Some(sink), Some(remote)) => (
                bindings::ib_sge {
                    addr: sink.addr(),
                    length: 1,
                    lkey: self.lkey,
                },
                remote,
            ),
            _ => (pin_init::zeroed(), RemoteRange { addr: 0, rkey: 0 }),
        };
        // SAFETY: As above.
        unsafe { sge.write(segment) };
        let wr = Wr {
            rdma: bindings::ib_rdma_wr {
                wr: bindings::ib_send_wr {
                    sg_list: sge,
                    num_sge: i32::from(self.iwarp),
                    opcode,
                    ..slot.last_wr()
                },
                remote_addr: remote.addr,
                rkey: remote.rkey,
            },
        };
        // SAFETY: The slot was claimed, and there is room for one more work request than those of
        // the memory.
        unsafe { body.wrs.add(body.nr_wr as usize).write(wr) };
        body.nr_wr += 1;
        body.opcode = completes_as;
    }

    /// Fills in the work requests of an RDMA operation by itself.
    ///
    /// With iWARP an RDMA WRITE completes when the local TCP has the data. So it is followed by an
    /// RDMA READ of no bytes: the peer answers that when it has placed what came before.
    #[inline]
    fn build_access(
        &self,
        slot: &SendSlot<H, T>,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        remote: RemoteRange,
    ) -> Result {
        let confirmed = self.iwarp && op == RdmaOp::Write;
        self.build_rdma(slot, body, op, per_wr, remote, confirmed)?;
        if confirmed {
            self.add_empty(slot, body, RdmaOp::Read, Some(remote));
        }
        Ok(())
    }
}

impl<H: QpHandler> Qp<H> {
    /// Chains the registration of the owner's memory region, which must be of this protection
    /// domain and not be registered. Otherwise like [`Self::rdma`].
    ///
    /// Peers may access the region as soon as the registration runs. Once that has completed,
    /// [`Mr::remote`](crate::rdma::mr::Mr::remote) returns where.
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
            body.success = mr.registered();
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
}

impl<H: QpHandler<T>, T: Connected> Qp<H, T> {
    /// Makes room for one more segment, of which a work request can have `per_wr`, and of which all
    /// must be `in_one` or not. Fails with `EAGAIN` if that takes a large array and none is free,
    /// and with `EINVAL` if there are too many segments.
    #[inline]
    fn make_room(&self, body: &mut Body, per_wr: u32, in_one: bool) -> Result {
        let room = match body.large {
            None => per_wr,
            Some(_) => Self::MAX_SEGMENTS,
        };
        if body.nr_sge < room {
            return Ok(());
        }
        if in_one || body.large.is_some() || self.large.is_empty() {
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

    /// Fills in the work requests of an RDMA operation over all segments, `per_wr` each. If they
    /// are `followed` by another one, it is to be filled in behind them.
    #[inline]
    pub(in crate::rdma) fn build_rdma(
        &self,
        slot: &SendSlot<H, T>,
        body: &mut Body,
        op: RdmaOp,
        per_wr: u32,
        remote: RemoteRange,
        followed: bool,
    ) -> Result {
        let (opcode, completes_as) = opcodes(op);
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
            // SAFETY: `index` is less than `nr_wr`, for which there is room: one in the slot, and
            // in a large array enough for all its segments.
            let wr = unsafe { body.wrs.add(index as usize) };
            let common = if index + 1 == nr_wr && !followed {
                slot.last_wr()
            } else {
                // SAFETY: This is not the last, and there is room for one more.
                let common = slot.chained_wr(unsafe { wr.add(1) }.cast());
                bindings::ib_send_wr {
                    send_flags: self.data_flags,
                    ..common
                }
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
}

/// Returns the operation of a work request that does `op`, and the one as which it completes.
#[inline]
fn opcodes(op: RdmaOp) -> (bindings::ib_wr_opcode, bindings::ib_wc_opcode) {
    match op {
        RdmaOp::Read => (
            bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            bindings::ib_wc_opcode_IB_WC_RDMA_READ,
        ),
        RdmaOp::Write => (
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
        ),
    }
}
