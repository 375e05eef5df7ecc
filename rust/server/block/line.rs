// SPDX-License-Identifier: GPL-2.0

//! The lines in which the commands of a connection wait for a slot, and then for memory.

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

/// A line of commands that have their slot and wait for memory.
#[derive(Clone, Copy)]
pub(super) enum Line {
    /// Commands that wait for memory that all hosts share.
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

/// A command that waits for a slot: the HCA is not done with the answers to the commands before it.
pub(super) enum Waiting {
    /// To begin then.
    Command(proto::Command, KBox<Recv>),
    /// To be refused then.
    Refusal(Response),
}

impl Waiting {
    /// Returns the tag of the command.
    pub(super) fn tag(&self) -> u16 {
        match self {
            Self::Command(command, _) => command.tag,
            Self::Refusal(response) => response.tag,
        }
    }
}

/// The commands of a connection that wait: `C` is one that has its slot.
pub(super) struct Lines<C> {
    // A queue of many tags has room for each of them in all three.
    /// Those that wait for a slot. Their commands are in the elements, as there is no slot yet.
    slotless: KVec<Waiting>,
    /// Those that wait for memory of the pool that all share.
    common: KVec<(C, PieceLen)>,
    /// Those that wait for memory of the client's host.
    own: KVec<(C, PieceLen)>,
}

impl<C> Lines<C> {
    /// Makes lines with room for `depth` commands each. May sleep.
    pub(super) fn new(depth: usize) -> Result<Self> {
        Ok(Self {
            slotless: KVec::with_capacity(depth, GFP_KERNEL)?,
            common: KVec::with_capacity(depth, GFP_KERNEL)?,
            own: KVec::with_capacity(depth, GFP_KERNEL)?,
        })
    }

    fn line(&mut self, line: Line) -> &mut KVec<(C, PieceLen)> {
        match line {
            Line::Common => &mut self.common,
            Line::Own => &mut self.own,
        }
    }

    /// Returns true if no command waits.
    pub(super) fn is_empty(&self) -> bool {
        self.slotless.is_empty() && self.common.is_empty() && self.own.is_empty()
    }

    /// Returns true if a command waits for a slot. All that come in later have to wait, too.
    #[inline]
    pub(super) fn want_slots(&self) -> bool {
        !self.slotless.is_empty()
    }

    /// Lets a command wait for a slot, behind the others. Returns it if there is no room.
    pub(super) fn append_slotless(&mut self, waiting: Waiting) -> Result<(), Waiting> {
        let full = self.slotless.push_within_capacity(waiting);
        full.map_err(|full| full.0)
    }

    /// Takes the first command that waits for a slot.
    pub(super) fn remove_slotless(&mut self) -> Option<Waiting> {
        self.slotless.remove(0).ok()
    }

    /// Returns how many commands wait in a line.
    pub(super) fn len(&mut self, line: Line) -> usize {
        self.line(line).len()
    }

    /// Returns how much memory the first command of a line waits for.
    pub(super) fn first_wants(&mut self, line: Line) -> Option<PieceLen> {
        self.line(line).first().map(|(_, len)| *len)
    }

    /// Appends a command to a line. Returns it if there is no room.
    pub(super) fn append(&mut self, line: Line, command: C, len: PieceLen) -> Result<(), C> {
        let full = self.line(line).push_within_capacity((command, len));
        full.map_err(|full| full.0 .0)
    }

    /// Takes the first command out of a line.
    pub(super) fn remove_first(&mut self, line: Line) -> Option<C> {
        let (command, _) = self.line(line).remove(0).ok()?;
        Some(command)
    }
}
