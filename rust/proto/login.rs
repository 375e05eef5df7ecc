// SPDX-License-Identifier: GPL-2.0

//! Opening a session on an export.

#![forbid(unsafe_code)]

use super::command::Terms;
use super::export::{Access, Kind};
use super::extent::Extent;
use super::geometry::{Geometry, SlabShift};
use super::limits::BlockLimits;
use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::name::Name;
use super::protection::Protection;
use super::refusal::Malformed;
use super::uuid::Uuid;
use super::wire::{self, DEPTH_MAX, INLINE_MAX, PATHS_MAX};
use core::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};

/// [`wire::Login::no_path_timeout_ms`] of a map that holds I/O for ever.
const FOR_EVER: u32 = u32::MAX;

/// A client asks for a session on an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// The client host; never nil.
    pub host_id: Uuid,
    /// Name of the client host.
    pub host_name: Name,
    /// The client's map; never nil.
    pub map_uuid: Uuid,
    /// Epoch of the path; that of the connection request; never 0.
    pub epoch: u64,
    /// Name of the export.
    pub export: Name,
    /// Access asked for.
    pub access: Access,
    /// Index of the path among those of the map; less than [`PATHS_MAX`].
    pub path: u8,
    /// I/O queues asked for; never 0.
    pub queues: u16,
    /// Commands in flight per I/O queue asked for; never 0. Means nothing to a `ram` export.
    pub depth: u16,
    /// Data in the message of a command asked for, in bytes, at most [`INLINE_MAX`]; 0 for none.
    /// Means nothing to a `ram` export.
    pub inline_size: u32,
    /// Protection of the I/O connections, which has to be that of the export.
    pub protection: Protection,
    /// The client's device takes a SEND that invalidates a key. Means nothing to a `ram` export.
    pub remote_invalidate: bool,
    /// Between two signs of life of the client, in milliseconds; 0 if it promises none.
    pub heartbeat_ms: u32,
    /// Random, for each load of the client's module; never 0.
    pub boot: u64,
    /// Larger for each time that the map is enabled in one boot of its host; never 0.
    pub incarnation: u64,
    /// The reservation key to resume; `None` if the map was never let in since it was enabled.
    pub resume: Option<u64>,
    /// How long the map holds I/O while it has no path, in milliseconds; `None` for ever.
    pub no_path_timeout_ms: Option<u32>,
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
            path: self.path,
            queues: self.queues.into(),
            depth: self.depth.into(),
            protection: self.protection as u8,
            features: match self.remote_invalidate {
                true => wire::LOGIN_REMOTE_INVALIDATE,
                false => 0,
            },
            inline_size: self.inline_size.into(),
            heartbeat_ms: self.heartbeat_ms.into(),
            boot: self.boot.into(),
            incarnation: self.incarnation.into(),
            resume: self.resume.unwrap_or(0).into(),
            no_path_timeout_ms: self.no_path_timeout_ms.unwrap_or(FOR_EVER).into(),
            reserved2: U32::ZERO,
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::Login) -> Result<Self, Malformed> {
        Ok(Self {
            host_id: Uuid::from_wire(wire.host_id, "the host id is nil")?,
            host_name: Name::from_wire(&wire.host_name)?,
            map_uuid: Uuid::from_wire(wire.map_uuid, "the map's UUID is nil")?,
            epoch: not_zero(wire.epoch, "the epoch is zero")?,
            export: Name::from_wire(&wire.export_name)?,
            access: wire.access.try_into()?,
            path: path(wire.path)?,
            queues: queues(wire.queues)?,
            depth: depth(wire.depth)?,
            inline_size: inline_size(wire.inline_size)?,
            protection: wire.protection.try_into()?,
            remote_invalidate: match wire.features {
                0 => false,
                wire::LOGIN_REMOTE_INVALIDATE => true,
                _ => return Err(Malformed("there are features that are not known")),
            },
            heartbeat_ms: wire.heartbeat_ms.get(),
            boot: not_zero(wire.boot, "the boot is zero")?,
            incarnation: not_zero(wire.incarnation, "the incarnation is zero")?,
            resume: Some(wire.resume.get()).filter(|key| *key != 0),
            no_path_timeout_ms: Some(wire.no_path_timeout_ms.get()).filter(|ms| *ms != FOR_EVER),
        })
    }
}

