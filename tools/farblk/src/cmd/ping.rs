// SPDX-License-Identifier: GPL-2.0
//! `farblk ping`: round trips to a server, without a map.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Context, discover};
use crate::cli::Ping;
use crate::configfs::{Job, Made};
use crate::error::{Code, Error};
use crate::interrupt::Interrupt;
use crate::quote;

/// The most round trips that the module measures at a time.
const BATCH_MAX: u64 = 256;
/// How long the module shall measure at a time, so that a signal need not wait.
const BATCH_TIME: Duration = Duration::from_millis(500);
/// The longest pause that the module makes between two round trips.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Columns of the longest bar of a histogram.
const BAR: u64 = 40;

/// Round trips of one kind.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
struct Times {
    count: usize,
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    histogram: Vec<Bucket>,
}

/// The round trips that took less than a time, and not less than that of the bucket before.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
struct Bucket {
    below_ns: u64,
    count: u64,
}

/// The round trips to a server, schema `farblk.ping/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    addr: String,
    export: Option<String>,
    interval_us: u64,
    /// False if a signal or an error came before the last round trip.
    complete: bool,
    send: Option<Times>,
    read: Option<Times>,
}

impl Times {
    /// Sums up round trips; `None` if there is none.
    fn new(mut times: Vec<u64>) -> Option<Self> {
        times.sort_unstable();
        let (&min_ns, &max_ns) = (times.first()?, times.last()?);
        // The least time that so many of them do not exceed.
        let percentile = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100);
            times[rank.clamp(1, times.len()) - 1]
        };
        Some(Self {
            count: times.len(),
            min_ns,
            p50_ns: percentile(50),
            p99_ns: percentile(99),
            max_ns,
            histogram: histogram(&times),
        })
    }

    /// The lines for people.
    fn lines(&self, what: &str) -> Vec<String> {
        let [min, p50, p99, max] =
            [self.min_ns, self.p50_ns, self.p99_ns, self.max_ns].map(microseconds);
        let count = self.count;
        let mut lines = vec![format!(
            "{what}  {count} round trips  min {min}  p50 {p50}  p99 {p99}  max {max}"
        )];
        let most = self.histogram.iter().map(|bucket| bucket.count).max();
        let most = most.unwrap_or(1).max(1);
        lines.extend(self.histogram.iter().map(|bucket| {
            let columns = (bucket.count * BAR).div_ceil(most);
            let bar = "#".repeat(usize::try_from(columns).unwrap_or(0));
            let below = format!("< {}", microseconds(bucket.below_ns));
            format!("{below:>16}  {:>7}  {bar}", bucket.count)
                .trim_end()
                .to_owned()
        }));
        lines
    }
}

/// The end of the first bucket that ends after `ns`: 1, 1.5, 2, 3, 4, 6, 8 us and so on.
fn bucket_end(ns: u64) -> u64 {
    let mut octave = 1000;
    loop {
        if ns < octave {
            return octave;
        }
        if ns < octave / 2 * 3 {
            return octave / 2 * 3;
        }
        octave *= 2;
    }
}

/// The buckets from the first to the last that has anything, of times in ascending order.
fn histogram(times: &[u64]) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for &ns in times {
        let end = bucket_end(ns);
        while buckets.last().is_none_or(|last| last.below_ns < end) {
            let below_ns = buckets.last().map_or(end, |last| bucket_end(last.below_ns));
            buckets.push(Bucket { below_ns, count: 0 });
        }
        if let Some(last) = buckets.last_mut() {
            last.count += 1;
        }
    }
    buckets
}

/// A time as "41.3 us" or "12.1 ms".
fn microseconds(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// Parses numbers, one on each line.
fn parse(text: &str) -> Option<Vec<u64>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| line.parse().ok().filter(|&ns| ns < u64::MAX / 4))
        .collect()
}

/// The round trips that were measured so far, in ns.
#[derive(Default)]
struct Measured {
    send: Vec<u64>,
    read: Vec<u64>,
}

