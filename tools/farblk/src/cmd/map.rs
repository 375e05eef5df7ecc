// SPDX-License-Identifier: GPL-2.0
//! `farblk map` and `farblk unmap`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::export::mode_text;
use super::list::Map;
use super::{Context, Removed};
use crate::addr::Endpoint;
use crate::cli;
use crate::configfs::{Job, Made};
use crate::error::{Code, Error, exit};
use crate::holders::{self, Holder};
use crate::size;

/// How long the device node may take to appear after the kernel has made the disk.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a disk that nobody visible holds may be open, as udev does to look at a new one.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two tries to connect.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    changed: bool,
    map: Map,
}

/// A path to make.
struct NewPath {
    addr: SocketAddr,
    source: Option<IpAddr>,
}

/// Runs `farblk map`.
pub fn map(context: &Context, arguments: &cli::Map) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let target = &arguments.target;
    let name = arguments.name.as_ref().unwrap_or(&target.export);
    let mut job = Job::new(format!("cannot map {target}"))
        .connect()
        .variable("server", target.server.to_string())
        .variable("host", &target.server.host)
        .variable("export", &target.export);
    if let Some(client) = context.host_name() {
        job = job.variable("client", client);
    }
    let start = Instant::now();
    let paths = paths(context, arguments, &job)?;
    let settings = settings(arguments);
    let object = configfs.path(&["maps", name]);
    let changed = if configfs.exists(&object) {
        map_existing(context, arguments, &object, &settings, &paths, &job)?
    } else {
        let mut made = Made::new(configfs, &context.output);
        made.mkdir(&object, &job)?;
        configfs.set_all(&object, &settings, &job)?;
        for (index, path) in paths.iter().enumerate() {
            let entry = object.join("paths").join(index.to_string());
            made.mkdir(&entry, &job)?;
            configfs.set(&entry, "addr", &path.addr.to_string(), &job)?;
            if let Some(source) = path.source {
                configfs.set(&entry, "source", &source.to_string(), &job)?;
            }
            configfs.set(&entry, "enable", "1", &job)?;
        }
        connect(context, arguments, &object, &job)?;
        made.keep();
        true
    };
    if configfs.is_dry_run() {
        return Ok(());
    }
    report(context, name, changed, start, &job)
}

/// The paths to make: the one to HOST, unless a --path leads there too, and those of --path.
fn paths(context: &Context, arguments: &cli::Map, job: &Job) -> Result<Vec<NewPath>, Error> {
    let resolve = |endpoint: &Endpoint| {
        if endpoint.numeric().is_none() {
            context
                .output
                .stage(&format!("resolving {}", endpoint.host));
        }
        endpoint.resolve(&job.what)
    };
    let server = resolve(&arguments.target.server)?;
    let mut paths = Vec::new();
    for path in &arguments.path {
        paths.push(NewPath {
            addr: resolve(&path.destination)?,
            source: path.source,
        });
    }
    if !paths.iter().any(|path| path.addr == server) {
        paths.insert(
            0,
            NewPath {
                addr: server,
                source: arguments.source,
            },
        );
    }
    for path in &paths {
        if path
            .source
            .is_some_and(|source| source.is_ipv4() != path.addr.is_ipv4())
        {
            return Err(job.error(
                Code::Usage,
                format!(
                    "the source address of {} is of the other IP version",
                    path.addr
                ),
            ));
        }
    }
    Ok(paths)
}

