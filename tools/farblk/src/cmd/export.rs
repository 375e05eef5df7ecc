// SPDX-License-Identifier: GPL-2.0
//! `farblk export`: the exports of this host.
//!
//! Long: twelve commands for one object, which share what is read and refused: hosts, clients, loop
//! devices.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use super::backing::{check_size, make_larger};
use super::{Context, Removed, key, persist, registration};
use crate::cli::{self, Allowed};
use crate::configfs::{Job, KEY_ID, KEY_NEXT_ID, LastError, Made, words};
use crate::error::{Code, Error, fill_in};
use crate::output::{self, alert, table};
use crate::saved::Kind;
use crate::secret::Source;
use crate::size;

pub mod create;
mod keys;

/// Timeout for the module to notice the new size of a device.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(5);

/// An export.
#[derive(JsonSchema, Serialize)]
struct Export {
    name: String,
    kind: Option<String>,
    /// How the data is moved: "one_sided" or "two_sided".
    mode: Option<&'static str>,
    /// The path of the block device.
    device: Option<String>,
    /// The file behind the loop device.
    file: Option<String>,
    /// What that file was called before it was removed or replaced.
    #[serde(skip)]
    lost_file: Option<String>,
    size_bytes: Option<u64>,
    uuid: Option<String>,
    instance: Option<String>,
    read_only: bool,
    block_size: Option<u32>,
    numa_node: Option<i32>,
    ports: Option<String>,
    allow_any_host: bool,
    /// How commands and data are protected on their way: "none", "crc32c" or "seal".
    protection: Option<String>,
    max_clients: Option<u32>,
    clients: Option<u32>,
    clients_away: Option<u32>,
    state: Option<String>,
    last_error: Option<LastError>,
    hosts: Vec<Host>,
    /// Whose maps have registered a key for persistent reservations.
    registrants: Vec<Registrant>,
}

/// A map that has registered a key for persistent reservations.
#[derive(JsonSchema, Serialize)]
struct Registrant {
    /// The name of its host.
    host: String,
    /// The key, "0x1f".
    key: String,
    /// The type of the reservation if this map holds it, as blkpr names it; else null.
    reservation: Option<String>,
}

/// A host that may use an export.
#[derive(JsonSchema, Serialize)]
struct Host {
    name: String,
    host_id: Option<String>,
    access: Option<String>,
    connected: Option<u32>,
    /// The id of the key that the host has to prove; null if it has to prove none.
    key_id: Option<String>,
    /// The id of another key that it may prove instead.
    key_next_id: Option<String>,
}

/// An export, schema `farblk.export/1`.
#[derive(JsonSchema, Serialize)]
pub struct ExportDocument<'a> {
    schema: &'static str,
    /// True if the command changed anything.
    changed: bool,
    export: &'a Export,
}

/// The exports of this host, schema `farblk.export-list/1`.
#[derive(JsonSchema, Serialize)]
pub struct ListDocument {
    schema: &'static str,
    host: Option<String>,
    exports: Vec<Export>,
}

/// Runs `farblk export`.
pub fn run(context: &Context, command: &cli::Export) -> Result<(), Error> {
    context.configfs.require()?;
    match command {
        cli::Export::Create(arguments) => create::run(context, arguments),
        cli::Export::List => list(context),
        cli::Export::Show { name } => show(context, name),
        cli::Export::Allow {
            name,
            host,
            ro,
            host_id,
            key_file,
        } => {
            let source = key_file.as_deref().map(Source::of);
            allow(context, name, host, *ro, host_id.as_deref(), source)
        }
        cli::Export::Key {
            name,
            host,
            key_file,
            next_key_file,
            promote,
            remove_next,
            remove: _,
            force,
        } => {
            let change = match (key_file, next_key_file) {
                (Some(file), _) => keys::Change::Key(Source::of(file)),
                (_, Some(file)) => keys::Change::Next(Source::of(file)),
                _ if *promote => keys::Change::Promote,
                _ if *remove_next => keys::Change::RemoveNext,
                _ => keys::Change::Remove,
            };
            keys::change(context, name, host, &change, *force)
        }
        cli::Export::Deny { name, host, force } => deny(context, name, host, *force),
        cli::Export::Evict { name, host, force } => evict(context, name, host, *force),
        cli::Export::Unreserve { name, force } => unreserve(context, name, *force),
        cli::Export::Disable { name, force } => disable(context, name, *force),
        cli::Export::Enable { name } => enable_again(context, name),
        cli::Export::Resize { name, size, force } => resize(context, name, *size, *force),
        cli::Export::Rm {
            name,
            force,
            forget,
        } => remove(context, name, *force, *forget),
    }
}

