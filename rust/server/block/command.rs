// SPDX-License-Identifier: GPL-2.0

//! A command of a client, from its receipt to the end of its answer.
//!
//! [`Handler::recv_done`] is where a command comes in, in the poller's worker. A
//! command then goes through [`Command::begin`], [`Command::submit`] and, when the backing device
//! has done it, [`Command::answer`]. [`Handler::send_done`] is where the HCA gives it back, and its
//! slot is free for the next command. A command that cannot go on is kept by its
//! [`Connection`] meanwhile.

#![forbid(unsafe_code)]

mod framed;
mod persistent;

use kernel::prelude::*;
use kernel::{
    block::SECTOR_SHIFT,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
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
use crate::proto::{
    self,
    command,
    frame::Number,
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
    qp::{
        Qp,
        QpHandler, //
    },
    request::{
        Reply,
        RequestHandler,
        Requests, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::{
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use crate::server::{
    block::{
        connection::{
            Connection,
            ConnectionRef, //
        },
        poller::Polled,
        recv::Recv, //
    },
    memory::{
        buddy::PieceLen,
        pool::Piece, //
    },
    stats::ConnectionStats,
};

/// The number of commands that are received from one look for completed answers to the next one. It
/// is less than a queue hands over at a time, and so are the commands that keep their memory.
const REAP_EVERY: u64 = 4;

/// Handles the completions of a connection's queue pair.
pub(in crate::server) struct Handler(pub(super) Arc<Connection>);

impl QpHandler for Handler {
    type Send = KBox<Command>;
    type Recv = KBox<Recv>;
    type Ulp = Requests;

    #[inline]
    fn recv_done(&self, _: &Qp<Self>, recv: KBox<Recv>, received: Result<Received<'_>, WcError>) {
        let connection = &self.0;
        // No atomic addition: one completion is handled at a time.
        let receives = connection.receives.load(Relaxed);
        connection.receives.store(receives + 1, Relaxed);
        match received {
            Ok(received) => {
                // Most often what has completed are the answers to the commands before this one,
                // which nobody waits for as long as there are slots.
                if receives % REAP_EVERY == 0 || connection.fetches.load(Relaxed) > 0 {
                    connection.reap();
                }
                connection.receive(recv, received.len());
            }
            Err(_) => connection.put_recv(recv),
        }
    }

    #[inline]
    fn send_done(&self, _: &Qp<Self>, command: KBox<Command>, result: Result<(), WcError>) {
        command.sent(result.is_ok());
    }

    fn error(&self) {
        self.0.lose_session();
    }
}

impl RequestHandler for Handler {
    /// The memory that the data of a write are read into.
    type Parked = Option<Piece>;

    /// Nothing of the command but its memory stays: the connection waits for its commands.
    fn park(&self, mut command: KBox<Command>) -> Option<Piece> {
        let piece = match core::mem::replace(&mut command.data, Data::None) {
            Data::Piece(piece) => Some(piece),
            Data::None | Data::Inline(_) => None,
        };
        command.sent(false);
        piece
    }
}

/// The data of a command.
enum Data {
    None,
    Inline(KBox<Recv>),
    Piece(Piece),
}

/// What the queue pair was last asked to do for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// To read the data of a write from the client's memory.
    Fetch,
    /// To send the answer, after the data of a read.
    Answer,
}

/// A slot for one command, and the command that is in flight in it.
pub(in crate::server) struct Command {
    /// The connection. It drops its commands, and so the references to itself, when it is closed.
    owner: Arc<ConnectionRef>,
    /// The index of the slot in the send queue.
    slot: u16,
    pub(super) tag: u16,
    generation: u32,
    operation: Operation,
    /// When the command began, in ns; 0 if it is refused.
    began_ns: u64,
    data: Data,
    stage: Stage,
    /// The device has done the command, and is being flushed before the answer.
    flushing: bool,
    /// The backing device was asked not to wait.
    nowait: bool,
    response: DmaBuffer,
    bio: Option<Bio<CommandIo>>,
    /// The number and the text of the command in its frame, if the connection has a protection.
    framed: Option<(Number, [u8; command::SIZE])>,
    /// The result of the backing device, until the answer is sealed.
    status: Status,
}

impl Command {
    /// Makes a bio for a command. May sleep.
    pub(super) fn bio() -> Result<Bio<CommandIo>> {
        // The data are in one piece of memory.
        Bio::new(1)
    }

    /// Makes slot number `slot` of a connection, with no command in it.
    pub(super) fn new(
        owner: Arc<ConnectionRef>,
        slot: u16,
        response: DmaBuffer,
        bio: Bio<CommandIo>,
    ) -> Self {
        Self {
            owner,
            slot,
            tag: 0,
            generation: 0,
            operation: Operation::Flush,
            began_ns: 0,
            data: Data::None,
            stage: Stage::Answer,
            flushing: false,
            nowait: false,
            response,
            bio: Some(bio),
            framed: None,
            status: Status::Ok,
        }
    }

    /// Begins the command that was received into `recv`. Runs in the poller's worker.
    pub(super) fn begin(mut self: KBox<Self>, command: &proto::Command, recv: KBox<Recv>) {
        self.generation = command.generation;
        self.operation = command.operation;
        self.began_ns = ConnectionStats::now_ns();
        self.flushing = false;
        if self.owner.connection.protected.is_some() {
            self.keep_frame(&recv);
        }
        if let Operation::Write {
            from: Transfer::Inline,
            ..
        } = self.operation
        {
            self.data = Data::Inline(recv);
            return self.submit(true);
        }
        let owner = self.owner.clone();
        owner.connection.put_recv(recv);
        match self.memory_wanted() {
            Ok(Some(len)) => owner.connection.provide(self, len),
            Ok(None) => self.submit(true),
            // This cannot be: the length was checked against the terms.
            Err(_) => self.answer(Status::Invalid),
        }
    }

    /// Answers a command that cannot be done.
    pub(super) fn refuse(mut self: KBox<Self>, response: &Response) {
        self.generation = response.generation;
        // Without an operation no key is invalidated: the client does that itself.
        self.operation = Operation::Flush;
        self.framed = None;
        self.began_ns = 0;
        self.answer(response.status);
    }

    /// Returns how much memory the command needs before it can go on. Fails with `EINVAL` if there
    /// are no pieces of that length.
    fn memory_wanted(&self) -> Result<Option<PieceLen>> {
        match self.operation {
            Operation::Read { span, .. }
            | Operation::Write {
                span,
                from: Transfer::Remote(_),
                ..
            } => {
                let len = PieceLen::new(usize::try_from(span.len)?);
                Ok(Some(len.ok_or(EINVAL)?))
            }
            Operation::Report => {
                let len = PieceLen::new(usize::try_from(self.operation.answer_len())?);
                Ok(Some(len.ok_or(EINVAL)?))
            }
            _ => Ok(None),
        }
    }

    /// Goes on with the memory that the command needed. Runs in the poller's worker.
    pub(super) fn supply(mut self: KBox<Self>, memory: Piece) {
        self.data = Data::Piece(memory);
        match self.operation {
            Operation::Write {
                from: Transfer::Remote(_),
                ..
            } => {
                let owner = self.owner.clone();
                owner.connection.fetch(self);
            }
            _ => self.submit(true),
        }
    }

    /// Reads the data of a write from the client's memory. Fails if nothing was posted, with the
    /// status that the command is to be answered with.
    pub(super) fn fetch(mut self: KBox<Self>) -> Result<(), (Status, KBox<Self>)> {
        self.stage = Stage::Fetch;
        let (owner, slot) = (self.owner.clone(), self.slot);
        let ConnectionRef { connection, qp, .. } = &*owner;
        let Some(remote) = self.operation.remote() else {
            return Err((Status::IoError, self));
        };
        match qp.rdma(slot, RdmaOp::Read, range(remote), self, false) {
            Ok(()) => {
                connection.post(qp);
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
    pub(super) fn submit(mut self: KBox<Self>, nowait: bool) {
        let owner = self.owner.clone();
        let connection = &owner.connection;
        if nowait && !connection.block.bdev.nowait() {
            return connection.submit_later(self);
        }
        let op = match self.operation {
            Operation::Reserve { .. } | Operation::Report => return self.reserve(nowait),
            _ if self.flushing => BioOp::Flush,
            Operation::Read { .. } => BioOp::Read,
            Operation::Write { .. } => BioOp::Write,
            Operation::Flush => BioOp::Flush,
            Operation::Discard { .. } => BioOp::Discard,
            Operation::WriteZeroes { .. } => BioOp::WriteZeroes,
            Operation::SecureErase { .. } => BioOp::SecureErase,
        };
        let (fua, atomic, no_unmap) = match self.operation {
            // Clients do not flush a device that had no write cache when it was exported. If it has
            // one now, each write has to be durable when it is answered; otherwise FUA costs
            // nothing. For discards and zeroes see `owes_flush`.
            Operation::Write { fua, atomic, .. } => {
                let fua = fua || !connection.terms.limits.write_cache;
                (fua, atomic, false)
            }
            Operation::WriteZeroes { no_unmap, .. } => (false, false, no_unmap),
            _ => (false, false, false),
        };
        let span = self.operation.span();
        let (offset, bytes) = span.map_or((0, 0), |span| (span.offset, span.len));
        self.nowait = nowait;
        let request = BioRequest {
            fua,
            atomic,
            no_unmap,
            nowait,
            ..BioRequest::new(op, offset >> SECTOR_SHIFT, bytes)
        };
        match self.bio.take() {
            Some(bio) => bio.submit(&connection.block.bdev, request, CommandIo(self)),
            None => self.answer(Status::IoError),
        }
    }

    /// Returns true if the device has to be flushed before a command that it has done is answered:
    /// clients were told that the device has no write cache, it has one now, and the command cannot
    /// have FUA.
    fn owes_flush(&self) -> bool {
        let connection = &self.owner.connection;
        matches!(
            self.operation,
            Operation::Discard { .. }
                | Operation::WriteZeroes { .. }
                | Operation::SecureErase { .. }
        ) && !self.flushing
            && !connection.terms.limits.write_cache
            && connection.block.bdev.write_cache()
    }

    /// Returns the answer that consists of the data of a read.
    fn delivery(&self) -> Option<Reply> {
        let delivery = Delivery {
            tag: self.tag,
            generation: self.generation,
            credit: self.owner.connection.credit(),
        };
        delivery.encode().map(Reply::with_immediate)
    }

    /// Returns the key that the answer makes invalid, if both devices can do that. Otherwise the
    /// client does so when it has the answer.
    fn key_to_invalidate(&self) -> Option<u32> {
        let remote = self.operation.remote();
        let remote = remote.filter(|_| self.owner.connection.invalidates);
        remote.map(|remote| remote.rkey)
    }

    /// Returns the answer that is a response, after the data of a read that succeeded.
    fn response(&mut self, status: Status) -> Option<Reply> {
        let response = Response {
            status,
            tag: self.tag,
            generation: self.generation,
            credit: self.owner.connection.credit(),
        };
        let mut bytes = [0; response::SIZE];
        response.encode(&mut bytes).ok()?;
        self.response.copy_in(0, &bytes).ok()?;
        let remote = self.operation.remote();
        let reads = matches!(self.operation, Operation::Read { .. });
        Some(Reply {
            immediate: None,
            append: false,
            write: remote.filter(|_| reads && status == Status::Ok).map(range),
            invalidate: self.key_to_invalidate(),
        })
    }

    /// Answers the client what the backing device has done, in any context: a frame is made in a
    /// task of its own.
    fn finish(mut self: KBox<Self>, status: Status) {
        if self.owner.connection.protected.is_none() {
            return self.answer(status);
        }
        self.status = status;
        let owner = self.owner.clone();
        owner.connection.answer_later(self);
    }

    /// Answers the client what the backing device has done.
    pub(super) fn answer_finished(self: KBox<Self>) {
        let status = self.status;
        self.answer(status);
    }

    /// Answers the client. Any context; with a protection any but hard interrupt.
    pub(super) fn answer(mut self: KBox<Self>, status: Status) {
        let stats = &self.owner.connection.stats;
        stats.answered(&self.operation, status, self.began_ns);
        let delivers = status == Status::Ok && self.operation.answer_len() != 0;
        let owner = self.owner.clone();
        let reply = match (&owner.connection.protected, delivers) {
            (Some(protected), _) => self.frame(protected, status).ok(),
            (None, true) => self.delivery(),
            (None, false) => self.response(status),
        };
        let Some(reply) = reply else {
            // This cannot be: the buffer is as long as a response, whose numbers are valid.
            self.end();
            return owner.connection.lose_session();
        };
        self.stage = Stage::Answer;
        // Both before the client learns of the answer and sends its next command.
        if let Data::Inline(_) = &self.data {
            self.give_back();
        }
        self.owner.connection.end_tag(self.tag);
        let slot = self.slot;
        let ConnectionRef { connection, qp, .. } = &*owner;
        match qp.reply(slot, reply, self, false) {
            Ok(()) => connection.post(qp),
            Err((error, command)) => {
                command.end();
                match error {
                    EOPNOTSUPP => connection.session.violation(),
                    _ => connection.lose_session(),
                }
            }
        }
    }

    /// Handles the completion of what the queue pair was asked to do. A success is handled by a
    /// task that polls the completion queue: the poller's worker most often, or one that looks
    /// after the connection, drains it or another one of its receive queue, or shows its counters.
    /// A failure is handled in any context.
    pub(super) fn sent(mut self: KBox<Self>, done: bool) {
        if self.stage == Stage::Answer {
            return self.end();
        }
        let owner = self.owner.clone();
        let ConnectionRef { connection, qp, .. } = &*owner;
        connection.fetched();
        // A device may complete a READ that was not done, and fail afterwards.
        if !done || connection.is_closed() || qp.has_failed() {
            return self.end();
        }
        if let Some(protected) = &connection.protected {
            if let Err(error) = self.open_data(protected) {
                self.end();
                return match error {
                    EBADMSG => connection.forgery(),
                    _ => connection.lose_session(),
                };
            }
        }
        self.submit(true);
    }

    /// Ends the command: its slot is free for another one. Any context.
    pub(super) fn end(mut self: KBox<Self>) {
        self.give_back();
        let owner = self.owner.clone();
        owner.connection.put(self);
    }

    /// Gives back the memory of the data.
    fn give_back(&mut self) {
        match core::mem::replace(&mut self.data, Data::None) {
            Data::None => {}
            Data::Inline(recv) => self.owner.connection.put_recv(recv),
            Data::Piece(piece) => self.owner.connection.poller.put(piece),
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
        match result {
            // The device may have lost support for REQ_NOWAIT just now. If it does not support the
            // operation, the second attempt says so.
            Err(BlkError::Again | BlkError::NotSupported) if command.nowait => {
                let owner = command.owner.clone();
                owner.connection.submit_later(command);
            }
            // No bio may be submitted in this context.
            Ok(()) if command.owes_flush() => {
                command.flushing = true;
                let owner = command.owner.clone();
                owner.connection.submit_later(command);
            }
            result => command.finish(result.into()),
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

fn range(remote: Remote) -> RemoteRange {
    RemoteRange {
        addr: remote.addr,
        rkey: remote.rkey,
    }
}
