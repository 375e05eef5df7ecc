// SPDX-License-Identifier: GPL-2.0

//! What the user of a queue pair implements.

use crate::rdma::{
    qp::{
        Qp,
        Rc,
        Transport,
        Ulp, //
    },
    wc::{
        WcError,
        Written, //
    },
    wr::{
        RecvOwner,
        SendOwner, //
    },
};

/// Receives the completions and the failure of a queue pair.
///
/// # Context
///
/// `send_done`, `recv_done` and `write_received` are called where the completion queue handles
/// completions: in softirq, in a workqueue, or where it is polled; see [`Cq`](crate::rdma::cq::Cq).
/// What was not posted, and what is left when the queue pair is drained or dropped, comes back in
/// the context of the function that does so. So a method may sleep only if all of these contexts
/// may. No method may drop the last reference to the queue pair or to one of its completion queues.
/// All may post.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{
/// #     dma::DmaBuffer,
/// #     qp::{Qp, QpHandler},
/// #     wc::{Received, WcError},
/// # };
/// /// Sends each message back, one at a time: there is one receive, and one slot.
/// struct Echo;
///
/// impl QpHandler for Echo {
///     type Send = DmaBuffer;
///     type Recv = DmaBuffer;
///     // It sends messages, and nothing that is built on them.
///     type Ulp = ();
///
///     fn recv_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, got: Result<Received<'_>, WcError>) {
///         // An owner of which nothing is made drops here, and with it its memory.
///         if got.is_ok() {
///             let _ = qp.send(0, buffer, true);
///         }
///     }
///
///     fn send_done(&self, qp: &Qp<Self>, buffer: DmaBuffer, sent: Result<(), WcError>) {
///         if sent.is_ok() {
///             let _ = qp.recv(buffer);
///         }
///     }
///
///     fn error(&self) {}
/// }
/// ```
pub(crate) trait QpHandler<T: Transport = Rc>: Send + Sync + Sized + 'static {
    /// The owner of a send.
    type Send: SendOwner;
    /// The owner of a receive.
    type Recv: RecvOwner;
    /// What is built on verbs: `()` if nothing is, or [`Requests`](crate::rdma::request::Requests).
    type Ulp: Ulp<Self, T>;

    /// A send has completed, or will not be posted any more.
    ///
    /// The slot is free again. A success says what the transport tells of it: with [`Rc`] that the
    /// peer has it, with [`Uc`](crate::rdma::qp::Uc) only that it has left. After an error the
    /// device does not access the owner's memory any more, but it is unknown whether the peer has
    /// received the message or the data.
    fn send_done(&self, qp: &Qp<Self, T>, owner: Self::Send, result: Result<T::Sent, WcError>);

    /// A receive has completed, or will not be used any more. What has come is a
    /// [`Received`](crate::rdma::wc::Received), or with [`Ud`](crate::rdma::qp::Ud) a
    /// [`Datagram`](crate::rdma::wc::datagram::Datagram).
    fn recv_done(
        &self,
        qp: &Qp<Self, T>,
        owner: Self::Recv,
        result: Result<T::Received<'_>, WcError>,
    );

    /// The peer has used up a receive by an RDMA WRITE with immediate data. It has written to
    /// memory that this side lets it write; nothing is in the buffers of `owner`.
    ///
    /// A handler that takes no such RDMA WRITEs returns the owner, as the default does. Then the
    /// peer violates the protocol: the queue pair is closed, and the owner comes back by
    /// [`Self::recv_done`] with [`WcError::Unexpected`].
    fn write_received(
        &self,
        qp: &Qp<Self, T>,
        owner: Self::Recv,
        written: Written<'_>,
    ) -> Result<(), Self::Recv> {
        let _ = (qp, written);
        Err(owner)
    }

    /// The queue pair has failed. Called once at most, and before the [`WcError`] of the first work
    /// request that failed; after it if that is [`WcError::Unexpected`] of a receive.
    ///
    /// # Context
    ///
    /// Any. Must not sleep, and not wait for a task that drains the queue pair.
    fn error(&self);
}
