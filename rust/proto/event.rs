// SPDX-License-Identifier: GPL-2.0

//! What the server says at any time, and no request waits for.

#![forbid(unsafe_code)]

use super::export::{Access, BlockSize};
use super::extent::Extent;
use super::fence::Fence;
use super::message::{header, write, Message, NoRoom};
use super::ping::Pong;
use super::refusal::Malformed;
use super::uuid::Uuid;
use super::wire;
use core::mem::size_of;
use zerocopy::little_endian::U32;

/// What the server says of itself, or in answer to what needs no reply. It may come between a
/// request and its reply, and is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The extent of the export changed to this: it was resized, or is read-only now, or no longer.
    Extent {
        /// Raised with each change, as long as the export has the same instance. After 2^32-1
        /// comes 0.
        number: u32,
        /// What there is now.
        extent: Extent,
    },
    /// The export is being disabled, and its device was flushed after the last command of all
    /// clients: whatever was answered lasts.
    Flushed {
        /// The instance of the export; never nil.
        instance: Uuid,
        /// The number of its extent. An export that is enabled again has a newer one.
        number: u32,
    },
    /// The answer to a [`Ping`](super::Ping).
    Pong,
    /// The answer to a [`Fence`]: nothing of the path, up to the epoch, will reach the export any
    /// more.
    Fenced {
        /// As asked.
        path: u8,
        /// As asked.
        epoch: u64,
    },
}

impl Event {
    /// Length of the longest one, in bytes.
    pub const SIZE_MAX: usize = 32;

    /// Reads an event of an export of blocks of `block`, to which the login has granted `granted`.
    pub fn parse(bytes: &[u8], block: BlockSize, granted: Access) -> Result<Self, Malformed> {
        let message = Message::parse(bytes)?;
        match message.kind() {
            wire::EXTENT => {
                let wire: wire::Extent = message.whole()?;
                let extent = Extent::from_wire(wire.size.get(), wire.access, block)?;
                if extent.access > granted {
                    return Err(Malformed("more access than was granted"));
                }
                let number = wire.number.get();
                Ok(Self::Extent { number, extent })
            }
            wire::FLUSHED => {
                let wire: wire::Flushed = message.whole()?;
                let instance = Uuid::from_wire(wire.instance, "the instance is nil")?;
                let number = wire.number.get();
                Ok(Self::Flushed { instance, number })
            }
            wire::PONG => message.whole::<wire::Header>().map(|_| Self::Pong),
            wire::FENCED => {
                let Fence { path, epoch } = Fence::from_wire(&message.whole()?)?;
                Ok(Self::Fenced { path, epoch })
            }
            _ => Err(Malformed("the message is not an event")),
        }
    }

    /// Writes the event into `buf` and returns its length.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        match *self {
            Self::Extent { number, extent } => {
                let wire = wire::Extent {
                    header: header(wire::EXTENT, 0, size_of::<wire::Extent>()),
                    size: extent.size.into(),
                    access: extent.access as u8,
                    reserved: [0; 3],
                    number: number.into(),
                };
                write(&wire, buf)
            }
            Self::Flushed { instance, number } => {
                let wire = wire::Flushed {
                    header: header(wire::FLUSHED, 0, size_of::<wire::Flushed>()),
                    instance: *instance.as_bytes(),
                    number: number.into(),
                    reserved: U32::ZERO,
                };
                write(&wire, buf)
            }
            Self::Pong => Pong.encode(buf),
            Self::Fenced { path, epoch } => Fence { path, epoch }.encode_as(wire::FENCED, 0, buf),
        }
    }
}

impl Message<'_> {
    /// Returns true if this is an [`Event`], which is no reply.
    pub fn is_event(&self) -> bool {
        let kind = self.kind();
        matches!(
            kind,
            wire::EXTENT | wire::FLUSHED | wire::PONG | wire::FENCED
        )
    }
}

const _: () = {
    assert!(size_of::<wire::Header>() <= Event::SIZE_MAX);
    assert!(size_of::<wire::Extent>() <= Event::SIZE_MAX);
    assert!(size_of::<wire::Flushed>() <= Event::SIZE_MAX);
    assert!(size_of::<wire::Fence>() <= Event::SIZE_MAX);
};
