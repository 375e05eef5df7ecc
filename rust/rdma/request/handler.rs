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
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::DmaBuffer,
/// #     qp::{Qp, QpHandler},
/// #     request::{RequestHandler, Requests},
/// #     wc::{Received, WcError},
/// #     wr::SendOwner,
/// # };
/// /// Sends one request at a time, of which slot 0 has the owner until it is answered.
/// struct Client;
///
/// # struct Request(DmaBuffer);
/// # impl SendOwner for Request {
/// #     type Memory = crate::base::scatterlist::NoMemory;
/// # }
/// impl QpHandler for Client {
///     type Send = Request;
///     type Recv = DmaBuffer;
///     type Ulp = Requests;
///
///     fn recv_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, got: Result<Received<'_>, WcError>) {
///         if let Ok(answer) = got {
///             let _ = qp.answered(0, answer);
///             let _ = qp.recv(buffer);
///         }
///     }
///
///     fn send_done(&self, qp: &Qp<Self>, request: Request, result: Result<(), WcError>) {
///         // It is answered, or failed, and the peer has no access to its memory any more.
///     }
///
///     fn error(&self) {}
/// }
///
/// impl RequestHandler for Client {
///     type Parked = Request;
///
///     fn park(&self, request: Request) -> Request {
///         request
///     }
/// }
/// ```
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
