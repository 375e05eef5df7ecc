// SPDX-License-Identifier: GPL-2.0

//! Disks.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::base::{
    module::{
        try_get,
        ModuleRef, //
    },
    sync::random_u64, //
};
use crate::bindings;
use crate::block::{
    mq::{
        disk_names::{
            DiskIndex,
            DiskNames, //
        },
        identity::{
            self,
            DiskIdentity,
            UID_UUID, //
        },
        limits::Limits,
        operations::Operations,
        pr::PrVTable,
        tag_set::TagSet, //
    },
    SECTOR_SHIFT, //
};
use core::{
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::{
        c_int,
        c_void, //
    },
    new_mutex,
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    types::ForeignOwnable, //
};

/// The value of [`DiskData::openers`] of a disk that cannot be opened any more.
const CLAIMED: i32 = -1;

/// The data of a disk, which lives until the last reference to the disk is dropped; C's
/// `private_data`.
///
/// # Invariants
///
/// `queue_data` came from `T::QueueData::into_foreign`.
pub(super) struct DiskData<T: Operations> {
    queue_data: *mut c_void,
    /// The number of times that the disk and its partitions are open, or [`CLAIMED`].
    openers: Atomic<i32>,
    identity: Option<DiskIdentity>,
    index: DiskIndex,
    /// Of the last change of the persistent reservation; locked while there is one.
    pr_token: Pin<KBox<Mutex<u32>>>,
    _p: PhantomData<T::QueueData>,
    /// Keeps the code of [`DiskVTable::free_disk`]. The last field, so that it drops at the end.
    _module: ModuleRef,
}

impl<T: Operations> DiskData<T> {
    /// Returns the token of the last change.
    pub(super) fn pr_token(&self) -> &Mutex<u32> {
        &self.pr_token
    }
}

impl<T: Operations> Drop for DiskData<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants; C's `queuedata`, a copy, is not used when this is
        // dropped.
        drop(unsafe { T::QueueData::from_foreign(self.queue_data) });
    }
}

/// C's table of the callbacks of a disk.
struct DiskVTable<T: Operations>(PhantomData<T>);

impl<T: Operations> DiskVTable<T> {
    /// # Safety
    ///
    /// Called by the block layer only, with `open_mutex` held, for a disk of
    /// `GenDiskBuilder::build_numbered`.
    unsafe extern "C" fn open(disk: *mut bindings::gendisk, _mode: bindings::blk_mode_t) -> c_int {
        // SAFETY: By the safety requirements; the data lives until `free_disk`.
        let data = unsafe { &*(*disk).private_data.cast::<DiskData<T>>() };
        let mut openers = data.openers.load(Relaxed);
        while openers != CLAIMED {
            match data.openers.cmpxchg(openers, openers + 1, Full) {
                Ok(_) => return 0,
                Err(now) => openers = now,
            }
        }
        ENXIO.to_errno()
    }

    /// The block layer calls it for each file that is closed and had the disk or a partition open;
    /// those of the partitions count as openers of the whole disk. An attempt to open a partition
    /// of no size ends here, too.
    ///
    /// # Safety
    ///
    /// Called by the block layer only, with `open_mutex` held, once for each `open` that returned
    /// 0, for a disk of `GenDiskBuilder::build_numbered`. What was cached for the last opener has
    /// been written and dropped. The disk may be removed, but the file that is closed still has a
    /// reference to it.
    unsafe extern "C" fn release(disk: *mut bindings::gendisk) {
        // SAFETY: By the safety requirements; the data lives until `free_disk`.
        let data = unsafe { &*(*disk).private_data.cast::<DiskData<T>>() };
        if data.openers.fetch_sub(1, Full) == 1 {
            // SAFETY: By the type invariants of `DiskData` it came from `into_foreign`, and it is
            // taken back by `free_disk` only, which comes after the last reference has gone.
            T::last_close(unsafe { T::QueueData::borrow(data.queue_data) });
        }
    }

