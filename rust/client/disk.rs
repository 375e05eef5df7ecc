// SPDX-License-Identifier: GPL-2.0

//! The block device of a map.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    fmt,
    page::PAGE_SIZE,
    revocable::Revocable,
    sync::{
        Arc,
        ArcBorrow, //
    },
};

use crate::block::{
    mq::{
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
    },
    BlkError, //
};
use crate::client::{
    control::Watcher,
    queue::{
        Most,
        Queue, //
    }, //
};
use crate::host::Host;
use crate::proto::{
    Extent,
    LoginReply, //
};
use crate::sync::without_io;

/// RDMA moves single bytes; the block layer wants a mask, and words are cheaper everywhere.
const DMA_ALIGNMENT: u32 = 3;

/// A hardware queue, whose connection may go while the disk stays.
#[pin_data]
pub(super) struct HwQueue {
    #[pin]
    queue: Revocable<Queue>,
}

impl HwQueue {
    /// A hardware queue on a connection.
    pub(super) fn new(queue: Queue) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self { queue <- Revocable::new(queue) }),
            GFP_KERNEL,
        )
    }

    /// Ends all requests and closes the connection. May sleep.
    pub(super) fn close(&self) {
        self.queue.revoke();
    }

    /// Makes receives for as many commands as the server allows in flight. May sleep.
    pub(super) fn grow(&self) {
        loop {
            let missing = match self.queue.try_access() {
                Some(queue) => queue.missing(),
                None => return,
            };
            // The memory may be wanted for I/O that waits for this.
            let made = missing.and_then(|missing| without_io(|| missing.make()).ok());
            let Some(queue) = self.queue.try_access() else {
                return;
            };
            match made.map(|receives| queue.provide(receives)) {
                Some(Ok(())) => {}
                // There are enough, or no memory for more: then the next answer is another occasion.
                None | Some(Err(_)) => return queue.provided(),
            }
        }
    }

    /// Shows what the connection did, while there is one. May sleep.
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue.try_access() {
            Some(queue) => queue.show(f),
            None => writeln!(f, "closed"),
        }
    }

    /// What a request may be at most.
    fn most(&self) -> Option<Most> {
        Some(self.queue.try_access()?.most())
    }
}

/// What the block layer calls for a disk.
pub(super) struct Data {
    queues: KVec<Arc<HwQueue>>,
    watcher: Arc<dyn Watcher>,
}

/// A request carries nothing of ours: its slot in the queue pair does.
#[pin_data]
pub(super) struct NoData {}

/// The block layer's view of a map.
pub(super) struct Disk;

impl Operations for Disk {
    type QueueData = Arc<Data>;
    type HwData = Arc<HwQueue>;
    type RequestData = NoData;

    fn new_request_data() -> impl PinInit<NoData, Error> {
        try_pin_init!(NoData {})
    }

    fn init_hctx(data: Borrowed<'_, Arc<Data>>, index: u32) -> Result<Arc<HwQueue>> {
        let index = usize::try_from(index)?;
        data.queues.get(index).cloned().ok_or(EINVAL)
    }

    #[inline]
    fn queue_rq(
        hw: ArcBorrow<'_, HwQueue>,
        _: ArcBorrow<'_, Data>,
        request: Owned<IdleRequest<Self>>,
        last: bool,
    ) -> Result<(), Refused<Self>> {
        match hw.queue.try_access() {
            Some(queue) => queue.submit(request, last),
            None => Err(request.refuse(BlkError::Transport)),
        }
    }

    fn commit_rqs(hw: ArcBorrow<'_, HwQueue>, _: ArcBorrow<'_, Data>) {
        if let Some(queue) = hw.queue.try_access() {
            queue.commit();
        }
    }

    fn poll(hw: ArcBorrow<'_, HwQueue>, _: ArcBorrow<'_, Data>) -> u32 {
        hw.queue.try_access().map_or(0, |queue| queue.poll())
    }

    /// A request that takes too long ends the connection, and the connection's end ends the request.
    fn timeout(_: ArcBorrow<'_, HwQueue>, data: ArcBorrow<'_, Data>, _tag: u16) -> Timeout {
        data.watcher.lost();
        Timeout::Reset
    }
}

/// What a disk is to be.
pub(super) struct Plan {
    /// What the server told of the export.
    pub(super) login: LoginReply,
    /// How many of the queues, at the end, are polled.
    pub(super) poll_queues: u16,
    /// Requests in flight per queue.
    pub(super) depth: u16,
    /// When a request is late.
    pub(super) io_timeout_ms: u32,
    /// The longest run of memory that the device takes as one.
    pub(super) max_segment_size: u32,
}

/// Makes the disk appear; reads from it. May sleep.
pub(super) fn create(
    host: &Host,
    plan: &Plan,
    queues: KVec<Arc<HwQueue>>,
    watcher: Arc<dyn Watcher>,
) -> Result<GenDisk<Disk>> {
    let count = u32::try_from(queues.len())?;
    let poll_queues = u32::from(plan.poll_queues);
    let most = queues
        .first()
        .and_then(|queue| queue.most())
        .ok_or(ENODEV)?;
    let tag_set = TagSet::new(
        count.checked_sub(poll_queues).ok_or(EINVAL)?,
        poll_queues,
        plan.depth.into(),
        -1,
        plan.io_timeout_ms,
    );
    let tag_set = Arc::pin_init(tag_set, GFP_KERNEL)?;
    let login = &plan.login;
    let sectors = |bytes: u32| bytes >> SECTOR_SHIFT;
    let limits = &login.limits;
    let mut disk_limits = Limits {
        logical_block_size: limits.logical_block_size.get(),
        physical_block_size: limits.physical_block_size,
        io_min: limits.io_min,
        io_opt: limits.io_opt,
        max_hw_sectors: sectors(limits.max_io.min(most.bytes)),
        max_segments: most.segments,
        max_segment_size: plan.max_segment_size,
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
        .build(
            host.disk_names.clone(),
            tag_set,
            Arc::new(Data { queues, watcher }, GFP_KERNEL)?,
        )
}

/// Tells the block layer what has become of the export, if that is news. May sleep.
pub(super) fn resize(disk: &GenDisk<Disk>, extent: &Extent) {
    disk.set_read_only(!extent.access.writes());
    // The parser lets no size in that cannot be.
    let _ = disk.set_capacity(extent.size >> SECTOR_SHIFT);
}
