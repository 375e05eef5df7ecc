// SPDX-License-Identifier: GPL-2.0
//! `farblk udev` and `farblk udev-export`: the helpers of the udev rules. They tell of which map a
//! disk is, also when the kernel did not say so in its uevent, and which saved export has a disk.

use std::fs;

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::configfs::Job;
use crate::error::{Code, Error};
use crate::saved::{self, Kind, Object, Side};

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

/// Runs `farblk udev-export`. Prints nothing of a disk that no saved export has, and an empty name
/// for one that this host is told to use itself: the export of that fails, as its disk is in use.
pub fn export(context: &Context, device: &str, links: &[String]) -> Result<(), Error> {
    let node = format!("/dev/{}", device.strip_prefix("/dev/").unwrap_or(device));
    if is_the_hosts(context, &node, links) {
        return context.output.line("FARBLK_EXPORT=");
    }
    let file = context.devices.file(&node);
    // The rules take away the links that come from what is on the disk.
    let lasts = |link: &&String| {
        let mut folders = ["/dev/disk/by-uuid/", "/dev/disk/by-label/"].iter();
        !folders.any(|folder| link.starts_with(folder))
    };
    let has_it = |object: &&Object| {
        let path = object.value("device");
        // Another disk may have the kernel's name after a reboot.
        object.kind == Kind::Export
            && object.is_enabled()
            && (links.iter().filter(lasts).any(|link| link == path)
                || file.as_deref() == Some(object.value("file")))
    };
    let saved = saved::load(&context.root, Side::Server);
    match saved.objects.iter().find(has_it) {
        Some(export) => context
            .output
            .line(&format!("FARBLK_EXPORT={}", export.name)),
        None => Ok(()),
    }
}

/// Returns true if fstab, crypttab or the command line of the kernel names a device.
fn is_the_hosts(context: &Context, node: &str, links: &[String]) -> bool {
    const TAGS: [(&str, &str); 4] = [
        ("/dev/disk/by-uuid/", "UUID="),
        ("/dev/disk/by-label/", "LABEL="),
        ("/dev/disk/by-partuuid/", "PARTUUID="),
        ("/dev/disk/by-partlabel/", "PARTLABEL="),
    ];
    let read = |file: &str| fs::read_to_string(context.root.join(file)).unwrap_or_default();
    let field = |text: String, number: usize| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let fields = lines.filter_map(|line| line.split_whitespace().nth(number));
        fields.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut told = field(read("etc/fstab"), 0);
    told.extend(field(read("etc/crypttab"), 1));
    for word in read("proc/cmdline").split_whitespace() {
        let value = word
            .strip_prefix("root=")
            .or_else(|| word.strip_prefix("resume="));
        told.extend(value.map(str::to_owned));
    }
    told.iter_mut().for_each(|one| one.retain(|c| c != '"'));
    let has = |name: &str| told.iter().any(|one| one == name);
    let has_link = |link: &String| {
        let mut tags = TAGS.iter();
        let is_tagged = |(folder, tag): &(&str, &str)| {
            let value = link.strip_prefix(folder);
            value.is_some_and(|value| has(&format!("{tag}{value}")))
        };
        has(link) || tags.any(is_tagged)
    };
    has(node) || links.iter().any(has_link)
}
