// SPDX-License-Identifier: GPL-2.0

//! The disk of a map: its limits, the scan for its partitions, and what user space is told of it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    impl_has_work, new_mutex, new_work,
    page::PAGE_SIZE,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    memory::NumaNode,
    sync::Completion, //
};
use crate::block::mq::{
    DiskIdentity,
    GenDisk,
    GenDiskBuilder,
    Limits,
    TagSet,
    TagSetBuilder, //
};
use crate::client::{
    host::Host,
    io::{
        multipath::Multipath,
        queue::IoLimits, //
    },
};
use crate::proto::{
    AtomicLimits,
    Extent,
    LoginReply,
    Name,
    Uuid, //
};
use crate::session::{
    self,
    State, //
};

/// RDMA moves single bytes, but the block layer wants a mask, and words are cheaper everywhere.
const DMA_ALIGNMENT: u32 = 3;

/// The most segments of a request of which the block layer makes one bio, C's `BIO_MAX_VECS`.
const SEGMENTS_MAX: u16 = 256;
/// The largest part of a disk, in bytes, across whose end no request goes. Slabs may be larger, but
/// those of another path, over another device, need not be.
const BOUNDARY_MAX: u32 = 64 << 20;

/// The disk of a map.
pub(in crate::client) type Disk = GenDisk<Multipath>;

/// What a path can do for a disk. The disk keeps to the limits of the path that it was made for,
/// and every other path has to fit them.
#[derive(Clone, Copy)]
pub(in crate::client) struct DiskLimits {
    /// The server's description of the export.
    pub(in crate::client) login: LoginReply,
    /// Number of hardware queues.
    pub(in crate::client) queues: u16,
    /// Number of hardware queues, at the end, that are polled.
    pub(in crate::client) poll_queues: u16,
    /// Requests in flight per hardware queue.
    pub(in crate::client) depth: u16,
    /// The NUMA node of the RDMA device.
    pub(in crate::client) numa_node: NumaNode,
    /// The longest segment that the RDMA device takes, in bytes.
    pub(in crate::client) max_segment_size: u32,
    /// The largest read or write that a queue takes.
    pub(in crate::client) io: IoLimits,
}

impl DiskLimits {
    /// Returns the limits as `session::map` compares them.
    pub(in crate::client) fn to_compare(self) -> session::map::Limits {
        let limits = &self.login.limits;
        let geometry = self.login.geometry();
        let atomic = self.atomic();
        session::map::Limits {
            block_size: limits.logical_block_size.get(),
            slab: geometry.map(|geometry| geometry.shift().bytes().min(BOUNDARY_MAX)),
            queues: self.queues,
            poll_queues: self.poll_queues,
            depth: self.depth,
            segments: self.io.segments,
            segment_size: self.max_segment_size,
            max_io: self.max_io(),
            gaps: self.io.gaps,
            max_discard: limits.max_discard,
            max_write_zeroes: limits.max_write_zeroes,
            max_secure_erase: limits.max_secure_erase,
            atomic_unit_min: atomic.unit_min,
            atomic_unit_max: atomic.unit_max,
            atomic_boundary: atomic.boundary,
            write_cache: limits.write_cache,
            fua: limits.fua,
        }
    }

    /// Returns the bytes of the largest read or write.
    ///
    /// The block layer knows no longest segment where there is a boundary, so that a request may be
    /// a single one.
    fn max_io(&self) -> u32 {
        let bytes = self.login.limits.max_io.min(self.io.bytes);
        match self.io.gaps {
            true => bytes,
            false => bytes.min(self.max_segment_size / PAGE_SIZE as u32 * PAGE_SIZE as u32),
        }
    }

    /// Returns the limits of atomic writes over this path.
    ///
    /// The block layer promises to take what it cannot split only if it lies in whole pages but for
    /// the first and the last one, and if there is a segment for each page.
    fn atomic(&self) -> AtomicLimits {
        let limits = &self.login.limits;
        let pages = u32::from(self.io.segments.min(SEGMENTS_MAX)).saturating_sub(2);
        let max_io = self.max_io().min(pages * PAGE_SIZE as u32);
        limits.atomic.within(limits.logical_block_size, max_io)
    }

