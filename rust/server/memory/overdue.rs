// SPDX-License-Identifier: GPL-2.0

//! Whether the HCA is overdue with what it was asked to do on a connection, because the client does
//! not acknowledge what it is sent, or does not let its memory be read.
//!
//! The HCA gives such a client up by itself, but only after seven attempts of 2.1 s, and later if
//! the client acknowledges something now and then. Meanwhile the data keep their memory. So do the
//! data of writes that wait until the client's device serves the READs before theirs.
//!
//! Nothing here names a kernel type or reads a clock: the same source is compiled into the module
//! and into the host tests.

#![forbid(unsafe_code)]

/// Time without any completion after which the HCA is overdue, in ms: it sends once more what was
/// not acknowledged for 2.1 s, so that one lost packet does not count.
pub const OVERDUE_MS: u64 = 2500;
/// Bytes that a client has to move in a ms: 4 MiB/s.
pub const BYTES_PER_MS: u64 = 4096;
/// The longest time between two looks that counts, in ms: a server that was stopped itself has not
/// seen the completions meanwhile.
pub const LOOK_MAX_MS: u64 = 1500;

/// How many of a kind were begun on a connection so far, and how many of these have ended, both
/// modulo 2^32. They end in the order in which they were begun.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The number of those that were begun.
    pub begun: u32,
    /// The number of those that have ended.
    pub ended: u32,
}

impl Progress {
    /// Returns true if some have not ended.
    pub fn is_busy(self) -> bool {
        is_before(self.ended, self.begun)
    }
}

/// What was begun at some look, and has to end in its time.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Some had not ended at the last look.
    busy: bool,
    /// The number of those that were begun, and when that was. The next number is noted once so
    /// many have ended.
    begun: u32,
    since_ms: u64,
    /// The most bytes of memory that the client had since.
    held: usize,
}

impl Mark {
    /// Looks at what was begun, at `time_ms`, when the client has `held` bytes of memory. Returns
    /// true if what was marked has not ended, though the time is over that it may take.
    fn look(&mut self, time_ms: u64, progress: Progress, held: usize) -> bool {
        let was_busy = core::mem::replace(&mut self.busy, progress.is_busy());
        if !was_busy || !is_before(progress.ended, self.begun) {
            (self.begun, self.since_ms, self.held) = (progress.begun, time_ms, 0);
        }
        // What the client gives back meanwhile takes its time, too.
        self.held = self.held.max(held);
        // CAST: A usize fits a u64 on every platform.
        let may_take = OVERDUE_MS + self.held as u64 / BYTES_PER_MS;
        self.busy && time_ms - self.since_ms >= may_take
    }
}

/// Whether the HCA is overdue on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overdue {
    /// When the last look was.
    looked_ms: u64,
    /// The time that counts, of all looks so far.
    time_ms: u64,
    /// Some work requests had not completed at the last look; how many had, and since when.
    busy: bool,
    done: u32,
    since_ms: u64,
    sends: Mark,
    fetches: Mark,
}

impl Overdue {
    /// Looks at a connection at `now_ms`: at its work requests, and at the commands whose data are
    /// to be fetched, of which some may not be posted yet. Its client has `held` bytes of memory.
    ///
    /// Returns true if the HCA is overdue: no work request has completed for [`OVERDUE_MS`], or not
    /// all that was begun at a look so long ago has ended, and longer by the time that it takes to
    /// move so many bytes.
    pub fn look(&mut self, now_ms: u64, sends: Progress, fetches: Progress, held: usize) -> bool {
        let passed = now_ms.saturating_sub(self.looked_ms).min(LOOK_MAX_MS);
        self.looked_ms = now_ms;
        self.time_ms += passed;
        let was_busy = core::mem::replace(&mut self.busy, sends.is_busy());
        if !was_busy || sends.ended != self.done {
            (self.done, self.since_ms) = (sends.ended, self.time_ms);
        }
        let stuck = self.busy && self.time_ms - self.since_ms >= OVERDUE_MS;
        let sends_late = self.sends.look(self.time_ms, sends, held);
        let fetches_late = self.fetches.look(self.time_ms, fetches, held);
        stuck || sends_late || fetches_late
    }
}

/// Returns true if one number, modulo 2^32, is less than another one.
fn is_before(one: u32, other: u32) -> bool {
    // CAST: The difference, which may be negative.
    (one.wrapping_sub(other) as i32) < 0
}
