// SPDX-License-Identifier: GPL-2.0

//! The settings from which the contents of an export are made.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    str::CString,
    sync::Arc, //
};

use crate::base::sync::{
    self,
    Completion, //
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
    /// The NUMA node of the memory, -1 for any; of `ram` only.
    pub(crate) numa_node: i32,
    /// Bytes of memory that have to remain available on this host; of `ram` only.
    pub(crate) ram_reserve: u64,
}

/// Signals its completion when it is dropped: the last field of the contents, so that they are gone
/// by then.
pub(super) struct Released(Arc<Completion>);

impl Released {
    /// Makes the completion. May sleep.
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Arc::pin_init(Completion::new(), GFP_KERNEL)?))
    }

    /// Returns the completion. Any context.
    pub(super) fn completion(&self) -> Arc<Completion> {
        self.0.clone()
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// Returns an identity that no other contents have.
pub(super) fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    sync::random_bytes(&mut bytes);
    Uuid::from_random(bytes)
}
