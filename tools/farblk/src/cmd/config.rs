// SPDX-License-Identifier: GPL-2.0
//! `farblk config`: the files in /etc/farblk, and what runs.

use std::path::Path;

use clap::Subcommand;
use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::configfs::Job;
use crate::error::{Error, exit};
use crate::identity;
use crate::output::alert;
use crate::quote;
use crate::saved::{self, Kind, Object, Problem, Saved, Side, running};

pub mod check;
mod item;
pub mod restore;
pub mod save;

/// Manages the files in /etc/farblk.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the ports, exports and maps that run to /etc/farblk/server.toml and client.toml
    ///
    /// The previous file is kept with the suffix .1. What a file in server.d or client.d describes
    /// is left out.
    Save {
        /// Drop what the files have and what does not run; save as disabled what is disabled
        #[arg(long)]
        prune: bool,
    },
    /// Make run what the files say; exit 8 if a part of it fails
    ///
    /// What runs already is left alone. The files are not changed.
    Restore(restore::Arguments),
    /// Show the differences between the files and what runs; exit 1 if there are some
    Diff,
    /// Check the files; exit 1 if there is an error
    Check,
    /// Show what the files say, all together; exit 1 if there is an error
    Show {
        /// Show what runs instead, in the form of the files
        #[arg(long)]
        running: bool,
        /// Show one map only
        #[arg(long, value_name = "NAME", value_parser = crate::name::parse)]
        map: Option<String>,
    },
}

/// Runs `farblk config`.
pub fn run(context: &Context, command: &Command) -> Result<(), Error> {
    match command {
        Command::Save { prune } => save::run(context, *prune),
        Command::Restore(arguments) => restore::run(context, arguments),
        Command::Diff => diff(context),
        Command::Check => check::run(context),
        Command::Show { running, map } => show(context, *running, map.as_deref()),
    }
}

/// An object as JSON.
#[derive(JsonSchema, Serialize)]
struct Item {
    kind: Kind,
    name: String,
    /// "/etc/farblk/server.toml:3", or null if it runs.
    origin: Option<String>,
    enabled: bool,
    /// The values that differ from their defaults, as configfs has them.
    values: Pairs,
    members: Vec<ItemMember>,
}

type Pairs = std::collections::BTreeMap<&'static str, String>;

/// A host of an export, or a path of a map.
#[derive(JsonSchema, Serialize)]
struct ItemMember {
    name: String,
    values: Pairs,
}

impl From<&Object> for Item {
    fn from(object: &Object) -> Self {
        let member = |member: &saved::Member| ItemMember {
            name: member.name.clone(),
            values: member.values.clone(),
        };
        Self {
            kind: object.kind,
            name: object.name.clone(),
            origin: object.place.as_ref().map(ToString::to_string),
            enabled: object.is_enabled(),
            values: object.values.clone(),
            members: object.members.iter().map(member).collect(),
        }
    }
}

/// Something that is wrong with a file.
#[derive(JsonSchema, Serialize)]
struct Fault {
    file: Option<String>,
    line: Option<usize>,
    /// "error" or "warning".
    severity: &'static str,
    text: String,
    hints: Vec<String>,
}

impl From<&Problem> for Fault {
    fn from(problem: &Problem) -> Self {
        let place = problem.place.as_ref();
        Self {
            file: place.map(|place| place.file.display().to_string()),
            line: place.map(|place| place.line),
            severity: match problem.is_error {
                true => "error",
                false => "warning",
            },
            text: problem.text.clone(),
            hints: problem.hint.lines().map(str::to_owned).collect(),
        }
    }
}

/// The files in /etc/farblk, or what runs, schema `farblk.config/1`.
#[derive(JsonSchema, Serialize)]
pub struct ShowDocument {
    schema: &'static str,
    host_name: Option<String>,
    objects: Vec<Item>,
    problems: Vec<Fault>,
}

/// Reads the files of both sides.
fn load_all(context: &Context) -> Saved {
    let mut all = Saved::default();
    for side in Side::ALL {
        let mut saved = saved::load(&context.root, side);
        all.objects.append(&mut saved.objects);
        all.problems.append(&mut saved.problems);
        all.host_name = all.host_name.or(saved.host_name);
    }
    all
}

fn show(context: &Context, running: bool, map: Option<&str>) -> Result<(), Error> {
    let mut saved = match running {
        true => {
            context.configfs.require()?;
            running::everything(context)
        }
        false => load_all(context),
    };
    if let Some(name) = map {
        saved
            .objects
            .retain(|object| object.kind == Kind::Map && object.name == name);
        saved.host_name = None;
        if saved.objects.is_empty() {
            return Err(context.not_found("cannot show the map", "map", name));
        }
    }
    for object in saved.objects.iter().filter(|_| running) {
        let unsaved = running::unsaved_keys(object);
        saved.problems.extend(unsaved);
    }
    let problems = saved.all_problems();
    if !running && problems.iter().any(|problem| problem.is_error) {
        context.exit.set(exit::OTHER);
    }
    if context.output.is_json() {
        return context.output.document(&ShowDocument {
            schema: "farblk.config/1",
            host_name: saved.host_name.clone(),
            objects: saved.objects.iter().map(Item::from).collect(),
            problems: problems.into_iter().map(Fault::from).collect(),
        });
    }
    let mut text = String::new();
    if let Some(name) = &saved.host_name {
        text += &format!("host_name = {}\n\n", saved::keys::quoted(name));
    }
    for object in &saved.objects {
        if let Some(place) = &object.place {
            text += &format!("# {place}\n");
        }
        text += &format!("{}\n", saved::object(object));
    }
    for problem in problems {
        text += &format!("# {problem}\n");
    }
    match text.trim_end() {
        "" => Ok(()),
        text => context.output.line(text),
    }
}

