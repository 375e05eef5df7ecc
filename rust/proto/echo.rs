// SPDX-License-Identifier: GPL-2.0

//! Echoes: a queue pair of the server sends the datagrams of a client back to it, so that it can
//! measure round trips. It belongs to a control connection without a login, and ends with it.

#![forbid(unsafe_code)]

use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::name::Name;
use super::refusal::Malformed;
use super::uuid::Uuid;
use super::wire::{self, ECHO_COUNT_MAX, ECHO_MTU_MIN, ECHO_SIZE_MAX};
use core::mem::size_of;
use zerocopy::little_endian::U32;

/// A queue pair for datagrams, as its peer sends to it.
///
/// The number is that of a queue pair that a host may have for itself: neither one of the subnet's
/// management nor that of multicast. The Q_Key is one that a datagram can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    number: u32,
    qkey: u32,
}

impl QueuePair {
    /// Makes the name of the queue pair of this number and Q_Key. Fails if there can be none.
    pub fn new(number: u32, qkey: u32) -> Result<Self, Malformed> {
        if !(2..0xff_ffff).contains(&number) {
            return Err(Malformed("no queue pair for datagrams has that number"));
        }
        if qkey >> 31 != 0 {
            return Err(Malformed("a datagram cannot carry that Q_Key"));
        }
        Ok(Self { number, qkey })
    }

    /// Returns the number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the Q_Key.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }
}

/// A client asks for a queue pair that echoes its datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoRequest {
    /// UUID of the client host; never nil.
    pub host_id: Uuid,
    /// Name of the client host.
    pub host_name: Name,
    /// The export that admits the host.
    pub export: Name,
    /// The queue pair of the client.
    pub client: QueuePair,
    size: u16,
    count: u16,
}

impl EchoRequest {
    /// Makes a request for echoes of up to `size` bytes, of which `count` are under way at once.
    /// Fails if one of them is 0, or they are more than [`ECHO_SIZE_MAX`] and [`ECHO_COUNT_MAX`].
    pub fn new(
        (host_id, host_name): (Uuid, Name),
        export: Name,
        client: QueuePair,
        (size, count): (u32, u32),
    ) -> Result<Self, Malformed> {
        let within = |value: u32, most: u16| match u16::try_from(value) {
            Ok(value) if value != 0 && value <= most => Some(value),
            _ => None,
        };
        let size = within(size, ECHO_SIZE_MAX).ok_or(Malformed("no datagram has that size"))?;
        let count = within(count, ECHO_COUNT_MAX);
        Ok(Self {
            host_id,
            host_name,
            export,
            client,
            size,
            count: count.ok_or(Malformed("there cannot be so many datagrams at once"))?,
        })
    }

    /// Returns how many bytes a datagram has at most.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns how many datagrams are under way at once.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Writes the request into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::EchoRequest {
            header: header(wire::ECHO, sequence, size_of::<wire::EchoRequest>()),
            host_id: *self.host_id.as_bytes(),
            host_name: self.host_name.to_wire(),
            export_name: self.export.to_wire(),
            qp_number: self.client.number.into(),
            qkey: self.client.qkey.into(),
            size: u32::from(self.size).into(),
            count: u32::from(self.count).into(),
            reserved: [0; 8],
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::EchoRequest) -> Result<Self, Malformed> {
        let host = (
            Uuid::from_wire(wire.host_id, "the host id is nil")?,
            Name::from_wire(&wire.host_name)?,
        );
        Self::new(
            host,
            Name::from_wire(&wire.export_name)?,
            QueuePair::new(wire.qp_number.get(), wire.qkey.get())?,
            (wire.size.get(), wire.count.get()),
        )
    }
}

/// The queue pair of a server that echoes datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoReply {
    /// Where the client sends them.
    pub server: QueuePair,
    /// The bytes that a datagram can have at the server's port; one from [`EchoReply::parse`] is
    /// from [`ECHO_MTU_MIN`] to [`ECHO_SIZE_MAX`].
    pub mtu: u32,
}

impl EchoReply {
    /// Parses the reply with this `sequence`.
    pub fn parse(bytes: &[u8], sequence: u32) -> Result<Self, ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::ECHO, sequence)?;
        let wire: wire::EchoReply = message.whole()?;
        let mtu = wire.mtu.get();
        if !(ECHO_MTU_MIN.into()..=ECHO_SIZE_MAX.into()).contains(&mtu) {
            return Err(Malformed("no port takes datagrams of that size").into());
        }
        Ok(Self {
            server: QueuePair::new(wire.qp_number.get(), wire.qkey.get())?,
            mtu,
        })
    }

    /// Writes the reply into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::EchoReply {
            reply: granted(wire::ECHO, sequence, size_of::<wire::EchoReply>()),
            qp_number: self.server.number.into(),
            qkey: self.server.qkey.into(),
            mtu: self.mtu.into(),
            reserved: U32::ZERO,
        };
        write(&wire, buf)
    }
}
