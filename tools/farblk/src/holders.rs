// SPDX-License-Identifier: GPL-2.0
//! Who uses a disk: mounts, swap, devices on top of it, processes.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::device::block_number;
use crate::error::fill_in;
use crate::quote;

/// A user of a disk.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Holder {
    /// The disk, or a partition of it, is mounted.
    Mount {
        /// The mount point.
        path: String,
        /// The type of the file system.
        fstype: String,
    },
    /// It, or a partition of it, is swap space.
    Swap {
        /// The device, for example "/dev/farblk0p2".
        path: String,
    },
    /// A device uses it, for example "dm-0".
    Device {
        /// The name.
        name: String,
        /// What it is called by those who made it, "LV vg/data"; or "".
        #[serde(skip)]
        known_as: String,
        /// The command that removes this device.
        #[serde(skip)]
        remedy: String,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Mount { path, fstype } => write!(f, "{path} ({fstype})"),
            Holder::Swap { path } => write!(f, "swap on {path}"),
            Holder::Device { name, known_as, .. } if known_as.is_empty() => f.write_str(name),
            Holder::Device { name, known_as, .. } => write!(f, "{name} ({known_as})"),
        }
    }
}

impl Holder {
    /// It, with what it does to the disk.
    pub fn describe(&self) -> String {
        match self {
            Holder::Mount { .. } => format!("mounted: {self}"),
            Holder::Swap { path } => format!("swap: {path}"),
            Holder::Device { .. } => format!("used by: {self}"),
        }
    }

    /// Returns the command that ends this use of the disk.
    pub fn remedy(&self) -> String {
        match self {
            Holder::Mount { path, .. } if path == "/" => {
                "# this host runs from it: the root file system cannot be unmounted".into()
            }
            Holder::Mount { path, .. } => format!("umount {}", quote::word(path)),
            Holder::Swap { path } => format!("swapoff {}", quote::word(path)),
            Holder::Device { remedy, .. } => remedy.clone(),
        }
    }

    /// The device `name`, which uses a disk.
    fn device(root: &Path, name: String) -> Self {
        let attr = |file| read(root, &format!("sys/class/block/{name}/dm/{file}"));
        let [id, dm] = ["uuid", "name"].map(|file| attr(file).trim_end().to_owned());
        let node = format!("/dev/{name}");
        let known_as = match id.split_once('-') {
            Some(("LVM", _)) => {
                let (group, volume) = volume(&dm);
                format!("LV {group}/{volume}")
            }
            _ => dm.clone(),
        };
        let remedy = match id.split_once('-') {
            Some(("LVM", _)) => format!("vgchange --activate n {}", quote::word(&volume(&dm).0)),
            Some(("CRYPT", _)) => format!("cryptsetup close {}", quote::word(&dm)),
            Some(("mpath", _)) => format!("multipath -f {}", quote::word(&dm)),
            _ if !dm.is_empty() => format!("dmsetup remove {}", quote::word(&dm)),
            _ if name.starts_with("md") => format!("mdadm --stop {}", quote::word(&node)),
            _ if name.starts_with("loop") => format!("losetup --detach {}", quote::word(&node)),
            _ => format!("lsblk {}  # remove this device", quote::word(&node)),
        };
        Self::Device {
            name,
            known_as,
            remedy,
        }
    }
}

/// The commands that end the use of a disk by `holders`, each once.
pub fn remedies(holders: &[Holder]) -> Vec<String> {
    let mut remedies: Vec<String> = Vec::new();
    for remedy in holders.iter().map(Holder::remedy) {
        if !remedies.contains(&remedy) {
            remedies.push(remedy);
        }
    }
    remedies
}

/// Returns the volume group and the volume of LVM by the name that device mapper has for them: LVM
/// joins both by "-", and writes "--" for the "-" in them.
fn volume(name: &str) -> (String, String) {
    const HYPHEN: &str = "\0";
    let name = name.replace("--", HYPHEN);
    let (group, volume) = name.split_once('-').unwrap_or((&name, ""));
    (group.replace(HYPHEN, "-"), volume.replace(HYPHEN, "-"))
}

