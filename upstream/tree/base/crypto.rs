// SPDX-License-Identifier: GPL-2.0

//! The kernel's cryptographic library functions, those of the kernel crate.

#![allow(unsafe_code)]

use crate::bindings;
use kernel::{
    crc32,
    scatterlist::contents::Contents, //
};

pub(crate) use kernel::crypto::{
    equal,
    hmac_sha256,
    open,
    seal,
    sha256,
    x25519,
    x25519_base,
    CHACHA20POLY1305_AUTHTAG_SIZE as TAG_SIZE, //
};

/// Returns the CRC32C of `head`, and after that of `contents`, one after the other (Castagnoli; as
/// iSCSI has it, RFC 7143).
pub(crate) fn crc32c(head: &[&[u8]], contents: &[Contents<'_>]) -> u32 {
    let crc = head
        .iter()
        .fold(!0, |crc, bytes| crc32::crc32c(crc, bytes));
    !contents.iter().fold(crc, crc32::crc32c_contents)
}

/// Overwrites `bytes` with zeroes, also if nobody reads them any more.
pub(crate) fn wipe(bytes: &mut [u8]) {
    // SAFETY: `bytes` is valid for writes of its length.
    unsafe { bindings::memzero_explicit(bytes.as_mut_ptr().cast(), bytes.len()) }
}
