// SPDX-License-Identifier: GPL-2.0
//! `farblk stats`: I/O and latencies of maps and exports.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use super::map::find;
use super::sample::{Kind, Row, Sample, Window};
use crate::cli;
use crate::clock::{IntervalTimer, time_of_day};
use crate::configfs::Job;
use crate::counters::{Counters, Histogram};
use crate::error::{Code, Error};
use crate::output;
use crate::size;

/// The time between two looks, as people give it.
pub const INTERVAL: fn(&str) -> Result<Duration, String> = size::duration::<100, 3_600_000>;

const MIB: f64 = (1 << 20) as f64;

/// The latencies of one kind of I/O.
#[derive(JsonSchema, Serialize)]
struct Percentiles {
    /// The number of I/Os.
    count: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
}

/// The I/O of a map or export. What is unknown is `None`.
#[derive(JsonSchema, Serialize)]
struct Entry<'a> {
    kind: &'static str,
    name: &'a str,
    state: Option<&'a str>,
    /// The device node of a map.
    device: Option<String>,
    /// "one_sided" or "two_sided".
    mode: Option<&'a str>,
    #[serde(flatten)]
    counters: Counters,
    reads_per_s: Option<f64>,
    writes_per_s: Option<f64>,
    read_bytes_per_s: Option<f64>,
    write_bytes_per_s: Option<f64>,
    in_flight: Option<u64>,
    /// From 0 to 1.
    one_sided_share: Option<f64>,
    read_latency: Option<Percentiles>,
    write_latency: Option<Percentiles>,
    flush_latency: Option<Percentiles>,
}

/// The I/O of maps and exports in an interval, schema `farblk.stats/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    /// The end of the interval.
    time: &'a str,
    /// The length of the interval in seconds; `None` if the counts are those since each object was
    /// enabled.
    interval_s: Option<f64>,
    objects: Vec<Entry<'a>>,
}

fn percentiles(histogram: Option<Histogram>) -> Option<Percentiles> {
    let histogram = histogram?;
    let ns = |q| histogram.quantile_ns(q).map(|ns| ns.round() as u64);
    Some(Percentiles {
        count: histogram.count(),
        p50_ns: ns(0.5),
        p99_ns: ns(0.99),
        p999_ns: ns(0.999),
    })
}

fn entry<'a>(window: &Window, row: &'a Row) -> Entry<'a> {
    let counters = row.stats.counters;
    let device = row.object.device.as_ref();
    Entry {
        kind: row.object.kind.text(),
        name: &row.object.name,
        state: row.object.state.as_deref(),
        device: device.map(|device| format!("/dev/{device}")),
        mode: row.object.mode.as_deref(),
        counters,
        reads_per_s: window.rate(counters.reads),
        writes_per_s: window.rate(counters.writes),
        read_bytes_per_s: window.rate(counters.read_bytes),
        write_bytes_per_s: window.rate(counters.write_bytes),
        in_flight: row.stats.in_flight,
        one_sided_share: row.one_sided_share(),
        read_latency: percentiles(row.stats.latency.read),
        write_latency: percentiles(row.stats.latency.write),
        flush_latency: percentiles(row.stats.latency.flush),
    }
}

/// A number with one digit behind the point if it is small.
fn short(number: f64) -> String {
    match number < 9.95 {
        true => format!("{number:.1}"),
        false => format!("{number:.0}"),
    }
}

fn text(number: Option<f64>) -> String {
    number.map_or("-".into(), short)
}

/// "4.1/7.9/14": p50, p99 and p99.9 in microseconds.
fn quantiles(histogram: Option<Histogram>) -> String {
    let quantile = |q| histogram.and_then(|histogram| histogram.quantile_ns(q));
    let quantiles = [0.5, 0.99, 0.999].map(quantile);
    match quantiles.iter().all(Option::is_none) {
        true => "-".into(),
        false => quantiles.map(|ns| text(ns.map(|ns| ns / 1000.0))).join("/"),
    }
}