/// The mounts, swap spaces and devices that use the disk or partition `name` ("farblk0"), also by
/// way of other devices, as seen from the mount namespace of this process. What is on top comes
/// first.
pub fn find(root: &Path, name: &str) -> Vec<Holder> {
    let parts = stack(root, name);
    let mut holders = mounts(&parts, &read(root, "proc/self/mountinfo"));
    for line in read(root, "proc/swaps").lines() {
        let path = unescape(line.split_whitespace().next().unwrap_or_default());
        if parts.iter().any(|part| part.is_called(&path)) {
            holders.push(Holder::Swap { path });
        }
    }
    let mut above: Vec<_> = parts
        .iter()
        .filter(|part| part.level > 0 && !part.is_partition)
        .collect();
    above.sort_by_key(|part| u32::MAX - part.level);
    holders.extend(
        above
            .into_iter()
            .map(|part| Holder::device(root, part.name.clone())),
    );
    holders
}

/// The mounts of `parts` in the text of a mountinfo.
fn mounts(parts: &[Part], mountinfo: &str) -> Vec<Holder> {
    let lines = mountinfo.lines().filter_map(parse_mount);
    let is_of_part =
        |part: &Part, number: &str, source: &str| part.number == number || part.is_called(source);
    lines
        .filter(|(number, source, _)| parts.iter().any(|part| is_of_part(part, number, source)))
        .map(|(.., mount)| mount)
        .collect()
}

/// The most users of a disk that [`find_hidden`] names: programs of services and containers have
/// mount namespaces of their own, and often copies of one mount.
const HIDDEN_MAX: usize = 8;

/// A user of a disk that [`find`] does not see.
#[derive(Debug, PartialEq, Eq)]
pub struct Hidden {
    /// It, with what it does to the disk.
    pub text: String,
    /// The command that ends this use.
    pub remedy: String,
}

/// The users of the disk `name` that [`find`] does not see: mounts in other mount namespaces, and
/// those in the kernel that leave no trace beside the disk. To be asked if nobody else has it.
pub fn find_hidden(root: &Path, name: &str) -> Vec<Hidden> {
    let parts = stack(root, name);
    let mut hidden = mounts_elsewhere(root, &parts);
    let config = root.join("sys/kernel/config");
    let leads_here = |file: &Path| leads_to(root, &parts, fs::read(file).unwrap_or_default());
    let is_on = |object: &Path| read(object, "enable").trim() == "1";
    let exports = config.join("farblk/exports");
    for export in names(&exports) {
        let object = exports.join(&export);
        if is_on(&object) && leads_here(&object.join("device_path")) {
            hidden.push(Hidden {
                text: format!("exported: export {export}"),
                remedy: fill_in("farblk export rm {export}", &[("export", &export)]),
            });
        }
    }
    let subsystems = config.join("nvmet/subsystems");
    for subsystem in names(&subsystems) {
        let namespaces = subsystems.join(&subsystem).join("namespaces");
        for number in names(&namespaces) {
            let object = namespaces.join(&number);
            if is_on(&object) && leads_here(&object.join("device_path")) {
                let enable = object.join("enable");
                hidden.push(Hidden {
                    text: format!("used by: nvmet, namespace {number} of {subsystem}"),
                    remedy: format!("echo 0 > {}", quote::path(&enable)),
                });
            }
        }
    }
    let backstores = config.join("target/core");
    for store in names(&backstores) {
        for object in names(&backstores.join(&store)) {
            if leads_here(&backstores.join(&store).join(&object).join("udev_path")) {
                hidden.push(Hidden {
                    text: format!("used by: backstore {object} of the SCSI target"),
                    remedy: format!(
                        "targetcli /backstores/block delete {}",
                        quote::word(&object)
                    ),
                });
            }
        }
    }
    let class = root.join("sys/class/block");
    let is_zram = |name: &String| name.starts_with("zram");
    for zram in names(&class).into_iter().filter(is_zram) {
        if leads_here(&class.join(&zram).join("backing_dev")) {
            let reset = class.join(&zram).join("reset");
            hidden.push(Hidden {
                text: format!("used by: {zram}, which writes pages back to it"),
                remedy: format!("echo 1 > {}  # after swapoff", quote::path(&reset)),
            });
        }
    }
    hidden.truncate(HIDDEN_MAX);
    hidden
}

