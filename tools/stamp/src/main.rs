// SPDX-License-Identifier: GPL-2.0
//! `stamp` writes a disk whose connection may break, and checks that it never shows what it must
//! not: a complete write is there, nothing comes back that was overwritten, and no write lands that
//! failed and that a read has since not found. I/O may fail, and it may take its time, but not for
//! ever.
//!
//! Its last line is what came of it, in JSON; its exit code 1 if there was a violation, 2 if it
//! could not run.

mod block;
mod disk;
mod run;
mod table;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;

use block::SIZE;
use run::{Plan, Report, Run};
use table::{Table, Wrong};

/// Writes and checks a disk whose connection may break. It does not keep what is on the disk.
#[derive(Parser)]
#[command(name = "stamp")]
struct Options {
    /// Block device or file.
    disk: PathBuf,
    /// Duration of the run.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Ends when this file is there, however long that takes.
    #[arg(long)]
    until: Option<PathBuf>,
    /// MiB of the disk to use; 0 is all.
    #[arg(long, default_value_t = 0)]
    size: u64,
    /// Blocks of 4 KiB to use, instead.
    #[arg(long, conflicts_with = "size")]
    blocks: Option<u64>,
    /// I/Os at a time.
    #[arg(long, default_value_t = 8)]
    jobs: usize,
    /// Sizes of I/O, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 4, 8, 64])]
    io: Vec<usize>,
    /// Percent of the I/O that reads.
    #[arg(long, default_value_t = 50)]
    reads: u64,
    /// Each job flushes after so many writes; 0 is never.
    #[arg(long, default_value_t = 0)]
    flush: u64,
    /// Milliseconds that a job rests after each I/O.
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Seconds after which I/O that has not come back never will.
    #[arg(long, default_value_t = 65)]
    hang: u64,
    /// Milliseconds without any I/O that are worth to be told.
    #[arg(long, default_value_t = 500)]
    stall: u64,
    /// Of the random numbers.
    #[arg(long)]
    seed: Option<u64>,
    /// File with the state of the blocks: read if it exists, written at the end.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Reads every block once, and nothing else; one that cannot be read is a violation, too. Wants
    /// --state.
    #[arg(long, requires = "state")]
    verify_only: bool,
    /// Writes every block once, and nothing else.
    #[arg(long, conflicts_with = "verify_only")]
    fill_only: bool,
    /// An I/O error is a violation, too.
    #[arg(long)]
    no_errors: bool,
    /// Through the page cache.
    #[arg(long)]
    buffered: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seed = options.seed.unwrap_or(clock.as_nanos() as u64);
    match run(&options, seed, clock.as_nanos() as u64) {
        Ok(report) => {
            for told in &report.told {
                println!("{told}");
            }
            let bad = is_bad(&options, &report);
            println!("{}", json(&report, seed, bad));
            // Jobs that hang are left behind.
            ExitCode::from(u8::from(bad))
        }
        Err(text) => {
            eprintln!("stamp: {text}");
            ExitCode::from(2)
        }
    }
}

/// Returns true if the results violate the options. Blocks that could not be read are not verified.
fn is_bad(options: &Options, report: &Report) -> bool {
    let unread = options.verify_only && report.checked < report.blocks;
    !report.clean() || unread || options.no_errors && !report.last_error.is_empty()
}

/// Does what the options say. `id` tells this run's writes from others'.
fn run(options: &Options, seed: u64, id: u64) -> Result<Report, String> {
    let path = options.disk.display();
    let disk =
        disk::open(&options.disk, !options.buffered).map_err(|error| format!("{path}: {error}"))?;
    let mut blocks = disk::blocks(&disk).map_err(|error| format!("{path}: {error}"))?;
    let wanted = options.blocks.unwrap_or((options.size << 20) / SIZE as u64);
    if wanted != 0 {
        blocks = blocks.min(wanted);
    }
    if blocks == 0
        || options.jobs == 0
        || options
            .io
            .iter()
            .any(|kib| *kib == 0 || kib % (SIZE >> 10) != 0)
    {
        return Err(
            "there is nothing to do: no blocks, no jobs, or no multiples of 4 KiB".to_string(),
        );
    }
    let known = options
        .state
        .as_ref()
        .and_then(|state| fs::read(state).ok());
    let fresh = known.is_none();
    let table = match known {
        Some(bytes) => Table::restore(&bytes).filter(|table| table.blocks() as u64 == blocks),
        None if options.verify_only => None,
        None => Some(Table::new(id, blocks as usize)),
    };
    let table = table.ok_or("--state is of no such disk")?;
    let plan = Plan {
        jobs: options.jobs,
        sizes: options.io.iter().map(|kib| (kib << 10) / SIZE).collect(),
        reads: options.reads,
        flush: options.flush,
        seed,
        pause: Duration::from_millis(options.pause),
        hang: Duration::from_secs(options.hang),
        stall: Duration::from_millis(options.stall),
    };
    let run = Run::new(Arc::new(disk), table, plan);
    if fresh || options.fill_only {
        run.fill();
        let report = run.report();
        if report.write_errors != 0 {
            return Err(format!(
                "the disk cannot even be filled: {}",
                report.last_error
            ));
        }
        println!("filled");
    }
    if !options.verify_only && !options.fill_only && run.report().hung == 0 {
        let end = Instant::now() + Duration::from_secs(options.seconds);
        run.work(|| match &options.until {
            Some(file) => file.exists(),
            None => Instant::now() >= end,
        });
    }
    if !options.fill_only && run.report().hung == 0 {
        run.verify();
    }
    if let Some(state) = &options.state {
        fs::write(state, run.save()).map_err(|error| format!("{}: {error}", state.display()))?;
    }
    Ok(run.report())
}

/// The report as one line.
fn json(report: &Report, seed: u64, bad: bool) -> String {
    let ms = |time: Duration| time.as_millis();
    let mut line = format!(
        "{{\"schema\":\"stamp.1\",\"ok\":{},\"seed\":{seed},\"ms\":{}",
        !bad,
        ms(report.took)
    );
    for (name, count) in [
        ("reads", report.reads),
        ("writes", report.writes),
        ("flushes", report.flushes),
        ("checked", report.checked),
        ("read_errors", report.read_errors),
        ("write_errors", report.write_errors),
        ("flush_errors", report.flush_errors),
        ("slow", report.slow),
        ("hung", report.hung),
    ] {
        let _ = write!(line, ",\"{name}\":{count}");
    }
    for ((_, name), count) in Wrong::ALL.iter().zip(report.wrong) {
        let _ = write!(line, ",\"{name}\":{count}");
    }
    let _ = write!(
        line,
        ",\"uptime_ms\":{}",
        uptime().saturating_sub(ms(report.took))
    );
    let longest = report
        .longest
        .map_or((0, 0), |stall| (ms(stall.at), ms(stall.length)));
    let _ = write!(
        line,
        ",\"stall_at_ms\":{},\"stall_ms\":{}",
        longest.0, longest.1
    );
    let _ = write!(
        line,
        ",\"slowest_at_ms\":{},\"slowest_ms\":{}",
        ms(report.slowest_at),
        ms(report.slowest)
    );
    let stalls: Vec<_> = report
        .stalls
        .iter()
        .map(|stall| format!("[{},{}]", ms(stall.at), ms(stall.length)))
        .collect();
    let _ = write!(
        line,
        ",\"stalls\":[{}],\"last_error\":{:?}}}",
        stalls.join(","),
        report.last_error
    );
    line
}

/// Milliseconds since the machine was booted: what `at` counts from is told in them, too.
fn uptime() -> u128 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or_default()).as_millis()
}
