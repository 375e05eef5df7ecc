// SPDX-License-Identifier: GPL-2.0

//! One command of a client, from its receipt to the end of its answer.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    sync::Arc, //
};

use crate::base::errno::EOPNOTSUPP;
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
use crate::proto::{
    self,
    response,
    Delivery,
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
    wr::{
        RdmaOp,
        RecvBuffer,
        RecvOwner,
        RemoteRange,
        Reply,
        SendOwner,
        RECV_BUFFERS, //
    },
};
use crate::server::{
    block::connection::Hold,
    memory::pool::{
        Lasting,
        Piece, //
    },
};

/// What a command is received into.
pub(in crate::server) struct Recv {
    /// The command itself.
    pub(in crate::server) header: DmaBuffer,
    /// Its inline data.
    pub(in crate::server) data: DmaPiece,
    /// What the data are in.
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

/// Where the data of a command are.
enum Data {
    None,
    Inline(KBox<Recv>),
    Piece(Piece),
}

/// What the queue pair does for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It reads the data of a write from the client's memory.
    Fetch,
    /// It sends the answer, after the data of a read.
    Answer,
}

/// A command in flight, or the room for one.
pub(in crate::server) struct Command {
    /// The connection that it comes in on, which lets go of its commands, and so of itself, when it is
    /// closed.
    hold: Arc<Hold>,
    /// Its number, and that of its slot of the send queue.
    tag: u16,
    generation: u32,
    operation: Operation,
    data: Data,
    stage: Stage,
    /// The device has done the command, and is flushed before it is answered.
    flushing: bool,
    /// Whether the backing was asked not to wait.
    nowait: bool,
    response: DmaBuffer,
    bio: Option<Bio<KBox<Command>>>,
}

impl Command {
    /// A bio for a command. May sleep.
    pub(in crate::server) fn bio() -> Result<Bio<KBox<Self>>> {
        // Memory is in one piece.
        Bio::new(1)
    }

    /// Room for a command of a connection.
    pub(in crate::server) fn new(
        hold: Arc<Hold>,
        response: DmaBuffer,
        bio: Bio<KBox<Self>>,
    ) -> Self {
        Self {
            hold,
            tag: 0,
            generation: 0,
            operation: Operation::Flush,
            data: Data::None,
            stage: Stage::Answer,
            flushing: false,
            nowait: false,
            response,
            bio: Some(bio),
        }
    }

    /// Its number.
    pub(in crate::server) fn tag(&self) -> u16 {
        self.tag
    }

    /// Gives it a number, when it begins.
    pub(in crate::server) fn set_tag(&mut self, tag: u16) {
        self.tag = tag;
    }

    /// A command was received into `recv`. From the poller's worker.
    pub(in crate::server) fn begin(
        mut self: KBox<Self>,
        wanted: &proto::Command,
        recv: KBox<Recv>,
    ) {
        self.generation = wanted.generation;
        self.operation = wanted.operation;
        self.flushing = false;
        let hold = self.hold.clone();
        if let Operation::Write {
            from: Transfer::Inline,
            ..
        } = self.operation
        {
            self.data = Data::Inline(recv);
            return self.submit(true);
        }
        hold.queue.put_recv(recv);
        match self.memory_wanted() {
            Some(len) => hold.queue.provide(self, len),
            None => self.submit(true),
        }
    }

    /// A command was received that cannot be done.
    pub(in crate::server) fn refuse(mut self: KBox<Self>, response: &Response) {
        self.generation = response.generation;
        // The client sees to its memory itself.
        self.operation = Operation::Flush;
        self.answer(response.status);
    }

    /// Bytes of memory that it needs before anything can be done.
    pub(in crate::server) fn memory_wanted(&self) -> Option<u32> {
        match self.operation {
            Operation::Read { span, .. }
            | Operation::Write {
                span,
                from: Transfer::Remote(_),
                ..
            } => Some(span.len),
            _ => None,
        }
    }

    /// Goes on with the memory that it needed. From the poller's worker.
    pub(in crate::server) fn supply(mut self: KBox<Self>, memory: Piece) {
        self.data = Data::Piece(memory);
        match self.operation {
            Operation::Write {
                from: Transfer::Remote(remote),
                ..
            } => self.fetch(remote),
            _ => self.submit(true),
        }
    }

    /// Reads the data of a write from the client.
    fn fetch(mut self: KBox<Self>, remote: Remote) {
        self.stage = Stage::Fetch;
        let (hold, tag) = (self.hold.clone(), self.tag);
        let Hold { queue, qp, .. } = &*hold;
        queue.fetches(1);
        match qp.rdma(tag, RdmaOp::Read, range(remote), self, false) {
            Ok(()) => queue.post(qp),
            Err((error, command)) => {
                queue.fetches(-1);
                // Nothing was begun. Over iWARP that is so for every READ.
                command.answer(match error {
                    EAGAIN | ENOMEM => Status::Resource,
                    _ => Status::IoError,
                });
            }
        }
    }

