// SPDX-License-Identifier: GPL-2.0
//! The commands, one noun per file.

use std::cell::Cell;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::Command;
use crate::configfs::{Configfs, Job, LastError};
use crate::device::Devices;
use crate::durable::Lock;
use crate::error::{Code, Error, Hints, Peer};
use crate::name;
use crate::output::Output;

mod backing;
pub mod config;
pub mod demo;
pub mod discover;
pub mod doctor;
mod events;
pub mod explain;
pub mod export;
pub mod key;
pub mod list;
pub mod map;
mod metrics;
pub mod path;
mod persist;
mod ping;
pub mod port;
mod registration;
pub mod report;
mod sample;
pub mod schema;
mod shell;
mod stats;
mod top;
mod udev;
mod unit;
mod version;

#[cfg(test)]
mod tests;

/// The context of a command.
pub struct Context {
    /// The directory above /sys, /dev, /proc and /etc.
    pub root: PathBuf,
    /// The module's tree.
    pub configfs: Configfs,
    /// The block devices of this host.
    pub devices: Devices,
    /// The user.
    pub output: Output,
    /// The exit code of a command that has printed its result.
    pub exit: Cell<u8>,
}

impl Context {
    /// Returns the name of this host, as servers see it.
    pub fn host_name(&self) -> Option<String> {
        self.configfs.attr(&self.configfs.path(&[]), "host_name")
    }

    /// The job, with the variables for hints about this host as a client.
    pub fn as_client(&self, job: Job) -> Job {
        let root = self.configfs.path(&[]);
        let names = [("client", "host_name"), ("host_id", "host_id")];
        names.into_iter().fold(job, |job, (key, name)| {
            match self.configfs.attr(&root, name) {
                Some(value) => job.variable(key, value),
                None => job,
            }
        })
    }

    /// Takes the lock of the commands that make or remove exports, or write the files in
    /// /etc/farblk. A dry run needs none.
    pub fn lock(&self, job: &Job) -> Result<Option<Lock>, Error> {
        let lock = || Lock::take(&self.root, job);
        (!self.configfs.is_dry_run()).then(lock).transpose()
    }

    /// Takes the lock of the commands that make a map: each map has one, as enabling it may take
    /// long.
    pub fn lock_map(&self, map: &str, job: &Job) -> Result<Option<Lock>, Error> {
        let lock = || Lock::take_of_map(&self.root, map, job);
        (!self.configfs.is_dry_run()).then(lock).transpose()
    }

    /// An error for an object that must exist.
    pub fn not_found(&self, what: &str, kind: &str, name: &str) -> Error {
        let names = self
            .configfs
            .names(&self.configfs.path(&[&format!("{kind}s")]));
        let meant = match name::nearest(name, &names) {
            Some(meant) => format!("  # did you mean {meant}?"),
            None => String::new(),
        };
        let list = match kind {
            "map" => "list".into(),
            kind => format!("{kind} list"),
        };
        let why = format!("there is no {kind} {name:?} on this host");
        Error::new(Code::NotFound, what, why).hint(format!("farblk {list}{meant}"))
    }
}

/// The result of a command that removed something, schema `farblk.removed/1`.
#[derive(JsonSchema, Serialize)]
struct Removed<'a> {
    schema: &'static str,
    kind: &'static str,
    /// The map of a path that was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<&'a str>,
    name: &'a str,
    /// True if the object existed.
    changed: bool,
}

impl<'a> Removed<'a> {
    fn new(kind: &'static str, name: &'a str, changed: bool) -> Self {
        Self {
            schema: "farblk.removed/1",
            kind,
            map: None,
            name,
            changed,
        }
    }
}

/// The last error of a map or path, and what to do about it.
#[derive(JsonSchema, Serialize)]
pub struct Trouble {
    errno: String,
    /// The kernel's words.
    pub text: String,
    /// The code, "F0203".
    pub code: &'static str,
    /// The remedies.
    #[serde(flatten)]
    pub hints: Hints,
}

impl Trouble {
    /// `last`, with the hints of `job`.
    fn new(context: &Context, last: LastError, job: &Job) -> Self {
        let code = match Code::from_words(&last.errno, &last.text, Peer::Server) {
            Code::Unreachable if context.configfs.has_no_rdma_device() => Code::NoDevice,
            code => code,
        };
        Self::with_code(last, code, job)
    }

    /// The same of which the cause is known.
    fn with_code(last: LastError, code: Code, job: &Job) -> Self {
        Self {
            hints: job.error(code, &last.text).hints(),
            errno: last.errno,
            text: last.text,
            code: code.entry().name,
        }
    }

    /// The lines for people.
    fn lines(&self) -> Vec<String> {
        let hints = self.hints.lines().iter();
        let mut lines = vec![format!("last error: {}", self.text)];
        lines.extend(hints.map(|hint| format!("hint: {hint}")));
        lines
    }
}

/// The commands of a dry run as JSON, schema `farblk.dry-run/1`.
#[derive(JsonSchema, Serialize)]
struct Script {
    schema: &'static str,
    commands: Vec<String>,
}

/// Refuses a dry run of a command that changes nothing.
fn refuse_dry_run(context: &Context, command: &str) -> Result<(), Error> {
    if !context.configfs.is_dry_run() {
        return Ok(());
    }
    let why = format!("{command} changes nothing on this host");
    let error = Error::new(Code::Usage, "there is nothing to print for --dry-run", why);
    Err(error.hint(format!("farblk {command}")))
}

/// Runs a command.
pub fn run(context: &Context, command: &Command) -> Result<(), Error> {
    match command {
        Command::Port(command) => port::run(context, command),
        Command::Export(command) => export::run(context, command),
        Command::Discover(arguments) => discover::run(context, arguments),
        Command::Ping(arguments) => ping::run(context, arguments),
        Command::Map(arguments) => map::map(context, arguments),
        Command::Unmap(arguments) => map::unmap(context, arguments),
        Command::Remap(arguments) => map::remap(context, arguments),
        Command::Rekey(arguments) => key::rekey(context, arguments),
        Command::Key(command) => key::run(context, command),
        Command::Path(command) => path::run(context, command),
        Command::List => list::run(context),
        Command::Show { map } => list::show(context, map),
        Command::Explain { words } => explain::run(context, words),
        Command::Report { file } => report::run(context, file.as_deref()),
        Command::Doctor(arguments) => doctor::run(context, arguments),
        Command::Schema(command) => schema::run(context, command),
        Command::Config(command) => config::run(context, command),
        Command::Stats(arguments) => stats::run(context, arguments),
        Command::Top(arguments) => top::run(context, arguments),
        Command::Events => events::run(context),
        Command::Metrics(arguments) => metrics::run(context, arguments),
        Command::Demo(arguments) => demo::run(context, arguments),
        Command::Version => version::run(context),
        Command::Completions { shell } => shell::completions(context, *shell),
        Command::Udev { device } => udev::run(context, device),
        Command::UdevExport { device, links } => udev::export(context, device, links),
        Command::Unit(unit) => unit::run(context, unit),
        Command::Man { dir } => shell::man(dir),
    }?;
    if !context.configfs.is_dry_run() {
        return Ok(());
    }
    let commands = context.configfs.take_script();
    if context.output.is_json() {
        return context.output.document(&Script {
            schema: "farblk.dry-run/1",
            commands,
        });
    }
    commands
        .iter()
        .try_for_each(|command| context.output.line(command))
}
