// SPDX-License-Identifier: GPL-2.0

//! Round trips to a server, without a login.

#![forbid(unsafe_code)]

mod datagrams;
mod meter;

use core::fmt;

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta,
        Msecs, //
    },
};

use self::{
    datagrams::Datagrams,
    meter::Meter, //
};
use crate::base::{
    errno::{
        EOPNOTSUPP,
        EPROTONOSUPPORT, //
    },
    sync::signal_pending, //
};
use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    host::Host,
    target::Target, //
};
use crate::link::{
    channel::{
        ChannelConfig,
        Completions, //
    },
    failure::{
        fail,
        Failure, //
    },
    keys::Psk,
};
use crate::proto::{
    wire::{
        SCRATCH_MAX,
        SCRATCH_UNIT,
        VERSION_SCRATCH, //
    },
    Malformed,
    Name,
    ScratchReply,
    ScratchRequest, //
};

/// How long the round trips of one connection take at most, in ms, with the pauses: a server that
/// is slow, or pretends to be, must not hold up the task. It would end the connection soon.
const ROUND_TRIPS_MAX_MS: Msecs = 8000;
/// The longest time without a message to the server, in ms: it ends a connection on which it hears
/// nothing. An RDMA operation is none.
const QUIET_MAX_MS: Msecs = 1000;
/// The pause between what does not count and what does.
const SHORT_PAUSE: Delta = Delta::from_millis(1);
/// Where the data of RDMA operations begin in a scratch region. Before that are the numbers of
/// atomic operations.
const DATA_AT: u32 = SCRATCH_UNIT;
/// The fewest bytes of an RDMA READ or WRITE. Data of a READ that are shorter may by chance be what
/// some devices have to overwrite (see `rust/rdma/quirks.rs`).
pub(crate) const SIZE_MIN: u32 = 8;
/// The most bytes of an RDMA READ or WRITE.
pub(crate) const SIZE_MAX: u32 = SCRATCH_MAX - DATA_AT;
/// The most operations that are under way at once.
pub(crate) const DEPTH_MAX: u16 = 32;

