// SPDX-License-Identifier: GPL-2.0
//! `farblk`, the control tool: it works through the module's configfs tree and, for files, losetup.

mod addr;
mod cli;
mod cmd;
mod configfs;
mod device;
mod error;
mod holders;
mod name;
mod output;
mod size;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Color, Form};
use cmd::Context;
use configfs::Configfs;
use device::Devices;
use error::Error;
use output::Output;

fn main() -> ExitCode {
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
    let json = cli.global.json || cli.global.output == Form::Json;
    let context = Context {
        configfs: Configfs::new(&cli.global.root, cli.global.dry_run),
        devices: Devices::new(&cli.global.root),
        root: cli.global.root,
        output: Output::new(json, cli.global.quiet),
    };
    match cmd::run(&context, &cli.command) {
        Ok(()) => ExitCode::SUCCESS,
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
    let json = std::env::args_os().any(|argument| {
        argument == "-j"
            || argument == "--json"
            || argument == "-ojson"
            || argument == "--output=json"
    });
    if json && !informs {
        let text = error.to_string();
        let what = text.split("\n\n").next().unwrap_or_default();
        let what = what.strip_prefix("error: ").unwrap_or(what);
        Output::new(true, true).error(&Error::usage(what));
    } else {
        let _ = error.print();
    }
    ExitCode::from(error.exit_code() as u8)
}
