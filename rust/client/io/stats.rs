// SPDX-License-Identifier: GPL-2.0

//! The counters of a map. They live as long as its disk, whatever becomes of its paths.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::SetOnce;

use crate::base::clock;
use crate::block::mq::{
    Command,
    Operations,
    Request, //
};
use crate::stats::{
    Op,
    QueueStats,
    Totals, //
};

/// The counters of a map. The index is the hardware queue.
pub(in crate::client) struct MapStats(SetOnce<KVVec<QueueStats>>);

impl MapStats {
    /// Makes counters of no hardware queue.
    pub(in crate::client) fn new() -> Self {
        Self(SetOnce::new())
    }

    /// Makes the counters of the hardware queues, of which there are `queues`. Must be called
    /// before the first request; a second call changes nothing. May sleep.
    pub(in crate::client) fn allocate(&self, queues: u16) -> Result {
        let mut list = KVVec::with_capacity(usize::from(queues), GFP_KERNEL)?;
        for _ in 0..queues {
            list.push(QueueStats::new(), GFP_KERNEL)?;
        }
        self.0.populate(list);
        Ok(())
    }

    #[inline]
    fn queue(&self, hw_queue: u16) -> Option<&QueueStats> {
        self.0.as_ref()?.get(usize::from(hw_queue))
    }

    /// Counts a request that ends now, and which began at `began_ns`. Any context.
    #[inline]
    pub(in crate::client) fn ended<T: Operations>(
        &self,
        hw_queue: u16,
        request: &Request<T>,
        began_ns: u64,
        succeeded: bool,
    ) {
        let op = match request.command() {
            Command::Read => Op::Read,
            Command::Write => Op::Write,
            Command::Flush => Op::Flush,
            Command::Discard | Command::SecureErase => Op::Discard,
            Command::WriteZeroes => Op::WriteZeroes,
            Command::Reserve | Command::Report | Command::Unsupported(_) => return,
        };
        if let Some(queue) = self.queue(hw_queue) {
            let ns = clock::now_ns().saturating_sub(began_ns);
            queue.ended(op, request.bytes(), succeeded, ns);
        }
    }

    /// Counts a request that is sent again because its path was lost. Any context.
    #[cold]
    pub(in crate::client) fn retried(&self, hw_queue: u16) {
        if let Some(queue) = self.queue(hw_queue) {
            queue.retried();
        }
    }

    /// Returns the sum of the counters.
    pub(in crate::client) fn totals(&self) -> Totals {
        Totals::of(self.0.as_ref().into_iter().flatten())
    }
}
