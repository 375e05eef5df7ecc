// SPDX-License-Identifier: GPL-2.0

//! Block devices of other drivers, opened exclusively.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

// UPSTREAM: upstream/tree/block/bdev.rs takes the place of this file, with patch 0011 of
// upstream/rust.

use crate::base::{
    errno::EOPNOTSUPP,
    percpu_ref::{
        PercpuRef,
        User, //
    },
};
use crate::bindings;
use crate::block::mq::limits::{
    BLK_FEAT_FUA,
    BLK_FEAT_ROTATIONAL, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_void,
    prelude::*,
    sync::Arc, //
};

// Macros with a cast, which bindgen does not take; asserted in `rust/helpers/block.c`.
const BLK_OPEN_READ: bindings::blk_mode_t = 1 << 0;
const BLK_OPEN_WRITE: bindings::blk_mode_t = 1 << 1;

/// Receives the events of a [`Bdev`]; C's `struct blk_holder_ops`.
///
/// The kernel reports nothing else. The owner of a `Bdev` has to poll for a new size, for new
/// limits, and for a device that has become read-only.
///
/// # Examples
///
/// ```
/// # use crate::{base::sync::Completion, block::bdev::BdevEvents};
/// # use kernel::prelude::*;
/// /// An export, whose task drops the device when it is gone.
/// #[pin_data]
/// struct Export {
///     #[pin]
///     gone: Completion,
/// }
///
/// impl BdevEvents for Export {
///     fn mark_dead(&self, surprise: bool) {
///         pr_info!("the device {}\n", if surprise { "is gone" } else { "is being removed" });
///         self.gone.complete_all();
///     }
/// }
/// ```
pub(crate) trait BdevEvents: Send + Sync + 'static {
    /// The device is gone (`surprise`), or is about to be removed: from now on all I/O fails. That
    /// may be before [`Bdev::open`] has returned.
    ///
    /// # Context
    ///
    /// May sleep, but must not drop the [`Bdev`], nor wait for a task that does: dropping the
    /// `Bdev` waits for this call.
    fn mark_dead(&self, surprise: bool);
}

/// C's holder of a device: its address is that of the claim of a [`Bdev`].
///
/// # Invariants
///
/// It is freed only after the claim of its device has been given up and `ops` has no user left.
struct Holder {
    events: Arc<dyn BdevEvents>,
    /// The calls of holder operations that are under way.
    ops: Pin<KBox<PercpuRef>>,
}

impl Holder {
    /// # Safety
    ///
    /// Called by C only, with `bd_holder_lock` held, for a device that was opened with
    /// [`Self::OPS`]. The caller keeps the device valid for the call, but not its claim.
    unsafe extern "C" fn mark_dead(bdev: *mut bindings::block_device, surprise: bool) {
        // SAFETY: By the safety requirements the holder is a `Holder`, and the claim cannot be
        // given up while the lock is held: by the type invariants the holder is valid until it is
        // released below.
        let holder = unsafe { &*(*bdev).bd_holder.cast::<Holder>() };
        // `ops` is killed only after the claim has been given up.
        let call = holder.ops.tryget_live();
        holder.events.mark_dead(surprise);
        // SAFETY: By the safety requirements it is held, and this function is to release it.
        unsafe { bindings::mutex_unlock(&raw mut (*bdev).bd_holder_lock) };
        // From here on the claim may be given up. The task that does so waits for `call`, so that
        // neither the holder nor this module goes away while this function sleeps.
        if !surprise {
            // As C does for holders without this function: other tasks may have written to its page
            // cache.
            // SAFETY: By the safety requirements the device is valid. An error concerns those
            // tasks.
            unsafe { bindings::sync_blockdev(bdev) };
        }
        drop(call);
    }

    const OPS: bindings::blk_holder_ops = bindings::blk_holder_ops {
        mark_dead: Some(Self::mark_dead),
        ..pin_init::zeroed()
    };

    const fn ops() -> &'static bindings::blk_holder_ops {
        &Self::OPS
    }
}

