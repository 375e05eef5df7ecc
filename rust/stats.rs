// SPDX-License-Identifier: GPL-2.0

//! What is counted of the I/O of a map, and of an export of a block device.
//!
//! Each hardware queue of a map, and each I/O connection of an export, counts in a [`QueueStats`]
//! of its own, which shares no cache line with another one. Nobody adds these up before a file is
//! read. A count is one relaxed addition: requests of one hardware queue may end on several CPUs at
//! once, if it has several paths.
//!
//! To read the clock costs more than to count. So of I/Os that end soon only one in [`EVERY`] is
//! measured, and the others count as that did. Each that takes longer is measured, so that what is
//! rare and slow shows.

#![forbid(unsafe_code)]

pub mod latency;

use kernel::fmt;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

use crate::base::clock;
use latency::{
    bucket,
    Histogram,
    BUCKETS, //
};

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Reads data.
    Read,
    /// Writes data.
    Write,
    /// Writes the volatile cache back.
    Flush,
    /// Discards or erases blocks.
    Discard,
    /// Zeroes blocks.
    WriteZeroes,
}

/// Of so many short I/Os one is measured.
const EVERY: u32 = 16;
/// What is short at most, in ns, and a tick of the timer.
const SHORT_NS: u64 = 1_000_000;

/// The last time that the clock was read for a queue. Several CPUs may do so at once, and leave
/// what is late by as much as one of them was.
struct LastTime {
    ns: Atomic<u64>,
    /// In ticks of the timer.
    tick: Atomic<u32>,
}

impl LastTime {
    fn read(&self) -> u64 {
        let ns = clock::now_ns();
        self.ns.store(ns, Relaxed);
        self.tick.store(clock::ticks(), Relaxed);
        ns
    }

    /// Returns true if an I/O that ends now is short.
    #[inline]
    fn is_just_after(&self, began_ns: u64) -> bool {
        self.tick.load(Relaxed) == clock::ticks()
            && self.ns.load(Relaxed).saturating_sub(began_ns) < SHORT_NS
    }
}

/// The latency of one kind of I/O, being counted.
struct Latency {
    counts: [Atomic<u64>; BUCKETS],
    /// Number of short I/Os before the next one that is measured.
    skip: Atomic<u32>,
    /// The bucket of the last one that was.
    last: Atomic<u32>,
}

impl Latency {
    const fn new() -> Self {
        Self {
            counts: [const { Atomic::new(0) }; BUCKETS],
            skip: Atomic::new(0),
            last: Atomic::new(0),
        }
    }

    /// Counts an I/O that ends now.
    #[inline]
    fn count(&self, began_ns: u64, time: &LastTime) {
        let skip = self.skip.load(Relaxed);
        let index = match skip != 0 && time.is_just_after(began_ns) {
            true => {
                self.skip.store(skip - 1, Relaxed);
                // CAST: The index of a bucket.
                self.last.load(Relaxed) as usize
            }
            false => self.measure(began_ns, time),
        };
        // The index is always in range.
        if let Some(count) = self.counts.get(index) {
            count.add(1, Relaxed);
        }
    }

    /// Measures an I/O that ends now, and returns its bucket.
    #[cold]
    fn measure(&self, began_ns: u64, time: &LastTime) -> usize {
        let ns = time.read().saturating_sub(began_ns);
        let index = bucket(ns);
        if ns < SHORT_NS {
            // CAST: The index of a bucket.
            self.last.store(index as u32, Relaxed);
            self.skip.store(EVERY - 1, Relaxed);
        }
        index
    }

    fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().map(|count| count.load(Relaxed))
    }
}

/// The counters of one queue.
#[repr(C, align(64))]
pub(crate) struct QueueStats {
    time: LastTime,
    reads: Latency,
    writes: Latency,
    flushes: Latency,
    read_bytes: Atomic<u64>,
    write_bytes: Atomic<u64>,
    discards: Atomic<u64>,
    write_zeroes: Atomic<u64>,
    errors: Atomic<u64>,
    retries: Atomic<u64>,
    in_flight: Atomic<u32>,
}

impl QueueStats {
    /// Makes counters that are zero.
    pub(crate) const fn new() -> Self {
        Self {
            time: LastTime {
                ns: Atomic::new(0),
                tick: Atomic::new(0),
            },
            reads: Latency::new(),
            writes: Latency::new(),
            flushes: Latency::new(),
            read_bytes: Atomic::new(0),
            write_bytes: Atomic::new(0),
            discards: Atomic::new(0),
            write_zeroes: Atomic::new(0),
            errors: Atomic::new(0),
            retries: Atomic::new(0),
            in_flight: Atomic::new(0),
        }
    }

