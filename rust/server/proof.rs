// SPDX-License-Identifier: GPL-2.0

//! The server's answer to a client that asks it to prove that it has a key.

#![forbid(unsafe_code)]

use kernel::prelude::*;

use crate::link::keys::{
    Keys,
    Psk,
    Secret,
    Share,
    Transcript,
    WeakPoint, //
};
use crate::proto::{
    Challenge,
    ChallengeReply,
    Malformed,
    NoRoom,
    Public,
    Refusal,
    Refused, //
};

/// The answer to a [`Challenge`].
pub(super) struct Proof {
    reply: [u8; ChallengeReply::SIZE],
    /// The keys of the connection from then on.
    pub(super) keys: KBox<Keys>,
}

impl Proof {
    /// Proves that the server has `key`. Fails if the client's public value is one that makes the
    /// keys known to everybody, or for want of memory. May sleep.
    ///
    /// A client that names a key which nobody has here, so that `key` is `None`, learns the same as
    /// one that does not have the key which it names: the proof is not the one that it would be.
    pub(super) fn new(
        key: Option<&Psk>,
        sequence: u32,
        (challenge, bytes): (&Challenge, &[u8]),
        mut transcript: Transcript,
    ) -> Result<Self, Refused> {
        let mut nobodys = Secret::zero();
        nobodys.randomize();
        let secret = key.map_or(&nobodys, |key| &key.secret);
        let mut share = Share::zero();
        share.randomize();
        let public = Public {
            nonce: share.nonce,
            point: share.point,
        };
        let keys = KBox::new(Keys::zero(), GFP_KERNEL);
        let mut keys = keys.map_err(|_| Refused::from(Refusal::NoMemory))?;
        transcript.add(bytes);
        let mut derived = Ok(());
        let mut reply = [0; ChallengeReply::SIZE];
        // Cannot fail: the buffer is as long as the reply.
        let _ = ChallengeReply::encode(&public, sequence, &mut reply, |unproven| {
            transcript.add(unproven);
            derived = share.derive(secret, &challenge.public.point, &transcript, &mut keys);
            keys.proof()
        });
        match derived {
            Ok(()) => Ok(Self { reply, keys }),
            Err(WeakPoint) => Err(Malformed("the public value is of low order").into()),
        }
    }

    /// Writes the reply into `buf` and returns its length.
    pub(super) fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let room = buf.get_mut(..self.reply.len()).ok_or(NoRoom)?;
        room.copy_from_slice(&self.reply);
        Ok(self.reply.len())
    }
}
