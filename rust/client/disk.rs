// SPDX-License-Identifier: GPL-2.0

//! The block device of a map.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt,
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
    queue::Queue, //
};
use crate::host::Host;
use crate::proto::LoginReply;

/// Largest request: 1 MiB.
const MAX_SECTORS: u32 = 2048;
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

    /// Shows what the connection did, while there is one. May sleep.
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue.try_access() {
            Some(queue) => queue.show(f),
            None => writeln!(f, "closed"),
        }
    }

    /// Segments that a request may have.
    fn max_segments(&self) -> Option<u16> {
        Some(self.queue.try_access()?.max_segments())
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

    /// A request that takes too long ends the connection, and the connection's end ends the request.
    fn timeout(_: ArcBorrow<'_, HwQueue>, data: ArcBorrow<'_, Data>, _tag: u16) -> Timeout {
        data.watcher.lost();
        Timeout::Reset
    }
}

/// Makes the disk appear; reads from it. May sleep.
pub(super) fn create(
    host: &Host,
    login: &LoginReply,
    queues: KVec<Arc<HwQueue>>,
    depth: u16,
    io_timeout_ms: u32,
    max_segment_size: u32,
    watcher: Arc<dyn Watcher>,
) -> Result<GenDisk<Disk>> {
    let count = u32::try_from(queues.len())?;
    let max_segments = queues
        .first()
        .and_then(|queue| queue.max_segments())
        .ok_or(ENODEV)?;
    let tag_set = Arc::pin_init(
        TagSet::new(count, 0, depth.into(), -1, io_timeout_ms),
        GFP_KERNEL,
    )?;
    let limits = Limits {
        logical_block_size: login.limits.logical_block_size.get(),
        physical_block_size: login.limits.physical_block_size,
        max_hw_sectors: MAX_SECTORS,
        max_segments,
        max_segment_size,
        chunk_sectors: login.geometry().map_or(0, |geometry| {
            geometry.shift().bytes() >> kernel::block::SECTOR_SHIFT
        }),
        dma_alignment: DMA_ALIGNMENT,
        max_write_zeroes_sectors: MAX_SECTORS,
        ..Limits::default()
    };
    GenDiskBuilder::new()
        .limits(limits)
        .capacity_sectors(login.extent.size >> kernel::block::SECTOR_SHIFT)
        .read_only(!login.extent.access.writes())
        .build(
            host.disk_names.clone(),
            tag_set,
            Arc::new(Data { queues, watcher }, GFP_KERNEL)?,
        )
}
