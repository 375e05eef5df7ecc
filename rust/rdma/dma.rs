// SPDX-License-Identifier: GPL-2.0

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

mod buffer;
mod mapping;
mod memory;

pub(crate) use self::{
    buffer::DmaBuffer,
    mapping::SgMapping,
    memory::{
        DmaMemory,
        DmaPiece, //
    }, //
};

use crate::base::{
    memory::NumaNode,
    workqueue::Deferred, //
};
use crate::bindings;
use crate::rdma::{
    device::Device,
    might_sleep, //
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
struct Pages {
    page: NonNull<bindings::page>,
    virt: NonNull<u8>,
    addr: u64,
    order: u32,
    direction: Direction,
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
            from_dma_api: Some(Deferred::new(device.release(), pages)?),
            device: device.clone(),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Makes what the CPU, or another device, wrote to a range inside visible to the device.
    #[inline]
    fn sync_for_device(&self, offset: usize, len: usize) {
        if self.device.uses_virt_dma() {
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
        if self.device.uses_virt_dma() {
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
