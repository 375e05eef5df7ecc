// SPDX-License-Identifier: GPL-2.0
//! `farblk path`: the ways of a map to its server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{self, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use super::map::find;
use super::{Context, Removed, Trouble};
use crate::addr::Endpoint;
use crate::cli;
use crate::configfs::{Job, Made};
use crate::error::{Code, Error, fill_in};
use crate::output::{self, table};
use crate::size;

/// Timeout of `path add` for the first attempt to connect. The kernel ends the attempt after 5 s.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(6);
/// The pause between two looks at a path.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// What a command has done to a path.
const ADDED: &str = "added";
/// That a command has done nothing to a path.
const EXISTS: &str = "exists already";

/// A path of a map.
#[derive(JsonSchema, Serialize)]
pub struct Path {
    /// Its name.
    pub name: String,
    /// The server's end.
    pub addr: Option<String>,
    source: Option<String>,
    /// The RDMA device.
    pub device: Option<String>,
    /// The state, a word.
    pub state: Option<String>,
    rtt_ns: Option<u64>,
    /// The number of reconnects.
    pub reconnects: Option<u64>,
    next_try_ms: Option<u64>,
    /// Why it is not up.
    pub last_error: Option<Trouble>,
}

impl Path {
    fn read(context: &Context, map: &path::Path, name: &str) -> Self {
        let configfs = &context.configfs;
        let object = map.join("paths").join(name);
        let addr = configfs.attr(&object, "addr");
        let last_error = configfs.last_error(&object);
        Self {
            name: name.to_owned(),
            source: configfs.attr(&object, "source"),
            device: configfs.attr(&object, "device"),
            state: configfs.attr(&object, "state"),
            rtt_ns: configfs.number(&object, "rtt_ns").filter(|ns| *ns != 0),
            reconnects: configfs.number(&object, "reconnects"),
            next_try_ms: configfs.number(&object, "next_try_ms"),
            last_error: last_error
                .map(|last| Trouble::new(context, last, &job_of(context, map, addr.as_deref()))),
            addr,
        }
    }

    /// Returns true if the path is up.
    pub fn is_live(&self) -> bool {
        self.state.as_deref() == Some("live")
    }

    /// Returns true if the path has the wanted addresses.
    fn is(&self, wanted: &NewPath) -> bool {
        let source = self.source.as_ref().map(|source| source.parse().ok());
        self.leads_to(wanted.addr) && source == wanted.source.map(Some)
    }

    /// Returns true if a command that makes the wanted path may have been killed here.
    pub fn is_half_made(&self, wanted: &NewPath) -> bool {
        let source = self.source.as_ref().map(|source| source.parse().ok());
        (self.addr.is_none() || self.leads_to(wanted.addr))
            && (source.is_none() || source == wanted.source.map(Some))
    }

    /// Returns true if the path has the wanted address, and the wanted source if there is one.
    pub fn fits(&self, wanted: &NewPath) -> bool {
        self.leads_to(wanted.addr) && (wanted.source.is_none() || self.is(wanted))
    }

    /// Returns true if the path has the wanted address.
    pub fn leads_to(&self, wanted: SocketAddr) -> bool {
        let addr = self.addr.as_deref().map(Endpoint::parse);
        addr.and_then(|addr| addr.ok()?.numeric()) == Some(wanted)
    }

    /// "10.0.0.2 (rxe0) -> 10.0.0.1:7420"
    fn ends(&self) -> String {
        let from = match (&self.source, &self.device) {
            (Some(source), Some(device)) => format!("{source} ({device}) -> "),
            (Some(one), None) | (None, Some(one)) => format!("{one} -> "),
            (None, None) => String::new(),
        };
        from + self.addr.as_deref().unwrap_or("-")
    }

    fn rtt(&self) -> Option<String> {
        self.rtt_ns
            .map(|ns| size::human_duration(Duration::from_nanos(ns)))
    }

    fn next_try(&self) -> Option<String> {
        self.next_try_ms
            .map(|ms| size::human_duration(Duration::from_millis(ms)))
    }

