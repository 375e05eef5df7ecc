// SPDX-License-Identifier: GPL-2.0

//! Private data of the RDMA CM.

use super::{encoded, patched};
use crate::proto::wire::{VERSION_MAX, VERSION_MIN};
use crate::proto::*;

const IO: ConnectRequest = ConnectRequest {
    connection: Connection::Io {
        session: 0x1122_3344_5566_7788,
        queue: 0x0102,
    },
    epoch: 0x0102_0304_0506_0708,
};
const CONTROL: ConnectRequest = ConnectRequest {
    connection: Connection::Control,
    epoch: u64::MAX,
};

#[rustfmt::skip]
const IO_BYTES: [u8; 48] = [
    b'F', b'A', b'R', b'B', 8, 0, 8, 0,
    1, 0, 0x02, 0x01, 0, 0, 0, 0,
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    8, 7, 6, 5, 4, 3, 2, 1,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];
#[rustfmt::skip]
const CONTROL_BYTES: [u8; 48] = [
    b'F', b'A', b'R', b'B', 8, 0, 8, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
];

fn refusal(bytes: &[u8]) -> Refusal {
    ConnectRequest::parse(bytes).unwrap_err().refusal
}

fn versions(min: u16, max: u16) -> Vec<u8> {
    let bytes = patched(&IO_BYTES, 4, &min.to_le_bytes());
    patched(&bytes, 6, &max.to_le_bytes())
}

#[test]
fn request_golden() {
    assert_eq!(encoded(|buf| IO.encode((8, 8), buf)), IO_BYTES);
    assert_eq!(encoded(|buf| CONTROL.encode((8, 8), buf)), CONTROL_BYTES);
    assert_eq!(ConnectRequest::parse(&IO_BYTES), Ok((IO, 8)));
    assert_eq!(ConnectRequest::parse(&CONTROL_BYTES), Ok((CONTROL, 8)));
}

#[test]
fn request_padded_by_the_transport() {
    let mut bytes = IO_BYTES.to_vec();
    bytes.resize(wire::CONNECT_REQUEST_MAX, 0);
    assert_eq!(ConnectRequest::parse(&bytes), Ok((IO, 8)));
}

#[test]
fn request_truncated() {
    for len in 0..IO_BYTES.len() {
        assert_eq!(refusal(&IO_BYTES[..len]), Refusal::Malformed, "{len} bytes");
    }
}

#[test]
fn request_of_another_protocol() {
    for magic in [b"XARB", b"FXRB", b"FAXB", b"FARX", b"BRAF"] {
        let bytes = patched(&IO_BYTES, 0, magic);
        assert_eq!(refusal(&bytes), Refusal::Malformed);
    }
}

#[test]
fn request_versions() {
    for (min, max) in [(VERSION_MAX + 1, u16::MAX), (0, VERSION_MIN - 1)] {
        assert_eq!(refusal(&versions(min, max)), Refusal::Version);
    }
    for (min, max) in [(1, 0), (u16::MAX, 0), (9, 8)] {
        assert_eq!(refusal(&versions(min, max)), Refusal::Malformed);
    }
    for (min, max) in [(0, u16::MAX), (0, 8), (1, 8), (8, 8), (8, 9)] {
        assert_eq!(ConnectRequest::parse(&versions(min, max)), Ok((IO, 8)));
    }
}

#[test]
fn request_of_an_unknown_version_is_not_read_further() {
    let bytes = patched(&versions(10, 11), 8, &[0xff]);
    let refused = ConnectRequest::parse(&bytes).unwrap_err();
    assert_eq!(refused.refusal, Refusal::Version);
    assert_eq!(
        refused.text.as_str(),
        "no protocol version in common: client 10 to 11, server 8 to 8"
    );
}

#[test]
fn request_of_a_connection_that_makes_no_sense() {
    for kind in [2, 0xff] {
        assert_eq!(refusal(&patched(&IO_BYTES, 8, &[kind])), Refusal::Malformed);
    }
    // A control connection with a session or a queue, an I/O connection without a session.
    assert_eq!(refusal(&patched(&IO_BYTES, 8, &[0])), Refusal::Malformed);
    assert_eq!(
        refusal(&patched(&CONTROL_BYTES, 10, &[1])),
        Refusal::Malformed
    );
    assert_eq!(
        refusal(&patched(&CONTROL_BYTES, 23, &[1])),
        Refusal::Malformed
    );
    assert_eq!(
        refusal(&patched(&IO_BYTES, 16, &[0; 8])),
        Refusal::Malformed
    );
}

#[test]
fn request_reserved_is_ignored() {
    let bytes = patched(&IO_BYTES, 9, &[0xff]);
    let bytes = patched(&bytes, 12, &[0xff; 4]);
    assert_eq!(ConnectRequest::parse(&bytes), Ok((IO, 8)));
}

