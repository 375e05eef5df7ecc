// SPDX-License-Identifier: GPL-2.0

//! Block devices.
//!
//! C headers: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h),
//! [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

#![allow(unsafe_code)]

pub(crate) mod bdev;
pub(crate) mod bio;
#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
mod kunit;
pub(crate) mod mq;
mod status;

pub(crate) use self::status::{
    status_code,
    BlkError,
    BlkResult, //
};

/// Bytes in the sectors that block devices count in, whatever their blocks are, as a shift.
const SECTOR_SHIFT: u32 = 9;
