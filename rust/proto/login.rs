// SPDX-License-Identifier: GPL-2.0

//! Opening a session on an export.

#![forbid(unsafe_code)]

use super::export::{Access, BlockSize, Kind};
use super::geometry::{Geometry, SlabShift};
use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::name::Name;
use super::refusal::Malformed;
use super::uuid::Uuid;
use super::wire;
use core::mem::size_of;
use zerocopy::little_endian::{U16, U32};

/// A client asks for a session on an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// The client host; never nil.
    pub host_id: Uuid,
    /// Name of the client host.
    pub host_name: Name,
    /// The client's map; never nil.
    pub map_uuid: Uuid,
    /// Epoch of the path; that of the connection request.
    pub epoch: u64,
    /// Name of the export.
    pub export: Name,
    /// Access asked for.
    pub access: Access,
    /// I/O queues asked for; never 0.
    pub queues: u16,
}

impl Login {
    /// Writes the request into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Login {
            header: header(wire::LOGIN, sequence, size_of::<wire::Login>()),
            host_id: *self.host_id.as_bytes(),
            host_name: self.host_name.to_wire(),
            map_uuid: *self.map_uuid.as_bytes(),
            epoch: self.epoch.into(),
            export_name: self.export.to_wire(),
            access: self.access as u8,
            reserved: 0,
            queues: self.queues.into(),
            reserved2: U32::ZERO,
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::Login) -> Result<Self, Malformed> {
        Ok(Self {
            host_id: Uuid::from_wire(wire.host_id, "the host id is nil")?,
            host_name: Name::from_wire(&wire.host_name)?,
            map_uuid: Uuid::from_wire(wire.map_uuid, "the map's UUID is nil")?,
            epoch: wire.epoch.get(),
            export: Name::from_wire(&wire.export_name)?,
            access: wire.access.try_into()?,
            queues: queues(wire.queues)?,
        })
    }
}

/// A server opened a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginReply {
    /// The session, which the I/O queues name when they connect; never 0.
    pub session: u64,
    /// The export; never nil.
    pub export_uuid: Uuid,
    /// Identity of the export's contents, new whenever they are lost; never nil.
    pub instance: Uuid,
    /// Size of the export, a multiple of the logical block size, and of its slabs.
    pub geometry: Geometry,
    /// Unit of addressing.
    pub logical_block_size: BlockSize,
    /// Unit the backing likes best; not less than the logical block size.
    pub physical_block_size: BlockSize,
    /// Access granted: that asked for.
    pub access: Access,
    /// Kind of the export.
    pub kind: Kind,
    /// I/O queues granted; never 0.
    pub queues: u16,
}

impl LoginReply {
    /// Reads the reply to `login` of `sequence`.
    ///
    /// The access is the one asked for, and there are no more queues than that.
    pub fn parse(bytes: &[u8], sequence: u32, login: &Login) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::LOGIN, sequence)?;
        let reply = Self::from_wire(&message.whole()?)?;
        if reply.access != login.access {
            return Err(Malformed("the access granted is not the one asked for").into());
        }
        if reply.queues > login.queues {
            return Err(Malformed("more queues are granted than were asked for").into());
        }
        Ok(reply)
    }

    /// Writes the reply into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::LoginReply {
            reply: granted(wire::LOGIN, sequence, size_of::<wire::LoginReply>()),
            session: self.session.into(),
            export_uuid: *self.export_uuid.as_bytes(),
            instance: *self.instance.as_bytes(),
            size: self.geometry.size().into(),
            logical_block_size: self.logical_block_size.get().into(),
            physical_block_size: self.physical_block_size.get().into(),
            slab_shift: self.geometry.shift().get(),
            access: self.access as u8,
            kind: self.kind as u8,
            reserved: 0,
            queues: self.queues.into(),
            reserved2: U16::ZERO,
        };
        write(&wire, buf)
    }

    fn from_wire(wire: &wire::LoginReply) -> Result<Self, Malformed> {
        let reply = Self {
            session: wire.session.get(),
            export_uuid: Uuid::from_wire(wire.export_uuid, "the export's UUID is nil")?,
            instance: Uuid::from_wire(wire.instance, "the instance is nil")?,
            geometry: Geometry::new(wire.size.get(), SlabShift::try_from(wire.slab_shift)?)?,
            logical_block_size: wire.logical_block_size.get().try_into()?,
            physical_block_size: wire.physical_block_size.get().try_into()?,
            access: wire.access.try_into()?,
            kind: wire.kind.try_into()?,
            queues: queues(wire.queues)?,
        };
        if reply.session == 0 {
            return Err(Malformed("the session is zero"));
        }
        if reply.physical_block_size < reply.logical_block_size {
            return Err(Malformed("the physical block is smaller than the logical"));
        }
        if reply.geometry.size() % u64::from(reply.logical_block_size.get()) != 0 {
            return Err(Malformed("the size is not a multiple of the block size"));
        }
        Ok(reply)
    }
}

fn queues(queues: U16) -> Result<u16, Malformed> {
    match queues.get() {
        0 => Err(Malformed("the number of queues is zero")),
        queues => Ok(queues),
    }
}
