// SPDX-License-Identifier: GPL-2.0

//! The sizes of queue pairs with requests.

use crate::rdma::{
    device::Device,
    qp::QpCaps,
    request::fast_reg_mr::FastRegMr, //
};

/// The sizes of a queue pair with requests.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     cq::{Cq, Softirq},
/// #     device::Device,
/// #     qp::QpCaps,
/// #     request::RequestCaps,
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// // 16 requests at once, each of which takes up to two work requests.
/// let qp = QpCaps {
///     slots: 16,
///     send_wr: 32,
///     recv_wr: 16,
///     sges: 4,
///     ..QpCaps::default()
/// };
/// // Each may be about up to 1 MiB of memory.
/// let caps = RequestCaps::with_regions(qp, device, 1 << 20);
/// let cq = Cq::<Softirq>::alloc(device, caps.send_cqes() + caps.recv_cqes(), 0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestCaps {
    /// Those of the queue pair. A region is registered by a work request of its own, which
    /// [`QpCaps::send_wr`] must count.
    pub(crate) qp: QpCaps,
    /// The slots that have a memory region, so that the peer can be given access to their memory:
    /// the first ones.
    pub(crate) regions: u16,
    /// The pages that such a region has, of [`Device::region_page_size`] bytes; it covers as many
    /// segments, but not more than [`Self::MAX_REGION_SEGMENTS`].
    ///
    /// [`Device::region_page_size`]: crate::rdma::device::Device::region_page_size
    pub(crate) region_pages: u32,
    /// Slots at once, at most 64, that need a large region, as their memory is more than their own
    /// covers.
    pub(crate) large_regions: u16,
    /// The pages of the regions for these.
    pub(crate) large_region_pages: u32,
}

impl RequestCaps {
    /// The segments that a memory region covers at most.
    pub(crate) const MAX_REGION_SEGMENTS: u32 = FastRegMr::MAX_SEGMENTS;

    /// The bytes of the region that each slot has, by [`Self::with_regions`].
    const SMALL_REGION: u32 = 64 << 10;
    /// The large regions that there are then.
    const LARGE_REGIONS: u16 = 8;

    /// Returns sizes with a memory region for each slot. What does not fit, up to `bytes` bytes as
    /// far as `device` has such regions, takes one of a few large ones; when these are in use,
    /// other such requests fail with `EAGAIN`.
    ///
    /// Both ends of a connection have as many large regions, so the one that answers large requests
    /// by RDMA READs has a region for each that the other one can send.
    pub(crate) fn with_regions(qp: QpCaps, device: &Device, bytes: u32) -> Self {
        let page_size = device.region_page_size();
        // Wherever in a page they begin.
        let pages = (bytes / page_size + 1).min(device.limits().max_fast_reg_page_list_len);
        let small = (Self::SMALL_REGION / page_size).max(2);
        Self {
            qp,
            regions: qp.slots,
            region_pages: pages.min(small),
            large_regions: match pages > small {
                true => Self::LARGE_REGIONS,
                false => 0,
            },
            large_region_pages: pages,
        }
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its sends.
    pub(crate) const fn send_cqes(&self) -> u32 {
        // CAST: To a larger type.
        self.qp.send_cqes().saturating_add(self.regions as u32)
    }

    /// Returns how many entries the queue pair reserves in the completion queue of its receives.
    pub(crate) const fn recv_cqes(&self) -> u32 {
        self.qp.recv_cqes()
    }
}

/// These sizes, without memory regions: the peer is given access to nothing.
impl From<QpCaps> for RequestCaps {
    fn from(qp: QpCaps) -> Self {
        Self {
            qp,
            ..Self::default()
        }
    }
}
