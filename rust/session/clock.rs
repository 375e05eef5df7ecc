// SPDX-License-Identifier: GPL-2.0

//! The timers of sessions: when to try again, and when the peer is taken for gone.
//!
//! Nothing here reads a clock. The client's machine asks for timers and is told that they elapsed,
//! so that the model checker can let them elapse at any moment. The server counts its periodic
//! looks.

#![forbid(unsafe_code)]

use core::hash::{Hash, Hasher};

use super::PathId;

/// A timer of a map. There is one of each kind, or one of each kind and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// The next attempt to connect a path is due.
    Retry(PathId),
    /// A period of the heartbeat of a path is over.
    Heartbeat(PathId),
    /// I/O has waited for `no_path_timeout_ms`.
    Expiry,
    /// The server may have given the map's place to another one.
    Lease,
    /// What there was no room to send can be tried again.
    SendRetry,
}

/// How long a timer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delay {
    /// At least so long, in ms.
    pub ms: u32,
    /// And a random time up to this one more, in ms.
    pub jitter_ms: u32,
}

impl Delay {
    /// A delay without jitter.
    pub const fn exactly(ms: u32) -> Self {
        Self { ms, jitter_ms: 0 }
    }

    /// Returns how long it is with these random bits, in ms.
    pub fn with(self, random: u32) -> u64 {
        u64::from(self.ms) + u64::from(random) % (u64::from(self.jitter_ms) + 1)
    }
}

/// Time in ms that a server may lose with what it sends in many replies, whatever their number.
const REPLIES_GRACE_MS: u64 = 10_000;

/// Returns true if a server is too slow that has sent `count` items in `spent_ms`, when a reply has
/// up to `batch` of them, and may take `reply_ms`.
///
/// One that fills each reply may use up the whole time of each of them, so that the largest list
/// has the time that it takes. One that sends an item now and then is given up on.
pub fn is_too_slow(count: u32, batch: u32, reply_ms: u32, spent_ms: u32) -> bool {
    let earned_ms = u64::from(count) * u64::from(reply_ms) / u64::from(batch.max(1));
    u64::from(spent_ms) > REPLIES_GRACE_MS + earned_ms
}

/// The delay before the second attempt to connect, in ms.
const FIRST_MS: u32 = 100;
/// The longest delay between attempts while I/O waits, in ms.
const URGENT_MS: u32 = 500;
/// Attempts after which the delay is as long as it gets: 100 ms doubled so often is more than a
/// day.
const ATTEMPTS_MAX: u32 = 20;

/// The exponential backoff of a path: the delay doubles with each attempt that fails. Half of it is
/// random, so that the clients of a server that went away do not all come back at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    attempts: u32,
}

/// Nothing but the length of a delay depends on it: the model checker, which lets timers elapse at
/// any moment, takes states that differ by it alone for the same.
impl Hash for Backoff {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Backoff {
    /// No attempt has failed yet.
    pub const fn new() -> Self {
        Self { attempts: 0 }
    }

    /// The delay before the next attempt: at most `max_ms`, and at most half a second if I/O waits
    /// for it, which is what `urgent` says.
    pub fn next(&mut self, max_ms: u32, urgent: bool) -> Delay {
        let max_ms = match urgent {
            true => max_ms.min(URGENT_MS),
            false => max_ms,
        };
        let whole = FIRST_MS.saturating_mul(1 << self.attempts).min(max_ms);
        self.attempts = (self.attempts + 1).min(ATTEMPTS_MAX);
        Delay {
            ms: whole / 2,
            jitter_ms: whole - whole / 2,
        }
    }

    /// The path works again.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

/// The lease of a map's place at the server, while no path is up. Client and server each count one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lease {
    /// It does not run: a path is up, or none was.
    Kept,
    /// It runs.
    Running,
    /// The server may give the place to another map.
    Over,
}

/// Quarters of a heartbeat, in which its time is counted.
const QUARTERS: u8 = 4;
/// The quarters of a period if another path is up: its loss is to be noticed soon, as I/O can go on
/// there.
const PERIOD: u8 = 1;
/// The same if no other path is up: nothing is gained by asking more often.
const PERIOD_ALONE: u8 = 2;
/// Silent quarters with which a path is given up if another one is up.
const SILENT_MAX: u8 = 6;
/// The same if no other path is up: three heartbeats.
const SILENT_ALONE_MAX: u8 = 12;

/// What to do at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Nothing.
    Fine,
    /// Send a ping, which the server has to answer.
    Ping,
    /// The keep-alive timeout is over: the server is taken for gone.
    TimedOut,
}

/// The heartbeat of a path, as the client sees it: counts the time in which nothing was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The period that runs, in quarters of a heartbeat.
    period: u8,
    /// Quarters in which nothing was heard.
    silent: u8,
    /// Quarters since the last ping.
    since_ping: u8,
}

