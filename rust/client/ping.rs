// SPDX-License-Identifier: GPL-2.0

//! Round trips to a server, without a login.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta,
        Msecs, //
    },
};

use crate::base::sync::signal_pending;
use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    target::Target, //
};
use crate::link::failure::Failure;

/// How long the round trips of one connection take at most, in ms, with the pauses: a server that
/// is slow, or pretends to be, must not hold up the task. It would end the connection soon.
const ROUND_TRIPS_MAX_MS: Msecs = 8000;

/// The round trips to measure.
#[derive(Clone, Copy)]
pub(crate) struct PingRequest {
    /// Their number.
    pub(crate) count: u32,
    /// The pause after each, in microseconds.
    pub(crate) interval_us: u32,
    /// Whether to measure RDMA READs as well.
    pub(crate) read: bool,
}

/// The round trips that were measured, in nanoseconds.
#[derive(Default)]
pub(crate) struct RoundTrips {
    /// Of messages: from the client to the server's module and back.
    pub(crate) send: KVec<u64>,
    /// Of RDMA READs: from the client to the server's device and back.
    pub(crate) read: KVec<u64>,
}

/// Connects to a server, measures round trips, and adds them to `trips`, also if it fails in the
/// end. A signal to the task, or too little time, ends it early, without a failure. May sleep.
pub(crate) fn ping(
    target: &Target,
    request: &PingRequest,
    trips: &mut RoundTrips,
) -> Result<(), Failure> {
    let count = usize::try_from(request.count).unwrap_or(0);
    trips.send.reserve(count, GFP_KERNEL)?;
    trips.read.reserve(count, GFP_KERNEL)?;
    let mut connection = ControlConnection::connect(target, 0, None, None, Deadline::start())?;
    let started = Deadline::start();
    // The first one finds cold caches on both hosts, and does not count.
    for number in 0..=count {
        if signal_pending() || started.spent() > ROUND_TRIPS_MAX_MS {
            break;
        }
        let send = connection.ping(Deadline::start())?;
        let read = match request.read {
            true => Some(connection.read_nothing(Deadline::start())?),
            false => None,
        };
        if number == 0 {
            continue;
        }
        trips.send.push(send, GFP_KERNEL)?;
        if let Some(read) = read {
            trips.read.push(read, GFP_KERNEL)?;
        }
        if number < count {
            fsleep(Delta::from_micros(request.interval_us.into()));
        }
    }
    Ok(())
}
