// SPDX-License-Identifier: GPL-2.0
//! `farblk config restore`: makes run what the files say. It writes none of them, and leaves alone
//! what runs already.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::{is_valid, item};
use crate::cmd::{Context, map};
use crate::configfs::Job;
use crate::error::{Code, Error, Hints, exit};
use crate::identity;
use crate::saved::{self, Kind, Object, Problem, Saved, Side};

/// What to restore.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
pub struct Arguments {
    /// Restore ports and exports only
    #[arg(long)]
    server: bool,
    /// Restore maps only
    #[arg(long)]
    client: bool,
    /// Restore one map only; exit 5 if it may work later
    #[arg(long, value_name = "NAME", value_parser = crate::name::parse)]
    map: Option<String>,
    /// The caller waits for the names of the disk.
    #[arg(skip)]
    is_of_unit: bool,
}

impl Arguments {
    /// To restore the map of a unit, which waits for the names of the disk itself.
    pub fn of_unit(name: &str) -> Self {
        Self {
            server: false,
            client: false,
            map: Some(name.to_owned()),
            is_of_unit: true,
        }
    }

    fn sides(&self) -> Vec<Side> {
        let mut sides = Side::ALL.to_vec();
        match (self.server, self.client || self.map.is_some()) {
            (true, _) => sides.retain(|side| *side == Side::Server),
            (_, true) => sides.retain(|side| *side == Side::Client),
            _ => {}
        }
        sides
    }
}

/// What was restored, item by item, schema `farblk.config-restore/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    /// True if every item runs now.
    complete: bool,
    items: Vec<ItemResult>,
}

#[derive(JsonSchema, Serialize)]
struct ItemResult {
    /// "port", "export", "map", "host" or "file".
    kind: &'static str,
    name: String,
    /// "restored", "changed", "unchanged" or "failed".
    result: &'static str,
    /// What was added to an object that runs.
    added: Vec<String>,
    /// The code of the error, or null.
    code: Option<&'static str>,
    why: Option<String>,
    details: Vec<String>,
    #[serde(flatten)]
    hints: Hints,
}

impl ItemResult {
    fn new(kind: &'static str, name: &str, result: &Result<item::Outcome, Error>) -> Self {
        let mut new = Self {
            kind,
            name: name.to_owned(),
            result: "failed",
            added: Vec::new(),
            code: None,
            why: None,
            details: Vec::new(),
            hints: Hints::default(),
        };
        match result {
            Ok(item::Outcome::Restored) => new.result = "restored",
            Ok(item::Outcome::Unchanged) => new.result = "unchanged",
            Ok(item::Outcome::Added(added)) => {
                new.result = "changed";
                new.added.clone_from(added);
            }
            Err(error) => {
                new.code = Some(error.code.entry().name);
                new.why = Some(error.why.clone());
                new.details = error.details.clone();
                new.hints = error.hints();
            }
        }
        new
    }

    /// "export vol1  restored"
    fn lines(&self) -> Vec<String> {
        let name = match self.name.is_empty() {
            true => self.kind.to_owned(),
            false => format!("{} {}", self.kind, self.name),
        };
        let Some(why) = &self.why else {
            let added = match self.added.is_empty() {
                true => String::new(),
                false => format!(": {}", self.added.join(", ")),
            };
            return vec![format!("{name}  {}{added}", self.result)];
        };
        let code = self.code.unwrap_or_default();
        let mut lines = vec![format!("{name}  FAILED {code}: {why}")];
        lines.extend(self.details.iter().map(|line| format!("  {line}")));
        let hints = self.hints.lines().iter();
        lines.extend(hints.map(|hint| format!("  hint: {hint}")));
        lines
    }
}

