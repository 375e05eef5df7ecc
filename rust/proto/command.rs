// SPDX-License-Identifier: GPL-2.0

//! Commands: the requests of a client to a `block` export.

#![forbid(unsafe_code)]

use super::extent::Extent;
use super::limits::BlockLimits;
use super::message::{write, NoRoom};
use super::persistent::{Reserve, REPORT_SIZE};
use super::refusal::Malformed;
use super::response::{Response, Status};
use super::wire;
use core::fmt;
use core::mem::size_of;
use zerocopy::little_endian::{U32, U64};
use zerocopy::FromBytes;

/// Length of a command without inline data, in bytes.
pub const SIZE: usize = size_of::<wire::Command>();

/// The limits on which the two sides agreed at login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of commands in flight per I/O connection. Tags are less than this.
    pub depth: u16,
    /// Maximum size of the data in a message, in bytes.
    pub inline_size: u32,
    /// Limits of one I/O.
    pub limits: BlockLimits,
}

/// A range of the export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Memory of the client, with the length of its span. It ends within the 64-bit address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// How the data of a read or write is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// In a message: directly behind the command, or as its response.
    Inline,
    /// By RDMA READ or WRITE of the server in the memory of the client.
    Remote(Remote),
}

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads from the export.
    Read {
        /// Range of the export.
        span: Span,
        /// How the data reaches the client.
        to: Transfer,
    },
    /// Writes to the export.
    Write {
        /// Range of the export.
        span: Span,
        /// How the data reaches the server.
        from: Transfer,
        /// Force unit access: the data is on stable media before the response.
        fua: bool,
        /// After a failure, all of it or nothing is on the device.
        atomic: bool,
    },
    /// Flushes the write cache: all writes with an earlier response become stable.
    Flush,
    /// Discards the contents.
    Discard {
        /// Range of the export.
        span: Span,
    },
    /// Sets the contents to zeroes.
    WriteZeroes {
        /// Range of the export.
        span: Span,
        /// True if the blocks must stay allocated.
        no_unmap: bool,
    },
    /// Erases the contents so that they, and copies of them that the device has made, cannot be got
    /// back.
    SecureErase {
        /// Range of the export.
        span: Span,
    },
    /// Changes the persistent reservation.
    Reserve {
        /// The change.
        reserve: Reserve,
        /// Tells it from earlier changes of the client; the same when it is sent again.
        token: u32,
    },
    /// Reads the persistent reservation: the data of the answer are a [`Report`].
    ///
    /// [`Report`]: super::Report
    Report,
}

impl Operation {
    /// Returns the range of the export; a flush has none, nor has what concerns reservations.
    pub fn span(&self) -> Option<Span> {
        match *self {
            Self::Read { span, .. }
            | Self::Write { span, .. }
            | Self::Discard { span }
            | Self::WriteZeroes { span, .. }
            | Self::SecureErase { span } => Some(span),
            Self::Flush | Self::Reserve { .. } | Self::Report => None,
        }
    }

    /// Returns the memory of the client that the server reads or writes by RDMA.
    pub fn remote(&self) -> Option<Remote> {
        match *self {
            Self::Read {
                to: Transfer::Remote(remote),
                ..
            }
            | Self::Write {
                from: Transfer::Remote(remote),
                ..
            } => Some(remote),
            _ => None,
        }
    }

    /// Returns the number of bytes of data that the response message consists of.
    pub fn answer_len(&self) -> u32 {
        match self {
            Self::Read {
                span,
                to: Transfer::Inline,
            } => span.len,
            // CAST: 272.
            Self::Report => REPORT_SIZE as u32,
            _ => 0,
        }
    }
}

/// The reason why a command is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// The command is malformed: the connection must be closed.
    Malformed(Malformed),
    /// The command is well formed, but cannot be done: the response (without the credit), and the
    /// reason in words.
    Refused(Response, &'static str),
}

impl From<Malformed> for CommandError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "malformed command: {malformed}"),
            Self::Refused(_, why) => f.write_str(why),
        }
    }
}

