// SPDX-License-Identifier: GPL-2.0
//! `farblk udev`: the helper of the udev rules. It tells of which map a disk is, also when the
//! kernel did not say so in its uevent.

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::configfs::Job;
use crate::error::{Code, Error};

/// What udev has to know of a disk or partition, schema `farblk.udev/1`.
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
    let Some(disk) = disk_of(device) else {
        return Err(job.error(Code::Usage, "it is no name such as farblk0 or farblk0p1"));
    };
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

/// The disk of "farblk0", "/dev/farblk0" or "farblk0p1", which is "farblk0" each time.
fn disk_of(device: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    let digits = name.strip_prefix("farblk")?;
    let (number, partition) = match digits.split_once('p') {
        Some((number, partition)) => (number, Some(partition)),
        None => (digits, None),
    };
    let valid = is_number(number) && partition.is_none_or(is_number);
    valid.then(|| &name[.."farblk".len() + number.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_and_partitions() {
        for (device, disk) in [
            ("farblk0", "farblk0"),
            ("/dev/farblk12", "farblk12"),
            ("farblk3p1", "farblk3"),
            ("/dev/farblk3p128", "farblk3"),
        ] {
            assert_eq!(disk_of(device), Some(disk));
        }
        for wrong in [
            "",
            "sda",
            "farblk",
            "farblkp1",
            "farblk0p",
            "farblk0p1p2",
            "farblk0/x",
            "farblk 0",
        ] {
            assert_eq!(disk_of(wrong), None, "{wrong}");
        }
    }
}
