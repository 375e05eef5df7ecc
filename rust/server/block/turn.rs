// SPDX-License-Identifier: GPL-2.0

//! A turn of the worker of a poller: how long it looks for more commands, by the clock.

#![forbid(unsafe_code)]

use kernel::time::{
    Delta,
    Instant,
    Monotonic, //
};

use crate::base::sync;
use crate::server::block::vigil::Vigil;

/// The longest time for which a worker runs before others of its CPU have their turn, in ns. Those
/// of the same kind, also of other drivers, do not show as tasks that want the CPU.
const TURN_NS: u64 = 50_000;

/// What a poller's worker knows of the time. Only the worker uses it.
pub(super) struct Turn {
    vigil: Vigil,
    /// When its turn began.
    begun: Instant<Monotonic>,
    /// When it has handled commands last.
    idle_since: Instant<Monotonic>,
}

impl Turn {
    /// Makes one that has learned as much as `vigil`. Any context.
    pub(super) fn new(vigil: Vigil) -> Self {
        let now = Instant::now();
        Self {
            vigil,
            begun: now,
            idle_since: now,
        }
    }

    /// Returns true if the worker may look on when there are no commands.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.vigil.is_on()
    }

    /// The worker has its turn. Returns when that is.
    pub(super) fn begin(&mut self) -> Instant<Monotonic> {
        self.begun = Instant::now();
        self.begun
    }

    /// The worker has looked at `at`, and has handled the commands that it found then.
    pub(super) fn handled(&mut self, at: Instant<Monotonic>) {
        let pause = at - self.idle_since;
        // Those of one look may be handled in two parts.
        if !pause.is_negative() {
            self.vigil.note(nanoseconds(pause));
        }
        self.idle_since = Instant::now();
    }

    /// Returns true if the turn is over.
    pub(super) fn is_over(&self, now: Instant<Monotonic>) -> bool {
        nanoseconds(now - self.begun) > TURN_NS
    }

    /// Returns true if it pays to look once more, and no other task wants the CPU.
    pub(super) fn goes_on(&self, now: Instant<Monotonic>) -> bool {
        nanoseconds(now - self.idle_since) < self.vigil.patience_ns() && sync::may_look_on()
    }
}

/// Returns a span of time, in ns; 0 if it is negative.
fn nanoseconds(span: Delta) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(0)
}
