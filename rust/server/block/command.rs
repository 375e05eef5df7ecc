// SPDX-License-Identifier: GPL-2.0

//! A command of a client, from its receipt to the completion of its answer.
//!
//! The queue gives it a slot and calls [`Command::receive`], in the poller's worker. From there it
//! goes through [`Command::submit`] and, when the backing device is done, [`Command::answer`]. When
//! the HCA is done with the answer, [`Command::sent`] gives the slot back. Until then the command
//! has one owner, which has to go on with it: a FIFO of the queue, a bio, or the send queue.

// Long: all that a command goes through.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    sync::Arc, //
};

use crate::base::errno::{
    EBADMSG,
    EOPNOTSUPP, //
};
use crate::block::{
    bio::{
        Bio,
        BioOp,
        BioOwner,
        BioRequest, //
    },
    BlkError,
    BlkResult, //
};
use crate::link::cipher::BadFrame;
use crate::proto::{
    command,
    persistent::REPORT_SIZE,
    response,
    CommandError,
    Delivery,
    Malformed,
    Operation,
    Remote,
    Response,
    Status,
    Transfer, //
};
use crate::rdma::{
    dma::{
        DmaBuffer,
        DmaPiece, //
    },
    request::Reply,
    srq::KeptSlot,
    wr::{
        RdmaOp,
        RecvBuffer,
        RecvOwner,
        RemoteRange,
        SendOwner,
        RECV_BUFFERS, //
    },
};
use crate::server::{
    block::{
        fifo::Linked,
        protected::{
            Frame,
            Header,
            Protected, //
        },
        queue::{
            IoQueue,
            QueuePair,
            QueueRef, //
        },
    },
    memory::{
        Piece,
        PieceLen,
        PoolMemory, //
    },
    stats::ConnectionStats,
};

/// The buffers that a command is received into.
pub(super) struct Recv {
    /// The command itself.
    pub(super) header: DmaBuffer,
    /// Its inline data.
    pub(super) data: DmaPiece,
    /// The memory that `data` is a piece of.
    pub(super) _memory: Arc<PoolMemory>,
    /// The bytes that were received.
    pub(super) len: u32,
    /// The next message that waits for a slot.
    pub(super) next: Option<KBox<Recv>>,
}

impl RecvOwner for KBox<Recv> {
    #[inline]
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        let Recv { header, data, .. } = &mut **self;
        [
            Some(RecvBuffer::Cpu(header)),
            Some(RecvBuffer::Devices(data)),
        ]
    }

    #[inline]
    fn kept(&mut self) -> Option<&mut KeptSlot> {
        Some(self.header.kept_slot())
    }
}

impl Linked for Recv {
    fn link(&mut self) -> &mut Option<KBox<Self>> {
        &mut self.next
    }
}

/// What the queue pair was last asked to do for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// To read the data of a write from the client's memory.
    Fetch,
    /// To send the answer, after the data of a read.
    Answer,
}

/// A slot for one command at a time, with all that the command needs but memory for its data.
///
/// Its methods get the queue and the queue pair from their caller, which has a reference.
pub(super) struct Command {
    /// The queue, for what ends in a context without another reference to it.
    owner: Arc<QueueRef>,
    /// The next one of the same FIFO.
    next: Option<KBox<Command>>,
    /// The index of the slot in the send queue.
    slot: u16,
    tag: u16,
    generation: u32,
    operation: Operation,
    /// When the command began, in ns; 0 if it is refused.
    began_ns: u64,
    /// What it was received into, if its data are there.
    recv: Option<KBox<Recv>>,
    /// The memory of other data.
    piece: Option<Piece>,
    /// Small memory that the slot keeps between commands, so that most need not ask for any. It is
    /// given back while a command waits for memory, and by a command that does not use it.
    kept: Option<Piece>,
    stage: Stage,
    /// The device has done the command, and is being flushed before the answer.
    flushing: bool,
    /// The backing device was asked not to wait.
    nowait: bool,
    response: DmaBuffer,
    bio: Option<Bio<CommandIo>>,
    /// The frame that it came in, if the queue has a protection and the command is not refused.
    frame: Option<Frame>,
    /// The result of the backing device, until the answer is sealed.
    status: Status,
}

