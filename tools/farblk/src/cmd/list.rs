// SPDX-License-Identifier: GPL-2.0
//! `farblk list` and `farblk show`: the mapped disks.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::export::{mode_text, protected};
use super::map::find;
use super::path::{self, Path};
use super::{Context, Trouble};
use crate::addr::Endpoint;
use crate::configfs::{Job, KEY_ID, LastError};
use crate::error::{Code, Error, Hints, fill_in};
use crate::holders::{self, Holder};
use crate::output::{self, table};
use crate::size;

/// A map.
#[derive(JsonSchema, Serialize)]
pub struct Map {
    /// Its name.
    pub name: String,
    /// The device node, "/dev/farblk0", while it has one.
    pub device: Option<String>,
    export: Option<String>,
    /// The identity of the disk.
    pub uuid: Option<String>,
    instance: Option<String>,
    /// In bytes.
    pub size_bytes: Option<u64>,
    /// "one_sided" or "two_sided".
    pub mode: Option<String>,
    /// The state, a word.
    pub state: Option<String>,
    read_only: bool,
    holders: Vec<Holder>,
    /// The id of the key of the map; null if it has none.
    pub key_id: Option<String>,
    /// Why I/O does not flow.
    pub last_error: Option<Trouble>,
    no_path_timeout_ms: Option<i64>,
    /// Time until I/O that waits for a path fails.
    gives_up_ms: Option<u64>,
    heartbeat_ms: Option<u64>,
    reconnect_max_ms: Option<u64>,
    policy: Option<String>,
    /// How commands and data are protected on their way: "none", "crc32c" or "seal".
    protection: Option<String>,
    /// Of the paths, those that are up.
    paths_live: usize,
    /// Of all paths.
    reconnects: u64,
    /// The paths to the server.
    pub paths: Vec<Path>,
}

/// The maps of this host, schema `farblk.list/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    host: Option<String>,
    maps: Vec<Map>,
}

impl Map {
    /// Reads a map.
    pub fn read(context: &Context, name: &str) -> Self {
        let configfs = &context.configfs;
        let object = configfs.path(&["maps", name]);
        let device = configfs.attr(&object, "device");
        let paths = path::read_all(context, &object);
        let mut map = Self {
            name: name.to_owned(),
            holders: device
                .iter()
                .flat_map(|device| holders::find(&context.root, device))
                .collect(),
            device: device.map(|device| format!("/dev/{device}")),
            export: configfs.attr(&object, "export"),
            uuid: configfs.attr(&object, "uuid"),
            instance: configfs.attr(&object, "instance"),
            size_bytes: configfs.number(&object, "size"),
            mode: configfs.attr(&object, "mode"),
            state: configfs.attr(&object, "state"),
            read_only: configfs.attr(&object, "access").as_deref() == Some("ro"),
            key_id: configfs.attr(&object, KEY_ID),
            last_error: None,
            no_path_timeout_ms: configfs.number(&object, "no_path_timeout_ms"),
            gives_up_ms: configfs.number(&object, "gives_up_ms"),
            heartbeat_ms: configfs.number(&object, "heartbeat_ms"),
            reconnect_max_ms: configfs.number(&object, "reconnect_max_ms"),
            policy: configfs.attr(&object, "policy"),
            protection: configfs.attr(&object, "protection"),
            paths_live: paths.iter().filter(|path| path.is_live()).count(),
            reconnects: paths.iter().filter_map(|path| path.reconnects).sum(),
            paths,
        };
        let last_error = configfs.last_error(&object);
        map.last_error = last_error.map(|last| map.trouble(context, &object, last));
        map
    }

    /// Interprets the last error of the map in its state.
    fn trouble(&self, context: &Context, object: &std::path::Path, last: LastError) -> Trouble {
        let blamed = self.paths.iter().find(|path| {
            let its = path.last_error.as_ref();
            its.is_some_and(|its| its.text == last.text)
        });
        let addr = blamed.or(self.paths.first());
        let addr = addr.and_then(|path| path.addr.as_deref());
        let job = path::job_of(context, object, addr);
        match self.state.as_deref() {
            Some("stale") => Trouble::with_code(last, Code::Stale, &job),
            Some("evicted") => {
                let mut trouble = Trouble::new(context, last, &job);
                if trouble.code != Code::Evicted.entry().name {
                    trouble.hints = trouble.hints.clone().and(&[fill_in(
                        "farblk remap {name}  # then, on this host",
                        &[("name", &self.name)],
                    )]);
                }
                trouble
            }
            Some("failed") => {
                let mut trouble = Trouble::new(context, last, &job);
                let waited = self.no_path_timeout_ms.map(size::human_patience);
                let first = format!(
                    "# no path for {} (no_path_timeout): I/O fails until one is back",
                    waited.as_deref().unwrap_or("too long")
                );
                trouble.hints = Hints::new(first).and(trouble.hints.lines());
                trouble
            }
            _ => Trouble::new(context, last, &job),
        }
    }

    /// The name of the disk, "farblk0".
    pub fn disk(&self) -> Option<&str> {
        self.device.as_deref()?.strip_prefix("/dev/")
    }

    /// "map vol1 is stale: the contents are gone".
    pub fn condition(&self) -> String {
        let state = self.state.as_deref().unwrap_or("unknown");
        match &self.last_error {
            Some(last) => format!("map {} is {state}: {}", self.name, last.text),
            None => format!("map {} is {state}", self.name),
        }
    }

    /// "10.0.0.1/vol1": the server by its first path.
    pub fn remote(&self) -> String {
        let server = self.paths.first().and_then(|path| path.addr.as_deref());
        let server = server
            .map(|addr| Endpoint::parse(addr).map_or(addr.to_owned(), |server| server.to_string()));
        format!(
            "{}/{}",
            server.as_deref().unwrap_or("-"),
            self.export.as_deref().unwrap_or("-")
        )
    }

