// SPDX-License-Identifier: GPL-2.0

//! What a client asks of a command that takes long.

#![forbid(unsafe_code)]

use super::message::{header, write, NoRoom};
use super::wire;
use core::mem::size_of;

/// A client wants to know what became of a command that it sent on an I/O connection of this session.
/// The answer is an [`Event::Fate`](super::Event::Fate), at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Index of the I/O queue.
    pub queue: u16,
    /// Tag of the command.
    pub tag: u16,
    /// Generation of the command.
    pub generation: u32,
}

impl Query {
    /// Writes the message into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Query {
            header: header(wire::QUERY, sequence, size_of::<wire::Query>()),
            generation: self.generation.into(),
            queue: self.queue.into(),
            tag: self.tag.into(),
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::Query) -> Self {
        Self {
            queue: wire.queue.get(),
            tag: wire.tag.get(),
            generation: wire.generation.get(),
        }
    }
}
