// SPDX-License-Identifier: GPL-2.0

//! The actions of a map, in their order.

use crate::session::clock::{Delay, Timer};
use crate::session::map::{
    Action, Admission, Config, Drained, End, Event, Extent, Failure, Farewell, Fault, Limits,
    Machine, Mode,
};
use crate::session::{PathId, State};

const LIMITS: Limits = Limits {
    block_size: 512,
    slab: None,
    queues: 2,
    poll_queues: 0,
    depth: 64,
    segments: 64,
    segment_size: 4096,
    max_io: 1 << 20,
    max_discard: 1 << 20,
    max_write_zeroes: 0,
    write_cache: true,
    fua: true,
};

const ADMISSION: Admission = Admission {
    server: 7,
    export: 1,
    instance: 2,
    volatile: false,
    tenure: 3,
    lease_ms: 68_000,
    remembered: true,
    extent: Extent {
        number: 5,
        size: 1 << 20,
        writable: true,
    },
    limits: LIMITS,
};

/// The same of a server that began anew.
const ANEW: Admission = Admission {
    instance: 9,
    ..ADMISSION
};

const CONFIG: Config = Config {
    no_path_timeout_ms: Some(60_000),
    heartbeat_ms: 0,
    reconnect_max_ms: 10_000,
};

/// All actions that follow.
fn all(map: &mut Machine, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    map.step(event, &mut |action| actions.push(action));
    actions
}

/// The actions that follow, but for those of clocks and pings.
fn after(map: &mut Machine, event: Event) -> Vec<Action> {
    let mut actions = all(map, event);
    actions.retain(|action| {
        !matches!(
            action,
            Action::Arm(..) | Action::Disarm(_) | Action::Ping(_)
        )
    });
    actions
}

fn connect(path: PathId, epoch: u64, resume: Option<u64>, urgent: bool) -> Action {
    Action::Connect {
        path,
        epoch,
        resume,
        urgent,
    }
}

fn close(path: PathId, epoch: u64) -> Action {
    Action::Close {
        path,
        epoch,
        leave: false,
    }
}

fn fence(via: u8, path: u8, epoch: u64) -> Action {
    Action::Fence { via, path, epoch }
}

fn drained(path: PathId, epoch: u64, requeued: bool) -> Event {
    Event::Drained {
        path,
        epoch,
        how: Drained::Clean,
        requeued,
    }
}

fn closed(path: PathId) -> Event {
    Event::Closed {
        path,
        told: false,
        requeued: false,
    }
}

fn fenced(via: PathId, path: PathId, epoch: u64) -> Event {
    Event::Fenced { via, path, epoch }
}

/// A map whose paths `0..paths` are up, and proven.
fn up_with(config: Config, paths: u8) -> Machine {
    let mut map = Machine::new(config);
    for path in 0..paths {
        assert_eq!(
            after(&mut map, Event::Add(path)),
            [connect(path, 1, None, true)]
        );
    }
    for path in 0..paths {
        let actions = after(&mut map, Event::Connected(path, 1, ADMISSION));
        let expected: &[_] = match path {
            0 => &[
                Action::Resize(ADMISSION.extent),
                Action::Open(0),
                Action::SetMode(Mode::Flow),
            ],
            _ => &[Action::Open(path)],
        };
        assert_eq!(actions, expected);
        assert_eq!(after(&mut map, Event::Pong(path, 1)), []);
    }
    assert_eq!(map.state(), State::Connecting);
    assert_eq!(after(&mut map, Event::Appeared), []);
    assert_eq!(map.state(), State::Live);
    map
}

fn up(paths: u8) -> Machine {
    up_with(CONFIG, paths)
}

/// Path 0 is lost, and drained.
fn lose(map: &mut Machine, requeued: bool) {
    let epoch = map.epoch(0);
    after(map, Event::Lost(0, epoch));
    after(map, drained(0, epoch, requeued));
    after(map, closed(0));
}

fn retry(map: &mut Machine) -> Vec<Action> {
    after(map, Event::Elapsed(Timer::Retry(0)))
}

