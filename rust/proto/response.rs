// SPDX-License-Identifier: GPL-2.0

//! Responses of the server to a [`Command`](super::Command).

#![forbid(unsafe_code)]

use super::message::{write, NoRoom};
use super::refusal::Malformed;
use super::wire;
use core::mem::size_of;
use zerocopy::FromBytes;

/// Length of a response, in bytes.
pub const SIZE: usize = size_of::<wire::Response>();

/// Status of a command, in the terms of the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The command is done.
    Ok = 0,
    /// A part of the command failed, for an unspecified reason.
    IoError = 1,
    /// The backing does not support the operation.
    NotSupported = 2,
    /// The length is 0, not a multiple of the block size, or above the negotiated limit.
    Invalid = 3,
    /// The range exceeds the export.
    OutOfRange = 4,
    /// The export, or this client's access to it, is read-only.
    ReadOnly = 5,
    /// The backing is out of space.
    NoSpace = 6,
    /// The medium has lost the data.
    Medium = 7,
    /// The data does not match its protection information.
    Protection = 8,
    /// The backing failed permanently.
    Target = 9,
    /// The backing did not answer in time.
    Timeout = 10,
    /// The server has lost its connection to the backing.
    Transport = 11,
    /// Another initiator has reserved the backing.
    Reservation = 12,
    /// The server has no memory, or lacks another resource.
    Resource = 13,
    /// The backing is offline or was removed.
    Offline = 14,
}

impl Status {
    /// Every status, in the order of the codes.
    pub const ALL: [Self; 15] = [
        Self::Ok,
        Self::IoError,
        Self::NotSupported,
        Self::Invalid,
        Self::OutOfRange,
        Self::ReadOnly,
        Self::NoSpace,
        Self::Medium,
        Self::Protection,
        Self::Target,
        Self::Timeout,
        Self::Transport,
        Self::Reservation,
        Self::Resource,
        Self::Offline,
    ];

    /// The code on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

impl TryFrom<u16> for Status {
    type Error = Malformed;

    fn try_from(code: u16) -> Result<Self, Malformed> {
        // The codes are the indices of `ALL`.
        Self::ALL
            .get(usize::from(code))
            .copied()
            .ok_or(Malformed("unknown status"))
    }
}

/// The response to a command. The server no longer accesses the memory of the client for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status of the command.
    pub status: Status,
    /// Tag of the command.
    pub tag: u16,
    /// Generation of the command.
    pub generation: u32,
    /// Credit: the number of commands that the client may have in flight on this connection from
    /// now on; never 0.
    pub credit: u16,
}

/// The immediate data of a message that consists of the data of a read. Such a message completes
/// the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Tag of the command.
    pub tag: u16,
    /// The low bits of the generation of the command, see [`Delivery::GENERATION`].
    pub generation: u32,
    /// Credit, as in a [`Response`].
    pub credit: u16,
}

impl Delivery {
    /// Mask of the bits of a generation that a delivery has.
    pub const GENERATION: u32 = 0xfff;
    /// Mask of the bits of a tag, and of a credit minus one.
    const NUMBER: u32 = 0x3ff;
    /// Position of the lowest bit of the tag.
    pub const TAG_SHIFT: u32 = 22;
    /// Position of the lowest bit of the credit minus one.
    pub const CREDIT_SHIFT: u32 = 12;

    /// Parses immediate data. The caller must check that a command with this tag and generation
    /// exists.
    pub const fn parse(immediate: u32) -> Self {
        // CAST: 10 bits each.
        Self {
            tag: (immediate >> Self::TAG_SHIFT) as u16,
            generation: immediate & Self::GENERATION,
            credit: (((immediate >> Self::CREDIT_SHIFT) & Self::NUMBER) + 1) as u16,
        }
    }

    /// Returns the immediate data; `None` if a number has too many bits.
    pub fn encode(&self) -> Option<u32> {
        let tag = u32::from(self.tag);
        let credit = u32::from(self.credit.checked_sub(1)?);
        if tag > Self::NUMBER || credit > Self::NUMBER {
            return None;
        }
        let generation = self.generation & Self::GENERATION;
        Some((tag << Self::TAG_SHIFT) | (credit << Self::CREDIT_SHIFT) | generation)
    }
}

impl Response {
    /// Parses a response that consists of all `bytes`. After an error the connection must be
    /// closed.
    ///
    /// The caller must check that a command with this tag and generation exists.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let wire = wire::Response::read_from_bytes(bytes)
            .map_err(|_| Malformed("the response has not its length"))?;
        if wire.reserved != [0; 6] {
            return Err(Malformed("a reserved field of the response is not zero"));
        }
        if wire.credit.get() == 0 {
            return Err(Malformed("the credit is zero"));
        }
        Ok(Self {
            status: wire.status.get().try_into()?,
            tag: wire.tag.get(),
            generation: wire.generation.get(),
            credit: wire.credit.get(),
        })
    }

    /// Writes the response into `buf` and returns its length, [`SIZE`].
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Response {
            status: self.status.code().into(),
            tag: self.tag.into(),
            generation: self.generation.into(),
            credit: self.credit.into(),
            reserved: [0; 6],
        };
        write(&wire, buf)
    }
}
