// SPDX-License-Identifier: GPL-2.0

//! Control messages.

mod login;

use super::*;
use crate::proto::wire::{GRANTS_MAX, LIST_ENTRIES_MAX, SLABS_MAX};

const SEQUENCE: u32 = 0xa1a2_a3a4;
const SEQUENCE_BYTES: [u8; 4] = [0xa4, 0xa3, 0xa2, 0xa1];

/// Asserts that no prefix of a message is taken, whatever length its header says.
fn no_prefix(bytes: &[u8], accepted: impl Fn(&[u8]) -> bool) {
    assert!(accepted(bytes));
    for len in 0..bytes.len() {
        assert!(!accepted(&bytes[..len]), "{len} bytes");
        assert!(!accepted(&sized(bytes[..len].to_vec())), "{len} bytes said");
    }
}

/// Asserts that a message is not taken with a byte too much, whatever length its header says.
fn no_more(bytes: &[u8], accepted: impl Fn(&[u8]) -> bool) {
    let more = [bytes, &[0]].concat();
    assert!(!accepted(&more));
    assert!(!accepted(&sized(more)));
}

/// A reply header with a status that says so.
fn granted(kind: u8, length: u16) -> Vec<u8> {
    let mut bytes = [&[kind, 0x80], &length.to_le_bytes()[..], &SEQUENCE_BYTES].concat();
    bytes.resize(112, 0);
    bytes
}

fn malformed<T>(result: Result<T, ReplyError>) -> bool {
    matches!(result, Err(ReplyError::Malformed(_)))
}

#[test]
fn extent_golden() {
    let [event, ..] = events();
    let bytes = [
        &[5, 0, 24, 0, 0, 0, 0, 0][..],
        &[0, 8, 6, 5, 4, 3, 2, 1],
        &[1, 0, 0, 0, 0xd, 0xc, 0xb, 0xa],
    ]
    .concat();
    assert_eq!(encoded(|buf| event.encode(buf)), bytes);
    let parse = |bytes: &[u8]| Event::parse(bytes, BlockSize::MIN, Access::ReadWrite);
    assert_eq!(parse(&bytes), Ok(event));
    assert!(Message::parse(&bytes).unwrap().is_event());
    no_prefix(&bytes, |bytes| parse(bytes).is_ok());
    no_more(&bytes, |bytes| parse(bytes).is_ok());
    let read_only = |bytes: &[u8]| Event::parse(bytes, BlockSize::MIN, Access::ReadOnly);
    assert!(read_only(&bytes).is_err(), "more access than was granted");
    assert!(read_only(&patched(&bytes, 16, &[0])).is_ok());
    assert_eq!(parse(&patched(&bytes, 17, &[0xff; 3])), Ok(event));
    assert_eq!(parse(&patched(&bytes, 4, &[1])), Ok(event), "sequence");
    assert!(
        Event::parse(&bytes, BlockSize::MAX, Access::ReadWrite).is_err(),
        "half a block"
    );
    assert!(parse(&patched(&bytes, 8, &[1])).is_err(), "half a block");
    assert!(parse(&patched(&bytes, 15, &[0x80])).is_err(), "too large");
    assert!(parse(&patched(&bytes, 16, &[2])).is_err(), "access");
    assert!(parse(&patched(&bytes, 8, &[0; 8])).is_err(), "nothing");
    for kind in [[1, 0], [4, 0], [5, 0x80], [5, 1]] {
        let other = patched(&bytes, 0, &kind);
        assert!(!Message::parse(&other).unwrap().is_event());
        assert!(parse(&other).is_err(), "{kind:?}");
    }
}

