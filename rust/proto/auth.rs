// SPDX-License-Identifier: GPL-2.0

//! Mutual authentication by a key that a client host and a server have in common.
//!
//! On a new control connection the client sends a *challenge*. The server answers with a *proof*
//! that it has the key. From then on each message has a *tag* in each direction, by which the
//! client proves the same with its first one. Each I/O connection is bound to the session by a
//! *ticket*. All of them come from the key, from an X25519 exchange of this connection alone, and
//! from a *transcript* of all that was said before, with both ends of the connection: what somebody
//! in between changes, relays or repeats gives other keys on the two sides.

#![forbid(unsafe_code)]

use super::wire;
use core::fmt;
use core::marker::PhantomData;
use core::net::{IpAddr, SocketAddr};

/// Bytes of a key, of a hash, and of what X25519 takes and gives.
pub const KEY_SIZE: usize = 32;
/// Bytes of the tag of a message, and of a ticket.
pub const TAG_SIZE: usize = wire::TAG_SIZE;

/// The only suite there is: X25519, HMAC-SHA256, tags of 128 bits.
pub const SUITE_X25519_SHA256: u16 = 1 << 0;

/// What the messages of authentication are made of. Nothing here fails or sleeps; all take the same
/// time whatever the secrets are.
pub trait Primitives {
    /// Returns the SHA-256 of `parts`, one after the other (FIPS 180-4).
    fn sha256(parts: &[&[u8]]) -> [u8; KEY_SIZE];
    /// Writes the HMAC-SHA256 of `parts`, one after the other, to `out` (RFC 2104).
    fn hmac_sha256(key: &[u8; KEY_SIZE], parts: &[&[u8]], out: &mut [u8; KEY_SIZE]);
    /// Writes the X25519 of a scalar and a point to `out` (RFC 7748). Returns false if it is zero,
    /// as it is for some points.
    fn x25519(scalar: &[u8; KEY_SIZE], point: &[u8; KEY_SIZE], out: &mut [u8; KEY_SIZE]) -> bool;
    /// Writes the X25519 of a scalar and the base point, whose multiples are the public values, to
    /// `out` (RFC 7748, section 4.1). Returns false if the scalar is zero.
    fn x25519_base(scalar: &[u8; KEY_SIZE], out: &mut [u8; KEY_SIZE]) -> bool;
    /// Returns true if both are equal.
    fn equal(one: &[u8], other: &[u8]) -> bool;
    /// Fills `bytes` with random ones that are fit for secrets.
    fn random(bytes: &mut [u8]);
    /// Overwrites `bytes`, also if nobody reads them any more.
    fn wipe(bytes: &mut [u8]);
}

/// A secret of 256 bits. It can be neither printed nor copied, and is overwritten when it is
/// dropped. A value that is moved may leave a copy where it was: so each one is made of zeroes
/// where it stays, and set there.
pub struct Secret<P: Primitives>([u8; KEY_SIZE], PhantomData<P>);

impl<P: Primitives> Secret<P> {
    /// Makes one of zeroes.
    pub const fn zero() -> Self {
        Self([0; KEY_SIZE], PhantomData)
    }

    /// Makes it random.
    pub fn randomize(&mut self) {
        P::random(&mut self.0);
    }

    /// Returns true if both are the same.
    pub fn is_same(&self, other: &Self) -> bool {
        P::equal(&self.0, &other.0)
    }

    /// Takes the bytes of one, and overwrites them there.
    pub fn set(&mut self, bytes: &mut [u8; KEY_SIZE]) {
        self.0.copy_from_slice(bytes);
        P::wipe(bytes);
    }

    /// Returns the bytes, for a primitive that needs them.
    pub const fn bytes(&self) -> &[u8; KEY_SIZE] {
        &self.0
    }

    /// Sets `derived` to another secret, which does not tell this one.
    fn derive(&self, parts: &[&[u8]], derived: &mut Self) {
        P::hmac_sha256(&self.0, parts, &mut derived.0);
    }

    /// Returns what only those can compute who know the secret.
    fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_SIZE] {
        let mut whole = Self::zero();
        self.derive(parts, &mut whole);
        let mut tag = [0; TAG_SIZE];
        // By reference: a copy of the whole would not be wiped.
        tag.iter_mut()
            .zip(&whole.0)
            .for_each(|(to, from)| *to = *from);
        tag
    }
}

impl<P: Primitives> Drop for Secret<P> {
    fn drop(&mut self) {
        P::wipe(&mut self.0);
    }
}

/// Names a key without telling it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    /// Writes 16 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns the name of a key.
pub fn key_id<P: Primitives>(key: &Secret<P>) -> KeyId {
    let mut id = [0; 8];
    let tag = key.tag(&[b"farblk key id"]);
    id.iter_mut().zip(tag).for_each(|(to, from)| *to = from);
    KeyId(id)
}

