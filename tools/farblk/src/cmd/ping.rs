// SPDX-License-Identifier: GPL-2.0
//! `farblk ping`: round trips to a server, without a map.

mod plan;
mod times;

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use self::plan::Plan;
use self::times::{Times, microseconds};
use super::{Context, discover, key};
use crate::cli::{Op, Ping};
use crate::configfs::{Job, Made};
use crate::error::{Code, Error};
use crate::identity;
use crate::interrupt::Interrupt;
use crate::quote;
use crate::secret::Source;

/// The most round trips that the module measures at a time.
const BATCH_MAX: u64 = 256;
/// How long the module shall measure at a time, so that a signal need not wait.
const BATCH_TIME: Duration = Duration::from_millis(500);
/// All that can be measured, in the order of [`Op`], in which it is shown.
const OPS: [Op; 6] = [Op::Send, Op::Read, Op::Write, Op::Cas, Op::Faa, Op::SendUd];

/// Returns the word of the module for what is measured.
fn word(op: Op) -> &'static str {
    match op {
        Op::Send => "send",
        Op::Read => "read",
        Op::Write => "write",
        Op::Cas => "cas",
        Op::Faa => "faa",
        Op::SendUd => "send_ud",
    }
}

/// Returns the words for people.
fn title(op: Op) -> String {
    word(op).to_uppercase().replace('_', " ")
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
    /// Whether this host has looked for answers all the time, rather than slept.
    polled: bool,
    /// What was to be measured and one of the two RDMA devices does not do.
    unavailable: Vec<String>,
    send: Option<Times>,
    read: Option<Times>,
    write: Option<Times>,
    cas: Option<Times>,
    faa: Option<Times>,
    send_ud: Option<Times>,
    /// How many datagrams had no answer in time; null if none was sent.
    lost: Option<u64>,
}

/// Parses numbers, one on each line.
fn parse(text: &str) -> Option<Vec<u64>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| line.parse().ok().filter(|&ns| ns < u64::MAX / 4))
        .collect()
}

/// Parses lines of a word and a number.
fn parse_elapsed(text: &str) -> Option<Vec<(&str, u64)>> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (word, number) = line.split_once(' ')?;
            Some((word, number.parse().ok()?))
        })
        .collect()
}

/// What was measured of one kind.
#[derive(Default)]
struct Trips {
    times: Vec<u64>,
    elapsed_ns: u64,
}

/// The round trips that were measured so far.
#[derive(Default)]
struct Measured {
    trips: [Trips; OPS.len()],
    unavailable: Vec<Op>,
    /// The datagrams that had no answer.
    lost: u64,
}

impl Measured {
    fn of(&mut self, op: Op) -> &mut Trips {
        &mut self.trips[op as usize]
    }

    fn is_empty(&self) -> bool {
        self.lost == 0 && self.trips.iter().all(|trips| trips.times.is_empty())
    }

    /// Returns true if all datagrams were lost that were to be measured.
    fn has_lost_all(&mut self) -> bool {
        self.lost > 0 && self.of(Op::SendUd).times.is_empty()
    }

    /// Adds what the module has measured. Returns how many round trips that was of each kind that
    /// is available, at least.
    fn add(
        &mut self,
        context: &Context,
        plan: &Plan,
        object: &Path,
        job: &Job,
    ) -> Result<usize, Error> {
        let configfs = &context.configfs;
        let unparsable = |text: &str| job.error(Code::Unparsable, format!("{text:?}"));
        let read = |name: &str| Ok(configfs.read(object, name, job)?.unwrap_or_default());
        if plan.may_be_unavailable() {
            let text = read("unavailable")?;
            let named = |op: &Op| text.lines().any(|line| line == word(*op));
            self.unavailable = plan.ops.iter().copied().filter(named).collect();
        }
        let mut added = None;
        for &op in &plan.ops {
            let text = read(&format!("{}_ns", word(op)))?;
            let more = parse(&text).ok_or_else(|| unparsable(&text))?;
            let mut lost = 0;
            if op == Op::SendUd {
                let text = read("lost")?;
                lost = text.trim().parse().map_err(|_| unparsable(&text))?;
                self.lost = self.lost.saturating_add(lost);
            }
            if !self.unavailable.contains(&op) {
                let lost = usize::try_from(lost).unwrap_or(usize::MAX);
                let done = more.len().saturating_add(lost);
                added = Some(done.min(added.unwrap_or(usize::MAX)));
            }
            self.of(op).times.extend(more);
        }
        if plan.depth > 1 {
            let text = read("elapsed_ns")?;
            let more = parse_elapsed(&text).ok_or_else(|| unparsable(&text))?;
            for &op in &plan.ops {
                let mut own = more.iter().filter(|(name, _)| *name == word(op));
                let nanos = own.next().map_or(0, |(_, nanos)| *nanos);
                let trips = self.of(op);
                trips.elapsed_ns = trips.elapsed_ns.saturating_add(nanos);
            }
        }
        Ok(added.unwrap_or(0))
    }

