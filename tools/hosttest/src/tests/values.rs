// SPDX-License-Identifier: GPL-2.0

//! Names, UUIDs, texts, refusals and the enums.

use crate::proto::*;
use std::fmt::Write;

#[test]
fn names() {
    let longest = "x".repeat(63);
    for good in [
        "a",
        "0",
        "_",
        "-",
        ":",
        "a.",
        "host-1.example:2_B",
        &longest,
    ] {
        let name: Name = good.parse().unwrap();
        assert_eq!(name.as_str(), good);
        assert_eq!(name.to_string(), good);
        assert_eq!(Name::new(good.as_bytes()), Ok(name));
    }
    let too_long = "x".repeat(64);
    for bad in [
        "", ".", "..", ".a", "a b", "a/b", "a\n", "a\0", "é", "a,b", &too_long,
    ] {
        assert!(bad.parse::<Name>().is_err(), "{bad:?}");
    }
    for c in 0..=u8::MAX {
        let allowed = c.is_ascii_alphanumeric() || b"._:-".contains(&c);
        assert_eq!(Name::new(&[b'a', c]).is_ok(), allowed, "{c}");
    }
    let order = |a: &str, b: &str| a.parse::<Name>().unwrap().cmp(&b.parse().unwrap());
    assert_eq!(order("a", "b"), "a".cmp("b"));
    assert_eq!(order("a", "aa"), "a".cmp("aa"));
    assert_eq!(order("b", "aa"), "b".cmp("aa"));
}

#[test]
fn uuids() {
    let text = "00112233-4455-6677-8899-aabbccddeeff";
    let uuid: Uuid = text.parse().unwrap();
    assert_eq!(uuid.as_bytes()[..3], [0x00, 0x11, 0x22]);
    assert_eq!(uuid.as_bytes()[15], 0xff);
    assert_eq!(uuid.to_string(), text);
    assert_eq!(text.len(), Uuid::TEXT_LEN);
    assert_eq!(text.to_uppercase().parse(), Ok(uuid));
    for len in 0..text.len() {
        assert!(text[..len].parse::<Uuid>().is_err());
    }
    for bad in [
        "00112233-4455-6677-8899-aabbccddeeff0",
        "00112233-4455-6677-8899-aabbccddeefg",
        "0011223344556677-8899-aabbccddeeff-00",
        "00112233445566778899aabbccddeeff",
        "{0112233-4455-6677-8899-aabbccddeef}",
        "+0112233-4455-6677-8899-aabbccddeeff",
        "é0112233-4455-6677-8899-aabbccddeeff",
        " 0112233-4455-6677-8899-aabbccddeeff",
    ] {
        assert!(bad.parse::<Uuid>().is_err(), "{bad:?}");
    }
    assert!(Uuid::NIL.is_nil() && !uuid.is_nil());
    assert_eq!(Uuid::NIL.to_string().parse(), Ok(Uuid::NIL));
    for byte in [0, 0xff] {
        let random = Uuid::from_random([byte; 16]);
        assert_eq!(random.as_bytes()[6] >> 4, 4);
        assert_eq!(random.as_bytes()[8] >> 6, 2);
        assert!(!random.is_nil());
    }
}

#[test]
fn texts() {
    assert!(Text::new().is_empty());
    assert_eq!(Text::format(format_args!("{} {}", 1, "b")).as_str(), "1 b");
    assert_eq!(Text::from("a\r\nb\u{85}\u{7f}").as_str(), "a??b??");
    // What changes the order of others, or is not seen.
    let odd = "a\u{202e}b\u{2066}c\u{2028}d\u{200b}e\u{feff}f\u{e0041}";
    assert_eq!(Text::from(odd).as_str(), "a?b?c?d?e?f?");
    for len in 90..100 {
        let long = "x".repeat(len);
        assert_eq!(Text::from(&*long).as_str(), &long[..len.min(96)]);
    }
    // Cut at a character, and nothing behind the cut, be it in one write or in more.
    let cut = format!("{}é", "x".repeat(95));
    assert_eq!(Text::from(&*cut).as_str(), &cut[..95]);
    let mut text = Text::from(&*cut);
    write!(text, "y").unwrap();
    assert_eq!(text.as_str(), &cut[..95]);
    let exact = format!("{}é", "x".repeat(94));
    assert_eq!(Text::from(&*exact).as_str(), exact);
    assert_eq!(Text::from("€".repeat(40).as_str()).as_str(), "€".repeat(32));
}