/// Runs `farblk config restore`.
pub fn run(context: &Context, arguments: &Arguments) -> Result<(), Error> {
    context.configfs.require()?;
    identity::settle(context, &Job::new("cannot restore"))?;
    let mut items = Vec::new();
    let mut code = 0;
    for side in arguments.sides() {
        let saved = saved::load(&context.root, side);
        match &arguments.map {
            Some(name) => {
                let error = restore_map(context, &saved, name, &mut items)?;
                code = error.map_or(0, |error| exit_of_map(&error));
            }
            None => {
                add_unread_files(&saved, &mut items);
                if let Some(result) = host_name(context, &saved) {
                    let name = saved.host_name.as_deref().unwrap_or_default();
                    items.push(ItemResult::new("host", name, &result));
                }
                for object in in_order(&saved, side) {
                    let _ = restore(context, object, &mut items);
                }
            }
        }
    }
    if !arguments.is_of_unit && !context.configfs.is_dry_run() {
        wait_for_names(context, &mut items);
    }
    let complete = items.iter().all(|item| item.result != "failed");
    if !complete {
        context.exit.set(match code {
            // The disk is there, and its names may come.
            0 if arguments.map.is_some() => exit::UNREACHABLE,
            0 => exit::PARTIAL,
            code => code,
        });
    }
    if context.configfs.is_dry_run() {
        // The commands are the result; what cannot be done is told beside them.
        for item in items.iter().filter(|item| item.result == "failed") {
            context.output.warn(&item.lines().join("\n"));
        }
        return Ok(());
    }
    report(context, items)
}

/// Waits until the names of all maps that run are true. A map whose name is not has failed.
fn wait_for_names(context: &Context, items: &mut [ItemResult]) {
    let configfs = &context.configfs;
    let mut names = map::Names::new();
    for item in items
        .iter_mut()
        .filter(|item| item.kind == "map" && item.result != "failed")
    {
        let disk = configfs.attr(&configfs.path(&["maps", &item.name]), "device");
        let job = Job::new(format!("cannot restore map {}", item.name));
        let Some(disk) = disk.filter(|disk| !disk.is_empty()) else {
            continue;
        };
        if let Err(error) = names.wait(context, &item.name, Some(&disk), &job) {
            *item = ItemResult::new("map", &item.name, &Err(error));
        }
    }
}

fn report(context: &Context, items: Vec<ItemResult>) -> Result<(), Error> {
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.config-restore/1",
            complete: items.iter().all(|item| item.result != "failed"),
            items,
        });
    }
    for line in items.iter().flat_map(ItemResult::lines) {
        context.output.line(&line)?;
    }
    Ok(())
}

/// What is left to restore on a server, for its unit: everything at first, then only what failed.
/// What was restored once is the administrator's, who may disable or remove it.
pub struct Missing {
    /// The objects that failed.
    failed: BTreeSet<(Kind, String)>,
    /// The objects that are not tried again.
    done: BTreeSet<(Kind, String)>,
    /// True if there may be objects that are not known yet: a file could not be read.
    unread: bool,
    /// True if an object was found that runs with other settings.
    pub differs: bool,
}

impl Missing {
    /// Nothing was tried yet.
    pub fn new() -> Self {
        Self {
            failed: BTreeSet::new(),
            done: BTreeSet::new(),
            unread: true,
            differs: false,
        }
    }

    /// Tries once what is left, and prints the results. Returns true if something failed that a
    /// later attempt may restore.
    pub fn attempt(&mut self, context: &Context) -> Result<bool, Error> {
        context.configfs.require()?;
        identity::settle(context, &Job::new("cannot restore"))?;
        let side = Side::Server;
        let saved = saved::load(&context.root, side);
        let mut items = Vec::new();
        add_unread_files(&saved, &mut items);
        let was_unread = std::mem::replace(&mut self.unread, !items.is_empty());
        let mut failed = match self.unread {
            // What failed may be in the file that cannot be read now.
            true => self.failed.clone(),
            false => BTreeSet::new(),
        };
        for object in in_order(&saved, side) {
            let key = (object.kind, object.name.clone());
            let is_left = was_unread && !self.done.contains(&key);
            if !is_left && !self.failed.contains(&key) {
                continue;
            }
            failed.remove(&key);
            let result = restore(context, object, &mut items);
            // What runs with other settings does not change by itself.
            let differs = matches!(&result, Err(error) if error.code == Code::Differs);
            self.differs |= differs;
            match result.is_ok() || differs {
                true => self.done.insert(key),
                false => failed.insert(key),
            };
        }
        self.failed = failed;
        report(context, items)?;
        Ok(self.unread || !self.failed.is_empty())
    }
}

