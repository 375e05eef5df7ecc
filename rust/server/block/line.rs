// SPDX-License-Identifier: GPL-2.0

//! The lines in which the commands of a connection wait for memory.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::proto::{
    self,
    Response, //
};
use crate::server::{
    block::recv::Recv,
    memory::{
        account::Requester,
        buddy::PieceLen, //
    },
};

/// A line of commands that wait.
#[derive(Clone, Copy)]
pub(super) enum Line {
    /// Commands that wait for a slot, or for memory.
    Common,
    /// Commands that wait for memory that fits the own memory of the account. They do not wait for
    /// those that are larger, which wait for what other hosts have.
    Own,
}

/// What the commands of a line wait with.
pub(super) struct LineState {
    /// Asks for the memory of the first one.
    pub(super) requester: Requester,
    /// The number of commands in the line.
    pub(super) waiting: Atomic<usize>,
}

impl LineState {
    /// Makes it for a line without a command.
    pub(super) fn new(requester: Requester) -> Self {
        Self {
            requester,
            waiting: Atomic::new(0),
        }
    }

    /// Returns true if a command is in the line. Any context.
    #[inline]
    pub(super) fn is_waited_in(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }
}

/// A command that waits, and for what: `C` is one that has its slot.
pub(super) enum Waiting<C> {
    /// For a slot: the HCA is not done with the answers to the commands before it.
    Slot(proto::Command, KBox<Recv>),
    /// For a slot, to be refused then.
    Refusal(Response),
    /// For so much memory for its data.
    Memory(C, PieceLen),
}

/// What the first command of a line waits for.
pub(super) enum WaitsFor {
    /// A slot.
    Slot,
    /// So much memory.
    Memory(PieceLen),
}

impl<C> Waiting<C> {
    /// Returns what it waits for.
    fn wants(&self) -> WaitsFor {
        match self {
            Self::Slot(..) | Self::Refusal(_) => WaitsFor::Slot,
            Self::Memory(_, len) => WaitsFor::Memory(*len),
        }
    }
}

/// The commands of a connection that wait.
pub(super) struct Lines<C> {
    common: KVec<Waiting<C>>,
    /// All of them wait for memory. A queue of many tags has room for each of them here, so that
    /// an element has to be small.
    own: KVec<(C, PieceLen)>,
}

impl<C> Lines<C> {
    /// Makes lines with room for `depth` commands each. May sleep.
    pub(super) fn new(depth: usize) -> Result<Self> {
        Ok(Self {
            common: KVec::with_capacity(depth, GFP_KERNEL)?,
            own: KVec::with_capacity(depth, GFP_KERNEL)?,
        })
    }

    /// Returns how many commands wait in a line.
    pub(super) fn len(&self, line: Line) -> usize {
        match line {
            Line::Common => self.common.len(),
            Line::Own => self.own.len(),
        }
    }

    /// Returns what the first command of a line waits for.
    pub(super) fn first_wants(&self, line: Line) -> Option<WaitsFor> {
        match line {
            Line::Common => self.common.first().map(Waiting::wants),
            Line::Own => self.own.first().map(|(_, len)| WaitsFor::Memory(*len)),
        }
    }

    /// Appends a command to a line. Returns it if the line is full, or not for such commands.
    pub(super) fn append(&mut self, line: Line, waiting: Waiting<C>) -> Result<(), Waiting<C>> {
        match (line, waiting) {
            (Line::Common, waiting) => {
                let full = self.common.push_within_capacity(waiting);
                full.map_err(|full| full.0)
            }
            (Line::Own, Waiting::Memory(command, len)) => {
                let full = self.own.push_within_capacity((command, len));
                full.map_err(|full| Waiting::Memory(full.0 .0, full.0 .1))
            }
            (Line::Own, waiting) => Err(waiting),
        }
    }

    /// Takes the first command out of a line.
    pub(super) fn remove_first(&mut self, line: Line) -> Option<Waiting<C>> {
        match line {
            Line::Common => self.common.remove(0).ok(),
            Line::Own => {
                let (command, len) = self.own.remove(0).ok()?;
                Some(Waiting::Memory(command, len))
            }
        }
    }
}