/// The attributes a command line asks for.
fn settings(arguments: &cli::Map) -> Vec<(&'static str, String)> {
    let access = if arguments.ro { "ro" } else { "rw" };
    let mut settings = vec![
        ("export", arguments.target.export.clone()),
        ("access", access.to_owned()),
    ];
    let optional = [
        ("queues", arguments.queues.map(|value| value.to_string())),
        (
            "poll_queues",
            arguments.poll_queues.map(|value| value.to_string()),
        ),
        ("depth", arguments.depth.map(|value| value.to_string())),
        (
            "inline_size",
            arguments.inline_size.map(|value| value.to_string()),
        ),
        (
            "io_timeout_ms",
            arguments
                .io_timeout
                .map(|time| time.as_millis().to_string()),
        ),
        ("tos", arguments.tos.map(|value| value.to_string())),
        ("expect_instance", arguments.expect_instance.clone()),
    ];
    settings.extend(
        optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    settings
}

/// The map exists: that is fine when it is as asked for. One that has failed is connected anew.
/// Says whether it changed anything.
fn map_existing(
    context: &Context,
    arguments: &cli::Map,
    object: &Path,
    settings: &[(&str, String)],
    paths: &[NewPath],
    job: &Job,
) -> Result<bool, Error> {
    let configfs = &context.configfs;
    let name = object.file_name().unwrap_or_default().to_string_lossy();
    let mut differences = configfs.differences(object, settings);
    let have = configfs.names(&object.join("paths"));
    if have.len() != paths.len() {
        differences.push(format!("it has {} paths, not {}", have.len(), paths.len()));
    } else {
        for (entry, want) in have.iter().zip(paths) {
            let entry = object.join("paths").join(entry);
            let addr = configfs.attr(&entry, "addr").unwrap_or_default();
            let source = configfs.attr(&entry, "source");
            let same_addr =
                Endpoint::parse(&addr).ok().and_then(|addr| addr.numeric()) == Some(want.addr);
            let same_source = source.as_ref().and_then(|source| source.parse().ok()) == want.source;
            if !same_addr || !same_source {
                differences.push(format!(
                    "it has a path to {addr}, from {}",
                    source.as_deref().unwrap_or("any address")
                ));
            }
        }
    }
    if !differences.is_empty() {
        let mut error = job
            .error(
                Code::Differs,
                format!("map {name} exists already, with other settings"),
            )
            .hint(format!("choose another --name, or  farblk unmap {name}"));
        error.details = differences;
        return Err(error);
    }
    match configfs.attr(object, "state").as_deref() {
        Some("live") => return Ok(false),
        Some("stale") => {
            let why = format!("map {name}: {}", Code::Stale.entry().meaning);
            return Err(job.error(Code::Stale, why));
        }
        Some("disabled") => {}
        state => {
            let state = state.unwrap_or("unknown");
            let disk = configfs.attr(object, "device");
            let holders: Vec<_> = disk
                .iter()
                .flat_map(|disk| holders::find(&context.root, disk))
                .collect();
            if !holders.is_empty() {
                let users = holders
                    .iter()
                    .map(Holder::to_string)
                    .collect::<Vec<_>>()
                    .join(", ");
                let why = format!("map {name} is {state}, and still in use by {users}");
                return Err(job
                    .error(Code::Busy, why)
                    .hint(format!("farblk unmap {name}  says how to free it")));
            }
            configfs.disable(object, job)?;
        }
    }
    connect(context, arguments, object, job)?;
    Ok(true)
}

/// Enables the map, again and again for `--wait` while the server cannot be reached.
fn connect(context: &Context, arguments: &cli::Map, object: &Path, job: &Job) -> Result<(), Error> {
    let deadline = Instant::now() + arguments.wait.unwrap_or_default();
    if !context.configfs.is_dry_run() {
        context
            .output
            .stage(&format!("connecting to {}", arguments.target.server));
    }
    for retry in 1u32.. {
        let Err(error) = context.configfs.set(object, "enable", "1", job) else {
            break;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if error.exit() != exit::UNREACHABLE || left.is_zero() {
            return Err(error);
        }
        context.output.note(&format!(
            "retry {retry}, gives up in {} s: {}",
            left.as_secs(),
            error.why
        ));
        thread::sleep(RETRY_PAUSE.min(left));
        context.output.stage("connecting");
    }
    Ok(())
}

/// Waits for the device node and prints it.
fn report(
    context: &Context,
    name: &str,
    changed: bool,
    start: Instant,
    job: &Job,
) -> Result<(), Error> {
    let map = Map::read(context, name);
    let Some(disk) = map.disk() else {
        return Err(job.error(
            Code::Unparsable,
            format!("map {name} is {:?} without a device", map.state),
        ));
    };
    let node = context.root.join("dev").join(disk);
    let deadline = Instant::now() + NODE_TIMEOUT;
    while !node.exists() {
        if Instant::now() >= deadline {
            let why = format!(
                "the kernel has made {disk}, but {} did not appear",
                node.display()
            );
            return Err(job.error(Code::NoDeviceNode, why));
        }
        thread::sleep(Duration::from_millis(20));
    }
    if changed {
        let mut live = map.state.clone().unwrap_or_default();
        if let Some(device) = map.paths.first().and_then(|path| path.device.as_deref()) {
            live += &format!(" via {device}");
        }
        let size = map.size_bytes.map(size::human).unwrap_or_default();
        let mode = map.mode.as_deref().map(mode_text).unwrap_or_default();
        context.output.stage(&format!(
            "{live}, {size} {mode} ({})",
            size::human_duration(start.elapsed())
        ));
        context.output.end_line();
    } else {
        context
            .output
            .note(&format!("map {name} exists already as asked for"));
    }
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.map/1",
            changed,
            map,
        });
    }
    context.output.line(&format!("/dev/{disk}"))
}

