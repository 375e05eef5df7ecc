// SPDX-License-Identifier: GPL-2.0

//! What a queue pair counts.

use crate::rdma::qp::{
    Qp,
    QpHandler,
    Transport, //
};
use kernel::sync::atomic::Relaxed;

impl<H: QpHandler<T>, T: Transport> Qp<H, T> {
    /// Returns how many work requests of slots were posted, and how many of these have completed,
    /// both modulo 2^32. A completion may be counted before its work request. Any context.
    pub(crate) fn sends(&self) -> (u32, u32) {
        let done = self.done.load(Relaxed);
        // CAST: Modulo 2^32.
        (self.send_posted.load(Relaxed) as u32, done)
    }

    /// Returns how many work requests were posted, receives included. Any context.
    pub(crate) fn posted(&self) -> u64 {
        let sends = self.send_posted.load(Relaxed) + self.extra_posted.load(Relaxed);
        sends + self.recv_posted.load(Relaxed)
    }

    /// Returns how many work requests of slots were posted and have not completed. The number is
    /// not exact while others post, or completions are handled. Any context.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        // CAST: Both modulo 2^32.
        let posted = self.send_posted.load(Relaxed) as u32;
        posted.wrapping_sub(self.done.load(Relaxed))
    }

    /// Returns how many chains of work requests were posted. Any context.
    pub(crate) fn doorbells(&self) -> u64 {
        self.doorbells.load(Relaxed)
    }

    /// Returns how many completions were handled, of receives too. Any context.
    pub(crate) fn completions(&self) -> u64 {
        self.send_completions.load(Relaxed) + self.recv_completions.load(Relaxed)
    }
}