/// The limits and features of a block device; C's `struct queue_limits`. Sectors are of 512 bytes.
///
/// See [`Bdev`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BdevLimits {
    /// The smallest unit of I/O, in bytes: a power of two, which may exceed a page.
    pub(crate) logical_block_size: u32,
    /// The smallest unit that is written without reading first, in bytes.
    pub(crate) physical_block_size: u32,
    /// The device begins where a physical block begins.
    pub(crate) aligned: bool,
    /// The preferred smallest I/O, in bytes.
    pub(crate) io_min: u32,
    /// The preferred size of I/O, in bytes; 0 if there is none.
    pub(crate) io_opt: u32,
    /// The largest read or write that is not split.
    pub(crate) max_hw_sectors: u32,
    /// I/O that crosses a multiple of this is split; 0 if there is no such limit.
    pub(crate) chunk_sectors: u32,
    /// The largest discard that is not split; 0 if discards are not supported.
    pub(crate) max_discard_sectors: u32,
    /// The unit of discards, in bytes.
    pub(crate) discard_granularity: u32,
    /// Where the first unit of discards begins, in bytes.
    pub(crate) discard_alignment: u32,
    /// The largest write zeroes that is not split; 0 if they are not supported.
    pub(crate) max_write_zeroes_sectors: u32,
    /// The largest secure erase that is not split; 0 if they are not supported. Their unit is
    /// [`Self::discard_granularity`].
    pub(crate) max_secure_erase_sectors: u32,
    /// The smallest atomic write, in bytes: a power of two, of which the place and length of each
    /// are multiples; 0 if they are not supported.
    pub(crate) atomic_write_unit_min: u32,
    /// The largest atomic write, in bytes: a power of two.
    pub(crate) atomic_write_unit_max: u32,
    /// No atomic write may cross a multiple of this; 0 if there is no such limit.
    pub(crate) atomic_write_boundary_sectors: u32,
    /// The device has a volatile cache, so that flushes are needed.
    pub(crate) write_cache: bool,
    /// The device can write past its cache by itself. For others the block layer sends a flush
    /// behind such a write.
    pub(crate) fua: bool,
    /// The device is rotational: seeking costs time.
    pub(crate) rotational: bool,
    /// The data of a write must not change until it has ended.
    pub(crate) stable_writes: bool,
    /// The device can only be read.
    pub(crate) read_only: bool,
}

/// Tells one block device from another.
///
/// # Examples
///
/// ```
/// # use crate::block::bdev::{Bdev, DeviceId};
/// # use kernel::prelude::*;
/// /// Takes a device that was opened again, if it is the one of before.
/// fn take(bdev: Bdev, before: &DeviceId) -> Result<Bdev> {
///     let id = bdev.id();
///     if !id.is_same(before) {
///         return Err(ENODEV);
///     }
///     if bdev.write_cache() && !id.has_stayed(before) {
///         pr_warn!("what was written and not flushed may be lost\n");
///     }
///     Ok(bdev)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceId {
    /// The identifier that the device reports: its kind, and its bytes, followed by zeroes.
    identifier: Option<(bindings::blk_unique_id, [u8; 16])>,
    /// Where the device begins on its disk; 0 for a whole disk.
    start_sector: u64,
    /// The number of the device. Another one may get it when this one is gone.
    dev: bindings::dev_t,
    /// The sequence number of its disk. The kernel gives no two disks the same one before it
    /// reboots, and gives a disk another one when its medium is changed.
    diskseq: u64,
}

impl DeviceId {
    /// Returns true if both are surely of the same device: if it has an identifier, also after the
    /// device was away, else only if it was there all the time.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same_disk = match (self.identifier, other.identifier) {
            (Some(one), Some(other)) => one == other,
            _ => self.dev == other.dev && self.diskseq == other.diskseq,
        };
        same_disk && self.start_sector == other.start_sector
    }

    /// Returns true if both are of the same device, and it was there all the time: a device that
    /// was removed and has come back may have lost what its volatile cache held.
    pub(crate) fn has_stayed(&self, other: &Self) -> bool {
        self.dev == other.dev
            && self.diskseq == other.diskseq
            && self.start_sector == other.start_sector
    }
}

/// A block device that is opened exclusively; C's `struct block_device`, with the `struct file`
/// that keeps it.
///
/// Other tasks may still open the device, but not exclusively: no file system on it can be mounted.
///
/// # Context
///
/// Dropping it waits until every bio on it has ended and no event is being delivered any more,
/// which includes that the task that removes the device has written what others left in its page
/// cache. It sleeps.
///
/// # Examples
///
/// ```
/// # use crate::block::bdev::{Bdev, BdevEvents};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(events: Arc<dyn BdevEvents>) -> Result {
/// let bdev = Bdev::open(c"/dev/sda", true, events)?;
/// pr_info!("{} sectors, blocks of {}\n", bdev.sectors(), bdev.limits().logical_block_size);
/// // What has been written stays after this.
/// if bdev.write_cache() {
///     bdev.flush()?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// - `file` is an open file of the block device `bdev`, and ours. It was opened with the address of
///   `holder` and [`Holder::OPS`].
/// - The file is closed only when `users` has none left.
pub(crate) struct Bdev {
    file: NonNull<bindings::file>,
    bdev: NonNull<bindings::block_device>,
    writable: bool,
    users: Pin<KBox<PercpuRef>>,
    holder: KBox<Holder>,
}

// SAFETY: Files of block devices belong to no thread, and `BdevEvents` is `Send`.
unsafe impl Send for Bdev {}
// SAFETY: The methods that take a shared reference are C functions that may be called by several
// threads at once; `BdevEvents` is `Sync`.
unsafe impl Sync for Bdev {}

