// SPDX-License-Identifier: GPL-2.0
//! `farblk config save`.

use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use super::{is_valid, save_job, write_line};
use crate::cmd::Context;
use crate::configfs::Job;
use crate::durable::{self, Written};
use crate::error::{Code, Error, exit};
use crate::identity;
use crate::quote;
use crate::saved::running::{self, is_kernel_name, no_lasting_name};
use crate::saved::{self, Kind, Object, Place, Saved, Side};

/// The first lines of a file that the tool writes.
const HEADING: &str = "\
# Written by farblk config save; farblk config restore reads it. See farblk.toml(5).
# What is left out has its default. The previous file has the suffix .1.
";

/// The files that were written, schema `farblk.config-save/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    changed: bool,
    files: Vec<FileResult>,
    /// What could not be saved.
    failed: Vec<String>,
}

#[derive(JsonSchema, Serialize)]
struct FileResult {
    path: String,
    /// "unchanged", "made" or "replaced".
    result: &'static str,
    /// The previous file, if there was one.
    previous: Option<String>,
    ports: usize,
    exports: usize,
    maps: usize,
}

/// Runs `farblk config save`.
pub fn run(context: &Context, prune: bool) -> Result<(), Error> {
    context.configfs.require()?;
    let job = save_job();
    let _lock = context.lock(&job)?;
    identity::save(context, &job)?;
    let running = running::everything(context);
    let mut plans = Vec::new();
    let mut failed = Vec::new();
    for side in Side::ALL {
        let saved = saved::load(&context.root, side);
        match unreadable(context, side, &saved) {
            Some(text) => failed.push(text),
            None => plans.extend(Plan::new(context, side, &saved, &running, prune)),
        }
    }
    if !prune {
        let lost: Vec<String> = plans.iter().flat_map(|plan| plan.lost.clone()).collect();
        require_nothing_lost(lost, &job)?;
    }
    let mut files = Vec::new();
    for plan in &plans {
        for (text, hint) in &plan.warnings {
            let hints = crate::error::Hints::new(hint.clone());
            context.output.warn_with(text, &hints);
        }
        files.extend(plan.write(context, &job)?);
    }
    failed.extend(plans.into_iter().flat_map(|plan| plan.failed));
    if !failed.is_empty() {
        context.exit.set(exit::PARTIAL);
        for text in &failed {
            context.output.warn(text);
        }
    }
    report(context, files, failed)
}

fn report(context: &Context, files: Vec<FileResult>, failed: Vec<String>) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Ok(());
    }
    let text: Vec<_> = files.iter().map(FileResult::line).collect();
    let text = match (text.is_empty(), failed.is_empty()) {
        (true, true) => "nothing to save: this host has no port, export or map".into(),
        (true, false) => "nothing was written".into(),
        (false, _) => text.join("\n"),
    };
    let has_exports = files.iter().any(|file| file.exports + file.ports > 0);
    let changed = files.iter().any(|file| file.result != "unchanged");
    let document = Document {
        schema: "farblk.config-save/1",
        changed,
        files,
        failed,
    };
    context.output.result(&text, &document)?;
    if has_exports && !is_unit_enabled(&context.root) {
        context
            .output
            .hint("systemctl enable farblk-server.service  # restores the exports at boot");
    }
    Ok(())
}

/// Returns true if systemd restores the exports at boot, or if this host has no systemd.
fn is_unit_enabled(root: &Path) -> bool {
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    !root.join("run/systemd/system").is_dir()
        || wants
            .join("farblk-server.service")
            .symlink_metadata()
            .is_ok()
}

/// What a restore that was only partly done would make of the files is their loss: so nothing goes
/// that the user does not know of.
fn require_nothing_lost(lost: Vec<String>, job: &Job) -> Result<(), Error> {
    if lost.is_empty() {
        return Ok(());
    }
    let mut error = job
        .error(
            Code::Differs,
            "the files have what does not run, or cannot be saved",
        )
        .hint(
            "farblk config restore  # makes it run\n\
             farblk export rm NAME --forget  # or: removes an export from its file; unmap does so \
             with a map\n\
             farblk config save --prune  # or: drops it, and keeps disabled what is disabled",
        );
    error.details = lost;
    Err(error)
}

/// Returns true if the place is in the file that is written.
fn is_here(file: &Path, place: Option<&Place>) -> bool {
    place.is_some_and(|place| place.file == file)
}

