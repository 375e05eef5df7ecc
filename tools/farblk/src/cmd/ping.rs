// SPDX-License-Identifier: GPL-2.0
//! `farblk ping`: round trips to a server, or reads and writes of a map.

mod disk;
mod times;

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use self::times::{Times, microseconds};
use super::{Context, discover, map};
use crate::addr::Endpoint;
use crate::cli::Ping;
use crate::configfs::{Job, Made};
use crate::error::{Code, Error, fill_in};
use crate::interrupt::Interrupt;
use crate::quote;

/// The most round trips that the module measures at a time.
const BATCH_MAX: u64 = 256;
/// How long the module shall measure at a time: far less than the time after which it stops.
const BATCH_TIME: Duration = Duration::from_millis(500);
/// The longest pause that the module makes.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What was measured of a server or a map, schema `farblk.ping/2`.
#[derive(Default, JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    /// The address of the server; null of a map.
    addr: Option<String>,
    /// The name of the map; null of a server.
    map: Option<String>,
    /// The device node of the map; null of a server.
    device: Option<String>,
    interval_us: u64,
    /// False if a signal or an error came before the last one was measured.
    complete: bool,
    /// Messages to the module of the server and back.
    round_trips: Option<Times>,
    /// Reads of the disk.
    read: Option<Times>,
    /// Writes of the disk.
    write: Option<Times>,
}

impl Document {
    /// Nothing measured yet.
    fn new(arguments: &Ping) -> Self {
        Self {
            schema: "farblk.ping/2",
            interval_us: u64::try_from(arguments.interval.as_micros()).unwrap_or(u64::MAX),
            ..Self::default()
        }
    }

    /// Prints it, unless nothing was measured before the error of `result`. Returns `result`.
    fn finish(self, context: &Context, result: Result<(), Error>) -> Result<(), Error> {
        let kinds = [
            ("round trip", &self.round_trips),
            ("read", &self.read),
            ("write", &self.write),
        ];
        let lines = kinds
            .iter()
            .filter_map(|(what, times)| Some(times.as_ref()?.lines(what)));
        let lines: Vec<_> = lines.flatten().collect();
        if lines.is_empty() && result.is_err() {
            return result;
        }
        if context.output.is_json() {
            context.output.document(&self)?;
            return result;
        }
        if lines.is_empty() {
            context.output.note("nothing was measured");
        }
        lines
            .iter()
            .try_for_each(|line| context.output.line(line))?;
        result
    }
}

/// Runs `farblk ping`.
pub fn run(context: &Context, arguments: &Ping) -> Result<(), Error> {
    context.configfs.require()?;
    let target = &arguments.target;
    let job = Job::new(format!("cannot ping {target}"));
    let server = Endpoint::parse(target);
    // An address that has a colon is one with a port, or one of IPv6.
    let is_server = server.is_ok() && target.contains(':');
    let name = match is_server {
        true => None,
        false => map::find(context, target, &job)?,
    };
    match (name, server) {
        (Some(_), _) if arguments.source.is_some() => {
            let why = "--source is for a server, and this is a map";
            Err(job.error(Code::Usage, why).hint("farblk list"))
        }
        (Some(name), _) => disk::run(context, arguments, &name),
        (None, Ok(_)) if arguments.write || arguments.size.is_some() => {
            let why = "--write and --size are for a map, and there is none of that name";
            Err(job.error(Code::Usage, why).hint("farblk list"))
        }
        (None, Ok(server)) => ping_server(context, arguments, &server, job),
        (None, Err(_)) if !target.contains(':') => Err(context.not_found(&job.what, "map", target)),
        (None, Err(invalid)) => Err(job
            .error(Code::Usage, invalid.to_string())
            .hint("farblk ping --help")),
    }
}

/// Measures round trips to a server, by means of an object of this process in discover/.
fn ping_server(
    context: &Context,
    arguments: &Ping,
    server: &Endpoint,
    job: Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = job
        .connect()
        .variable("server", server.to_string())
        .variable("host", &server.host);
    let hint = "getent hosts {host}  # or give an IP address\n\
                farblk list  # shows the maps, if one was meant";
    let hint = || fill_in(hint, &[("host", &server.host)]);
    let addr = server.resolve(&job.what).map_err(|e| e.hint(hint()))?;
    let job = job.variable("address", addr.ip().to_string());
    let interrupt = Interrupt::take().map_err(|e| job.error(Code::Io, e.to_string()))?;
    let mut made = Made::new(configfs, &context.output);
    let object = discover::make_own(context, &mut made, &job)?;
    let batch = batch_of(arguments.interval).min(arguments.count);
    let pause = arguments.interval.min(PAUSE_MAX).as_micros();
    let mut settings = vec![
        ("addr", addr.to_string()),
        ("pings", batch.to_string()),
        ("interval_us", pause.to_string()),
    ];
    settings.extend(
        arguments
            .source
            .map(|source| ("source", source.to_string())),
    );
    configfs.set_all(&object, &settings, &job)?;
    if configfs.is_dry_run() {
        script(context, arguments, &object, batch);
        return made.remove(&job);
    }
    let mut times = Vec::new();
    let result = measure(
        context, arguments, &object, batch, &interrupt, &mut times, &job,
    );
    let removed = made.remove(&job);
    let document = Document {
        addr: Some(addr.to_string()),
        complete: result.is_ok() && !interrupt.came(),
        round_trips: Times::new(times, None),
        ..Document::new(arguments)
    };
    document.finish(context, result).and(removed)
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
    times: &mut Vec<u64>,
    job: &Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let mut left = arguments.count;
    while left > 0 && !interrupt.came() {
        if left < batch {
            configfs.set(object, "pings", &left.to_string(), job)?;
        }
        let result = configfs.set(object, "enable", "1", job);
        let text = configfs.read(object, "rtt_ns", job)?.unwrap_or_default();
        let more = parse(&text).ok_or_else(|| job.error(Code::Unparsable, format!("{text:?}")))?;
        if let (1, [ns]) = (batch, more.as_slice()) {
            context.output.note(&microseconds(*ns));
        }
        let added = more.len();
        times.extend(more);
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

/// Parses numbers, one on each line.
fn parse(text: &str) -> Option<Vec<u64>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| line.parse().ok().filter(|&ns| ns < u64::MAX / 4))
        .collect()
}

/// Writes down the rest of a dry run: what is measured again and again is a loop.
fn script(context: &Context, arguments: &Ping, object: &Path, batch: u64) {
    let file = |name: &str| quote::path(&object.join(name));
    let measure = format!("echo 1 > {}; cat {}", file("enable"), file("rtt_ns"));
    let times = arguments.count.div_ceil(batch);
    let pause = arguments.interval.as_secs_f64();
    context.configfs.record(|| match times {
        1 => measure,
        _ => format!("for i in $(seq {times}); do {measure}; sleep {pause}; done"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches() {
        let of = |ms| batch_of(Duration::from_millis(ms));
        assert_eq!(
            [of(0), of(1), of(2), of(10), of(500), of(501), of(3_600_000)],
            [256, 256, 250, 50, 1, 1, 1]
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
