// SPDX-License-Identifier: GPL-2.0
//! Completion scripts and manual pages.

use std::path::Path;

use super::Context;
use crate::error::{Code, Error};
use crate::{complete, manual};

/// Prints a completion script.
pub fn completions(context: &Context, shell: clap_complete::Shell) -> Result<(), Error> {
    match complete::script(shell) {
        Some(script) => context.output.line(&script),
        None => Err(Error::usage(format!(
            "there are no completions for {shell}"
        ))),
    }
}

/// Writes the manual pages into `dir`.
pub fn man(dir: &Path) -> Result<(), Error> {
    manual::write(dir).map_err(|e| {
        Error::new(
            Code::Io,
            format!("cannot write to {}", dir.display()),
            e.to_string(),
        )
    })
}
