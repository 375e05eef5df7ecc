// SPDX-License-Identifier: GPL-2.0
//! Disks that do what they must not, and that `stamp` has to catch; and some that it must not.

use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;

use crate::block::{self, Found, SIZE, Stamp};
use crate::disk::Disk;
use crate::run::{Plan, Report, Run};
use crate::table::{Table, Wrong};
use crate::{Options, is_bad};

const BLOCKS: usize = 64;

/// What a disk does wrong, each time after some I/O was right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flaw {
    /// Nothing.
    None,
    /// It fails writes, of which it does half, and reads.
    Errors,
    /// It says that a write is complete, and does not do it.
    Loses,
    /// It reads what was there before the last write.
    Stale,
    /// It writes in the wrong place.
    Misplaces,
    /// It does one half of a block's write.
    Tears,
    /// It turns a bit over.
    Flips,
    /// It fails a write, and does it after the next one to that place.
    LandsLate,
    /// It fails a write, and does it after the next read from that place.
    LandsAfterRead,
    /// It never comes back.
    Hangs,
}

struct Contents {
    now: Vec<u8>,
    /// Before the last write of each block.
    old: Vec<u8>,
    /// A write that was not done: its place and bytes.
    late: Option<(usize, Vec<u8>)>,
}

struct Fake {
    flaw: Flaw,
    every: u64,
    count: AtomicU64,
    contents: Mutex<Contents>,
}

impl Fake {
    fn new(flaw: Flaw) -> Self {
        let contents = Contents {
            now: vec![0; BLOCKS * SIZE],
            old: vec![0; BLOCKS * SIZE],
            late: None,
        };
        // After the disk was filled.
        Self {
            flaw,
            every: 100,
            count: AtomicU64::new(0),
            contents: Mutex::new(contents),
        }
    }

    fn misbehaves(&self, flaws: &[Flaw]) -> bool {
        flaws.contains(&self.flaw)
            && self.count.fetch_add(1, Ordering::Relaxed) % self.every == self.every - 1
    }
}

impl Contents {
    fn put(&mut self, first: usize, bytes: &[u8]) {
        let place = first * SIZE..first * SIZE + bytes.len();
        let before = self.now[place.clone()].to_vec();
        self.old[place.clone()].copy_from_slice(&before);
        self.now[place].copy_from_slice(bytes);
    }

    /// Does the late write if it is of that place.
    fn land(&mut self, first: usize, count: usize) {
        if self
            .late
            .as_ref()
            .is_some_and(|(place, _)| (first..first + count).contains(place))
        {
            if let Some((place, bytes)) = self.late.take() {
                self.put(place, &bytes);
            }
        }
    }
}

fn failed() -> Result<()> {
    Err(Error::new(ErrorKind::ConnectionReset, "the path is lost"))
}

impl Disk for Fake {
    fn read(&self, first: usize, buffer: &mut [u8]) -> Result<()> {
        let mut contents = self.contents.lock().unwrap();
        let place = first * SIZE..first * SIZE + buffer.len();
        buffer.copy_from_slice(&contents.now[place.clone()]);
        if self.misbehaves(&[Flaw::Stale]) {
            buffer.copy_from_slice(&contents.old[place]);
        }
        if self.misbehaves(&[Flaw::Flips]) {
            buffer[SIZE / 2] ^= 4;
        }
        if self.flaw == Flaw::LandsAfterRead {
            contents.land(first, buffer.len() / SIZE);
        }
        if self.misbehaves(&[Flaw::Errors]) {
            failed()
        } else {
            Ok(())
        }
    }

