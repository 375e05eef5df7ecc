// SPDX-License-Identifier: GPL-2.0

//! When the HCA is overdue, as the server sees it that looks about once a second.

use crate::server::memory::overdue::{Overdue, Progress, BYTES_PER_MS, LOOK_MAX_MS, OVERDUE_MS};
use proptest::prelude::*;

/// Looks at `at` ms, when so many work requests were posted and have completed.
fn look(overdue: &mut Overdue, at: u64, posted: u32, done: u32) -> bool {
    look_at(overdue, at, (posted, done), 0)
}

/// The same of a client that has `held` bytes of memory.
fn look_at(overdue: &mut Overdue, at: u64, (begun, ended): (u32, u32), held: usize) -> bool {
    overdue.look(at, Progress { begun, ended }, Progress::default(), held)
}

#[test]
fn nothing_completes() {
    let mut overdue = Overdue::default();
    // Nothing is under way, however long.
    for at in 0..10 {
        assert!(!look(&mut overdue, at * 1000, 7, 7));
    }
    for at in 10..13 {
        assert!(!look(&mut overdue, at * 1000, 8, 7));
    }
    assert!(look(&mut overdue, 13_000, 8, 7));
    // It has completed now.
    assert!(!look(&mut overdue, 14_000, 8, 8));
    assert!(!look(&mut overdue, 15_000, 9, 8));
    assert!(!look(&mut overdue, 17_000, 9, 8));
    assert!(look(&mut overdue, 18_000, 9, 8));
}

/// The numbers start again at 0, and a completion may be counted before its work request.
#[test]
fn numbers_wrap() {
    let mut overdue = Overdue::default();
    assert!(!look(&mut overdue, 1000, 2, u32::MAX - 2));
    assert!(!look(&mut overdue, 2000, 2, 1));
    assert!(!look(&mut overdue, 3000, 2, 3));
    for at in 4..9 {
        assert!(!look(&mut overdue, at * 1000, 2, 3));
    }
}

/// A client that acknowledges one work request now and then does not keep the memory of all.
#[test]
fn a_slow_one_is_overdue() {
    let mut overdue = Overdue::default();
    let looks = (0..60).take_while(|at| !look(&mut overdue, at * 1000, 100, *at as u32 / 2));
    assert_eq!(looks.count() as u64, OVERDUE_MS.div_ceil(1000));
    // It has the time to move what it has.
    let held = 10_000 * BYTES_PER_MS as usize;
    let mut overdue = Overdue::default();
    let looks =
        (0..60).take_while(|at| !look_at(&mut overdue, at * 1000, (100, *at as u32 / 2), held));
    assert_eq!(looks.count(), 13);
}

/// A client that moves what it has in its time is not overdue, though it has less and less
/// meanwhile.
#[test]
fn who_gives_back_has_its_time() {
    const PIECES: u64 = 20;
    const PIECE: u64 = 1 << 20;
    // 6 MiB/s.
    let moved = |at: u64| (at * 3 * BYTES_PER_MS / 2 / PIECE).min(PIECES);
    let mut overdue = Overdue::default();
    for at in (0..6000).step_by(200) {
        let held = ((PIECES - moved(at)) * PIECE) as usize;
        let progress = (PIECES as u32, moved(at) as u32);
        assert!(!look_at(&mut overdue, at, progress, held), "at {at}");
    }
}

/// The time of who had much and has little now is that of who has little.
#[test]
fn time_is_for_what_one_has() {
    let mut overdue = Overdue::default();
    let much = 60_000 * BYTES_PER_MS as usize;
    let at = |second: u64| second * 1000;
    for second in 0..10 {
        assert!(!look_at(
            &mut overdue,
            at(second),
            (100, 9 * second as u32),
            much
        ));
    }
    assert!(!look_at(&mut overdue, at(10), (100, 100), much));
    // One of these ends in a second.
    let slow = |second: u64| (200, 100 + second as u32 - 11);
    for second in 11..14 {
        assert!(!look_at(&mut overdue, at(second), slow(second), 0));
    }
    assert!(look_at(&mut overdue, at(14), slow(14), 0));
}

/// Data that are to be fetched keep their memory, too: a client that lets the server read those of
/// one write now and then does not keep it for all that wait.
#[test]
fn slow_reads_are_overdue() {
    let fetch = |overdue: &mut Overdue, at: u64, held: usize| {
        // One READ is under way, and each takes a second.
        let ended = (at / 1000) as u32;
        let sends = Progress {
            begun: ended + 1,
            ended,
        };
        let fetches = Progress { begun: 100, ended };
        overdue.look(at, sends, fetches, held)
    };
    for (held, seconds) in [(0, 3), (10_000 * BYTES_PER_MS as usize, 13)] {
        let mut overdue = Overdue::default();
        let looks = (0..60).take_while(|at| !fetch(&mut overdue, at * 1000, held));
        assert_eq!(looks.count(), seconds);
    }
    // Those that wait behind answers have their time, though no READ ends meanwhile.
    let mut overdue = Overdue::default();
    for at in 0..8 {
        let sends = Progress {
            begun: 20,
            ended: at,
        };
        let fetches = Progress { begun: 7, ended: 0 };
        let held = 8000 * BYTES_PER_MS as usize;
        assert!(!overdue.look(u64::from(at) * 1000, sends, fetches, held));
    }
}

/// A server that was stopped has not seen what has completed meanwhile.
#[test]
fn time_between_looks_counts_little() {
    let mut overdue = Overdue::default();
    assert!(!look(&mut overdue, 1000, 1, 0));
    assert!(!look(&mut overdue, 3_600_000, 1, 0));
    assert!(!look(&mut overdue, 3_600_900, 2, 0));
    assert!(look(&mut overdue, 3_602_000, 2, 0));
}

proptest! {
    /// Clients whose work requests take up to 2.4 s each, and that move what they have, are never
    /// given up; and a work request that does not complete is, soon.
    #[test]
    fn as_a_model(
        requests in prop::collection::vec((0u64..3000, 0u64..2400), 1..100),
        stuck in any::<bool>(),
        interval in 300u64..=LOOK_MAX_MS,
    ) {
        // When each is posted and completes, in order.
        let (mut now, mut free) = (0, 0);
        let mut times = Vec::new();
        for (pause, takes) in requests {
            // Only so many are in flight that the client can move in its time.
            now = (now + pause).max(free);
            free = now + takes;
            times.push((now, free));
        }
        let end = free + 1;
        if stuck {
            times.push((end, u64::MAX));
        }
        let mut overdue = Overdue::default();
        let (mut at, mut found) = (0, None);
        while at < end + 3 * OVERDUE_MS {
            let posted = times.iter().filter(|(posted, _)| *posted <= at).count() as u32;
            let done = times.iter().filter(|(_, done)| *done <= at).count() as u32;
            if look(&mut overdue, at, posted, done) {
                found = Some(at);
                break;
            }
            at += interval;
        }
        match found {
            None => prop_assert!(!stuck),
            Some(at) => {
                prop_assert!(stuck && at >= end + OVERDUE_MS, "too early: {at}");
                prop_assert!(at <= end + OVERDUE_MS + 2 * interval, "late: {at}");
            }
        }
    }
}