/// Returns how the data of a kind of export is moved.
pub fn mode_of(kind: &str) -> Option<&'static str> {
    match kind {
        "ram" => Some("one_sided"),
        "block" => Some("two_sided"),
        _ => None,
    }
}

/// "one_sided" as people write it.
pub fn mode_text(mode: &str) -> String {
    mode.replace('_', "-")
}

fn read(context: &Context, name: &str) -> Export {
    let configfs = &context.configfs;
    let object = configfs.path(&["exports", name]);
    let hosts = object.join("hosts");
    let read_host = |host: String| Host {
        host_id: configfs.attr(&hosts.join(&host), "host_id"),
        access: configfs.attr(&hosts.join(&host), "access"),
        connected: configfs.number(&hosts.join(&host), "connected"),
        key_id: configfs.attr(&hosts.join(&host), KEY_ID),
        key_next_id: configfs.attr(&hosts.join(&host), KEY_NEXT_ID),
        name: host,
    };
    let kind = configfs.attr(&object, "kind");
    let device = configfs.attr(&object, "device_path");
    Export {
        name: name.to_owned(),
        mode: kind.as_deref().and_then(mode_of),
        kind,
        file: device
            .as_deref()
            .and_then(|device| context.devices.file(device)),
        lost_file: device
            .as_deref()
            .and_then(|device| context.devices.lost_file(device)),
        device,
        size_bytes: configfs.number(&object, "size"),
        uuid: configfs.attr(&object, "uuid"),
        instance: configfs.attr(&object, "instance"),
        read_only: configfs.flag(&object, "read_only"),
        block_size: configfs.number(&object, "block_size"),
        numa_node: configfs.number(&object, "numa_node"),
        ports: configfs.attr(&object, "ports"),
        allow_any_host: configfs.flag(&object, "allow_any_host"),
        protection: configfs.attr(&object, "protection"),
        max_clients: configfs.number(&object, "max_clients"),
        clients: configfs.number(&object, "clients"),
        clients_away: configfs.number(&object, "clients_away"),
        state: configfs.attr(&object, "state"),
        last_error: configfs.last_error(&object),
        hosts: configfs.names(&hosts).into_iter().map(read_host).collect(),
        registrants: configfs
            .attr(&object, "pr_registrants")
            .map(|lines| lines.lines().filter_map(Registrant::parse).collect())
            .unwrap_or_default(),
    }
}

/// "protection seal"; `None` if there is none.
pub fn protected(protection: &Option<String>) -> Option<String> {
    let word = protection.as_deref().filter(|word| *word != "none")?;
    Some(format!("protection {word}"))
}

/// "" if it is not known.
fn number(number: Option<u32>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

impl Registrant {
    /// Reads a line of `pr_registrants`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ').map(str::to_owned);
        Some(Self {
            host: words.next()?,
            key: words.next()?,
            reservation: words.next(),
        })
    }
}

impl Host {
    /// Returns true if the host has to prove a key.
    fn has_key(&self) -> bool {
        self.key_id.is_some() || self.key_next_id.is_some()
    }
}

impl Export {
    fn is_block(&self) -> bool {
        self.kind.as_deref() == Some("block")
    }

    /// "1 of at most 2, 1 away".
    fn clients(&self) -> String {
        let away = match self.clients_away {
            None | Some(0) => String::new(),
            Some(away) => format!(", {away} away"),
        };
        let (here, most) = (number(self.clients), number(self.max_clients));
        format!("{here} of at most {most}{away}")
    }

    /// "/dev/sda", or "/dev/loop0 (/srv/disk)"; "" for memory.
    fn backing(&self) -> String {
        let device = self.device.clone().unwrap_or_default();
        match &self.file {
            Some(file) => format!("{device} ({file})"),
            None => device,
        }
    }

