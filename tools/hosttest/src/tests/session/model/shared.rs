// SPDX-License-Identifier: GPL-2.0

//! Parts that many worlds have in common.

use super::World;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A part of a world. Worlds share it until one of them changes it, and its hash is computed once
/// for each change: most steps leave most parts as they are, and the machines are large.
#[derive(Clone, Debug)]
pub(super) struct Shared<T> {
    part: Arc<T>,
    /// 0 if it was changed since the hash was computed.
    hash: u64,
}

impl<T: Hash> Shared<T> {
    pub(super) fn new(part: T) -> Self {
        Self {
            part: Arc::new(part),
            hash: 0,
        }
    }

    /// Returns true if [`Self::set_hash`] has to be called.
    pub(super) fn is_changed(&self) -> bool {
        self.hash == 0
    }

    /// Computes the hash of a part that was changed. The parts below it have theirs.
    pub(super) fn set_hash(&mut self) {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        self.hash = hasher.hash_one(&*self.part).max(1);
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.part
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.hash = 0;
        Arc::make_mut(&mut self.part)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.part, &other.part) || self.part == other.part
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        assert_ne!(self.hash, 0, "a part was changed, and has its old hash");
        state.write_u64(self.hash);
    }
}

impl World {
    /// Computes the hashes of the parts that a step has changed.
    pub(super) fn set_hashes(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.is_changed()) {
            if client.map.is_changed() {
                client.map.set_hash();
            }
            client.set_hash();
        }
        if self.server.is_changed() {
            if self.server.machine.is_changed() {
                self.server.machine.set_hash();
            }
            self.server.set_hash();
        }
    }
}
