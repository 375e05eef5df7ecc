// SPDX-License-Identifier: GPL-2.0

//! Heartbeats, and their answers. Those that measure round trips have contents.

#![forbid(unsafe_code)]

use super::message::{header, write, Message, NoRoom, ReplyError};
use super::refusal::Malformed;
use super::wire::{self, MESSAGE_MAX, PING_MIN};
use core::mem::size_of;

/// A heartbeat of the client. The server answers it by an [`Event::Pong`](super::Event::Pong), or
/// by a [`Pong`] if there are contents, for which the connection has to use version
/// [`VERSION_SCRATCH`](wire::VERSION_SCRATCH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping<'a> {
    /// What the answer has to have, too. With the header that is [`MESSAGE_MAX`] bytes at most.
    pub contents: &'a [u8],
}

impl Ping<'_> {
    /// One that measures nothing.
    pub const HEARTBEAT: Self = Ping { contents: &[] };

    /// Writes the message into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        encode((wire::PING, sequence), self.contents, buf)
    }
}

/// The answer to a [`Ping`] of a client that is not logged in, to which the server sends nothing
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong<'a> {
    /// Those of the ping; of a server that follows the protocol.
    pub contents: &'a [u8],
}

impl<'a> Pong<'a> {
    /// Parses the answer to a ping with this `sequence`, which a pong does not repeat.
    pub fn parse(bytes: &'a [u8], sequence: u32) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        if message.kind() == wire::PONG {
            let contents = message.contents();
            return Ok(Self { contents });
        }
        message.granted(wire::PING, sequence)?;
        Err(Malformed("a ping has no reply but a pong").into())
    }

    /// Writes the message into `buf` and returns its length.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        encode((wire::PONG, 0), self.contents, buf)
    }
}

/// Writes a header and what follows it into `buf`, and returns their length.
fn encode((kind, sequence): (u16, u32), contents: &[u8], buf: &mut [u8]) -> Result<usize, NoRoom> {
    let len = PING_MIN.checked_add(contents.len()).ok_or(NoRoom)?;
    if len > MESSAGE_MAX {
        return Err(NoRoom);
    }
    let rest = buf.get_mut(PING_MIN..len).ok_or(NoRoom)?;
    rest.copy_from_slice(contents);
    write(&header(kind, sequence, len), buf)?;
    Ok(len)
}

const _: () = assert!(PING_MIN == size_of::<wire::Header>());
