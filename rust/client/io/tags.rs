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

use crate::base::sync::{
    self,
    Place, //
};
use crate::block::{
    mq::{
        self,
        Owned,
        Request, //
    },
    BlkError,
    BlkResult, //
};
use crate::client::io::{
    disk::Disk,
    tag::Tag, //
};
use crate::proto::{
    command,
    response,
    Command,
    Delivery,
    Malformed,
    Operation,
    Remote,
    Response,
    Span,
    Status,
    Terms,
    Transfer, //
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
use kernel::sync::Arc;

/// Bytes between the commands in memory: a cache line.
const STRIDE: usize = 64;
const _: () = assert!(command::SIZE <= STRIDE);

/// A tag, with what its next command is written into.
struct Slot {
    tag: Atomic<u64>,
    message: Place<DmaBuffer>,
    /// The bytes of data that the answer is to be.
    expected: Atomic<u32>,
    /// The answer, if it was data.
    data: Place<DmaBuffer>,
}

/// The tags of a connection.
pub(in crate::client) struct Commands {
    slots: KVec<Slot>,
    /// Commands in flight.
    flying: Atomic<u32>,
    /// Commands that the server has receives for.
    credit: Atomic<u32>,
    /// Answers that there are receives for.
    receives: Atomic<u32>,
    /// There are being made more of them.
    growing: Atomic<u32>,
    /// A command had to wait for credit.
    pressed: Atomic<u32>,
    /// Most data behind a command.
    inline_size: u32,
    /// Most data as an answer.
    inline_read: u32,
}

impl Commands {
    /// Tags for commands under `terms` over `device`, of which so many may be in flight at first once
    /// there are receives. Answers are at most `inline_read` bytes of data. May sleep.
    pub(in crate::client) fn new(
        device: &Arc<Device>,
        terms: &Terms,
        credit: u16,
        inline_read: u32,
    ) -> Result<Self> {
        let depth = usize::from(terms.depth);
        let mut slots = KVec::with_capacity(depth, GFP_KERNEL)?;
        let memory = DmaBuffer::alloc(device, depth * STRIDE, Direction::ToDevice)?;
        for message in memory.split(STRIDE) {
            // CAST: any number is as good as another.
            let tag = Tag::new(sync::random_u64() as u32);
            let slot = Slot {
                tag: Atomic::new(tag.word()),
                message: Place::new(KBox::new(message, GFP_KERNEL)?),
                expected: Atomic::new(0),
                data: Place::empty(),
            };
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            flying: Atomic::new(0),
            credit: Atomic::new(credit.into()),
            receives: Atomic::new(0),
            growing: Atomic::new(0),
            pressed: Atomic::new(0),
            inline_size: terms.inline_size,
            inline_read,
        })
    }

    /// Takes what the command of `tag` is written into. `None` if there is no receive for it or for its
    /// answer: not before another command is over.
    #[inline]
    pub(in crate::client) fn begin(&self, tag: u16) -> Option<KBox<DmaBuffer>> {
        let slot = self.slots.get(usize::from(tag))?;
        let room = self.credit.load(Relaxed).min(self.receives.load(Relaxed));
        if self.flying.fetch_add(1, Relaxed) >= room {
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
    pub(in crate::client) fn plan(&self, request: &Request<Disk>) -> BlkResult<(Operation, Carry)> {
        let span = Span {
            offset: request.sector() << SECTOR_SHIFT,
            len: request.bytes(),
        };
        // Where the data are is known only once the memory is registered.
        let remote = Transfer::Remote(Remote { addr: 0, rkey: 0 });
        Ok(match request.command() {
            mq::Command::Read => {
                let (to, carry) = match span.len <= self.inline_read {
                    true => (Transfer::Inline, Carry::Nothing),
                    false => (remote, Carry::Access(RdmaOp::Write)),
                };
                (Operation::Read { span, to }, carry)
            }
            mq::Command::Write => {
                let (from, carry) = match span.len <= self.inline_size {
                    true => (Transfer::Inline, Carry::Inline),
                    false => (remote, Carry::Access(RdmaOp::Read)),
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
    pub(in crate::client) fn write(
        &self,
        message: &mut DmaBuffer,
        tag: u16,
        mut operation: Operation,
        range: Option<RemoteRange>,
    ) -> Result {
        if let (
            Operation::Read {
                to: Transfer::Remote(remote),
                ..
            }
            | Operation::Write {
                from: Transfer::Remote(remote),
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
        slot.expected.store(operation.answer_len(), Relaxed);
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
    pub(in crate::client) fn respond(
        &self,
        message: &DmaBuffer,
        len: u32,
    ) -> Result<u16, Malformed> {
        let mut bytes = [0; response::SIZE];
        let whole = message.copy_out(0, &mut bytes).is_ok();
        // CAST: 16.
        if !whole || len != response::SIZE as u32 {
            return Err(Malformed("the response has not its length"));
        }
        let response = Response::parse(&bytes)?;
        let slot = self.slot(response.tag)?;
        if response.status == Status::Ok && slot.expected.load(Relaxed) != 0 {
            return Err(Malformed("a read was answered without its data"));
        }
        slot.change(|tag| tag.respond(&response))?;
        self.grant(response.credit)?;
        Ok(response.tag)
    }

    /// `len` bytes of data came in with `immediate`: the tag that they are the answer to.
    #[inline]
    pub(in crate::client) fn deliver(
        &self,
        immediate: u32,
        data: KBox<DmaBuffer>,
        len: u32,
    ) -> Result<u16, Malformed> {
        let delivery = Delivery::parse(immediate);
        let slot = self.slot(delivery.tag)?;
        if len == 0 || len != slot.expected.load(Relaxed) {
            return Err(Malformed("data that were not asked for"));
        }
        slot.change(|tag| tag.deliver(&delivery))?;
        // What is there, if anything, is of a connection that has failed.
        drop(slot.data.put(data));
        self.grant(delivery.credit)?;
        Ok(delivery.tag)
    }

    #[inline]
    fn slot(&self, tag: u16) -> Result<&Slot, Malformed> {
        let slot = self.slots.get(usize::from(tag));
        slot.ok_or(Malformed("a response to a tag beyond the depth"))
    }

    #[inline]
    fn grant(&self, credit: u16) -> Result<(), Malformed> {
        if usize::from(credit) > self.slots.len() {
            return Err(Malformed("a credit beyond the depth"));
        }
        // Answers may be sent in another order than they were written: an earlier one has less credit.
        // One completion is handled at a time.
        if u32::from(credit) > self.credit.load(Relaxed) {
            self.credit.store(credit.into(), Relaxed);
        }
        Ok(())
    }

    /// Whether somebody should make more receives, and nobody has been told to.
    #[inline]
    pub(in crate::client) fn should_grow(&self) -> bool {
        self.missing() != 0 && self.growing.load(Relaxed) == 0 && self.growing.xchg(1, Relaxed) == 0
    }

    /// Receives that are missing. Any context.
    #[inline]
    pub(in crate::client) fn missing(&self) -> u32 {
        let (credit, receives) = (self.credit.load(Relaxed), self.receives.load(Relaxed));
        credit.saturating_sub(receives)
    }

    /// There is a receive more. Any context.
    pub(in crate::client) fn grow(&self) {
        self.receives.fetch_add(1, Relaxed);
    }

    /// Who was told to make more receives is through. Any context.
    pub(in crate::client) fn grown(&self) {
        self.growing.store(0, Relaxed);
    }

    /// The bytes that a receive must have room for.
    pub(in crate::client) fn answer_size(&self) -> usize {
        // CAST: a u32 fits a usize on every platform with RDMA.
        response::SIZE.max(self.inline_read as usize)
    }

    /// The command for `request` is over: how it was answered, or [`BlkError::Transport`] if it was not,
    /// and a receive if one was used up by data.
    #[inline]
    pub(in crate::client) fn finish(
        &self,
        request: &Owned<Request<Disk>>,
        message: KBox<DmaBuffer>,
    ) -> (BlkResult, Option<KBox<DmaBuffer>>) {
        let Some(slot) = self.slots.get(usize::from(request.tag())) else {
            return (Err(BlkError::IoError), None);
        };
        let mut status = None;
        let _ = slot.change(|tag| {
            let (free, how) = tag.finish();
            status = how;
            Ok(free)
        });
        // There was none, as it was taken out for the command.
        drop(slot.message.put(message));
        let data = slot.data.take();
        let answer = match (status, &data) {
            // CAST: a u32 fits a usize on every platform with RDMA.
            (Some(Status::Ok), Some(data)) => data
                .copy_to(request.bytes() as usize, request)
                .map_err(|_| BlkError::IoError),
            (Some(status), _) => status.into(),
            (None, _) => Err(BlkError::Transport),
        };
        (answer, data)
    }

    /// A command is over, and there are receives as before. Any context.
    #[inline]
    pub(in crate::client) fn land(&self) {
        self.flying.fetch_sub(1, Relaxed);
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
