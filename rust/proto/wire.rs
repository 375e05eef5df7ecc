// SPDX-License-Identifier: GPL-2.0

//! The raw layout of everything that crosses the wire.
//!
//! All integers are little endian and all structs are free of padding and of alignment needs.
//! Fields named `reserved` are written as zero; the reader ignores them, but for those of
//! [`Response`], which have to be zero. The fields carry no promise: a value is only to be trusted
//! once a parser beside this module has turned it into a validated type.

#![forbid(unsafe_code)]

use core::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod io;

pub use io::*;

/// First four bytes of all connection private data: the characters `FARB`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FARB");
/// Oldest protocol version this code speaks.
pub const VERSION_MIN: u16 = 8;
/// Newest protocol version this code speaks. Version 9 had requests to measure round trips with,
/// and is retired: the next one is 10, and has to raise [`VERSION_MIN`] to 10, or two newer peers
/// could agree on 9.
pub const VERSION_MAX: u16 = 8;
/// TCP/RDMA port a server listens on unless told otherwise.
pub const PORT: u16 = 7420;

/// Bytes of private data the RDMA CM lets a connection request carry.
pub const CONNECT_REQUEST_MAX: usize = 56;
/// Bytes of private data the RDMA CM lets a connection reply carry.
pub const CONNECT_REPLY_MAX: usize = 196;
/// Bytes of private data the RDMA CM lets a rejection carry.
pub const REJECT_MAX: usize = 148;

/// Bytes of the tag of a control message, and of a ticket.
pub const TAG_SIZE: usize = 16;
/// Largest control message, in bytes. A receive buffer has room for its tag, too.
pub const MESSAGE_MAX: usize = 4096 - TAG_SIZE;
/// Size of a name field; a name has at most one byte less and is padded with zeroes.
pub const NAME_SIZE: usize = 64;
/// Size of the text of a refusal, in bytes.
pub const TEXT_SIZE: usize = 96;
/// Most grants that fit into one [`GrantReply`] message.
pub const GRANTS_MAX: usize = (MESSAGE_MAX - size_of::<GrantReply>()) / size_of::<Grant>();
/// Most slabs that an export of RAM may have: a client keeps an entry of 16 bytes for each.
pub const SLABS_MAX: u32 = 1 << 20;
/// Most entries that fit into one [`ListReply`] message.
pub const LIST_ENTRIES_MAX: usize = (MESSAGE_MAX - size_of::<ListReply>()) / size_of::<ListEntry>();

/// Paths of a map; the index of one is below it.
pub const PATHS_MAX: u8 = 8;

/// Most commands in flight on an I/O connection.
pub const DEPTH_MAX: u16 = 1024;
/// Most data that may follow a [`Command`] in its message, or be the answer to it, in bytes.
pub const INLINE_MAX: u32 = 16 << 10;
/// Least that [`LoginReply::max_io`] may be, in bytes.
pub const IO_SIZE_MIN: u32 = 64 << 10;
/// Most that [`LoginReply::max_io`] may be, in bytes.
pub const IO_SIZE_MAX: u32 = 1 << 20;
/// Largest physical block, in bytes.
pub const PHYSICAL_BLOCK_SIZE_MAX: u32 = 1 << 20;
/// Most that [`LoginReply::io_min`] and [`LoginReply::io_opt`] may be, in bytes. The kernel reads
/// ahead up to twice the latter.
pub const IO_HINT_MAX: u32 = 16 << 20;

/// [`ConnectRequest::kind`]: a control connection.
pub const CONNECTION_CONTROL: u8 = 0;
/// [`ConnectRequest::kind`]: an I/O queue of a session.
pub const CONNECTION_IO: u8 = 1;

/// [`Header::kind`] of [`Login`].
pub const LOGIN: u16 = 1;
/// [`Header::kind`] of [`GrantRequest`].
pub const GRANT: u16 = 2;
/// [`Header::kind`] of [`ListRequest`].
pub const LIST: u16 = 3;
/// [`Header::kind`] of the end of a session, which is a [`Header`] alone.
pub const LOGOUT: u16 = 4;
/// [`Header::kind`] of [`Extent`].
pub const EXTENT: u16 = 5;
/// [`Header::kind`] of a sign of life that is to be answered, which is a [`Header`] alone.
pub const PING: u16 = 6;
/// [`Header::kind`] of [`Fence`], from the client.
pub const FENCE: u16 = 7;
/// [`Header::kind`] of the answer to [`PING`], which is a [`Header`] alone.
pub const PONG: u16 = 9;
/// [`Header::kind`] of [`Fence`], from the server.
pub const FENCED: u16 = 10;
/// [`Header::kind`] of [`Flushed`].
pub const FLUSHED: u16 = 12;
/// [`Header::kind`] of [`Challenge`].
pub const CHALLENGE: u16 = 13;
/// Set in [`Header::kind`] of a reply, beside the kind of the request.
pub const REPLY: u16 = 0x8000;

