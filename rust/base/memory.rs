// SPDX-License-Identifier: GPL-2.0

//! The memory of this host: its NUMA nodes, and how much there is.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)\
//! C header: [`include/linux/nodemask.h`](srctree/include/linux/nodemask.h)

// UPSTREAM: upstream/tree/base/memory.rs takes the place of this file, with patches 0006 and 0007
// of upstream/rust.

#![allow(unsafe_code)]

use crate::bindings;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// A NUMA node, or none in particular. (That of the kernel crate tells nobody which one it is.)
///
/// # Examples
///
/// ```
/// # use crate::base::{memory::NumaNode, scatterlist::PageChunks};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(node: i32) -> Result<Arc<PageChunks>> {
/// let node = NumaNode::new(node)?;
/// if !node.is_online() {
///     return Err(ENODEV);
/// }
/// PageChunks::alloc(1 << 20, node)
/// # }
/// ```
///
/// # Invariants
///
/// It is at least 0 and less than `MAX_NUMNODES`, or `NUMA_NO_NODE`.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct NumaNode(i32);

impl NumaNode {
    /// No node in particular.
    // INVARIANT: It is `NUMA_NO_NODE`.
    pub(crate) const NO_NODE: Self = Self(bindings::NUMA_NO_NODE);

    /// Returns a node by its number. Fails with `EINVAL` if no kernel like this one has it.
    pub(crate) fn new(node: i32) -> Result<Self> {
        // CAST: A small number.
        if node < 0 || node >= bindings::MAX_NUMNODES as i32 {
            return Err(EINVAL);
        }
        // INVARIANT: It was checked.
        Ok(Self(node))
    }

    /// Returns true if the node is online, or is none in particular. Any context.
    pub(crate) fn is_online(self) -> bool {
        // SAFETY: By the type invariants it is a node that there may be.
        self == Self::NO_NODE || unsafe { bindings::node_online(self.0) }
    }

    /// Returns the number as C has it: -1 if it is none in particular.
    #[inline]
    pub(crate) fn as_raw(self) -> i32 {
        self.0
    }
}

/// Returns how many bytes of memory this host can allocate without swapping; `MemAvailable` of
/// /proc/meminfo. Any context.
pub(crate) fn available_memory() -> u64 {
    // SAFETY: The function has no requirements.
    let pages = unsafe { bindings::si_mem_available() };
    // It may be negative for a moment.
    u64::try_from(pages).unwrap_or(0) * PAGE_SIZE as u64
}

/// Returns how many bytes of memory this host has. Any context.
pub(crate) fn total_memory() -> u64 {
    // SAFETY: The function has no requirements.
    let pages = unsafe { bindings::totalram_pages() };
    // CAST: An unsigned long has at most 64 bits.
    pages as u64 * PAGE_SIZE as u64
}
