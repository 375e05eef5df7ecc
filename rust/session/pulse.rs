// SPDX-License-Identifier: GPL-2.0

//! Whether the other side is still there.

#![forbid(unsafe_code)]

/// Periods of a client in which a server hears nothing before the client is gone, and the least time, in
/// ms: other clients wait for nothing but its place.
const MISSING: u64 = 5;
const SILENCE_MS: u64 = 5000;

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

/// Whether a client that says something every so often still does, as a server sees it that looks now and
/// then. The looks are counted, not the time: a server that was stopped itself has heard nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Silence {
    /// Looks without news after which the client is gone; `None` if it is not waited for.
    patience: Option<u64>,
    /// What there was at the last look.
    heard: u64,
    /// Looks since then that found nothing new.
    looks: u64,
}

impl Silence {
    /// Nothing is missing yet. The client promised to say something every `heartbeat_ms`, or never if
    /// that is 0; `heard` is how much it has said so far, and a look comes every `look_ms`.
    pub fn new(heartbeat_ms: u32, look_ms: u32, heard: u64) -> Self {
        let silence_ms = (u64::from(heartbeat_ms) * MISSING).max(SILENCE_MS);
        Self {
            patience: (heartbeat_ms != 0).then(|| silence_ms.div_ceil(look_ms.max(1).into())),
            heard,
            looks: 0,
        }
    }

    /// A look: the client has said so much by now. Whether it is gone, which is told once.
    pub fn look(&mut self, heard: u64) -> bool {
        self.looks = match heard == self.heard {
            true => self.looks.saturating_add(1),
            false => 0,
        };
        self.heard = heard;
        let gone = self.patience.is_some_and(|patience| self.looks > patience);
        if gone {
            self.patience = None;
        }
        gone
    }
}
