// SPDX-License-Identifier: GPL-2.0

//! Letters: the memory of datagrams that go to one other queue pair and come back.
//!
//! A letter is received into and sent from the same memory, so that it is answered without a copy,
//! and without an allocation. It has its destination, which was made once.

#![forbid(unsafe_code)]

pub mod layout;

use kernel::prelude::*;
use kernel::{
    page::PAGE_SIZE,
    sync::Arc, //
};

use self::layout::Layout;
use crate::base::{
    scatterlist::NoMemory,
    sync, //
};
use crate::rdma::{
    ah::Destination,
    device::Device,
    dma::{
        Direction,
        DmaBuffer, //
    },
    qp::{
        QpCaps,
        SendTo,
        QKEY_OF_SENDER, //
    },
    wc::{
        datagram::{
            Datagram,
            Sender,
            GRH_BYTES, //
        },
        WcError,
    },
    wr::{
        RecvBuffer,
        RecvOwner,
        SendOwner,
        RECV_BUFFERS, //
    },
};

/// The memory of a datagram.
pub(crate) struct Letter {
    /// Where the device writes the header of what is received.
    header: DmaBuffer,
    body: DmaBuffer,
    /// The bytes of the body that are sent.
    len: usize,
    to: Destination,
    /// The slot that it is sent by, which no other letter of its queue pair is.
    slot: u16,
}

impl Letter {
    /// Makes `count` letters of at most `size` bytes to `to`, whose slots begin with 0. Fails with
    /// `EINVAL` if `size` is 0, or more than a page, and with `ENOMEM`. May sleep.
    pub(crate) fn alloc(
        device: &Arc<Device>,
        to: &Destination,
        (size, count): (u16, u16),
    ) -> Result<KVec<KBox<Self>>> {
        let layout = layout((size, count)).ok_or(EINVAL)?;
        let mut bodies = KVec::with_capacity(layout.pieces(), GFP_KERNEL)?;
        for _ in 0..layout.pages() {
            let page = DmaBuffer::alloc(device, PAGE_SIZE, Direction::Bidirectional)?;
            for piece in page.split(layout.piece()) {
                // The last page may have more of them.
                let _ = bodies.push_within_capacity(piece);
            }
        }
        let mut headers = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for _ in 0..layout.headers() {
            let piece = bodies.pop().ok_or(EINVAL)?;
            for header in piece.split(layout.header()) {
                // The last piece may have more of them.
                let _ = headers.push_within_capacity(header);
            }
        }
        let mut letters = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for slot in 0..count {
            let mut header = headers.pop().ok_or(EINVAL)?;
            header.truncate(GRH_BYTES)?;
            let mut body = bodies.pop().ok_or(EINVAL)?;
            body.truncate(size.into())?;
            let letter = Self {
                header,
                body,
                len: size.into(),
                to: to.clone(),
                slot,
            };
            letters.push(KBox::new(letter, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(letters)
    }

    /// Returns the bytes of the pages that so many letters of so many bytes take.
    pub(crate) fn footprint((size, count): (u16, u16)) -> u32 {
        let pages = layout((size, count)).map_or(usize::MAX, |layout| layout.pages());
        u32::try_from(pages.saturating_mul(PAGE_SIZE)).unwrap_or(u32::MAX)
    }

    /// Returns the sizes of a queue pair with `sends` letters to send and `recvs` to receive.
    pub(crate) fn caps((sends, recvs): (u16, u16)) -> QpCaps {
        QpCaps {
            slots: sends,
            send_wr: sends.into(),
            recv_wr: recvs.into(),
            sges: 1,
            ..QpCaps::default()
        }
    }

    /// Returns the slot.
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// Returns the length of the message, if this was received into the letter, and says that it
    /// comes from where the letter goes to. Sets the bytes that are sent back. Any context.
    pub(crate) fn received(
        &mut self,
        result: Result<Datagram<'_>, WcError>,
    ) -> Result<Option<usize>, WcError> {
        let datagram = result?;
        let len = datagram.len() as usize;
        let is_its = Sender::of(&datagram, &self.header).is_ok_and(|from| self.to.has_sent(&from));
        if !is_its || len == 0 || len > self.body.len() {
            return Ok(None);
        }
        self.len = len;
        Ok(Some(len))
    }

    /// Returns the body.
    pub(crate) fn body(&self) -> &DmaBuffer {
        &self.body
    }

    /// Returns the body, to be written.
    pub(crate) fn body_mut(&mut self) -> &mut DmaBuffer {
        &mut self.body
    }
}

impl SendOwner for KBox<Letter> {
    type Memory = NoMemory;

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        Some((&self.body, self.len))
    }
}

impl SendTo for KBox<Letter> {
    fn destination(&self) -> &Destination {
        &self.to
    }
}

impl RecvOwner for KBox<Letter> {
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        let Letter { header, body, .. } = &mut **self;
        [Some(RecvBuffer::Cpu(header)), Some(RecvBuffer::Cpu(body))]
    }
}

/// Returns how `count` letters of `size` bytes lie in pages, if they can.
fn layout((size, count): (u16, u16)) -> Option<Layout> {
    Layout::new(count, (GRH_BYTES, size.into()), PAGE_SIZE)
}

/// Returns a Q_Key that nobody can guess. Any context.
pub(crate) fn random_qkey() -> u32 {
    // CAST: Any bits will do, but for the highest one.
    sync::random_u64() as u32 & !QKEY_OF_SENDER
}
