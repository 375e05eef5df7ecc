// SPDX-License-Identifier: GPL-2.0

//! Who is in need of memory that others have.

use super::World;
use crate::server::memory::buddy::{CHUNK, PIECE_MIN};

/// Only who waits for long is in need, and only because of others.
#[test]
fn need_is_known_after_two_ticks() {
    let mut world = World::new(1, &[0; 3], 2);
    let all = world.ask(0, CHUNK).unwrap();
    let need = |world: &World| [0, 1, 2].map(|account| world.arbiter.is_in_need(account, 1));
    assert!(world.ask(2, PIECE_MIN).is_none());
    world.arbiter.elapse();
    assert_eq!(need(&world), [false; 3]);
    world.arbiter.elapse();
    assert_eq!(need(&world), [true, false, true]);
    assert!(world.ask(4, PIECE_MIN).is_none());
    world.arbiter.elapse();
    world.arbiter.elapse();
    assert_eq!(need(&world), [true; 3]);
    world.cancel(2);
    assert_eq!(need(&world), [true, true, false]);
    world.put(0, all);
    assert_eq!(need(&world), [false; 3]);
}

/// A host that has more than another one and wants more still is not in need because of that one.
/// But a third one is that has nothing.
#[test]
fn who_has_most_is_not_in_need() {
    let mut world = World::new(2, &[0; 3], 4);
    let hog = world.ask(0, CHUNK).unwrap();
    let modest = world.ask(4, CHUNK / 2).unwrap();
    assert!(world.ask(1, CHUNK).is_none());
    let need = |world: &World, account: usize| {
        let kept = world.arbiter.held(account);
        world.arbiter.is_in_need(account, kept)
    };
    for _ in 0..4 {
        assert!(!need(&world, 0) && !need(&world, 1));
        world.arbiter.elapse();
        world.serve(None);
    }
    assert!(world.ask(8, CHUNK).is_none());
    assert!(!need(&world, 0) && !need(&world, 1));
    world.arbiter.elapse();
    world.arbiter.elapse();
    assert!(need(&world, 0) && need(&world, 1) && !need(&world, 2));
    world.cancel(8);
    assert!(!need(&world, 0) && !need(&world, 1));
    world.cancel(1);
    world.put(0, hog);
    world.put(4, modest);
}

/// One that waits is found in each tick, however many accounts there are that do not.
#[test]
fn need_is_found_among_many() {
    const MANY: usize = 100;
    let mut world = World::new(1, &[0; MANY], 1);
    let all = world.ask(0, CHUNK).unwrap();
    assert!(world.ask(MANY / 2, PIECE_MIN).is_none());
    world.arbiter.elapse();
    for _ in 0..MANY {
        world.arbiter.elapse();
        assert!(world.arbiter.is_in_need(0, CHUNK));
    }
    world.cancel(MANY / 2);
    world.put(0, all);
}