    /// Says that clients write to a file that has no name any more.
    fn loss(&self) -> Option<String> {
        let file = self.lost_file.as_deref()?;
        let text = format!("{file} was removed or replaced: what clients write is lost with it");
        Some(format!("{}  # farblk doctor", alert(&text)))
    }

    fn access(&self) -> &'static str {
        if self.read_only { "ro" } else { "rw" }
    }

    fn size(&self) -> String {
        self.size_bytes.map(size::human).unwrap_or_default()
    }

    fn mode(&self) -> String {
        self.mode.map(mode_text).unwrap_or_default()
    }

    fn allowed(&self) -> String {
        let host = |host: &Host| {
            let only = host.access.as_deref() == Some("ro") && !self.read_only;
            let notes = [("ro", only), ("key", host.has_key())];
            let notes: Vec<_> = notes
                .iter()
                .filter(|(_, is)| *is)
                .map(|(word, _)| *word)
                .collect();
            match notes.is_empty() {
                true => host.name.clone(),
                false => format!("{} ({})", host.name, notes.join(", ")),
            }
        };
        match (self.allow_any_host, self.hosts.is_empty()) {
            (true, _) => "any host".into(),
            (false, true) => "nobody".into(),
            (false, false) => self.hosts.iter().map(host).collect::<Vec<_>>().join(", "),
        }
    }

    /// "block, /dev/sda, 1.8 TiB, two-sided, rw, allowed: node-b", or "ram, 4.0 GiB, one-sided, rw,
    /// allowed: node-b   VOLATILE: ..."
    fn summary(&self) -> String {
        let kind = self.kind.clone().unwrap_or_default();
        let parts = [
            kind,
            self.backing(),
            self.size(),
            self.mode(),
            self.access().into(),
            protected(&self.protection).unwrap_or_default(),
            format!("allowed: {}", self.allowed()),
        ];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{}{}", parts.join(", "), self.volatile())
    }

    fn volatile(&self) -> String {
        match self.kind.as_deref() {
            Some("ram") => alert("   VOLATILE: lost when this host stops"),
            _ => String::new(),
        }
    }
}

fn report(context: &Context, name: &str, changed: bool) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Ok(());
    }
    let export = read(context, name);
    let already = if changed {
        ""
    } else {
        " exists already, with these settings"
    };
    let text = format!("export {name}{already}: {}", export.summary());
    let document = ExportDocument {
        schema: "farblk.export/1",
        changed,
        export: &export,
    };
    context.output.result(&text, &document)?;
    if export.protection.as_deref() == Some("seal") {
        hint_keys(context, &export);
    } else if !export.allow_any_host && export.hosts.is_empty() {
        context.output.hint(fill_in(
            "farblk export allow {name} HOST  # no host may use it yet",
            &[("name", name)],
        ));
    }
    Ok(())
}

/// Says which hosts cannot map a sealed export, as they have no key.
fn hint_keys(context: &Context, export: &Export) {
    let name = export.name.as_str();
    if export.hosts.is_empty() {
        context.output.hint(fill_in(
            "farblk export allow {name} HOST --key-file FILE  # no host can map it yet: a sealed \
             export needs a key of each",
            &[("name", name)],
        ));
    }
    for host in export.hosts.iter().filter(|host| !host.has_key()) {
        context.output.hint(fill_in(
            "farblk export key {name} {host} --key-file FILE  # a sealed export needs keys",
            &[("name", name), ("host", &host.name)],
        ));
    }
}

fn list(context: &Context) -> Result<(), Error> {
    let names = context.configfs.names(&context.configfs.path(&["exports"]));
    let exports: Vec<Export> = names.iter().map(|name| read(context, name)).collect();
    if context.output.is_json() {
        let host = context.host_name();
        return context.output.document(&ListDocument {
            schema: "farblk.export-list/1",
            host,
            exports,
        });
    }
    let count = |number: Option<u32>| number.map_or("-".into(), |number| number.to_string());
    let row = |export: &Export| {
        vec![
            export.name.clone(),
            export.kind.clone().unwrap_or_default(),
            export.size(),
            export.mode(),
            export.access().into(),
            export.state.clone().unwrap_or_default(),
            format!("{}/{}", count(export.clients), count(export.max_clients)),
            export.allowed(),
            export.backing(),
        ]
    };
    let rows: Vec<_> = exports.iter().map(row).collect();
    let heading = [
        "EXPORT", "TYPE", "SIZE", "MODE", "ACCESS", "STATE", "CLIENTS", "ALLOWED", "DEVICE",
    ];
    let mut lines = table(&heading, &rows).into_iter();
    lines
        .next()
        .map_or(Ok(()), |heading| context.output.line(&heading))?;
    for (line, export) in lines.zip(&exports) {
        context.output.line(&line)?;
        let last = export.last_error.iter();
        let last = last.map(|last| format!("last error: {}", last.text));
        let lines: Vec<_> = export.loss().into_iter().chain(last).collect();
        context.output.branches(&lines)?;
    }
    Ok(())
}

