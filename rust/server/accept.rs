// SPDX-License-Identifier: GPL-2.0

//! A connection that a client asks for: the server accepts it, or refuses it with a reason.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::link::keys::{
    Ends,
    Tickets,
    Transcript, //
};
use crate::proto::{
    handshake::{
        self,
        Ticket, //
    },
    wire::{
        CONNECT_REPLY_MAX,
        CONNECT_REQUEST_MAX,
        REJECT_MAX, //
    },
    ConnectReply,
    ConnectRequest,
    NoRoom,
    Refusal,
    Refused,
    Reject, //
};
use crate::rdma::cm::{
    self,
    CmEvents,
    CmId,
    ConnParam, //
};

/// RNR timer, 40.96 ms: how long the HCA of a client backs off while a hostile client holds all
/// receives of a poller. It tries [`RETRY_COUNT`](crate::RETRY_COUNT) times at most, within which
/// the session of the hostile client must have ended.
const RNR_TIMER: u8 = 24;
/// 4.096 us x 2^19 = 2.1 s: how long the HCA waits for an acknowledgment before it sends again.
const ACK_TIMEOUT: u8 = 19;

/// A connection request that was not answered yet.
pub(super) struct PendingConnection {
    /// The id that a queue pair is made for.
    pub(super) id: Arc<CmId>,
    /// The epoch of the path.
    pub(super) epoch: u64,
    /// The version of the protocol that the connection uses.
    pub(super) version: u16,
    /// The private data of the request, and their length.
    request: ([u8; CONNECT_REQUEST_MAX], usize),
    /// RDMA READs that the client wants to have under way at once.
    reads: u8,
    /// RDMA READs that the client lets the server have under way at once.
    served: u8,
}

impl PendingConnection {
    /// Takes a request for a connection of `epoch` that speaks `version` of the protocol; `events`
    /// receives what happens to the connection. Runs in the connection manager's handler. May
    /// sleep.
    pub(super) fn new(
        request: cm::ConnectRequest<'_>,
        (epoch, version): (u64, u16),
        events: Arc<dyn CmEvents>,
    ) -> Result<Self> {
        let (reads, served) = (request.responder_resources(), request.initiator_depth());
        let known = ConnectRequest::known(request.private_data());
        let mut data = [0; CONNECT_REQUEST_MAX];
        data.iter_mut()
            .zip(known)
            .for_each(|(to, from)| *to = *from);
        let request_data = (data, known.len());
        Ok(Self {
            id: request.into_id(events)?,
            epoch,
            version,
            request: request_data,
            reads,
            served,
        })
    }

    /// Returns the private data of the request.
    fn request(&self) -> &[u8] {
        let (data, len) = &self.request;
        data.get(..*len).unwrap_or(data)
    }

    /// Returns both ends of the connection. That of this side has no queue pair before there is
    /// one. May sleep.
    pub(super) fn ends(&self) -> Result<Ends> {
        let (server, client) = self.id.ends()?;
        Ok(Ends { client, server })
    }

    /// Returns true if the request has the ticket that the keys of its session give it. May sleep.
    pub(super) fn has_ticket(&self, tickets: &Tickets) -> bool {
        let split = handshake::split_ticket(self.request());
        split
            .zip(self.ends().ok())
            .is_some_and(|((data, ticket), ends)| {
                tickets.check_request(data, &ends, ticket).is_ok()
            })
    }

    /// Accepts a control connection, whose queue pair exists. Returns what both sides have said so
    /// far. May sleep.
    ///
    /// Neither side has the key to a memory region on it.
    pub(super) fn accept_control(&self) -> Result<Transcript> {
        let reads = at_most(self.reads, 1);
        let reply = self.accept(reads, 0, None, |_| Ok(()))?;
        let ends = self.ends()?;
        Ok(Transcript::new(self.request(), reply.bytes(), &ends))
    }