    /// Tells the UUID, as designator type 10 of SCSI and, if it stands for lasting contents, as an
    /// EUI-64.
    ///
    /// # Safety
    ///
    /// Called for a disk of `GenDiskBuilder::build_numbered` that somebody has a reference to; `id`
    /// is valid for writes of 16 bytes.
    unsafe extern "C" fn get_unique_id(
        disk: *mut bindings::gendisk,
        id: *mut u8,
        kind: bindings::blk_unique_id,
    ) -> c_int {
        // SAFETY: By the safety requirements; the data lives until `free_disk`.
        let data = unsafe { &*(*disk).private_data.cast::<DiskData<T>>() };
        match (data.identity, kind) {
            (Some(DiskIdentity { uuid, .. }), UID_UUID)
            | (
                Some(DiskIdentity {
                    uuid,
                    durable: true,
                }),
                bindings::blk_unique_id_BLK_UID_EUI64,
            ) => {
                // SAFETY: By the safety requirements.
                unsafe { id.cast::<[u8; 16]>().write(uuid) };
                // CAST: 16.
                uuid.len() as c_int
            }
            _ => EINVAL.to_errno(),
        }
    }

    /// # Safety
    ///
    /// Called by the block layer only, when the last reference to a disk goes that
    /// `GenDiskBuilder::build_numbered` added.
    unsafe extern "C" fn free_disk(disk: *mut bindings::gendisk) {
        // This function is the last of the module's code that has to do with the disk: an open file
        // gives its own reference to the module up before its reference to the disk. At its end the
        // module may be unloaded, but `CodeUsers` waits until it has returned.
        // SAFETY: `build` made it by `into_raw`; no more callbacks come, nor is it read by anyone.
        drop(unsafe { KBox::from_raw((*disk).private_data.cast::<DiskData<T>>()) });
    }

    const VTABLE: bindings::block_device_operations = bindings::block_device_operations {
        open: Some(Self::open),
        release: Some(Self::release),
        free_disk: Some(Self::free_disk),
        owner: &raw mut bindings::__this_module,
        pr_ops: PrVTable::<T>::build().cast(),
        ..pin_init::zeroed()
    };

    /// Of a disk with a [`DiskIdentity`]: users take a disk that has the callback for one.
    const IDENTIFIED: bindings::block_device_operations = bindings::block_device_operations {
        get_unique_id: Some(Self::get_unique_id),
        ..Self::VTABLE
    };

    const fn build(identified: bool) -> &'static bindings::block_device_operations {
        match identified {
            true => &Self::IDENTIFIED,
            false => &Self::VTABLE,
        }
    }
}

/// C's `BLK_DEV_MAX_SECTORS`, the size in bytes being an `i64`.
const MAX_SECTORS: u64 = (i64::MAX as u64) >> SECTOR_SHIFT;

/// The most variables of one uevent that [`GenDisk::announce`] sends.
pub(crate) const ENV_MAX: usize = 4;

