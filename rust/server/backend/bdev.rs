// SPDX-License-Identifier: GPL-2.0

//! A block device behind an export.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    new_mutex,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

use crate::base::{
    memory::NumaNode,
    sync::Released, //
};
use crate::block::bdev::{
    Bdev,
    BdevEvents,
    DeviceId, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    wire::IO_SIZE_MAX,
    Access,
    AtomicLimits,
    BlockLimits,
    BlockSize,
    Extent,
    Uuid, //
};
use crate::server::{
    backend::source::{
        random_uuid,
        Source, //
    },
    stats::ExportStats, //
};
use crate::session::flush;

/// Remembers how the device of an export was closed last. Lives as long as the export's directory:
/// no instance outlives it.
#[pin_data]
pub(crate) struct LastClose {
    #[pin]
    record: Mutex<flush::LastClose<DeviceId, Uuid>>,
    /// The number of the extent, that is, of the size and access. After 2^32-1 comes 0. It goes on
    /// when the export is disabled and enabled, which may keep its instance.
    number: Atomic<u32>,
}

impl LastClose {
    /// Makes the record of an export that was never enabled.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                record <- new_mutex!(flush::LastClose::new(), "LastClose::record"),
                number: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }
}

/// An open block device.
pub(crate) struct Block {
    /// The device.
    pub(crate) bdev: Bdev,
    dead: Arc<Dead>,
    /// Random. It changes whenever acknowledged writes that were not flushed may be lost.
    pub(crate) instance: Uuid,
    last_close: Arc<LastClose>,
    limits: BlockLimits,
    /// The access that the administrator allows.
    access: Access,
    /// In bytes: the last size that was not 0.
    size: Atomic<u64>,
    read_only: Atomic<u32>,
    /// The counters of the connections to the export.
    pub(in crate::server) stats: Arc<ExportStats>,
    // Last: the device is closed when it is dropped.
    pub(super) released: Released,
}

impl Block {
    /// Opens the device for exclusive use. Must run in the task of the user. May sleep.
    pub(super) fn open(
        source: &Source,
        access: Access,
        last_close: &Arc<LastClose>,
    ) -> Result<Arc<Self>, Failure> {
        for (set, name) in [
            (source.size != 0, "size"),
            (source.block_size.is_some(), "block_size"),
            (source.numa_node != NumaNode::NO_NODE, "numa_node"),
        ] {
            if set {
                return Err(fail!(
                    EINVAL,
                    "{name}: that of a block export is its device's"
                ));
            }
        }
        let Some(path) = &source.device_path else {
            return Err(fail!(EINVAL, "device_path is not set"));
        };
        let name = path.to_str().unwrap_or("the device");
        let dead = Arc::new(Dead(Atomic::new(0)), GFP_KERNEL)?;
        let bdev = Bdev::open(path, access.writes(), dead.clone()).map_err(|error| {
            if error == ENOENT {
                fail!(error, "{name} does not exist")
            } else if error == ENOTBLK {
                fail!(error, "{name} is not a block device")
            } else if error == EBUSY {
                fail!(error, "{name} is in use")
            } else if error == EROFS || error == EACCES {
                fail!(error, "{name} is read-only; so must the export be")
            } else {
                fail!(error, "cannot open {name}")
            }
        })?;
        let limits = limits(&bdev)?;
        let id = bdev.id();
        let block = Self {
            instance: last_close
                .record
                .lock()
                .open(|last| id.has_stayed(last), random_uuid()),
            last_close: last_close.clone(),
            limits,
            access,
            size: Atomic::new(size(&bdev, &limits)),
            read_only: Atomic::new(bdev.read_only().into()),
            stats: ExportStats::new()?,
            bdev,
            dead,
            released: Released::new()?,
        };
        if block.extent().size == 0 {
            return Err(fail!(ENODEV, "{name} has no room"));
        }
        // The size may have changed while the export was disabled.
        block.renumber();
        Ok(Arc::new(block, GFP_KERNEL)?)
    }

    /// Notes that clients may write from now on: unless [`Block::close`] is called, acknowledged
    /// writes may be lost. May sleep.
    pub(super) fn begin(&self) {
        self.last_close.record.lock().begin();
    }

    /// Returns the identity of the device. Sleeps.
    pub(super) fn id(&self) -> DeviceId {
        self.bdev.id()
    }

    /// Flushes the device before it is closed, after the last I/O of all clients has ended.
    ///
    /// If the flush succeeds, this returns true, and the instance is the same when the export is
    /// enabled again. May sleep, as long as the device takes.
    pub(in crate::server) fn close(&self) -> bool {
        // What a removed device had in its cache is unknown.
        let flushed = !self.is_dead() && self.bdev.flush().is_ok() && !self.is_dead();
        let mut record = self.last_close.record.lock();
        record.close(self.bdev.id(), self.instance, flushed);
        flushed
    }

