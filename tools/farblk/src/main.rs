// SPDX-License-Identifier: GPL-2.0
//! `farblk`, the control tool: it works through the module's configfs tree and, for files, losetup.

mod addr;
mod cli;
mod clock;
mod cmd;
mod complete;
mod configfs;
mod counters;
mod device;
mod durable;
mod error;
mod holders;
mod identity;
mod interrupt;
mod manual;
mod module;
mod name;
mod output;
mod program;
mod quote;
mod saved;
mod secret;
mod size;
mod usage;

use std::cell::Cell;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Color, Form};
use cmd::Context;
use configfs::Configfs;
use device::Devices;
use output::Output;

fn main() -> ExitCode {
    if complete::run() {
        return ExitCode::SUCCESS;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match cli.global.color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    }
    .write_global();
    let json = cli.global.json || cli.global.pretty || cli.global.output == Form::Json;
    let context = Context {
        configfs: Configfs::new(&cli.global.root, cli.global.dry_run),
        devices: Devices::new(&cli.global.root),
        root: cli.global.root,
        output: Output::new(json, cli.global.quiet).pretty(cli.global.pretty),
        exit: Cell::new(0),
    };
    match cmd::run(&context, &cli.command) {
        Ok(()) => ExitCode::from(context.exit.get()),
        Err(error) => {
            context.output.error(&error);
            ExitCode::from(error.exit())
        }
    }
}

/// Ends a command line that cannot be parsed, or asks for help. A script that asked for JSON gets
/// the error as JSON.
fn refuse(error: &clap::Error) -> ExitCode {
    let informs = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if informs {
        let _ = error.print();
    } else {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<_> = words.collect();
        let json = wants_json(words.iter().cloned());
        Output::new(json, true).error(&usage::refused(error, &words));
    }
    ExitCode::from(error.exit_code() as u8)
}

/// Returns true if a command line that cannot be parsed asks for JSON, by any option of
/// [`cli::Global`].
fn wants_json(words: impl Iterator<Item = String>) -> bool {
    let mut is_form = false;
    for word in words.skip(1).take_while(|word| word != "--") {
        if std::mem::take(&mut is_form) {
            if word == "json" {
                return true;
            }
        } else if let Some(long) = word.strip_prefix("--") {
            is_form = long == "output";
            if ["json", "pretty", "output=json"].contains(&long) {
                return true;
            }
        } else if let Some(short) = word.strip_prefix('-') {
            // Those before have no value.
            let Some((at, option)) = short.char_indices().find(|(_, c)| !"qy".contains(*c)) else {
                continue;
            };
            let value = &short[at + option.len_utf8()..];
            is_form = option == 'o' && value.is_empty();
            if "jp".contains(option) || option == 'o' && value.trim_start_matches('=') == "json" {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_json() {
        let wants = |line: &str| wants_json(line.split(' ').map(str::to_owned));
        for line in [
            "farblk -j list x",
            "farblk -qj list x",
            "farblk -jq list x",
            "farblk --json list x",
            "farblk -qp list x",
            "farblk --pretty list x",
            "farblk -o json list x",
            "farblk -ojson list x",
            "farblk -o=json list x",
            "farblk list x -qo json",
            "farblk --output json list x",
            "farblk --output=json list x",
        ] {
            assert!(wants(line), "{line}");
        }
        for line in [
            "farblk list x",
            "farblk -o table list json",
            "farblk -q list json",
            "farblk --output table list x",
            "farblk -oj list x",
            "farblk list -- -j",
            "farblk - list -é",
            "-j",
        ] {
            assert!(!wants(line), "{line}");
        }
    }
}
