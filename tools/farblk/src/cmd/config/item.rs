// SPDX-License-Identifier: GPL-2.0
//! Restores one object.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::addr::Endpoint;
use crate::cli;
use crate::cmd::Context;
use crate::cmd::backing::{Backing, Undo};
use crate::cmd::{export, path, registration};
use crate::configfs::{Job, Made};
use crate::error::{Code, Error};
use crate::saved::keys::{ENABLED, Form, Key, RAM_ONLY};
use crate::saved::{Group, Kind, Member, Object, Values, running};
use crate::secret::{self, Secret, Source};

/// What was done to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It runs now.
    Restored,
    /// It has run before, as the file says.
    Unchanged,
    /// It has run before, and has these members more now.
    Added(Vec<String>),
}

/// Makes an object run as the file says. One that runs with other settings stays as it is, and
/// that is an error; hosts and paths that it does not have are added.
pub fn restore(context: &Context, object: &Object, what: &str) -> Result<Outcome, Error> {
    let configfs = &context.configfs;
    let job = job_of(context, object, what);
    let secrets = Secrets::read(context, object, &job)?;
    // Two commands must not make a loop device of one file, or one map.
    let _lock = match object.kind {
        Kind::Export => context.lock(&job)?,
        Kind::Map => context.lock_map(&object.name, &job)?,
        Kind::Port => None,
    };
    let path = configfs.path(&[object.kind.directory(), &object.name]);
    if !configfs.exists(&path) {
        return make(context, object, &secrets, &path, false, &job);
    }
    let state = configfs.attr(&path, "state").unwrap_or_default();
    let mut have = running::read(context, object.kind, &object.name);
    running::align(context, &mut have, object);
    match (have.is_enabled(), state.as_str()) {
        (false, "disabled") => {
            let same = || running::differences(&have, object).is_empty();
            return match !object.is_enabled() && same() {
                true => Ok(Outcome::Unchanged),
                false => make(context, object, &secrets, &path, true, &job),
            };
        }
        (_, "closing" | "allocating" | "connecting") => {
            let why = format!("another command is at work: it is {state}");
            return Err(job.error(Code::Busy, why).hint("# try again"));
        }
        _ => {}
    }
    let missing: Vec<_> = object
        .members
        .iter()
        .filter(|want| have.members.iter().all(|have| have.name != want.name))
        .collect();
    let mut rest = object.clone();
    rest.members.retain(|member| !missing.contains(&member));
    let differences = running::differences(&have, &rest);
    if !differences.is_empty() {
        let mut error = job
            .error(
                Code::Differs,
                "it runs with other settings, and is left alone",
            )
            .hint("farblk config diff\nfarblk config save  # keeps what runs");
        error.details = differences;
        return Err(error);
    }
    match (object.kind, state.as_str()) {
        (Kind::Map, "stale") => return Err(job.error(Code::Stale, "it is stale")),
        (Kind::Map, "evicted") => return Err(job.error(Code::Evicted, "it is evicted")),
        // Its device was gone, and may be back.
        (Kind::Export, "unavailable") => {
            export::create::require_room(context, &object.name, &path, &job)?;
            configfs.disable(&path, &job)?;
            return make(context, object, &secrets, &path, true, &job);
        }
        _ => {}
    }
    if missing.is_empty() {
        return Ok(Outcome::Unchanged);
    }
    let mut made = Made::new(configfs, &context.output);
    let mut added = Vec::new();
    if let Some(group) = object.kind.group() {
        for member in missing {
            put_member(context, group, member, &secrets, &path, &mut made, &job)?;
            added.push(format!("{} {} added", group.one(), member.name));
        }
    }
    made.keep();
    Ok(Outcome::Added(added))
}

/// The secret keys of an object and of its members, by the paths that the file of settings has.
struct Secrets(BTreeMap<String, (Secret, PathBuf)>);

impl Secrets {
    /// Reads the files of all keys, so that one that cannot be used is known before anything is
    /// changed.
    fn read(context: &Context, object: &Object, job: &Job) -> Result<Self, Error> {
        let mut secrets = BTreeMap::new();
        for file in object.key_files() {
            let path = secret::below(&context.root, file);
            let secret = secret::load(&path).map_err(|unusable| unusable.error(job))?;
            secrets.insert(file.to_owned(), (secret, path));
        }
        Ok(Self(secrets))
    }