/// What stands behind an export, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A block device of the server: by [`Command`](super::Command)s.
    Block {
        /// Commands in flight per I/O queue; never 0. Their tags are below it.
        depth: u16,
        /// Commands in flight per I/O queue until a [`Response`](super::Response) says otherwise;
        /// never 0, and no more than the depth.
        credit: u16,
        /// Data in the message of a command, in bytes, at most [`INLINE_MAX`]; 0 for none.
        inline_size: u32,
    },
    /// Memory of the server: by the client's own RDMA READ and WRITE of slabs of this size.
    Ram(SlabShift),
}

/// A server opened a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginReply {
    /// The session, which the I/O queues name when they connect; never 0.
    pub session: u64,
    /// The export; never nil.
    pub export_uuid: Uuid,
    /// Identity of the contents of `ram`, new whenever they are lost, or of the life of a `block`
    /// export's server; never nil.
    pub instance: Uuid,
    /// Size of the export, and the access granted, which is the one asked for.
    pub extent: Extent,
    /// What one I/O may be.
    pub limits: BlockLimits,
    /// How the export is reached.
    pub backing: Backing,
    /// I/O queues granted; never 0.
    pub queues: u16,
    /// The reservation key of the map, which later logins resume; never 0.
    pub reservation_key: u64,
    /// Whether the server knew the reservation key that the login resumes: it did not begin anew
    /// since, or was told by its administrator.
    pub remembered: bool,
    /// The server host; never nil. Another instance of the same host proves that the one before is
    /// gone.
    pub server_id: Uuid,
    /// How long the map keeps its place without a path, in milliseconds, counted from when the
    /// server notices that the last one is lost; never 0.
    pub lease_ms: u32,
    /// Of the extent, as in [`Event::Extent`](super::Event::Extent).
    pub extent_number: u32,
}

impl LoginReply {
    /// Returns [`Self::server_id`] as `session` compares it.
    pub fn server(&self) -> u128 {
        u128::from_be_bytes(*self.server_id.as_bytes())
    }

    /// Kind of the export.
    pub fn kind(&self) -> Kind {
        match self.backing {
            Backing::Block { .. } => Kind::Block,
            Backing::Ram(_) => Kind::Ram,
        }
    }

    /// Slabs of a `ram` export; those of a reply that was read are sound.
    pub fn geometry(&self) -> Option<Geometry> {
        match self.backing {
            Backing::Block { .. } => None,
            Backing::Ram(shift) => Geometry::new(self.extent.size, shift).ok(),
        }
    }

    /// What the commands to a `block` export have to keep to.
    pub fn terms(&self) -> Option<Terms> {
        match self.backing {
            Backing::Block {
                depth, inline_size, ..
            } => Some(Terms {
                depth,
                inline_size,
                limits: self.limits,
            }),
            Backing::Ram(_) => None,
        }
    }

