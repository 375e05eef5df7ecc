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
//! Any but hard interrupt: these functions may use vector registers. None of them sleeps, and none
//! leaves a secret on the stack.

// UPSTREAM: upstream/tree/base/crypto.rs takes the place of this file, with patches of
// upstream/rust.

use crate::base::contents::Contents;
use crate::bindings;

/// Bytes of a SHA-256, of a scalar and a point of X25519, and of a key of ChaCha20-Poly1305.
pub(crate) const SIZE: usize = 32;
/// Bytes of the tag of ChaCha20-Poly1305.
pub(crate) const TAG_SIZE: usize = 16;
/// The most pieces that [`seal`] and [`open`] take.
const PIECES_MAX: usize = 2;

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

/// Writes the X25519 of a scalar and a point to `out` (RFC 7748). Returns false if it is zero.
#[must_use]
pub(crate) fn x25519(scalar: &[u8; SIZE], point: &[u8; SIZE], out: &mut [u8; SIZE]) -> bool {
    // SAFETY: All three are valid for 32 bytes. The function clamps a copy of the scalar.
    unsafe { bindings::curve25519(out.as_mut_ptr(), scalar.as_ptr(), point.as_ptr()) }
}

/// Writes the X25519 of a scalar and the base point to `out` (RFC 7748, section 4.1), in less time
/// than [`x25519`] does. Returns false if the scalar is zero.
#[must_use]
pub(crate) fn x25519_base(scalar: &[u8; SIZE], out: &mut [u8; SIZE]) -> bool {
    // SAFETY: Both are valid for 32 bytes. The function clamps a copy of the scalar.
    unsafe { bindings::curve25519_generate_public(out.as_mut_ptr(), scalar.as_ptr()) }
}

