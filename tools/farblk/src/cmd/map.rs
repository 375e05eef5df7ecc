// SPDX-License-Identifier: GPL-2.0
//! `farblk map`, `farblk unmap` and `farblk remap`.
//!
//! Long: the three share how a disk is found, waited for, and refused while it is in use.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use super::export::mode_text;
use super::list::Map;
use super::path::{self, NewPath};
use super::{Context, Removed, key, persist};
use crate::addr::Target;
use crate::cli;
use crate::configfs::{Job, KEY_ID, Made};
use crate::error::{Code, Error, exit, fill_in, holder, protections};
use crate::holders::{self, Holder};
use crate::identity;
use crate::name;
use crate::saved::Kind;
use crate::secret::{self, Secret, Source};
use crate::size;

/// Timeout for the device node to appear after the kernel has made the disk.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the names of a disk to become those that it should have.
const NAMES_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a disk that is open without a visible user when udev has no event left: it may still
/// have to hear that a disk was closed which somebody has written to, and opens that to probe it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of paths of a map.
const PATHS_MAX: usize = 8;
/// The pause between two tries to connect.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two looks at a map that connects by itself.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// Warns of the loss of the contents of a stale map of a RAM export.
const LOSS: &str = "the old contents are GONE: the disk will hold the present contents of the export, \
    zeroes or data of other hosts. Make a new file system (mkfs); do not mount one that seems to be there";
/// Warns of the possible loss of the contents of a stale map of a block export.
const OTHER: &str = "the server made the export anew, or has another export of this name: it may be another \
    disk. Compare `farblk export list` on the server, and check the file system (fsck) before you mount it";
/// Warns of changes to the contents of an evicted map.
const CHANGED: &str = "another host had the export meanwhile: the disk will hold the present contents of the \
    export, including the data of that host. Check the file system (fsck) before you mount it";

/// A map, schema `farblk.map/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    /// The schema.
    pub schema: &'static str,
    /// True if the command changed anything.
    pub changed: bool,
    /// The map.
    pub map: Map,
}

/// Runs `farblk map`.
pub fn map(context: &Context, arguments: &cli::Map) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let target = &arguments.target;
    let name = arguments.name.as_ref().unwrap_or(&target.export);
    let mut job = Job::new(format!("cannot map {target}"))
        .connect()
        .variable("map", name)
        .variable("server", target.server.to_string())
        .variable("host", &target.server.host)
        .variable("export", &target.export);
    job = context.as_client(job);
    let start = Instant::now();
    let source = arguments.key_file.as_deref().map(Source::of);
    let secret = source.as_ref().map(|source| key::read(source, &job));
    let secret = secret.transpose()?;
    let key_file = match secret.as_ref().zip(source.as_ref()) {
        Some((secret, source)) if arguments.persist => {
            Some(lasting_key_file(context, secret, source, &job)?)
        }
        _ => None,
    };
    let paths = paths(context, arguments, &job)?;
    if let [path] = paths.as_slice() {
        job = job.variable("address", path.addr.ip().to_string());
    }
    let settings = settings(arguments);
    let object = configfs.path(&["maps", name]);
    // A map that is half made is not being made by another command then.
    let lock = context.lock_map(name, &job)?;
    let exists = configfs.exists(&object);
    let key = secret.as_ref();
    let changed = if exists && !is_half_made(context, key, &object, &settings, &paths) {
        drop(lock);
        map_existing(context, arguments, key, &object, &settings, &paths, &job)?
    } else {
        name::parse_new_map(name).map_err(|why| {
            let target = target.to_string();
            job.error(Code::Usage, why).hint(fill_in(
                "farblk map {target} --name NAME",
                &[("target", target)],
            ))
        })?;
        identity::settle(context, &job)?;
        let mut made = Made::new(configfs, &context.output);
        if !exists {
            made.mkdir(&object, &job)?;
        }
        configfs.set_all(&object, &settings, &job)?;
        if let Some(key) = secret.as_ref().zip(source.as_ref()) {
            configfs.set_key(&object, "key", Some(key), &job)?;
        }
        for (index, path) in paths.iter().enumerate() {
            let entry = object.join("paths").join(index.to_string());
            path.make(context, &entry, &mut made, &job)?;
        }
        drop(lock);
        connect(context, arguments, &object, &job).map_err(|error| match error.code {
            Code::Stale => error.hint("# omit --expect-instance to accept the new contents"),
            // There is no map whose key could be changed.
            Code::NoKey | Code::KeyRefused => error.hint(key_hint(context, target)),
            Code::Protection => protection_hint(error, target),
            Code::Taken | Code::Away => own_map(context, error, target, name, &paths, &job),
            _ => error,
        })?;
        made.keep();
        true
    };
    let keep = || {
        let job = Job::new("cannot keep");
        persist::keep(context, name, key_file.clone(), &job).unwrap_or_else(|error| {
            persist::not_kept(context, &error.why, &error.hints());
            false
        })
    };
    // What was there before may be new in the files.
    let is_kept_first = arguments.persist && !changed && !configfs.is_dry_run();
    let is_new = changed || is_kept_first && keep();
    // A map that is there is kept, also if its names are not true in time.
    let reported = match configfs.is_dry_run() {
        true => Ok(()),
        false => report(context, name, changed, is_new, start, &job),
    };
    match &reported {
        Err(error) if error.code != Code::NoDeviceNode => return reported,
        _ => {}
    }
    if arguments.persist && !is_kept_first {
        keep();
    }
    reported
}

