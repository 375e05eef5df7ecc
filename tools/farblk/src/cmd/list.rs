// SPDX-License-Identifier: GPL-2.0
//! `farblk list`: the mapped disks.

use serde::Serialize;

use super::Context;
use super::export::mode_text;
use crate::addr::Endpoint;
use crate::configfs::LastError;
use crate::error::Error;
use crate::holders::{self, Holder};
use crate::output::table;
use crate::size;

/// A map.
#[derive(Serialize)]
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
    last_error: Option<LastError>,
    /// The paths to the server.
    pub paths: Vec<Path>,
}

/// A path of a map.
#[derive(Serialize)]
pub struct Path {
    name: String,
    addr: Option<String>,
    source: Option<String>,
    /// The RDMA device.
    pub device: Option<String>,
    state: Option<String>,
    reconnects: Option<u64>,
    last_error: Option<LastError>,
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    host: Option<String>,
    maps: Vec<Map>,
}

impl Map {
    /// Reads a map.
    pub fn read(context: &Context, name: &str) -> Self {
        let configfs = &context.configfs;
        let object = configfs.path(&["maps", name]);
        let paths = object.join("paths");
        let read_path = |path: String| Path {
            addr: configfs.attr(&paths.join(&path), "addr"),
            source: configfs.attr(&paths.join(&path), "source"),
            device: configfs.attr(&paths.join(&path), "device"),
            state: configfs.attr(&paths.join(&path), "state"),
            reconnects: configfs.number(&paths.join(&path), "reconnects"),
            last_error: configfs.last_error(&paths.join(&path)),
            name: path,
        };
        let device = configfs.attr(&object, "device");
        Self {
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
            last_error: configfs.last_error(&object),
            paths: configfs.names(&paths).into_iter().map(read_path).collect(),
        }
    }

    /// The name of the disk, "farblk0".
    pub fn disk(&self) -> Option<&str> {
        self.device.as_deref()?.strip_prefix("/dev/")
    }

    /// "10.0.0.1/vol1": the server by its first path.
    fn remote(&self) -> String {
        let server = self.paths.first().and_then(|path| path.addr.as_deref());
        let server = server
            .map(|addr| Endpoint::parse(addr).map_or(addr.to_owned(), |server| server.to_string()));
        format!(
            "{}/{}",
            server.as_deref().unwrap_or("-"),
            self.export.as_deref().unwrap_or("-")
        )
    }

    fn row(&self) -> Vec<String> {
        let live = self
            .paths
            .iter()
            .filter(|path| path.state.as_deref() == Some("live"))
            .count();
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
            format!("{live}/{}", self.paths.len()),
            holders.join(", "),
        ]
    }
}

impl Path {
    /// "path 0  10.0.0.2 (rxe0) -> 10.0.0.1:7420  live  reconnects 0"
    fn line(&self) -> String {
        let from = match (&self.source, &self.device) {
            (Some(source), Some(device)) => format!("{source} ({device}) -> "),
            (Some(one), None) | (None, Some(one)) => format!("{one} -> "),
            (None, None) => String::new(),
        };
        let text = |text: &Option<String>| text.clone().unwrap_or("-".into());
        let mut line = format!(
            "path {}  {from}{}  {}",
            self.name,
            text(&self.addr),
            text(&self.state)
        );
        if let Some(reconnects) = self.reconnects {
            line += &format!("  reconnects {reconnects}");
        }
        if let Some(last) = &self.last_error {
            line += &format!("  last error: {}", last.text);
        }
        line
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
        let mut branches: Vec<String> = map.paths.iter().map(Path::line).collect();
        branches.extend(
            map.last_error
                .iter()
                .map(|last| format!("last error: {}", last.text)),
        );
        for (index, branch) in branches.iter().enumerate() {
            let corner = if index + 1 == branches.len() {
                "└─"
            } else {
                "├─"
            };
            context.output.line(&format!(" {corner} {branch}"))?;
        }
    }
    Ok(())
}
