// SPDX-License-Identifier: GPL-2.0

//! The settings from which the contents of an export are made.

#![forbid(unsafe_code)]

use kernel::{
    str::CString,
    sync::Arc, //
};

use crate::base::{
    memory::NumaNode,
    sync, //
};
use crate::proto::{
    BlockSize,
    Kind,
    Uuid, //
};

/// Says what the contents of an export are to be.
#[derive(Clone)]
pub(crate) struct Source {
    /// Memory or a block device.
    pub(crate) kind: Kind,
    /// The block device; of `block` only.
    pub(crate) device_path: Option<Arc<CString>>,
    /// Bytes; of `ram` only.
    pub(crate) size: u64,
    /// Logical block size; of `ram` only.
    pub(crate) block_size: Option<BlockSize>,
    /// The NUMA node of the memory; of `ram` only.
    pub(crate) numa_node: NumaNode,
    /// Bytes of memory that have to remain available on this host; of `ram` only.
    pub(crate) ram_reserve: u64,
}

/// Returns an identity that no other contents have.
pub(super) fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    sync::random_bytes(&mut bytes);
    Uuid::from_random(bytes)
}