impl Bdev {
    /// Opens the block device that `path` names for reading, and, if `write`, for writing.
    ///
    /// Fails with `EBUSY` if it is opened exclusively, as by a mount, swap or md; with `EACCES` if
    /// `write` and the device can only be read; with `ENOTBLK` if it is no block device; with
    /// `EOPNOTSUPP` if it has zones; with `ENXIO` if it is gone; and with the errors of looking up
    /// a path.
    ///
    /// # Context
    ///
    /// Sleeps. A task of user space: the path is resolved in its file system namespace and root.
    pub(crate) fn open(path: &CStr, write: bool, events: Arc<dyn BdevEvents>) -> Result<Self> {
        let mut dev = 0;
        // SAFETY: `path` is a C string, and `dev` is valid for a write.
        to_result(unsafe { bindings::lookup_bdev(path.as_char_ptr(), &mut dev) })?;
        Self::open_dev(dev, write, events)
    }

    /// Opens the block device of number `dev`. Otherwise like [`Self::open`], but in any task.
    pub(super) fn open_dev(
        dev: bindings::dev_t,
        write: bool,
        events: Arc<dyn BdevEvents>,
    ) -> Result<Self> {
        let users = KBox::pin_init(PercpuRef::new(), GFP_KERNEL)?;
        let ops = KBox::pin_init(PercpuRef::new(), GFP_KERNEL)?;
        let holder = KBox::new(Holder { events, ops }, GFP_KERNEL)?;
        let mode = match write {
            true => BLK_OPEN_READ | BLK_OPEN_WRITE,
            false => BLK_OPEN_READ,
        };
        let id: *const Holder = &*holder;
        // SAFETY: The operations are static. The holder is freed after the file is closed.
        let file = from_err_ptr(unsafe {
            bindings::bdev_file_open_by_dev(
                dev,
                mode,
                id.cast_mut().cast::<c_void>(),
                Holder::ops(),
            )
        })?;
        // SAFETY: It is a file of a block device, which it keeps.
        let bdev = unsafe { bindings::file_bdev(file) };
        // INVARIANT: The file was opened just so.
        let this = Self {
            file: NonNull::new(file).ok_or(ENXIO)?,
            bdev: NonNull::new(bdev).ok_or(ENXIO)?,
            writable: write,
            users,
            holder,
        };
        if write && this.read_only() {
            return Err(EACCES);
        }
        // SAFETY: By the type invariants.
        if unsafe { bindings::bdev_is_zoned(this.as_raw()) } {
            return Err(EOPNOTSUPP);
        }
        Ok(this)
    }

    /// The C block device.
    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::block_device {
        self.bdev.as_ptr()
    }

    /// Returns a reference that keeps the device open, or `None` if it is being dropped.
    #[inline]
    pub(super) fn user(&self) -> Option<User> {
        self.users.tryget_live()
    }

    /// Returns true if it was opened for writing.
    #[inline]
    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// Returns the logical block size, in bytes.
    #[inline]
    pub(super) fn logical_block_size(&self) -> u32 {
        // SAFETY: By the type invariants; a device keeps its queue.
        unsafe { bindings::bdev_logical_block_size(self.as_raw()) }
    }

    /// Returns the limits of the device at the moment. If they are being changed, some may be the
    /// old ones and some the new, as for all that look at them in C. Any context.
    pub(crate) fn limits(&self) -> BdevLimits {
        let bdev = self.as_raw();
        let mut limits: bindings::queue_limits = pin_init::zeroed();
        // SAFETY: By the type invariants; a device keeps its queue.
        unsafe { bindings::farblk_bdev_limits(bdev, &mut limits) };
        let has = |feature| limits.features & feature != 0;
        let write_cache = self.write_cache();
        // SAFETY: By the type invariants.
        let atomic = unsafe { bindings::bdev_can_atomic_write(bdev) };
        BdevLimits {
            logical_block_size: limits.logical_block_size,
            physical_block_size: limits.physical_block_size,
            // SAFETY: By the type invariants.
            aligned: unsafe { bindings::bdev_alignment_offset(bdev) } == 0,
            io_min: limits.io_min,
            io_opt: limits.io_opt,
            max_hw_sectors: limits.max_hw_sectors,
            chunk_sectors: limits.chunk_sectors,
            max_discard_sectors: limits.max_discard_sectors,
            discard_granularity: limits.discard_granularity,
            // SAFETY: By the type invariants.
            discard_alignment: unsafe { bindings::bdev_discard_alignment(bdev) },
            max_write_zeroes_sectors: limits.max_write_zeroes_sectors,
            max_secure_erase_sectors: limits.max_secure_erase_sectors,
            atomic_write_unit_min: match atomic {
                true => limits.atomic_write_unit_min,
                false => 0,
            },
            atomic_write_unit_max: limits.atomic_write_unit_max,
            atomic_write_boundary_sectors: limits.atomic_write_boundary_sectors,
            write_cache,
            fua: write_cache && has(BLK_FEAT_FUA),
            rotational: has(BLK_FEAT_ROTATIONAL),
            // SAFETY: By the type invariants.
            stable_writes: unsafe { bindings::bdev_stable_writes(bdev) },
            read_only: self.read_only(),
        }
    }

