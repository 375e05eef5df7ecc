// SPDX-License-Identifier: GPL-2.0

//! Tags of requests in flight.

use crate::proto::{Response, Status};
use crate::tag::{Next, Tag};
use proptest::prelude::*;

fn response(generation: u32) -> Response {
    Response {
        status: Status::Medium,
        tag: 7,
        generation,
    }
}

const DONE: Next = Next::Complete(Status::Medium);

#[test]
fn every_order_without_a_key() {
    let mut tag = Tag::new(u32::MAX);
    assert_eq!(tag.post(false), Some(0));
    assert_eq!(tag.post(false), None, "in flight");
    assert_eq!(tag.sent(), Next::Wait);
    assert_eq!(tag.respond(&response(0), false), Ok(DONE));
    assert!(tag.is_free());
    assert_eq!(tag.post(false), Some(1));
    assert_eq!(tag.respond(&response(1), false), Ok(Next::Wait));
    assert!(!tag.is_free());
    assert_eq!(tag.sent(), DONE);
    assert!(tag.is_free());
}

#[test]
fn every_order_with_a_key() {
    let mut tag = Tag::new(0);
    // The server invalidates it.
    assert_eq!(tag.post(true), Some(1));
    assert_eq!(tag.respond(&response(1), true), Ok(Next::Wait));
    assert_eq!(tag.sent(), DONE);
    assert_eq!(tag.post(true), Some(2));
    assert_eq!(tag.sent(), Next::Wait);
    assert_eq!(tag.respond(&response(2), true), Ok(DONE));
    // It does not.
    assert_eq!(tag.post(true), Some(3));
    assert_eq!(tag.respond(&response(3), false), Ok(Next::Invalidate));
    assert_eq!(tag.sent(), Next::Wait);
    assert_eq!(tag.invalidated(), DONE);
    assert_eq!(tag.post(true), Some(4));
    assert_eq!(tag.sent(), Next::Wait);
    assert_eq!(tag.respond(&response(4), false), Ok(Next::Invalidate));
    assert_eq!(tag.invalidated(), DONE);
    assert_eq!(tag.post(true), Some(5));
    assert_eq!(tag.respond(&response(5), false), Ok(Next::Invalidate));
    assert_eq!(tag.invalidated(), Next::Wait);
    assert_eq!(tag.sent(), DONE);
}

#[test]
fn responses_that_nobody_waits_for() {
    let mut tag = Tag::new(0);
    assert!(tag.respond(&response(0), false).is_err(), "never posted");
    assert_eq!(tag.post(true), Some(1));
    for generation in [0, 2, u32::MAX] {
        assert!(tag.respond(&response(generation), true).is_err());
    }
    assert_eq!(tag.respond(&response(1), true), Ok(Next::Wait));
    assert!(tag.respond(&response(1), false).is_err(), "a second one");
    assert_eq!(tag.sent(), DONE);
    assert!(tag.respond(&response(1), false).is_err(), "it is over");
    assert_eq!(tag.post(false), Some(2));
    assert!(tag.respond(&response(1), false).is_err(), "of the past");
    assert!(tag.respond(&response(2), true).is_err(), "of another key");
    assert_eq!(tag.sent(), Next::Wait);
    assert_eq!(tag.respond(&response(2), false), Ok(DONE));
}

#[test]
fn cancelled() {
    let mut tag = Tag::new(0);
    assert!(!tag.cancel());
    assert_eq!(tag.post(true), Some(1));
    assert!(tag.cancel() && tag.is_free());
    assert!(tag.respond(&response(1), false).is_err());
    // What is flushed late is of no account.
    assert_eq!((tag.sent(), tag.invalidated()), (Next::Wait, Next::Wait));
    assert_eq!(tag.post(false), Some(2));
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Post(bool),
    Respond(u32, bool),
    Sent,
    Invalidated,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<bool>().prop_map(Event::Post),
        // Of now, mostly, or of another time.
        (
            prop::sample::select(&[0u32, 0, 0, 1, 2, u32::MAX][..]),
            any::<bool>()
        )
            .prop_map(|(ago, invalidated)| Event::Respond(ago, invalidated)),
        Just(Event::Sent),
        Just(Event::Invalidated),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// Whatever a server does, a request completes at most once, and only when all has come.
    #[test]
    fn complete_once_and_not_too_early(
        start: u32,
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut tag = Tag::new(start);
        let mut generation = start;
        // In flight: sent, key valid, LOCAL_INV posted, answered.
        let mut flight: Option<(bool, bool, bool, bool)> = None;
        for event in events {
            let before = tag;
            let mut rejected = false;
            let next = match event {
                Event::Post(key) => {
                    let posted = tag.post(key);
                    prop_assert_eq!(posted.is_some(), flight.is_none());
                    if let Some(posted) = posted {
                        prop_assert_eq!(posted, generation.wrapping_add(1));
                        generation = posted;
                        flight = Some((false, key, false, false));
                    }
                    Next::Wait
                }
                Event::Respond(ago, invalidated) => {
                    let result = tag.respond(&response(generation.wrapping_sub(ago)), invalidated);
                    match &mut flight {
                        Some((_, key, local, answered))
                            if ago == 0 && !*answered && (*key || !invalidated) =>
                        {
                            *answered = true;
                            let valid = std::mem::replace(key, *key && !invalidated);
                            *local = valid && !invalidated;
                            prop_assert_eq!(result == Ok(Next::Invalidate), *local);
                        }
                        _ => {
                            prop_assert!(result.is_err());
                            rejected = true;
                        }
                    }
                    result.unwrap_or(Next::Wait)
                }
                Event::Sent => {
                    if let Some((sent, ..)) = &mut flight {
                        *sent = true;
                    }
                    tag.sent()
                }
                // It is not over before it has begun.
                Event::Invalidated => match &mut flight {
                    Some((_, key, local @ true, _)) => {
                        (*key, *local) = (false, false);
                        tag.invalidated()
                    }
                    _ => Next::Wait,
                },
            };
            prop_assert!(!rejected || tag == before, "an error changes nothing");
            let complete = flight.is_some_and(|flight| flight == (true, false, false, true));
            prop_assert_eq!(next == DONE, complete);
            if complete {
                flight = None;
            }
            prop_assert_eq!(tag.is_free(), flight.is_none());
        }
    }
}
