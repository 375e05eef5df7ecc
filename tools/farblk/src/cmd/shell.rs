// SPDX-License-Identifier: GPL-2.0
//! Completion scripts and manual pages, made from the definition of the command line.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use super::Context;
use crate::cli::Cli;
use crate::error::{Code, Error};

/// Prints a completion script.
pub fn completions(context: &Context, shell: clap_complete::Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "farblk", &mut script);
    context
        .output
        .line(String::from_utf8_lossy(&script).trim_end())
}

/// Writes the manual pages into `dir`.
pub fn man(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .map_err(|e| {
            Error::new(
                Code::Io,
                format!("cannot write to {}", dir.display()),
                e.to_string(),
            )
        })
}
