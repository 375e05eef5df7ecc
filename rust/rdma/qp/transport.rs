// SPDX-License-Identifier: GPL-2.0

//! The transport services of queue pairs, as types.
//!
//! A [`Qp`](super::Qp), its [`QpHandler`](super::QpHandler) and its
//! [`CmId`](crate::rdma::cm::CmId) have the transport as a type parameter, which is [`Rc`] if
//! nothing else is said. What a transport cannot do is no method of its queue pairs, so that an
//! RDMA READ on a [`Uc`] queue pair does not compile. The parameter takes no memory, and the code
//! of each transport is compiled for it alone.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::wc::{
    datagram::Datagram,
    Received,
    WcError, //
};

mod sealed {
    /// Keeps other modules from adding a transport.
    pub(crate) trait Sealed {}

    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
    impl Sealed for super::Ud {}
}

/// A transport service of queue pairs: [`Rc`], [`Uc`] or [`Ud`].
///
/// See [`Connected`] for an example.
pub(crate) trait Transport: sealed::Sealed + Send + Sync + 'static {
    /// What is known of a send that has completed with success.
    type Sent: Copy;

    /// What was received.
    type Received<'a>;

    /// C's name of it.
    const QP_TYPE: bindings::ib_qp_type;

    /// It has RDMA READs, and what else needs an answer or a memory region of a slot.
    const HAS_READS: bool;

    /// A work request that is there only to complete behind all others may be posted to the send
    /// queue.
    const TAKES_MARKERS: bool;

    /// The port space of its ids.
    const PORT_SPACE: bindings::rdma_ucm_port_space;

    /// Returns the result of a send, of which the device says this.
    fn sent(result: Result<(), WcError>) -> Result<Self::Sent, WcError>;

    /// Returns what `wc`, the completion of a receive, reports, or its error.
    fn received(wc: &bindings::ib_wc) -> Result<Self::Received<'_>, WcError>;
}

/// A transport whose queue pairs are connected to one other queue pair, by a
/// [`CmId`](crate::rdma::cm::CmId).
///
/// All of them have messages and RDMA WRITEs.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaBuffer, qp::{Connected, Qp, QpHandler}};
/// # use kernel::prelude::*;
/// /// Sends a message on a queue pair of either kind of connection.
/// fn send<H, T>(qp: &Qp<H, T>, slot: u16, message: DmaBuffer) -> Result
/// where
///     H: QpHandler<T, Send = DmaBuffer>,
///     T: Connected,
/// {
///     qp.send(slot, message, true).map_err(|(error, _)| error)
/// }
/// ```
pub(crate) trait Connected: for<'a> Transport<Received<'a> = Received<'a>> {}

/// The reliable connection: what was sent has arrived when it completes, in order, and once. It has
/// all operations.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaPiece, qp::{Qp, QpHandler, Rc}, wr::{RdmaOp, RemoteRange}};
/// # use kernel::prelude::*;
/// /// `Qp<H, Rc>` is `Qp<H>`: this is the transport if nothing else is said.
/// fn read<H>(qp: &Qp<H, Rc>, remote: RemoteRange, piece: DmaPiece) -> Result
/// where
///     H: QpHandler<Send = DmaPiece>,
/// {
///     qp.rdma(0, RdmaOp::Read, remote, piece, true).map_err(|(error, _)| error)
/// }
/// ```
pub(crate) enum Rc {}

impl Transport for Rc {
    type Sent = ();
    type Received<'a> = Received<'a>;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_RC;
    const HAS_READS: bool = true;
    const TAKES_MARKERS: bool = true;
    const PORT_SPACE: bindings::rdma_ucm_port_space = bindings::rdma_ucm_port_space_RDMA_PS_TCP;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<(), WcError> {
        result
    }

    #[inline]
    fn received(wc: &bindings::ib_wc) -> Result<Received<'_>, WcError> {
        Received::new(wc)
    }
}

impl Connected for Rc {}

