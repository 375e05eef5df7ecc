// SPDX-License-Identifier: GPL-2.0

//! The handshake of a connection, in the private data of the RDMA CM.
//!
//! Some transports pad private data to its full size. The parsers therefore ignore bytes beyond the
//! part that they know.
//!
//! The private data of requests and replies end with a ticket, by which a session with a key proves
//! that an I/O connection is its own; see [`Keys`](super::auth::Keys). In its place a control
//! connection may have a cookie, by which its source shows that it receives what is sent to it; see
//! [`Cookies`](super::auth::Cookies). Else it is zero.

#![forbid(unsafe_code)]

use super::message::{write, NoRoom};
use super::refusal::{Malformed, Refusal, Refused};
use super::wire::{self, MAGIC, TAG_SIZE, VERSION_MAX, VERSION_MIN};
use core::mem::size_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::FromBytes;

const SHORT: Malformed = Malformed("the private data is too short");
const FOREIGN: Malformed = Malformed("the private data is not farblk's");

/// The ticket of a connection request or reply.
pub type Ticket = [u8; TAG_SIZE];

/// Sets the ticket of encoded private data. `make` computes it from the rest.
pub fn set_ticket(encoded: &mut [u8], make: impl FnOnce(&[u8]) -> Ticket) {
    if let Some((rest, ticket)) = encoded.split_last_chunk_mut() {
        *ticket = make(rest);
    }
}

/// Splits private data, as [`ConnectRequest::known`] or [`ConnectReply::known`] returns them, into
/// what the ticket covers and the ticket.
pub fn split_ticket(known: &[u8]) -> Option<(&[u8], &Ticket)> {
    known.split_last_chunk()
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Control messages: login, grants, lists.
    Control,
    /// An I/O connection of a session.
    Io {
        /// The session number of the login reply; never 0.
        session: u64,
        /// Index of the connection, less than the granted number.
        queue: u16,
    },
}

/// The request of a client to connect (CM REQ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Purpose of the connection.
    pub connection: Connection,
    /// Epoch of the path. The client raises it for each attempt to connect.
    pub epoch: u64,
}

impl ConnectRequest {
    /// Returns the private data of a request without what pads them.
    pub fn known(bytes: &[u8]) -> &[u8] {
        bytes
            .get(..size_of::<wire::ConnectRequest>())
            .unwrap_or(bytes)
    }

    /// Returns the ticket of a request, or the cookie that is in its place; zero if there is none.
    pub fn ticket(bytes: &[u8]) -> Ticket {
        let split = split_ticket(Self::known(bytes));
        split.map_or(Ticket::default(), |(_, ticket)| *ticket)
    }

    /// Parses the private data of a request. Returns it with the version to use: the newest one
    /// that both sides speak.
    pub fn parse(bytes: &[u8]) -> Result<(Self, u16), Refused> {
        let (first, _) = wire::ConnectVersions::read_from_prefix(bytes).map_err(|_| SHORT)?;
        if first.magic != MAGIC {
            return Err(FOREIGN.into());
        }
        // The version comes first: in an unknown version the rest may have another meaning, or be
        // shorter.
        let version = common_version(first.min.get(), first.max.get())?;
        let (wire, _) = wire::ConnectRequest::read_from_prefix(bytes).map_err(|_| SHORT)?;
        let connection = match (wire.kind, wire.session.get(), wire.queue.get()) {
            (wire::CONNECTION_CONTROL, 0, 0) => Connection::Control,
            (wire::CONNECTION_CONTROL, _, _) => {
                return Err(Malformed("a control connection names a session or queue").into());
            }
            (wire::CONNECTION_IO, 0, _) => {
                return Err(Malformed("an I/O connection names no session").into());
            }
            (wire::CONNECTION_IO, session, queue) => Connection::Io { session, queue },
            _ => return Err(Malformed("unknown kind of connection").into()),
        };
        let epoch = wire.epoch.get();
        Ok((Self { connection, epoch }, version))
    }