    /// "path 0  10.0.0.2 (rxe0) -> 10.0.0.1:7420  live  rtt 3.1 us  reconnects 0"
    pub fn line(&self) -> String {
        let state = output::state(self.state.as_deref().unwrap_or("-"));
        let mut line = format!("path {}  {}  {state}", self.name, self.ends());
        if let Some(rtt) = self.rtt() {
            line += &format!("  rtt {rtt}");
        }
        if let Some(next_try) = self.next_try() {
            line += &format!("  next try in {next_try}");
        }
        if let Some(reconnects) = self.reconnects {
            line += &format!("  reconnects {reconnects}");
        }
        if let Some(last) = &self.last_error {
            line += &format!("  last error: {}", last.text);
        }
        line
    }

    fn row(&self) -> Vec<String> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            self.name.clone(),
            text(&self.addr),
            text(&self.source),
            text(&self.device),
            text(&self.state),
            text(&self.rtt()),
            self.reconnects
                .map_or(String::new(), |count| count.to_string()),
            text(&self.next_try()),
        ]
    }
}

/// A path to make.
pub struct NewPath {
    /// The server's end.
    pub addr: SocketAddr,
    source: Option<IpAddr>,
}

impl NewPath {
    /// The path to `addr`, from `source` if that is given.
    pub fn new(addr: SocketAddr, source: Option<IpAddr>, job: &Job) -> Result<Self, Error> {
        if source.is_some_and(|source| source.is_ipv4() != addr.is_ipv4()) {
            let why = format!("the source address for {addr} must have the same IP version");
            return Err(job.error(Code::Usage, why));
        }
        Ok(Self { addr, source })
    }

    /// Makes it as `object`, and enables it; completes it if a command that was killed began it.
    pub fn make(
        &self,
        context: &Context,
        object: &path::Path,
        made: &mut Made<'_>,
        job: &Job,
    ) -> Result<(), Error> {
        let configfs = &context.configfs;
        if configfs.flag(object, "enable") {
            return Ok(());
        }
        if !configfs.exists(object) && !made.has(object) {
            made.mkdir(object, job)?;
        }
        configfs.set(object, "addr", &self.addr.to_string(), job)?;
        if let Some(source) = self.source {
            configfs.set(object, "source", &source.to_string(), job)?;
        }
        configfs.set(object, "enable", "1", job)
    }
}

impl fmt::Display for NewPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {}", self.addr)?;
        match self.source {
            Some(source) => write!(f, " from {source}"),
            None => Ok(()),
        }
    }
}

/// The address of a server, and word of it if that may take long.
pub fn resolve(context: &Context, server: &Endpoint, job: &Job) -> Result<SocketAddr, Error> {
    if server.numeric().is_none() {
        context.output.stage(&format!("resolving {}", server.host));
    }
    server.resolve(&job.what)
}

/// The paths of a map.
pub fn read_all(context: &Context, map: &path::Path) -> Vec<Path> {
    let names = context.configfs.names(&map.join("paths"));
    let read = |name: &String| Path::read(context, map, name);
    names.iter().map(read).collect()
}

/// Enables a path if it is not. Says whether it was not.
pub fn enable(context: &Context, map: &path::Path, path: &Path, job: &Job) -> Result<bool, Error> {
    let object = map.join("paths").join(&path.name);
    let changed = !context.configfs.flag(&object, "enable");
    if changed {
        context.configfs.set(&object, "enable", "1", job)?;
    }
    Ok(changed)
}

/// Makes a job with the variables for hints about a map, or about its path to `addr`.
pub fn job_of(context: &Context, map: &path::Path, addr: Option<&str>) -> Job {
    let name = map.file_name().unwrap_or_default().to_string_lossy();
    let mut job = context.as_client(Job::new("").connect().variable("map", name));
    if let Some(export) = context.configfs.attr(map, "export") {
        job = job.variable("export", export);
    }
    match addr.and_then(|addr| Endpoint::parse(addr).ok()) {
        Some(server) => job
            .variable("server", server.to_string())
            .variable("address", &server.host)
            .variable("host", server.host),
        None => job,
    }
}

