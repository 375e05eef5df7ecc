// SPDX-License-Identifier: GPL-2.0

//! What an I/O connection has in addition if its session has a
//! [`Protection`](crate::proto::Protection): its cipher, and what it has to remember of each
//! command.
//!
//! A write is sealed in memory that no device accesses, and then copied to a bounce buffer, so that
//! what the server reads is what was sealed. The server writes the data of a read to a bounce
//! buffer; they are copied when it has no access any more, and opened in that copy. So nobody sees
//! or changes what is not sealed, even if a device lets accesses that are under way go on when it
//! takes away the right to them.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc,
    SetOnce, //
};

use crate::base::{
    bounce::Bounced,
    errno::{
        EBADMSG,
        ENOTCONN, //
    },
    scatterlist::Segmented, //
};
use crate::link::{
    cipher::{
        BadFrame,
        Cipher, //
    },
    keys::Forged, //
};
use crate::proto::{
    command,
    frame::{
        self,
        Number, //
    },
    response,
    wire::TAG_SIZE,
    Malformed,
    Operation, //
};
use crate::rdma::dma::DmaBuffer;

/// The command of one tag.
struct Sent {
    /// The command itself, with which the check of the data is computed.
    command: [Atomic<u64>; command::SIZE / 8],
    /// 1 if it lets the server write data to our memory, else 0.
    reads_remotely: Atomic<u32>,
    /// The number of the answer, or of that to the last command.
    number: Atomic<u64>,
    /// The check of the data that the server has written to our memory.
    check: [Atomic<u64>; TAG_SIZE / 8],
}

/// An answer that was opened.
pub(super) struct Opened {
    number: Number,
    /// The response.
    pub(super) response: [u8; response::SIZE],
    check: [u8; TAG_SIZE],
    /// The number of bytes of data that follow it.
    pub(super) data: u32,
}

/// The protection of a connection.
pub(in crate::client) struct Protected {
    /// Empty until the connection is made.
    cipher: SetOnce<Arc<Cipher>>,
    /// The index is the tag.
    sent: KVec<Sent>,
}

impl Protected {
    /// Makes the protection of a connection of `depth` commands. May sleep.
    pub(in crate::client) fn new(depth: u16) -> Result<Self> {
        let mut sent = KVec::with_capacity(depth.into(), GFP_KERNEL)?;
        for _ in 0..depth {
            let zeroes = Sent {
                command: [const { Atomic::new(0) }; command::SIZE / 8],
                reads_remotely: Atomic::new(0),
                number: Atomic::new(0),
                check: [const { Atomic::new(0) }; TAG_SIZE / 8],
            };
            sent.push(zeroes, GFP_KERNEL)?;
        }
        Ok(Self {
            cipher: SetOnce::new(),
            sent,
        })
    }

    /// Sets the cipher. No command may have been posted yet.
    pub(in crate::client) fn set_cipher(&self, cipher: Arc<Cipher>) {
        self.cipher.populate(cipher);
    }

    /// Makes a frame of a command in `message`, and seals the data that it writes. Any context but
    /// hard interrupt.
    pub(super) fn seal<M: Segmented>(
        &self,
        tag: u16,
        message: &mut DmaBuffer,
        command: &[u8; command::SIZE],
        operation: &Operation,
        memory: &Bounced<M>,
    ) -> Result {
        let cipher = self.cipher.as_ref().ok_or(ENOTCONN)?;
        let sent = self.sent.get(usize::from(tag)).ok_or(EINVAL)?;
        store(&sent.command, command);
        let reads = matches!(operation, Operation::Read { .. }) && operation.remote().is_some();
        sent.reads_remotely.store(reads.into(), Relaxed);
        let number = cipher.number()?;
        let fixed = message.contents(0, frame::COMMAND_SIZE)?;
        let check = fixed.part(frame::data_check(frame::COMMAND_SIZE))?;
        fixed.part(frame::BODY..check_start())?.write(command)?;
        check.write(&[0; TAG_SIZE])?;
        let Operation::Write { .. } = operation else {
            return cipher.seal(number, &fixed, None);
        };
        let buffer = memory.buffer().ok_or(EINVAL)?;
        memory.copy_in()?;
        match operation.remote() {
            None => cipher.seal(number, &fixed, Some(buffer.private()))?,
            Some(_) => {
                cipher.seal_data(number, command, buffer.private(), &check)?;
                cipher.seal(number, &fixed, None)?;
            }
        }
        buffer.publish()
    }