/// The name of the map that the user means with a name, a device or a UUID.
fn find(context: &Context, wanted: &str, job: &Job) -> Result<Option<String>, Error> {
    let configfs = &context.configfs;
    let names = configfs.names(&configfs.path(&["maps"]));
    let name = wanted
        .strip_prefix("/dev/farblk/by-name/")
        .unwrap_or(wanted);
    if let Some(name) = names.iter().find(|have| *have == name) {
        return Ok(Some(name.clone()));
    }
    let disk = wanted.strip_prefix("/dev/").unwrap_or(wanted);
    let uuid = wanted
        .strip_prefix("/dev/disk/by-id/farblk-")
        .unwrap_or(wanted);
    let means = |name: &&String| {
        let object = configfs.path(&["maps", name]);
        configfs
            .attr(&object, "device")
            .is_some_and(|device| device == disk)
            || configfs
                .attr(&object, "uuid")
                .is_some_and(|have| have.eq_ignore_ascii_case(uuid))
    };
    let found: Vec<_> = names.iter().filter(means).collect();
    match found.as_slice() {
        [] => Ok(None),
        [name] => Ok(Some((*name).clone())),
        _ => Err(job
            .error(Code::Usage, "several maps have this UUID")
            .hint("name the map:  farblk list")),
    }
}

/// Runs `farblk unmap`.
pub fn unmap(context: &Context, arguments: &cli::Unmap) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let job = Job::new(format!("cannot unmap {}", arguments.map));
    let Some(name) = find(context, &arguments.map, &job)? else {
        if !arguments.if_mapped {
            return Err(context.not_found(&job.what, "map", &arguments.map));
        }
        if configfs.is_dry_run() {
            return Ok(());
        }
        let text = format!("{} is not mapped", arguments.map);
        return context
            .output
            .result(&text, &Removed::new("map", &arguments.map, false));
    };
    let object = configfs.path(&["maps", &name]);
    let disk = configfs.attr(&object, "device");
    if arguments.force {
        if configfs
            .attr(&object, "enable")
            .is_some_and(|text| text != "0")
        {
            configfs.set(&object, "enable", "force", &job)?;
        }
    } else {
        disable(context, &name, &object, disk.as_deref(), &job)?;
    }
    let paths = object.join("paths");
    for path in configfs.names(&paths) {
        configfs.disable(&paths.join(&path), &job)?;
        configfs.rmdir(&paths.join(&path), &job)?;
    }
    configfs.rmdir(&object, &job)?;
    if configfs.is_dry_run() {
        return Ok(());
    }
    let was = disk.map(|disk| format!(" ({disk})")).unwrap_or_default();
    context.output.result(
        &format!("unmapped {name}{was}"),
        &Removed::new("map", &name, true),
    )
}

/// Disables a map that nobody uses.
fn disable(
    context: &Context,
    name: &str,
    object: &Path,
    disk: Option<&str>,
    job: &Job,
) -> Result<(), Error> {
    let Some(disk) = disk else {
        return context.configfs.disable(object, job);
    };
    let deadline = Instant::now() + PROBE_TIMEOUT;
    loop {
        let holders = holders::find(&context.root, disk);
        if !holders.is_empty() {
            return Err(in_use(context, name, disk, &holders));
        }
        match context.configfs.disable(object, job) {
            Err(error) if error.code == Code::Busy => {
                if Instant::now() >= deadline {
                    return Err(in_use(context, name, disk, &holders));
                }
                thread::sleep(Duration::from_millis(100));
            }
            result => return result,
        }
    }
}

/// The refusal to unmap a disk in use: who uses it, and what to do.
fn in_use(context: &Context, name: &str, disk: &str, holders: &[Holder]) -> Error {
    let processes = holders::processes(&context.root, disk, holders);
    let count = match processes.len() {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    let shown = processes
        .iter()
        .take(8)
        .cloned()
        .collect::<Vec<_>>()
        .join(" ");
    let more = if processes.len() > 8 { " ..." } else { "" };
    let mut users = (!processes.is_empty()).then(|| format!("{count}: {shown}{more}"));
    let mut error = Error::new(
        Code::InUse,
        format!("{name} is in use and was not unmapped"),
        "",
    );
    let mut steps = Vec::new();
    for holder in holders {
        let users = match holder {
            Holder::Mount { .. } => users.take().map(|users| format!(", {users}")),
            _ => None,
        };
        error = error.detail(holder.describe() + &users.unwrap_or_default());
        steps.push(holder.remedy());
    }
    if let Some(users) = users {
        error = error.detail(format!("open: {users}"));
        if holders.is_empty() {
            steps.push("stop these processes".into());
        }
    } else if holders.is_empty() {
        error = error.detail(
            "open: by something this process cannot see, perhaps in another mount namespace",
        );
    }
    steps.push(format!(
        "farblk unmap {name} --force  (fails all I/O; data in flight is lost)"
    ));
    let last = steps.pop().unwrap_or_default();
    error.hint(match steps.is_empty() {
        true => last,
        false => format!("{}   or   {last}", steps.join("; ")),
    })
}
