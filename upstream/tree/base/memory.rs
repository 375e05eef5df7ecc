// SPDX-License-Identifier: GPL-2.0

//! The memory of this host: its NUMA nodes, and how much there is, those of the kernel crate.

pub(crate) use kernel::{
    alloc::NumaNode,
    mm::{
        available_memory,
        total_memory, //
    },
};
