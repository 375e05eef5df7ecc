// SPDX-License-Identifier: GPL-2.0

//! Logins and their answers.

use super::*;

#[test]
fn login_golden() {
    let bytes = [
        &[1, 0, 224, 0][..],
        &SEQUENCE_BYTES,
        login().host_id.as_bytes(),
        &padded("client.example"),
        login().map_uuid.as_bytes(),
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &padded("scratch"),
        &[1, 5, 3, 2, 0x23, 1, 0, 1],
        &[0x56, 0x34, 0, 0, 0xe8, 3, 2, 1],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
        &[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28],
        &[0x60, 0xea, 1, 0, 0, 0, 0, 0],
    ]
    .concat();
    assert_eq!(encoded(|buf| login().encode(SEQUENCE, buf)), bytes);
    assert_eq!(request(&bytes), Ok(Request::Login(login())));
    assert_eq!(Message::parse(&bytes).unwrap().sequence(), SEQUENCE);
    no_prefix(&bytes, |bytes| request(bytes).is_ok());
    no_more(&bytes, |bytes| request(bytes).is_ok());
}

#[test]
fn login_boundaries() {
    let bytes = encoded(|buf| login().encode(SEQUENCE, buf));
    let refused = |at, new: &[u8]| request(&patched(&bytes, at, new)).is_err();
    assert!(refused(8, &[0; 16]), "nil host id");
    assert!(refused(88, &[0; 16]), "nil map");
    assert!(refused(176, &[2]), "access");
    assert!(refused(104, &[0; 8]), "no epoch");
    assert!(refused(177, &[8]), "no such path");
    assert!(!refused(177, &[7]), "the last path");
    assert!(refused(178, &[0, 0]), "no queues");
    assert!(refused(180, &[0, 0]), "no depth");
    assert!(refused(180, &[1, 4]), "1025");
    assert!(refused(184, &[1, 0x40]), "too much inline data");
    assert!(refused(192, &[0; 8]), "no boot");
    assert!(refused(200, &[0; 8]), "no incarnation");
    for inline_size in [0u32, 1, 0x4000] {
        assert!(!refused(184, &inline_size.to_le_bytes()));
    }
    for field in [24, 112] {
        assert!(refused(field, &[0; 64]), "empty name");
        assert!(refused(field, &[b'a'; 64]), "name without an end");
        assert!(refused(field, b"."), "name with a dot first");
        assert!(refused(field, b"/"), "name with a slash");
        assert!(refused(field, &[0x80]), "name with a high byte");
        assert!(refused(field + 1, &[0]), "name with something behind it");
        assert!(refused(field + 63, b"a"), "name with something at the end");
        let longest = patched(&bytes, field, &[b'a'; 63]);
        assert!(request(&longest).is_ok(), "longest name");
    }
    for bad in [3, 0x80, 0xff] {
        assert!(refused(182, &[bad]), "protection {bad}");
    }
    for bad in [2, 3, 0x80, 0xff] {
        assert!(refused(183, &[bad]), "features {bad}");
    }
    let plain = patched(&bytes, 183, &[0]);
    assert!(matches!(
        request(&plain),
        Ok(Request::Login(login)) if !login.remote_invalidate
    ));
    let reserved = patched(&bytes, 220, &[9; 4]);
    assert_eq!(request(&reserved), Ok(Request::Login(login())));
    let first = patched(&bytes, 208, &[0; 8]);
    assert!(matches!(
        request(&first),
        Ok(Request::Login(Login { resume: None, .. }))
    ));
    let patient = patched(&bytes, 216, &[0xff; 4]);
    assert!(matches!(
        request(&patient),
        Ok(Request::Login(login)) if login.no_path_timeout_ms.is_none()
    ));
    let hasty = patched(&bytes, 216, &[0; 4]);
    assert!(matches!(
        request(&hasty),
        Ok(Request::Login(login)) if login.no_path_timeout_ms == Some(0)
    ));
    let read_only = patched(&bytes, 176, &[0]);
    assert!(matches!(
        request(&read_only),
        Ok(Request::Login(login)) if login.access == Access::ReadOnly
    ));
}

