// SPDX-License-Identifier: GPL-2.0

//! Sending datagrams.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::errno::{
    EMSGSIZE,
    ESHUTDOWN, //
};
use crate::bindings;
use crate::rdma::{
    ah::Destination,
    cm::{
        Group,
        Service, //
    },
    device::Device,
    qp::{
        Qp,
        QpHandler,
        Stage,
        Ud,
        Wr,
        OWN_WRS, //
    },
    wc::datagram::Sender,
    wr::SendOwner, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};

/// A send whose Q_Key has this bit carries that of its queue pair instead.
pub(crate) const QKEY_OF_SENDER: u32 = 1 << 31;

/// The owner of a datagram, which has its destination, too.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::scatterlist::NoMemory,
/// #     rdma::{ah::Destination, dma::DmaBuffer, qp::SendTo, wr::SendOwner},
/// # };
/// /// A datagram: the device needs the destination as long as it needs the message.
/// struct Letter(DmaBuffer, Destination);
///
/// impl SendOwner for Letter {
///     type Memory = NoMemory;
///
///     fn message(&self) -> Option<(&DmaBuffer, usize)> {
///         Some((&self.0, self.0.len()))
///     }
/// }
///
/// impl SendTo for Letter {
///     fn destination(&self) -> &Destination {
///         &self.1
///     }
/// }
/// ```
pub(crate) trait SendTo: SendOwner {
    /// Returns where the message goes.
    fn destination(&self) -> &Destination;
}

impl<H: QpHandler<Ud>> Qp<H, Ud>
where
    H::Send: SendTo,
{
    /// Chains a datagram: a send of the owner's message to its destination, with immediate data if
    /// there are some.
    ///
    /// If `last`, the chain is posted, too, as by [`Self::ring`], but under the same lock.
    ///
    /// On failure the owner is returned and nothing is chained. The errors are: `EBUSY` if the slot
    /// is in use; `EAGAIN` if there is no room until a request has completed; `ESHUTDOWN` after the
    /// queue pair has failed; `EMSGSIZE` if the message is longer than [`Destination::mtu`]; and
    /// `EINVAL` for what is never possible, such as a destination of another protection domain.
    ///
    /// # Context
    ///
    /// Any but hard interrupt. Does not sleep or allocate.
    pub(crate) fn send_to(
        &self,
        slot: u16,
        immediate: Option<u32>,
        owner: H::Send,
        last: bool,
    ) -> Result<(), (Error, H::Send)> {
        // As for atomic operations: a larger `Wr` would make all slots larger.
        const {
            assert!(size_of::<bindings::ib_ud_wr>() <= OWN_WRS * size_of::<Wr>());
            assert!(align_of::<bindings::ib_ud_wr>() <= align_of::<Wr>());
        }
        self.post(slot, owner, last, |slot, owner, body| {
            let sge = self.message(owner)?;
            let destination = owner.destination();
            if sge.length > destination.mtu() {
                return Err(EMSGSIZE);
            }
            // SAFETY: A slot has room for at least one segment.
            unsafe { body.push_sge(sge.addr, sge.length, sge.lkey) };
            let mut wr = bindings::ib_send_wr {
                sg_list: body.sges,
                num_sge: 1,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..slot.last_wr()
            };
            if let Some(immediate) = immediate {
                wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM;
                wr.ex.imm_data = immediate.to_be();
            }
            let wr = destination.wr(&self.pd, wr)?;
            // SAFETY: The slot was claimed. It has the work requests of its own, as no large array
            // was taken, and there is room for this one where they are. The address handle stays
            // until the completion, as the owner lies in the slot.
            unsafe { body.wrs.cast::<bindings::ib_ud_wr>().write(wr) };
            body.nr_wr = 1;
            Ok(())
        })
    }
}

impl<H: QpHandler<Ud>> Qp<H, Ud> {
    /// Returns the number of the queue pair, by which peers send to it; 0 once it is destroyed. Any
    /// context.
    pub(crate) fn number(&self) -> u32 {
        match self.as_raw().is_null() {
            true => 0,
            false => self.id.qp_number(),
        }
    }

