// SPDX-License-Identifier: GPL-2.0

//! Whether the other side is still there.

#![forbid(unsafe_code)]

/// What to do at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing: something was heard.
    Fine,
    /// Say something that has to be answered.
    Ask,
    /// The other side is gone.
    Gone,
}

/// Counts the periods in which nothing was heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pulse {
    silent: u8,
}

impl Pulse {
    /// Something was heard just now.
    pub const fn new() -> Self {
        Self { silent: 0 }
    }

    /// A period is over; `heard` whether anything came in it. `patience` is how many periods of silence
    /// are stood.
    pub fn beat(&mut self, heard: bool, patience: u8) -> Beat {
        if heard {
            self.silent = 0;
            return Beat::Fine;
        }
        self.silent = self.silent.saturating_add(1);
        match self.silent > patience {
            true => Beat::Gone,
            false => Beat::Ask,
        }
    }
}