    /// Opens the answer of `len` bytes in `buffer`. Any context but hard interrupt.
    pub(super) fn open(&self, buffer: &mut DmaBuffer, len: u32) -> Result<Opened, BadFrame> {
        let short = |_| Malformed("the frame is shorter than its fixed part");
        let cipher = self.cipher.as_ref();
        let cipher = cipher.ok_or(Malformed("an answer before the connection is made"))?;
        // CAST: A u32 fits a usize on every platform with RDMA.
        let whole = buffer.contents(0, len as usize).map_err(short)?;
        let fixed = whole.part(0..frame::RESPONSE_SIZE).map_err(short)?;
        let data = whole.part(frame::RESPONSE_SIZE..whole.len());
        let data = data.map_err(short)?;
        // CAST: It is at most `len`.
        let data_len = data.len() as u32;
        let number = cipher.open(&fixed, Some(data))?;
        let mut opened = Opened {
            number,
            response: [0; response::SIZE],
            check: [0; TAG_SIZE],
            data: data_len,
        };
        let (body, check) = (
            fixed.part(frame::BODY..fixed.len()),
            fixed.part(frame::data_check(frame::RESPONSE_SIZE)),
        );
        body.and_then(|body| body.read(&mut opened.response))
            .and_then(|()| check?.read(&mut opened.check))
            .map_err(short)?;
        Ok(opened)
    }

    /// Takes note of an answer to the command of `tag`, which is done if it is `ok`. Fails if the
    /// answer is no newer than the one before.
    pub(super) fn note(&self, tag: u16, answer: &Opened, ok: bool) -> Result<(), Malformed> {
        let sent = self.sent.get(usize::from(tag));
        let sent = sent.ok_or(Malformed("a response to a tag beyond the depth"))?;
        if answer.number.get() <= sent.number.load(Relaxed) {
            return Err(Malformed("an answer is no newer than one before it"));
        }
        let has_written = ok && sent.reads_remotely.load(Relaxed) != 0;
        if !has_written && answer.check != [0; TAG_SIZE] {
            return Err(Malformed("a check of data that were not asked for"));
        }
        sent.number.store(answer.number.get(), Relaxed);
        store(&sent.check, &answer.check);
        Ok(())
    }

    /// Opens the data that the server has written for the command of `tag`, and copies them to the
    /// memory that they are for. The server must have no access any more. `message` is overwritten.
    /// Fails with `EBADMSG` if the data are not those whose check the answer had. Any context but
    /// hard interrupt.
    pub(super) fn open_data<M: Segmented>(
        &self,
        tag: u16,
        message: &mut DmaBuffer,
        memory: &Bounced<M>,
    ) -> Result {
        let sent = self.sent.get(usize::from(tag)).ok_or(EINVAL)?;
        let cipher = self.cipher.as_ref().ok_or(EINVAL)?;
        let number = Number::new(sent.number.load(Relaxed)).map_err(|_| EINVAL)?;
        let buffer = memory.buffer().ok_or(EINVAL)?;
        buffer.fetch()?;
        let check = message.contents(0, TAG_SIZE)?;
        check.write(&load::<_, TAG_SIZE>(&sent.check))?;
        cipher
            .open_data(number, &load(&sent.command), &buffer.private(), &check)
            .map_err(|Forged| EBADMSG)?;
        memory.copy_out()
    }
}

/// Where the command in a frame ends.
const fn check_start() -> usize {
    frame::data_check(frame::COMMAND_SIZE).start
}

/// Stores bytes in words.
fn store<const WORDS: usize, const BYTES: usize>(
    words: &[Atomic<u64>; WORDS],
    bytes: &[u8; BYTES],
) {
    for (word, chunk) in words.iter().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        word.store(u64::from_le_bytes(eight), Relaxed);
    }
}

/// Returns the bytes that [`store`] has stored.
fn load<const WORDS: usize, const BYTES: usize>(words: &[Atomic<u64>; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
    }
    bytes
}
