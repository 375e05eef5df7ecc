// SPDX-License-Identifier: GPL-2.0
//! The backing of an export: RAM, a block device, or a file through a loop device.

use std::fs;
use std::io;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Context;
use crate::cli::Create;
use crate::configfs::{Job, words};
use crate::device::{Devices, Loop, attach_line};
use crate::error::{Code, Error, Hints};
use crate::holders::{self, Holder};
use crate::quote;
use crate::size;

/// A file has to end where a block ends, and this is the largest block.
const FILE_STEP: u64 = 4096;

/// A loop device leaves out what is behind the last whole sector of its file.
const SECTOR: u64 = 512;

/// The backing to export, as it was found on this host. Finding it changes nothing.
pub enum Backing {
    /// Memory, of this many bytes.
    Ram(u64),
    /// A block device.
    Device {
        /// Its path, with links only below /dev: udev keeps those right.
        path: String,
        /// Its number, "8:1".
        number: String,
    },
    /// A file.
    File {
        /// Its path, without links.
        path: PathBuf,
        /// It has to be made, or is empty and has to get this size.
        create: Option<u64>,
        /// The loop devices that back it already.
        loops: Vec<Loop>,
        /// The logical block size that is asked for, in bytes.
        block_size: Option<u64>,
    },
}

impl Backing {
    /// Looks at what the command line wants to have exported.
    pub fn find(context: &Context, arguments: &Create, job: &Job) -> Result<Self, Error> {
        match (&arguments.device, &arguments.file, arguments.ram) {
            (Some(path), _, _) => Self::find_device(context, path, arguments.read_only, job),
            (_, Some(path), _) => {
                let mut found = Self::find_file(context, path, arguments.size, job)?;
                if let Self::File { block_size, .. } = &mut found {
                    *block_size = arguments.block_size;
                }
                Ok(found)
            }
            (_, _, bytes) => Ok(Self::Ram(bytes.unwrap_or_default())),
        }
    }

    fn find_device(
        context: &Context,
        path: &Path,
        read_only: bool,
        job: &Job,
    ) -> Result<Self, Error> {
        let fault = |e: io::Error| {
            let code = match e.kind() {
                io::ErrorKind::NotFound => Code::NoBlockDevice,
                io::ErrorKind::PermissionDenied => Code::Permission,
                _ => Code::Io,
            };
            job.error(code, format!("{}: {}", path.display(), words(&e)))
        };
        let mut whole = std::path::absolute(path).map_err(fault)?;
        if !whole.starts_with("/dev") {
            whole = fs::canonicalize(whole).map_err(fault)?;
        }
        let number = context.devices.number(&whole).map_err(fault)?;
        let Some(number) = number else {
            let why = format!("{} is not a block device", whole.display());
            return Err(job.error(Code::NotBlockDevice, why));
        };
        let name = context.devices.name(&number);
        if name
            .as_ref()
            .is_some_and(|name| context.devices.is_zoned(name))
        {
            let why = format!(
                "{} is a zoned disk, and these cannot be exported",
                whole.display()
            );
            return Err(job
                .error(Code::BadValue, why)
                .hint("# --file exports a file on a file system of it"));
        }
        let is = |is: fn(&Devices, &str) -> bool| {
            name.as_ref().is_some_and(|name| is(&context.devices, name))
        };
        if !read_only && is(Devices::is_read_only) {
            let why = format!("{} is write-protected", whole.display());
            return Err(job.error(Code::WriteProtected, why));
        }
        if is(Devices::is_misaligned) {
            context.output.warn(&format!(
                "{} begins within a physical block of its disk, which clients cannot see: their \
                 writes are slow, unless it is a partition that you move to a multiple of 1 MiB",
                whole.display()
            ));
        }
        let path = text_of(&whole, job)?;
        Ok(Self::Device { path, number })
    }