#[test]
fn login_protection() {
    let bytes = encoded(|buf| login().encode(SEQUENCE, buf));
    for (number, protection) in [
        (0, Protection::None),
        (1, Protection::Digest),
        (2, Protection::Seal),
    ] {
        let login = Login {
            protection,
            ..login()
        };
        let protected = patched(&bytes, 182, &[number]);
        assert_eq!(encoded(|buf| login.encode(SEQUENCE, buf)), protected);
        assert_eq!(request(&protected), Ok(Request::Login(login)));
        // A server cannot protect what the client reads and writes by itself.
        for reply in [ram_reply(), block_reply()] {
            let bytes = encoded(|buf| reply.encode(SEQUENCE, buf));
            let parsed = LoginReply::parse(&bytes, SEQUENCE, &login);
            assert_eq!(
                malformed(parsed),
                reply.kind() == Kind::Ram && protection != Protection::None
            );
        }
    }
}

/// A login reply from the size on, with everything in front of it.
fn login_reply_bytes(rest: [&[u8]; 3], end: &[u8; 24]) -> Vec<u8> {
    [
        &granted(1, 264)[..],
        &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
        ram_reply().export_uuid.as_bytes(),
        ram_reply().instance.as_bytes(),
        &[0, 0x10, 0, 0, 2, 1, 0, 0],
        &rest.concat(),
        &[0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38],
        ram_reply().server_id.as_bytes(),
        &[0x40, 0x0d, 3, 0, 8, 9, 10, 11],
        end,
    ]
    .concat()
}