/// Both ends of a connection, as both sides see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The client's address, and the number of its queue pair; 0 where the transport has none.
    pub client: (SocketAddr, u32),
    /// The same of the server.
    pub server: (SocketAddr, u32),
}

/// Bytes of one end in a transcript.
const END_SIZE: usize = 22;

fn end((addr, qp_number): (SocketAddr, u32)) -> [u8; END_SIZE] {
    let ip = match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut bytes = [0; END_SIZE];
    let parts = ip.octets().into_iter();
    let parts = parts.chain(addr.port().to_le_bytes());
    let parts = parts.chain(qp_number.to_le_bytes());
    bytes
        .iter_mut()
        .zip(parts)
        .for_each(|(to, from)| *to = from);
    bytes
}

/// All that was said on a connection so far, as a hash.
pub struct Transcript<P: Primitives>([u8; KEY_SIZE], PhantomData<P>);

impl<P: Primitives> Transcript<P> {
    /// Begins one with the private data of the connection request and reply, of which each side
    /// knows what it has sent and received, and the ends of the connection.
    pub fn new(request: &[u8], reply: &[u8], ends: &Ends) -> Self {
        let mut transcript = Self(P::sha256(&[b"farblk transcript"]), PhantomData);
        for part in [request, reply, &end(ends.client), &end(ends.server)] {
            transcript.add(part);
        }
        transcript
    }

    /// Adds a message.
    pub fn add(&mut self, message: &[u8]) {
        // The lengths tell where one ends and the next one begins.
        let length = u64::try_from(message.len()).unwrap_or(u64::MAX);
        self.0 = P::sha256(&[&self.0, &length.to_le_bytes(), message]);
    }
}

/// One side's part of the exchange: what it sends in the clear, and what it keeps.
pub struct Share<P: Primitives> {
    scalar: Secret<P>,
    /// The public value.
    pub point: [u8; KEY_SIZE],
    /// Never the same twice.
    pub nonce: [u8; KEY_SIZE],
}

impl<P: Primitives> Share<P> {
    /// Makes one of zeroes.
    pub const fn zero() -> Self {
        Self {
            scalar: Secret::zero(),
            point: [0; KEY_SIZE],
            nonce: [0; KEY_SIZE],
        }
    }

    /// Makes it random, for a single connection.
    pub fn randomize(&mut self) {
        self.scalar.randomize();
        // A random scalar is not zero. If it were, the point would be zero, which the peer refuses.
        let _ = P::x25519_base(&self.scalar.0, &mut self.point);
        P::random(&mut self.nonce);
    }

    /// Sets `keys` to those of the connection: they come from the common `key`, the public value of
    /// the other side, and the transcript, which has both shares. Fails if the other side has
    /// chosen a value of which the result does not depend on this share.
    pub fn derive(
        &self,
        key: &Secret<P>,
        point: &[u8; KEY_SIZE],
        transcript: &Transcript<P>,
        keys: &mut Keys<P>,
    ) -> Result<(), WeakPoint> {
        let mut shared = Secret::<P>::zero();
        if !P::x25519(&self.scalar.0, point, &mut shared.0) {
            return Err(WeakPoint);
        }
        let mut root = Secret::<P>::zero();
        key.derive(&[&shared.0, &transcript.0], &mut root);
        let tickets = &mut keys.tickets;
        for (label, derived) in [
            ("farblk proof of the server", &mut keys.proof),
            ("farblk messages of the client", &mut keys.client.key),
            ("farblk messages of the server", &mut keys.server.key),
            ("farblk tickets of requests", &mut tickets.request),
            ("farblk tickets of replies", &mut tickets.reply),
            ("farblk data of I/O connections", &mut tickets.data),
        ] {
            root.derive(&[label.as_bytes()], derived);
        }
        Ok(())
    }
}

/// The peer's public value is one of those that make the result of the exchange zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeakPoint;

/// A proof, a tag or a ticket is not what it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// The keys of a connection, and of the I/O connections of its session.
pub struct Keys<P: Primitives> {
    proof: Secret<P>,
    /// Makes and checks the tags of what the client sends.
    pub client: Sender<P>,
    /// The same of what the server sends.
    pub server: Sender<P>,
    /// Makes and checks the tickets of I/O connections.
    pub tickets: Tickets<P>,
}

impl<P: Primitives> Keys<P> {
    /// Makes those of zeroes, which [`Share::derive`] sets.
    pub const fn zero() -> Self {
        Self {
            proof: Secret::zero(),
            client: Sender::zero(),
            server: Sender::zero(),
            tickets: Tickets {
                request: Secret::zero(),
                reply: Secret::zero(),
                data: Secret::zero(),
            },
        }
    }

    /// Returns the proof of the server, for the end of its reply to the challenge.
    pub fn proof(&self) -> [u8; TAG_SIZE] {
        self.proof.tag(&[])
    }

