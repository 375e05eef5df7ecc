// SPDX-License-Identifier: GPL-2.0

//! Commands and their responses.

mod model;
mod reservations;
mod responses;

use super::*;
use crate::proto::{command, response};

const TAG: u16 = 0x0102;
const GENERATION: u32 = 0x0304_0506;
const SPAN: Span = Span {
    offset: 0x0708_090a_0b0c_0e00,
    len: 0x1200,
};
const REMOTE: Remote = Remote {
    addr: 0x1112_1314_1516_1718,
    rkey: 0x191a_1b1c,
};

/// Terms under which all samples are taken.
fn terms() -> Terms {
    block_reply().terms().unwrap()
}

/// An extent that has room for all samples.
fn extent() -> Extent {
    Extent {
        size: i64::MAX as u64 - 511,
        access: Access::ReadWrite,
    }
}

fn command(operation: Operation) -> Command {
    Command {
        tag: TAG,
        generation: GENERATION,
        pressed: false,
        operation,
    }
}

fn write(from: Transfer, fua: bool) -> Operation {
    Operation::Write {
        span: SPAN,
        from,
        fua,
        atomic: false,
    }
}

fn atomic_write(from: Transfer, fua: bool) -> Operation {
    Operation::Write {
        span: SPAN,
        from,
        fua,
        atomic: true,
    }
}

/// Every operation in every form, with its op, flags, and whether the span and the remote memory
/// are there.
fn samples() -> Vec<(Command, [u8; 2], bool, bool)> {
    let zeroes = |no_unmap| Operation::WriteZeroes {
        span: SPAN,
        no_unmap,
    };
    let read = |to| Operation::Read { span: SPAN, to };
    let remote = Transfer::Remote(REMOTE);
    let plain = [
        (command(read(remote)), [1, 0], true, true),
        (command(read(Transfer::Inline)), [1, 2], true, false),
        (command(write(remote, false)), [2, 0], true, true),
        (command(write(remote, true)), [2, 1], true, true),
        (command(write(Transfer::Inline, false)), [2, 2], true, false),
        (command(write(Transfer::Inline, true)), [2, 3], true, false),
        (command(atomic_write(remote, false)), [2, 16], true, true),
        (command(atomic_write(remote, true)), [2, 17], true, true),
        (
            command(atomic_write(Transfer::Inline, false)),
            [2, 18],
            true,
            false,
        ),
        (
            command(atomic_write(Transfer::Inline, true)),
            [2, 19],
            true,
            false,
        ),
        (command(Operation::Flush), [3, 0], false, false),
        (
            command(Operation::Discard { span: SPAN }),
            [4, 0],
            true,
            false,
        ),
        (command(zeroes(false)), [5, 0], true, false),
        (command(zeroes(true)), [5, 4], true, false),
        (
            command(Operation::SecureErase { span: SPAN }),
            [6, 0],
            true,
            false,
        ),
        (command(Operation::Report), [8, 0], false, false),
    ];
    let pressed = plain.map(|(command, [op, flags], has_span, has_remote)| {
        let command = Command {
            pressed: true,
            ..command
        };
        (command, [op, flags | 8], has_span, has_remote)
    });
    [plain, pressed].concat()
}

fn bytes_of(command: &Command) -> Vec<u8> {
    encoded(|buf| command.encode(buf))
}

/// Bytes that come in with a command.
fn received(command: &Command) -> u32 {
    32 + match command.operation {
        Operation::Write {
            span,
            from: Transfer::Inline,
            ..
        } => span.len,
        _ => 0,
    }
}

fn parse(bytes: &[u8], received: u32) -> Result<Command, CommandError> {
    command::parse(bytes, received, &terms(), extent())
}

fn is_malformed(result: Result<Command, CommandError>) -> bool {
    matches!(result, Err(CommandError::Malformed(_)))
}

/// The status of a refusal, which names the command that it refuses.
fn refused(result: Result<Command, CommandError>) -> Option<Status> {
    match result {
        Err(CommandError::Refused(response, why)) => {
            assert_eq!((response.tag, response.generation), (TAG, GENERATION));
            assert!(!why.is_empty());
            Some(response.status)
        }
        _ => None,
    }
}