#[test]
fn the_only_path_is_lost_and_comes_back() {
    let mut map = up(1);
    // Nothing is sent any more before the path is let go of.
    assert_eq!(
        after(&mut map, Event::Lost(0, 1)),
        [Action::SetMode(Mode::Hold), close(0, 1)]
    );
    assert_eq!(after(&mut map, drained(0, 1, true)), []);
    assert_eq!(after(&mut map, closed(0)), []);
    assert_eq!(retry(&mut map), [connect(0, 2, Some(3), true)]);
    let refused = Event::Refused(0, 2, Failure::Transient);
    assert_eq!(after(&mut map, refused), []);
    assert_eq!(retry(&mut map), [connect(0, 3, Some(3), true)]);
    assert_eq!(
        after(&mut map, Event::Connected(0, 3, ADMISSION)),
        [
            Action::Open(0),
            Action::SetMode(Mode::Replay),
            Action::Replay
        ]
    );
    assert_eq!(
        after(&mut map, Event::Replayed { done: true }),
        [Action::SetMode(Mode::Flow)]
    );
}

#[test]
fn what_has_no_room_is_sent_later() {
    let mut map = up(2);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, drained(0, 1, true));
    // The fence first.
    let arm = Action::Arm(Timer::SendRetry, Delay::exactly(10));
    assert_eq!(all(&mut map, Event::FenceNotSent(0)), [arm]);
    assert_eq!(all(&mut map, Event::FenceNotSent(0)), []);
    let elapsed = Event::Elapsed(Timer::SendRetry);
    assert_eq!(all(&mut map, elapsed), [fence(1, 0, 1)]);
    assert_eq!(all(&mut map, elapsed), []);
    after(&mut map, fenced(1, 0, 1));
    assert_eq!(map.mode(), Mode::Replay);
    assert_eq!(all(&mut map, Event::Replayed { done: false }), [arm]);
    assert_eq!(all(&mut map, elapsed), [Action::Replay]);
    let ended = Event::ReplayEnded { answered: true };
    assert_eq!(all(&mut map, ended), [Action::Replay]);
}

#[test]
fn another_path_takes_over_after_the_fence() {
    let mut map = up(2);
    assert_eq!(
        after(&mut map, Event::Lost(0, 1)),
        [Action::SetMode(Mode::Hold), close(0, 1), fence(1, 0, 1)]
    );
    // In either order.
    assert_eq!(after(&mut map.clone(), fenced(1, 0, 1)), []);
    // Nobody else can say so.
    assert_eq!(after(&mut map, fenced(0, 0, 1)), []);
    assert_eq!(after(&mut map, drained(0, 1, true)), []);
    assert_eq!(
        after(&mut map, fenced(1, 0, 1)),
        [Action::SetMode(Mode::Replay), Action::Replay]
    );
    assert_eq!(
        after(&mut map, Event::Replayed { done: true }),
        [Action::SetMode(Mode::Flow)]
    );
    assert_eq!(retry(&mut map), [connect(0, 2, Some(3), false)]);
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ADMISSION)),
        [Action::Open(0)]
    );
}

#[test]
fn a_path_without_requests_needs_no_replay() {
    let mut map = up(2);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, drained(0, 1, false));
    assert_eq!(
        after(&mut map, fenced(1, 0, 1)),
        [Action::SetMode(Mode::Flow)]
    );
}

#[test]
fn a_fence_is_asked_for_again_if_its_path_is_lost() {
    let mut map = up(3);
    after(&mut map, Event::Lost(0, 1));
    assert_eq!(
        after(&mut map, Event::Lost(1, 1)),
        [close(1, 1), fence(2, 0, 1), fence(2, 1, 1)]
    );
}

#[test]
fn old_news_means_nothing() {
    let mut map = up(2);
    lose(&mut map, false);
    retry(&mut map);
    let before = map.clone();
    for event in [
        Event::Lost(0, 1),
        drained(0, 1, false),
        Event::Connected(0, 1, ADMISSION),
        Event::Refused(0, 1, Failure::Denied),
        drained(0, 2, false),
        Event::Elapsed(Timer::Retry(1)),
        Event::Elapsed(Timer::Expiry),
        Event::Elapsed(Timer::Lease),
        Event::Elapsed(Timer::SendRetry),
        Event::Replayed { done: true },
        Event::ReplayEnded { answered: true },
        fenced(1, 1, 1),
        Event::Lost(9, 0),
        Event::Add(9),
        Event::Add(1),
        Event::Pong(0, 1),
        Event::Extent(
            0,
            1,
            Extent {
                number: 99,
                ..ADMISSION.extent
            },
        ),
    ] {
        assert_eq!(after(&mut map, event), [], "{event:?}");
        assert_eq!(map, before, "{event:?}");
    }
}