#[test]
fn answers_golden() {
    let [_, pong, fenced, flushed] = events();
    let parse = |bytes: &[u8]| Event::parse(bytes, BlockSize::MIN, Access::ReadWrite);
    let fenced_bytes = [
        &[10, 0, 24, 0, 0, 0, 0, 0][..],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[7, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let mut flushed_bytes = [&[12, 0, 32, 0, 0, 0, 0, 0][..], uuid(0x21).as_bytes()].concat();
    flushed_bytes.extend([0xd, 0xc, 0xb, 0xa, 0, 0, 0, 0]);
    for (event, bytes) in [
        (pong, vec![9, 0, 8, 0, 0, 0, 0, 0]),
        (fenced, fenced_bytes.clone()),
        (flushed, flushed_bytes.clone()),
    ] {
        assert_eq!(encoded(|buf| event.encode(buf)), bytes);
        assert_eq!(parse(&bytes), Ok(event));
        no_prefix(&bytes, |bytes| parse(bytes).is_ok());
        no_more(&bytes, |bytes| parse(bytes).is_ok());
    }
    assert_eq!(parse(&patched(&fenced_bytes, 17, &[9; 7])), Ok(fenced));
    assert!(parse(&patched(&fenced_bytes, 16, &[8])).is_err(), "path");
    assert_eq!(parse(&patched(&flushed_bytes, 28, &[9; 4])), Ok(flushed));
    assert!(parse(&patched(&flushed_bytes, 8, &[0; 16])).is_err(), "nil");
}

#[test]
fn events_are_no_requests() {
    for event in events() {
        let bytes = encoded(|buf| event.encode(buf));
        assert!(bytes.len() <= Event::SIZE_MAX);
        assert!(Message::parse(&bytes).unwrap().is_event());
        assert!(request(&bytes).is_err());
    }
}

#[test]
fn one_way_golden() {
    let fence = Fence {
        path: 7,
        epoch: 0x0102_0304_0506_0708,
    };
    let fence_bytes = [
        &[7, 0, 24, 0][..],
        &SEQUENCE_BYTES,
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[7, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(encoded(|buf| fence.encode(SEQUENCE, buf)), fence_bytes);
    let ping_bytes = [&[6, 0, 8, 0][..], &SEQUENCE_BYTES].concat();
    assert_eq!(encoded(|buf| Ping.encode(SEQUENCE, buf)), ping_bytes);
    for (wanted, bytes) in [
        (Request::Ping, &ping_bytes),
        (Request::Fence(fence), &fence_bytes),
    ] {
        assert_eq!(request(bytes), Ok(wanted));
        assert!(!Message::parse(bytes).unwrap().is_event());
        no_prefix(bytes, |bytes| request(bytes).is_ok());
        no_more(bytes, |bytes| request(bytes).is_ok());
    }
    assert!(request(&patched(&fence_bytes, 16, &[8])).is_err(), "path");
    let reserved = patched(&fence_bytes, 17, &[9; 7]);
    assert_eq!(request(&reserved), Ok(Request::Fence(fence)));
}

/// A client that is not logged in takes a pong for the answer to its ping, and nothing else.
#[test]
fn pong_without_a_login() {
    let pong = encoded(|buf| Event::Pong.encode(buf));
    assert_eq!(pong, [9, 0, 8, 0, 0, 0, 0, 0]);
    let parse = |bytes: &[u8]| Pong::parse(bytes, SEQUENCE);
    assert_eq!(parse(&pong), Ok(Pong));
    no_more(&pong, |bytes| parse(bytes).is_ok());
    no_prefix(&pong, |bytes| parse(bytes).is_ok());
    assert_eq!(encoded(|buf| Pong.encode(buf)), pong);
    for event in events().into_iter().filter(|event| *event != Event::Pong) {
        assert!(parse(&encoded(|buf| event.encode(buf))).is_err());
    }
    let ping = encoded(|buf| Ping.encode(SEQUENCE, buf));
    assert!(parse(&ping).is_err());
    let busy = Refused::from(Refusal::Busy);
    let refusal = encoded(|buf| Message::parse(&ping).unwrap().refuse(&busy, buf));
    assert_eq!(parse(&refusal), Err(ReplyError::Refused(busy)));
    assert!(matches!(
        Pong::parse(&refusal, SEQUENCE + 1),
        Err(ReplyError::Malformed(_))
    ));
    // A reply that grants the ping, which there is not.
    let granted = patched(&refusal, 8, &[0; 104]);
    assert!(matches!(parse(&granted), Err(ReplyError::Malformed(_))));
}

#[test]
fn grant_request_golden() {
    let grant = GrantRequest::new(0x0102_0304, 0x0506_0708).unwrap();
    let bytes = [
        &[2, 0, 16, 0][..],
        &SEQUENCE_BYTES,
        &[4, 3, 2, 1],
        &[8, 7, 6, 5],
    ]
    .concat();
    assert_eq!(encoded(|buf| grant.encode(SEQUENCE, buf)), bytes);
    assert_eq!(request(&bytes), Ok(Request::Grant(grant)));
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
    assert!(
        request(&patched(&bytes, 12, &[0; 4])).is_err(),
        "none asked for"
    );
    assert!(
        request(&patched(&bytes, 8, &[0xff; 4])).is_err(),
        "overflow"
    );
    assert!(
        request(&patched(&bytes, 8, &[0xff; 8])).is_err(),
        "overflow"
    );
}

#[test]
fn grant_request_range() {
    let slabs = |first, count| {
        let request = GrantRequest::new(first, count).unwrap();
        assert_eq!((request.first(), request.count()), (first, count));
        request.slabs(&three_slabs())
    };
    assert_eq!(slabs(0, 3), Ok(0..3));
    assert_eq!(slabs(2, 1), Ok(2..3));
    for (first, count) in [(0, 4), (3, 1), (2, 2), (u32::MAX - 1, 1), (0, u32::MAX)] {
        assert!(slabs(first, count).is_err(), "{first}, {count}");
    }
    let huge = geometry(u64::from(SLABS_MAX) << 16, 16);
    let all = GrantRequest::new(0, SLABS_MAX).unwrap();
    assert_eq!(all.slabs(&huge), Ok(0..GRANTS_MAX as u32));
    let tail = GrantRequest::new(SLABS_MAX - 1, 1).unwrap();
    assert_eq!(tail.slabs(&huge), Ok(SLABS_MAX - 1..SLABS_MAX));
    let beyond = GrantRequest::new(0, u32::MAX).unwrap();
    assert!(beyond.slabs(&huge).is_err());
}

#[test]
fn grant_reply_golden() {
    let bytes = [
        &granted(2, 168)[..],
        &[0, 0, 0, 0, 3, 0, 0, 0],
        &[8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 1, 0, 0x14, 0x13, 0x12, 0x11],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        &[
            0xff, 0xef, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ],
    ]
    .concat();
    assert_eq!(grant_reply(SEQUENCE, 0, &grants()), bytes);
    let asked = GrantRequest::new(0, 3).unwrap();
    let parse = |bytes: &[u8]| {
        GrantReply::parse(bytes, SEQUENCE, &asked, &three_slabs())
            .map(|reply| reply.iter().collect::<Vec<_>>())
    };
    let [a, b, c] = grants();
    assert_eq!(parse(&bytes), Ok(vec![(0, a), (1, b), (2, c)]));
    no_prefix(&bytes, |bytes| parse(bytes).is_ok());
    no_more(&bytes, |bytes| parse(bytes).is_ok());
    let refused = |at, new: &[u8]| malformed(parse(&patched(&bytes, at, new)));
    assert!(refused(112, &[1]), "other slabs");
    for count in [0, 2, 4, 0xff] {
        assert!(refused(116, &[count]), "count {count}");
    }
    assert!(refused(119, &[0x10]), "count that overflows");
    assert!(refused(120, &[0xff; 8]), "address that overflows");
    assert!(refused(128, &[1]), "too long");
    assert!(refused(130, &[0]), "too short");
    assert!(refused(160, &[1]), "last slab too long");
    assert!(refused(152, &[0; 16]), "last slab without a length");
    assert!(malformed(
        GrantReply::parse(&bytes, SEQUENCE + 1, &asked, &three_slabs()).map(drop)
    ));
}

#[test]
fn grant_reply_must_fit_the_request() {
    let full = &grants()[..2];
    let parse = |first, grants: &[Grant], asked_first, asked_count| {
        let asked = GrantRequest::new(asked_first, asked_count).unwrap();
        GrantReply::parse(
            &grant_reply(SEQUENCE, first, grants),
            SEQUENCE,
            &asked,
            &three_slabs(),
        )
        .map(|reply| reply.count())
    };
    assert_eq!(parse(0, full, 0, 2), Ok(2));
    assert_eq!(parse(0, full, 0, 3), Ok(2), "fewer than asked");
    assert_eq!(parse(2, &grants()[2..], 2, 1), Ok(1));
    assert!(malformed(parse(0, full, 0, 1)), "more than asked");
    assert!(malformed(parse(0, full, 1, 2)), "others than asked");
    assert!(malformed(parse(0, &[], 0, 2)), "none");
    assert!(malformed(parse(1, full, 1, 2)), "wrong length of the last");
    assert!(malformed(parse(3, &full[..1], 3, 1)), "beyond the end");
    assert!(
        malformed(parse(u32::MAX - 2, full, u32::MAX - 2, 2)),
        "beyond the end"
    );
}

#[test]
fn grant_reply_full() {
    let huge = geometry(u64::from(SLABS_MAX) << 16, 16);
    let grant = grants()[1];
    let most = vec![grant; GRANTS_MAX];
    let bytes = grant_reply(SEQUENCE, 7, &most);
    assert!(bytes.len() <= MESSAGE_MAX && bytes.len() + 16 > MESSAGE_MAX);
    let asked = GrantRequest::new(7, 1000).unwrap();
    let reply = GrantReply::parse(&bytes, SEQUENCE, &asked, &huge).unwrap();
    assert_eq!(reply.count() as usize, GRANTS_MAX);
    assert_eq!(reply.iter().last(), Some((6 + GRANTS_MAX as u32, grant)));

    // Full by the limit of a message even where the buffer is larger.
    let mut buf = [0; 2 * MESSAGE_MAX];
    let mut writer = GrantReplyWriter::new(&mut buf, SEQUENCE, 0).unwrap();
    for _ in 0..GRANTS_MAX {
        assert_eq!(writer.push(&grant), Ok(()));
    }
    assert_eq!(writer.push(&grant), Err(NoRoom));
    assert_eq!(writer.finish(), Ok(bytes.len()));
}

#[test]
fn grant_reply_stops_at_the_end_of_the_buffer() {
    let mut buf = [0; 120 + 16 + 15];
    let mut writer = GrantReplyWriter::new(&mut buf, SEQUENCE, 0).unwrap();
    assert_eq!(writer.push(&grants()[0]), Ok(()));
    assert_eq!(writer.push(&grants()[1]), Err(NoRoom));
    assert_eq!(writer.finish(), Ok(136));
    let asked = GrantRequest::new(0, 3).unwrap();
    let reply = GrantReply::parse(&buf[..136], SEQUENCE, &asked, &three_slabs()).unwrap();
    assert_eq!(reply.count(), 1);
}

#[test]
fn list_request_golden() {
    let bytes = [
        &[3, 0, 96, 0][..],
        &SEQUENCE_BYTES,
        list_request().host_id.as_bytes(),
        &padded("client.example"),
        &[4, 3, 2, 1, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(encoded(|buf| list_request().encode(SEQUENCE, buf)), bytes);
    assert_eq!(request(&bytes), Ok(Request::List(list_request())));
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
    assert!(
        request(&patched(&bytes, 8, &[0; 16])).is_err(),
        "nil host id"
    );
    assert!(
        request(&patched(&bytes, 24, &[0; 64])).is_err(),
        "no host name"
    );
}

#[test]
fn list_reply_golden() {
    let entry = list_entry("scratch");
    let bytes = [
        &granted(3, 224)[..],
        &[4, 3, 2, 1, 1, 0, 0, 0, 5, 3, 2, 1, 0, 0, 0, 0],
        &padded("scratch"),
        entry.uuid.as_bytes(),
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[1, 1, 2, 1, 4, 3, 0, 0],
    ]
    .concat();
    let (first, total) = (0x0102_0304, 0x0102_0305);
    assert_eq!(list_reply(SEQUENCE, first, total, &[entry]), bytes);
    let parse = |bytes: &[u8]| {
        ListReply::parse(bytes, SEQUENCE, &list_request())
            .map(|reply| (reply.total(), reply.iter().collect::<Vec<_>>()))
    };
    assert_eq!(parse(&bytes), Ok((total, vec![entry])));
    no_prefix(&bytes, |bytes| parse(bytes).is_ok());
    no_more(&bytes, |bytes| parse(bytes).is_ok());
    let refused = |at, new: &[u8]| malformed(parse(&patched(&bytes, at, new)));
    assert!(refused(112, &[3]), "another start");
    assert!(refused(116, &[0]) && refused(116, &[2]), "another count");
    assert!(refused(116, &[0xff; 4]), "count that overflows");
    assert!(
        refused(120, &[4]) && refused(120, &[0; 4]),
        "total too small"
    );
    assert!(refused(128, &[0; 64]), "no name");
    assert!(refused(128, b"/"), "no name");
    assert!(refused(192, &[0; 16]), "nil export");
    let (_, unavailable) = parse(&patched(&bytes, 208, &[0; 8])).unwrap();
    assert_eq!(unavailable, [ListEntry { size: 0, ..entry }]);
    assert!(refused(216, &[2]), "kind");
    assert!(refused(217, &[2]), "access");
    assert!(malformed(
        ListReply::parse(&bytes, SEQUENCE + 1, &list_request()).map(drop)
    ));
}

#[test]
fn list_reply_empty_and_full() {
    let mut asked = list_request();
    for (first, total) in [(0, 0), (3, 3), (7, 3), (u32::MAX, 0)] {
        asked.first = first;
        let bytes = list_reply(SEQUENCE, first, total, &[]);
        let reply = ListReply::parse(&bytes, SEQUENCE, &asked).unwrap();
        assert_eq!((reply.total(), reply.count()), (total, 0));
    }
    asked.first = 5;
    let entries = vec![list_entry("a"); LIST_ENTRIES_MAX];
    let bytes = list_reply(SEQUENCE, 5, 100, &entries);
    assert!(bytes.len() <= MESSAGE_MAX && bytes.len() + 96 > MESSAGE_MAX);
    let reply = ListReply::parse(&bytes, SEQUENCE, &asked).unwrap();
    assert_eq!(reply.count() as usize, LIST_ENTRIES_MAX);
    assert_eq!(reply.iter().collect::<Vec<_>>(), entries);

    let mut buf = [0; 2 * MESSAGE_MAX];
    let mut writer = ListReplyWriter::new(&mut buf, SEQUENCE, 0).unwrap();
    while writer.push(&entries[0]).is_ok() {}
    assert_eq!(writer.finish(100), Ok(bytes.len()));
}

#[test]
fn logout_golden() {
    let bytes = [&[4, 0, 8, 0][..], &SEQUENCE_BYTES].concat();
    assert_eq!(encoded(|buf| Logout.encode(SEQUENCE, buf)), bytes);
    assert_eq!(request(&bytes), Ok(Request::Logout));
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
}

#[test]
fn logout_reply_golden() {
    let bytes = granted(4, 112);
    let parse = |bytes: &[u8]| LogoutReply::parse(bytes, SEQUENCE);
    assert_eq!(encoded(|buf| LogoutReply.encode(SEQUENCE, buf)), bytes);
    assert_eq!(parse(&bytes), Ok(LogoutReply));
    no_prefix(&bytes, |bytes| parse(bytes).is_ok());
    no_more(&bytes, |bytes| parse(bytes).is_ok());
    assert!(malformed(LogoutReply::parse(&bytes, SEQUENCE + 1)));
}

#[test]
fn refusal_golden() {
    let bytes = encoded(|buf| login().encode(SEQUENCE, buf));
    let message = Message::parse(&bytes).unwrap();
    let refused = Refused::new(Refusal::NoSuchExport, format_args!("no export {}", "x"));
    let reply = encoded(|buf| message.refuse(&refused, buf));
    let mut expected = [
        &[1, 0x80, 112, 0][..],
        &SEQUENCE_BYTES,
        &[3, 0, 11, 0, 0, 0, 0, 0],
        b"no export x",
    ]
    .concat();
    expected.resize(112, 0);
    assert_eq!(reply, expected);
    let parse = |bytes: &[u8]| LoginReply::parse(bytes, SEQUENCE, &login());
    assert_eq!(parse(&reply), Err(ReplyError::Refused(refused)));
    for len in 0..reply.len() {
        assert!(malformed(parse(&reply[..len])));
        assert!(malformed(parse(&sized(reply[..len].to_vec()))));
    }
    assert!(malformed(parse(&sized([&reply[..], &[0]].concat()))));
    assert!(malformed(LoginReply::parse(&reply, SEQUENCE - 1, &login())));
    assert!(
        malformed(parse(&patched(&reply, 8, &[0]))),
        "success without a body"
    );
}

#[test]
fn every_reply_can_be_a_refusal() {
    let refused = Refused::from(Refusal::Busy);
    let asked = GrantRequest::new(0, 3).unwrap();
    let reply = |bytes: &[u8]| {
        let message = Message::parse(bytes).unwrap();
        encoded(|buf| message.refuse(&refused, buf))
    };
    let grant = reply(&encoded(|buf| asked.encode(SEQUENCE, buf)));
    let list = reply(&encoded(|buf| list_request().encode(SEQUENCE, buf)));
    assert_eq!(
        GrantReply::parse(&grant, SEQUENCE, &asked, &three_slabs()).map(drop),
        Err(ReplyError::Refused(refused))
    );
    assert_eq!(
        ListReply::parse(&list, SEQUENCE, &list_request()).map(drop),
        Err(ReplyError::Refused(refused))
    );
}

#[test]
fn unknown_request_can_be_refused() {
    for kind in [0, 5, 0x7fff, 0x8001, 0xffff] {
        let bytes = [&u16::to_le_bytes(kind)[..], &[8, 0], &SEQUENCE_BYTES].concat();
        let message = Message::parse(&bytes).unwrap();
        let fault = message.request().unwrap_err();
        let reply = encoded(|buf| message.refuse(&fault.into(), buf));
        assert_eq!(reply[..2], (kind | 0x8000).to_le_bytes());
        assert_eq!(reply[8..10], [2, 0]);
    }
}

#[test]
fn message_length() {
    let bytes = sized(vec![1; MESSAGE_MAX]);
    assert!(Message::parse(&bytes).is_ok());
    assert!(Message::parse(&sized(vec![1; MESSAGE_MAX + 1])).is_err());
    assert!(Message::parse(&sized(vec![1; 0xffff])).is_err());
    assert!(Message::parse(&sized(vec![1; 8])).is_ok());
    for length in [0, 1, 7, 9, 0xffff] {
        let bytes = patched(&[0; 8], 2, &u16::to_le_bytes(length));
        assert!(Message::parse(&bytes).is_err(), "{length} said");
    }
}

#[test]
fn challenge_golden() {
    let bytes = [
        &[13, 0, 88, 0][..],
        &SEQUENCE_BYTES,
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[7; 8],
        &[8; 32],
        &[9; 32],
    ]
    .concat();
    let wanted = Request::Challenge(challenge());
    assert_eq!(encoded(|buf| challenge().encode(SEQUENCE, buf)), bytes);
    assert_eq!(request(&bytes), Ok(wanted));
    assert!(!Message::parse(&bytes).unwrap().is_event());
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
    // Later suites beside the one that is known; none that is known.
    assert_eq!(request(&patched(&bytes, 8, &[0xff, 0xff])), Ok(wanted));
    assert!(request(&patched(&bytes, 8, &[0xfe, 0xff])).is_err());
    assert_eq!(request(&patched(&bytes, 10, &[9; 6])), Ok(wanted));
}

#[test]
fn challenge_reply_golden() {
    let mut bytes = [&[13, 0x80, 200, 0][..], &SEQUENCE_BYTES].concat();
    bytes.resize(112, 0);
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([8; 32]);
    bytes.extend([9; 32]);
    let unproven = bytes.clone();
    bytes.extend([10; 16]);
    assert_eq!(challenge_reply(SEQUENCE), bytes);
    let (reply, before) = ChallengeReply::parse(&bytes, SEQUENCE).unwrap();
    assert_eq!((reply.public, reply.proof), (challenge().public, [10; 16]));
    assert_eq!(before, unproven);
    no_prefix(&bytes, |bytes| {
        ChallengeReply::parse(bytes, SEQUENCE).is_ok()
    });
    no_more(&bytes, |bytes| {
        ChallengeReply::parse(bytes, SEQUENCE).is_ok()
    });
    assert!(ChallengeReply::parse(&bytes, SEQUENCE + 1).is_err());
    for suite in [[0, 0], [2, 0], [3, 0], [1, 1]] {
        assert!(ChallengeReply::parse(&patched(&bytes, 112, &suite), SEQUENCE).is_err());
    }
}
