// SPDX-License-Identifier: GPL-2.0

//! How long a poller that has nothing to do looks for more commands before it sleeps.
//!
//! To be woken takes an interrupt and two switches of tasks on the server's CPU, and the client
//! waits for them. If commands come in close together, looking on costs less. So the time between
//! them is learned: a poller whose commands come in far apart sleeps at once.

#![forbid(unsafe_code)]

/// What the learned time is an average of: about so many of the last times.
const AVERAGE: u64 = 4;
/// A longer pause than so many times the limit is learned as such a one, so that a poller whose
/// commands come in close together again soon looks for them.
const PAUSE_MAX: u64 = 4;
/// A poller looks so many times as long as a pause usually is.
const PATIENCE: u64 = 2;

/// How long a poller looks on, as it has learned.
#[derive(Clone, Copy, Debug)]
pub struct Vigil {
    /// The longest time, in ns; 0 if it never does.
    limit_ns: u64,
    /// The time for which it has nothing to do, on average, in ns.
    pause_ns: u64,
}

impl Vigil {
    /// One of a poller that looks on for up to `limit_us`, and has learned nothing yet.
    pub fn new(limit_us: u32) -> Self {
        let limit_ns = u64::from(limit_us) * 1000;
        Self {
            limit_ns,
            pause_ns: limit_ns * PAUSE_MAX,
        }
    }

    /// Returns true if the poller may look on at all.
    pub fn is_on(&self) -> bool {
        self.limit_ns != 0
    }

    /// Commands came in after the poller had nothing to do for so long.
    pub fn note(&mut self, pause_ns: u64) {
        let pause_ns = pause_ns.min(self.limit_ns * PAUSE_MAX);
        self.pause_ns = (self.pause_ns * (AVERAGE - 1) + pause_ns) / AVERAGE;
    }

    /// Returns for how long it pays to look on, in ns; 0 if it does not.
    pub fn patience_ns(&self) -> u64 {
        match self.pause_ns < self.limit_ns {
            true => (self.pause_ns * PATIENCE).clamp(1, self.limit_ns),
            false => 0,
        }
    }
}