/// [`Status::code`] of a request that was granted.
pub const STATUS_OK: u16 = 0;

/// [`LoginReply::features`]: what was written may be lost until it is flushed.
pub const FEATURE_WRITE_CACHE: u8 = 1 << 0;
/// [`LoginReply::features`]: a write can be made to last by itself.
pub const FEATURE_FUA: u8 = 1 << 1;
/// [`LoginReply::features`]: seeking costs time.
pub const FEATURE_ROTATIONAL: u8 = 1 << 2;

/// [`Login::features`]: the client's device takes a SEND that invalidates a key.
pub const LOGIN_REMOTE_INVALIDATE: u8 = 1 << 0;

/// [`LoginReply::flags`]: the server knew the reservation key that the login resumes.
pub const LOGIN_REMEMBERED: u16 = 1 << 0;

/// What the private data of the CM REQ begin with in every version.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectVersions {
    /// [`MAGIC`].
    pub magic: U32,
    /// Oldest version the client speaks.
    pub min: U16,
    /// Newest version the client speaks.
    pub max: U16,
}

/// Private data of the CM REQ. Magic and versions keep their place in every version.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectRequest {
    /// [`MAGIC`].
    pub magic: U32,
    /// Oldest version the client speaks.
    pub version_min: U16,
    /// Newest version the client speaks.
    pub version_max: U16,
    /// [`CONNECTION_CONTROL`] or [`CONNECTION_IO`].
    pub kind: u8,
    /// Zero.
    pub reserved: u8,
    /// Index of the I/O queue; 0 on a control connection.
    pub queue: U16,
    /// Zero.
    pub reserved2: U32,
    /// Session the I/O queue belongs to; 0 on a control connection.
    pub session: U64,
    /// Epoch of the path.
    pub epoch: U64,
    /// Binds an I/O queue to a session with a key; zero otherwise.
    pub ticket: [u8; TAG_SIZE],
}

/// Private data of the CM REP.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectReply {
    /// [`MAGIC`].
    pub magic: U32,
    /// Version both sides use on this connection.
    pub version: U16,
    /// Zero.
    pub reserved: U16,
    /// Binds an I/O queue to a session with a key; zero otherwise.
    pub ticket: [u8; TAG_SIZE],
}

/// Private data of the CM REJ. Keeps its layout in every version; a cookie of [`TAG_SIZE`] bytes
/// may follow it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reject {
    /// [`MAGIC`].
    pub magic: U32,
    /// Oldest version the server speaks.
    pub version_min: U16,
    /// Newest version the server speaks.
    pub version_max: U16,
    /// Why; never [`STATUS_OK`].
    pub status: Status,
}

/// Outcome of a request, in code and words.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Status {
    /// [`STATUS_OK`] or the code of a `Refusal`.
    pub code: U16,
    /// Bytes of `text` in use.
    pub text_len: U16,
    /// Zero.
    pub reserved: U32,
    /// UTF-8, the rest zero.
    pub text: [u8; TEXT_SIZE],
}

/// Start of every control message.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// What the message is.
    pub kind: U16,
    /// Length of the whole message with this header, in bytes.
    pub length: U16,
    /// Chosen by the client; a reply carries that of its request.
    pub sequence: U32,
}

/// Start of every reply. A refused request is answered with this alone.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Reply {
    /// Kind is that of the request, with [`REPLY`].
    pub header: Header,
    /// Whether the rest of the message follows.
    pub status: Status,
}

/// Asks the server to prove that it has a key, and begins an exchange of keys.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Challenge {
    /// Kind [`CHALLENGE`].
    pub header: Header,
    /// The suites that the client offers, one bit each.
    pub suites: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// Names the key.
    pub key_id: [u8; 8],
    /// Random.
    pub nonce: [u8; 32],
    /// The client's public value.
    pub point: [u8; 32],
}

/// Reply to a [`Challenge`].
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChallengeReply {
    /// Header and status.
    pub reply: Reply,
    /// The suite that the server chose, one bit.
    pub suite: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// Random.
    pub nonce: [u8; 32],
    /// The server's public value.
    pub point: [u8; 32],
    /// Shows that the server has the key.
    pub proof: [u8; TAG_SIZE],
}

