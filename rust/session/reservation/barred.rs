// SPDX-License-Identifier: GPL-2.0

//! Whose maps were evicted by the administrator, and are not let in until they are enabled anew.

#![forbid(unsafe_code)]

use super::registration::Registration;

/// The most that are remembered.
const MAX: usize = 8;

/// One life of a host whose maps were evicted. Its maps that were enabled later are others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Evicted<H> {
    host: H,
    boot: u64,
    /// The largest one of its maps.
    incarnation: u64,
}

/// The lives of hosts whose maps were evicted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Barred<H>([Option<Evicted<H>>; MAX]);

impl<H: Copy + PartialEq> Barred<H> {
    /// Nobody was evicted yet.
    pub(super) const fn new() -> Self {
        Self([None; MAX])
    }

    /// Notes that a registration is evicted. Returns true if another one was forgotten for it.
    pub(super) fn add(&mut self, one: &Registration<H>) -> bool {
        let mut known = self.0.iter_mut().flatten();
        if let Some(known) = known.find(|known| known.host == one.host && known.boot == one.boot) {
            known.incarnation = known.incarnation.max(one.incarnation);
            return false;
        }
        // The last one is forgotten, or there was none.
        self.0.rotate_right(1);
        let [first, ..] = &mut self.0;
        let forgotten = first.replace(Evicted {
            host: one.host,
            boot: one.boot,
            incarnation: one.incarnation,
        });
        forgotten.is_some()
    }

    /// Returns true if a map of this life of a host was evicted.
    pub(super) fn has(&self, host: &H, boot: u64, incarnation: u64) -> bool {
        let mut all = self.0.iter().flatten();
        all.any(|one| one.host == *host && one.boot == boot && incarnation <= one.incarnation)
    }
}
