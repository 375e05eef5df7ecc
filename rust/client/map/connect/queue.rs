// SPDX-License-Identifier: GPL-2.0

//! One I/O connection of a path that is being made.

#![forbid(unsafe_code)]

use kernel::prelude::*;

use crate::client::{
    control::ControlConnection,
    io::{
        connection::{
            Connection,
            ConnectionConfig, //
        },
        multipath::{
            Connections,
            Multipath, //
        },
    },
    map::connect::Connector,
    target::Shown,
};
use crate::link::{
    channel::Side,
    cipher::Cipher,
    failure::Failure, //
};
use crate::proto::{
    self,
    LoginReply, //
};
use crate::session::Epoch;

impl Connector {
    /// Connects I/O connection `hw_queue`, and adds it to `connections`, where it stays if it has
    /// failed. The inner error is that there is no memory for it on one of the hosts. May sleep.
    pub(super) fn connect_queue(
        &self,
        (config, epoch): (&ConnectionConfig<'_, Multipath>, Epoch),
        control: &ControlConnection,
        connections: &mut Connections,
        login: &LoginReply,
        (hw_queue, polled): (u16, bool),
    ) -> Result<Result<(), Failure>, Failure> {
        let (connection, id) = match Connection::new(config, hw_queue, polled) {
            Err(failure) if failure.error == ENOMEM => return Ok(Err(failure)),
            made => made?,
        };
        connections.push(connection, GFP_KERNEL)?;
        // Only here: if it fails, the connection fails with the others, so that all of them are
        // drained in the same time.
        if let Some(connection) = connections.last() {
            connection.prepare()?;
        }
        let request = proto::Connection::Io {
            session: login.session,
            queue: hw_queue,
        };
        let shown = match control.channel().tickets() {
            Some(tickets) => Shown::Ticket(tickets),
            None => Shown::Nothing,
        };
        let connected = self
            .target
            .connect(&id, (request, epoch), shown, config.deadline);
        let connected = match connected.map_err(Failure::from) {
            Err(failure) if failure.error == ENOMEM => return Ok(Err(failure)),
            connected => connected?,
        };
        let tickets = control.channel().tickets();
        let tickets = tickets.map(|tickets| (tickets, &connected.request, &connected.reply));
        let cipher = Cipher::new(self.params.options.protection, Side::Client, tickets)?;
        if let Some(connection) = connections.last() {
            if let Some(cipher) = cipher {
                connection.set_cipher(cipher);
            }
            connection.set_up();
        }
        Ok(Ok(()))
    }
}
