// SPDX-License-Identifier: GPL-2.0

//! Drivers of multi-queue block devices.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)
//!
//! A driver implements [`Operations`], makes a [`TagSet`] of the type that does with
//! [`TagSetBuilder`], and adds disks with [`GenDiskBuilder`]. blk-mq then hands every request to
//! [`Operations::queue_rq`] as an [`Owned<IdleRequest>`](Owned), from any CPU, several hardware
//! queues at a time.
//!
//! # The right to end a request
//!
//! A request must be ended exactly once, and nothing of it may be accessed afterwards. The right to
//! end it is the [`Owned`] pointer:
//!
//! ```text
//!  queue_rq() --> Owned<IdleRequest> --start()--> Owned<Request> --complete()--> ended
//!                        |                             |
//!                        +---------- refuse() ---------+--> Refused, returned from queue_rq()
//! ```
//!
//! - [`Owned<IdleRequest>::start`] arms the timeout. A driver must start a request before it sends
//!   it to the hardware, which may answer at once.
//! - A driver that has no room for a request gives it back as [`Refused`], before or after its
//!   start.
//! - An `Owned` that is dropped ends its request with [`BlkError::IoError`]: a request may end with
//!   an error without need, but is never lost. If an `Owned` is leaked, its request never ends, and
//!   its disk cannot be removed; but its memory stays.
//! - The data pages belong to the device for as long as the `Owned<Request>` exists. So it is safe
//!   to move it into the description of a DMA transfer, and to take it out when the transfer is
//!   over.
//!
//! # Order of the end
//!
//! Dropping a [`GenDisk`] waits for its requests, so that these end before what they use is freed:
//! first the requests, then the data of the hardware queues, then the disk, then the tag set with
//! the data of the requests. The data of the disk itself lives until the last open file is closed.
//!
//! [`BlkError::IoError`]: super::BlkError::IoError
//! [`Owned<IdleRequest>::start`]: Owned::start

// UPSTREAM: upstream/tree/block/mq.rs takes the place of this file and of the folder, with patches
// 0049 and 0100 to 0110 of upstream/rust.

mod disk_names;
mod gen_disk;
mod identity;
pub(super) mod limits;
mod operations;
mod pr;
mod request;
mod tag_set;

pub(crate) use self::{
    disk_names::DiskNames,
    gen_disk::{
        GenDisk,
        GenDiskBuilder, //
    },
    identity::DiskIdentity,
    limits::Limits,
    operations::{
        Borrowed,
        Operations,
        Timeout, //
    },
    pr::{
        PrChange,
        PrReport,
        PR_KEYS_MAX, //
    },
    request::{
        Command,
        IdleRequest,
        Owned,
        Refused,
        Request, //
    },
    tag_set::{
        TagSet,
        TagSetBuilder, //
    },
};