    /// "1/2": the paths that are up, and all.
    fn paths_up(&self) -> String {
        format!("{}/{}", self.paths_live, self.paths.len())
    }

    /// "in 58.3 s" or "never": when I/O that waits for a path fails, if any has to wait.
    fn gives_up(&self) -> Option<String> {
        let left = match (self.gives_up_ms, self.no_path_timeout_ms) {
            (Some(ms), _) => format!("in {}", size::human_duration(Duration::from_millis(ms))),
            (None, Some(-1)) if self.state.as_deref() == Some("reconnecting") => "never".into(),
            _ => return None,
        };
        Some(left)
    }

    /// Returns the lines below that of the map: its paths, its last error, and a hint.
    fn branches(&self) -> Vec<String> {
        let mut branches: Vec<String> = self.paths.iter().map(Path::line).collect();
        branches.extend(protected(&self.protection));
        branches.extend(self.key_id.iter().map(|id| format!("key {id}")));
        branches.extend(self.gives_up().map(|left| match left.as_str() {
            "never" => "I/O waits for a path, for ever".into(),
            left => format!("I/O waits for a path, and gives up {left}"),
        }));
        let of_paths = self
            .paths
            .iter()
            .filter_map(|path| path.last_error.as_ref());
        let of_paths: Vec<_> = of_paths.collect();
        if let Some(last) = &self.last_error {
            if !of_paths.iter().any(|other| other.text == last.text) {
                branches.push(format!("last error: {}", last.text));
            }
        }
        let mut hints: Vec<&str> = Vec::new();
        let troubles = self.last_error.iter().chain(of_paths);
        for hint in troubles.flat_map(|trouble| trouble.hints.lines()) {
            if !hints.contains(&hint.as_str()) {
                hints.push(hint);
            }
        }
        branches.extend(hints.iter().map(|hint| format!("hint: {hint}")));
        branches
    }

    fn row(&self) -> Vec<String> {
        let holders: Vec<_> = self.holders.iter().map(Holder::to_string).collect();
        vec![
            self.name.clone(),
            self.disk().unwrap_or_default().to_owned(),
            self.remote(),
            self.size_bytes
                .filter(|_| self.device.is_some())
                .map(size::human)
                .unwrap_or_default(),
            self.mode
                .as_deref()
                .filter(|_| self.device.is_some())
                .map(mode_text)
                .unwrap_or_default(),
            self.state.clone().unwrap_or_default(),
            self.paths_up(),
            holders.join(", "),
        ]
    }
}

/// Runs `farblk list`.
pub fn run(context: &Context) -> Result<(), Error> {
    context.configfs.require()?;
    let names = context.configfs.names(&context.configfs.path(&["maps"]));
    let maps: Vec<Map> = names.iter().map(|name| Map::read(context, name)).collect();
    if context.output.is_json() {
        let host = context.host_name();
        return context.output.document(&Document {
            schema: "farblk.list/1",
            host,
            maps,
        });
    }
    let rows: Vec<_> = maps.iter().map(Map::row).collect();
    let heading = [
        "MAP", "DEVICE", "EXPORT", "SIZE", "MODE", "STATE", "PATHS", "HOLDERS",
    ];
    let mut lines = table(&heading, &rows).into_iter();
    lines
        .next()
        .map_or(Ok(()), |heading| context.output.line(&heading))?;
    for (line, map) in lines.zip(&maps) {
        context.output.line(&line)?;
        context.output.branches(&map.branches())?;
    }
    Ok(())
}

/// Runs `farblk show`.
pub fn show(context: &Context, map: &str) -> Result<(), Error> {
    context.configfs.require()?;
    let job = Job::new("cannot show the map");
    let name = find(context, map, &job)?.ok_or_else(|| context.not_found(&job.what, "map", map))?;
    let map = Map::read(context, &name);
    if context.output.is_json() {
        return context.output.document(&super::map::Document {
            schema: "farblk.map/1",
            changed: false,
            map,
        });
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let holders: Vec<_> = map.holders.iter().map(Holder::to_string).collect();
    let size = |bytes| format!("{} ({bytes} bytes)", size::human(bytes));
    let time = |ms: Option<u64>| ms.map(size::human_setting).unwrap_or_default();
    context.output.line(&format!("map {name}"))?;
    for (label, value) in [
        ("state", output::state(&text(&map.state))),
        ("device", text(&map.device)),
        ("export", map.remote()),
        (
            "mode",
            map.mode.as_deref().map(mode_text).unwrap_or_default(),
        ),
        ("size", map.size_bytes.map(size).unwrap_or_default()),
        ("access", if map.read_only { "ro" } else { "rw" }.into()),
        ("uuid", text(&map.uuid)),
        ("instance", text(&map.instance)),
        ("key", text(&map.key_id)),
        (
            "no-path timeout",
            map.no_path_timeout_ms
                .map(size::human_patience)
                .unwrap_or_default(),
        ),
        ("gives up", map.gives_up().unwrap_or_default()),
        ("heartbeat", time(map.heartbeat_ms)),
        ("reconnect max", time(map.reconnect_max_ms)),
        ("policy", text(&map.policy)),
        ("protection", text(&map.protection)),
        ("holders", holders.join(", ")),
        ("paths up", map.paths_up()),
        ("reconnects", map.reconnects.to_string()),
    ] {
        let value = if value.is_empty() { "-" } else { &value };
        context.output.line(&format!("  {label:<17}{value}"))?;
    }
    context.output.branches(&map.branches())
}
