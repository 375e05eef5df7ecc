// SPDX-License-Identifier: GPL-2.0

//! Block devices of other drivers, opened exclusively.

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
pub(crate) use kernel::block::bdev::BdevLimits;
pub(crate) use kernel::block::bdev::{
    Bdev,
    BdevEvents,
    DeviceId, //
};