/// A path, schema `farblk.path/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    changed: bool,
    map: &'a str,
    path: &'a Path,
}

/// The paths of a map, schema `farblk.path-list/1`.
#[derive(JsonSchema, Serialize)]
pub struct ListDocument<'a> {
    schema: &'static str,
    host: Option<String>,
    map: &'a str,
    paths: Vec<Path>,
}

/// Runs `farblk path`.
pub fn run(context: &Context, command: &cli::Path) -> Result<(), Error> {
    context.configfs.require()?;
    match command {
        cli::Path::Add(arguments) => add(context, arguments),
        cli::Path::Reconnect { map, name } => reconnect(context, map, name),
        cli::Path::List { map } => list(context, map),
        cli::Path::Rm { map, name } => remove(context, map, name),
    }
}

/// The map that the user means: its name and its object.
fn map_of(context: &Context, wanted: &str, job: &Job) -> Result<(String, PathBuf), Error> {
    let name =
        find(context, wanted, job)?.ok_or_else(|| context.not_found(&job.what, "map", wanted))?;
    let object = context.configfs.path(&["maps", &name]);
    Ok((name, object))
}

fn add(context: &Context, arguments: &cli::PathAdd) -> Result<(), Error> {
    let configfs = &context.configfs;
    let spec = &arguments.path;
    let job = Job::new(format!("cannot add a path to {}", arguments.map));
    if arguments.source.is_some() && spec.source.is_some() {
        return Err(job.error(Code::Usage, "the source address is given twice"));
    }
    let (map, object) = map_of(context, &arguments.map, &job)?;
    let source = arguments.source.or(spec.source);
    let addr = resolve(context, &spec.destination, &job)?;
    let wanted = NewPath::new(addr, source, &job)?;
    let have = read_all(context, &object);
    let existing = match &arguments.name {
        Some(name) => have.iter().find(|path| path.name == *name),
        None => have.iter().find(|path| path.is(&wanted)),
    };
    // A command that was killed has left a path without an address.
    if let Some(path) = existing.filter(|path| path.addr.is_some()) {
        if !path.is(&wanted) {
            let name = &path.name;
            let why = format!("path {name} exists already: {}", path.ends());
            return Err(job.error(Code::Differs, why).hint(fill_in(
                "# choose another --name\nfarblk path rm {map} {name}  # or remove that path",
                &[("map", &map), ("name", name)],
            )));
        }
        let changed = enable(context, &object, path, &job)?;
        let verb = if changed { ADDED } else { EXISTS };
        return report(context, &map, &object, &path.name, verb);
    }
    let free = |number: &String| have.iter().all(|path| path.name != *number);
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => (0u32..)
            .map(|number| number.to_string())
            .find(free)
            .unwrap_or_default(),
    };
    let mut made = Made::new(configfs, &context.output);
    let path = object.join("paths").join(&name);
    if existing.is_none() {
        match made.mkdir(&path, &job) {
            // Another command has taken the number since.
            Err(error) if error.code == Code::Differs && arguments.name.is_none() => {
                return add(context, arguments);
            }
            result => result?,
        }
    }
    wanted.make(context, &path, &mut made, &job)?;
    made.keep();
    report(context, &map, &object, &name, ADDED)
}

/// Waits for the first attempt to connect, and tells how it went. One that failed is no error: the
/// kernel tries again.
fn report(
    context: &Context,
    map: &str,
    object: &path::Path,
    name: &str,
    verb: &str,
) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Ok(());
    }
    let deadline = Instant::now() + ATTEMPT_TIMEOUT;
    let path = loop {
        let path = Path::read(context, object, name);
        if path.state.as_deref() != Some("connecting") || Instant::now() >= deadline {
            break path;
        }
        thread::sleep(POLL_PAUSE);
    };
    let state = path.state.as_deref().unwrap_or("-");
    let text = format!("map {map}: path {name} {verb}: {}, {state}", path.ends());
    context.output.result(
        &text,
        &Document {
            schema: "farblk.path/1",
            changed: verb != EXISTS,
            map,
            path: &path,
        },
    )?;
    if let Some(last) = &path.last_error {
        let text = format!(
            "path {name} is not up, and the kernel tries again: {}",
            last.text
        );
        context.output.warn_with(&text, &last.hints);
    }
    Ok(())
}

