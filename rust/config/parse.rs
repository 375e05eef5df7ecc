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
    /// The text is neither `0` nor `1`.
    NotABool,
    /// The text is not an IP address, with or without a port.
    NotAnAddress,
}

impl ParseError {
    /// The error in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotText => "not one line of text",
            Self::NotANumber => "not a number",
            Self::OutOfRange => "out of range",
            Self::NotABool => "neither 0 nor 1",
            Self::NotAnAddress => "not an IP address",
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

/// A size in bytes: a decimal number, with `K`, `M`, `G` or `T` (`k`, `KiB` and so on) behind it for
/// the powers of 1024.
pub fn size(text: &str) -> Result<u64, ParseError> {
    let unit = text.strip_suffix("iB").unwrap_or(text);
    let (number, shift) = match unit.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (unit.get(..at), 10),
        Some((at, 'M' | 'm')) => (unit.get(..at), 20),
        Some((at, 'G' | 'g')) => (unit.get(..at), 30),
        Some((at, 'T' | 't')) => (unit.get(..at), 40),
        // `text`, so that an "iB" without a letter before it is refused.
        _ => (Some(text), 0),
    };
    digits(number.unwrap_or(""))?
        .checked_mul(1 << shift)
        .ok_or(ParseError::OutOfRange)
}

/// An IP address with or without a port: `IP`, `IP:PORT`, `[v6]:PORT` or a bare `v6`, which then has
/// `default_port`. A port of 0 and an IPv6 scope are refused.
pub fn socket_addr(text: &str, default_port: u16) -> Result<SocketAddr, ParseError> {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let addr = match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, default_port),
        Err(_) => match bracketed {
            Some(v6) => match v6.parse() {
                Ok(v6) => SocketAddr::new(IpAddr::V6(v6), default_port),
                Err(_) => return Err(ParseError::NotAnAddress),
            },
            None => text.parse().map_err(|_| ParseError::NotAnAddress)?,
        },
    };
    match addr {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Err(ParseError::NotAnAddress),
        addr if addr.port() == 0 => Err(ParseError::NotAnAddress),
        addr => Ok(addr),
    }
}

/// The digits of `text` as a number. Unlike `str::parse` it takes no plus sign.
fn digits(text: &str) -> Result<u64, ParseError> {
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
        return Err(ParseError::NotANumber);
    }
    text.parse().map_err(|_| ParseError::OutOfRange)
}
