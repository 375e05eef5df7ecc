// SPDX-License-Identifier: GPL-2.0
//! `farblk map --persist`, `farblk unmap --forget` and `farblk export rm --forget`: one object in
//! the files of /etc/farblk.

use std::fs;
use std::path::{Path, PathBuf};

use super::Context;
use crate::configfs::Job;
use crate::durable;
use crate::error::{Code, Error, Hints, exit};
use crate::identity;
use crate::quote;
use crate::saved::{self, Kind, Object, Saved, Side, running};

/// The first line of a file that the tool writes for one map.
const HEADING: &str = "# Written by farblk map --persist. See farblk.toml(5).\n";

/// The file of one map.
fn file(context: &Context, name: &str) -> PathBuf {
    let folder = Side::Client.folder(&context.root);
    folder.join(format!("{name}.toml"))
}

/// Writes the map, which runs, to `client.d/NAME.toml`, unless a file has it already.
///
/// A file that has it with other settings is replaced if that map is all it has. Another file is
/// left alone with a warning, and the exit code is 8: the map itself runs.
///
/// Returns true if it has written. `key_file` has the key of the map; if it is not known, the
/// folder of keys may have such a file.
pub fn keep(
    context: &Context,
    name: &str,
    key_file: Option<String>,
    job: &Job,
) -> Result<bool, Error> {
    let configfs = &context.configfs;
    let path = file(context, name);
    if configfs.is_dry_run() {
        let folder = path.parent().unwrap_or(&path);
        configfs.record(|| format!("mkdir -p {}", quote::path(folder)));
        let shown = quote::path(&path);
        let name = quote::word(name);
        configfs.record(|| format!("farblk config show --running --map={name} > {shown}"));
        if let Some(file) = key_file {
            let file = saved::keys::quoted(&file);
            configfs.record(|| format!("# unless {shown} says so, add to it: key_file = {file}"));
        }
        return Ok(false);
    }
    let _lock = context.lock(job)?;
    identity::save(context, job)?;
    let mut map = running::read(context, Kind::Map, name);
    if let Some(file) = key_file {
        map.values.insert("key_file", file);
    }
    let saved = saved::load(&context.root, Side::Client);
    let there = saved.find(Kind::Map, name);
    if let Some(there) = there {
        running::align_all_keys(context, &mut map, there);
    }
    if let [unsaved, ..] = running::unsaved_keys(&map).as_slice() {
        not_kept(context, &unsaved.text, &Hints::new(unsaved.hint.clone()));
        return Ok(false);
    }
    if there.is_some_and(|there| says_so(context, &map, there)) {
        tell(context, there, name);
        return Ok(false);
    }
    let elsewhere = there.filter(|there| place_of(there) != path);
    if elsewhere.is_some() || path.exists() && !is_alone(&saved, &path, Kind::Map, name) {
        let path = elsewhere.map_or(path.as_path(), place_of);
        not_kept(
            context,
            &format!("{} has other things to say", path.display()),
            &Hints::new(format!("# edit {}\nfarblk config diff", quote::path(path))),
        );
        return Ok(false);
    }
    let text = saved::render(HEADING, None, &[&map]);
    let written = durable::replace(&path, &text, job, |back| {
        let mut saved = Saved::default();
        saved::parse(Side::Client, &path, back, &mut saved);
        let is_same = |there: &Object| there.says_as(&map) && there.problems.is_empty();
        match saved.find(Kind::Map, name).is_some_and(is_same) {
            true => Ok(()),
            false => Err(job.error(Code::Unparsable, "the file does not read back")),
        }
    })?;
    let saved = saved::load(&context.root, Side::Client);
    tell(context, saved.find(Kind::Map, name), name);
    Ok(written != durable::Written::Unchanged)
}

/// Warns that a map, which runs, is not kept. The exit code is 8 then.
pub fn not_kept(context: &Context, why: &str, hints: &Hints) {
    context.exit.set(exit::PARTIAL);
    let text = format!("the map runs, but is not kept: {why}");
    context.output.warn_with(&text, hints);
}

/// Returns true if the file says what runs.
fn says_so(context: &Context, map: &Object, there: &Object) -> bool {
    let mut map = map.clone();
    running::align(context, &mut map, there);
    there.problems.is_empty() && running::differences(&map, there).is_empty()
}

fn place_of(object: &Object) -> &Path {
    let place = object.place.as_ref();
    place.map_or(Path::new(""), |place| &place.file)
}

/// Returns true if the file has this object and nothing else.
fn is_alone(saved: &Saved, file: &Path, kind: Kind, name: &str) -> bool {
    let mut objects = saved
        .objects
        .iter()
        .filter(|object| place_of(object) == file);
    let is_here = |problem: &saved::Problem| {
        let place = problem.place.as_ref();
        place.is_some_and(|place| place.file == file)
    };
    objects.all(|object| (object.kind, object.name.as_str()) == (kind, name))
        && !saved.problems.iter().any(is_here)
}

fn tell(context: &Context, there: Option<&Object>, name: &str) {
    let path = there.map_or(Path::new(""), place_of);
    context
        .output
        .note(&format!("map {name} is kept in {}", path.display()));
    let unit = unit(name);
    let has_systemd = context.root.join("run/systemd/system").is_dir();
    if has_systemd && !is_unit_enabled(context, &unit) {
        // A unit stops only a map that it has made.
        let hint = format!(
            "farblk unmap {} && systemctl enable --now {unit}  # maps it now and at boot",
            quote::word(name)
        );
        context.output.hint(hint);
    }
}

