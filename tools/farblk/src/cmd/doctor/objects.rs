// SPDX-License-Identifier: GPL-2.0
//! Checks of the ports, exports and maps of this host.

use std::path::Path;

use super::Check;
use crate::cmd::Context;
use crate::cmd::list::Map;
use crate::configfs::Job;
use crate::error::fill_in;
use crate::holders::{self, Holder};
use crate::quote;
use crate::saved::running::loop_name;
use crate::saved::{self, Kind, Object, Side};

/// What `farblk explain port` tells.
pub const EXPLAIN_PORT: &str = "\
A port of this host does not listen, or is in the files in /etc/farblk and not there. One in the \
state error lost its RDMA device or address, and listens again by itself once that is back.";
/// What `farblk explain export` tells.
pub const EXPLAIN_EXPORT: &str = "\
An export of this host is not online, or is in the files in /etc/farblk and not there. LVM or md of \
this host may have taken its disk, since a client has made volumes on it: the hint names the command \
that gives it back. If this host uses the disk itself, forget the export. One that is unavailable \
lost its block device, or that has no room. When a device that was removed is back, `farblk export \
create` with its settings offers the export again. One whose device has no room goes on by itself \
once there is room again; until then `farblk export create` is refused. Or the file behind an export \
was removed or replaced: clients go on to use the file that has no name any more, and all that they \
have written is lost when its loop device goes. Copy that while no client writes.";
/// What `farblk explain map` tells.
pub const EXPLAIN_MAP: &str = "\
A mapped disk has no path to its server, or I/O on it fails, or the map is in the files in \
/etc/farblk and not there. The text is the last error of the map; \
`farblk explain` followed by its code or its words tells more.";

/// Runs the checks. Objects that are disabled are so on purpose.
pub fn check(context: &Context) -> Vec<Check> {
    let configfs = &context.configfs;
    let mut checks = Vec::new();
    for (folder, kind, well) in [
        ("ports", "port", "listening"),
        ("exports", "export", "online"),
    ] {
        let names = configfs.names(&configfs.path(&[folder]));
        let mut count = 0;
        for name in names {
            let object = configfs.path(&[folder, &name]);
            let state = configfs.attr(&object, "state").unwrap_or_default();
            if state == well {
                match lost_file(context, kind, &name) {
                    Some(check) => checks.push(check),
                    None => count += 1,
                }
            } else if state != "disabled" {
                let why = match configfs.last_error(&object) {
                    Some(last) => format!(": {}", last.text),
                    None => String::new(),
                };
                let text = format!("{kind} {name} is {state}{why}");
                checks.push(match state.as_str() {
                    "error" | "unavailable" => Check::fail(kind, text).cure(match kind {
                        "port" => "farblk doctor  # again: it listens by itself once its device and address are back".into(),
                        _ => fill_in(
                            "farblk export show {name}  # one whose device has no room goes on by itself when it has; one whose device was removed: run its `farblk export create` again when that is back",
                            &[("name", &name)],
                        ),
                    }),
                    _ => Check::warn(kind, text),
                });
            }
        }
        if count > 0 {
            let text = match kind {
                "port" => format!("{count} listening"),
                _ => format!("{count} online"),
            };
            checks.push(Check::ok(kind, text));
        }
    }
    checks.extend(missing(context));
    checks.extend(maps(context));
    checks
}