/// The objects of a side in the order in which they are restored.
fn in_order(saved: &Saved, side: Side) -> impl Iterator<Item = &Object> {
    let of_kind = |kind| {
        saved
            .objects
            .iter()
            .filter(move |object| object.kind == kind)
    };
    side.kinds().iter().copied().flat_map(of_kind)
}

/// Adds the files that cannot be read.
fn add_unread_files(saved: &Saved, items: &mut Vec<ItemResult>) {
    for problem in saved.problems.iter().filter(|problem| problem.is_error) {
        let error = error_of(problem, "cannot restore");
        let file = problem.place.as_ref().map(|place| place.file.display());
        let file = file.map(|file| file.to_string()).unwrap_or_default();
        items.push(ItemResult::new("file", &file, &Err(error)));
    }
}

/// Restores an object, and adds the result.
fn restore(context: &Context, object: &Object, items: &mut Vec<ItemResult>) -> Result<(), Error> {
    let what = format!("cannot restore {}", object.title());
    let result = match object.problems.iter().find(|problem| problem.is_error) {
        Some(problem) => Err(error_of(problem, &what)),
        None => item::restore(context, object, &what),
    };
    let kind = object.kind.word();
    items.push(ItemResult::new(kind, &object.name, &result));
    result.map(drop)
}

/// Restores one map. Returns its error, which is among the items then, too.
fn restore_map(
    context: &Context,
    saved: &Saved,
    name: &str,
    items: &mut Vec<ItemResult>,
) -> Result<Option<Error>, Error> {
    if let Some(object) = saved.find(Kind::Map, name) {
        if let Some(Err(error)) = host_name(context, saved) {
            context.output.warn(&error.to_string());
        }
        return Ok(restore(context, object, items).err());
    }
    let what = format!("cannot restore map {name}");
    if let Some(problem) = saved.problems.iter().find(|problem| problem.is_error) {
        return Err(error_of(problem, &what));
    }
    let valid = saved.objects.iter().filter(|object| is_valid(object));
    let names: Vec<_> = valid.map(|object| object.name.clone()).collect();
    let meant = match crate::name::nearest(name, &names) {
        Some(meant) => format!("  # did you mean {meant}?"),
        None => String::new(),
    };
    let file = Side::Client.file(&context.root);
    let why = format!("neither {} nor a file in client.d has it", file.display());
    Err(Error::new(Code::NotFound, what, why).hint(format!("farblk config show{meant}")))
}

/// The exit code for a map that could not be restored: 5 if another attempt may succeed without
/// any change to the files.
fn exit_of_map(error: &Error) -> u8 {
    let may_pass = matches!(
        error.code,
        // The export is not ready yet, or another host or life of this one still has it.
        Code::NoExport | Code::Taken | Code::Away | Code::Busy
        // The RDMA device or its address appears later.
        | Code::NoDevice | Code::NotLocal
    );
    match may_pass {
        true => exit::UNREACHABLE,
        false => error.exit(),
    }
}

fn error_of(problem: &Problem, what: &str) -> Error {
    Error::new(Code::BadFile, what, problem.to_string())
}

/// Sets the name that this host shows to servers, if a file says it and it differs.
fn host_name(context: &Context, saved: &Saved) -> Option<Result<item::Outcome, Error>> {
    let name = saved.host_name.as_ref()?;
    if context.host_name().as_ref() == Some(name) {
        return Some(Ok(item::Outcome::Unchanged));
    }
    let job = Job::new("cannot set the name of this host");
    let root = context.configfs.path(&[]);
    let result = context.configfs.set(&root, "host_name", name, &job);
    Some(result.map(|()| item::Outcome::Restored))
}