fn show(context: &Context, name: &str) -> Result<(), Error> {
    if !context
        .configfs
        .exists(&context.configfs.path(&["exports", name]))
    {
        return Err(context.not_found("cannot show the export", "export", name));
    }
    let export = read(context, name);
    if context.output.is_json() {
        let document = ExportDocument {
            schema: "farblk.export/1",
            changed: false,
            export: &export,
        };
        return context.output.document(&document);
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let numa = match export.numa_node {
        Some(node) if node >= 0 => node.to_string(),
        Some(_) => "any".into(),
        None => String::new(),
    };
    let size = match export.size_bytes {
        Some(bytes) => format!("{} ({bytes} bytes)", size::human(bytes)),
        None => String::new(),
    };
    context
        .output
        .line(&format!("export {name}{}", export.volatile()))?;
    for (label, value) in [
        ("state", output::state(&text(&export.state))),
        ("type", [text(&export.kind), export.mode()].join(", ")),
        ("device", text(&export.device)),
        ("file", text(&export.file)),
        ("size", size),
        ("access", export.access().into()),
        ("block size", number(export.block_size)),
        ("NUMA node", numa),
        ("ports", text(&export.ports)),
        ("protection", text(&export.protection)),
        ("uuid", text(&export.uuid)),
        ("instance", text(&export.instance)),
        ("clients", export.clients()),
        ("allowed", export.allowed()),
        (
            "last error",
            export
                .last_error
                .as_ref()
                .map_or("none".into(), |last| last.text.clone()),
        ),
    ] {
        let hidden = match label {
            "NUMA node" => export.is_block(),
            "device" => !export.is_block(),
            "file" => export.file.is_none(),
            _ => false,
        };
        if hidden {
            continue;
        }
        let value = if value.is_empty() { "-" } else { &value };
        context.output.line(&format!("  {label:<12}{value}"))?;
        if let Some(loss) = export.loss().filter(|_| label == "file") {
            context.output.line(&format!("  {:<12}{loss}", ""))?;
        }
    }
    let print = |heading: &[&str], rows: &[Vec<String>]| match rows.is_empty() {
        true => Ok(()),
        false => table(heading, rows)
            .iter()
            .try_for_each(|line| context.output.line(&format!("  {line}"))),
    };
    let row = |host: &Host| {
        vec![
            host.name.clone(),
            text(&host.access),
            number(host.connected),
            text(&host.host_id),
            text(&host.key_id),
            text(&host.key_next_id),
        ]
    };
    let rows: Vec<_> = export.hosts.iter().map(row).collect();
    let heading = ["HOST", "ACCESS", "CONNECTED", "HOST ID", "KEY", "NEXT KEY"];
    print(&heading, &rows)?;
    let row = |one: &Registrant| vec![one.host.clone(), one.key.clone(), text(&one.reservation)];
    let rows: Vec<_> = export.registrants.iter().map(row).collect();
    print(&["REGISTRANT", "KEY", "RESERVATION"], &rows)
}

fn allow(
    context: &Context,
    name: &str,
    allowed: &Allowed,
    ro: bool,
    host_id: Option<&str>,
    source: Option<Source<'_>>,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let host = &allowed.host;
    let job = Job::new(format!("cannot allow {host} to use {name}"));
    if ro && allowed.read_only == Some(false) {
        return Err(job.error(Code::Usage, format!("--ro contradicts {host}:rw")));
    }
    let ro = ro || allowed.read_only == Some(true);
    let secret = source.as_ref().map(|source| key::read(source, &job));
    let secret = secret.transpose()?;
    let object = configfs.path(&["exports", name]);
    if !configfs.is_dry_run() && !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    let entry = object.join("hosts").join(host);
    let mut settings = Vec::new();
    if let Some(id) = host_id {
        settings.push(("host_id", id.to_owned()));
    }
    let access = if ro { "ro" } else { "rw" };
    settings.push(("access", access.to_owned()));
    let made = if configfs.exists(&entry) {
        if let Some(secret) = &secret {
            keys::require_same(context, name, host, secret, &job)?;
        }
        settings.retain(|setting| {
            !configfs
                .differences(&entry, std::slice::from_ref(setting))
                .is_empty()
        });
        None
    } else {
        let mut made = Made::new(configfs, &context.output);
        made.mkdir(&entry, &job)?;
        // The new entry admits any host that shows that name until it has a key: so this comes
        // first.
        if let Some(key) = secret.as_ref().zip(source.as_ref()) {
            configfs.set_key(&entry, "key", Some(key), &job)?;
        }
        Some(made)
    };
    configfs.set_all(&entry, &settings, &job)?;
    let changed = made.is_some() || !settings.is_empty();
    if let Some(made) = made {
        made.keep();
    }
    report(context, name, changed)?;
    keys::warn_of_any_host(context, name, host);
    Ok(())
}

/// Runs `farblk export deny`: removes the host's entry, ends the sessions and registrations of its
/// maps, and waits until nothing of them can reach the export any more. A call that was killed
/// meanwhile can be repeated.
fn deny(context: &Context, name: &str, host: &str, force: bool) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot deny {host} the use of {name}"));
    let object = configfs.path(&["exports", name]);
    let entry = object.join("hosts").join(host);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    let listed = configfs.exists(&entry);
    let any = configfs.flag(&object, "allow_any_host");
    require_no_map_of(&read(context, name), host, "deny", force, &job)?;
    forget_registration(context, &object, &job)?;
    if listed {
        // The kernel only begins to end the sessions.
        configfs.rmdir(&entry, &job)?;
        configfs.set_if_found(&object, "evict", host, &job)?;
    } else {
        match configfs.set(&object, "evict", host, &job) {
            Err(error) if !any && error.code == Code::NotFound => {
                let why = "the export has no entry for this host, and no map of it";
                return Err(job
                    .error(Code::NotFound, why)
                    .hint(fill_in("farblk export show {name}", &[("name", name)])));
            }
            result => result?,
        }
    }
    report(context, name, true)?;
    if any && !configfs.is_dry_run() {
        context.output.hint(format!(
            "# the export admits any host, so {host} may log in again; to prevent this, make the \
             export anew without --allow-any-host"
        ));
    }
    Ok(())
}

