// SPDX-License-Identifier: GPL-2.0
//! The registrations of exports over a planned restart of the server, see sessions.rst.
//!
//! When the tool has disabled an export, it writes down which map had it. When it enables an export
//! that the kernel knows no registration of, it gives that back: the map goes on then, however long
//! the restart took. What is written down holds once, and until the export is enabled: after a
//! crash it would be out of date.

use std::fs;
use std::path::Path;

use super::Context;
use crate::configfs::Job;
use crate::durable;
use crate::error::{Code, Error};
use crate::holders;
use crate::name;
use crate::saved::FOLDER;

/// The name of the file. Each line has the UUID of an export and the key of a map.
const FILE: &str = "registrations";
/// The largest number of lines that are kept; the oldest ones go first.
const LINES_MAX: usize = 4096;

/// Reads the lines that are valid. A file that cannot be read has none: the leases decide then.
fn lines(context: &Context) -> Vec<(String, String)> {
    let file = context.root.join(FOLDER).join(FILE);
    let text = fs::read_to_string(file).unwrap_or_default();
    let parse = |line: &str| {
        let (uuid, key) = line.split_once(' ')?;
        let key: u64 = key.parse().ok().filter(|key| *key != 0)?;
        Some((name::parse_uuid(uuid).ok()?, key.to_string()))
    };
    text.lines().filter_map(parse).collect()
}

fn write(context: &Context, lines: &[(String, String)], job: &Job) -> Result<(), Error> {
    let file = context.root.join(FOLDER).join(FILE);
    let text = lines.iter().map(|(uuid, key)| format!("{uuid} {key}\n"));
    durable::put(&file, &text.collect::<String>(), job)
}

/// Writes down the registration of the export `object`, which is disabled. The caller holds the
/// lock.
pub fn keep(context: &Context, object: &Path, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    if configfs.is_dry_run() {
        return Ok(());
    }
    let Some(uuid) = configfs.attr(object, "uuid") else {
        return Ok(());
    };
    let before = lines(context);
    let mut after: Vec<_> = before
        .iter()
        .filter(|(have, _)| *have != uuid)
        .cloned()
        .collect();
    if let Some(key) = configfs.attr(object, "registration") {
        after.push((uuid, key));
    }
    let excess = after.len().saturating_sub(LINES_MAX);
    after.drain(..excess);
    match after == before {
        true => Ok(()),
        false => write(context, &after, job),
    }
}

/// Forgets the registration of the export `object`. The caller holds the lock.
pub fn forget(context: &Context, object: &Path, job: &Job) -> Result<(), Error> {
    let uuid = context.configfs.attr(object, "uuid");
    let mut lines = lines(context);
    let count = lines.len();
    lines.retain(|(have, _)| Some(have) != uuid.as_ref());
    match lines.len() == count || context.configfs.is_dry_run() {
        true => Ok(()),
        false => write(context, &lines, job),
    }
}

/// Enables the export `object`, which gets its registration back before. If that fails, the
/// registration stays written down for the next attempt. The caller holds the lock.
pub fn enable(context: &Context, object: &Path, job: &Job) -> Result<(), Error> {
    write_back(context, object, job)?;
    let result = context.configfs.set(object, "enable", "1", job);
    if result.is_err() {
        keep(context, object, job)?;
    }
    result.map_err(|error| match error.code {
        Code::InUse => name_users(context, object, error),
        _ => error,
    })
}

/// Adds to the error for a device in use who has it. The kernel does not know.
fn name_users(context: &Context, object: &Path, mut error: Error) -> Error {
    let device = context.configfs.attr(object, "device_path");
    let number = device.and_then(|device| context.devices.number(Path::new(&device)).ok()?);
    let disk = number.and_then(|number| context.devices.name(&number));
    let hidden = disk.map(|disk| holders::find_hidden(&context.root, &disk));
    let (texts, remedies): (Vec<_>, Vec<_>) = hidden
        .unwrap_or_default()
        .into_iter()
        .map(|user| (user.text, user.remedy))
        .unzip();
    if texts.is_empty() {
        return error;
    }
    error.details.extend(texts);
    error.hint(remedies.join("\n"))
}

/// Gives the export `object` its registration back, and forgets it.
fn write_back(context: &Context, object: &Path, job: &Job) -> Result<(), Error> {
    let configfs = &context.configfs;
    let uuid = configfs.attr(object, "uuid");
    let lines = lines(context);
    let Some((_, key)) = lines.iter().find(|(have, _)| Some(have) == uuid.as_ref()) else {
        return Ok(());
    };
    if configfs.attr(object, "registration").is_none() {
        configfs.set(object, "registration", key, job)?;
    }
    forget(context, object, job)
}
