// SPDX-License-Identifier: GPL-2.0

//! debugfs: files that show internal state of the module.
//!
//! The kernel crate's `debugfs` has file operations without an owner: a file that is held open
//! while the module is unloaded makes the kernel fault when it is closed. Here an open file holds
//! the module.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

// UPSTREAM: kernel::debugfs needs an owner in its file operations. Then this file goes.

#![allow(unsafe_code)]

use core::{
    ffi::c_int,
    marker::PhantomData,
    ptr::null, //
};

use kernel::{
    ffi::c_void,
    fmt,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::Arc, //
};

use crate::bindings;

/// A value that a [`File`] shows.
///
/// # Examples
///
/// ```
/// # use crate::base::debugfs::Show;
/// # use kernel::{fmt, sync::atomic::{Atomic, Relaxed}};
/// struct Counters {
///     reads: Atomic<u64>,
///     writes: Atomic<u64>,
/// }
///
/// impl Show for Counters {
///     fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         writeln!(f, "reads {}", self.reads.load(Relaxed))?;
///         writeln!(f, "writes {}", self.writes.load(Relaxed))
///     }
/// }
/// ```
pub(crate) trait Show: Send + Sync + 'static {
    /// Writes the content of the file. May sleep; may run in parallel with itself.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The permissions of a file that root can read.
pub(crate) const ROOT_ONLY: u16 = 0o400;
/// The permissions of a file that everybody can read who may enter debugfs.
pub(crate) const READ_ONLY: u16 = 0o444;

/// A file or directory, which exists as long as this value. In a kernel without debugfs there is
/// none.
///
/// # Invariants
///
/// The pointer is a dentry that debugfs returned and that was not removed, or an error pointer.
struct Entry {
    raw: *mut bindings::dentry,
    /// Removing a directory removes all below it: those above stay longer.
    _parent: Option<Arc<Entry>>,
}

// SAFETY: debugfs takes care of its own locking; any task may remove an entry.
unsafe impl Send for Entry {}
// SAFETY: As above.
unsafe impl Sync for Entry {}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: By the type invariants; error pointers are ignored.
        unsafe { bindings::debugfs_remove(self.raw) }
    }
}

/// A directory. It is removed when this and everything created in it are dropped, which sleeps.
///
/// # Examples
///
/// ```
/// # use crate::base::debugfs::{Dir, File, Show, ROOT_ONLY};
/// # use kernel::{prelude::*, sync::Arc};
/// /// Makes /sys/kernel/debug/driver/disk0/counters, which is there as long as the result.
/// fn publish<T: Show>(counters: Arc<T>) -> Result<File<T>> {
///     let dir = Dir::new(c"driver")?.subdir(c"disk0")?;
///     Ok(dir.file(c"counters", ROOT_ONLY, counters))
/// }
/// ```
#[derive(Clone)]
pub(crate) struct Dir(Arc<Entry>);

impl Dir {
    fn create(name: &CStr, parent: Option<&Dir>) -> Result<Self> {
        let raw = parent.map_or(core::ptr::null_mut(), |parent| parent.0.raw);
        // SAFETY: `name` is a C string, which is copied; `raw` is null, or by the type invariants
        // of `Entry` valid for debugfs, and `parent` keeps it.
        let raw = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), raw) };
        // INVARIANT: The pointer comes from debugfs.
        let entry = Entry {
            raw,
            _parent: parent.map(|parent| parent.0.clone()),
        };
        Ok(Self(Arc::new(entry, GFP_KERNEL)?))
    }

    /// Creates a directory in the root of debugfs. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn new(name: &CStr) -> Result<Self> {
        Self::create(name, None)
    }

    /// Creates a directory in this one. Fails with `ENOMEM`. Sleeps.
    pub(crate) fn subdir(&self, name: &CStr) -> Result<Self> {
        Self::create(name, Some(self))
    }

    /// Creates a file in this directory with the permissions `mode`. Sleeps.
    pub(crate) fn file<T: Show>(&self, name: &CStr, mode: u16, data: Arc<T>) -> File<T> {
        // SAFETY: `name` is a C string, which is copied; the directory is valid for debugfs by the
        // type invariants of `Entry`; `data` stays until the file is removed, see `File`.
        let raw = unsafe {
            bindings::debugfs_create_file_full(
                name.as_char_ptr(),
                mode,
                self.0.raw,
                core::ptr::from_ref::<T>(&data).cast_mut().cast(),
                null(),
                VTable::<T>::FILE_OPERATIONS,
            )
        };
        // INVARIANT: The pointer comes from debugfs.
        File {
            _entry: Entry {
                raw,
                _parent: Some(self.0.clone()),
            },
            _data: data,
        }
    }
}