    /// Accepts an I/O connection on which the client may have up to `max` RDMA READs under way. Its
    /// queue pair exists. May sleep.
    pub(super) fn accept_one_sided(&self, max: u32, tickets: Option<&Tickets>) -> Result {
        self.accept(at_most(self.reads, max), 0, tickets, |_| Ok(()))
            .map(drop)
    }

    /// Returns how many RDMA READs the server may have under way on an I/O connection, if its
    /// device can have `max`.
    pub(super) fn fetches_max(&self, max: u32) -> u8 {
        // With none, a READ would wait for ever and keep its memory.
        at_most(self.served, max).max(1)
    }

    /// Accepts an I/O connection on which the server may have up to `fetches_max` RDMA READs under
    /// way. Its queue pair exists. Before the client can send anything, `prepare` gets the tickets
    /// of the request and of the reply, if there are keys. May sleep.
    pub(super) fn accept_commands(
        &self,
        fetches_max: u8,
        tickets: Option<&Tickets>,
        prepare: impl FnOnce(Option<(&Tickets, &Ticket, &Ticket)>) -> Result,
    ) -> Result {
        self.accept(0, fetches_max, tickets, prepare).map(drop)
    }

    /// Accepts the connection, with a ticket if there are keys for it. Returns the private data of
    /// the reply.
    fn accept(
        &self,
        responder_resources: u8,
        initiator_depth: u8,
        tickets: Option<&Tickets>,
        prepare: impl FnOnce(Option<(&Tickets, &Ticket, &Ticket)>) -> Result,
    ) -> Result<Reply> {
        let mut reply = Reply::new(self.version)?;
        let request = handshake::split_ticket(self.request());
        if let Some((tickets, (_, request))) = tickets.zip(request) {
            let ends = self.ends()?;
            let mut made = Ticket::default();
            handshake::set_ticket(reply.bytes_mut(), |data| {
                made = tickets.reply(request, data, &ends);
                made
            });
            prepare(Some((tickets, request, &made)))?;
        } else {
            prepare(None)?;
        }
        self.id.set_min_rnr_timer(RNR_TIMER)?;
        // Otherwise it would be the timeout that the client asks for, which may be hours.
        self.id.set_ack_timeout(ACK_TIMEOUT)?;
        self.id.accept(&ConnParam {
            private_data: reply.bytes(),
            retry_count: crate::RETRY_COUNT,
            rnr_retry_count: crate::RETRY_COUNT,
            responder_resources,
            initiator_depth,
        })?;
        Ok(reply)
    }

    /// Refuses the connection with its reason. May sleep.
    pub(super) fn refuse(&self, refusal: Refusal) {
        let mut data = [0; REJECT_MAX];
        let reject = Reject::from(Refused::from(refusal));
        let len = reject.encode(&mut data).unwrap_or(0);
        // If even this fails, the client's attempt times out.
        let _ = self.id.reject(data.get(..len).unwrap_or(&[]));
    }
}

/// The private data of a connection reply.
struct Reply {
    data: [u8; CONNECT_REPLY_MAX],
    len: usize,
}

impl Reply {
    /// Makes one that names `version`, without a ticket.
    fn new(version: u16) -> Result<Self> {
        let mut data = [0; CONNECT_REPLY_MAX];
        let len = ConnectReply { version }.encode(&mut data);
        Ok(Self {
            len: len.map_err(|NoRoom| EMSGSIZE)?,
            data,
        })
    }

    fn bytes(&self) -> &[u8] {
        self.data.get(..self.len).unwrap_or(&self.data)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.get_mut(..self.len).unwrap_or_default()
    }
}

/// Refuses a connection request that no id was made of. Runs in the connection manager's handler.
pub(super) fn reject(request: cm::ConnectRequest<'_>, reject: impl Into<Reject>) {
    let mut data = [0; REJECT_MAX];
    let len = reject.into().encode(&mut data).unwrap_or(0);
    request.reject(data.get(..len).unwrap_or(&[]));
}

/// Returns the smaller one.
fn at_most(count: u8, limit: u32) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX).min(count)
}
