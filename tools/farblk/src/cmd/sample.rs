// SPDX-License-Identifier: GPL-2.0
//! The I/O of all maps and exports at a point in time, and what came between two of these.

use std::time::{Duration, Instant};

use super::Context;
use super::export::mode_of;
use crate::clock;
use crate::configfs::LastError;
use crate::counters::{Debugfs, Lack, Stats};

/// The kinds of objects that have I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A map.
    Map,
    /// An export.
    Export,
}

impl Kind {
    /// Its name.
    pub fn text(self) -> &'static str {
        match self {
            Kind::Map => "map",
            Kind::Export => "export",
        }
    }

    /// The name of the folder with all of its kind.
    pub fn folder(self) -> &'static str {
        match self {
            Kind::Map => "maps",
            Kind::Export => "exports",
        }
    }
}

/// The origin of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The module.
    Module,
    /// The block layer, which knows less.
    BlockLayer,
}

/// A map or export.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The state, a word.
    pub state: Option<String>,
    /// The disk of a map, "farblk0".
    pub device: Option<String>,
    /// "one_sided" or "two_sided".
    pub mode: Option<String>,
    /// The time until the I/O of a map without a path fails, in ms.
    pub gives_up_ms: Option<u64>,
    /// Why I/O does not flow.
    pub last_error: Option<LastError>,
    /// The I/O since it was enabled, and who counted that; `None` if nobody knows.
    pub stats: Option<(Source, Stats)>,
}

impl Object {
    fn read(context: &Context, kind: Kind, name: &str, complaints: &mut Vec<String>) -> Self {
        let configfs = &context.configfs;
        let debugfs = Debugfs::new(&context.root);
        let object = configfs.path(&[kind.folder(), name]);
        let of_export = || {
            let kind = configfs.attr(&object, "kind")?;
            mode_of(&kind).map(str::to_owned)
        };
        let (device, mode) = match kind {
            Kind::Map => (
                configfs.attr(&object, "device"),
                configfs.attr(&object, "mode"),
            ),
            Kind::Export => (None, of_export()),
        };
        let stats = debugfs.read([kind.folder(), name], complaints);
        let stats = stats.map(|stats| (Source::Module, stats));
        let of_disk = || {
            let stats = debugfs.of_disk(device.as_ref()?)?;
            Some((Source::BlockLayer, stats))
        };
        let stats = stats.or_else(of_disk);
        Self {
            kind,
            name: name.to_owned(),
            state: configfs.attr(&object, "state"),
            device,
            mode,
            gives_up_ms: configfs.number(&object, "gives_up_ms"),
            last_error: configfs.last_error(&object),
            stats,
        }
    }

    fn is_disabled(&self) -> bool {
        matches!(self.state.as_deref(), None | Some("disabled"))
    }

    /// The I/O since `before`; all of it if the object was not enabled then.
    fn since(&self, before: Option<&Self>) -> Option<Stats> {
        let (source, stats) = self.stats.as_ref()?;
        let Some(before) = before.filter(|before| !before.is_disabled()) else {
            return Some(stats.since(&stats.zero()));
        };
        match &before.stats {
            Some((other, base)) if other == source => Some(stats.since(base)),
            _ => None,
        }
    }
}

/// Maps and exports at a point in time.
pub struct Sample {
    at: Instant,
    /// The same for people: "2026-11-23T22:40:01.123Z".
    pub time: String,
    /// The maps, and then the exports.
    pub objects: Vec<Object>,
    /// What is wrong with the files that were read.
    complaints: Vec<String>,
    /// Why the module's counters are missing.
    pub lack: Option<Lack>,
}

impl Sample {
    /// Looks at all maps and exports.
    pub fn take(context: &Context) -> Self {
        let mut sample = Self {
            at: Instant::now(),
            time: clock::now(),
            objects: Vec::new(),
            complaints: Vec::new(),
            lack: Debugfs::new(&context.root).lack(),
        };
        for kind in [Kind::Map, Kind::Export] {
            let folder = context.configfs.path(&[kind.folder()]);
            for name in context.configfs.names(&folder) {
                let object = Object::read(context, kind, &name, &mut sample.complaints);
                sample.objects.push(object);
            }
        }
        sample
    }

    /// The I/O since `before`, or since each object was enabled.
    pub fn since(&self, before: Option<&Sample>) -> Window {
        let of = |object: &Object| {
            let stats = match before {
                Some(before) => {
                    let mut others = before.objects.iter();
                    let same =
                        |other: &&Object| other.kind == object.kind && other.name == object.name;
                    object.since(others.find(same))
                }
                None => object.stats.as_ref().map(|(_, stats)| *stats),
            };
            Row {
                object: object.clone(),
                stats: stats.unwrap_or_default(),
            }
        };
        Window {
            time: self.time.clone(),
            length: before.map(|before| self.at.saturating_duration_since(before.at)),
            rows: self.objects.iter().map(of).collect(),
        }
    }

    /// Warns of what is missing or wrong. Each thing is said once: `said` has those that were.
    pub fn warn(&self, context: &Context, said: &mut Vec<String>) {
        if let Some(lack) = &self.lack {
            if !said.contains(&lack.why) {
                said.push(lack.why.clone());
                context.output.warn_with(&lack.why, &lack.hints);
            }
        }
        for complaint in &self.complaints {
            if !said.contains(complaint) {
                said.push(complaint.clone());
                context.output.warn(complaint);
            }
        }
    }
}

/// The I/O of an object in a window.
pub struct Row {
    /// The object at the end of the window.
    pub object: Object,
    /// Its I/O in the window.
    pub stats: Stats,
}

/// The I/O between two points in time, or since the objects were enabled.
pub struct Window {
    /// The end, "2026-11-23T22:40:01.123Z".
    pub time: String,
    /// The length, if both ends are known.
    pub length: Option<Duration>,
    /// The maps, and then the exports.
    pub rows: Vec<Row>,
}

impl Window {
    /// How often per second something happened that happened `count` times.
    pub fn rate(&self, count: Option<u64>) -> Option<f64> {
        let seconds = self.length?.as_secs_f64();
        (seconds > 0.0).then(|| count.map(|count| count as f64 / seconds))?
    }
}

impl Row {
    /// The reads and writes.
    pub fn ios(&self) -> Option<u64> {
        let counters = &self.stats.counters;
        Some(counters.reads?.saturating_add(counters.writes?))
    }

    /// The share of I/O without a command to the server, 0 to 1; `None` if there was no I/O. Zeroes
    /// are also written one-sided.
    pub fn one_sided_share(&self) -> Option<f64> {
        let counters = &self.stats.counters;
        let zeroes = counters.write_zeroes.unwrap_or(0);
        let all = self.ios()?.saturating_add(zeroes);
        let share = counters.one_sided? as f64 / all as f64;
        (all > 0).then(|| share.min(1.0))
    }
}