#[test]
fn who_waits_for_too_long_fails_until_all_is_fenced() {
    let mut map = up(1);
    lose(&mut map, true);
    let fail = [Action::SetMode(Mode::Fail), Action::FailRequeued];
    assert_eq!(after(&mut map, Event::Elapsed(Timer::Expiry)), fail);
    retry(&mut map);
    // Nothing is left to be replayed.
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ADMISSION)),
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
        actions.extend(all(&mut map, Event::Connected(0, epoch + 1, ADMISSION)));
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
    after(&mut map, Event::Connected(0, 11, ADMISSION));
    let fail = after(&mut map, Event::Lost(0, 11));
    assert_eq!(fail[0], Action::SetMode(Mode::Fail));
    // Until something was answered.
    after(&mut map, drained(0, 11, false));
    after(&mut map, Event::Elapsed(Timer::Retry(0)));
    after(&mut map, Event::Connected(0, 12, ADMISSION));
    after(&mut map, Event::Pong(0, 12));
    let hold = after(&mut map, Event::Lost(0, 12));
    assert_eq!(hold[0], Action::SetMode(Mode::Hold));
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
    after(&mut map, Event::Connected(0, 2, ADMISSION));
    assert_eq!(
        after(&mut map, fenced(0, 1, 1)),
        [Action::SetMode(Mode::Flow)]
    );
}

#[test]
fn other_contents_end_it() {
    for (admission, end) in [
        (
            Admission {
                instance: 9,
                volatile: true,
                ..ADMISSION
            },
            End::Stale,
        ),
        (
            Admission {
                export: 9,
                ..ADMISSION
            },
            End::Stale,
        ),
        (
            Admission {
                tenure: 9,
                ..ADMISSION
            },
            End::Evicted,
        ),
    ] {
        let mut map = up(1);
        lose(&mut map, true);
        retry(&mut map);
        assert_eq!(
            after(&mut map, Event::Connected(0, 2, admission)),
            [
                Action::SetMode(Mode::Fail),
                Action::FailRequeued,
                Action::Close {
                    path: 0,
                    epoch: 2,
                    leave: true
                }
            ]
        );
        assert_eq!(map.end(), Some(end));
        assert_eq!(after(&mut map, drained(0, 2, false)), []);
        assert_eq!(after(&mut map, Event::Add(1)), []);
    }
}

/// Whatever a path leads to, it does no harm to a map with another path.
#[test]
fn a_wrong_path_is_let_go_of() {
    let misfit = Limits {
        queues: 1,
        ..LIMITS
    };
    for (admission, fault, leave) in [
        (
            Admission {
                server: 8,
                instance: 9,
                volatile: true,
                ..ADMISSION
            },
            Fault::OtherServer,
            true,
        ),
        (
            Admission {
                export: 9,
                ..ADMISSION
            },
            Fault::OtherExport,
            false,
        ),
        (
            Admission {
                tenure: 9,
                ..ADMISSION
            },
            Fault::OtherTenure,
            false,
        ),
        (
            Admission {
                limits: misfit,
                ..ADMISSION
            },
            Fault::Misfit("there are fewer queues"),
            false,
        ),
    ] {
        let mut map = up(1);
        after(&mut map, Event::Add(1));
        let wrong = Action::Close {
            path: 1,
            epoch: 1,
            leave,
        };
        assert_eq!(
            after(&mut map, Event::Connected(1, 1, admission)),
            [Action::Blame(1, fault), wrong]
        );
        assert_eq!(map.mode(), Mode::Flow);
        let again = all(&mut map, drained(1, 1, false));
        assert!(matches!(again[..], [Action::Arm(Timer::Retry(1), _)]));
        assert_eq!(map.end(), None);
    }
    // Nor does one that is refused, or was never up.
    let mut map = up(2);
    lose(&mut map, false);
    retry(&mut map);
    after(&mut map, Event::Refused(0, 2, Failure::Denied));
    assert_eq!(map.end(), None);
    after(&mut map, Event::Add(2));
    after(&mut map, Event::Lost(1, 1));
    after(&mut map, Event::Refused(2, 1, Failure::Denied));
    assert_eq!(map.end(), None);
    retry(&mut map);
    after(&mut map, Event::Refused(0, 3, Failure::Denied));
    assert_eq!(map.end(), Some(End::Evicted));
}

/// A path to another server does not end a map that has no other path, either.
#[test]
fn another_server_proves_nothing() {
    let mut map = up(1);
    lose(&mut map, true);
    retry(&mut map);
    let other = Admission {
        server: 8,
        instance: 9,
        ..ADMISSION
    };
    let actions = after(&mut map, Event::Connected(0, 2, other));
    assert_eq!(actions[0], Action::Blame(0, Fault::OtherServer));
    assert_eq!((map.mode(), map.end()), (Mode::Hold, None));
}

