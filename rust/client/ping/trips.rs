// SPDX-License-Identifier: GPL-2.0

//! The kinds of round trips, what is to be measured of them, and what was.

#![forbid(unsafe_code)]

use core::fmt;

use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::link::channel::Completions;
use crate::proto::{
    wire::{
        MESSAGE_MAX,
        PING_MIN,
        SCRATCH_MAX,
        SCRATCH_UNIT, //
    },
    Name,
};

/// Where the data of RDMA operations begin in a scratch region. Before that are the numbers of
/// atomic operations.
pub(super) const DATA_AT: u32 = SCRATCH_UNIT;
/// The fewest bytes of an RDMA READ or WRITE. Data of a READ that are shorter may by chance be what
/// some devices have to overwrite (see `rdma::quirks`).
pub(crate) const SIZE_MIN: u32 = 8;
/// The most bytes of an RDMA READ or WRITE.
pub(crate) const SIZE_MAX: u32 = SCRATCH_MAX - DATA_AT;
/// The bytes of the shortest message, and of the longest one, without a tag.
pub(crate) const SEND_MIN: u32 = PING_MIN as u32;
pub(crate) const SEND_MAX: u32 = MESSAGE_MAX as u32;
/// The most operations that are under way at once.
pub(crate) const DEPTH_MAX: u16 = 32;

/// What is measured. The kinds are in the order in which they are: RDMA operations come before
/// messages, with a pause behind those. A device may not answer a READ of no bytes rightly while it
/// sends something (see `rdma::quirks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trip {
    /// An RDMA READ.
    Read,
    /// An RDMA WRITE.
    Write,
    /// An atomic compare and swap.
    Cas,
    /// An atomic fetch and add.
    Faa,
    /// A message to the server's module and its answer.
    Send,
    /// A datagram to a queue pair of the server, which sends it back.
    SendUd,
}

impl Trip {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Cas,
        Self::Faa,
        Self::Send,
        Self::SendUd,
    ];

    /// Returns true if the module measures it only in what a server makes for hosts that an export
    /// admits.
    pub(crate) fn needs_export(self) -> bool {
        !matches!(self, Self::Send | Self::Read)
    }

    /// Returns true if it is done with a scratch region.
    pub(super) fn needs_scratch(self) -> bool {
        !matches!(self, Self::Send | Self::SendUd)
    }

    /// Returns true if not all devices do it.
    pub(super) fn may_be_unavailable(self) -> bool {
        matches!(self, Self::Read | Self::Cas | Self::Faa | Self::SendUd)
    }
}

impl fmt::Display for Trip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Read => "read",
            Self::Write => "write",
            Self::Cas => "cas",
            Self::Faa => "faa",
            Self::SendUd => "send_ud",
        })
    }
}

/// A value for each kind, by its index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PerTrip<T>([T; Trip::ALL.len()]);

// The index of a kind is its place in the list of all.
const _: () = {
    let mut index = 0;
    while index < Trip::ALL.len() {
        assert!(Trip::ALL[index] as usize == index);
        index += 1;
    }
};

impl<T> PerTrip<T> {
    /// Makes the value of each kind.
    pub(crate) fn from_fn(make: impl FnMut(Trip) -> T) -> Self {
        Self(Trip::ALL.map(make))
    }

    /// Returns that of one kind.
    pub(crate) fn of(&self, trip: Trip) -> &T {
        // Always inside, as the compiler sees.
        &self.0[trip as usize]
    }

    /// Returns that of one kind, to be changed.
    pub(crate) fn of_mut(&mut self, trip: Trip) -> &mut T {
        &mut self.0[trip as usize]
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Trip, &mut T)> {
        Trip::ALL.into_iter().zip(&mut self.0)
    }
}

/// The round trips to measure.
#[derive(Clone, Copy)]
pub(crate) struct PingRequest {
    /// Their number, of each kind.
    pub(crate) count: u32,
    /// The pause after each, in microseconds, if one is under way at a time.
    pub(crate) interval_us: u32,
    /// The kinds to measure.
    pub(crate) trips: PerTrip<bool>,
    /// The export that admits this host to what the server makes to measure with: a scratch region,
    /// or a queue pair for datagrams. `None` for neither.
    pub(crate) export: Option<Name>,
    /// The bytes of an RDMA READ or WRITE of the region, from [`SIZE_MIN`] to [`SIZE_MAX`], and of
    /// a datagram.
    pub(crate) size: u32,
    /// The bytes of a message, from [`SEND_MIN`] to [`SEND_MAX`].
    pub(crate) send_size: u32,
    /// How many are under way at once, from 1 to [`DEPTH_MAX`].
    pub(crate) depth: u16,
    /// Whether to look for completions until there are some, rather than to sleep.
    pub(crate) polled: bool,
}

impl PingRequest {
    /// Returns true if a kind is to be measured.
    pub(crate) fn has(&self, trip: Trip) -> bool {
        *self.trips.of(trip)
    }

    /// Returns the export that admits this host to a scratch region, if one is used.
    pub(super) fn scratch_export(&self) -> Option<Name> {
        let needs = |trip: Trip| self.has(trip) && trip.needs_scratch();
        // Who wants nothing but messages is admitted, too, or not.
        let is_used = Trip::ALL.into_iter().any(needs) || !self.has(Trip::SendUd);
        self.export.filter(|_| is_used)
    }

    /// Returns the bytes of a message that follow its header. One that is not measured has none.
    pub(super) fn contents(&self) -> u32 {
        match self.has(Trip::Send) {
            true => self.send_size.saturating_sub(SEND_MIN),
            false => 0,
        }
    }

    /// Returns where completions are handled.
    pub(super) fn completions(&self) -> Completions {
        match self.polled {
            true => Completions::Waiter,
            // Where disks have the completions of their I/O handled, too.
            false => Completions::Softirq,
        }
    }
}

/// What was measured of one kind of round trips.
#[derive(Default)]
pub(crate) struct Measured {
    /// The nanoseconds of each.
    pub(crate) times: KVec<u64>,
    /// How many datagrams had no answer in time.
    pub(crate) lost: u32,
    /// The nanoseconds that all of them took together.
    pub(crate) elapsed: u64,
    /// One of the two devices does no such operations.
    pub(crate) unavailable: bool,
}

impl Measured {
    /// Returns how many round trips are over, be they lost.
    pub(super) fn done(&self) -> usize {
        let lost = usize::try_from(self.lost).unwrap_or(usize::MAX);
        self.times.len().saturating_add(lost)
    }
}

/// The round trips that were measured.
pub(crate) type RoundTrips = PerTrip<Measured>;

/// Returns `size` bytes. Those of two seeds of which one is the other inverted are all different.
pub(super) fn pattern(seed: u64, size: u32) -> Result<KVec<u8>> {
    let mut bytes = KVec::with_capacity(usize::try_from(size)?, GFP_KERNEL)?;
    for index in 0..size {
        let [byte, ..] = seed.rotate_left(index % 64).to_le_bytes();
        // Pages differ, too.
        let [line, ..] = (index / 64).to_le_bytes();
        bytes.push(byte.wrapping_add(line), GFP_KERNEL)?;
    }
    Ok(bytes)
}

/// Returns the nanoseconds since `start`.
pub(super) fn nanos_since(start: Instant<Monotonic>) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(0)
}