/// What to do when the server wants a key, or another one.
fn key_hint(context: &Context, target: &Target) -> String {
    let client = context.host_name().unwrap_or_else(|| "HOST".into());
    let values = [
        ("export", target.export.clone()),
        ("client", client),
        ("target", target.to_string()),
    ];
    fill_in(
        "farblk export show {export}  # on the server: has {client} an entry, and which key has it?\n\
         farblk key id FILE  # on this host: is it the same key?\n\
         farblk export allow {export} {client}  # on the server, if it has no entry of this host\n\
         farblk export key {export} {client} --key-file FILE  # on the server, if it shall have another key\n\
         farblk map {target} --key-file FILE  # with a copy of that key",
        &values,
    )
}

/// Says so if the map that has the export is another one of this host.
fn own_map(
    context: &Context,
    error: Error,
    target: &Target,
    name: &str,
    paths: &[NewPath],
    job: &Job,
) -> Error {
    let configfs = &context.configfs;
    let is_own = holder(&error.why) == context.host_name().as_deref();
    let is_same = |other: &String| {
        let object = configfs.path(&["maps", other]);
        let export = configfs.attr(&object, "export");
        let have = path::read_all(context, &object);
        let leads = |path: &NewPath| have.iter().any(|have| have.leads_to(path.addr));
        other != name && export.as_ref() == Some(&target.export) && paths.iter().any(leads)
    };
    let maps = configfs.names(&configfs.path(&["maps"]));
    let Some(other) = maps.iter().find(|other| is_own && is_same(other)) else {
        return error;
    };
    let why = format!("this host has it already: map {other}");
    job.error(Code::Taken, why).hint(fill_in(
        "farblk show {other}\nfarblk unmap {other}  # or: then map it again",
        &[("other", other)],
    ))
}

/// Says what to do when the export has another protection than the map was to have.
fn protection_hint(error: Error, target: &Target) -> Error {
    let Some((export, map)) = protections(&error.why) else {
        return error;
    };
    let key = if export == "seal" {
        " --key-file FILE"
    } else {
        ""
    };
    // There is no map that would have to go first. On the server the table's lines help.
    let table = error.code.entry().hint.lines();
    let on_server = table.skip_while(|line| !line.starts_with("# or"));
    let here = format!("farblk map {{target}} --protection {export}{key}  # as the export has it");
    let lines: Vec<_> = std::iter::once(here.as_str()).chain(on_server).collect();
    let values = [
        ("target", target.to_string()),
        ("export", target.export.clone()),
        ("map_protection", map.to_owned()),
    ];
    let hint = fill_in(&lines.join("\n"), &values);
    error.hint(hint)
}

