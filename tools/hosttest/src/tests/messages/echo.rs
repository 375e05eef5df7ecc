// SPDX-License-Identifier: GPL-2.0

//! Echoes of datagrams.

use super::*;
use crate::proto::wire::{
    ECHO_COUNT_MAX, ECHO_MTU_MIN, ECHO_SIZE_MAX, VERSION_MIN, VERSION_SCRATCH,
};

#[test]
fn echo_request_golden() {
    let mut bytes = [&[15, 0, 176, 0][..], &SEQUENCE_BYTES, uuid(0x10).as_bytes()].concat();
    bytes.extend(b"client.example");
    bytes.resize(88, 0);
    bytes.extend(b"data");
    bytes.resize(152, 0);
    bytes.extend([3, 2, 1, 0, 0x14, 0x13, 0x12, 0x11]);
    bytes.extend([1, 2, 0, 0, 0x1f, 0, 0, 0]);
    bytes.resize(176, 0);
    let wanted = Request::Echo(echo_request());
    assert_eq!(encoded(|buf| echo_request().encode(SEQUENCE, buf)), bytes);
    assert_eq!(request(&bytes), Ok(wanted));
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
    assert_eq!(request(&patched(&bytes, 168, &[9; 8])), Ok(wanted));
    assert!(request(&patched(&bytes, 8, &[0; 16])).is_err(), "nil");
    assert!(request(&patched(&bytes, 24, &[0])).is_err(), "no host");
    assert!(request(&patched(&bytes, 88, &[0])).is_err(), "no export");
    let takes = |at, value: u32| request(&patched(&bytes, at, &value.to_le_bytes())).is_ok();
    let most = [
        (152, 2, 0xff_fffe),
        (156, 0, u32::MAX >> 1),
        (160, 1, ECHO_SIZE_MAX.into()),
        (164, 1, ECHO_COUNT_MAX.into()),
    ];
    for (at, least, most) in most {
        assert!(takes(at, least) && takes(at, most), "{at}");
        assert!(!takes(at, most + 1) && !takes(at, u32::MAX), "{at}");
        assert!(least == 0 || !takes(at, least - 1), "{at}");
        // What is cut to 16 bits is another one.
        assert!(at < 160 || !takes(at, 0x1_0001), "{at}");
    }
}

/// On a connection that uses an older version it is a request that nobody knows.
#[test]
fn echo_is_not_of_older_versions() {
    let bytes = encoded(|buf| echo_request().encode(SEQUENCE, buf));
    let message = Message::parse(&bytes).unwrap();
    for version in VERSION_MIN..=VERSION_MAX {
        let known = message.request(version).is_ok();
        assert_eq!(known, version >= VERSION_SCRATCH, "version {version}");
    }
}

#[test]
fn echo_reply_golden() {
    let bytes = [
        &granted(15, 128)[..],
        &[6, 5, 4, 0],
        &[0x24, 0x23, 0x22, 0x21],
        &[0, 4, 0, 0],
        &[0; 4],
    ]
    .concat();
    let reply = echo_reply();
    assert_eq!(encoded(|buf| reply.encode(SEQUENCE, buf)), bytes);
    let parse = |bytes: &[u8]| EchoReply::parse(bytes, SEQUENCE);
    assert_eq!(parse(&bytes), Ok(reply));
    no_prefix(&bytes, |bytes| parse(bytes).is_ok());
    no_more(&bytes, |bytes| parse(bytes).is_ok());
    assert_eq!(parse(&patched(&bytes, 124, &[9; 4])), Ok(reply));
    for mtu in [ECHO_MTU_MIN, ECHO_SIZE_MAX] {
        let found = parse(&patched(&bytes, 120, &mtu.to_le_bytes()));
        assert_eq!(found.map(|reply| reply.mtu), Ok(mtu.into()));
    }
    for (what, at, patch) in [
        ("no queue pair", 112, &[0, 0, 0][..]),
        ("that of the subnet manager", 112, &[1, 0, 0]),
        ("that of multicast", 112, &[0xff; 3]),
        ("more than 24 bits", 112, &[6, 5, 4, 1]),
        ("a Q_Key with the highest bit", 119, &[0x80]),
        ("a small MTU", 120, &[0xff, 0]),
        ("a large MTU", 120, &[1, 0x10]),
        ("a huge MTU", 120, &[0, 4, 1]),
    ] {
        assert!(malformed(parse(&patched(&bytes, at, patch))), "{what}");
    }
    assert!(malformed(EchoReply::parse(&bytes, SEQUENCE + 1)));
}