/// The columns of a table.
pub struct Table {
    heading: Vec<&'static str>,
    /// The widest cell of each column so far: the columns of later rows begin where those of
    /// earlier rows began.
    widths: Vec<usize>,
}

/// The number of columns at the left of a table whose cells begin at the left.
const WORDS: usize = 4;

/// The heading for windows between two points in time, or for the I/O since objects were enabled.
pub fn heading(is_interval: bool) -> Vec<&'static str> {
    let counts = match is_interval {
        true => ["r/s", "w/s", "rMiB/s", "wMiB/s"],
        false => ["READS", "WRITES", "READ", "WRITTEN"],
    };
    let before = ["TIME", "KIND", "NAME", "STATE"];
    let after = [
        "r us p50/p99/p99.9",
        "w us p50/p99/p99.9",
        "INFLT",
        "1-SIDED",
        "RETRIES",
    ];
    [&before[..], &counts, &after].concat()
}

impl Table {
    /// The table for windows between two points in time, or for the I/O since objects were enabled.
    pub fn new(is_interval: bool) -> Self {
        let heading = heading(is_interval);
        Self {
            widths: heading.iter().map(|text| text.len()).collect(),
            heading,
        }
    }

    /// The heading and the rows of a window, one string for each.
    pub fn lines(&mut self, window: &Window) -> Vec<String> {
        let rows: Vec<_> = window.rows.iter().map(|row| cells(window, row)).collect();
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let heading = self.heading.iter().map(|&text| text.to_owned()).collect();
        let lines = std::iter::once(heading).chain(rows);
        lines.map(|cells: Vec<_>| self.line(&cells)).collect()
    }

    fn line(&self, cells: &[String]) -> String {
        let columns = cells.iter().zip(&self.widths).zip(&self.heading);
        let pad = |(index, ((cell, width), heading)): (usize, ((&String, &usize), &&str))| {
            let blanks = " ".repeat(width - cell.chars().count());
            match index < WORDS {
                true if *heading == "STATE" => output::state(cell) + &blanks,
                true => cell.clone() + &blanks,
                false => blanks + cell,
            }
        };
        let columns: Vec<_> = columns.enumerate().map(pad).collect();
        columns.join("  ").trim_end().to_owned()
    }
}

/// The cells of a row.
pub fn cells(window: &Window, row: &Row) -> Vec<String> {
    let counters = &row.stats.counters;
    let word = |text: Option<&str>| text.unwrap_or("-").replace(char::is_control, "?");
    let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
    let per_s = |count| text(window.rate(count));
    let mib_per_s = |bytes| text(window.rate(bytes).map(|bytes| bytes / MIB));
    let human = |bytes: Option<u64>| bytes.map_or("-".into(), size::human);
    let share = row.one_sided_share();
    let mut cells = vec![
        time_of_day(&window.time).to_owned(),
        row.object.kind.text().to_owned(),
        word(Some(&row.object.name)),
        word(row.object.state.as_deref()),
    ];
    cells.extend(match window.length {
        Some(_) => [
            per_s(counters.reads),
            per_s(counters.writes),
            mib_per_s(counters.read_bytes),
            mib_per_s(counters.write_bytes),
        ],
        None => [
            count(counters.reads),
            count(counters.writes),
            human(counters.read_bytes),
            human(counters.write_bytes),
        ],
    });
    cells.extend([
        quantiles(row.stats.latency.read),
        quantiles(row.stats.latency.write),
        count(row.stats.in_flight),
        share.map_or("-".into(), |share| format!("{:.0}%", share * 100.0)),
        count(counters.retries),
    ]);
    cells
}

/// What to show, and how often.
struct Plan {
    /// The name of a map or of an export, or of both; all if there is none.
    name: Option<String>,
    interval: Option<Duration>,
    /// The number of intervals; `None` without end.
    count: Option<u64>,
}