    fn find_file(
        context: &Context,
        path: &Path,
        size: Option<u64>,
        job: &Job,
    ) -> Result<Self, Error> {
        let shown = path.display();
        let fault = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => job
                .error(Code::NotFound, format!("{shown} does not exist"))
                .hint("# --size SIZE makes the file, in a folder that exists"),
            _ => job.error(Code::Io, format!("{shown}: {}", words(&e))),
        };
        if let Some(size) = size {
            check_size(size, job)?;
        }
        let metadata = match (fs::metadata(path), size) {
            (Err(e), Some(_)) if e.kind() == io::ErrorKind::NotFound => None,
            // As after a command that was killed when it had made the file.
            (Ok(found), Some(_)) if found.is_file() && found.len() == 0 => None,
            (result, _) => Some(result.map_err(fault)?),
        };
        let Some(metadata) = metadata else {
            let path = std::path::absolute(path).map_err(fault)?;
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(job.error(Code::Usage, format!("{shown} is not a file")));
            };
            let path = fs::canonicalize(parent).map_err(fault)?.join(name);
            text_of(&path, job)?;
            return Ok(Self::File {
                path,
                create: size,
                loops: Vec::new(),
                block_size: None,
            });
        };
        if !metadata.is_file() {
            let error = job.error(Code::Usage, format!("{shown} is not a file"));
            return Err(match metadata.file_type().is_block_device() {
                true => error.hint(format!("# --device {shown}")),
                false => error,
            });
        }
        let have = metadata.len();
        if size.is_some_and(|size| size != have) {
            let why = format!("{shown} exists already, with {}", size::human(have));
            return Err(job.error(Code::Differs, why).hint(
                "# omit --size to export the file as it is; farblk export resize makes it larger then",
            ));
        }
        if have == 0 {
            return Err(job
                .error(Code::BadValue, format!("{shown} is empty"))
                .hint(format!("truncate --size SIZE {}", quote::path(path))));
        }
        if have % SECTOR != 0 {
            let tail = have % SECTOR;
            context.output.warn(&format!(
                "{shown}: its last {tail} bytes are no whole block of {SECTOR}, and are not exported"
            ));
        }
        let path = fs::canonicalize(path).map_err(fault)?;
        text_of(&path, job)?;
        let loops = match context.devices.loops(&path, job) {
            // A dry run may be for another host.
            Err(_) if context.configfs.is_dry_run() => Vec::new(),
            result => result?,
        };
        Ok(Self::File {
            path,
            create: None,
            loops,
            block_size: None,
        })
    }

    /// The kind of the export.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ram(_) => "ram",
            _ => "block",
        }
    }

    /// The attribute that names the backing. `have` is the `device_path` of the export, if there is
    /// one: another name of the same device is as good.
    pub fn source(&self, context: &Context, have: Option<&str>) -> (&'static str, String) {
        let number = |path: &str| context.devices.number(Path::new(path)).ok().flatten();
        let have_number = have.and_then(number);
        let same = |other: Option<String>| other.is_some() && other == have_number;
        let (path, same) = match self {
            Self::Ram(bytes) => return ("size", bytes.to_string()),
            Self::Device { path, number } => (path.clone(), same(Some(number.clone()))),
            Self::File { path, loops, .. } => (
                path.display().to_string(),
                loops
                    .iter()
                    .any(|found| have == Some(&found.device) || same(number(&found.device))),
            ),
        };
        let path = have.filter(|_| same).map_or(path, str::to_owned);
        ("device_path", path)
    }

    /// The loop device to use again, if there is one.
    fn again(&self, context: &Context, read_only: bool, job: &Job) -> Result<Option<&Loop>, Error> {
        let Self::File {
            loops, block_size, ..
        } = self
        else {
            return Ok(None);
        };
        let has_access = |found: &&Loop| read_only || !found.read_only;
        let differs = |found: &Loop| self.differs(context, &found.device);
        let fits = |found: &&Loop| has_access(found) && differs(found).is_none();
        match (loops.iter().find(has_access), loops.first()) {
            (Some(found), _) if !loops.iter().any(|found| fits(&found)) => {
                let (device, have) = (&found.device, differs(found).unwrap_or_default());
                let want = block_size.unwrap_or_default();
                let why = format!(
                    "the file backs {device} already, with blocks of {have} bytes, not {want}"
                );
                Err(job.error(Code::Differs, why).hint(format!(
                    "losetup --detach {device}  # if nobody needs it; then try again"
                )))
            }
            (None, Some(Loop { device, .. })) => {
                let why = format!("the file backs {device} already, which is read-only");
                Err(job.error(Code::WriteProtected, why).hint(format!(
                    "# export it with --read-only\nlosetup --detach {device}  # or let the tool make another one"
                )))
            }
            _ => Ok(loops.iter().find(fits)),
        }
    }

    /// The block size of the loop device `device`, if it is not the one that is asked for.
    pub fn differs(&self, context: &Context, device: &str) -> Option<u64> {
        let Self::File {
            block_size: Some(want),
            ..
        } = self
        else {
            return None;
        };
        let have = context.devices.block_size(device.strip_prefix("/dev/")?)?;
        (have != *want).then_some(have)
    }

    /// Fails if somebody on this host uses the device.
    pub fn require_free(&self, context: &Context, read_only: bool, job: &Job) -> Result<(), Error> {
        let number = match (self, self.again(context, read_only, job)?) {
            (Self::Device { number, .. }, _) => Some(number.clone()),
            (_, Some(found)) => context
                .devices
                .number(Path::new(&found.device))
                .ok()
                .flatten(),
            _ => None,
        };
        let Some(name) = number.and_then(|number| context.devices.name(&number)) else {
            return Ok(());
        };
        let holders = holders::find(&context.root, &name);
        if holders.is_empty() {
            return Ok(());
        }
        let is_root = |holder: &Holder| matches!(holder, Holder::Mount { path, .. } if path == "/");
        let mut error = match holders.iter().any(is_root) {
            true => job
                .error(
                    Code::InUse,
                    format!(
                        "the root file system of this host is on /dev/{name}, which cannot be exported"
                    ),
                )
                .hint("lsblk  # choose another disk, or a file: --file"),
            false => {
                let steps = holders::remedies(&holders);
                job.error(Code::InUse, format!("/dev/{name} is in use"))
                    .hint(steps.join("\n"))
            }
        };
        error.details = holders.iter().map(Holder::describe).collect();
        Err(error)
    }

    /// Makes the file and the loop device of the export `object` if need be, and gives the path of
    /// the block device. A dry run gives `None` when only the shell will know it, as `$loop`.
    ///
    /// Before there is a loop device, the export has the path of the file as its `device_path`. So
    /// a command that finds the export after this one was killed finds the loop device, too.
    pub fn provide(
        &self,
        context: &Context,
        read_only: bool,
        object: &Path,
        undo: &mut Undo<'_>,
        job: &Job,
    ) -> Result<Option<String>, Error> {
        let (path, create, block_size) = match self {
            Self::Ram(_) => return Ok(None),
            Self::Device { path, .. } => return Ok(Some(path.clone())),
            Self::File {
                path,
                create,
                block_size,
                ..
            } => (path, *create, *block_size),
        };
        if let Some(Loop { device, direct, .. }) = self.again(context, read_only, job)? {
            if !direct {
                let text = format!("{device} is used without direct I/O, as it was set up");
                let hint = Hints::new(format!("losetup --direct-io=on {device}"));
                context.output.warn_with(&text, &hint);
            }
            return Ok(Some(device.clone()));
        }
        if let Some(size) = create {
            let new = !path.exists();
            make_larger(context, path, size, new, job)?;
            undo.file = new.then(|| path.clone());
        }
        let shown = text_of(path, job)?;
        context.configfs.set(object, "device_path", &shown, job)?;
        let line = || format!("loop=$({})", attach_line(path, read_only, block_size));
        if context.configfs.record(line) {
            return Ok(None);
        }
        let attach = |direct| {
            context
                .devices
                .attach(path, read_only, direct, block_size, job)
        };
        let device = match attach(true) {
            Err(error) if error.code == Code::Io => attach(false)?,
            result => result?,
        };
        undo.device = Some(device.clone());
        match context.devices.loop_at(&device, job)? {
            Some(made) if made.read_only && !read_only => {
                let why = format!("{} is write-protected", path.display());
                return Err(job.error(Code::WriteProtected, why));
            }
            Some(made) if !made.direct => {
                let why = match block_size {
                    Some(_) => "cannot have direct I/O with these blocks",
                    None => "is on a file system without direct I/O",
                };
                context.output.warn(&format!(
                    "{} {why}: all data is also in the page cache of this host",
                    path.display()
                ));
            }
            _ => {}
        }
        if create.is_none() {
            warn_of_blocks(context, path, &device, block_size.is_some());
        }
        Ok(Some(device))
    }
}

