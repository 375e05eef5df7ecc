// SPDX-License-Identifier: GPL-2.0

//! Where commands come in: the checks of what was received, and the slots of commands.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::link::cipher::BadFrame;
use crate::proto::{
    self,
    command,
    frame::Number,
    CommandError,
    Extent,
    Malformed,
    Response,
    Status, //
};
use crate::rdma::qp::Qp;
use crate::server::block::{
    command::{
        Command,
        Handler, //
    },
    connection::Connection,
    line::Waiting,
    protected::Header,
    recv::Recv,
};

/// Set for a tag in use; the generation of its command is in the bits below.
const RUNNING: u64 = 1 << 32;

impl Connection {
    /// Handles a received message. Runs in the poller's worker.
    pub(super) fn receive(&self, mut recv: KBox<Recv>, len: u32) {
        let header = match self.header(&mut recv, len) {
            Ok(header) if self.count_received() => header,
            Err(BadFrame::Forged) => {
                self.put_recv(recv);
                return self.forgery();
            }
            Ok(_) | Err(BadFrame::Malformed(_)) => {
                self.put_recv(recv);
                return self.violation();
            }
        };
        let Header { number, bytes, len } = header;
        match command::parse(&bytes, len, &self.terms, self.extent()) {
            Ok(command) if self.begin_tag(command.tag, command.generation, number) => {
                match self.membership.allows(&command.operation) {
                    true => self.admit(command, recv),
                    false => {
                        self.put_recv(recv);
                        self.refuse(Response {
                            status: Status::Reservation,
                            tag: command.tag,
                            generation: command.generation,
                            credit: 0,
                        });
                    }
                }
            }
            Err(CommandError::Refused(response, _))
                if self.begin_tag(response.tag, response.generation, number) =>
            {
                self.put_recv(recv);
                self.refuse(response);
            }
            _ => {
                self.put_recv(recv);
                self.violation();
            }
        }
    }

    /// Returns the command of a received message of `len` bytes, which is opened if it is a frame.
    fn header(&self, recv: &mut Recv, len: u32) -> Result<Header, BadFrame> {
        if let Some(protected) = &self.protected {
            return protected.open(recv, len);
        }
        let mut bytes = [0; command::SIZE];
        // Cannot fail: the buffer is as long as a command.
        let copied = recv.header.copy_out(0, &mut bytes);
        copied.map_err(|_| Malformed("the command was not received"))?;
        Ok(Header {
            number: None,
            bytes,
            len,
        })
    }

    /// Counts a received command. Returns false if the client may not have as many in flight.
    fn count_received(&self) -> bool {
        self.stats.enter() <= self.credit.load(Relaxed)
    }

    /// Marks a tag as used by a command that was received. Returns false if the client may not use
    /// the tag now, or if the number of its frame is not a newer one. Runs in the poller's worker.
    fn begin_tag(&self, tag: u16, generation: u32, number: Option<Number>) -> bool {
        if let Some((protected, number)) = self.protected.as_ref().zip(number) {
            if !protected.note(tag, number) {
                return false;
            }
        }
        let free = |place: &&Atomic<u64>| place.load(Relaxed) == 0;
        let place = self.tags.get(usize::from(tag)).filter(free);
        let running = RUNNING | u64::from(generation);
        place
            .inspect(|place| place.store(running, Relaxed))
            .is_some()
    }

    /// Lets the client use a tag again: its command is about to be answered. Any context.
    pub(super) fn end_tag(&self, tag: u16) {
        if let Some(place) = self.tags.get(usize::from(tag)) {
            place.store(0, Relaxed);
        }
        self.stats.leave();
    }

    /// Returns what the client may do with the export now. Any context.
    fn extent(&self) -> Extent {
        let extent = self.block.extent();
        Extent {
            access: extent.access.min(self.access),
            ..extent
        }
    }

    /// Begins a command, or lets it wait for a slot.
    fn admit(&self, command: proto::Command, recv: KBox<Recv>) {
        if command.pressed {
            self.ask_for_credit();
        }
        match self.take(command.tag) {
            Some(slot) => slot.begin(&command, recv),
            None => self.wait(Waiting::Command(command, recv)),
        }
    }

    /// Answers that a command is refused, or lets that wait for a slot.
    fn refuse(&self, response: Response) {
        match self.take(response.tag) {
            Some(slot) => slot.refuse(&response),
            None => self.wait(Waiting::Refusal(response)),
        }
    }

    /// Takes a slot for a command with this tag that has come in, if one is free: it is taken until
    /// the HCA is done with the answer, which may be known only now. Commands that wait come first.
    fn take(&self, tag: u16) -> Option<KBox<Command>> {
        self.take_unwanted(tag).or_else(|| {
            self.cq.reap();
            self.take_unwanted(tag)
        })
    }

    /// Takes a slot, if one is known to be free and no command waits for one.
    fn take_unwanted(&self, tag: u16) -> Option<KBox<Command>> {
        let mut slots = self.slots.lock();
        if !slots.lets_begin() || slots.lines.want_slots() {
            return None;
        }
        slots.take_free(tag)
    }

    /// Gives back the slot of a command that has ended. Any context.
    pub(super) fn put(&self, slot: KBox<Command>) {
        let mut slots = self.slots.lock();
        slots.in_flight = slots.in_flight.saturating_sub(1);
        // Cannot fail: there is capacity for all.
        let _ = slots.free.push_within_capacity(slot);
        if slots.closed && slots.in_flight == 0 {
            self.idle.complete_all();
        }
    }

    /// Posts a receive again that is not needed any more. Any context.
    pub(super) fn put_recv(&self, recv: KBox<Recv>) {
        if self.poller.has_srq() {
            return self.poller.put_recv(recv);
        }
        // A connection that is being closed frees it.
        let owner = self.slots.lock().owner.clone();
        if let Some(owner) = owner {
            drop(owner.qp.recv(recv));
        }
    }

    /// Posts the answers that are chained, unless the poller's worker does so at the end of its
    /// round. Any context.
    pub(super) fn post(&self, qp: &Qp<Handler>) {
        if self.poller.chained(self.bit) {
            qp.ring();
        }
    }
}
