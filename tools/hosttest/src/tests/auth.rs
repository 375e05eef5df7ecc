// SPDX-License-Identifier: GPL-2.0

//! Authentication, over the primitives of RustCrypto.

use crate::proto::auth::{
    key_id, Cookies, Ends, Forged, Keys, Primitives, Secret, Share, Transcript, WeakPoint,
    KEY_SIZE, TAG_SIZE,
};
use crate::proto::key;
use hmac::{Hmac, Mac};
use proptest::prelude::*;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::net::SocketAddr;

thread_local! {
    /// Random bytes are counted up, so that tests can be repeated.
    static RANDOM: Cell<u8> = const { Cell::new(0) };
}

enum Host {}

impl Primitives for Host {
    fn sha256(parts: &[&[u8]]) -> [u8; KEY_SIZE] {
        let mut hash = Sha256::new();
        parts.iter().for_each(|part| hash.update(part));
        hash.finalize().into()
    }

    fn hmac_sha256(key: &[u8; KEY_SIZE], parts: &[&[u8]], out: &mut [u8; KEY_SIZE]) {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        parts.iter().for_each(|part| mac.update(part));
        *out = mac.finalize().into_bytes().into();
    }

    fn x25519(scalar: &[u8; KEY_SIZE], point: &[u8; KEY_SIZE], out: &mut [u8; KEY_SIZE]) -> bool {
        *out = x25519_dalek::x25519(*scalar, *point);
        *out != [0; KEY_SIZE]
    }

    fn x25519_base(scalar: &[u8; KEY_SIZE], out: &mut [u8; KEY_SIZE]) -> bool {
        *out = x25519_dalek::x25519(*scalar, x25519_dalek::X25519_BASEPOINT_BYTES);
        *scalar != [0; KEY_SIZE]
    }

    fn equal(one: &[u8], other: &[u8]) -> bool {
        one == other
    }

    fn random(bytes: &mut [u8]) {
        for byte in bytes {
            *byte = RANDOM.get();
            RANDOM.set(RANDOM.get().wrapping_mul(5).wrapping_add(1));
        }
    }

