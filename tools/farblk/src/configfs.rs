// SPDX-License-Identifier: GPL-2.0
//! The module's tree in configfs: directories are objects, files are their attributes.
//!
//! In a dry run the changes are written down as shell commands instead of being made; what exists
//! is still read.
//!
//! Long: each way to read or to change an object stands beside the errors that it can give.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::error::{Code, Error, Peer, errno_name, holder, protections};
use crate::output::Output;
use crate::secret::{Secret, Source};
use crate::{module, name, quote};

#[cfg(test)]
pub mod fake;

/// The attribute of an object with a key that names it.
pub const KEY_ID: &str = "key_id";
/// The attribute of a host of an export that names the key which may be proved instead.
pub const KEY_NEXT_ID: &str = "key_next_id";
/// Says that a module has no keys.
const NO_KEYS: &str = "the module that is loaded has no keys: it is older than this tool";

/// The step at which a write failed.
#[derive(Debug)]
pub enum Fault {
    /// The attribute could not be opened.
    Open(io::Error),
    /// The kernel refused the value, or what it asks for.
    Store(io::Error),
}

/// The file operations the tool needs; in tests, a model of the kernel stands behind them.
pub trait Files {
    /// Returns true if `path` is a directory.
    fn is_dir(&self, path: &Path) -> bool;
    /// The names of the directories in `path`.
    fn dirs(&self, path: &Path) -> Vec<String>;
    /// The text of an attribute.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Stores `value` and a newline in an attribute, in one write as `echo` does.
    fn write(&self, path: &Path, value: &str) -> Result<(), Fault>;
    /// Makes an object.
    fn mkdir(&self, path: &Path) -> io::Result<()>;
    /// Removes an object.
    fn rmdir(&self, path: &Path) -> io::Result<()>;
    /// The number of an object's directory: one that was removed and made again has another one.
    fn inode(&self, path: &Path) -> Option<u64>;
}

struct Kernel;

/// An attribute of configfs has at most one page; the largest page of any architecture is this
/// many bytes.
const MAX_ATTRIBUTE: u64 = 256 * 1024;

impl Files for Kernel {
    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn dirs(&self, path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        let mut bytes = Vec::new();
        fs::File::open(path)?
            .take(MAX_ATTRIBUTE)
            .read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), Fault> {
        let mut file = fs::File::options()
            .write(true)
            .truncate(true)
            .open(path)
            .map_err(Fault::Open)?;
        // It may be a key. With room for all of it from the beginning, no copy is left behind.
        let mut line = Zeroizing::new(String::with_capacity(value.len() + 1));
        line.push_str(value);
        line.push('\n');
        file.write_all(line.as_bytes()).map_err(Fault::Store)
    }

    fn mkdir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn rmdir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn inode(&self, path: &Path) -> Option<u64> {
        fs::metadata(path).map(|metadata| metadata.ino()).ok()
    }
}

/// Why a host without an RDMA device reaches nobody.
pub const NO_RDMA_DEVICE: &str = "this host has no RDMA device";

/// The purpose of a change. It names the command in errors, and tells how to interpret an errno.
#[derive(Clone)]
pub struct Job {
    /// For example "cannot map 10.0.0.1/vol1".
    pub what: String,
    /// The peer that enabling uses: EACCES then comes from the peer, not from this host.
    peer: Peer,
    variables: Vec<(&'static str, String)>,
}

impl Job {
    /// A change on this host.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            peer: Peer::Nobody,
            variables: Vec::new(),
        }
    }

    /// A change that makes the kernel talk to another host.
    pub fn connect(mut self) -> Self {
        self.peer = Peer::Server;
        self
    }

    /// A change that makes the kernel open a block device.
    pub fn open(mut self) -> Self {
        self.peer = Peer::Device;
        self
    }

    /// A value for the hints.
    pub fn variable(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((key, value.into()));
        self
    }

    /// An error of this job.
    pub fn error(&self, code: Code, why: impl Into<String>) -> Error {
        let error = Error::new(code, &self.what, why).variables(&self.variables);
        let values: Vec<_> = match (holder(&error.why), protections(&error.why)) {
            (Some(holder), _) => vec![("holder", holder.to_owned())],
            (_, Some((export, map))) => vec![
                ("export_protection", export.to_owned()),
                ("map_protection", map.to_owned()),
            ],
            _ => return error,
        };
        error.variables(&values)
    }
}

/// The kernel's `last_error`: the errno's name, then words.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LastError {
    /// For example "ECONNREFUSED".
    pub errno: String,
    /// For example "nobody listens on 10.9.0.1:7420".
    pub text: String,
}

impl LastError {
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (errno, text) = line.split_once(' ').unwrap_or((line, ""));
        (!line.is_empty()).then(|| Self {
            errno: errno.into(),
            text: text.trim().into(),
        })
    }
}