/// The name of the file that has the key of a map which shall be kept: a file of settings has no
/// key.
fn lasting_key_file(
    context: &Context,
    secret: &Secret,
    source: &Source<'_>,
    job: &Job,
) -> Result<String, Error> {
    let root = &context.root;
    let name = match source {
        Source::File(path) => secret::name_on_host(root, path),
        Source::Stdin => None,
    };
    let name = name.or_else(|| secret::files_by_id(root).remove(secret.id()));
    name.ok_or_else(|| {
        let folder = secret::folder(root);
        let why = format!(
            "--persist cannot keep this key: it came from no file that lasts, and no file in {} has it",
            folder.display()
        );
        let hint = "# write the key to /etc/farblk/keys/NAME.key, with the mode 600, and give that as \
            --key-file";
        job.error(Code::Usage, why).hint(hint)
    })
}

/// Returns the paths to make: those of --path, and one to HOST unless one of them leads there.
fn paths(context: &Context, arguments: &cli::Map, job: &Job) -> Result<Vec<NewPath>, Error> {
    let server = path::resolve(context, &arguments.target.server, job)?;
    let mut paths = Vec::new();
    for path in &arguments.path {
        let addr = path::resolve(context, &path.destination, job)?;
        paths.push(NewPath::new(addr, path.source, job)?);
    }
    if !paths.iter().any(|path| path.addr == server) {
        paths.insert(0, NewPath::new(server, arguments.source, job)?);
    }
    if paths.len() > PATHS_MAX {
        let why = format!("{} paths are more than {PATHS_MAX}", paths.len());
        return Err(job.error(Code::Usage, why));
    }
    Ok(paths)
}

