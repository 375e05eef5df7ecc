// SPDX-License-Identifier: GPL-2.0

//! The suite of the cryptographic functions: values that others have computed.

#[kernel::macros::kunit_tests(farblk_crypto)]
mod tests {
    use crate::{
        base::{
            bounce::BounceBuffer,
            crypto::{
                self,
                open,
                seal,
                TAG_SIZE, //
            },
            errno::EBADMSG,
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

    /// Bytes of a hash and of a key.
    const SIZE: usize = 32;

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
        crypto::hmac_sha256(key, parts, &mut out);
        out
    }

    /// FIPS 180-4, the examples of NIST.
    #[test]
    fn sha256_known() -> Result {
        let empty = hex(b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let abc = hex(b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let long = hex(b"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check!(crypto::sha256(&[]) == empty);
        check!(crypto::sha256(&[b"abc"]) == abc);
        check!(crypto::sha256(&[b"a", b"", b"bc"]) == abc);
        let text = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        check!(crypto::sha256(&[text]) == long);
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
        crypto::x25519(&scalar, &point, &mut out)?;
        check!(out == product);
        let scalar = hex(b"4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d");
        let point = hex(b"e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493");
        let product = hex(b"95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957");
        crypto::x25519(&scalar, &point, &mut out)?;
        check!(out == product);
        Ok(())
    }

    /// Another implementation, of which the scalar need not be clamped either.
    #[test]
    fn base_point() -> Result {
        let (mut scalar, mut base) = ([0xff; SIZE], [0; SIZE]);
        base[0] = 9;
        for _ in 0..32 {
            let (mut one, mut other) = ([0; SIZE], [1; SIZE]);
            crypto::x25519(&scalar, &base, &mut one)?;
            crypto::x25519_base(&scalar, &mut other)?;
            check!(one == other);
            random_bytes(&mut scalar);
        }
        check!(crypto::x25519_base(&[0; SIZE], &mut scalar) == Err(EINVAL));
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
            check!(crypto::x25519(&scalar, &point, &mut out) == Err(EINVAL));
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

    /// As the peer of the kselftests computes it, which is not this code.
    #[test]
    fn seal_known() -> Result {
        let key = hex(b"808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
        let associated: [u8; 12] = hex(b"50515253c0c1c2c3c4c5c6c7");
        let [one, two, tag] = buffers(b"Ladi")?;
        let pieces = [one.contents(), two.contents()];
        seal(&pieces, &tag.contents(), &associated, 7, &key)?;
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
            check!(crypto::crc32c(&[], &[one.contents(), two.contents()]) == crc);
            let (head, _) = bytes.split_at(10);
            check!(crypto::crc32c(&[head], &[two.contents()]) == crc);
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
            seal(&pieces(), &tag.contents(), &associated, 7, &key)?;
            check!(open(&pieces(), &tag.contents(), &associated, 8, &key) == Err(EBADMSG));
        }
        for len in [4, 16, 63, 64, 65, 114] {
            let text = TEXT.get(..len).ok_or(EINVAL)?;
            let [one, two, tag] = buffers(text)?;
            let pieces = || [one.contents(), two.contents()];
            seal(&pieces(), &tag.contents(), &associated, 7, &key)?;
            open(&pieces(), &tag.contents(), &associated, 7, &key)?;
            let mut back = [0; 114];
            one.contents().read(&mut back[..len / 3])?;
            two.contents().read(&mut back[len / 3..len])?;
            check!(back[..len] == *text);
        }
        Ok(())
    }

    #[test]
    fn equal_known() -> Result {
        check!(crypto::equal(b"", b"") && crypto::equal(b"one", b"one"));
        check!(!crypto::equal(b"one", b"onE") && !crypto::equal(b"one", b"ones"));
        let mut bytes = [0xa5; 33];
        let (secret, rest) = bytes.split_at_mut(32);
        crypto::wipe(secret);
        check!(secret.iter().all(|byte| *byte == 0) && rest == [0xa5]);
        Ok(())
    }
}
