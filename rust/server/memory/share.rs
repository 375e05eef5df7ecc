// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

/// Returns true if a pool that has `own` chunks may add one, where `pools` of them have `used` of
/// `max` chunks in all.
///
/// The only pool may have all. One of several may have one more than it leaves to the others: so a
/// pool that gives nothing back, because its disk hangs, leaves something to a pool that comes
/// later.
pub const fn may_grow(own: usize, pools: usize, used: usize, max: usize) -> bool {
    let left = max.saturating_sub(used);
    left > 0 && (own <= left || pools == 1)
}
