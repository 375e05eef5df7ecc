// SPDX-License-Identifier: GPL-2.0

//! The kernel's cryptographic library functions.
//!
//! C headers: [`include/crypto/sha2.h`](srctree/include/crypto/sha2.h),
//! [`include/crypto/curve25519.h`](srctree/include/crypto/curve25519.h),
//! [`include/crypto/chacha20poly1305.h`](srctree/include/crypto/chacha20poly1305.h),
//! [`include/crypto/utils.h`](srctree/include/crypto/utils.h),
//! [`include/linux/crc32.h`](srctree/include/linux/crc32.h)
//!
//! # Context
//!
//! Any but hard interrupts and NMI, as these functions may use vector registers. None of them
//! sleeps. Apart from its result, none leaves a secret on the stack.

// UPSTREAM: upstream/tree/base/crypto.rs takes the place of this file, with patches 0030 and 0031
// of upstream/rust.

use crate::base::{
    contents::Contents,
    errno::EBADMSG, //
};
use crate::bindings;
use kernel::prelude::*;

/// Bytes of a SHA-256, of a scalar and a point of X25519, and of a key of ChaCha20-Poly1305.
pub(crate) const SIZE: usize = 32;
/// Bytes of the tag of ChaCha20-Poly1305.
pub(crate) const TAG_SIZE: usize = 16;
/// The most pieces that [`seal`] and [`open`] take: the list of them is on the stack.
const PIECES_MAX: usize = 4;

/// Returns the SHA-256 of `parts`, one after the other (FIPS 180-4).
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; SIZE] {
    let mut hash = [0; SIZE];
    let mut ctx = pin_init::zeroed::<bindings::sha256_ctx>();
    // SAFETY: `ctx` is valid, initialised by the first call, and used by nobody else; each part is
    // valid for reads of its length, and `hash` for writes of a whole hash.
    unsafe {
        bindings::sha256_init(&mut ctx);
        for part in parts {
            bindings::sha256_update(&mut ctx, part.as_ptr(), part.len());
        }
        bindings::sha256_final(&mut ctx, hash.as_mut_ptr());
    }
    hash
}

/// Writes the HMAC-SHA256 of `parts`, one after the other, to `out` (RFC 2104).
pub(crate) fn hmac_sha256(key: &[u8; SIZE], parts: &[&[u8]], out: &mut [u8; SIZE]) {
    let mut ctx = pin_init::zeroed::<bindings::hmac_sha256_ctx>();
    // SAFETY: `ctx` is valid, initialised by the first call, and used by nobody else; the key and
    // each part are valid for reads of their length, and `out` for writes of a whole hash. The last
    // call wipes `ctx`.
    unsafe {
        bindings::hmac_sha256_init_usingrawkey(&mut ctx, key.as_ptr(), key.len());
        for part in parts {
            bindings::hmac_sha256_update(&mut ctx, part.as_ptr(), part.len());
        }
        bindings::hmac_sha256_final(&mut ctx, out.as_mut_ptr());
    }
}

