// SPDX-License-Identifier: GPL-2.0
//! Files that a crash leaves whole, and the lock of the commands that must not run side by side.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::configfs::{Job, words};
use crate::error::{Code, Error};
use crate::quote;

/// The file that is locked, below the root directory.
const LOCK: &str = "run/farblk/lock";
/// How long a command waits for the lock. Allocating the memory of an export takes some seconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two tries to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The permissions of a new file: it may tell identities of hosts.
const MODE: u32 = 0o600;

/// The lock that a command holds while it looks what is there and changes it. The kernel releases
/// the lock when the command ends, however that happens.
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that another thread just begins has the file, too, until it runs its program.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Takes the lock of the host below `root`; waits up to 30 s for another command.
    pub fn take(root: &Path, job: &Job) -> Result<Self, Error> {
        Self::take_within(&root.join(LOCK), LOCK_TIMEOUT, job)
    }

    /// Takes the lock of a map, like [`Lock::take`].
    pub fn take_of_map(root: &Path, map: &str, job: &Job) -> Result<Self, Error> {
        Self::take_within(&root.join(format!("{LOCK}-map-{map}")), LOCK_TIMEOUT, job)
    }

    fn take_within(path: &Path, timeout: Duration, job: &Job) -> Result<Self, Error> {
        let fault = |e: &io::Error| failed(e, path, job);
        make_folder(path).map_err(|e| fault(&e))?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.mode(MODE).open(path).map_err(|e| fault(&e))?;
        let deadline = Instant::now() + timeout;
        while let Err(e) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if e != Errno::WOULDBLOCK && e != Errno::INTR {
                return Err(fault(&e.into()));
            }
            if Instant::now() >= deadline {
                let mut holder = String::new();
                let _ = (&file).take(32).read_to_string(&mut holder);
                let why = format!("another farblk command is at work: process {holder}");
                return Err(job.error(Code::Busy, why.trim_end()).hint("# try again"));
            }
            thread::sleep(LOCK_PAUSE);
        }
        // For the message above alone.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", process::id());
        Ok(Self { file })
    }
}

/// The effect of [`replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The file has this text already.
    Unchanged,
    /// There was no file.
    Made,
    /// The previous file has the suffix `.1` now.
    Replaced,
}

/// Gives a file another text. After a crash it has either the old text or the new one.
///
/// `verify` judges the new text as it was read back, before the old file is replaced. The caller
/// holds the [`Lock`].
pub fn replace(
    path: &Path,
    text: &str,
    job: &Job,
    verify: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<Written, Error> {
    // A link stays a link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let fault = |e: io::Error| failed(&e, path, job);
    remove_leftovers(path);
    let old = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(fault(e)),
    };
    if old.is_some() && fs::read(path).map_err(fault)? == text.as_bytes() {
        return Ok(Written::Unchanged);
    }
    make_folder(path).map_err(fault)?;
    let new = hidden(path, "new");
    let mode = old.as_ref().map_or(MODE, |old| old.permissions().mode());
    let written = write_through(&new, text.as_bytes(), mode & 0o777)
        .and_then(|()| fs::read_to_string(&new))
        .map_err(fault)
        .and_then(|back| verify(&back))
        .and_then(|()| match old {
            Some(_) => keep_previous(path).map_err(fault),
            None => Ok(()),
        })
        .and_then(|()| fs::rename(&new, path).map_err(fault));
    if written.is_err() {
        remove_leftovers(path);
    }
    written?;
    sync_folder(path).map_err(fault)?;
    Ok(match old {
        Some(_) => Written::Replaced,
        None => Written::Made,
    })
}

/// Gives a file another text, without keeping the previous one. The caller holds the [`Lock`].
pub fn put(path: &Path, text: &str, job: &Job) -> Result<(), Error> {
    let new = hidden(path, "new");
    make_folder(path)
        .and_then(|()| write_through(&new, text.as_bytes(), MODE))
        .and_then(|()| fs::rename(&new, path))
        .inspect_err(|_| drop(fs::remove_file(&new)))
        .and_then(|()| sync_folder(path))
        .map_err(|e| failed(&e, path, job))
}

