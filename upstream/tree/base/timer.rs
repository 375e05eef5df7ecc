// SPDX-License-Identifier: GPL-2.0

//! A one-shot timer, that of the kernel crate.

pub(crate) use kernel::time::timer::{
    Timer,
    TimerHandler, //
};
