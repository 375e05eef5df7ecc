// SPDX-License-Identifier: GPL-2.0

//! Round trips to a server, without a login.

#![forbid(unsafe_code)]

mod datagrams;
mod meter;
mod trips;

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta,
        Msecs, //
    },
};

pub(crate) use self::trips::{
    PerTrip,
    PingRequest,
    RoundTrips,
    Trip,
    DEPTH_MAX,
    SEND_MAX,
    SEND_MIN,
    SIZE_MAX,
    SIZE_MIN, //
};

use self::{
    datagrams::Datagrams,
    meter::Meter,
    trips::{
        Measured,
        DATA_AT, //
    },
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
    channel::ChannelConfig,
    failure::{
        fail,
        Failure, //
    },
    keys::Psk,
};
use crate::proto::{
    wire::{
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
        match meter.run(trip, 1, (&|| true, goes_on), &mut Measured::default()) {
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
                meter.run(trip, 1, (&|| true, goes_on), measured)?;
            }
        }
        if request.has(Trip::Send) {
            heard = Deadline::start();
        } else if heard.spent() > QUIET_MAX_MS {
            meter.run(Trip::Send, 1, (&|| true, goes_on), &mut Measured::default())?;
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
    // In turns, so that each kind has some if there is no time for all.
    let mut is_done = false;
    while !is_done && goes_on() {
        is_done = true;
        for (trip, measured) in trips.iter_mut() {
            let left = count.saturating_sub(measured.done());
            if !request.has(trip) || measured.unavailable || left == 0 || !goes_on() {
                continue;
            }
            is_done = false;
            let begin = Deadline::start();
            let is_soon = || begin.spent() <= QUIET_MAX_MS;
            meter.run(trip, left, (&is_soon, goes_on), measured)?;
            meter.run(Trip::Send, 1, (&|| true, goes_on), &mut Measured::default())?;
        }
    }
    Ok(())
}

/// Returns what tells whether to measure more: no signal has come, and there is time.
fn goes_on() -> impl Fn() -> bool {
    let started = Deadline::start();
    move || !signal_pending() && started.spent() <= ROUND_TRIPS_MAX_MS
}
