// SPDX-License-Identifier: GPL-2.0
//! Checks of the module, of the releases, and of /etc/fstab.

use super::{Check, Files};
use crate::cmd::Context;
use crate::error::Code;
use crate::identity;
use crate::quote;

/// What `farblk explain module` tells.
pub const EXPLAIN_MODULE: &str = "\
The kernel module farblk must be installed for the running kernel, loaded, and its tree must be in \
/sys/kernel/config. A kernel that loads signed modules only, as with Secure Boot, also needs a \
signature by a key that it knows. If DKMS could not build the module, the check repeats what was \
missing, or which log says why (/var/lib/farblk/dkms-RELEASE.log).";
/// What `farblk explain version` tells.
pub const EXPLAIN_VERSION: &str = "\
The tool and the loaded module should come from one release, and the two hosts must speak a common \
version of the protocol. After an upgrade the old module stays loaded until it is removed, which \
needs that no map, export or port is left. The module parameter protocol_version limits the \
versions that a client offers.";
/// What `farblk explain name` tells.
pub const EXPLAIN_NAME: &str = "\
Exports admit a host by its host_name, which is that of the node if it has 1 to 63 letters, digits \
and . _ : - and does not start with a dot. A node with another name is localhost, as all such nodes \
are: give it a name of its own, and `farblk config save` keeps that.";
/// What `farblk explain fstab` tells.
pub const EXPLAIN_FSTAB: &str = "\
A file system on a farblk disk needs the network. Without the option _netdev in /etc/fstab, systemd \
mounts it before the network is up, and ends the network before it is unmounted, which hangs the \
shutdown. Without nofail a server that is down stops the boot. The name /dev/farblk0 may be that of \
another map after a reboot: use /dev/farblk/by-name/MAP.";

/// Checks that the module is installed and loaded, and that its tree is there.
pub fn module(context: &Context) -> Check {
    let configfs = &context.configfs;
    let Err(error) = configfs.require() else {
        let version = configfs.attr(&configfs.path(&[]), "version");
        let version = version.unwrap_or_else(|| "of an unknown version".into());
        return Check::ok("module", format!("farblk {version} is loaded"));
    };
    let check = Check::error("module", &error);
    let files = Files(&context.root);
    let release = files.text("proc/sys/kernel/osrelease");
    let log = files.text(&format!("var/lib/farblk/dkms-{release}.log"));
    let lines = |prefix: &'static str| {
        log.lines()
            .filter_map(move |line| line.strip_prefix(prefix))
    };
    // The build is tried, and may fail, only if nothing is missing.
    let reasons: Vec<_> = lines("missing: ").chain(lines("failed: ")).collect();
    if error.code != Code::NotInstalled || reasons.is_empty() {
        return check;
    }
    let why = format!(
        "DKMS could not build farblk for {release}: {}",
        reasons.join("; ")
    );
    let mut fixes: Vec<_> = lines("  fix: ").map(str::to_owned).collect();
    fixes.push(format!(
        "dkms autoinstall --kernelver {}",
        quote::word(&release)
    ));
    Check::fail("module", why)
        .code(error.code)
        .cure(fixes.join("\n"))
}

/// Compares the release of the module with that of the tool.
pub fn version(context: &Context) -> Option<Check> {
    let configfs = &context.configfs;
    let module = configfs.attr(&configfs.path(&[]), "version")?;
    let tool = env!("CARGO_PKG_VERSION");
    Some(match module == tool {
        true => Check::ok("version", format!("the tool and the module are {tool}")),
        false => Check::warn(
            "version",
            format!("the tool is {tool}, the module that is loaded {module}"),
        )
        .cure(RELOAD.to_owned() + "  # after all maps, exports and ports are removed"),
    })
}

/// Warns if servers know this host by a name that is not its own.
pub fn name(context: &Context) -> Option<Check> {
    let own = identity::unusable_name(context)?;
    let cure = identity::name_cure().lines().join("\n");
    Some(Check::warn("name", identity::no_name(&own)).cure(cure))
}

