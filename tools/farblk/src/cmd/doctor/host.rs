// SPDX-License-Identifier: GPL-2.0
//! Checks of the module, of the releases, of /etc/fstab and of /etc/crypttab.

use super::{Check, Files};
use crate::cmd::Context;
use crate::error::{Code, Error, fill_in};
use crate::identity;
use crate::name;
use crate::program::{self, Outcome};
use crate::quote;
use crate::saved::{self, Side};

/// What `farblk explain module` tells.
pub const EXPLAIN_MODULE: &str = "\
The kernel module farblk must be installed for the running kernel, loaded, and its tree must be in \
/sys/kernel/config. A kernel that loads signed modules only, as with Secure Boot, also needs a \
signature by a key that it knows. If DKMS could not build the module, the check repeats what was \
missing, or which log says why (/var/lib/farblk/dkms-RELEASE.log). If the kernel has refused the \
module that is installed, the check repeats what the kernel log says of that.";
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
are: give it a name of its own, and `farblk config save` keeps that. The module has taken the name \
when it was loaded: a node that was renamed since still has the old one there. What a file in \
/etc/farblk says counts when it is restored. The host_id, by which servers know a host that comes \
back, must be that of the file /etc/farblk/host_id, and no other host's.";
/// What `farblk explain fstab` tells.
pub const EXPLAIN_FSTAB: &str = "\
A file system on a farblk disk needs the network. Without the option _netdev in /etc/fstab, systemd \
mounts it before the network is up, and ends the network before it is unmounted, which hangs the \
shutdown. Without nofail a server that is down stops the boot. The same holds for /etc/crypttab. A \
line for swap holds up the boot whatever its options are: farblk-swap@MAP.service uses the swap \
space on the disk of a map instead. The name /dev/farblk0 may be that of another map after a \
reboot: use /dev/farblk/by-name/MAP.";

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
    if let Some(words) = refusal(&error) {
        // Other words mean that it was built for another kernel.
        let cure = match words.ends_with("is rejected") {
            true => error.hints().lines().join("\n"),
            false => {
                let release = files.text("proc/sys/kernel/osrelease");
                fill_in(Code::NotInstalled.entry().hint, &[("release", release)])
            }
        };
        let text = format!("{error}; when it was to be loaded: {words}");
        return Check::fail("module", text).code(error.code).cure(cure);
    }
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

/// Returns what the kernel has said when it refused to load the module that is installed, which
/// modprobe does not tell.
fn refusal(error: &Error) -> Option<String> {
    if !matches!(error.code, Code::NoModule | Code::Unsigned) {
        return None;
    }
    let Outcome::Text(log) = program::run("dmesg", &[]) else {
        return None;
    };
    let words = [
        "version magic",
        "disagrees about",
        "Unknown symbol",
        "is rejected",
    ];
    let said = |line: &str| {
        let (_, said) = line.split_once("farblk: ")?;
        let is_refusal = words.iter().any(|words| said.contains(words));
        is_refusal.then(|| said.to_owned())
    };
    log.lines().rev().find_map(said)
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

/// Warns if servers know this host by a name or an identity that is not its own, or will not be
/// after a reboot.
pub fn name(context: &Context) -> Vec<Check> {
    let mut checks = Vec::new();
    let own = Files(&context.root).text("proc/sys/kernel/hostname");
    let saved = saved::load(&context.root, Side::Client).host_name;
    let have = context.host_name();
    let warn = |why: String, cure: String| Check::warn("name", why).cure(cure);
    if let Some(own) = identity::unusable_name(context) {
        let cure = identity::name_cure().lines().join("\n");
        checks.push(warn(identity::no_name(&own), cure));
    } else if let Some(have) = have.filter(|have| saved.as_ref() != Some(have)) {
        if let Some(saved) = saved {
            let why = format!("servers know this host as {have}, and a file has host_name {saved}");
            checks.push(warn(why, "farblk config restore --client".into()));
        } else if have != own && name::parse(&own).is_ok() {
            let why = format!("servers know this host as {have}, but its name is {own}");
            let cure = fill_in(
                "echo {own} > /sys/kernel/config/farblk/host_name  # then allow {own} on the servers\n\
                 farblk config save  # or: keeps {have} over a reboot",
                &[("own", &own), ("have", &have)],
            );
            checks.push(warn(why, cure));
        }
    }
    if let Some((file, have)) = identity::difference(context) {
        let why = format!(
            "servers know this host by host_id {have}, and {} has {file}: after a reboot it is \
             another host to them",
            identity::file(&context.root).display()
        );
        checks.push(warn(why, "farblk config save".into()));
    }
    checks.extend(
        identity::problem(&context.root).map(|problem| match problem.is_error {
            true => Check::fail("name", problem.to_string()).cure(problem.hint),
            false => Check::info("name", problem.to_string()),
        }),
    );
    checks
}

/// Loads the installed module instead of the one that is loaded.
pub const RELOAD: &str = "modprobe -r farblk && modprobe farblk";

/// A line of /etc/fstab or of /etc/crypttab; in both the fourth word is the options.
struct Line<'a> {
    /// Counted from 1.
    number: usize,
    words: Vec<&'a str>,
}

