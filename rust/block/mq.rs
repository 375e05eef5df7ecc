// SPDX-License-Identifier: GPL-2.0

//! Drivers of multi-queue block devices.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)
//!
//! A driver implements [`Operations`], makes a [`TagSet`] of the type that does, and adds disks with
//! [`GenDiskBuilder`]. blk-mq then hands every request to [`Operations::queue_rq`] as an
//! [`Owned<IdleRequest>`](Owned), from any CPU, several hardware queues at a time.
//!
//! # Who may end a request
//!
//! A request must be ended exactly once, and nothing of it may be touched afterwards. The right to
//! do so is the [`Owned`] pointer:
//!
//! ```text
//!  queue_rq() --> Owned<IdleRequest> --start()--> Owned<Request> --complete()--> ended
//!                        |                             |
//!                        +---------- refuse() ---------+--> Refused, returned from queue_rq()
//! ```
//!
//! - [`Owned<IdleRequest>::start`] arms the timeout. What the hardware may answer must be started
//!   before the hardware hears of it.
//! - Whoever has no room for a request, before or after its start, gives it back as [`Refused`].
//! - An `Owned` that is dropped ends its request with [`BlkError::IoError`]: a request can get an
//!   error too many, but is never lost. One that is leaked is a request that never ends, and a disk
//!   that cannot be removed; but its memory stays.
//! - The data pages belong to the device for as long as the `Owned<Request>` exists, so whoever
//!   moves it into what describes a DMA transfer, and takes it back out when that is over, is safe.
//!
//! # Order of the end
//!
//! Dropping a [`GenDisk`] waits for its requests, so it never outlives what they use: requests, then
//! the data of the hardware queues, then the disk, then the tag set with the data of the requests.
//! The data of the disk itself lives until the last open file is closed.
//!
//! [`BlkError::IoError`]: super::BlkError::IoError
//! [`Owned<IdleRequest>::start`]: Owned::start

mod gen_disk;
mod limits;
mod operations;
mod request;
mod tag_set;

pub(crate) use self::{
    gen_disk::{
        DiskNames,
        GenDisk,
        GenDiskBuilder, //
    },
    limits::Limits,
    operations::{
        Borrowed,
        Operations,
        Timeout, //
    },
    request::{
        Command,
        IdleRequest,
        Owned,
        Refused,
        Request, //
    },
    tag_set::TagSet, //
};