/// Loads the installed module instead of the one that is loaded.
pub const RELOAD: &str = "modprobe -r farblk && modprobe farblk";

/// A line of /etc/fstab.
struct Mount<'a> {
    /// Counted from 1.
    line: usize,
    source: &'a str,
    target: &'a str,
    options: Vec<&'a str>,
}

fn mounts(text: &str) -> impl Iterator<Item = Mount<'_>> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let mut words = line.split_whitespace();
        let source = words.next().filter(|word| !word.starts_with('#'))?;
        let target = words.next()?;
        let options = words.nth(1).unwrap_or_default().split(',').collect();
        Some(Mount {
            line: index + 1,
            source,
            target,
            options,
        })
    })
}

/// Returns the path of the device that a line names: UUID=, LABEL= and the like are links.
fn device(files: &Files, source: &str) -> String {
    let (folder, name) = match source.split_once('=') {
        Some(("UUID", name)) => ("uuid", name),
        Some(("LABEL", name)) => ("label", name),
        Some(("PARTUUID", name)) => ("partuuid", name),
        Some(("PARTLABEL", name)) => ("partlabel", name),
        _ => return source.to_owned(),
    };
    let link = format!("dev/disk/by-{folder}/{}", name.trim_matches('"'));
    let target = std::fs::read_link(files.path(&link)).unwrap_or_default();
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!("/dev/{name}")
}

/// Checks the options of the file systems of /etc/fstab that are on disks of this module.
pub fn fstab(context: &Context, files: &Files) -> Vec<Check> {
    let text = files.text_as_it_is("etc/fstab");
    let path = quote::path(&context.root.join("etc/fstab"));
    let mut checks = Vec::new();
    let mut count = 0;
    for mount in mounts(&text) {
        let device = device(files, mount.source);
        let is_number = device.starts_with("/dev/farblk") && !device.starts_with("/dev/farblk/");
        if !is_number
            && !device.starts_with("/dev/farblk/")
            && !device.starts_with("/dev/disk/by-id/farblk-")
        {
            continue;
        }
        count += 1;
        let target = mount.target;
        let missing: Vec<_> = ["_netdev", "nofail"]
            .into_iter()
            .filter(|option| !mount.options.contains(option) && !mount.options.contains(&"noauto"))
            .collect();
        if !missing.is_empty() {
            let add = missing.join(",");
            let why = format!(
                "line {} of /etc/fstab ({target}) lacks {}",
                mount.line,
                missing.join(" and ")
            );
            // The fourth word of the line is its options.
            let cure = format!(
                r"sed -i -E '{}s/^(\s*\S+\s+\S+\s+\S+\s+\S+)/\1,{add}/' {path}",
                mount.line
            );
            let check = match missing.contains(&"_netdev") {
                true => Check::fail("fstab", why),
                false => Check::warn("fstab", why),
            };
            checks.push(check.cure(cure));
        }
        if is_number && mount.source == device {
            let why = format!(
                "line {} of /etc/fstab ({target}) names {device}, which may be another disk after a \
                 reboot",
                mount.line
            );
            let by_name = map_of(context, &device).map(|map| format!("/dev/farblk/by-name/{map}"));
            let cure =
                by_name.map(|name| format!("sed -i '{}s|{device}|{name}|' {path}", mount.line));
            checks.push(Check::warn("fstab", why).cure(cure.unwrap_or_default()));
        }
    }
    if checks.is_empty() && count > 0 {
        checks.push(Check::ok(
            "fstab",
            format!("{count} file systems of farblk disks wait for the network"),
        ));
    }
    checks
}

/// Returns the name of the map with this disk.
fn map_of(context: &Context, device: &str) -> Option<String> {
    let configfs = &context.configfs;
    let names = configfs.names(&configfs.path(&["maps"]));
    names.into_iter().find(|name| {
        let disk = configfs.attr(&configfs.path(&["maps", name]), "device");
        disk.is_some_and(|disk| device == format!("/dev/{disk}"))
    })
}
