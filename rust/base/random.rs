// SPDX-License-Identifier: GPL-2.0

//! Random numbers.
//!
//! They are fit for secrets once the kernel's random number generator has been seeded, as it is
//! soon after boot. Before, the functions do not wait, and what they return may be guessed.
//!
//! The functions may be called in any context but NMI, and on `PREEMPT_RT` only where preemption is
//! enabled.
//!
//! C header: [`include/linux/random.h`](srctree/include/linux/random.h)

// UPSTREAM: upstream/tree/base/random.rs takes the place of this file, with patch 0016 of
// upstream/rust.

#![allow(unsafe_code)]

use crate::bindings;

/// Returns a random number.
pub(crate) fn random_u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::get_random_u64() }
}

/// Fills `buffer` with random bytes.
pub(crate) fn random_bytes(buffer: &mut [u8]) {
    // SAFETY: `buffer` is valid for writes of its length.
    unsafe { bindings::get_random_bytes(buffer.as_mut_ptr().cast(), buffer.len()) }
}
