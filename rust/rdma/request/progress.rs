// SPDX-License-Identifier: GPL-2.0

//! How far a request is: an atomic word of its slot, which is 0 if there is no request, and has
//! these bits, and the remote key in the upper half.
//!
//! The function that sets the bit that makes [`is_done`] true ends the request, and no other uses
//! the slot then.

/// There is a request.
pub(super) const REQUEST: u64 = 1;
/// Its work requests have completed.
pub(super) const SENT: u64 = 1 << 1;
/// They have failed.
pub(super) const FAILED: u64 = 1 << 2;
/// The peer has answered.
pub(super) const ANSWERED: u64 = 1 << 3;
/// The peer has no access.
pub(super) const INVALID: u64 = 1 << 4;
/// It is counted by [`AnyCq::start_waiting`](crate::rdma::cq::AnyCq::start_waiting).
pub(super) const PARKED: u64 = 1 << 5;
/// It was answered, and not done, when [`Qp::watch_answered`](crate::rdma::qp::Qp::watch_answered)
/// looked.
pub(super) const WATCHED: u64 = 1 << 6;
/// Where the remote key begins.
pub(super) const RKEY_SHIFT: u32 = 32;

/// Returns the progress of an RDMA READ into a region with this key: it is a request that nobody
/// answers, and that ends when its work requests have completed, of which the last one invalidates
/// the key. If it fails, the peer may have access until the region is deregistered.
pub(super) fn of_read(rkey: u32) -> u64 {
    REQUEST | ANSWERED | u64::from(rkey) << RKEY_SHIFT
}

/// Returns true if a request can be given back. One that has failed need not be answered.
#[inline]
pub(super) fn is_done(progress: u64) -> bool {
    progress & INVALID != 0
        && (progress & FAILED != 0 || progress & (SENT | ANSWERED) == SENT | ANSWERED)
}

/// Returns true if there is a request that can be answered. One that has failed, and to which the
/// peer has no access, is done: the function that made it so is just giving it back.
#[inline]
pub(super) fn is_to_answer(progress: u64) -> bool {
    progress & (REQUEST | ANSWERED) == REQUEST && progress & (FAILED | INVALID) != FAILED | INVALID
}

/// Returns true if all that is missing is that the peer has no access any more. The registration
/// has run if the work request behind it has completed: before that, there would be nothing to
/// invalidate.
#[inline]
pub(super) fn is_to_invalidate(progress: u64) -> bool {
    progress & (SENT | ANSWERED | INVALID) == SENT | ANSWERED
}

/// Returns true if the peer has answered a request, and the device is not done with it: its work
/// requests have not completed, or the one that invalidates its key.
#[inline]
pub(super) fn is_with_device(progress: u64) -> bool {
    progress & (REQUEST | ANSWERED) == REQUEST | ANSWERED && !is_done(progress)
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_rdma_progress)]
mod tests {
    use super::*;
    use crate::kunit::check;
    use kernel::prelude::*;

    /// The function that makes a request done ends it: no other must find that it has made it so.
    #[test]
    fn request_is_done_once() -> Result {
        for progress in 0..WATCHED << 1 {
            let done = is_done(progress);
            // An answer is the end only of what was not done.
            check!(!is_to_answer(progress) || !done);
            // Nor is there anything left to invalidate.
            check!(!is_to_invalidate(progress) || !is_done(progress & !FAILED));
            // Who waits for the peer does not wait for the device.
            check!(!is_with_device(progress) || !is_to_answer(progress) && !done);
            // Whatever comes then does not undo it.
            for bit in [SENT, FAILED, ANSWERED, INVALID, PARKED, WATCHED] {
                check!(!done || is_done(progress | bit));
            }
        }
        check!(is_to_answer(REQUEST) && is_to_answer(REQUEST | SENT | INVALID));
        check!(is_with_device(REQUEST | ANSWERED) && !is_with_device(REQUEST | SENT | INVALID));
        check!(!is_with_device(0) && !is_with_device(REQUEST | ANSWERED | SENT | INVALID));
        check!(!is_to_answer(0) && !is_to_answer(REQUEST | FAILED | INVALID));
        Ok(())
    }
}
