// SPDX-License-Identifier: GPL-2.0

//! What the server says without being asked.

#![forbid(unsafe_code)]

use super::export::BlockSize;
use super::extent::Extent;
use super::message::{header, write, Message, NoRoom};
use super::refusal::Malformed;
use super::wire;
use core::mem::size_of;

/// The extent of the export changed to this: it was resized, or is read-only now, or no longer.
///
/// It is not answered, and may come between a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub Extent);

impl Event {
    /// Reads an event of an export of blocks of `block`.
    pub fn parse(bytes: &[u8], block: BlockSize) -> Result<Self, Malformed> {
        let message = Message::parse(bytes)?;
        if !message.is_event() {
            return Err(Malformed("the message is not an event"));
        }
        let wire: wire::Event = message.whole()?;
        Extent::from_wire(wire.size.get(), wire.access, block).map(Self)
    }

    /// Writes the event into `buf` and returns its length.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Event {
            header: header(wire::EVENT, 0, size_of::<wire::Event>()),
            size: self.0.size.into(),
            access: self.0.access as u8,
            reserved: [0; 7],
        };
        write(&wire, buf)
    }
}
