// SPDX-License-Identifier: GPL-2.0

//! What identifies the contents of a disk.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::bindings;

/// The type of a UUID among the designators of SCSI, which C's `enum blk_unique_id` lacks; asserted
/// in `rust/helpers/block.c`.
pub(super) const UID_UUID: bindings::blk_unique_id = 10;

/// What identifies the contents of a disk, wherever and however often it is attached.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{DiskIdentity, GenDiskBuilder};
/// # fn example(uuid: [u8; 16]) {
/// let builder = GenDiskBuilder::new().identity(DiskIdentity { uuid, durable: true });
/// # }
/// ```
#[derive(Clone, Copy)]
pub(crate) struct DiskIdentity {
    /// The UUID, which sysfs shows as `wwid`.
    pub(crate) uuid: [u8; 16],
    /// True if a disk with the same UUID has the same contents, so that it may also be told to
    /// software that compares disks by their EUI-64.
    pub(crate) durable: bool,
}

/// Returns the sysfs files of a disk that has a [`DiskIdentity`], for `device_add_disk`.
pub(super) fn groups() -> *mut *const bindings::attribute_group {
    // SAFETY: No requirements.
    unsafe { bindings::farblk_disk_groups() }
}