#[test]
fn hints_are_no_reason_to_refuse_a_path() {
    let larger = Limits {
        depth: 128,
        max_io: 2 << 20,
        write_cache: false,
        ..LIMITS
    };
    assert_eq!(larger.fit(&LIMITS), Ok(()));
    for smaller in [
        Limits {
            block_size: 4096,
            ..LIMITS
        },
        Limits {
            slab: Some(1 << 20),
            ..LIMITS
        },
        Limits {
            poll_queues: 1,
            ..LIMITS
        },
        Limits {
            depth: 63,
            ..LIMITS
        },
        Limits {
            max_discard: 0,
            ..LIMITS
        },
        Limits {
            fua: false,
            ..LIMITS
        },
    ] {
        assert!(smaller.fit(&LIMITS).is_err(), "{smaller:?}");
    }
    let ram = Limits {
        slab: Some(1 << 20),
        ..LIMITS
    };
    let slabs = Limits {
        slab: Some(1 << 16),
        ..LIMITS
    };
    assert!(slabs.fit(&ram).is_err() && ram.fit(&slabs).is_ok());
    let cache = Limits {
        write_cache: false,
        ..LIMITS
    };
    assert!(LIMITS.fit(&cache).is_err());
}

#[test]
fn an_instance_that_changed_is_told_of() {
    let mut map = up(1);
    lose(&mut map, true);
    retry(&mut map);
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ANEW)),
        [
            Action::Open(0),
            Action::InstanceChanged,
            Action::SetMode(Mode::Replay),
            Action::Replay
        ]
    );
}

#[test]
fn a_path_that_is_not_wanted_any_more_goes_and_may_come_back() {
    let mut map = up(2);
    assert_eq!(
        after(&mut map, Event::Remove(1)),
        [Action::SetMode(Mode::Hold), close(1, 1), fence(0, 1, 1)]
    );
    assert_eq!(after(&mut map, drained(1, 1, false)), []);
    assert!(!map.is_gone(1));
    assert_eq!(after(&mut map, closed(1)), []);
    assert!(map.is_gone(1));
    assert_eq!(
        after(&mut map, fenced(0, 1, 1)),
        [Action::SetMode(Mode::Flow)]
    );
    assert_eq!(
        after(&mut map, Event::Add(1)),
        [connect(1, 2, Some(3), false)]
    );
}

/// What comes of an attempt that was given up is let go of, too.
#[test]
fn an_attempt_that_is_given_up_is_closed_twice() {
    let mut map = up(1);
    after(&mut map, Event::Add(1));
    assert_eq!(after(&mut map, Event::Remove(1)), [close(1, 1)]);
    assert_eq!(
        after(&mut map, Event::Connected(1, 1, ADMISSION)),
        [close(1, 1)]
    );
    for _ in 0..2 {
        assert!(!map.is_gone(1));
        assert_eq!(after(&mut map, drained(1, 1, false)), []);
        assert_eq!(after(&mut map, closed(1)), []);
    }
    assert!(map.is_gone(1));
}

/// What still arrives on the other path was done by the server that is gone.
#[test]
fn no_path_to_a_server_that_is_gone_is_kept() {
    let mut map = up(2);
    lose(&mut map, false);
    after(&mut map, fenced(1, 0, 1));
    retry(&mut map);
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ANEW)),
        [
            Action::SetMode(Mode::Hold),
            close(1, 1),
            Action::Open(0),
            fence(0, 1, 1)
        ]
    );
    assert_eq!(after(&mut map, drained(1, 1, true)), []);
    assert_eq!(
        after(&mut map, fenced(0, 1, 1)),
        [
            Action::InstanceChanged,
            Action::SetMode(Mode::Replay),
            Action::Replay
        ]
    );
}

#[test]
fn a_connection_that_broke_at_once_is_not_used() {
    let mut map = up(1);
    lose(&mut map, false);
    retry(&mut map);
    assert_eq!(after(&mut map, Event::Lost(0, 2)), []);
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ADMISSION)),
        [Action::Blame(0, Fault::Broken), close(0, 2)]
    );
}

