// SPDX-License-Identifier: GPL-2.0

//! What a client may send on a control connection, as the server reads it.

#![forbid(unsafe_code)]

use super::challenge::Challenge;
use super::fence::Fence;
use super::grant::GrantRequest;
use super::list::ListRequest;
use super::login::Login;
use super::message::Message;
use super::refusal::Malformed;
use super::wire;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A proof that the server has a key.
    Challenge(Challenge),
    /// A session on an export.
    Login(Login),
    /// The memory regions of a range of slabs.
    Grant(GrantRequest),
    /// The exports it may use.
    List(ListRequest),
    /// The end of the session.
    Logout,
    /// A sign of life; answered by a [`Pong`](super::Pong).
    Ping,
    /// Nothing of a path is to reach the export any more; answered by
    /// [`Event::Fenced`](super::Event::Fenced).
    Fence(Fence),
}

impl Message<'_> {
    /// Reads a request; an error is to be answered with [`Message::refuse`].
    pub fn request(&self) -> Result<Request, Malformed> {
        match self.kind() {
            wire::CHALLENGE => Challenge::from_wire(&self.whole()?).map(Request::Challenge),
            wire::LOGIN => Login::from_wire(&self.whole()?).map(Request::Login),
            wire::GRANT => GrantRequest::from_wire(&self.whole()?).map(Request::Grant),
            wire::LIST => ListRequest::from_wire(&self.whole()?).map(Request::List),
            wire::LOGOUT => self.whole::<wire::Header>().map(|_| Request::Logout),
            wire::PING => self.whole::<wire::Header>().map(|_| Request::Ping),
            wire::FENCE => Fence::from_wire(&self.whole()?).map(Request::Fence),
            _ => Err(Malformed("unknown kind of request")),
        }
    }
}