/// Encrypts `pieces`, one after the other, where they are, and writes their tag to `tag`
/// (ChaCha20-Poly1305 of RFC 8439; the nonce is 4 zero bytes and the 8 of `nonce`, lowest first).
///
/// Returns false, and does nothing, if there are more than two pieces or `tag` has not its size.
/// What others write to `pieces` meanwhile may be encrypted or not; the tag is that of what was
/// encrypted only if nobody does.
#[must_use]
pub(crate) fn seal(
    pieces: &[Contents<'_>],
    tag: &Contents<'_>,
    associated: &[u8],
    nonce: u64,
    key: &[u8; SIZE],
) -> bool {
    in_place(pieces, tag, |list, len| {
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
    })
}

/// Decrypts what [`seal`] has encrypted, where it is. Returns false if the tag is not theirs; then
/// `pieces` are of no use any more.
#[must_use]
pub(crate) fn open(
    pieces: &[Contents<'_>],
    tag: &Contents<'_>,
    associated: &[u8],
    nonce: u64,
    key: &[u8; SIZE],
) -> bool {
    in_place(pieces, tag, |list, len| {
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
    })
}

/// Calls `f` with a list of the pieces and the tag, and the number of bytes of the pieces.
fn in_place(
    pieces: &[Contents<'_>],
    tag: &Contents<'_>,
    f: impl FnOnce(*mut bindings::scatterlist, usize) -> bool,
) -> bool {
    if pieces.len() > PIECES_MAX || tag.len() != TAG_SIZE {
        return false;
    }
    let mut list = [bindings::scatterlist::default(); PIECES_MAX + 1];
    let all = || pieces.iter().chain([tag]).filter(|piece| piece.len() != 0);
    // CAST: At most three.
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
    let len = pieces.iter().map(Contents::len).sum();
    f(list.as_mut_ptr(), len)
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

/// Returns true if both are equal, in a time that depends on the lengths alone.
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

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_crypto)]
mod tests {
    use super::*;
    use crate::{
        base::{
            bounce::BounceBuffer,
            memory::NumaNode,
            scatterlist::PageChunks,
            sync::random_bytes, //
        },
        kunit::check, //
    };
    use kernel::{
        page::PAGE_SIZE,
        prelude::*, //
    };

    /// Returns the bytes that hexadecimal digits stand for.
    fn hex<const N: usize>(digits: &[u8]) -> [u8; N] {
        let value = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
        let mut bytes = [0; N];
        for (byte, two) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = two.iter().fold(0, |byte, digit| byte << 4 | value(*digit));
        }
        bytes
    }

    fn hmac(key: &[u8; SIZE], parts: &[&[u8]]) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        super::hmac_sha256(key, parts, &mut out);
        out
    }

    /// FIPS 180-4, the examples of NIST.
    #[test]
    fn sha256_known() -> Result {
        let empty = hex(b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let abc = hex(b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let long = hex(b"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check!(super::sha256(&[]) == empty);
        check!(super::sha256(&[b"abc"]) == abc);
        check!(super::sha256(&[b"a", b"", b"bc"]) == abc);
        let text = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        check!(super::sha256(&[text]) == long);
        Ok(())
    }

    /// RFC 4231, test cases 1 and 2, whose keys are padded with zeroes to 32 bytes here: HMAC pads
    /// them so itself.
    #[test]
    fn hmac_sha256_known() -> Result {
        let mut key = [0; SIZE];
        for byte in key.iter_mut().take(20) {
            *byte = 0x0b;
        }
        let there = hex(b"b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        check!(hmac(&key, &[b"Hi There"]) == there);
        check!(hmac(&key, &[b"Hi", b" There", b""]) == there);
        let mut jefe = [0; SIZE];
        for (to, from) in jefe.iter_mut().zip(b"Jefe") {
            *to = *from;
        }
        let nothing = hex(b"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        check!(hmac(&jefe, &[b"what do ya want for nothing?"]) == nothing);
        Ok(())
    }

    /// RFC 7748, section 5.2.
    #[test]
    fn x25519_known() -> Result {
        let scalar = hex(b"a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4");
        let point = hex(b"e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
        let product = hex(b"c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552");
        let mut out = [0; SIZE];
        check!(super::x25519(&scalar, &point, &mut out) && out == product);
        let scalar = hex(b"4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d");
        let point = hex(b"e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493");
        let product = hex(b"95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957");
        check!(super::x25519(&scalar, &point, &mut out) && out == product);
        Ok(())
    }

    /// Another implementation, of which the scalar need not be clamped either.
    #[test]
    fn base_point() -> Result {
        let (mut scalar, mut base) = ([0xff; SIZE], [0; SIZE]);
        base[0] = 9;
        for _ in 0..32 {
            let (mut one, mut other) = ([0; SIZE], [1; SIZE]);
            check!(super::x25519(&scalar, &base, &mut one));
            check!(super::x25519_base(&scalar, &mut other) && one == other);
            random_bytes(&mut scalar);
        }
        check!(!super::x25519_base(&[0; SIZE], &mut scalar));
        Ok(())
    }

    /// The points of low order, and those that are not reduced: the result of each is zero.
    #[test]
    fn low_order_points() -> Result {
        let points: [[u8; SIZE]; 7] = [
            hex(b"0000000000000000000000000000000000000000000000000000000000000000"),
            hex(b"0100000000000000000000000000000000000000000000000000000000000000"),
            hex(b"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
            hex(b"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
            hex(b"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
            hex(b"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
            hex(b"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        ];
        let mut scalar = [0; SIZE];
        for point in points {
            random_bytes(&mut scalar);
            let mut out = [1; SIZE];
            check!(!super::x25519(&scalar, &point, &mut out));
        }
        Ok(())
    }

    /// The text of the example of RFC 8439, section 2.8.2. The nonce there does not begin with
    /// zeroes, so that the tag below is one of another implementation, that of the selftests.
    const TEXT: &[u8; 114] =
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one \
        tip for the future, sunscreen would be it.";

    /// Returns a buffer with `bytes` and room for a tag, in two pieces.
    fn buffers(bytes: &[u8]) -> Result<[BounceBuffer; 3]> {
        let memory = PageChunks::alloc(8 * PAGE_SIZE, NumaNode::NO_NODE)?;
        let first = bytes.len() / 3;
        let part = |index: usize, len: usize| -> Result<BounceBuffer> {
            let mut buffer = BounceBuffer::new(&memory, 2 * index * PAGE_SIZE, PAGE_SIZE as u32)?;
            buffer.set_len(len as u32, false)?;
            Ok(buffer)
        };
        let all = [
            part(0, first)?,
            part(1, bytes.len() - first)?,
            part(2, TAG_SIZE)?,
        ];
        let (head, rest) = bytes.split_at(first);
        all[0].contents().write(head)?;
        all[1].contents().write(rest)?;
        Ok(all)
    }

    /// As selftests/frames.py computes it.
    #[test]
    fn seal_known() -> Result {
        let key = hex(b"808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
        let associated: [u8; 12] = hex(b"50515253c0c1c2c3c4c5c6c7");
        let [one, two, tag] = buffers(b"Ladi")?;
        let pieces = [one.contents(), two.contents()];
        check!(seal(&pieces, &tag.contents(), &associated, 7, &key));
        let (mut first, mut rest, mut sum) = ([0; 1], [0; 3], [0; TAG_SIZE]);
        one.contents().read(&mut first)?;
        two.contents().read(&mut rest)?;
        tag.contents().read(&mut sum)?;
        check!(first == hex(b"bc") && rest == hex(b"811b8a"));
        check!(sum == hex(b"d6beaf72b7f031c3fc26773d53e52156"));
        Ok(())
    }

    /// RFC 7143, appendix A.4: 32 bytes of zeroes, of ones, and rising.
    #[test]
    fn crc32c_known() -> Result {
        let rising: [u8; 32] = core::array::from_fn(|index| index as u8);
        for (bytes, crc) in [
            ([0; 32], 0x8a91_36aa),
            ([0xff; 32], 0x62a8_ab43),
            (rising, 0x46dd_794e),
        ] {
            let [one, two, _] = buffers(&bytes)?;
            check!(super::crc32c(&[], &[one.contents(), two.contents()]) == crc);
            let (head, _) = bytes.split_at(10);
            check!(super::crc32c(&[head], &[two.contents()]) == crc);
        }
        Ok(())
    }

    #[test]
    fn sealed_can_be_opened_once() -> Result {
        let key = hex(b"808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
        let associated: [u8; 12] = hex(b"50515253c0c1c2c3c4c5c6c7");
        for len in [4, 16, 63, 64, 65, 114] {
            let text = TEXT.get(..len).ok_or(EINVAL)?;
            let [one, two, tag] = buffers(text)?;
            let pieces = || [one.contents(), two.contents()];
            check!(seal(&pieces(), &tag.contents(), &associated, 7, &key));
            check!(!open(&pieces(), &tag.contents(), &associated, 8, &key));
        }
        for len in [4, 16, 63, 64, 65, 114] {
            let text = TEXT.get(..len).ok_or(EINVAL)?;
            let [one, two, tag] = buffers(text)?;
            let pieces = || [one.contents(), two.contents()];
            check!(seal(&pieces(), &tag.contents(), &associated, 7, &key));
            check!(open(&pieces(), &tag.contents(), &associated, 7, &key));
            let mut back = [0; 114];
            one.contents().read(&mut back[..len / 3])?;
            two.contents().read(&mut back[len / 3..len])?;
            check!(back[..len] == *text);
        }
        Ok(())
    }

    #[test]
    fn equal_known() -> Result {
        check!(super::equal(b"", b"") && super::equal(b"one", b"one"));
        check!(!super::equal(b"one", b"onE") && !super::equal(b"one", b"ones"));
        let mut bytes = [0xa5; 33];
        let (secret, rest) = bytes.split_at_mut(32);
        super::wipe(secret);
        check!(secret.iter().all(|byte| *byte == 0) && rest == [0xa5]);
        Ok(())
    }
}
