// SPDX-License-Identifier: GPL-2.0

//! The clock by which the block layer notes when a request began, and a coarse one that costs next
//! to nothing to read.
//!
//! `Instant` of the kernel crate does not tell its nanoseconds, so that it cannot be compared with
//! a time that C has taken.
//!
//! C header: [`include/linux/timekeeping.h`](srctree/include/linux/timekeeping.h)\
//! C header: [`include/linux/jiffies.h`](srctree/include/linux/jiffies.h)

use crate::bindings;

/// Returns the monotonic time in ns; C's `ktime_get_ns()`. Any context.
#[inline]
pub(crate) fn now_ns() -> u64 {
    // SAFETY: It has no requirements while the timekeeping is not suspended, which is when no
    // module runs.
    let now = unsafe { bindings::ktime_get() };
    // CAST: It is not negative.
    now as u64
}

/// Returns the number of ticks of the timer, modulo 2^32; C's `jiffies`. Any context.
#[inline]
pub(crate) fn ticks() -> u32 {
    // SAFETY: It is always valid. The timer's interrupt changes it meanwhile, thus the volatile
    // read.
    let ticks = unsafe { (&raw const bindings::jiffies).read_volatile() };
    // CAST: Modulo 2^32.
    ticks as u32
}
