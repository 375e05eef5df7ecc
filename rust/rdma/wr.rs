// SPDX-License-Identifier: GPL-2.0

//! Work requests: what they do, and what they own.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    dma::DmaBuffer,
    mr::Mr, //
};
use crate::scatterlist::Segmented;
use kernel::prelude::*;

/// An RDMA operation on a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaOp {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// A place in a peer's memory, and the key to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    /// The address, as the peer registered it.
    pub(crate) addr: u64,
    /// The remote key.
    pub(crate) rkey: u32,
}

/// What a work request on the send queue owns until it has completed.
///
/// The queue pair keeps the owner in place, and neither drops it nor borrows it mutably, until the
/// device is done with what these methods return.
///
/// # Context
///
/// The methods are called by the function that posts.
pub(crate) trait SendOwner: Send + 'static {
    /// The type of the memory of [`Qp::rdma`](super::qp::Qp::rdma);
    /// [`NoMemory`](crate::scatterlist::NoMemory) if there is none.
    type Memory: Segmented;

    /// The memory that [`Qp::rdma`](super::qp::Qp::rdma) reads or writes.
    fn memory(&self) -> Option<&Self::Memory> {
        None
    }

    /// The message of [`Qp::send`](super::qp::Qp::send): the first so many bytes of a buffer.
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        None
    }

    /// The memory region of [`Qp::reg_mr`](super::qp::Qp::reg_mr).
    fn mr(&self) -> Option<&Mr> {
        None
    }
}

/// What a receive owns until it has completed.
pub(crate) trait RecvOwner: Send + 'static {
    /// The buffer that a message is received into.
    ///
    /// # Context
    ///
    /// Called by [`Qp::recv`](super::qp::Qp::recv).
    fn buffer(&mut self) -> &mut DmaBuffer;
}

impl RecvOwner for DmaBuffer {
    fn buffer(&mut self) -> &mut DmaBuffer {
        self
    }
}

impl RecvOwner for KBox<DmaBuffer> {
    fn buffer(&mut self) -> &mut DmaBuffer {
        self
    }
}