/// A command of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Identifies the command among those in flight; less than the depth.
    pub tag: u16,
    /// Distinguishes the command from earlier ones with the same tag.
    pub generation: u32,
    /// True if the client held back commands because it had no credit left.
    pub pressed: bool,
    /// The operation.
    pub operation: Operation,
}

impl Command {
    /// Writes the command without inline data into `buf` and returns its length, [`SIZE`].
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let mut flags = match self.pressed {
            true => wire::FLAG_PRESSED,
            false => 0,
        };
        let op = match self.operation {
            Operation::Read { to, .. } => {
                if to == Transfer::Inline {
                    flags |= wire::FLAG_INLINE;
                }
                wire::OP_READ
            }
            Operation::Write {
                from, fua, atomic, ..
            } => {
                if fua {
                    flags |= wire::FLAG_FUA;
                }
                if atomic {
                    flags |= wire::FLAG_ATOMIC;
                }
                if from == Transfer::Inline {
                    flags |= wire::FLAG_INLINE;
                }
                wire::OP_WRITE
            }
            Operation::Flush => wire::OP_FLUSH,
            Operation::Discard { .. } => wire::OP_DISCARD,
            Operation::WriteZeroes { no_unmap, .. } => {
                if no_unmap {
                    flags |= wire::FLAG_NO_UNMAP;
                }
                wire::OP_WRITE_ZEROES
            }
            Operation::SecureErase { .. } => wire::OP_SECURE_ERASE,
            Operation::Reserve { .. } => wire::OP_RESERVE,
            Operation::Report => wire::OP_REPORT,
        };
        let (offset, len) = self
            .operation
            .span()
            .map_or((U64::ZERO, U32::ZERO), |span| {
                (span.offset.into(), span.len.into())
            });
        let (addr, rkey) = self
            .operation
            .remote()
            .map_or((U64::ZERO, U32::ZERO), |remote| {
                (remote.addr.into(), remote.rkey.into())
            });
        let (len, offset, addr, rkey) = match self.operation {
            Operation::Reserve { reserve, token } => {
                let (code, key, other) = reserve.to_wire();
                (code.into(), key.into(), other.into(), token.into())
            }
            _ => (len, offset, addr, rkey),
        };
        let wire = wire::Command {
            op,
            flags,
            tag: self.tag.into(),
            generation: self.generation.into(),
            len,
            rkey,
            offset,
            addr,
        };
        write(&wire, buf)
    }
}

