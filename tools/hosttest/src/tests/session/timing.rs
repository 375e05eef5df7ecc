// SPDX-License-Identifier: GPL-2.0

//! When to try again, and when the other side is gone.

use crate::session::backoff::Backoff;
use crate::session::pulse::{Beat, Pulse};
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