/// Client asks for a session on an export.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Login {
    /// Kind [`LOGIN`].
    pub header: Header,
    /// UUID of the client host.
    pub host_id: [u8; 16],
    /// Name of the client host.
    pub host_name: [u8; NAME_SIZE],
    /// UUID of the client's map.
    pub map_uuid: [u8; 16],
    /// Epoch of the path.
    pub epoch: U64,
    /// Name of the export.
    pub export_name: [u8; NAME_SIZE],
    /// Access asked for: 0 read only, 1 read and write.
    pub access: u8,
    /// Index of the path, less than [`PATHS_MAX`].
    pub path: u8,
    /// I/O queues asked for.
    pub queues: U16,
    /// Commands in flight per I/O queue asked for.
    pub depth: U16,
    /// Protection of the I/O connections: 0 none, 1 checksums, 2 encryption.
    pub protection: u8,
    /// [`LOGIN_REMOTE_INVALIDATE`], or zero.
    pub features: u8,
    /// Data behind a command asked for, in bytes.
    pub inline_size: U32,
    /// Between two signs of life of the client, in milliseconds; 0 for none.
    pub heartbeat_ms: U32,
    /// Random, for each load of the client's module.
    pub boot: U64,
    /// Random, for each time that the map is enabled.
    pub incarnation: U64,
    /// The reservation key to resume; 0 for none.
    pub resume: U64,
    /// How long the map holds I/O while it has no path, in milliseconds; all ones for ever.
    pub no_path_timeout_ms: U32,
    /// Zero.
    pub reserved2: U32,
}

/// Server opened a session.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LoginReply {
    /// Kind [`LOGIN`] | [`REPLY`].
    pub reply: Reply,
    /// Session to name when the I/O queues connect.
    pub session: U64,
    /// UUID of the export.
    pub export_uuid: [u8; 16],
    /// Identity of the export's contents, or of its server's life.
    pub instance: [u8; 16],
    /// Size of the export, in bytes.
    pub size: U64,
    /// Access granted: 0 read only, 1 read and write.
    pub access: u8,
    /// Kind of the export: 0 block, 1 ram.
    pub kind: u8,
    /// Base-two logarithm of the slab size in bytes; 0 for block.
    pub slab_shift: u8,
    /// `FEATURE_*` flags.
    pub features: u8,
    /// I/O queues granted.
    pub queues: U16,
    /// Commands in flight per I/O queue granted; 0 for ram.
    pub depth: U16,
    /// Data behind a command granted, in bytes; 0 for ram.
    pub inline_size: U32,
    /// Logical block size, in bytes.
    pub logical_block_size: U32,
    /// Physical block size, in bytes.
    pub physical_block_size: U32,
    /// Smallest I/O that costs no more than a larger one, in bytes.
    pub io_min: U32,
    /// I/O size liked best, in bytes; 0 for none.
    pub io_opt: U32,
    /// Most in one read or write, in bytes.
    pub max_io: U32,
    /// Most in one discard, in bytes; 0 for no discards.
    pub max_discard: U32,
    /// Unit of discards, in bytes; 0 for no discards.
    pub discard_granularity: U32,
    /// Most in one write of zeroes, in bytes; 0 for none.
    pub max_write_zeroes: U32,
    /// Commands in flight per I/O queue that the server has receives for at first; 0 for ram.
    pub credit: U16,
    /// `LOGIN_*` flags.
    pub flags: U16,
    /// Under what the map has the export.
    pub reservation_key: U64,
    /// UUID of the server host.
    pub server_id: [u8; 16],
    /// How long the map keeps its place without a path, in milliseconds.
    pub lease_ms: U32,
    /// Of the extent: larger with each change of an instance.
    pub extent_number: U32,
    /// Most in one atomic write, in bytes; 0 for no atomic writes.
    pub atomic_max: U32,
    /// Unit of atomic writes, in bytes; 0 for no atomic writes.
    pub atomic_unit_min: U32,
    /// Largest atomic write that a user may ask for, in bytes; 0 for no atomic writes.
    pub atomic_unit_max: U32,
    /// What no atomic write crosses a multiple of, in bytes; 0 for none.
    pub atomic_boundary: U32,
    /// Most in one secure erase, in bytes; 0 for no secure erases.
    pub max_secure_erase: U32,
    /// Unit of secure erases, in bytes; 0 for no secure erases.
    pub secure_erase_granularity: U32,
}

