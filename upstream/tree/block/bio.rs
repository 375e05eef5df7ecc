// SPDX-License-Identifier: GPL-2.0

//! I/O on block devices.

pub(crate) use kernel::block::bio::{
    plugged,
    Bio,
    BioOp,
    BioOwner,
    BioRequest, //
};
