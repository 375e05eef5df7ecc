// SPDX-License-Identifier: GPL-2.0

//! The block device of a map.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    page::PAGE_SIZE,
    sync::{
        Arc,
        ArcBorrow, //
    },
};

use crate::base::sync::without_io;
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
}

/// Makes the disk appear; reads from it. May sleep.
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

/// Tells the block layer what has become of the export, if that is news. May sleep.
pub(in crate::client) fn resize(disk: &GenDisk<Disk>, extent: &Extent) {
    disk.set_read_only(!extent.access.writes());
    // The parser lets no size in that cannot be.
    let _ = disk.set_capacity(extent.size >> SECTOR_SHIFT);
}