/// Runs `farblk export evict`: as [`deny`], but the host may log in again.
fn evict(context: &Context, name: &str, host: &str, force: bool) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot evict {host} from {name}"));
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    require_no_map_of(&read(context, name), host, "evict", force, &job)?;
    forget_registration(context, &object, &job)?;
    configfs.set(&object, "evict", host, &job)?;
    report(context, name, true)
}

/// Runs `farblk export unreserve`.
fn unreserve(context: &Context, name: &str, force: bool) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot remove the reservations of {name}"));
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    configfs.require_attr(&object, "pr_registrants", &job)?;
    let reserved = |why: String| {
        job.error(Code::Busy, why).hint(fill_in(
            "farblk export unreserve {name} --force  # hosts that were fenced may write again",
            &[("name", name)],
        ))
    };
    let before = read(context, name);
    let held = |one: &Registrant| Some((one.host.clone(), one.reservation.clone()?));
    if let Some((host, kind)) = before.registrants.iter().find_map(held).filter(|_| !force) {
        return Err(reserved(format!("{host} has reserved it: {kind}")));
    }
    let changed = !before.registrants.is_empty();
    if changed {
        let value = if force { "force" } else { "1" };
        let result = configfs.set(&object, "pr_clear", value, &job);
        result.map_err(|error| match error.code {
            Code::Busy => reserved("a map has reserved it meanwhile".into()),
            _ => error,
        })?;
    }
    if configfs.is_dry_run() {
        return Ok(());
    }
    let document = ExportDocument {
        schema: "farblk.export/1",
        changed,
        export: &read(context, name),
    };
    let text = match before.registrants.len() {
        0 => format!("export {name} has no reservations"),
        1 => format!("export {name}: removed 1 registrant"),
        count => format!("export {name}: removed {count} registrants"),
    };
    context.output.result(&text, &document)
}