/// The tree below `/sys/kernel/config/farblk`.
pub struct Configfs {
    root: PathBuf,
    base: PathBuf,
    files: Box<dyn Files>,
    /// The commands of a dry run.
    script: Option<RefCell<Vec<String>>>,
}

impl Configfs {
    /// The tree below `root`.
    pub fn new(root: &Path, dry_run: bool) -> Self {
        Self::with(root, dry_run, Box::new(Kernel))
    }

    /// The tree below `root`, behind `files`.
    pub fn with(root: &Path, dry_run: bool, files: Box<dyn Files>) -> Self {
        Self {
            root: root.to_owned(),
            base: root.join("sys/kernel/config/farblk"),
            files,
            script: dry_run.then(RefCell::default),
        }
    }

    /// Returns true if this is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.script.is_some()
    }

    /// The commands of a dry run, as far as they were not taken yet.
    pub fn take_script(&self) -> Vec<String> {
        self.script.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Fails when the module's tree is not there, and says why. A dry run needs no module.
    pub fn require(&self) -> Result<(), Error> {
        if self.is_dry_run() || self.files.is_dir(&self.base) {
            return Ok(());
        }
        Err(module::missing(&self.root))
    }

    /// The path of an object, for example of `["ports", "1"]`.
    pub fn path(&self, parts: &[&str]) -> PathBuf {
        self.base.join(parts.iter().collect::<PathBuf>())
    }

    /// Returns true if the object exists.
    pub fn exists(&self, object: &Path) -> bool {
        self.files.is_dir(object)
    }

    /// The number of the object's directory, if it exists. An object that was removed and made
    /// again has another one.
    pub fn inode(&self, object: &Path) -> Option<u64> {
        self.files.inode(object)
    }

    /// The names of the objects in a directory, with the numbers in them in their order.
    pub fn names(&self, directory: &Path) -> Vec<String> {
        let mut names = self.files.dirs(directory);
        names.sort_by_cached_key(|name| (name::natural(name), name.clone()));
        names
    }

    /// The text of an attribute; `None` when it is empty, or when the object or attribute is not
    /// there (any more).
    pub fn attr(&self, object: &Path, name: &str) -> Option<String> {
        let text = self.files.read(&object.join(name)).ok()?;
        let text = text.trim_end_matches('\n');
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// An attribute that is a number.
    pub fn number<T: std::str::FromStr>(&self, object: &Path, name: &str) -> Option<T> {
        self.attr(object, name)?.trim().parse().ok()
    }

    /// An attribute that is 0 or 1.
    pub fn flag(&self, object: &Path, name: &str) -> bool {
        self.attr(object, name).is_some_and(|text| text == "1")
    }

    /// What the object suffers.
    pub fn last_error(&self, object: &Path) -> Option<LastError> {
        LastError::parse(&self.attr(object, "last_error")?)
    }

    /// Why the last write to an attribute of the object was refused. An older module has that in
    /// `last_error`, in the same form.
    fn refusal(&self, object: &Path) -> Option<LastError> {
        let name = match self.files.read(&object.join("refusal")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => "last_error",
            _ => "refusal",
        };
        LastError::parse(&self.attr(object, name)?)
    }

    /// The attributes of `wanted` whose value differs, in words.
    pub fn differences(&self, object: &Path, wanted: &[(&str, String)]) -> Vec<String> {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut differences = Vec::new();
        for (name, want) in wanted {
            let have = self.attr(object, name).unwrap_or_default();
            if words(&have) != words(want) {
                differences.push(format!("{name} is {have:?}, not {want:?}"));
            }
        }
        differences
    }

    /// Makes an object.
    pub fn mkdir(&self, object: &Path, job: &Job) -> Result<(), Error> {
        if self.record(|| format!("mkdir {}", quote::path(object))) {
            return Ok(());
        }
        self.files.mkdir(object).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => self.missing(object, job),
            _ => self.local(&e, object, job),
        })
    }

    /// Removes an object.
    pub fn rmdir(&self, object: &Path, job: &Job) -> Result<(), Error> {
        if self.record(|| format!("rmdir {}", quote::path(object))) {
            return Ok(());
        }
        self.files.rmdir(object).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                job.error(Code::NotFound, "the object does not exist any more")
            }
            _ => self.local(&e, object, job),
        })
    }

    /// Stores `value` in an attribute of `object`. When the kernel refuses, its words come from the
    /// object's `refusal`.
    pub fn set(&self, object: &Path, name: &str, value: &str, job: &Job) -> Result<(), Error> {
        let attribute = object.join(name);
        if self.record(|| echo(value, &attribute)) {
            return Ok(());
        }
        self.files
            .write(&attribute, value)
            .map_err(|fault| match fault {
                Fault::Open(e) if e.kind() == io::ErrorKind::NotFound => {
                    self.missing(&attribute, job)
                }
                Fault::Open(e) => self.local(&e, &attribute, job),
                Fault::Store(e) => self.refused(&e, object, name, value, job),
            })
    }

    /// Fails when the module does not know keys; `object` is a map, or a host of an export. A dry
    /// run takes them for known.
    pub fn require_keys(&self, object: &Path, job: &Job) -> Result<(), Error> {
        self.require_attr(object, KEY_ID, job)
            .map_err(|error| match error.code {
                Code::NoFeature => job.error(error.code, NO_KEYS),
                _ => error,
            })
    }

    /// Stores a key, which came from `source`, in an attribute of `object`; `None` removes the one
    /// that is there. No error and no line of a dry run has the key.
    pub fn set_key(
        &self,
        object: &Path,
        name: &str,
        key: Option<(&Secret, &Source<'_>)>,
        job: &Job,
    ) -> Result<(), Error> {
        self.require_keys(object, job)?;
        let Some((secret, source)) = key else {
            return self.set(object, name, "", job);
        };
        let attribute = object.join(name);
        if self.record(|| source.copy(&attribute)) {
            return Ok(());
        }
        self.files
            .write(&attribute, secret.text())
            .map_err(|fault| match fault {
                Fault::Open(e) if e.kind() == io::ErrorKind::NotFound => {
                    job.error(Code::NoFeature, NO_KEYS)
                }
                Fault::Open(e) => self.local(&e, &attribute, job),
                Fault::Store(e) => self.refused(&e, object, name, secret.id(), job),
            })
    }

    /// Stores `value` in an attribute of `object`; does nothing if the kernel finds nothing that
    /// the value names.
    pub fn set_if_found(
        &self,
        object: &Path,
        name: &str,
        value: &str,
        job: &Job,
    ) -> Result<(), Error> {
        let refusal = object.join("refusal");
        if self.record(|| {
            let echo = echo(value, &object.join(name));
            format!("{echo} || grep -q ^ENOENT {}", quote::path(&refusal))
        }) {
            return Ok(());
        }
        match self.set(object, name, value, job) {
            Err(error) if error.code == Code::NotFound => Ok(()),
            result => result,
        }
    }

    /// Stores several attributes.
    pub fn set_all(
        &self,
        object: &Path,
        values: &[(&str, String)],
        job: &Job,
    ) -> Result<(), Error> {
        values
            .iter()
            .try_for_each(|(name, value)| self.set(object, name, value, job))
    }

    /// Reads an attribute that must be there; a dry run writes down the reading and gives `None`.
    pub fn read(&self, object: &Path, name: &str, job: &Job) -> Result<Option<String>, Error> {
        let attribute = object.join(name);
        if self.record(|| format!("cat {}", quote::path(&attribute))) {
            return Ok(None);
        }
        match self.files.read(&attribute) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(self.missing(&attribute, job)),
            Err(e) => Err(self.local(&e, &attribute, job)),
        }
    }

    /// Disables an object if it is enabled.
    pub fn disable(&self, object: &Path, job: &Job) -> Result<(), Error> {
        match self.attr(object, "enable").as_deref() {
            None | Some("0") => Ok(()),
            Some(_) => self.set(object, "enable", "0", job),
        }
    }

    /// Fails when the module does not know the attribute. A dry run takes it for known.
    pub fn require_attr(&self, object: &Path, name: &str, job: &Job) -> Result<(), Error> {
        let attribute = object.join(name);
        match self.files.read(&attribute) {
            Err(e) if !self.is_dry_run() && e.kind() == io::ErrorKind::NotFound => {
                Err(self.missing(&attribute, job))
            }
            _ => Ok(()),
        }
    }

    /// Writes the command down if this is a dry run, and says so.
    pub fn record(&self, command: impl FnOnce() -> String) -> bool {
        if let Some(script) = &self.script {
            script.borrow_mut().push(command());
        }
        self.script.is_some()
    }

    /// Returns true if this host has no RDMA device.
    pub fn has_no_rdma_device(&self) -> bool {
        let devices = fs::read_dir(self.root.join("sys/class/infiniband"));
        devices.is_ok_and(|mut devices| devices.next().is_none())
    }

    fn missing(&self, path: &Path, job: &Job) -> Error {
        let parent = path.parent().unwrap_or(path);
        match self.require() {
            Err(error) => error,
            // Of what is deeper than the kinds of objects, all directories come and go.
            Ok(()) if !self.exists(parent) && parent.parent() != Some(&self.base) => {
                job.error(Code::NotFound, "the object was removed meanwhile")
            }
            Ok(()) => job.error(
                Code::NoFeature,
                format!("{} does not exist", path.display()),
            ),
        }
    }

    /// A failure that is not the kernel module's answer.
    fn local(&self, e: &io::Error, path: &Path, job: &Job) -> Error {
        let code = Code::from_errno(e.raw_os_error().unwrap_or(0), Peer::Nobody);
        job.error(code, format!("{}: {}", path.display(), words(e)))
    }

    fn refused(&self, e: &io::Error, object: &Path, name: &str, value: &str, job: &Job) -> Error {
        let errno = e.raw_os_error().unwrap_or(0);
        let peer = match name {
            "enable" => job.peer,
            _ => Peer::Nobody,
        };
        let said = self
            .refusal(object)
            .filter(|last| last.errno == errno_name(errno) && !last.text.is_empty());
        let text = said.as_ref().map_or("", |last| &last.text);
        let code = Code::from_words(errno_name(errno), text, peer);
        // The kernel finds no way to the server then, and takes it for one that does not answer.
        if code == Code::Unreachable && self.has_no_rdma_device() {
            return job.error(Code::NoDevice, NO_RDMA_DEVICE);
        }
        let why = match said {
            Some(last) => last.text,
            None if name == "enable" => format!("{} ({})", code.entry().meaning, words(e)),
            None => format!("{name} {value:?}: {} ({})", code.entry().meaning, words(e)),
        };
        job.error(code, why)
    }
}

