// SPDX-License-Identifier: GPL-2.0

//! Block devices of other drivers, opened exclusively.

pub(crate) use kernel::block::bdev::{
    Bdev,
    BdevEvents,
    BdevLimits,
    DeviceId, //
};
