// SPDX-License-Identifier: GPL-2.0
//! The block devices of this host, and losetup(8), which makes one of a file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags};
use serde::Deserialize;

use crate::configfs::Job;
use crate::error::{Code, Error};
use crate::holders;
use crate::quote;

#[cfg(test)]
pub mod fake;

/// The reference of the loop devices that this tool has set up: the kernel keeps it with the
/// device, `losetup --list -O +REF` shows it.
const REFERENCE: &str = "farblk";

/// Timeout for losetup(8), which may wait for a device that hangs.
const LOSETUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two looks at losetup(8), or at what it does.
const LOSETUP_PAUSE: Duration = Duration::from_millis(2);
/// Timeout for those who have a loop device open that shall have no file any more.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for udev, in seconds: it reads each new disk, and one that hangs holds it up.
const UDEV_TIMEOUT: Duration = Duration::from_secs(10);

/// The device nodes of the host and the programs that the tool runs. Tests replace them by a model.
pub trait System {
    /// The number "MAJOR:MINOR" of the block device `path`, `None` if it is something else.
    fn number(&self, path: &Path) -> io::Result<Option<String>>;
    /// Opens the block device `path`, see [`Devices::open`].
    fn open(&self, path: &Path, write: bool) -> io::Result<File>;
    /// Runs losetup(8).
    fn losetup(&self, arguments: &[&OsStr]) -> io::Result<Output>;
    /// Waits until udev has handled all events that there are now, if there is udev. Returns false
    /// if that takes more than [`UDEV_TIMEOUT`].
    fn settle(&self) -> bool;
}

