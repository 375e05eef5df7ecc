// SPDX-License-Identifier: GPL-2.0

//! Entries of a completion queue that a queue of work requests may fill.

use crate::rdma::{
    cq::AnyCq,
    remnant::ObjectRef, //
};
use kernel::sync::atomic::Relaxed;

/// Reserved entries of a completion queue, and a reference to the queue.
///
/// # Invariants
///
/// - `cq.reserved` includes `entries`.
pub(in crate::rdma) struct Reservation {
    pub(super) cq: ObjectRef<AnyCq>,
    pub(super) entries: u32,
}

impl Reservation {
    /// Returns the queue.
    #[inline]
    pub(in crate::rdma) fn cq(&self) -> &ObjectRef<AnyCq> {
        &self.cq
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cq.reserved.fetch_sub(self.entries, Relaxed);
    }
}
