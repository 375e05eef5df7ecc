// SPDX-License-Identifier: GPL-2.0

//! The two ends of a connection.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use super::{
    CmId,
    End, //
};
use crate::base::{
    errno::EAFNOSUPPORT,
    net::SockaddrStorage, //
};
use crate::bindings;
use crate::rdma::qp::Connected;
use kernel::prelude::*;

impl<T: Connected> CmId<T> {
    /// Returns this end of the connection, and the peer's.
    ///
    /// The number of a queue pair that is not there yet, or not known, is 0: that of the peer
    /// before [`Self::connect`] has returned, and that of this end before there is one. Fails with
    /// `EAFNOSUPPORT` if the addresses are no IP addresses. Must not be called in a handler of the
    /// id. May sleep.
    pub(crate) fn ends(&self) -> Result<(End, End)> {
        self.device()?;
        // SAFETY: By the type invariants the id is valid. The core sets both addresses before the
        // device, and changes them afterwards (iWARP does, when it has connected) only in the
        // handler, whose lock is held.
        let (local, peer) = unsafe {
            bindings::rdma_lock_handler(self.as_raw());
            let addr = &raw const (*self.as_raw()).route.addr;
            let ends = (
                SockaddrStorage::from_raw(&raw const (*addr).src_addr).socket_addr(),
                SockaddrStorage::from_raw(&raw const (*addr).dst_addr).socket_addr(),
            );
            bindings::rdma_unlock_handler(self.as_raw());
            ends
        };
        let (local, peer) = local.zip(peer).ok_or(EAFNOSUPPORT)?;
        let (local_qp, peer_qp) = match self.is_iwarp() {
            // There the numbers have a meaning on one host only.
            true => (0, 0),
            false => (self.qp_number(), self.shared.peer_qp()),
        };
        Ok(((local, local_qp), (peer, peer_qp)))
    }
}