    /// Returns the limits as the block layer takes them.
    fn to_block(self) -> Limits {
        let sectors = |bytes: u32| bytes >> SECTOR_SHIFT;
        let limits = &self.login.limits;
        let atomic = self.atomic();
        let slab = self.to_compare().slab;
        let chunk_sectors = slab.map_or(0, sectors);
        let virt_boundary = match self.io.gaps {
            true => 0,
            false => PAGE_SIZE as u32 - 1,
        };
        Limits {
            logical_block_size: limits.logical_block_size.get(),
            physical_block_size: limits.physical_block_size,
            io_min: limits.io_min,
            io_opt: limits.io_opt,
            max_hw_sectors: sectors(self.max_io()),
            max_segments: self.io.segments,
            max_segment_size: self.max_segment_size,
            chunk_sectors,
            dma_alignment: DMA_ALIGNMENT,
            virt_boundary,
            max_write_zeroes_sectors: sectors(limits.max_write_zeroes),
            max_discard_sectors: sectors(limits.max_discard),
            // The block layer has one unit for both.
            discard_granularity: limits
                .discard_granularity
                .max(limits.secure_erase_granularity),
            max_secure_erase_sectors: sectors(limits.max_secure_erase),
            atomic_write_unit_min: atomic.unit_min,
            atomic_write_unit_max: atomic.unit_max,
            atomic_write_boundary: atomic.boundary,
            write_cache: limits.write_cache,
            fua: limits.fua,
            rotational: limits.rotational,
            ..Limits::default()
        }
    }
}

/// Adds the disk of a map, without its partitions: [`PartitionScan`] finds those. May sleep, but
/// does not wait for I/O.
pub(in crate::client) fn create(
    host: &Host,
    limits: &DiskLimits,
    io_timeout_ms: u32,
    driver: Arc<Multipath>,
) -> Result<Disk> {
    driver.allocate_stats(limits.queues)?;
    let poll_queues = u32::from(limits.poll_queues);
    let queues = u32::from(limits.queues)
        .checked_sub(poll_queues)
        .ok_or(EINVAL)?;
    // Queues are short and the server has its own idea of order.
    let tag_set = TagSetBuilder::new(queues, limits.depth.into())
        .poll_queues(poll_queues)
        .numa_node(limits.numa_node)
        .timeout_ms(io_timeout_ms)
        .no_sched_by_default()
        .build();
    let tag_set: Arc<TagSet<Multipath>> = Arc::pin_init(tag_set, GFP_KERNEL)?;
    let extent = &limits.login.extent;
    let identity = DiskIdentity {
        uuid: *limits.login.export_uuid.as_bytes(),
        // The contents of an export of RAM do not outlive its server.
        durable: limits.login.geometry().is_none(),
    };
    GenDiskBuilder::new()
        .identity(identity)
        .limits(limits.to_block())
        .capacity_sectors(extent.size >> SECTOR_SHIFT)
        .read_only(!extent.access.writes())
        .defer_partition_scan()
        .build_numbered(host.disk_names.clone(), tag_set, driver)
}

/// The scan for the partitions of a new disk. It runs in a task of its own, because a server may
/// never answer a read, and the write to `enable` has to return nevertheless.
#[pin_data]
pub(in crate::client) struct PartitionScan {
    #[pin]
    disk: Mutex<Option<Arc<Disk>>>,
    /// Completes when the scan has ended and has dropped its reference to the disk.
    #[pin]
    done: Completion,
    #[pin]
    work: Work<PartitionScan>,
}

impl_has_work! {
    impl HasWork<Self> for PartitionScan { self.work }
}

impl PartitionScan {
    /// Begins a scan. It ends when its reads have ended, which is soon once the map's I/O fails.
    /// May sleep.
    pub(in crate::client) fn begin(host: &Host, disk: Arc<Disk>) -> Result<Arc<Self>> {
        let scan = Arc::pin_init(
            pin_init!(Self {
                disk <- new_mutex!(Some(disk), "PartitionScan::disk"),
                done <- Completion::new(),
                work <- new_work!("PartitionScan::work"),
            }),
            GFP_KERNEL,
        )?;
        let _ = host.disk_work.enqueue(scan.clone());
        Ok(scan)
    }

    /// Waits for the end of the scan, up to `ms` milliseconds. Sleeps.
    pub(in crate::client) fn wait(&self, ms: u32) -> Result {
        self.done.wait_timeout(ms)
    }
}

impl WorkItem for PartitionScan {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let disk = this.disk.lock().take();
        if let Some(disk) = disk {
            // If the first block cannot be read there are no partitions. A later read gets the
            // error.
            let _ = disk.scan_partitions();
        }
        this.done.complete_all();
    }
}

/// The least time between two changes of a disk that user space is told of, in ms. It bounds the
/// number of uevents that a server can cause: a change sends up to three, of the size, of whether
/// the disk can be written, and of the state. Also if one of them is late, no second has more than
/// three changes.
const CHANGE_INTERVAL_MS: u64 = 500;

/// What a disk shows of its map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::client) struct Shown {
    /// The size, and whether the disk can be written.
    pub(in crate::client) extent: Extent,
    /// The state of the map.
    pub(in crate::client) state: State,
    /// The UUID of the export.
    pub(in crate::client) uuid: Uuid,
}

