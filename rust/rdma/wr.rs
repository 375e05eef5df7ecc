// SPDX-License-Identifier: GPL-2.0

//! Work requests: what they do, and what they own.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

pub(crate) mod atomic;

use crate::base::scatterlist::{
    NoMemory,
    Segmented, //
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    dma::{
        DmaBuffer,
        DmaPiece, //
    },
    mr::Mr,
    srq::KeptSlot,
    wr::atomic::AtomicResult, //
};
use kernel::prelude::*;

/// An RDMA operation on a peer's memory.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaPiece, qp::{Qp, QpHandler}, wr::{RdmaOp, RemoteRange}};
/// # use kernel::prelude::*;
/// # fn example<H: QpHandler<Send = DmaPiece>>(
/// #     qp: &Qp<H>,
/// #     remote: RemoteRange,
/// #     piece: DmaPiece,
/// # ) -> Result {
/// // Fills the piece with what is in the peer's memory, whose CPU does not notice.
/// qp.rdma(0, RdmaOp::Read, remote, piece, true).map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaOp {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// A place in a peer's memory, and the key to it.
///
/// # Examples
///
/// ```
/// # use crate::rdma::wr::RemoteRange;
/// # use kernel::prelude::*;
/// /// Returns where block `index` is in what the peer lets this side access.
/// fn block(granted: RemoteRange, index: u64) -> Result<RemoteRange> {
///     let offset = index.checked_mul(4096).ok_or(EINVAL)?;
///     Ok(RemoteRange {
///         addr: granted.addr.checked_add(offset).ok_or(EINVAL)?,
///         ..granted
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    /// The address, as the peer registered it.
    pub(crate) addr: u64,
    /// The remote key.
    pub(crate) rkey: u32,
}

/// What the peer receives of an RDMA WRITE, by
/// [`Qp::write_with_immediate`](super::qp::Qp::write_with_immediate).
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaPiece, qp::{Qp, QpHandler}, wr::{Announcement, RemoteRange}};
/// # use kernel::prelude::*;
/// # fn example<H: QpHandler<Send = DmaPiece>>(
/// #     qp: &Qp<H>,
/// #     block: (u32, RemoteRange),
/// #     piece: DmaPiece,
/// # ) -> Result {
/// let (number, remote) = block;
/// let announcement = Announcement { immediate: number, solicited: false };
/// // When the peer gets the number, the data are there.
/// qp.write_with_immediate(0, Some(remote), announcement, piece, true)
///     .map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The immediate data.
    pub(crate) immediate: u32,
    /// If set, it wakes a peer whose completion queue is armed by
    /// [`Cq::arm_solicited`](super::cq::Cq::arm_solicited).
    pub(crate) solicited: bool,
}

impl Announcement {
    /// The C flags.
    pub(super) fn flags(&self) -> i32 {
        match self.solicited {
            true => bindings::ib_send_flags_IB_SEND_SOLICITED,
            false => 0,
        }
    }
}

/// A value that owns the memory of a work request on the send queue until that has completed.
///
/// The queue pair keeps the owner in place, and neither drops it nor borrows it mutably, until the
/// device is done with what these methods return.
///
/// # Context
///
/// The methods are called by the function that posts.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::scatterlist::Segmented,
/// #     rdma::{dma::DmaBuffer, wr::SendOwner},
/// # };
/// /// A command, and the memory that it is about, such as that of a request of the block layer.
/// struct Command<M> {
///     message: DmaBuffer,
///     len: usize,
///     memory: M,
/// }
///
/// impl<M: Segmented + Send + 'static> SendOwner for Command<M> {
///     type Memory = M;
///
///     fn memory(&self) -> Option<&M> {
///         Some(&self.memory)
///     }
///
///     fn message(&self) -> Option<(&DmaBuffer, usize)> {
///         Some((&self.message, self.len))
///     }
/// }
/// ```
pub(crate) trait SendOwner: Send + 'static {
    /// The type of [`Self::memory`]; [`NoMemory`] if there is none.
    type Memory: Segmented;

    /// Returns the memory that [`Qp::rdma`](super::qp::Qp::rdma) reads or writes, and that a
    /// [`request`](super::request) sends or lets the peer access.
    fn memory(&self) -> Option<&Self::Memory> {
        None
    }

    /// Returns the message of [`Qp::send`](super::qp::Qp::send), of a [`request`](super::request)
    /// or of its reply: the first so many bytes of a buffer.
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        None
    }

    /// Returns memory that is mapped already. If there is some, it is used rather than
    /// [`Self::memory`], but by requests.
    fn piece(&self) -> Option<&DmaPiece> {
        None
    }

    /// Returns the memory region of [`Qp::reg_mr`](super::qp::Qp::reg_mr).
    fn mr(&self) -> Option<&Mr> {
        None
    }

    /// Returns the room for the result of [`Qp::atomic`](super::qp::Qp::atomic), which the device
    /// writes.
    fn result(&mut self) -> Option<&mut AtomicResult> {
        None
    }
}

