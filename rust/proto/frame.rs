// SPDX-License-Identifier: GPL-2.0

//! Frames: the messages of I/O connections whose session has a
//! [`Protection`](super::Protection).
//!
//! A frame is a number, a check of the rest, and a body: a command or a response, the check of data
//! that the peer's memory has, and data. Of a sealed connection the body is encrypted.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use super::wire::{self, TAG_SIZE};
use core::mem::size_of;
use core::ops::Range;

/// Where a frame has the check of its number and body.
pub const CHECK: Range<usize> = 8..8 + TAG_SIZE;
/// Where the body begins.
pub const BODY: usize = CHECK.end;
/// Length of a frame with a command, without inline data, in bytes.
pub const COMMAND_SIZE: usize = BODY + size_of::<wire::Command>() + TAG_SIZE;
/// Length of a frame with a response, without the data of a read, in bytes.
pub const RESPONSE_SIZE: usize = BODY + size_of::<wire::Response>() + TAG_SIZE;

/// Set in the number under which data are sealed that are not in a frame: no frame has it.
const DATA: u64 = 1 << 63;

/// Returns where a frame of `size` bytes, without data, has the check of data in other memory.
pub const fn data_check(size: usize) -> Range<usize> {
    size - TAG_SIZE..size
}

/// The number of a frame. A side uses each number once in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number(u64);

impl Number {
    /// Returns number `number`, unless it is 0 or too large.
    pub const fn new(number: u64) -> Result<Self, Malformed> {
        match number {
            1..DATA => Ok(Self(number)),
            _ => Err(Malformed("the number of a frame is zero or too large")),
        }
    }

    /// Reads the number at the start of a frame.
    pub fn parse(frame: &[u8]) -> Result<Self, Malformed> {
        let bytes = frame.first_chunk();
        let bytes = bytes.ok_or(Malformed("the frame is shorter than its number"))?;
        Self::new(u64::from_le_bytes(*bytes))
    }

    /// Returns the bytes at the start of a frame.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the nonce of the frame.
    pub const fn nonce(self) -> u64 {
        self.0
    }

    /// Returns the nonce of the data whose check is in the frame.
    pub const fn data_nonce(self) -> u64 {
        self.0 | DATA
    }
}

/// Returns the check that a checksum makes.
pub fn digest(crc: u32) -> [u8; TAG_SIZE] {
    let mut check = [0; TAG_SIZE];
    check
        .iter_mut()
        .zip(crc.to_le_bytes())
        .for_each(|(to, from)| *to = from);
    check
}
