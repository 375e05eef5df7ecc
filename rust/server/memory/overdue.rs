// SPDX-License-Identifier: GPL-2.0

//! Whether the HCA is overdue with what it was asked to do on a connection, because the client does
//! not acknowledge what it is sent, or does not let its memory be read.
//!
//! The HCA gives such a client up by itself, but only after seven attempts of 2.1 s, and later if
//! the client acknowledges something now and then. Meanwhile the data keep their memory.
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

/// The progress of a connection whose work requests complete in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overdue {
    /// When the last look was.
    looked_ms: u64,
    /// The time that counts, of all looks so far.
    time_ms: u64,
    /// Work requests were under way at the last look.
    busy: bool,
    /// The number of completed ones then, and since when it has not changed.
    done: u32,
    since_ms: u64,
    /// The number of posted ones at some look before, and when that was. The next number is noted
    /// once so many have completed.
    mark: u32,
    marked_ms: u64,
}

impl Overdue {
    /// Looks at a connection at `now_ms`, on which `posted` work requests were posted so far and
    /// `done` have completed, both modulo 2^32. Its client has `held` bytes of memory. Returns true
    /// if the HCA is overdue: nothing has completed for [`OVERDUE_MS`], or not all that was posted
    /// at a look so long ago, and longer by the time that it takes to move so many bytes.
    pub fn look(&mut self, now_ms: u64, posted: u32, done: u32, held: usize) -> bool {
        let passed = now_ms.saturating_sub(self.looked_ms).min(LOOK_MAX_MS);
        self.looked_ms = now_ms;
        self.time_ms += passed;
        let was_busy = core::mem::replace(&mut self.busy, is_before(done, posted));
        if !self.busy {
            return false;
        }
        if !was_busy || done != self.done {
            (self.done, self.since_ms) = (done, self.time_ms);
        }
        if !was_busy || !is_before(done, self.mark) {
            (self.mark, self.marked_ms) = (posted, self.time_ms);
        }
        // CAST: A usize fits a u64 on every platform.
        let may_take = OVERDUE_MS + held as u64 / BYTES_PER_MS;
        self.time_ms - self.since_ms >= OVERDUE_MS || self.time_ms - self.marked_ms >= may_take
    }
}

/// Returns true if one number, modulo 2^32, is less than another one.
fn is_before(one: u32, other: u32) -> bool {
    // CAST: The difference, which may be negative.
    (one.wrapping_sub(other) as i32) < 0
}
