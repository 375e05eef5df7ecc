// SPDX-License-Identifier: GPL-2.0

//! Commands that cannot go on yet: they wait for a slot, for memory, or for the backing device.
//!
//! The first two wait in lines of their connection, in order, until the poller's worker calls
//! [`Connection::resume`]. Commands for which the backing device has to wait are submitted in a
//! task of their own. Writes whose data are to be fetched wait until fewer are.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    workqueue::WorkItem, //
};

use crate::server::{
    block::{
        command::Command,
        connection::Connection,
        line::{
            Line,
            Waiting,
            WaitsFor, //
        },
    },
    memory::{
        account::Requester,
        buddy::PieceLen, //
    },
};

/// The number of answers that are sealed before other work gets the CPU.
const ANSWERS_AT_ONCE: usize = 8;

impl Connection {
    /// Gives a command the memory that it needs, or lets it wait.
    pub(super) fn provide(&self, command: KBox<Command>, len: PieceLen) {
        let line = match self.line(Line::Own).requester.fits_own(len) {
            true => Line::Own,
            false => Line::Common,
        };
        let state = self.line(line);
        // Commands that wait already come first.
        if !state.is_waited_in() {
            if let Some(memory) = self.poller.get(len, &state.requester) {
                return command.supply(memory);
            }
        }
        self.wait_in(line, Waiting::Memory(command, len));
    }

    /// Lets a command wait until [`Polled::progress`](super::poller::Polled::progress) tries again.
    pub(super) fn wait(&self, waiting: Waiting<KBox<Command>>) {
        self.wait_in(Line::Common, waiting);
    }

    fn wait_in(&self, line: Line, waiting: Waiting<KBox<Command>>) {
        let state = self.line(line);
        let (refused, draining) = {
            let mut slots = self.slots.lock();
            let refused = match slots.closed || slots.draining {
                true => Some(waiting),
                false => {
                    let refused = slots.lines.append(line, waiting).err();
                    state.waiting.store(slots.lines.len(line), Relaxed);
                    refused
                }
            };
            (refused, slots.draining)
        };
        self.waits.fetch_add(1, Relaxed);
        match refused {
            None => self.poller.attend(),
            Some(waiting) => {
                self.drop_waiting(waiting);
                state.requester.cancel();
                if !draining {
                    self.lose_session();
                }
            }
        }
    }

    /// Ends a command that waits. It is not answered.
    fn drop_waiting(&self, waiting: Waiting<KBox<Command>>) {
        match waiting {
            Waiting::Slot(_, recv) => self.put_recv(recv),
            Waiting::Refusal(_) => {}
            Waiting::Memory(command, _) => command.end(),
        }
    }

    /// Ends the commands that wait. They are not answered.
    pub(super) fn drop_all_waiting(&self) {
        for line in [Line::Common, Line::Own] {
            while let Some(waiting) = self.take_first(line) {
                self.drop_waiting(waiting);
            }
            // The poller's worker does the same if it has asked for memory meanwhile.
            self.line(line).requester.cancel();
        }
    }

    /// Takes the first command out of a line.
    fn take_first(&self, line: Line) -> Option<Waiting<KBox<Command>>> {
        let mut slots = self.slots.lock();
        let first = slots.lines.remove_first(line);
        let left = slots.lines.len(line);
        self.line(line).waiting.store(left, Relaxed);
        first
    }

    /// Lets the commands that wait go on, those of a line in order, until one cannot. That takes
    /// the same time however many wait behind it.
    pub(super) fn resume(&self) {
        self.resume_line(Line::Common);
        self.resume_line(Line::Own);
    }

    fn resume_line(&self, line: Line) {
        let requester = &self.line(line).requester;
        loop {
            let len = {
                let slots = self.slots.lock();
                match slots.lines.first_wants(line) {
                    None => return,
                    Some(WaitsFor::Slot) if slots.free.is_empty() => return,
                    Some(WaitsFor::Slot) => None,
                    Some(WaitsFor::Memory(len)) => Some(len),
                }
            };
            let memory = match len {
                None => None,
                Some(len) => match self.poller.get(len, requester) {
                    None => return self.wait_on(requester),
                    memory => memory,
                },
            };
            match (self.take_first(line), memory) {
                (Some(Waiting::Slot(command, recv)), _) => self.admit(command, recv),
                (Some(Waiting::Refusal(response)), _) => self.refuse(response),
                (Some(Waiting::Memory(command, _)), Some(memory)) => command.supply(memory),
                // They were all dropped meanwhile, and no others come.
                _ => return,
            }
        }
    }

