// SPDX-License-Identifier: GPL-2.0

//! The raw layout of what a client asks for to measure round trips with.

#![forbid(unsafe_code)]

use super::{Header, Reply, NAME_SIZE};
#[cfg(doc)]
use super::{ECHO, REPLY, SCRATCH};
use zerocopy::little_endian::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Unit of the size of a scratch region, in bytes.
pub const SCRATCH_UNIT: u32 = 4 << 10;
/// Most that a scratch region may have, in bytes.
pub const SCRATCH_MAX: u32 = 64 << 10;

/// Most bytes of a datagram that is echoed: the largest MTU of a port.
pub const ECHO_SIZE_MAX: u16 = 4 << 10;
/// The smallest MTU of a port.
pub const ECHO_MTU_MIN: u16 = 256;
/// Most datagrams that are under way at once.
pub const ECHO_COUNT_MAX: u16 = 32;

/// Client asks for memory to measure round trips with.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ScratchRequest {
    /// Kind [`SCRATCH`].
    pub header: Header,
    /// UUID of the client host.
    pub host_id: [u8; 16],
    /// Name of the client host.
    pub host_name: [u8; NAME_SIZE],
    /// Name of the export that admits the host.
    pub export_name: [u8; NAME_SIZE],
    /// Size, in bytes: of whole [`SCRATCH_UNIT`], not 0, at most [`SCRATCH_MAX`].
    pub size: U32,
    /// Zero.
    pub reserved: U32,
}

/// Server has made a scratch region.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ScratchReply {
    /// Kind [`SCRATCH`] | [`REPLY`].
    pub reply: Reply,
    /// Remote address of the region's first byte.
    pub addr: U64,
    /// Length of the region, in bytes, as asked.
    pub length: U32,
    /// Remote key of the region.
    pub rkey: U32,
    /// `SCRATCH_*` flags.
    pub flags: U32,
    /// Zero.
    pub reserved: U32,
}

/// Client asks for a queue pair that echoes its datagrams.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EchoRequest {
    /// Kind [`ECHO`].
    pub header: Header,
    /// UUID of the client host.
    pub host_id: [u8; 16],
    /// Name of the client host.
    pub host_name: [u8; NAME_SIZE],
    /// Name of the export that admits the host.
    pub export_name: [u8; NAME_SIZE],
    /// Number of the client's queue pair: more than 1, less than 0xffffff.
    pub qp_number: U32,
    /// Its Q_Key: less than 0x80000000.
    pub qkey: U32,
    /// Bytes of a datagram, not 0, at most [`ECHO_SIZE_MAX`].
    pub size: U32,
    /// Datagrams under way at once, not 0, at most [`ECHO_COUNT_MAX`].
    pub count: U32,
    /// Zero.
    pub reserved: [u8; 8],
}

/// Server has made a queue pair that echoes datagrams.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EchoReply {
    /// Kind [`ECHO`] | [`REPLY`].
    pub reply: Reply,
    /// Number of the server's queue pair.
    pub qp_number: U32,
    /// Its Q_Key.
    pub qkey: U32,
    /// Bytes that a datagram can have at the server's port: from [`ECHO_MTU_MIN`] to
    /// [`ECHO_SIZE_MAX`].
    pub mtu: U32,
    /// Zero.
    pub reserved: U32,
}
