// SPDX-License-Identifier: GPL-2.0

//! Datagrams that were received, and who has sent them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::{
    dma::DmaBuffer,
    wc::WcError, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

/// The bytes before a datagram in the buffer that it is received into: the global route header of
/// the packet that it came in. They are there with every device; what they hold is for
/// [`Sender::of`].
pub(crate) const GRH_BYTES: usize = size_of::<bindings::ib_grh>();

/// A datagram that was received: behind the first [`GRH_BYTES`] of the receive's buffers.
///
/// Anybody on the network may have sent it who knows the number of the queue pair and its Q_Key.
/// [`UDP_QKEY`](crate::rdma::ah::UDP_QKEY), which the queue pairs of the connection manager have,
/// is known to all. One that was chosen at random is known to those whom its owner has told, and to
/// all who see the packets, which carry it in the clear.
///
/// It can be used only while the handler of its completion runs.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::DmaBuffer,
/// #     wc::datagram::{Datagram, Sender, GRH_BYTES},
/// # };
/// # use kernel::prelude::*;
/// # fn example(buffer: &DmaBuffer, datagram: Datagram<'_>) -> Result<(u32, Sender)> {
/// let mut number = [0; 4];
/// if datagram.len() as usize != number.len() {
///     return Err(EINVAL);
/// }
/// // The message is behind the header.
/// buffer.copy_out(GRH_BYTES, &mut number)?;
/// Ok((u32::from_be_bytes(number), Sender::of(&datagram, buffer)?))
/// # }
/// ```
///
/// # Invariants
///
/// `wc` is the completion of a receive that has succeeded, of [`GRH_BYTES`] at least.
pub(crate) struct Datagram<'a> {
    wc: &'a bindings::ib_wc,
}

impl<'a> Datagram<'a> {
    /// Returns the datagram that `wc` reports, or its error.
    #[inline]
    pub(in crate::rdma) fn new(wc: &'a bindings::ib_wc) -> Result<Self, WcError> {
        let len = WcError::check(wc, bindings::ib_wc_opcode_IB_WC_RECV)?;
        if (len as usize) < GRH_BYTES {
            return Err(WcError::Unfinished);
        }
        // INVARIANT: As was just checked.
        Ok(Self { wc })
    }

    /// Returns the length of the message, in bytes, without the header before it.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        // By the type invariants there are so many. CAST: 40.
        self.wc.byte_len.saturating_sub(GRH_BYTES as u32)
    }

    /// Returns the immediate data of the message, if it has some.
    #[inline]
    pub(crate) fn immediate(&self) -> Option<u32> {
        let with_imm = bindings::ib_wc_flags_IB_WC_WITH_IMM as i32;
        // SAFETY: Both variants are plain numbers.
        let immediate = u32::from_be(unsafe { self.wc.ex.imm_data });
        (self.wc.wc_flags & with_imm != 0).then_some(immediate)
    }

    /// Returns the number of the queue pair that the message says it comes from.
    #[inline]
    pub(crate) fn src_qp(&self) -> u32 {
        self.wc.src_qp
    }
}

/// Who has sent a datagram, as that says: enough to send something back.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     ah::Destination,
/// #     dma::DmaBuffer,
/// #     qp::{Qp, QpHandler, Ud},
/// #     wc::datagram::{Datagram, Sender},
/// # };
/// # use kernel::prelude::*;
/// /// Called in the completion, which must not sleep.
/// fn note(datagram: &Datagram<'_>, buffer: &DmaBuffer) -> Result<Sender> {
///     Sender::of(datagram, buffer)
/// }
///
/// /// Called in a work item, later: to find the way back may take a look at the network.
/// fn way_back<H: QpHandler<Ud>>(qp: &Qp<H, Ud>, sender: &Sender) -> Result<Destination> {
///     qp.answer_to(sender)
/// }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    wc: bindings::ib_wc,
    grh: bindings::ib_grh,
}

// SAFETY: The pointers in the completion are not followed.
unsafe impl Send for Sender {}

impl Sender {
    /// Returns the sender of `datagram`, which was received into `buffer`, from its beginning.
    ///
    /// A buffer that holds something else makes for another sender, or for none. Fails with
    /// `EINVAL` if the buffer is too short, or the CPU cannot read it. Any context.
    pub(crate) fn of(datagram: &Datagram<'_>, buffer: &DmaBuffer) -> Result<Self> {
        let mut bytes = [0; GRH_BYTES];
        buffer.copy_out(0, &mut bytes)?;
        Ok(Self {
            wc: *datagram.wc,
            // SAFETY: The header is plain bytes of this size, of any values.
            grh: unsafe { core::mem::transmute::<[u8; GRH_BYTES], bindings::ib_grh>(bytes) },
        })
    }

    /// The number of its queue pair.
    pub(in crate::rdma) fn qp_num(&self) -> u32 {
        self.wc.src_qp
    }

    /// Returns where it is: the GID, which with RoCE is its IP address; `None` if the datagram has
    /// none, as within a subnet of InfiniBand; and the LID, or 0. Fails with `EINVAL` if the header
    /// is of an unknown kind.
    #[inline]
    pub(in crate::rdma) fn address(&self) -> Result<(Option<[u8; 16]>, u16)> {
        let has = |flag: bindings::ib_wc_flags| self.wc.wc_flags & flag as i32 != 0;
        // CAST: There are no longer LIDs but with OPA, whose high bits `AhAttr::target` cuts, too.
        let lid = self.wc.slid as u16;
        if !has(bindings::ib_wc_flags_IB_WC_GRH) {
            return Ok((None, lid));
        }
        let header = core::ptr::from_ref(&self.grh).cast::<bindings::rdma_network_hdr>();
        // With RoCE v2 over IPv4 the second half of the header is one of IPv4.
        let kind = match has(bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE) {
            true => self.wc.network_hdr_type.into(),
            // SAFETY: The union is as long as its `ibgrh`, which this is, and plain bytes.
            false => match unsafe { bindings::ib_get_rdma_header_version(header) } {
                4 => bindings::rdma_network_type_RDMA_NETWORK_IPV4,
                _ => bindings::rdma_network_type_RDMA_NETWORK_IB,
            },
        };
        let (mut from, mut to) = (bindings::ib_gid::default(), bindings::ib_gid::default());
        // SAFETY: As above; both GIDs are valid for a write.
        to_result(unsafe {
            bindings::ib_get_gids_from_rdma_hdr(header, kind, &mut from, &mut to)
        })?;
        // SAFETY: All variants of the union are plain bytes.
        Ok((Some(unsafe { from.raw }), lid))
    }

    /// The completion and the header, for the core's functions.
    pub(in crate::rdma) fn as_raw(&self) -> (&bindings::ib_wc, &bindings::ib_grh) {
        (&self.wc, &self.grh)
    }
}
