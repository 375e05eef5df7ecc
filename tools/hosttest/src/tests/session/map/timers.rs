// SPDX-License-Identifier: GPL-2.0

//! What becomes of I/O that waits, of the lease, and of a server that does not answer.

use super::*;

#[test]
fn who_waits_for_too_long_fails_until_all_is_fenced() {
    let mut map = up(1);
    lose(&mut map, true);
    let fail = [Action::SetMode(Mode::Fail), Action::FailRequeued];
    assert_eq!(after(&mut map, Event::Elapsed(Timer::Expiry)), fail);
    retry(&mut map);
    // Nothing is left to be replayed.
    assert_eq!(
        after(&mut map, connected(0, 2, ADMISSION)),
        [Action::Open(0), Action::SetMode(Mode::Flow)]
    );
    assert_eq!(after(&mut map, Event::Elapsed(Timer::Expiry)), []);
}

/// A server that lets the map in and breaks the connection gains it no time.
#[test]
fn a_path_on_which_nothing_was_answered_stops_no_clock() {
    let mut map = up(1);
    let armed = |actions: &[Action]| {
        let expiry = |action: &&Action| matches!(action, Action::Arm(Timer::Expiry, _));
        actions.iter().filter(expiry).count()
    };
    let disarmed = |actions: &[Action]| actions.contains(&Action::Disarm(Timer::Expiry));
    assert_eq!(armed(&all(&mut map, Event::Lost(0, 1))), 1);
    let mut last = 0;
    for epoch in 1..10 {
        let mut actions = all(&mut map, drained(0, epoch, true));
        let retry = actions.iter().find_map(|action| match action {
            Action::Arm(Timer::Retry(0), delay) => Some(delay.ms),
            _ => None,
        });
        let retry = retry.expect("there is a next attempt");
        assert!(retry >= last, "the backoff goes on");
        last = retry;
        actions.extend(all(&mut map, closed(0)));
        actions.extend(all(&mut map, Event::Elapsed(Timer::Retry(0))));
        actions.extend(all(&mut map, connected(0, epoch + 1, ADMISSION)));
        // The control connection alone proves nothing while requests wait.
        actions.extend(all(&mut map, Event::Pong(0, epoch + 1)));
        actions.extend(all(&mut map, Event::Lost(0, epoch + 1)));
        assert_eq!(armed(&actions), 0);
        assert!(!disarmed(&actions));
    }
    let fail = after(&mut map, Event::Elapsed(Timer::Expiry));
    assert_eq!(fail[0], Action::SetMode(Mode::Fail));
    // From now on it fails at once.
    after(&mut map, drained(0, 10, false));
    after(&mut map, Event::Elapsed(Timer::Retry(0)));
    after(&mut map, connected(0, 11, ADMISSION));
    let fail = after(&mut map, Event::Lost(0, 11));
    assert_eq!(fail[0], Action::SetMode(Mode::Fail));
    // Until something was answered.
    after(&mut map, drained(0, 11, false));
    after(&mut map, Event::Elapsed(Timer::Retry(0)));
    after(&mut map, connected(0, 12, ADMISSION));
    after(&mut map, Event::Pong(0, 12));
    let hold = after(&mut map, Event::Lost(0, 12));
    assert_eq!(hold[0], Action::SetMode(Mode::Hold));
}

/// A replayed request waits for the server's disk, as any other does that was sent.
#[test]
fn no_replay_expires_before_its_path_is_lost() {
    let mut map = up(1);
    lose(&mut map, true);
    retry(&mut map);
    after(&mut map, connected(0, 2, ADMISSION));
    assert_eq!(after(&mut map, Event::Elapsed(Timer::Expiry)), []);
    assert_eq!(map.mode(), Mode::Replay);
    let fail = after(&mut map, Event::Lost(0, 2));
    assert_eq!(fail[0], Action::SetMode(Mode::Fail));
}

