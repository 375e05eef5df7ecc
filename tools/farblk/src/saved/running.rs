// SPDX-License-Identifier: GPL-2.0
//! Reading what runs, in the form that the files have.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::keys::{self, BACKINGS, BLOCK_SIZE, Form, Key, RAM_ONLY};
use super::{Group, Kind, Member, Object, Problem, Saved, Values};
use crate::addr::Endpoint;
use crate::cmd::Context;
use crate::configfs::Job;
use crate::secret;

/// The default of `ram_reserve` is the memory of the host divided by this, [`RESERVE_MAX`] at most.
const RESERVED_PART: u64 = 16;
/// The largest default of `ram_reserve`, in bytes.
const RESERVE_MAX: u64 = 4 << 30;

/// Reads all objects of a kind.
pub fn read_all(context: &Context, kind: Kind) -> Vec<Object> {
    let directory = context.configfs.path(&[kind.directory()]);
    let names = context.configfs.names(&directory);
    let mut objects: Vec<_> = names
        .iter()
        .map(|name| read_as_it_is(context, kind, name))
        .collect();
    name_keys(&context.root, &mut objects);
    objects
}

/// Reads one object. Its problems say what cannot be saved, and why.
pub fn read(context: &Context, kind: Kind, name: &str) -> Object {
    let mut object = read_as_it_is(context, kind, name);
    name_keys(&context.root, std::slice::from_mut(&mut object));
    object
}

/// Reads one object. Of its keys, the value is the key id.
fn read_as_it_is(context: &Context, kind: Kind, name: &str) -> Object {
    let configfs = &context.configfs;
    let path = configfs.path(&[kind.directory(), name]);
    let mut object = Object {
        kind,
        name: name.to_owned(),
        values: values(context, &path, kind.keys()),
        members: Vec::new(),
        place: None,
        problems: Vec::new(),
    };
    match kind {
        Kind::Export => backing(context, &path, &mut object),
        Kind::Map if object.values.get("export") == Some(&object.name) => {
            object.values.remove("export");
        }
        _ => {}
    }
    if let Some(group) = kind.group() {
        let members = path.join(group.word());
        for name in configfs.names(&members) {
            let values = values(context, &members.join(&name), group.keys());
            object.members.push(Member { name, values });
        }
        object.members.sort_by(|a, b| a.name.cmp(&b.name));
    }
    object
}

/// The values that differ from their defaults.
fn values(context: &Context, object: &Path, keys: &'static [Key]) -> Values {
    let keys = keys.iter().filter(|key| !key.attr.is_empty());
    let value = |key: &'static Key| {
        if let Form::KeyFile(id) = key.form {
            let id = context.configfs.attr(object, id)?;
            return Some((key.name, keys::unnamed(&id)));
        }
        let text = context.configfs.attr(object, key.attr)?;
        let value = key.form.of_configfs(&text);
        (key.default.is_empty() || value != key.default).then_some((key.name, value))
    };
    keys.filter_map(value).collect()
}

/// The names that the keys of an object and of its members have in files.
const KEY_FILES: [&str; 2] = ["key_file", "next_key_file"];

