// SPDX-License-Identifier: GPL-2.0

//! The completions that a queue hands over at a time.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use core::cell::UnsafeCell;
use kernel::{
    pr_warn_once,
    prelude::*, //
};

/// Completions that are taken out of a queue at a time.
const BATCH: usize = 8;

/// Room for [`BATCH`] completions, or for none.
pub(super) struct Completions(KVec<UnsafeCell<bindings::ib_wc>>);

impl Completions {
    /// Makes the room. May sleep.
    pub(super) fn new() -> Result<Self> {
        let mut wcs = KVec::with_capacity(BATCH, GFP_KERNEL)?;
        for _ in 0..BATCH {
            wcs.push(UnsafeCell::new(pin_init::zeroed()), GFP_KERNEL)?;
        }
        Ok(Self(wcs))
    }

    /// Makes no room.
    pub(super) fn none() -> Self {
        Self(KVec::new())
    }

    /// Handles at most `budget` completions of `cq`, and returns how many they were.
    ///
    /// `ib_process_cq_direct()` does the same, but clears room for as many completions on the stack
    /// first, where the kernel clears what is on the stack. It also has tracepoints.
    ///
    /// # Safety
    ///
    /// `cq` must be a valid queue. Until this returns nobody else may handle completions of `cq`,
    /// or use `self`. All that was posted and completes there has the `ib_cqe` of a slot or a
    /// marker of ours, which is valid until its completion was handled.
    #[inline]
    pub(super) unsafe fn handle(&self, cq: *mut bindings::ib_cq, budget: u32) -> u32 {
        let mut handled: u32 = 0;
        while handled < budget {
            // CAST: There are at most `BATCH`.
            let room = (budget - handled).min(self.0.len() as u32);
            let wcs = UnsafeCell::raw_get(self.0.as_ptr());
            // SAFETY: The caller promises that the queue is valid and its own, and that nobody uses
            // the room, in which there are so many.
            let found = unsafe { bindings::ib_poll_cq(cq, room as i32, wcs) };
            // Less than 0 is an error: then there is nothing that could be handled.
            let found = u32::try_from(found).unwrap_or(0).min(room);
            for index in 0..found as usize {
                // SAFETY: It is one of those in the room, which were initialised, and which nobody
                // else uses. The caller promises that it has the `ib_cqe` of a slot or a marker,
                // whose function is called for this completion, and once.
                unsafe {
                    let wc = wcs.add(index);
                    let cqe = (*wc).__bindgen_anon_1.wr_cqe;
                    match cqe.as_ref().and_then(|cqe| cqe.done) {
                        Some(done) => done(cq, wc),
                        None => nobodys(),
                    }
                }
            }
            handled += found;
            if found < room || room == 0 {
                break;
            }
        }
        handled
    }
}

/// The device has completed what nobody has posted.
#[cold]
fn nobodys() {
    pr_warn_once!("a device has completed a work request that was not posted\n");
}
