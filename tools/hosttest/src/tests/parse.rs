// SPDX-License-Identifier: GPL-2.0

//! Attribute text.

use crate::config::parse::*;
use proptest::prelude::*;

#[test]
fn lines() {
    for (bytes, text) in [
        (&b""[..], ""),
        (b"\n", ""),
        (b"a", "a"),
        (b"a\n", "a"),
        (b"  a b \n", "a b"),
        ("é\n".as_bytes(), "é"),
    ] {
        assert_eq!(line(bytes), Ok(text));
    }
    for bytes in [
        &b"a\n\n"[..],
        b"\n\n",
        b"a\nb",
        b"a\0",
        b"\ta",
        b"a\r\n",
        b"\xff",
        b"\xc3",
    ] {
        assert_eq!(line(bytes), Err(ParseError::NotText), "{bytes:?}");
    }
    assert_eq!(line(&[b'x'; 4096]).unwrap().len(), 4096);
}

#[test]
fn booleans() {
    assert_eq!(boolean("0"), Ok(false));
    assert_eq!(boolean("1"), Ok(true));
    for text in ["", "2", "00", "01", "+1", "-0", "y", "true", " 1", "force"] {
        assert_eq!(boolean(text), Err(ParseError::NotABool), "{text:?}");
    }
}

const NOT_NUMBERS: [&str; 14] = [
    "", " ", "+1", "-", "--1", "0x10", "1e3", "1.5", "1_000", "1 ", " 1", "1\0", "١", "１",
];

#[test]
fn numbers() {
    assert_eq!(unsigned("0", 0, u64::MAX), Ok(0));
    assert_eq!(unsigned("007", 0, 7), Ok(7));
    assert_eq!(unsigned("18446744073709551615", 0, u64::MAX), Ok(u64::MAX));
    for (text, min, max) in [
        ("0", 1, 1024),
        ("1025", 1, 1024),
        ("18446744073709551616", 0, u64::MAX),
        ("99999999999999999999999999", 0, u64::MAX),
    ] {
        assert_eq!(unsigned(text, min, max), Err(ParseError::OutOfRange));
    }
    for text in NOT_NUMBERS.into_iter().chain(["-1", "-0"]) {
        assert_eq!(
            unsigned(text, 0, u64::MAX),
            Err(ParseError::NotANumber),
            "{text:?}"
        );
    }
}

#[test]
fn signed_numbers() {
    assert_eq!(signed("-1", -1, 1023), Ok(-1));
    assert_eq!(signed("-0", -1, 1023), Ok(0));
    assert_eq!(signed("1023", -1, 1023), Ok(1023));
    assert_eq!(signed("-9223372036854775808", i64::MIN, 0), Ok(i64::MIN));
    assert_eq!(signed("9223372036854775807", 0, i64::MAX), Ok(i64::MAX));
    for text in ["-2", "1024", "9223372036854775808", "-9223372036854775809"] {
        assert_eq!(signed(text, -1, 1023), Err(ParseError::OutOfRange));
    }
    for text in [
        "9223372036854775808",
        "-9223372036854775809",
        "-18446744073709551616",
    ] {
        assert_eq!(
            signed(text, i64::MIN, i64::MAX),
            Err(ParseError::OutOfRange)
        );
    }
    for text in NOT_NUMBERS.into_iter().chain(["-+1", "- 1"]) {
        assert_eq!(
            signed(text, i64::MIN, i64::MAX),
            Err(ParseError::NotANumber),
            "{text:?}"
        );
    }
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("1K", 1 << 10),
        ("1k", 1 << 10),
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("4G", 4 << 30),
        ("4GiB", 4 << 30),
        ("4giB", 4 << 30),
        ("2T", 2 << 40),
        ("16777215T", 16_777_215 << 40),
        ("8191P", 8191 << 50),
        ("15E", 15 << 60),
        ("18446744073709551615", u64::MAX),
        ("1.5G", 3 << 29),
        ("1.50GiB", 3 << 29),
        ("4096.0", 4096),
        ("0.0009765625K", 1),
        ("0.5k", 512),
        ("15.5E", 31 << 59),
        ("15.9375E", 255 << 56),
        ("0.000000000931322574615478515625G", 1),
        ("1.0000000000000000000000000000000000000000000000K", 1024),
    ] {
        assert_eq!(size(text), Ok(bytes), "{text:?}");
    }
    for text in [
        "18446744073709551616",
        "16777216T",
        "16384P",
        "16E",
        "16.5E",
        "18014398509481984K",
        "18446744073709551615K",
        "99999999999999999999999999K",
    ] {
        assert_eq!(size(text), Err(ParseError::TooLarge), "{text:?}");
    }
    for text in [
        "1.5",
        "0.3K",
        "1.1E",
        "0.0001K",
        "1.00048828125K",
        "0.00000000000000000000000000001E",
    ] {
        assert_eq!(size(text), Err(ParseError::NotWholeBytes), "{text:?}");
    }
    for text in NOT_NUMBERS
        .into_iter()
        .filter(|text| *text != "1.5")
        .chain([
            "K", "iB", "GiB", "1iB", "1B", "1KB", "1Ki", "1GIB", "1KK", "1KiBiB", "-1K", "1 K",
            "1X", "1é", "1Kib", ".5G", "5.G", ".", ".K", "1.5.5G", "1,5G", "1.-5G", "1.+5G",
        ])
    {
        assert_eq!(size(text), Err(ParseError::NotASize), "{text:?}");
    }
}