/// Forgets what was written down of the maps of an export that loses one of them.
fn forget_registration(context: &Context, object: &Path, job: &Job) -> Result<(), Error> {
    let _lock = context.lock(job)?;
    registration::forget(context, object, job)
}

/// Fails if the export may have maps of `host`, unless `command` is forced.
fn require_no_map_of(
    export: &Export,
    host: &str,
    command: &str,
    force: bool,
    job: &Job,
) -> Result<(), Error> {
    let name = &export.name;
    match clients_of(export, host).filter(|_| !force) {
        None => Ok(()),
        Some(why) => Err(job.error(Code::Busy, why).hint(fill_in(
            "farblk unmap MAP  # on {host}\nfarblk export {command} {name} {host} --force  # or: I/O \
             of its maps fails; data that {host} has not written yet is lost",
            &[("command", command), ("name", name), ("host", host)],
        ))),
    }
}

/// Returns which maps of `host` the export has, in words; `None` if there can be none.
///
/// The module counts the connected maps of each host with an entry; those that are away it counts
/// together.
fn clients_of(export: &Export, host: &str) -> Option<String> {
    let count = |host: &Host| host.connected.unwrap_or(0);
    let own = export.hosts.iter().find(|entry| entry.name == host);
    let all: u32 = export.hosts.iter().map(count).sum();
    let others = export.clients.unwrap_or(0).saturating_sub(all);
    match (own.map(count), export.clients_away.unwrap_or(0)) {
        (Some(1), _) => Some("1 map of this host is connected".into()),
        (Some(maps @ 2..), _) => Some(format!("{maps} maps of this host are connected")),
        (None, _) if others > 0 => Some(format!(
            "{} connected from a host without an entry, perhaps this one",
            clients_are(others)
        )),
        (_, 0) => None,
        (_, away) => Some(format!(
            "{} away and expected to return, perhaps of this host",
            clients_are(away)
        )),
    }
}

/// "1 client is"
fn clients_are(count: u32) -> String {
    match count {
        1 => "1 client is".to_owned(),
        _ => format!("{count} clients are"),
    }
}

/// Fails if the export has clients, unless `command` is forced.
fn require_no_client(export: &Export, command: &str, force: bool, job: &Job) -> Result<(), Error> {
    let count = |number: Option<u32>| number.unwrap_or(0);
    let why = match (count(export.clients), count(export.clients_away)) {
        _ if force => return Ok(()),
        (0, 0) => return Ok(()),
        (0, away) => format!("{} away and expected to return", clients_are(away)),
        (here, _) => format!("{} connected", clients_are(here)),
    };
    let lost = match export.is_block() {
        true => "",
        false => "; the contents are lost",
    };
    let hint = fill_in(
        "farblk unmap MAP  # on the clients\nfarblk export {command} {name} --force  # or: their I/O \
         waits for the export, and then fails",
        &[("command", command), ("name", export.name.as_str())],
    );
    Err(job.error(Code::Busy, why).hint(hint + lost))
}

/// Fails if another export has this UUID, enabled or not: to a map both would be the same disk.
pub fn require_own_uuid(context: &Context, name: &str, uuid: &str, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let exports = configfs.path(&["exports"]);
    let is_twin = |other: &String| {
        other != name && configfs.attr(&exports.join(other), "uuid").as_deref() == Some(uuid)
    };
    match configfs.names(&exports).into_iter().find(is_twin) {
        None => Ok(()),
        Some(twin) => Err(job
            .error(Code::Differs, format!("export {twin} has the same uuid"))
            .hint(fill_in(
                "# give one of them another uuid\nfarblk export rm {twin}  # or remove that one",
                &[("twin", twin)],
            ))),
    }
}

/// Runs `farblk export disable`.
fn disable(context: &Context, name: &str, force: bool) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot disable export {name}"));
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    require_no_client(&read(context, name), "disable", force, &job)?;
    let changed = configfs.attr(&object, "state").as_deref() != Some("disabled");
    if changed {
        configfs.disable(&object, &job)?;
        let _lock = context.lock(&job)?;
        registration::keep(context, &object, &job)?;
    }
    report_state(context, name, changed)
}