/// The mounts of `parts` in mount namespaces that this process is not in, each with a process that
/// is.
fn mounts_elsewhere(root: &Path, parts: &[Part]) -> Vec<Hidden> {
    let processes = root.join("proc");
    let namespace = |process: &str| fs::read_link(processes.join(process).join("ns/mnt")).ok();
    let mut seen: Vec<_> = namespace("self").into_iter().collect();
    let mut hidden = Vec::new();
    for process in names(&processes) {
        let is_process = process.bytes().all(|byte| byte.is_ascii_digit());
        let Some(its) = namespace(&process).filter(|_| is_process) else {
            continue;
        };
        if seen.contains(&its) {
            continue;
        }
        seen.push(its);
        let comm = read(&processes, &format!("{process}/comm"));
        let mountinfo = read(&processes, &format!("{process}/mountinfo"));
        for mount in mounts(parts, &mountinfo) {
            let user = format!("{}({process})", comm.trim_end());
            let remedy = match &mount {
                Holder::Mount { path, .. } if path == "/" => format!("# stop {user}"),
                mount => format!("nsenter --target {process} --mount {}", mount.remedy()),
            };
            hidden.push(Hidden {
                text: format!("{}, in the mount namespace of {user}", mount.describe()),
                remedy,
            });
        }
    }
    hidden
}

/// Returns true if the path that an attribute has is one of a node of one of `parts`.
fn leads_to(root: &Path, parts: &[Part], path: Vec<u8>) -> bool {
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    let path = Path::new(OsStr::from_bytes(path));
    // The path of another file may lead to a server that does not answer.
    let Ok(below_dev) = path.strip_prefix("/dev") else {
        return false;
    };
    parts.iter().any(|part| path == Path::new(&part.node()))
        || is_block_device_of(parts, &root.join("dev").join(below_dev))
}

/// The loop devices over the node of one of `parts`. They do not claim it, so the kernel does not
/// have them among its holders.
fn loops(root: &Path, parts: &[Part]) -> Vec<String> {
    let class = root.join("sys/class/block");
    let file = |name: &String| class.join(name).join("loop/backing_file");
    let is_over_one =
        |name: &String| leads_to(root, parts, fs::read(file(name)).unwrap_or_default());
    let loops = names(&class)
        .into_iter()
        .filter(|name| name.starts_with("loop"));
    loops.filter(is_over_one).collect()
}

/// Returns true if `path` is a node of one of `parts`, whatever its name.
fn is_block_device_of(parts: &[Part], path: &Path) -> bool {
    let number = block_number(path).ok().flatten();
    number.is_some_and(|number| parts.iter().any(|part| part.number == number))
}

