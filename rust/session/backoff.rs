// SPDX-License-Identifier: GPL-2.0

//! When to try again.

#![forbid(unsafe_code)]

/// Before the second attempt, in ms.
const FIRST_MS: u32 = 100;
/// The longest time between attempts while I/O waits, in ms.
const URGENT_MS: u32 = 500;

/// The time between attempts: twice as long each time, and never the same for all clients of a server
/// that went away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// No attempt yet.
    pub const fn new() -> Self {
        Self { attempts: 0 }
    }

    /// Milliseconds until the next attempt, at most `most_ms`, and less if I/O waits for it. `random`
    /// is any number.
    pub fn next(&mut self, most_ms: u32, urgent: bool, random: u32) -> u32 {
        let most_ms = match urgent {
            true => most_ms.min(URGENT_MS),
            false => most_ms,
        };
        let doubled = FIRST_MS
            .checked_shl(self.attempts)
            .filter(|ms| ms >> self.attempts == FIRST_MS)
            .unwrap_or(u32::MAX);
        self.attempts = self.attempts.saturating_add(1);
        let whole = doubled.min(most_ms);
        let half = whole / 2;
        half + random % (whole - half + 1)
    }

    /// It worked.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}
