// SPDX-License-Identifier: GPL-2.0

//! What an I/O connection has in addition if its session has a
//! [`Protection`](crate::proto::Protection).

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

use crate::base::errno::ENOTCONN;
use crate::link::cipher::{
    BadFrame,
    Cipher, //
};
use crate::proto::{
    command,
    frame::{
        self,
        Number, //
    },
    wire::{
        FLAG_INLINE,
        OP_WRITE,
        TAG_SIZE, //
    },
    Malformed, //
};
use crate::server::block::recv::Recv;

/// A command that was received, as it is on the wire.
pub(super) struct Header {
    /// The number of its frame, if the connection has a protection.
    pub(super) number: Option<Number>,
    /// The command.
    pub(super) bytes: [u8; command::SIZE],
    /// The bytes of the command and the data that follow it.
    pub(super) len: u32,
}

/// The protection of a connection.
pub(super) struct Protected {
    /// Empty until the connection is accepted.
    cipher: SetOnce<Arc<Cipher>>,
    /// The number of the last command with each tag.
    numbers: KVec<Atomic<u64>>,
}

/// A frame with a command, as it was opened.
pub(super) struct Frame {
    /// Its number.
    pub(super) number: Number,
    /// The command.
    pub(super) command: [u8; command::SIZE],
    /// The check of the data in the client's memory.
    pub(super) check: [u8; TAG_SIZE],
}

impl Frame {
    /// Reads the opened frame at the start of a receive.
    pub(super) fn read(recv: &Recv) -> Result<Self, Malformed> {
        let short = || Malformed("the frame is shorter than its fixed part");
        let mut bytes = [0; frame::COMMAND_SIZE];
        let copied = recv.header.copy_out(0, &mut bytes);
        copied.map_err(|_| short())?;
        let (body, check) = bytes.split_last_chunk().ok_or_else(short)?;
        let (_, command) = body.split_last_chunk().ok_or_else(short)?;
        Ok(Self {
            number: Number::parse(&bytes)?,
            command: *command,
            check: *check,
        })
    }

    /// Returns true if the command is a write of data in the client's memory.
    fn names_data(&self) -> bool {
        let [op, flags, ..] = self.command;
        op == OP_WRITE && flags & FLAG_INLINE == 0
    }
}

impl Protected {
    /// Makes the protection of a connection of `depth` commands. May sleep.
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

    /// Returns the cipher of a connection that is accepted.
    pub(super) fn cipher(&self) -> Result<&Cipher> {
        self.cipher.as_ref().map(|cipher| &**cipher).ok_or(ENOTCONN)
    }

    /// Opens the frame of `len` bytes that was received, where it is. Runs in the poller's worker.
    pub(super) fn open(&self, recv: &mut Recv, len: u32) -> Result<Header, BadFrame> {
        let malformed = |_| Malformed("the frame is shorter than its fixed part, or too long");
        // CAST: 72.
        let data = len.checked_sub(frame::COMMAND_SIZE as u32);
        let data = data.ok_or(EINVAL).map_err(malformed)?;
        let Recv {
            header,
            data: memory,
            ..
        } = recv;
        let cipher = self.cipher().map_err(malformed)?;
        let fixed = header.contents(0, frame::COMMAND_SIZE).map_err(malformed)?;
        cipher.open(&fixed, Some(memory.contents(data).map_err(malformed)?))?;
        let frame = Frame::read(recv)?;
        if !frame.names_data() && frame.check != [0; TAG_SIZE] {
            return Err(Malformed("a check of data that the command does not name").into());
        }
        Ok(Header {
            number: Some(frame.number),
            bytes: frame.command,
            // CAST: 32.
            len: data + command::SIZE as u32,
        })
    }

    /// Takes note of the number of a command with this tag. Returns false if it is no newer than
    /// the one before. Runs in the poller's worker.
    pub(super) fn note(&self, tag: u16, number: Number) -> bool {
        let last = self.numbers.get(usize::from(tag));
        let newer = last.filter(|last| number.get() > last.load(Relaxed));
        newer
            .inspect(|last| last.store(number.get(), Relaxed))
            .is_some()
    }
}