/// The processes that have the disk `name` open or work in one of `holders`' mounts, as
/// "fio(4121)"; without this one.
pub fn processes(root: &Path, name: &str, holders: &[Holder]) -> Vec<String> {
    let parts = stack(root, name);
    let uses = |path: &Path| {
        parts.iter().any(|part| path == Path::new(&part.node()))
            || holders
                .iter()
                .any(|holder| matches!(holder, Holder::Mount { path: mount, .. } if path.starts_with(mount)))
    };
    // In a PID namespace, /proc may have other numbers than the system calls.
    let own = fs::read_link(root.join("proc/self")).unwrap_or_default();
    let mut pids: Vec<u32> = names(&root.join("proc"))
        .iter()
        .filter(|name| Path::new(name) != own)
        .filter_map(|name| name.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut processes = Vec::new();
    for pid in pids {
        let process = root.join(format!("proc/{pid}"));
        let places = ["cwd", "root", "exe"].map(|name| process.join(name));
        let fds: Vec<_> = names(&process.join("fd"))
            .iter()
            .map(|fd| process.join("fd").join(fd))
            .collect();
        let mut paths = places.iter().chain(&fds).flat_map(fs::read_link);
        // In a container the disk may have another name, but it has the same number.
        if paths.any(|path| uses(&path)) || fds.iter().any(|fd| is_block_device_of(&parts, fd)) {
            let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
            processes.push(format!("{}({pid})", comm.trim_end()));
        }
    }
    processes
}

/// A disk, one of its partitions, or one of those of a device that uses them.
struct Part {
    name: String,
    sysfs: PathBuf,
    /// "major:minor".
    number: String,
    is_partition: bool,
    /// The name below `/dev/mapper`; or "".
    mapper: String,
    /// How many devices are between the disk and this one, and this: 0 of the disk itself.
    level: u32,
}

impl Part {
    fn node(&self) -> String {
        format!("/dev/{}", self.name)
    }

    /// Returns true if this path is that of its node, as tables of the kernel have it.
    fn is_called(&self, path: &str) -> bool {
        let mapped = path.strip_prefix("/dev/mapper/");
        path == self.node() || mapped.is_some_and(|name| name == self.mapper)
    }
}

/// How many devices may lie one on the other.
const LEVELS_MAX: u32 = 8;

/// The disk `disk` with its partitions, and the devices that use them with theirs, in the order of
/// their levels.
fn stack(root: &Path, disk: &str) -> Vec<Part> {
    let mut all = disk_and_partitions(root, disk, 0);
    let mut first = 0;
    for level in 1..=LEVELS_MAX {
        let below = &all[first..];
        let holders = below
            .iter()
            .flat_map(|part| names(&part.sysfs.join("holders")));
        let mut above: Vec<String> = Vec::new();
        for name in holders.chain(loops(root, below)) {
            let is_known = all.iter().any(|part| part.name == name) || above.contains(&name);
            if !is_known {
                above.push(name);
            }
        }
        first = all.len();
        all.extend(
            above
                .iter()
                .flat_map(|name| disk_and_partitions(root, name, level)),
        );
        if above.is_empty() {
            break;
        }
    }
    all
}

fn disk_and_partitions(root: &Path, disk: &str, level: u32) -> Vec<Part> {
    let directory = root.join("sys/class/block").join(disk);
    let part = |name: &str, sysfs: &Path, is_partition| {
        // One that is just going has none any more.
        let number = fs::read_to_string(sysfs.join("dev")).unwrap_or_default();
        (level > 0 || !number.is_empty()).then(|| Part {
            name: name.to_owned(),
            sysfs: sysfs.to_owned(),
            number: number.trim().to_owned(),
            is_partition,
            mapper: read(sysfs, "dm/name").trim_end().to_owned(),
            level,
        })
    };
    let mut parts: Vec<Part> = part(disk, &directory, false).into_iter().collect();
    for name in names(&directory) {
        if directory.join(&name).join("partition").exists() {
            parts.extend(part(&name, &directory.join(&name), true));
        }
    }
    parts
}

/// The device number, the source and the mount of a line of mountinfo.
fn parse_mount(line: &str) -> Option<(&str, String, Holder)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let number = left.nth(2)?;
    let path = unescape(left.nth(1)?);
    let mut right = right.split(' ');
    let fstype = right.next()?.to_owned();
    let source = unescape(right.next()?);
    Some((number, source, Holder::Mount { path, fstype }))
}

