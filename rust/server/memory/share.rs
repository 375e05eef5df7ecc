// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

use super::buddy::{
    CHUNK,
    PIECE_MIN, //
};

/// The least own memory of an account, in bytes. A command of the most common sizes fits.
pub const OWN_MIN: usize = 16 * PIECE_MIN;

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

/// Returns the bytes of the own memory of another account, a power of two, within a budget of
/// `size` bytes of which receives and the own memory of others have `lasting`.
///
/// That is a fourth of what these may have yet, up to a chunk, which is enough for the largest
/// command; and [`OWN_MIN`] in any case. The number of accounts is limited by that of the hosts.
pub const fn own_len(size: usize, lasting: usize) -> usize {
    let fourth = (size / 2).saturating_sub(lasting) / 4;
    if fourth <= OWN_MIN {
        OWN_MIN
    } else if fourth >= CHUNK {
        CHUNK
    } else {
        1 << fourth.ilog2()
    }
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

/// Returns the number of chunks that a pool may add while the others add none: as often as
/// [`may_grow`] allows it.
pub const fn growable(own: usize, pools: usize, used: usize, max: usize) -> usize {
    let left = max.saturating_sub(used);
    if pools == 1 {
        return left;
    }
    match left.checked_sub(own) {
        Some(more) if left > 0 => more / 2 + 1,
        _ => 0,
    }
}

/// How many times as much as it leaves to others an account may have of a pool.
const LEFT_FACTOR: usize = 4;

/// Returns true if an account that has `own` bytes of the common memory of a pool may have `len`
/// more, where `free` are left, with those by which the pool may grow.
///
/// An account may have four fifths if it is alone, and each of two four ninths: one that gives
/// nothing back because its host does not receive its answers leaves something to others. One
/// command may have its memory in any case, if it is there.
pub const fn may_hold(own: usize, len: usize, free: usize) -> bool {
    let left = free.saturating_sub(len).saturating_mul(LEFT_FACTOR);
    own == 0 || own.saturating_add(len) <= left
}