proptest! {
    /// A fraction is what long division says.
    #[test]
    fn fractions(whole in 0u64..1 << 20, eighths in 0u64..8, unit in 1u32..5) {
        let letter = ["", "K", "M", "G", "T"][unit as usize];
        let text = format!("{whole}.{:03}{letter}", eighths * 125);
        prop_assert_eq!(size(&text), Ok((whole << (10 * unit)) + (eighths << (10 * unit - 3))));
    }
}

#[test]
fn addresses() {
    for (text, shown) in [
        ("10.9.0.1", "10.9.0.1:7420"),
        ("10.9.0.1:1", "10.9.0.1:1"),
        ("10.9.0.1:65535", "10.9.0.1:65535"),
        ("0.0.0.0", "0.0.0.0:7420"),
        ("fd00::1", "[fd00::1]:7420"),
        ("[fd00::1]", "[fd00::1]:7420"),
        ("[fd00::1]:1234", "[fd00::1]:1234"),
        ("::", "[::]:7420"),
        ("::ffff:10.9.0.1", "[::ffff:10.9.0.1]:7420"),
    ] {
        assert_eq!(socket_addr(text, 7420).unwrap().to_string(), shown);
        assert_eq!(socket_addr(shown, 1).unwrap().to_string(), shown);
    }
    for text in [
        "",
        " ",
        ":7420",
        "10.9.0.1:",
        "10.9.0.1:0",
        "10.9.0.1:65536",
        "10.9.0.1:-1",
        "10.9.0",
        "10.9.0.256",
        "010.9.0.1",
        "10.9.0.1 ",
        "[10.9.0.1]",
        "[10.9.0.1]:1",
        "[fd00::1",
        "fd00::1]",
        "[fd00::1]:",
        "[fd00::1]:0",
        "[fd00::1]1",
        "[[fd00::1]]",
        "10.9.0.1%1",
        "%1",
        "server",
        "server:7420",
        "localhost",
    ] {
        assert_eq!(
            socket_addr(text, 7420),
            Err(ParseError::NotAnAddress),
            "{text:?}"
        );
    }
    for text in [
        "fe80::1",
        "fe80::1%1",
        "[fe80::1]:1",
        "[fe80::1%eth0]:1",
        "fd00::1%1",
        "[febf::]",
    ] {
        assert_eq!(socket_addr(text, 7420), Err(ParseError::Zone), "{text:?}");
    }
    assert_eq!(ip_addr("fe80::1%eth0"), Err(ParseError::Zone));
    assert_eq!(ip_addr("[fd00::1]"), Err(ParseError::NotAnAddress));
    assert_eq!(ip_addr("fd00::1"), Ok("fd00::1".parse().unwrap()));
}

proptest! {
    #[test]
    fn nothing_panics(text in "\\PC*", bytes: Vec<u8>, min: i64, max: i64) {
        let _ = line(&bytes);
        for text in [&*text, line(&bytes).unwrap_or("")] {
            let _ = (boolean(text), size(text), socket_addr(text, 7420));
            let _ = (unsigned(text, min as u64, max as u64), signed(text, min, max));
        }
    }

    #[test]
    fn numbers_roundtrip(number: u64, negative: i64) {
        prop_assert_eq!(unsigned(&number.to_string(), 0, u64::MAX), Ok(number));
        prop_assert_eq!(size(&number.to_string()), Ok(number));
        prop_assert_eq!(signed(&negative.to_string(), i64::MIN, i64::MAX), Ok(negative));
    }

    #[test]
    fn sizes_are_exact(number: u64, unit in 0usize..4, tail in "(iB)?") {
        let text = format!("{number}{}{tail}", ["K", "M", "G", "T"][unit]);
        let bytes = u128::from(number) << (10 * (unit + 1));
        prop_assert_eq!(size(&text).ok(), u64::try_from(bytes).ok());
    }

    #[test]
    fn addresses_roundtrip(v4: [u8; 4], v6: [u8; 16], port in 1u16..) {
        for addr in [(v4, port).into(), (v6, port).into()] {
            let addr: std::net::SocketAddr = addr;
            let is_usable = ip_addr(&addr.ip().to_string()) != Err(ParseError::Zone);
            let parsed = socket_addr(&addr.to_string(), 7420);
            prop_assert_eq!(parsed, is_usable.then_some(addr).ok_or(ParseError::Zone));
        }
    }
}
