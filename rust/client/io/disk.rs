// SPDX-License-Identifier: GPL-2.0

//! The disk of a map: its limits, the scan for its partitions, and what user space is told of it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    impl_has_work, new_mutex, new_work,
    page::PAGE_SIZE,
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

use crate::base::sync::Completion;
use crate::block::mq::{
    GenDisk,
    GenDiskBuilder,
    Limits,
    TagSet, //
};
use crate::client::{
    host::Host,
    io::{
        connection::IoLimits,
        multipath::Multipath, //
    },
};
use crate::proto::{
    Extent,
    LoginReply, //
};
use crate::session::{
    self,
    State, //
};

/// RDMA moves single bytes, but the block layer wants a mask, and words are cheaper everywhere.
const DMA_ALIGNMENT: u32 = 3;

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
    /// The longest segment that the RDMA device takes, in bytes.
    pub(in crate::client) max_segment_size: u32,
    /// The largest read or write that a connection takes.
    pub(in crate::client) io: IoLimits,
}

impl DiskLimits {
    /// Returns the limits as `session::map` compares them.
    pub(in crate::client) fn to_compare(self) -> session::map::Limits {
        let limits = &self.login.limits;
        let geometry = self.login.geometry();
        session::map::Limits {
            block_size: limits.logical_block_size.get(),
            slab: geometry.map(|geometry| geometry.shift().bytes()),
            queues: self.queues,
            poll_queues: self.poll_queues,
            depth: self.depth,
            segments: self.io.segments,
            segment_size: self.max_segment_size,
            max_io: limits.max_io.min(self.io.bytes),
            max_discard: limits.max_discard,
            max_write_zeroes: limits.max_write_zeroes,
            write_cache: limits.write_cache,
            fua: limits.fua,
        }
    }

    /// Returns the limits as the block layer takes them.
    fn to_block(self) -> Limits {
        let sectors = |bytes: u32| bytes >> SECTOR_SHIFT;
        let limits = &self.login.limits;
        let (chunk_sectors, virt_boundary) = match self.login.geometry() {
            Some(geometry) => (sectors(geometry.shift().bytes()), 0),
            // A memory region has no gaps between its pages.
            None => (0, PAGE_SIZE as u32 - 1),
        };
        Limits {
            logical_block_size: limits.logical_block_size.get(),
            physical_block_size: limits.physical_block_size,
            io_min: limits.io_min,
            io_opt: limits.io_opt,
            max_hw_sectors: sectors(limits.max_io.min(self.io.bytes)),
            max_segments: self.io.segments,
            max_segment_size: self.max_segment_size,
            chunk_sectors,
            dma_alignment: DMA_ALIGNMENT,
            virt_boundary,
            max_write_zeroes_sectors: sectors(limits.max_write_zeroes),
            max_discard_sectors: sectors(limits.max_discard),
            discard_granularity: limits.discard_granularity,
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
    let poll_queues = u32::from(limits.poll_queues);
    let tag_set = TagSet::new(
        u32::from(limits.queues)
            .checked_sub(poll_queues)
            .ok_or(EINVAL)?,
        poll_queues,
        limits.depth.into(),
        -1,
        io_timeout_ms,
    );
    let tag_set = Arc::pin_init(tag_set, GFP_KERNEL)?;
    let extent = &limits.login.extent;
    GenDiskBuilder::new()
        .limits(limits.to_block())
        .capacity_sectors(extent.size >> SECTOR_SHIFT)
        .read_only(!extent.access.writes())
        .build(host.disk_names.clone(), tag_set, driver)
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
        let _ = host.scans.enqueue(scan.clone());
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
/// number of uevents that a server can cause.
const CHANGE_INTERVAL_MS: u64 = 250;

/// Tells user space of changes of the map: the size of the disk, whether it can be written, and the
/// state. If changes come too fast, user space is told of the last one only.
pub(in crate::client) struct DiskChanges {
    shown: Option<(Extent, State)>,
    at: Option<Instant<Monotonic>>,
}

impl DiskChanges {
    /// Of a disk that user space was told nothing of.
    pub(in crate::client) const NONE: Self = Self {
        shown: None,
        at: None,
    };

    /// Shows the extent and the state. Returns the time in ms after which the caller must call
    /// again, if it is too early. May sleep, and allocates.
    pub(in crate::client) fn show(
        &mut self,
        disk: &Disk,
        extent: Extent,
        state: State,
    ) -> Option<u64> {
        if self.shown == Some((extent, state)) {
            return None;
        }
        let elapsed = self.at.map(|at| at.elapsed().as_millis());
        let elapsed = elapsed.map_or(CHANGE_INTERVAL_MS, |ms| u64::try_from(ms).unwrap_or(0));
        if elapsed < CHANGE_INTERVAL_MS {
            return Some(CHANGE_INTERVAL_MS - elapsed);
        }
        self.at = Some(Instant::now());
        disk.set_read_only(!extent.access.writes());
        // Cannot fail: the parser accepts only sizes that a disk can have.
        let _ = disk.set_capacity(extent.size >> SECTOR_SHIFT);
        if self.shown.map(|(_, shown)| shown) != Some(state) {
            disk.announce(match state {
                State::Disabled => c"FARBLK_STATE=disabled",
                State::Connecting => c"FARBLK_STATE=connecting",
                State::Live => c"FARBLK_STATE=live",
                State::Reconnecting => c"FARBLK_STATE=reconnecting",
                State::Failed => c"FARBLK_STATE=failed",
                State::Stale => c"FARBLK_STATE=stale",
                State::Evicted => c"FARBLK_STATE=evicted",
            });
        }
        self.shown = Some((extent, state));
        None
    }
}
