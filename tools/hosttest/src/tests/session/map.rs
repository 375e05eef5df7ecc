// SPDX-License-Identifier: GPL-2.0

//! The actions of a map, in their order.

use crate::session::map::{Action, End, Event, Failure, Map, Mode, Welcome};

const WELCOME: Welcome = Welcome {
    export: 1,
    instance: 2,
    volatile: false,
    tenure: 3,
};

/// The same of a server that began anew.
const ANEW: Welcome = Welcome {
    instance: 9,
    ..WELCOME
};

/// The actions that follow.
fn after(map: &mut Map, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    map.step(event, &mut |action| actions.push(action));
    actions
}

/// A map whose paths `0..paths` are up.
fn up(paths: u8) -> Map {
    let mut map = Map::new();
    for path in 0..paths {
        assert_eq!(
            after(&mut map, Event::Add(path)),
            [Action::Connect(path, 1, None)]
        );
    }
    for path in 0..paths {
        let actions = after(&mut map, Event::Connected(path, 1, WELCOME));
        let expected: &[_] = match path {
            0 => &[Action::Turn(Mode::Flow)],
            _ => &[],
        };
        assert_eq!(actions, expected);
    }
    map
}

fn fence(via: u8, path: u8, epoch: u64) -> Action {
    Action::Fence { via, path, epoch }
}

#[test]
fn the_only_path_is_lost_and_comes_back() {
    let mut map = up(1);
    // Nothing is sent any more before the path is let go of.
    assert_eq!(
        after(&mut map, Event::Lost(0, 1)),
        [Action::Turn(Mode::Hold), Action::Close(0, 1)]
    );
    assert_eq!(
        after(&mut map, Event::Drained(0, 1, true)),
        [Action::Wait(0)]
    );
    assert_eq!(
        after(&mut map, Event::Retry(0)),
        [Action::Connect(0, 2, Some(3))]
    );
    assert_eq!(
        after(&mut map, Event::Refused(0, 2, Failure::Transient)),
        [Action::Wait(0)]
    );
    assert_eq!(
        after(&mut map, Event::Retry(0)),
        [Action::Connect(0, 3, Some(3))]
    );
    assert_eq!(
        after(&mut map, Event::Connected(0, 3, WELCOME)),
        [Action::Turn(Mode::Replay)]
    );
    assert_eq!(after(&mut map, Event::Replayed), [Action::Turn(Mode::Flow)]);
}

#[test]
fn another_path_takes_over_after_the_fence() {
    let mut map = up(2);
    assert_eq!(
        after(&mut map, Event::Lost(0, 1)),
        [
            Action::Turn(Mode::Hold),
            Action::Close(0, 1),
            fence(1, 0, 1)
        ]
    );
    // In either order.
    assert_eq!(after(&mut map.clone(), Event::Fenced(0, 1)), []);
    assert_eq!(
        after(&mut map, Event::Drained(0, 1, true)),
        [Action::Wait(0)]
    );
    assert_eq!(
        after(&mut map, Event::Fenced(0, 1)),
        [Action::Turn(Mode::Replay)]
    );
    assert_eq!(after(&mut map, Event::Replayed), [Action::Turn(Mode::Flow)]);
    assert_eq!(
        after(&mut map, Event::Retry(0)),
        [Action::Connect(0, 2, Some(3))]
    );
    assert_eq!(after(&mut map, Event::Connected(0, 2, WELCOME)), []);
}

#[test]
fn a_path_without_requests_needs_no_replay() {
    let mut map = up(2);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, Event::Drained(0, 1, false));
    assert_eq!(
        after(&mut map, Event::Fenced(0, 1)),
        [Action::Turn(Mode::Flow)]
    );
}

#[test]
fn a_fence_is_asked_for_again_if_its_path_is_lost() {
    let mut map = up(3);
    after(&mut map, Event::Lost(0, 1));
    assert_eq!(
        after(&mut map, Event::Lost(1, 1)),
        [Action::Close(1, 1), fence(2, 0, 1), fence(2, 1, 1)]
    );
}

