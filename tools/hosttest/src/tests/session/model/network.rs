// SPDX-License-Identifier: GPL-2.0

//! The network: messages, the ends of connections, and which of them still matter.

use super::client::Op;
use super::server::Connection;
use super::{index, World};
use crate::session::{Epoch, PathId, ReservationKey};

/// The server's name for a connection. It is made of the [`End`] and the life of the server, so
/// that worlds are the same in which the same connections came up in another order.
pub(super) type Number = u32;

/// The client's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct End {
    pub(super) client: u8,
    /// Of the client: one more after each crash.
    pub(super) life: u8,
    pub(super) path: PathId,
    pub(super) epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Message {
    Login(End, Option<ReservationKey>),
    Welcome(End, Entry),
    /// The first one on the connection of the server's, if the client was told that it is not
    /// remembered: others make no difference.
    Ping(End, Number),
    Refused(End, bool),
    /// On the connection of the server's, for a path up to an epoch.
    Fence(End, Number, PathId, Epoch),
    Fenced(End, PathId, Epoch),
    /// The extent of the export has this number now.
    Extent(End, u8),
    /// All that was answered by this instance lasts, when the extent had this number.
    Flushed(End, u8, u8),
    Command(End, Number, Op),
    /// With what was read.
    Response(End, Op, u8),
}

impl Message {
    pub(super) fn to_client(self) -> Option<End> {
        match self {
            Self::Welcome(end, _) | Self::Refused(end, _) => Some(end),
            Self::Fenced(end, ..) | Self::Extent(end, _) | Self::Response(end, ..) => Some(end),
            Self::Flushed(end, ..) => Some(end),
            Self::Login(..) | Self::Ping(..) | Self::Fence(..) | Self::Command(..) => None,
        }
    }
}

/// What a server says to a client that is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Entry {
    /// The server's name for the connection.
    pub(super) number: Number,
    pub(super) server: u8,
    pub(super) instance: u8,
    /// The number of the extent.
    pub(super) extent: u8,
    pub(super) reservation_key: ReservationKey,
    /// The server knew the reservation key that was resumed.
    pub(super) remembered: bool,
}

impl World {
    /// Drops the messages that nobody can take any more.
    pub(super) fn forget(&mut self) {
        let (clients, connections) = (&self.clients, &self.server.connections);
        let alive = |number| connections.iter().any(|c| c.number == number && !c.killed);
        let matters = |message: &Message| match *message {
            Message::Login(..) => true,
            Message::Fence(_, number, ..)
            | Message::Command(_, number, _)
            | Message::Ping(_, number) => alive(number),
            Message::Welcome(end, _)
            | Message::Refused(end, _)
            | Message::Fenced(end, ..)
            | Message::Extent(end, _)
            | Message::Flushed(end, ..)
            | Message::Response(end, ..) => clients[usize::from(end.client)].expects(&end),
        };
        self.network.retain(matters);
    }

    pub(super) fn post(&mut self, message: Message) {
        if !self.network.contains(&message) {
            self.network.push(message);
            self.network.sort_unstable();
        }
    }

    /// A path of a client leads to a connection that the server has.
    pub(super) fn is_served(&self, client: usize, path: PathId, epoch: Epoch) -> bool {
        let end = End {
            client: index(client),
            life: self.clients[client].life,
            path,
            epoch,
        };
        let to = |message: &Message| match message {
            Message::Login(to, _) => *to == end,
            other => other.to_client() == Some(end),
        };
        let alive = |c: &Connection| c.end == end && !c.killed;
        self.server.connections.iter().any(alive)
            || self.server.waits_for(&end)
            || self.network.iter().any(to)
    }

    /// The client has this connection, too.
    pub(super) fn is_wanted(&self, connection: &Connection) -> bool {
        let end = connection.end;
        self.clients[usize::from(end.client)].expects(&end)
    }
}
