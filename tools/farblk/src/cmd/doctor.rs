// SPDX-License-Identifier: GPL-2.0
//! `farblk doctor`: what is wrong with this host, or with its way to a server, and the command that
//! cures it.
//!
//! The checks only look. With a server, the kernel asks it for its exports, as `farblk discover`
//! does.

use std::fs;
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Context, Trouble};
use crate::cli;
use crate::error::{Code, Error, Hints};
use crate::output::table;

mod firewall;
mod host;
mod iptables;
mod keys;
mod network;
mod nft;
mod objects;
mod probe;
mod server;

/// The exit code when nothing fails and a check warns.
const WARNINGS: u8 = 10;
/// The exit code when a check fails.
const FAILURES: u8 = 11;

/// The names of the checks, and what `farblk explain` tells of them.
pub const CHECKS: &[(&str, &str)] = &[
    ("module", host::EXPLAIN_MODULE),
    ("version", host::EXPLAIN_VERSION),
    ("name", host::EXPLAIN_NAME),
    ("fstab", host::EXPLAIN_FSTAB),
    ("key", keys::EXPLAIN),
    ("rdma", network::EXPLAIN_RDMA),
    ("link", network::EXPLAIN_LINK),
    ("gid", network::EXPLAIN_GID),
    ("mtu", network::EXPLAIN_MTU),
    ("route", network::EXPLAIN_ROUTE),
    ("firewall", firewall::EXPLAIN),
    ("port", objects::EXPLAIN_PORT),
    ("export", objects::EXPLAIN_EXPORT),
    ("map", objects::EXPLAIN_MAP),
    ("server", server::EXPLAIN),
    ("admission", server::EXPLAIN_ADMISSION),
];

/// How bad the finding of a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    Ok,
    /// It could not be looked at, or concerns nobody here.
    Info,
    /// It works, or may work, but not as it should.
    Warn,
    /// It does not work.
    Fail,
}

/// The host on which a remedy has to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// This host.
    Here,
    /// The server.
    Server,
}

/// The finding of a check.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Check {
    /// The name of the check, see `farblk explain`.
    name: &'static str,
    level: Level,
    /// What was found.
    text: String,
    /// The code of the error that a command fails with because of it.
    code: Option<&'static str>,
    /// Where the remedies have to be run.
    place: Option<Place>,
    #[serde(flatten)]
    hints: Hints,
}

impl Check {
    fn new(name: &'static str, level: Level, text: impl Into<String>) -> Self {
        Self {
            name,
            level,
            text: text.into(),
            code: None,
            place: None,
            hints: Hints::default(),
        }
    }

    fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(name, Level::Ok, text)
    }

    fn info(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(name, Level::Info, text)
    }

    fn warn(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(name, Level::Warn, text)
    }

    fn fail(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(name, Level::Fail, text)
    }

    /// A failure with the remedies of `error`.
    fn error(name: &'static str, error: &Error) -> Self {
        let check = Self::fail(name, error.to_string()).code(error.code);
        check.cure(error.hints().lines().join("\n"))
    }

    fn code(mut self, code: Code) -> Self {
        self.code = Some(code.entry().name);
        self
    }

    /// Says what to run on this host.
    fn cure(mut self, hint: impl Into<String>) -> Self {
        self.hints = Hints::new(hint.into());
        self.place = (!self.hints.lines().is_empty()).then_some(Place::Here);
        self
    }

    /// The remedies of a map or path, of which some are for the server.
    fn trouble(mut self, trouble: &Trouble) -> Self {
        self.code = Some(trouble.code);
        self.hints = trouble.hints.clone();
        let on_server =
            |line: &String| line.contains("# on the server") || line.contains("or, on the server");
        let first = self
            .hints
            .lines()
            .iter()
            .find(|line| !line.starts_with('#'));
        self.place = first.map(|line| match on_server(line) {
            true => Place::Server,
            false => Place::Here,
        });
        self
    }

    /// Says what to run on the server.
    fn cure_there(mut self, hint: impl Into<String>) -> Self {
        self.hints = Hints::new(hint.into());
        self.place = Some(Place::Server);
        self
    }
}

