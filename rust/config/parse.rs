// SPDX-License-Identifier: GPL-2.0

//! Reading what a user writes into an attribute: pure functions from text to values.
//!
//! Nothing here allocates, sleeps, locks or panics, and nothing names a kernel type.

#![forbid(unsafe_code)]

use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// Why a text is not the value that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The bytes are not one line of text.
    NotText,
    /// The text is not a number in the form that was asked for.
    NotANumber,
    /// The number is smaller or larger than allowed.
    OutOfRange,
    /// The text is not a size: a number, perhaps with a fraction, and perhaps with a unit.
    NotASize,
    /// The size has a fraction of a byte.
    NotWholeBytes,
    /// The size is larger than 64 bits can tell.
    TooLarge,
    /// The text is neither `0` nor `1`.
    NotABool,
    /// The text is not an IP address, with or without a port.
    NotAnAddress,
    /// The address of IPv6 says, or would have to say, which interface it is meant at.
    Zone,
}

impl ParseError {
    /// The error in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotText => "not one line of text",
            Self::NotANumber => "not a number",
            Self::OutOfRange => "out of range",
            Self::NotASize => "not a size such as 4096, 512M or 1.5G",
            Self::NotWholeBytes => "not a whole number of bytes",
            Self::TooLarge => "larger than 2^64 - 1 bytes",
            Self::NotABool => "neither 0 nor 1",
            Self::NotAnAddress => "not an IP address",
            Self::Zone => "a link-local IPv6 address, or one with a zone, cannot be used",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text of an attribute: `bytes` without the newline at the end and the spaces around it.
///
/// Refuses what is not UTF-8 and what has a control character in it, among them a second line.
pub fn line(bytes: &[u8]) -> Result<&str, ParseError> {
    let text = core::str::from_utf8(bytes).map_err(|_| ParseError::NotText)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    if text.contains(char::is_control) {
        return Err(ParseError::NotText);
    }
    Ok(text.trim_matches(' '))
}

/// `0` or `1`.
pub fn boolean(text: &str) -> Result<bool, ParseError> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(ParseError::NotABool),
    }
}

/// A decimal number without a sign, within `min..=max`.
pub fn unsigned(text: &str, min: u64, max: u64) -> Result<u64, ParseError> {
    let number = digits(text)?;
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(ParseError::OutOfRange)
    }
}

/// A decimal number with or without a minus sign, within `min..=max`.
pub fn signed(text: &str, min: i64, max: i64) -> Result<i64, ParseError> {
    let number = match text.strip_prefix('-') {
        Some(text) => 0i64.checked_sub_unsigned(digits(text)?),
        None => i64::try_from(digits(text)?).ok(),
    };
    match number {
        Some(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(ParseError::OutOfRange),
    }
}

/// The units of sizes: the powers of 1024.
const UNITS: [(char, u32); 6] = [
    ('K', 10),
    ('M', 20),
    ('G', 30),
    ('T', 40),
    ('P', 50),
    ('E', 60),
];
/// Digits that the fraction of a size can have, trailing zeroes aside: each halving adds one, and
/// the largest unit has so many.
const FRACTION_DIGITS_MAX: usize = 60;

/// A size in bytes: a decimal number, which may have a fraction, with `K`, `M`, `G`, `T`, `P` or
/// `E` (`k`, `KiB` and so on) behind it for the powers of 1024.
///
/// The result is exact: `1.5G` is a size, `0.3K` is none.
pub fn size(text: &str) -> Result<u64, ParseError> {
    let unit = text.strip_suffix("iB").unwrap_or(text);
    let shift = UNITS.iter().find_map(|&(letter, shift)| {
        let number = unit.strip_suffix([letter, letter.to_ascii_lowercase()])?;
        Some((number, shift))
    });
    // Without a unit it is `text`, so that an "iB" without a letter before it is refused.
    let (number, shift) = shift.unwrap_or((text, 0));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    for digits in [whole, fraction] {
        if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
            return Err(ParseError::NotASize);
        }
    }
    let whole = whole.parse::<u64>().map_err(|_| ParseError::TooLarge)?;
    let whole = whole.checked_mul(1 << shift).ok_or(ParseError::TooLarge)?;
    // Less than one unit.
    let fraction = scale(fraction.trim_end_matches('0'), shift).ok_or(ParseError::NotWholeBytes)?;
    whole.checked_add(fraction).ok_or(ParseError::TooLarge)
}

/// `0.text * 2^shift`, if that is a whole number. `text` has digits only, and `shift` is at most
/// 60.
fn scale(text: &str, shift: u32) -> Option<u64> {
    let mut digits = [0; FRACTION_DIGITS_MAX];
    if text.len() > digits.len() {
        return None;
    }
    for (digit, c) in digits.iter_mut().zip(text.bytes()) {
        *digit = c.wrapping_sub(b'0');
    }
    let mut whole = 0;
    // Doubles the fraction again and again, and collects what is carried out of it.
    for _ in 0..shift {
        let mut carry = 0;
        for digit in digits.iter_mut().rev() {
            let double = 2 * *digit + carry;
            (*digit, carry) = (double % 10, double / 10);
        }
        whole = (whole << 1) | u64::from(carry);
    }
    digits.iter().all(|digit| *digit == 0).then_some(whole)
}

/// An IP address. One of IPv6 that needs a zone or has one is refused: an interface has its number
/// until the next boot only, and the other side has another number for it.
pub fn ip_addr(text: &str) -> Result<IpAddr, ParseError> {
    let (ip, zone) = match text.split_once('%') {
        Some((ip, zone)) => (ip, Some(zone)),
        None => (text, None),
    };
    match ip.parse() {
        Ok(IpAddr::V6(v6)) if zone.is_some() || v6.is_unicast_link_local() => Err(ParseError::Zone),
        Ok(ip) if zone.is_none() => Ok(ip),
        _ => Err(ParseError::NotAnAddress),
    }
}

/// An IP address with or without a port: `IP`, `IP:PORT`, `[v6]:PORT` or a bare `v6`, which then
/// has `default_port`. A port of 0 is refused, and what [`ip_addr`] refuses.
pub fn socket_addr(text: &str, default_port: u16) -> Result<SocketAddr, ParseError> {
    let bracketed = text.strip_prefix('[');
    let (ip, port) = match (bracketed, text.find(':')) {
        (Some(text), _) => text.split_once(']').ok_or(ParseError::NotAnAddress)?,
        (None, Some(colon)) if text.rfind(':') == Some(colon) => text.split_at(colon),
        (None, _) => (text, ""),
    };
    let ip = ip_addr(ip)?;
    let port = match port.strip_prefix(':') {
        Some(port) => unsigned(port, 1, u16::MAX.into()).ok(),
        None => port.is_empty().then_some(default_port.into()),
    };
    match port.map(u16::try_from) {
        Some(Ok(port)) if ip.is_ipv6() || bracketed.is_none() => Ok(SocketAddr::new(ip, port)),
        _ => Err(ParseError::NotAnAddress),
    }
}

/// The digits of `text` as a number. Unlike `str::parse` it takes no plus sign.
fn digits(text: &str) -> Result<u64, ParseError> {
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
        return Err(ParseError::NotANumber);
    }
    text.parse().map_err(|_| ParseError::OutOfRange)
}
