// SPDX-License-Identifier: GPL-2.0

//! The commands of an I/O connection to an export of a block device.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
};

use crate::block::{
    mq::{
        self,
        Request, //
    },
    BlkError,
    BlkResult, //
};
use crate::client::disk::Disk;
use crate::proto::{
    command,
    response,
    Command,
    Malformed,
    Operation,
    Remote,
    Response,
    Source,
    Span,
    Terms, //
};
use crate::rdma::{
    device::Device,
    dma::{
        Direction,
        DmaBuffer, //
    },
    wr::{
        Carry,
        RdmaOp,
        RemoteRange, //
    },
};
use crate::sync::{
    self,
    Place, //
};
use crate::tag::Tag;
use kernel::sync::Arc;

/// Bytes between the commands in memory: a cache line.
const STRIDE: usize = 64;
const _: () = assert!(command::SIZE <= STRIDE);

/// A tag, with what its next command is written into.
struct Slot {
    tag: Atomic<u64>,
    message: Place<DmaBuffer>,
}

/// The tags of a connection.
pub(super) struct Commands {
    slots: KVec<Slot>,
    /// Commands in flight.
    flying: Atomic<u32>,
    /// Commands that the server has receives for.
    credit: Atomic<u32>,
    /// A command had to wait for credit.
    pressed: Atomic<u32>,
    inline_size: u32,
}

impl Commands {
    /// Tags for commands under `terms` over `device`. May sleep.
    pub(super) fn new(device: &Arc<Device>, terms: &Terms, credit: u16) -> Result<Self> {
        let depth = usize::from(terms.depth);
        let mut slots = KVec::with_capacity(depth, GFP_KERNEL)?;
        let memory = DmaBuffer::alloc(device, depth * STRIDE, Direction::ToDevice)?;
        for message in memory.split(STRIDE) {
            // CAST: any number is as good as another.
            let tag = Tag::new(sync::random_u64() as u32);
            let slot = Slot {
                tag: Atomic::new(tag.word()),
                message: Place::new(KBox::new(message, GFP_KERNEL)?),
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            flying: Atomic::new(0),
            credit: Atomic::new(credit.into()),
            pressed: Atomic::new(0),
            inline_size: terms.inline_size,
        })
    }

    /// Takes what the command of `tag` is written into. `None` if the server has no receive for it: not
    /// before another command is over.
    #[inline]
    pub(super) fn begin(&self, tag: u16) -> Option<KBox<DmaBuffer>> {
        let slot = self.slots.get(usize::from(tag))?;
        if self.flying.fetch_add(1, Relaxed) >= self.credit.load(Relaxed) {
            self.flying.fetch_sub(1, Relaxed);
            self.pressed.store(1, Relaxed);
            return None;
        }
        let message = slot.message.take();
        if message.is_none() {
            self.flying.fetch_sub(1, Relaxed);
        }
        message
    }

    /// What the command for a request is to be, and what it carries; an error if there is none.
    #[inline]
    pub(super) fn plan(&self, request: &Request<Disk>) -> BlkResult<(Operation, Carry)> {
        let span = Span {
            offset: request.sector() << SECTOR_SHIFT,
            len: request.bytes(),
        };
        // Where the data are is known only once the memory is registered.
        let remote = Remote { addr: 0, rkey: 0 };
        Ok(match request.command() {
            mq::Command::Read => (
                Operation::Read { span, to: remote },
                Carry::Access(RdmaOp::Write),
            ),
            mq::Command::Write => {
                let (from, carry) = match span.len <= self.inline_size {
                    true => (Source::Inline, Carry::Inline),
                    false => (Source::Remote(remote), Carry::Access(RdmaOp::Read)),
                };
                let fua = request.fua();
                (Operation::Write { span, from, fua }, carry)
            }
            mq::Command::Flush => (Operation::Flush, Carry::Nothing),
            mq::Command::Discard => (Operation::Discard { span }, Carry::Nothing),
            mq::Command::WriteZeroes => {
                let no_unmap = request.no_unmap();
                (Operation::WriteZeroes { span, no_unmap }, Carry::Nothing)
            }
            mq::Command::Unsupported(_) => return Err(BlkError::NotSupported),
        })
    }

    /// Writes the command of `tag` into `message`; the server reaches its data at `range`, if it has
    /// some.
    #[inline]
    pub(super) fn write(
        &self,
        message: &mut DmaBuffer,
        tag: u16,
        mut operation: Operation,
        range: Option<RemoteRange>,
    ) -> Result {
        if let (
            Operation::Read { to: remote, .. }
            | Operation::Write {
                from: Source::Remote(remote),
                ..
            },
            Some(RemoteRange { addr, rkey }),
        ) = (&mut operation, range)
        {
            *remote = Remote { addr, rkey };
        }
        let slot = self.slots.get(usize::from(tag)).ok_or(EINVAL)?;
        let mut generation = 0;
        slot.change(|tag| {
            let (posted, new) = tag.post();
            generation = new;
            Ok(posted)
        })
        .map_err(|Malformed(_)| EINVAL)?;
        let mut bytes = [0; command::SIZE];
        let command = Command {
            tag,
            generation,
            pressed: self.pressed.load(Relaxed) != 0 && self.pressed.xchg(0, Relaxed) != 0,
            operation,
        };
        command.encode(&mut bytes).map_err(|_| EINVAL)?;
        message.copy_in(0, &bytes)
    }

    /// A message of `len` bytes came in: the tag that it is the answer to.
    #[inline]
    pub(super) fn respond(&self, message: &DmaBuffer, len: u32) -> Result<u16, Malformed> {
        let mut bytes = [0; response::SIZE];
        let whole = message.copy_out(0, &mut bytes).is_ok();
        // CAST: 16.
        if !whole || len != response::SIZE as u32 {
            return Err(Malformed("the response has not its length"));
        }
        let response = Response::parse(&bytes)?;
        let slot = self.slots.get(usize::from(response.tag));
        slot.ok_or(Malformed("a response to a tag beyond the depth"))?
            .change(|tag| tag.respond(&response))?;
        if usize::from(response.credit) > self.slots.len() {
            return Err(Malformed("a credit beyond the depth"));
        }
        self.credit.store(response.credit.into(), Relaxed);
        Ok(response.tag)
    }

    /// The command of `tag` is over: how it was answered, or [`BlkError::Transport`] if it was not.
    #[inline]
    pub(super) fn finish(&self, tag: u16, message: KBox<DmaBuffer>) -> BlkResult {
        let slot = self.slots.get(usize::from(tag)).ok_or(BlkError::IoError)?;
        let mut status = None;
        let _ = slot.change(|tag| {
            let (free, how) = tag.finish();
            status = how;
            Ok(free)
        });
        // There was none, as it was taken out for the command.
        drop(slot.message.put(message));
        self.flying.fetch_sub(1, Relaxed);
        match status {
            Some(status) => status.into(),
            None => Err(BlkError::Transport),
        }
    }
}

impl Slot {
    /// Replaces the tag.
    #[inline]
    fn change(&self, mut to: impl FnMut(Tag) -> Result<Tag, Malformed>) -> Result<(), Malformed> {
        let mut old = self.tag.load(Relaxed);
        loop {
            let new = to(Tag::from_word(old))?.word();
            match self.tag.cmpxchg(old, new, Full) {
                Ok(_) => return Ok(()),
                Err(now) => old = now,
            }
        }
    }
}