impl Linked for Command {
    fn link(&mut self) -> &mut Option<KBox<Self>> {
        &mut self.next
    }
}

impl Command {
    /// Makes a bio for a command. May sleep.
    pub(super) fn bio() -> Result<Bio<CommandIo>> {
        // The data are in one piece of memory.
        Bio::new(1)
    }

    /// Makes slot number `slot` of a queue, with no command in it.
    pub(super) fn new(
        owner: Arc<QueueRef>,
        slot: u16,
        response: DmaBuffer,
        bio: Bio<CommandIo>,
    ) -> Self {
        Self {
            owner,
            next: None,
            slot,
            tag: 0,
            generation: 0,
            operation: Operation::Flush,
            began_ns: 0,
            recv: None,
            piece: None,
            kept: None,
            stage: Stage::Answer,
            flushing: false,
            nowait: false,
            response,
            bio: Some(bio),
            frame: None,
            status: Status::Ok,
        }
    }

    /// Returns the reference to its queue, for a caller that has no other one.
    pub(super) fn owner(&self) -> Arc<QueueRef> {
        self.owner.clone()
    }

    /// Returns the index of the slot.
    #[inline]
    pub(super) fn slot(&self) -> u16 {
        self.slot
    }

    /// Begins the command that was received into `recv`. Runs in the poller's worker.
    pub(super) fn receive(
        mut self: KBox<Self>,
        queue: &Arc<IoQueue>,
        qp: &QueuePair,
        mut recv: KBox<Recv>,
    ) {
        let header = match queue.protected.as_ref() {
            None => Self::header(&recv),
            Some(protected) => {
                let Recv {
                    header, data, len, ..
                } = &mut *recv;
                protected.open(header, data, *len)
            }
        };
        let Header { frame, bytes, len } = match header {
            Ok(header) => header,
            Err(bad) => {
                queue.put_recv(qp, recv);
                queue.put(self);
                return match bad {
                    BadFrame::Forged => queue.forgery(),
                    BadFrame::Malformed(_) => queue.violation(),
                };
            }
        };
        let (tag, generation, refusal) =
            match command::parse(&bytes, len, &queue.terms, queue.extent()) {
                Ok(command) => {
                    if command.pressed {
                        queue.ask_for_credit();
                    }
                    self.operation = command.operation;
                    let allowed = queue.membership.allows(&command.operation);
                    let refusal = (!allowed).then_some(Status::Reservation);
                    (command.tag, command.generation, refusal)
                }
                Err(CommandError::Refused(response, _)) => {
                    (response.tag, response.generation, Some(response.status))
                }
                Err(_) => {
                    queue.put_recv(qp, recv);
                    queue.put(self);
                    return queue.violation();
                }
            };
        let number = frame.as_ref().map(|frame| frame.number);
        if !queue.begin_tag(tag, number) {
            queue.put_recv(qp, recv);
            queue.put(self);
            return queue.violation();
        }
        self.tag = tag;
        self.generation = generation;
        self.frame = None;
        if let Some(status) = refusal {
            queue.put_recv(qp, recv);
            return self.refuse(queue, qp, status);
        }
        self.began_ns = ConnectionStats::now_ns();
        self.flushing = false;
        if frame.is_some() {
            self.frame = frame;
            // Cannot fail: both buffers are as long as a frame.
            let _ = Protected::keep_check(&recv.header, &mut self.response);
        }
        if let Operation::Write {
            from: Transfer::Inline,
            ..
        } = self.operation
        {
            self.free_kept();
            self.recv = Some(recv);
            return self.submit(queue, qp, true);
        }
        queue.put_recv(qp, recv);
        match self.memory_wanted() {
            Ok(Some(len)) => queue.provide(qp, self, len),
            Ok(None) => {
                // The device may take long.
                self.free_kept();
                self.submit(queue, qp, true);
            }
            // This cannot be: the length was checked against the terms.
            Err(_) => self.answer(queue, qp, Status::Invalid),
        }
    }

