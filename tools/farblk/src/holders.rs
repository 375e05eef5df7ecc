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
            Holder::Device { name, .. } => f.write_str(name),
        }
    }
}

impl Holder {
    /// It, with what it does to the disk.
    pub fn describe(&self) -> String {
        match self {
            Holder::Mount { .. } => format!("mounted: {self}"),
            Holder::Swap { path } => format!("swap: {path}"),
            Holder::Device { name, .. } => format!("used by: {name}"),
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
        let remedy = match id.split_once('-') {
            // LVM makes its names of that of the group and that of the volume, with "--" for "-".
            Some(("LVM", _)) => format!("vgchange --activate n {}", quote::word(&group(&dm))),
            Some(("CRYPT", _)) => format!("cryptsetup close {}", quote::word(&dm)),
            Some(("mpath", _)) => format!("multipath -f {}", quote::word(&dm)),
            _ if !dm.is_empty() => format!("dmsetup remove {}", quote::word(&dm)),
            _ if name.starts_with("md") => format!("mdadm --stop {}", quote::word(&node)),
            _ if name.starts_with("loop") => format!("losetup --detach {}", quote::word(&node)),
            _ => format!("lsblk {}  # remove this device", quote::word(&node)),
        };
        Self::Device { name, remedy }
    }
}

/// Returns the volume group of an LVM volume by the name that device mapper has for that.
fn group(name: &str) -> String {
    const HYPHEN: &str = "\0";
    let name = name.replace("--", HYPHEN);
    let group = name.split('-').next().unwrap_or_default();
    group.replace(HYPHEN, "-")
}

/// The mounts, swap spaces and devices that use the disk or partition `name` ("farblk0"), as seen
/// from the mount namespace of this process.
pub fn find(root: &Path, name: &str) -> Vec<Holder> {
    let parts = disk_and_partitions(root, name);
    let mut holders = Vec::new();
    for line in read(root, "proc/self/mountinfo").lines() {
        if let Some((number, source, mount)) = parse_mount(line) {
            if parts
                .iter()
                .any(|part| part.number == number || part.node() == source)
            {
                holders.push(mount);
            }
        }
    }
    for line in read(root, "proc/swaps").lines() {
        let path = unescape(line.split_whitespace().next().unwrap_or_default());
        if parts.iter().any(|part| part.node() == path) {
            holders.push(Holder::Swap { path });
        }
    }
    for part in &parts {
        for name in names(&part.sysfs.join("holders")) {
            holders.push(Holder::device(root, name));
        }
    }
    for name in loops(root, &parts) {
        holders.push(Holder::device(root, name));
    }
    holders
}

/// The loop devices over the node of one of `parts`. They do not claim it, so the kernel does not
/// have them among its holders.
fn loops(root: &Path, parts: &[Part]) -> Vec<String> {
    let class = root.join("sys/class/block");
    let is_over_one = |name: &String| {
        let text = fs::read(class.join(name).join("loop/backing_file")).unwrap_or_default();
        let file = Path::new(OsStr::from_bytes(text.strip_suffix(b"\n").unwrap_or(&text)));
        // The path of another file may lead to a server that does not answer.
        let Ok(below_dev) = file.strip_prefix("/dev") else {
            return false;
        };
        parts.iter().any(|part| file == Path::new(&part.node()))
            || is_block_device_of(parts, &root.join("dev").join(below_dev))
    };
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
    let parts = disk_and_partitions(root, name);
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

/// A disk or one of its partitions.
struct Part {
    name: String,
    sysfs: PathBuf,
    /// "major:minor".
    number: String,
}

impl Part {
    fn node(&self) -> String {
        format!("/dev/{}", self.name)
    }
}

fn disk_and_partitions(root: &Path, disk: &str) -> Vec<Part> {
    let directory = root.join("sys/class/block").join(disk);
    let part = |name: String, sysfs: PathBuf| {
        let number = fs::read_to_string(sysfs.join("dev"))
            .ok()?
            .trim()
            .to_owned();
        Some(Part {
            name,
            sysfs,
            number,
        })
    };
    let mut parts: Vec<Part> = part(disk.to_owned(), directory.clone())
        .into_iter()
        .collect();
    for name in names(&directory) {
        if directory.join(&name).join("partition").exists() {
            parts.extend(part(name.clone(), directory.join(&name)));
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
    fn groups() {
        assert_eq!(group("vgc-data"), "vgc");
        assert_eq!(group("my--vg-a--b"), "my-vg");
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r"a\040b\134c\011"), "a b\\c\t");
        assert_eq!(unescape(r"\04"), r"\04");
        assert_eq!(unescape(r"\999é"), r"\999é");
    }
}