#[test]
fn reply_golden() {
    let reply = ConnectReply { version: 8 };
    let mut bytes = vec![b'F', b'A', b'R', b'B', 8, 0, 0, 0];
    bytes.resize(24, 0);
    assert_eq!(encoded(|buf| reply.encode(buf)), bytes);
    assert_eq!(ConnectReply::parse(&bytes), Ok(reply));
    for len in 0..bytes.len() {
        assert!(ConnectReply::parse(&bytes[..len]).is_err());
    }
    assert!(ConnectReply::parse(&patched(&bytes, 0, b"G")).is_err());
    for version in [0, VERSION_MIN - 1, VERSION_MAX + 1, u16::MAX] {
        assert!(ConnectReply::parse(&patched(&bytes, 4, &version.to_le_bytes())).is_err());
    }
    let mut padded = bytes.clone();
    padded.resize(wire::CONNECT_REPLY_MAX, 0xff);
    assert_eq!(ConnectReply::parse(&padded), Ok(reply));
    assert_eq!(ConnectReply::known(&padded), bytes);
}

#[test]
fn tickets() {
    let ticket = [0xa5; 16];
    let mut bytes = IO_BYTES.to_vec();
    handshake::set_ticket(&mut bytes, |rest| {
        assert_eq!(rest, &IO_BYTES[..32]);
        ticket
    });
    assert_eq!(bytes[32..], ticket);
    bytes.resize(wire::CONNECT_REQUEST_MAX, 0);
    let known = ConnectRequest::known(&bytes);
    assert_eq!(
        handshake::split_ticket(known),
        Some((&IO_BYTES[..32], &ticket))
    );
    // The parser leaves the ticket to those who have the keys.
    assert_eq!(ConnectRequest::parse(&bytes), Ok((IO, 8)));
    for short in 0..16 {
        assert_eq!(handshake::split_ticket(&bytes[..short]), None);
    }
}

#[test]
fn request_of_an_older_version_may_be_shorter() {
    for len in 8..IO_BYTES.len() {
        assert_eq!(refusal(&versions(1, 5)[..len]), Refusal::Version);
    }
}

fn reject_bytes() -> Vec<u8> {
    let mut bytes = [
        &b"FARB"[..],
        &[8, 0, 8, 0],
        &[5, 0, 8, 0, 0, 0, 0, 0],
        b"go away!",
    ]
    .concat();
    bytes.resize(112, 0);
    bytes.extend([0xc0; 16]);
    bytes
}

#[test]
fn reject_golden() {
    let reject = Reject {
        refused: Refused::new(Refusal::NotAdmitted, format_args!("go away!")),
        cookie: [0xc0; 16],
    };
    let bytes = reject_bytes();
    assert_eq!(encoded(|buf| reject.encode(buf)), bytes);
    assert_eq!(Reject::parse(&bytes), Ok(reject));
    let without = Reject::from(reject.refused);
    for len in 0..bytes.len() {
        // A server of an older version knows no cookies.
        let cut = Reject::parse(&bytes[..len]);
        assert_eq!(cut.ok(), (len >= 112).then_some(without), "{len} bytes");
    }
    let mut padded = bytes;
    padded.resize(wire::REJECT_MAX, 0);
    assert_eq!(Reject::parse(&padded), Ok(reject));
}

#[test]
fn reject_every_code() {
    for refusal in Refusal::ALL {
        let reject = Reject::from(Refused::from(refusal));
        let bytes = encoded(|buf| reject.encode(buf));
        assert_eq!(Reject::parse(&bytes), Ok(reject));
        // A peer of few words gets the default text.
        let bare = patched(&bytes, 10, &[0, 0]);
        assert_eq!(Reject::parse(&bare), Ok(reject));
    }
}

#[test]
fn reject_of_an_unknown_code() {
    let bytes = patched(&reject_bytes(), 8, &[14, 1]);
    let Reject { refused, .. } = Reject::parse(&bytes).unwrap();
    assert_eq!(refused.refusal, Refusal::Internal);
    assert_eq!(refused.text.as_str(), "go away!");
    let Reject { refused, .. } = Reject::parse(&patched(&bytes, 10, &[0, 0])).unwrap();
    assert_eq!(refused.refusal, Refusal::Internal);
    assert_eq!(refused.text.as_str(), "refusal code 270");
}

#[test]
fn reject_malformed() {
    let bytes = reject_bytes();
    assert!(Reject::parse(&patched(&bytes, 0, b"X")).is_err());
    // No reason; a text longer than its field; a text that is not UTF-8.
    assert!(Reject::parse(&patched(&bytes, 8, &[0, 0])).is_err());
    assert!(Reject::parse(&patched(&bytes, 10, &[97, 0])).is_err());
    assert!(Reject::parse(&patched(&bytes, 10, &[0xff, 0xff])).is_err());
    assert!(Reject::parse(&patched(&bytes, 16, &[0xff])).is_err());
    // A text that ends within a character.
    let cut = patched(&patched(&bytes, 16, "é".as_bytes()), 10, &[1, 0]);
    assert!(Reject::parse(&cut).is_err());
    // The whole field is text.
    let full = patched(&patched(&bytes, 16, &[b'x'; 96]), 10, &[96, 0]);
    assert_eq!(
        Reject::parse(&full).unwrap().refused.text.as_str(),
        "x".repeat(96)
    );
}

#[test]
fn reject_cannot_forge_lines() {
    let bytes = patched(&reject_bytes(), 16, b"a\n\0\x1bb");
    assert_eq!(
        Reject::parse(&bytes).unwrap().refused.text.as_str(),
        "a???bay!"
    );
}
