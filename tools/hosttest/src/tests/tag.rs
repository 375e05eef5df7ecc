// SPDX-License-Identifier: GPL-2.0

//! Tags of commands in flight.

use crate::client::io::tag::Tag;
use crate::proto::{Delivery, Response, Status};
use proptest::prelude::*;

fn response(generation: u32, status: Status) -> Response {
    Response {
        status,
        tag: 7,
        generation,
        credit: 1,
    }
}

#[test]
fn a_command_is_posted_answered_and_over() {
    let (tag, generation) = Tag::new(u32::MAX).post();
    assert_eq!(generation, 0);
    let tag = tag.respond(&response(0, Status::Medium)).unwrap();
    let (tag, status) = tag.finish();
    assert_eq!(status, Some(Status::Medium));
    assert_eq!(tag.post().1, 1);
}

#[test]
fn every_status_is_kept() {
    for status in Status::ALL {
        let (tag, generation) = Tag::new(41).post();
        let tag = tag.respond(&response(generation, status)).unwrap();
        assert_eq!(tag.finish().1, Some(status));
    }
}

#[test]
fn data_are_an_answer() {
    let (posted, generation) = Tag::new(0x1234_5677).post();
    let delivery = |generation| Delivery {
        tag: 7,
        generation,
        credit: 1,
    };
    assert!(posted.deliver(&delivery(0x677)).is_err());
    let answered = posted.deliver(&delivery(0x678)).unwrap();
    assert_eq!(answered.finish().1, Some(Status::Ok));
    assert!(answered.deliver(&delivery(0x678)).is_err(), "twice");
    let second = response(generation, Status::Ok);
    assert!(answered.respond(&second).is_err(), "in two ways");
    assert!(answered.finish().0.deliver(&delivery(0x678)).is_err());
}

#[test]
fn a_command_may_be_over_without_an_answer() {
    let (tag, generation) = Tag::new(5).post();
    let (tag, status) = tag.finish();
    assert_eq!(status, None);
    // What comes late does not fit the next one, either.
    let late = response(generation, Status::Ok);
    assert!(tag.respond(&late).is_err());
    assert!(tag.post().0.respond(&late).is_err());
}

#[test]
fn responses_that_nobody_waits_for() {
    let free = Tag::new(3);
    assert!(free.respond(&response(3, Status::Ok)).is_err(), "free");
    let (posted, generation) = free.post();
    for other in [generation - 1, generation + 1, 0, u32::MAX] {
        assert!(posted.respond(&response(other, Status::Ok)).is_err());
    }
    let answered = posted.respond(&response(generation, Status::Ok)).unwrap();
    let second = response(generation, Status::IoError);
    assert!(answered.respond(&second).is_err(), "twice");
    assert!(answered.finish().0.respond(&second).is_err(), "over");
}

proptest! {
    #[test]
    fn a_word_is_a_tag(generation in any::<u32>(), code in 0..15u16) {
        let (tag, posted) = Tag::new(generation).post();
        let again = Tag::from_word(tag.word());
        let status = Status::try_from(code).unwrap();
        let answered = again.respond(&response(posted, status)).unwrap();
        prop_assert_eq!(Tag::from_word(answered.word()).finish().1, Some(status));
    }

    /// Only the generation of the command in flight is taken, and only once.
    #[test]
    fn one_answer_each(start in any::<u32>(), answers in prop::collection::vec(any::<Option<i8>>(), 0..40)) {
        let (mut tag, mut generation) = Tag::new(start).post();
        let mut answered = false;
        for answer in answers {
            match answer {
                Some(off) => {
                    let of = generation.wrapping_add_signed(off.into());
                    let next = tag.respond(&response(of, Status::Ok));
                    prop_assert_eq!(next.is_ok(), off == 0 && !answered);
                    if let Ok(next) = next {
                        (tag, answered) = (next, true);
                    }
                }
                None => {
                    let (free, status) = tag.finish();
                    prop_assert_eq!(status.is_some(), answered);
                    (tag, generation) = free.post();
                    answered = false;
                }
            }
        }
    }
}
