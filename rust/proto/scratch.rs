// SPDX-License-Identifier: GPL-2.0

//! Scratch regions: memory of the server that a client reads and writes by RDMA to measure round
//! trips. It is no part of an export. One belongs to a control connection without a login, and ends
//! with it.

#![forbid(unsafe_code)]

use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::name::Name;
use super::refusal::Malformed;
use super::uuid::Uuid;
use super::wire::{self, SCRATCH_ATOMICS, SCRATCH_MAX, SCRATCH_UNIT};
use core::mem::size_of;
use zerocopy::little_endian::U32;

/// A client asks for a scratch region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchRequest {
    /// UUID of the client host; never nil.
    pub host_id: Uuid,
    /// Name of the client host.
    pub host_name: Name,
    /// The export that admits the host.
    pub export: Name,
    size: u32,
}

impl ScratchRequest {
    /// Makes a request for `size` bytes. Fails if that is 0, no multiple of [`SCRATCH_UNIT`], or
    /// more than [`SCRATCH_MAX`].
    pub fn new(
        (host_id, host_name): (Uuid, Name),
        export: Name,
        size: u32,
    ) -> Result<Self, Malformed> {
        if size == 0 || size % SCRATCH_UNIT != 0 || size > SCRATCH_MAX {
            return Err(Malformed("a scratch region cannot have that size"));
        }
        Ok(Self {
            host_id,
            host_name,
            export,
            size,
        })
    }

    /// Returns the size that is asked for, in bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Writes the request into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::ScratchRequest {
            header: header(wire::SCRATCH, sequence, size_of::<wire::ScratchRequest>()),
            host_id: *self.host_id.as_bytes(),
            host_name: self.host_name.to_wire(),
            export_name: self.export.to_wire(),
            size: self.size.into(),
            reserved: U32::ZERO,
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::ScratchRequest) -> Result<Self, Malformed> {
        let host = (
            Uuid::from_wire(wire.host_id, "the host id is nil")?,
            Name::from_wire(&wire.host_name)?,
        );
        Self::new(host, Name::from_wire(&wire.export_name)?, wire.size.get())
    }
}

/// The scratch region of a server, as the client accesses it.
///
/// That of [`ScratchReply::parse`] begins at a multiple of 8, and ends within the 64-bit address
/// space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchReply {
    /// Remote address of the first byte.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// The server's device does atomic operations on the region.
    pub atomics: bool,
}

impl ScratchReply {
    /// Parses the reply to `request` with this `sequence`.
    pub fn parse(
        bytes: &[u8],
        sequence: u32,
        request: &ScratchRequest,
    ) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::SCRATCH, sequence)?;
        let wire: wire::ScratchReply = message.whole()?;
        let (addr, length, flags) = (wire.addr.get(), wire.length.get(), wire.flags.get());
        if length != request.size {
            return Err(Malformed("the scratch region has not the size that was asked for").into());
        }
        if addr % 8 != 0 || addr.checked_add(u64::from(length)).is_none() {
            return Err(Malformed("the scratch region cannot be at that address").into());
        }
        if flags & !SCRATCH_ATOMICS != 0 {
            return Err(Malformed("the scratch region has an unknown flag").into());
        }
        Ok(Self {
            addr,
            rkey: wire.rkey.get(),
            atomics: flags & SCRATCH_ATOMICS != 0,
        })
    }

    /// Writes the reply to `request` into `buf` and returns its length.
    pub fn encode(
        &self,
        sequence: u32,
        request: &ScratchRequest,
        buf: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let flags = match self.atomics {
            true => SCRATCH_ATOMICS,
            false => 0,
        };
        let wire = wire::ScratchReply {
            reply: granted(wire::SCRATCH, sequence, size_of::<wire::ScratchReply>()),
            addr: self.addr.into(),
            length: request.size.into(),
            rkey: self.rkey.into(),
            flags: flags.into(),
            reserved: U32::ZERO,
        };
        write(&wire, buf)
    }
}