/// The values of an object and of its members that stand for keys.
fn key_files(object: &mut Object) -> impl Iterator<Item = &mut String> {
    let members = object.members.iter_mut().map(|member| &mut member.values);
    let all = members.chain([&mut object.values]);
    let is_key_file = |(name, _): &(&&'static str, &mut String)| KEY_FILES.contains(*name);
    all.flat_map(move |values| values.iter_mut().filter(is_key_file))
        .map(|(_, value)| value)
}

/// Names the file of each key, if the folder of keys has one.
fn name_keys(root: &Path, objects: &mut [Object]) {
    let mut unnamed: Vec<_> = objects.iter_mut().flat_map(key_files).collect();
    if unnamed.is_empty() {
        return;
    }
    let files = secret::files_by_id(root);
    for value in &mut unnamed {
        let file = keys::unnamed_id(value).and_then(|id| files.get(id));
        if let Some(file) = file {
            value.clone_from(file);
        }
    }
}

/// Says which keys of an object cannot be saved: no file is known that has them. The object must
/// not be saved without them, as it would admit others then.
pub fn unsaved_keys(object: &Object) -> Vec<Problem> {
    let members = object.members.iter().map(|member| {
        let group = object.kind.group().map_or("", Group::one);
        (format!(", {group} {}", member.name), &member.values)
    });
    let all = members.chain([(String::new(), &object.values)]);
    let problem = |whose: &str, id: &str| {
        let text = format!(
            "{}{whose}: the key {id} cannot be saved: no file in /etc/farblk/keys has it",
            object.title()
        );
        let hint =
            "# write the key to /etc/farblk/keys/NAME.key, with the mode 600, and save again";
        Problem::new(None, text).hint(hint)
    };
    all.flat_map(|(whose, values)| {
        let ids = KEY_FILES.iter().filter_map(|key| values.get(key));
        let ids = ids.filter_map(|value| keys::unnamed_id(value));
        ids.map(|id| problem(&whose, id)).collect::<Vec<_>>()
    })
    .collect()
}

/// Returns true if two values stand for one key.
fn is_same_key(root: &Path, one: &str, other: &str) -> bool {
    let id = |value: &str| match keys::unnamed_id(value) {
        Some(id) => Some(id.to_owned()),
        None => secret::load(&secret::below(root, value))
            .ok()
            .map(|secret| secret.id().to_owned()),
    };
    one == other || id(one).is_some() && id(one) == id(other)
}

/// Gives the keys of `running` the names that `saved` has for the same keys.
fn align_keys(root: &Path, running: &mut Values, saved: &Values) {
    for key in KEY_FILES {
        let (Some(have), Some(want)) = (running.get_mut(key), saved.get(key)) else {
            continue;
        };
        if is_same_key(root, have, want) {
            have.clone_from(want);
        }
    }
}

/// Leaves the values that are meant for this kind of backing; finds what lasts over a reboot.
fn backing(context: &Context, path: &Path, object: &mut Object) {
    let device = object.values.remove("device");
    if context.configfs.attr(path, "kind").as_deref() == Some("ram") {
        let reserve = default_reserve(context).map(|bytes| bytes.to_string());
        if object.values.get("ram_reserve") == reserve.as_ref() {
            object.values.remove("ram_reserve");
        }
        if object.value("ram") == "0" {
            object.values.remove("ram");
            let text = format!("{} was never completed: it has no size", object.title());
            object.problems.push(Problem::new(None, text));
        }
        return;
    }
    for key in RAM_ONLY.into_iter().chain(["ram"]) {
        object.values.remove(key);
    }
    let title = object.title();
    let Some(device) = device else {
        let text = format!("{title} was never completed: it has no device");
        return object.problems.push(Problem::new(None, text));
    };
    match lasting(context, &device) {
        Ok((key, value)) => {
            object.values.insert(key, value);
            if key == "file" {
                let name = loop_name(context, &device);
                let name = name.as_deref().and_then(|path| path.strip_prefix("/dev/"));
                let bytes = name.and_then(|name| context.devices.block_size(name));
                let bytes = bytes.map(|bytes| (BLOCK_SIZE, bytes.to_string()));
                object.values.extend(bytes);
            }
        }
        Err(why) => {
            let text = format!("{title} cannot be saved: {why}");
            object.problems.push(Problem::new(None, text));
            object.values.insert("device", device);
        }
    }
}

/// What to write for a device that runs: the file behind a loop device, else the name that leads
/// to this device after a reboot, too; an error says why there is none.
pub fn lasting(context: &Context, device: &str) -> Result<(&'static str, String), String> {
    let Some(device) = loop_name(context, device) else {
        return Ok(("device", lasting_name(context, device)));
    };
    if let Some(was) = context.devices.lost_file(&device) {
        return Err(format!(
            "the file of {device} was removed or replaced; it was {was}, and clients write on to \
             what has no name any more"
        ));
    }
    let file = context.devices.file(&device);
    let Some(file) = file else {
        return Err(format!("{device} has no file"));
    };
    let job = Job::new("");
    let loops = context.devices.loops(Path::new(&file), &job);
    let loops = loops.map_err(|error| error.why)?;
    match loops.iter().any(|found| found.device == device) {
        true => Ok(("file", file)),
        false => Err(format!(
            "{device} has only a part of {file}, or that is another file by now"
        )),
    }
}

/// The name "/dev/loop0" of a loop device or of a partition of one, whatever it is called; `None`
/// of another device.
pub fn loop_name(context: &Context, path: &str) -> Option<String> {
    let number = context.devices.number(Path::new(path)).ok().flatten();
    let name = number.and_then(|number| context.devices.name(&number));
    let path = name.map_or_else(|| path.to_owned(), |name| format!("/dev/{name}"));
    path.starts_with("/dev/loop").then_some(path)
}

/// Returns true for a name such as /dev/sda or /dev/block/8:0, which the kernel gives in the order
/// of discovery.
pub fn is_kernel_name(path: &str) -> bool {
    let Ok(name) = Path::new(path).strip_prefix("/dev") else {
        return false;
    };
    name.iter().count() == 1
        || name.starts_with("block")
        || name.iter().any(|part| part == "by-diskseq" || part == "..")
}

/// Says what is wrong with a device that has such a name only.
pub fn no_lasting_name(device: &str) -> String {
    format!(
        "{device} may be another disk after a reboot: name it by a link in /dev/disk/by-id or \
         by-path"
    )
}

/// The link to the device in /dev/disk/by-id, if `path` itself does not last.
fn lasting_name(context: &Context, path: &str) -> String {
    if !is_kernel_name(path) {
        return path.to_owned();
    }
    let number = |path: &str| context.devices.number(Path::new(path)).ok().flatten();
    let folder = context.root.join("dev/disk/by-id");
    let links = fs::read_dir(folder).into_iter().flatten().flatten();
    let links = links.filter_map(|link| link.file_name().into_string().ok());
    let wanted = number(path);
    let mut links: Vec<_> = links
        .map(|name| format!("/dev/disk/by-id/{name}"))
        .filter(|link| wanted.is_some() && number(link) == wanted)
        .collect();
    // Identifiers of the disk itself come first.
    let rank = |link: &String| {
        let name = link.rsplit('/').next().unwrap_or_default();
        let prefixes = ["wwn-", "nvme-eui.", "nvme-uuid.", "dm-uuid-"];
        let first = prefixes.iter().position(|prefix| name.starts_with(prefix));
        first.unwrap_or(prefixes.len())
    };
    links.sort_by_key(|link| (rank(link), link.clone()));
    links.into_iter().next().unwrap_or_else(|| path.to_owned())
}

fn default_reserve(context: &Context) -> Option<u64> {
    let text = fs::read_to_string(context.root.join("proc/meminfo")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib * 1024 / RESERVED_PART).min(RESERVE_MAX))
}