    /// Counts an I/O of `bytes` that ends now, and which began at `began_ns`. If it did not
    /// succeed, its bytes do not count. Any context.
    #[inline]
    pub(crate) fn ended(&self, op: Op, bytes: u32, succeeded: bool, began_ns: u64) {
        match op {
            Op::Read => self.reads.count(began_ns, &self.time),
            Op::Write => self.writes.count(began_ns, &self.time),
            Op::Flush => self.flushes.count(began_ns, &self.time),
            Op::Discard => self.discards.add(1, Relaxed),
            Op::WriteZeroes => self.write_zeroes.add(1, Relaxed),
        }
        match op {
            _ if !succeeded => self.failed(),
            Op::Read => self.read_bytes.add(bytes.into(), Relaxed),
            Op::Write => self.write_bytes.add(bytes.into(), Relaxed),
            Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
    }

    /// Counts an I/O that was refused before it began. Any context.
    #[cold]
    pub(crate) fn failed(&self) {
        self.errors.add(1, Relaxed);
    }

    /// Counts an I/O that is sent again because its path was lost. Any context.
    #[cold]
    pub(crate) fn retried(&self) {
        self.retries.add(1, Relaxed);
    }

    /// Notes that an I/O is in flight, and returns how many are now. Any context.
    #[inline]
    pub(crate) fn enter(&self) -> u32 {
        self.in_flight.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Notes that an I/O for which [`Self::enter`] was called is in flight no more. Any context.
    #[inline]
    pub(crate) fn leave(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Notes that no I/O is in flight. Any context.
    pub(crate) fn clear_in_flight(&self) {
        self.in_flight.store(0, Relaxed);
    }
}

/// The sum of the counters of several queues.
pub(crate) struct Totals {
    reads: Histogram,
    writes: Histogram,
    flushes: Histogram,
    read_bytes: u64,
    write_bytes: u64,
    discards: u64,
    write_zeroes: u64,
    errors: u64,
    /// I/Os that were sent again.
    pub(crate) retries: u64,
    /// I/Os in flight, where [`QueueStats::enter`] counts them.
    pub(crate) in_flight: u32,
}

impl Totals {
    /// Adds up the counters of `queues`. I/Os that end meanwhile may be missing.
    pub(crate) fn of<'a>(queues: impl Iterator<Item = &'a QueueStats>) -> Self {
        let mut totals = Self {
            reads: Histogram::new(),
            writes: Histogram::new(),
            flushes: Histogram::new(),
            read_bytes: 0,
            write_bytes: 0,
            discards: 0,
            write_zeroes: 0,
            errors: 0,
            retries: 0,
            in_flight: 0,
        };
        queues.for_each(|queue| totals.add(queue));
        totals
    }

    fn add(&mut self, queue: &QueueStats) {
        self.reads.add(queue.reads.counts());
        self.writes.add(queue.writes.counts());
        self.flushes.add(queue.flushes.counts());
        for (sum, count) in [
            (&mut self.read_bytes, &queue.read_bytes),
            (&mut self.write_bytes, &queue.write_bytes),
            (&mut self.discards, &queue.discards),
            (&mut self.write_zeroes, &queue.write_zeroes),
            (&mut self.errors, &queue.errors),
            (&mut self.retries, &queue.retries),
        ] {
            *sum = sum.wrapping_add(count.load(Relaxed));
        }
        self.in_flight = self.in_flight.saturating_add(queue.in_flight.load(Relaxed));
    }

    /// Returns the number of reads, writes and write zeroes.
    pub(crate) fn data_ios(&self) -> u64 {
        let writes = self.writes.total().wrapping_add(self.write_zeroes);
        self.reads.total().wrapping_add(writes)
    }

    /// Prints the counters that maps and exports have in common, one on each line.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "reads {}", self.reads.total())?;
        writeln!(f, "writes {}", self.writes.total())?;
        writeln!(f, "flushes {}", self.flushes.total())?;
        writeln!(f, "discards {}", self.discards)?;
        writeln!(f, "write_zeroes {}", self.write_zeroes)?;
        writeln!(f, "read_bytes {}", self.read_bytes)?;
        writeln!(f, "write_bytes {}", self.write_bytes)?;
        writeln!(f, "errors {}", self.errors)
    }

    /// Prints the histograms, one on each line.
    pub(crate) fn show_latency(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "read {}", self.reads)?;
        writeln!(f, "write {}", self.writes)?;
        writeln!(f, "flush {}", self.flushes)
    }
}
