// SPDX-License-Identifier: GPL-2.0

//! The actions of a map, in their order.

mod rejection;
mod timers;

use crate::session::clock::{Delay, Timer};
use crate::session::map::{
    Action, Admission, Config, Drained, End, Event, Extent, Failure, Farewell, Fault, Limits,
    Machine, Mode, Told,
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
    gaps: true,
    max_discard: 1 << 20,
    max_write_zeroes: 0,
    max_secure_erase: 0,
    atomic_unit_min: 0,
    atomic_unit_max: 0,
    atomic_boundary: 0,
    write_cache: true,
    fua: true,
};

const ADMISSION: Admission = Admission {
    server: 7,
    export: 1,
    instance: 2,
    volatile: false,
    reservation_key: 3,
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
            Action::Arm(..) | Action::ArmLease(_) | Action::Disarm(_) | Action::Ping(_)
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

fn connected(path: PathId, epoch: u64, admission: Admission) -> Event {
    Event::Connected {
        path,
        epoch,
        admission,
        silent_ms: 0,
    }
}

fn closed(path: PathId) -> Event {
    Event::Closed {
        path,
        told: Told::NotNeeded,
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
        let actions = after(&mut map, connected(path, 1, ADMISSION));
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
        after(&mut map, connected(0, 3, ADMISSION)),
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
        after(&mut map, connected(0, 2, ADMISSION)),
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
        connected(0, 1, ADMISSION),
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
    assert_eq!(after(&mut map, connected(1, 1, ADMISSION)), [close(1, 1)]);
    for _ in 0..2 {
        assert!(!map.is_gone(1));
        assert_eq!(after(&mut map, drained(1, 1, false)), []);
        assert_eq!(after(&mut map, closed(1)), []);
    }
    assert!(map.is_gone(1));
}

#[test]
fn a_connection_that_broke_at_once_is_not_used() {
    let mut map = up(1);
    lose(&mut map, false);
    retry(&mut map);
    assert_eq!(after(&mut map, Event::Lost(0, 2)), []);
    assert_eq!(
        after(&mut map, connected(0, 2, ADMISSION)),
        [Action::Blame(0, Fault::Broken), close(0, 2)]
    );
}

/// Requests that a device did not give back are waited for until the path is closed, and then
/// replayed.
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
        told: Told::NotNeeded,
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
    assert_eq!(after(&mut map, connected(0, 2, old)), [Action::Open(0)]);
    // Another instance begins to count anew.
    lose(&mut map, false);
    after(&mut map, Event::Lost(1, 1));
    after(&mut map, drained(1, 1, false));
    retry(&mut map);
    let anew = Admission {
        extent: extent(1, 1 << 20),
        ..ANEW
    };
    let actions = after(&mut map, connected(0, 3, anew));
    assert_eq!(actions[0], Action::Resize(anew.extent));
}

#[test]
fn only_a_flush_of_all_that_is_known_counts() {
    let mut map = up(2);
    let flushed = |path, epoch, instance, number| Event::Flushed {
        path,
        epoch,
        instance,
        number,
    };
    let (instance, number) = (ADMISSION.instance, ADMISSION.extent.number);
    let answer = |id| Action::Ping(id);
    let counts = all(&mut map, flushed(0, 1, instance, number));
    assert_eq!(counts, [Action::Flushed, answer(0)]);
    let other = all(&mut map, flushed(0, 1, instance + 1, number));
    assert_eq!(other, [answer(0)]);
    assert_eq!(after(&mut map, flushed(0, 2, instance, number)), []);
    // The export was enabled again since, as another path has heard.
    let newer = Extent {
        number: number + 1,
        ..ADMISSION.extent
    };
    after(&mut map, Event::Extent(1, 1, newer));
    let late = all(&mut map, flushed(0, 1, instance, number));
    assert_eq!(late, [answer(0)]);
    // What the instance before may have lost, the one that is there now has not flushed.
    lose(&mut map, false);
    retry(&mut map);
    after(&mut map, connected(0, 2, ANEW));
    let anew = all(&mut map, flushed(0, 2, ANEW.instance, ANEW.extent.number));
    assert_eq!(anew, [answer(0)]);
}

/// Whatever number a server says, another one can follow.
#[test]
fn no_number_of_an_extent_is_the_last() {
    let mut map = up(1);
    let mut number = ADMISSION.extent.number;
    let mut said = |ahead: u32, taken: bool| {
        let extent = Extent {
            number: number.wrapping_add(ahead),
            size: 2 << 20,
            writable: true,
        };
        let resize = [Action::Resize(extent)];
        let wanted: &[Action] = if taken { &resize } else { &[] };
        assert_eq!(after(&mut map, Event::Extent(0, 1, extent)), wanted);
        if taken {
            number = extent.number;
        }
    };
    said((1 << 31) - 1, true);
    // The last number there is, and beyond.
    said(u32::MAX - ADMISSION.extent.number - ((1 << 31) - 1), true);
    said(1, true);
    said(1, true);
    for behind in [0, 1, 2, 1 << 31] {
        said(0u32.wrapping_sub(behind), false);
    }
    said(1, true);
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
            told: match path {
                0 => Told::NoAnswer,
                _ => Told::Server(ADMISSION.server),
            },
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

/// An attempt that comes late may have a place at the server although no path ever was up.
#[test]
fn a_late_attempt_that_could_not_log_out_is_noted() {
    for (told, farewell) in [
        (Told::Server(ADMISSION.server), Farewell::Told),
        (Told::NoAnswer, Farewell::Untold),
    ] {
        let mut map = Machine::new(CONFIG);
        after(&mut map, Event::Add(0));
        after(&mut map, Event::Disable);
        after(&mut map, connected(0, 1, ADMISSION));
        for told in [Told::NotNeeded, told] {
            after(&mut map, drained(0, 1, false));
            let closed = Event::Closed {
                path: 0,
                told,
                requeued: false,
            };
            after(&mut map, closed);
        }
        assert!(map.is_gone(0));
        assert_eq!(map.farewell(), farewell);
    }
}

/// A map does not tell its server by an attempt that fails, and leads to another one.
#[test]
fn another_server_is_not_told_by_a_failed_attempt() {
    for (server, farewell) in [(7, Farewell::Told), (8, Farewell::Untold)] {
        let mut map = up(1);
        lose(&mut map, false);
        retry(&mut map);
        after(&mut map, Event::Disable);
        after(&mut map, Event::Refused(0, 2, Failure::Transient));
        after(&mut map, drained(0, 2, false));
        let closed = Event::Closed {
            path: 0,
            told: Told::Server(server),
            requeued: false,
        };
        after(&mut map, closed);
        assert!(map.is_gone(0));
        assert_eq!(map.farewell(), farewell);
    }
}

/// A map does not tell its server by an attempt that comes late, and leads to another one.
#[test]
fn another_server_is_not_told_for_it() {
    for (server, farewell) in [(7, Farewell::Told), (8, Farewell::Untold)] {
        let mut map = up(1);
        lose(&mut map, false);
        retry(&mut map);
        after(&mut map, Event::Disable);
        let admission = Admission {
            server,
            ..ADMISSION
        };
        let actions = after(&mut map, connected(0, 2, admission));
        let leave = Action::Close {
            path: 0,
            epoch: 2,
            leave: true,
        };
        assert_eq!(actions, [leave]);
        for told in [Told::NotNeeded, Told::Server(server)] {
            after(&mut map, drained(0, 2, false));
            let closed = Event::Closed {
                path: 0,
                told,
                requeued: false,
            };
            after(&mut map, closed);
        }
        assert!(map.is_gone(0));
        assert_eq!(map.farewell(), farewell);
    }
}
