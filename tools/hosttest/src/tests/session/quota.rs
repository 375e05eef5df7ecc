// SPDX-License-Identifier: GPL-2.0

//! What one host may have of what the server has for all.

use crate::session::quota::{bytes_of, Exceeded, Limits, Part, Usage, SESSIONS_MAX};

const GIB: u64 = 1 << 30;

#[test]
fn a_session_gets_shorter_queues() {
    let large = Limits::new(8 * GIB);
    assert_eq!(large.depth(64, 1024), 1024);
    let small = Limits::new(GIB);
    assert_eq!(small.depth(64, 128), 128);
    assert_eq!(small.depth(64, 1024), 223);
    // That of a ram export has no commands.
    assert_eq!(small.depth(64, 0), 0);
    // One command it has in any case.
    assert_eq!(Limits::new(0).depth(64, 1024), 1);
}

#[test]
fn a_session_fits_its_part() {
    for memory in [256 << 20, GIB, 4 * GIB, 16 * GIB] {
        let (limits, part) = (Limits::new(memory), memory / 64);
        for queues in [1, 2, 7, 64] {
            for depth in [0, 1, 16, 17, 128, 1024] {
                let granted = limits.depth(queues, depth);
                assert!(granted <= depth && bytes_of(queues, granted) <= part);
                // It gets all that fits.
                assert!(granted == depth || bytes_of(queues, granted + 1) > part);
            }
        }
    }
}

/// A kernel that has a little less grants the same.
#[test]
fn the_depth_does_not_depend_on_a_few_pages() {
    for memory in [1_000_000_000, 3 * GIB / 2, 7 * GIB] {
        let (before, after) = (Limits::new(memory), Limits::new(memory - (16 << 20)));
        assert_eq!(before.depth(64, 1024), after.depth(64, 1024));
    }
}

#[test]
fn a_host_leaves_a_quarter_to_others() {
    let limits = Limits::new(GIB);
    let session = Usage {
        sessions: 1,
        bytes: bytes_of(64, limits.depth(64, 1024)),
    };
    let mut all = Usage::default();
    // Takes all that an account may have, and returns how many sessions that is.
    let mut take = |part, resumes| {
        let mut own = Usage::default();
        let refused = loop {
            match limits.check(part, own, all, session, resumes) {
                Ok(()) => (own, all) = (own.plus(session), all.plus(session)),
                Err(refused) => break refused,
            }
        };
        (own.sessions, refused)
    };
    // One of each path of a map, and as many of names that it invents as may be.
    assert_eq!(take(Part::Half, false), (8, Exceeded::Memory));
    assert_eq!(take(Part::Quarter, false), (4, Exceeded::Memory));
    // The rest is for maps that come back.
    assert_eq!(take(Part::Half, false), (0, Exceeded::MemoryOfAll));
    assert_eq!(take(Part::Half, true), (4, Exceeded::MemoryOfAll));
}

#[test]
fn the_sessions_of_a_host_leave_some_of_a_port() {
    let limits = Limits::new(64 * GIB);
    let more = Usage {
        sessions: 1,
        bytes: 0,
    };
    for (part, count) in [(Part::Half, 2048), (Part::Quarter, 1024)] {
        let own = Usage {
            sessions: count - 1,
            bytes: 0,
        };
        assert_eq!(limits.check(part, own, own, more, false), Ok(()));
        let own = own.plus(more);
        let refused = Err(Exceeded::Sessions);
        assert_eq!(limits.check(part, own, own, more, false), refused);
        assert_eq!(part.of(SESSIONS_MAX as u64), own.sessions);
    }
}
