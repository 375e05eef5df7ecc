// SPDX-License-Identifier: GPL-2.0

//! The number of receives of a receive queue, and how many of them are promised to clients as
//! credit.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

/// The receives of a queue, as numbers.
///
/// # Invariants
///
/// - `have <= max`, so that the queue has an entry for each, and for those that were counted as
///   missing and are there.
/// - If some are promised, and none was lost, `promised + spare <= have`.
#[derive(Debug)]
pub struct Receives {
    /// The entries of the queue.
    max: u32,
    /// The receives that exist beyond the promised ones.
    spare: u32,
    /// The receives that exist, posted or not, or are about to be made.
    have: u32,
    /// The receives that clients rely on.
    promised: u32,
}

impl Receives {
    /// Makes the numbers of a queue with `max` entries, and no receive yet.
    pub const fn new(max: u32, spare: u32) -> Self {
        Self {
            max,
            spare,
            have: 0,
            promised: 0,
        }
    }

    /// Returns how many more can be promised.
    pub fn available(&self) -> u32 {
        let taken = self.promised.saturating_add(self.spare);
        self.max.saturating_sub(taken)
    }

    /// Promises `count` more, and returns how many the caller has to make before a client may rely
    /// on them. These count as made. `None` if the queue has not enough entries.
    pub fn promise(&mut self, count: u32) -> Option<u32> {
        let wanted = self.promised.checked_add(self.spare)?.checked_add(count)?;
        if wanted > self.max {
            return None;
        }
        self.promised += count;
        let missing = wanted.saturating_sub(self.have);
        // INVARIANT: `have` is at most `wanted`, which was checked above.
        self.have += missing;
        Some(missing)
    }

    /// Takes back the promise of `count` receives.
    pub fn withdraw(&mut self, count: u32) {
        self.promised = self.promised.saturating_sub(count);
    }

    /// Counts one of the receives that were withdrawn just now, at least one, as missing. It may
    /// still take its entry of the queue. If it comes back, there is one more than is counted.
    pub fn miss(&mut self) {
        self.max = self.max.saturating_sub(1);
        self.have = self.have.saturating_sub(1);
    }

    /// Returns true if there are more than are promised and spare.
    pub fn has_surplus(&self) -> bool {
        self.have > self.promised + self.spare
    }

    /// Counts `count` receives as freed, or as those that could not be made.
    pub fn lose(&mut self, count: u32) {
        self.have = self.have.saturating_sub(count);
    }

    /// Handles a receive that has come back: returns true if it is to be posted again. Otherwise it
    /// must be freed, and is not counted any more.
    pub fn keep(&mut self) -> bool {
        let surplus = self.has_surplus();
        self.have -= u32::from(surplus);
        !surplus
    }
}