/// Runs `farblk export enable`, with the settings that the export has.
fn enable_again(context: &Context, name: &str) -> Result<(), Error> {
    let configfs = &context.configfs;
    let mut job = Job::new(format!("cannot enable export {name}"));
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    if let Some(device) = configfs.attr(&object, "device_path") {
        job = job.open().variable("device", device);
    }
    let changed = !configfs.flag(&object, "enable");
    if changed {
        let _lock = context.lock(&job)?;
        if let Some(uuid) = configfs.attr(&object, "uuid") {
            require_own_uuid(context, name, &uuid, &job)?;
        }
        registration::enable(context, &object, &job)?;
    }
    report_state(context, name, changed)
}

/// Prints the state of an export that was enabled or disabled.
fn report_state(context: &Context, name: &str, changed: bool) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Ok(());
    }
    let export = read(context, name);
    let state = export.state.as_deref().unwrap_or("-");
    let document = ExportDocument {
        schema: "farblk.export/1",
        changed,
        export: &export,
    };
    let text = format!("export {name} is {}", output::state(state));
    context.output.result(&text, &document)
}

fn remove(context: &Context, name: &str, force: bool, forget: bool) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot remove export {name}"));
    let _lock = context.lock(&job)?;
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        let forgotten = match forget {
            true => persist::forget(context, Kind::Export, name, &job)?,
            false => None,
        };
        return match forgotten {
            None => Err(context.not_found(&job.what, "export", name)),
            Some(_) if configfs.is_dry_run() => Ok(()),
            Some(file) => context.output.result(
                &format!(
                    "export {name} is not there; removed from {}",
                    file.display()
                ),
                &Removed::new("export", name, true),
            ),
        };
    }
    require_no_client(&read(context, name), "rm", force, &job)?;
    let device = loop_to_detach(context, name, &job);
    configfs.disable(&object, &job)?;
    registration::keep(context, &object, &job)?;
    // Before the export goes: if this command is killed, another one still finds the device.
    let mut detached = String::new();
    if let Some(device) = device {
        if !configfs.record(|| format!("losetup --detach {device}")) {
            context.devices.detach(&device, &job)?;
        }
        detached = format!(" ({device} detached)");
    }
    let hosts = object.join("hosts");
    for host in configfs.names(&hosts) {
        configfs.rmdir(&hosts.join(host), &job)?;
    }
    configfs.rmdir(&object, &job)?;
    let kept = persist::kept(context, Kind::Export, name, forget, &job)?;
    if configfs.is_dry_run() {
        return Ok(());
    }
    context.output.result(
        &format!("removed export {name}{detached}{kept}"),
        &Removed::new("export", name, true),
    )
}

/// The loop device of the export, if this tool has set it up and no other export has it. Of an
/// export that was not completed, `device_path` may be the file.
fn loop_to_detach(context: &Context, name: &str, job: &Job) -> Option<String> {
    let configfs = &context.configfs;
    let device_of = |name: &str| {
        let object = configfs.path(&["exports", name]);
        configfs.attr(&object, "device_path")
    };
    let device = device_of(name)?;
    let path = Path::new(&device);
    // The tool itself writes no other name of a loop device.
    let found = match device.starts_with("/dev/loop") {
        true => context.devices.loop_at(&device, job),
        false if path.is_file() => context
            .devices
            .loops(path, job)
            .map(|found| found.into_iter().next()),
        false => return None,
    };
    let others = configfs.names(&configfs.path(&["exports"]));
    let is_shared = |device: &String| {
        let mut others = others.iter().filter(|other| *other != name);
        others.any(|other| device_of(other).as_ref() == Some(device))
    };
    match found {
        Ok(found) => found
            .filter(|found| found.is_ours() && !is_shared(&found.device))
            .map(|found| found.device),
        Err(error) => {
            let text = format!("{device} stays attached: {}", error.why);
            context.output.warn(&text);
            None
        }
    }
}

