// SPDX-License-Identifier: GPL-2.0

//! The sizes of queue pairs.

/// The sizes of a queue pair.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{cq::{Cq, Softirq}, device::Device, qp::QpCaps};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// // 16 messages at once in each direction, each in one buffer.
/// let caps = QpCaps {
///     slots: 16,
///     send_wr: 16,
///     recv_wr: 16,
///     sges: 1,
///     ..QpCaps::default()
/// };
/// let cq = Cq::<Softirq>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QpCaps {
    /// Slots for sends.
    pub(crate) slots: u16,
    /// Work requests on the send queue at once; less than the device's `max_qp_wr`. A slot takes
    /// several if its memory has more segments than a work request.
    pub(crate) send_wr: u32,
    /// Receives at once; less than the device's `max_qp_wr`. 0 with a shared receive queue.
    pub(crate) recv_wr: u32,
    /// The segments of a work request, at most [`Self::MAX_SGES`]; fewer if the device has fewer.
    pub(crate) sges: u32,
    /// Slots at once, at most 64, that need a large array, as their memory takes more than one work
    /// request.
    pub(crate) large: u16,
}

impl QpCaps {
    /// The segments that a work request can have at most.
    pub(crate) const MAX_SGES: u32 = 32;

    /// Returns how many entries the queue pair reserves in the completion queue of its sends.
    pub(crate) const fn send_cqes(&self) -> u32 {
        // Each work request may complete with an error; and draining posts one.
        self.send_wr.saturating_add(1)
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its receives.
    pub(crate) const fn recv_cqes(&self) -> u32 {
        self.recv_wr.saturating_add(1)
    }
}
