// SPDX-License-Identifier: GPL-2.0

//! What is behind an export.

#![forbid(unsafe_code)]

mod bdev;
mod ram;

use kernel::prelude::*;
use kernel::{
    str::CString,
    sync::{
        atomic::Atomic,
        Arc, //
    }, //
};

pub(crate) use self::{
    bdev::Block,
    ram::Ram, //
};
use crate::base::sync;
use crate::block::bdev::DeviceId;
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    BlockLimits,
    BlockSize,
    Extent,
    Kind,
    Uuid, //
};

/// What the contents of an export are to be.
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
    /// Where the memory comes from; -1 for anywhere; of `ram` only.
    pub(crate) numa_node: i32,
    /// Bytes of memory that have to remain available on this host; of `ram` only.
    pub(crate) ram_reserve: u64,
}

/// Tells the contents of an export from others that it had before.
#[derive(Clone, Copy)]
pub(crate) enum Contents {
    /// Memory. Which memory it is the instance tells.
    Ram,
    /// A block device.
    Block(DeviceId),
}

impl Contents {
    /// Returns true if a map may go on with `self` where it was before with `past`.
    pub(super) fn is_same(&self, past: &Self) -> bool {
        match (self, past) {
            (Self::Ram, Self::Ram) => true,
            (Self::Block(device), Self::Block(past)) => device.is_same(past),
            _ => false,
        }
    }
}

/// The contents of an enabled export.
pub(crate) enum Backend {
    /// Memory, which clients read and write by themselves.
    Ram(Ram),
    /// A block device, which the server reads and writes for them.
    Block(Arc<Block>),
}

impl Backend {
    /// Allocates the memory, or opens the device for `access`. In the task of the user, whose name
    /// space has the path. May sleep, and may take long: `allocated` tells how many bytes of memory there
    /// are so far. Fails with `EINTR` if the task is killed meanwhile.
    pub(crate) fn new(
        source: &Source,
        access: Access,
        boot: Uuid,
        allocated: &Atomic<u64>,
    ) -> Result<Self, Failure> {
        match source.kind {
            Kind::Ram if source.device_path.is_some() => {
                Err(fail!(EINVAL, "device_path: an export of RAM has none"))
            }
            Kind::Ram => Ram::new(source, allocated).map(Self::Ram),
            Kind::Block => Block::open(source, access, boot).map(Self::Block),
        }
    }

    /// The kind of the export.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Ram(_) => Kind::Ram,
            Self::Block(_) => Kind::Block,
        }
    }

    /// Who the contents are: other contents, other instance.
    pub(crate) fn instance(&self) -> Uuid {
        match self {
            Self::Ram(ram) => ram.instance,
            Self::Block(block) => block.instance,
        }
    }

    /// What the contents are. Sleeps.
    pub(crate) fn contents(&self) -> Contents {
        match self {
            Self::Ram(_) => Contents::Ram,
            Self::Block(block) => Contents::Block(block.id()),
        }
    }

    /// Bytes of memory that it has for the contents. Any context.
    pub(crate) fn allocated(&self) -> u64 {
        match self {
            Self::Ram(ram) => ram.geometry.size(),
            Self::Block(_) => 0,
        }
    }

    /// Its size now, and what may be done with it now. Any context.
    pub(crate) fn extent(&self) -> Extent {
        match self {
            Self::Ram(ram) => Extent {
                size: ram.geometry.size(),
                access: Access::ReadWrite,
            },
            Self::Block(block) => block.extent(),
        }
    }

    /// The number of that extent: larger than that of any before, as long as the export has the same
    /// instance. To be read before the extent is, which is then no older. Any context.
    pub(crate) fn extent_number(&self) -> u32 {
        match self {
            // It never changes.
            Self::Ram(_) => 0,
            Self::Block(block) => block.extent_number(),
        }
    }

    /// Gives the extent a new number: what a client may do with it has changed. Any context.
    pub(crate) fn renumber(&self) {
        match self {
            // A client that may do less is not let in any more.
            Self::Ram(_) => {}
            Self::Block(block) => block.renumber(),
        }
    }

    /// The limits of the export as a block device.
    pub(crate) fn limits(&self) -> BlockLimits {
        match self {
            Self::Ram(ram) => ram.limits(),
            Self::Block(block) => *block.limits(),
        }
    }
}

/// An identity that no other contents have.
pub(super) fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    sync::random_bytes(&mut bytes);
    Uuid::from_random(bytes)
}
