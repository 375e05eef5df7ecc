// SPDX-License-Identifier: GPL-2.0

//! The sizes of queue pairs.

use crate::rdma::{
    device::Device,
    qp::fast_reg_mr::FastRegMr, //
};

/// The sizes of a queue pair.
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
    /// The slots that have a memory region, so that the peer can be given access to their memory:
    /// the first ones.
    pub(crate) keys: u16,
    /// The pages that such a region has, of [`Device::region_page_size`] bytes; it covers as many
    /// segments, but not more than [`Self::MAX_KEY_SEGMENTS`].
    ///
    /// [`Device::region_page_size`]: crate::rdma::device::Device::region_page_size
    pub(crate) key_pages: u32,
    /// Slots at once, at most 64, that need a large region, as their memory is more than their own
    /// covers.
    pub(crate) large_keys: u16,
    /// The pages of the regions for these.
    pub(crate) large_key_pages: u32,
}

impl QpCaps {
    /// The segments that a work request can have at most.
    pub(crate) const MAX_SGES: u32 = 32;
    /// The segments that a memory region covers at most.
    pub(crate) const MAX_KEY_SEGMENTS: u32 = FastRegMr::MAX_SEGMENTS;

    /// The bytes of the region that each slot has, by [`Self::with_regions`].
    const SMALL_REGION: u32 = 64 << 10;
    /// The large regions that there are then.
    const LARGE_REGIONS: u16 = 8;

    /// Returns these sizes with a memory region for each slot. What does not fit, up to `bytes`
    /// bytes as far as `device` has such regions, takes one of a few large ones; when these are in
    /// use, other such requests fail with `EAGAIN`. A region is registered by a work request of its
    /// own, which `send_wr` must count.
    ///
    /// Both ends of a connection have as many large regions, so the one that answers large requests
    /// by RDMA READs has a region for each that the other one can send.
    pub(crate) fn with_regions(self, device: &Device, bytes: u32) -> Self {
        let page_size = device.region_page_size();
        // Wherever in a page they begin.
        let pages = (bytes / page_size + 1).min(device.limits().max_fast_reg_page_list_len);
        let small = (Self::SMALL_REGION / page_size).max(2);
        Self {
            keys: self.slots,
            key_pages: pages.min(small),
            large_keys: match pages > small {
                true => Self::LARGE_REGIONS,
                false => 0,
            },
            large_key_pages: pages,
            ..self
        }
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its sends.
    pub(crate) const fn send_cqes(&self) -> u32 {
        self.max_send_wr().saturating_add(1)
    }

    /// Returns how many work requests there are on the send queue at once, but for that of
    /// draining.
    pub(super) const fn max_send_wr(&self) -> u32 {
        // Each may complete with an error. Each region may have to be invalidated.
        self.send_wr.saturating_add(self.keys as u32)
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its receives.
    pub(crate) const fn recv_cqes(&self) -> u32 {
        self.recv_wr.saturating_add(1)
    }
}