#[test]
fn golden() {
    for (command, [op, flags], has_span, has_remote) in samples() {
        let mut bytes = vec![op, flags, 2, 1, 6, 5, 4, 3];
        bytes.resize(32, 0);
        if has_span {
            bytes[8..12].copy_from_slice(&[0, 0x12, 0, 0]);
            bytes[16..24].copy_from_slice(&[0, 0xe, 0xc, 0xb, 0xa, 9, 8, 7]);
        }
        if has_remote {
            bytes[12..16].copy_from_slice(&[0x1c, 0x1b, 0x1a, 0x19]);
            bytes[24..].copy_from_slice(&[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        }
        assert_eq!(bytes_of(&command), bytes);
        assert_eq!(bytes.len(), command::SIZE);
        assert_eq!(parse(&bytes, received(&command)), Ok(command));
        assert_eq!(command.operation.span(), has_span.then_some(SPAN));
        assert_eq!(command.operation.remote(), has_remote.then_some(REMOTE));
        // The inline data may lie behind it or elsewhere.
        bytes.resize(9000, 0xff);
        assert_eq!(parse(&bytes, received(&command)), Ok(command));
    }
}

#[test]
fn length_of_the_message() {
    for (command, ..) in samples() {
        let bytes = bytes_of(&command);
        let right = received(&command);
        for len in 0..32 {
            assert!(is_malformed(parse(&bytes[..len as usize], right)));
            assert!(is_malformed(parse(&bytes, len)));
        }
        for wrong in [32, right - 1, right + 1, 2 * right, u32::MAX] {
            if wrong != right {
                assert!(is_malformed(parse(&bytes, wrong)), "{wrong} bytes");
            }
        }
    }
}

#[test]
fn inline_size() {
    let read = Operation::Read {
        span: SPAN,
        to: Transfer::Inline,
    };
    for inline in [write(Transfer::Inline, false), read].map(command) {
        let parse = |inline_size| {
            let terms = Terms {
                inline_size,
                ..terms()
            };
            command::parse(&bytes_of(&inline), received(&inline), &terms, extent())
        };
        assert_eq!(parse(SPAN.len), Ok(inline));
        assert!(is_malformed(parse(SPAN.len - 1)));
        assert!(is_malformed(parse(0)));
    }
}

#[test]
fn operations_and_flags() {
    for (sample, [op, flags], ..) in samples() {
        let bytes = bytes_of(&sample);
        for other in 0..=u8::MAX {
            let result = parse(&patched(&bytes, 1, &[other]), received(&sample));
            let known = samples().iter().any(|(_, pair, ..)| *pair == [op, other]);
            // A read with no remote memory may also be one to the address 0.
            let fits = (other ^ flags) & 2 == 0 || (op, flags & 2) == (1, 2);
            assert_eq!(result.is_ok(), known && fits);
            assert!(result.is_ok() || is_malformed(result), "flags {other}");
        }
        // What op 7 has in its place is in `reservations`.
        for unknown in (9..=u8::MAX).chain([0]) {
            let bytes = patched(&bytes, 0, &[unknown]);
            assert!(is_malformed(parse(&bytes, received(&sample))));
        }
    }
}

#[test]
fn fields_that_an_operation_does_not_have() {
    for (sample, _, has_span, has_remote) in samples() {
        let bytes = bytes_of(&sample);
        for at in (8..12).chain(16..24) {
            let result = parse(&patched(&bytes, at, &[1]), received(&sample));
            assert!(has_span || is_malformed(result), "byte {at}");
        }
        for at in (12..16).chain(24..32) {
            let result = parse(&patched(&bytes, at, &[1]), received(&sample));
            assert_eq!(is_malformed(result), !has_remote, "byte {at}");
        }
    }
}

#[test]
fn tags() {
    for (sample, ..) in samples() {
        for (tag, sound) in [
            (0u16, true),
            (terms().depth - 1, true),
            (terms().depth, false),
            (u16::MAX, false),
        ] {
            let bytes = patched(&bytes_of(&sample), 2, &tag.to_le_bytes());
            let result = parse(&bytes, received(&sample));
            assert_eq!(result.map(|command| command.tag).ok(), sound.then_some(tag));
            assert!(sound || is_malformed(result));
        }
    }
}

#[test]
fn memory_ends_within_the_address_space() {
    for (sample, _, _, has_remote) in samples() {
        if !has_remote {
            continue;
        }
        let last = u64::MAX - u64::from(SPAN.len);
        let parse = |addr: u64| parse(&patched(&bytes_of(&sample), 24, &addr.to_le_bytes()), 32);
        assert!(parse(last).is_ok() && parse(0).is_ok());
        assert!(is_malformed(parse(last + 1)) && is_malformed(parse(u64::MAX)));
    }
}

/// An operation with another span, and what comes in with it.
fn with_span(sample: &Command, span: Span) -> (Vec<u8>, u32) {
    let bytes = bytes_of(sample);
    let bytes = patched(&bytes, 8, &span.len.to_le_bytes());
    let bytes = patched(&bytes, 16, &span.offset.to_le_bytes());
    let received = match received(sample) {
        32 => 32,
        _ => 32 + span.len,
    };
    (bytes, received)
}

#[test]
fn ranges() {
    let extent = Extent {
        size: 0x1_0000_0000,
        access: Access::ReadWrite,
    };
    for (sample, _, has_span, _) in samples() {
        if !has_span {
            continue;
        }
        let status = |offset, len| {
            let (bytes, received) = with_span(&sample, Span { offset, len });
            let result = command::parse(&bytes, received, &terms(), extent);
            assert!(!is_malformed(result), "{offset}, {len}");
            refused(result)
        };
        assert_eq!(status(0, 512), None);
        assert_eq!(status(0xffff_fe00, 512), None);
        for (offset, len) in [
            (0, 0),
            (0, 511),
            (0, 513),
            (1, 512),
            (511, 512),
            (u64::MAX, 512),
        ] {
            assert_eq!(
                status(offset, len),
                Some(Status::Invalid),
                "{offset}, {len}"
            );
        }
        for (offset, len) in [
            (0xffff_fe00, 1024),
            (0x1_0000_0000, 512),
            (1 << 63, 512),
            (u64::MAX - 511, 512),
            (u64::MAX - 511, 1024),
        ] {
            assert_eq!(
                status(offset, len),
                Some(Status::OutOfRange),
                "{offset}, {len}"
            );
        }
    }
}

#[test]
fn blocks_of_4096_bytes() {
    let mut terms = terms();
    terms.limits = BlockLimits::plain(BlockSize::MAX);
    let read = command(Operation::Read {
        span: SPAN,
        to: Transfer::Remote(REMOTE),
    });
    let status = |offset, len| {
        let (bytes, received) = with_span(&read, Span { offset, len });
        refused(command::parse(&bytes, received, &terms, extent()))
    };
    assert_eq!(status(4096, 4096), None);
    assert_eq!(status(512, 4096), Some(Status::Invalid));
    assert_eq!(status(4096, 512), Some(Status::Invalid));
    assert_eq!(status(4096, 4096 + 2048), Some(Status::Invalid));
}

#[test]
fn limits_of_each_operation() {
    for (sample, [op, flags], has_span, _) in samples() {
        if !has_span || flags & 2 != 0 {
            continue;
        }
        let limits = terms().limits;
        let max = match op {
            4 => limits.max_discard,
            5 => limits.max_write_zeroes,
            6 => limits.max_secure_erase,
            _ if flags & 16 != 0 => limits.atomic.max,
            _ => limits.max_io,
        };
        let status = |len, terms: &Terms| {
            let (bytes, received) = with_span(&sample, Span { offset: 0, len });
            let bytes = patched(&bytes, 24, &[0; 8]);
            refused(command::parse(&bytes, received, terms, extent()))
        };
        assert_eq!(status(max, &terms()), None);
        if max < 0xffff_fe00 {
            assert_eq!(status(max + 512, &terms()), Some(Status::Invalid));
        }
        let mut terms = terms();
        terms.limits.max_discard = 0;
        terms.limits.max_write_zeroes = 0;
        terms.limits.max_secure_erase = 0;
        terms.limits.atomic = AtomicLimits::NONE;
        let supported = if op >= 4 || flags & 16 != 0 {
            Some(Status::NotSupported)
        } else {
            None
        };
        assert_eq!(status(512, &terms), supported);
    }
}

#[test]
fn read_only() {
    let extent = Extent {
        access: Access::ReadOnly,
        ..extent()
    };
    for (sample, [op, _], ..) in samples() {
        let result = command::parse(&bytes_of(&sample), received(&sample), &terms(), extent);
        match op {
            1 | 3 | 8 => assert_eq!(result, Ok(sample)),
            _ => assert_eq!(refused(result), Some(Status::ReadOnly)),
        }
    }
}

#[test]
fn nothing_is_left_of_the_export() {
    let extent = Extent {
        size: 0,
        ..extent()
    };
    for (sample, _, has_span, _) in samples() {
        let result = command::parse(&bytes_of(&sample), received(&sample), &terms(), extent);
        assert_eq!(refused(result), has_span.then_some(Status::OutOfRange));
    }
}