/// The findings, schema `farblk.doctor/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    host: Option<String>,
    /// The server as the command line names it.
    server: Option<String>,
    /// The worst level of all checks.
    result: Level,
    /// The exit code: 0, 10 or 11.
    exit: u8,
    checks: Vec<Check>,
}

/// The files of this host.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file without the blanks around it; "" if it cannot be read.
    fn text(&self, path: &str) -> String {
        self.text_as_it_is(path).trim().to_owned()
    }

    /// The text of a file; "" if it cannot be read.
    fn text_as_it_is(&self, path: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(path)).unwrap_or_default()).into_owned()
    }

    /// The names in a folder, in order.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_cached_key(|name| (name.parse().unwrap_or(u64::MAX), name.clone()));
        names
    }
}

/// Runs `farblk doctor`.
pub fn run(context: &Context, arguments: &cli::Doctor) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Err(Error::usage("doctor only looks: it has no dry run").hint("farblk doctor"));
    }
    let files = Files(&context.root);
    let mut checks = vec![host::module(context)];
    checks.extend(host::version(context));
    checks.extend(host::name(context));
    let ports = network::ports(&files);
    checks.extend(network::check(&files, &ports));
    checks.extend(firewall::check(&files, &ports));
    checks.extend(host::fstab(context, &files));
    checks.extend(keys::check(context, &files));
    checks.extend(objects::check(context));
    if let Some(server) = &arguments.server {
        checks.extend(server::check(context, &files, &ports, server));
    }
    let result = checks.iter().map(|check| check.level).max();
    let result = result.unwrap_or(Level::Ok);
    let exit = match result {
        Level::Fail => FAILURES,
        Level::Warn => WARNINGS,
        _ => 0,
    };
    context.exit.set(exit);
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.doctor/1",
            host: context.host_name(),
            server: arguments.server.as_ref().map(ToString::to_string),
            result,
            exit,
            checks,
        });
    }
    print(context, &checks)
}

fn print(context: &Context, checks: &[Check]) -> Result<(), Error> {
    let row = |check: &Check| vec![check.name.to_owned(), check.text.clone()];
    let rows: Vec<_> = checks.iter().map(row).collect();
    let lines = table(&["CHECK", "FINDING"], &rows);
    context.output.line(&format!("      {}", lines[0]))?;
    for (line, check) in lines[1..].iter().zip(checks) {
        let (word, style) = match check.level {
            Level::Ok => ("ok", AnsiColor::Green.on_default()),
            Level::Info => ("info", Style::new()),
            Level::Warn => ("warn", AnsiColor::Yellow.on_default()),
            Level::Fail => ("FAIL", AnsiColor::Red.on_default().bold()),
        };
        context
            .output
            .line(&format!("{style}{word:<4}{style:#}  {line}"))?;
        let there = match check.place {
            Some(Place::Server) => ", on the server",
            _ => "",
        };
        for hint in check.hints.lines() {
            context
                .output
                .line(&format!("        fix{there}: {hint}"))?;
        }
    }
    let worst = checks
        .iter()
        .filter(|check| check.level >= Level::Warn)
        .max_by_key(|check| check.level);
    if let Some(check) = worst {
        context
            .output
            .note(&format!("more: farblk explain {}", check.name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_order() {
        assert!(Level::Fail > Level::Warn && Level::Warn > Level::Info && Level::Info > Level::Ok);
    }

    #[test]
    fn a_cure_has_a_place() {
        let check = Check::fail("map", "x").cure("");
        assert_eq!((check.place, check.hints.lines().len()), (None, 0));
        let check = Check::fail("map", "x").cure("a\nb");
        assert_eq!(
            (check.place, check.hints.lines().len()),
            (Some(Place::Here), 2)
        );
    }
}
