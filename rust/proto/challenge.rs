// SPDX-License-Identifier: GPL-2.0

//! The challenge: a client asks the server to prove that it has a key, and both exchange public
//! values. See [`auth`](super::auth).

#![forbid(unsafe_code)]

use super::auth::{KeyId, KEY_SIZE, SUITE_X25519_SHA256};
use super::message::{granted, header, write, Message, NoRoom, ReplyError};
use super::refusal::Malformed;
use super::wire::{self, TAG_SIZE};
use core::mem::size_of;

/// What each side sends of its [`Share`](super::auth::Share).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Public {
    /// Random, and never the same twice.
    pub nonce: [u8; KEY_SIZE],
    /// The public value.
    pub point: [u8; KEY_SIZE],
}

/// The first message of a client that has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Names the key.
    pub key_id: KeyId,
    /// The client's part of the exchange.
    pub public: Public,
}

impl Challenge {
    /// Writes the message, which offers all suites that this code knows, into `buf` and returns its
    /// length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Challenge {
            header: header(wire::CHALLENGE, sequence, size_of::<wire::Challenge>()),
            suites: SUITE_X25519_SHA256.into(),
            reserved: [0; 6],
            key_id: self.key_id.0,
            nonce: self.public.nonce,
            point: self.public.point,
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::Challenge) -> Result<Self, Malformed> {
        if wire.suites.get() & SUITE_X25519_SHA256 == 0 {
            return Err(Malformed("no suite in common"));
        }
        Ok(Self {
            key_id: KeyId(wire.key_id),
            public: Public {
                nonce: wire.nonce,
                point: wire.point,
            },
        })
    }
}

/// The server's answer to a [`Challenge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeReply {
    /// The server's part of the exchange.
    pub public: Public,
    /// Shows that the server has the key.
    pub proof: [u8; TAG_SIZE],
}

impl ChallengeReply {
    /// Bytes of the reply.
    pub const SIZE: usize = size_of::<wire::ChallengeReply>();

    /// Writes the reply into `buf` and returns its length. `prove` gets all of it up to the proof,
    /// and returns the proof.
    pub fn encode(
        public: &Public,
        sequence: u32,
        buf: &mut [u8],
        prove: impl FnOnce(&[u8]) -> [u8; TAG_SIZE],
    ) -> Result<usize, NoRoom> {
        let wire = wire::ChallengeReply {
            reply: granted(wire::CHALLENGE, sequence, Self::SIZE),
            suite: SUITE_X25519_SHA256.into(),
            reserved: [0; 6],
            nonce: public.nonce,
            point: public.point,
            proof: [0; TAG_SIZE],
        };
        let written = write(&wire, buf)?;
        let message = buf.get_mut(..written).ok_or(NoRoom)?;
        let (unproven, proof) = message.split_last_chunk_mut().ok_or(NoRoom)?;
        *proof = prove(unproven);
        Ok(written)
    }

    /// Parses the reply to a challenge with this `sequence`. Returns it with all that comes before
    /// the proof.
    pub fn parse(bytes: &[u8], sequence: u32) -> Result<(Self, &[u8]), ReplyError> {
        let message = Message::parse(bytes)?;
        message.granted(wire::CHALLENGE, sequence)?;
        let wire: wire::ChallengeReply = message.whole()?;
        if wire.suite.get() != SUITE_X25519_SHA256 {
            return Err(Malformed("the server chose a suite that was not offered").into());
        }
        let reply = Self {
            public: Public {
                nonce: wire.nonce,
                point: wire.point,
            },
            proof: wire.proof,
        };
        let unproven = bytes.split_last_chunk::<TAG_SIZE>();
        Ok((reply, unproven.map_or(bytes, |(unproven, _)| unproven)))
    }
}
