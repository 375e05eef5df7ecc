// SPDX-License-Identifier: GPL-2.0

//! The commands of an I/O connection to an export of a block device.
//!
//! A command has the tag of its request. The server answers it with a response, or with the data of
//! a small read; both are received. A command is sent only if the server has a receive for it
//! (*credit*) and the connection has a receive for its answer.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    page::PAGE_SIZE,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

use crate::base::{
    bounce::{
        BounceBuffer,
        Bounced, //
    },
    errno::EBADMSG,
    sync::{
        self,
        Place, //
    },
};
use crate::block::{
    mq::{
        self,
        Operations,
        Owned,
        Request, //
    },
    BlkError,
    BlkResult, //
};
use crate::client::io::{
    bounces::Bounces,
    persistent,
    protected::Protected,
    tag::Tag, //
};
use crate::link::cipher::BadFrame;
use crate::proto::{
    command,
    frame,
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
    request::Carry,
    wr::{
        RdmaOp,
        RemoteRange, //
    },
};
/// A cache line, in bytes: two messages should not share one.
const CACHE_LINE: usize = 64;
/// Number of receives that are made at a time, at most. For the largest answers they are one
/// allocation of 256 KiB.
const RECEIVES_BATCH: u32 = 16;

/// Allocates the memory of receives: [`DmaBuffer::alloc`] or [`DmaBuffer::alloc_free`].
pub(in crate::client) type AllocReceives = fn(&Arc<Device>, usize, Direction) -> Result<DmaBuffer>;

/// The command of one tag.
struct Slot {
    /// A [`Tag`] as a word.
    tag: Atomic<u64>,
    /// The buffer for the command; empty while the command is in flight.
    message: Place<DmaBuffer>,
    /// Length of the answer if it has to be data, in bytes; else 0.
    expected: Atomic<u32>,
    /// The answer, if it was data.
    data: Place<DmaBuffer>,
}

/// The commands of a connection. The index of a slot is the tag.
pub(in crate::client) struct Commands {
    slots: KVec<Slot>,
    /// Number of commands in flight.
    in_flight: Atomic<u32>,
    /// Number of commands that the server has receives for.
    credit: Atomic<u32>,
    /// Number of answers that the connection has receives for.
    receives: Atomic<u32>,
    /// 1 while more receives are being made, else 0.
    growing: Atomic<u32>,
    /// 1 if a command had to wait for credit since the last command was sent, else 0.
    pressed: Atomic<u32>,
    /// Largest write whose data follow the command, in bytes.
    inline_size: u32,
    /// Largest read whose data are the answer, in bytes.
    inline_read: u32,
    /// `None` if commands and answers are sent as they are.
    pub(super) protected: Option<Protected>,
    /// The bounce buffers, if there is a protection, or the device needs them.
    bounces: Option<Arc<Bounces>>,
    /// The device registers whole pages only.
    whole_pages: bool,
}

/// How a command has ended.
pub(super) struct Finished {
    /// Its result: [`BlkError::Transport`] if it was not answered.
    pub(super) status: BlkResult,
    /// The receive that the answer used up, if it was data.
    pub(super) receive: Option<KBox<DmaBuffer>>,
    /// The data that the server has written are not what it has sent the check of.
    pub(super) forged: bool,
}