    /// Checks the proof of the server.
    pub fn check_proof(&self, proof: &[u8; TAG_SIZE]) -> Result<(), Forged> {
        check::<P>(&self.proof(), proof)
    }
}

/// Binds I/O connections to their session.
pub struct Tickets<P: Primitives> {
    request: Secret<P>,
    reply: Secret<P>,
    data: Secret<P>,
}

impl<P: Primitives> Tickets<P> {
    /// Returns the ticket of the request for an I/O connection with this private data. Of the
    /// server's end nobody knows the queue pair yet: its number is 0.
    pub fn request(&self, private_data: &[u8], ends: &Ends) -> [u8; TAG_SIZE] {
        self.request
            .tag(&[private_data, &end(ends.client), &end(ends.server)])
    }

    /// Checks the ticket of such a request.
    pub fn check_request(
        &self,
        private_data: &[u8],
        ends: &Ends,
        ticket: &[u8; TAG_SIZE],
    ) -> Result<(), Forged> {
        check::<P>(&self.request(private_data, ends), ticket)
    }

    /// Returns the ticket of the reply to the request that had the ticket `request`.
    pub fn reply(
        &self,
        request: &[u8; TAG_SIZE],
        private_data: &[u8],
        ends: &Ends,
    ) -> [u8; TAG_SIZE] {
        let (client, server) = (end(ends.client), end(ends.server));
        self.reply.tag(&[request, private_data, &client, &server])
    }

    /// Sets `client` and `server` to the keys by which these sides seal what they send on the I/O
    /// connection that was made with these tickets. No two connections have the same keys: that of
    /// the reply is made of both queue pairs, and of what is new for each session.
    pub fn seal_keys(
        &self,
        request: &[u8; TAG_SIZE],
        reply: &[u8; TAG_SIZE],
        (client, server): (&mut Secret<P>, &mut Secret<P>),
    ) {
        self.data.derive(&[b"client", request, reply], client);
        self.data.derive(&[b"server", request, reply], server);
    }

    /// Checks the ticket of such a reply.
    pub fn check_reply(
        &self,
        request: &[u8; TAG_SIZE],
        private_data: &[u8],
        ends: &Ends,
        ticket: &[u8; TAG_SIZE],
    ) -> Result<(), Forged> {
        check::<P>(&self.reply(request, private_data, ends), ticket)
    }
}

/// Makes cookies: who shows one has received what was sent to its address, not long ago.
pub struct Cookies<P: Primitives>(Secret<P>);

/// How long a cookie is right at least, in ms; it is at most twice as long.
const COOKIE_MS: u64 = 60_000;

impl<P: Primitives> Cookies<P> {
    /// Makes those of zeroes.
    pub const fn zero() -> Self {
        Self(Secret::zero())
    }

    /// Makes them such that nobody else can.
    pub fn randomize(&mut self) {
        self.0.randomize();
    }

    /// Returns the cookie of a source at `now_ms`.
    pub fn cookie(&self, source: &[u8], now_ms: u64) -> [u8; TAG_SIZE] {
        self.of(source, now_ms / COOKIE_MS)
    }

    /// Returns true if `cookie` is one of `source`, and not too old.
    pub fn is_right(&self, source: &[u8], now_ms: u64, cookie: &[u8; TAG_SIZE]) -> bool {
        let period = now_ms / COOKIE_MS;
        let is_of = |period| P::equal(&self.of(source, period), cookie);
        is_of(period) || period.checked_sub(1).is_some_and(is_of)
    }

    fn of(&self, source: &[u8], period: u64) -> [u8; TAG_SIZE] {
        self.0.tag(&[source, &period.to_le_bytes()])
    }
}

/// One direction of a control connection.
pub struct Sender<P: Primitives> {
    key: Secret<P>,
    /// The number of the next message.
    next: u64,
}

impl<P: Primitives> Sender<P> {
    const fn zero() -> Self {
        Self {
            key: Secret::zero(),
            next: 0,
        }
    }

    /// Returns the tag of the next message.
    pub fn tag(&mut self, message: &[u8]) -> [u8; TAG_SIZE] {
        let number = self.next;
        // A connection does not live that long.
        self.next = number.wrapping_add(1);
        self.key.tag(&[&number.to_le_bytes(), message])
    }

    /// Checks the tag of the next message. After a failure the connection has to end.
    pub fn check(&mut self, message: &[u8], tag: &[u8; TAG_SIZE]) -> Result<(), Forged> {
        check::<P>(&self.tag(message), tag)
    }
}

fn check<P: Primitives>(wanted: &[u8; TAG_SIZE], have: &[u8; TAG_SIZE]) -> Result<(), Forged> {
    match P::equal(wanted, have) {
        true => Ok(()),
        false => Err(Forged),
    }
}
