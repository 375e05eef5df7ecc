// SPDX-License-Identifier: GPL-2.0

//! How the pools of an HCA share its budget, as `server/memory/pool.rs` keeps it.

use crate::server::memory::{
    buddy::CHUNK,
    share::{chunks_max, growable, may_grow, may_hold, may_last},
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

/// Lets each of some clients take all that it may, in pieces of `len`, of a pool of `size`.
fn take(clients: &mut [usize], len: usize, size: usize) {
    let mut idle = 0;
    for index in (0..clients.len()).cycle() {
        let free = size - clients.iter().sum::<usize>();
        if free >= len && may_hold(clients[index], len, free) {
            clients[index] += len;
            idle = 0;
        } else if idle < clients.len() {
            idle += 1;
        } else {
            return;
        }
    }
}

#[test]
fn clients_that_give_nothing_back_leave_something() {
    for size in [2 * CHUNK, 8 * CHUNK, 64 * CHUNK] {
        for len in [4 << 10, 64 << 10, 256 << 10] {
            for count in 1..=8 {
                let mut clients = vec![0; count];
                take(&mut clients, len, size);
                let taken: usize = clients.iter().sum();
                // But for one piece of each, which is given in any case.
                let most = size * 4 * count / (4 * count + 1) + len * count;
                assert!(taken <= most, "{clients:?} of {size}");
                // One alone is not kept from most of it.
                assert!(
                    count > 1 || taken + len > size * 3 / 4 - len * 4,
                    "{taken} of {size}"
                );
                // Who comes then has room for a command, if anybody has.
                assert!(size - taken < len || may_hold(0, len, size - taken));
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