/// What is measured. The kinds are in the order in which they are: RDMA operations come before
/// messages, with a pause behind those. A device may not answer a READ of no bytes rightly while it
/// sends something (see `rust/rdma/quirks.rs`).
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
    fn needs_scratch(self) -> bool {
        !matches!(self, Self::Send | Self::SendUd)
    }

    /// Returns true if not all devices do it.
    fn may_be_unavailable(self) -> bool {
        matches!(self, Self::Cas | Self::Faa | Self::SendUd)
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

    fn iter_mut(&mut self) -> impl Iterator<Item = (Trip, &mut T)> {
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
    fn scratch_export(&self) -> Option<Name> {
        let needs = |trip: Trip| self.has(trip) && trip.needs_scratch();
        // Who wants nothing but messages is admitted, too, or not.
        let is_used = Trip::ALL.into_iter().any(needs) || !self.has(Trip::SendUd);
        self.export.filter(|_| is_used)
    }

    /// Returns where completions are handled.
    fn context(&self) -> PollContext {
        match self.polled {
            true => PollContext::Direct,
            // Where disks have the completions of their I/O handled, too.
            false => PollContext::Softirq,
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
    fn done(&self) -> usize {
        let lost = usize::try_from(self.lost).unwrap_or(usize::MAX);
        self.times.len().saturating_add(lost)
    }
}

/// The round trips that were measured.
pub(crate) type RoundTrips = PerTrip<Measured>;

/// Connects to a server, measures round trips, and adds them to `trips`, also if it fails in the
/// end. Both sides prove that they have `key`, if there is one. A signal to the task, or too little
/// time, ends it early, without a failure. May sleep.
pub(crate) fn ping(
    host: &Host,
    target: &Target,
    key: Option<&Psk>,
    request: &PingRequest,
    trips: &mut RoundTrips,
) -> Result<(), Failure> {
    let count = usize::try_from(request.count).unwrap_or(0);
    for (trip, measured) in trips.iter_mut() {
        if request.has(trip) {
            measured.times.reserve(count, GFP_KERNEL)?;
        }
    }
    let config = ChannelConfig {
        operations: request.depth,
        rdma_size: match request.scratch_export() {
            Some(_) => request.size,
            None => 0,
        },
        completions: request.completions(),
    };
    let deadline = Deadline::start();
    let mut connection =
        ControlConnection::connect_with(target, (0, &config), None, key, deadline)?;
    let scratch = match request.scratch_export() {
        Some(export) => Some(get_scratch(
            host,
            &mut connection,
            (export, request.size),
            deadline,
        )?),
        None => None,
    };
    let datagrams = match request.export.filter(|_| request.has(Trip::SendUd)) {
        Some(export) => {
            match Datagrams::new(host, &mut connection, (export, request), deadline) {
                // As with iWARP; what else is measured is there.
                Err(failure) if failure.error == EOPNOTSUPP => None,
                outcome => Some(outcome?),
            }
        }
        None => None,
    };
    let mut meter = Meter::new(connection, (scratch, datagrams), request)?;
    let goes_on = goes_on();
    begin(&mut meter, request, &goes_on, trips)?;
    match request.depth {
        0 | 1 => one_by_one(&mut meter, request, &goes_on, trips)?,
        _ => all_at_once(&mut meter, count, request, &goes_on, trips)?,
    }
    match signal_pending() {
        true => Ok(()),
        false => meter.verify(),
    }
}

/// Asks for a scratch region with room for `size` bytes of data. May sleep.
fn get_scratch(
    host: &Host,
    connection: &mut ControlConnection,
    (export, size): (Name, u32),
    deadline: Deadline,
) -> Result<ScratchReply, Failure> {
    if connection.version() < VERSION_SCRATCH {
        return Err(fail!(
            EPROTONOSUPPORT,
            "the server is older: it takes part in no more than SEND, and READ without an export"
        ));
    }
    let identity = host.identity();
    let len = DATA_AT + size.next_multiple_of(SCRATCH_UNIT);
    let request = ScratchRequest::new((identity.id, identity.name), export, len)
        .map_err(|Malformed(why)| fail!(EINVAL, "{why}"))?;
    connection.call(
        deadline,
        |sequence, buf| request.encode(sequence, buf),
        |bytes, sequence| ScratchReply::parse(bytes, sequence, &request),
    )
}

/// Measures each kind once: that finds cold caches on both hosts, and does not count. Notes which
/// kinds are not available. A short pause follows. May sleep.
fn begin(
    meter: &mut Meter,
    request: &PingRequest,
    goes_on: &dyn Fn() -> bool,
    trips: &mut RoundTrips,
) -> Result<(), Failure> {
    meter.prepare()?;
    for (trip, measured) in trips.iter_mut() {
        if !request.has(trip) {
            continue;
        }
        match meter.run(trip, 1, goes_on, &mut Measured::default()) {
            // The server's device, or that of this host.
            Err(failure) if trip.may_be_unavailable() && failure.error == EOPNOTSUPP => {
                measured.unavailable = true;
            }
            outcome => outcome?,
        }
    }
    fsleep(SHORT_PAUSE);
    Ok(())
}

/// Measures round trips of which one is under way at a time, with pauses in between. May sleep.
fn one_by_one(
    meter: &mut Meter,
    request: &PingRequest,
    goes_on: &dyn Fn() -> bool,
    trips: &mut RoundTrips,
) -> Result<(), Failure> {
    let mut heard = Deadline::start();
    for number in 1..=request.count {
        for (trip, measured) in trips.iter_mut() {
            if request.has(trip) && !measured.unavailable {
                meter.run(trip, 1, goes_on, measured)?;
            }
        }
        if request.has(Trip::Send) {
            heard = Deadline::start();
        } else if heard.spent() > QUIET_MAX_MS {
            meter.run(Trip::Send, 1, goes_on, &mut Measured::default())?;
            heard = Deadline::start();
        }
        if !goes_on() {
            break;
        }
        if number < request.count {
            fsleep(Delta::from_micros(request.interval_us.into()));
        }
    }
    Ok(())
}

/// Measures round trips of which several are under way at a time, with a message to the server now
/// and then. May sleep.
fn all_at_once(
    meter: &mut Meter,
    count: usize,
    request: &PingRequest,
    goes_on: &dyn Fn() -> bool,
    trips: &mut RoundTrips,
) -> Result<(), Failure> {
    for (trip, measured) in trips.iter_mut() {
        if !request.has(trip) || measured.unavailable {
            continue;
        }
        while measured.done() < count && goes_on() {
            let begin = Deadline::start();
            let left = count - measured.done();
            let is_soon = || goes_on() && begin.spent() <= QUIET_MAX_MS;
            meter.run(trip, left, &is_soon, measured)?;
            meter.run(Trip::Send, 1, goes_on, &mut Measured::default())?;
        }
    }
    Ok(())
}

/// Returns what tells whether to measure more: no signal has come, and there is time.
fn goes_on() -> impl Fn() -> bool {
    let started = Deadline::start();
    move || !signal_pending() && started.spent() <= ROUND_TRIPS_MAX_MS
}
