// SPDX-License-Identifier: GPL-2.0

//! Lists of exports, for discovery.

#![forbid(unsafe_code)]

use super::export::{Access, Kind};
use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::name::Name;
use super::refusal::Malformed;
use super::uuid::Uuid;
use super::wire::{self, LIST_ENTRIES_MAX};
use core::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::FromBytes;

/// The question of a client which exports it may use.
///
/// The list may change between two requests, so that the client may miss an export or see it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// UUID of the client host; never nil.
    pub host_id: Uuid,
    /// Name of the client host.
    pub host_name: Name,
    /// Index of the first export to list, among those that the client may use, from 0.
    pub first: u32,
}

impl ListRequest {
    /// Writes the request into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::ListRequest {
            header: header(wire::LIST, sequence, size_of::<wire::ListRequest>()),
            host_id: *self.host_id.as_bytes(),
            host_name: self.host_name.to_wire(),
            first: self.first.into(),
            reserved: U32::ZERO,
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::ListRequest) -> Result<Self, Malformed> {
        Ok(Self {
            host_id: Uuid::from_wire(wire.host_id, "the host id is nil")?,
            host_name: Name::from_wire(&wire.host_name)?,
            first: wire.first.get(),
        })
    }
}

/// One export in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// Name of the export.
    pub name: Name,
    /// UUID of the export; never nil.
    pub uuid: Uuid,
    /// Size in bytes; 0 if the export is unavailable.
    pub size: u64,
    /// Kind of the export.
    pub kind: Kind,
    /// Access that the client may have.
    pub access: Access,
    /// Number of maps that have a path now.
    pub clients: u16,
    /// Maximum number of maps.
    pub max_clients: u16,
}

impl ListEntry {
    fn from_wire(wire: &wire::ListEntry) -> Result<Self, Malformed> {
        Ok(Self {
            name: Name::from_wire(&wire.name)?,
            uuid: Uuid::from_wire(wire.uuid, "the export's UUID is nil")?,
            size: wire.size.get(),
            kind: wire.kind.try_into()?,
            access: wire.access.try_into()?,
            clients: wire.clients.get(),
            max_clients: wire.max_clients.get(),
        })
    }
}

/// The list of a server, each entry checked. It borrows the message.
#[derive(Clone, Copy)]
pub struct ListReply<'a> {
    total: u32,
    entries: &'a [wire::ListEntry],
}

impl<'a> ListReply<'a> {
    /// Parses the reply to `request` with this `sequence`.
    pub fn parse(
        bytes: &'a [u8],
        sequence: u32,
        request: &ListRequest,
    ) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::LIST, sequence)?;
        let (wire, rest) = message.prefix::<wire::ListReply>()?;
        let (first, count, total) = (wire.first.get(), wire.count.get(), wire.total.get());
        if first != request.first {
            return Err(Malformed("the list starts elsewhere").into());
        }
        if count > total.saturating_sub(first) {
            return Err(Malformed("the list goes beyond its total").into());
        }
        let entries = <[wire::ListEntry]>::ref_from_bytes(rest)
            .map_err(|_| Malformed("the last entry is cut off"))?;
        if u32::try_from(entries.len()) != Ok(count) {
            return Err(Malformed("the number of entries is not as said").into());
        }
        for entry in entries {
            ListEntry::from_wire(entry)?;
        }
        Ok(Self { total, entries })
    }

    /// Returns the number of exports that the client may use. This message lists a part of them.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the number of entries in this message.
    pub fn count(&self) -> u32 {
        // CAST: `parse` has compared it with a 32-bit count.
        self.entries.len() as u32
    }

    /// Returns the entries in the order of the server.
    pub fn iter(&self) -> impl Iterator<Item = ListEntry> + 'a {
        // `parse()` has checked each entry, so none is left out.
        self.entries
            .iter()
            .filter_map(|entry| ListEntry::from_wire(entry).ok())
    }
}

/// Writes a reply to a [`ListRequest`], entry by entry.
pub struct ListReplyWriter<'a> {
    buf: &'a mut [u8],
    sequence: u32,
    first: u32,
    count: u32,
}

impl<'a> ListReplyWriter<'a> {
    /// Begins a reply in `buf`, with entries from index `first` on.
    pub fn new(buf: &'a mut [u8], sequence: u32, first: u32) -> Result<Self, NoRoom> {
        if buf.len() < size_of::<wire::ListReply>() {
            return Err(NoRoom);
        }
        Ok(Self {
            buf,
            sequence,
            first,
            count: 0,
        })
    }

    /// Adds an entry. Fails if the message is full.
    pub fn push(&mut self, entry: &ListEntry) -> Result<(), NoRoom> {
        let wire = wire::ListEntry {
            name: entry.name.to_wire(),
            uuid: *entry.uuid.as_bytes(),
            size: entry.size.into(),
            kind: entry.kind as u8,
            access: entry.access as u8,
            clients: entry.clients.into(),
            max_clients: entry.max_clients.into(),
            reserved: U16::ZERO,
        };
        // CAST: no more than `LIST_ENTRIES_MAX`.
        let index = self.count as usize;
        if index >= LIST_ENTRIES_MAX {
            return Err(NoRoom);
        }
        let at = size_of::<wire::ListReply>() + index * size_of::<wire::ListEntry>();
        write(&wire, self.buf.get_mut(at..).ok_or(NoRoom)?)?;
        self.count += 1;
        Ok(())
    }

    /// Completes the message and returns its length. `total` is the number of exports that the
    /// client may use, at least `first` plus the number of entries.
    pub fn finish(self, total: u32) -> Result<usize, NoRoom> {
        // CAST: no more than `LIST_ENTRIES_MAX`.
        let length =
            size_of::<wire::ListReply>() + self.count as usize * size_of::<wire::ListEntry>();
        let wire = wire::ListReply {
            reply: granted(wire::LIST, self.sequence, length),
            first: U32::new(self.first),
            count: U32::new(self.count),
            total: U32::new(total),
            reserved: U32::ZERO,
        };
        write(&wire, self.buf)?;
        Ok(length)
    }
}