    /// Gives an attribute the key of a file, unless it has it; `None` removes the one that it has.
    fn set(
        &self,
        context: &Context,
        object: &Path,
        (attr, id): (&str, &str),
        file: Option<&String>,
        job: &Job,
    ) -> Result<(), Error> {
        let configfs = &context.configfs;
        let wanted = file.and_then(|file| self.0.get(file));
        let has = configfs.attr(object, id);
        if has.as_deref() == wanted.map(|(secret, _)| secret.id()) {
            return Ok(());
        }
        let source = wanted.map(|(_, path)| Source::File(path));
        let key = wanted.map(|(secret, _)| secret).zip(source.as_ref());
        configfs.set_key(object, attr, key, job)
    }
}

/// The job, with the variables for hints.
fn job_of(context: &Context, object: &Object, what: &str) -> Job {
    let job = Job::new(what);
    match object.kind {
        Kind::Port => job,
        Kind::Export if object.values.contains_key("ram") => job,
        // The loop device of a file is known when it is made.
        Kind::Export => match object.values.get("device") {
            Some(device) => job.open().variable("device", device),
            None => job.open(),
        },
        Kind::Map => {
            let mut job = job
                .connect()
                .variable("map", &object.name)
                .variable("export", object.value("export"));
            job = context.as_client(job);
            let addr = object
                .members
                .first()
                .and_then(|path| path.values.get("addr"));
            match addr.and_then(|addr| Endpoint::parse(addr).ok()) {
                Some(server) => {
                    if let Some(address) = server.numeric() {
                        job = job.variable("address", address.ip().to_string());
                    }
                    job.variable("server", server.to_string())
                        .variable("host", server.host)
                }
                None => job,
            }
        }
    }
}

/// Makes an object, or completes one that is disabled.
fn make(
    context: &Context,
    object: &Object,
    secrets: &Secrets,
    path: &Path,
    exists: bool,
    job: &Job,
) -> Result<Outcome, Error> {
    let configfs = &context.configfs;
    // What was made last goes first when this fails.
    let mut undo = Undo::new(context);
    let mut made = Made::new(configfs, &context.output);
    // What can fail without a change comes first.
    let resolved = resolve(context, object, job)?;
    let object = &resolved;
    let mut job = job.clone();
    let backing = match object.kind {
        Kind::Export => Some(find_backing(context, object, &job)?),
        _ => None,
    };
    if !exists {
        made.mkdir(path, &job)?;
    }
    if let Some(backing) = &backing {
        set(context, path, "kind", backing.kind(), &job)?;
    }
    let keys = object.kind.keys();
    set_values(context, path, keys, &object.values, secrets, exists, &job)?;
    if let (Kind::Map, None, true) = (object.kind, object.values.get("export"), exists) {
        set(context, path, "export", &object.name, &job)?;
    }
    if let Some(group) = object.kind.group() {
        remove_others(context, group, &object.members, path, &job)?;
        for member in &object.members {
            put_member(context, group, member, secrets, path, &mut made, &job)?;
        }
    }
    if let Some(backing) = &backing {
        let read_only = object.value("read_only") == "1";
        match backing.provide(context, read_only, path, &mut undo, &job)? {
            Some(device) => {
                set(context, path, "device_path", &device, &job)?;
                job = job.variable("device", device);
            }
            None if backing.kind() == "ram" => {
                set(context, path, "size", object.value("ram"), &job)?;
            }
            // A dry run: the shell knows the loop device.
            None => {
                let attribute = crate::quote::path(&path.join("device_path"));
                configfs.record(|| format!("echo \"$loop\" > {attribute}"));
            }
        }
    }
    if object.is_enabled() && object.kind == Kind::Export {
        registration::enable(context, path, &job)?;
    } else if object.is_enabled() {
        configfs.set(path, "enable", "1", &job)?;
    }
    made.keep();
    undo.keep();
    Ok(Outcome::Restored)
}

/// Replaces the names of servers by addresses.
fn resolve(context: &Context, object: &Object, job: &Job) -> Result<Object, Error> {
    let mut object = object.clone();
    let values = object.members.iter_mut().map(|member| &mut member.values);
    for values in values.chain([&mut object.values]) {
        let Some(addr) = values.get_mut("addr") else {
            continue;
        };
        let server = Endpoint::parse(addr).map_err(|e| job.error(Code::BadFile, e.to_string()))?;
        *addr = path::resolve(context, &server, job)?.to_string();
    }
    Ok(object)
}