#[test]
fn login_reply_golden() {
    let ram = login_reply_bytes(
        [
            &[1, 1, 21, 0, 1, 2, 0, 0, 0, 0, 0, 0],
            &[0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        ],
        &[0; 24],
    );
    let block = login_reply_bytes(
        [
            &[1, 0, 0, 7, 1, 2, 0x21, 1, 0, 0x34, 0, 0],
            &[
                0, 2, 0, 0, 0, 16, 0, 0, 0, 0x30, 0, 0, 0, 0, 0xf2, 0, 0, 6, 2, 0,
            ],
            &[
                0, 4, 2, 0x80, 0, 6, 4, 1, 0, 0xfe, 0xff, 0xff, 0x10, 1, 1, 0,
            ],
        ],
        &[
            0, 0x80, 1, 0, 0, 2, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 1, 0, 2, 1, 0x40, 0, 2, 3, 0,
        ],
    );
    for (reply, bytes) in [(ram_reply(), ram), (block_reply(), block)] {
        assert_eq!(encoded(|buf| reply.encode(SEQUENCE, buf)), bytes);
        let parse = |bytes: &[u8]| LoginReply::parse(bytes, SEQUENCE, &login());
        assert_eq!(parse(&bytes), Ok(reply));
        no_prefix(&bytes, |bytes| parse(bytes).is_ok());
        no_more(&bytes, |bytes| parse(bytes).is_ok());
        assert!(malformed(LoginReply::parse(&bytes, SEQUENCE + 1, &login())));
        assert!(malformed(parse(&patched(&bytes, 0, &[2]))), "another kind");
        assert!(malformed(parse(&patched(&bytes, 1, &[0]))), "a request");
        let forgotten = LoginReply {
            remembered: false,
            ..reply
        };
        assert_eq!(parse(&patched(&bytes, 206, &[0; 2])), Ok(forgotten));
    }
}

#[test]
fn login_reply_views() {
    let (ram, block) = (ram_reply(), block_reply());
    assert_eq!((ram.kind(), block.kind()), (Kind::Ram, Kind::Block));
    assert_eq!(ram.geometry(), Some(geometry(0x0102_0000_1000, 21)));
    assert_eq!((ram.terms(), block.geometry()), (None, None));
    let terms = Terms {
        depth: 0x0121,
        inline_size: 0x3400,
        limits: block_limits(),
    };
    assert_eq!(block.terms(), Some(terms));
}

/// What becomes of `reply` when its bytes from `at` on are `new`.
fn parse_patched(reply: &LoginReply, at: usize, new: &[u8]) -> Result<LoginReply, ReplyError> {
    let bytes = encoded(|buf| reply.encode(SEQUENCE, buf));
    LoginReply::parse(&patched(&bytes, at, new), SEQUENCE, &login())
}

#[test]
fn login_reply_credit() {
    let credit = |credit: u16| parse_patched(&block_reply(), 204, &credit.to_le_bytes());
    for bad in [0, 0x0122, u16::MAX] {
        assert!(malformed(credit(bad)));
    }
    for good in [1, 0x0121] {
        assert!(credit(good).is_ok());
    }
}

#[test]
fn login_reply_boundaries() {
    for reply in [ram_reply(), block_reply()] {
        let refused = |at, new: &[u8]| malformed(parse_patched(&reply, at, new));
        assert!(refused(112, &[0; 8]), "no session");
        assert!(refused(208, &[0; 8]), "no key");
        assert!(refused(206, &[2, 0]), "unknown flag");
        assert!(refused(206, &[1, 0x80]), "unknown flag");
        assert!(refused(216, &[0; 16]), "nil server");
        assert!(refused(232, &[0; 4]), "no lease");
        assert!(refused(120, &[0; 16]), "nil export");
        assert!(refused(136, &[0; 16]), "nil instance");
        for bad in [0, 1, 511, 513, 1 << 63, (1 << 63) + 512, u64::MAX - 511] {
            assert!(refused(152, &bad.to_le_bytes()), "size {bad}");
        }
        assert!(refused(160, &[2]), "access");
        assert!(refused(160, &[0]), "less access than asked");
        assert!(refused(161, &[2]), "kind");
        assert!(refused(163, &[8]), "unknown feature");
        assert!(refused(163, &[0x80]), "unknown feature");
        assert!(refused(164, &[0, 0]), "no queues");
        assert!(refused(164, &[4, 2]), "more queues than asked");
        assert!(!refused(164, &[3, 2]), "as many queues as asked");
    }
}

#[test]
fn login_reply_of_ram() {
    let parse = |at, new: &[u8]| parse_patched(&ram_reply(), at, new);
    // Slabs of 2 MiB.
    let most = u64::from(SLABS_MAX) << 21;
    for good in [512, 1024, most - 512, most] {
        let reply = parse(152, &good.to_le_bytes()).unwrap();
        assert_eq!(reply.extent.size, good);
        assert_eq!(reply.geometry(), Some(geometry(good, 21)));
    }
    assert!(malformed(parse(152, &(most + 512).to_le_bytes())));
    for shift in [0, 15, 32, 63, 64, 0xff] {
        assert!(malformed(parse(162, &[shift])), "slab shift {shift}");
    }
    assert!(parse(162, &[31]).is_ok());
    // What only a block export has.
    assert_eq!(parse(166, &[0xff; 6]), Ok(ram_reply()));
}

#[test]
fn login_reply_of_a_block_device() {
    let parse = |at, new: &[u8]| parse_patched(&block_reply(), at, new);
    let largest = i64::MAX as u64 - 511;
    let reply = parse(152, &largest.to_le_bytes()).unwrap();
    assert_eq!(reply.extent.size, largest);
    assert!(malformed(parse(166, &[0, 0])), "no depth");
    assert!(malformed(parse(166, &[0x24, 1])), "more depth than asked");
    assert!(parse(166, &[0x23, 1]).is_ok(), "as much depth as asked");
    assert!(malformed(parse(168, &[0x57])), "more inline than asked");
    assert!(parse(168, &[0x56]).is_ok(), "as much inline as asked");
    assert!(parse(168, &[0; 4]).is_ok(), "no inline data");
    assert!(malformed(parse(171, &[0x80])), "far too much inline data");
    // What only a ram export has.
    assert_eq!(parse(162, &[0xff]), Ok(block_reply()));
}

#[test]
fn login_reply_limits() {
    let reply = block_reply();
    let parse = |at, new: u32| parse_patched(&reply, at, &new.to_le_bytes());
    for (name, at, good, bad) in [
        (
            "logical block size",
            172,
            // The other limits are not of larger blocks.
            &[512][..],
            &[0, 256, 513, 8192, 1 << 31, u32::MAX][..],
        ),
        (
            "physical block size",
            176,
            &[512, 1024, 4096],
            &[0, 1, 256, 513, 4097, 8192, 1 << 20, 1 << 31, u32::MAX],
        ),
        (
            "io_min",
            180,
            &[4096, 8192, 0x0100_0000],
            &[0, 512, 4095, 4097, 0x0100_1000, 0xffff_f000, u32::MAX],
        ),
        (
            "io_opt",
            184,
            &[0, 4096, 0x0100_0000],
            &[1, 512, 4097, 0x0100_1000, 0xffff_f000, u32::MAX],
        ),
        (
            "max_io",
            188,
            // Atomic writes are of up to 96 KiB.
            &[0x1_8000, 0x1_8200, 0x10_0000],
            &[0, 512, 0xfe00, 0x1_7e00, 0x1_8001, 0x10_0200, u32::MAX],
        ),
        (
            "max_discard",
            192,
            &[512, 4096, 0xffff_fe00],
            &[0, 1, 513, u32::MAX],
        ),
        (
            "discard_granularity",
            196,
            &[512, 1536, 0xffff_fe00],
            &[0, 1, 513, u32::MAX],
        ),
        (
            "max_write_zeroes",
            200,
            &[0, 512, 0xffff_fe00],
            &[1, 513, u32::MAX],
        ),
        (
            "atomic_max",
            240,
            &[0x8000, 0x8200, 0x2_0000],
            &[0, 1, 0x200, 0x4000, 0x7e00, 0x8100, 0x2_0800, u32::MAX],
        ),
        (
            "atomic_unit_min",
            244,
            &[512, 0x800, 0x8000],
            &[0, 1, 256, 0xc00, 0x1_0000, 1 << 31, u32::MAX],
        ),
        (
            "atomic_unit_max",
            248,
            &[512, 0x8000, 0x1_0000],
            &[0, 256, 0xc000, 0x2_0000, 1 << 31, u32::MAX],
        ),
        (
            "atomic_boundary",
            252,
            &[0, 0x2_0000, 1 << 31],
            &[1, 0x800, 0x1_0000, 0x1_8000, 0x3_0000, u32::MAX],
        ),
        (
            "max_secure_erase",
            256,
            &[512, 4096, 0xffff_fe00],
            &[0, 1, 513, u32::MAX],
        ),
        (
            "secure_erase_granularity",
            260,
            &[512, 1536, 0xffff_fe00],
            &[0, 1, 513, u32::MAX],
        ),
    ] {
        for good in good {
            assert!(parse(at, *good).is_ok(), "{name} {good}");
        }
        for bad in bad {
            assert!(malformed(parse(at, *bad)), "{name} {bad}");
        }
    }
    let none = parse_patched(&reply, 192, &[0; 8]).unwrap();
    assert_eq!(none.limits.max_discard, 0);
    assert_eq!(none.limits.discard_granularity, 0);
    let none = parse_patched(&reply, 240, &[0; 16]).unwrap();
    assert_eq!(none.limits.atomic, AtomicLimits::NONE);
    let none = parse_patched(&reply, 256, &[0; 8]).unwrap();
    assert_eq!(none.limits.max_secure_erase, 0);
    // RAM that is written by RDMA has neither.
    for (at, bytes) in [
        (240, &[0, 2, 0, 0].repeat(3)),
        (256, &[0, 2, 0, 0].repeat(2)),
    ] {
        assert!(malformed(parse_patched(&ram_reply(), at, bytes)));
        assert!(parse_patched(&reply, at, bytes).is_ok());
    }
    let features = |features| parse_patched(&reply, 163, &[features]);
    assert!(malformed(features(2)), "FUA without a write cache");
    assert!(malformed(features(6)), "FUA without a write cache");
    for (bits, write_cache, fua, rotational) in [
        (0, false, false, false),
        (1, true, false, false),
        (3, true, true, false),
        (4, false, false, true),
    ] {
        let limits = features(bits).unwrap().limits;
        assert_eq!(limits.write_cache, write_cache);
        assert_eq!(limits.fua, fua);
        assert_eq!(limits.rotational, rotational);
    }
    let plain = |logical| LoginReply {
        limits: BlockLimits::plain(BlockSize::try_from(logical).unwrap()),
        ..reply
    };
    for logical in [512, 1024, 2048, 4096] {
        let bytes = encoded(|buf| plain(logical).encode(SEQUENCE, buf));
        let read = LoginReply::parse(&bytes, SEQUENCE, &login());
        assert_eq!(read, Ok(plain(logical)));
    }
}

#[test]
fn size_is_a_multiple_of_a_large_block() {
    for mut reply in [ram_reply(), block_reply()] {
        reply.limits = BlockLimits::plain(BlockSize::MAX);
        for (size, sound) in [
            (4096, true),
            (0x2_0000, true),
            (4096 + 512, false),
            (512, false),
        ] {
            reply.extent.size = size;
            let bytes = encoded(|buf| reply.encode(SEQUENCE, buf));
            assert_eq!(
                LoginReply::parse(&bytes, SEQUENCE, &login()).is_ok(),
                sound,
                "{size}"
            );
        }
    }
}
