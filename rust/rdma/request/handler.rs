// SPDX-License-Identifier: GPL-2.0

//! What the user of a queue pair with requests implements.

#[cfg(doc)]
use crate::rdma::{
    qp::Qp,
    request::Undrained, //
};
use crate::rdma::{
    qp::{
        QpHandler,
        Rc, //
    },
    request::Requests, //
};

/// The handler of a queue pair that sends requests.
///
/// # Context
///
/// What [`Qp::answered`] ends comes back by [`QpHandler::send_done`] in the context of its caller.
pub(crate) trait RequestHandler: QpHandler<Rc, Ulp = Requests> {
    /// What stays of the owner of a send whose memory the peer may still access; see
    /// [`Self::park`].
    type Parked: Send + 'static;

    /// A send will not be given back by [`QpHandler::send_done`]: its memory region could not be
    /// deregistered, so that the peer may still access its memory. [`Undrained`] counts it.
    ///
    /// What is returned must own that memory. It comes back by [`Self::send_released`].
    ///
    /// # Context
    ///
    /// That in which the queue pair is drained or dropped. May sleep.
    fn park(&self, owner: Self::Send) -> Self::Parked;

    /// A send that was parked is over: the last reference to the protection domain was dropped, and
    /// with it the last queue pair by which the peer could access the memory. The queue pair of the
    /// send is gone, too.
    ///
    /// The handler is dropped after the last of these calls. It must not hold a reference to the
    /// protection domain, nor must what was parked, or there is no such call.
    ///
    /// # Context
    ///
    /// That in which the last reference to the protection domain is dropped. May sleep.
    fn send_released(&self, parked: Self::Parked) {
        drop(parked);
    }
}
