// SPDX-License-Identifier: GPL-2.0

//! Whether the other side is still there.

#![forbid(unsafe_code)]

/// Periods of silence after which nobody is there any more.
const PERIODS: u8 = 3;

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
    /// A period is over; `heard` whether anything came in it.
    pub fn beat(&mut self, heard: bool) -> Beat {
        if heard {
            self.silent = 0;
            return Beat::Fine;
        }
        self.silent = self.silent.saturating_add(1);
        match self.silent > PERIODS {
            true => Beat::Gone,
            false => Beat::Ask,
        }
    }
}
