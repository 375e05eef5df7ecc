// SPDX-License-Identifier: GPL-2.0

//! The end of a session, asked for by the client.

#![forbid(unsafe_code)]

use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::wire;

/// A client is done: the server lets go of the session before it answers.
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

/// The server holds nothing of the session any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutReply;

impl LogoutReply {
    /// Reads the reply to the request of `sequence`.
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