/// Says why the file of a side is left as it is: another file cannot be read, and nobody knows
/// which objects that has. Described twice, they would be none of both.
fn unreadable(context: &Context, side: Side, saved: &Saved) -> Option<String> {
    let file = side.file(&context.root);
    let elsewhere = |problem: &&saved::Problem| !is_here(&file, problem.place.as_ref());
    let problem = saved.problems.iter().find(elsewhere)?;
    Some(format!("{} is not written: {problem}", file.display()))
}

/// What is to be done to the file of one side.
struct Plan {
    side: Side,
    objects: Vec<Object>,
    host_name: Option<String>,
    /// What the file has and what would be lost.
    lost: Vec<String>,
    /// What cannot be saved.
    failed: Vec<String>,
    /// Texts with their hints.
    warnings: Vec<(String, String)>,
}

impl Plan {
    /// Makes the plan; `None` if nothing runs that could be saved, and there is no file.
    fn new(
        context: &Context,
        side: Side,
        saved: &Saved,
        running: &Saved,
        prune: bool,
    ) -> Option<Self> {
        let file = side.file(&context.root);
        let is_here = |place: &Option<Place>| is_here(&file, place.as_ref());
        let mut plan = Self {
            side,
            objects: Vec::new(),
            host_name: None,
            lost: Vec::new(),
            failed: Vec::new(),
            warnings: Vec::new(),
        };
        if side == Side::Client {
            plan.host_name = running.host_name.clone();
            let mut own = Saved::default();
            saved::parse(
                side,
                &file,
                &fs::read_to_string(&file).unwrap_or_default(),
                &mut own,
            );
            // A name that stands in another file stays there.
            if own.host_name.is_none() && plan.host_name == saved.host_name {
                plan.host_name = None;
            }
            // A module that was loaded anew has the name of the node until a restore.
            if let (None, Some(name), false) = (&plan.host_name, &own.host_name, prune) {
                plan.host_name = Some(name.clone());
                if context.host_name().as_ref() != Some(name) {
                    let text = format!("host_name {name} stays in the file, and is not in use");
                    let hint = "farblk config restore  # uses it\n\
                        farblk config save --prune  # or: drops it";
                    plan.warnings.push((text, hint.into()));
                }
            }
        }
        let errors = saved
            .problems
            .iter()
            .filter(|problem| is_here(&problem.place));
        plan.lost.extend(errors.map(ToString::to_string));
        for object in saved.objects.iter().filter(|object| is_here(&object.place)) {
            if running.find(object.kind, &object.name).is_none() {
                plan.lost
                    .push(format!("{} in {}", object.title(), object.origin()));
            }
        }
        let own = |object: &&Object| object.kind.side() == side;
        for object in running.objects.iter().filter(own) {
            let mut elsewhere = saved.objects.iter().filter(|other| {
                (other.kind, &other.name) == (object.kind, &object.name) && !is_here(&other.place)
            });
            match elsewhere.next() {
                Some(other) => plan.leave(context, object, other),
                None => plan.take(context, object, saved.find(object.kind, &object.name)),
            }
        }
        let has_file = file.exists();
        (!plan.objects.is_empty() || !plan.failed.is_empty() || has_file).then_some(plan)
    }

    /// Leaves out what another file describes.
    fn leave(&mut self, context: &Context, object: &Object, other: &Object) {
        let mut object = object.clone();
        running::align(context, &mut object, other);
        let differences = running::differences(&object, other);
        if is_valid(other) && differences.is_empty() {
            return;
        }
        let title = object.title();
        let text = format!("{title} is not saved: it is in {}", other.origin());
        let file = other.place.as_ref().map(|place| quote::path(&place.file));
        let hint = format!(
            "# edit {} yourself, or remove it and save again",
            file.unwrap_or_default()
        );
        self.warnings.push((text, hint));
    }

