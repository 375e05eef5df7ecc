// SPDX-License-Identifier: GPL-2.0

//! When to try again, and when the other side is gone.

use crate::session::{
    clock::{is_too_slow, Backoff, Heartbeat, KeepAlive, KeepAliveTimeout, Progress},
    flush::{Flushes, LastClose},
    reservation::lease_ms,
    stranger::{Requests, Stay},
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn attempts_are_further_and_further_apart(most in 1..100_000u32) {
        let mut backoff = Backoff::default();
        for attempt in 0..80 {
            let whole = 100u64.saturating_mul(1u64.checked_shl(attempt).unwrap_or(u64::MAX)).min(most.into());
            let delay = backoff.next(most, false);
            prop_assert_eq!(u64::from(delay.ms), whole / 2, "attempt {}", attempt);
            prop_assert_eq!(u64::from(delay.ms + delay.jitter_ms), whole, "attempt {}", attempt);
        }
        backoff.reset();
        let first = backoff.next(most, false);
        prop_assert!(first.ms + first.jitter_ms <= 100);
    }
}

#[test]
fn a_server_has_as_long_as_full_replies_take_and_no_longer() {
    // 16,384 slabs in replies of 100, 4 s each.
    for count in (0..=16_384).step_by(100) {
        assert!(!is_too_slow(count, 100, 4000, count / 100 * 4000));
    }
    // One slab in each reply, 4 s each.
    assert!(!is_too_slow(2, 100, 4000, 2 * 4000));
    assert!(is_too_slow(3, 100, 4000, 3 * 4000));
    assert!(!is_too_slow(0, 100, 4000, 10_000));
    assert!(is_too_slow(0, 100, 4000, 10_001));
    assert!(!is_too_slow(u32::MAX, 1, u32::MAX, u32::MAX));
}

#[test]
fn io_does_not_wait_for_the_longest_time() {
    let mut backoff = Backoff::default();
    for _ in 0..100 {
        let delay = backoff.next(10_000, true);
        assert!(delay.ms + delay.jitter_ms <= 500);
    }
    assert!(backoff.next(10_000, false).ms >= 5000);
    let short = Backoff::default().next(20, true);
    assert!(short.ms + short.jitter_ms <= 20);
}

#[test]
fn so_many_silent_periods_are_stood() {
    for (alone, period_ms, patience) in [(false, 250, 5), (true, 500, 5)] {
        let mut heartbeat = Heartbeat::new(alone);
        assert_eq!(heartbeat.elapsed(true, alone), KeepAlive::Fine);
        for _ in 0..2 {
            for _ in 0..patience {
                assert_eq!(heartbeat.elapsed(false, alone), KeepAlive::Ping);
                assert_eq!(heartbeat.period_ms(1000), Some(period_ms));
            }
            assert_eq!(heartbeat.elapsed(true, alone), KeepAlive::Fine);
        }
        for _ in 0..patience {
            assert_eq!(heartbeat.elapsed(false, alone), KeepAlive::Ping);
        }
        assert_eq!(heartbeat.elapsed(false, alone), KeepAlive::TimedOut);
    }
}

#[test]
fn there_is_a_ping_in_each_heartbeat() {
    for (alone, periods) in [(false, 4), (true, 2)] {
        let mut heartbeat = Heartbeat::new(alone);
        assert_eq!(heartbeat.period_ms(1000).map(|ms| ms * periods), Some(1000));
        for _ in 0..3 {
            for _ in 1..periods {
                assert_eq!(heartbeat.elapsed(true, alone), KeepAlive::Fine);
            }
            assert_eq!(heartbeat.elapsed(true, alone), KeepAlive::Ping);
        }
    }
}

/// Also where the periods become longer, as the other path was lost.
#[test]
fn a_ping_is_not_late_when_a_path_is_alone_then() {
    let mut heartbeat = Heartbeat::new(false);
    for _ in 0..2 {
        assert_eq!(heartbeat.elapsed(true, false), KeepAlive::Fine);
    }
    assert_eq!(heartbeat.elapsed(true, true), KeepAlive::Ping);
}

#[test]
fn without_a_heartbeat_there_is_no_period() {
    for alone in [false, true] {
        assert_eq!(Heartbeat::new(alone).period_ms(0), None);
        assert!(Heartbeat::new(alone).period_ms(1).is_some_and(|ms| ms > 0));
        let longest = Heartbeat::new(alone).period_ms(u32::MAX);
        assert!(longest.is_some_and(|ms| ms >= u32::MAX / 4));
    }
}

#[test]
fn patience_ends_when_another_path_comes_up() {
    let mut heartbeat = Heartbeat::new(true);
    for _ in 0..4 {
        assert_eq!(heartbeat.elapsed(false, true), KeepAlive::Ping);
    }
    assert_eq!(heartbeat.elapsed(false, false), KeepAlive::TimedOut);
}