/// Warns if clients may not find on `device` what the file has: its partitions, of which the table
/// is written in blocks, or a file system with smaller blocks. `is_chosen` if the user has said
/// which blocks there are.
fn warn_of_blocks(context: &Context, path: &Path, device: &str, is_chosen: bool) {
    let name = device.strip_prefix("/dev/");
    let Some(have) = name.and_then(|name| context.devices.block_size(name)) else {
        return;
    };
    let shown = path.display();
    let text = match blocks_of_gpt(path) {
        Some(table) if table == have => return,
        Some(table) => format!(
            "{shown} has a partition table for blocks of {table} bytes, and clients, which see \
             blocks of {have}, find no partitions: --block-size {table} shows them"
        ),
        None if is_chosen || have == SECTOR => return,
        None => format!(
            "clients see blocks of {have} bytes, those of the disk under {shown}: what was made \
             on a disk with blocks of {SECTOR} may need --block-size {SECTOR}"
        ),
    };
    context.output.warn(&text);
}

/// The block size for which the GPT of a file was written: it is in the second block.
fn blocks_of_gpt(path: &Path) -> Option<u64> {
    let mut file = fs::File::open(path).ok()?;
    [512, 1024, 2048, 4096].into_iter().find(|&block| {
        let mut signature = [0; 8];
        let read = file
            .seek(SeekFrom::Start(block))
            .and_then(|_| file.read_exact(&mut signature));
        read.is_ok() && &signature == b"EFI PART"
    })
}

