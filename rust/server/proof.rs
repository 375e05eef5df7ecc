// SPDX-License-Identifier: GPL-2.0

//! The server's answer to a client that asks it to prove that it has a key.

#![forbid(unsafe_code)]

use crate::link::keys::{
    Keys,
    Psk,
    Secret,
    Share,
    Transcript, //
};
use crate::proto::{
    Challenge,
    ChallengeReply,
    Malformed,
    NoRoom,
    Public,
    Refused, //
};

/// The answer to a [`Challenge`].
pub(super) struct Proof {
    reply: [u8; ChallengeReply::SIZE],
    /// The keys of the connection from then on.
    pub(super) keys: Keys,
}

impl Proof {
    /// Proves that the server has `key`. Fails if the client's public value is one that makes the
    /// keys known to everybody.
    ///
    /// A client that names a key which nobody has here, so that `key` is `None`, learns the same as
    /// one that does not have the key which it names: the proof is not the one that it would be.
    pub(super) fn new(
        key: Option<&Psk>,
        sequence: u32,
        (challenge, bytes): (&Challenge, &[u8]),
        mut transcript: Transcript,
    ) -> Result<Self, Refused> {
        let nobodys = Secret::random();
        let secret = key.map_or(&nobodys, |key| &key.secret);
        let share = Share::new();
        let public = Public {
            nonce: share.nonce,
            point: share.point,
        };
        transcript.add(bytes);
        let mut keys = None;
        let mut reply = [0; ChallengeReply::SIZE];
        // Cannot fail: the buffer is as long as the reply.
        let _ = ChallengeReply::encode(&public, sequence, &mut reply, |unproven| {
            transcript.add(unproven);
            let made = share.keys(secret, &challenge.public.point, &transcript);
            let proof = made.as_ref().map_or([0; _], Keys::proof);
            keys = made.ok();
            proof
        });
        match keys {
            Some(keys) => Ok(Self { reply, keys }),
            None => Err(Malformed("the public value is of low order").into()),
        }
    }

    /// Writes the reply into `buf` and returns its length.
    pub(super) fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let room = buf.get_mut(..self.reply.len()).ok_or(NoRoom)?;
        room.copy_from_slice(&self.reply);
        Ok(self.reply.len())
    }
}
