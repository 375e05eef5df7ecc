// SPDX-License-Identifier: GPL-2.0
//! `farblk metrics`: the state and the I/O of this host for a monitoring system.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use super::sample::{Kind, Object, Sample, Source};
use crate::cli;
use crate::configfs::Job;
use crate::counters::{BUCKETS, Debugfs, Histogram};
use crate::durable;
use crate::error::{Code, Error};

mod family;

use family::{Family, Type};

/// The states of a map, as in configfs.
const MAP_STATES: &[&str] = &[
    "disabled",
    "connecting",
    "live",
    "reconnecting",
    "failed",
    "stale",
    "evicted",
    "closing",
];
/// The states of a path.
const PATH_STATES: &[&str] = &["disabled", "connecting", "live", "waiting", "closing"];
/// The states of an export.
const EXPORT_STATES: &[&str] = &["disabled", "allocating", "online", "closing", "unavailable"];
/// The states of a port.
const PORT_STATES: &[&str] = &["disabled", "listening", "closing", "error"];

/// The help of the counters of maps and exports, by their names in debugfs.
const COUNTERS: &[(&str, &str)] = &[
    ("reads", "Reads that were completed"),
    ("writes", "Writes that were completed"),
    ("flushes", "Flushes that were completed"),
    ("discards", "Discards that were completed"),
    (
        "write_zeroes",
        "Requests to write zeroes that were completed",
    ),
    ("read_bytes", "Bytes that were read"),
    ("write_bytes", "Bytes that were written"),
    ("errors", "I/Os that failed"),
    (
        "retries",
        "I/Os that were sent again because their path was lost",
    ),
    (
        "one_sided",
        "I/Os without a command to the server, by RDMA READ and WRITE alone",
    ),
    ("reconnects", "How often a path was up again"),
    (
        "failovers",
        "How often a path was lost while another one was up",
    ),
];

/// The counters of the server, by their names in debugfs.
const SERVER_COUNTERS: &[(&str, &str)] = &[
    ("logins", "Logins that were granted"),
    ("violations", "Messages that broke the protocol"),
    (
        "forgeries",
        "Messages and I/O connections that did not prove the key of their session",
    ),
    (
        "forged",
        "Commands and data whose check was wrong, as somebody changed or made them",
    ),
    (
        "sent_away",
        "Connections that were told to come again, as many were half-open",
    ),
    ("fences", "Fences that were answered"),
    (
        "takeovers",
        "Maps that lost their place to another map while they had no path",
    ),
    (
        "evictions",
        "Maps that lost their place because their host is not admitted any more",
    ),
    (
        "heartbeats_missed",
        "Sessions that ended because nothing was heard of their client",
    ),
    (
        "overdue",
        "Sessions that ended as others waited for memory that their client did not let go of",
    ),
];

/// The metrics of the host, schema `farblk.metrics/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    families: Vec<Family>,
}

/// The metrics were written to a file, schema `farblk.written/1`.
#[derive(JsonSchema, Serialize)]
pub struct Written<'a> {
    schema: &'static str,
    file: &'a Path,
    /// The number of values in it.
    samples: usize,
}

/// Runs `farblk metrics`. That there is no module is a metric, and no error.
pub fn run(context: &Context, arguments: &cli::Metrics) -> Result<(), Error> {
    super::refuse_dry_run(context, "metrics")?;
    let families = collect(context);
    let Some(path) = &arguments.file else {
        if context.output.is_json() {
            return context.output.document(&Document {
                schema: "farblk.metrics/1",
                families,
            });
        }
        let text = family::text(&families);
        return text.lines().try_for_each(|line| context.output.line(line));
    };
    write(path, &family::text(&families)).map_err(|e| {
        let job = Job::new("cannot write the metrics");
        match (e.kind(), path.parent()) {
            (io::ErrorKind::NotFound, Some(folder)) => job
                .error(
                    Code::NotFound,
                    format!("{} does not exist", folder.display()),
                )
                .hint(format!("mkdir -p {}", crate::quote::path(folder))),
            _ => durable::failed(&e, path, &job),
        }
    })?;
    let samples = families.iter().map(|family| family.samples.len()).sum();
    context.output.result(
        &format!("wrote {samples} values to {}", path.display()),
        &Written {
            schema: "farblk.written/1",
            file: path,
            samples,
        },
    )
}

/// Replaces the file at once, so that who reads it has the whole old or the whole new text. Until
/// then the new one has another suffix, by which node_exporter does not find it. Anybody may read
/// it: node_exporter is not root.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file name"));
    };
    let new_name = |number: &str| {
        let mut new_name = name.to_owned();
        new_name.push(format!(".farblk-{number}.new"));
        path.with_file_name(new_name)
    };
    durable::remove_those_of_killed(path, &new_name);
    let new = new_name(&std::process::id().to_string());
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o644);
    // A process of the same number may have been killed here.
    if let Err(e) = fs::remove_file(&new) {
        if e.kind() != io::ErrorKind::NotFound {
            return Err(e);
        }
    }
    let written = options.open(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.sync_all()
    });
    let result = written.and_then(|()| fs::rename(&new, path));
    if result.is_err() {
        let _ = fs::remove_file(&new);
    }
    result
}

