// SPDX-License-Identifier: GPL-2.0

//! What a client has under way on a control connection beside messages: RDMA and atomic operations,
//! whose round trips are measured.

#![forbid(unsafe_code)]

use crate::base::scatterlist::NoMemory;
use crate::rdma::{
    dma::DmaPiece,
    wr::{
        atomic::AtomicResult,
        SendOwner, //
    },
};

/// The owner of an operation: the memory of this host that it reads or writes.
pub(super) enum Operation {
    /// None.
    Nothing,
    /// Where an RDMA READ goes to, or an RDMA WRITE comes from.
    Data(DmaPiece),
    /// Where the result of an atomic operation goes to.
    Number(AtomicResult),
}

impl SendOwner for Operation {
    type Memory = NoMemory;

    fn piece(&self) -> Option<&DmaPiece> {
        match self {
            Self::Data(piece) => Some(piece),
            _ => None,
        }
    }

    fn result(&mut self) -> Option<&mut AtomicResult> {
        match self {
            Self::Number(result) => Some(result),
            _ => None,
        }
    }
}