    /// Returns the command of a message that is no frame.
    fn header(recv: &Recv) -> Result<Header, BadFrame> {
        let mut bytes = [0; command::SIZE];
        // Cannot fail: the buffer is as long as a command.
        let copied = recv.header.copy_out(0, &mut bytes);
        copied.map_err(|_| Malformed("the command was not received"))?;
        Ok(Header {
            frame: None,
            bytes,
            len: recv.len,
        })
    }

    /// Answers a command that cannot be done.
    fn refuse(mut self: KBox<Self>, queue: &Arc<IoQueue>, qp: &QueuePair, status: Status) {
        // Without an operation no key is invalidated: the client does that itself.
        self.operation = Operation::Flush;
        self.began_ns = 0;
        self.answer(queue, qp, status);
    }

    /// Returns how much memory the command needs before it can go on. Fails with `EINVAL` if there
    /// are no pieces of that length.
    pub(super) fn memory_wanted(&self) -> Result<Option<PieceLen>> {
        let len = match self.operation {
            Operation::Read { span, .. }
            | Operation::Write {
                span,
                from: Transfer::Remote(_),
                ..
            } => span.len,
            Operation::Report => self.operation.answer_len(),
            _ => return Ok(None),
        };
        let len = PieceLen::new(usize::try_from(len)?);
        Ok(Some(len.ok_or(EINVAL)?))
    }

    /// Takes the memory that the slot has kept, if `len` bytes fit. Frees it if not: a command must
    /// not have some memory while it waits for more.
    #[inline]
    pub(super) fn take_kept(&mut self, len: PieceLen) -> Option<Piece> {
        let mut kept = self.kept.take()?;
        kept.fit(len).ok()?;
        Some(kept)
    }

    /// Frees the memory that the slot has kept.
    pub(super) fn free_kept(&mut self) {
        self.kept = None;
    }

    /// Goes on with the memory that the command needed. Runs in the poller's worker.
    pub(super) fn supply(
        mut self: KBox<Self>,
        queue: &Arc<IoQueue>,
        qp: &QueuePair,
        memory: Piece,
    ) {
        self.piece = Some(memory);
        match self.operation {
            Operation::Write {
                from: Transfer::Remote(_),
                ..
            } => queue.fetch(qp, self),
            _ => self.submit(queue, qp, true),
        }
    }

    /// Reads the data of a write from the client's memory. Fails if nothing was posted, with the
    /// status that the command is to be answered with.
    pub(super) fn fetch(
        mut self: KBox<Self>,
        queue: &IoQueue,
        qp: &QueuePair,
    ) -> Result<(), (Status, KBox<Self>)> {
        self.stage = Stage::Fetch;
        let slot = self.slot;
        let Some(remote) = self.operation.remote() else {
            return Err((Status::IoError, self));
        };
        let last = queue.posts_now();
        match qp.rdma(slot, RdmaOp::Read, range(remote), self, last) {
            Ok(()) => {
                queue.post(qp, last);
                Ok(())
            }
            Err((EAGAIN | ENOMEM, command)) => Err((Status::Resource, command)),
            Err((_, command)) => Err((Status::IoError, command)),
        }
    }