    /// Returns true if the device was removed: all I/O fails, and will. Any context.
    fn is_dead(&self) -> bool {
        self.dead.0.load(Relaxed) != 0
    }

    /// Returns why the device cannot do any I/O, if it cannot. Any context.
    pub(in crate::server) fn unavailable(&self) -> Option<&'static str> {
        match self.is_dead() {
            true => Some("its device was removed"),
            false => (size(&self.bdev, &self.limits) == 0).then_some("its device has no room"),
        }
    }

    /// Returns the limits that clients see.
    pub(in crate::server) fn limits(&self) -> &BlockLimits {
        &self.limits
    }

    /// Returns the size and the allowed access, as [`Block::refresh`] found them. Any context.
    #[inline]
    pub(crate) fn extent(&self) -> Extent {
        Extent {
            size: self.size.load(Relaxed),
            access: match self.read_only.load(Relaxed) {
                0 => self.access,
                _ => Access::ReadOnly,
            },
        }
    }

    /// Returns the number of the extent. Must be read before the extent. Any context.
    pub(crate) fn extent_number(&self) -> u32 {
        self.last_close.number.load(Acquire)
    }

    /// Gives the extent a new number. Any context.
    pub(crate) fn renumber(&self) {
        let _ = self.last_close.number.fetch_add(1, Full);
    }

    /// Reads the size and access of the device anew. Returns true if one has changed. Clients are
    /// not told of a size of 0: see [`Self::unavailable`]. Any context.
    pub(crate) fn refresh(&self) -> bool {
        let last = self.size.load(Relaxed);
        let size = match size(&self.bdev, &self.limits) {
            0 => last,
            size => size,
        };
        let read_only = self.bdev.read_only().into();
        let changed = size != last || read_only != self.read_only.load(Relaxed);
        self.size.store(size, Relaxed);
        self.read_only.store(read_only, Relaxed);
        if changed {
            // The number is published after the size and access that it stands for.
            self.renumber();
        }
        changed
    }
}

/// Remembers that a device was removed.
struct Dead(Atomic<u32>);

impl BdevEvents for Dead {
    fn mark_dead(&self, _surprise: bool) {
        self.0.store(1, Relaxed);
    }
}

/// Returns the size of the device at the moment, in bytes: of whole blocks. Any context.
fn size(bdev: &Bdev, limits: &BlockLimits) -> u64 {
    // A power of two.
    let in_block = u64::from(limits.logical_block_size.get()).wrapping_sub(1);
    (bdev.sectors() << SECTOR_SHIFT) & !in_block
}

/// Returns the limits of the device in the protocol's terms.
fn limits(bdev: &Bdev) -> Result<BlockLimits, Failure> {
    let limits = bdev.limits();
    let logical_block_size = BlockSize::try_from(limits.logical_block_size)
        .map_err(|_| fail!(EINVAL, "blocks of {} bytes", limits.logical_block_size))?;
    // The block layer would have to split a write at a boundary of atomic writes and at a chunk.
    // The lowest bit of both is the largest power of two that divides both.
    let edges = limits.atomic_write_boundary_sectors | limits.chunk_sectors;
    // Clients cannot be told where the first physical block begins. So none is promised that they
    // would take for one that is written as a whole.
    let (physical_block_size, io_min, io_opt) = match limits.aligned {
        true => (limits.physical_block_size, limits.io_min, limits.io_opt),
        false => (logical_block_size.get(), logical_block_size.get(), 0),
    };
    Ok(BlockLimits {
        logical_block_size,
        physical_block_size,
        io_min,
        io_opt,
        max_io: IO_SIZE_MAX,
        max_discard: bytes(limits.max_discard_sectors),
        discard_granularity: limits.discard_granularity,
        max_write_zeroes: bytes(limits.max_write_zeroes_sectors),
        atomic: AtomicLimits {
            // What a client has merged is one bio here, and the block layer takes none that is
            // larger.
            max: limits.atomic_write_unit_max,
            unit_min: limits.atomic_write_unit_min,
            unit_max: limits.atomic_write_unit_max,
            boundary: bytes(edges & edges.wrapping_neg()),
        },
        max_secure_erase: bytes(limits.max_secure_erase_sectors),
        secure_erase_granularity: limits.discard_granularity,
        write_cache: limits.write_cache,
        fua: limits.fua,
        rotational: limits.rotational,
    }
    .fitted())
}

fn bytes(sectors: u32) -> u32 {
    sectors.checked_mul(1 << SECTOR_SHIFT).unwrap_or(u32::MAX)
}