/// Runs `farblk export resize`. The module sees by itself that a device has another size; a loop
/// device has to be told that its file has.
fn resize(context: &Context, name: &str, size: Option<u64>, force: bool) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot resize export {name}"));
    let object = configfs.path(&["exports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "export", name));
    }
    let before = read(context, name);
    let Some(device) = before.device.as_deref().filter(|_| before.is_block()) else {
        let why = "a RAM export keeps the size it was created with";
        return Err(job.error(Code::Usage, why));
    };
    let mut grown = false;
    match (before.file.as_deref(), size) {
        (None, None) => {}
        (None, Some(_)) => {
            let why = format!("the export has the size of {device}");
            return Err(job
                .error(Code::Usage, why)
                .hint(format!("# resize {device}: the export follows")));
        }
        (Some(file), size) => {
            let path = Path::new(file);
            match size {
                Some(size) => grown = grow(context, path, size, &job)?,
                None if !force => require_not_cut_off(&before, path, &job)?,
                None => {}
            }
            if !configfs.record(|| format!("losetup --set-capacity {device}")) {
                context.devices.set_capacity(device, &job)?;
            }
        }
    }
    if configfs.is_dry_run() {
        return Ok(());
    }
    report_resized(context, &before, device, grown)
}

/// Fails if the file is smaller than the export: what clients have behind its end would be lost.
fn require_not_cut_off(export: &Export, path: &Path, job: &Job) -> Result<(), Error> {
    let (Ok(file), Some(size)) = (fs::metadata(path), export.size_bytes) else {
        return Ok(());
    };
    // A loop device may be over a block device, too.
    if !file.is_file() || file.len() >= size {
        return Ok(());
    }
    let (have, size) = (size::human(file.len()), size::human(size));
    let why = format!(
        "{} was cut off: it has {have}, and clients were told {size}",
        path.display()
    );
    let hint = fill_in(
        "truncate --size {size} {file}  # clients read zeroes there, where they had data\n\
         farblk export resize {name} --force  # or: their disk ends there",
        &[
            ("size", &export.size_bytes.unwrap_or(0).to_string()),
            ("file", &path.display().to_string()),
            ("name", &export.name),
        ],
    );
    Err(job.error(Code::BadValue, why).hint(hint))
}

/// Makes a file larger that is exported; says whether it was smaller.
fn grow(context: &Context, path: &Path, size: u64, job: &Job) -> Result<bool, Error> {
    check_size(size, job)?;
    let metadata = fs::metadata(path)
        .map_err(|e| job.error(Code::Io, format!("{}: {}", path.display(), words(&e))))?;
    let have = metadata.len();
    if size < have {
        let why = format!(
            "{} has {}; a smaller size would cut off data",
            path.display(),
            size::human(have)
        );
        return Err(job.error(Code::BadValue, why));
    }
    if size > have {
        make_larger(context, path, size, false, job)?;
    }
    Ok(size > have)
}

/// Waits until the export has the size of its device, and prints it.
fn report_resized(
    context: &Context,
    before: &Export,
    device: &str,
    grown: bool,
) -> Result<(), Error> {
    let name = &before.name;
    let number = context.devices.number(Path::new(device)).ok().flatten();
    let disk = number.and_then(|number| context.devices.name(&number));
    let want = disk.and_then(|disk| context.devices.size(&disk));
    let deadline = Instant::now() + RESIZE_TIMEOUT;
    let mut export = read(context, name);
    while export.state.as_deref() == Some("online") && want.is_some() && export.size_bytes != want {
        if Instant::now() >= deadline {
            context.output.warn(&format!(
                "{device} has {}, but the export does not show this yet",
                want.map(size::human).unwrap_or_default()
            ));
            break;
        }
        thread::sleep(Duration::from_millis(50));
        export = read(context, name);
    }
    if export.state.as_deref() == Some("unavailable") {
        let job = Job::new(format!("cannot resize export {name}"));
        let why = format!("{device} has no room any more: the export is unavailable");
        return Err(job
            .error(Code::Unavailable, why)
            .variables(&[("export", name.to_owned())]));
    }
    let changed = grown || export.size_bytes != before.size_bytes;
    let text = format!("export {name}: {}", export.summary());
    let document = ExportDocument {
        schema: "farblk.export/1",
        changed,
        export: &export,
    };
    context.output.result(&text, &document)
}
