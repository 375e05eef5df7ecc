// SPDX-License-Identifier: GPL-2.0

//! Tests of the pure modules, and the samples they share.

mod account;
mod auth;
mod budget;
mod chunks;
mod commands;
mod frame;
mod fuzz;
mod geometry;
mod handshake;
mod latency;
mod limits;
mod messages;
mod overdue;
mod parse;
mod receives;
mod session;
mod status;
mod uapi;
mod values;

use crate::proto::wire::MESSAGE_MAX;
use crate::proto::*;

/// The bytes that `encode` writes, checked to be independent of what was in the buffer before and
/// to end where it says.
fn encoded(encode: impl Fn(&mut [u8]) -> Result<usize, NoRoom>) -> Vec<u8> {
    let (mut a, mut b) = ([0xaa; MESSAGE_MAX + 1], [0x55; MESSAGE_MAX + 1]);
    let len = encode(&mut a).unwrap();
    assert_eq!(encode(&mut b), Ok(len));
    assert_eq!(a[..len], b[..len], "stale bytes in the message");
    assert!(
        a[len..].iter().all(|&c| c == 0xaa),
        "written beyond the end"
    );
    assert_eq!(encode(&mut a[..len]), Ok(len), "an exact buffer is enough");
    for short in 0..len {
        assert_eq!(encode(&mut a[..short]), Err(NoRoom));
    }
    a[..len].to_vec()
}

/// `bytes` with the header saying that they are all.
fn sized(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).unwrap();
    if let Some(field) = bytes.get_mut(2..4) {
        field.copy_from_slice(&len.to_le_bytes());
    }
    bytes
}

/// `bytes` with `new` at `at`.
fn patched(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

/// A name field.
fn padded(name: &str) -> Vec<u8> {
    let mut field = name.as_bytes().to_vec();
    field.resize(wire::NAME_SIZE, 0);
    field
}

fn name(name: &str) -> Name {
    name.parse().unwrap()
}

fn uuid(first: u8) -> Uuid {
    Uuid::from_bytes(std::array::from_fn(|i| first + i as u8))
}

fn geometry(size: u64, shift: u8) -> Geometry {
    Geometry::new(size, shift.try_into().unwrap()).unwrap()
}

fn challenge() -> Challenge {
    Challenge {
        key_id: crate::proto::auth::KeyId([7; 8]),
        public: Public {
            nonce: [8; 32],
            point: [9; 32],
        },
    }
}

fn challenge_reply(sequence: u32) -> Vec<u8> {
    encoded(|buf| ChallengeReply::encode(&challenge().public, sequence, buf, |_| [10; 16]))
}

fn login() -> Login {
    Login {
        host_id: uuid(0x10),
        host_name: name("client.example"),
        map_uuid: uuid(0x30),
        epoch: 0x0102_0304_0506_0708,
        export: name("scratch"),
        access: Access::ReadWrite,
        queues: 0x0203,
        depth: 0x0123,
        inline_size: 0x3456,
        protection: Protection::None,
        remote_invalidate: true,
        path: 5,
        heartbeat_ms: 0x0102_03e8,
        boot: 0x0807_0605_0403_0201,
        incarnation: 0x1817_1615_1413_1211,
        resume: Some(0x2827_2625_2423_2221),
        no_path_timeout_ms: Some(0x0001_ea60),
    }
}

fn ram_reply() -> LoginReply {
    LoginReply {
        session: 0x1122_3344_5566_7788,
        export_uuid: uuid(0x50),
        instance: uuid(0x70),
        extent: Extent {
            size: 0x0102_0000_1000,
            access: Access::ReadWrite,
        },
        limits: BlockLimits::plain(BlockSize::MIN),
        backing: Backing::Ram(21.try_into().unwrap()),
        queues: 0x0201,
        reservation_key: 0x3837_3635_3433_3231,
        remembered: true,
        server_id: uuid(0x90),
        lease_ms: 0x0003_0d40,
        extent_number: 0x0b0a_0908,
    }
}

fn block_reply() -> LoginReply {
    LoginReply {
        limits: block_limits(),
        backing: Backing::Block {
            depth: 0x0121,
            credit: 0x0110,
            inline_size: 0x3400,
        },
        ..ram_reply()
    }
}

fn block_limits() -> BlockLimits {
    BlockLimits {
        logical_block_size: BlockSize::MIN,
        physical_block_size: 0x1000,
        io_min: 0x3000,
        io_opt: 0x00f2_0000,
        max_io: 0x0002_0600,
        max_discard: 0x8002_0400,
        discard_granularity: 0x0104_0600,
        max_write_zeroes: 0xffff_fe00,
        atomic: AtomicLimits {
            max: 0x0001_8000,
            unit_min: 0x200,
            unit_max: 0x8000,
            boundary: 0x0100_0000,
        },
        max_secure_erase: 0x4001_0200,
        secure_erase_granularity: 0x0003_0200,
        write_cache: true,
        fua: true,
        rotational: true,
    }
}

/// One of each.
fn events() -> [Event; 4] {
    [
        Event::Extent {
            number: 0x0a0b_0c0d,
            extent: Extent {
                size: 0x0102_0304_0506_0800,
                access: Access::ReadWrite,
            },
        },
        Event::Pong,
        Event::Fenced {
            path: 7,
            epoch: 0x0102_0304_0506_0708,
        },
        Event::Flushed {
            instance: uuid(0x21),
            number: 0x0a0b_0c0d,
        },
    ]
}

/// Three slabs of 64 KiB, the last one short.
fn three_slabs() -> Geometry {
    geometry(0x2_1000, 16)
}

fn grants() -> [Grant; 3] {
    [
        Grant {
            addr: 0x0102_0304_0506_0708,
            length: 0x1_0000,
            rkey: 0x1112_1314,
        },
        Grant {
            addr: 0,
            length: 0x1_0000,
            rkey: 0,
        },
        Grant {
            addr: u64::MAX - 0x1000,
            length: 0x1000,
            rkey: u32::MAX,
        },
    ]
}

fn grant_reply(sequence: u32, first: u32, grants: &[Grant]) -> Vec<u8> {
    encoded(|buf| {
        let mut writer = GrantReplyWriter::new(buf, sequence, first)?;
        grants.iter().try_for_each(|grant| writer.push(grant))?;
        writer.finish()
    })
}

fn list_request() -> ListRequest {
    ListRequest {
        host_id: uuid(0x10),
        host_name: name("client.example"),
        first: 0x0102_0304,
    }
}

fn list_entry(entry: &str) -> ListEntry {
    ListEntry {
        name: name(entry),
        uuid: uuid(0x50),
        size: 0x0102_0304_0506_0708,
        kind: Kind::Ram,
        access: Access::ReadWrite,
        clients: 0x0102,
        max_clients: 0x0304,
    }
}

fn list_reply(sequence: u32, first: u32, total: u32, entries: &[ListEntry]) -> Vec<u8> {
    encoded(|buf| {
        let mut writer = ListReplyWriter::new(buf, sequence, first)?;
        entries.iter().try_for_each(|entry| writer.push(entry))?;
        writer.finish(total)
    })
}

/// Reads a request, header and all.
fn request(bytes: &[u8]) -> Result<Request, Malformed> {
    Message::parse(bytes)?.request()
}