/// Makes a [`GenDisk`].
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{DiskNames, GenDisk, GenDiskBuilder, Limits, Operations, TagSet};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<T: Operations>(
/// #     names: Arc<DiskNames>,
/// #     tag_set: Arc<TagSet<T>>,
/// #     data: T::QueueData,
/// # ) -> Result<GenDisk<T>> {
/// let limits = Limits {
///     logical_block_size: 4096,
///     physical_block_size: 4096,
///     write_cache: true,
///     ..Limits::default()
/// };
/// let disk = GenDiskBuilder::new()
///     .limits(limits)
///     .capacity_sectors((1 << 30) / 512)
///     .defer_partition_scan()
///     .build_numbered(names, tag_set, data)?;
/// disk.scan_partitions()?;
/// # Ok(disk)
/// # }
/// ```
pub(crate) struct GenDiskBuilder {
    limits: Limits,
    capacity_sectors: u64,
    read_only: bool,
    defer_partition_scan: bool,
    identity: Option<DiskIdentity>,
}

impl GenDiskBuilder {
    /// Returns a builder of a disk of size 0 with [`Limits::default`].
    pub(crate) fn new() -> Self {
        Self {
            limits: Limits::default(),
            capacity_sectors: 0,
            read_only: false,
            defer_partition_scan: false,
            identity: None,
        }
    }

    /// Sets the limits.
    pub(crate) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the size, in units of 512 bytes.
    pub(crate) fn capacity_sectors(mut self, capacity_sectors: u64) -> Self {
        self.capacity_sectors = capacity_sectors;
        self
    }

    /// Sets whether the disk can only be read.
    pub(crate) fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Lets the disk be added without waiting for a request: its partition table is read by
    /// [`GenDisk::scan_partitions`] only.
    pub(crate) fn defer_partition_scan(mut self) -> Self {
        self.defer_partition_scan = true;
        self
    }

    /// Sets what identifies the contents.
    pub(crate) fn identity(self, identity: DiskIdentity) -> Self {
        let identity = Some(identity);
        Self { identity, ..self }
    }

    /// Adds the disk with the lowest number that is free in `names`, which is free again when the
    /// last reference to the disk is dropped.
    ///
    /// Fails with `EINVAL` if the limits contradict each other or the size is too large, with
    /// `ENODEV` if the module is being unloaded, with `ENOMEM`, and with the block layer's error.
    /// May sleep.
    pub(crate) fn build_numbered<T: Operations>(
        self,
        names: Arc<DiskNames>,
        tag_set: Arc<TagSet<T>>,
        queue_data: T::QueueData,
    ) -> Result<GenDisk<T>> {
        let mut limits = self.limits.to_queue_limits()?;
        if self.capacity_sectors > MAX_SECTORS {
            return Err(EINVAL);
        }

        let module = try_get::<crate::LocalModule>().ok_or(ENODEV)?;
        let index = DiskIndex::alloc(names)?;
        let quiesced = KBox::pin_init(new_mutex!(false), GFP_KERNEL)?;
        let pr_token = KBox::pin_init(new_mutex!(random_u64() as u32), GFP_KERNEL)?;
        let data = KBox::new(
            // INVARIANT: As the type wants.
            DiskData::<T> {
                queue_data: queue_data.into_foreign(),
                openers: Atomic::new(0),
                identity: self.identity,
                index,
                pr_token,
                _p: PhantomData,
                _module: module,
            },
            GFP_KERNEL,
        )?;

        // SAFETY: The tag set is valid, by its type invariants, and `limits` for this call. The
        // queue data belongs to `data`, which is freed after the disk.
        let disk = from_err_ptr(unsafe {
            bindings::__blk_mq_alloc_disk(
                tag_set.as_raw(),
                &mut limits,
                data.queue_data,
                static_lock_class!().as_ptr(),
            )
        })?;
        // INVARIANT: Neither is anyone else's.
        let new = NewDisk {
            disk,
            data: KBox::into_raw(data),
        };

        // SAFETY: `disk` is valid, and not visible to anyone else yet; so is the data.
        unsafe {
            (*disk).fops = DiskVTable::<T>::build(self.identity.is_some());
            (*disk).private_data = new.data.cast();
            (*new.data).index.write_name(&mut (*disk).disk_name)?;
            bindings::set_capacity(disk, self.capacity_sectors);
            bindings::set_disk_ro(disk, self.read_only);
            bindings::farblk_suppress_partition_scan(disk, self.defer_partition_scan);
        }

        let groups = self
            .identity
            .map_or(core::ptr::null_mut(), |_| identity::groups());
        // SAFETY: `disk` is valid and was not added yet. What its callbacks read is set, and stays.
        to_result(unsafe { bindings::device_add_disk(core::ptr::null_mut(), disk, groups) })?;

        // The data are `free_disk`'s from now on.
        core::mem::forget(new);

        // INVARIANT: It was allocated and added above.
        Ok(GenDisk {
            // SAFETY: `from_err_ptr` lets no null pass that C's function could return.
            disk: unsafe { NonNull::new_unchecked(disk) },
            quiesced,
            tag_set,
        })
    }
}

/// A disk that is not added, and its data.
///
/// # Invariants
///
/// Both are valid, and owned by this.
struct NewDisk<T: Operations> {
    disk: *mut bindings::gendisk,
    data: *mut DiskData<T>,
}

impl<T: Operations> Drop for NewDisk<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants. C tears the queue down, and as the disk was not added it
        // does not call `free_disk`.
        unsafe { bindings::put_disk(self.disk) };
        // SAFETY: By the type invariants, it came from `KBox::into_raw`; the disk is gone.
        drop(unsafe { KBox::from_raw(self.data) });
    }
}