impl Plan {
    /// What comes first is a name if there is a map or export of that name, else an interval.
    fn new(context: &Context, arguments: &cli::Stats) -> Result<Self, Error> {
        let job = Job::new("cannot show the I/O");
        let words = [&arguments.name, &arguments.interval, &arguments.count];
        let words: Vec<_> = words.into_iter().flatten().map(String::as_str).collect();
        let name = match words.first() {
            Some(word) => named(context, word, &job)?,
            None => None,
        };
        let bad = |why| job.error(Code::Usage, why).hint("farblk stats --help");
        let (interval, count) = match (&name, words.as_slice()) {
            (Some(_), rest) => (rest.get(1), rest.get(2)),
            (None, [word, ..]) if !word.starts_with(|c: char| c.is_ascii_digit()) => {
                let why = format!("there is no map or export {word:?} on this host");
                let error = job.error(Code::NotFound, why);
                return Err(error.hint("farblk list\nfarblk export list"));
            }
            (None, [interval, rest @ ..]) if rest.len() < 2 => (Some(interval), rest.first()),
            (None, []) => (None, None),
            (None, _) => return Err(bad(format!("there is no map or export {:?}", words[0]))),
        };
        Ok(Self {
            name,
            interval: interval
                .map(|word| INTERVAL(word))
                .transpose()
                .map_err(bad)?,
            count: count
                .map(|word| size::number::<1, 1_000_000_000>(word))
                .transpose()
                .map_err(bad)?,
        })
    }

    /// Leaves the wanted objects in a window.
    fn choose(&self, context: &Context, mut window: Window) -> Result<Window, Error> {
        if let Some(name) = &self.name {
            window.rows.retain(|row| row.object.name == *name);
            if window.rows.is_empty() {
                return Err(context.not_found("cannot show the I/O", "map", name));
            }
        }
        Ok(window)
    }
}

/// Returns the name of the map or export that `word` means, if there is one.
fn named(context: &Context, word: &str, job: &Job) -> Result<Option<String>, Error> {
    if let Some(map) = find(context, word, job)? {
        return Ok(Some(map));
    }
    let exports = context.configfs.path(&[Kind::Export.folder()]);
    let mut exports = context.configfs.names(&exports).into_iter();
    Ok(exports.find(|export| export == word))
}

/// Prints a window as JSON.
pub fn document(context: &Context, window: &Window) -> Result<(), Error> {
    context.output.document(&Document {
        schema: "farblk.stats/1",
        time: &window.time,
        interval_s: window.length.map(|length| length.as_secs_f64()),
        objects: window.rows.iter().map(|row| entry(window, row)).collect(),
    })
}

/// The number of rows below one heading.
const ROWS: usize = 20;

/// Runs `farblk stats`.
pub fn run(context: &Context, arguments: &cli::Stats) -> Result<(), Error> {
    super::refuse_dry_run(context, "stats")?;
    context.configfs.require()?;
    let plan = Plan::new(context, arguments)?;
    let mut said = Vec::new();
    let mut before = Sample::take(context);
    before.warn(context, &mut said);
    let mut table = Table::new(plan.interval.is_some());
    let Some(interval) = plan.interval else {
        let window = plan.choose(context, before.since(None))?;
        if context.output.is_json() {
            return document(context, &window);
        }
        let lines = table.lines(&window);
        return lines.iter().try_for_each(|line| context.output.line(line));
    };
    let mut timer = IntervalTimer::new(interval);
    let mut rows = ROWS;
    for _ in 0..plan.count.unwrap_or(u64::MAX) {
        if !context.output.wait(timer.left()) {
            break;
        }
        let now = Sample::take(context);
        now.warn(context, &mut said);
        let window = plan.choose(context, now.since(Some(&before)))?;
        before = now;
        if context.output.is_json() {
            document(context, &window)?;
            continue;
        }
        let mut lines = table.lines(&window).into_iter();
        let heading = lines.next().filter(|_| rows >= ROWS);
        if let Some(heading) = heading {
            context.output.line(&heading)?;
            rows = 0;
        }
        rows += lines.len();
        lines.try_for_each(|line| context.output.line(&line))?;
    }
    Ok(())
}
