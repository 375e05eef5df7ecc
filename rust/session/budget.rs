// SPDX-License-Identifier: GPL-2.0

//! How the exports that use an HCA share its memory for commands: `pool_size`. Each has a pool of
//! its own, so that a disk that hangs does not keep the memory of other exports.

#![forbid(unsafe_code)]

use super::chunks::{
    CHUNK,
    PIECE_MIN, //
};

/// The least reserved memory of an account, in bytes. A command of the most common sizes fits.
pub const RESERVED_MIN: usize = 16 * PIECE_MIN;

/// Returns the number of chunks that the pools may have in all, within a budget of `size` bytes of
/// which receives and accounts have `lasting`: these never keep chunks out of more than half of it.
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

/// Returns the bytes of the reserved memory of another account, a power of two, within a budget of
/// `size` bytes of which receives and the reserved memory of others have `lasting`.
///
/// That is a fourth of what these may have yet, up to a chunk, which is enough for the largest
/// command; and [`RESERVED_MIN`] in any case. The number of accounts is limited by that of the
/// hosts.
pub const fn reserved_len(size: usize, lasting: usize) -> usize {
    let fourth = (size / 2).saturating_sub(lasting) / 4;
    if fourth <= RESERVED_MIN {
        RESERVED_MIN
    } else if fourth >= CHUNK {
        CHUNK
    } else {
        1 << fourth.ilog2()
    }
}

/// Returns the number of chunks that a pool which has `own` may add while the others add none,
/// where `pools` of them have `used` of `max` chunks in all.
///
/// The only pool may have all. One of several may have one more than it leaves to the others.
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