/// The time in which nothing came is counted on, whatever the periods were.
#[test]
fn a_path_that_is_alone_then_has_its_three_heartbeats() {
    let mut heartbeat = Heartbeat::new(false);
    let mut silent_ms = 250;
    while heartbeat.elapsed(false, silent_ms >= 1000) != KeepAlive::TimedOut {
        silent_ms += heartbeat.period_ms(1000).unwrap_or_default();
        assert!(silent_ms <= 4000);
    }
    assert!(silent_ms >= 3000);
}

/// Work requests complete in order: if none does, it does not matter whose tag is whose by now.
#[test]
fn a_connection_is_stuck_if_nothing_completes() {
    let mut progress = Progress {
        at_ms: 0,
        completions: u64::MAX,
    };
    assert!(!progress.is_missing(50_000, 7, 30_000));
    assert!(!progress.is_missing(50_000, 7, 30_000));
    assert!(!progress.is_missing(79_999, 7, 30_000));
    assert!(!progress.is_missing(80_000, 8, 30_000));
    assert!(!progress.is_missing(109_999, 8, 30_000));
    assert!(progress.is_missing(110_000, 8, 30_000));
}

#[test]
fn a_client_that_says_nothing_is_gone_once() {
    let hour = 3_600_000;
    for (heartbeat_ms, most_ms, looks) in [
        (1, hour, 5),
        (1000, hour, 5),
        (1001, hour, 6),
        (60_000, hour, 300),
        // A promise is kept, however short the longest lease is.
        (60_000, 10_000, 300),
        // A client that promises nothing, or what no map can be set to, is not waited for for ever.
        (0, hour, 3600),
        (60_001, hour, 3600),
        (u32::MAX, hour, 3600),
        (0, 10_000, 10),
        (0, 0, 5),
    ] {
        let mut timeout = KeepAliveTimeout::new(heartbeat_ms, most_ms, 1000, 17);
        for round in 0..3 {
            for look in 0..looks {
                assert!(!timeout.look(17 + round), "{heartbeat_ms} ms: {look}");
            }
            assert!(!timeout.look(18 + round), "it said something");
        }
        for _ in 0..looks {
            assert!(!timeout.look(20));
        }
        assert!(timeout.look(20), "{heartbeat_ms} ms");
        assert!(!timeout.look(20), "it is told once");
    }
}

#[test]
fn a_place_is_kept_for_longer_than_the_client_waits() {
    let hour = 3_600_000;
    assert_eq!(lease_ms(Some(0), 0, hour), 5_000);
    assert_eq!(lease_ms(Some(60_000), 1000, hour), 70_000);
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
fn every_flush_fails_after_a_loss_until_the_disk_is_closed() {
    let mut flushes = Flushes::new();
    flushes.begin(true);
    flushes.begin(false);
    flushes.restarted(false);
    assert!(flushes.must_fail());
    assert!(flushes.must_fail());
    flushes.closed();
    assert!(!flushes.must_fail());
    // Nothing was written since.
    flushes.restarted(false);
    assert!(!flushes.must_fail());
    // Nobody hears of it before the disk is closed.
    flushes.restarted(true);
    flushes.closed();
    assert!(flushes.must_fail());
    // More is lost after somebody heard of it.
    flushes.restarted(true);
    flushes.closed();
    assert!(flushes.must_fail());
    flushes.closed();
    assert!(!flushes.must_fail());
}

#[test]
fn what_the_server_has_flushed_is_not_lost() {
    let mut flushes = Flushes::new();
    flushes.begin(true);
    flushes.flushed();
    flushes.restarted(false);
    assert!(!flushes.must_fail());
    // A write that was complete later.
    flushes.flushed();
    flushes.restarted(true);
    assert!(flushes.must_fail());
    // It does not bring back what is lost.
    flushes.flushed();
    assert!(flushes.must_fail());
}

#[test]
fn an_instance_ends_with_what_was_not_flushed() {
    let mut last = LastClose::new();
    assert_eq!(last.open(|_| true, 1), 1);
    last.begin();
    last.close("a", 1, true);
    // The export could not be enabled.
    assert_eq!(last.open(|device| *device == "a", 2), 1);
    assert_eq!(last.open(|device| *device == "a", 2), 1);
    last.begin();
    // It was not closed.
    assert_eq!(last.open(|device| *device == "a", 3), 3);
    last.begin();
    last.close("a", 3, false);
    assert_eq!(last.open(|device| *device == "a", 4), 4);
    last.begin();
    last.close("a", 4, true);
    // Another device.
    assert_eq!(last.open(|device| *device == "b", 5), 5);
    last.close("b", 5, true);
    assert_eq!(last.open(|device| *device == "a", 6), 6);
}

#[test]
fn a_stranger_may_say_so_much_and_stay_so_long() {
    let mut requests = Requests::default();
    assert!((0..512).all(|_| !requests.count()));
    assert!(requests.count() && requests.count());
    for (look_ms, looks) in [(1000, 10), (20_000, 1), (0, 10_000), (7000, 2)] {
        let mut stay = Stay::default();
        assert!((0..looks).all(|_| !stay.look(look_ms)), "{look_ms}");
        assert!(stay.look(look_ms) && stay.look(look_ms), "{look_ms}");
    }
}