#[test]
fn old_news_means_nothing() {
    let mut map = up(2);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, Event::Drained(0, 1, false));
    after(&mut map, Event::Retry(0));
    let before = map.clone();
    for event in [
        Event::Lost(0, 1),
        Event::Drained(0, 1, true),
        Event::Connected(0, 1, WELCOME),
        Event::Refused(0, 1, Failure::Evicted),
        Event::Drained(0, 2, true),
        Event::Retry(1),
        Event::Replayed,
        Event::Fenced(1, 1),
        Event::Lost(9, 0),
        Event::Add(9),
    ] {
        assert_eq!(after(&mut map, event), [], "{event:?}");
        assert_eq!(map, before, "{event:?}");
    }
}

#[test]
fn who_waits_for_too_long_fails_until_all_is_fenced() {
    let mut map = up(1);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, Event::Drained(0, 1, true));
    assert_eq!(after(&mut map, Event::Expired), [Action::Turn(Mode::Fail)]);
    after(&mut map, Event::Retry(0));
    // Nothing is left to be replayed.
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, WELCOME)),
        [Action::Turn(Mode::Flow)]
    );
    assert_eq!(after(&mut map, Event::Expired), []);
}

#[test]
fn other_contents_end_it() {
    for (welcome, volatile, end) in [
        (
            Welcome {
                instance: 9,
                ..WELCOME
            },
            true,
            End::Stale,
        ),
        (
            Welcome {
                export: 9,
                ..WELCOME
            },
            false,
            End::Stale,
        ),
        (
            Welcome {
                tenure: 9,
                ..WELCOME
            },
            false,
            End::Evicted,
        ),
    ] {
        let mut map = up(1);
        after(&mut map, Event::Lost(0, 1));
        after(&mut map, Event::Drained(0, 1, true));
        after(&mut map, Event::Retry(0));
        let welcome = Welcome {
            volatile,
            ..welcome
        };
        assert_eq!(
            after(&mut map, Event::Connected(0, 2, welcome)),
            [Action::Turn(Mode::Fail), Action::Close(0, 2)]
        );
        assert_eq!(map.end(), Some(end));
        assert_eq!(after(&mut map, Event::Drained(0, 2, false)), []);
        assert_eq!(after(&mut map, Event::Add(1)), []);
    }
}

#[test]
fn a_server_that_began_anew_is_told_of() {
    let mut map = up(1);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, Event::Drained(0, 1, true));
    after(&mut map, Event::Retry(0));
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ANEW)),
        [Action::Restarted, Action::Turn(Mode::Replay)]
    );
}

#[test]
fn a_path_that_is_not_wanted_any_more_goes_and_may_come_back() {
    let mut map = up(2);
    assert_eq!(
        after(&mut map, Event::Remove(1)),
        [
            Action::Turn(Mode::Hold),
            Action::Close(1, 1),
            fence(0, 1, 1)
        ]
    );
    assert_eq!(after(&mut map, Event::Drained(1, 1, false)), []);
    assert_eq!(
        after(&mut map, Event::Fenced(1, 1)),
        [Action::Turn(Mode::Flow)]
    );
    assert_eq!(
        after(&mut map, Event::Add(1)),
        [Action::Connect(1, 2, Some(3))]
    );
}

/// What still arrives on the other path was done by the server that is gone.
#[test]
fn no_path_to_a_server_that_is_gone_is_kept() {
    let mut map = up(2);
    after(&mut map, Event::Lost(0, 1));
    after(&mut map, Event::Drained(0, 1, false));
    after(&mut map, Event::Fenced(0, 1));
    after(&mut map, Event::Retry(0));
    assert_eq!(
        after(&mut map, Event::Connected(0, 2, ANEW)),
        [
            Action::Turn(Mode::Hold),
            Action::Close(1, 1),
            fence(0, 1, 1)
        ]
    );
    assert_eq!(
        after(&mut map, Event::Drained(1, 1, true)),
        [Action::Wait(1)]
    );
    assert_eq!(
        after(&mut map, Event::Fenced(1, 1)),
        [Action::Restarted, Action::Turn(Mode::Replay)]
    );
}
