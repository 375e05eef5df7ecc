// SPDX-License-Identifier: GPL-2.0
//! Jobs that read and write at random places, and one who looks after them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::block::{self, SIZE};
use crate::disk::{Buffer, Disk};
use crate::table::{Before, Table, Violation, Wrong};

/// Violations that are told; all are counted.
const TOLD: usize = 20;
/// Stalls that are told.
const STALLS: usize = 1000;
/// Pause of a job after an error, so that it does not only fail.
const PAUSE: Duration = Duration::from_millis(20);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// I/Os at a time.
    pub jobs: usize,
    /// Blocks of an I/O: one of these.
    pub sizes: Vec<usize>,
    /// Percent of I/Os that read.
    pub reads: u64,
    /// A job flushes after so many writes; 0 is never.
    pub flush: u64,
    /// Of the random numbers.
    pub seed: u64,
    /// Pause of a job after each I/O.
    pub pause: Duration,
    /// An I/O that takes longer has not come back; the run then ends without it.
    pub hang: Duration,
    /// When nothing was complete for that long, it is told.
    pub stall: Duration,
}

/// A time without an I/O that was complete.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    /// Since the run began.
    pub at: Duration,
    /// Duration of the run.
    pub length: Duration,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Complete I/Os.
    pub reads: u64,
    /// The same.
    pub writes: u64,
    /// The same.
    pub flushes: u64,
    /// Blocks that are used.
    pub blocks: u64,
    /// Blocks that were read and looked at.
    pub checked: u64,
    /// I/Os that failed.
    pub read_errors: u64,
    /// The same.
    pub write_errors: u64,
    /// The same.
    pub flush_errors: u64,
    /// The last error's words.
    pub last_error: String,
    /// By the index of [`Wrong::ALL`].
    pub wrong: [u64; Wrong::ALL.len()],
    /// The first of them.
    pub told: Vec<String>,
    /// I/Os that have not come back.
    pub hung: u64,
    /// I/Os that took longer than the plan's stall.
    pub slow: u64,
    /// The slowest of all.
    pub slowest: Duration,
    /// When the slowest began, since the run began.
    pub slowest_at: Duration,
    /// The longest time without an I/O that was complete.
    pub longest: Option<Stall>,
    /// All that were longer than the plan says, in their order.
    pub stalls: Vec<Stall>,
    /// Duration of the run.
    pub took: Duration,
}

impl Report {
    /// Everything was as it must be; errors are no violation.
    pub fn clean(&self) -> bool {
        self.hung == 0 && self.wrong.iter().all(|count| *count == 0)
    }

    fn violation(&mut self, violation: &Violation) {
        for (index, (wrong, _)) in Wrong::ALL.iter().enumerate() {
            self.wrong[index] += u64::from(*wrong == violation.wrong);
        }
        self.tell(violation);
    }

    fn tell(&mut self, what: impl fmt::Display) {
        if self.told.len() < TOLD {
            self.told.push(what.to_string());
        }
    }
}

struct State {
    table: Table,
    report: Report,
    last: Instant,
}

/// A disk, what is known of its blocks, and who works on it.
pub struct Run {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    start: Instant,
    stop: AtomicBool,
    plan: Plan,
    /// By job: when its I/O began, in microseconds after `start`, from 1; 0: it has none.
    busy: Vec<AtomicU64>,
    /// The block where a pass goes on.
    next: AtomicUsize,
}

