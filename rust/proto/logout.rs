// SPDX-License-Identifier: GPL-2.0

//! Logout: the client ends its session.

#![forbid(unsafe_code)]

use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::wire;

/// The request of a client to end its session. The server releases the session before it replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logout;

impl Logout {
    /// Writes the request into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        write(
            &header(wire::LOGOUT, sequence, size_of::<wire::Header>()),
            buf,
        )
    }
}

/// The reply to a logout: the server has released everything of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutReply;

impl LogoutReply {
    /// Parses the reply to the request with this `sequence`.
    pub fn parse(bytes: &[u8], sequence: u32) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::LOGOUT, sequence)?;
        let _: wire::Reply = message.whole()?;
        Ok(Self)
    }

    /// Writes the reply into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        write(
            &granted(wire::LOGOUT, sequence, size_of::<wire::Reply>()),
            buf,
        )
    }
}
