// SPDX-License-Identifier: GPL-2.0

//! Commands on a queue whose session has a [`Protection`](crate::proto::Protection): the frames in
//! which commands, data and answers travel.

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

use crate::base::errno::{
    EBADMSG,
    ENOTCONN, //
};
use crate::link::{
    cipher::{
        BadFrame,
        Cipher, //
    },
    keys::Forged,
};
use crate::proto::{
    command,
    frame::{
        self,
        Number, //
    },
    response,
    wire::{
        FLAG_INLINE,
        OP_WRITE,
        TAG_SIZE, //
    },
    Malformed, //
};
use crate::rdma::dma::{
    DmaBuffer,
    DmaPiece, //
};

/// The protection of a queue.
pub(super) struct Protected {
    /// Empty until the connection is accepted.
    cipher: SetOnce<Arc<Cipher>>,
    /// The number of the last command with each tag.
    numbers: KVec<Atomic<u64>>,
}

/// A command as it was received, opened if it was a frame.
pub(super) struct Header {
    /// `None` if the queue has no protection.
    pub(super) frame: Option<Frame>,
    pub(super) bytes: [u8; command::SIZE],
    /// The bytes of the command and the data that follow it.
    pub(super) len: u32,
}

/// The frame of a command, as it was opened.
pub(super) struct Frame {
    pub(super) number: Number,
    command: [u8; command::SIZE],
}

impl Frame {
    /// Returns true if the command is a write of data in the client's memory.
    fn names_data(&self) -> bool {
        let [op, flags, ..] = self.command;
        op == OP_WRITE && flags & FLAG_INLINE == 0
    }
}

fn short() -> Malformed {
    Malformed("the frame is shorter than its fixed part")
}

impl Protected {
    /// Makes the protection of a queue of `depth` commands. May sleep.
    pub(super) fn new(depth: u16) -> Result<Self> {
        let mut numbers = KVec::with_capacity(depth.into(), GFP_KERNEL)?;
        for _ in 0..depth {
            numbers.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            cipher: SetOnce::new(),
            numbers,
        })
    }

    /// Sets the cipher, before the first command can come.
    pub(super) fn set_cipher(&self, cipher: Arc<Cipher>) {
        self.cipher.populate(cipher);
    }

    fn cipher(&self) -> Result<&Cipher> {
        self.cipher.as_ref().map(|cipher| &**cipher).ok_or(ENOTCONN)
    }

    /// Opens the frame of `len` bytes that was received in `header` and `data`, where it is. Runs
    /// in the poller's worker.
    pub(super) fn open(
        &self,
        header: &mut DmaBuffer,
        data: &DmaPiece,
        len: u32,
    ) -> Result<Header, BadFrame> {
        let malformed = |_| Malformed("the frame is shorter than its fixed part, or too long");
        // CAST: 72.
        let data_len = len.checked_sub(frame::COMMAND_SIZE as u32);
        let data_len = data_len.ok_or(EINVAL).map_err(malformed)?;
        let cipher = self.cipher().map_err(malformed)?;
        let fixed = header.contents(0, frame::COMMAND_SIZE).map_err(malformed)?;
        cipher.open(&fixed, Some(data.contents(data_len).map_err(malformed)?))?;
        let mut bytes = [0; frame::COMMAND_SIZE];
        header.copy_out(0, &mut bytes).map_err(malformed)?;
        let (body, check) = bytes.split_last_chunk::<TAG_SIZE>().ok_or_else(short)?;
        let (_, command) = body.split_last_chunk().ok_or_else(short)?;
        let frame = Frame {
            number: Number::parse(&bytes)?,
            command: *command,
        };
        if !frame.names_data() && *check != [0; TAG_SIZE] {
            return Err(Malformed("a check of data that the command does not name").into());
        }
        Ok(Header {
            frame: Some(frame),
            bytes: *command,
            // CAST: 32.
            len: data_len + command::SIZE as u32,
        })
    }

    /// Takes note of the number of a command with this tag. Returns false if it is no newer than
    /// the one before. The caller has the tag.
    pub(super) fn note(&self, tag: u16, number: Number) -> bool {
        let last = self.numbers.get(usize::from(tag));
        let newer = last.filter(|last| number.get() > last.load(Relaxed));
        newer
            .inspect(|last| last.store(number.get(), Relaxed))
            .is_some()
    }
}

/// The data of a command, and its answer.
impl Protected {
    /// Keeps the check of a command's data, which was received in `header`, where its answer is
    /// made later. Any context.
    pub(super) fn keep_check(header: &DmaBuffer, answer: &mut DmaBuffer) -> Result {
        let mut check = [0; TAG_SIZE];
        header.copy_out(frame::data_check(frame::COMMAND_SIZE).start, &mut check)?;
        answer.copy_in(frame::data_check(frame::RESPONSE_SIZE).start, &check)
    }

    /// Opens the data of a write that were read from the client's memory. Fails with `EBADMSG` if
    /// they are not those whose check the command had.
    pub(super) fn open_data(
        &self,
        frame: &Frame,
        answer: &mut DmaBuffer,
        data: &DmaPiece,
    ) -> Result {
        let place = frame::data_check(frame::RESPONSE_SIZE);
        let check = answer.contents(place.start, place.len())?;
        let data = data.contents(data.len())?;
        let cipher = self.cipher()?;
        let opened = cipher.open_data(frame.number, &frame.command, &data, &check);
        opened.map_err(|Forged| EBADMSG)
    }

    /// Makes the frame of the answer `bytes`. `data` are sealed with it, or, if they are written to
    /// the client's memory, with the number of their command's frame.
    pub(super) fn seal(
        &self,
        answer: &mut DmaBuffer,
        bytes: &[u8; response::SIZE],
        data: Option<&DmaPiece>,
        written: Option<&Frame>,
    ) -> Result {
        let cipher = self.cipher()?;
        let number = cipher.number()?;
        let fixed = answer.contents(0, frame::RESPONSE_SIZE)?;
        let check = fixed.part(frame::data_check(frame::RESPONSE_SIZE))?;
        fixed
            .part(frame::BODY..frame::RESPONSE_SIZE)?
            .write(bytes)?;
        check.write(&[0; TAG_SIZE])?;
        let data = data.map(|data| data.contents(data.len())).transpose()?;
        match (written, data) {
            (Some(frame), Some(data)) => {
                cipher.seal_data(number, &frame.command, data, &check)?;
                cipher.seal(number, &fixed, None)
            }
            (Some(_), None) => Err(EINVAL),
            (None, data) => cipher.seal(number, &fixed, data),
        }
    }
}