    /// Takes what runs in place of what the file has.
    fn take(&mut self, context: &Context, object: &Object, before: Option<&Object>) {
        let problems = object.problems.iter();
        self.failed
            .extend(problems.map(|problem| problem.text.clone()));
        let title = object.title();
        let origin = before.map(Object::origin).unwrap_or_default();
        if !is_valid(object) {
            let lost = |problem: &saved::Problem| format!("{} (it is in {origin})", problem.text);
            let problems = before.iter().flat_map(|_| &object.problems);
            return self.lost.extend(problems.map(lost));
        }
        if !object.is_enabled() && before.is_none_or(Object::is_enabled) {
            // Nobody can tell whether an administrator or a failed restore left it so.
            let lost = before.map(|_| format!("{title} in {origin} is disabled now"));
            self.lost.extend(lost);
            let text =
                format!("{title} is disabled, and is saved so: a restore leaves it disabled");
            self.warnings.push((text, String::new()));
        }
        let mut object = object.clone();
        if let Some(before) = before {
            running::align_all_keys(context, &mut object, before);
        }
        let unsaved = running::unsaved_keys(&object);
        if !unsaved.is_empty() {
            // Without its key a map would not come back, and a host would be admitted without
            // proof.
            for problem in unsaved {
                self.failed.push(problem.text);
            }
            let lost = before.map(|_| format!("{title} in {origin}: its key cannot be saved"));
            return self.lost.extend(lost);
        }
        if is_kernel_name(object.value("device")) {
            let mut aligned = object.clone();
            if let Some(before) = before {
                running::align(context, &mut aligned, before);
            }
            match aligned.values.remove("device") {
                Some(name) if !is_kernel_name(&name) => {
                    object.values.insert("device", name);
                }
                _ => {
                    let device = object.value("device");
                    let text = format!("{title}: {}", no_lasting_name(device));
                    self.failed.push(text);
                }
            }
        }
        self.objects.push(object);
    }

    fn write(&self, context: &Context, job: &Job) -> Result<Option<FileResult>, Error> {
        let path = self.side.file(&context.root);
        // There are objects, and none of them can be saved.
        if self.objects.is_empty() && !path.exists() {
            return Ok(None);
        }
        let objects: Vec<_> = self.objects.iter().collect();
        let text = saved::render(HEADING, self.host_name.as_deref(), &objects);
        let configfs = &context.configfs;
        if configfs.is_dry_run() {
            let folder = path.parent().unwrap_or(&path);
            configfs.record(|| format!("mkdir -p {}", quote::path(folder)));
            if path.exists() {
                let word = quote::path(&path);
                configfs.record(|| format!("cp --preserve {word} {word}.1"));
            }
            configfs.record(|| write_line(&path, &text));
            return Ok(None);
        }
        let written = durable::replace(&path, &text, job, |back| self.verify(&path, back, job))?;
        let count = |kind: Kind| {
            let objects = self.objects.iter();
            objects.filter(|object| object.kind == kind).count()
        };
        Ok(Some(FileResult {
            previous: (written == Written::Replaced).then(|| format!("{}.1", path.display())),
            path: path.display().to_string(),
            result: match written {
                Written::Unchanged => "unchanged",
                Written::Made => "made",
                Written::Replaced => "replaced",
            },
            ports: count(Kind::Port),
            exports: count(Kind::Export),
            maps: count(Kind::Map),
        }))
    }

    /// Fails if the text does not say what it is to say.
    fn verify(&self, path: &Path, text: &str, job: &Job) -> Result<(), Error> {
        let mut back = Saved::default();
        saved::parse(self.side, path, text, &mut back);
        let is_same = |object: &Object| {
            let found = back.find(object.kind, &object.name);
            found.is_some_and(|found| found.says_as(object) && is_valid(found))
        };
        let wrong = self.objects.iter().find(|&object| !is_same(object));
        let why = match (back.all_problems().first(), wrong) {
            (Some(problem), _) => problem.to_string(),
            (None, Some(object)) => format!("{} does not read back", object.title()),
            (None, None) if back.objects.len() == self.objects.len() => return Ok(()),
            (None, None) => "the file does not read back".into(),
        };
        Err(job
            .error(Code::Unparsable, why)
            .hint("# nothing was changed"))
    }
}

impl FileResult {
    /// "wrote /etc/farblk/server.toml (2 exports, 1 port); previous kept as server.toml.1"
    fn line(&self) -> String {
        let counts = [
            (self.exports, "export"),
            (self.ports, "port"),
            (self.maps, "map"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<_> = counts
            .map(|(count, word)| match count {
                1 => format!("1 {word}"),
                count => format!("{count} {word}s"),
            })
            .collect();
        let counts = match counts.is_empty() {
            true => "nothing".to_owned(),
            false => counts.join(", "),
        };
        let path = &self.path;
        match (self.result, &self.previous) {
            ("unchanged", _) => format!("{path} says so already ({counts})"),
            (_, Some(previous)) => format!("wrote {path} ({counts}); previous kept as {previous}"),
            (_, None) => format!("wrote {path} ({counts})"),
        }
    }
}
