// SPDX-License-Identifier: GPL-2.0

//! The own memory of accounts.

use super::World;
use crate::server::memory::{
    buddy::{CHUNK, PIECE_MIN},
    share::{own_len, OWN_MIN},
};

/// Hosts that never give anything back, whatever they ask for and however often, keep no command
/// waiting that fits the own memory of its account.
#[test]
fn own_memory_waits_for_nobody() {
    for len in [PIECE_MIN, OWN_MIN, 4 * OWN_MIN, CHUNK] {
        let mut world = World::new(4, &[OWN_MIN; 9], 16);
        for round in 0..16 {
            for host in 0..8 {
                let requester = host * 16 + round;
                // What they get is lost.
                let _ = world.ask(requester, len);
            }
            let good = 8 * 16;
            let piece = world.ask(good, OWN_MIN).expect("own memory");
            assert!(world.ask(good + 1, OWN_MIN).is_none() || len < CHUNK);
            world.put(good, piece);
            world.cancel(good + 1);
        }
    }
}

/// What fits own memory does not wait for larger commands of the same account, which wait for what
/// others have; and it does not have the others taken for such that wait for nothing.
#[test]
fn what_fits_waits_for_nothing_larger() {
    let mut world = World::new(1, &[OWN_MIN, OWN_MIN], 4);
    let all = world.ask(0, CHUNK).unwrap();
    assert!(world.ask(4, CHUNK).is_none());
    world.arbiter.elapse();
    world.arbiter.elapse();
    for _ in 0..10 {
        let piece = world.ask(5, OWN_MIN).expect("own memory");
        // The next one waits for this one, and for nothing else.
        assert!(world.ask(6, PIECE_MIN).is_none());
        world.put(5, piece);
        let piece = world.ask(6, PIECE_MIN).expect("it is told");
        world.put(6, piece);
        assert!(world.arbiter.is_in_need(0, CHUNK));
    }
    world.put(0, all);
    let large = world.ask(4, CHUNK).expect("it came first");
    world.put(4, large);
}

/// Of those that fit, too, none goes before another one, be it that it would fit what is there of
/// the common memory.
#[test]
fn what_fits_goes_in_order() {
    const EACH: usize = 12;
    let mut world = World::new(2, &[0, 0, OWN_MIN], EACH);
    // All but the smallest piece of one chunk, and a piece in the way in the other one.
    let lens = (1..=8).map(|order| CHUNK >> order).chain([2 * PIECE_MIN]);
    let pieces = lens
        .enumerate()
        .map(|(requester, len)| (requester, world.ask(requester, len)));
    let mut held: Vec<_> = pieces
        .map(|(requester, piece)| (requester, piece.unwrap()))
        .collect();
    assert!(world.ask(EACH, CHUNK).is_none());
    assert_eq!(world.owner(), Some(1));
    held.push((2 * EACH, world.ask(2 * EACH, OWN_MIN).expect("own memory")));
    assert!(world.ask(2 * EACH + 1, OWN_MIN).is_none());
    assert!(world.ask(2 * EACH + 2, PIECE_MIN).is_none());
    for (requester, piece) in held {
        world.put(requester, piece);
    }
    for (requester, len) in [
        (EACH, CHUNK),
        (2 * EACH + 1, OWN_MIN),
        (2 * EACH + 2, PIECE_MIN),
    ] {
        let piece = world.ask(requester, len).expect("all is there");
        world.put(requester, piece);
    }
}

/// Of an account, the larger command is the first one for common memory, also if it came later:
/// others may have own memory.
#[test]
fn larger_ones_come_first() {
    let mut world = World::new(1, &[0, OWN_MIN], 4);
    let all = world.ask(0, CHUNK).unwrap();
    let own = world.ask(4, OWN_MIN).unwrap();
    assert!(world.ask(5, OWN_MIN).is_none());
    assert!(world.ask(6, CHUNK).is_none());
    world.put(0, all);
    // What was reserved for the one that fits is not taken from it.
    let other = world.ask(5, OWN_MIN).expect("it had the reservation");
    assert!(world.ask(7, PIECE_MIN).is_none());
    world.put(5, other);
    let large = world.ask(6, CHUNK).expect("it comes next");
    assert!(world.ask(7, PIECE_MIN).is_none());
    world.put(4, own);
    let small = world.ask(7, PIECE_MIN).expect("own memory");
    world.put(7, small);
    world.put(6, large);
}

#[test]
fn own_memory_within_the_budget() {
    assert_eq!(own_len(32 * CHUNK, 0), CHUNK);
    assert_eq!(own_len(32 * CHUNK, 16 * CHUNK), OWN_MIN);
    assert_eq!(own_len(0, usize::MAX), OWN_MIN);
    for size in 2..100 {
        let (size, mut lasting) = (size * CHUNK, 0);
        while own_len(size, lasting) > OWN_MIN {
            assert!(own_len(size, lasting).is_power_of_two());
            lasting += own_len(size, lasting);
            assert!(lasting <= size / 2);
        }
    }
}
