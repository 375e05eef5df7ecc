// SPDX-License-Identifier: GPL-2.0

//! How long a map that is away keeps its place.

#![forbid(unsafe_code)]

/// Heartbeats in which a client notices that its only path is lost. The client counts the lease
/// from the last ping that the server has answered. It sends one in each heartbeat, and gives up a
/// path on which nothing came for three. So some of the lease is left when it begins to look for
/// the server.
const MISSED_HEARTBEATS: u64 = 5;
/// The time that a client's attempt to connect may take, in ms.
const ATTEMPT_MS: u64 = 5000;

/// The longest lease that a server grants if its administrator does not say otherwise, in ms: one
/// hour.
pub const LEASE_MAX_MS: u32 = 3_600_000;
/// The shortest limit that the administrator may set, in ms: below it a client could lose its place
/// while it looks for the server.
pub const LEASE_MIN_MS: u32 = 10_000;

/// Returns the lease of a map that holds I/O for `no_path_timeout_ms`, `None` for ever: as long as
/// that, and the time in which the client notices that a path is lost and gives up an attempt to
/// connect. It is `most_ms` at most, whatever the client wants: a client that is away may never
/// come back.
pub fn lease_ms(no_path_timeout_ms: Option<u32>, heartbeat_ms: u32, most_ms: u32) -> u32 {
    let late = MISSED_HEARTBEATS * u64::from(heartbeat_ms) + ATTEMPT_MS;
    no_path_timeout_ms
        .and_then(|held| u32::try_from(u64::from(held) + late).ok())
        .map_or(most_ms, |ms| ms.min(most_ms))
        .max(1)
}