    fn wipe(bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// Makes a secret of these bytes.
fn secret(mut bytes: [u8; KEY_SIZE]) -> Secret<Host> {
    let mut secret = Secret::zero();
    secret.set(&mut bytes);
    assert_eq!(bytes, [0; KEY_SIZE], "they are overwritten where they were");
    secret
}

fn key(byte: u8) -> Secret<Host> {
    secret([byte; KEY_SIZE])
}

fn share() -> Share<Host> {
    let mut share = Share::zero();
    share.randomize();
    share
}

fn derive(
    share: &Share<Host>,
    key: &Secret<Host>,
    point: &[u8; KEY_SIZE],
    transcript: &Transcript<Host>,
) -> Result<Keys<Host>, WeakPoint> {
    let mut keys = Keys::zero();
    share
        .derive(key, point, transcript, &mut keys)
        .map(|()| keys)
}

fn parsed(text: &[u8]) -> Option<Secret<Host>> {
    let mut secret = Secret::zero();
    key::parse(text, &mut secret).ok().map(|()| secret)
}

fn ends(server_port: u16) -> Ends {
    let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
    let mut server = addr("10.0.0.1:7420");
    server.set_port(server_port);
    Ends {
        client: (addr("10.0.0.2:40000"), 17),
        server: (server, 18),
    }
}

/// What both sides have sent and received before they have keys, as one of them saw it.
#[derive(Clone)]
struct Said {
    request: Vec<u8>,
    reply: Vec<u8>,
    ends: Ends,
    challenge: Vec<u8>,
    answer: Vec<u8>,
}

impl Said {
    fn transcript(&self) -> Transcript<Host> {
        let mut transcript = Transcript::new(&self.request, &self.reply, &self.ends);
        transcript.add(&self.challenge);
        transcript.add(&self.answer);
        transcript
    }
}

/// Both sides' keys, where the server has `key`, and the client sees what `change` makes of what
/// was said.
fn connect(
    ours: &Secret<Host>,
    theirs: &Secret<Host>,
    change: impl FnOnce(&mut Said),
) -> (Keys<Host>, Keys<Host>) {
    let (client, server) = (share(), share());
    let (of_client, of_server) = (client.point, server.point);
    let said = Said {
        request: vec![1; 32],
        reply: vec![2; 8],
        ends: ends(7420),
        challenge: [&client.nonce[..], &client.point].concat(),
        answer: [&server.nonce[..], &server.point].concat(),
    };
    let mut seen = said.clone();
    change(&mut seen);
    let client = derive(&client, ours, &of_server, &seen.transcript());
    let server = derive(&server, theirs, &of_client, &said.transcript());
    (client.unwrap(), server.unwrap())
}

#[test]
fn both_sides_have_the_same_keys() {
    let (mut client, mut server) = connect(&key(1), &key(1), |_| {});
    assert_eq!(client.check_proof(&server.proof()), Ok(()));
    for message in [&b"login"[..], b"", &[0; 4096]] {
        let tag = client.client.tag(message);
        assert_eq!(server.client.check(message, &tag), Ok(()));
        let tag = server.server.tag(message);
        assert_eq!(client.server.check(message, &tag), Ok(()));
    }
    let ticket = client.tickets.request(&[3; 32], &ends(7420));
    assert_eq!(
        server.tickets.check_request(&[3; 32], &ends(7420), &ticket),
        Ok(())
    );
    let answer = server.tickets.reply(&ticket, &[4; 8], &ends(7420));
    assert_eq!(
        client
            .tickets
            .check_reply(&ticket, &[4; 8], &ends(7420), &answer),
        Ok(())
    );
}

/// Asserts that neither side believes the other.
fn are_strangers((mut client, mut server): (Keys<Host>, Keys<Host>)) {
    assert_eq!(client.check_proof(&server.proof()), Err(Forged));
    let tag = client.client.tag(b"login");
    assert_eq!(server.client.check(b"login", &tag), Err(Forged));
    let tag = server.server.tag(b"granted");
    assert_eq!(client.server.check(b"granted", &tag), Err(Forged));
    let ticket = client.tickets.request(&[3; 32], &ends(7420));
    let checked = server.tickets.check_request(&[3; 32], &ends(7420), &ticket);
    assert_eq!(checked, Err(Forged));
}

#[test]
fn another_key_is_noticed() {
    are_strangers(connect(&key(1), &key(2), |_| {}));
    let mut bytes = [1; KEY_SIZE];
    bytes[31] ^= 0x80;
    are_strangers(connect(&key(1), &secret(bytes), |_| {}));
}

#[test]
fn another_end_is_noticed() {
    are_strangers(connect(&key(1), &key(1), |said| said.ends = ends(7421)));
    are_strangers(connect(&key(1), &key(1), |said| said.ends.client.1 ^= 1));
    are_strangers(connect(&key(1), &key(1), |said| {
        said.ends.server.1 ^= 1 << 31
    }));
    let swap = |said: &mut Said| std::mem::swap(&mut said.ends.client, &mut said.ends.server);
    are_strangers(connect(&key(1), &key(1), swap));
}

/// Where one message ends and the next begins is part of what was said.
#[test]
fn messages_that_were_cut_otherwise_are_noticed() {
    are_strangers(connect(&key(1), &key(1), |said| {
        let moved = said.answer.remove(0);
        said.challenge.push(moved);
    }));
}

#[test]
fn each_connection_has_keys_of_its_own() {
    let (mut one, _) = connect(&key(1), &key(1), |_| {});
    let (_, mut other) = connect(&key(1), &key(1), |_| {});
    assert_eq!(one.check_proof(&other.proof()), Err(Forged));
    let tag = one.client.tag(b"login");
    assert_eq!(other.client.check(b"login", &tag), Err(Forged));
}

/// Returns the keys of an I/O connection: of the client, and of the server.
fn seal_keys(
    keys: &Keys<Host>,
    request: [u8; TAG_SIZE],
    reply: [u8; TAG_SIZE],
) -> [[u8; KEY_SIZE]; 2] {
    let (mut client, mut server) = (Secret::zero(), Secret::zero());
    let both = (&mut client, &mut server);
    keys.tickets.seal_keys(&request, &reply, both);
    [*client.bytes(), *server.bytes()]
}

/// Both sides have the same two keys, and no other connection, direction or session has them.
#[test]
fn each_io_connection_is_sealed_with_keys_of_its_own() {
    let (client, server) = connect(&key(1), &key(1), |_| {});
    let (other, _) = connect(&key(1), &key(1), |_| {});
    let (one, two) = ([1; TAG_SIZE], [2; TAG_SIZE]);
    assert_eq!(seal_keys(&client, one, two), seal_keys(&server, one, two));
    let all = [
        seal_keys(&client, one, two),
        seal_keys(&client, two, one),
        seal_keys(&client, one, one),
        seal_keys(&client, two, two),
        seal_keys(&other, one, two),
    ];
    let different: std::collections::HashSet<_> = all.iter().flatten().collect();
    assert_eq!(different.len(), 2 * all.len());
    assert!(!different.contains(&[0; KEY_SIZE]));
}

/// What one side sends cannot be sent back to it, and a ticket is no tag.
#[test]
fn nothing_can_be_reflected() {
    let (mut client, mut server) = connect(&key(1), &key(1), |_| {});
    let tag = client.client.tag(b"");
    assert_eq!(client.server.check(b"", &tag), Err(Forged));
    assert_eq!(server.check_proof(&tag), Err(Forged));
    let tag = server.server.tag(b"");
    assert_eq!(server.client.check(b"", &tag), Err(Forged));
    let ticket = client.tickets.request(&[], &ends(7420));
    let reply = client.tickets.reply(&ticket, &[], &ends(7420));
    assert_ne!(ticket, reply);
}

#[test]
fn messages_count() {
    let (mut client, mut server) = connect(&key(1), &key(1), |_| {});
    let tags = [0, 1].map(|_| client.client.tag(b"ping"));
    assert_ne!(tags[0], tags[1]);
    // The second one first, and the first one twice.
    assert_eq!(server.client.check(b"ping", &tags[1]), Err(Forged));
    let (mut client, mut server) = connect(&key(1), &key(1), |_| {});
    let tag = client.client.tag(b"ping");
    assert_eq!(server.client.check(b"ping", &tag), Ok(()));
    assert_eq!(server.client.check(b"ping", &tag), Err(Forged));
}

#[test]
fn a_ticket_is_for_one_request() {
    let (client, server) = connect(&key(1), &key(1), |_| {});
    let ticket = client.tickets.request(&[3; 32], &ends(7420));
    let mut other = [3; 32];
    other[10] ^= 1;
    assert_eq!(
        server.tickets.check_request(&other, &ends(7420), &ticket),
        Err(Forged)
    );
    let moved = Ends {
        client: (ends(7420).client.0, 99),
        ..ends(7420)
    };
    assert_eq!(
        server.tickets.check_request(&[3; 32], &moved, &ticket),
        Err(Forged)
    );
    assert_eq!(
        server.tickets.check_request(&[3; 32], &ends(1), &ticket),
        Err(Forged)
    );
}

/// The points of small order (RFC 7748, section 6.1, and those that are equal to them).
#[test]
fn points_of_small_order_are_refused() {
    let p_and = |low: u8| {
        let mut point = [0xff; KEY_SIZE];
        (point[0], point[31]) = (low, 0x7f);
        point
    };
    let one = |byte: u8| {
        let mut point = [0; KEY_SIZE];
        point[0] = byte;
        point
    };
    let order_8 = [
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    ]
    .map(|text| <[u8; KEY_SIZE]>::try_from(hex(text)).unwrap());
    let points = [one(0), one(1), p_and(0xec), p_and(0xed), p_and(0xee)];
    for point in points.into_iter().chain(order_8) {
        let transcript = Transcript::new(&[], &[], &ends(7420));
        let keys = derive(&share(), &key(1), &point, &transcript);
        assert_eq!(keys.err(), Some(WeakPoint), "{point:x?}");
    }
}

#[test]
fn cookies_are_of_one_source_and_not_for_long() {
    let mut cookies = Cookies::<Host>::zero();
    cookies.randomize();
    let (source, other) = ([1; 16], [2; 16]);
    for at in [0, 59_999, 60_000, 1 << 40] {
        let cookie = cookies.cookie(&source, at);
        assert!(cookies.is_right(&source, at, &cookie));
        assert!(cookies.is_right(&source, at + 60_000, &cookie));
        assert!(!cookies.is_right(&source, at + 120_000, &cookie));
        assert!(!cookies.is_right(&other, at, &cookie));
        let mut changed = cookie;
        changed[15] ^= 1;
        assert!(!cookies.is_right(&source, at, &changed));
        assert!(!cookies.is_right(&source, at, &[0; TAG_SIZE]));
    }
    let mut others = Cookies::<Host>::zero();
    others.randomize();
    assert!(!others.is_right(&source, 0, &cookies.cookie(&source, 0)));
}

fn hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The messages have a layout that another implementation can follow: fixed inputs, fixed results.
#[test]
fn golden() {
    RANDOM.set(0);
    let (mut client, server) = connect(&key(1), &key(1), |_| {});
    let all = [
        key_id(&key(1)).0.to_vec(),
        server.proof().to_vec(),
        client.client.tag(b"login").to_vec(),
        client.tickets.request(&[3; 32], &ends(7420)).to_vec(),
    ];
    assert_eq!(all, GOLDEN.map(hex));
}

/// What an implementation in another language gives.
const GOLDEN: [&str; 4] = [
    "f02a152427963f28",
    "0274203e8828ad6cb8fd25d72ff33cb8",
    "e9c19ac3b810cda5f7c16af22e183d17",
    "c056261873bc9b9bbe049da0d053eb28",
];

proptest! {
    /// Whatever bit of what was said is another one for one side, nobody believes anybody.
    #[test]
    fn any_bit_counts(part in 0..4_usize, bit in 0..512_usize) {
        are_strangers(connect(&key(1), &key(1), |said| {
            let bytes = match part {
                0 => &mut said.request,
                1 => &mut said.reply,
                2 => &mut said.challenge,
                _ => &mut said.answer,
            };
            let bit = bit % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        }));
    }

    #[test]
    fn any_bit_of_a_message_counts(message in proptest::collection::vec(any::<u8>(), 0..300), bit: prop::sample::Index) {
        let (mut client, mut server) = connect(&key(1), &key(1), |_| {});
        let mut tagged = [&message[..], &client.client.tag(&message)].concat();
        let bit = bit.index(8 * tagged.len());
        tagged[bit / 8] ^= 1 << (bit % 8);
        let (message, tag) = tagged.split_at(tagged.len() - TAG_SIZE);
        prop_assert_eq!(server.client.check(message, tag.try_into().unwrap()), Err(Forged));
    }
}

/// The text of a key, as another implementation writes it.
fn text_of(key: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let table: Vec<u32> = (0..256u32)
        .map(|byte| (0..8).fold(byte, |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320)))
        .collect();
    let crc = !key.iter().fold(u32::MAX, |crc, byte| {
        table[(crc as u8 ^ byte) as usize] ^ (crc >> 8)
    });
    let coded = [key, &crc.to_le_bytes()].concat();
    let digits = coded.chunks(3).flat_map(|three| {
        let bits = three
            .iter()
            .fold(0, |bits, byte| (bits << 8) | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift) & 63]))
    });
    "farblk1:".chars().chain(digits).collect()
}