/// A disk that was added, `/dev/<name>`; C's `struct gendisk`.
///
/// Dropping it removes the disk: writes what is cached, if the disk is not dead, and waits until
/// every request has ended, so the driver must go on ending them until that returns. Files that are
/// still open get errors. Dropping sleeps, and must not be done in a callback of [`Operations`]. A
/// disk keeps this module loaded until the last reference to the disk is gone.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{GenDisk, Operations};
/// # use kernel::prelude::*;
/// /// The device has another size.
/// fn resize<T: Operations>(disk: &GenDisk<T>, sectors: u64) -> Result {
///     if disk.set_capacity(sectors)? {
///         disk.announce(&[c"RESIZED=1"]);
///     }
///     Ok(())
/// }
///
/// /// The device is gone: I/O fails from now on, and what is cached is not written.
/// fn remove<T: Operations>(disk: GenDisk<T>) {
///     disk.mark_dead();
///     drop(disk);
/// }
/// ```
///
/// # Invariants
///
/// - `disk` is valid, and was added by `device_add_disk`; we have a reference to it. Its
///   `private_data` is a `DiskData<T>`.
/// - We have quiesced its queue once if `quiesced` is true, and not at all if it is false, unless
///   its lock is held.
pub(crate) struct GenDisk<T: Operations> {
    disk: NonNull<bindings::gendisk>,
    quiesced: Pin<KBox<Mutex<bool>>>,
    tag_set: Arc<TagSet<T>>,
}

// SAFETY: Its methods are C functions that any thread may call, and what it owns is `Send`.
unsafe impl<T: Operations> Send for GenDisk<T> {}
// SAFETY: As above; what its methods change is locked by C.
unsafe impl<T: Operations> Sync for GenDisk<T> {}

impl<T: Operations> GenDisk<T> {
    /// Returns the C object, which is valid as long as `self`.
    fn as_raw(&self) -> *mut bindings::gendisk {
        self.disk.as_ptr()
    }

    /// Returns the name in `/dev`.
    pub(crate) fn name(&self) -> &CStr {
        // SAFETY: By the type invariants; `build` wrote a NUL, and the name does not change.
        unsafe { CStr::from_char_ptr((*self.as_raw()).disk_name.as_ptr()) }
    }

    /// Returns the number of requests of this disk that are started and have not ended, which may
    /// be out of date at once. May sleep.
    pub(crate) fn in_flight(&self) -> usize {
        // SAFETY: By the type invariants.
        self.tag_set.in_flight(unsafe { (*self.as_raw()).queue })
    }

    /// Makes every later open of the disk fail, so that it can be removed. Fails with `EBUSY` if it
    /// is open, which includes mounts, swap and its partitions, or is being closed. After success
    /// nothing is cached for the disk, and there is no I/O but that of [`Self::scan_partitions`].
    /// Can be repeated. Any context.
    pub(crate) fn claim(&self) -> Result {
        // SAFETY: By the type invariants; the data lives until `free_disk`.
        let data = unsafe { &*(*self.as_raw()).private_data.cast::<DiskData<T>>() };
        match data.openers.cmpxchg(0, CLAIMED, Full) {
            Ok(_) | Err(CLAIMED) => Ok(()),
            Err(_) => Err(EBUSY),
        }
    }