/// A buffer is a message of its whole length.
impl SendOwner for DmaBuffer {
    type Memory = NoMemory;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        Some((self, self.len()))
    }
}

/// The number of buffers that a receive can have.
pub(crate) const RECV_BUFFERS: usize = 2;

/// Memory that a message, or a part of it, is received into.
///
/// See [`RecvOwner`] for an example.
pub(crate) enum RecvBuffer<'a> {
    /// A buffer that the CPU reads.
    Cpu(&'a mut DmaBuffer),
    /// Memory that other devices read. The CPU does so only by
    /// [`DmaPiece::contents`](crate::rdma::dma::DmaPiece::contents).
    Devices(&'a DmaPiece),
}

impl RecvBuffer<'_> {
    /// Returns the address and the length that `device` writes. Fails with `EINVAL` if it cannot
    /// write there.
    #[inline(always)]
    pub(super) fn place(&self, device: &Device) -> Result<(u64, u32)> {
        match self {
            Self::Cpu(buffer) if buffer.is_for(device) && buffer.direction().device_writes() => {
                buffer.sync_for_device();
                Ok((buffer.addr(), u32::try_from(buffer.len())?))
            }
            Self::Devices(piece) if piece.is_for(device) => {
                piece.sync_for_device();
                Ok((piece.addr(), piece.len()))
            }
            _ => Err(EINVAL),
        }
    }

    /// Makes what the device wrote visible to the CPU and to other devices.
    #[inline(always)]
    pub(super) fn sync_for_cpu(&self) {
        match self {
            Self::Cpu(buffer) => buffer.sync_for_cpu(),
            Self::Devices(piece) => piece.sync_for_cpu(),
        }
    }
}

/// A value that owns the memory of a receive until that has completed.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::{DmaBuffer, DmaPiece},
/// #     srq::KeptSlot,
/// #     wr::{RecvBuffer, RecvOwner, RECV_BUFFERS},
/// # };
/// /// Buffers for a command, which the CPU reads, and for data behind it, which go on to a disk.
/// struct Receive {
///     command: DmaBuffer,
///     data: DmaPiece,
/// }
///
/// impl RecvOwner for Receive {
///     fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
///         let command = RecvBuffer::Cpu(&mut self.command);
///         [Some(command), Some(RecvBuffer::Devices(&self.data))]
///     }
///
///     fn kept(&mut self) -> Option<&mut KeptSlot> {
///         Some(self.command.kept_slot())
///     }
/// }
/// ```
pub(crate) trait RecvOwner: Send + 'static {
    /// The most buffers that [`Self::buffers`] returns, at least 1: a device keeps room for so many
    /// in each entry of a receive queue.
    const BUFFERS: usize = RECV_BUFFERS;

    /// Returns the buffers that a message is received into: what does not fit in the first goes to
    /// the second.
    ///
    /// # Context
    ///
    /// Called by the function that posts, and before the owner comes back. Must neither sleep nor
    /// post.
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS];

    /// Returns where the owner keeps its slot of the receive queue, so that it does not have to
    /// find one each time that it is posted. The queue has no other owner in this slot then until
    /// this one is dropped, or posted to another queue. `None` if its slot is free as soon as the
    /// owner has come back.
    #[inline]
    fn kept(&mut self) -> Option<&mut KeptSlot> {
        None
    }
}

impl RecvOwner for DmaBuffer {
    const BUFFERS: usize = 1;

    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        [Some(RecvBuffer::Cpu(self)), None]
    }
}

impl RecvOwner for KBox<DmaBuffer> {
    const BUFFERS: usize = 1;

    #[inline]
    fn kept(&mut self) -> Option<&mut KeptSlot> {
        Some(self.kept_slot())
    }

    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        [Some(RecvBuffer::Cpu(self)), None]
    }
}
