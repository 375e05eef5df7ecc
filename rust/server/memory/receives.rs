// SPDX-License-Identifier: GPL-2.0

//! How many receives a shared receive queue has, and how many clients rely on.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host tests.

#![forbid(unsafe_code)]

/// The receives of a queue.
///
/// # Invariants
///
/// - `have <= most`, so that each finds room in the queue, and so do those that were missed and are there.
/// - If something is promised, and nothing was lost, `promised + spare <= have`.
#[derive(Debug)]
pub struct Receives {
    /// Those that the queue has room for.
    most: u32,
    /// Those that there are beyond the promised ones.
    spare: u32,
    /// Those that exist, wherever they are, or are about to be made.
    have: u32,
    promised: u32,
}

impl Receives {
    /// A queue with room for `most` receives, and none yet.
    pub const fn new(most: u32, spare: u32) -> Self {
        Self {
            most,
            spare,
            have: 0,
            promised: 0,
        }
    }

    /// How many more can be promised.
    pub fn room(&self) -> u32 {
        let taken = self.promised.saturating_add(self.spare);
        self.most.saturating_sub(taken)
    }

    /// Promises `count` more, and returns how many the caller has to make before anybody may rely on
    /// them: these count as made. `None` if there is no room.
    pub fn promise(&mut self, count: u32) -> Option<u32> {
        let wanted = self.promised.checked_add(self.spare)?.checked_add(count)?;
        if wanted > self.most {
            return None;
        }
        self.promised += count;
        let missing = wanted.saturating_sub(self.have);
        // INVARIANT: It is what was promised, for which there is room.
        self.have += missing;
        Some(missing)
    }

    /// `count` that were promised are not relied on any more.
    pub fn withdraw(&mut self, count: u32) {
        self.promised = self.promised.saturating_sub(count);
    }

    /// Of those that were withdrawn just now, one at least, one may be missing, and may still take its room.
    /// If it is there, it is one more than is counted.
    pub fn miss(&mut self) {
        self.most = self.most.saturating_sub(1);
        self.have = self.have.saturating_sub(1);
    }

    /// `count` do not exist any more, or could not be made.
    pub fn lose(&mut self, count: u32) {
        self.have = self.have.saturating_sub(count);
    }

    /// One has come back. Whether it is to be posted again; otherwise it is counted no more.
    pub fn keep(&mut self) -> bool {
        let surplus = self.have > self.promised + self.spare;
        self.have -= u32::from(surplus);
        !surplus
    }
}
