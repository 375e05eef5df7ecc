// SPDX-License-Identifier: GPL-2.0
// Long: all memory that is mapped, whose fields are its own.

//! Memory that is mapped for a device.
//!
//! # Beside the kernel crate's `dma` and `scatterlist`
//!
//! These two map memory for a [`kernel::device::Device`] that does DMA. An RDMA device need not
//! have such a one: those in software have no `dma_device`, and take the CPU's addresses of memory
//! in place of DMA addresses. The functions `ib_dma_*()` know of that (`ib_uses_virt_dma()`), so
//! those who use RDMA devices map memory by these, in C as here.
//!
//! Nor do they have what is needed where there is such a device. They want proof that a driver is
//! bound to it (`Device<Bound>`), which is that driver's, and not an RDMA client's. `kernel::dma`
//! has coherent memory, and no streaming mappings. `kernel::scatterlist` maps memory of `vmalloc()`
//! that it owns, and lends its `struct scatterlist` to nobody, which `ib_map_mr_sg()` takes. The
//! directions are an enum here, too: [`Direction`], since that of `kernel::dma` has `None`, for
//! which there is no mapping.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::base::{
    contents::{
        copy, //
        Contents,
    },
    errno::EOPNOTSUPP,
    memory::NumaNode,
    scatterlist::{
        PageChunks,
        Segment,
        Segmented, //
    },
    workqueue::Deferred, //
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    might_sleep,
    srq::KeptSlot, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Which side writes memory: C's `enum dma_data_direction`.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{device::Device, dma::{Direction, DmaBuffer}};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// // The device reads a message that is sent, and writes one that is received.
/// let command = DmaBuffer::alloc(device, 64, Direction::ToDevice)?;
/// let reply = DmaBuffer::alloc(device, 64, Direction::FromDevice)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The CPU writes and the device reads.
    ToDevice,
    /// The device writes and the CPU reads.
    FromDevice,
    /// Both the CPU and the device read and write.
    Bidirectional,
}

impl Direction {
    /// The C value.
    #[inline]
    pub(super) fn as_raw(self) -> i32 {
        match self {
            Self::Bidirectional => 0,
            Self::ToDevice => 1,
            Self::FromDevice => 2,
        }
    }

    /// Returns true if the device may read.
    #[inline]
    pub(super) fn device_reads(self) -> bool {
        self != Self::FromDevice
    }

    /// Returns true if the device may write.
    #[inline]
    pub(super) fn device_writes(self) -> bool {
        self != Self::ToDevice
    }
}

/// Physically contiguous pages, zeroed at first, that are mapped for a device as long as they
/// exist.
///
/// Where the device can be given no more than small pieces of any memory, as bounce buffers are
/// small, the DMA API allocates larger ones, where the device reaches them.
///
/// # Invariants
///
/// - `page` is the first of `1 << order` pages that are ours alone and in the direct map at `virt`.
/// - They are mapped for `device` at `addr`, in `direction`; they are those of `from_dma_api`, if
///   there is such a value.
/// - If `needs_sync` is false, the device and the CPU see the same without a sync.
struct Pages {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
    addr: u64,
    order: u32,
    direction: Direction,
    needs_sync: bool,
    from_dma_api: Option<Deferred<DmaApiPages>>,
    device: Arc<Device>,
}

/// Pages that the DMA API has allocated. The drop may sleep: in a guest whose memory is encrypted,
/// they have to be encrypted again.
///
/// # Invariants
///
/// - `page` is the first of `1 << order` pages that `dma_alloc_pages()` has allocated for `device`
///   at `addr`, in `direction`, and that are ours alone.
struct DmaApiPages {
    page: NonNull<bindings::page>,
    addr: u64,
    order: u32,
    direction: Direction,
    device: Arc<Device>,
}

// SAFETY: Pages belong to no thread.
unsafe impl Send for DmaApiPages {}

impl Drop for DmaApiPages {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the pages were allocated just so, and are ours.
        unsafe {
            bindings::farblk_dma_free_pages(
                self.device.as_raw(),
                self.page.as_ptr(),
                self.order,
                self.addr,
                self.direction.as_raw(),
            );
        }
    }
}

// SAFETY: Pages and mappings belong to no thread.
unsafe impl Send for Pages {}

