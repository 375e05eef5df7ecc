// SPDX-License-Identifier: GPL-2.0

//! The timers of a map that run, as `session::map` arms them.
//!
//! One kernel timer wakes the map's work item when the first of them elapses. Its clock stops while
//! the host is suspended, and so do the timers, but for that of the lease: the server goes on.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::time::{
    BootTime,
    Instant,
    Monotonic, //
};

use crate::base::sync;
use crate::session::{
    clock::{
        Delay,
        Timer, //
    },
    PATHS_MAX, //
};

/// Number of timers that may run at a time: two for each path, and those of the map.
const TIMERS_MAX: usize = 2 * PATHS_MAX + 4;

/// The timers that run. Only the map's work item uses them.
pub(super) struct Timers {
    start: Instant<Monotonic>,
    /// The same moment on the clock that goes on while the host is suspended.
    boot_start: Instant<BootTime>,
    /// The timers, with the time at which they elapse, in ms since `start` on their clock.
    running: KVec<(Timer, u64)>,
}

impl Timers {
    /// Makes a set without timers. May sleep.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            start: Instant::now(),
            boot_start: Instant::now(),
            running: KVec::with_capacity(TIMERS_MAX, GFP_KERNEL)?,
        })
    }

    /// Returns the milliseconds since the set was made.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0)
    }

    /// Returns the milliseconds since the set was made, as a timer counts them.
    fn now_of(&self, timer: Timer) -> u64 {
        match timer {
            Timer::Lease => u64::try_from(self.boot_start.elapsed().as_millis()).unwrap_or(0),
            _ => self.now(),
        }
    }

    /// Starts a timer. If it runs already, it elapses at the earlier one of the two times.
    pub(super) fn arm(&mut self, timer: Timer, delay: Delay) {
        // CAST: Any bits will do.
        let at = self.now_of(timer) + delay.with(sync::random_u64() as u32);
        match self.running.iter_mut().find(|(other, _)| *other == timer) {
            Some((_, other)) => *other = at.min(*other),
            // Cannot fail: the capacity suffices for all timers.
            None => drop(self.running.push_within_capacity((timer, at))),
        }
    }

    /// Stops a timer.
    pub(super) fn disarm(&mut self, timer: Timer) {
        self.running.retain(|(other, _)| *other != timer);
    }

    /// Takes [`Timer::Lease`], if it has elapsed.
    pub(super) fn take_lease(&mut self) -> Option<Timer> {
        let now = self.now_of(Timer::Lease);
        self.take(|timer, at| timer == Timer::Lease && at <= now)
    }

    /// Takes a timer other than [`Timer::Lease`] that has elapsed by `now`.
    pub(super) fn take_elapsed(&mut self, now: u64) -> Option<Timer> {
        self.take(|timer, at| timer != Timer::Lease && at <= now)
    }

    fn take(&mut self, which: impl Fn(Timer, u64) -> bool) -> Option<Timer> {
        let index = self
            .running
            .iter()
            .position(|(timer, at)| which(*timer, *at))?;
        let (timer, _) = self.running.remove(index).ok()?;
        Some(timer)
    }

    /// Returns the milliseconds until `timer` elapses, if it runs.
    pub(super) fn left_ms(&self, timer: Timer) -> Option<u64> {
        let (_, at) = self.running.iter().find(|(other, _)| *other == timer)?;
        Some(at.saturating_sub(self.now_of(timer)))
    }

    /// Returns the milliseconds until the first timer elapses, if one runs.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let left = |(timer, at): &(Timer, u64)| at.saturating_sub(self.now_of(*timer));
        self.running.iter().map(left).min()
    }
}