    /// Reads the reply to `login` of `sequence`.
    ///
    /// The access is the one asked for, and of nothing there is more than that. The export is a
    /// `block` export if the login asks for protection.
    pub fn parse(bytes: &[u8], sequence: u32, login: &Login) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::LOGIN, sequence)?;
        let reply = Self::from_wire(&message.whole()?)?;
        if reply.extent.access != login.access {
            return Err(Malformed("the access granted is not the one asked for").into());
        }
        if reply.queues > login.queues {
            return Err(Malformed("more queues are granted than were asked for").into());
        }
        match reply.backing {
            Backing::Block { depth, .. } if depth > login.depth => {
                Err(Malformed("a larger depth is granted than was asked for").into())
            }
            Backing::Block { inline_size, .. } if inline_size > login.inline_size => {
                Err(Malformed("more inline data is granted than was asked for").into())
            }
            Backing::Ram(_) if login.protection.is_on() => {
                Err(Malformed("a ram export cannot have the protection asked for").into())
            }
            _ => Ok(reply),
        }
    }

    /// Writes the reply into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let (slab_shift, depth, credit, inline_size) = match self.backing {
            Backing::Block {
                depth,
                credit,
                inline_size,
            } => (0, depth, credit, inline_size),
            Backing::Ram(shift) => (shift.get(), 0, 0, 0),
        };
        let limits = &self.limits;
        let wire = wire::LoginReply {
            reply: granted(wire::LOGIN, sequence, size_of::<wire::LoginReply>()),
            session: self.session.into(),
            export_uuid: *self.export_uuid.as_bytes(),
            instance: *self.instance.as_bytes(),
            size: self.extent.size.into(),
            access: self.extent.access as u8,
            kind: self.kind() as u8,
            slab_shift,
            features: limits.features(),
            queues: self.queues.into(),
            depth: depth.into(),
            inline_size: inline_size.into(),
            logical_block_size: limits.logical_block_size.get().into(),
            physical_block_size: limits.physical_block_size.into(),
            io_min: limits.io_min.into(),
            io_opt: limits.io_opt.into(),
            max_io: limits.max_io.into(),
            max_discard: limits.max_discard.into(),
            discard_granularity: limits.discard_granularity.into(),
            max_write_zeroes: limits.max_write_zeroes.into(),
            credit: credit.into(),
            flags: match self.remembered {
                true => wire::LOGIN_REMEMBERED.into(),
                false => U16::ZERO,
            },
            reservation_key: self.reservation_key.into(),
            server_id: *self.server_id.as_bytes(),
            lease_ms: self.lease_ms.into(),
            extent_number: self.extent_number.into(),
            atomic_max: limits.atomic.max.into(),
            atomic_unit_min: limits.atomic.unit_min.into(),
            atomic_unit_max: limits.atomic.unit_max.into(),
            atomic_boundary: limits.atomic.boundary.into(),
            max_secure_erase: limits.max_secure_erase.into(),
            secure_erase_granularity: limits.secure_erase_granularity.into(),
        };
        write(&wire, buf)
    }

    fn from_wire(wire: &wire::LoginReply) -> Result<Self, Malformed> {
        let limits = BlockLimits::from_wire(wire)?;
        let size = wire.size.get();
        let backing = match Kind::try_from(wire.kind)? {
            Kind::Block => Backing::Block {
                depth: depth(wire.depth)?,
                credit: match wire.credit.get() {
                    credit if credit > 0 && credit <= wire.depth.get() => credit,
                    _ => return Err(Malformed("the credit is zero or beyond the depth")),
                },
                inline_size: inline_size(wire.inline_size)?,
            },
            Kind::Ram => {
                let shift = SlabShift::try_from(wire.slab_shift)?;
                Geometry::new(size, shift)?;
                if limits.atomic.is_some() || limits.max_secure_erase != 0 {
                    return Err(Malformed(
                        "a ram export with atomic writes or secure erases",
                    ));
                }
                Backing::Ram(shift)
            }
        };
        Ok(Self {
            session: not_zero(wire.session, "the session is zero")?,
            export_uuid: Uuid::from_wire(wire.export_uuid, "the export's UUID is nil")?,
            instance: Uuid::from_wire(wire.instance, "the instance is nil")?,
            extent: Extent::from_wire(size, wire.access, limits.logical_block_size)?,
            limits,
            backing,
            queues: queues(wire.queues)?,
            reservation_key: not_zero(wire.reservation_key, "the reservation key is zero")?,
            remembered: match wire.flags.get() {
                0 => false,
                wire::LOGIN_REMEMBERED => true,
                _ => return Err(Malformed("there are flags that are not known")),
            },
            server_id: Uuid::from_wire(wire.server_id, "the server's id is nil")?,
            lease_ms: match wire.lease_ms.get() {
                0 => return Err(Malformed("the lease is zero")),
                ms => ms,
            },
            extent_number: wire.extent_number.get(),
        })
    }
}

/// An index of a path.
pub(super) fn path(path: u8) -> Result<u8, Malformed> {
    match path {
        0..PATHS_MAX => Ok(path),
        _ => Err(Malformed("there are no paths of that index")),
    }
}

fn not_zero(number: U64, what: &'static str) -> Result<u64, Malformed> {
    match number.get() {
        0 => Err(Malformed(what)),
        number => Ok(number),
    }
}

fn queues(queues: U16) -> Result<u16, Malformed> {
    match queues.get() {
        0 => Err(Malformed("the number of queues is zero")),
        queues => Ok(queues),
    }
}

fn depth(depth: U16) -> Result<u16, Malformed> {
    match depth.get() {
        depth @ 1..=DEPTH_MAX => Ok(depth),
        _ => Err(Malformed("the depth is zero or beyond 1024")),
    }
}

fn inline_size(size: U32) -> Result<u32, Malformed> {
    match size.get() {
        size @ 0..=INLINE_MAX => Ok(size),
        _ => Err(Malformed("the inline data is too long")),
    }
}