/// The objects a command has made so far. They are removed again when it fails, that is when this
/// is dropped before [`Made::keep`].
pub struct Made<'a> {
    configfs: &'a Configfs,
    output: &'a Output,
    objects: Vec<PathBuf>,
}

impl<'a> Made<'a> {
    /// Nothing made yet.
    pub fn new(configfs: &'a Configfs, output: &'a Output) -> Self {
        Self {
            configfs,
            output,
            objects: Vec::new(),
        }
    }

    /// Makes an object.
    pub fn mkdir(&mut self, object: &Path, job: &Job) -> Result<(), Error> {
        self.configfs.mkdir(object, job)?;
        self.objects.push(object.to_owned());
        Ok(())
    }

    /// Returns true if the object was made here; that of a dry run is not there.
    pub fn has(&self, object: &Path) -> bool {
        self.objects.iter().any(|made| made == object)
    }

    /// Keeps the objects.
    pub fn keep(mut self) {
        self.objects.clear();
    }

    /// Removes the objects now; for those that are only needed for a moment.
    pub fn remove(mut self, job: &Job) -> Result<(), Error> {
        for object in std::mem::take(&mut self.objects).iter().rev() {
            self.configfs.disable(object, job)?;
            self.configfs.rmdir(object, job)?;
        }
        Ok(())
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if self.configfs.is_dry_run() {
            return;
        }
        let job = Job::new("cannot clean up");
        let disabled = self
            .objects
            .iter()
            .try_for_each(|object| self.configfs.disable(object, &job));
        let removed = self
            .objects
            .iter()
            .rev()
            .try_for_each(|object| self.configfs.rmdir(object, &job));
        if let Err(error) = disabled.and(removed) {
            self.output.warn(&error.to_string());
        }
    }
}

