// SPDX-License-Identifier: GPL-2.0

//! Control messages: the client asks, the server answers, one at a time. In between the client may
//! send what is answered by an event, and the server events that nobody asked for.

#![forbid(unsafe_code)]

use super::refusal::{Malformed, Refused};
use super::wire::{self, MESSAGE_MAX, REPLY, TEXT_SIZE};
use core::fmt;
use core::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The caller's buffer is too small for what was to be written; [`MESSAGE_MAX`] is always enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Why a client got no answer it can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The reply cannot be understood or does not fit the request: the connection is to be closed.
    Malformed(Malformed),
    /// The server refused the request.
    Refused(Refused),
}

impl From<Malformed> for ReplyError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "malformed reply: {malformed}"),
            Self::Refused(refused) => refused.fmt(f),
        }
    }
}

/// A received message whose header is sound.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    kind: u16,
    sequence: u32,
    /// The whole message with its header.
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads the header of the received `bytes`, whose number must be what the header says.
    ///
    /// After an error there is nothing to answer to: the connection is to be closed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, _) = wire::Header::read_from_prefix(bytes)
            .map_err(|_| Malformed("the message is shorter than its header"))?;
        if usize::from(header.length.get()) != bytes.len() {
            return Err(Malformed("the message is not as long as it says"));
        }
        if bytes.len() > MESSAGE_MAX {
            return Err(Malformed("the message is too long"));
        }
        Ok(Self {
            kind: header.kind.get(),
            sequence: header.sequence.get(),
            bytes,
        })
    }

    /// The sequence number, which the reply has to carry.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// What the message is.
    pub(super) fn kind(&self) -> u16 {
        self.kind
    }

    /// Writes the reply that refuses this request into `buf` and returns its length.
    pub fn refuse(&self, refused: &Refused, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let reply = wire::Reply {
            header: header(self.kind | REPLY, self.sequence, size_of::<wire::Reply>()),
            status: refused.to_wire(),
        };
        write(&reply, buf)
    }

    /// Reads this as the reply to a request of `kind` and `sequence`, and stops at a refusal.
    pub(super) fn granted(&self, kind: u16, sequence: u32) -> Result<(), ReplyError> {
        if self.kind != kind | REPLY {
            return Err(Malformed("the reply is of another kind than the request").into());
        }
        if self.sequence != sequence {
            return Err(Malformed("the reply is to another request").into());
        }
        let (reply, rest) = self.prefix::<wire::Reply>()?;
        match Refused::from_wire(&reply.status)? {
            None => Ok(()),
            Some(_) if !rest.is_empty() => Err(Malformed("something follows the refusal").into()),
            Some(refused) => Err(ReplyError::Refused(refused)),
        }
    }

    /// The message as a `T`, of whose size it must be.
    pub(super) fn whole<T: FromBytes>(&self) -> Result<T, Malformed> {
        T::read_from_bytes(self.bytes)
            .map_err(|_| Malformed("the message has not the length of its kind"))
    }

    /// The message as a `T` and what follows it.
    pub(super) fn prefix<T: FromBytes>(&self) -> Result<(T, &'a [u8]), Malformed> {
        T::read_from_prefix(self.bytes)
            .map_err(|_| Malformed("the message is shorter than its kind"))
    }
}

/// Header of a message of `length` bytes.
pub(super) fn header(kind: u16, sequence: u32, length: usize) -> wire::Header {
    wire::Header {
        kind: kind.into(),
        // CAST: no message is longer than `MESSAGE_MAX`.
        length: U16::new(length as u16),
        sequence: sequence.into(),
    }
}

/// Start of a message of `length` bytes that grants a request of `kind`.
pub(super) fn granted(kind: u16, sequence: u32, length: usize) -> wire::Reply {
    wire::Reply {
        header: header(kind | REPLY, sequence, length),
        status: wire::Status {
            code: wire::STATUS_OK.into(),
            text_len: U16::ZERO,
            reserved: U32::ZERO,
            text: [0; TEXT_SIZE],
        },
    }
}

/// Writes `wire` to the start of `buf` and returns its length.
pub(super) fn write<T: IntoBytes + Immutable>(wire: &T, buf: &mut [u8]) -> Result<usize, NoRoom> {
    wire.write_to_prefix(buf).map_err(|_| NoRoom)?;
    Ok(size_of::<T>())
}