    /// Reads the partition table and adds the partitions, if this was deferred
    /// ([`GenDiskBuilder::defer_partition_scan`]). To be called once. Before that there are no
    /// partitions, and user space cannot request a scan (`BLKRRPART`).
    ///
    /// Waits for requests, for as long as the driver does not end them. It holds no lock until the
    /// first block was read, so that the disk can be opened and closed while the driver does not
    /// answer. Fails with the error of that read; the block layer reports later errors to the
    /// kernel log.
    ///
    /// # Context
    ///
    /// A task that may sleep, and for which no task that ends requests waits.
    pub(crate) fn scan_partitions(&self) -> Result {
        let disk = self.as_raw();
        let read = self.read_first_block();
        // SAFETY: By the type invariants.
        unsafe { bindings::farblk_suppress_partition_scan(disk, false) };
        read?;
        // SAFETY: By the type invariants; the lock is the one that the scan wants. It fails if the
        // disk was removed. What the scan has read must not stay cached while the disk is not open:
        // the next close would drop it, but the disk may change before the next open.
        unsafe {
            bindings::mutex_lock(&raw mut (*disk).open_mutex);
            bindings::bdev_disk_changed(disk, false);
            bindings::invalidate_bdev((*disk).part0);
            bindings::mutex_unlock(&raw mut (*disk).open_mutex);
        }
        Ok(())
    }

    /// Reads the first block without the page cache, which would keep a page locked until it was
    /// read. Waits for as long as that takes, in a way that is not reported as a hung task. Sleeps.
    fn read_first_block(&self) -> Result {
        let disk = self.as_raw();
        let page = Page::alloc_page(GFP_KERNEL)?;
        let mut bio = MaybeUninit::<bindings::bio>::uninit();
        let mut vec = MaybeUninit::<bindings::bio_vec>::uninit();
        let bio = bio.as_mut_ptr();
        // SAFETY: By the type invariants the disk has a queue, and a block device for its whole,
        // which stay for this call. The bio and its vector are valid for writes and stay in place;
        // so does the page, which is large enough for a block. They are in use until the wait is
        // over.
        let result = unsafe {
            let block = (*(*disk).queue).limits.logical_block_size;
            // The driver refuses a part of a block.
            let len = block.min(PAGE_SIZE as u32);
            bindings::bio_init(
                bio,
                (*disk).part0,
                vec.as_mut_ptr(),
                1,
                bindings::req_op_REQ_OP_READ,
            );
            bindings::__bio_add_page(bio, page.as_ptr(), len, 0);
            let result = bindings::submit_bio_wait(bio);
            bindings::bio_uninit(bio);
            result
        };
        to_result(result)
    }

    /// Changes the size, in units of 512 bytes. If the size differs from the old one, sends a
    /// uevent (`RESIZE=1`) and returns true. Fails with `EINVAL` if the size is too large. May
    /// sleep.
    pub(crate) fn set_capacity(&self, sectors: u64) -> Result<bool> {
        if sectors > MAX_SECTORS {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariants.
        Ok(unsafe { bindings::set_capacity_and_notify(self.as_raw(), sectors) })
    }

    /// Changes whether the disk can only be read, and sends a uevent if that is a change. May
    /// sleep.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        // SAFETY: By the type invariants.
        unsafe { bindings::set_disk_ro(self.as_raw(), read_only) };
    }

    /// Changes the limits. Fails with `EINVAL`, and changes nothing, if they contradict each other.
    ///
    /// It waits until no request is in flight, so the driver must go on ending them. Sleeps; must
    /// not be called by a task that ends requests. Users of the disk do not expect another block
    /// size.
    pub(crate) fn set_limits(&self, limits: Limits) -> Result {
        let mut new = limits.to_queue_limits()?;
        // SAFETY: By the type invariants the disk has a queue. The lock that is taken here is
        // released by the commit.
        let queue = unsafe {
            let queue = (*self.as_raw()).queue;
            bindings::queue_limits_start_update(queue, &mut new);
            queue
        };
        limits.update(&mut new);
        // SAFETY: `queue` is valid, and `new` was made from its limits since the lock was taken.
        to_result(unsafe { bindings::queue_limits_commit_update_frozen(queue, &mut new) })
    }