#[test]
fn refusals() {
    for (i, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(refusal.code()), i + 1);
        assert_eq!(Refusal::try_from(refusal.code()), Ok(refusal));
        let refused = Refused::from(refusal);
        assert_eq!(refused.text.as_str(), refusal.text(), "the text is cut");
        assert!(!refused.text.is_empty());
    }
    for unknown in [0, 22, 0x0101, u16::MAX] {
        assert_eq!(
            Refusal::try_from(unknown),
            Err(refusal::UnknownRefusal(unknown))
        );
    }
    let refused = Refused::protection(Protection::Seal, Protection::None);
    assert_eq!(refused.refusal, Refusal::Protection);
    assert_eq!(
        refused.text.as_str(),
        "the export has protection=seal, the map protection=none"
    );
    let refused = Refused::from(Malformed("no end"));
    assert_eq!(refused.refusal, Refusal::Malformed);
    assert_eq!(refused.to_string(), "no end");
}

#[test]
fn enums() {
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert_eq!(Access::try_from(access as u8), Ok(access));
        assert_eq!(access.as_str().parse(), Ok(access));
        assert_eq!(access.writes(), access == Access::ReadWrite);
    }
    for kind in [Kind::Block, Kind::Ram] {
        assert_eq!(Kind::try_from(kind as u8), Ok(kind));
        assert_eq!(kind.as_str().parse(), Ok(kind));
    }
    for other in 2..=u8::MAX {
        assert!(Access::try_from(other).is_err() && Kind::try_from(other).is_err());
    }
    for word in ["", "RO", "ro ", "w", "0"] {
        assert!(word.parse::<Access>().is_err() && word.parse::<Kind>().is_err());
    }
    for (number, word, on, key) in [
        (0, "none", false, false),
        (1, "crc32c", true, false),
        (2, "seal", true, true),
    ] {
        let protection = Protection::try_from(number).unwrap();
        assert_eq!(protection as u8, number);
        assert_eq!(protection.to_string(), word);
        assert_eq!(word.parse(), Ok(protection));
        assert_eq!((protection.is_on(), protection.needs_key()), (on, key));
    }
    for other in 3..=u8::MAX {
        assert!(Protection::try_from(other).is_err());
    }
    for word in ["", "None", "crc32", "seal ", "2"] {
        assert!(word.parse::<Protection>().is_err());
    }
    for size in (0..=8192).chain([1 << 31, u32::MAX]) {
        let sound = matches!(size, 512 | 1024 | 2048 | 4096);
        assert_eq!(BlockSize::try_from(size).is_ok(), sound, "{size}");
    }
    for size in [512, 1024, 2048, 4096] {
        let block = BlockSize::try_from(size).unwrap();
        for bytes in (0..=8192).chain([1 << 63, u64::MAX, u64::MAX - 511, u64::MAX - 4095]) {
            assert_eq!(block.divides(bytes), bytes % u64::from(size) == 0);
        }
    }
    for shift in 0..=u8::MAX {
        let sound = (16..=31).contains(&shift);
        assert_eq!(SlabShift::try_from(shift).is_ok(), sound, "{shift}");
    }
    assert_eq!(SlabShift::try_from(16).unwrap().bytes(), 0x1_0000);
    assert_eq!(SlabShift::try_from(31).unwrap().bytes(), 0x8000_0000);
}