/// Looks for the device or file of an export. Fails if somebody uses it, or another export has the
/// same UUID.
fn find_backing(context: &Context, object: &Object, job: &Job) -> Result<Backing, Error> {
    if let Some(uuid) = object.values.get("uuid") {
        export::require_own_uuid(context, &object.name, uuid, job)?;
    }
    let text = |key: &str| object.values.get(key).cloned();
    let read_only = object.value("read_only") == "1";
    let arguments = cli::Create {
        name: object.name.clone(),
        device: text("device").map(Into::into),
        file: text("file").map(Into::into),
        ram: text("ram").and_then(|bytes| bytes.parse().ok()),
        size: None,
        allow: Vec::new(),
        key_file: None,
        allow_any_host: false,
        read_only,
        block_size: text("block_size").and_then(|bytes| bytes.parse().ok()),
        numa: None,
        max_clients: None,
        protection: None,
        no_scrub: false,
        uuid: None,
        ports: Vec::new(),
    };
    let backing = Backing::find(context, &arguments, job)?;
    backing.require_free(context, read_only, job)?;
    Ok(backing)
}

/// Sets the values of an object or member. One that exists gets the defaults, too.
fn set_values(
    context: &Context,
    path: &Path,
    keys: &'static [Key],
    values: &Values,
    secrets: &Secrets,
    exists: bool,
    job: &Job,
) -> Result<(), Error> {
    // A host is admitted without a key until it has one: so the keys come first.
    for key in keys {
        if let Form::KeyFile(id) = key.form {
            secrets.set(context, path, (key.attr, id), values.get(key.name), job)?;
        }
    }
    let is_block = ["device", "file"]
        .iter()
        .any(|key| values.contains_key(key));
    for key in keys {
        let by_kernel = matches!(key.name, "uuid" | "ram_reserve" | "export");
        let value = match values.get(key.name) {
            Some(value) => value,
            None if exists && !by_kernel => key.default,
            None => continue,
        };
        let is_backing = matches!(key.attr, "" | "size" | "device_path");
        let is_backing = is_backing || matches!(key.form, Form::KeyFile(_));
        let is_other = is_block && RAM_ONLY.contains(&key.name);
        if !is_backing && !is_other && key.name != ENABLED {
            set(context, path, key.attr, value, job)?;
        }
    }
    Ok(())
}

/// Sets an attribute, unless it has this value.
fn set(context: &Context, path: &Path, attr: &str, value: &str, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let wanted = [(attr, value.to_owned())];
    let is_same = configfs.exists(path) && configfs.differences(path, &wanted).is_empty();
    match is_same {
        true => Ok(()),
        false => configfs.set(path, attr, value, job),
    }
}

/// Removes the hosts or paths of a disabled object that are not among `members`.
fn remove_others(
    context: &Context,
    group: Group,
    members: &[Member],
    object: &Path,
    job: &Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let directory = object.join(group.word());
    for name in configfs.names(&directory) {
        if members.iter().any(|member| member.name == name) {
            continue;
        }
        let path = directory.join(&name);
        if group == Group::Paths {
            configfs.disable(&path, job)?;
        }
        configfs.rmdir(&path, job)?;
    }
    Ok(())
}

/// Makes a host or a path, or gives it the values of the file.
fn put_member(
    context: &Context,
    group: Group,
    member: &Member,
    secrets: &Secrets,
    object: &Path,
    made: &mut Made<'_>,
    job: &Job,
) -> Result<(), Error> {
    let configfs = &context.configfs;
    let path = object.join(group.word()).join(&member.name);
    let exists = configfs.exists(&path);
    if !exists {
        made.mkdir(&path, job)?;
    } else if group == Group::Paths {
        configfs.disable(&path, job)?;
    }
    set_values(
        context,
        &path,
        group.keys(),
        &member.values,
        secrets,
        exists,
        job,
    )?;
    let is_enabled = !member.values.contains_key(ENABLED);
    if group == Group::Paths && is_enabled {
        configfs.set(&path, "enable", "1", job)?;
    }
    Ok(())
}