/// A difference between the files and what runs.
#[derive(JsonSchema, Serialize)]
struct Difference {
    /// "missing": it does not run; "extra": no file has it; "differs"; "invalid": the file has
    /// errors.
    change: &'static str,
    kind: &'static str,
    name: String,
    origin: Option<String>,
    differences: Vec<String>,
}

impl Difference {
    fn new(change: &'static str, object: &Object, differences: Vec<String>) -> Self {
        Self {
            change,
            kind: object.kind.word(),
            name: object.name.clone(),
            origin: object.place.as_ref().map(ToString::to_string),
            differences,
        }
    }

    fn line(&self) -> String {
        let title = format!("{} {}", self.kind, self.name);
        let origin = self.origin.as_deref().unwrap_or_default();
        let list = self.differences.join("; ");
        match self.change {
            "missing" => format!("- {title}: in {origin}, but does not run"),
            "extra" => format!("+ {title}: runs, but is in no file"),
            "invalid" => format!("! {list}"),
            _ => format!("~ {title}: {list}"),
        }
    }
}

/// The differences between the files and what runs, schema `farblk.config-diff/1`.
#[derive(JsonSchema, Serialize)]
pub struct DiffDocument {
    schema: &'static str,
    differs: bool,
    differences: Vec<Difference>,
}

fn diff(context: &Context) -> Result<(), Error> {
    context.configfs.require()?;
    let saved = load_all(context);
    let differences = compare(context, &saved);
    let differs = !differences.is_empty();
    if differs {
        context.exit.set(exit::OTHER);
    }
    if context.output.is_json() {
        return context.output.document(&DiffDocument {
            schema: "farblk.config-diff/1",
            differs,
            differences,
        });
    }
    for difference in &differences {
        context.output.line(&difference.line())?;
    }
    Ok(())
}

/// Compares the files with what runs.
fn compare(context: &Context, saved: &Saved) -> Vec<Difference> {
    let running = running::everything(context);
    let mut differences = Vec::new();
    for problem in saved.all_problems() {
        if problem.is_error {
            differences.push(Difference {
                change: "invalid",
                kind: "file",
                name: String::new(),
                origin: problem.place.as_ref().map(ToString::to_string),
                differences: vec![problem.to_string()],
            });
        }
    }
    let valid = saved.objects.iter().filter(|object| is_valid(object));
    for object in valid {
        let Some(have) = running.find(object.kind, &object.name) else {
            differences.push(Difference::new("missing", object, Vec::new()));
            continue;
        };
        let mut have = have.clone();
        running::align(context, &mut have, object);
        let texts = running::differences(&have, object);
        if !texts.is_empty() {
            differences.push(Difference::new("differs", object, texts));
        }
    }
    for have in &running.objects {
        if saved.find(have.kind, &have.name).is_none() {
            differences.push(Difference::new("extra", have, Vec::new()));
        }
    }
    if let Some((file, have)) = identity::difference(context) {
        differences.push(Difference {
            change: "differs",
            kind: "host",
            name: context.host_name().unwrap_or_default(),
            origin: Some(identity::file(&context.root).display().to_string()),
            differences: vec![format!("host_id is {have}, in the file {file}")],
        });
    }
    if let Some(name) = &saved.host_name {
        let have = context.host_name().unwrap_or_default();
        if have != *name {
            differences.push(Difference {
                change: "differs",
                kind: "host",
                name: have,
                origin: None,
                differences: vec![format!("host_name is {name} in the file")],
            });
        }
    }
    differences
}

/// Returns true if the object can be restored.
fn is_valid(object: &Object) -> bool {
    !object.problems.iter().any(|problem| problem.is_error)
}

/// Prints problems, with their remedies.
fn print(context: &Context, problems: &[&Problem]) -> Result<(), Error> {
    for problem in problems {
        let severity = match problem.is_error {
            true => "error",
            false => "warning",
        };
        let place = match &problem.place {
            Some(place) => format!("{place}: "),
            None => String::new(),
        };
        let line = format!("{place}{}: {}", alert(severity), problem.text);
        context.output.line(&line)?;
        for hint in problem.hint.lines() {
            context.output.line(&format!("  hint: {hint}"))?;
        }
    }
    Ok(())
}

/// The shell command that gives a file this text, for a dry run.
fn write_line(path: &Path, text: &str) -> String {
    let path = quote::path(path);
    format!("cat > {path} <<'END OF FARBLK'\n{text}END OF FARBLK")
}

/// The job of saving.
fn save_job() -> Job {
    Job::new("cannot save the configuration")
}
