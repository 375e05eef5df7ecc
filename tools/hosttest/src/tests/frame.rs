// SPDX-License-Identifier: GPL-2.0

//! Frames: their numbers, and where what they have is.

use crate::proto::frame::{self, Number};
use crate::proto::wire::{self, TAG_SIZE};
use std::collections::HashSet;

#[test]
fn a_number_is_neither_zero_nor_one_of_data() {
    assert!(Number::new(0).is_err());
    assert!(Number::new(1 << 63).is_err());
    assert!(Number::new(u64::MAX).is_err());
    for number in [1, 2, u64::from(u32::MAX) + 1, (1 << 63) - 1] {
        let read = Number::parse(&Number::new(number).unwrap().to_bytes()).unwrap();
        assert_eq!(read.get(), number);
    }
    assert!(Number::parse(&[1; 7]).is_err());
    // What follows is not part of it.
    assert_eq!(Number::parse(&[1, 0, 0, 0, 0, 0, 0, 0, 9]), Number::new(1));
}

/// The same key never seals two things under one nonce.
#[test]
fn frames_and_data_have_nonces_of_their_own() {
    let numbers = [1, 2, 3, (1 << 62) - 1, 1 << 62, (1 << 63) - 1];
    let numbers = numbers.map(|number| Number::new(number).unwrap());
    let nonces = numbers
        .iter()
        .flat_map(|number| [number.nonce(), number.data_nonce()]);
    assert_eq!(nonces.collect::<HashSet<_>>().len(), 2 * numbers.len());
}

/// As protocol.rst has them.
#[test]
fn parts_of_a_frame_follow_each_other() {
    assert_eq!((frame::CHECK, frame::BODY), (8..24, 24));
    assert_eq!((frame::COMMAND_SIZE, frame::RESPONSE_SIZE), (72, 56));
    let command = frame::BODY..frame::BODY + size_of::<wire::Command>();
    assert_eq!(frame::data_check(frame::COMMAND_SIZE).start, command.end);
    let response = frame::BODY..frame::BODY + size_of::<wire::Response>();
    assert_eq!(frame::data_check(frame::RESPONSE_SIZE).start, response.end);
    for size in [frame::COMMAND_SIZE, frame::RESPONSE_SIZE] {
        assert_eq!(frame::data_check(size).len(), TAG_SIZE);
        assert_eq!(frame::data_check(size).end, size);
    }
}

#[test]
fn a_digest_is_padded_with_zeroes() {
    let digest = frame::digest(0x0403_0201);
    assert_eq!(digest[..4], [1, 2, 3, 4]);
    assert_eq!(digest[4..], [0; TAG_SIZE - 4]);
}
