// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

use super::buddy::CHUNK;

/// Returns the number of chunks that the pools may have in all, within a budget of `size` bytes of
/// which receives have `lasting`: receives never keep chunks out of more than half of it.
pub const fn chunks_max(size: usize, lasting: usize) -> usize {
    let half = size / 2;
    let lasting = if lasting < half { lasting } else { half };
    (size - lasting) / CHUNK
}

/// Returns true if receives that make `lasting` bytes in all, of a budget of `size`, may be made.
///
/// They may have half of the budget. The `first` receives of a connection may be made in any case:
/// a connection that has none is of no use, and one that is refused would only try again. Their
/// number is limited by that of the connections.
pub const fn may_last(size: usize, lasting: usize, first: bool) -> bool {
    first || lasting <= size / 2
}

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