/// Makes a file with this text, and its folder, unless there is a file already. Returns true if it
/// made the file.
pub fn make_once(path: &Path, text: &str) -> io::Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    make_folder(path)?;
    make(path, text.as_bytes())
}

/// Makes a file that only its owner may read. Returns false if there is one, or a link, which both
/// stay as they are. The file never exists without its whole text.
pub fn make(path: &Path, text: &[u8]) -> io::Result<bool> {
    remove_leftovers_of_others(path);
    let new = hidden(path, &process::id().to_string());
    let made = write_through(&new, text, MODE).and_then(|()| rename_new(&new, path));
    let _ = fs::remove_file(&new);
    match made {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.and_then(|()| sync_folder(path)).map(|()| true),
    }
}

/// Gives the file `new` the name `path`, which nothing has. Of file systems some cannot do the one
/// and some not the other.
fn rename_new(new: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(new, path),
        renamed => Ok(renamed?),
    }
}

/// Removes a file; the previous text has the suffix `.1` then. Returns false if there was no file.
pub fn remove(path: &Path, job: &Job) -> Result<bool, Error> {
    let fault = |e: io::Error| failed(&e, path, job);
    match fs::rename(path, suffixed(path)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        result => result.map_err(fault)?,
    }
    sync_folder(path).map_err(fault)?;
    Ok(true)
}

/// Keeps the file under its name with `.1`, without a moment at which there is no file.
fn keep_previous(path: &Path) -> io::Result<()> {
    let link = hidden(path, "old");
    let _ = fs::remove_file(&link);
    // Some file systems have no hard links.
    if fs::hard_link(path, &link).is_err() {
        fs::copy(path, &link)?;
        File::open(&link)?.sync_all()?;
    }
    fs::rename(&link, suffixed(path))
}

fn suffixed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// A name in the same folder that nobody takes for a file of the configuration.
fn hidden(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.farblk-{suffix}"))
}

/// Removes what commands that were killed have left beside a file. None is at work, as the caller
/// holds the [`Lock`].
fn remove_leftovers(path: &Path) {
    for suffix in ["new", "old"] {
        let _ = fs::remove_file(hidden(path, suffix));
    }
    remove_leftovers_of_others(path);
}

/// Removes what [`make`] has left in processes that were killed.
fn remove_leftovers_of_others(path: &Path) {
    remove_those_of_killed(path, &|number| hidden(path, number));
}

