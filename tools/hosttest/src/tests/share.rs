// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget, as `server/memory/pool.rs` keeps it.

use crate::server::memory::{
    buddy::CHUNK,
    share::{chunks_max, may_grow, may_last},
};

/// Lets the pool at `index` take all that it may.
fn grow(pools: &mut [usize], index: usize, max: usize) {
    while may_grow(pools[index], pools.len(), pools.iter().sum(), max) {
        pools[index] += 1;
    }
}

#[test]
fn the_only_pool_may_have_all() {
    for max in 1..100 {
        let mut pools = [1];
        grow(&mut pools, 0, max);
        assert_eq!(pools, [max]);
    }
}

#[test]
fn one_of_several_takes_half_of_the_rest_at_most() {
    for max in 0usize..100 {
        for count in 2..10 {
            let mut pools = vec![1; count];
            for index in 0..count {
                let left = max.saturating_sub(pools.iter().sum());
                grow(&mut pools, index, max);
                let grown = pools[index] - 1;
                assert!(grown <= left.div_ceil(2), "{pools:?} of {max}");
                // Nor is anything kept from a pool that has only its first.
                assert_eq!(grown == 0, left == 0, "{pools:?} of {max}");
            }
            assert!(pools.iter().sum::<usize>() <= max.max(count));
        }
    }
}

/// Bytes of the receives that a poller makes at a time.
const RECEIVES: usize = 64 << 10;

#[test]
fn receives_leave_half_to_data() {
    for chunks in 2..64 {
        let size = chunks * CHUNK;
        let mut lasting = 0;
        // However many connections there are, of however many exports.
        for first in 0..1000 {
            assert!(may_last(size, lasting + RECEIVES, true));
            lasting += RECEIVES;
            if first % 3 == 0 {
                while may_last(size, lasting + RECEIVES, false) {
                    lasting += RECEIVES;
                    assert!(lasting <= size / 2);
                }
            }
            assert!(chunks_max(size, lasting) >= chunks / 2);
            let mut pools = [1];
            grow(&mut pools, 0, chunks_max(size, lasting));
            assert!(pools[0] >= chunks / 2, "{pools:?} of {chunks}");
        }
    }
}

#[test]
fn data_may_have_what_receives_do_not() {
    assert_eq!(chunks_max(32 * CHUNK, 0), 32);
    assert_eq!(chunks_max(32 * CHUNK, 4 * CHUNK), 28);
    assert_eq!(chunks_max(32 * CHUNK, 33 * CHUNK), 16);
    assert_eq!(chunks_max(0, CHUNK), 0);
}