impl Measured {
    /// Adds what the module has measured. Returns how many that was.
    fn add(&mut self, context: &Context, object: &Path, job: &Job) -> Result<usize, Error> {
        let configfs = &context.configfs;
        let mut added = 0;
        for (name, times) in [("send_ns", &mut self.send), ("read_ns", &mut self.read)] {
            let text = configfs.read(object, name, job)?.unwrap_or_default();
            let more =
                parse(&text).ok_or_else(|| job.error(Code::Unparsable, format!("{text:?}")))?;
            added = added.max(more.len());
            times.extend(more);
        }
        Ok(added)
    }
}

/// Returns true if the export moves its data by RDMA READ. Fails if the server has no such export
/// for this host.
fn has_reads(
    context: &Context,
    arguments: &Ping,
    export: &str,
    addr: std::net::SocketAddr,
    job: &Job,
) -> Result<bool, Error> {
    let exports = discover::ask(context, addr, arguments.source, job)?;
    if context.configfs.is_dry_run() {
        return Ok(true);
    }
    match exports.iter().find(|entry| entry.name == export) {
        Some(entry) if entry.kind == "ram" => Ok(true),
        Some(_) => {
            let text =
                "a block export is read by commands, not by RDMA READ: only SEND is measured";
            context.output.note(text);
            Ok(false)
        }
        None => {
            let why = format!(
                "{} has no export {export:?} that this host may use",
                arguments.place.server
            );
            Err(job.error(Code::NoExport, why))
        }
    }
}

/// Runs `farblk ping`.
pub fn run(context: &Context, arguments: &Ping) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let server = arguments.place.server.to_string();
    let job = Job::new(format!("cannot ping {}", arguments.place))
        .connect()
        .variable("server", &server)
        .variable("host", &arguments.place.server.host);
    let addr = arguments.place.server.resolve(&job.what)?;
    let interrupt = Interrupt::take().map_err(|e| job.error(Code::Io, e.to_string()))?;
    let read = match &arguments.place.export {
        Some(export) => has_reads(context, arguments, export, addr, &job)?,
        None => false,
    };
    let mut made = Made::new(configfs, &context.output);
    let object = discover::make_own(context, "ping", &mut made, &job)?;
    let batch = batch_of(arguments.interval).min(arguments.count);
    let interval_us = arguments.interval.min(PAUSE_MAX).as_micros().to_string();
    let mut settings = vec![
        ("addr", addr.to_string()),
        ("count", batch.to_string()),
        ("interval_us", interval_us),
        ("read", u8::from(read).to_string()),
    ];
    if let Some(source) = arguments.source {
        settings.push(("source", source.to_string()));
    }
    configfs.set_all(&object, &settings, &job)?;
    if configfs.is_dry_run() {
        script(context, arguments, &object, batch);
        return made.remove(&job);
    }
    let mut measured = Measured::default();
    let result = measure(
        context,
        arguments,
        &object,
        batch,
        &interrupt,
        &mut measured,
        &job,
    );
    let removed = made.remove(&job);
    let complete = result.is_ok() && !interrupt.came();
    // An error alone says what is wrong, if nothing was measured before it.
    if result.is_ok() || !measured.send.is_empty() {
        report(context, arguments, addr.to_string(), measured, complete)?;
    }
    result.and(removed)
}

/// Round trips to measure at a time.
fn batch_of(interval: Duration) -> u64 {
    let batch = BATCH_TIME.as_micros() / interval.as_micros().max(1);
    u64::try_from(batch).unwrap_or(1).clamp(1, BATCH_MAX)
}

/// Measures all round trips, unless a signal comes.
fn measure(
    context: &Context,
    arguments: &Ping,
    object: &Path,
    batch: u64,
    interrupt: &Interrupt,
    measured: &mut Measured,
    job: &Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let mut left = arguments.count;
    while left > 0 && !interrupt.came() {
        if left < batch {
            configfs.set(object, "count", &left.to_string(), job)?;
        }
        let result = configfs.set(object, "enable", "1", job);
        let added = measured.add(context, object, job)?;
        if batch == 1 && added == 1 {
            let of = |times: &[u64]| times.last().map(|&ns| microseconds(ns));
            let send = of(&measured.send).map(|time| format!("SEND {time}"));
            let read = of(&measured.read).map(|time| format!("READ {time}"));
            let words: Vec<_> = send.into_iter().chain(read).collect();
            context.output.note(&words.join("  "));
        }
        result?;
        if added == 0 && !interrupt.came() {
            return Err(job.error(Code::TimedOut, "the server answers too slowly"));
        }
        left = left.saturating_sub(u64::try_from(added).unwrap_or(left));
        if left > 0 {
            interrupt.sleep(arguments.interval);
        }
    }
    Ok(())
}