/// An errno in words, with its name.
pub fn words(e: &io::Error) -> String {
    let text = e.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    match errno_name(e.raw_os_error().unwrap_or(0)) {
        "" => text.to_owned(),
        name => format!("{text}, {name}"),
    }
}

/// The command that stores `value`. `echo` would take "-n" for an option, but not "-1".
fn echo(value: &str, attribute: &Path) -> String {
    let attribute = quote::path(attribute);
    let option = value.starts_with('-') && value.parse::<i64>().is_err();
    match option {
        true => format!("printf '%s\\n' {} > {attribute}", quote::word(value)),
        false => format!("echo {} > {attribute}", quote::word(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words() {
        assert_eq!(echo("-1", Path::new("c")), "echo -1 > c");
        assert_eq!(
            echo("-n", Path::new("/a b/c")),
            "printf '%s\\n' -n > '/a b/c'"
        );
    }

    #[test]
    fn last_errors() {
        let last = LastError::parse("ECONNREFUSED nobody listens\n").unwrap();
        assert_eq!(
            (&*last.errno, &*last.text),
            ("ECONNREFUSED", "nobody listens")
        );
        assert_eq!(LastError::parse("EIO").unwrap().text, "");
        assert_eq!(LastError::parse("\n"), None);
    }

    #[test]
    fn errno_words() {
        let words = |errno| words(&io::Error::from_raw_os_error(errno));
        assert_eq!(words(111), "Connection refused, ECONNREFUSED");
        assert!(!words(4000).contains("os error"));
    }
}
