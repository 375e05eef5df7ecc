// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget, as `server/memory.rs` keeps it.

use crate::session::{
    budget::{chunks_max, growable, may_last, reserved_len, RESERVED_MIN},
    chunks::CHUNK,
};

/// Lets the pool at `index` take all that it may.
fn grow(pools: &mut [usize], index: usize, max: usize) {
    while growable(pools[index], pools.len(), pools.iter().sum(), max) > 0 {
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

#[test]
fn what_may_be_added_is_known_before() {
    for max in 0..40 {
        for others in 0..40 {
            for own in 1..20 {
                let mut pools = vec![own];
                pools.extend((others > 0).then_some(others));
                let used = pools.iter().sum();
                let wanted = growable(own, pools.len(), used, max);
                grow(&mut pools, 0, max);
                assert_eq!(pools[0] - own, wanted, "{own} beside {others} of {max}");
            }
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

#[test]
fn reserved_memory_within_the_budget() {
    assert_eq!(reserved_len(32 * CHUNK, 0), CHUNK);
    assert_eq!(reserved_len(32 * CHUNK, 16 * CHUNK), RESERVED_MIN);
    assert_eq!(reserved_len(0, usize::MAX), RESERVED_MIN);
    for size in 2..100 {
        let (size, mut lasting) = (size * CHUNK, 0);
        while reserved_len(size, lasting) > RESERVED_MIN {
            assert!(reserved_len(size, lasting).is_power_of_two());
            lasting += reserved_len(size, lasting);
            assert!(lasting <= size / 2);
        }
    }
}