impl Line<'_> {
    /// Returns true if the fourth word has this option.
    fn has(&self, option: &str) -> bool {
        let options = self.words.get(3);
        options.is_some_and(|options| options.split(',').any(|have| have == option))
    }

    /// Returns the command that adds options to it.
    fn add(&self, options: &str, path: &str) -> String {
        let (words, options) = match self.words.len() {
            2 => (r"\s*\S+\s+\S+", format!(" none {options}")),
            3 => (r"\s*\S+\s+\S+\s+\S+", format!(" {options}")),
            _ => (r"\s*\S+\s+\S+\s+\S+\s+\S+", format!(",{options}")),
        };
        format!(
            r"sed -i -E '{}s/^({words})/\1{options}/' {path}",
            self.number
        )
    }
}

/// The lines of a table that are no comments and have two words at least.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_line = words.len() > 1 && !words[0].starts_with('#');
        is_line.then_some(Line {
            number: index + 1,
            words,
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
    target(
        files,
        &format!("/dev/disk/by-{folder}/{}", name.trim_matches('"')),
    )
}

/// Returns the device that a link leads to.
fn target(files: &Files, link: &str) -> String {
    let target = std::fs::read_link(files.path(link.trim_start_matches('/'))).unwrap_or_default();
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!("/dev/{name}")
}

/// Returns true for a name such as /dev/farblk0.
fn is_number(device: &str) -> bool {
    device.starts_with("/dev/farblk") && !device.starts_with("/dev/farblk/")
}

fn is_ours(device: &str) -> bool {
    device.starts_with("/dev/farblk") || device.starts_with("/dev/disk/by-id/farblk-")
}

/// Checks the lines of /etc/fstab and /etc/crypttab that are for disks of this module.
pub fn fstab(context: &Context, files: &Files) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut count = 0;
    let mut opened = Vec::new();
    for line in lines(&files.text_as_it_is("etc/crypttab")) {
        if is_ours(&device(files, line.words[1])) {
            count += 1;
            opened.push(format!("/dev/mapper/{}", line.words[0]));
            checks.extend(options(context, &line, "etc/crypttab", line.words[0]));
        }
    }
    for line in lines(&files.text_as_it_is("etc/fstab")) {
        let [source, target] = [line.words[0], line.words[1]];
        let device = device(files, source);
        if !is_ours(&device) && !opened.iter().any(|name| name == source) {
            continue;
        }
        count += 1;
        if line.words.get(2) == Some(&"swap") {
            checks.extend(swap(context, files, &line, &device));
            continue;
        }
        checks.extend(options(context, &line, "etc/fstab", target));
        if is_number(source) {
            let why = format!(
                "line {} of /etc/fstab ({target}) names {device}, which may be another disk after a \
                 reboot",
                line.number
            );
            let path = quote::path(&context.root.join("etc/fstab"));
            let by_name = map_of(context, &device).map(|map| format!("/dev/farblk/by-name/{map}"));
            let cure =
                by_name.map(|name| format!("sed -i '{}s|{device}|{name}|' {path}", line.number));
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

/// Says which options a line lacks that waits for the network.
fn options(context: &Context, line: &Line<'_>, file: &str, what: &str) -> Option<Check> {
    let missing: Vec<_> = ["_netdev", "nofail"]
        .into_iter()
        .filter(|option| !line.has(option) && !line.has("noauto"))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let number = line.number;
    let why = format!(
        "line {number} of /{file} ({what}) lacks {}",
        missing.join(" and ")
    );
    let check = match missing.contains(&"_netdev") {
        true => Check::fail("fstab", why),
        false => Check::warn("fstab", why),
    };
    let path = quote::path(&context.root.join(file));
    Some(check.cure(line.add(&missing.join(","), &path)))
}

/// Says if systemd waits at boot for a disk that it maps later: for swap no option helps.
fn swap(context: &Context, files: &Files, line: &Line<'_>, device: &str) -> Option<Check> {
    if line.has("noauto") {
        return None;
    }
    let why = format!(
        "line {} of /etc/fstab is swap on {}: the boot waits for the disk before it is mapped",
        line.number, line.words[0]
    );
    let path = quote::path(&context.root.join("etc/fstab"));
    let comment_out = format!("sed -i '{}s/^/#/' {path}", line.number);
    let cure = match map_of_line(context, files, device) {
        Some(map) => {
            format!("{comment_out} && systemctl enable farblk-map@{map} farblk-swap@{map}")
        }
        // On a device that is opened later, or on a disk that is not there.
        None => line.add("noauto", &path),
    };
    Some(Check::fail("fstab", why).cure(cure))
}

/// Returns the map on whose disk a device of a line is.
fn map_of_line(context: &Context, files: &Files, device: &str) -> Option<String> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(name) = device.strip_prefix("/dev/farblk/by-name/") {
        let map = match name.rsplit_once("-part") {
            Some((map, number)) if is_digits(number) => map,
            _ => name,
        };
        return Some(map.to_owned());
    }
    let node = match is_number(device) {
        true => device.to_owned(),
        false => target(files, device),
    };
    let disk = match node.rsplit_once('p') {
        Some((disk, number)) if is_digits(number) => disk,
        _ => &node,
    };
    map_of(context, disk)
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
