// SPDX-License-Identifier: GPL-2.0

//! The kernel's cryptographic library functions, those of the kernel crate.

#![allow(unsafe_code)]

use crate::bindings;

pub(crate) use kernel::crypto::{
    crc32c,
    equal,
    hmac_sha256,
    open,
    seal,
    sha256,
    x25519,
    x25519_base,
    TAG_SIZE, //
};

/// Overwrites `bytes` with zeroes, also if nobody reads them any more.
pub(crate) fn wipe(bytes: &mut [u8]) {
    // SAFETY: `bytes` is valid for writes of its length.
    unsafe { bindings::memzero_explicit(bytes.as_mut_ptr().cast(), bytes.len()) }
}
