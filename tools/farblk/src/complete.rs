// SPDX-License-Identifier: GPL-2.0
//! Completion of command lines in bash, zsh and fish, with the names that this host has now.
//!
//! A shell's completion script calls the tool with [`VARIABLE`] in its environment and, after `--`,
//! the words that have been typed so far. The tool then prints the candidates for the last word.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use crate::cli::Cli;
use crate::configfs::Configfs;

/// The environment variable that names the shell which asks for candidates.
const VARIABLE: &str = "_FARBLK_COMPLETE";

/// What an argument names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Map,
    Export,
    MapOrExport,
    Port,
    /// A host of the export that the command line names.
    Host,
    /// A path of the map that the command line names.
    Path,
}

/// Prints the candidates if a completion script has asked for them. Returns false if this is an
/// ordinary call of the tool.
pub fn run() -> bool {
    let env = CompleteEnv::with_factory(command).var(VARIABLE);
    let directory = std::env::current_dir().ok();
    // A shell cannot show an error in the middle of a line.
    env.try_complete(std::env::args_os(), directory.as_deref())
        .unwrap_or(true)
}

/// The completion script for `shell`; `None` if the tool has none for it.
pub fn script(shell: Shell) -> Option<String> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string())?;
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "farblk", "farblk", "farblk", &mut script)
        .ok()?;
    let mut script = String::from_utf8(script).ok()?.trim().to_owned();
    if shell == Shell::Zsh {
        // zsh loads a file of its function path at the first completion, and calls it once for the
        // candidates; what the script registers is used from the second one on.
        script += "\n[[ ${funcstack[1]} != _farblk ]] || _clap_dynamic_completer_farblk \"$@\"";
    }
    Some(script)
}

/// The command line, with candidates for the names in it.
fn command() -> Command {
    with_names(Cli::command(), "")
}

/// Adds the candidates to `command`, which is a subcommand of `parent`.
fn with_names(command: Command, parent: &str) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| match kind(parent, &name, &arg) {
        // The hint would offer files beside the names.
        Some(kind) => arg
            .value_hint(ValueHint::Other)
            .add(ArgValueCandidates::new(move || candidates(kind))),
        None => arg,
    });
    command.mut_subcommands(|sub| with_names(sub, &name))
}

/// What `arg` of the command `parent command` names, if it is something that exists already.
fn kind(parent: &str, command: &str, arg: &Arg) -> Option<Kind> {
    let value = arg.get_value_names().and_then(|names| names.first());
    match (parent, command, arg.get_id().as_str()) {
        _ if value.is_some_and(|value| value == "MAP") => Some(Kind::Map),
        _ if value.is_some_and(|value| value == "EXPORT") => Some(Kind::Export),
        _ if value.is_some_and(|value| value == "MAP|EXPORT") => Some(Kind::MapOrExport),
        (_, "create" | "add", "name") => None,
        (_, "ping", "target") => Some(Kind::Map),
        ("export", "deny" | "evict" | "key", "host") => Some(Kind::Host),
        ("export", "create", "ports") => Some(Kind::Port),
        ("export", _, "name") => Some(Kind::Export),
        ("port", _, "name") => Some(Kind::Port),
        ("path", _, "name") => Some(Kind::Path),
        _ => None,
    }
}

/// The names that this host has, with a word about each.
fn candidates(kind: Kind) -> Vec<CompletionCandidate> {
    let typed = std::env::args_os().skip_while(|word| word != "--").skip(1);
    names(kind, &typed.collect::<Vec<_>>())
        .into_iter()
        .map(|(name, about)| CompletionCandidate::new(name).help(about.map(Into::into)))
        .collect()
}

