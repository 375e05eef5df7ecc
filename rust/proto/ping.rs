// SPDX-License-Identifier: GPL-2.0

//! Pings of a client, and the server's answers to them.

#![forbid(unsafe_code)]

use super::message::{header, write, Message, NoRoom, ReplyError};
use super::refusal::Malformed;
use super::wire;
use core::mem::size_of;

/// A message that only asks for an answer: a heartbeat, or one whose round trip is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping;

impl Ping {
    /// Writes the message into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        write(
            &header(wire::PING, sequence, size_of::<wire::Header>()),
            buf,
        )
    }
}

/// The answer to a [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong;

impl Pong {
    /// Parses the answer to a ping with this `sequence`, which a pong does not repeat. For a client
    /// that is not logged in: to others the server sends events, too.
    pub fn parse(bytes: &[u8], sequence: u32) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        if message.kind() == wire::PONG {
            message.whole::<wire::Header>()?;
            return Ok(Self);
        }
        message.granted(wire::PING, sequence)?;
        Err(Malformed("a ping has no reply but a pong").into())
    }

    /// Writes the message into `buf` and returns its length.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        write(&header(wire::PONG, 0, size_of::<wire::Header>()), buf)
    }
}