/// The period that runs says only when a timer elapses, and the model checker lets timers elapse at
/// any moment.
impl Hash for Heartbeat {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.silent, self.since_ping).hash(state);
    }
}

impl Heartbeat {
    /// The path has just come up, and a ping was sent. `alone` says whether no other path is up.
    pub const fn new(alone: bool) -> Self {
        Self {
            period: Self::period(alone),
            silent: 0,
            since_ping: 0,
        }
    }

    const fn period(alone: bool) -> u8 {
        match alone {
            true => PERIOD_ALONE,
            false => PERIOD,
        }
    }

    /// The length of the period that runs, in ms; `None` if there is no heartbeat.
    pub fn period_ms(&self, heartbeat_ms: u32) -> Option<u32> {
        let quarter = (heartbeat_ms / u32::from(QUARTERS)).max(1);
        (heartbeat_ms != 0).then(|| quarter.saturating_mul(u32::from(self.period)))
    }

    /// The period is over, and the next one begins. `heard` says whether anything came in it,
    /// `alone` whether no other path is up.
    ///
    /// The server wants to hear of this host, too: there is a ping in each heartbeat in any case.
    pub fn elapsed(&mut self, heard: bool, alone: bool) -> KeepAlive {
        self.since_ping = self.since_ping.saturating_add(self.period);
        self.silent = match heard {
            true => 0,
            false => self.silent.saturating_add(self.period),
        };
        self.period = Self::period(alone);
        let max = match alone {
            true => SILENT_ALONE_MAX,
            false => SILENT_MAX,
        };
        if self.silent >= max {
            return KeepAlive::TimedOut;
        }
        // The next period ends in time for the next ping.
        if heard && self.since_ping.saturating_add(self.period) <= QUARTERS {
            return KeepAlive::Fine;
        }
        self.since_ping = 0;
        KeepAlive::Ping
    }
}

/// The time, in ms, that the HCA has at least to complete a command that was answered: it may have
/// to send it several times until it is acknowledged.
pub const SENT_MIN_MS: u64 = 5000;

/// The progress of a connection when a request was found late: of RDMA READs and WRITEs, which
/// complete in order, or of commands that were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When that was, in ms.
    pub at_ms: u64,
    /// How many RDMA READs and WRITEs had completed; of commands, a number that changes unless one
    /// that was answered is still not complete.
    pub completions: u64,
}

impl Progress {
    /// A request is found late at `now_ms`, when `completions` is this. Returns true if it has not
    /// changed for `timeout_ms`. Which request it is does not matter.
    pub fn is_missing(&mut self, now_ms: u64, completions: u64, timeout_ms: u64) -> bool {
        if completions != self.completions {
            *self = Self {
                at_ms: now_ms,
                completions,
            };
        }
        now_ms.saturating_sub(self.at_ms) >= timeout_ms.max(1)
    }
}

/// The longest interval between heartbeats, in ms, that a map can be set to.
pub const HEARTBEAT_MAX_MS: u32 = 60_000;

/// Heartbeats in which a server hears nothing before the client is taken for gone, and the least
/// time, in ms: other clients wait for nothing but its place.
const MISSING: u64 = 5;
const KEEP_ALIVE_MIN_MS: u64 = 5000;

/// The keep-alive timeout of a client, as a server sees it that looks now and then. The looks are
/// counted, not the time: a server that was stopped itself has heard nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeepAliveTimeout {
    /// Looks without news after which the client is gone; `None` if that was told.
    looks_max: Option<u64>,
    /// What there was at the last look.
    heard: u64,
    /// Looks since then that found nothing new.
    looks: u64,
}

impl KeepAliveTimeout {
    /// Nothing is missing yet. The client promised to say something every `heartbeat_ms`. If that
    /// is 0, which promises nothing, or more than a map can be set to, it has `most_ms`: of one
    /// that is silent nobody knows whether it still exists. `heard` is how much it has said so far,
    /// and a look comes every `look_ms`.
    pub fn new(heartbeat_ms: u32, most_ms: u32, look_ms: u32, heard: u64) -> Self {
        let timeout_ms = match heartbeat_ms {
            ms @ 1..=HEARTBEAT_MAX_MS => u64::from(ms) * MISSING,
            _ => most_ms.into(),
        };
        let looks = timeout_ms
            .max(KEEP_ALIVE_MIN_MS)
            .div_ceil(look_ms.max(1).into());
        Self {
            looks_max: Some(looks),
            heard,
            looks: 0,
        }
    }

    /// A look: the client has said so much by now. Returns true, once, if it is gone.
    pub fn look(&mut self, heard: u64) -> bool {
        self.looks = match heard == self.heard {
            true => self.looks.saturating_add(1),
            false => 0,
        };
        self.heard = heard;
        let gone = self.looks_max.is_some_and(|max| self.looks > max);
        if gone {
            self.looks_max = None;
        }
        gone
    }

    /// Whether the last look found something new.
    pub fn has_heard(&self) -> bool {
        self.looks == 0
    }
}