fn number(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn ms(time: Option<Duration>) -> Option<String> {
    number(time.map(|time| time.as_millis()))
}

/// Returns the word that configfs uses for a value.
pub fn word(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

/// Returns the attributes that the command line sets.
fn settings(arguments: &cli::Map) -> Vec<(&'static str, String)> {
    let access = if arguments.ro { "ro" } else { "rw" };
    let mut settings = vec![
        ("export", arguments.target.export.clone()),
        ("access", access.to_owned()),
    ];
    let optional = [
        ("queues", number(arguments.queues)),
        ("poll_queues", number(arguments.poll_queues)),
        ("depth", number(arguments.depth)),
        ("inline_size", number(arguments.inline_size)),
        ("io_timeout_ms", ms(arguments.io_timeout)),
        ("no_path_timeout_ms", number(arguments.no_path_timeout)),
        ("heartbeat_ms", ms(arguments.heartbeat)),
        ("reconnect_max_ms", ms(arguments.reconnect_max)),
        ("policy", arguments.policy.map(word)),
        ("protection", arguments.protection.map(word)),
        ("tos", number(arguments.tos)),
        ("expect_instance", arguments.expect_instance.clone()),
    ];
    settings.extend(
        optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    settings
}

/// Returns true if a command with the same arguments was killed while it made the map.
///
/// Such a map is disabled, and a path of it is missing or not enabled. Each of its settings is the
/// one that is asked for, or still that of a new map.
fn is_half_made(
    context: &Context,
    secret: Option<&Secret>,
    object: &Path,
    settings: &[(&str, String)],
    paths: &[NewPath],
) -> bool {
    let configfs = &context.configfs;
    let wanted = |attribute: &str| match settings.iter().find(|(name, _)| *name == attribute) {
        Some((_, value)) => Some(value.as_str()),
        None if attribute == KEY_ID => secret.map(Secret::id),
        None => None,
    };
    let fits = |attribute: &str, default: &str| {
        let have = configfs.attr(object, attribute).unwrap_or_default();
        have == default || Some(have.as_str()) == wanted(attribute)
    };
    let keys = Kind::Map.keys().iter();
    let mut keys = keys.filter(|key| !["enable", "key"].contains(&key.attr));
    let have = path::read_all(context, object);
    let begun = |path: &Path| configfs.flag(path, "enable");
    let entries = paths.iter().enumerate().map(|(index, path)| {
        let name = index.to_string();
        let entry = object.join("paths").join(&name);
        let fits = have.iter().find(|have| have.name == name);
        (
            fits.is_none_or(|have| have.is_half_made(path)),
            begun(&entry),
        )
    });
    let entries: Vec<_> = entries.collect();
    let is =
        |attribute: &str, value: &str| configfs.attr(object, attribute).as_deref() == Some(value);
    is("state", "disabled")
        && is("enable", "0")
        && keys.all(|key| fits(key.attr, key.default))
        && fits(KEY_ID, "")
        && have.len() <= paths.len()
        && entries.iter().all(|(fits, _)| *fits)
        && !entries.iter().all(|(_, is_enabled)| *is_enabled)
}

/// Handles a map that exists: succeeds if it has the wanted settings, and waits while the kernel
/// reconnects it. Returns true if it changed anything.
fn map_existing(
    context: &Context,
    arguments: &cli::Map,
    secret: Option<&Secret>,
    object: &Path,
    settings: &[(&str, String)],
    paths: &[NewPath],
    job: &Job,
) -> Result<bool, Error> {
    let configfs = &context.configfs;
    let name = object.file_name().unwrap_or_default().to_string_lossy();
    let mut differences = configfs.differences(object, settings);
    let mut others = "farblk path add {name} ADDR  # adds a path\n".to_owned();
    if let Some(secret) = secret {
        configfs.require_keys(object, job)?;
        let wanted = [(KEY_ID, secret.id().to_owned())];
        let of_key = configfs.differences(object, &wanted);
        if !of_key.is_empty() {
            others += "farblk rekey {name} --key-file FILE  # gives it another key\n";
        }
        differences.extend(of_key);
    }
    let have = path::read_all(context, object);
    let entries: Vec<_> = paths
        .iter()
        .map(|want| have.iter().find(|have| have.fits(want)))
        .collect();
    for (want, entry) in paths.iter().zip(&entries) {
        if entry.is_none() {
            differences.push(format!("it has no path {want}"));
        }
    }
    if !differences.is_empty() {
        let mut error = job
            .error(
                Code::Differs,
                format!("map {name} exists already, with other settings"),
            )
            .hint(fill_in(
                &(others + "# or choose another --name\nfarblk unmap {name}  # or remove that map"),
                &[("name", &name)],
            ));
        error.details = differences;
        return Err(error);
    }
    let mut changed = false;
    for entry in entries.into_iter().flatten() {
        changed |= path::enable(context, object, entry, job)?;
    }
    let deadline = Instant::now() + arguments.wait.unwrap_or_default();
    loop {
        let map = Map::read(context, &name);
        let state = map.state.as_deref().unwrap_or("unknown");
        match state {
            "live" => return Ok(changed),
            "stale" => return Err(job.error(Code::Stale, map.condition())),
            "evicted" => return Err(job.error(Code::Evicted, map.condition())),
            // It comes back by itself.
            "connecting" | "reconnecting" | "failed" => {
                if configfs.is_dry_run() {
                    return Ok(changed);
                }
                if Instant::now() >= deadline {
                    return Err(job.error(Code::NoPath, map.condition()));
                }
                thread::sleep(POLL_PAUSE);
            }
            // Another process disables it.
            "closing" if Instant::now() >= deadline => {
                return Err(job.error(Code::Busy, map.condition()));
            }
            "closing" => thread::sleep(POLL_PAUSE),
            _ => break,
        }
    }
    connect(context, arguments, object, job)?;
    Ok(true)
}

/// Enables the map. Retries for the time of `--wait` if the error may be temporary.
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
        // Busy: another process is enabling it just now.
        let may_pass =
            error.exit() == exit::UNREACHABLE || matches!(error.code, Code::Away | Code::Busy);
        if !may_pass || left.is_zero() {
            return Err(error);
        }
        context.output.note(&format!(
            "retry {retry}, giving up in {} s: {}",
            left.as_secs(),
            error.why
        ));
        thread::sleep(RETRY_PAUSE.min(left));
        context.output.stage("connecting");
    }
    Ok(())
}

/// Waits for udev, so that the next command does not find udev using a disk.
pub fn wait_for_udev(context: &Context) {
    if !context.devices.settle() {
        context.output.note("udev is still busy");
    }
}

/// How long commands wait for the names of disks, in all.
pub struct Names {
    deadline: Instant,
    /// udev has handled all events that there were.
    is_settled: bool,
}

impl Names {
    /// To be made once for all disks that a command makes or removes.
    pub fn new() -> Self {
        Self {
            deadline: Instant::now() + NAMES_TIMEOUT,
            is_settled: false,
        }
    }

    /// Waits until the name of map `name` in `/dev/farblk` leads to `disk`, and udev has closed
    /// that; or until the name is gone or another map's, if there is no disk any more. Fails if
    /// udev has not brought that about in time: the next command would use another disk by this
    /// name. Where no udev runs there are no such names, or they are somebody else's.
    pub fn wait(
        &mut self,
        context: &Context,
        name: &str,
        disk: Option<&str>,
        job: &Job,
    ) -> Result<(), Error> {
        let link = context.root.join("dev/farblk/by-name").join(name);
        let has_udev = context.root.join("run/udev/control").exists();
        let map = context.configfs.path(&["maps", name]);
        loop {
            // udev may be busy for long with other disks, of which one that is gone does not
            // depend.
            if disk.is_some() && !self.is_settled && Instant::now() < self.deadline {
                self.is_settled = context.devices.settle();
            }
            let is_there = has_udev && link.symlink_metadata().is_ok();
            let is_true = match disk {
                Some(disk) if context.devices.is_node(&link, disk) => {
                    if !self.is_settled {
                        context
                            .output
                            .note("udev is still busy: other names may come later");
                    }
                    true
                }
                Some(_) => self.is_settled && !is_there,
                None => !is_there || context.configfs.exists(&map),
            };
            if is_true {
                return Ok(());
            }
            let is_over = Instant::now() >= self.deadline;
            if is_over || disk.is_some() && !self.is_settled {
                let link = link.display();
                let why = match (is_there, disk) {
                    (true, Some(disk)) => {
                        format!("{disk} is there, but {link} is still the name of another disk")
                    }
                    (true, None) => format!("the disk is gone, but {link} is still there"),
                    (false, _) => "udev is still busy: the disk has no names yet".into(),
                };
                let hint = "udevadm settle  # then look again: ls -l /dev/farblk/by-name";
                return Err(job.error(Code::NoDeviceNode, why).hint(hint));
            }
            // What has begun meanwhile counts, too.
            self.is_settled = false;
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Waits for the device node and its links, and prints the node. `changed` says whether the map is
/// another one than before, and `is_new` whether that or its file is.
fn report(
    context: &Context,
    name: &str,
    changed: bool,
    is_new: bool,
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
    while !context.devices.is_node(&node, disk) {
        if Instant::now() >= deadline {
            let missing = match node.exists() {
                true => "is not its device node",
                false => "did not appear",
            };
            let why = format!(
                "the kernel has made {disk}, but {} {missing}",
                node.display()
            );
            return Err(job
                .error(Code::NoDeviceNode, why)
                .variables(&[("map", name.to_owned())]));
        }
        thread::sleep(Duration::from_millis(20));
    }
    if changed {
        let mut live = map.state.clone().unwrap_or_default();
        let up = map.paths.iter().filter(|path| path.is_live());
        let mut devices: Vec<_> = up.filter_map(|path| path.device.as_deref()).collect();
        devices.dedup();
        if !devices.is_empty() {
            live += &format!(" via {}", devices.join(" and "));
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
            .note(&format!("map {name} exists already, with these settings"));
    }
    Names::new().wait(context, name, Some(disk), job)?;
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.map/1",
            changed: is_new,
            map,
        });
    }
    context.output.line(&format!("/dev/{disk}"))
}

/// Finds the map with this name, device or UUID, and returns its name.
pub fn find(context: &Context, wanted: &str, job: &Job) -> Result<Option<String>, Error> {
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
            .hint("farblk list  # shows the names: name the map")),
    }
}