#[test]
fn without_patience_io_fails_if_no_path_is_up_and_only_then() {
    let config = Config {
        no_path_timeout_ms: Some(0),
        ..CONFIG
    };
    let mut map = up_with(config, 2);
    lose(&mut map, true);
    assert_eq!(map.mode(), Mode::Hold);
    after(&mut map, fenced(1, 0, 1));
    after(&mut map, Event::Replayed { done: true });
    assert_eq!(map.mode(), Mode::Flow);
    after(&mut map, Event::Lost(1, 1));
    assert_eq!(map.mode(), Mode::Fail);
    after(&mut map, drained(1, 1, true));
    retry(&mut map);
    after(&mut map, connected(0, 2, ADMISSION));
    assert_eq!(
        after(&mut map, fenced(0, 1, 1)),
        [Action::SetMode(Mode::Flow)]
    );
}

#[test]
fn a_lease_that_is_over_is_no_ones_unless_the_server_remembers() {
    let config = Config {
        heartbeat_ms: 1000,
        ..CONFIG
    };
    let mut map = up_with(config, 1);
    let actions = all(&mut map, Event::Lost(0, 1));
    assert!(actions.contains(&Action::ArmLease(68_000)));
    after(&mut map, drained(0, 1, false));
    retry(&mut map);
    let forgot = Admission {
        remembered: false,
        ..ANEW
    };
    let in_time = &mut map.clone();
    let actions = all(in_time, connected(0, 2, forgot));
    assert!(actions.contains(&Action::Disarm(Timer::Lease)));
    assert_eq!(in_time.end(), None);
    after(&mut map, Event::Elapsed(Timer::Lease));
    let remembered = &mut map.clone();
    after(remembered, connected(0, 2, ANEW));
    assert_eq!(remembered.end(), None);
    after(&mut map, connected(0, 2, forgot));
    assert_eq!(map.end(), Some(End::Evicted));
}

#[test]
fn a_silent_server_is_given_up() {
    let config = Config {
        heartbeat_ms: 1000,
        ..CONFIG
    };
    let mut map = up_with(config, 1);
    for _ in 0..5 {
        let actions = all(&mut map, Event::Heartbeat(0, false));
        assert_eq!(actions[0], Action::Ping(0));
        let period = Action::Arm(Timer::Heartbeat(0), Delay::exactly(500));
        assert!(actions.contains(&period));
    }
    assert_eq!(
        after(&mut map, Event::Heartbeat(0, false)),
        [
            Action::Blame(0, Fault::Silent),
            Action::SetMode(Mode::Hold),
            close(0, 1)
        ]
    );
}

/// The host was suspended: the path that is dead counts as up until a heartbeat misses the server,
/// and another one gets through before.
#[test]
fn a_dead_path_does_not_hold_up_the_lease() {
    let config = Config {
        heartbeat_ms: 1000,
        ..CONFIG
    };
    let forgets = Admission {
        remembered: false,
        ..ANEW
    };
    let overdue = |path, epoch, admission| Event::Connected {
        path,
        epoch,
        admission,
        silent_ms: u32::MAX,
    };
    let mut map = up_with(config, 2);
    lose(&mut map, false);
    retry(&mut map);
    let within = Event::Connected {
        path: 0,
        epoch: 2,
        admission: forgets,
        silent_ms: ADMISSION.lease_ms - 1,
    };
    // A server that remembers the map, or within the lease, may let it in.
    for event in [overdue(0, 2, ANEW), within] {
        let mut map = map.clone();
        assert!(after(&mut map, event).contains(&Action::Open(0)));
    }
    assert_eq!(
        after(&mut map, overdue(0, 2, forgets)),
        [Action::Blame(0, Fault::OtherReservation), close(0, 2)]
    );
    assert_eq!(map.end(), None);
    after(&mut map, drained(0, 2, false));
    // Then the other path is found dead.
    let lost = all(&mut map, Event::Lost(1, 1));
    assert!(lost.contains(&Action::ArmLease(ADMISSION.lease_ms)));
    all(&mut map, Event::Elapsed(Timer::Lease));
    retry(&mut map);
    after(&mut map, overdue(0, 3, forgets));
    assert_eq!(map.end(), Some(End::Evicted));
    // Without heartbeats, that nothing came says nothing.
    let mut map = up_with(CONFIG, 2);
    lose(&mut map, false);
    retry(&mut map);
    assert!(after(&mut map, overdue(0, 2, forgets)).contains(&Action::Open(0)));
}
