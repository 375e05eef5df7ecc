// SPDX-License-Identifier: GPL-2.0

//! What the server says of itself and of the export when it lets a path in.

#![forbid(unsafe_code)]

use super::limits::Limits;
use crate::session::ReservationKey;

/// What may change of an export while it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The server raises it with each change, for each instance of the export. After 2^32-1
    /// comes 0.
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// Whether the export may be written.
    pub writable: bool,
}

impl Extent {
    /// Whether the server said this after `other`. Of two numbers the one is newer that is less
    /// than 2^31 ahead, as with TCP: whatever number came, one that is newer can follow.
    pub const fn is_newer_than(&self, other: &Self) -> bool {
        self.is_after(other.number)
    }

    /// Whether its number is newer than another one.
    pub(super) const fn is_after(&self, number: u32) -> bool {
        let ahead = self.number.wrapping_sub(number);
        ahead != 0 && ahead < 1 << 31
    }
}

/// What the server says when it lets a path in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Admission {
    /// Identity of the server.
    pub server: u128,
    /// UUID of the export.
    pub export: u128,
    /// Identity of the export's contents (ram), or of what a volatile cache may hold of them
    /// (block).
    pub instance: u128,
    /// Whether the contents are gone with the instance.
    pub volatile: bool,
    /// The reservation key of this map.
    pub reservation_key: ReservationKey,
    /// How long the map keeps its place without a path, in ms, from when the server notices that.
    pub lease_ms: u32,
    /// Whether the server remembered the key: it did not begin anew since, or its administrator
    /// restored the key.
    pub remembered: bool,
    /// The extent of the export.
    pub extent: Extent,
    /// What the path can do.
    pub limits: Limits,
}
