// SPDX-License-Identifier: GPL-2.0
//! Command lines that cannot be parsed: what is wrong, and what to write instead.

use std::error::Error as _;
use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::cli::Cli;
use crate::error::Error;
use crate::{addr, name, quote};

/// Why a word of the command line is not valid, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    why: String,
    /// The remedies, one on each line; "" if there is none.
    hint: String,
}

impl Invalid {
    /// A word that is wrong for the reason `why`.
    pub fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            hint: hint.into(),
        }
    }
}

impl From<String> for Invalid {
    fn from(why: String) -> Self {
        Self::new(why, "")
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Invalid {}

/// Makes the error for the command line `words`, which clap refused with `error`.
pub fn refused(error: &clap::Error, words: &[String]) -> Error {
    let text = error.to_string();
    let text = text.split("\n\n").next().unwrap_or_default();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let what: Vec<_> = text.lines().map(str::trim).collect();
    Error::usage(what.join(" ")).hint(hint(error, words))
}

fn hint(error: &clap::Error, words: &[String]) -> String {
    let wrong = texts(error, ContextKind::InvalidSubcommand);
    let is_wrong = |word: &String| wrong.contains(word);
    let known = words.iter().take_while(|word| !is_wrong(word));
    let command = command_of(&Cli::command(), known);
    let help = format!("{command} --help");
    if let Some(invalid) = error.source().and_then(|e| e.downcast_ref::<Invalid>()) {
        if !invalid.hint.is_empty() {
            return invalid.hint.clone();
        }
    }
    let wrong = [wrong, texts(error, ContextKind::InvalidArg)].concat();
    if error.kind() == ErrorKind::MissingRequiredArgument {
        let needs_addr = wrong.iter().any(|wanted| wanted.starts_with("--addr "));
        let addr = words.iter().find(|word| addr::parse_local(word).is_ok());
        return match addr.filter(|_| needs_addr) {
            Some(addr) => format!("{command} --addr {}", quote::word(addr)),
            None => help,
        };
    }
    let known = texts(error, ContextKind::SuggestedSubcommand);
    let known = [known, texts(error, ContextKind::SuggestedArg)].concat();
    let meant = wrong.iter().find_map(|wrong| name::nearest(wrong, &known));
    match meant {
        Some(meant) if meant.starts_with('-') => format!("{help}  # did you mean {meant}?"),
        Some(meant) => format!("{command} {meant} --help  # did you mean {meant}?"),
        None => help,
    }
}

/// "farblk export create": the command that the words name, as far as there is one.
fn command_of<'a>(mut command: &Command, words: impl Iterator<Item = &'a String>) -> String {
    let mut name = command.get_name().to_owned();
    for word in words.skip(1) {
        if let Some(found) = command.find_subcommand(word) {
            name = name + " " + found.get_name();
            command = found;
        }
    }
    name
}

/// What clap tells of an error.
fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::error::is_shell;

    #[test]
    fn what_to_write_instead() {
        for (line, what, hint) in [
            (
                "map 10.0.0.1",
                "names no export",
                "farblk discover 10.0.0.1  # shows the exports of this server",
            ),
            ("map nvme://10.0.0.1/e", "is a URL", "# write 10.0.0.1/e"),
            ("discover x://", "is a URL", "farblk discover --help"),
            (
                "port add 10.0.0.1",
                "not provided: --addr",
                "farblk port add --addr 10.0.0.1",
            ),
            (
                "port add fd00::1",
                "not provided: --addr",
                "farblk port add --addr fd00::1",
            ),
            (
                "port add a",
                "not provided: --addr",
                "farblk port add --help",
            ),
            (
                "-q map fd00::1:7420/e",
                "write [fd00::1]:7420",
                "farblk map --help",
            ),
            (
                "path add m fd00::1:17420",
                "write [fd00::1]:17420",
                "farblk path add --help",
            ),
            ("prices", "'prices'", "farblk --help"),
            (
                "exprot list",
                "'exprot'",
                "farblk export --help  # did you mean export?",
            ),
            (
                "export lits",
                "'lits'",
                "farblk export list --help  # did you mean list?",
            ),
            (
                "map 10.0.0.1/e --souce 10.0.0.2",
                "'--souce'",
                "farblk map --help  # did you mean --source?",
            ),
            (
                "export create e",
                "--ram <SIZE>",
                "farblk export create --help",
            ),
        ] {
            let words: Vec<_> = format!("farblk {line}")
                .split(' ')
                .map(str::to_owned)
                .collect();
            let error = Cli::try_parse_from(&words).expect_err(line);
            let error = refused(&error, &words);
            assert!(error.what.contains(what), "{line}: {}", error.what);
            assert!(!error.what.contains('\n'), "{line}: {}", error.what);
            let hints = error.hints();
            assert_eq!(hints.lines()[0], hint, "{line}");
            assert!(hints.lines().iter().all(|hint| is_shell(hint)), "{line}");
        }
    }
}