/// A path as text; the kernel takes one line.
fn text_of(path: &Path, job: &Job) -> Result<String, Error> {
    match path.to_str() {
        Some(text) if !text.contains('\n') => Ok(text.to_owned()),
        _ => {
            let why = format!("{path:?} is not one line of UTF-8");
            Err(job.error(Code::Usage, why))
        }
    }
}

/// Fails if no file should have this size.
pub fn check_size(size: u64, job: &Job) -> Result<(), Error> {
    match size {
        0 => Err(job.error(Code::Usage, "a disk cannot have 0 bytes")),
        _ if size % FILE_STEP != 0 => {
            let why = format!("{size} is not a multiple of {FILE_STEP}");
            Err(job.error(Code::Usage, why))
        }
        _ => Ok(()),
    }
}

/// Gives a file its size; `new` makes it. It gets no space before somebody writes.
pub fn make_larger(
    context: &Context,
    path: &Path,
    size: u64,
    new: bool,
    job: &Job,
) -> Result<(), Error> {
    let line = || format!("truncate --size {size} {}", quote::path(path));
    if context.configfs.record(line) {
        return Ok(());
    }
    let file = fs::File::options()
        .write(true)
        .create_new(new)
        .mode(0o600)
        .open(path);
    let done = file.and_then(|file| {
        file.set_len(size)
            .inspect_err(|_| drop(new.then(|| fs::remove_file(path))))
    });
    done.map_err(|e| job.error(Code::Io, format!("{}: {}", path.display(), words(&e))))
}

/// The loop device and the file that a command has made so far. They are removed again when it
/// fails, that is when this is dropped before [`Undo::keep`].
pub struct Undo<'a> {
    context: &'a Context,
    device: Option<String>,
    file: Option<PathBuf>,
}

impl<'a> Undo<'a> {
    /// Nothing made yet.
    pub fn new(context: &'a Context) -> Self {
        Self {
            context,
            device: None,
            file: None,
        }
    }

    /// Keeps them.
    pub fn keep(mut self) {
        self.device = None;
        self.file = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.context.configfs.is_dry_run() {
            return;
        }
        let job = Job::new("cannot clean up");
        if let Some(device) = &self.device {
            if let Err(error) = self.context.devices.detach(device, &job) {
                self.context.output.warn(&error.to_string());
            }
        }
        if let Some(file) = &self.file {
            if let Err(e) = fs::remove_file(file) {
                let text = format!("cannot clean up: {}: {}", file.display(), words(&e));
                self.context.output.warn(&text);
            }
        }
    }
}
