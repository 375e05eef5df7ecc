// SPDX-License-Identifier: GPL-2.0

//! How the server answers a [`Command`](super::Command).

#![forbid(unsafe_code)]

use super::message::{write, NoRoom};
use super::refusal::Malformed;
use super::wire;
use core::mem::size_of;
use zerocopy::FromBytes;

/// Length of a response, in bytes.
pub const SIZE: usize = size_of::<wire::Response>();

/// How a command ended, in the words of the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// All of it is done.
    Ok = 0,
    /// Some of it failed, for whatever reason.
    IoError = 1,
    /// The backing has no such operation.
    NotSupported = 2,
    /// The command makes no sense: a length of 0, not of whole blocks, or beyond what was negotiated.
    Invalid = 3,
    /// The range is not all within the export.
    OutOfRange = 4,
    /// The export, or this client's access to it, is read-only.
    ReadOnly = 5,
    /// The backing is out of space.
    NoSpace = 6,
    /// The medium lost the data.
    Medium = 7,
    /// The data and its protection information disagree.
    Protection = 8,
    /// The backing failed for good.
    Target = 9,
    /// The backing did not answer in time.
    Timeout = 10,
    /// The server has lost its way to the backing.
    Transport = 11,
    /// Somebody else has reserved the backing.
    Reservation = 12,
    /// The server is out of memory or of another resource.
    Resource = 13,
    /// The backing is off line or gone.
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
        // The codes count from 0.
        Self::ALL
            .get(usize::from(code))
            .copied()
            .ok_or(Malformed("unknown status"))
    }
}

/// The server is done with a command and with the client's memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// How it ended.
    pub status: Status,
    /// The command's tag.
    pub tag: u16,
    /// The command's generation.
    pub generation: u32,
    /// Commands that the client may have in flight on this connection from now on; never 0.
    pub credit: u16,
}

/// The message is the data of a read, and nothing else: the server is done with it. This is the
/// immediate data of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The command's tag.
    pub tag: u16,
    /// The low bits of the command's generation, [`Delivery::GENERATION`].
    pub generation: u32,
    /// As in a [`Response`].
    pub credit: u16,
}

impl Delivery {
    /// The bits of a generation that a delivery has.
    pub const GENERATION: u32 = 0xfff;
    /// The bits of a tag, and of one less than a credit.
    const NUMBER: u32 = 0x3ff;
    /// Where the tag begins.
    pub const TAG_SHIFT: u32 = 22;
    /// Where the credit, less one, begins.
    pub const CREDIT_SHIFT: u32 = 12;

    /// Reads immediate data. Whether there is a command of that tag and generation is the caller's to
    /// check.
    pub const fn parse(immediate: u32) -> Self {
        // CAST: 10 bits each.
        Self {
            tag: (immediate >> Self::TAG_SHIFT) as u16,
            generation: immediate & Self::GENERATION,
            credit: (((immediate >> Self::CREDIT_SHIFT) & Self::NUMBER) + 1) as u16,
        }
    }

    /// The immediate data; `None` if a number is beyond what they have room for.
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
    /// Reads a response, which is all of `bytes`. After an error the connection has to go.
    ///
    /// Whether there is a command of that tag and generation is the caller's to check.
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
