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
use crate::rdma::wc::WcError;

mod sealed {
    /// Keeps other modules from adding a transport.
    pub(crate) trait Sealed {}

    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
}

/// A transport service of queue pairs: [`Rc`] or [`Uc`].
pub(crate) trait Transport: sealed::Sealed + Send + Sync + 'static {
    /// What is known of a send that has completed with success.
    type Sent: Copy;

    /// C's name of it.
    const QP_TYPE: bindings::ib_qp_type;

    /// It has RDMA READs, and what else needs an answer or a memory region of a slot.
    const HAS_READS: bool;

    /// Returns the result of a send, of which the device says this.
    fn sent(result: Result<(), WcError>) -> Result<Self::Sent, WcError>;
}

/// A transport whose queue pairs are connected to one other queue pair, by a
/// [`CmId`](crate::rdma::cm::CmId).
///
/// All of them have messages and RDMA WRITEs.
pub(crate) trait Connected: Transport {}

/// The reliable connection: what was sent has arrived when it completes, in order, and once. It has
/// all operations.
pub(crate) enum Rc {}

impl Transport for Rc {
    type Sent = ();

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_RC;
    const HAS_READS: bool = true;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<(), WcError> {
        result
    }
}

impl Connected for Rc {}

/// The unreliable connection: a message or RDMA WRITE is complete when it has left. Nobody tells
/// whether it arrives. What arrives does so in order, and once.
///
/// A message is lost that the network loses, or that finds no receive; and so is an RDMA WRITE that
/// the peer does not allow. Of what is lost a part may have arrived. Neither queue pair fails. A
/// message that is longer than its receive is lost, too, and the receive is there for the next one;
/// but with `rdma_rxe` the receive fails then, and its queue pair with it.
///
/// A send that fails, for a reason of this side, ends the sends. The queue pair may go on to
/// receive until it is drained.
///
/// It has no RDMA READs, no atomic operations, and no invalidation by the peer, since all of these
/// need an answer. A device need not register memory on such a queue pair either, and `rdma_rxe`
/// does not. So a region that the peer writes to is registered by a [`Rc`] queue pair of the same
/// protection domain.
///
/// The connection manager makes such connections as it makes reliable ones: `rdma_create_id()`
/// takes the type for callers in the kernel. With iWARP there are none.
pub(crate) enum Uc {}

/// A send has left, and nobody knows whether it arrives: what is known of one that a [`Uc`] queue
/// pair has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged;

impl Transport for Uc {
    type Sent = Unacknowledged;

    const QP_TYPE: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_UC;
    const HAS_READS: bool = false;

    #[inline]
    fn sent(result: Result<(), WcError>) -> Result<Unacknowledged, WcError> {
        result.map(|()| Unacknowledged)
    }
}

impl Connected for Uc {}
