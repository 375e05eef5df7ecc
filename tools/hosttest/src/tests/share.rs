// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget, as `server/memory/pool.rs` keeps it.

use crate::server::memory::share::may_grow;

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