#[test]
fn key_text_golden() {
    // Python: base64.b64encode(k + struct.pack("<I", zlib.crc32(k))) with k = bytes(range(32)).
    let text = b"farblk1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR";
    let bytes: [u8; KEY_SIZE] = std::array::from_fn(|at| at as u8);
    assert_eq!(text_of(&bytes).as_bytes(), text);
    assert_eq!(key_id(&parsed(text).unwrap()), key_id(&secret(bytes)));
}

proptest! {
    #[test]
    fn key_text_comes_back(bytes: [u8; KEY_SIZE], at in 0..key::TEXT_SIZE, by in 1u8..=255) {
        let text = text_of(&bytes);
        prop_assert_eq!(text.len(), key::TEXT_SIZE);
        let back = parsed(text.as_bytes()).unwrap();
        prop_assert_eq!(key_id(&back), key_id(&secret(bytes)));
        // One wrong character is found by the CRC, or is no digit.
        let mut wrong = text.clone().into_bytes();
        wrong[at] = wrong[at].wrapping_add(by);
        prop_assert!(parsed(&wrong).is_none());
        for cut in 0..text.len() {
            prop_assert!(parsed(&text.as_bytes()[..cut]).is_none());
        }
        let longer = text + "=";
        prop_assert!(parsed(longer.as_bytes()).is_none());
    }

    #[test]
    fn no_text_panics(text: Vec<u8>) {
        prop_assert!(parsed(&text).is_none());
    }
}