// SAFETY: The fields do not change. The types that share it say which of them may access
// the memory.
unsafe impl Sync for Pages {}

/// Which memory pages may be.
#[derive(Clone, Copy)]
enum Alloc {
    /// Any, also what others have to free first.
    MaySleep,
    /// What is free, without the reserves of the system.
    Free,
}

impl Pages {
    /// Allocates pages for `len` bytes, at most `max`, on NUMA node `node`, or anywhere when it is
    /// -1, by `alloc`, and maps them.
    fn alloc(
        device: &Arc<Device>,
        len: usize,
        max: usize,
        node: NumaNode,
        direction: Direction,
        alloc: Alloc,
    ) -> Result<Arc<Self>> {
        if len == 0 || len > max {
            return Err(EINVAL);
        }
        let order = len.div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros();
        let may_sleep = matches!(alloc, Alloc::MaySleep);
        if PAGE_SIZE << order > device.limits().dma_max_mapping_size {
            return Self::alloc_mapped(device, order, direction, may_sleep);
        }
        // SAFETY: The function has no requirements beyond the context.
        let page = unsafe { bindings::farblk_alloc_pages(node.as_raw(), order, may_sleep) };
        let page = NonNull::new(page).ok_or(ENOMEM)?;
        // SAFETY: The page was just allocated, and not in high memory.
        let virt = unsafe { bindings::farblk_page_address(page.as_ptr()) }.cast::<u8>();
        let mut addr = 0;
        let mapped = NonNull::new(virt).ok_or(ENOMEM).and_then(|virt| {
            // SAFETY: The device is registered by its invariants, and the pages are ours.
            to_result(unsafe {
                bindings::farblk_dma_map_page(
                    device.as_raw(),
                    page.as_ptr(),
                    0,
                    PAGE_SIZE << order,
                    direction.as_raw(),
                    &mut addr,
                )
            })?;
            Ok(virt)
        });
        let virt = match mapped {
            Ok(virt) => virt,
            Err(error) => {
                // SAFETY: The pages are ours and nothing uses them.
                unsafe { bindings::__free_pages(page.as_ptr(), order) };
                return Err(error);
            }
        };
        // INVARIANT: The pages were allocated and mapped just so.
        let this = Self {
            page,
            virt,
            addr,
            order,
            direction,
            // SAFETY: They are.
            needs_sync: unsafe { device.needs_sync(addr) },
            from_dma_api: None,
            device: device.clone(),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Allocates pages of `order` where `device`, which does not use virtual DMA, reaches them.
    fn alloc_mapped(
        device: &Arc<Device>,
        order: u32,
        direction: Direction,
        may_sleep: bool,
    ) -> Result<Arc<Self>> {
        let mut addr = 0;
        // SAFETY: The device is registered by its invariants, and has a limit for mappings.
        let page = unsafe {
            bindings::farblk_dma_alloc_pages(
                device.as_raw(),
                order,
                may_sleep,
                direction.as_raw(),
                &mut addr,
            )
        };
        let page = NonNull::new(page).ok_or(ENOMEM)?;
        // INVARIANT: They were allocated just so.
        let pages = DmaApiPages {
            page,
            addr,
            order,
            direction,
            device: device.clone(),
        };
        // SAFETY: The page was just allocated, and not in high memory.
        let virt = unsafe { bindings::farblk_page_address(page.as_ptr()) }.cast::<u8>();
        // INVARIANT: The pages were allocated and mapped just so. Pages that are not in high memory
        // have an address.
        let this = Self {
            page,
            virt: NonNull::new(virt).ok_or(ENOMEM)?,
            addr,
            order,
            direction,
            // SAFETY: They are.
            needs_sync: unsafe { device.needs_sync(addr) },
            from_dma_api: Some(Deferred::new(device.release(), pages)?),
            device: device.clone(),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Makes what the CPU, or another device, wrote to a range inside visible to the device.
    #[inline]
    fn sync_for_device(&self, offset: usize, len: usize) {
        if !self.needs_sync {
            return;
        }
        // SAFETY: By the type invariants the memory is mapped just so.
        unsafe {
            bindings::farblk_dma_sync_for_device(
                self.device.as_raw(),
                self.addr + offset as u64,
                len,
                self.direction.as_raw(),
            )
        };
    }

    /// Makes what the device wrote to a range inside visible to the CPU.
    #[inline]
    fn sync_for_cpu(&self, offset: usize, len: usize) {
        if !self.needs_sync {
            return;
        }
        // SAFETY: By the type invariants the memory is mapped just so.
        unsafe {
            bindings::farblk_dma_sync_for_cpu(
                self.device.as_raw(),
                self.addr + offset as u64,
                len,
                self.direction.as_raw(),
            )
        };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // That it is being dropped shows that nothing which refers to it is in a posted work
        // request.
        if self.from_dma_api.is_some() {
            return;
        }
        // SAFETY: By the type invariants the memory is mapped just so, and ours.
        unsafe {
            bindings::farblk_dma_unmap_page(
                self.device.as_raw(),
                self.addr,
                PAGE_SIZE << self.order,
                self.direction.as_raw(),
            );
            bindings::__free_pages(self.page.as_ptr(), self.order);
        }
    }
}

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
///   them, and no [`DmaMemory`] has these pages.
pub(crate) struct DmaBuffer {
    pages: Arc<Pages>,
    offset: u32,
    len: u32,
    /// Used only if it is received into.
    kept: KeptSlot,
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
            // CAST: At most 1 MiB.
            len: len as u32,
            kept: KeptSlot::default(),
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
        let count = self.len().checked_div(len).unwrap_or(0);
        (0..count).map(move |index| {
            // INVARIANT: They are pieces of `self`, which is not used any more, and do not overlap.
            Self {
                pages: self.pages.clone(),
                // CAST: As much is inside the pages, which have at most 1 MiB.
                offset: self.offset + (index * len) as u32,
                len: len as u32,
                kept: KeptSlot::default(),
            }
        })
    }

    /// Shortens the buffer to its first `len` bytes. Fails with `EINVAL` if it has fewer, or if
    /// `len` is 0.
    pub(crate) fn truncate(&mut self, len: usize) -> Result {
        if len == 0 || len > self.len() {
            return Err(EINVAL);
        }
        // INVARIANT: The buffer only gets shorter.
        // CAST: At most 1 MiB.
        self.len = len as u32;
        Ok(())
    }

    /// Returns the size in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // CAST: To a larger type.
        self.len as usize
    }

    /// Returns where an owner of the buffer can keep its slot of a receive queue; see
    /// [`RecvOwner::kept`](crate::rdma::wr::RecvOwner::kept).
    #[inline]
    pub(crate) fn kept_slot(&mut self) -> &mut KeptSlot {
        &mut self.kept
    }

    /// Returns the DMA address.
    #[inline]
    pub(super) fn addr(&self) -> u64 {
        self.pages.addr + u64::from(self.offset)
    }

    /// Which side writes the memory.
    #[inline]
    pub(super) fn direction(&self) -> Direction {
        self.pages.direction
    }

    /// Returns true if the buffer is mapped for `device`.
    #[inline]
    pub(super) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.pages.device, device)
    }

