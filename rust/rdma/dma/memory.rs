// SPDX-License-Identifier: GPL-2.0

//! Memory that several devices access.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    contents::Contents,
    memory::NumaNode,
    scatterlist::{
        Segment,
        Segmented, //
    }, //
};
use crate::rdma::{
    device::Device,
    dma::{
        Alloc,
        Direction,
        Pages, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Zeroed memory for devices, mapped for one of them as long as it exists.
///
/// [`Self::piece`] gives parts of it. The CPU accesses it only by [`DmaPiece::contents`] and as
/// [`Segmented`], like any other device.
///
/// # Context
///
/// Dropping it, and its pieces, does not sleep.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{device::Device, dma::DmaMemory};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// // Mapped once, and given out in pieces without an allocation for each I/O.
/// let memory = DmaMemory::alloc(device, 1 << 20, device.numa_node())?;
/// let mut pieces = KVec::new();
/// for offset in (0..memory.len()).step_by(4096) {
///     pieces.push(memory.piece(offset, 4096)?, GFP_KERNEL)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - No [`DmaBuffer`](super::DmaBuffer) has these pages.
pub(crate) struct DmaMemory {
    pages: Arc<Pages>,
}

impl DmaMemory {
    /// The most bytes that there can be at once: 2 MiB with pages of 4 KiB.
    pub(crate) const MAX: usize = PAGE_SIZE << 9;

    /// Allocates `len` bytes, at most [`Self::MAX`] and rounded up to a power of two of pages, on
    /// NUMA node `node`, and maps them in both directions.
    ///
    /// Fails with `EINVAL` if `len` is 0 or too large, and with `ENOMEM`, also if there is no
    /// contiguous memory of this size or no such node.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn alloc(device: &Arc<Device>, len: usize, node: NumaNode) -> Result<Self> {
        // INVARIANT: Nobody else knows the pages.
        Ok(Self {
            pages: Pages::alloc(
                device,
                len,
                Self::MAX,
                node,
                Direction::Bidirectional,
                Alloc::MaySleep,
            )?,
        })
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        PAGE_SIZE << self.pages.order
    }

    /// Returns the `len` bytes at `offset`. Fails with `EINVAL` if `len` is 0, or they are not all
    /// inside.
    ///
    /// The caller should use no pieces at the same time that overlap: their contents would be mixed
    /// up. It does no other harm.
    ///
    /// # Context
    ///
    /// Any. Does not allocate.
    pub(crate) fn piece(&self, offset: usize, len: usize) -> Result<DmaPiece> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() && len != 0 => {
                // INVARIANT: It was checked. CAST: The memory has at most 2 MiB.
                Ok(DmaPiece {
                    pages: self.pages.clone(),
                    offset: offset as u32,
                    len: len as u32,
                })
            }
            _ => Err(EINVAL),
        }
    }
}

/// A piece of [`DmaMemory`], which it keeps.
///
/// It is what a queue pair sends and receives without mapping it, and, as it is [`Segmented`], what
/// other devices access as well.
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
/// piece.contents(piece.len())?.write(b"data for the peer")?;
/// // Now the work request owns the piece. It comes back to the handler of the queue pair.
/// qp.rdma(0, RdmaOp::Write, remote, piece, true).map_err(|(error, _)| error)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `0 < len`, and the `len` bytes at `offset` are inside `pages`, which are those of a
///   [`DmaMemory`].
pub(crate) struct DmaPiece {
    pages: Arc<Pages>,
    offset: u32,
    len: u32,
}

impl DmaPiece {
    /// Returns the size in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Changes the size to `len` bytes from where the piece begins. Fails with `EINVAL` if `len` is
    /// 0, or they are not all inside the memory.
    ///
    /// As with [`DmaMemory::piece`], pieces should not overlap.
    pub(crate) fn resize(&mut self, len: u32) -> Result {
        let end = (self.offset as usize).checked_add(len as usize);
        match end {
            Some(end) if end <= PAGE_SIZE << self.pages.order && len != 0 => {
                // INVARIANT: It was checked.
                self.len = len;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    /// Returns the contents of the first `len` bytes. Fails with `EINVAL` if there are fewer.
    #[inline]
    pub(crate) fn contents(&self, len: u32) -> Result<Contents<'_>> {
        if len > self.len {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariants they are inside pages of the direct map, which stay as
        // long as `self` does, and which no `DmaBuffer` has, so that there are no references.
        Ok(unsafe { Contents::new(Segment::new(self.pages.page, self.offset, len)) })
    }

    /// Returns the DMA address.
    #[inline]
    pub(in crate::rdma) fn addr(&self) -> u64 {
        self.pages.addr + u64::from(self.offset)
    }

    /// Returns true if the memory is mapped for `device`.
    #[inline]
    pub(in crate::rdma) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.pages.device, device)
    }

    /// Makes what was written visible to the device.
    #[inline]
    pub(in crate::rdma) fn sync_for_device(&self) {
        let (offset, len) = (self.offset as usize, self.len as usize);
        self.pages.sync_for_device(offset, len);
    }

    /// Makes what the device wrote visible to the CPU and to other devices.
    #[inline]
    pub(in crate::rdma) fn sync_for_cpu(&self) {
        let (offset, len) = (self.offset as usize, self.len as usize);
        self.pages.sync_for_cpu(offset, len);
    }
}

// SAFETY: By the type invariants the segment is one of pages of the direct map that `pages` keeps,
// and no `DmaBuffer` has them, so that there are no references to it. The fields change only
// through an exclusive reference.
unsafe impl Segmented for DmaPiece {
    #[inline]
    fn writable(&self) -> bool {
        true
    }

    #[inline]
    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        // SAFETY: By the type invariants the page is one of ours.
        core::iter::once(unsafe { Segment::new(self.pages.page, self.offset, self.len) })
    }
}