    /// Writes the private data with the offered versions `min..=max`, and a ticket of zeroes, into
    /// `buf`, and returns their length.
    pub fn encode(&self, (min, max): (u16, u16), buf: &mut [u8]) -> Result<usize, NoRoom> {
        let (kind, session, queue) = match self.connection {
            Connection::Control => (wire::CONNECTION_CONTROL, 0, 0),
            Connection::Io { session, queue } => (wire::CONNECTION_IO, session, queue),
        };
        let wire = wire::ConnectRequest {
            magic: MAGIC.into(),
            version_min: min.into(),
            version_max: max.into(),
            kind,
            reserved: 0,
            queue: queue.into(),
            reserved2: U32::ZERO,
            session: session.into(),
            epoch: self.epoch.into(),
            ticket: [0; TAG_SIZE],
        };
        write(&wire, buf)
    }
}

/// Returns the newest version in `min..=max` that this code speaks.
fn common_version(min: u16, max: u16) -> Result<u16, Refused> {
    if min > max {
        return Err(Malformed("the oldest version is newer than the newest").into());
    }
    let version = max.min(VERSION_MAX);
    if version < min.max(VERSION_MIN) {
        return Err(Refused::new(
            Refusal::Version,
            format_args!(
                "no protocol version in common: client {min} to {max}, server {VERSION_MIN} to {VERSION_MAX}"
            ),
        ));
    }
    Ok(version)
}

/// The answer of a server that accepts the connection (CM REP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectReply {
    /// Version of the protocol on this connection.
    pub version: u16,
}

impl ConnectReply {
    /// Returns the private data of a reply without what pads them.
    pub fn known(bytes: &[u8]) -> &[u8] {
        bytes
            .get(..size_of::<wire::ConnectReply>())
            .unwrap_or(bytes)
    }

    /// Parses the private data of a reply.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (wire, _) = wire::ConnectReply::read_from_prefix(bytes).map_err(|_| SHORT)?;
        if wire.magic != MAGIC {
            return Err(FOREIGN);
        }
        let version = wire.version.get();
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(Malformed("the server chose a version that was not offered"));
        }
        Ok(Self { version })
    }

    /// Writes the private data, with a ticket of zeroes, into `buf` and returns their length.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::ConnectReply {
            magic: MAGIC.into(),
            version: self.version.into(),
            reserved: U16::ZERO,
            ticket: [0; TAG_SIZE],
        };
        write(&wire, buf)
    }
}

/// The answer of a server that refuses the connection (CM REJ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub refused: Refused,
    /// With [`Refusal::Again`]: what the client has to show when it comes again, in the place of
    /// the ticket of a control connection.
    pub cookie: Ticket,
}

impl Reject {
    /// Parses the private data of a rejection.
    ///
    /// Only the server puts data there. A rejection by the CM itself (no listener, stale
    /// connection) is not passed to this function, or is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (wire, rest) = wire::Reject::read_from_prefix(bytes).map_err(|_| SHORT)?;
        if wire.magic != MAGIC {
            return Err(FOREIGN);
        }
        let refused = Refused::from_wire(&wire.status)?;
        Ok(Self {
            refused: refused.ok_or(Malformed("the server rejected without a reason"))?,
            cookie: rest.first_chunk().copied().unwrap_or_default(),
        })
    }

    /// Writes the private data into `buf` and returns its length.
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Reject {
            magic: MAGIC.into(),
            version_min: VERSION_MIN.into(),
            version_max: VERSION_MAX.into(),
            status: self.refused.to_wire(),
        };
        let len = write(&wire, buf)?;
        let room = buf.get_mut(len..).and_then(|rest| rest.first_chunk_mut());
        *room.ok_or(NoRoom)? = self.cookie;
        Ok(len + TAG_SIZE)
    }
}

impl From<Refused> for Reject {
    fn from(refused: Refused) -> Self {
        Self {
            refused,
            cookie: Ticket::default(),
        }
    }
}
