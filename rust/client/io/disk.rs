// SPDX-License-Identifier: GPL-2.0

//! The block device of a map.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    impl_has_work, new_mutex, new_work,
    page::PAGE_SIZE,
    sync::{
        Arc,
        ArcBorrow,
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

use crate::base::sync::{
    without_io,
    Completion, //
};
use crate::block::mq::{
    Borrowed,
    GenDisk,
    GenDiskBuilder,
    IdleRequest,
    Limits,
    Operations,
    Owned,
    Refused,
    TagSet,
    Timeout, //
};
use crate::client::{
    host::Host,
    io::ledger::{
        Io,
        RequestData, //
    },
    map::connected::Shape, //
};
use crate::proto::Extent;
use crate::session::State;

/// RDMA moves single bytes; the block layer wants a mask, and words are cheaper everywhere.
const DMA_ALIGNMENT: u32 = 3;

/// A hardware queue.
pub(in crate::client) struct HwQueue(u16);

/// The block layer's view of a map.
pub(in crate::client) struct Disk;

impl Operations for Disk {
    type QueueData = Arc<Io>;
    type HwData = Arc<HwQueue>;
    type RequestData = RequestData;

    fn new_request_data() -> impl PinInit<RequestData, Error> {
        RequestData::new()
    }

    fn init_hctx(_: Borrowed<'_, Arc<Io>>, index: u32) -> Result<Arc<HwQueue>> {
        let queue = HwQueue(u16::try_from(index)?);
        without_io(|| Ok(Arc::new(queue, GFP_KERNEL)?))
    }

    #[inline]
    fn queue_rq(
        hw: ArcBorrow<'_, HwQueue>,
        io: ArcBorrow<'_, Io>,
        request: Owned<IdleRequest<Self>>,
        last: bool,
    ) -> Result<(), Refused<Self>> {
        io.submit(hw.0, request, last)
    }

    fn commit_rqs(hw: ArcBorrow<'_, HwQueue>, io: ArcBorrow<'_, Io>) {
        io.commit(hw.0);
    }

    fn poll(hw: ArcBorrow<'_, HwQueue>, io: ArcBorrow<'_, Io>) -> u32 {
        io.poll(hw.0)
    }

    /// A late RDMA READ or WRITE may end its path; commands are waited for. The request stays.
    fn timeout(hw: ArcBorrow<'_, HwQueue>, io: ArcBorrow<'_, Io>, _tag: u16) -> Timeout {
        io.late(hw.0);
        Timeout::Reset
    }

    /// Everybody who may have written what a server has lost had the disk open until now.
    fn last_close(io: ArcBorrow<'_, Io>) {
        io.closed();
    }
}

/// Makes the disk appear, without its partitions: that is what [`PartitionScan`] is for. May sleep, but
/// for no I/O.
pub(in crate::client) fn create(
    host: &Host,
    shape: &Shape,
    io_timeout_ms: u32,
    io: Arc<Io>,
) -> Result<GenDisk<Disk>> {
    let count = u32::from(shape.queues);
    let poll_queues = u32::from(shape.poll_queues);
    let most = shape.most;
    let tag_set = TagSet::new(
        count.checked_sub(poll_queues).ok_or(EINVAL)?,
        poll_queues,
        shape.depth.into(),
        -1,
        io_timeout_ms,
    );
    let tag_set = Arc::pin_init(tag_set, GFP_KERNEL)?;
    let login = &shape.login;
    let sectors = |bytes: u32| bytes >> SECTOR_SHIFT;
    let limits = &login.limits;
    let mut disk_limits = Limits {
        logical_block_size: limits.logical_block_size.get(),
        physical_block_size: limits.physical_block_size,
        io_min: limits.io_min,
        io_opt: limits.io_opt,
        max_hw_sectors: sectors(limits.max_io.min(most.bytes)),
        max_segments: most.segments,
        max_segment_size: shape.max_segment_size,
        dma_alignment: DMA_ALIGNMENT,
        max_write_zeroes_sectors: sectors(limits.max_write_zeroes),
        max_discard_sectors: sectors(limits.max_discard),
        discard_granularity: limits.discard_granularity,
        write_cache: limits.write_cache,
        fua: limits.fua,
        rotational: limits.rotational,
        ..Limits::default()
    };
    match login.geometry() {
        Some(geometry) => {
            disk_limits.chunk_sectors = sectors(geometry.shift().bytes());
        }
        // A memory region has no gaps between its pages.
        None => {
            disk_limits.virt_boundary = PAGE_SIZE as u32 - 1;
        }
    }
    GenDiskBuilder::new()
        .limits(disk_limits)
        .capacity_sectors(login.extent.size >> SECTOR_SHIFT)
        .read_only(!login.extent.access.writes())
        .build(host.disk_names.clone(), tag_set, io)
}

/// Looks for the partitions of a disk that has appeared, in a task of its own: a server may never answer
/// a read, and the user's command has to end nevertheless.
#[pin_data]
pub(in crate::client) struct PartitionScan {
    #[pin]
    disk: Mutex<Option<Arc<GenDisk<Disk>>>>,
    /// The scan has ended, and let go of the disk.
    #[pin]
    done: Completion,
    #[pin]
    work: Work<PartitionScan>,
}

impl_has_work! {
    impl HasWork<Self> for PartitionScan { self.work }
}

impl PartitionScan {
    /// Begins. Ends when its reads have ended; with the map's I/O failing, that is soon. May sleep.
    pub(in crate::client) fn begin(host: &Host, disk: Arc<GenDisk<Disk>>) -> Result<Arc<Self>> {
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

    /// Waits until it has ended, but not for longer than `ms`. Sleeps.
    pub(in crate::client) fn wait(&self, ms: u32) -> Result {
        self.done.wait_timeout(ms)
    }
}

impl WorkItem for PartitionScan {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let disk = this.disk.lock().take();
        if let Some(disk) = disk {
            // If the first block cannot be read there are no partitions: a later read gets the error.
            let _ = disk.scan_partitions();
        }
        this.done.complete_all();
    }
}

/// The time between two changes of a disk that user space is told of, in ms: it must not have to handle a
/// flood of them.
const CHANGE_INTERVAL_MS: u64 = 250;

/// Shows on a disk what has become of the map: its size, whether it can be written, its state. Of changes
/// that come too fast it shows the last one.
pub(in crate::client) struct DiskChanges {
    shown: Option<(Extent, State)>,
    at: Option<Instant<Monotonic>>,
}

impl DiskChanges {
    /// Those of a disk that does not exist yet.
    pub(in crate::client) const NONE: Self = Self {
        shown: None,
        at: None,
    };

    /// Shows the extent and the state. Returns the time in ms after which it has to be called again, if
    /// it was too early. May sleep, and allocates.
    pub(in crate::client) fn show(
        &mut self,
        disk: &GenDisk<Disk>,
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
        // The parser lets no size in that cannot be.
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
