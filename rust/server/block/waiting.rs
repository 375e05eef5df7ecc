// SPDX-License-Identifier: GPL-2.0

//! Commands that cannot go on yet: they wait for a slot, for memory, or for the backing device.
//!
//! The first two wait in lines of their connection until the poller's worker calls
//! [`Connection::resume`]. They get their slots in the order in which they came in, also before
//! those that come in while others wait; and then their memory in the order of a line. Commands for
//! which the backing device has to wait are submitted in a task of their own. Writes whose data are
//! to be fetched wait until fewer are.

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
            Waiting, //
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
        let (refused, draining) = {
            let mut slots = self.slots.lock();
            let refused = match slots.lets_begin() {
                false => Some(command),
                true => {
                    let refused = slots.lines.append(line, command, len).err();
                    state.waiting.store(slots.lines.len(line), Relaxed);
                    refused
                }
            };
            (refused, slots.draining)
        };
        if let Some(command) = refused {
            command.end();
            state.requester.cancel();
            return self.lose_command(draining);
        }
        self.note_wait();
    }

    /// Lets a command wait for a slot, behind those that do so already.
    #[cold]
    pub(super) fn wait(&self, waiting: Waiting) {
        let (refused, draining) = {
            let mut slots = self.slots.lock();
            let refused = match slots.lets_begin() {
                false => Some(waiting),
                true => slots.lines.append_slotless(waiting).err(),
            };
            (refused, slots.draining)
        };
        if let Some(waiting) = refused {
            self.drop_waiting(waiting);
            return self.lose_command(draining);
        }
        self.note_wait();
    }

    /// Counts a command that waits, and has the poller's worker try again.
    fn note_wait(&self) {
        self.waits.fetch_add(1, Relaxed);
        self.poller.attend();
    }

    /// Ends the session for a command that could not wait, unless the connection drains: then no
    /// answer is owed.
    fn lose_command(&self, draining: bool) {
        if !draining {
            self.lose_session();
        }
    }

    /// Ends a command that waits for a slot. It is not answered.
    fn drop_waiting(&self, waiting: Waiting) {
        if let Waiting::Command(_, recv) = waiting {
            self.put_recv(recv);
        }
    }

    /// Ends the commands that wait. They are not answered.
    pub(super) fn drop_all_waiting(&self) {
        loop {
            let first = self.slots.lock().lines.remove_slotless();
            let Some(waiting) = first else { break };
            self.drop_waiting(waiting);
        }
        for line in [Line::Common, Line::Own] {
            while let Some(command) = self.take_first(line) {
                command.end();
            }
            // The poller's worker does the same if it has asked for memory meanwhile.
            self.line(line).requester.cancel();
        }
    }

    /// Takes the first command out of a line.
    fn take_first(&self, line: Line) -> Option<KBox<Command>> {
        let mut slots = self.slots.lock();
        let first = slots.lines.remove_first(line);
        let left = slots.lines.len(line);
        self.line(line).waiting.store(left, Relaxed);
        first
    }

    /// Lets the commands that wait go on, those of a line in order, until one cannot. For each,
    /// those behind it move up. Returns true if some are left.
    pub(super) fn resume(&self) -> bool {
        // Most often none waits.
        if self.slots.lock().lines.is_empty() {
            return false;
        }
        while let Some((slot, waiting)) = self.take_waiting() {
            match waiting {
                Waiting::Command(command, recv) => slot.begin(&command, recv),
                Waiting::Refusal(response) => slot.refuse(&response),
            }
        }
        self.resume_line(Line::Common);
        self.resume_line(Line::Own);
        !self.slots.lock().lines.is_empty()
    }

    /// Takes a slot for the first command that waits for one, if one is free.
    fn take_waiting(&self) -> Option<(KBox<Command>, Waiting)> {
        let mut slots = self.slots.lock();
        if slots.free.is_empty() || !slots.lets_begin() {
            return None;
        }
        let waiting = slots.lines.remove_slotless()?;
        let slot = slots.take_free(waiting.tag())?;
        Some((slot, waiting))
    }

    fn resume_line(&self, line: Line) {
        let requester = &self.line(line).requester;
        loop {
            let wanted = self.slots.lock().lines.first_wants(line);
            let Some(len) = wanted else { return };
            let Some(memory) = self.poller.get(len, requester) else {
                return self.wait_on(requester);
            };
            match self.take_first(line) {
                Some(command) => command.supply(memory),
                // They were all dropped meanwhile, and no others come.
                None => return,
            }
        }
    }

    /// Lets the first command of a line wait on for its memory, if it was not dropped meanwhile.
    fn wait_on(&self, requester: &Requester) {
        let dropped = {
            let slots = self.slots.lock();
            !slots.lets_begin()
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
