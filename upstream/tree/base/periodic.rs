// SPDX-License-Identifier: GPL-2.0

//! Work that is done periodically.

pub(crate) use kernel::workqueue::periodic::{
    PeriodicHandler,
    PeriodicWork, //
};