impl Commands {
    /// Makes the commands of a connection over `device` under `terms`. `credit` of them may be in
    /// flight at first, once there are receives. Reads of up to `inline_read` bytes are answered
    /// with their data. May sleep.
    pub(in crate::client) fn new(
        device: &Arc<Device>,
        terms: &Terms,
        credit: u16,
        inline_read: u32,
        (protected, bounces): (Option<Protected>, Option<Arc<Bounces>>),
    ) -> Result<Self> {
        let depth = usize::from(terms.depth);
        let mut slots = KVec::with_capacity(depth, GFP_KERNEL)?;
        let size = match protected {
            Some(_) => frame::COMMAND_SIZE,
            None => command::SIZE,
        };
        let stride = size.next_multiple_of(CACHE_LINE);
        let memory = DmaBuffer::alloc(device, depth * stride, Direction::ToDevice)?;
        for mut message in memory.split(stride) {
            message.truncate(size)?;
            // CAST: Any number will do.
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
            in_flight: Atomic::new(0),
            credit: Atomic::new(credit.into()),
            receives: Atomic::new(0),
            growing: Atomic::new(0),
            pressed: Atomic::new(0),
            inline_size: terms.inline_size,
            inline_read,
            protected,
            bounces,
            whole_pages: device.loses_offsets(),
        })
    }

    /// Takes the buffer for the command of `tag`. Returns `None` if there is no receive for the
    /// command or for its answer: the caller must wait until another command has ended.
    #[inline]
    pub(in crate::client) fn begin(&self, tag: u16) -> Option<KBox<DmaBuffer>> {
        let slot = self.slots.get(usize::from(tag))?;
        let max = self.credit.load(Relaxed).min(self.receives.load(Relaxed));
        if self.in_flight.fetch_add(1, Relaxed) >= max {
            self.in_flight.fetch_sub(1, Relaxed);
            self.pressed.store(1, Relaxed);
            return None;
        }
        let message = slot.message.take();
        if message.is_none() {
            self.in_flight.fetch_sub(1, Relaxed);
        }
        message
    }

    /// Takes the bounce buffer for a request that needs one: the server sees that in place of the
    /// memory. Fails with [`BlkError::Resource`] if none is free. Any context.
    #[inline]
    pub(super) fn take_bounce<T: Operations>(
        &self,
        request: &Request<T>,
        carry: Carry,
    ) -> BlkResult<Option<BounceBuffer>> {
        let whole_pages = self.whole_pages && matches!(carry, Carry::Access(_));
        let needs = match &self.protected {
            Some(_) => carry != Carry::Nothing,
            None => whole_pages && !is_whole_pages(request),
        };
        let Some(bounces) = self.bounces.as_ref().filter(|_| needs) else {
            return Ok(None);
        };
        let buffer = bounces.take(request.bytes(), whole_pages);
        buffer.ok_or(BlkError::Resource).map(Some)
    }

    /// Gives back a bounce buffer. Any context.
    #[inline]
    pub(super) fn put_bounce(&self, buffer: BounceBuffer) {
        if let Some(bounces) = &self.bounces {
            bounces.put(buffer);
        }
    }

    /// Chooses the command for a request, and how its work request carries the data.
    #[inline]
    pub(in crate::client) fn plan<T: Operations>(
        &self,
        request: &Request<T>,
    ) -> BlkResult<(Operation, Carry)> {
        let span = Span {
            offset: request.sector() << SECTOR_SHIFT,
            len: request.bytes(),
        };
        // The address of the data is known only when the memory has been registered.
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
                let write = Operation::Write {
                    span,
                    from,
                    fua: request.fua(),
                    atomic: request.atomic(),
                };
                (write, carry)
            }
            mq::Command::Flush => (Operation::Flush, Carry::Nothing),
            mq::Command::Discard => (Operation::Discard { span }, Carry::Nothing),
            mq::Command::WriteZeroes => {
                let no_unmap = request.no_unmap();
                (Operation::WriteZeroes { span, no_unmap }, Carry::Nothing)
            }
            mq::Command::SecureErase => (Operation::SecureErase { span }, Carry::Nothing),
            mq::Command::Reserve => (persistent::operation(request)?, Carry::Nothing),
            mq::Command::Report => (persistent::report(self.inline_read)?, Carry::Nothing),
            mq::Command::Unsupported(_) => return Err(BlkError::NotSupported),
        })
    }

    /// Writes the command of `tag` into `message`. `range` is where the server finds the data, if
    /// the command tells it; `memory` has those of a write.
    #[inline]
    pub(in crate::client) fn write<T: Operations>(
        &self,
        message: &mut DmaBuffer,
        tag: u16,
        mut operation: Operation,
        memory: &Bounced<Owned<Request<T>>>,
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
        match &self.protected {
            None => {
                if memory.buffer().is_some() && matches!(operation, Operation::Write { .. }) {
                    memory.fill()?;
                }
                message.copy_in(0, &bytes)
            }
            Some(protected) => protected.seal(tag, message, &bytes, &operation, memory),
        }
    }

    /// Takes note of a received message of `len` bytes. Returns the tag of the command that it
    /// answers.
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
            return Err(Malformed("the response has the wrong length"));
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

    /// Opens the received frame of `len` bytes in `buffer`, and takes note of it. Returns the tag
    /// of the command that it answers, and the buffer if the frame had no data.
    pub(super) fn open(
        &self,
        protected: &Protected,
        mut buffer: KBox<DmaBuffer>,
        len: u32,
    ) -> (Result<u16, BadFrame>, Option<KBox<DmaBuffer>>) {
        let answered = protected.open(&mut buffer, len).and_then(|opened| {
            let response = Response::parse(&opened.response)?;
            let slot = self.slot(response.tag)?;
            let ok = response.status == Status::Ok;
            let expected = match ok {
                true => slot.expected.load(Relaxed),
                false => 0,
            };
            if opened.data != expected {
                return Err(Malformed("an answer has not the data that were asked for").into());
            }
            protected.note(response.tag, &opened, ok)?;
            slot.change(|tag| tag.respond(&response))?;
            self.grant(response.credit)?;
            Ok((slot, response.tag, expected != 0))
        });
        match answered {
            Ok((slot, tag, true)) => {
                // The place is empty, unless the connection has failed.
                drop(slot.data.put(buffer));
                (Ok(tag), None)
            }
            Ok((_, tag, false)) => (Ok(tag), Some(buffer)),
            Err(bad) => (Err(bad), Some(buffer)),
        }
    }

    /// Takes note of `len` bytes of received data with `immediate`. Returns the tag of the command
    /// that they answer.
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
            return Err(Malformed("data that no command asked for"));
        }
        slot.change(|tag| tag.deliver(&delivery))?;
        // The place is empty, unless the connection has failed.
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
        // The server may send answers in another order than it wrote them, and an older answer has
        // less credit. The handlers of one connection do not run in parallel.
        if u32::from(credit) > self.credit.load(Relaxed) {
            self.credit.store(credit.into(), Relaxed);
        }
        Ok(())
    }

    /// Returns true if more receives are needed, once until [`Self::grown`] is called.
    #[inline]
    pub(in crate::client) fn should_grow(&self) -> bool {
        self.missing() != 0 && self.growing.load(Relaxed) == 0 && self.growing.xchg(1, Relaxed) == 0
    }

    /// Returns the number of receives that are missing.
    #[inline]
    fn missing(&self) -> u32 {
        let (credit, receives) = (self.credit.load(Relaxed), self.receives.load(Relaxed));
        credit.saturating_sub(receives)
    }

    /// Makes receives of those that are missing, at most [`RECEIVES_BATCH`]; none if none is
    /// missing. The caller posts them. May sleep.
    pub(in crate::client) fn make_receives(
        &self,
        device: &Arc<Device>,
        alloc: AllocReceives,
    ) -> Result<KVec<KBox<DmaBuffer>>> {
        let mut receives = KVec::new();
        // CAST: A small number.
        let mut count = self.missing().min(RECEIVES_BATCH) as usize;
        if count == 0 {
            return Ok(receives);
        }
        // A receive holds a response, or the data of a read.
        // CAST: A u32 fits a usize on every platform with RDMA.
        let data = self.inline_read as usize;
        let size = match self.protected {
            None => response::SIZE.max(data),
            // They are decrypted where they lie.
            Some(_) => (frame::RESPONSE_SIZE + data).next_multiple_of(CACHE_LINE),
        };
        // If memory is fragmented, smaller pieces do.
        let memory = loop {
            match alloc(device, count * size, Direction::FromDevice) {
                Err(_) if count > 1 => count /= 2,
                memory => break memory?,
            }
        };
        for receive in memory.split(size) {
            receives.push(KBox::new(receive, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(receives)
    }

    /// Notes that one more receive was posted. Any context.
    pub(in crate::client) fn grow(&self) {
        self.receives.fetch_add(1, Relaxed);
    }

    /// Notes that the attempt to make more receives is over. Any context.
    pub(in crate::client) fn grown(&self) {
        self.growing.store(0, Relaxed);
    }

    /// Ends the command for a request, whose memory the server cannot access any more; `sent` tells
    /// if its work requests have succeeded. The caller must post the receive that the answer used
    /// up before it calls [`Self::land`].
    #[inline]
    pub(super) fn finish<T: Operations>(
        &self,
        memory: &Bounced<Owned<Request<T>>>,
        mut message: KBox<DmaBuffer>,
        sent: bool,
    ) -> Finished {
        let request = memory.memory();
        let tag = request.tag();
        let Some(slot) = self.slots.get(usize::from(tag)) else {
            return Finished {
                status: Err(BlkError::IoError),
                receive: None,
                forged: false,
            };
        };
        let mut status = None;
        let _ = slot.change(|tag| {
            let (free, how) = tag.finish();
            status = how.filter(|_| sent);
            Ok(free)
        });
        let receive = slot.data.take();
        let start = match self.protected {
            Some(_) => frame::RESPONSE_SIZE,
            None => 0,
        };
        let mut forged = false;
        let is_read = request.command() == mq::Command::Read;
        let status = match (status, &receive, &self.protected) {
            // CAST: A u32 fits a usize on every platform with RDMA.
            (Some(Status::Ok), Some(data), _) => data
                .copy_to(start, request.bytes() as usize, request)
                .map_err(|_| BlkError::IoError),
            (Some(Status::Ok), None, Some(protected)) if is_read => {
                let opened = protected.open_data(tag, &mut message, memory);
                forged = opened == Err(EBADMSG);
                // What was forged is read again on another connection.
                opened.map_err(|error| match error {
                    EBADMSG => BlkError::Transport,
                    _ => BlkError::IoError,
                })
            }
            (Some(Status::Ok), None, None) if is_read && memory.buffer().is_some() => {
                memory.empty().map_err(|_| BlkError::IoError)
            }
            (Some(status), ..) => status.into(),
            (None, ..) => Err(BlkError::Transport),
        };
        // The place is empty: `begin` took the buffer out for the command.
        drop(slot.message.put(message));
        Finished {
            status,
            receive,
            forged,
        }
    }

    /// Lets another command begin: one has ended, and all receives are posted. Any context.
    #[inline]
    pub(in crate::client) fn land(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Returns true if the memory of a request is whole pages. It has no gaps between pages.
#[inline]
fn is_whole_pages<T: Operations>(request: &Request<T>) -> bool {
    let offset = request.segments().next().map_or(0, |first| first.offset());
    (offset | request.bytes()) % PAGE_SIZE as u32 == 0
}

impl Slot {
    /// Replaces the tag by what `to` makes of it.
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
