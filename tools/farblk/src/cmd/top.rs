// SPDX-License-Identifier: GPL-2.0
//! `farblk top`: a live table of maps and exports, on a terminal or as plain text.

use std::io::{self, IsTerminal};
use std::time::Duration;

use super::Context;
use super::sample::{Kind, Row, Sample, Window};
use super::stats::{self, Table};
use crate::cli;
use crate::clock::{IntervalTimer, time_of_day};
use crate::error::Error;

mod screen;

/// What the rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Those with most reads and writes first.
    Ios,
    /// Those with most bytes first.
    Bytes,
    /// The slowest first, by p99 of reads and writes.
    Latency,
    /// As `list` has them.
    Name,
}

impl Order {
    /// The name for people.
    fn text(self) -> &'static str {
        match self {
            Order::Ios => "I/Os",
            Order::Bytes => "bytes",
            Order::Latency => "p99",
            Order::Name => "name",
        }
    }

    /// The next one.
    fn next(self) -> Self {
        match self {
            Order::Ios => Order::Bytes,
            Order::Bytes => Order::Latency,
            Order::Latency => Order::Name,
            Order::Name => Order::Ios,
        }
    }

    /// Sorts the rows. Those of which nothing is known come last.
    fn sort(self, rows: &mut [Row]) {
        let bytes = |row: &Row| {
            let counters = &row.stats.counters;
            Some(counters.read_bytes?.saturating_add(counters.write_bytes?))
        };
        let p99 = |row: &Row| {
            let latency = &row.stats.latency;
            let slowest = [latency.read, latency.write].into_iter().flatten();
            let slowest = slowest.filter_map(|histogram| histogram.quantile_ns(0.99));
            slowest.map(|ns| ns as u64).max()
        };
        match self {
            Order::Ios => rows.sort_by_key(|row| std::cmp::Reverse(row.ios())),
            Order::Bytes => rows.sort_by_key(|row| std::cmp::Reverse(bytes(row))),
            Order::Latency => rows.sort_by_key(|row| std::cmp::Reverse(p99(row))),
            Order::Name => {}
        }
    }
}

/// "farblk top  node-b  12:03:44  2 maps, 1 export"
fn title(context: &Context, window: &Window) -> String {
    let of = |kind, word: &str| {
        let count = window
            .rows
            .iter()
            .filter(|row| row.object.kind == kind)
            .count();
        format!("{count} {word}{}", if count == 1 { "" } else { "s" })
    };
    format!(
        "farblk top  {}  {}  {}, {}",
        context.host_name().as_deref().unwrap_or("-"),
        time_of_day(&window.time),
        of(Kind::Map, "map"),
        of(Kind::Export, "export")
    )
}

/// Prints one table after the other.
fn batch(context: &Context, interval: Duration, count: Option<u64>) -> Result<(), Error> {
    let mut said = Vec::new();
    let mut before = Sample::take(context);
    before.warn(context, &mut said);
    let mut table = Table::new(true);
    let mut timer = IntervalTimer::new(interval);
    for number in 0..count.unwrap_or(u64::MAX) {
        if !context.output.wait(timer.left()) {
            break;
        }
        let now = Sample::take(context);
        now.warn(context, &mut said);
        let mut window = now.since(Some(&before));
        before = now;
        if context.output.is_json() {
            stats::document(context, &window)?;
            continue;
        }
        Order::Ios.sort(&mut window.rows);
        if number > 0 {
            context.output.line("")?;
        }
        context.output.line(&title(context, &window))?;
        let lines = table.lines(&window);
        lines
            .iter()
            .try_for_each(|line| context.output.line(line))?;
    }
    Ok(())
}

/// Runs `farblk top`. Without a terminal, or with JSON, it prints one table after the other.
pub fn run(context: &Context, arguments: &cli::Top) -> Result<(), Error> {
    super::refuse_dry_run(context, "top")?;
    context.configfs.require()?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    match arguments.batch || context.output.is_json() || !is_terminal {
        true => batch(context, arguments.interval, arguments.count),
        false => screen::run(context, arguments.interval, arguments.count),
    }
}
