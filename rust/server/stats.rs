// SPDX-License-Identifier: GPL-2.0

//! The counters of the server, which can be read below `/sys/kernel/debug/farblk/`.

#![forbid(unsafe_code)]

use core::ops::Deref;

use kernel::prelude::*;
use kernel::{
    fmt, new_mutex,
    str::CString,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    },
};

use crate::base::{
    clock,
    debugfs::{
        Dir,
        File,
        Writer, //
    },
};
use crate::proto::{
    Name,
    Operation,
    Status, //
};
use crate::stats::{
    Op,
    QueueStats,
    Totals, //
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
    /// Messages and requests for I/O connections that did not prove the key of their session.
    pub(crate) forgeries: Counter,
    /// Commands and data of I/O connections with another check than theirs.
    pub(crate) forged: Counter,
    /// Connections that were told to come again, as many are half-open.
    pub(crate) sent_away: Counter,
    /// Fences that were answered.
    pub(crate) fences: Counter,
    /// Maps that lost their registration to another map while they had no path.
    pub(crate) takeovers: Counter,
    /// Maps that lost their registration because their host is not admitted any more.
    pub(crate) evictions: Counter,
    /// Sessions that ended because the keep-alive timeout of their client expired.
    pub(crate) heartbeats_missed: Counter,
    /// Sessions that ended because their client did not acknowledge, or did not let its memory be
    /// read, while others waited for the memory of its commands.
    pub(crate) overdue: Counter,
}

impl Server {
    /// Makes counters that are zero.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let stats = Self {
            logins: Counter::new(),
            grants: Counter::new(),
            io_completions: Counter::new(),
            violations: Counter::new(),
            forgeries: Counter::new(),
            forged: Counter::new(),
            sent_away: Counter::new(),
            fences: Counter::new(),
            takeovers: Counter::new(),
            evictions: Counter::new(),
            heartbeats_missed: Counter::new(),
            overdue: Counter::new(),
        };
        Ok(Arc::new(stats, GFP_KERNEL)?)
    }
}

/// Prints the counters of the server.
pub(crate) struct ServerCounters(pub(crate) Arc<Server>);

impl Writer for ServerCounters {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(server) = self;
        writeln!(f, "logins {}", server.logins.get())?;
        writeln!(f, "grants {}", server.grants.get())?;
        writeln!(f, "io_completions {}", server.io_completions.get())?;
        writeln!(f, "violations {}", server.violations.get())?;
        writeln!(f, "forgeries {}", server.forgeries.get())?;
        writeln!(f, "forged {}", server.forged.get())?;
        writeln!(f, "sent_away {}", server.sent_away.get())?;
        writeln!(f, "fences {}", server.fences.get())?;
        writeln!(f, "takeovers {}", server.takeovers.get())?;
        writeln!(f, "evictions {}", server.evictions.get())?;
        writeln!(f, "heartbeats_missed {}", server.heartbeats_missed.get())?;
        writeln!(f, "overdue {}", server.overdue.get())
    }
}

/// The counters of one I/O connection at a time. When that has ended, another one counts on.
struct Slot {
    queue: QueueStats,
    /// 1 while a connection counts here, else 0.
    used: Atomic<u32>,
}

/// The counters of the I/O connections of an export of a block device. They live as long as the
/// export is enabled: what a connection has counted stays when it ends.
#[pin_data]
pub(in crate::server) struct ExportStats {
    /// As many as there were connections at a time.
    #[pin]
    slots: Mutex<KVec<Arc<Slot>>>,
}

impl ExportStats {
    /// Makes counters that are zero. May sleep.
    pub(in crate::server) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { slots <- new_mutex!(KVec::new(), "ExportStats::slots") }),
            GFP_KERNEL,
        )
    }

    /// Returns the counters for a new connection. May sleep.
    pub(in crate::server) fn connection(&self) -> Result<ConnectionStats> {
        let mut slots = self.slots.lock();
        let free = slots.iter().find(|slot| slot.used.load(Acquire) == 0);
        let slot = match free {
            Some(slot) => slot.clone(),
            None => {
                let slot = Slot {
                    queue: QueueStats::new(),
                    used: Atomic::new(0),
                };
                let slot = Arc::new(slot, GFP_KERNEL)?;
                slots.push(slot.clone(), GFP_KERNEL)?;
                slot
            }
        };
        slot.used.store(1, Relaxed);
        Ok(ConnectionStats(slot))
    }

    fn totals(&self) -> Totals {
        let slots = self.slots.lock();
        Totals::of(slots.iter().map(|slot| &slot.queue))
    }
}

