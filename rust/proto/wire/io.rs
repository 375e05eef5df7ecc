// SPDX-License-Identifier: GPL-2.0

//! The raw layout of what crosses an I/O connection of a `block` export.

#![forbid(unsafe_code)]

use core::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// [`Command::op`]: bytes of the export go to the client.
pub const OP_READ: u8 = 1;
/// [`Command::op`]: bytes come from the client.
pub const OP_WRITE: u8 = 2;
/// [`Command::op`]: what was written is to last.
pub const OP_FLUSH: u8 = 3;
/// [`Command::op`]: the contents are of no use any more.
pub const OP_DISCARD: u8 = 4;
/// [`Command::op`]: the contents become zeroes.
pub const OP_WRITE_ZEROES: u8 = 5;
/// [`Command::op`]: the contents, and all copies of them, cannot be got back any more.
pub const OP_SECURE_ERASE: u8 = 6;
/// [`Command::op`]: a change of the persistent reservation.
pub const OP_RESERVE: u8 = 7;
/// [`Command::op`]: the persistent reservation and its registrants, as a [`Report`].
pub const OP_REPORT: u8 = 8;

/// The low byte of [`Command::len`] of [`OP_RESERVE`]: registers a key.
pub const RESERVE_REGISTER: u8 = 1;
/// The same: reserves the export.
pub const RESERVE_RESERVE: u8 = 2;
/// The same: gives the reservation back.
pub const RESERVE_RELEASE: u8 = 3;
/// The same: removes another key, and its reservation.
pub const RESERVE_PREEMPT: u8 = 4;
/// The same: removes all keys and the reservation.
pub const RESERVE_CLEAR: u8 = 5;
/// The third byte of [`Command::len`] of a registration: the old key does not matter.
pub const RESERVE_IGNORE_OLD: u8 = 1;
/// Registrants of an export, at most.
pub const REGISTRANTS_MAX: usize = 32;

/// [`Command::flags`] of a write: it is to last when it is answered.
pub const FLAG_FUA: u8 = 1 << 0;
/// [`Command::flags`]: the data of a write follow the command in its message; those of a read may
/// be the answer.
pub const FLAG_INLINE: u8 = 1 << 1;
/// [`Command::flags`] of a write of zeroes: keep the blocks allocated.
pub const FLAG_NO_UNMAP: u8 = 1 << 2;
/// [`Command::flags`]: the client had to hold back commands, as its credit was used up.
pub const FLAG_PRESSED: u8 = 1 << 3;
/// [`Command::flags`] of a write: after a failure, all of it or nothing is on the device.
pub const FLAG_ATOMIC: u8 = 1 << 4;

/// Client wants I/O of a `block` export; on an I/O connection. With [`FLAG_INLINE`] the data
/// follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Command {
    /// `OP_*`.
    pub op: u8,
    /// `FLAG_*`.
    pub flags: u8,
    /// Chosen by the client, less than the depth; free again once answered.
    pub tag: U16,
    /// Any number; the response has it, too.
    pub generation: U32,
    /// Length, in bytes.
    pub len: U32,
    /// Remote key of the client's memory.
    pub rkey: U32,
    /// First byte of the export.
    pub offset: U64,
    /// Remote address of the client's memory.
    pub addr: U64,
}

/// Server is done with a [`Command`]; on the same connection.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Response {
    /// How it ended.
    pub status: U16,
    /// As in the command.
    pub tag: U16,
    /// As in the command.
    pub generation: U32,
    /// Commands in flight on this connection that the server has receives for, from now on.
    pub credit: U16,
    /// Zero.
    pub reserved: [u8; 6],
}

/// The answer to [`OP_REPORT`], as the data of a read.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Report {
    /// How often the registrations have changed.
    pub generation: U32,
    /// Type of the reservation; 0 for none.
    pub kind: u8,
    /// Registrants.
    pub count: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// Key of the holder; 0 if all registrants hold it, or nobody does.
    pub holder: U64,
    /// Keys of the registrants, the rest zero.
    pub keys: [U64; REGISTRANTS_MAX],
}

const _: () = {
    assert!(size_of::<Report>() == 272);
    assert!(size_of::<Command>() == 32);
    assert!(size_of::<Response>() == 16);
};