fn list(context: &Context, map: &str) -> Result<(), Error> {
    let job = Job::new("cannot show the paths");
    let (map, object) = map_of(context, map, &job)?;
    let paths = read_all(context, &object);
    if context.output.is_json() {
        return context.output.document(&ListDocument {
            schema: "farblk.path-list/1",
            host: context.host_name(),
            map: &map,
            paths,
        });
    }
    let heading = [
        "PATH",
        "ADDRESS",
        "SOURCE",
        "DEVICE",
        "STATE",
        "RTT",
        "RECONNECTS",
        "NEXT TRY",
    ];
    let rows: Vec<_> = paths.iter().map(Path::row).collect();
    let mut lines = table(&heading, &rows).into_iter();
    lines
        .next()
        .map_or(Ok(()), |heading| context.output.line(&heading))?;
    for (line, path) in lines.zip(&paths) {
        context.output.line(&line)?;
        let troubles = path.last_error.iter();
        context
            .output
            .branches(&troubles.flat_map(Trouble::lines).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Disables a path of a map; `object` is the map. Fails if I/O would have no other path.
fn disable(context: &Context, object: &path::Path, name: &str, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let map = object.file_name().unwrap_or_default().to_string_lossy();
    let path = object.join("paths").join(name);
    if !configfs.exists(&path) {
        return Err(job
            .error(Code::NotFound, format!("map {map} has no path {name:?}"))
            .hint(fill_in("farblk path list {map}", &[("map", &map)])));
    }
    // Without any other path the kernel refuses.
    let (own, others): (Vec<_>, Vec<_>) = read_all(context, object)
        .into_iter()
        .partition(|path| path.name == name);
    let only = own.iter().any(Path::is_live) && !others.iter().any(Path::is_live);
    if only && !others.is_empty() && configfs.flag(object, "enable") {
        return Err(job
            .error(Code::Busy, "no other path of the map is live")
            .hint(fill_in(
                "farblk path list {map}  # shows the reasons: repair a path\nfarblk path add {map} HOST  # or add one\nfarblk unmap {map}  # or remove the map",
                &[("map", &map)],
            )));
    }
    configfs
        .disable(&path, job)
        .map_err(|error| match error.code {
            Code::Busy => error.hint(fill_in(
                "farblk path add {map} HOST  # a map that is enabled needs a path: add another one first\nfarblk unmap {map}  # or remove the map",
                &[("map", &map)],
            )),
            _ => error,
        })
}

/// Runs `farblk path reconnect`. The kernel tries a path that is enabled at once.
fn reconnect(context: &Context, map: &str, name: &str) -> Result<(), Error> {
    let what = format!("cannot reconnect path {name} of {map}");
    let (map, object) = map_of(context, map, &Job::new(&what))?;
    let mut job = job_of(context, &object, None);
    job.what = what;
    disable(context, &object, name, &job)?;
    let path = object.join("paths").join(name);
    context.configfs.set(&path, "enable", "1", &job)?;
    report(context, &map, &object, name, "reconnected")
}

fn remove(context: &Context, map: &str, name: &str) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot remove path {name} of {map}"));
    let (map, object) = map_of(context, map, &job)?;
    disable(context, &object, name, &job)?;
    let object = object.join("paths").join(name);
    configfs.rmdir(&object, &job)?;
    if configfs.is_dry_run() {
        return Ok(());
    }
    context.output.result(
        &format!("map {map}: removed path {name}"),
        &Removed {
            map: Some(&map),
            ..Removed::new("path", name, true)
        },
    )
}
