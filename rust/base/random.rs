// SPDX-License-Identifier: GPL-2.0

//! Random numbers.
//!
//! C header: [`include/linux/random.h`](srctree/include/linux/random.h)

// UPSTREAM: upstream/tree/base/random.rs takes the place of this file, with patches of
// upstream/rust.

#![allow(unsafe_code)]

use crate::bindings;

/// A random number fit for secrets. Any context.
pub(crate) fn random_u64() -> u64 {
    // SAFETY: No requirements.
    unsafe { bindings::get_random_u64() }
}

/// Fills `buffer` with random bytes fit for secrets. Any context.
pub(crate) fn random_bytes(buffer: &mut [u8]) {
    // SAFETY: `buffer` is valid for writes of its length.
    unsafe { bindings::get_random_bytes(buffer.as_mut_ptr().cast(), buffer.len()) }
}
