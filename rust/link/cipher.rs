// SPDX-License-Identifier: GPL-2.0

//! The cipher of an I/O connection: makes and checks the frames and data of one whose session has a
//! [`Protection`].

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc,
    UniqueArc, //
};

use crate::base::{
    contents::Contents,
    crypto, //
};
use crate::link::{
    channel::Side,
    keys::{
        Forged,
        Secret,
        Tickets, //
    },
};
use crate::proto::{
    command,
    frame::{
        self,
        Number, //
    },
    handshake::Ticket,
    wire::TAG_SIZE,
    Malformed,
    Protection, //
};

const _: () = assert!(TAG_SIZE == crypto::TAG_SIZE);

/// What is wrong with a frame.
pub(crate) enum BadFrame {
    /// The check is not that of the frame: somebody has changed or made it.
    Forged,
    /// The peer has made it, and breaks the protocol.
    Malformed(Malformed),
}

impl From<Malformed> for BadFrame {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Forged> for BadFrame {
    fn from(Forged: Forged) -> Self {
        Self::Forged
    }
}

/// The keys of a sealed connection.
struct SealKeys {
    send: Secret,
    receive: Secret,
}

/// Makes and checks frames.
pub(crate) struct Cipher {
    /// `None` if frames have checksums only.
    keys: Option<SealKeys>,
    /// The number of the next frame that is sent.
    next: Atomic<u64>,
}

impl Cipher {
    /// Makes the cipher of a connection of `side` that was made with these tickets: first that of
    /// the request, then that of the reply. Without tickets there are no keys. Fails with `EINVAL`
    /// if the protection needs keys; `None` if there is no protection. May sleep.
    pub(crate) fn new(
        protection: Protection,
        side: Side,
        tickets: Option<(&Tickets, &Ticket, &Ticket)>,
    ) -> Result<Option<Arc<Self>>> {
        let keys = match protection {
            Protection::None => return Ok(None),
            Protection::Digest => None,
            Protection::Seal => Some(SealKeys {
                send: Secret::zero(),
                receive: Secret::zero(),
            }),
        };
        let next = Atomic::new(1);
        let mut this = UniqueArc::new(Self { keys, next }, GFP_KERNEL)?;
        // They are set where they lie: a copy would not be wiped.
        if let Some(SealKeys { send, receive }) = &mut this.keys {
            let (tickets, request, reply) = tickets.ok_or(EINVAL)?;
            let keys = match side {
                Side::Client => (send, receive),
                Side::Server => (receive, send),
            };
            tickets.seal_keys(request, reply, keys);
        }
        Ok(Some(this.into()))
    }

    /// Returns the number of a frame to send, which no other has. Any context.
    pub(crate) fn number(&self) -> Result<Number> {
        // A connection does not live as long as that there are not enough.
        Number::new(self.next.fetch_add(1, Relaxed)).map_err(|_| EOVERFLOW)
    }

    /// Makes a frame: `fixed` is its fixed part, of which the body has been written, and `data`
    /// follow it. Any context but hard interrupt.
    pub(crate) fn seal(
        &self,
        number: Number,
        fixed: &Contents<'_>,
        data: Option<Contents<'_>>,
    ) -> Result {
        fixed.write(&number.to_bytes())?;
        let check = fixed.part(frame::CHECK)?;
        let body = Body::of(fixed, data)?;
        match &self.keys {
            Some(keys) => crypto::seal(
                body.pieces(),
                &check,
                &[],
                number.nonce(),
                keys.send.bytes(),
            ),
            None => check.write(&body.digest(&[&number.to_bytes()])),
        }
    }

    /// Checks a frame that was received, and decrypts its body if it is sealed. Returns its number.
    /// Any context but hard interrupt.
    pub(crate) fn open(
        &self,
        fixed: &Contents<'_>,
        data: Option<Contents<'_>>,
    ) -> Result<Number, BadFrame> {
        let short = |_| Malformed("the frame is shorter than its fixed part");
        let mut number = [0; 8];
        fixed.read(&mut number).map_err(short)?;
        let number = Number::parse(&number)?;
        let check = fixed.part(frame::CHECK).map_err(short)?;
        let body = Body::of(fixed, data).map_err(short)?;
        match &self.keys {
            Some(keys) => {
                let key = keys.receive.bytes();
                crypto::open(body.pieces(), &check, &[], number.nonce(), key).map_err(forged)?;
            }
            None => compare(&check, &body.digest(&[&number.to_bytes()]))?,
        }
        Ok(number)
    }

    /// Seals data that go to the peer's memory, or are read from ours, for the frame `number` with
    /// this command or with the response to it, and writes their check to `check`. Any context but
    /// hard interrupt.
    pub(crate) fn seal_data(
        &self,
        number: Number,
        command: &[u8; command::SIZE],
        data: Contents<'_>,
        check: &Contents<'_>,
    ) -> Result {
        match &self.keys {
            Some(keys) => crypto::seal(
                &[data],
                check,
                command,
                number.data_nonce(),
                keys.send.bytes(),
            ),
            None => {
                let crc = crypto::crc32c(&[&number.data_nonce().to_le_bytes(), command], &[data]);
                check.write(&frame::digest(crc))
            }
        }
    }

    /// Checks, and if they are sealed decrypts, data that have come from the peer's memory, or that
    /// it has written to ours. Nobody may write them any more. Any context but hard interrupt.
    pub(crate) fn open_data(
        &self,
        number: Number,
        command: &[u8; command::SIZE],
        data: &Contents<'_>,
        check: &Contents<'_>,
    ) -> Result<(), Forged> {
        match &self.keys {
            Some(keys) => crypto::open(
                core::slice::from_ref(data),
                check,
                command,
                number.data_nonce(),
                keys.receive.bytes(),
            )
            .map_err(forged),
            None => {
                let crc = crypto::crc32c(
                    &[&number.data_nonce().to_le_bytes(), command],
                    core::slice::from_ref(data),
                );
                compare(check, &frame::digest(crc))
            }
        }
    }
}

/// The body of a frame: what its fixed part has of it, and the data.
struct Body<'a>([Contents<'a>; 2]);

impl<'a> Body<'a> {
    fn of(fixed: &Contents<'a>, data: Option<Contents<'a>>) -> Result<Self> {
        let end = fixed.len();
        let nothing = fixed.part(end..end)?;
        Ok(Self([
            fixed.part(frame::BODY..end)?,
            data.unwrap_or(nothing),
        ]))
    }

    fn pieces(&self) -> &[Contents<'a>] {
        &self.0
    }

    fn digest(&self, head: &[&[u8]]) -> [u8; TAG_SIZE] {
        frame::digest(crypto::crc32c(head, self.pieces()))
    }
}

fn forged(_: Error) -> Forged {
    Forged
}

fn compare(check: &Contents<'_>, wanted: &[u8; TAG_SIZE]) -> Result<(), Forged> {
    let mut have = [0; TAG_SIZE];
    check.read(&mut have).map_err(forged)?;
    match have == *wanted {
        true => Ok(()),
        false => Err(Forged),
    }
}