    /// Has the queue pair take only datagrams that carry `qkey`, rather than the Q_Key that all
    /// queue pairs of the connection manager have. To be called before receives are posted.
    ///
    /// Fails with `EINVAL` if it has the highest bit, which stands for a sender's own Q_Key; with
    /// `ESHUTDOWN` once the queue pair has been closed or destroyed; and with the device's error.
    ///
    /// # Context
    ///
    /// Sleeps. Not in a method of the handler.
    pub(crate) fn set_qkey(&self, qkey: u32) -> Result {
        if qkey & QKEY_OF_SENDER != 0 {
            return Err(EINVAL);
        }
        let stage = self.stage.lock();
        if !matches!(*stage, Stage::Live) || self.as_raw().is_null() {
            return Err(ESHUTDOWN);
        }
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_RTS,
            qkey,
            ..pin_init::zeroed()
        };
        let mask = bindings::ib_qp_attr_mask_IB_QP_STATE | bindings::ib_qp_attr_mask_IB_QP_QKEY;
        // SAFETY: `stage` is locked and there is a C object.
        to_result(unsafe { bindings::ib_modify_qp(self.as_raw(), &mut attr, mask as i32) })
    }

    /// The device of the queue pair.
    pub(in crate::rdma) fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// Makes the destination of a service that the id of this queue pair, or another one, has
    /// found. Fails with `EINVAL` if that is on another device, with `ENOMEM`, and with the
    /// device's error. May sleep.
    pub(crate) fn destination(&self, service: &Service) -> Result<Destination> {
        service.destination(&self.pd)
    }

    /// Makes the destination of what is sent back to the sender of a datagram that this queue pair
    /// has received. The sender must have the Q_Key of the connection manager's queue pairs.
    ///
    /// Fails with `EPROTOTYPE` or `EINVAL` if the datagram does not say where it came from; with
    /// `ENOENT` or `ENODATA` if it did not come to an address of this port, as one that came by a
    /// multicast group; with `EHOSTUNREACH` and the like if there is no way back; with `ENOMEM`,
    /// and with the device's error.
    ///
    /// # Context
    ///
    /// Sleeps: it may wait for the network. A peer that makes up senders can make it wait long, for
    /// each datagram: a user who answers those of strangers limits that.
    pub(crate) fn answer_to(&self, sender: &Sender) -> Result<Destination> {
        Destination::of_sender(&self.pd, self.id.port_num(), sender)
    }

    /// Lets the queue pair receive what is sent to `group`, until it is drained or dropped.
    ///
    /// Fails with `EINVAL` if the group is on another device or port, or that is being removed;
    /// with `EBUSY` if the queue pair is attached to it by a membership that has
    /// not left; with `ESHUTDOWN` once the queue pair has
    /// been closed or destroyed; with `EOPNOTSUPP` if the device has no multicast; with `ENOMEM`,
    /// and with the device's error.
    ///
    /// # Context
    ///
    /// Sleeps. Not in a method of the handler.
    pub(crate) fn attach(&self, group: &Arc<Group>) -> Result {
        if !group.is_for(self.pd.device(), self.id.port_num()) {
            return Err(EINVAL);
        }
        let stage = self.stage.lock();
        if !matches!(*stage, Stage::Live) || self.as_raw().is_null() {
            return Err(ESHUTDOWN);
        }
        let mut groups = self.groups.lock();
        if let Some(other) = groups.iter_mut().find(|other| other.is_same(group)) {
            if Arc::ptr_eq(other, group) || !other.has_left() {
                return Err(EBUSY);
            }
            // The device has the queue pair attached. The membership that the network has ended
            // makes room for the new one; its id is destroyed when nothing is locked.
            let left = core::mem::replace(other, group.clone());
            drop(groups);
            drop(stage);
            drop(left);
            return Ok(());
        }
        groups.reserve(1, GFP_KERNEL)?;
        // SAFETY: `stage` is locked and there is a C object. It is detached before it is destroyed,
        // as the group is in the list then.
        unsafe { group.attach(self.as_raw()) }?;
        // Room was made.
        let _ = groups.push_within_capacity(group.clone());
        Ok(())
    }

    /// Makes the destination of what is sent to all members of `group`. A sender need not be
    /// attached to it. The errors are those of [`Self::destination`]. May sleep.
    pub(crate) fn destination_of_group(&self, group: &Group) -> Result<Destination> {
        group.destination(&self.pd)
    }
}