/// The number "MAJOR:MINOR" of the block device `path`, `None` if it is something else. Asks no
/// network file system, which might not answer.
pub fn block_number(path: &Path) -> io::Result<Option<String>> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    let is_block = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice;
    Ok(is_block.then(|| format!("{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor)))
}

struct Linux;

impl System for Linux {
    fn number(&self, path: &Path) -> io::Result<Option<String>> {
        block_number(path)
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<File> {
        let mut flags = OFlags::DIRECT;
        flags.set(OFlags::EXCL, write);
        File::options()
            .read(true)
            .write(write)
            .custom_flags(i32::try_from(flags.bits()).unwrap_or(0))
            .open(path)
    }

    fn losetup(&self, arguments: &[&OsStr]) -> io::Result<Output> {
        let mut child = Command::new("losetup")
            .env("LC_ALL", "C")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // What it prints fits into a pipe.
        let deadline = Instant::now() + LOSETUP_TIMEOUT;
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                // One that waits for a device does not end even then: nobody waits for it.
                let _ = child.kill();
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(LOSETUP_PAUSE);
        }
        child.wait_with_output()
    }

    fn settle(&self) -> bool {
        settle(Path::new("/run/udev/control"), "udevadm".as_ref())
    }
}

/// Waits for udev, which listens at `control`, by means of the program `udevadm`. Returns false if
/// there are events left after [`UDEV_TIMEOUT`]: who cannot ask udev, as in a container, does not
/// wait for it.
fn settle(control: &Path, udevadm: &OsStr) -> bool {
    if !control.exists() {
        return true;
    }
    let start = Instant::now();
    let status = Command::new(udevadm)
        .arg("settle")
        .arg(format!("--timeout={}", UDEV_TIMEOUT.as_secs()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // It ends with the same code if it fails at once.
    status.is_ok_and(|status| status.success()) || start.elapsed() < UDEV_TIMEOUT
}

/// The most bytes that are read or written at a time by direct I/O.
pub const IO_MAX: usize = 1 << 20;
/// What memory for direct I/O has to be aligned to, with any logical block size of farblk.
const ALIGNMENT: usize = 4096;

/// Memory for direct I/O, of [`IO_MAX`] bytes.
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// Makes one of zeroes.
    pub fn new() -> Self {
        Self(vec![0; IO_MAX + ALIGNMENT])
    }

    /// The first `length` bytes.
    pub fn get(&mut self, length: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        &mut self.0[start..start + length]
    }
}

/// A loop device that backs a file.
#[derive(Debug, Deserialize)]
pub struct Loop {
    /// The device, "/dev/loop0".
    #[serde(rename = "name")]
    pub device: String,
    /// True if the loop device is read-only.
    #[serde(rename = "ro")]
    pub read_only: bool,
    /// True if the loop device uses direct I/O.
    #[serde(rename = "dio")]
    pub direct: bool,
    offset: Option<u64>,
    sizelimit: Option<u64>,
    #[serde(rename = "ref")]
    reference: Option<String>,
}

impl Loop {
    /// Returns true if the loop device covers the whole file.
    fn is_whole(&self) -> bool {
        self.offset == Some(0) && self.sizelimit == Some(0)
    }

    /// Returns true if this tool has made the loop device.
    pub fn is_ours(&self) -> bool {
        self.reference.as_deref() == Some(REFERENCE)
    }
}

#[derive(Deserialize)]
struct Loops {
    loopdevices: Vec<Loop>,
}

/// The block devices of this host.
pub struct Devices {
    root: PathBuf,
    system: Box<dyn System>,
}

impl Devices {
    /// Those below `root`.
    pub fn new(root: &Path) -> Self {
        Self::with(root, Box::new(Linux))
    }

    /// Those below `root`, behind `system`.
    pub fn with(root: &Path, system: Box<dyn System>) -> Self {
        Self {
            root: root.to_owned(),
            system,
        }
    }

    /// The number "MAJOR:MINOR" of the block device `path`, `None` if it is something else.
    pub fn number(&self, path: &Path) -> io::Result<Option<String>> {
        match path.strip_prefix("/dev") {
            Ok(name) => self.system.number(&self.root.join("dev").join(name)),
            Err(_) => self.system.number(path),
        }
    }

    /// Opens the device `name` ("farblk0") for direct I/O. To write, opens it exclusively: that
    /// fails with EBUSY while the device is mounted, is swap space or is part of another device.
    pub fn open(&self, name: &str, write: bool) -> io::Result<File> {
        self.system.open(&self.root.join("dev").join(name), write)
    }

    /// Waits until udev has handled all events that there are now, such as those of a new disk:
    /// only then the disk has its names, those in `/dev/farblk` too, and udev has closed it.
    /// Returns false if it is not done after [`UDEV_TIMEOUT`].
    pub fn settle(&self) -> bool {
        self.system.settle()
    }

    /// Returns true if `path` is the node of the device `name` ("sda1"), and not a stale file.
    pub fn is_node(&self, path: &Path, name: &str) -> bool {
        let number = self.attr(name, "dev");
        number.is_some() && self.system.number(path).ok().flatten() == number
    }

    /// The kernel's name of the device with this number, "sda1".
    pub fn name(&self, number: &str) -> Option<String> {
        let directory = self.root.join("sys/dev/block").join(number);
        let target = fs::canonicalize(directory).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Returns true if the device `name` ("sda1") is write-protected.
    pub fn is_read_only(&self, name: &str) -> bool {
        self.attr(name, "ro").is_some_and(|text| text == "1")
    }

    /// Returns true if the device `name` ("sda1"), or the disk that it is a part of, has zones.
    pub fn is_zoned(&self, name: &str) -> bool {
        let models = ["queue/zoned", "../queue/zoned"].map(|file| self.attr(name, file));
        let model = models.into_iter().flatten().next();
        model.is_some_and(|model| model != "none")
    }

    /// The size of the device `name` in bytes.
    pub fn size(&self, name: &str) -> Option<u64> {
        let sectors: u64 = self.attr(name, "size")?.parse().ok()?;
        sectors.checked_mul(512)
    }

    /// The logical block size of the device `name` in bytes.
    pub fn block_size(&self, name: &str) -> Option<u64> {
        self.attr(name, "queue/logical_block_size")?.parse().ok()
    }

    /// Returns true if the device `name` does not begin where a physical block of its disk begins.
    pub fn is_misaligned(&self, name: &str) -> bool {
        self.attr(name, "alignment_offset")
            .is_some_and(|text| text != "0")
    }

    /// The path that the file behind the loop device `device` ("/dev/loop0") had before it was
    /// removed or replaced; `None` if it has it still.
    pub fn lost_file(&self, device: &str) -> Option<String> {
        let file = self.file(device)?;
        // This is how the kernel shows it, but a file may be called that.
        let was = file.strip_suffix(" (deleted)")?;
        (!Path::new(&file).exists()).then(|| was.to_owned())
    }

    /// The file behind the loop device `device` ("/dev/loop0").
    pub fn file(&self, device: &str) -> Option<String> {
        let name = device.strip_prefix("/dev/")?;
        self.attr(name, "loop/backing_file")
    }

    fn attr(&self, name: &str, attribute: &str) -> Option<String> {
        let directory = self.root.join("sys/class/block").join(name);
        let bytes = fs::read(directory.join(attribute)).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches('\n');
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// The loop devices of the whole of `file`, whatever its name: the kernel compares the inode.
    /// Those of this tool come first.
    pub fn loops(&self, file: &Path, job: &Job) -> Result<Vec<Loop>, Error> {
        let mut loops = self.list(&[OsStr::new("--associated"), file.as_os_str()], job)?;
        loops.sort_by_key(|device| !device.is_ours());
        Ok(loops)
    }

    /// The loop device `device`, if it backs a whole file.
    pub fn loop_at(&self, device: &str, job: &Job) -> Result<Option<Loop>, Error> {
        Ok(self.list(&[OsStr::new(device)], job)?.pop())
    }

    fn list(&self, which: &[&OsStr], job: &Job) -> Result<Vec<Loop>, Error> {
        let arguments = "--json --list --output NAME,RO,DIO,OFFSET,SIZELIMIT,REF".split(' ');
        let mut arguments: Vec<&OsStr> = arguments.map(OsStr::new).collect();
        arguments.extend(which);
        let text = self.losetup(&arguments, job)?;
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        let Loops { mut loopdevices } = serde_json::from_str(&text)
            .map_err(|e| job.error(Code::Unparsable, format!("losetup --json: {e}")))?;
        loopdevices.retain(Loop::is_whole);
        Ok(loopdevices)
    }

    /// Makes a loop device of `file`; `direct` goes past the page cache, with the block size the
    /// file system needs for it, unless there is a `block_size`: a smaller one needs the cache.
    pub fn attach(
        &self,
        file: &Path,
        read_only: bool,
        direct: bool,
        block_size: Option<u64>,
        job: &Job,
    ) -> Result<String, Error> {
        let options = attach_options(read_only, direct, block_size);
        let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        arguments.push(file.as_os_str());
        let device = self.losetup(&arguments, job)?;
        Ok(device.trim_end().to_owned())
    }

    /// Takes the file away from a loop device. The device keeps it as long as somebody has that
    /// open, as udev may to read it: fails if that takes more than [`DETACH_TIMEOUT`].
    pub fn detach(&self, device: &str, job: &Job) -> Result<(), Error> {
        let file = self.file(device);
        let arguments = ["--detach", device].map(OsStr::new);
        self.losetup(&arguments, job)?;
        let deadline = Instant::now() + DETACH_TIMEOUT;
        while file.is_some() && self.file(device) == file {
            if Instant::now() >= deadline {
                let name = device.trim_start_matches("/dev/");
                let why = format!("{device} has its file until everybody has closed it");
                let hint = format!(
                    "fuser --verbose {}  # who has it open?",
                    quote::word(device)
                );
                let mut error = job.error(Code::InUse, why).hint(hint);
                error.details = holders::processes(&self.root, name, &[]);
                return Err(error);
            }
            self.settle();
            thread::sleep(LOSETUP_PAUSE);
        }
        Ok(())
    }

    /// Lets a loop device have the size its file has now.
    pub fn set_capacity(&self, device: &str, job: &Job) -> Result<(), Error> {
        let arguments = ["--set-capacity", device].map(OsStr::new);
        self.losetup(&arguments, job).map(drop)
    }

    /// Runs losetup, and gives what it prints.
    fn losetup(&self, arguments: &[&OsStr], job: &Job) -> Result<String, Error> {
        let output = self.system.losetup(arguments).map_err(|e| {
            let code = match e.kind() {
                io::ErrorKind::TimedOut => Code::Io,
                _ => Code::NoLosetup,
            };
            job.error(code, format!("losetup: {e}"))
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let why = text.lines().next().unwrap_or("losetup failed").to_owned();
        let code = match why.contains("unrecognized option") || why.contains("unknown column") {
            true => Code::NoLosetup,
            false => Code::Io,
        };
        Err(job.error(code, why))
    }
}

fn attach_options(read_only: bool, direct: bool, block_size: Option<u64>) -> Vec<String> {
    let block_size = block_size.map(|bytes| format!("--sector-size={bytes}"));
    ["--find", "--show", "--loop-ref", REFERENCE]
        .into_iter()
        .chain(direct.then_some("--direct-io=on"))
        .chain(block_size.as_deref())
        .chain(read_only.then_some("--read-only"))
        .map(str::to_owned)
        .collect()
}

/// The command of [`Devices::attach`] with direct I/O, as a line of shell.
pub fn attach_line(file: &Path, read_only: bool, block_size: Option<u64>) -> String {
    let options = attach_options(read_only, true, block_size);
    format!("losetup {} {}", options.join(" "), quote::path(file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_losetup_prints() {
        let text = r#"{"loopdevices": [
            {"name":"/dev/loop0", "ro":false, "dio":true, "offset":0, "sizelimit":0, "ref":"farblk"},
            {"name":"/dev/loop5", "ro":false, "dio":false, "offset":null, "sizelimit":null, "ref":null},
            {"name":"/dev/loop6", "ro":true, "dio":false, "offset":512, "sizelimit":0, "ref":"/srv/x"}]}"#;
        let loops: Loops = serde_json::from_str(text).expect("JSON");
        let what = |device: &Loop| (device.is_whole(), device.is_ours(), device.read_only);
        assert_eq!(
            loops.loopdevices.iter().map(what).collect::<Vec<_>>(),
            [
                (true, true, false),
                (false, false, false),
                (false, false, true)
            ]
        );
    }

    #[test]
    fn udev_is_waited_for_where_it_can_be_asked() {
        let root = std::env::temp_dir().join(format!("farblk-settle-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a directory");
        let (udevadm, log) = (root.join("udevadm"), root.join("log"));
        let script = format!("#!/bin/sh\necho \"$*\" >{}\nexit 1\n", log.display());
        fs::write(&udevadm, script).expect("a file");
        fs::set_permissions(&udevadm, fs::Permissions::from_mode(0o755)).expect("a program");
        assert!(settle(&root.join("none"), udevadm.as_os_str()));
        assert!(!log.exists());
        assert!(settle(&root, root.join("none").as_os_str()));
        // One that fails at once has found no event that is left.
        assert!(settle(&root, udevadm.as_os_str()));
        assert_eq!(
            fs::read_to_string(&log).expect("its arguments"),
            "settle --timeout=10\n"
        );
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn a_buffer_is_aligned() {
        let mut buffer = Buffer::new();
        let data = buffer.get(IO_MAX);
        assert_eq!((data.len(), data.as_ptr().align_offset(4096)), (IO_MAX, 0));
    }

    #[test]
    fn the_number_is_that_of_sysfs() {
        // A container may have no nodes of disks.
        for entry in fs::read_dir("/sys/class/block").into_iter().flatten() {
            let entry = entry.expect("a device");
            let number = fs::read_to_string(entry.path().join("dev")).expect("its number");
            if let Ok(have) = block_number(&Path::new("/dev").join(entry.file_name())) {
                assert_eq!(have.as_deref(), Some(number.trim_end()));
            }
        }
    }

    #[test]
    fn only_block_devices_have_a_number() {
        assert_eq!(Linux.number(Path::new("/dev/null")).expect("a node"), None);
        assert_eq!(Linux.number(Path::new("/")).expect("a directory"), None);
        assert!(Linux.number(Path::new("/dev/none/such")).is_err());
    }
}
