// SPDX-License-Identifier: GPL-2.0

//! Discovery: the client asks a server for its exports, and measures the way there and back.

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
    host::Host,
    target::Target, //
};
use crate::link::failure::Failure;
use crate::proto::{
    ListEntry,
    ListReply,
    ListRequest, //
};

/// Maximum number of pings on one connection: a server takes 512 messages without a login.
pub(crate) const PINGS_MAX: u16 = 256;
/// Maximum pause between two pings, in us: a server ends a connection on which it hears nothing.
pub(crate) const INTERVAL_MAX_US: u32 = 1_000_000;
/// When the last ping begins, in ms after the attempt to connect: a server ends a connection that
/// stays for 10 s without a login.
const PINGS_MAX_MS: Msecs = 8000;

/// Round trips to measure.
#[derive(Clone, Copy)]
pub(crate) struct Pings {
    /// How many, at most [`PINGS_MAX`].
    pub(crate) count: u16,
    /// The pause between two of them, in us, at most [`INTERVAL_MAX_US`].
    pub(crate) interval_us: u32,
}

/// Asks a server for the exports that `host` may use, from index `first` on, and measures round
/// trips after that. Returns as many exports as one reply holds, and their total number.
///
/// Puts the round trips into `times`, in ns, also if a later one fails. A signal to the task, or
/// too little time, ends them early without a failure. May sleep.
pub(crate) fn discover(
    host: &Host,
    target: &Target,
    first: u32,
    pings: Pings,
    times: &mut KVec<u64>,
) -> Result<(KVec<ListEntry>, u32), Failure> {
    times.reserve(pings.count.into(), GFP_KERNEL)?;
    let deadline = Deadline::start();
    let identity = host.identity();
    let request = ListRequest {
        host_id: identity.id,
        host_name: identity.name,
        first,
    };
    let mut connection = ControlConnection::connect(target, 0, None, None, deadline)?;
    let mut entries = KVec::new();
    let total = connection.call(
        deadline,
        |sequence, buf| request.encode(sequence, buf),
        |bytes, sequence| {
            let reply = ListReply::parse(bytes, sequence, &request)?;
            let pushed = reply
                .iter()
                .try_for_each(|entry| entries.push(entry, GFP_KERNEL));
            Ok(pushed.map(|()| reply.total()))
        },
    )??;
    ping(&mut connection, pings, deadline, times)?;
    Ok((entries, total))
}

fn ping(
    connection: &mut ControlConnection,
    pings: Pings,
    started: Deadline,
    times: &mut KVec<u64>,
) -> Result<(), Failure> {
    if pings.count == 0 {
        return Ok(());
    }
    let pause_ms = Msecs::try_from(pings.interval_us.div_ceil(1000)).unwrap_or(0);
    let ends = || started.spent().saturating_add(pause_ms) > PINGS_MAX_MS;
    // The first one finds cold caches on both hosts, and does not count.
    connection.round_trip(Deadline::start())?;
    for number in 1..=pings.count {
        times.push(connection.round_trip(Deadline::start())?, GFP_KERNEL)?;
        if number == pings.count || signal_pending() || ends() {
            break;
        }
        fsleep(Delta::from_micros(pings.interval_us.into()));
    }
    Ok(())
}
