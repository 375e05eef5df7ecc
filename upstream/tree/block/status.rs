// SPDX-License-Identifier: GPL-2.0

//! The status of a request that has ended.

use kernel::block::status::to_blk_status;

pub(crate) use kernel::block::status::{
    BlkError,
    BlkResult, //
};

/// Returns the number of a status, 0 for success, as tracepoints show it.
pub(crate) const fn status_code(result: BlkResult) -> u8 {
    to_blk_status(result)
}