    /// Returns what identifies the device. Sleeps.
    pub(crate) fn id(&self) -> DeviceId {
        let bdev = self.as_raw();
        // SAFETY: By the type invariants; an open device keeps its disk, whose name, operations and
        // sequence number stay valid. C may write the number meanwhile.
        let (disk, dev, start_sector, diskseq) = unsafe {
            let disk = (*bdev).bd_disk;
            let diskseq = (&raw const (*disk).diskseq).read_volatile();
            (disk, (*bdev).bd_dev, (*bdev).bd_start_sect, diskseq)
        };
        DeviceId {
            identifier: Self::identifier(disk),
            start_sector,
            dev,
            diskseq,
        }
    }

    /// Returns the identifier that a disk reports, of the kind that vendors are known to keep
    /// unique best.
    fn identifier(disk: *mut bindings::gendisk) -> Option<(bindings::blk_unique_id, [u8; 16])> {
        // SAFETY: The caller has the disk open. The name is a C string.
        let (name, get) = unsafe {
            let name = CStr::from_char_ptr((&raw const (*disk).disk_name).cast());
            (name, (*(*disk).fops).get_unique_id?)
        };
        // Every device of the device mapper reports the identifier of the device that it is mapped
        // to.
        if name.to_bytes().starts_with(b"dm-") {
            return None;
        }
        let kinds = [
            bindings::blk_unique_id_BLK_UID_NAA,
            bindings::blk_unique_id_BLK_UID_EUI64,
            bindings::blk_unique_id_BLK_UID_T10,
        ];
        kinds.into_iter().find_map(|kind| {
            let mut id = [0; 16];
            // SAFETY: The operation is called for a disk of its own, which is open, with room for
            // 16 bytes. It returns how many of them it wrote, or an error.
            let len = unsafe { get(disk, id.as_mut_ptr(), kind) };
            (len > 0 && id != [0; 16]).then_some((kind, id))
        })
    }

    /// Returns true if the device has a volatile cache at the moment. Any context.
    pub(crate) fn write_cache(&self) -> bool {
        // SAFETY: By the type invariants; a device keeps its queue.
        unsafe { bindings::bdev_write_cache(self.as_raw()) }
    }

    /// Sends a flush and waits for it, for as long as the device takes: every write that has ended
    /// before is durable after it. Fails with the error of the device. Sleeps.
    pub(crate) fn flush(&self) -> Result {
        // SAFETY: By the type invariants.
        to_result(unsafe { bindings::blkdev_issue_flush(self.as_raw()) })
    }

    /// Returns the size of the device at the moment, in units of 512 bytes. Any context.
    pub(crate) fn sectors(&self) -> u64 {
        // SAFETY: By the type invariants.
        unsafe { bindings::bdev_nr_sectors(self.as_raw()) }
    }

    /// Returns true if the device can only be read at the moment. The kernel does not refuse writes
    /// because of that. Any context.
    pub(crate) fn read_only(&self) -> bool {
        // SAFETY: By the type invariants.
        unsafe { bindings::bdev_read_only(self.as_raw()) }
    }

    /// Returns true if the device takes bios itself rather than requests: then submitting one may
    /// do all of the work. Any context.
    pub(crate) fn is_bio_based(&self) -> bool {
        // SAFETY: By the type invariants.
        unsafe { bindings::farblk_bdev_is_bio_based(self.as_raw()) }
    }

    /// Returns true if the device supports I/O that must not wait (`REQ_NOWAIT`). Any context.
    pub(crate) fn nowait(&self) -> bool {
        // SAFETY: By the type invariants.
        unsafe { bindings::bdev_nowait(self.as_raw()) }
    }
}

impl Drop for Bdev {
    fn drop(&mut self) {
        self.users.kill_and_wait();
        // `bdev_fput()` would give up the claim, but leave it to others to close the file: the disk
        // and its driver would still be in use when this returns, and who was told that they are
        // not may find that they are. This one is no file of a file system, and holds up no
        // unmount.
        //
        // SAFETY: By the type invariants the file is open and ours, and no bio uses the device any
        // more. The claim is over when this returns: no call of a holder operation begins after
        // that.
        unsafe { bindings::__fput_sync(self.file.as_ptr()) };
        // Those that have begun use the holder, and this module's code.
        self.holder.ops.kill_and_wait();
    }
}
