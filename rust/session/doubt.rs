// SPDX-License-Identifier: GPL-2.0

//! Commands that may be lost.

#![forbid(unsafe_code)]

/// How many are remembered.
const DOUBTS: usize = 8;

/// Commands that the server did not know of. An answer may have been on its way just then: a command is
/// lost if the server does not know of it when it is asked again.
#[derive(Clone, Copy, Debug)]
pub struct Doubts<K> {
    /// The newest first.
    list: [Option<K>; DOUBTS],
}

impl<K: Copy + PartialEq> Default for Doubts<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy + PartialEq> Doubts<K> {
    /// All is well.
    pub const fn new() -> Self {
        Self {
            list: [None; DOUBTS],
        }
    }

    /// The server does not know of a command. Whether that is so for the second time.
    pub fn add(&mut self, command: K) -> bool {
        if self.list.contains(&Some(command)) {
            return true;
        }
        self.list.rotate_right(1);
        if let Some(first) = self.list.first_mut() {
            *first = Some(command);
        }
        false
    }

    /// A command is not lost.
    pub fn settle(&mut self, command: &K) {
        for doubt in &mut self.list {
            if doubt.as_ref() == Some(command) {
                *doubt = None;
            }
        }
    }
}