/// The unreliable connection: a message or RDMA WRITE is complete when it has left. Nobody tells
/// whether it arrives. What arrives does so in order, and once.
///
/// A message is lost that the network loses, or that finds no receive; and so is an RDMA WRITE that
/// the peer does not allow. Of what is lost a part may have arrived. Neither queue pair fails. A
/// message that is longer than its receive is lost, too, and the receive is there for the next one;
/// but with some devices the receive fails then, and its queue pair with it.
///
/// A send that fails, for a reason of this side, ends the sends. The queue pair may go on to
/// receive until it is drained.
///
/// It has no RDMA READs, no atomic operations, and no invalidation by the peer, since all of these
/// need an answer. A device need not register memory on such a queue pair either, and some do not.
/// So a region that the peer writes to is registered by a [`Rc`] queue pair of the same
/// protection domain.
///
/// The connection manager makes such connections as it makes reliable ones: `rdma_create_id()`
/// takes the type for callers in the kernel. With iWARP there are none.
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::net::Net,
/// #     rdma::{client::Devices, cm::{CmEvents, CmId}, qp::Uc},
/// # };
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(devices: &Arc<Devices>, events: Arc<dyn CmEvents>) -> Result {
/// // It is connected as a reliable one is. Its queue pairs are `Qp<H, Uc>`.
/// let id = CmId::<Uc>::new(devices, &Net::current(), events)?;
/// # Ok(())
/// # }
/// ```
pub(crate) enum Uc {}

/// A send has left, and nobody knows whether it arrives: what is known of one that a [`Uc`] or
/// [`Ud`] queue pair has completed.
///
/// # Examples
///
/// ```
/// # use crate::rdma::{dma::DmaBuffer, qp::Unacknowledged, wc::WcError};
/// # use kernel::prelude::*;
/// # fn again(message: DmaBuffer) -> Result { Err(EIO) }
/// /// What a handler does with a message that it sends until there is an answer.
/// fn sent(message: DmaBuffer, result: Result<Unacknowledged, WcError>) -> Result {
///     match result {
///         // Nobody knows whether it arrives, but the buffer can be used again.
///         Ok(Unacknowledged) => again(message),
///         Err(error) => Err(error.to_error()),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged;

impl Transport for Uc {
    type Sent = Unacknowledged;
    type Received<'a> = Received<'a>;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_UC;
    const HAS_READS: bool = false;
    const TAKES_MARKERS: bool = true;
    const PORT_SPACE: bindings::rdma_ucm_port_space = bindings::rdma_ucm_port_space_RDMA_PS_TCP;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<Unacknowledged, WcError> {
        result.map(|()| Unacknowledged)
    }

    #[inline]
    fn received(wc: &bindings::ib_wc) -> Result<Received<'_>, WcError> {
        Received::new(wc)
    }
}

impl Connected for Uc {}

/// Datagrams: each message goes to the [`Destination`](crate::rdma::ah::Destination) that it is
/// posted with, and comes from anybody who knows the number of the queue pair and its Q_Key.
///
/// A message has at most the bytes that fit into one packet of the port, and either arrives as a
/// whole or is lost, of which nobody tells. Messages may arrive in another order. What is received
/// begins with [`GRH_BYTES`](crate::rdma::wc::datagram::GRH_BYTES) that tell of its sender; see
/// [`Datagram`]. A message that is longer than its receive makes the receive fail, and with some
/// devices the queue pair with it.
///
/// There are messages and nothing else: no RDMA READs or WRITEs, no atomic operations, no memory
/// regions. A queue pair is not connected: it may be used once it is created. Its peers are found
/// by the connection manager's service ID resolution, by [`CmId::find`], or by what they send.
///
/// It cannot be drained: a driver looks up the address of each work request that is posted, and one
/// that only completes has none. So [`Qp::drain`](super::Qp::drain) destroys it. With iWARP there
/// are none.
///
/// [`CmId::find`]: crate::rdma::cm::CmId::find
///
/// # Examples
///
/// ```
/// # use crate::{
/// #     base::net::Net,
/// #     rdma::{
/// #         client::Devices,
/// #         cm::{CmEvents, CmId},
/// #         qp::Ud,
/// #     },
/// # };
/// # use core::net::{IpAddr, SocketAddr};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example(devices: &Arc<Devices>, own: IpAddr, events: Arc<dyn CmEvents>) -> Result {
/// // The address says on which port of which device its queue pair, a `Qp<H, Ud>`, is to be.
/// let id = CmId::<Ud>::new(devices, &Net::current(), events)?;
/// id.bind(SocketAddr::new(own, 0))?;
/// # Ok(())
/// # }
/// ```
pub(crate) enum Ud {}

impl Transport for Ud {
    type Sent = Unacknowledged;
    type Received<'a> = Datagram<'a>;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_UD;
    const HAS_READS: bool = false;
    const TAKES_MARKERS: bool = false;
    const PORT_SPACE: bindings::rdma_ucm_port_space = bindings::rdma_ucm_port_space_RDMA_PS_UDP;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<Unacknowledged, WcError> {
        result.map(|()| Unacknowledged)
    }

    #[inline]
    fn received(wc: &bindings::ib_wc) -> Result<Datagram<'_>, WcError> {
        Datagram::new(wc)
    }
}
