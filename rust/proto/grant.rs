// SPDX-License-Identifier: GPL-2.0

//! Grants: how a client obtains the slabs of a `ram` export.

#![forbid(unsafe_code)]

use super::geometry::Geometry;
use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::refusal::Malformed;
use super::wire::{self, GRANTS_MAX};
use core::mem::size_of;
use core::ops::Range;
use zerocopy::little_endian::U32;
use zerocopy::FromBytes;

/// A client asks for slabs `first` to `first + count`, the last excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    first: u32,
    count: u32,
}

impl GrantRequest {
    /// Makes a request for `count` slabs from `first` on. `None` if `count` is 0, or if a number
    /// exceeds 32 bits.
    pub fn new(first: u32, count: u32) -> Result<Self, Malformed> {
        if count == 0 {
            return Err(Malformed("no slab is asked for"));
        }
        if first.checked_add(count).is_none() {
            return Err(Malformed("the range of slabs is too large"));
        }
        Ok(Self { first, count })
    }

    /// Index of the first slab.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Number of slabs; never 0.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the slabs that the reply grants: the requested ones, up to the capacity of a reply.
    ///
    /// Fails if the range is not within `geometry`.
    pub fn slabs(&self, geometry: &Geometry) -> Result<Range<u32>, Malformed> {
        match self.first.checked_add(self.count) {
            Some(end) if end <= geometry.slabs() => {
                // CAST: `GRANTS_MAX` is a few hundred.
                let count = self.count.min(GRANTS_MAX as u32);
                Ok(self.first..self.first + count)
            }
            _ => Err(Malformed("the slabs asked for are beyond the end")),
        }
    }

    /// Writes the request into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::GrantRequest {
            header: header(wire::GRANT, sequence, size_of::<wire::GrantRequest>()),
            first: self.first.into(),
            count: self.count.into(),
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::GrantRequest) -> Result<Self, Malformed> {
        Self::new(wire.first.get(), wire.count.get())
    }
}

/// The memory of one slab, as the client accesses it.
///
/// A grant of a [`GrantReply`] has the length of its slab and ends within the 64-bit address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Remote address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Remote key.
    pub rkey: u32,
}

impl Grant {
    fn from_wire(wire: &wire::Grant) -> Self {
        Self {
            addr: wire.addr.get(),
            length: wire.length.get(),
            rkey: wire.rkey.get(),
        }
    }

    /// Returns true if this can be all of slab `slab`.
    fn check(&self, geometry: &Geometry, slab: u32) -> Result<(), Malformed> {
        if geometry.slab_len(slab) != Some(self.length) {
            return Err(Malformed("a grant has not the length of its slab"));
        }
        if self.addr.checked_add(u64::from(self.length)).is_none() {
            return Err(Malformed(
                "a grant goes beyond the end of the address space",
            ));
        }
        Ok(())
    }
}

/// The grants of a server, each checked. They borrow the message.
#[derive(Clone, Copy)]
pub struct GrantReply<'a> {
    first: u32,
    grants: &'a [wire::Grant],
}

impl<'a> GrantReply<'a> {
    /// Parses the reply to `request` with this `sequence`, and checks it against the `geometry` of
    /// the login reply.
    ///
    /// The reply has at least one grant, and only for slabs of the request. It may have fewer than
    /// requested; the client then asks for the rest.
    pub fn parse(
        bytes: &'a [u8],
        sequence: u32,
        request: &GrantRequest,
        geometry: &Geometry,
    ) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::GRANT, sequence)?;
        let (wire, rest) = message.prefix::<wire::GrantReply>()?;
        let (first, count) = (wire.first.get(), wire.count.get());
        if first != request.first {
            return Err(Malformed("the grants are for other slabs").into());
        }
        if count == 0 || count > request.count {
            return Err(Malformed("the number of grants is not as asked").into());
        }
        let grants = <[wire::Grant]>::ref_from_bytes(rest)
            .map_err(|_| Malformed("the last grant is cut off"))?;
        if u32::try_from(grants.len()) != Ok(count) {
            return Err(Malformed("the number of grants is not as said").into());
        }
        let reply = Self { first, grants };
        for (slab, grant) in reply.iter() {
            grant.check(geometry, slab)?;
        }
        Ok(reply)
    }

    /// Returns the number of grants; never 0.
    pub fn count(&self) -> u32 {
        // CAST: `parse` has compared it with a 32-bit count.
        self.grants.len() as u32
    }

    /// Returns the slabs in ascending order, each with its grant.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Grant)> + 'a {
        (self.first..).zip(self.grants.iter().map(Grant::from_wire))
    }
}

/// Writes a reply to a [`GrantRequest`], grant by grant.
pub struct GrantReplyWriter<'a> {
    buf: &'a mut [u8],
    sequence: u32,
    first: u32,
    count: u32,
}

impl<'a> GrantReplyWriter<'a> {
    /// Begins a reply in `buf`, with grants for the slabs from `first` on.
    pub fn new(buf: &'a mut [u8], sequence: u32, first: u32) -> Result<Self, NoRoom> {
        if buf.len() < size_of::<wire::GrantReply>() {
            return Err(NoRoom);
        }
        Ok(Self {
            buf,
            sequence,
            first,
            count: 0,
        })
    }

    /// Adds the grant of the next slab. Fails if the message is full.
    pub fn push(&mut self, grant: &Grant) -> Result<(), NoRoom> {
        let wire = wire::Grant {
            addr: grant.addr.into(),
            length: grant.length.into(),
            rkey: grant.rkey.into(),
        };
        // CAST: no more than `GRANTS_MAX`.
        let index = self.count as usize;
        if index >= GRANTS_MAX {
            return Err(NoRoom);
        }
        let at = size_of::<wire::GrantReply>() + index * size_of::<wire::Grant>();
        write(&wire, self.buf.get_mut(at..).ok_or(NoRoom)?)?;
        self.count += 1;
        Ok(())
    }

    /// Completes the message and returns its length.
    pub fn finish(self) -> Result<usize, NoRoom> {
        // CAST: no more than `GRANTS_MAX`.
        let length = size_of::<wire::GrantReply>() + self.count as usize * size_of::<wire::Grant>();
        let wire = wire::GrantReply {
            reply: granted(wire::GRANT, self.sequence, length),
            first: U32::new(self.first),
            count: U32::new(self.count),
        };
        write(&wire, self.buf)?;
        Ok(length)
    }
}