    /// Makes what the CPU wrote visible to the device.
    #[inline]
    pub(super) fn sync_for_device(&self) {
        self.pages.sync_for_device(self.offset as usize, self.len());
    }

    /// Makes what the device wrote visible to the CPU.
    #[inline]
    pub(super) fn sync_for_cpu(&self) {
        self.pages.sync_for_cpu(self.offset as usize, self.len());
    }

    /// The memory from `offset` on, if `len` bytes from there are inside.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => {
                // SAFETY: By the type invariants the range is inside the pages.
                Ok(unsafe { self.pages.virt.as_ptr().add(self.offset as usize + offset) })
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
        let (offset, len) = (self.offset + offset as u32, len as u32);
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
/// - No [`DmaBuffer`] has these pages.
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
    pub(super) fn addr(&self) -> u64 {
        self.pages.addr + u64::from(self.offset)
    }

    /// Returns true if the memory is mapped for `device`.
    #[inline]
    pub(super) fn is_for(&self, device: &Device) -> bool {
        core::ptr::eq(&*self.pages.device, device)
    }

    /// Makes what was written visible to the device.
    #[inline]
    pub(super) fn sync_for_device(&self) {
        let (offset, len) = (self.offset as usize, self.len as usize);
        self.pages.sync_for_device(offset, len);
    }