/// The names that the host of the command line `typed` has, and what is to say of each.
fn names(kind: Kind, typed: &[OsString]) -> Vec<(String, Option<String>)> {
    if kind == Kind::MapOrExport {
        return [names(Kind::Map, typed), names(Kind::Export, typed)].concat();
    }
    let configfs = Configfs::new(&root(typed), false);
    let all = |parts: &[&str]| configfs.names(&configfs.path(parts));
    // Of the object that a word before this one names.
    let within = |objects: &str, members: Option<&str>| {
        let known = all(&[objects]);
        let named = typed.iter().rev().skip(1).find_map(|word| {
            known
                .iter()
                .find(|name| word.to_str() == Some(name.as_str()))
        });
        let Some(name) = named else {
            return Vec::new();
        };
        let mut parts = vec![objects, name.as_str()];
        parts.extend(members);
        all(&parts)
    };
    let (names, objects, attribute) = match kind {
        Kind::Map => (all(&["maps"]), "maps", "state"),
        Kind::Export | Kind::MapOrExport => (all(&["exports"]), "exports", "state"),
        Kind::Port => (all(&["ports"]), "ports", "addr"),
        Kind::Host => (within("exports", Some("hosts")), "", ""),
        Kind::Path => (within("maps", Some("paths")), "", ""),
    };
    let about = |name: &String| configfs.attr(&configfs.path(&[objects, name]), attribute);
    names
        .into_iter()
        .map(|name| {
            let about = (!objects.is_empty()).then(|| about(&name)).flatten();
            (name, about)
        })
        .collect()
}

/// The directory of `--root` in the words of a command line that is not complete yet.
fn root(typed: &[OsString]) -> PathBuf {
    let mut words = typed.iter();
    while let Some(word) = words.next() {
        if word == "--root" {
            return words
                .next()
                .map(PathBuf::from)
                .unwrap_or_else(|| "/".into());
        }
        if let Some(root) = word.to_str().and_then(|word| word.strip_prefix("--root=")) {
            return root.into();
        }
    }
    "/".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kinds of the arguments of the command that `path` names.
    fn kinds(path: &str) -> Vec<(String, Kind)> {
        let mut command = Cli::command();
        command.build();
        let (mut command, mut parent) = (&command, "");
        for name in path.split(' ') {
            parent = command.get_name();
            command = command.find_subcommand(name).expect(path);
        }
        let kind = |arg: &Arg| {
            Some((
                arg.get_id().to_string(),
                kind(parent, command.get_name(), arg)?,
            ))
        };
        command.get_arguments().filter_map(kind).collect()
    }

    #[test]
    fn which_arguments_are_names() {
        let of = |path: &str| match &kinds(path)[..] {
            [] => None,
            [(_, kind)] => Some(*kind),
            kinds => panic!("{path}: {kinds:?}"),
        };
        for path in [
            "unmap",
            "remap",
            "rekey",
            "show",
            "path add",
            "path list",
            "ping",
        ] {
            assert_eq!(of(path), Some(Kind::Map), "{path}");
        }
        for path in ["show", "allow", "disable", "enable", "resize", "rm"] {
            assert_eq!(of(&format!("export {path}")), Some(Kind::Export), "{path}");
        }
        assert_eq!(of("port rm"), Some(Kind::Port));
        assert_eq!(of("stats"), Some(Kind::MapOrExport));
        for path in ["map", "port add", "export list", "discover", "key new"] {
            assert_eq!(of(path), None, "{path}");
        }
        let two = |path: &str| {
            kinds(path)
                .into_iter()
                .map(|(_, kind)| kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(two("export evict"), [Kind::Export, Kind::Host]);
        assert_eq!(two("export key"), [Kind::Export, Kind::Host]);
        assert_eq!(two("path rm"), [Kind::Map, Kind::Path]);
    }

    #[test]
    fn where_the_names_are() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(root(&words("farblk unmap ")), PathBuf::from("/"));
        assert_eq!(root(&words("farblk --root /a unmap ")), PathBuf::from("/a"));
        assert_eq!(root(&words("farblk unmap --root=/b ")), PathBuf::from("/b"));
        assert_eq!(root(&words("farblk --root")), PathBuf::from("/"));
    }

    #[test]
    fn scripts_of_three_shells() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell).expect("a script");
            assert!(script.contains(VARIABLE), "{script}");
        }
    }
}