/// Runs `farblk unmap`.
pub fn unmap(context: &Context, arguments: &cli::Unmap) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let job = Job::new(format!("cannot unmap {}", arguments.map));
    // For the files in /etc/farblk.
    let lock = || match arguments.forget {
        true => context.lock(&job),
        false => Ok(None),
    };
    let Some(name) = find(context, &arguments.map, &job)? else {
        let forgotten = match arguments.forget {
            true => {
                let _lock = lock()?;
                persist::forget(context, Kind::Map, &arguments.map, &job)?
            }
            false => None,
        };
        if !arguments.if_mapped && forgotten.is_none() {
            return Err(context.not_found(&job.what, "map", &arguments.map));
        }
        if configfs.is_dry_run() {
            return Ok(());
        }
        // An attempt before this one may have failed for that alone.
        if name::parse(&arguments.map).is_ok() {
            Names::new().wait(context, &arguments.map, None, &job)?;
        }
        let text = match &forgotten {
            None => format!("{} is not mapped", arguments.map),
            Some(file) => {
                let file = file.display();
                format!("{} is not mapped; removed from {file}", arguments.map)
            }
        };
        let changed = forgotten.is_some();
        context
            .output
            .result(&text, &Removed::new("map", &arguments.map, changed))?;
        if changed {
            persist::hint_unit(context, &arguments.map);
        }
        return Ok(());
    };
    let object = configfs.path(&["maps", &name]);
    let disk = configfs.attr(&object, "device");
    if arguments.force {
        // `enable` is still 0 while another task enables the map.
        if configfs
            .attr(&object, "state")
            .is_some_and(|state| state != "disabled")
        {
            configfs.set(&object, "enable", "force", &job)?;
        }
    } else {
        let busy = |disk: &str, holders: &[Holder]| {
            let (error, mut steps) = in_use(context, &name, "unmapped", disk, holders);
            let or = if steps.is_empty() { "" } else { "or: " };
            let unmap = fill_in("farblk unmap {name} --force", &[("name", &name)]);
            steps.push(format!(
                "{unmap}  # {or}all I/O fails; data in flight is lost"
            ));
            error.hint(steps.join("\n"))
        };
        disable(context, &object, disk.as_deref(), &job, &busy)?;
    }
    // What went well leaves no error, unless the server did not hear of it.
    let untold = disk
        .is_some()
        .then(|| configfs.attr(&object, "last_error"))
        .flatten();
    if let Some((_, text)) = untold.as_deref().and_then(|text| text.split_once(' ')) {
        context.output.warn(text);
    }
    let paths = object.join("paths");
    for path in configfs.names(&paths) {
        configfs.disable(&paths.join(&path), &job)?;
        configfs.rmdir(&paths.join(&path), &job)?;
    }
    configfs.rmdir(&object, &job)?;
    let kept = {
        let _lock = lock()?;
        persist::kept(context, Kind::Map, &name, arguments.forget, &job)?
    };
    if configfs.is_dry_run() {
        return Ok(());
    }
    match Names::new().wait(context, &name, None, &job) {
        // It has taken as long as it may.
        Err(error) if arguments.force => context.output.warn(&error.why),
        waited => waited?,
    }
    let was = disk.map(|disk| format!(" ({disk})")).unwrap_or_default();
    context.output.result(
        &format!("unmapped {name}{was}{kept}"),
        &Removed::new("map", &name, true),
    )?;
    if arguments.forget {
        persist::hint_unit(context, &name);
    }
    Ok(())
}