    /// Lets the first command of a line wait on for its memory, if it was not dropped meanwhile.
    fn wait_on(&self, requester: &Requester) {
        let dropped = {
            let slots = self.slots.lock();
            slots.closed || slots.draining
        };
        if dropped {
            requester.cancel();
        }
    }

    /// Fetches the data of a write, or lets it wait until fewer are fetched. Runs in the poller's
    /// worker.
    pub(super) fn fetch(&self, command: KBox<Command>) {
        let refused = {
            let mut slots = self.slots.lock();
            match slots.closed {
                true => Some(command),
                false => {
                    slots.fetches.begun = slots.fetches.begun.wrapping_add(1);
                    // Cannot fail: there is capacity for all.
                    let full = slots.fetching.push_within_capacity(command).err();
                    full.map(|full| full.0)
                }
            }
        };
        match refused {
            None => self.fetch_more(),
            // It is not answered: the connection is being closed.
            Some(command) => command.end(),
        }
    }

    /// Notes that an RDMA READ has completed, and begins others that wait. Any context.
    pub(super) fn fetched(&self) {
        self.end_fetch();
        self.fetch_more();
    }

    fn end_fetch(&self) {
        let mut slots = self.slots.lock();
        slots.fetches.ended = slots.fetches.ended.wrapping_add(1);
        self.fetches.fetch_sub(1, Relaxed);
    }

    /// Begins as many RDMA READs as may be under way, in order. Any context.
    fn fetch_more(&self) {
        loop {
            let next = {
                let mut slots = self.slots.lock();
                let fetches = self.fetches.load(Relaxed);
                let next = match fetches < self.fetches_max {
                    true => slots.fetching.remove(0).ok(),
                    false => None,
                };
                self.fetches
                    .store(fetches + usize::from(next.is_some()), Relaxed);
                next
            };
            let Some(command) = next else { return };
            // Somebody has to see its completion, which may come before this returns.
            self.poller.attend();
            if let Err((status, command)) = command.fetch() {
                self.end_fetch();
                command.answer(status);
            }
        }
    }

    /// Submits a command in a task of its own, which may wait for the backing device. Any context.
    pub(super) fn submit_later(self: &Arc<Self>, command: KBox<Command>) {
        let refused = {
            let mut slots = self.slots.lock();
            match slots.closed {
                true => Some(command),
                false => {
                    let full = slots.later.push_within_capacity(command).err();
                    full.map(|full| full.0)
                }
            }
        };
        match refused {
            None => {
                let _ = self.later.enqueue::<Arc<Self>, 0>(self.clone());
            }
            Some(command) => {
                command.end();
                self.lose_session();
            }
        }
    }
}

impl Connection {
    /// Makes the answer of a command that the backing device has done in a task of its own. Any
    /// context.
    pub(super) fn answer_later(self: &Arc<Self>, command: KBox<Command>) {
        let refused = {
            let mut slots = self.slots.lock();
            match slots.closed {
                true => Some(command),
                false => {
                    let full = slots.finished.push_within_capacity(command).err();
                    full.map(|full| full.0)
                }
            }
        };
        match refused {
            None => {
                let _ = self.worker.enqueue::<Arc<Self>, 1>(self.clone());
            }
            Some(command) => {
                command.end();
                self.lose_session();
            }
        }
    }
}

impl WorkItem<1> for Connection {
    type Pointer = Arc<Self>;

    /// Answers the commands that [`Connection::answer_later`] got, some at a time: others want the
    /// CPU, too.
    fn run(this: Arc<Self>) {
        for _ in 0..ANSWERS_AT_ONCE {
            let command = this.slots.lock().finished.remove(0);
            match command {
                Ok(command) => command.answer_finished(),
                Err(_) => return,
            }
        }
        let _ = this.worker.enqueue::<Arc<Self>, 1>(this.clone());
    }
}

impl WorkItem<0> for Connection {
    type Pointer = Arc<Self>;

    /// Submits the commands that [`Connection::submit_later`] got.
    fn run(this: Arc<Self>) {
        loop {
            let command = this.slots.lock().later.remove(0);
            match command {
                Ok(command) => command.submit(false),
                Err(_) => return,
            }
        }
    }
}
