// SPDX-License-Identifier: GPL-2.0

//! debugfs: files that show internal state of the module.
//!
//! They have the names of the kernel crate's `debugfs`. That keeps the file operations in the
//! module, and without an owner: to close a file that was still open when the module was unloaded,
//! the kernel reads them once more, and faults. Here an open file holds the module. That counts for
//! nothing if the module's `init` fails: there a file comes last, when nothing can fail any more.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

// UPSTREAM: upstream/tree/base/debugfs.rs takes the place of this file, with patch 0040 of
// upstream/rust.

#![allow(unsafe_code)]

use core::{
    ffi::c_int,
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    ops::Deref,
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
/// # use crate::base::debugfs::Writer;
/// # use kernel::{fmt, sync::atomic::{Atomic, Relaxed}};
/// struct Counters {
///     reads: Atomic<u64>,
///     writes: Atomic<u64>,
/// }
///
/// impl Writer for Counters {
///     fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         writeln!(f, "reads {}", self.reads.load(Relaxed))?;
///         writeln!(f, "writes {}", self.writes.load(Relaxed))
///     }
/// }
/// ```
pub(crate) trait Writer {
    /// Writes the content of the file. May sleep; may run in parallel with itself.
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The permissions of a file: root can read it.
const READ_ONLY: u16 = 0o400;

/// A file or directory, which exists as long as this value. In a kernel without debugfs there is
/// none.
///
/// # Invariants
///
/// The pointer is a dentry that debugfs returned and that was not removed, or an error pointer, or
/// null.
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
        // SAFETY: By the type invariants; error pointers and null are ignored.
        unsafe { bindings::debugfs_remove(self.raw) }
    }
}

/// A directory. It is removed when this and everything created in it are dropped, which sleeps.
///
/// Without memory neither the directory nor what is created in it appears: debugfs is not worth an
/// error.
///
/// # Examples
///
/// ```
/// # use crate::base::debugfs::{Dir, File, Writer};
/// # use kernel::prelude::*;
/// /// Makes /sys/kernel/debug/driver/disk0/counters, which is there as long as the result.
/// fn publish<T: Writer + Send + Sync + 'static>(counters: T) -> Result<Pin<KBox<File<T>>>> {
///     let dir = Dir::new(c"driver").subdir(c"disk0");
///     KBox::pin_init(dir.read_only_file(c"counters", counters), GFP_KERNEL)
/// }
/// ```
#[derive(Clone)]
pub(crate) struct Dir(Option<Arc<Entry>>);

impl Dir {
    fn create(name: &CStr, parent: Option<&Arc<Entry>>) -> Self {
        let raw = parent.map_or(core::ptr::null_mut(), |parent| parent.raw);
        // SAFETY: `name` is a C string, which is copied; `raw` is null, or by the type invariants
        // of `Entry` valid for debugfs, and `parent` keeps it.
        let raw = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), raw) };
        // INVARIANT: The pointer comes from debugfs.
        let entry = Entry {
            raw,
            _parent: parent.cloned(),
        };
        Self(Arc::new(entry, GFP_KERNEL).ok())
    }

    /// Creates a directory in the root of debugfs. Sleeps.
    pub(crate) fn new(name: &CStr) -> Self {
        Self::create(name, None)
    }

    /// Creates a directory in this one. Sleeps.
    pub(crate) fn subdir(&self, name: &CStr) -> Self {
        match &self.0 {
            Some(parent) => Self::create(name, Some(parent)),
            None => Self(None),
        }
    }

    /// Creates a file in this directory that shows `data`, and that root can read. Sleeps.
    pub(crate) fn read_only_file<'a, T, E: 'a>(
        &'a self,
        name: &'a CStr,
        data: impl PinInit<T, E> + 'a,
    ) -> impl PinInit<File<T>, E> + 'a
    where
        T: Writer + Send + Sync + 'static,
    {
        try_pin_init!(&this in File {
            data <- data,
            // SAFETY: `data` was just initialised, and does not move. It is dropped after the
            // entry.
            _entry: unsafe { self.create_file(name, &raw const (*this.as_ptr()).data) },
            _pin: PhantomPinned,
        } ? E)
    }

    /// # Safety
    ///
    /// `data` must be valid until the result is dropped.
    unsafe fn create_file<T: Writer + Sync>(&self, name: &CStr, data: *const T) -> Entry {
        let Some(dir) = &self.0 else {
            // INVARIANT: It is null.
            return Entry {
                raw: core::ptr::null_mut(),
                _parent: None,
            };
        };
        // SAFETY: `name` is a C string, which is copied; the directory is valid for debugfs by the
        // type invariants of `Entry`; `data` stays until the file is removed.
        let raw = unsafe {
            bindings::debugfs_create_file_full(
                name.as_char_ptr(),
                READ_ONLY,
                dir.raw,
                data.cast_mut().cast(),
                null(),
                VTable::<T>::FILE_OPERATIONS,
            )
        };
        // INVARIANT: The pointer comes from debugfs.
        Entry {
            raw,
            _parent: Some(dir.clone()),
        }
    }
}

/// A file that shows a `T`. Dropping it removes it and waits for readers; it sleeps.
///
/// See [`Dir`] for an example.
#[pin_data]
pub(crate) struct File<T> {
    // Dropped in this order: removing waits until `VTable::show` does not run, and later reads
    // fail.
    _entry: Entry,
    #[pin]
    data: T,
    #[pin]
    _pin: PhantomPinned,
}

impl<T> Deref for File<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

struct VTable<T>(PhantomData<T>);

impl<T: Writer + Sync> VTable<T> {
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

impl<T: Writer> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_debugfs_owner)]
mod tests {
    use super::*;
    use crate::kunit::{
        check,
        shell, //
    };

    /// Shows nothing.
    struct Empty;

    impl Writer for Empty {
        fn write(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Ok(())
        }
    }

    #[test]
    fn open_file_holds_the_module() -> Result {
        let dir = Dir::new(c"farblk_kunit");
        let _file = KBox::pin_init(dir.read_only_file(c"file", Empty), GFP_KERNEL)?;
        check!(shell(
            c"refs() { cat /sys/module/farblk/refcnt; }
            before=$(refs)
            exec 5</sys/kernel/debug/farblk_kunit/file
            [ $(refs) -gt $before ] || exit
            exec 5<&-
            [ $(refs) = $before ]"
        )
        .is_ok());
        Ok(())
    }
}
