// SPDX-License-Identifier: GPL-2.0

//! A connection that a client asks for: the server accepts it, or refuses it with a reason.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::proto::{
    wire::{
        CONNECT_REPLY_MAX,
        REJECT_MAX, //
    },
    ConnectReply,
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
/// 4.096 us x 2^19 = 2.1 s: how long the HCA waits for an acknowledgement before it sends again.
const ACK_TIMEOUT: u8 = 19;

/// A connection request that was not answered yet.
pub(super) struct PendingConnection {
    /// The id that a queue pair is made for.
    pub(super) id: Arc<CmId>,
    version: u16,
    /// RDMA READs that the client wants to have under way at once.
    reads: u8,
    /// RDMA READs that the client lets the server have under way at once.
    served: u8,
}

impl PendingConnection {
    /// Takes a request that speaks `version` of the protocol; `events` receives what happens to the
    /// connection. Runs in the connection manager's handler. May sleep.
    pub(super) fn new(
        request: cm::ConnectRequest<'_>,
        version: u16,
        events: Arc<dyn CmEvents>,
    ) -> Result<Self> {
        let (reads, served) = (request.responder_resources(), request.initiator_depth());
        Ok(Self {
            id: request.into_id(events)?,
            version,
            reads,
            served,
        })
    }

    /// Accepts a control connection, whose queue pair exists. May sleep.
    ///
    /// The client may have one RDMA READ under way. Without a key it can read no byte, but measure
    /// how long that takes.
    pub(super) fn accept_control(&self) -> Result {
        self.accept(at_most(self.reads, 1), 0)
    }

    /// Accepts an I/O connection on which the client may have up to `max` RDMA READs under way. Its
    /// queue pair exists. May sleep.
    pub(super) fn accept_one_sided(&self, max: u32) -> Result {
        self.accept(at_most(self.reads, max), 0)
    }

    /// Accepts an I/O connection on which the server may have up to `max` RDMA READs under way. Its
    /// queue pair exists. May sleep.
    pub(super) fn accept_commands(&self, max: u32) -> Result {
        // With none, a READ would wait for ever and keep its memory.
        self.accept(0, at_most(self.served, max).max(1))
    }

    fn accept(&self, responder_resources: u8, initiator_depth: u8) -> Result {
        let mut data = [0; CONNECT_REPLY_MAX];
        let answer = ConnectReply {
            version: self.version,
        };
        let len = answer.encode(&mut data).map_err(|NoRoom| EMSGSIZE)?;
        self.id.set_min_rnr_timer(RNR_TIMER)?;
        // Otherwise it would be the timeout that the client asks for, which may be hours.
        self.id.set_ack_timeout(ACK_TIMEOUT)?;
        self.id.accept(&ConnParam {
            private_data: data.get(..len).unwrap_or(&[]),
            retry_count: crate::RETRY_COUNT,
            rnr_retry_count: crate::RETRY_COUNT,
            responder_resources,
            initiator_depth,
        })
    }

    /// Refuses the connection with its reason. May sleep.
    pub(super) fn refuse(&self, refusal: Refusal) {
        let mut data = [0; REJECT_MAX];
        let len = Reject(refusal.into()).encode(&mut data).unwrap_or(0);
        // If even this fails, the client's attempt times out.
        let _ = self.id.reject(data.get(..len).unwrap_or(&[]));
    }
}

/// Refuses a connection request that no id was made of. Runs in the connection manager's handler.
pub(super) fn reject(request: cm::ConnectRequest<'_>, refused: Refused) {
    let mut data = [0; REJECT_MAX];
    let len = Reject(refused).encode(&mut data).unwrap_or(0);
    request.reject(data.get(..len).unwrap_or(&[]));
}

/// Returns the smaller one.
fn at_most(count: u8, limit: u32) -> u8 {
    u8::try_from(limit).unwrap_or(u8::MAX).min(count)
}
