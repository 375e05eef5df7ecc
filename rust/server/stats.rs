// SPDX-License-Identifier: GPL-2.0

//! The counters of the server, which can be read below `/sys/kernel/debug/farblk/`.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use crate::base::debugfs::{
    Dir,
    Show, //
};

/// An event counter.
pub(crate) struct Counter(Atomic<u64>);

impl Counter {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts one event. Any context.
    pub(crate) fn count(&self) {
        self.0.add(1, Relaxed);
    }

    /// Returns the number of events so far. Any context.
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of the server.
pub(crate) struct Server {
    /// Logins that were granted.
    pub(crate) logins: Counter,
    /// Memory regions that were registered.
    pub(crate) grants: Counter,
    /// Completions on one-sided I/O queue pairs. There should be none.
    pub(crate) io_completions: Counter,
    /// Messages that violated the protocol, and so ended a connection.
    pub(crate) violations: Counter,
    /// Fences that were answered.
    pub(crate) fences: Counter,
    /// Maps that lost their registration to another map while they had no path.
    pub(crate) takeovers: Counter,
    /// Maps that lost their registration because their host is not admitted any more.
    pub(crate) evictions: Counter,
    /// Sessions that ended because the keep-alive timeout of their client expired.
    pub(crate) heartbeats_missed: Counter,
}

impl Server {
    /// Makes counters that are zero.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let stats = Self {
            logins: Counter::new(),
            grants: Counter::new(),
            io_completions: Counter::new(),
            violations: Counter::new(),
            fences: Counter::new(),
            takeovers: Counter::new(),
            evictions: Counter::new(),
            heartbeats_missed: Counter::new(),
        };
        Ok(Arc::new(stats, GFP_KERNEL)?)
    }
}

impl Show for Server {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "logins {}", self.logins.get())?;
        writeln!(f, "grants {}", self.grants.get())?;
        writeln!(f, "io_completions {}", self.io_completions.get())?;
        writeln!(f, "violations {}", self.violations.get())?;
        writeln!(f, "fences {}", self.fences.get())?;
        writeln!(f, "takeovers {}", self.takeovers.get())?;
        writeln!(f, "evictions {}", self.evictions.get())?;
        writeln!(f, "heartbeats_missed {}", self.heartbeats_missed.get())
    }
}

/// The directories in `farblk/`.
pub(crate) struct Files {
    /// `client/`, which has a directory for each live map.
    pub(crate) client: Dir,
    /// `server/`.
    pub(crate) server: Dir,
}

impl Files {
    /// Makes the directories appear. May sleep.
    pub(crate) fn new() -> Result<Self> {
        let dir = Dir::new(c"farblk")?;
        Ok(Self {
            client: dir.subdir(c"client")?,
            server: dir.subdir(c"server")?,
        })
    }
}
