// SPDX-License-Identifier: GPL-2.0

//! How long an attempt to connect may take.

#![forbid(unsafe_code)]

use kernel::time::{
    Instant,
    Monotonic,
    Msecs, //
};

/// Timeout of one step of an attempt to connect, in ms; of the whole attempt while a user waits for
/// it.
pub(super) const CONNECT_TIMEOUT_MS: Msecs = 4000;

/// The end of an attempt, or of a step of it.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    start: Instant<Monotonic>,
    timeout: Msecs,
}

impl Deadline {
    /// Makes one that ends [`CONNECT_TIMEOUT_MS`] from now.
    pub(super) fn start() -> Self {
        Self {
            start: Instant::now(),
            timeout: CONNECT_TIMEOUT_MS,
        }
    }

    /// Returns one that ends `timeout` ms after the start of this one, if that is earlier.
    pub(super) fn sooner(self, timeout: Msecs) -> Self {
        Self {
            timeout: self.timeout.min(timeout),
            ..self
        }
    }

    /// Returns the milliseconds since the start.
    pub(super) fn spent(&self) -> Msecs {
        Msecs::try_from(self.start.elapsed().as_millis()).unwrap_or(Msecs::MAX)
    }

    /// Returns true if the end is past.
    pub(super) fn is_over(&self) -> bool {
        self.spent() >= self.timeout
    }

    /// Returns the milliseconds that are left; at least 1, as 0 would mean to wait for ever.
    pub(super) fn left(&self) -> Msecs {
        self.timeout.saturating_sub(self.spent()).max(1)
    }
}