/// Writes the X25519 of a scalar and a point to `out` (RFC 7748).
///
/// Fails with `EINVAL` if it is zero: then the peer that has sent the point does not use one that
/// makes a secret.
pub(crate) fn x25519(scalar: &[u8; SIZE], point: &[u8; SIZE], out: &mut [u8; SIZE]) -> Result {
    // SAFETY: All three are valid for 32 bytes. The function clamps a copy of the scalar.
    match unsafe { bindings::curve25519(out.as_mut_ptr(), scalar.as_ptr(), point.as_ptr()) } {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

/// Writes the X25519 of a scalar and the base point to `out` (RFC 7748, section 4.1), in less time
/// than [`x25519`] does.
///
/// Fails with `EINVAL` if the scalar is zero.
pub(crate) fn x25519_base(scalar: &[u8; SIZE], out: &mut [u8; SIZE]) -> Result {
    // SAFETY: Both are valid for 32 bytes. The function clamps a copy of the scalar.
    match unsafe { bindings::curve25519_generate_public(out.as_mut_ptr(), scalar.as_ptr()) } {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

/// Encrypts `pieces`, one after the other, where they are, and writes their tag to `tag`
/// (ChaCha20-Poly1305 of RFC 8439; the nonce is 4 zero bytes and the 8 of `nonce`, lowest first).
///
/// A nonce must not be used twice with a key. What others write to `pieces` meanwhile may be
/// encrypted or not; the tag is that of what was encrypted only if nobody does.
///
/// Fails with `EINVAL`, and does nothing, if there are more than [`PIECES_MAX`] pieces or more than
/// 2 GiB with the tag, or if `tag` has not its size.
pub(crate) fn seal(
    pieces: &[Contents<'_>],
    tag: &Contents<'_>,
    associated: &[u8],
    nonce: u64,
    key: &[u8; SIZE],
) -> Result {
    let done = in_place(pieces, tag, |list, len| {
        // SAFETY: The list is one of so many bytes and the tag, which may be written; the
        // associated data and the key are valid for reads of their length.
        unsafe {
            bindings::chacha20poly1305_encrypt_sg_inplace(
                list,
                len,
                associated.as_ptr(),
                associated.len(),
                nonce,
                key.as_ptr(),
            )
        }
    })?;
    match done {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

/// Decrypts what [`seal`] has encrypted, where it is.
///
/// Fails as [`seal`] does, and with `EBADMSG` if the tag is not theirs; then `pieces` are of no use
/// any more. What is decrypted is what the tag is of only if nobody writes to `pieces` meanwhile.
pub(crate) fn open(
    pieces: &[Contents<'_>],
    tag: &Contents<'_>,
    associated: &[u8],
    nonce: u64,
    key: &[u8; SIZE],
) -> Result {
    let done = in_place(pieces, tag, |list, len| {
        // SAFETY: As in `seal()`. Here the length is that with the tag.
        unsafe {
            bindings::chacha20poly1305_decrypt_sg_inplace(
                list,
                len + TAG_SIZE,
                associated.as_ptr(),
                associated.len(),
                nonce,
                key.as_ptr(),
            )
        }
    })?;
    match done {
        true => Ok(()),
        false => Err(EBADMSG),
    }
}

/// Calls `f` with a list of the pieces and the tag, and the number of bytes of the pieces.
fn in_place(
    pieces: &[Contents<'_>],
    tag: &Contents<'_>,
    f: impl FnOnce(*mut bindings::scatterlist, usize) -> bool,
) -> Result<bool> {
    // C warns if there are more bytes.
    const LEN_MAX: usize = i32::MAX as usize - TAG_SIZE;

    let len = pieces
        .iter()
        .fold(0usize, |len, piece| len.saturating_add(piece.len()));
    if pieces.len() > PIECES_MAX || len > LEN_MAX || tag.len() != TAG_SIZE {
        return Err(EINVAL);
    }
    let mut list = [bindings::scatterlist::default(); PIECES_MAX + 1];
    let all = || Iterator::chain(pieces.iter(), [tag]).filter(|piece| piece.len() != 0);
    // CAST: At most `PIECES_MAX + 1`.
    let count = all().count() as u32;
    // SAFETY: The array has so many entries.
    unsafe { bindings::farblk_sg_init_table(list.as_mut_ptr(), count) };
    for (entry, piece) in list.iter_mut().zip(all()) {
        let segment = piece.segment();
        // SAFETY: The entry is one of an initialised table.
        unsafe {
            bindings::farblk_sg_set_page(
                entry,
                segment.page().as_ptr(),
                segment.len(),
                segment.offset(),
            )
        };
    }
    Ok(f(list.as_mut_ptr(), len))
}

/// Returns the CRC32C of `head`, and after that of `contents`, one after the other (Castagnoli; as
/// iSCSI has it, RFC 7143).
pub(crate) fn crc32c(head: &[&[u8]], contents: &[Contents<'_>]) -> u32 {
    let add = |crc, start: *const u8, len| {
        // SAFETY: So many bytes are valid for reads: those of a slice, or by the invariants of
        // `Contents`. It is C that reads, as others may write at the same time.
        unsafe { bindings::crc32c(crc, start.cast(), len) }
    };
    let crc = head
        .iter()
        .fold(!0, |crc, bytes| add(crc, bytes.as_ptr(), bytes.len()));
    !contents
        .iter()
        .fold(crc, |crc, bytes| add(crc, bytes.as_ptr(), bytes.len()))
}

/// Returns true if both are equal, in a time that depends on the lengths alone; C's
/// `crypto_memneq()` with the opposite result.
#[must_use]
pub(crate) fn equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    // SAFETY: Both are valid for reads of their length, which is the same.
    let differ =
        unsafe { bindings::__crypto_memneq(one.as_ptr().cast(), other.as_ptr().cast(), one.len()) };
    differ == 0
}

/// Overwrites `bytes` with zeroes, also if nobody reads them any more.
pub(crate) fn wipe(bytes: &mut [u8]) {
    // SAFETY: `bytes` is valid for writes of its length.
    unsafe { bindings::memzero_explicit(bytes.as_mut_ptr().cast(), bytes.len()) }
}