/// Replaces the octal escapes the kernel uses for blanks and backslashes in paths.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read(root: &Path, path: &str) -> String {
    let bytes = fs::read(root.join(path)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn mountinfo_lines() {
        let line =
            r"36 35 259:3 / /mnt/a\040b rw,noatime shared:1 master:2 - xfs /dev/farblk0 rw,x";
        let (number, source, mount) = parse_mount(line).unwrap();
        assert_eq!((number, &*source), ("259:3", "/dev/farblk0"));
        assert_eq!(mount.to_string(), "/mnt/a b (xfs)");
        assert!(parse_mount("").is_none());
        assert!(parse_mount("1 2 - x").is_none());
    }

    #[test]
    fn a_disk_is_known_by_its_number() {
        // A container may have no node of a block device.
        let mut nodes = names(Path::new("/sys/class/block"))
            .into_iter()
            .map(|name| Path::new("/dev").join(name));
        let number = |node: &PathBuf| block_number(node).ok().flatten();
        let Some((node, number)) = nodes.find_map(|node| Some((node.clone(), number(&node)?)))
        else {
            return;
        };
        let root = std::env::temp_dir().join(format!("farblk-holders-{}", std::process::id()));
        let (sysfs, fds) = (root.join("sys/class/block/x"), root.join("proc/41/fd"));
        for directory in [&sysfs, &fds] {
            fs::create_dir_all(directory).expect("a directory");
        }
        fs::write(sysfs.join("dev"), format!("{number}\n")).expect("a file");
        symlink("/dev/null", fds.join("0")).expect("a link");
        assert!(processes(&root, "x", &[]).is_empty());
        symlink(node, fds.join("3")).expect("a link");
        assert_eq!(processes(&root, "x", &[]), ["(41)"]);
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn devices_on_a_disk_are_seen_through() {
        let root = std::env::temp_dir().join(format!("farblk-stack-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in [
            ("sys/class/block/sda/dev", "8:0"),
            ("sys/class/block/sda/sda1/dev", "8:1"),
            ("sys/class/block/sda/sda1/partition", "1"),
            ("sys/class/block/sda/sda1/holders/dm-0", ""),
            ("sys/class/block/dm-0/dev", "253:0"),
            ("sys/class/block/dm-0/dm/uuid", "CRYPT-LUKS2-x"),
            ("sys/class/block/dm-0/dm/name", "open"),
            ("sys/class/block/dm-0/holders/dm-1", ""),
            ("sys/class/block/dm-0/holders/dm-2", ""),
            ("sys/class/block/dm-1/dev", "253:1"),
            ("sys/class/block/dm-1/dm/uuid", "LVM-x"),
            ("sys/class/block/dm-1/dm/name", "my--vg-data"),
            ("sys/class/block/dm-2/dev", "253:2"),
            ("sys/class/block/dm-2/dm/uuid", "LVM-y"),
            ("sys/class/block/dm-2/dm/name", "my--vg-swap"),
            ("proc/swaps", "Filename Type\n/dev/dm-2 partition 1 0 -2"),
            // The number of a btrfs is its own.
            (
                "proc/self/mountinfo",
                "36 22 0:40 / /data rw - btrfs /dev/mapper/my--vg-data rw",
            ),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, format!("{text}\n")).expect("a file");
        }
        let holders = find(&root, "sda");
        let shown: Vec<_> = holders.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "/data (btrfs)",
                "swap on /dev/dm-2",
                "dm-1 (LV my-vg/data)",
                "dm-2 (LV my-vg/swap)",
                "dm-0 (open)",
            ]
        );
        assert_eq!(
            remedies(&holders),
            [
                "umount /data",
                "swapoff /dev/dm-2",
                "vgchange --activate n my-vg",
                "cryptsetup close open",
            ]
        );
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn volumes() {
        let volume = |name| {
            let (group, volume) = volume(name);
            format!("{group}/{volume}")
        };
        assert_eq!(volume("vgc-data"), "vgc/data");
        assert_eq!(volume("my--vg-a--b"), "my-vg/a-b");
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r"a\040b\134c\011"), "a b\\c\t");
        assert_eq!(unescape(r"\04"), r"\04");
        assert_eq!(unescape(r"\999é"), r"\999é");
    }
}
