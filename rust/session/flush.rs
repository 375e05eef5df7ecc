// SPDX-License-Identifier: GPL-2.0

//! What a server may still have in a volatile cache, as its client sees it.

#![forbid(unsafe_code)]

/// Flushes, by number: which of them had something to cover, and which are complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flushes {
    begun: u64,
    /// The last one that began after a write was complete.
    needed: u64,
    /// The last one that is complete.
    complete: u64,
    /// The next one has to fail, as what it is to cover is gone.
    lossy: bool,
    /// Bit by bit, the hardware queues whose next one has to fail, too.
    behind: u64,
}

impl Flushes {
    /// Nothing was written.
    pub const fn new() -> Self {
        Self {
            begun: 0,
            needed: 0,
            complete: 0,
            lossy: false,
            behind: 0,
        }
    }

    /// The server's cache is gone; `dirty` as for [`Flushes::begin`].
    pub fn restarted(&mut self, dirty: bool) {
        self.lossy |= dirty || self.are_needed();
    }

    /// Whether a flush of a hardware queue, that was sent before if it is `resent`, has to fail before it
    /// begins, as what it is to cover is gone: so do all that were under way, those that waited behind
    /// them, of which there is one at most on a hardware queue, and the next one.
    pub fn has_to_fail(&mut self, queue: u16, resent: bool) -> bool {
        let own = 1 << (queue % 64);
        if resent {
            if self.lossy {
                self.behind |= own;
            }
            return self.lossy;
        }
        let fails = self.lossy || self.behind & own != 0;
        self.lossy = false;
        self.behind &= !own;
        fails
    }

    /// A flush begins; `dirty` whether a write was complete since the one before began. Its number.
    pub fn begin(&mut self, dirty: bool) -> u64 {
        self.begun = self.begun.saturating_add(1);
        if dirty {
            self.needed = self.begun;
        }
        self.begun
    }

    /// A flush is complete, and with it whatever those before it had to cover.
    pub fn complete(&mut self, number: u64) {
        self.complete = self.complete.max(number);
    }

    /// Whether a write was complete before a flush that is not.
    pub fn are_needed(&self) -> bool {
        self.needed > self.complete
    }
}