    /// Stops the dispatch of requests: when this returns no [`Operations::queue_rq`] or
    /// [`Operations::commit_rqs`] runs, nor will one until [`Self::unquiesce`]. New requests wait
    /// in the block layer. Requests that the driver has may end or time out as before, and polling
    /// goes on.
    ///
    /// Can be repeated, and undone by one call of `unquiesce`. No function that waits for requests
    /// may be called in between, such as [`Self::set_limits`].
    ///
    /// # Context
    ///
    /// Sleeps for a grace period, some tens of milliseconds. Must not be called by a callback of
    /// [`Operations`].
    pub(crate) fn quiesce(&self) {
        let mut quiesced = self.quiesced.lock();
        if !*quiesced {
            // SAFETY: By the type invariants the disk has a queue.
            unsafe { bindings::blk_mq_quiesce_queue((*self.as_raw()).queue) };
            *quiesced = true;
        }
    }

    /// Undoes [`Self::quiesce`]: requests that have waited are dispatched by other tasks. Can be
    /// repeated. May sleep, as it waits for a call of `quiesce` that is under way.
    pub(crate) fn unquiesce(&self) {
        let mut quiesced = self.quiesced.lock();
        if *quiesced {
            // SAFETY: By the type invariants the disk has a queue, which we have quiesced.
            unsafe { bindings::blk_mq_unquiesce_queue((*self.as_raw()).queue) };
            *quiesced = false;
        }
    }

    /// Sends a `change` uevent of the disk with `env`, such as `NAME=value`, of which there are at
    /// most [`ENV_MAX`]. If memory is short, the uevent is lost.
    ///
    /// # Context
    ///
    /// May sleep, allocates, and takes the lock of all uevents, which other tasks hold while they
    /// wait for memory. A task that I/O waits for must not call it, nor [`Self::set_capacity`] and
    /// [`Self::set_read_only`].
    pub(crate) fn announce(&self, env: &[&CStr]) {
        let mut envp = [core::ptr::null_mut(); ENV_MAX + 1];
        for (place, text) in envp.iter_mut().take(ENV_MAX).zip(env) {
            *place = text.as_char_ptr().cast_mut();
        }
        // SAFETY: By the type invariants the disk was added, so that its device is in sysfs. The
        // strings end with null, and are only read.
        unsafe {
            let device = &raw mut (*(*self.as_raw()).part0).bd_device;
            let change = bindings::kobject_action_KOBJ_CHANGE;
            bindings::kobject_uevent_env(&raw mut (*device).kobj, change, envp.as_mut_ptr());
        }
    }

    /// Makes all later I/O fail, without writing what is cached, and notifies file systems.
    ///
    /// It waits for file systems that wait for requests in flight. So the driver must end those
    /// first, and fail the requests that come in between, as it does when the device is gone. May
    /// sleep. Must not be called by [`Operations::last_close`].
    pub(crate) fn mark_dead(&self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::blk_mark_disk_dead(self.as_raw()) };
    }
}

impl<T: Operations> Drop for GenDisk<T> {
    fn drop(&mut self) {
        // Otherwise writing what is cached would never end.
        self.unquiesce();
        let disk = self.as_raw();
        // SAFETY: By the type invariants. It waits for all requests, so that the tag set, which is
        // dropped after this, is out of use.
        unsafe { bindings::del_gendisk(disk) };
        // SAFETY: By the type invariants, and this is the end of our reference. `free_disk` takes
        // care of the data, now or when the last file is closed.
        unsafe { bindings::put_disk(disk) };
    }
}