    /// Submits the command to the backing device.
    ///
    /// With `nowait` this does not sleep, and a command for which the device would have to wait is
    /// left to a task of its own. Without `nowait` it may sleep.
    pub(super) fn submit(mut self: KBox<Self>, queue: &Arc<IoQueue>, qp: &QueuePair, nowait: bool) {
        let bdev = &queue.block.bdev;
        if nowait && !bdev.nowait() {
            return queue.submit_later(qp, self);
        }
        let (offset, bytes) = self
            .operation
            .span()
            .map_or((0, 0), |span| (span.offset, span.len));
        let request = |op| BioRequest {
            nowait,
            ..BioRequest::new(op, offset >> SECTOR_SHIFT, bytes)
        };
        let request = match self.operation {
            // It has no place and no length, whatever these are.
            _ if self.flushing => request(BioOp::Flush),
            // Clients do not flush a device that had no write cache when it was exported. If it has
            // one now, each write has to be durable when it is answered; otherwise FUA costs
            // nothing. For discards and zeroes see `owes_flush`.
            Operation::Write { fua, atomic, .. } => BioRequest {
                fua: fua || !queue.terms.limits.write_cache,
                atomic,
                ..request(BioOp::Write)
            },
            Operation::Read { .. } => request(BioOp::Read),
            Operation::Flush => request(BioOp::Flush),
            Operation::Discard { .. } => request(BioOp::Discard),
            Operation::WriteZeroes { no_unmap, .. } => BioRequest {
                no_unmap,
                ..request(BioOp::WriteZeroes)
            },
            Operation::SecureErase { .. } => request(BioOp::SecureErase),
            Operation::Reserve { .. } | Operation::Report => {
                return match nowait {
                    true => queue.submit_later(qp, self),
                    false => self.reserve(queue, qp),
                };
            }
        };
        self.nowait = nowait;
        match self.bio.take() {
            Some(bio) => bio.submit(bdev, request, CommandIo(self)),
            None => self.answer(queue, qp, Status::IoError),
        }
    }

    /// Carries out a command about persistent reservations. Sleeps, as long as the device takes.
    fn reserve(self: KBox<Self>, queue: &Arc<IoQueue>, qp: &QueuePair) {
        let status = match &self.operation {
            Operation::Reserve { reserve, token } => queue.membership.change(reserve, *token),
            _ => queue.membership.report().map(|report| {
                let mut bytes = [0; REPORT_SIZE];
                let written = match (&self.piece, report.encode(&mut bytes)) {
                    (Some(piece), Ok(_)) => {
                        let memory = piece.memory();
                        let contents = memory.contents(memory.len());
                        contents.and_then(|contents| contents.write(&bytes))
                    }
                    _ => Err(EINVAL),
                };
                match written {
                    Ok(()) => Status::Ok,
                    Err(_) => Status::IoError,
                }
            }),
        };
        match status {
            Some(status) => self.answer(queue, qp, status),
            // The session is about to end.
            None => self.end(queue, qp),
        }
    }

    /// Returns true if the device has to be flushed before a command that it has done is answered:
    /// clients were told that the device has no write cache, it has one now, and the command cannot
    /// have FUA.
    fn owes_flush(&self) -> bool {
        let queue = &self.owner.queue;
        matches!(
            self.operation,
            Operation::Discard { .. }
                | Operation::WriteZeroes { .. }
                | Operation::SecureErase { .. }
        ) && !self.flushing
            && !queue.terms.limits.write_cache
            && queue.block.bdev.write_cache()
    }

    /// Answers what the backing device has done, in any context: a frame is made in a task of its
    /// own.
    fn finish(mut self: KBox<Self>, queue: &Arc<IoQueue>, qp: &QueuePair, status: Status) {
        if queue.protected.is_none() {
            return self.answer(queue, qp, status);
        }
        self.status = status;
        queue.answer_later(qp, self);
    }

    /// Answers what [`Command::finish`] has left to a task.
    pub(super) fn answer_finished(self: KBox<Self>, queue: &Arc<IoQueue>, qp: &QueuePair) {
        let status = self.status;
        self.answer(queue, qp, status);
    }

