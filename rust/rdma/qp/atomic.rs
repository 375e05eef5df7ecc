// SPDX-License-Identifier: GPL-2.0

//! Atomic operations on a peer's memory.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::EOPNOTSUPP;
use crate::bindings;
use crate::rdma::{
    qp::{
        Qp,
        QpHandler,
        Wr,
        OWN_WRS, //
    },
    quirks::Mark,
    wr::{
        atomic::{
            AtomicOp,
            RemoteAtomic, //
        },
        SendOwner, //
    },
};
use kernel::prelude::*;

impl<H: QpHandler> Qp<H> {
    /// Chains an atomic operation on 8 bytes of the peer's memory. What they were goes to
    /// [`SendOwner::result`] of the owner, where it can be read once the operation has succeeded.
    ///
    /// The peer must have allowed it, by [`Mr::with_atomics`](crate::rdma::mr::Mr::with_atomics).
    /// It counts as an RDMA READ where the connection limits how many of these are under way
    /// ([`ConnParam`](crate::rdma::cm::ConnParam)); where that is 0 it fails, or waits until the
    /// queue pair does. After an error it is unknown whether the peer has done it.
    ///
    /// Otherwise like [`Self::rdma`]. `EOPNOTSUPP` if the device of this side posts no such
    /// operations, which includes all of iWARP; `EINVAL` if the owner has no room for the result,
    /// or that is another device's.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn atomic(
        &self,
        slot: u16,
        op: AtomicOp,
        remote: RemoteAtomic,
        mut owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        // It takes the room of all work requests that a slot has of its own: a larger `Wr` would
        // make all slots larger.
        const {
            assert!(size_of::<bindings::ib_atomic_wr>() <= OWN_WRS * size_of::<Wr>());
            assert!(align_of::<bindings::ib_atomic_wr>() <= align_of::<Wr>());
        }
        // An owner that is refused before it gets into its slot must have no old result either.
        if let Some(result) = owner.result() {
            result.clear();
        }
        self.post(slot, owner, last, |slot, owner, body| {
            let device = self.pd.device();
            if !device.posts_atomics(op.is_masked()) {
                return Err(EOPNOTSUPP);
            }
            let result = owner.result().ok_or(EINVAL)?;
            let (sge, succeeded) = result.prepare(device, self.lkey)?;
            body.success = succeeded;
            if self.marks {
                // Such a device may complete the operation although the result has not come.
                let mark = Mark::new();
                // SAFETY: As READs need marks, the address is that of memory in the direct map. The
                // buffer is the room's alone, and the device may write it.
                unsafe { mark.put(&sge) };
                body.mark = Some(mark);
            }
            // SAFETY: A slot has room for at least one segment.
            unsafe { body.push_sge(sge.addr, sge.length, sge.lkey) };
            let (opcode, completes_as) = op.opcodes();
            let wr = bindings::ib_send_wr {
                sg_list: body.sges,
                num_sge: 1,
                opcode,
                ..slot.last_wr()
            };
            // SAFETY: The slot was claimed. It has the work requests of its own, as no large array
            // was taken, and there is room for this one where they are.
            unsafe {
                body.wrs
                    .cast::<bindings::ib_atomic_wr>()
                    .write(op.wr(remote, wr))
            };
            body.nr_wr = 1;
            body.opcode = completes_as;
            Ok(())
        })
    }
}
