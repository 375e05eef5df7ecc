// SPDX-License-Identifier: GPL-2.0

//! A shared value that is read often and replaced rarely.

pub(crate) use kernel::sync::rcu::RcuSlot;
