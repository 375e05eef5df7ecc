// SPDX-License-Identifier: GPL-2.0

//! What a client wants done with a `block` export.

#![forbid(unsafe_code)]

use super::extent::Extent;
use super::limits::BlockLimits;
use super::message::{write, NoRoom};
use super::refusal::Malformed;
use super::response::{Response, Status};
use super::wire;
use core::fmt;
use core::mem::size_of;
use zerocopy::little_endian::{U32, U64};
use zerocopy::FromBytes;

/// Length of a command without inline data, in bytes.
pub const SIZE: usize = size_of::<wire::Command>();

/// What the two sides agreed on at login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Commands in flight per I/O queue; their tags are below it.
    pub depth: u16,
    /// Most data in a message, in bytes.
    pub inline_size: u32,
    /// What one I/O may be.
    pub limits: BlockLimits,
}

/// A range of the export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub len: u32,
}

/// Memory of the client, as long as the span it goes with. It does not go beyond 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// How the data of a read or write go to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// In a message: right behind the command, or as the answer to it.
    Inline,
    /// By the server's access to the client's memory.
    Remote(Remote),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bytes of the export go to the client.
    Read {
        /// Which.
        span: Span,
        /// Where to.
        to: Transfer,
    },
    /// Bytes come from the client.
    Write {
        /// Which.
        span: Span,
        /// Where from.
        from: Transfer,
        /// To last when it is answered.
        fua: bool,
    },
    /// All writes answered before are to last.
    Flush,
    /// The contents are of no use any more.
    Discard {
        /// Which.
        span: Span,
    },
    /// The contents become zeroes.
    WriteZeroes {
        /// Which.
        span: Span,
        /// Keep the blocks allocated.
        no_unmap: bool,
    },
}

impl Operation {
    /// The range of the export that it is about; a flush has none.
    pub fn span(&self) -> Option<Span> {
        match *self {
            Self::Read { span, .. }
            | Self::Write { span, .. }
            | Self::Discard { span }
            | Self::WriteZeroes { span, .. } => Some(span),
            Self::Flush => None,
        }
    }

    /// The client's memory that the server reads or writes.
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

    /// Bytes of data right behind the command.
    fn inline_len(&self) -> u32 {
        match self {
            Self::Write {
                span,
                from: Transfer::Inline,
                ..
            } => span.len,
            _ => 0,
        }
    }

    /// Bytes of data that the answer is to be.
    pub fn answer_len(&self) -> u32 {
        match self {
            Self::Read {
                span,
                to: Transfer::Inline,
            } => span.len,
            _ => 0,
        }
    }

    /// How it has to be answered at once, and why, if it cannot be done.
    fn refusal(&self, limits: &BlockLimits, extent: Extent) -> Option<(Status, &'static str)> {
        let span = self.span()?;
        let max = match self {
            Self::Discard { .. } => limits.max_discard,
            Self::WriteZeroes { .. } => limits.max_write_zeroes,
            _ => limits.max_io,
        };
        let block = limits.logical_block_size;
        if max == 0 {
            Some((Status::NotSupported, "the export has no such operation"))
        } else if span.len == 0 {
            Some((Status::Invalid, "the length is zero"))
        } else if span.len > max {
            Some((Status::Invalid, "the length is beyond the limit"))
        } else if !block.divides(span.len.into()) || !block.divides(span.offset) {
            Some((Status::Invalid, "the range is not of whole blocks"))
        } else if !extent.contains(span.offset, span.len) {
            Some((Status::OutOfRange, "the range is not within the export"))
        } else if !matches!(self, Self::Read { .. }) && !extent.access.writes() {
            Some((Status::ReadOnly, "the export is read-only"))
        } else {
            None
        }
    }
}

/// Why a command is not to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandError {
    /// It cannot be understood: the connection has to go.
    Malformed(Malformed),
    /// It can be, but not be done: this is the answer, but for the credit, and this the reason in words.
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

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Names it among those in flight; less than the depth.
    pub tag: u16,
    /// Tells it from earlier ones of the same tag.
    pub generation: u32,
    /// The client had to hold back commands, as its credit was used up.
    pub pressed: bool,
    /// What to do.
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
            Operation::Write { from, fua, .. } => {
                if fua {
                    flags |= wire::FLAG_FUA;
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

    fn from_wire(wire: &wire::Command) -> Result<Self, Malformed> {
        let span = Span {
            offset: wire.offset.get(),
            len: wire.len.get(),
        };
        let remote = Remote {
            addr: wire.addr.get(),
            rkey: wire.rkey.get(),
        };
        let has = |flag| wire.flags & flag != 0;
        let transfer = match has(wire::FLAG_INLINE) {
            true => Transfer::Inline,
            false => Transfer::Remote(remote),
        };
        let (known_flags, operation) = match wire.op {
            wire::OP_READ => (wire::FLAG_INLINE, Operation::Read { span, to: transfer }),
            wire::OP_WRITE => (
                wire::FLAG_FUA | wire::FLAG_INLINE,
                Operation::Write {
                    span,
                    from: transfer,
                    fua: has(wire::FLAG_FUA),
                },
            ),
            wire::OP_FLUSH => (0, Operation::Flush),
            wire::OP_DISCARD => (0, Operation::Discard { span }),
            wire::OP_WRITE_ZEROES => (
                wire::FLAG_NO_UNMAP,
                Operation::WriteZeroes {
                    span,
                    no_unmap: has(wire::FLAG_NO_UNMAP),
                },
            ),
            _ => return Err(Malformed("unknown operation")),
        };
        if wire.flags & !(known_flags | wire::FLAG_PRESSED) != 0 {
            return Err(Malformed("a flag that the operation does not have"));
        }
        if operation.span().is_none() && (span.offset != 0 || span.len != 0) {
            return Err(Malformed("an operation without a range has one"));
        }
        if operation.remote().is_none() && (remote.addr != 0 || remote.rkey != 0) {
            return Err(Malformed("an operation without remote memory names some"));
        }
        if remote.addr.checked_add(span.len.into()).is_none() {
            return Err(Malformed("the memory goes beyond the address space"));
        }
        Ok(Self {
            tag: wire.tag.get(),
            generation: wire.generation.get(),
            pressed: has(wire::FLAG_PRESSED),
            operation,
        })
    }
}

/// Reads the command at the start of `bytes`, of whose message `received` bytes came in: the command
/// and, behind it or in a buffer of their own, the inline data.
///
/// A command that comes out keeps to `terms`: its tag is below the depth, the data of an inline write
/// have come in, all of them and nothing else, and those of an inline read go into a message. It lies within `extent`, in whole blocks, has a
/// length that is not 0 and not beyond the limit of its operation, and writes only where that is
/// allowed. Whether its tag is in flight already is the caller's to check.
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
    let command = Command::from_wire(&wire)?;
    if command.tag >= terms.depth {
        return Err(Malformed("the tag is beyond the depth").into());
    }
    if data.max(command.operation.answer_len()) > terms.inline_size {
        return Err(Malformed("more inline data than was agreed on").into());
    }
    if data != command.operation.inline_len() {
        return Err(Malformed("the inline data have not the length of the command").into());
    }
    match command.operation.refusal(&terms.limits, extent) {
        None => Ok(command),
        Some((status, why)) => {
            let response = Response {
                status,
                tag: command.tag,
                generation: command.generation,
                credit: 0,
            };
            Err(CommandError::Refused(response, why))
        }
    }
}
