// SPDX-License-Identifier: GPL-2.0
//! `farblk export create`.

use std::path::Path;
use std::time::Instant;

use super::{keys, report, require_own_uuid};
use crate::cli::{Create, Protection};
use crate::cmd::backing::{Backing, Undo};
use crate::cmd::map::word;
use crate::cmd::{Context, key, registration};
use crate::configfs::{Job, KEY_ID, Made};
use crate::error::{Code, Error, fill_in};
use crate::saved::Kind;
use crate::saved::keys::Key;
use crate::secret::{Secret, Source};
use crate::{identity, quote, size};

/// The block size of a RAM export that is not given one, in bytes.
const BLOCK_SIZE: u64 = 4096;
/// The largest number of ports that an export may name.
const PORTS_MAX: usize = 8;

/// The attributes a command line asks for: those it names, and the defaults that decide who may do
/// what. The backing comes last. `have` is the device of the export that exists.
fn settings(
    context: &Context,
    arguments: &Create,
    backing: &Backing,
    have: Option<&str>,
) -> Vec<(&'static str, String)> {
    let flag = |value: bool| u8::from(value).to_string();
    let mut settings = vec![
        ("kind", backing.kind().to_owned()),
        ("read_only", flag(arguments.read_only)),
        ("allow_any_host", flag(arguments.allow_any_host)),
    ];
    let optional = [
        (
            "block_size",
            arguments
                .block_size
                // That of a file is its loop device's.
                .filter(|_| arguments.file.is_none())
                .map(|value| value.to_string()),
        ),
        ("numa_node", arguments.numa.map(|value| value.to_string())),
        (
            "max_clients",
            arguments.max_clients.map(|value| value.to_string()),
        ),
        ("protection", arguments.protection.map(word)),
        ("scrub", arguments.no_scrub.then(|| "0".to_owned())),
        ("uuid", arguments.uuid.clone()),
        (
            "ports",
            (!arguments.ports.is_empty()).then(|| arguments.ports.join(" ")),
        ),
    ];
    settings.extend(
        optional
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    settings.push(backing.source(context, have));
    settings
}

/// Returns true if a command with the same arguments was killed while it made the export.
///
/// Such an export has no backing yet, or the file that is about to get a loop device. Each of its
/// settings is the one that is asked for, or still that of a new export. A new export has a random
/// UUID, so one that another command has chosen is not noticed.
fn is_half_made(
    context: &Context,
    arguments: &Create,
    secret: Option<&Secret>,
    backing: &Backing,
    object: &Path,
) -> bool {
    let configfs = &context.configfs;
    let is =
        |attribute: &str, value: &str| configfs.attr(object, attribute).as_deref() == Some(value);
    let device = configfs.attr(object, "device_path");
    let backing_fits = match &device {
        None => is("size", "0"),
        Some(device) => {
            matches!(backing, Backing::File { path, .. } if path.as_os_str() == device.as_str())
        }
    };
    let mut wanted = settings(context, arguments, backing, None);
    wanted.pop();
    let is_wanted = |attribute: &str| {
        let wanted = wanted.iter().find(|(name, _)| *name == attribute);
        wanted.map(|(_, value)| is(attribute, value))
    };
    let has_kind = is("kind", "ram") || is_wanted("kind") == Some(true);
    let has_uuid = device.is_none() || is_wanted("uuid") != Some(false);
    // The backing and the UUID have no default.
    let fits = |key: &Key| {
        key.default.is_empty()
            || key.attr == "enable"
            || is(key.attr, key.default)
            || is_wanted(key.attr) == Some(true)
    };
    let hosts = object.join("hosts");
    let is_asked_for = |host: &String| {
        let entry = hosts.join(host);
        let access = configfs.attr(&entry, "access");
        let key = configfs.attr(&entry, KEY_ID);
        arguments.allow.iter().any(|allowed| {
            // A new entry has the access "none".
            allowed.host == *host
                && [Some("none"), Some(allowed.access())].contains(&access.as_deref())
                && configfs.attr(&entry, "host_id").is_none()
                && (key.is_none() || key.as_deref() == secret.map(Secret::id))
        })
    };
    is("state", "disabled")
        && is("enable", "0")
        && backing_fits
        && has_kind
        && has_uuid
        && Kind::Export.keys().iter().all(fits)
        && configfs.names(&hosts).iter().all(is_asked_for)
}

/// Fails if the kernel would not accept a value, as far as one needs other values or the host to
/// tell.
fn require_valid(context: &Context, arguments: &Create, job: &Job) -> Result<(), Error> {
    let block = arguments.block_size.unwrap_or(BLOCK_SIZE);
    let ports = arguments.ports.len();
    let why = match (arguments.ram, arguments.numa) {
        (Some(0), _) => "a disk cannot have 0 bytes".to_owned(),
        (Some(_), _) if !matches!(arguments.protection, None | Some(Protection::None)) => {
            let why = "hosts access the RAM of an export directly, so --protection is for --device and --file";
            return Err(job.error(Code::Usage, why));
        }
        (Some(bytes), _) if bytes % block != 0 => {
            format!("{bytes} is not a multiple of the block size {block}")
        }
        (_, Some(node)) if !has_node(context, node) => {
            format!("this host has no NUMA node {node}")
        }
        // Hosts with one key could take each other's place.
        _ if arguments.key_file.is_some() && arguments.allow.len() > 1 => {
            let hint = fill_in(
                "farblk export allow {name} HOST --key-file FILE  # admits a further host",
                &[("name", &arguments.name)],
            );
            let why = "--key-file is for one --allow: each host has a key of its own";
            return Err(job.error(Code::Usage, why).hint(hint));
        }
        _ if ports > PORTS_MAX => format!("{ports} ports are more than {PORTS_MAX}"),
        _ => return Ok(()),
    };
    Err(job.error(Code::Usage, why))
}

/// Returns true if this host has the NUMA node, or does not tell; -1 is any.
fn has_node(context: &Context, node: i32) -> bool {
    let system = context.root.join("sys/devices/system");
    let nodes = system.join("node");
    match nodes.is_dir() {
        _ if node == -1 => true,
        true => nodes.join(format!("node{node}")).is_dir(),
        false => node == 0 || !system.is_dir(),
    }
}

/// Runs `farblk export create`.
pub fn run(context: &Context, arguments: &Create) -> Result<(), Error> {
    let configfs = &context.configfs;
    let name = &arguments.name;
    let read_only = arguments.read_only;
    let mut job = Job::new(format!("cannot create export {name}"));
    require_valid(context, arguments, &job)?;
    let key_file = arguments.key_file.as_deref().map(Source::of);
    let secret = key_file.as_ref().map(|file| key::read(file, &job));
    let secret = secret.transpose()?;
    // Two commands that made one export, or a loop device of one file, would undo each other's
    // work.
    let _lock = context.lock(&job)?;
    let backing = Backing::find(context, arguments, &job)?;
    let object = configfs.path(&["exports", name]);
    let exists = configfs.exists(&object);
    let device = match &backing {
        Backing::Ram(_) => None,
        Backing::Device { path, .. } => Some(path.clone()),
        Backing::File { .. } => configfs
            .attr(&object, "device_path")
            .filter(|path| path.starts_with("/dev/loop")),
    };
    if let Some(device) = device {
        job = job.variable("device", device);
    }
    let key = secret.as_ref();
    if exists && !is_half_made(context, arguments, key, &backing, &object) {
        return create_existing(context, arguments, key, &backing, &object, &job);
    }
    let uuid = arguments.uuid.clone();
    if let Some(uuid) = uuid.or_else(|| configfs.attr(&object, "uuid")) {
        require_own_uuid(context, name, &uuid, &job)?;
    }
    backing.require_free(context, read_only, &job)?;
    // What was made last goes first when this fails: the export, then the loop device, then the
    // file.
    let mut undo = Undo::new(context);
    identity::settle(context, &job)?;
    let mut made = Made::new(configfs, &context.output);
    if !exists {
        made.mkdir(&object, &job)?;
    }
    if !matches!(backing, Backing::Ram(_)) {
        configfs.require_attr(&object, "device_path", &job)?;
    }
    let mut settings = settings(context, arguments, &backing, None);
    let source = settings.pop();
    for (attribute, value) in settings {
        let is_flag = matches!(attribute, "read_only" | "allow_any_host");
        // 0 is the default of both flags.
        if !is_flag || value != "0" || configfs.flag(&object, attribute) {
            configfs.set(&object, attribute, &value, &job)?;
        }
    }
    for allowed in &arguments.allow {
        let host = object.join("hosts").join(&allowed.host);
        if !configfs.exists(&host) {
            made.mkdir(&host, &job)?;
        }
        if let Some(key) = secret.as_ref().zip(key_file.as_ref()) {
            configfs.set_key(&host, "key", Some(key), &job)?;
        }
        configfs.set(&host, "access", allowed.access(), &job)?;
    }
    let device = backing.provide(context, read_only, &object, &mut undo, &job)?;
    if let Some(device) = &device {
        job = job.variable("device", device);
    }
    match (source, device) {
        (Some(("device_path", _)), Some(device)) => {
            configfs.set(&object, "device_path", &device, &job)?;
        }
        (Some(("device_path", _)), None) => {
            let path = object.join("device_path");
            configfs.record(|| format!("echo \"$loop\" > {}", quote::path(&path)));
        }
        (source, _) => configfs.set_all(&object, source.as_slice(), &job)?,
    }
    enable(context, arguments, &object, &job)?;
    made.keep();
    undo.keep();
    report(context, name, true)?;
    for allowed in &arguments.allow {
        keys::warn_of_any_host(context, name, &allowed.host);
    }
    Ok(())
}

/// The export exists: that is fine when it is as asked for; it may be allowed to more hosts.
fn create_existing(
    context: &Context,
    arguments: &Create,
    secret: Option<&Secret>,
    backing: &Backing,
    object: &Path,
    job: &Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let have = configfs.attr(object, "device_path");
    let wanted = settings(context, arguments, backing, have.as_deref());
    let mut differences = configfs.differences(object, &wanted);
    for allowed in &arguments.allow {
        let host = &allowed.host;
        let entry = object.join("hosts").join(host);
        if configfs.exists(&entry) {
            let mut wanted = vec![("access", allowed.access().to_owned())];
            wanted.extend(secret.map(|secret| (KEY_ID, secret.id().to_owned())));
            let differing = configfs.differences(&entry, &wanted);
            differences.extend(differing.iter().map(|text| format!("host {host}: {text}")));
        } else {
            differences.push(format!("host {host} is not allowed"));
        }
    }
    // A command with other arguments was killed before it had made the loop device.
    let is_file = |path: &&str| matches!(context.devices.number(Path::new(path)), Ok(None));
    if let Some(bytes) = have
        .as_deref()
        .and_then(|path| backing.differs(context, path))
    {
        let wanted = arguments.block_size.unwrap_or_default();
        differences.push(format!("block_size is {bytes}, not {wanted}"));
    }
    if let Some(path) = have.as_deref().filter(is_file) {
        differences.push(format!("device_path is {path:?}, which is no block device"));
    }
    if !differences.is_empty() {
        let lost = match configfs.attr(object, "kind").as_deref() {
            Some("ram") if configfs.flag(object, "enable") => "its contents are lost",
            _ => "its maps become stale",
        };
        let mut error = job
            .error(
                Code::Differs,
                "the export exists already, with other settings",
            )
            .hint(
                fill_in(
                    "farblk export allow {name} HOST  # admits a host\n# or choose another name\n\
                     farblk export rm {name}  # or remove that export: ",
                    &[("name", &arguments.name)],
                ) + lost,
            );
        error.details = differences;
        return Err(error);
    }
    let is =
        |attribute: &str, value: &str| configfs.attr(object, attribute).as_deref() == Some(value);
    // Its device may be back, or a task that disabled it was killed.
    let dead = is("kind", "block") && is("state", "unavailable") || is("state", "closing");
    if is("state", "unavailable") {
        require_room(context, &arguments.name, object, job)?;
    }
    let changed = dead || !configfs.flag(object, "enable");
    if let Some(uuid) = configfs.attr(object, "uuid").filter(|_| changed) {
        require_own_uuid(context, &arguments.name, &uuid, job)?;
    }
    if dead {
        configfs.disable(object, job)?;
    }
    if changed {
        backing.require_free(context, arguments.read_only, job)?;
        enable(context, arguments, object, job)?;
    }
    report(context, &arguments.name, changed)
}

/// Fails if the device of an export that is unavailable has no room: the export goes on by itself
/// when that has changed, and once it is disabled it could not be enabled.
pub fn require_room(context: &Context, name: &str, object: &Path, job: &Job) -> Result<(), Error> {
    let path = context
        .configfs
        .attr(object, "device_path")
        .unwrap_or_default();
    let number = context.devices.number(Path::new(&path)).ok().flatten();
    let disk = number.and_then(|number| context.devices.name(&number));
    match disk.and_then(|disk| context.devices.size(&disk)) {
        Some(1..) => Ok(()),
        _ => {
            let why = match context.configfs.last_error(object) {
                Some(last) => format!("it is unavailable: {}", last.text),
                None => "it is unavailable: its device is gone, or has no room".into(),
            };
            let error = job.error(Code::Unavailable, why);
            Err(error.variables(&[("export", name.to_owned())]))
        }
    }
}

/// Enables the export. Memory is taken then: some seconds for many gigabytes.
fn enable(context: &Context, arguments: &Create, object: &Path, job: &Job) -> Result<(), Error> {
    let bytes = match arguments.ram {
        Some(bytes) if !context.configfs.is_dry_run() => bytes,
        Some(_) => return registration::enable(context, object, job),
        None => return registration::enable(context, object, &job.clone().open()),
    };
    let node = match arguments.numa {
        Some(node) if node >= 0 => format!(" on NUMA node {node}"),
        _ => String::new(),
    };
    context
        .output
        .stage(&format!("allocating {}{node}", size::human(bytes)));
    let start = Instant::now();
    registration::enable(context, object, job)?;
    context
        .output
        .stage(&format!("done ({})", size::human_duration(start.elapsed())));
    context.output.end_line();
    Ok(())
}
