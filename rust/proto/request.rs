// SPDX-License-Identifier: GPL-2.0

//! What a client may send on a control connection, as the server reads it.

#![forbid(unsafe_code)]

use super::challenge::Challenge;
use super::echo::EchoRequest;
use super::fence::Fence;
use super::grant::GrantRequest;
use super::list::ListRequest;
use super::login::Login;
use super::message::Message;
use super::refusal::Malformed;
use super::scratch::ScratchRequest;
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
    /// Memory to measure round trips with.
    Scratch(ScratchRequest),
    /// A queue pair that echoes datagrams.
    Echo(EchoRequest),
    /// The end of the session.
    Logout,
    /// A sign of life; answered by a [`Pong`](super::Pong) of the same contents.
    Ping,
    /// Nothing of a path is to reach the export any more; answered by
    /// [`Event::Fenced`](super::Event::Fenced).
    Fence(Fence),
}

impl Message<'_> {
    /// Reads the request of a connection that uses `version`; an error is to be answered with
    /// [`Message::refuse`].
    pub fn request(&self, version: u16) -> Result<Request, Malformed> {
        match self.kind() {
            wire::CHALLENGE => Challenge::from_wire(&self.whole()?).map(Request::Challenge),
            wire::LOGIN => Login::from_wire(&self.whole()?).map(Request::Login),
            wire::GRANT => GrantRequest::from_wire(&self.whole()?).map(Request::Grant),
            wire::SCRATCH if version >= wire::VERSION_SCRATCH => {
                ScratchRequest::from_wire(&self.whole()?).map(Request::Scratch)
            }
            wire::ECHO if version >= wire::VERSION_SCRATCH => {
                EchoRequest::from_wire(&self.whole()?).map(Request::Echo)
            }
            wire::LIST => ListRequest::from_wire(&self.whole()?).map(Request::List),
            wire::LOGOUT => self.whole::<wire::Header>().map(|_| Request::Logout),
            wire::PING if version >= wire::VERSION_SCRATCH => Ok(Request::Ping),
            wire::PING => self.whole::<wire::Header>().map(|_| Request::Ping),
            wire::FENCE => Fence::from_wire(&self.whole()?).map(Request::Fence),
            _ => Err(Malformed("unknown kind of request")),
        }
    }
}