    /// Answers the client. Any context; with a protection any but hard interrupt.
    pub(super) fn answer(
        mut self: KBox<Self>,
        queue: &Arc<IoQueue>,
        qp: &QueuePair,
        status: Status,
    ) {
        queue.stats.answered(&self.operation, status, self.began_ns);
        let delivers = status == Status::Ok && self.operation.answer_len() != 0;
        let reply = match (&queue.protected, delivers) {
            (Some(protected), _) => self.framed(queue, protected, status).ok(),
            (None, true) => self.delivery(queue),
            (None, false) => self.response(queue, status),
        };
        let Some(reply) = reply else {
            // This cannot be: the buffer is as long as a response, whose numbers are valid.
            self.end(queue, qp);
            return queue.lose_session();
        };
        self.stage = Stage::Answer;
        // Both before the client learns of the answer and sends its next command.
        if let Some(recv) = self.recv.take() {
            queue.put_recv(qp, recv);
        }
        queue.end_tag(self.tag);
        let slot = self.slot;
        let last = queue.posts_now();
        match qp.reply(slot, reply, self, last) {
            Ok(()) => queue.post(qp, last),
            Err((error, command)) => {
                command.end(queue, qp);
                match error {
                    EOPNOTSUPP => queue.session.violation(),
                    _ => queue.lose_session(),
                }
            }
        }
    }

    /// Returns the answer that consists of the data of a read.
    fn delivery(&self, queue: &IoQueue) -> Option<Reply> {
        let delivery = Delivery {
            tag: self.tag,
            generation: self.generation,
            credit: queue.credit(),
        };
        delivery.encode().map(Reply::with_immediate)
    }

    /// Returns the answer that is a response, after the data of a read that succeeded.
    fn response(&mut self, queue: &IoQueue, status: Status) -> Option<Reply> {
        let bytes = self.encode(queue, status)?;
        self.response.copy_in(0, &bytes).ok()?;
        Some(Reply {
            immediate: None,
            append: false,
            write: self.write_back(status),
            invalidate: self.key_to_invalidate(queue),
        })
    }

    /// Returns the answer that is a frame, after the data of a read that succeeded or with them.
    fn framed(&mut self, queue: &IoQueue, protected: &Protected, status: Status) -> Result<Reply> {
        let bytes = self.encode(queue, status).ok_or(EINVAL)?;
        let write = self.write_back(status);
        let append = status == Status::Ok && self.operation.answer_len() != 0;
        let data = self.piece.as_ref().map(Piece::memory);
        let data = data.filter(|_| append || write.is_some());
        let written = match write {
            Some(_) => Some(self.frame.as_ref().ok_or(EINVAL)?),
            None => None,
        };
        protected.seal(&mut self.response, &bytes, data, written)?;
        Ok(Reply {
            immediate: None,
            append,
            write,
            invalidate: self.key_to_invalidate(queue),
        })
    }

    #[inline]
    fn encode(&self, queue: &IoQueue, status: Status) -> Option<[u8; response::SIZE]> {
        let response = Response {
            status,
            tag: self.tag,
            generation: self.generation,
            credit: queue.credit(),
        };
        let mut bytes = [0; response::SIZE];
        response.encode(&mut bytes).ok().map(|_| bytes)
    }

    /// Returns where the data of a read that succeeded are to be written.
    #[inline]
    fn write_back(&self, status: Status) -> Option<RemoteRange> {
        match &self.operation {
            Operation::Read {
                to: Transfer::Remote(remote),
                ..
            } if status == Status::Ok => Some(range(*remote)),
            _ => None,
        }
    }

    /// Returns the key that the answer makes invalid, if both devices can do that. Otherwise the
    /// client does so when it has the answer.
    #[inline]
    fn key_to_invalidate(&self, queue: &IoQueue) -> Option<u32> {
        match queue.invalidates {
            true => self.operation.remote().map(|remote| remote.rkey),
            false => None,
        }
    }