/// Gives the keys of `running` and of its members the names that `saved` has for the same keys.
pub fn align_all_keys(context: &Context, running: &mut Object, saved: &Object) {
    align_keys(&context.root, &mut running.values, &saved.values);
    for member in &mut running.members {
        let want = saved.members.iter().find(|want| want.name == member.name);
        if let Some(want) = want {
            align_keys(&context.root, &mut member.values, &want.values);
        }
    }
}

/// Gives `running` the spelling of `saved` where both mean the same: names of one device or file,
/// files with one key, and a name of a server that resolves to the address.
pub fn align(context: &Context, running: &mut Object, saved: &Object) {
    let number = |path: &String| context.devices.number(Path::new(path)).ok().flatten();
    let inode = |path: &String| {
        let file = fs::metadata(path).ok()?;
        Some((file.dev(), file.ino()))
    };
    for key in BACKINGS {
        let (Some(have), Some(want)) = (running.values.get(key), saved.values.get(key)) else {
            continue;
        };
        let same = match key {
            "device" => number(have).is_some() && number(have) == number(want),
            "file" => inode(have).is_some() && inode(have) == inode(want),
            _ => false,
        };
        if same {
            running.values.insert(key, want.clone());
        }
    }
    // The kernel chooses these where a file does not say them, the last one for a loop device.
    for key in ["uuid", "ram_reserve", BLOCK_SIZE] {
        let is_chosen = key != BLOCK_SIZE || running.values.contains_key("file");
        if is_chosen && !saved.values.contains_key(key) {
            running.values.remove(key);
        }
    }
    align_all_keys(context, running, saved);
    if running.kind.group() != Some(Group::Paths) {
        return;
    }
    for member in &mut running.members {
        let want = saved.members.iter().find(|want| want.name == member.name);
        let Some(want) = want.and_then(|want| want.values.get("addr")) else {
            continue;
        };
        let numeric = |text: &String| Endpoint::parse(text).ok()?.numeric();
        let resolved = || Endpoint::parse(want).ok()?.resolve("").ok();
        let have = member.values.get("addr").and_then(numeric);
        if have.is_some() && numeric(want).or_else(resolved) == have {
            member.values.insert("addr", want.clone());
        }
    }
}

