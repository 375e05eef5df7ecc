// SPDX-License-Identifier: GPL-2.0

//! The lines in which the commands of a connection wait for memory.

#![forbid(unsafe_code)]

use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::server::memory::account::Requester;

/// A line of commands that wait.
#[derive(Clone, Copy)]
pub(super) enum Line {
    /// Commands that wait for their slot, or for memory.
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