    /// Handles the completion of what the queue pair was asked to do. A success is handled by a
    /// task that polls the completion queue: the poller's worker most often, or one that looks
    /// after the queue, drains it or another one of its receive queue, or shows its counters. A
    /// failure is handled in any context.
    pub(super) fn sent(mut self: KBox<Self>, queue: &Arc<IoQueue>, qp: &QueuePair, done: bool) {
        if self.stage == Stage::Answer {
            return self.end(queue, qp);
        }
        queue.fetched(qp);
        // A device may complete a READ that was not done, and fail afterwards.
        if !done || queue.is_closed() || qp.has_failed() {
            return self.end(queue, qp);
        }
        if let Some(protected) = &queue.protected {
            let Command {
                frame,
                piece,
                response,
                ..
            } = &mut *self;
            let opened = match (frame, piece) {
                (Some(frame), Some(piece)) => protected.open_data(frame, response, piece.memory()),
                _ => Err(EINVAL),
            };
            if let Err(error) = opened {
                self.end(queue, qp);
                return match error {
                    EBADMSG => queue.forgery(),
                    _ => queue.lose_session(),
                };
            }
        }
        self.submit(queue, qp, true);
    }

    /// Ends a command that the queue pair cannot give back. Returns the memory that a device may
    /// still access.
    pub(super) fn park(mut self: KBox<Self>) -> Option<Piece> {
        let piece = self.piece.take();
        let owner = self.owner();
        self.sent(&owner.queue, &owner.qp, false);
        piece
    }

    /// Ends the command: its slot is free for another one. Any context.
    pub(super) fn end(mut self: KBox<Self>, queue: &IoQueue, qp: &QueuePair) {
        if let Some(recv) = self.recv.take() {
            queue.put_recv(qp, recv);
        }
        if self.piece.is_some() || self.kept.is_some() {
            self.end_with_memory(queue);
        } else {
            queue.put(self);
        }
    }

    /// Ends the command. Its slot keeps a small piece of memory, unless a command waits for memory.
    fn end_with_memory(mut self: KBox<Self>, queue: &IoQueue) {
        let piece = self.piece.take();
        if !queue.may_keep() {
            drop((piece, self.kept.take()));
            return queue.put(self);
        }
        match piece {
            Some(piece) if piece.is_small() && self.kept.is_none() => self.kept = Some(piece),
            piece => drop(piece),
        }
        if self.kept.is_some() {
            queue.put_keeping(self);
        } else {
            queue.put(self);
        }
    }

    #[inline]
    fn memory(&self) -> Option<&DmaPiece> {
        match (&self.recv, &self.piece) {
            (Some(recv), _) => Some(&recv.data),
            (None, piece) => piece.as_ref().map(Piece::memory),
        }
    }
}

/// A command that the backing device has.
pub(super) struct CommandIo(KBox<Command>);

impl BioOwner for CommandIo {
    type Memory = DmaPiece;

    #[inline]
    fn memory(&self) -> Option<&DmaPiece> {
        Command::memory(&self.0)
    }

    fn end_io(self, bio: Bio<Self>, result: BlkResult) {
        let Self(mut command) = self;
        command.bio = Some(bio);
        let owner = command.owner();
        let QueueRef { queue, qp, .. } = &*owner;
        match result {
            // The device may have lost support for REQ_NOWAIT just now. If it does not support the
            // operation, the second attempt says so.
            Err(BlkError::Again | BlkError::NotSupported) if command.nowait => {
                queue.submit_later(qp, command);
            }
            // No bio may be submitted in this context.
            Ok(()) if command.owes_flush() => {
                command.flushing = true;
                queue.submit_later(qp, command);
            }
            // The client repeats it when the export is available again, or lets it fail.
            Err(_) if queue.block.unavailable().is_some() => {
                command.end(queue, qp);
                queue.lose_session();
            }
            result => command.finish(queue, qp, result.into()),
        }
    }
}

impl SendOwner for KBox<Command> {
    type Memory = DmaPiece;

    #[inline]
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        Some((&self.response, self.response.len()))
    }

    #[inline]
    fn piece(&self) -> Option<&DmaPiece> {
        Command::memory(self)
    }
}

#[inline]
fn range(remote: Remote) -> RemoteRange {
    RemoteRange {
        addr: remote.addr,
        rkey: remote.rkey,
    }
}
