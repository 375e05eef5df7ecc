// SPDX-License-Identifier: GPL-2.0

//! Persistent reservations: how the users of several hosts fence each other from an export.
//!
//! The names and numbers are those of the kernel's `linux/pr.h`.

#![forbid(unsafe_code)]

use super::message::{write, NoRoom};
use super::refusal::Malformed;
use super::wire::{self, REGISTRANTS_MAX};
use core::mem::size_of;
use zerocopy::little_endian::U64;
use zerocopy::FromBytes;

/// Length of a report, in bytes.
pub const REPORT_SIZE: usize = size_of::<wire::Report>();

/// Type of a reservation, `enum pr_type`: whom it leaves what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Only registrants write.
    WriteExclusiveRegistrants = 3,
    /// Only registrants read and write.
    ExclusiveAccessRegistrants = 4,
    /// Only registrants write, and all of them hold it.
    WriteExclusiveAll = 5,
    /// Only registrants read and write, and all of them hold it.
    ExclusiveAccessAll = 6,
}

impl ReservationType {
    /// All types, in the order of the numbers.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];
}

impl TryFrom<u8> for ReservationType {
    type Error = Malformed;

    fn try_from(number: u8) -> Result<Self, Malformed> {
        Self::ALL
            .into_iter()
            .find(|kind| *kind as u8 == number)
            .ok_or(Malformed("the type of the reservation is not known"))
    }
}

/// A change of a persistent reservation. Key 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Registers a key.
    Register {
        /// The key that is registered now.
        old: u64,
        /// The key to register.
        new: u64,
        /// The old key does not matter.
        ignore_old: bool,
    },
    /// Reserves the export.
    Reserve {
        /// The client's key.
        key: u64,
        /// What others may not.
        kind: ReservationType,
    },
    /// Gives the reservation back.
    Release {
        /// The client's key.
        key: u64,
        /// The type of the reservation.
        kind: ReservationType,
    },
    /// Removes another key, and takes over its reservation.
    Preempt {
        /// The client's key.
        key: u64,
        /// The key to remove.
        victim: u64,
        /// The type of the reservation that is taken over.
        kind: ReservationType,
    },
    /// Removes all keys and the reservation.
    Clear {
        /// The client's key.
        key: u64,
    },
}

impl Reserve {
    /// Returns what stands for it in a command: instead of the length, of the offset and of the
    /// address.
    pub(super) fn to_wire(self) -> (u32, u64, u64) {
        let code = |action, kind, flags| u32::from_le_bytes([action, kind, flags, 0]);
        match self {
            Self::Register {
                old,
                new,
                ignore_old,
            } => {
                let flags = match ignore_old {
                    true => wire::RESERVE_IGNORE_OLD,
                    false => 0,
                };
                (code(wire::RESERVE_REGISTER, 0, flags), old, new)
            }
            Self::Reserve { key, kind } => (code(wire::RESERVE_RESERVE, kind as u8, 0), key, 0),
            Self::Release { key, kind } => (code(wire::RESERVE_RELEASE, kind as u8, 0), key, 0),
            Self::Preempt { key, victim, kind } => {
                (code(wire::RESERVE_PREEMPT, kind as u8, 0), key, victim)
            }
            Self::Clear { key } => (code(wire::RESERVE_CLEAR, 0, 0), key, 0),
        }
    }

    pub(super) fn from_wire(code: u32, key: u64, other: u64) -> Result<Self, Malformed> {
        let [action, kind, flags, _] = code.to_le_bytes();
        let reserve = match action {
            wire::RESERVE_REGISTER => Self::Register {
                old: key,
                new: other,
                ignore_old: flags == wire::RESERVE_IGNORE_OLD,
            },
            wire::RESERVE_RESERVE => Self::Reserve {
                key,
                kind: kind.try_into()?,
            },
            wire::RESERVE_RELEASE => Self::Release {
                key,
                kind: kind.try_into()?,
            },
            wire::RESERVE_PREEMPT => Self::Preempt {
                key,
                victim: other,
                kind: kind.try_into()?,
            },
            wire::RESERVE_CLEAR => Self::Clear { key },
            _ => return Err(Malformed("an unknown change of the reservation")),
        };
        match reserve.to_wire() == (code, key, other) {
            true => Ok(reserve),
            false => Err(Malformed(
                "a change of the reservation has what it needs not",
            )),
        }
    }
}

/// A persistent reservation and its registrants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How often the registrations have changed; it wraps.
    pub generation: u32,
    /// The key of the holder, 0 if all registrants hold it, and the type.
    pub reservation: Option<(u64, ReservationType)>,
    /// The keys of the registrants, and zeroes behind them.
    pub keys: [u64; REGISTRANTS_MAX],
    /// The number of registrants, at most [`REGISTRANTS_MAX`].
    pub count: u8,
}

impl Report {
    /// Parses a report that consists of all `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let wire = wire::Report::read_from_bytes(bytes)
            .map_err(|_| Malformed("the report has not its length"))?;
        let report = Self {
            generation: wire.generation.get(),
            reservation: match wire.kind {
                0 => None,
                kind => Some((wire.holder.get(), kind.try_into()?)),
            },
            keys: wire.keys.map(U64::get),
            count: wire.count,
        };
        let behind = report.keys.get(usize::from(report.count)..);
        if behind.is_none_or(|keys| keys.iter().any(|key| *key != 0)) {
            return Err(Malformed("the report has not as many keys as it says"));
        }
        Ok(report)
    }

    /// Writes the report into `buf` and returns its length, [`REPORT_SIZE`].
    pub fn encode(&self, buf: &mut [u8]) -> Result<usize, NoRoom> {
        let wire = wire::Report {
            generation: self.generation.into(),
            kind: self.reservation.map_or(0, |(_, kind)| kind as u8),
            count: self.count,
            reserved: [0; 2],
            holder: self.reservation.map_or(0, |(key, _)| key).into(),
            keys: self.keys.map(U64::new),
        };
        write(&wire, buf)
    }
}
