// SPDX-License-Identifier: GPL-2.0

//! When to try again, and when the other side is gone.

use crate::session::{
    backoff::Backoff,
    doubt::Doubts,
    flush::Flushes,
    pulse::{Beat, Pulse, Silence},
    reservation::lease_ms,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn attempts_are_further_and_further_apart(most in 1..100_000u32, random: u32) {
        let mut backoff = Backoff::default();
        for attempt in 0..80 {
            let whole = 100u64.saturating_mul(1u64.checked_shl(attempt).unwrap_or(u64::MAX)).min(most.into());
            let ms = u64::from(backoff.next(most, false, random));
            prop_assert!(ms >= whole / 2 && ms <= whole, "attempt {attempt}: {ms} of {whole}");
        }
        backoff.reset();
        prop_assert!(backoff.next(most, false, random) <= 100);
    }
}

#[test]
fn no_two_clients_come_back_at_once() {
    let spread: std::collections::BTreeSet<u32> = (0..1000)
        .map(|random| Backoff::default().next(10_000, false, random))
        .collect();
    assert_eq!(spread.len(), 51);
}

#[test]
fn io_does_not_wait_for_the_longest_time() {
    let mut backoff = Backoff::default();
    for random in 0..100 {
        assert!(backoff.next(10_000, true, random) <= 500);
    }
    assert!(backoff.next(10_000, false, 0) >= 5000);
    assert!(Backoff::default().next(20, true, 5) <= 20);
}

#[test]
fn so_many_silent_periods_are_stood() {
    for patience in [0, 3, 12] {
        let mut pulse = Pulse::new();
        assert_eq!(pulse.beat(true, patience), Beat::Fine);
        for _ in 0..2 {
            for _ in 0..patience {
                assert_eq!(pulse.beat(false, patience), Beat::Ask);
            }
            assert_eq!(pulse.beat(true, patience), Beat::Fine);
        }
        for _ in 0..patience {
            assert_eq!(pulse.beat(false, patience), Beat::Ask);
        }
        assert_eq!(pulse.beat(false, patience), Beat::Gone);
    }
}

#[test]
fn patience_ends_when_another_path_comes_up() {
    let mut pulse = Pulse::new();
    for _ in 0..8 {
        assert_eq!(pulse.beat(false, 12), Beat::Ask);
    }
    assert_eq!(pulse.beat(false, 5), Beat::Gone);
}

#[test]
fn a_client_that_says_nothing_is_gone_once() {
    for (heartbeat_ms, looks) in [(1, 5), (1000, 5), (1001, 6), (60_000, 300)] {
        let mut silence = Silence::new(heartbeat_ms, 1000, 17);
        for round in 0..3 {
            for look in 0..looks {
                assert!(!silence.look(17 + round), "{heartbeat_ms} ms: {look}");
            }
            assert!(!silence.look(18 + round), "it said something");
        }
        for _ in 0..looks {
            assert!(!silence.look(20));
        }
        assert!(silence.look(20), "{heartbeat_ms} ms");
        assert!(!silence.look(20), "it is told once");
    }
    let mut patient = Silence::new(u32::MAX, 1000, 0);
    let mut none = Silence::new(0, 1000, 0);
    for _ in 0..100_000 {
        assert!(!patient.look(0) && !none.look(0));
    }
}

#[test]
fn a_place_is_kept_for_longer_than_the_client_waits() {
    let hour = 3_600_000;
    assert_eq!(lease_ms(Some(0), 0, hour), 5_000);
    assert_eq!(lease_ms(Some(60_000), 1000, hour), 68_000);
}

#[test]
fn no_place_is_kept_for_ever() {
    let hour = 3_600_000;
    assert_eq!(lease_ms(None, 1000, hour), hour);
    for held in [hour, u32::MAX - 1] {
        assert_eq!(lease_ms(Some(held), 1000, hour), hour);
    }
    assert_eq!(lease_ms(Some(0), u32::MAX, hour), hour);
    assert_eq!(lease_ms(Some(u32::MAX - 1), u32::MAX, u32::MAX), u32::MAX);
}

#[test]
fn a_command_is_lost_at_the_second_word() {
    let mut doubts = Doubts::new();
    // Two of them, asked for in turn.
    assert!(!doubts.add(1));
    assert!(!doubts.add(2));
    assert!(doubts.add(1));
    doubts.settle(&2);
    assert!(!doubts.add(2));
    // Those that were answered later are forgotten.
    for command in 10..20 {
        assert!(!doubts.add(command));
    }
    assert!(!doubts.add(1));
}

#[test]
fn a_flush_covers_what_was_written_before_it_began() {
    let mut flushes = Flushes::new();
    assert!(!flushes.are_needed());
    let idle = flushes.begin(false);
    assert!(!flushes.are_needed());
    let first = flushes.begin(true);
    let second = flushes.begin(false);
    assert!(flushes.are_needed());
    flushes.complete(idle);
    assert!(flushes.are_needed());
    // It began later, and had the same to cover.
    flushes.complete(second);
    assert!(!flushes.are_needed());
    let third = flushes.begin(true);
    flushes.complete(first);
    assert!(flushes.are_needed());
    flushes.complete(third);
    assert!(!flushes.are_needed());
}

#[test]
fn all_flushes_that_may_cover_what_is_gone_fail() {
    let mut flushes = Flushes::new();
    flushes.begin(true);
    flushes.begin(false);
    flushes.restarted(false);
    // Both were under way; one more waits behind the second one.
    assert!(flushes.has_to_fail(0, true));
    assert!(flushes.has_to_fail(1, true));
    assert!(flushes.has_to_fail(1, false));
    // That of the first one comes late.
    assert!(!flushes.has_to_fail(2, false));
    assert!(!flushes.has_to_fail(1, false));
    assert!(flushes.has_to_fail(0, false));
    assert!(!flushes.has_to_fail(0, false));
    // A path alone was lost.
    assert!(!flushes.has_to_fail(0, true));
}
