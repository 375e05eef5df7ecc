// SPDX-License-Identifier: GPL-2.0

//! Interrupts for solicited completions only.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::cq::Cq;

impl Cq {
    /// Like [`Self::arm`], but requests the interrupt at the next completion that is solicited: a
    /// receive of what the peer has sent so, by
    /// [`Qp::send_solicited`](crate::rdma::qp::Qp::send_solicited) or by
    /// [`Announcement::solicited`](crate::rdma::wr::Announcement::solicited), or a receive that has
    /// failed.
    ///
    /// Also returns true if there may be a completion already that is not solicited. Does not undo
    /// [`Self::arm`]: if that was called since the last interrupt, the next completion of any kind
    /// raises one. A send that has succeeded is never solicited. Not every device tells of receives
    /// that are flushed
    /// ([`Quirks::flushes_unsolicited`](crate::rdma::quirks::Quirks::flushes_unsolicited)).
    ///
    /// # Context
    ///
    /// Any. Does not sleep.
    pub(crate) fn arm_solicited(&self) -> bool {
        // SAFETY: By the type invariants the queue is valid; this may be done at any time.
        self.notify.is_some() && unsafe { bindings::farblk_req_notify_solicited(self.as_raw()) > 0 }
    }
}