/// Runs `farblk remap`.
pub fn remap(context: &Context, arguments: &cli::Remap) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let job = Job::new(format!("cannot remap {}", arguments.map));
    let Some(name) = find(context, &arguments.map, &job)? else {
        let error = context.not_found(&job.what, "map", &arguments.map);
        // One that was not restored, as its contents are gone, is only there.
        return Err(match persist::expecting(context, &arguments.map) {
            Some(file) => {
                let restore = persist::restore_command(context, &arguments.map);
                let file = file.display();
                let accept = "# to accept other contents, remove expect_instance of this map";
                error.hint(format!("{accept} from {file}\n{restore}"))
            }
            None => error,
        });
    };
    let start = Instant::now();
    let object = configfs.path(&["maps", &name]);
    let map = Map::read(context, &name);
    let state = map.state.as_deref().unwrap_or("unknown");
    let contents = match state {
        "stale" if map.mode.as_deref() == Some("two_sided") => Some((Code::Stale, OTHER)),
        "stale" => Some((Code::Stale, LOSS)),
        "evicted" => Some((Code::Evicted, CHANGED)),
        "live" if configfs.is_dry_run() => return Ok(()),
        "live" => return report(context, &name, false, false, start, &job),
        // An earlier remap could not enable it again: there is no disk whose contents could be
        // lost.
        "disabled" if !map.paths.is_empty() => None,
        "connecting" | "reconnecting" | "failed" => {
            let why = format!("it is {state}: whether its contents differ is not known yet");
            return Err(job.error(Code::NoPath, why));
        }
        "closing" => {
            let why = "it is closing: another process disables it";
            return Err(job.error(Code::Busy, why));
        }
        _ => {
            let why = format!("it is {state}: there are no new contents to accept");
            return Err(job.error(Code::Usage, why).hint(fill_in(
                "farblk path add {name} HOST\nfarblk remap {name}",
                &[("name", &name)],
            )));
        }
    };
    if let Some((code, loss)) = contents {
        let disk = map.disk();
        let busy = |disk: &str, holders: &[Holder]| {
            let (error, mut steps) = in_use(context, &name, "remapped", disk, holders);
            let once = match steps.is_empty() {
                true => "  # once no process has it open",
                false => "",
            };
            steps.push(fill_in("farblk remap {name}", &[("name", &name)]) + once);
            error.hint(steps.join("\n"))
        };
        if let Some(disk) = disk {
            let holders = holders::find(&context.root, disk);
            if !holders.is_empty() {
                return Err(busy(disk, &holders));
            }
        }
        if !configfs.is_dry_run() {
            context.output.warn(&format!("{name}: {loss}"));
            if !arguments.yes {
                accept(context, &name, code, &job)?;
            }
        }
        disable(context, &object, disk, &job, &busy)?;
    }
    if configfs.attr(&object, "expect_instance").is_some() {
        configfs.set(&object, "expect_instance", "", &job)?;
    }
    let addr = map.paths.first().and_then(|path| path.addr.as_deref());
    let mut job = path::job_of(context, &object, addr);
    job.what = format!("cannot remap {}", arguments.map);
    configfs.set(&object, "enable", "1", &job)?;
    if configfs.is_dry_run() {
        return Ok(());
    }
    report(context, &name, true, true, start, &job)
}