fn unit(name: &str) -> String {
    format!("farblk-map@{name}.service")
}

/// Returns true if systemd maps the map at boot.
fn is_unit_enabled(context: &Context, unit: &str) -> bool {
    let folder = context.root.join("etc/systemd/system");
    let folders = fs::read_dir(folder).into_iter().flatten().flatten();
    folders
        .filter(|folder| folder.file_name().as_encoded_bytes().ends_with(b".wants"))
        .any(|folder| folder.path().join(unit).symlink_metadata().is_ok())
}

/// The command that makes a map as its file says. If it has a unit, that makes it: it unmaps no
/// other one.
pub fn restore_command(context: &Context, name: &str) -> String {
    let unit = unit(name);
    match is_unit_enabled(context, &unit) {
        true => format!("systemctl restart {unit}"),
        false => format!("farblk config restore --map={}", quote::word(name)),
    }
}

/// Tells how to disable the unit of a map that was forgotten: it would fail at each boot.
pub fn hint_unit(context: &Context, name: &str) {
    let unit = unit(name);
    if is_unit_enabled(context, &unit) {
        let hint = format!("systemctl disable --now {unit}  # no file has its map any more");
        context.output.hint(hint);
    }
}

/// The file that has the map, if it says which contents to expect.
pub fn expecting(context: &Context, name: &str) -> Option<PathBuf> {
    let saved = saved::load(&context.root, Side::Client);
    let there = saved.find(Kind::Map, name)?;
    let expects = there.values.contains_key("expect_instance");
    expects.then(|| place_of(there).to_owned())
}

/// Removes what was removed from the files, too, or says that they still have it: "; still in
/// /etc/farblk/client.toml: --forget removes it there, too". The caller holds the lock if
/// `forgets`.
pub fn kept(
    context: &Context,
    kind: Kind,
    name: &str,
    forgets: bool,
    job: &Job,
) -> Result<String, Error> {
    if forgets {
        let file = forget(context, kind, name, job)?;
        let text = |file: PathBuf| format!("; removed from {}", file.display());
        return Ok(file.map(text).unwrap_or_default());
    }
    let saved = saved::load(&context.root, kind.side());
    let text = |there: &Object| {
        let file = place_of(there).display();
        format!("; still in {file}: --forget removes it there, too")
    };
    Ok(saved.find(kind, name).map(text).unwrap_or_default())
}

/// Removes a map or an export from the files. Returns the file that had it. The caller holds the
/// lock.
pub fn forget(
    context: &Context,
    kind: Kind,
    name: &str,
    job: &Job,
) -> Result<Option<PathBuf>, Error> {
    let saved = saved::load(&context.root, kind.side());
    let Some(there) = saved.find(kind, name) else {
        return Ok(None);
    };
    let path = place_of(there).to_owned();
    let shown = quote::path(&path);
    let configfs = &context.configfs;
    let is_own = path.starts_with(kind.side().folder(&context.root));
    let goes = is_own && is_alone(&saved, &path, kind, name);
    if configfs.is_dry_run() {
        configfs.record(|| match goes {
            true => format!("mv {shown} {shown}.1"),
            false => format!(
                "# remove [{}.{}] from {shown}",
                kind.word(),
                saved::keys::key_text(name)
            ),
        });
        return Ok(Some(path));
    }
    if goes {
        durable::remove(&path, job)?;
        return Ok(Some(path));
    }
    let fault = |e: std::io::Error| {
        let why = format!("{}: {}", path.display(), crate::configfs::words(&e));
        job.error(Code::Io, why)
    };
    let text = fs::read_to_string(&path).map_err(fault)?;
    let rest = without(&path, &text, kind, name);
    let Some(rest) = rest else {
        let line = there.place.as_ref().map_or(1, |place| place.line);
        let why = format!(
            "{}:{line}: the {} cannot be removed from this file",
            path.display(),
            kind.word()
        );
        return Err(job
            .error(Code::BadFile, why)
            .hint(format!("# remove it with an editor: {shown}")));
    };
    durable::replace(&path, &rest, job, |_| Ok(()))?;
    Ok(Some(path))
}

/// The text of a file without the tables of an object. Comments and everything else stay. `None` if
/// that cannot be done line by line, as the file has the object in another form.
fn without(path: &Path, text: &str, kind: Kind, name: &str) -> Option<String> {
    let start = format!("[{}.", kind.word());
    let keys = [saved::keys::key_text(name), saved::keys::quoted(name)];
    let starts = |line: &str| {
        let title = line.trim_start().strip_prefix(start.as_str());
        title.is_some_and(|title| {
            let mut rests = keys
                .iter()
                .filter_map(|key| title.strip_prefix(key.as_str()));
            rests.any(|rest| rest.starts_with([']', '.']))
        })
    };
    let mut rest = String::new();
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            inside = starts(line);
        }
        if !inside {
            rest += line;
        }
    }
    // Whatever the lines look like, the other objects have to stay, and this one has to go.
    let parse = |text: &str| {
        let mut saved = Saved::default();
        saved::parse(kind.side(), path, text, &mut saved);
        saved
    };
    let (before, after) = (parse(text), parse(&rest));
    let is_other = |object: &&Object| (object.kind, object.name.as_str()) != (kind, name);
    let mut others = before.objects.iter().filter(is_other);
    let same = others.clone().count() == after.objects.len()
        && others.all(|object| {
            let found = after.find(object.kind, &object.name);
            found.is_some_and(|found| found.says_as(object))
        });
    let sound =
        after.problems.len() <= before.problems.len() && before.host_name == after.host_name;
    (same && sound).then_some(rest)
}
