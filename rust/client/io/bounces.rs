// SPDX-License-Identifier: GPL-2.0

//! The bounce buffers of a path whose I/O has a [`Protection`](crate::proto::Protection), or whose
//! device can only register whole pages: what the server sees in place of the pages of requests.
//!
//! All are made when the path connects first, and stay with it: memory may be short when it comes
//! back.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    page::PAGE_SIZE,
    sync::Arc, //
};

use crate::base::{
    bounce::BounceBuffer,
    memory::NumaNode,
    scatterlist::PageChunksBuilder,
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
};

/// The largest read or write, in bytes.
pub(in crate::client) const MAX: u32 = 128 << 10;
/// The number of buffers for that: others wait, as they do when the send queue is full.
const LARGE: usize = 16;
/// The number of them that only large requests take, so that small ones do not make them wait for
/// ever.
const RESERVED: usize = 4;
/// Bytes of a small buffer.
const SMALL_SIZE: u32 = PAGE_SIZE as u32;
/// The number of small buffers. Once they are in use, large ones serve, too. Where a page is large,
/// so many would take more memory than the large ones.
const SMALL: usize = match SMALL_SIZE {
    ..=0x4000 => 128,
    _ => 32,
};
/// Bytes of a large buffer and its private part, and of a small one.
const LARGE_BYTES: usize = 2 * MAX as usize;
const SMALL_BYTES: usize = 2 * SMALL_SIZE as usize;
/// Bytes of all buffers: 5 MiB with pages of 4 KiB, 8 MiB with pages of 64 KiB.
const TOTAL: usize = LARGE * LARGE_BYTES + SMALL * SMALL_BYTES;

/// The buffers that are not in use. There is capacity for all.
struct Free {
    large: KVec<KBox<BounceBuffer>>,
    small: KVec<KBox<BounceBuffer>>,
}

/// The bounce buffers of a path. The last reference must be dropped where sleeping is allowed.
#[pin_data]
pub(in crate::client) struct Bounces {
    #[pin]
    free: IrqSaveSpinLock<Free>,
}

impl Bounces {
    /// Makes the buffers, on NUMA node `numa_node`. Fails with `ENOMEM`, also if memory is too
    /// fragmented. May sleep.
    pub(in crate::client) fn new(numa_node: NumaNode) -> Result<Arc<Self>> {
        let mut builder = PageChunksBuilder::new(TOTAL, numa_node)?;
        builder.grow(TOTAL)?;
        let memory = builder.finish()?;
        let mut free = Free {
            large: KVec::with_capacity(LARGE, GFP_KERNEL)?,
            small: KVec::with_capacity(SMALL, GFP_KERNEL)?,
        };
        let fragmented = |_| ENOMEM;
        for index in 0..LARGE {
            let buffer = BounceBuffer::new(&memory, index * LARGE_BYTES, MAX);
            let buffer = KBox::new(buffer.map_err(fragmented)?, GFP_KERNEL)?;
            free.large.push(buffer, GFP_KERNEL)?;
        }
        for index in 0..SMALL {
            let offset = LARGE * LARGE_BYTES + index * SMALL_BYTES;
            let buffer = BounceBuffer::new(&memory, offset, SMALL_SIZE);
            let buffer = KBox::new(buffer.map_err(fragmented)?, GFP_KERNEL)?;
            free.small.push(buffer, GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self { free <- new_irqsave_spinlock!(free, "Bounces::free") }),
            GFP_KERNEL,
        )
    }

    /// Takes a buffer of `len` bytes, of which devices get no less than `whole_pages`; `None` if
    /// none is free. Any context.
    pub(in crate::client) fn take(
        &self,
        len: u32,
        whole_pages: bool,
    ) -> Option<KBox<BounceBuffer>> {
        let mut free = self.free.lock();
        let is_small = len <= SMALL_SIZE;
        let small = match is_small {
            true => free.small.pop(),
            false => None,
        };
        let mut buffer = match small {
            None if is_small && free.large.len() <= RESERVED => return None,
            None => free.large.pop()?,
            Some(buffer) => buffer,
        };
        match buffer.set_len(len, whole_pages) {
            Ok(()) => Some(buffer),
            Err(_) => {
                free.put(buffer);
                None
            }
        }
    }

    /// Gives back a buffer that [`Self::take`] has returned. Any context.
    pub(in crate::client) fn put(&self, buffer: KBox<BounceBuffer>) {
        self.free.lock().put(buffer);
    }
}

impl Free {
    fn put(&mut self, buffer: KBox<BounceBuffer>) {
        let place = match buffer.size() {
            SMALL_SIZE => &mut self.small,
            _ => &mut self.large,
        };
        // Cannot fail: there is capacity for all.
        let _ = place.push_within_capacity(buffer);
    }
}
