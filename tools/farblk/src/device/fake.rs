// SPDX-License-Identifier: GPL-2.0
//! A model of a host with disks and losetup(8), for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::rc::Rc;

use super::System;

struct Loop {
    file: PathBuf,
    /// The inode of the file: another file may have its name later.
    inode: Option<(u64, u64)>,
    read_only: bool,
    direct: bool,
    reference: String,
}

#[derive(Default)]
struct State {
    /// The nodes of the disks, each with its number.
    disks: BTreeMap<PathBuf, String>,
    loops: BTreeMap<u32, Loop>,
    log: Vec<String>,
    no_direct: bool,
    /// The block size of the disks under the files, if it is not 512.
    block_size: Option<u64>,
    missing: bool,
    busy: bool,
    /// How many times udev has to be waited for until it has closed the loop devices.
    reading: u32,
    /// The loop devices that keep their files until then.
    detaching: Vec<String>,
    /// Somebody has the disks for himself.
    held: bool,
    /// What happens when a disk is opened to be written.
    opened: Option<Rc<dyn Fn()>>,
}

/// The model; clones are the same model. Its /sys is below `root`.
#[derive(Clone)]
pub struct Fake {
    root: PathBuf,
    state: Rc<RefCell<State>>,
}

impl Fake {
    /// A host below `root`, without disks.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            state: Rc::default(),
        }
    }

    /// Adds a disk or partition "sdb" of 1 GiB.
    pub fn disk(&self, name: &str) {
        let state = self.state.borrow();
        let disks = state
            .disks
            .values()
            .filter(|number| number.starts_with("8:"));
        let count = disks.count();
        drop(state);
        self.appear(name, &format!("8:{count}"));
        self.attr(name, "size", "2097152");
    }

    /// Sets an attribute in /sys.
    pub fn attr(&self, name: &str, attribute: &str, value: &str) {
        let path = self.class(name).join(attribute);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, format!("{value}\n")).expect("a file");
    }

    /// Gives a disk another name.
    pub fn link(&self, path: &str, name: &str) {
        let mut state = self.state.borrow_mut();
        let number = state.disks[&self.root.join("dev").join(name)].clone();
        state.disks.insert(self.root.join(path), number);
    }

    /// No file system of this host has direct I/O.
    pub fn without_direct_io(&self) {
        self.state.borrow_mut().no_direct = true;
    }

    /// The files of this host are on disks with blocks of this size.
    pub fn with_blocks_of(&self, bytes: u64) {
        self.state.borrow_mut().block_size = Some(bytes);
    }

    /// This host has no losetup.
    pub fn without_losetup(&self) {
        self.state.borrow_mut().missing = true;
    }

    /// udev of this host is never done.
    pub fn with_busy_udev(&self) {
        self.state.borrow_mut().busy = true;
    }

    /// udev reads each loop device until it was waited for so many times.
    pub fn with_readers(&self, times: u32) {
        self.state.borrow_mut().reading = times;
    }

    /// Nobody can open a disk of this host exclusively.
    pub fn with_held_disks(&self) {
        self.state.borrow_mut().held = true;
    }

    /// Each time somebody has opened a disk of this host to write to it, `happens` is called.
    pub fn when_opened(&self, happens: impl Fn() + 'static) {
        self.state.borrow_mut().opened = Some(Rc::new(happens));
    }

    /// The changes losetup was asked for, and the waits for udev, since the last call.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.borrow_mut().log)
    }

    /// The loop devices in use, "0 FILE REFERENCE".
    pub fn loops(&self) -> Vec<String> {
        let state = self.state.borrow();
        let one = |(index, found): (&u32, &Loop)| {
            format!("{index} {} {}", found.file.display(), found.reference)
        };
        state.loops.iter().map(one).collect()
    }

    fn class(&self, name: &str) -> PathBuf {
        self.root.join("sys/class/block").join(name)
    }

    /// Adds a device.
    pub fn appear(&self, name: &str, number: &str) {
        self.attr(name, "dev", number);
        self.attr(name, "ro", "0");
        let numbers = self.root.join("sys/dev/block");
        fs::create_dir_all(&numbers).expect("a directory");
        let _ = symlink(self.class(name), numbers.join(number));
        let node = self.root.join("dev").join(name);
        self.state.borrow_mut().disks.insert(node, number.into());
    }

    fn attach(&self, file: &str, options: &[&str]) -> Result<String, String> {
        let has = |option: &str| options.contains(&option);
        let reference = options.iter().skip_while(|option| **option != "--loop-ref");
        let made = Loop {
            file: file.into(),
            inode: inode(Path::new(file)),
            read_only: has("--read-only"),
            direct: has("--direct-io=on"),
            reference: (*reference.clone().nth(1).unwrap_or(&file)).to_owned(),
        };
        let mut state = self.state.borrow_mut();
        if !made.file.exists() || (state.no_direct && made.direct) {
            return Err(format!("losetup: {file}: failed to set up loop device"));
        }
        let block_size_below = state.block_size.unwrap_or(512).to_string();
        let used = |index: &u32| state.loops.contains_key(index);
        let index = (0..).find(|index| !used(index)).unwrap_or_default();
        let name = format!("loop{index}");
        state.loops.insert(index, made);
        drop(state);
        self.appear(&name, &format!("7:{index}"));
        self.attr(&name, "loop/backing_file", file);
        let block_size = options
            .iter()
            .find_map(|option| option.strip_prefix("--sector-size="));
        let block_size = block_size.unwrap_or(match has("--direct-io=on") {
            true => &block_size_below,
            false => "512",
        });
        self.attr(&name, "queue/logical_block_size", block_size);
        self.measure(&name, file);
        Ok(format!("/dev/{name}\n"))
    }

    fn measure(&self, name: &str, file: &str) {
        let sectors = fs::metadata(file).map_or(0, |file| file.len() / 512);
        self.attr(name, "size", &sectors.to_string());
    }

    fn change(&self, device: &str, detach: bool) -> Result<String, String> {
        let name = device.trim_start_matches("/dev/");
        let index = name.trim_start_matches("loop").parse().unwrap_or(u32::MAX);
        let mut state = self.state.borrow_mut();
        let Some(found) = state.loops.get(&index) else {
            return Err(format!("losetup: {device}: No such device or address"));
        };
        let file = found.file.display().to_string();
        if detach {
            state.loops.remove(&index);
            match state.reading {
                0 => drop(fs::remove_dir_all(self.class(name).join("loop"))),
                _ => state.detaching.push(name.to_owned()),
            }
        } else {
            drop(state);
            self.measure(name, &file);
        }
        Ok(String::new())
    }

    fn list(&self, last: &str, by_file: bool) -> String {
        let state = self.state.borrow();
        let wanted = state.loops.iter().filter(|(index, found)| match by_file {
            true => found.inode == inode(Path::new(last)),
            false => last == format!("/dev/loop{index}"),
        });
        let one = |(index, found): (&u32, &Loop)| {
            format!(
                r#"{{"name":"/dev/loop{index}","ro":{},"dio":{},"offset":0,"sizelimit":0,"ref":"{}"}}"#,
                found.read_only, found.direct, found.reference
            )
        };
        let found: Vec<_> = wanted.map(one).collect();
        format!(r#"{{"loopdevices":[{}]}}"#, found.join(","))
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

impl System for Fake {
    fn number(&self, path: &Path) -> io::Result<Option<String>> {
        if let Some(number) = self.state.borrow().disks.get(path) {
            return Ok(Some(number.clone()));
        }
        fs::metadata(path).map(|_| None)
    }

    fn open(&self, path: &Path, write: bool) -> io::Result<File> {
        if write && self.state.borrow().held {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let file = File::options().read(true).write(write).open(path)?;
        let opened = self.state.borrow().opened.clone();
        if let Some(happens) = opened.filter(|_| write) {
            happens();
        }
        Ok(file)
    }

    fn losetup(&self, arguments: &[&OsStr]) -> io::Result<Output> {
        if self.state.borrow().missing {
            return Err(io::ErrorKind::NotFound.into());
        }
        let words: Vec<&str> = arguments.iter().flat_map(|word| word.to_str()).collect();
        let last = words.last().copied().unwrap_or_default();
        if words[0] != "--json" {
            self.state.borrow_mut().log.push(words.join(" "));
        }
        let result = match words[0] {
            "--find" => self.attach(last, &words),
            "--json" => Ok(self.list(last, words.contains(&"--associated"))),
            "--detach" => self.change(last, true),
            "--set-capacity" => self.change(last, false),
            option => Err(format!("losetup: unrecognized option '{option}'")),
        };
        Ok(Output {
            status: ExitStatus::from_raw(if result.is_ok() { 0 } else { 1 << 8 }),
            stdout: result.clone().unwrap_or_default().into(),
            stderr: result.err().unwrap_or_default().into(),
        })
    }

    fn settle(&self) -> bool {
        // With what a unit has noted by then.
        let note = fs::read_to_string(self.root.join("run/farblk/maps/vol1"));
        let line = format!("settle {}", note.unwrap_or_default());
        let mut state = self.state.borrow_mut();
        state.log.push(line.trim().into());
        if state.reading > 0 {
            state.reading -= 1;
        }
        if state.reading == 0 {
            for name in std::mem::take(&mut state.detaching) {
                let _ = fs::remove_dir_all(self.class(&name).join("loop"));
            }
        }
        !state.busy
    }
}