/// Asks the user to accept the new contents of map `name`.
fn accept(context: &Context, name: &str, code: Code, job: &Job) -> Result<(), Error> {
    match context.output.confirm("Accept the new contents?") {
        Some(true) => Ok(()),
        Some(false) => Err(job
            .error(code, "the new contents were not accepted")
            .hint("")),
        None => Err(job
            .error(Code::Usage, "without a terminal, remap cannot ask")
            .hint(fill_in("farblk remap {name} --yes", &[("name", name)]))),
    }
}

/// Disables a map that is not in use. `busy` makes the error for one that is.
fn disable(
    context: &Context,
    object: &Path,
    disk: Option<&str>,
    job: &Job,
    busy: &dyn Fn(&str, &[Holder]) -> Error,
) -> Result<(), Error> {
    let Some(disk) = disk else {
        return context.configfs.disable(object, job);
    };
    let mut deadline = None;
    loop {
        let holders = holders::find(&context.root, disk);
        if !holders.is_empty() {
            return Err(busy(disk, &holders));
        }
        match context.configfs.disable(object, job) {
            Err(error) if error.code == Code::Busy => {
                // udev reads a disk that somebody has written to. It may hear of that only now, so
                // one look at its queue is not enough.
                context.devices.settle();
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + PROBE_TIMEOUT);
                if Instant::now() >= deadline {
                    return Err(busy(disk, &holders));
                }
                thread::sleep(Duration::from_millis(100));
            }
            result => return result,
        }
    }
}

/// Makes the error for a disk in use that was not `done`. Returns it with the steps that end the
/// use.
pub fn in_use(
    context: &Context,
    name: &str,
    done: &str,
    disk: &str,
    holders: &[Holder],
) -> (Error, Vec<String>) {
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
        format!("{name} is in use and was not {done}"),
        "",
    );
    let mut steps = Vec::new();
    for holder in holders {
        let users = match holder {
            Holder::Mount { .. } => users.take().map(|users| format!(", {users}")),
            _ => None,
        };
        error = error.detail(holder.describe() + &users.unwrap_or_default());
    }
    steps.extend(holders::remedies(holders));
    if holders.is_empty() {
        for hidden in holders::find_hidden(&context.root, disk) {
            error = error.detail(hidden.text);
            steps.push(hidden.remedy);
        }
    }
    if let Some(users) = users {
        error = error.detail(format!("open: {users}"));
        if holders.is_empty() {
            steps.push("# stop these processes".into());
        }
    } else if holders.is_empty() && steps.is_empty() {
        error = error.detail("open: by a user that this process cannot see, perhaps in the kernel");
    }
    (error, steps)
}