    /// Makes what the device wrote visible to the CPU and to other devices.
    #[inline]
    pub(super) fn sync_for_cpu(&self) {
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

/// A range of [`PageChunks`] that is mapped for a device.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::scatterlist::PageChunks,
/// #     rdma::{device::Device, dma::{Direction, SgMapping}},
/// # };
/// # use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};
/// # fn example(device: &Arc<Device>) -> Result {
/// let pages = PageChunks::alloc(16 * PAGE_SIZE, device.numa_node())?;
/// let memory = SgMapping::map(device, &pages, 0, 16 * PAGE_SIZE, Direction::Bidirectional)?;
/// memory.write(0, b"what peers find there")?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `table` was allocated by `sg_alloc_table()` and is freed by `drop()` and nothing else.
/// - It describes the `len` bytes at `offset` of `memory`, which has them, mapped for `device` in
///   `direction` to the first `mapped` entries.
/// - All these begin at a multiple of `page_size`, which is a power of two and which the device
///   supports, and all but the last end at one.
pub(crate) struct SgMapping {
    table: bindings::sg_table,
    mapped: i32,
    len: usize,
    page_size: usize,
    direction: Direction,
    device: Arc<Device>,
    memory: Arc<PageChunks>,
    offset: usize,
}

// SAFETY: Mappings belong to no thread.
unsafe impl Send for SgMapping {}

// SAFETY: The fields do not change.
unsafe impl Sync for SgMapping {}

impl SgMapping {
    /// Maps the `len` bytes at `offset` of `memory` for `device`.
    ///
    /// Fails with `EINVAL` if that is not a range of whole pages inside `memory`, or the device has
    /// no page size for it, and with `ENOMEM`. Fails with `EOPNOTSUPP` if the device would see a
    /// copy of the memory, in a bounce buffer: no other mapping would see what its peers write.
    ///
    /// # Context
    ///
    /// May sleep; so may dropping the last reference.
    pub(crate) fn map(
        device: &Arc<Device>,
        memory: &Arc<PageChunks>,
        offset: usize,
        len: usize,
        direction: Direction,
    ) -> Result<Arc<Self>> {
        if len == 0 || len % PAGE_SIZE != 0 || offset % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        // An entry is at most as long as the device takes.
        let max = device.limits().dma_max_seg_size as usize;
        let max = PAGE_SIZE << (max / PAGE_SIZE).checked_ilog2().unwrap_or(0);
        let pieces = || {
            memory.segments(offset, len).flat_map(move |segment| {
                let (start, end) = (segment.offset() as usize, segment.len() as usize);
                (0..end)
                    .step_by(max)
                    .map(move |at| (segment.page(), start + at, max.min(end - at)))
            })
        };
        let count = u32::try_from(pieces().count())?;
        if count == 0 {
            return Err(EINVAL);
        }
        let mut table = bindings::sg_table::default();
        // SAFETY: `table` is zeroed, as the function wants it.
        to_result(unsafe { bindings::sg_alloc_table(&mut table, count, bindings::GFP_KERNEL) })?;
        let mut entry = table.sgl;
        for (page, offset, len) in pieces() {
            // SAFETY: The table has as many entries as there are pieces. CAST: Both are less than
            // the size of a chunk.
            unsafe {
                bindings::farblk_sg_set_page(entry, page.as_ptr(), len as u32, offset as u32);
                entry = bindings::sg_next(entry);
            }
        }
        // SAFETY: The device is registered by its invariants, and the table describes pages that
        // `memory` owns.
        let mapped = unsafe {
            bindings::farblk_dma_map_sg(
                device.as_raw(),
                table.sgl,
                count as i32,
                direction.as_raw(),
            )
        };
        if mapped <= 0 {
            // SAFETY: The table was allocated above.
            unsafe { bindings::sg_free_table(&mut table) };
            return Err(ENOMEM);
        }
        let mut this = Self {
            table,
            mapped,
            len,
            page_size: 0,
            direction,
            device: device.clone(),
            memory: memory.clone(),
            offset,
        };
        if this.is_copy() {
            return Err(EOPNOTSUPP);
        }
        // INVARIANT: `best_page_size()` finds a size for which the invariant is true.
        this.page_size = this.best_page_size(memory.chunk_size().max(PAGE_SIZE))?;
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Returns true if the device sees a copy of any of the memory.
    fn is_copy(&self) -> bool {
        let mut entry = self.table.sgl;
        for index in 1..=self.mapped {
            // SAFETY: By the type invariants there are `mapped` mapped entries.
            if unsafe { self.device.sees_copy(bindings::sg_dma_address(entry)) } {
                return true;
            }
            if index < self.mapped {
                // SAFETY: This is not the last entry.
                entry = unsafe { bindings::sg_next(entry) };
            }
        }
        false
    }

    /// Returns the largest page size, at most `max`, for a memory region over the mapping.
    fn best_page_size(&self, max: usize) -> Result<usize> {
        let mut bits = 0;
        let mut entry = self.table.sgl;
        for index in 1..=self.mapped {
            // SAFETY: By the type invariants there are `mapped` mapped entries.
            let (addr, len) =
                unsafe { (bindings::sg_dma_address(entry), bindings::sg_dma_len(entry)) };
            bits |= addr;
            if index < self.mapped {
                bits |= u64::from(len);
                // SAFETY: This is not the last entry.
                entry = unsafe { bindings::sg_next(entry) };
            }
        }
        let mut size = PAGE_SIZE << LARGEST_PAGE_SHIFT;
        // CAST: It is small.
        let smallest = self.device.region_page_size() as usize;
        while size >= smallest {
            if size <= max && bits & (size as u64 - 1) == 0 && self.device.has_page_size(size) {
                return Ok(size);
            }
            size /= 2;
        }
        Err(EINVAL)
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies from `offset` on to `bytes`. Fails with `EINVAL` if there is not as much. What a peer
    /// writes meanwhile may be there in part. Any context.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result {
        self.check(offset, bytes.len())?;
        self.sync(bindings::farblk_dma_sync_for_cpu);
        let mut rest = bytes;
        for part in self.memory.contents(self.offset + offset, rest.len()) {
            let (now, later) = rest.split_at_mut(part.len().min(rest.len()));
            part.read(now)?;
            rest = later;
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`. Fails with `EINVAL`, and copies nothing, if they do not fit. Any
    /// context.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        self.check(offset, bytes.len())?;
        let mut rest = bytes;
        for part in self.memory.contents(self.offset + offset, rest.len()) {
            let (now, later) = rest.split_at(part.len().min(rest.len()));
            part.write(now)?;
            rest = later;
        }
        self.sync(bindings::farblk_dma_sync_for_device);
        Ok(())
    }

    /// Fails with `EINVAL` if the `len` bytes at `offset` are not all inside.
    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Calls one of the DMA API's functions that make what one side wrote visible to the other, for
    /// each piece of the memory.
    fn sync(&self, sync: unsafe extern "C" fn(*mut bindings::ib_device, u64, usize, i32)) {
        if self.device.uses_virt_dma() {
            return;
        }
        let mut entry = self.table.sgl;
        for index in 1..=self.mapped {
            // SAFETY: By the type invariants there are `mapped` mapped entries, mapped just so.
            unsafe {
                sync(
                    self.device.as_raw(),
                    bindings::sg_dma_address(entry),
                    bindings::sg_dma_len(entry) as usize,
                    self.direction.as_raw(),
                );
                if index < self.mapped {
                    entry = bindings::sg_next(entry);
                }
            }
        }
    }

    /// Returns the mapped entries, for `ib_map_mr_sg()`, which does not change them.
    pub(super) fn entries(&self) -> (*mut bindings::scatterlist, i32) {
        (self.table.sgl, self.mapped)
    }

    /// Returns the page size of memory regions over the mapping.
    pub(super) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns the device.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Which side writes the memory.
    pub(super) fn direction(&self) -> Direction {
        self.direction
    }
}

/// The largest page size that is tried is `PAGE_SIZE` shifted by this.
const LARGEST_PAGE_SHIFT: u32 = 9;

impl Drop for SgMapping {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariants the table is mapped just so, and ours. Memory regions
        // over it hold a reference to `self`, so none is left.
        unsafe {
            bindings::farblk_dma_unmap_sg(
                self.device.as_raw(),
                self.table.sgl,
                self.table.orig_nents as i32,
                self.direction.as_raw(),
            );
            bindings::sg_free_table(&mut self.table);
        }
    }
}
