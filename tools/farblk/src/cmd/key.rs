// SPDX-License-Identifier: GPL-2.0
//! `farblk key` and `farblk rekey`: making a key, its key id, and the key of a map.

use std::io;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::list::Map;
use super::{Context, map};
use crate::cli;
use crate::configfs::{Job, words};
use crate::durable;
use crate::error::{Code, Error, Hints};
use crate::quote;
use crate::saved::running;
use crate::saved::{self, Kind, Side};
use crate::secret::{self, Secret, Source};

/// A key, schema `farblk.key/1`. It never has the key itself.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    /// The key id.
    id: String,
    /// The file with the key, null for stdin.
    path: Option<String>,
}

impl Document {
    fn new(id: &str, path: Option<&Path>) -> Self {
        Self {
            schema: "farblk.key/1",
            id: id.to_owned(),
            path: path.map(|path| path.display().to_string()),
        }
    }
}

/// Runs `farblk key`.
pub fn run(context: &Context, command: &cli::Key) -> Result<(), Error> {
    match command {
        cli::Key::New { file } => new(context, file.as_deref()),
        cli::Key::Id { file } => id(context, file),
    }
}

/// Runs `farblk key new`. The key id goes to stderr, as the key itself may go to stdout.
fn new(context: &Context, file: Option<&Path>) -> Result<(), Error> {
    let job = Job::new("cannot make a key");
    let file = file.filter(|file| *file != Path::new("-"));
    if file.is_none() && context.output.is_json() {
        let why = "a JSON document has no key: with -j it needs a file to go to";
        return Err(job.error(Code::Usage, why).hint("farblk -j key new FILE"));
    }
    if let Some(unusable) = file.and_then(secret::is_key_itself) {
        return Err(unusable.error(&job));
    }
    if context.configfs.record(|| match file {
        Some(file) => format!("farblk key new {}", quote::path(file)),
        None => "farblk key new".to_owned(),
    }) {
        return Ok(());
    }
    let secret = Secret::random().map_err(|e| {
        let why = format!("the kernel gives no random bytes: {}", words(&e));
        job.error(Code::Io, why)
    })?;
    let Some(file) = file else {
        let written = context.output.secret(&secret.line());
        written.map_err(|e| job.error(Code::Io, format!("stdout: {}", words(&e))))?;
        context.output.note(&format!("key id {}", secret.id()));
        return Ok(());
    };
    let folder = secret::folder(&context.root);
    let made = match file.parent() == Some(&folder) {
        true => secret::make_folder(&context.root),
        false => Ok(()),
    };
    made.and_then(|()| secret.store(file))
        .map_err(|e| not_made(&e, file, &job))?;
    if context.output.is_json() {
        return context
            .output
            .document(&Document::new(secret.id(), Some(file)));
    }
    let text = format!("key id {}, in {}", secret.id(), file.display());
    context.output.note(&text);
    Ok(())
}

/// Says why the file of a key was not made.
fn not_made(e: &io::Error, file: &Path, job: &Job) -> Error {
    let (shown, quoted) = (file.display(), quote::path(file));
    match e.kind() {
        io::ErrorKind::AlreadyExists => job
            .error(Code::Differs, format!("{shown} exists already"))
            .hint(format!(
                "farblk key id {quoted}  # which key is in it?\nfarblk key new FILE  # or choose another \
                 file"
            )),
        io::ErrorKind::NotFound => {
            let folder = file.parent().unwrap_or(Path::new("."));
            let why = format!("the folder of {shown} does not exist");
            let hint = format!("install -d -m 700 {}", quote::path(folder));
            job.error(Code::Io, why).hint(hint)
        }
        _ => durable::failed(e, file, job),
    }
}

fn id(context: &Context, file: &Path) -> Result<(), Error> {
    super::refuse_dry_run(context, "key id FILE")?;
    let job = Job::new("cannot tell the key id");
    let source = Source::of(file);
    let secret = read(&source, &job)?;
    if context.output.is_json() {
        let path = matches!(source, Source::File(_)).then_some(file);
        return context.output.document(&Document::new(secret.id(), path));
    }
    context.output.line(secret.id())
}

/// Reads a key for a job.
pub fn read(source: &Source<'_>, job: &Job) -> Result<Secret, Error> {
    source.read().map_err(|unusable| unusable.error(job))
}

/// Runs `farblk rekey`. The module takes the new key for the next connection of the map: the disk
/// may be in use.
pub fn rekey(context: &Context, arguments: &cli::Rekey) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let what = format!("cannot change the key of {}", arguments.map);
    let job = Job::new(&what);
    let source = arguments.key_file.as_deref().map(Source::of);
    let secret = source
        .as_ref()
        .map(|source| read(source, &job))
        .transpose()?;
    let Some(name) = map::find(context, &arguments.map, &job)? else {
        return Err(context.not_found(&what, "map", &arguments.map));
    };
    let object = configfs.path(&["maps", &name]);
    configfs.require_keys(&object, &job)?;
    let map = Map::read(context, &name);
    let changed = map.key_id.as_deref() != secret.as_ref().map(Secret::id);
    if changed {
        configfs.set_key(&object, "key", secret.as_ref().zip(source.as_ref()), &job)?;
    }
    if configfs.is_dry_run() {
        return Ok(());
    }
    let map = Map::read(context, &name);
    let text = match &map.key_id {
        Some(id) => format!("map {name} has the key {id}"),
        None => format!("map {name} has no key"),
    };
    let document = map::Document {
        schema: "farblk.map/1",
        changed,
        map,
    };
    context.output.result(&text, &document)?;
    warn_of_file(context, &name);
    Ok(())
}

/// Warns if a file in /etc/farblk gives the map another key than it has now.
fn warn_of_file(context: &Context, name: &str) {
    let saved = saved::load(&context.root, Side::Client);
    let Some(there) = saved.find(Kind::Map, name) else {
        return;
    };
    let mut have = running::read(context, Kind::Map, name);
    running::align(context, &mut have, there);
    if have.values.get("key_file") == there.values.get("key_file") {
        return;
    }
    let text = format!("{} gives the map another key at boot", there.origin());
    let hints = Hints::new("farblk config diff".into());
    context.output.warn_with(&text, &hints);
}
