// SPDX-License-Identifier: GPL-2.0

//! The features of a queue: macros with a cast, which bindgen does not take; asserted in
//! `rust/helpers/block.c`.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::bindings::blk_features_t;

pub(super) const BLK_FEAT_WRITE_CACHE: blk_features_t = 1 << 0;
pub(super) const BLK_FEAT_FUA: blk_features_t = 1 << 1;
pub(super) const BLK_FEAT_ROTATIONAL: blk_features_t = 1 << 2;
pub(super) const BLK_FEAT_SYNCHRONOUS: blk_features_t = 1 << 6;
pub(super) const BLK_FEAT_ATOMIC_WRITES: blk_features_t = 1 << 14;
