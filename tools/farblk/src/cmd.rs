// SPDX-License-Identifier: GPL-2.0
//! The commands, one noun per file.

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::Command;
use crate::configfs::Configfs;
use crate::device::Devices;
use crate::error::{Code, Error};
use crate::output::Output;

mod backing;
pub mod discover;
pub mod export;
pub mod list;
pub mod map;
pub mod port;
mod shell;

#[cfg(test)]
mod tests;

/// What a command works with.
pub struct Context {
    /// Where /sys, /dev and /proc are.
    pub root: PathBuf,
    /// The module's tree.
    pub configfs: Configfs,
    /// The block devices of this host.
    pub devices: Devices,
    /// The user.
    pub output: Output,
}

impl Context {
    /// The name this host gives itself at the servers.
    pub fn host_name(&self) -> Option<String> {
        self.configfs.attr(&self.configfs.path(&[]), "host_name")
    }

    /// An error for an object that must exist.
    pub fn not_found(&self, what: &str, kind: &str, name: &str) -> Error {
        Error::new(
            Code::NotFound,
            what,
            format!("there is no {kind} {name:?} on this host"),
        )
        .hint(format!(
            "farblk {}",
            if kind == "map" {
                "list".into()
            } else {
                format!("{kind} list")
            }
        ))
    }
}

/// The result of a command that removed something, schema `farblk.removed/1`.
#[derive(Serialize)]
struct Removed<'a> {
    schema: &'static str,
    kind: &'static str,
    name: &'a str,
    /// Whether anything was there to remove.
    changed: bool,
}

impl<'a> Removed<'a> {
    fn new(kind: &'static str, name: &'a str, changed: bool) -> Self {
        Self {
            schema: "farblk.removed/1",
            kind,
            name,
            changed,
        }
    }
}

/// The commands of a dry run as JSON, schema `farblk.dry-run/1`.
#[derive(Serialize)]
struct Script {
    schema: &'static str,
    commands: Vec<String>,
}

/// Runs a command.
pub fn run(context: &Context, command: &Command) -> Result<(), Error> {
    match command {
        Command::Port(command) => port::run(context, command),
        Command::Export(command) => export::run(context, command),
        Command::Discover(arguments) => discover::run(context, arguments),
        Command::Map(arguments) => map::map(context, arguments),
        Command::Unmap(arguments) => map::unmap(context, arguments),
        Command::List => list::run(context),
        Command::Completions { shell } => shell::completions(context, *shell),
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
