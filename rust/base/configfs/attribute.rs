// SPDX-License-Identifier: GPL-2.0

//! The files in the directories of configfs.

#![allow(unsafe_code)]

use core::{
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::{
    error::from_result,
    ffi::c_char,
    prelude::*, //
};

use crate::base::configfs::{
    Group,
    GroupOperations, //
};
use crate::bindings;

/// configfs gives a show one page, of which it takes at most this much (its `SIMPLE_ATTR_SIZE`).
const PAGE_LEN: usize = 4096;

/// A file in the directories that hold a `T`.
///
/// The functions are given by value, but must be function items or closures that capture nothing:
/// only their type is kept. A show gets the directory's data and writes the content, with its
/// newline, into the page. A store gets the directory and what was written: UTF-8 without NUL
/// and at most 4094 bytes (otherwise the write fails with [`EINVAL`]), without one trailing
/// newline.
///
/// # Examples
///
/// ```
/// # use crate::base::configfs::{Attribute, Group, GroupOperations, PageWriter};
/// # use core::fmt::Write;
/// # use kernel::prelude::*;
/// # fn set_key(text: &str) -> Result { Err(EINVAL) }
/// fn show_state<T>(_: &T, page: &mut PageWriter<'_>) -> Result {
///     Ok(writeln!(page, "live")?)
/// }
///
/// fn store_key<T: GroupOperations>(_: &Group<T>, text: &str) -> Result {
///     set_key(text)
/// }
///
/// fn attributes<T: GroupOperations>() -> [Attribute<T>; 2] {
///     [
///         Attribute::ro(c"state", show_state::<T>),
///         // Nobody can read it.
///         Attribute::secret(c"key", store_key::<T>),
///     ]
/// }
/// ```
///
/// # Invariants
///
/// `raw` is a valid attribute for the items of `Group<T>`.
#[repr(transparent)]
pub(crate) struct Attribute<T> {
    raw: bindings::configfs_attribute,
    _data: PhantomData<fn(&T)>,
}

impl<T: GroupOperations> Attribute<T> {
    /// Returns the attribute in the form that C takes. C does not write to it.
    pub(super) const fn as_raw(&self) -> *mut bindings::configfs_attribute {
        (&raw const self.raw).cast_mut()
    }

    const fn new(name: &'static CStr, mode: bindings::umode_t) -> Self {
        Self {
            raw: bindings::configfs_attribute {
                ca_name: name.to_bytes_with_nul().as_ptr(),
                // None: an open file does nothing more once its directory is removed, and
                // needs no code of the module then.
                ca_owner: core::ptr::null_mut(),
                ca_mode: mode,
                show: None,
                store: None,
            },
            _data: PhantomData,
        }
    }

    /// Defines a file that can be read (mode 0444).
    pub(crate) const fn ro<S>(name: &'static CStr, _show: S) -> Self
    where
        S: Fn(&T, &mut PageWriter<'_>) -> Result + Copy + 'static,
    {
        let mut this = Self::new(name, 0o444);
        this.raw.show = Some(show::<T, S>);
        this
    }

    /// Defines a file that can be read, and written by root (mode 0644).
    pub(crate) const fn rw<S, W>(name: &'static CStr, _show: S, _store: W) -> Self
    where
        S: Fn(&T, &mut PageWriter<'_>) -> Result + Copy + 'static,
        W: Fn(&Group<T>, &str) -> Result + Copy + 'static,
    {
        let mut this = Self::new(name, 0o644);
        this.raw.show = Some(show::<T, S>);
        this.raw.store = Some(store::<T, W>);
        this
    }

    /// Defines a file that only root can read and write (mode 0600).
    pub(crate) const fn private<S, W>(name: &'static CStr, show: S, store: W) -> Self
    where
        S: Fn(&T, &mut PageWriter<'_>) -> Result + Copy + 'static,
        W: Fn(&Group<T>, &str) -> Result + Copy + 'static,
    {
        let mut this = Self::rw(name, show, store);
        this.raw.ca_mode = 0o600;
        this
    }

    /// Defines a file that only root can write (mode 0200), for a secret: nothing of what
    /// the store was given stays in the page. A write to a directory that is gone is not given.
    pub(crate) const fn secret<W>(name: &'static CStr, _store: W) -> Self
    where
        W: Fn(&Group<T>, &str) -> Result + Copy + 'static,
    {
        let mut this = Self::new(name, 0o200);
        this.raw.store = Some(store_secret::<T, W>);
        this
    }

    /// Defines a file that only root can write (mode 0200).
    pub(crate) const fn wo<W>(name: &'static CStr, _store: W) -> Self
    where
        W: Fn(&Group<T>, &str) -> Result + Copy + 'static,
    {
        let mut this = Self::new(name, 0o200);
        this.raw.store = Some(store::<T, W>);
        this
    }
}

/// Returns a value of the type of a function item, or of a closure that captures nothing.
///
/// # Safety
///
/// A value of type `F` must have existed.
unsafe fn function<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "not a function item, or it captures") };
    // SAFETY: Any aligned pointer that is not null is valid for reads of no bytes. The type is
    // inhabited, as a value has existed, which may be copied.
    unsafe { NonNull::dangling().read() }
}

/// # Safety
///
/// `item` is that of a `Group<T>`, which stays valid during the call; `page` is valid for writes of
/// [`PAGE_LEN`] bytes; a value of type `S` has existed.
unsafe extern "C" fn show<T, S>(item: *mut bindings::config_item, page: *mut c_char) -> isize
where
    T: GroupOperations,
    S: Fn(&T, &mut PageWriter<'_>) -> Result + Copy + 'static,
{
    // SAFETY: By the safety requirements.
    let group = unsafe { Group::<T>::from_item(item) };
    // SAFETY: By the safety requirements.
    let show = unsafe { function::<S>() };
    let mut writer = PageWriter {
        // SAFETY: By the safety requirements. What a page of configfs holds may be uninitialised,
        // and nobody else uses it during the call.
        page: unsafe { core::slice::from_raw_parts_mut(page.cast(), PAGE_LEN) },
        len: 0,
        overflow: false,
    };
    from_result(|| {
        let result = show(group, &mut writer);
        if writer.overflow {
            return Err(EOVERFLOW);
        }
        // CAST: At most `PAGE_LEN`.
        result.map(|()| writer.len as isize)
    })
}

/// # Safety
///
/// `item` is that of an attached `Group<T>`, which stays so during the call; `page` is valid for
/// reads of `size` bytes, which do not change; a value of type `W` has existed.
unsafe extern "C" fn store<T, W>(
    item: *mut bindings::config_item,
    page: *const c_char,
    size: usize,
) -> isize
where
    T: GroupOperations,
    W: Fn(&Group<T>, &str) -> Result + Copy + 'static,
{
    // SAFETY: By the safety requirements.
    let group = unsafe { Group::<T>::from_item(item) };
    // SAFETY: By the safety requirements.
    let store = unsafe { function::<W>() };
    // SAFETY: By the safety requirements.
    let bytes = unsafe { core::slice::from_raw_parts(page.cast::<u8>(), size) };
    from_result(|| {
        // configfs cuts a longer write here and takes the rest for another one.
        if bytes.len() >= PAGE_LEN - 1 {
            return Err(EINVAL);
        }
        if bytes.contains(&0) {
            return Err(EINVAL);
        }
        let value = core::str::from_utf8(bytes)?;
        store(group, value.strip_suffix('\n').unwrap_or(value))?;
        // CAST: Less than `PAGE_LEN`.
        Ok(size as isize)
    })
}

/// Stores a secret, and wipes the page.
///
/// # Safety
///
/// As for [`store`].
unsafe extern "C" fn store_secret<T, W>(
    item: *mut bindings::config_item,
    page: *const c_char,
    size: usize,
) -> isize
where
    T: GroupOperations,
    W: Fn(&Group<T>, &str) -> Result + Copy + 'static,
{
    // SAFETY: By the safety requirements.
    let stored = unsafe { store::<T, W>(item, page, size) };
    // SAFETY: The page is that of a file that configfs has allocated for writing, with the lock of
    // the file held. It does not use what is there after this call.
    unsafe { bindings::memzero_explicit(page.cast_mut().cast(), size) };
    stored
}

/// The page that a show writes its text into.
///
/// Writing more than there is room for is an error, also for the reader: [`EOVERFLOW`].
///
/// See [`Attribute`] for an example.
pub(crate) struct PageWriter<'a> {
    page: &'a mut [MaybeUninit<u8>],
    len: usize,
    overflow: bool,
}

impl PageWriter<'_> {
    /// Returns how many more bytes fit in the page.
    pub(crate) fn remaining(&self) -> usize {
        self.page.len().saturating_sub(self.len)
    }
}

impl fmt::Write for PageWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.page.get_mut(self.len..).unwrap_or_default();
        let Some(room) = room.get_mut(..text.len()) else {
            self.overflow = true;
            return Err(fmt::Error);
        };
        for (slot, byte) in room.iter_mut().zip(text.bytes()) {
            slot.write(byte);
        }
        self.len += text.len();
        Ok(())
    }
}