/// The counters of a connection. Dropped in any context.
pub(in crate::server) struct ConnectionStats(Arc<Slot>);

impl ConnectionStats {
    /// Returns the time that [`Self::answered`] wants. Any context.
    #[inline]
    pub(in crate::server) fn now_ns() -> u64 {
        clock::now_ns()
    }

    /// Counts a command that began at `began_ns` and is answered now. With 0 it did not begin, but
    /// was refused. Any context.
    pub(in crate::server) fn answered(&self, operation: &Operation, status: Status, began_ns: u64) {
        let op = match operation {
            Operation::Read { .. } => Op::Read,
            Operation::Write { .. } => Op::Write,
            Operation::Flush => Op::Flush,
            Operation::Reserve { .. } | Operation::Report => return,
            Operation::Discard { .. } | Operation::SecureErase { .. } => Op::Discard,
            Operation::WriteZeroes { .. } => Op::WriteZeroes,
        };
        if began_ns == 0 {
            return self.failed();
        }
        let bytes = operation.span().map_or(0, |span| span.len);
        self.ended(op, bytes, status == Status::Ok, began_ns);
    }
}

impl Deref for ConnectionStats {
    type Target = QueueStats;

    #[inline]
    fn deref(&self) -> &QueueStats {
        &self.0.queue
    }
}

impl Drop for ConnectionStats {
    fn drop(&mut self) {
        // The client of a connection that was lost does not wait for its answers any more.
        self.0.queue.clear_in_flight();
        self.0.used.store(0, Release);
    }
}

/// Prints the counters of an export.
struct Counters(Arc<ExportStats>);

impl Writer for Counters {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = self.0.totals();
        totals.show(f)?;
        writeln!(f, "in_flight {}", totals.in_flight)
    }
}

/// Prints the histograms of an export.
struct Latency(Arc<ExportStats>);

impl Writer for Latency {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.totals().show_latency(f)
    }
}

/// The debugfs files of an export of a block device. They are there until this is dropped, which
/// sleeps.
#[pin_data]
pub(crate) struct ExportFiles {
    #[pin]
    _counters: File<Counters>,
    #[pin]
    _latency: File<Latency>,
}

impl ExportFiles {
    /// Makes the files of the export `name` appear in `exports`. May sleep.
    pub(in crate::server) fn new(
        exports: &Dir,
        name: &Name,
        stats: &Arc<ExportStats>,
    ) -> Result<Pin<KBox<Self>>> {
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        let dir = exports.subdir(&name);
        KBox::try_pin_init(
            try_pin_init!(Self {
                _counters <- dir.read_only_file(c"stats", Counters(stats.clone())),
                _latency <- dir.read_only_file(c"latency", Latency(stats.clone())),
            }),
            GFP_KERNEL,
        )
    }
}

/// The directories in `farblk/`.
pub(crate) struct Files {
    /// `client/`, which has a directory for each live map.
    pub(crate) client: Dir,
    /// `server/`.
    pub(crate) server: Dir,
    /// `maps/`, which has a directory for each enabled map.
    pub(crate) maps: Dir,
    /// `exports/`, which has a directory for each enabled export of a block device.
    pub(crate) exports: Dir,
}

impl Files {
    /// Makes the directories appear. May sleep.
    pub(crate) fn new() -> Self {
        let dir = Dir::new(c"farblk");
        Self {
            client: dir.subdir(c"client"),
            server: dir.subdir(c"server"),
            maps: dir.subdir(c"maps"),
            exports: dir.subdir(c"exports"),
        }
    }
}
