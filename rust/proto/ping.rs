// SPDX-License-Identifier: GPL-2.0

//! Heartbeats.

#![forbid(unsafe_code)]

use super::message::{header, write, NoRoom};
use super::wire;
use core::mem::size_of;

/// A heartbeat of the client. The server answers it by an [`Event::Pong`](super::Event::Pong).
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