/// Writes down the rest of a dry run: what is measured again and again is a loop.
fn script(context: &Context, arguments: &Ping, object: &Path, batch: u64) {
    let file = |name: &str| quote::path(&object.join(name));
    let measure = format!(
        "echo 1 > {}; cat {} {}",
        file("enable"),
        file("send_ns"),
        file("read_ns")
    );
    let times = arguments.count.div_ceil(batch.max(1));
    let pause = arguments.interval.as_secs_f64();
    context.configfs.record(|| match times {
        1 => measure,
        _ => format!("for i in $(seq {times}); do {measure}; sleep {pause}; done"),
    });
}

/// Prints what was measured.
fn report(
    context: &Context,
    arguments: &Ping,
    addr: String,
    measured: Measured,
    complete: bool,
) -> Result<(), Error> {
    let document = Document {
        schema: "farblk.ping/1",
        addr,
        export: arguments.place.export.clone(),
        interval_us: u64::try_from(arguments.interval.as_micros()).unwrap_or(u64::MAX),
        complete,
        send: Times::new(measured.send),
        read: Times::new(measured.read),
    };
    if context.output.is_json() {
        return context.output.document(&document);
    }
    let kinds = [("SEND", &document.send), ("READ", &document.read)];
    let lines = kinds
        .iter()
        .filter_map(|(what, times)| Some(times.as_ref()?.lines(what)));
    let lines: Vec<_> = lines.flatten().collect();
    if lines.is_empty() {
        context.output.note("nothing was measured");
    }
    lines.iter().try_for_each(|line| context.output.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        assert_eq!(Times::new(Vec::new()), None);
        let times = Times::new((1..=200).rev().map(|n| n * 1000).collect()).unwrap();
        assert_eq!(
            [times.min_ns, times.p50_ns, times.p99_ns, times.max_ns],
            [1000, 100_000, 198_000, 200_000]
        );
        assert_eq!(
            times.histogram.iter().map(|one| one.count).sum::<u64>(),
            200
        );
        let one = Times::new(vec![7]).unwrap();
        assert_eq!([one.min_ns, one.p50_ns, one.p99_ns, one.max_ns], [7; 4]);
    }

    #[test]
    fn histograms() {
        let ends: Vec<_> = [0, 999, 1000, 1499, 1500, 2000, 3000, 4000]
            .map(bucket_end)
            .into();
        assert_eq!(ends, [1000, 1000, 1500, 1500, 2000, 3000, 4000, 6000]);
        // Those between are there, too.
        let buckets = histogram(&[1200, 5000, 5999]);
        let list: Vec<_> = buckets
            .iter()
            .map(|one| (one.below_ns, one.count))
            .collect();
        assert_eq!(
            list,
            [(1500, 1), (2000, 0), (3000, 0), (4000, 0), (6000, 2)]
        );
        let lines = Times::new(vec![40_000; 8]).unwrap().lines("SEND");
        assert_eq!(
            lines[0],
            "SEND  8 round trips  min 40.0 us  p50 40.0 us  p99 40.0 us  max 40.0 us"
        );
        assert_eq!(lines[1].split_whitespace().last(), Some(&*"#".repeat(40)));
        assert_eq!(lines.len(), 2);
        // The module never says so, but its file might.
        assert!(bucket_end(u64::MAX / 4) > u64::MAX / 4);
    }

    #[test]
    fn batches() {
        let of = |ms| batch_of(Duration::from_millis(ms));
        assert_eq!(
            [of(1), of(2), of(10), of(500), of(501), of(3_600_000)],
            [256, 250, 50, 1, 1, 1]
        );
    }

    #[test]
    fn answers() {
        assert_eq!(parse("\n"), Some(Vec::new()));
        assert_eq!(parse("1\n22\n"), Some(vec![1, 22]));
        for bad in ["x\n", "1 2\n", "-1\n", "18446744073709551615\n"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