impl Run {
    /// Nothing has been done yet.
    pub fn new(disk: Arc<dyn Disk>, table: Table, plan: Plan) -> Arc<Self> {
        let start = Instant::now();
        let busy = (0..plan.jobs.max(1)).map(|_| AtomicU64::new(0)).collect();
        let state = Mutex::new(State {
            table,
            report: Report::default(),
            last: start,
        });
        Arc::new(Self {
            disk,
            state,
            start,
            stop: AtomicBool::new(false),
            plan,
            busy,
            next: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that may take long.
    fn io<T>(&self, job: usize, io: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let began = Instant::now();
        let at = (began - self.start).as_micros() as u64 + 1;
        self.busy[job].store(at, Ordering::Relaxed);
        let result = io();
        self.busy[job].store(0, Ordering::Relaxed);
        let (mut state, now) = (self.state(), Instant::now());
        state.report.slow += u64::from(now - began >= self.plan.stall);
        if now - began > state.report.slowest {
            state.report.slowest = now - began;
            state.report.slowest_at = began - self.start;
        }
        match &result {
            Ok(_) => self.complete(&mut state, now),
            Err(error) => state.report.last_error = error.to_string(),
        }
        result
    }

    /// Something was complete, after a time in which nothing was.
    fn complete(&self, state: &mut State, now: Instant) {
        let length = now.saturating_duration_since(state.last);
        let stall = Stall {
            at: state.last - self.start,
            length,
        };
        if state
            .report
            .longest
            .is_none_or(|longest| length > longest.length)
        {
            state.report.longest = Some(stall);
        }
        if length >= self.plan.stall && state.report.stalls.len() < STALLS {
            state.report.stalls.push(stall);
        }
        state.last = state.last.max(now);
    }

    /// Writes some blocks, unless somebody writes one of them just now; whether there was no error.
    fn write(&self, job: usize, first: usize, buffer: &mut [u8]) -> bool {
        let count = buffer.len() / SIZE;
        let mut state = self.state();
        let Some(stamps) = state.table.begin_write(first, count) else {
            return true;
        };
        let stamps: Vec<_> = stamps.collect();
        drop(state);
        for (chunk, stamp) in buffer.chunks_exact_mut(SIZE).zip(stamps) {
            block::fill(chunk, stamp);
        }
        let result = self.io(job, || self.disk.write(first, buffer));
        let mut state = self.state();
        state.table.end_write(first, count, result.is_ok());
        state.report.writes += u64::from(result.is_ok());
        state.report.write_errors += u64::from(result.is_err());
        result.is_ok()
    }

    /// Reads some blocks and checks them; whether there was no error.
    fn read(&self, job: usize, first: usize, buffer: &mut [u8]) -> bool {
        let count = buffer.len() / SIZE;
        let state = self.state();
        let before: Vec<Before> = (first..first + count)
            .map(|block| state.table.begin_read(block))
            .collect();
        drop(state);
        let result = self.io(job, || self.disk.read(first, buffer));
        if result.is_err() {
            self.state().report.read_errors += 1;
            return false;
        }
        let found: Vec<_> = buffer.chunks_exact(SIZE).map(block::look).collect();
        let mut state = self.state();
        let State { table, report, .. } = &mut *state;
        report.reads += 1;
        report.checked += count as u64;
        for (index, (before, found)) in before.into_iter().zip(found).enumerate() {
            if let Err(violation) = table.end_read(first + index, before, found) {
                report.violation(&violation);
            }
        }
        true
    }

    fn flush(&self, job: usize) -> bool {
        let result = self.io(job, || self.disk.flush());
        let mut state = self.state();
        state.report.flushes += u64::from(result.is_ok());
        state.report.flush_errors += u64::from(result.is_err());
        result.is_ok()
    }

    fn job(&self, job: usize) {
        let plan = &self.plan;
        let blocks = self.state().table.blocks();
        let mut random = plan.seed.wrapping_add((job as u64) << 32);
        let mut draw = |below: u64| block::random(&mut random) % below.max(1);
        let largest = plan.sizes.iter().copied().max().unwrap_or(1);
        let mut buffer = Buffer::new(largest * SIZE);
        let mut written = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let size = plan.sizes[draw(plan.sizes.len() as u64) as usize].min(blocks);
            let first = draw((blocks - size + 1) as u64) as usize;
            let mut well = if draw(100) < plan.reads {
                self.read(job, first, &mut buffer[..size * SIZE])
            } else {
                written += 1;
                self.write(job, first, &mut buffer[..size * SIZE])
            };
            if plan.flush != 0 && written >= plan.flush {
                written = 0;
                well &= self.flush(job);
            }
            let pause = if well { plan.pause } else { PAUSE };
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
    }

    /// Goes once through all blocks, in steps of the largest size; all jobs share them.
    fn pass(&self, job: usize, step: fn(&Self, usize, usize, &mut [u8]) -> bool) {
        let blocks = self.state().table.blocks();
        let largest = self.plan.sizes.iter().copied().max().unwrap_or(1);
        let mut buffer = Buffer::new(largest * SIZE);
        loop {
            let first = self.next.fetch_add(largest, Ordering::Relaxed);
            if first >= blocks || self.stop.load(Ordering::Relaxed) {
                break;
            }
            let size = largest.min(blocks - first);
            step(self, job, first, &mut buffer[..size * SIZE]);
        }
    }

    /// I/Os that have taken too long.
    fn overdue(&self) -> u64 {
        let now = self.start.elapsed().as_micros() as u64;
        let limit = self.plan.hang.as_micros() as u64;
        let late = |began: &AtomicU64| {
            let began = began.load(Ordering::Relaxed);
            began != 0 && now.saturating_sub(began) > limit
        };
        self.busy.iter().filter(|began| late(began)).count() as u64
    }

    /// Runs `work` in a thread for each job, until they have ended or hang.
    fn watched(self: &Arc<Self>, work: fn(&Self, usize), mut ends: impl FnMut() -> bool) {
        self.next.store(0, Ordering::Relaxed);
        self.stop.store(false, Ordering::Relaxed);
        let all: Vec<_> = (0..self.plan.jobs)
            .map(|index| {
                let run = Arc::clone(self);
                thread::spawn(move || work(&run, index))
            })
            .collect();
        while all.iter().any(|thread| !thread.is_finished()) {
            if ends() {
                self.stop.store(true, Ordering::Relaxed);
            }
            let hung = self.overdue();
            if hung != 0 {
                self.stop.store(true, Ordering::Relaxed);
                let mut state = self.state();
                state.report.hung = hung;
                state
                    .report
                    .tell(format_args!("{hung} I/Os have not come back"));
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let died = all
            .into_iter()
            .filter_map(|thread| thread.join().err())
            .count();
        assert!(died == 0, "a job panicked");
    }

    /// Writes every block once.
    pub fn fill(self: &Arc<Self>) {
        self.watched(|run, job| run.pass(job, Self::write), || false);
    }

    /// Reads every block once.
    pub fn verify(self: &Arc<Self>) {
        self.watched(|run, job| run.pass(job, Self::read), || false);
    }

    /// Reads and writes until `ends`.
    pub fn work(self: &Arc<Self>, ends: impl FnMut() -> bool) {
        self.watched(Self::job, ends);
        let (mut state, now) = (self.state(), Instant::now());
        // Nothing may have been complete for a while, up to now.
        self.complete(&mut state, now);
    }

    /// The results so far.
    pub fn report(&self) -> Report {
        let state = self.state();
        let mut report = state.report.clone();
        report.blocks = state.table.blocks() as u64;
        report.took = self.start.elapsed();
        report
    }

    /// [`Table::save`] of what is known of the blocks.
    pub fn save(&self) -> Vec<u8> {
        self.state().table.save()
    }
}