/// The differences between what runs and what a file says, in words. `running` was aligned.
pub fn differences(running: &Object, saved: &Object) -> Vec<String> {
    let mut texts = Vec::new();
    compare(
        saved.kind.keys(),
        "",
        &running.values,
        &saved.values,
        &mut texts,
    );
    let Some(group) = saved.kind.group() else {
        return texts;
    };
    for want in &saved.members {
        let have = running.members.iter().find(|have| have.name == want.name);
        let title = format!("{} {}", group.one(), want.name);
        match have {
            None => texts.push(format!("{title} is missing")),
            Some(have) => {
                let prefix = format!("{title}: ");
                compare(
                    group.keys(),
                    &prefix,
                    &have.values,
                    &want.values,
                    &mut texts,
                );
            }
        }
    }
    for have in &running.members {
        if !saved.members.iter().any(|want| want.name == have.name) {
            texts.push(format!("{} {} is not in the file", group.one(), have.name));
        }
    }
    texts
}

fn compare(
    keys: &'static [Key],
    prefix: &str,
    have: &Values,
    want: &Values,
    texts: &mut Vec<String>,
) {
    for key in keys {
        let shown = |values: &Values| match values.get(key.name) {
            Some(value) => key.form.render(value),
            None if key.default.is_empty() => "unset".into(),
            None => key.form.render(key.default),
        };
        if have.get(key.name) != want.get(key.name) {
            texts.push(format!(
                "{prefix}{} is {}, in the file {}",
                key.name,
                shown(have),
                shown(want)
            ));
        }
    }
}

/// Everything that runs, as [`Saved`] of all sides.
pub fn everything(context: &Context) -> Saved {
    let kinds = [Kind::Port, Kind::Export, Kind::Map];
    let objects = kinds.into_iter().flat_map(|kind| read_all(context, kind));
    Saved {
        objects: objects.collect(),
        problems: Vec::new(),
        host_name: host_name(context),
    }
}

/// The name that this host shows to servers, if it is not that of the node.
pub fn host_name(context: &Context) -> Option<String> {
    let node = fs::read_to_string(context.root.join("proc/sys/kernel/hostname"));
    let node = node.unwrap_or_default();
    context
        .host_name()
        .filter(|name| !node.is_empty() && name != node.trim() && name != "localhost")
}