/// Says which objects of the files are not there, and which devices of this host use the disks of
/// exports: LVM and md take a disk on which a client has made theirs.
fn missing(context: &Context) -> Vec<Check> {
    let configfs = &context.configfs;
    let mut checks = Vec::new();
    if configfs.require().is_err() {
        return checks;
    }
    let saved = Side::ALL.map(|side| saved::load(&context.root, side).objects);
    let is_missing = |object: &&Object| {
        let path = configfs.path(&[object.kind.directory(), &object.name]);
        object.is_enabled() && !configfs.exists(&path)
    };
    for object in saved.iter().flatten().filter(is_missing) {
        let mut text = format!("{} of {} does not run", object.title(), object.origin());
        let mut cure = String::new();
        match object.kind {
            Kind::Export => {}
            Kind::Port => {
                checks.push(Check::fail("port", text).cure("farblk config restore --server"));
                continue;
            }
            // It may have been unmapped for a while.
            Kind::Map => {
                let cure = fill_in(
                    "farblk config restore --map {name}\n\
                     farblk unmap {name} --forget  # or: removes it from the file",
                    &[("name", &object.name)],
                );
                checks.push(Check::warn("map", text).cure(cure));
                continue;
            }
        }
        let disk = disk_of(context, object);
        let found = disk.iter();
        let found: Vec<_> = found
            .flat_map(|disk| holders::find(&context.root, disk))
            .collect();
        for holder in &found {
            text += &format!("; {}", holder.describe());
        }
        // Clients make volumes on the disk of an export; but what is mounted is this host's.
        let is_device = |holder: &Holder| matches!(holder, Holder::Device { .. });
        if found.iter().all(is_device) {
            for remedy in holders::remedies(&found) {
                cure += &(remedy + "\n");
            }
            cure += "farblk config restore --server";
        } else {
            cure += &format!(
                "farblk export rm {} --forget  # this host uses the disk itself",
                quote::word(&object.name)
            );
        }
        checks.push(Check::fail("export", text).cure(cure));
    }
    checks
}

/// The name of the disk that a saved export is for, "sda".
fn disk_of(context: &Context, object: &Object) -> Option<String> {
    let devices = &context.devices;
    let device = match object.value("file") {
        "" => object.value("device").to_owned(),
        file => {
            devices
                .loops(Path::new(file), &Job::new(""))
                .ok()?
                .pop()?
                .device
        }
    };
    devices.name(&devices.number(Path::new(&device)).ok()??)
}

/// Says if clients of an export write to a file that has no name any more.
fn lost_file(context: &Context, kind: &'static str, name: &str) -> Option<Check> {
    let configfs = &context.configfs;
    let device = configfs.attr(&configfs.path(&["exports", name]), "device_path");
    let device = loop_name(context, &device.filter(|_| kind == "export")?)?;
    let was = context.devices.lost_file(&device)?;
    let text = format!("export {name}: its file {was} was removed or replaced; clients write on");
    let cure = fill_in(
        "cp --sparse=always {device} {copy}  # while no client writes; what is not copied is lost",
        &[("device", &device), ("copy", &format!("{was}.saved"))],
    );
    Some(Check::fail(kind, text).cure(cure))
}

fn maps(context: &Context) -> Vec<Check> {
    let configfs = &context.configfs;
    let mut checks = Vec::new();
    let mut live = 0;
    for name in configfs.names(&configfs.path(&["maps"])) {
        let map = Map::read(context, &name);
        let state = map.state.as_deref().unwrap_or_default();
        let down = map
            .paths
            .iter()
            .filter(|path| path.state.as_deref() == Some("waiting"));
        let trouble = down.clone().find_map(|path| path.last_error.as_ref());
        let (text, trouble) = match state {
            "disabled" => continue,
            "live" if trouble.is_none() => {
                live += 1;
                continue;
            }
            "live" => (
                format!(
                    "map {name}: {} of {} paths are down",
                    down.count(),
                    map.paths.len()
                ),
                trouble,
            ),
            state => (
                format!("map {name} is {state}"),
                map.last_error.as_ref().or(trouble),
            ),
        };
        let why = trouble.map_or(String::new(), |last| format!(": {}", last.text));
        let check = match state {
            "live" | "connecting" | "closing" => Check::warn("map", text + &why),
            _ => Check::fail("map", text + &why),
        };
        checks.push(match trouble {
            Some(trouble) => check.trouble(trouble),
            None => check.cure(fill_in("farblk show {name}", &[("name", name)])),
        });
    }
    if live > 0 {
        checks.push(Check::ok("map", format!("{live} live")));
    }
    checks
}