/// Client asks for the memory regions of a range of slabs.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GrantRequest {
    /// Kind [`GRANT`].
    pub header: Header,
    /// First slab.
    pub first: U32,
    /// Number of slabs.
    pub count: U32,
}

/// Server grants slabs; `count` times [`Grant`] follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct GrantReply {
    /// Kind [`GRANT`] | [`REPLY`].
    pub reply: Reply,
    /// First slab, as asked.
    pub first: U32,
    /// Number of grants that follow; may be less than asked.
    pub count: U32,
}

/// One slab as the client reaches it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Grant {
    /// Remote address of the slab's first byte.
    pub addr: U64,
    /// Length of the slab, in bytes.
    pub length: U32,
    /// Remote key of the slab.
    pub rkey: U32,
}

/// Client asks which exports it may use.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ListRequest {
    /// Kind [`LIST`].
    pub header: Header,
    /// UUID of the client host.
    pub host_id: [u8; 16],
    /// Name of the client host.
    pub host_name: [u8; NAME_SIZE],
    /// Index of the first export wanted.
    pub first: U32,
    /// Zero.
    pub reserved: U32,
}

/// Server lists exports; `count` times [`ListEntry`] follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ListReply {
    /// Kind [`LIST`] | [`REPLY`].
    pub reply: Reply,
    /// Index of the first entry, as asked.
    pub first: U32,
    /// Number of entries that follow.
    pub count: U32,
    /// Number of exports the client may use.
    pub total: U32,
    /// Zero.
    pub reserved: U32,
}

/// One export in a list.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ListEntry {
    /// Name of the export.
    pub name: [u8; NAME_SIZE],
    /// UUID of the export.
    pub uuid: [u8; 16],
    /// Size of the export, in bytes.
    pub size: U64,
    /// Kind of the export: 0 block, 1 ram.
    pub kind: u8,
    /// Access this client may have: 0 read only, 1 read and write.
    pub access: u8,
    /// Maps that have a path now.
    pub clients: U16,
    /// Most maps the export takes.
    pub max_clients: U16,
    /// Zero.
    pub reserved: U16,
}

/// Server says, unasked, what became of the export.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Extent {
    /// Kind [`EXTENT`], sequence 0.
    pub header: Header,
    /// Size of the export now, in bytes.
    pub size: U64,
    /// Access now: 0 read only, 1 read and write.
    pub access: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Larger with each change of the extent of an instance.
    pub number: U32,
}

/// Server says that it has flushed the device of an export, and that all that was answered before
/// lasts.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Flushed {
    /// Kind [`FLUSHED`], sequence 0.
    pub header: Header,
    /// The instance of the export.
    pub instance: [u8; 16],
    /// Number of its extent.
    pub number: U32,
    /// Zero.
    pub reserved: U32,
}

/// Client wants a path fenced up to an epoch, or server says that it is.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Fence {
    /// Kind [`FENCE`], or kind [`FENCED`] and sequence 0.
    pub header: Header,
    /// Epoch of the path.
    pub epoch: U64,
    /// Index of the path, less than [`PATHS_MAX`].
    pub path: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

const _: () = {
    assert!(size_of::<ConnectRequest>() == 48);
    assert!(size_of::<ConnectRequest>() <= CONNECT_REQUEST_MAX);
    assert!(size_of::<ConnectReply>() == 24);
    assert!(size_of::<ConnectReply>() <= CONNECT_REPLY_MAX);
    assert!(size_of::<Reject>() == 112);
    assert!(size_of::<Reject>() + TAG_SIZE <= REJECT_MAX);
    assert!(size_of::<Status>() == 104);
    assert!(size_of::<Header>() == 8);
    assert!(size_of::<Reply>() == 112);
    assert!(size_of::<Challenge>() == 88);
    assert!(size_of::<ChallengeReply>() == 200);
    assert!(size_of::<Login>() == 224);
    assert!(size_of::<LoginReply>() == 264);
    assert!(size_of::<GrantRequest>() == 16);
    assert!(size_of::<GrantReply>() == 120);
    assert!(size_of::<Grant>() == 16);
    assert!(size_of::<ListRequest>() == 96);
    assert!(size_of::<ListReply>() == 128);
    assert!(size_of::<ListEntry>() == 96);
    assert!(size_of::<Extent>() == 24);
    assert!(size_of::<Flushed>() == 32);
    assert!(size_of::<Fence>() == 24);
    assert!(GRANTS_MAX == 247);
    assert!(LIST_ENTRIES_MAX == 41);
};