    /// Has the backing do it. In a task that may sleep; it does so only unless `nowait`: then what the
    /// backing cannot do without is left to another task.
    pub(in crate::server) fn submit(mut self: KBox<Self>, nowait: bool) {
        let hold = self.hold.clone();
        let queue = &hold.queue;
        if nowait && !queue.block.nowait() {
            return queue.block(self);
        }
        let (op, fua, no_unmap) = match self.operation {
            _ if self.flushing => (BioOp::Flush, false, false),
            Operation::Read { .. } => (BioOp::Read, false, false),
            // Clients flush no device that had no cache when it was exported. If it has got one, each write
            // has to last when it is answered; else this costs nothing. For the others of the kind see
            // `owes_flush`.
            Operation::Write { fua, .. } => {
                let fua = fua || !queue.block.limits().write_cache;
                (BioOp::Write, fua, false)
            }
            Operation::Flush => (BioOp::Flush, false, false),
            Operation::Discard { .. } => (BioOp::Discard, false, false),
            Operation::WriteZeroes { no_unmap, .. } => (BioOp::WriteZeroes, false, no_unmap),
        };
        let span = self.operation.span();
        let (offset, bytes) = span.map_or((0, 0), |span| (span.offset, span.len));
        self.nowait = nowait;
        let request = BioRequest {
            fua,
            no_unmap,
            nowait,
            ..BioRequest::new(op, offset >> SECTOR_SHIFT, bytes)
        };
        match self.bio.take() {
            Some(bio) => bio.submit(&queue.block.bdev, request, self),
            None => self.answer(Status::IoError),
        }
    }

    /// Returns true if the device has to be flushed before a command is answered that it has done: clients
    /// were promised that it has no cache, it has got one since, and the command cannot pass it by.
    fn owes_flush(&self) -> bool {
        let block = &self.hold.queue.block;
        matches!(
            self.operation,
            Operation::Discard { .. } | Operation::WriteZeroes { .. }
        ) && !self.flushing
            && !block.limits().write_cache
            && block.bdev.write_cache()
    }

    /// The answer to a read that is its data.
    fn delivery(&self) -> Option<Reply> {
        let delivery = Delivery {
            tag: self.tag,
            generation: self.generation,
            credit: self.hold.queue.credit(),
        };
        delivery.encode().map(Reply::with_immediate)
    }

    /// The answer that is a response, after the data of a read if it went well.
    fn response(&mut self, status: Status) -> Option<Reply> {
        let response = Response {
            status,
            tag: self.tag,
            generation: self.generation,
            credit: self.hold.queue.credit(),
        };
        let mut bytes = [0; response::SIZE];
        response.encode(&mut bytes).ok()?;
        self.response.copy_in(0, &bytes).ok()?;
        let remote = self.operation.remote();
        let reads = matches!(self.operation, Operation::Read { .. });
        Some(Reply {
            immediate: None,
            write: remote.filter(|_| reads && status == Status::Ok).map(range),
            invalidate: remote.map(|remote| remote.rkey),
        })
    }

    /// Answers the client. Any context.
    pub(in crate::server) fn answer(mut self: KBox<Self>, status: Status) {
        let delivers = status == Status::Ok && self.operation.answer_len() != 0;
        let reply = match delivers {
            true => self.delivery(),
            false => self.response(status),
        };
        let Some(reply) = reply else {
            // It cannot be: there is room for a response, and for its numbers.
            let hold = self.hold.clone();
            self.end();
            return hold.queue.abandon();
        };
        self.stage = Stage::Answer;
        // Before the client hears of it, and sends the next one.
        if let Data::Inline(_) = &self.data {
            self.give_back();
        }
        self.hold.queue.settle(self.tag);
        let (hold, tag) = (self.hold.clone(), self.tag);
        let Hold { queue, qp, .. } = &*hold;
        match qp.reply(tag, reply, self, false) {
            Ok(()) => queue.post(qp),
            Err((error, command)) => {
                command.end();
                match error {
                    EOPNOTSUPP => queue.violation(),
                    _ => queue.abandon(),
                }
            }
        }
    }

    /// The queue pair is done with what it was to do. In the poller's worker, or after an error in any
    /// context.
    pub(in crate::server) fn posted(self: KBox<Self>, done: bool) {
        if self.stage == Stage::Answer {
            return self.end();
        }
        self.hold.queue.fetches(-1);
        // A software device has called a READ done that was not, and then failed.
        match done && !self.hold.queue.is_closed() && !self.hold.qp.has_failed() {
            true => self.submit(true),
            false => self.end(),
        }
    }

    /// Nothing more is to be done: its room is free for another one. Any context.
    pub(in crate::server) fn end(mut self: KBox<Self>) {
        self.give_back();
        let hold = self.hold.clone();
        hold.queue.put(self);
    }

    /// Gives back the memory of the data.
    fn give_back(&mut self) {
        match core::mem::replace(&mut self.data, Data::None) {
            Data::None => {}
            Data::Inline(recv) => self.hold.queue.put_recv(recv),
            Data::Piece(piece) => self.hold.queue.poller.put(piece),
        }
    }

    fn memory(&self) -> Option<&DmaPiece> {
        match &self.data {
            Data::None => None,
            Data::Inline(recv) => Some(&recv.data),
            Data::Piece(piece) => Some(piece.memory()),
        }
    }
}

impl BioOwner for KBox<Command> {
    type Memory = DmaPiece;

    #[inline]
    fn memory(&self) -> Option<&DmaPiece> {
        Command::memory(self)
    }

    fn end_io(mut self, bio: Bio<Self>, result: BlkResult) {
        self.bio = Some(bio);
        match result {
            // The device may have lost the ability just now. If it is the operation that it does not
            // know, the second try says so.
            Err(BlkError::Again | BlkError::NotSupported) if self.nowait => {
                let hold = self.hold.clone();
                hold.queue.block(self);
            }
            // Nothing may be submitted here.
            Ok(()) if self.owes_flush() => {
                self.flushing = true;
                let hold = self.hold.clone();
                hold.queue.block(self);
            }
            result => self.answer(result.into()),
        }
    }
}

impl SendOwner for KBox<Command> {
    type Memory = DmaPiece;

    #[inline]
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        Some((&self.response, response::SIZE))
    }

    #[inline]
    fn piece(&self) -> Option<&DmaPiece> {
        Command::memory(self)
    }
}

fn range(remote: Remote) -> RemoteRange {
    RemoteRange {
        addr: remote.addr,
        rkey: remote.rkey,
    }
}
