// SPDX-License-Identifier: GPL-2.0

//! What a command is received into.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::rdma::{
    dma::{
        DmaBuffer,
        DmaPiece, //
    },
    wr::{
        RecvBuffer,
        RecvOwner,
        RECV_BUFFERS, //
    },
};
use crate::server::memory::budget::Lasting;

/// The buffers that a command is received into.
pub(in crate::server) struct Recv {
    /// The command itself.
    pub(in crate::server) header: DmaBuffer,
    /// Its inline data.
    pub(in crate::server) data: DmaPiece,
    /// The memory that `data` is a piece of.
    pub(in crate::server) _memory: Arc<Lasting>,
}

impl RecvOwner for KBox<Recv> {
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        let Recv { header, data, .. } = &mut **self;
        [
            Some(RecvBuffer::Cpu(header)),
            Some(RecvBuffer::Devices(data)),
        ]
    }
}