/// Requests that a device did not give back are waited for until the path is closed, and then replayed.
#[test]
fn a_path_that_was_not_drained_holds_io_until_it_is_closed() {
    let mut map = up(2);
    after(&mut map, Event::Lost(0, 1));
    let unclean = Event::Drained {
        path: 0,
        epoch: 1,
        how: Drained::Unclean,
        requeued: false,
    };
    after(&mut map, unclean);
    assert_eq!(after(&mut map, fenced(1, 0, 1)), []);
    let back = Event::Closed {
        path: 0,
        told: false,
        requeued: true,
    };
    assert_eq!(
        after(&mut map.clone(), back),
        [Action::SetMode(Mode::Replay), Action::Replay]
    );
    // But not for ever.
    let fail = after(&mut map, Event::Elapsed(Timer::Expiry));
    assert_eq!(fail[0], Action::SetMode(Mode::Fail));
    let actions = after(&mut map, back);
    assert_eq!(actions, [Action::SetMode(Mode::Replay), Action::Replay]);
}

#[test]
fn an_older_extent_is_not_taken() {
    let mut map = up(2);
    let extent = |number, size| Extent {
        number,
        size,
        writable: true,
    };
    let newer = extent(7, 3 << 20);
    assert_eq!(
        after(&mut map, Event::Extent(0, 1, newer)),
        [Action::Resize(newer)]
    );
    assert_eq!(after(&mut map, Event::Extent(1, 1, extent(6, 2 << 20))), []);
    // Nor from a login that was answered before.
    lose(&mut map, false);
    after(&mut map, fenced(1, 0, 1));
    retry(&mut map);
    let old = Admission {
        extent: extent(6, 2 << 20),
        ..ADMISSION
    };
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, old)),
        [Action::Open(0)]
    );
    // Another instance begins to count anew.
    lose(&mut map, false);
    after(&mut map, Event::Lost(1, 1));
    after(&mut map, drained(1, 1, false));
    retry(&mut map);
    let anew = Admission {
        extent: extent(1, 1 << 20),
        ..ANEW
    };
    let actions = after(&mut map, Event::Connected(0, 3, anew));
    assert_eq!(actions[0], Action::Resize(anew.extent));
}

#[test]
fn a_lease_that_is_over_is_no_ones_unless_the_server_remembers() {
    let config = Config {
        heartbeat_ms: 1000,
        ..CONFIG
    };
    let mut map = up_with(config, 1);
    let actions = all(&mut map, Event::Lost(0, 1));
    // It may have been lost for as long as a heartbeat takes to notice.
    assert!(actions.contains(&Action::Arm(Timer::Lease, Delay::exactly(64_750))));
    after(&mut map, drained(0, 1, false));
    retry(&mut map);
    let forgot = Admission {
        remembered: false,
        ..ANEW
    };
    let in_time = &mut map.clone();
    let actions = all(in_time, Event::Connected(0, 2, forgot));
    assert!(actions.contains(&Action::Disarm(Timer::Lease)));
    assert_eq!(in_time.end(), None);
    after(&mut map, Event::Elapsed(Timer::Lease));
    let remembered = &mut map.clone();
    after(remembered, Event::Connected(0, 2, ANEW));
    assert_eq!(remembered.end(), None);
    after(&mut map, Event::Connected(0, 2, forgot));
    assert_eq!(map.end(), Some(End::Evicted));
}

#[test]
fn a_silent_server_is_given_up() {
    let config = Config {
        heartbeat_ms: 1000,
        ..CONFIG
    };
    let mut map = up_with(config, 1);
    for _ in 0..12 {
        let actions = all(&mut map, Event::Heartbeat(0, false));
        assert_eq!(actions[0], Action::Ping(0));
        let period = Action::Arm(Timer::Heartbeat(0), Delay::exactly(250));
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

/// The server is told on any path; if it could not be, the map knows.
#[test]
fn a_map_that_leaves_tells_the_server() {
    let leave = |path, epoch| Action::Close {
        path,
        epoch,
        leave: true,
    };
    let mut map = up(2);
    let actions = after(&mut map, Event::Disable);
    assert!(actions.contains(&leave(0, 1)) && actions.contains(&leave(1, 1)));
    for path in 0..2 {
        after(&mut map, drained(path, 1, false));
        let told = Event::Closed {
            path,
            told: path == 1,
            requeued: false,
        };
        after(&mut map, told);
        assert!(map.is_gone(path));
    }
    assert_eq!(map.farewell(), Farewell::Told);
    let mut map = up(1);
    lose(&mut map, false);
    after(&mut map, Event::Disable);
    assert!(map.is_gone(0));
    assert_eq!(map.farewell(), Farewell::Untold);
    // Who was never let in has nobody to tell.
    let mut map = Machine::new(CONFIG);
    after(&mut map, Event::Add(0));
    after(&mut map, Event::Disable);
    assert_eq!(map.farewell(), Farewell::Told);
}
