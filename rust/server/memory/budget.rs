// SPDX-License-Identifier: GPL-2.0

//! The budget that the pools of an HCA share, and the memory that counts against it and lasts.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

use crate::rdma::{
    device::Device,
    dma::{
        DmaMemory,
        DmaPiece, //
    },
};
use crate::server::memory::share;

/// The memory that the pools of an HCA may have together, and what they have.
///
/// Each pool has one chunk in any case, and gets further ones as [`share::may_grow`] says.
pub(in crate::server) struct Budget {
    /// The bytes that the pools may have. The first chunk of each, the first receives of each
    /// connection, and the own memory of each account, count, but are made in any case.
    pub(super) size: usize,
    /// The bytes that the receives of all pools and the accounts have.
    lasting: Atomic<usize>,
    /// The number of chunks that all pools have.
    chunks: Atomic<usize>,
    /// The number of pools.
    pools: Atomic<usize>,
}

impl Budget {
    /// Makes a budget of `size` bytes for pools to come. May sleep.
    pub(in crate::server) fn new(size: usize) -> Result<Arc<Self>> {
        let budget = Self {
            size,
            lasting: Atomic::new(0),
            chunks: Atomic::new(0),
            pools: Atomic::new(0),
        };
        Ok(Arc::new(budget, GFP_KERNEL)?)
    }

    /// Counts a pool. May sleep.
    pub(super) fn count_pool(budget: &Arc<Self>) -> Counted {
        Counted::new(budget, |budget| &budget.pools, 1).0
    }

    /// Counts a chunk. Any context.
    pub(super) fn count_chunk(budget: &Arc<Self>) -> Counted {
        Counted::new(budget, |budget| &budget.chunks, 1).0
    }

    /// Returns the number of chunks that there may be beside the memory that lasts.
    fn chunks_max(&self) -> usize {
        share::chunks_max(self.size, self.lasting.load(Relaxed))
    }

    /// Returns true if a pool that has `count` chunks may add one. Any context.
    pub(super) fn may_grow(&self, count: usize) -> bool {
        let (pools, used) = (self.pools.load(Relaxed), self.chunks.load(Relaxed));
        share::may_grow(count, pools, used, self.chunks_max())
    }

    /// Returns the number of chunks that a pool which has `count` may add. Any context.
    pub(super) fn growable(&self, count: usize) -> usize {
        let (pools, used) = (self.pools.load(Relaxed), self.chunks.load(Relaxed));
        share::growable(count, pools, used, self.chunks_max())
    }

    /// Returns true if there are more chunks than there may be. Any context.
    pub(super) fn is_exceeded(&self) -> bool {
        self.chunks.load(Relaxed) > self.chunks_max()
    }

    /// Returns the bytes of the own memory of another account. Any context.
    pub(super) fn own_len(&self) -> usize {
        share::own_len(self.size, self.lasting.load(Relaxed))
    }
}

/// A part of one of the sums of a budget, which the drop takes away again.
pub(super) struct Counted {
    pub(super) budget: Arc<Budget>,
    sum: fn(&Budget) -> &Atomic<usize>,
    count: usize,
}

impl Counted {
    /// Adds `count` to a sum. Also returns the sum.
    fn new(
        budget: &Arc<Budget>,
        sum: fn(&Budget) -> &Atomic<usize>,
        count: usize,
    ) -> (Self, usize) {
        let before = sum(budget).fetch_add(count, Relaxed);
        let counted = Self {
            budget: budget.clone(),
            sum,
            count,
        };
        (counted, before + count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.sum)(&self.budget).fetch_sub(self.count, Relaxed);
    }
}

/// Memory that counts against a budget and is not cut from chunks, as it would keep them from being
/// freed: that of receives, and the own memory of an account.
pub(in crate::server) struct Lasting {
    memory: DmaMemory,
    _counted: Counted,
}

impl Lasting {
    /// Makes `len` bytes, at most [`CHUNK`](super::buddy::CHUNK), if the budget allows it as
    /// [`share::may_last`] says; `first` if they may be made in any case. Fails with `ENOMEM`. May
    /// sleep.
    pub(super) fn alloc(
        device: &Arc<Device>,
        budget: &Arc<Budget>,
        len: usize,
        first: bool,
    ) -> Result<Self> {
        let memory = DmaMemory::alloc(device, len, device.numa_node())?;
        let bytes = memory.len();
        let (counted, all) = Counted::new(budget, |budget| &budget.lasting, bytes);
        match share::may_last(budget.size, all, first) {
            true => Ok(Self {
                memory,
                _counted: counted,
            }),
            false => Err(ENOMEM),
        }
    }

    /// Returns its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the `len` bytes at `offset`.
    pub(in crate::server) fn piece(&self, offset: usize, len: usize) -> Result<DmaPiece> {
        self.memory.piece(offset, len)
    }
}