/// All metrics of this host.
fn collect(context: &Context) -> Vec<Family> {
    let configfs = &context.configfs;
    let mut families = Vec::new();
    let root = configfs.path(&[]);
    let version = configfs.attr(&root, "version");
    let loaded = configfs.require();
    families.push(
        Family::new(
            "farblk_module_loaded",
            Type::Gauge,
            "1 if the kernel module is loaded",
        )
        .with(&[], u64::from(loaded.is_ok())),
    );
    if let Err(error) = loaded {
        context.output.warn_with(&error.to_string(), &error.hints());
        return families;
    }
    let info = [
        ("tool_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("version", version.unwrap_or_default()),
        ("host_name", context.host_name().unwrap_or_default()),
    ];
    families.push(
        Family::new(
            "farblk_module_info",
            Type::Gauge,
            "The kernel module; the value is 1",
        )
        .with(&info, 1u64),
    );
    let sample = Sample::take(context);
    sample.warn(context, &mut Vec::new());
    families.push(
        Family::new(
            "farblk_counters_readable",
            Type::Gauge,
            "1 if the counters of the kernel module in debugfs can be read",
        )
        .with(&[], u64::from(sample.lack.is_none())),
    );
    for kind in [Kind::Map, Kind::Export] {
        let objects = sample.objects.iter().filter(|object| object.kind == kind);
        let objects: Vec<_> = objects.collect();
        families.extend(states(context, kind, &objects));
        families.extend(io_of(kind, &objects));
    }
    families.extend(paths(context));
    families.extend(ports(context));
    let counters = Debugfs::new(&context.root).server();
    for (name, help) in SERVER_COUNTERS {
        let found = counters.iter().find(|(have, _)| have == name);
        let family = Family::new(&format!("farblk_server_{name}"), Type::Counter, help);
        families.push(
            found
                .into_iter()
                .fold(family, |family, (_, value)| family.with(&[], *value)),
        );
    }
    families.retain(|family| !family.samples.is_empty());
    families
}

/// The labels of an object.
type Labels = Vec<(&'static str, String)>;

/// One value for each state: 1 for the one that the object has.
fn state_family(
    name: &str,
    help: &str,
    known: &[&str],
    objects: &[(Labels, Option<String>)],
) -> Family {
    let mut family = Family::new(name, Type::Gauge, help);
    for (labels, state) in objects {
        let state = state.as_deref().unwrap_or("disabled");
        let newer = (!known.contains(&state)).then_some(state);
        for word in known.iter().copied().chain(newer) {
            let mut labels = labels.clone();
            labels.push(("state", word.to_owned()));
            family = family.with(&labels, u64::from(word == state));
        }
    }
    family
}

/// What configfs tells of maps or exports.
fn states(context: &Context, kind: Kind, objects: &[&Object]) -> Vec<Family> {
    let configfs = &context.configfs;
    let text = kind.text();
    let (known, attributes, numbers): (_, &[_], &[_]) = match kind {
        Kind::Map => (
            MAP_STATES,
            &["export", "device", "uuid", "mode", "access"],
            &[(
                "size",
                "size_bytes",
                "Size of the disk; 0 while there is none",
            )],
        ),
        Kind::Export => (
            EXPORT_STATES,
            &["kind", "uuid"],
            &[
                ("size", "size_bytes", "Size"),
                ("clients", "clients", "Maps that have a path"),
                (
                    "clients_away",
                    "clients_away",
                    "Maps without a path that keep their place",
                ),
                (
                    "max_clients",
                    "max_clients",
                    "Maps that may use it at a time",
                ),
            ],
        ),
    };
    let label = |object: &Object| vec![(text, object.name.clone())];
    let mut info = Family::new(
        &format!("farblk_{text}_info"),
        Type::Gauge,
        "What it is; the value is 1",
    );
    for object in objects {
        let place = configfs.path(&[kind.folder(), &object.name]);
        let mut labels = label(object);
        labels.extend(
            attributes
                .iter()
                .map(|name| (*name, configfs.attr(&place, name).unwrap_or_default())),
        );
        info = info.with(&labels, 1u64);
    }
    let of_state: Vec<_> = objects
        .iter()
        .map(|object| (label(object), object.state.clone()))
        .collect();
    let mut families = vec![
        info,
        state_family(
            &format!("farblk_{text}_state"),
            "1 for the state that it has, 0 for the others",
            known,
            &of_state,
        ),
    ];
    for (attribute, name, help) in numbers {
        let mut family = Family::new(&format!("farblk_{text}_{name}"), Type::Gauge, help);
        for object in objects {
            let place = configfs.path(&[kind.folder(), &object.name]);
            if let Some(number) = configfs.number::<u64>(&place, attribute) {
                family = family.with(&label(object), number);
            }
        }
        families.push(family);
    }
    if kind == Kind::Map {
        let mut family = Family::new(
            "farblk_map_gives_up_seconds",
            Type::Gauge,
            "Time until the I/O of a map without a path fails",
        );
        for object in objects {
            if let Some(ms) = object.gives_up_ms {
                family = family.with(&label(object), ms as f64 / 1000.0);
            }
        }
        families.push(family);
    }
    families
}

/// The counters and histograms of maps or exports.
fn io_of(kind: Kind, objects: &[&Object]) -> Vec<Family> {
    let text = kind.text();
    let counted = objects.iter().filter_map(|object| match &object.stats {
        // The block layer has other counters, which begin at another time: a counter must not
        // change its meaning.
        Some((Source::Module, stats)) => Some((vec![(text, object.name.clone())], stats)),
        _ => None,
    });
    let counted: Vec<_> = counted.collect();
    let mut families = Vec::new();
    for (name, help) in COUNTERS {
        let mut family = Family::new(&format!("farblk_{text}_{name}"), Type::Counter, help);
        for (labels, stats) in &counted {
            let list = stats.counters.list();
            let value = list.iter().find(|(have, _)| have == name);
            if let Some((_, Some(value))) = value {
                family = family.with(labels, *value);
            }
        }
        families.push(family);
    }
    let mut in_flight = Family::new(
        &format!("farblk_{text}_in_flight"),
        Type::Gauge,
        "I/Os that are on their way",
    );
    let mut latency = Family::new(
        &format!("farblk_{text}_latency_seconds"),
        Type::Histogram,
        "Time of an I/O; the sum is an estimate by the middle of each bucket",
    );
    for (labels, stats) in &counted {
        if let Some(value) = stats.in_flight {
            in_flight = in_flight.with(labels, value);
        }
        for (operation, histogram) in stats.latency.list() {
            let Some(histogram) = histogram else { continue };
            let mut labels = labels.clone();
            labels.push(("operation", operation.to_owned()));
            latency = add_histogram(latency, &labels, &histogram);
        }
    }
    families.extend([in_flight, latency]);
    families
}

fn add_histogram(
    mut family: Family,
    labels: &[(&'static str, String)],
    histogram: &Histogram,
) -> Family {
    let mut count: u64 = 0;
    for bucket in 0..BUCKETS {
        count = count.saturating_add(histogram.0[bucket]);
        let end = match Histogram::end_ns(bucket) {
            Some(ns) => (ns as f64 / 1e9).to_string(),
            None => "+Inf".into(),
        };
        let mut labels = labels.to_vec();
        labels.push(("le", end));
        family = family.with_suffix("_bucket", &labels, count);
    }
    family.with_suffix("_count", labels, count).with_suffix(
        "_sum",
        labels,
        histogram.sum_ns() / 1e9,
    )
}

/// The paths of all maps.
fn paths(context: &Context) -> Vec<Family> {
    let configfs = &context.configfs;
    let mut objects = Vec::new();
    let mut info = Family::new(
        "farblk_path_info",
        Type::Gauge,
        "A path of a map to its server; the value is 1",
    );
    let mut rtt = Family::new(
        "farblk_path_rtt_seconds",
        Type::Gauge,
        "Time that the server took to answer the last heartbeat",
    );
    let mut reconnects = Family::new(
        "farblk_path_reconnects",
        Type::Counter,
        "How often the path was up again",
    );
    for map in configfs.names(&configfs.path(&["maps"])) {
        let folder = configfs.path(&["maps", &map]).join("paths");
        for path in configfs.names(&folder) {
            let place = folder.join(&path);
            let labels = vec![("map", map.clone()), ("path", path)];
            let mut all = labels.clone();
            all.extend(
                ["addr", "device"]
                    .map(|name| (name, configfs.attr(&place, name).unwrap_or_default())),
            );
            info = info.with(&all, 1u64);
            if let Some(ns) = configfs
                .number::<u64>(&place, "rtt_ns")
                .filter(|ns| *ns > 0)
            {
                rtt = rtt.with(&labels, ns as f64 / 1e9);
            }
            if let Some(count) = configfs.number::<u64>(&place, "reconnects") {
                reconnects = reconnects.with(&labels, count);
            }
            objects.push((labels, configfs.attr(&place, "state")));
        }
    }
    let states = state_family(
        "farblk_path_state",
        "1 for the state that the path has, 0 for the others",
        PATH_STATES,
        &objects,
    );
    vec![info, states, rtt, reconnects]
}

/// The ports of this host.
fn ports(context: &Context) -> Vec<Family> {
    let configfs = &context.configfs;
    let names = configfs.names(&configfs.path(&["ports"]));
    let objects: Vec<_> = names
        .into_iter()
        .map(|name| {
            let state = configfs.attr(&configfs.path(&["ports", &name]), "state");
            (vec![("port", name)], state)
        })
        .collect();
    vec![state_family(
        "farblk_port_state",
        "1 for the state that the port has, 0 for the others",
        PORT_STATES,
        &objects,
    )]
}
