// SPDX-License-Identifier: GPL-2.0
//! `farblk udev`: the helper of the udev rules. It tells of which map a disk is, also when the
//! kernel did not say so in its uevent.

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::configfs::Job;
use crate::error::{Code, Error};

/// What udev has to know of a disk, schema `farblk.udev/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    /// The disk, "farblk0".
    disk: String,
    map: String,
    uuid: Option<String>,
    state: Option<String>,
}

/// Runs `farblk udev`. Fails with exit code 3 if no map has this disk; then there are no names to
/// give.
pub fn run(context: &Context, device: &str) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot tell of which map {device} is"));
    let disk = device.strip_prefix("/dev/").unwrap_or(device);
    configfs.require()?;
    let maps = configfs.path(&["maps"]);
    let attr = |map: &String, name: &str| configfs.attr(&maps.join(map), name);
    let mut names = configfs.names(&maps).into_iter();
    let Some(map) = names.find(|map| attr(map, "device").as_deref() == Some(disk)) else {
        let why = "no map has this disk";
        return Err(job.error(Code::NotFound, why).hint("farblk list"));
    };
    let document = Document {
        schema: "farblk.udev/1",
        disk: disk.to_owned(),
        uuid: attr(&map, "uuid"),
        state: attr(&map, "state"),
        map,
    };
    if context.output.is_json() {
        return context.output.document(&document);
    }
    let properties = [
        ("FARBLK_MAP", Some(&document.map)),
        ("FARBLK_UUID", document.uuid.as_ref()),
        ("FARBLK_STATE", document.state.as_ref()),
    ];
    let mut known = properties
        .iter()
        .filter_map(|(key, value)| value.map(|value| format!("{key}={value}")));
    known.try_for_each(|line| context.output.line(&line))
}
