// SPDX-License-Identifier: GPL-2.0

//! The budget that the pools of an HCA share, and the memory that counts against it.

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
use crate::session::{
    budget as share,
    chunks::CHUNK, //
};

const _: () = assert!(CHUNK <= DmaMemory::MAX);

/// The memory that the pools of an HCA, and the receives on it, may have together, and what they
/// have. The first chunk of each pool, the first receives of each connection and the reserved
/// memory of each account count, but are made in any case.
pub(in crate::server) struct Budget {
    pub(super) size: usize,
    /// Bytes of receives, and of the reserved memory of accounts.
    pub(super) lasting: Atomic<usize>,
    /// Chunks of all pools.
    chunks: Atomic<usize>,
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

    /// Returns true if there are more chunks than there may be.
    pub(super) fn is_exceeded(&self) -> bool {
        self.chunks.load(Relaxed) > self.chunks_max()
    }

    fn chunks_max(&self) -> usize {
        share::chunks_max(self.size, self.lasting.load(Relaxed))
    }

    /// Returns the number of chunks that a pool which has `count` may add.
    pub(super) fn growable(&self, count: usize) -> usize {
        let (pools, used) = (self.pools.load(Relaxed), self.chunks.load(Relaxed));
        share::growable(count, pools, used, self.chunks_max())
    }
}

/// Counts as a pool of a budget.
pub(super) struct CountedPool(pub(super) Arc<Budget>);

impl CountedPool {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        budget.pools.fetch_add(1, Relaxed);
        Self(budget.clone())
    }
}

impl Drop for CountedPool {
    fn drop(&mut self) {
        self.0.pools.fetch_sub(1, Relaxed);
    }
}

/// Memory that counts against a budget.
pub(in crate::server) struct PoolMemory {
    memory: DmaMemory,
    budget: Arc<Budget>,
    /// It is a chunk that pools share.
    is_chunk: bool,
}

impl PoolMemory {
    pub(super) fn chunk(device: &Arc<Device>, budget: &Arc<Budget>) -> Result<Self> {
        let memory = DmaMemory::alloc(device, CHUNK, device.numa_node())?;
        budget.chunks.fetch_add(1, Relaxed);
        Ok(Self {
            memory,
            budget: budget.clone(),
            is_chunk: true,
        })
    }

    /// Makes `len` bytes that are not cut from chunks, as they would keep these from being freed;
    /// `first` if they may be made in any case. Fails with `ENOMEM`. May sleep.
    pub(super) fn lasting(
        device: &Arc<Device>,
        budget: &Arc<Budget>,
        len: usize,
        first: bool,
    ) -> Result<Self> {
        let memory = DmaMemory::alloc(device, len, device.numa_node())?;
        let len = memory.len();
        let all = budget.lasting.fetch_add(len, Relaxed) + len;
        let made = Self {
            memory,
            budget: budget.clone(),
            is_chunk: false,
        };
        if share::may_last(budget.size, all, first) {
            Ok(made)
        } else {
            Err(ENOMEM)
        }
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns the `len` bytes at `offset`.
    pub(in crate::server) fn piece(&self, offset: usize, len: usize) -> Result<DmaPiece> {
        self.memory.piece(offset, len)
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        if self.is_chunk {
            self.budget.chunks.fetch_sub(1, Relaxed);
        } else {
            self.budget.lasting.fetch_sub(self.memory.len(), Relaxed);
        }
    }
}