/// Removes what processes that were killed have left beside a file. `name_of` gives the path that a
/// process of this number uses.
pub fn remove_those_of_killed(path: &Path, name_of: &dyn Fn(&str) -> PathBuf) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    let folder = path.parent().filter(|parent| *parent != Path::new(""));
    let entries = fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter();
    for name in entries.flatten().flatten().map(|entry| entry.file_name()) {
        let name = name.to_string_lossy();
        let number = name
            .split(['.', '-'])
            .rev()
            .find(|part| part.parse::<u32>().is_ok())
            .unwrap_or_default();
        let left = name_of(number);
        let is_over = !Path::new("/proc").join(number).exists();
        if !number.is_empty() && path.with_file_name(&*name) == left && is_over {
            let _ = fs::remove_file(left);
        }
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn write_through(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    // A command that was killed may have left one.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|parent| *parent != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Says why a file cannot be written.
pub fn failed(e: &io::Error, path: &Path, job: &Job) -> Error {
    let code = match e.kind() {
        io::ErrorKind::PermissionDenied => Code::Permission,
        _ => Code::Io,
    };
    let error = job.error(code, format!("{}: {}", path.display(), words(e)));
    let folder = path.parent().filter(|parent| *parent != Path::new(""));
    let folder = quote::path(folder.unwrap_or(Path::new(".")));
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            error.hint(format!("df {folder}  # is the file system full?"))
        }
        io::ErrorKind::ReadOnlyFilesystem => error.hint(format!(
            "findmnt --target {folder}  # which file system is it that is read-only?"
        )),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farblk-durable-{}-{test}", process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn the_previous_file_is_kept() {
        let root = folder("replace");
        let job = Job::new("test");
        let path = root.join("etc/farblk/server.toml");
        let write = |text: &str| replace(&path, text, &job, |_| Ok(())).expect("to write");
        let read = |name: &str| fs::read_to_string(root.join("etc/farblk").join(name));
        assert_eq!(write("a = 1\n"), Written::Made);
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode(&path), MODE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("to change it");
        assert_eq!(write("a = 1\n"), Written::Unchanged);
        assert!(read("server.toml.1").is_err());
        // As a command that was killed leaves them.
        fs::write(root.join("etc/farblk/.server.toml.farblk-new"), "half").expect("a file");
        fs::write(root.join("etc/farblk/.server.toml.farblk-old"), "half").expect("a file");
        assert_eq!(write("a = 2\n"), Written::Replaced);
        assert_eq!(mode(&path), 0o644);
        assert_eq!(read("server.toml").expect("a file"), "a = 2\n");
        assert_eq!(read("server.toml.1").expect("a file"), "a = 1\n");
        // Also beside what stays as it is.
        fs::write(root.join("etc/farblk/.server.toml.farblk-new"), "half").expect("a file");
        fs::write(root.join("etc/farblk/.server.toml.farblk-4194305"), "half").expect("a file");
        // Those of others are none of its business.
        for others in [
            ".server.toml.1",
            ".server.toml.20240131",
            ".server.toml.new",
        ] {
            fs::write(root.join("etc/farblk").join(others), "theirs").expect("a file");
        }
        assert_eq!(write("a = 2\n"), Written::Unchanged);
        let names = fs::read_dir(root.join("etc/farblk")).expect("a folder");
        let mut names: Vec<_> = names.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        let others = [
            ".server.toml.1",
            ".server.toml.20240131",
            ".server.toml.new",
        ];
        assert_eq!(names[..3], others);
        assert_eq!(names[3..], ["server.toml", "server.toml.1"]);
        for others in others {
            fs::remove_file(root.join("etc/farblk").join(others)).expect("to remove it");
        }
        // What cannot be read back replaces nothing.
        let refuse = |back: &str| Err(job.error(Code::Io, back));
        let error = replace(&path, "a = 3\n", &job, refuse).expect_err("refused");
        assert_eq!(error.why, "a = 3\n");
        assert_eq!(read("server.toml").expect("a file"), "a = 2\n");
        let names = fs::read_dir(root.join("etc/farblk")).expect("a folder");
        assert_eq!(names.count(), 2);
        assert!(remove(&path, &job).expect("to remove"));
        assert_eq!(read("server.toml.1").expect("a file"), "a = 2\n");
        assert!(!remove(&path, &job).expect("nothing to remove"));
        fs::remove_dir_all(&root).expect("to clean up");
    }

    #[test]
    fn a_file_is_made_once() {
        let root = folder("once");
        let path = root.join("etc/farblk/host_id");
        assert!(make_once(&path, "a\n").expect("to make"));
        assert!(!make_once(&path, "b\n").expect("to keep"));
        assert_eq!(fs::read_to_string(&path).expect("a file"), "a\n");
        assert_eq!(
            fs::read_dir(root.join("etc/farblk")).expect("it").count(),
            1
        );
        fs::remove_dir_all(&root).expect("to clean up");
    }

    #[test]
    fn one_holds_the_lock() {
        let root = folder("lock");
        let job = Job::new("cannot save");
        let held = Lock::take(&root, &job).expect("the lock");
        let again = |wait| Lock::take_within(&root.join(LOCK), wait, &job);
        let error = again(Duration::from_millis(50)).err();
        let text = error.expect("busy").to_string();
        let id = process::id();
        assert_eq!(
            text,
            format!("cannot save: another farblk command is at work: process {id}")
        );
        // A map does not wait for an export, nor for another map.
        let maps = ["a", "b"].map(|map| Lock::take_of_map(&root, map, &job));
        assert!(maps.iter().all(Result::is_ok));
        drop(held);
        again(Duration::ZERO).expect("the lock again");
        fs::remove_dir_all(&root).expect("to clean up");
    }
}
