// SPDX-License-Identifier: GPL-2.0

//! What is posted on a control connection: messages, and the operations of its owner.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    MESSAGES,
    OPERATION_SLOT, //
};
use crate::base::scatterlist::NoMemory;
use crate::rdma::{
    cq::{
        AnyCq,
        Cq,
        Direct,
        Softirq,
        Workqueue, //
    },
    device::Device,
    dma::{
        DmaBuffer,
        DmaPiece, //
    },
    mr::Mr,
    qp::QpCaps,
    remnant::ObjectRef,
    request::RequestCaps,
    wr::{
        atomic::{
            AtomicOp,
            AtomicResult,
            RemoteAtomic, //
        },
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};

/// Where a control connection handles its completions.
#[derive(Clone, Copy)]
pub(crate) enum Completions {
    /// The RDMA core's workqueue.
    Workqueue,
    /// Softirq.
    Softirq,
    /// The caller of a method that waits, which looks until there are some.
    Waiter,
}

impl Completions {
    /// Makes a completion queue of `entries` entries. Also returns it as one to poll, if those who
    /// wait do that. May sleep.
    pub(crate) fn queue(
        self,
        device: &Arc<Device>,
        entries: u32,
    ) -> Result<(ObjectRef<AnyCq>, Option<Cq<Direct>>)> {
        Ok(match self {
            Self::Workqueue => (Cq::<Workqueue>::alloc(device, entries, 0)?.into(), None),
            Self::Softirq => (Cq::<Softirq>::alloc(device, entries, 0)?.into(), None),
            Self::Waiter => {
                let cq = Cq::<Direct>::alloc(device, entries, 0)?;
                (cq.clone().into(), Some(cq))
            }
        })
    }
}

/// What a control connection is made for beside messages.
#[derive(Clone)]
pub(crate) struct ChannelConfig {
    /// Operations of the owner that are under way at once.
    pub(crate) operations: u16,
    /// The bytes of an RDMA operation of the owner, at most; 0 if there are none but those of no
    /// bytes.
    pub(crate) rdma_size: u32,
    /// Where completions are handled.
    pub(crate) completions: Completions,
}

impl ChannelConfig {
    /// Returns that of a connection with up to `operations` operations at once.
    pub(crate) const fn new(operations: u16) -> Self {
        Self {
            operations,
            rdma_size: 0,
            completions: Completions::Workqueue,
        }
    }

    /// Returns the sizes of the queue pair.
    pub(super) fn caps(&self, device: &Device) -> RequestCaps {
        let slots = OPERATION_SLOT + self.operations.max(1);
        let caps = QpCaps {
            slots,
            send_wr: slots.into(),
            // CAST: A small number.
            recv_wr: MESSAGES as u32,
            sges: 1,
            ..QpCaps::default()
        };
        match self.rdma_size {
            // With iWARP a READ needs a region, and another one follows a WRITE.
            size @ 1.. if device.reads_need_regions() => RequestCaps {
                qp: QpCaps {
                    send_wr: 2 * u32::from(slots),
                    ..caps
                },
                regions: slots,
                region_pages: size / device.region_page_size() + 2,
                ..RequestCaps::default()
            },
            _ => caps.into(),
        }
    }
}

/// What an operation of the owner does.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// An RDMA operation of no bytes.
    Nothing(RdmaOp),
    /// An RDMA operation between the peer's memory and [`SendOwner::piece`].
    Rdma(RdmaOp, RemoteRange),
    /// An atomic operation.
    Atomic(AtomicOp, RemoteAtomic),
    /// The registration of [`SendOwner::mr`].
    Register,
}

/// The owner of a posted send on a control connection.
pub(crate) enum Posted<T> {
    /// A message, its length in bytes and its slot.
    Message(KBox<DmaBuffer>, usize, u16),
    /// A READ or WRITE of no bytes.
    Nothing,
    /// An operation of the connection's owner, and its index.
    Operation(T, u16),
}

impl<T: SendOwner<Memory = NoMemory>> SendOwner for Posted<T> {
    type Memory = NoMemory;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        match self {
            Self::Message(buffer, len, _) => Some((buffer, *len)),
            _ => None,
        }
    }

    fn piece(&self) -> Option<&DmaPiece> {
        match self {
            Self::Operation(operation, _) => operation.piece(),
            _ => None,
        }
    }

    fn mr(&self) -> Option<&Mr> {
        match self {
            Self::Operation(operation, _) => operation.mr(),
            _ => None,
        }
    }

    fn result(&mut self) -> Option<&mut AtomicResult> {
        match self {
            Self::Operation(operation, _) => operation.result(),
            _ => None,
        }
    }
}