/// A file that shows a `T`. Dropping it removes it and waits for readers; it sleeps.
pub(crate) struct File<T: Show> {
    // Dropped in this order: removing waits until `VTable::show` does not run, and later reads
    // fail.
    _entry: Entry,
    _data: Arc<T>,
}

struct VTable<T>(PhantomData<T>);

impl<T: Show> VTable<T> {
    const FILE_OPERATIONS: &'static bindings::file_operations = &bindings::file_operations {
        owner: &raw mut bindings::__this_module,
        open: Some(Self::open),
        read: Some(bindings::seq_read),
        llseek: Some(bindings::seq_lseek),
        release: Some(bindings::single_release),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// `inode` is that of a `File<T>` which is not removed, `file` a file being opened.
    unsafe extern "C" fn open(inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: By the safety requirements.
        let data = unsafe { (*inode).i_private };
        // SAFETY: By the safety requirements; `show` gets `data`.
        unsafe { bindings::single_open(file, Some(Self::show), data) }
    }

    /// # Safety
    ///
    /// `seq` is a valid `seq_file` which [`Self::open`] opened, and its `File<T>` is not removed.
    unsafe extern "C" fn show(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
        // SAFETY: By the safety requirements; `open` was given the data of the file.
        let data = unsafe { &*(*seq).private.cast::<T>() };
        // SAFETY: By the safety requirements.
        let seq = unsafe { SeqFile::from_raw(seq) };
        seq_print!(seq, "{}", Shown(data));
        0
    }
}

struct Shown<'a, T>(&'a T);

impl<T: Show> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_debugfs)]
mod tests {
    use super::*;
    use crate::kunit::{
        check,
        shell, //
    };

    /// Shows a word.
    struct Word(&'static str);

    impl Show for Word {
        fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    const DIR: &CStr = c"farblk_kunit";

    #[test]
    fn file_shows_its_data() -> Result {
        let data = Arc::new(Word("seventeen"), GFP_KERNEL)?;
        let file = Dir::new(DIR)?
            .subdir(c"sub")?
            .file(c"word", ROOT_ONLY, data);
        let shown = shell(c"[ $(cat /sys/kernel/debug/farblk_kunit/sub/word) = seventeen ]");
        let mode = shell(c"[ $(stat -c %a /sys/kernel/debug/farblk_kunit/sub/word) = 400 ]");
        check!(shown.is_ok() && mode.is_ok());
        drop(file);
        Ok(())
    }

    #[test]
    fn entries_go_with_the_last_value() -> Result {
        let dir = Dir::new(DIR)?;
        let data = Arc::new(Word(""), GFP_KERNEL)?;
        let file = dir.file(c"word", ROOT_ONLY, data.clone());
        drop(dir);
        // The file keeps its directory.
        check!(shell(c"[ -f /sys/kernel/debug/farblk_kunit/word ]").is_ok());
        drop(file);
        check!(shell(c"[ ! -e /sys/kernel/debug/farblk_kunit ]").is_ok());
        // There is no other reference to the data.
        check!(Arc::into_unique_or_drop(data).is_some());
        Ok(())
    }

    #[test]
    fn open_file_holds_the_module() -> Result {
        let data = Arc::new(Word("word"), GFP_KERNEL)?;
        let _file = Dir::new(DIR)?.file(c"word", ROOT_ONLY, data);
        check!(shell(
            c"refs() { cat /sys/module/farblk/refcnt; }
            before=$(refs)
            exec 5</sys/kernel/debug/farblk_kunit/word
            [ $(refs) -gt $before ] || exit
            exec 5<&-
            [ $(refs) = $before ]"
        )
        .is_ok());
        Ok(())
    }
}
