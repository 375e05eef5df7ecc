// SPDX-License-Identifier: GPL-2.0

//! Buffers for messages, which the CPU writes and reads.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    contents::{
        copy,
        Contents, //
    },
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
    prelude::*,
    sync::Arc, //
};

/// The most bytes of a [`DmaBuffer`].
const MAX_BUFFER: usize = 1 << 20;

/// A buffer that the CPU writes and reads too, mapped for a device as long as it exists.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{device::Device, dma::{Direction, DmaBuffer}};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// let mut message = DmaBuffer::alloc(device, 64, Direction::Bidirectional)?;
/// message.copy_in(0, b"hello")?;
/// // Only these are sent then. A work request owns the buffer from when it is posted until it has
/// // completed, so that nobody changes what the device is reading.
/// message.truncate(b"hello".len())?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `0 < len`, and the `len` bytes at `offset` are inside `pages`. No other buffer has any of
///   them, and no [`DmaMemory`](super::DmaMemory) has these pages.
pub(crate) struct DmaBuffer {
    pages: Arc<Pages>,
    offset: usize,
    len: usize,
}

impl DmaBuffer {
    /// Allocates a zeroed buffer of `len` bytes, at most 1 MiB, on the device's NUMA node, and maps
    /// it. Fails with `EINVAL` if `len` is 0 or more, and with `ENOMEM`.
    ///
    /// # Context
    ///
    /// May sleep. Dropping it does not sleep.
    pub(crate) fn alloc(device: &Arc<Device>, len: usize, direction: Direction) -> Result<Self> {
        Self::of(device, len, direction, Alloc::MaySleep)
    }

    /// Allocates a buffer like [`Self::alloc`], if there is free memory for it. Leaves the reserves
    /// of the system alone, also within [`with_reserves`](crate::base::sync::with_reserves).
    ///
    /// # Context
    ///
    /// Tasks only. Does not wait for memory.
    pub(crate) fn alloc_free(
        device: &Arc<Device>,
        len: usize,
        direction: Direction,
    ) -> Result<Self> {
        Self::of(device, len, direction, Alloc::Free)
    }

    fn of(device: &Arc<Device>, len: usize, direction: Direction, alloc: Alloc) -> Result<Self> {
        let node = device.numa_node();
        // INVARIANT: The pages suffice for `len` bytes, and nobody else knows them.
        Ok(Self {
            pages: Pages::alloc(device, len, MAX_BUFFER, node, direction, alloc)?,
            offset: 0,
            len,
        })
    }

    /// Splits the buffer into buffers of `len` bytes, in order. A rest at the end is not used.
    ///
    /// The memory is freed when the last of them is. Where the device and the CPU do not see the
    /// same caches, buffers that are written at the same time should not share a cache line.
    ///
    /// # Context
    ///
    /// Any. Does not allocate.
    pub(crate) fn split(self, len: usize) -> impl Iterator<Item = Self> {
        let count = self.len.checked_div(len).unwrap_or(0);
        (0..count).map(move |index| {
            // INVARIANT: They are pieces of `self`, which is not used any more, and do not overlap.
            Self {
                pages: self.pages.clone(),
                offset: self.offset + index * len,
                len,
            }
        })
    }

    /// Shortens the buffer to its first `len` bytes. Fails with `EINVAL` if it has fewer, or if
    /// `len` is 0.
    pub(crate) fn truncate(&mut self, len: usize) -> Result {
        if len == 0 || len > self.len {
            return Err(EINVAL);
        }
        // INVARIANT: The buffer only gets shorter.
        self.len = len;
        Ok(())
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the DMA address.
    #[inline]
    pub(in crate::rdma) fn addr(&self) -> u64 {
        self.pages.addr + self.offset as u64
    }

    /// Which side writes the memory.
    #[inline]
    pub(in crate::rdma) fn direction(&self) -> Direction {
        self.pages.direction
    }

    /// Returns true if the buffer is mapped for `device`.
    #[inline]
    pub(in crate::rdma) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.pages.device, device)
    }

    /// Makes what the CPU wrote visible to the device.
    #[inline]
    pub(in crate::rdma) fn sync_for_device(&self) {
        self.pages.sync_for_device(self.offset, self.len);
    }

    /// Makes what the device wrote visible to the CPU.
    #[inline]
    pub(in crate::rdma) fn sync_for_cpu(&self) {
        self.pages.sync_for_cpu(self.offset, self.len);
    }

    /// The memory from `offset` on, if `len` bytes from there are inside.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                // SAFETY: By the type invariants the range is inside the pages.
                Ok(unsafe { self.pages.virt.as_ptr().add(self.offset + offset) })
            }
            _ => Err(EINVAL),
        }
    }

    /// Copies `data` to `offset`. Fails with `EINVAL`, and copies nothing, if it does not fit.
    pub(crate) fn copy_in(&mut self, offset: usize, data: &[u8]) -> Result {
        let to = self.at(offset, data.len())?;
        // SAFETY: The range was checked to be inside the memory, which by the type invariants is
        // this buffer's alone, and which the exclusive reference shows to be in no posted work
        // request.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Copies from `offset` to `data`. Fails with `EINVAL`, and copies nothing, if there is not as
    /// much.
    pub(crate) fn copy_out(&self, offset: usize, data: &mut [u8]) -> Result {
        let from = self.at(offset, data.len())?;
        // SAFETY: The range was checked to be inside the memory, which by the type invariants is
        // this buffer's alone. Nobody writes it: the CPU does so through an exclusive reference,
        // and a device while a queue pair has exclusive access to the buffer.
        unsafe { core::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Returns the contents of the `len` bytes at `offset`. Fails with `EINVAL` if there are fewer.
    ///
    /// The buffer is not in a posted work request: the caller has it for itself.
    #[inline]
    pub(crate) fn contents(&mut self, offset: usize, len: usize) -> Result<Contents<'_>> {
        self.shared_contents(offset, len)
    }

    /// Returns the same for reading, while others may read the buffer, too.
    #[inline]
    fn shared_contents(&self, offset: usize, len: usize) -> Result<Contents<'_>> {
        self.at(offset, len)?;
        // CAST: A buffer has at most 1 MiB.
        let (offset, len) = ((self.offset + offset) as u32, len as u32);
        // SAFETY: The range was checked to be inside the pages, which are ours and in the direct
        // map as long as `self` is. Nobody makes references to them.
        Ok(unsafe { Contents::new(Segment::new(self.pages.page, offset, len)) })
    }

    /// Copies `len` bytes from `offset` on to the start of `memory`. Fails with `EINVAL` if the
    /// buffer or the memory has fewer, or if devices may not write the memory; in the former case a
    /// part may have been copied. Any context.
    pub(crate) fn copy_to(&self, offset: usize, len: usize, memory: &impl Segmented) -> Result {
        copy(len, &self.shared_contents(offset, len)?, memory)
    }
}