    /// Leaves no more round trips of a kind than were asked for: where a kind had less time than
    /// another one, the rest is measured of all. The share of the datagrams that were lost stays.
    fn cap(&mut self, count: u64) {
        let answered = self.of(Op::SendUd).times.len() as u128;
        let (lost, most) = (u128::from(self.lost), u128::from(count));
        if lost + answered > most {
            self.lost = u64::try_from(lost * most / (lost + answered)).unwrap_or(count);
        }
        for op in OPS {
            let lost = if op == Op::SendUd { self.lost } else { 0 };
            let most = usize::try_from(count - lost).unwrap_or(usize::MAX);
            let trips = self.of(op);
            if trips.times.len() > most {
                let all = trips.times.len() as u128;
                let elapsed_ns = u128::from(trips.elapsed_ns) * most as u128 / all;
                trips.elapsed_ns = u64::try_from(elapsed_ns).unwrap_or(u64::MAX);
                trips.times.truncate(most);
            }
        }
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
    let source = arguments.key_file.as_deref().map(Source::of);
    let secret = source.as_ref().map(|source| key::read(source, &job));
    let secret = secret.transpose()?;
    let plan = Plan::new(arguments, &job, |export| {
        has_reads(context, arguments, export, addr, &job)
    })?;
    if plan.has_scratch {
        identity::settle(context, &job)?;
    }
    let mut made = Made::new(configfs, &context.output);
    let object = discover::make_own(context, "ping", &mut made, &job)?;
    let batch = match plan.depth {
        1 => batch_of(arguments.interval),
        _ => BATCH_MAX,
    };
    let batch = batch.min(arguments.count);
    let mut settings = vec![("addr", addr.to_string())];
    settings.extend(plan.settings(arguments, batch));
    if let Some(source) = arguments.source {
        settings.push(("source", source.to_string()));
    }
    configfs.set_all(&object, &settings, &job)?;
    if let Some(key) = secret.as_ref().zip(source.as_ref()) {
        configfs.set_key(&object, "key", Some(key), &job)?;
    }
    if configfs.is_dry_run() {
        script(context, arguments, &plan, &object, batch);
        return made.remove(&job);
    }
    let mut measured = Measured::default();
    let result = measure(
        context,
        (arguments, &plan),
        &object,
        batch,
        &interrupt,
        &mut measured,
        &job,
    );
    measured.cap(arguments.count);
    let removed = made.remove(&job);
    let complete = result.is_ok() && !interrupt.came();
    let result = match result {
        Ok(()) if measured.has_lost_all() => {
            Err(job.error(Code::TimedOut, "no datagram was answered"))
        }
        result => result,
    };
    // An error alone says what is wrong, if nothing was measured before it.
    if result.is_ok() || !measured.is_empty() {
        report(
            context,
            (arguments, &plan),
            addr.to_string(),
            measured,
            complete,
        )?;
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
    (arguments, plan): (&Ping, &Plan),
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
        let lost = measured.lost;
        let result = configfs.set(object, "enable", "1", job);
        let result = result.map_err(|error| plan.explain(arguments, error));
        let added = measured.add(context, plan, object, job)?;
        if batch == 1 && added == 1 {
            let mut words = Vec::new();
            for &op in &plan.ops {
                if op == Op::SendUd && measured.lost > lost {
                    words.push(format!("{} lost", title(op)));
                } else if let Some(&ns) = measured.of(op).times.last() {
                    words.push(format!("{} {}", title(op), microseconds(ns)));
                }
            }
            context.output.note(&words.join("  "));
        }
        result?;
        if measured.unavailable.len() == plan.ops.len() {
            return Ok(());
        }
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
fn script(context: &Context, arguments: &Ping, plan: &Plan, object: &Path, batch: u64) {
    let file = |name: &str| quote::path(&object.join(name));
    let files: Vec<_> = plan.files().iter().map(|name| file(name)).collect();
    let measure = format!("echo 1 > {}; cat {}", file("enable"), files.join(" "));
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
    (arguments, plan): (&Ping, &Plan),
    addr: String,
    mut measured: Measured,
    complete: bool,
) -> Result<(), Error> {
    let lost = measured.lost;
    let is_sent = lost > 0 || !measured.of(Op::SendUd).times.is_empty();
    let mut times = |op| {
        let trips = std::mem::take(measured.of(op));
        let (size, depth) = (plan.size_of(op), plan.depth_of(op));
        Times::new(trips.times, size, depth, trips.elapsed_ns)
    };
    let [send, read, write, cas, faa, send_ud] = OPS.map(&mut times);
    let document = Document {
        schema: "farblk.ping/1",
        addr,
        export: arguments.place.export.clone(),
        interval_us: u64::try_from(arguments.interval.as_micros()).unwrap_or(u64::MAX),
        complete,
        polled: arguments.polled,
        unavailable: measured
            .unavailable
            .iter()
            .map(|op| word(*op).to_owned())
            .collect(),
        send,
        read,
        write,
        cas,
        faa,
        send_ud,
        lost: is_sent.then_some(lost),
    };
    if context.output.is_json() {
        return context.output.document(&document);
    }
    let kinds = [
        &document.send,
        &document.read,
        &document.write,
        &document.cas,
        &document.faa,
        &document.send_ud,
    ];
    let lines = OPS
        .iter()
        .zip(kinds)
        .filter_map(|(op, times)| Some(times.as_ref()?.lines(&title(*op))));
    let mut lines: Vec<_> = lines.flatten().collect();
    if let Some(lost) = document.lost {
        lines.push(plan.loss(lost, document.send_ud.as_ref().map_or(0, Times::count)));
    }
    let missing = measured.unavailable.iter().map(|&op| {
        let none = match op {
            Op::Read => "none of no bytes",
            _ => "none",
        };
        let op = title(op);
        format!("{op}  not available: the RDMA device of one of the two hosts does {none}")
    });
    let lines: Vec<_> = lines.into_iter().chain(missing).collect();
    if lines.is_empty() {
        context.output.note("nothing was measured");
    }
    lines.iter().try_for_each(|line| context.output.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations() {
        for (index, op) in OPS.into_iter().enumerate() {
            assert_eq!(op as usize, index, "{}", word(op));
        }
        assert_eq!(
            (title(Op::Faa), title(Op::SendUd)),
            ("FAA".into(), "SEND UD".into())
        );
    }

    #[test]
    fn no_more_than_asked_for() {
        let mut measured = Measured {
            lost: 2,
            ..Measured::default()
        };
        for (op, count) in [(Op::Send, 9), (Op::Read, 12), (Op::SendUd, 10)] {
            let trips = measured.of(op);
            trips.times = (0..count).collect();
            trips.elapsed_ns = 1200;
        }
        measured.cap(10);
        let mut counted = |op| {
            let trips = measured.of(op);
            (trips.times.len(), trips.elapsed_ns)
        };
        assert_eq!(counted(Op::Send), (9, 1200));
        assert_eq!(counted(Op::Read), (10, 1000));
        assert_eq!(counted(Op::SendUd), (9, 1080));
        assert_eq!(measured.lost, 1);
        // If one was answered, not all were lost.
        measured.lost = 20;
        measured.cap(10);
        assert!(!measured.has_lost_all());
        assert_eq!((measured.lost, measured.of(Op::SendUd).times.len()), (6, 4));
        measured.of(Op::SendUd).times.clear();
        measured.lost = 20;
        measured.cap(10);
        assert_eq!(measured.lost, 10);
    }

    #[test]
    fn elapsed() {
        assert_eq!(
            parse_elapsed("send 5\nread 7\n\n"),
            Some(vec![("send", 5), ("read", 7)])
        );
        for bad in ["send\n", "send x\n", "send -1\n"] {
            assert_eq!(parse_elapsed(bad), None, "{bad:?}");
        }
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
