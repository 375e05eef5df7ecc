// SPDX-License-Identifier: GPL-2.0

//! The farblk wire protocol, as pure functions from bytes to validated types and back.
//!
//! Nothing here allocates, sleeps, locks or panics, and nothing names a kernel type: the same
//! source is compiled into the module and into the host tests.
//!
//! Every message has one parser, which takes the bytes that were received (the caller cuts the
//! slice to the received length) and returns a validated type or says what is wrong, and one
//! encoder, which writes every byte of the message into the caller's buffer and returns its length.
//! [`wire`] holds the raw layout; only the parsers and encoders beside it read or write those
//! structs.
//!
//! The layout and the exchange are described in the page `protocol.rst`; the C view of the same is
//! `include/uapi/linux/farblk.h`.

#![forbid(unsafe_code)]

pub mod atomic;
pub mod auth;
pub mod challenge;
pub mod command;
pub mod event;
pub mod export;
pub mod extent;
pub mod fence;
pub mod frame;
pub mod geometry;
pub mod grant;
pub mod handshake;
pub mod key;
pub mod limits;
pub mod list;
pub mod login;
pub mod logout;
pub mod message;
pub mod name;
pub mod persistent;
pub mod ping;
pub mod protection;
pub mod refusal;
pub mod request;
pub mod response;
pub mod text;
pub mod uuid;
pub mod wire;

pub use atomic::AtomicLimits;
pub use challenge::{Challenge, ChallengeReply, Public};
pub use command::{Command, CommandError, Operation, Remote, Span, Terms, Transfer};
pub use event::Event;
pub use export::{Access, BlockSize, Kind};
pub use extent::Extent;
pub use fence::Fence;
pub use geometry::{Geometry, Place, SlabShift};
pub use grant::{Grant, GrantReply, GrantReplyWriter, GrantRequest};
pub use handshake::{ConnectReply, ConnectRequest, Connection, Reject};
pub use limits::BlockLimits;
pub use list::{ListEntry, ListReply, ListReplyWriter, ListRequest};
pub use login::{Backing, Login, LoginReply};
pub use logout::{Logout, LogoutReply};
pub use message::{Message, NoRoom, ReplyError};
pub use name::Name;
pub use persistent::{Report, ReservationType, Reserve};
pub use ping::{Ping, Pong};
pub use protection::Protection;
pub use refusal::{Malformed, Refusal, Refused};
pub use request::Request;
pub use response::{Delivery, Response, Status};
pub use text::Text;
pub use uuid::Uuid;
