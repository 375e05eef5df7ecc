// SPDX-License-Identifier: GPL-2.0

//! Scratch regions.

use super::*;
use crate::proto::wire::{SCRATCH_MAX, SCRATCH_UNIT, VERSION_MIN, VERSION_SCRATCH};

#[test]
fn scratch_request_golden() {
    let mut bytes = [&[14, 0, 160, 0][..], &SEQUENCE_BYTES, uuid(0x10).as_bytes()].concat();
    bytes.extend(b"client.example");
    bytes.resize(88, 0);
    bytes.extend(b"data");
    bytes.resize(152, 0);
    bytes.extend([0, 0x20, 0, 0, 0, 0, 0, 0]);
    let wanted = Request::Scratch(scratch_request());
    assert_eq!(
        encoded(|buf| scratch_request().encode(SEQUENCE, buf)),
        bytes
    );
    assert_eq!(request(&bytes), Ok(wanted));
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
    assert_eq!(request(&patched(&bytes, 156, &[9; 4])), Ok(wanted));
    assert!(request(&patched(&bytes, 8, &[0; 16])).is_err(), "nil");
    assert!(request(&patched(&bytes, 24, &[0])).is_err(), "no host");
    assert!(request(&patched(&bytes, 88, &[0])).is_err(), "no export");
    let of = |size: u32| request(&patched(&bytes, 152, &size.to_le_bytes()));
    for size in [SCRATCH_UNIT, SCRATCH_MAX] {
        assert!(of(size).is_ok(), "{size}");
    }
    for size in [
        0,
        1,
        SCRATCH_UNIT - 1,
        SCRATCH_UNIT + 1,
        SCRATCH_MAX + SCRATCH_UNIT,
        u32::MAX,
        u32::MAX - SCRATCH_UNIT + 1,
    ] {
        assert!(of(size).is_err(), "{size}");
    }
}

/// On a connection that uses an older version it is a request that nobody knows.
#[test]
fn scratch_is_not_of_older_versions() {
    let bytes = encoded(|buf| scratch_request().encode(SEQUENCE, buf));
    let message = Message::parse(&bytes).unwrap();
    for version in VERSION_MIN..=VERSION_MAX {
        let known = message.request(version).is_ok();
        assert_eq!(known, version >= VERSION_SCRATCH, "version {version}");
    }
}

#[test]
fn scratch_reply_golden() {
    let bytes = [
        &granted(14, 136)[..],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[0, 0x20, 0, 0],
        &[0x14, 0x13, 0x12, 0x11],
        &[1, 0, 0, 0],
        &[0; 4],
    ]
    .concat();
    let (asked, reply) = (scratch_request(), scratch_reply());
    assert_eq!(encoded(|buf| reply.encode(SEQUENCE, &asked, buf)), bytes);
    let parse = |bytes: &[u8]| ScratchReply::parse(bytes, SEQUENCE, &asked);
    assert_eq!(parse(&bytes), Ok(reply));
    no_prefix(&bytes, |bytes| parse(bytes).is_ok());
    no_more(&bytes, |bytes| parse(bytes).is_ok());
    assert_eq!(parse(&patched(&bytes, 132, &[9; 4])), Ok(reply));
    let without = ScratchReply {
        atomics: false,
        ..reply
    };
    assert_eq!(parse(&patched(&bytes, 128, &[0])), Ok(without));
    for (what, at, patch) in [
        ("of another size", 120, &[0, 0x10][..]),
        ("not at a multiple of 8", 112, &[4]),
        ("around the end of the address space", 112, &[0xf8; 8]),
        ("an unknown flag", 128, &[3]),
        ("an unknown flag", 131, &[0x80]),
    ] {
        let mut bytes = patched(&bytes, at, patch);
        if what.starts_with("around") {
            bytes = patched(&bytes, 113, &[0xff; 7]);
        }
        assert!(malformed(parse(&bytes)), "{what}");
    }
    assert!(malformed(ScratchReply::parse(&bytes, SEQUENCE + 1, &asked)));
}
