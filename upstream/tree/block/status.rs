// SPDX-License-Identifier: GPL-2.0

//! The status of a request that has ended.

pub(super) use kernel::block::status::{
    from_blk_status,
    to_blk_status, //
};
pub(crate) use kernel::block::status::{
    status_code,
    BlkError,
    BlkResult, //
};
