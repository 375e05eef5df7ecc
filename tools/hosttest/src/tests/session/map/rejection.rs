// SPDX-License-Identifier: GPL-2.0

//! Paths that lead to something else, and maps that cannot go on.

use super::*;

#[test]
fn other_contents_end_it() {
    for (admission, end, blame) in [
        (
            Admission {
                instance: 9,
                volatile: true,
                ..ADMISSION
            },
            End::Stale,
            None,
        ),
        (
            Admission {
                export: 9,
                ..ADMISSION
            },
            End::Stale,
            None,
        ),
        (
            Admission {
                reservation_key: 9,
                ..ADMISSION
            },
            End::Evicted,
            Some(Action::Blame(0, Fault::OtherReservation)),
        ),
    ] {
        let mut map = up(1);
        lose(&mut map, true);
        retry(&mut map);
        let actions = after(&mut map, connected(0, 2, admission));
        let (first, rest) = actions.split_at(usize::from(blame.is_some()));
        assert_eq!(first.first(), blame.as_ref());
        assert_eq!(
            rest,
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
                reservation_key: 9,
                ..ADMISSION
            },
            Fault::OtherReservation,
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
            after(&mut map, connected(1, 1, admission)),
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
    let actions = after(&mut map, connected(0, 2, other));
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
            gaps: false,
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
    let erases = Limits {
        max_secure_erase: 512,
        ..LIMITS
    };
    assert!(LIMITS.fit(&erases).is_err() && erases.fit(&LIMITS).is_ok());
    let atomic = |atomic_unit_min, atomic_unit_max, atomic_boundary| Limits {
        atomic_unit_min,
        atomic_unit_max,
        atomic_boundary,
        ..LIMITS
    };
    let disk = atomic(1024, 16384, 65536);
    assert!(disk.fit(&disk).is_ok() && disk.fit(&LIMITS).is_ok());
    assert!(atomic(512, 32768, 0).fit(&disk).is_ok());
    assert!(atomic(1024, 16384, 131072).fit(&disk).is_ok());
    for smaller in [
        LIMITS,
        atomic(2048, 16384, 65536),
        atomic(1024, 8192, 65536),
        atomic(1024, 16384, 32768),
    ] {
        assert!(smaller.fit(&disk).is_err(), "{smaller:?}");
    }
    assert!(disk.fit(&atomic(1024, 16384, 0)).is_err(), "a boundary");
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
        after(&mut map, connected(0, 2, ANEW)),
        [
            Action::Open(0),
            Action::InstanceChanged,
            Action::SetMode(Mode::Replay),
            Action::Replay
        ]
    );
}

/// What still arrives on the other path was done by the server that is gone.
#[test]
fn no_path_to_a_server_that_is_gone_is_kept() {
    let mut map = up(2);
    lose(&mut map, false);
    after(&mut map, fenced(1, 0, 1));
    retry(&mut map);
    assert_eq!(
        after(&mut map, connected(0, 2, ANEW)),
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
