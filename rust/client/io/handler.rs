// SPDX-License-Identifier: GPL-2.0

//! Where the requests on an I/O connection end: the handler of its completions.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

use crate::base::{
    bounce::Bounced,
    errno::EPROTO, //
};
use crate::block::{
    mq::{
        Operations,
        Owned,
        Request, //
    },
    BlkError,
    BlkResult, //
};
use crate::client::{
    events::PathEvents,
    io::{
        commands::Commands,
        protected::Protected, //
    },
};
use crate::link::cipher::BadFrame;
use crate::proto::Malformed;
use crate::rdma::{
    dma::DmaBuffer,
    qp::{
        Qp,
        QpHandler, //
    },
    request::{
        RequestHandler,
        Requests, //
    },
    wc::{
        Received,
        WcError, //
    },
    wr::SendOwner, //
};

/// The block driver whose requests connections carry.
pub(in crate::client) trait RequestOwner: Operations + Send + Sync {
    /// Takes back a request of a hardware queue that a connection has taken. With
    /// [`BlkError::Transport`] the server did not answer it, and may or may not have carried it
    /// out. Any context.
    fn end(&self, hw_queue: u16, request: Owned<Request<Self>>, status: BlkResult);
}

/// The owner of a posted work request: the request whose pages it moves, or the bounce buffer in
/// place of them, and its command.
pub(in crate::client) struct Posted<T: RequestOwner> {
    pub(super) memory: Bounced<Owned<Request<T>>>,
    pub(super) command: Option<KBox<DmaBuffer>>,
}

impl<T: RequestOwner> SendOwner for Posted<T> {
    type Memory = Bounced<Owned<Request<T>>>;

    #[inline]
    fn memory(&self) -> Option<&Self::Memory> {
        Some(&self.memory)
    }

    #[inline]
    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        let message = self.command.as_ref()?;
        Some((message, message.len()))
    }
}

/// The connection is being made: its failure is that of the attempt, which may make do without it.
pub(super) const CONNECTING: u32 = 0;
/// The connection is up: its failure is the path's.
pub(super) const UP: u32 = 1;
/// The connection has failed.
pub(super) const FAILED: u32 = 2;

/// Handles the completions of a connection.
pub(in crate::client) struct Handler<T: RequestOwner> {
    /// `None` if the connection is one-sided.
    pub(super) commands: Option<Commands>,
    pub(super) events: PathEvents,
    pub(super) owner: Arc<T>,
    pub(super) hw_queue: u16,
    /// [`CONNECTING`], [`UP`] or [`FAILED`].
    pub(super) state: Atomic<u32>,
}

impl<T: RequestOwner> Handler<T> {
    /// Reports a message that answers no command. If the queue pair has failed before, by itself or
    /// because the path is closed, that is no fault of the server: the commands were given back,
    /// and the answers that it had sent still come.
    #[cold]
    fn unexpected(&self, qp: &Qp<Self>, what: Malformed) {
        if !qp.has_failed() {
            self.events.violated(what);
        }
    }

    /// Takes apart a request that the device is done with.
    #[inline]
    pub(super) fn release(&self, memory: Bounced<Owned<Request<T>>>) -> Owned<Request<T>> {
        let (request, buffer) = memory.into_both();
        if let Some((commands, buffer)) = self.commands.as_ref().zip(buffer) {
            commands.put_bounce(buffer);
        }
        request
    }

    /// Notes that the connection is up; reports it as lost if it was. Any context.
    pub(super) fn set_up(&self) {
        if self.state.cmpxchg(CONNECTING, UP, Relaxed).is_err() {
            self.events.lost();
        }
    }

    /// Returns the protection of a connection that has one.
    #[inline]
    pub(super) fn protected(&self) -> Option<&Protected> {
        self.commands.as_ref()?.protected.as_ref()
    }

    /// Handles a received frame.
    fn open(
        &self,
        qp: &Qp<Self>,
        (commands, protected): (&Commands, &Protected),
        buffer: KBox<DmaBuffer>,
        received: &Received<'_>,
    ) -> Option<Result<u16, Malformed>> {
        let (tag, buffer) = commands.open(protected, buffer, received.len());
        // The receive must be there before another command can need it.
        if let Some(buffer) = buffer {
            let _ = qp.recv(buffer);
        }
        match tag {
            Err(BadFrame::Forged) => {
                if !qp.has_failed() {
                    self.events.forged();
                }
                None
            }
            Err(BadFrame::Malformed(malformed)) => Some(Err(malformed)),
            Ok(_) if received.immediate().is_some() => {
                Some(Err(Malformed("immediate data where there are none")))
            }
            Ok(tag) => Some(Ok(tag)),
        }
    }
}

impl<T: RequestOwner> QpHandler for Handler<T> {
    type Send = Posted<T>;
    type Recv = KBox<DmaBuffer>;
    type Ulp = Requests;

    #[inline]
    fn send_done(&self, qp: &Qp<Self>, posted: Posted<T>, result: Result<(), WcError>) {
        let Posted { memory, command } = posted;
        let mut status = result.map_err(|_| BlkError::Transport);
        if let (Some(commands), Some(command)) = (&self.commands, command) {
            let finished = commands.finish(&memory, command, result.is_ok());
            status = status.and(finished.status);
            if finished.forged && !qp.has_failed() {
                self.events.forged();
            }
            // The receive must be there before another command can need it.
            if let Some(receive) = finished.receive {
                let _ = qp.recv(receive);
            }
            commands.land();
        }
        self.owner.end(self.hw_queue, self.release(memory), status);
    }

    #[inline]
    fn recv_done(
        &self,
        qp: &Qp<Self>,
        buffer: KBox<DmaBuffer>,
        received: Result<Received<'_>, WcError>,
    ) {
        if let Err(WcError::Unexpected { .. }) = received {
            let what = "an RDMA WRITE with immediate data, which is no message";
            return self.events.violated(Malformed(what));
        }
        let (Some(commands), Ok(received)) = (&self.commands, received) else {
            return;
        };
        let tag = match (&commands.protected, received.immediate()) {
            (Some(protected), _) => match self.open(qp, (commands, protected), buffer, &received) {
                Some(tag) => tag,
                None => return,
            },
            (None, Some(immediate)) => commands.deliver(immediate, buffer, received.len()),
            (None, None) => {
                let tag = commands.respond(&buffer, received.len());
                // The receive must be there before another command can need it.
                let _ = qp.recv(buffer);
                tag
            }
        };
        match tag.map(|tag| qp.answered(tag, received)) {
            Ok(Ok(())) => {}
            Ok(Err(EPROTO)) => {
                let what = "a response that invalidates what is not its own";
                self.events.violated(Malformed(what));
            }
            Ok(Err(_)) => self.unexpected(qp, Malformed("a response to a command that is over")),
            Err(malformed) => self.unexpected(qp, malformed),
        }
        if commands.should_grow() {
            self.events.credited();
        }
    }

    fn error(&self) {
        if self.state.xchg(FAILED, Relaxed) != CONNECTING {
            self.events.lost();
        }
    }
}

impl<T: RequestOwner> RequestHandler for Handler<T> {
    type Parked = Posted<T>;

    fn park(&self, posted: Posted<T>) -> Posted<T> {
        posted
    }

    /// The command goes with the connection. Whether the server has carried it out is unknown.
    fn send_released(&self, posted: Posted<T>) {
        let request = self.release(posted.memory);
        self.owner
            .end(self.hw_queue, request, Err(BlkError::Transport));
    }
}
