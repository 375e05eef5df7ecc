// SPDX-License-Identifier: GPL-2.0

//! The contents of an enabled export, of whichever kind.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::Atomic,
    Arc, //
};

use crate::base::sync::Completion;
use crate::block::bdev::DeviceId;
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    BlockLimits,
    Extent,
    Kind,
    Uuid, //
};
use crate::server::backend::{
    bdev::{
        Block,
        LastClose, //
    },
    ram::Ram,
    source::Source, //
};

/// Tells the contents of an export from others that it had before.
#[derive(Clone, Copy)]
pub(crate) enum ContentsId {
    /// Memory. Its instance tells one allocation from another.
    Ram,
    /// A block device.
    Block(DeviceId),
}

impl ContentsId {
    /// Returns true if a map may go on with `self` where it was before with `past`.
    pub(in crate::server) fn is_same(&self, past: &Self) -> bool {
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
    /// Allocates the memory, or opens the device for `access`.
    ///
    /// Must run in the task of the user, whose mount namespace has the path. May sleep, and may
    /// take long: `allocated` is kept up to date with how many bytes of memory there are so far.
    /// Fails with `EINTR` if the task is killed meanwhile.
    pub(crate) fn new(
        source: &Source,
        access: Access,
        last_close: &Arc<LastClose>,
        allocated: &Atomic<u64>,
    ) -> Result<Self, Failure> {
        match source.kind {
            Kind::Ram if source.device_path.is_some() => {
                Err(fail!(EINVAL, "device_path: an export of RAM has none"))
            }
            Kind::Ram => Ram::new(source, allocated).map(Self::Ram),
            Kind::Block => Block::open(source, access, last_close).map(Self::Block),
        }
    }

    /// Notes that clients may log in from now on, until [`Backend::close`]. An export that could
    /// not be enabled has lost nothing. May sleep.
    pub(crate) fn begin(&self) {
        match self {
            Self::Ram(_) => {}
            Self::Block(block) => block.begin(),
        }
    }

    /// Makes what clients wrote durable. Called before the drop, after the last I/O of all clients
    /// has ended. Returns true if that was needed, and is done. May sleep, as long as the backing
    /// device takes.
    pub(crate) fn close(&self) -> bool {
        match self {
            Self::Ram(_) => false,
            Self::Block(block) => block.close(),
        }
    }

    /// Leaves nothing in memory that clients wrote there. Called before the drop, after the last
    /// client has gone. May sleep, as long as it takes.
    pub(crate) fn clear(&self) {
        if let Self::Ram(ram) = self {
            ram.clear(|_| true);
        }
    }

    /// Returns what is done when the last reference to the contents has been dropped: then the
    /// memory is released, or the device is closed. Any context.
    pub(crate) fn released(&self) -> Arc<Completion> {
        match self {
            Self::Ram(ram) => ram.released.completion(),
            Self::Block(block) => block.released.completion(),
        }
    }

    /// Returns the kind of the export.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Ram(_) => Kind::Ram,
            Self::Block(_) => Kind::Block,
        }
    }

    /// Returns the identity of the contents: other contents have another instance.
    pub(crate) fn instance(&self) -> Uuid {
        match self {
            Self::Ram(ram) => ram.instance(),
            Self::Block(block) => block.instance,
        }
    }

    /// Returns what tells the contents from others. Sleeps.
    pub(crate) fn contents(&self) -> ContentsId {
        match self {
            Self::Ram(_) => ContentsId::Ram,
            Self::Block(block) => ContentsId::Block(block.id()),
        }
    }

    /// Returns the bytes of memory that are allocated for the contents. Any context.
    pub(crate) fn allocated(&self) -> u64 {
        match self {
            Self::Ram(ram) => ram.size,
            Self::Block(_) => 0,
        }
    }

    /// Returns the present size, and what may be done with the contents at present. Any context.
    pub(crate) fn extent(&self) -> Extent {
        match self {
            Self::Ram(ram) => Extent {
                size: ram.size,
                access: Access::ReadWrite,
            },
            Self::Block(block) => block.extent(),
        }
    }

    /// Returns the number of the present extent. Each change of the extent raises it, and so does
    /// enabling the export of a device; after 2^32-1 comes 0. If it is read before the extent, the
    /// extent is no older than the number. Any context.
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
            // A client that may do less than it asks for is refused.
            Self::Ram(_) => {}
            Self::Block(block) => block.renumber(),
        }
    }

    /// Returns the limits of the export as a block device.
    pub(crate) fn limits(&self) -> BlockLimits {
        match self {
            Self::Ram(ram) => ram.limits(),
            Self::Block(block) => *block.limits(),
        }
    }
}
