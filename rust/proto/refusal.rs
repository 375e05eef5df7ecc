// SPDX-License-Identifier: GPL-2.0

//! Refusals: the reasons why the server did not grant a connection or a request.

#![forbid(unsafe_code)]

use super::protection::Protection;
use super::text::Text;
use super::wire;
use core::fmt;
use zerocopy::little_endian::U32;

/// The fault in bytes that a peer sent.
///
/// The text names the fault and contains no data of the peer, so that it can be shown and logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Code of a refusal, in the rejection of a connection and in the status of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// The two sides have no protocol version in common.
    Version = 1,
    /// The request could not be understood.
    Malformed = 2,
    /// There is no export of that name.
    NoSuchExport = 3,
    /// The export exists but is not enabled.
    ExportDisabled = 4,
    /// The export does not admit this host.
    NotAdmitted = 5,
    /// The client asked for writing, and only reading is allowed.
    ReadOnly = 6,
    /// The export has its maximum number of clients.
    Busy = 7,
    /// The server has no memory for the request.
    NoMemory = 8,
    /// The session has ended, or never was.
    BadSession = 9,
    /// The session has no such queue, or has it connected already.
    BadQueue = 10,
    /// The export is not offered on this port.
    NotOnPort = 11,
    /// The server failed for another reason.
    Internal = 12,
    /// The request is not allowed in this state of the session.
    BadState = 13,
    /// Another map had the export since the login got the key that it resumes.
    Evicted = 14,
    /// The epoch of the path is over.
    Superseded = 15,
    /// The client has to prove that it has a key.
    AuthRequired = 16,
    /// The host is not admitted, or the key that it proved is not its own.
    AuthFailed = 17,
    /// Too many ask the server at once: come again soon, with the cookie of this answer.
    Again = 18,
    /// The protection of the export is not that of the map.
    Protection = 19,
    /// The server's device cannot let clients access the export's memory.
    Unreachable = 20,
    /// The device of the export is gone, or has no room: it may come back.
    Unavailable = 21,
}

impl Refusal {
    /// Every refusal, in the order of the codes.
    pub const ALL: [Self; 21] = [
        Self::Version,
        Self::Malformed,
        Self::NoSuchExport,
        Self::ExportDisabled,
        Self::NotAdmitted,
        Self::ReadOnly,
        Self::Busy,
        Self::NoMemory,
        Self::BadSession,
        Self::BadQueue,
        Self::NotOnPort,
        Self::Internal,
        Self::BadState,
        Self::Evicted,
        Self::Superseded,
        Self::AuthRequired,
        Self::AuthFailed,
        Self::Again,
        Self::Protection,
        Self::Unreachable,
        Self::Unavailable,
    ];

    /// Returns the code on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Returns a text for the user, for a refusal without a better one.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Version => "no protocol version in common",
            Self::Malformed => "malformed request",
            Self::NoSuchExport => "no such export",
            Self::ExportDisabled => "the export is not enabled",
            Self::NotAdmitted => "the export does not admit this host",
            Self::ReadOnly => "the export is read only",
            Self::Busy => "the export has as many clients as it takes",
            Self::NoMemory => "the server is out of memory",
            Self::BadSession => "the session has ended: was its export or port disabled?",
            Self::BadQueue => "no such queue",
            Self::NotOnPort => "the export is not offered on this port",
            Self::Internal => "internal error of the server",
            Self::BadState => "the request makes no sense now",
            Self::Evicted => "the export was another's since",
            Self::Superseded => "a newer connection of this path took its place",
            Self::AuthRequired => "the server wants a key",
            Self::AuthFailed => "not admitted, or the key is wrong",
            Self::Again => "too many ask the server at once",
            Self::Protection => "the export and the map differ in their protection",
            Self::Unreachable => "the server's device reaches no memory but bounce buffers",
            Self::Unavailable => "the export is unavailable",
        }
    }
}

/// A refusal code that this version does not know. The peer may be newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRefusal(pub u16);

impl TryFrom<u16> for Refusal {
    type Error = UnknownRefusal;

    fn try_from(code: u16) -> Result<Self, UnknownRefusal> {
        Self::ALL
            .into_iter()
            .find(|refusal| refusal.code() == code)
            .ok_or(UnknownRefusal(code))
    }
}

/// A refusal with a text that explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The code, on which the client acts.
    pub refusal: Refusal,
    /// The text for the user.
    pub text: Text,
}

impl Refused {
    /// Makes a refusal with a text of the caller.
    pub fn new(refusal: Refusal, words: fmt::Arguments<'_>) -> Self {
        Self {
            refusal,
            text: Text::format(words),
        }
    }

    /// Makes the refusal of a map whose protection is not that of the export.
    pub fn protection(export: Protection, map: Protection) -> Self {
        Self::new(
            Refusal::Protection,
            format_args!("the export has protection={export}, the map protection={map}"),
        )
    }

    /// Parses a status: `None` means success.
    ///
    /// An unknown code becomes [`Refusal::Internal`], with the text of the peer, or one that names
    /// the code.
    pub(super) fn from_wire(status: &wire::Status) -> Result<Option<Self>, Malformed> {
        let code = status.code.get();
        if code == wire::STATUS_OK {
            return Ok(None);
        }
        let text = Text::from_wire(&status.text, status.text_len.get())?;
        Ok(Some(match (Refusal::try_from(code), text.is_empty()) {
            (Ok(refusal), true) => refusal.into(),
            (Ok(refusal), false) => Self { refusal, text },
            (Err(UnknownRefusal(code)), true) => {
                Self::new(Refusal::Internal, format_args!("refusal code {code}"))
            }
            (Err(_), false) => Self {
                refusal: Refusal::Internal,
                text,
            },
        }))
    }

    /// Returns the status for a reply.
    pub(super) fn to_wire(self) -> wire::Status {
        let (text, text_len) = self.text.to_wire();
        wire::Status {
            code: self.refusal.code().into(),
            text_len: text_len.into(),
            reserved: U32::ZERO,
            text,
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            text: refusal.text().into(),
        }
    }
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self {
            refusal: Refusal::Malformed,
            text: malformed.0.into(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.as_str())
    }
}
