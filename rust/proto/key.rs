// SPDX-License-Identifier: GPL-2.0

//! Keys as text: `farblk1:` and the base64 (RFC 4648, section 4) of the 32 bytes of the key and
//! their CRC-32.
//!
//! The CRC is that of IEEE 802.3, little endian. It is there for keys that were copied wrongly.

#![forbid(unsafe_code)]

use super::auth::{Primitives, Secret, KEY_SIZE};

/// What the text of each key begins with.
const PREFIX: &[u8] = b"farblk1:";
/// Bytes of a key and its CRC.
const CODED: usize = KEY_SIZE + 4;
/// Bytes of the text of a key.
pub const TEXT_SIZE: usize = PREFIX.len() + CODED / 3 * 4;

/// The text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoKey;

/// Sets `secret` to the key that `text` is.
pub fn parse<P: Primitives>(text: &[u8], secret: &mut Secret<P>) -> Result<(), NoKey> {
    let digits = text.strip_prefix(PREFIX).ok_or(NoKey)?;
    if text.len() != TEXT_SIZE {
        return Err(NoKey);
    }
    let mut coded = [0; CODED];
    let key = decode(digits, &mut coded).and_then(|()| {
        let (key, crc) = coded.split_first_chunk_mut::<KEY_SIZE>()?;
        (crc32(key).to_le_bytes() == *crc).then(|| secret.set(key))
    });
    P::wipe(&mut coded);
    key.ok_or(NoKey)
}

/// Writes the bytes that the base64 `digits` stand for, four for three.
fn decode(digits: &[u8], bytes: &mut [u8]) -> Option<()> {
    for (four, three) in digits.chunks_exact(4).zip(bytes.chunks_exact_mut(3)) {
        let mut bits: u32 = 0;
        for digit in four {
            bits = (bits << 6) | value(*digit)?;
        }
        let [_, value @ ..] = bits.to_be_bytes();
        three.copy_from_slice(&value);
    }
    Some(())
}

/// Returns the value of a digit of base64.
fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

/// Returns the CRC-32 of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}
