// SPDX-License-Identifier: GPL-2.0

//! A one-shot timer.

pub(crate) use kernel::time::timer::{
    new_timer,
    Timer,
    TimerHandler, //
};