    fn write(&self, first: usize, buffer: &[u8]) -> Result<()> {
        if self.misbehaves(&[Flaw::Hangs]) {
            std::thread::sleep(Duration::from_secs(3600));
        }
        let mut contents = self.contents.lock().unwrap();
        if self.misbehaves(&[Flaw::Errors]) {
            let whole = buffer.len() / SIZE / 2 * SIZE;
            contents.put(first, &buffer[..whole]);
            return failed();
        }
        if self.misbehaves(&[Flaw::Loses]) {
            return Ok(());
        }
        if contents.late.is_none() && self.misbehaves(&[Flaw::LandsLate, Flaw::LandsAfterRead]) {
            contents.late = Some((first, buffer[..SIZE].to_vec()));
            return failed();
        }
        let mut at = first;
        if self.misbehaves(&[Flaw::Misplaces]) {
            at = if first == 0 { 1 } else { first - 1 };
            at = at.min(BLOCKS - buffer.len() / SIZE);
        }
        let mut length = buffer.len();
        if self.misbehaves(&[Flaw::Tears]) {
            length -= SIZE / 2;
        }
        contents.put(at, &buffer[..length]);
        if self.flaw == Flaw::LandsLate {
            contents.land(first, buffer.len() / SIZE);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

fn plan() -> Plan {
    Plan {
        jobs: 4,
        sizes: vec![1, 1, 2, 16],
        reads: 50,
        flush: 10,
        seed: 1,
        pause: Duration::ZERO,
        hang: Duration::from_secs(60),
        stall: Duration::from_millis(100),
    }
}

/// What comes of some thousand I/Os on such a disk.
fn report(flaw: Flaw) -> Report {
    let mut plan = plan();
    if flaw == Flaw::Hangs {
        plan.hang = Duration::from_secs(2);
    }
    let run = Run::new(Arc::new(Fake::new(flaw)), Table::new(7, BLOCKS), plan);
    run.fill();
    assert!(run.report().clean());
    let end = Instant::now() + Duration::from_millis(500);
    // It does so much I/O however little of the CPU it has.
    run.work(|| {
        let report = run.report();
        Instant::now() >= end && report.reads > 2000 && report.writes > 2000
    });
    if run.report().hung == 0 {
        run.verify();
    }
    let report = run.report();
    assert!(
        report.reads + report.hung * 1000 > 100 && report.writes > 50,
        "{report:?}"
    );
    report
}

fn count(report: &Report, wrong: Wrong) -> u64 {
    Wrong::ALL
        .iter()
        .zip(report.wrong)
        .filter(|((kind, _), _)| *kind == wrong)
        .map(|(_, count)| count)
        .sum()
}

#[test]
fn a_good_disk_is_good() {
    let report = report(Flaw::None);
    assert!(report.clean() && report.told.is_empty(), "{report:?}");
    assert!(report.flushes > 0 && report.last_error.is_empty());
}

#[test]
fn errors_are_no_violation() {
    let report = report(Flaw::Errors);
    assert!(report.clean(), "{report:?}");
    assert!(report.write_errors > 0 && report.read_errors > 0);
    assert_eq!(report.last_error, "the path is lost");
}

#[test]
fn flaws_are_found() {
    for (flaw, kinds) in [
        (Flaw::Loses, &[Wrong::Lost][..]),
        (Flaw::Stale, &[Wrong::Lost, Wrong::Reverted]),
        (Flaw::Misplaces, &[Wrong::Alien]),
        (Flaw::Tears, &[Wrong::Torn]),
        (Flaw::Flips, &[Wrong::Torn]),
        (Flaw::LandsLate, &[Wrong::Lost]),
        (Flaw::LandsAfterRead, &[Wrong::Ghost]),
    ] {
        let report = report(flaw);
        for kind in kinds {
            assert!(
                count(&report, *kind) > 0,
                "{flaw:?}: no {kind:?}: {report:?}"
            );
        }
        assert!(!report.told.is_empty());
    }
}

#[test]
fn a_block_may_be_torn_while_it_is_written() {
    let mut table = Table::new(7, BLOCKS);
    let torn = |table: &mut Table, before| table.end_read(0, before, Found::Torn).is_err();
    let before = table.begin_read(0);
    assert!(table.begin_write(0, 1).map(Iterator::count) == Some(1));
    assert!(!torn(&mut table, before), "it was written meanwhile");
    let before = table.begin_read(0);
    table.end_write(0, 1, true);
    assert!(!torn(&mut table, before), "it was being written");
    let before = table.begin_read(0);
    assert!(torn(&mut table, before));
}

#[test]
fn a_hang_is_found() {
    let report = report(Flaw::Hangs);
    assert!(report.hung > 0 && !report.clean(), "{report:?}");
    // How long depends on when the other jobs have ended.
    assert!(report.longest.is_some(), "{report:?}");
}

#[test]
fn what_is_known_survives() {
    let disk: Arc<dyn Disk> = Arc::new(Fake::new(Flaw::None));
    let first = Run::new(Arc::clone(&disk), Table::new(7, BLOCKS), plan());
    first.fill();
    let mut writes = 0;
    first.work(|| {
        writes += 1;
        writes == 10
    });
    let saved = first.save();
    let again = |disk: &Arc<dyn Disk>| {
        let run = Run::new(Arc::clone(disk), Table::restore(&saved).unwrap(), plan());
        run.verify();
        run.report()
    };
    let report = again(&disk);
    assert!(
        report.clean() && report.checked == BLOCKS as u64,
        "{report:?}"
    );
    // A disk that is empty again lost all of it.
    let report = again(&(Arc::new(Fake::new(Flaw::None)) as Arc<dyn Disk>));
    assert_eq!(count(&report, Wrong::Lost), BLOCKS as u64);
    assert!(Table::restore(&saved[..saved.len() - 8]).is_none());
}

#[test]
fn blocks_that_cannot_be_read_are_not_verified() {
    let options = |more: &[&str]| Options::parse_from(["stamp", "disk"].iter().chain(more));
    let verify = options(&["--state", "state", "--verify-only"]);
    for (flaw, bad) in [(Flaw::None, false), (Flaw::Errors, true)] {
        let disk = Fake {
            every: 1,
            ..Fake::new(flaw)
        };
        let run = Run::new(Arc::new(disk), Table::new(7, BLOCKS), plan());
        run.fill();
        run.verify();
        let report = run.report();
        assert!(report.clean(), "{report:?}");
        assert_eq!(is_bad(&verify, &report), bad, "{report:?}");
        assert!(!is_bad(&options(&[]), &report));
    }
}

#[test]
fn each_bit_of_a_block_counts() {
    let stamp = Stamp {
        block: 3,
        generation: 9,
        run: 1 << 60,
    };
    let mut bytes = vec![0; SIZE];
    assert_eq!(block::look(&bytes), Found::Zeroes);
    block::fill(&mut bytes, stamp);
    assert_eq!(block::look(&bytes), Found::Stamp(stamp));
    for bit in 0..SIZE * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(block::look(&bytes), Found::Torn, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let mut next = vec![0; SIZE];
    block::fill(
        &mut next,
        Stamp {
            generation: 10,
            ..stamp
        },
    );
    for end in 1..SIZE / 512 {
        let mut torn = bytes.clone();
        torn[..end * 512].copy_from_slice(&next[..end * 512]);
        assert_eq!(block::look(&torn), Found::Torn);
    }
}

/// One block's story, step by step.
struct Story(Table);

impl Story {
    fn new() -> Self {
        Self(Table::new(7, 1))
    }

    fn begin(&mut self) {
        assert!(self.0.begin_write(0, 1).map(|stamps| stamps.count()) == Some(1));
    }

    fn write(&mut self, complete: bool) {
        self.begin();
        self.0.end_write(0, 1, complete);
    }

    /// A read now, of that generation.
    fn read(&mut self, generation: u64) -> Option<Wrong> {
        let before = self.0.begin_read(0);
        let found = Found::Stamp(Stamp {
            block: 0,
            generation,
            run: 7,
        });
        self.0
            .end_read(0, before, found)
            .err()
            .map(|violation| violation.wrong)
    }
}

#[test]
fn a_write_under_way_may_be_seen_and_then_stays() {
    let mut story = Story::new();
    story.write(true);
    story.begin();
    assert_eq!(story.read(1), None);
    assert_eq!(story.read(2), None);
    assert_eq!(story.read(1), Some(Wrong::Reverted));
    assert_eq!(story.read(3), Some(Wrong::Alien));
    assert!(story.0.begin_write(0, 1).is_none());
}

#[test]
fn the_first_read_settles_a_failed_write() {
    let mut story = Story::new();
    story.write(true);
    story.write(false);
    story.write(false);
    let mut other = Story(Table::restore(&story.0.save()).unwrap());
    assert_eq!(story.read(2), None);
    assert_eq!(story.read(3), Some(Wrong::Ghost));
    assert_eq!(story.read(1), Some(Wrong::Reverted));
    assert_eq!(other.read(1), None);
    assert_eq!(other.read(2), Some(Wrong::Ghost));
    other.write(true);
    assert_eq!(other.read(3), Some(Wrong::Lost));
    assert_eq!(other.read(4), None);
}

#[test]
fn a_read_is_judged_by_when_it_began() {
    let mut story = Story::new();
    story.write(true);
    let before = story.0.begin_read(0);
    story.write(true);
    let found = Found::Stamp(Stamp {
        block: 0,
        generation: 1,
        run: 7,
    });
    assert!(story.0.end_read(0, before, found).is_ok());
    assert_eq!(story.read(1), Some(Wrong::Lost));
}