/// Parses the command at the start of `bytes`. Its message had `received` bytes: the command and
/// the inline data, which may be in another buffer.
///
/// The returned command obeys `terms`: its tag is less than the depth, exactly the data of an
/// inline write was received, and the data of an inline read fits into a message. Its range
/// consists of whole blocks within `extent`, is not empty, does not exceed the limit of the
/// operation, and is written only if `extent` allows it. The caller must check whether the tag is
/// in flight already.
pub fn parse(
    bytes: &[u8],
    received: u32,
    terms: &Terms,
    extent: Extent,
) -> Result<Command, CommandError> {
    // CAST: 32.
    let data = received.checked_sub(SIZE as u32);
    let (Some(data), Ok((wire, _))) = (data, wire::Command::read_from_prefix(bytes)) else {
        return Err(Malformed("the message is shorter than a command").into());
    };
    let limits = &terms.limits;
    let span = Span {
        offset: wire.offset.get(),
        len: wire.len.get(),
    };
    let remote = Remote {
        addr: wire.addr.get(),
        rkey: wire.rkey.get(),
    };
    let has = |flag| wire.flags & flag != 0;
    let inline = has(wire::FLAG_INLINE);
    let transfer = match inline {
        true => Transfer::Inline,
        false => Transfer::Remote(remote),
    };
    // With the flags that the operation may have, and the most bytes of its range, if it has one.
    let (known_flags, max, operation) = match wire.op {
        wire::OP_READ => {
            let operation = Operation::Read { span, to: transfer };
            (wire::FLAG_INLINE, Some(limits.max_io), operation)
        }
        wire::OP_WRITE => {
            let (fua, atomic) = (has(wire::FLAG_FUA), has(wire::FLAG_ATOMIC));
            let max = match atomic {
                true => limits.atomic.max,
                false => limits.max_io,
            };
            let operation = Operation::Write {
                span,
                from: transfer,
                fua,
                atomic,
            };
            let flags = wire::FLAG_FUA | wire::FLAG_INLINE | wire::FLAG_ATOMIC;
            (flags, Some(max), operation)
        }
        wire::OP_FLUSH => (0, None, Operation::Flush),
        wire::OP_DISCARD => (0, Some(limits.max_discard), Operation::Discard { span }),
        wire::OP_WRITE_ZEROES => {
            let no_unmap = has(wire::FLAG_NO_UNMAP);
            let operation = Operation::WriteZeroes { span, no_unmap };
            (
                wire::FLAG_NO_UNMAP,
                Some(limits.max_write_zeroes),
                operation,
            )
        }
        wire::OP_SECURE_ERASE => {
            let max = limits.max_secure_erase;
            (0, Some(max), Operation::SecureErase { span })
        }
        wire::OP_RESERVE => {
            let reserve = Reserve::from_wire(span.len, span.offset, remote.addr)?;
            let token = remote.rkey;
            (0, None, Operation::Reserve { reserve, token })
        }
        wire::OP_REPORT => (0, None, Operation::Report),
        _ => return Err(Malformed("unknown operation").into()),
    };
    if wire.flags & !(known_flags | wire::FLAG_PRESSED) != 0 {
        return Err(Malformed("a flag that the operation does not have").into());
    }
    let (reads, writes) = (wire.op == wire::OP_READ, wire.op == wire::OP_WRITE);
    // The fields of a change of the reservation have another meaning.
    if wire.op != wire::OP_RESERVE {
        if max.is_none() && (span.offset != 0 || span.len != 0) {
            return Err(Malformed("an operation without a range has one").into());
        }
        let is_remote = (reads || writes) && !inline;
        if !is_remote && (remote.addr != 0 || remote.rkey != 0) {
            return Err(Malformed("an operation without remote memory names some").into());
        }
        if remote.addr.checked_add(span.len.into()).is_none() {
            return Err(Malformed("the memory goes beyond the address space").into());
        }
    }
    let command = Command {
        tag: wire.tag.get(),
        generation: wire.generation.get(),
        pressed: has(wire::FLAG_PRESSED),
        operation,
    };
    if command.tag >= terms.depth {
        return Err(Malformed("the tag is beyond the depth").into());
    }
    let inline_len = match writes && inline {
        true => span.len,
        false => 0,
    };
    if data.max(operation.answer_len()) > terms.inline_size {
        return Err(Malformed("more inline data than was agreed on").into());
    }
    if data != inline_len {
        return Err(Malformed("the inline data have not the length of the command").into());
    }
    let block = limits.logical_block_size;
    let atomic = writes && has(wire::FLAG_ATOMIC);
    let (status, why) = match max {
        None if wire.op == wire::OP_RESERVE && !extent.access.writes() => {
            (Status::ReadOnly, "who cannot write reserves nothing")
        }
        None => return Ok(command),
        Some(0) => (Status::NotSupported, "the export has no such operation"),
        Some(_) if span.len == 0 => (Status::Invalid, "the length is zero"),
        Some(max) if span.len > max => (Status::Invalid, "the length is beyond the limit"),
        Some(_) if !block.divides(span.offset | u64::from(span.len)) => {
            (Status::Invalid, "the range is not of whole blocks")
        }
        Some(_) if !extent.contains(span.offset, span.len) => {
            (Status::OutOfRange, "the range is not within the export")
        }
        Some(_) if atomic && !limits.atomic.allow(span) => {
            (Status::Invalid, "the range cannot be written at once")
        }
        Some(_) if !reads && !extent.access.writes() => {
            (Status::ReadOnly, "the export is read-only")
        }
        Some(_) => return Ok(command),
    };
    let response = Response {
        status,
        tag: command.tag,
        generation: command.generation,
        credit: 0,
    };
    Err(CommandError::Refused(response, why))
}