/// What a disk is to show of its map.
struct Pending {
    shown: Option<Shown>,
    /// When that changed last.
    at: Option<Instant<Monotonic>>,
    /// The disk, if it does not show that yet.
    disk: Option<Arc<Disk>>,
    /// The disk is being removed: it shows no more changes.
    ended: bool,
}

/// Shows changes of the map on its disk, and tells user space of them: the size, whether the disk
/// can be written, and the state. If changes come too fast, only the last one is shown.
///
/// A uevent takes a lock under which any task of the system may allocate memory, and wait for it
/// until I/O of this very disk has ended. So a work item of its own sends it, on a workqueue that
/// no I/O waits for: the work item of the map only leaves there what the disk is to show. The task
/// that enables the map may send it, too: no I/O waits for that one, and it holds no lock of the
/// map.
#[pin_data]
pub(in crate::client) struct DiskChanges {
    /// The name of the map.
    map: Name,
    /// Held for moments only, and never while a uevent is sent.
    #[pin]
    pending: Mutex<Pending>,
    /// The state that user space was told last. Held while it is told of changes.
    #[pin]
    told: Mutex<Option<State>>,
    #[pin]
    work: Work<DiskChanges>,
}

impl_has_work! {
    impl HasWork<Self> for DiskChanges { self.work }
}

impl DiskChanges {
    /// Makes one for the disk of the map `map`, which shows nothing yet. May sleep.
    pub(in crate::client) fn new(map: Name) -> Result<Arc<Self>> {
        let pending = Pending {
            shown: None,
            at: None,
            disk: None,
            ended: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                map,
                pending <- new_mutex!(pending, "DiskChanges::pending"),
                told <- new_mutex!(None, "DiskChanges::told"),
                work <- new_work!("DiskChanges::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets the disk show this soon. Returns the time in ms after which the
    /// caller must call again, if it is too early. May sleep, but waits neither for memory nor for
    /// user space.
    pub(in crate::client) fn show(
        self: &Arc<Self>,
        host: &Host,
        disk: &Arc<Disk>,
        shown: Shown,
    ) -> Option<u64> {
        {
            let mut pending = self.pending.lock();
            if pending.ended || pending.shown == Some(shown) {
                return None;
            }
            let elapsed = pending.at.map(|at| at.elapsed().as_millis());
            let elapsed = elapsed.map_or(CHANGE_INTERVAL_MS, |ms| u64::try_from(ms).unwrap_or(0));
            if elapsed < CHANGE_INTERVAL_MS {
                return Some(CHANGE_INTERVAL_MS - elapsed);
            }
            pending.shown = Some(shown);
            pending.at = Some(Instant::now());
            pending.disk = Some(disk.clone());
        }
        let _ = host.disk_work.enqueue(self.clone());
        None
    }

    /// Shows at once what [`Self::show`] has left, and tells user space. When this returns, nothing
    /// of that is still to be told. Sleeps, for as long as it takes to tell user space.
    pub(in crate::client) fn show_now(&self) {
        let mut told = self.told.lock();
        // The disk is dropped before the lock is released.
        let (disk, shown) = {
            let mut pending = self.pending.lock();
            match (pending.disk.take(), pending.shown) {
                (Some(disk), Some(shown)) => (disk, shown),
                _ => return,
            }
        };
        let Shown {
            extent,
            state,
            uuid,
        } = shown;
        disk.set_read_only(!extent.access.writes());
        // Cannot fail: the parser accepts only sizes that a disk can have.
        let _ = disk.set_capacity(extent.size >> SECTOR_SHIFT);
        if told.replace(state) != Some(state) {
            // If memory is short, user space is not told, as with any uevent.
            let _ = announce(&disk, &self.map, state, &uuid);
        }
    }

    /// Ends the changes of the disk, which is about to be removed. There is no reference to it left
    /// when this returns. Sleeps, for as long as it takes to tell user space of a change.
    pub(in crate::client) fn end(&self) {
        let disk = {
            let mut pending = self.pending.lock();
            pending.ended = true;
            pending.disk.take()
        };
        drop(disk);
        drop(self.told.lock());
    }
}

impl WorkItem for DiskChanges {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.show_now();
    }
}

/// Tells user space the state of a map and which one it is. May sleep.
fn announce(disk: &Disk, map: &Name, state: State, uuid: &Uuid) -> Result {
    disk.announce(&[
        &CString::try_from_fmt(fmt!("FARBLK_STATE={}", state.as_str()))?,
        &CString::try_from_fmt(fmt!("FARBLK_MAP={}", map.as_str()))?,
        &CString::try_from_fmt(format_args!("FARBLK_UUID={uuid}"))?,
    ]);
    Ok(())
}
