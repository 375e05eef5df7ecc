// SPDX-License-Identifier: GPL-2.0

//! Reading a file as a whole.
//!
//! C header: [`include/linux/fs.h`](srctree/include/linux/fs.h)

#![allow(unsafe_code)]

use crate::bindings;
use core::ptr::{
    null_mut,
    NonNull, //
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

/// A file that is open for reading.
///
/// # Invariants
///
/// The pointer is a file that `filp_open()` returned, which this value owns.
struct File(NonNull<bindings::file>);

impl File {
    /// Opens the file at `path`, as the current task sees it. Sleeps.
    fn open(path: &CStr) -> Result<Self> {
        // CAST: A flag. SAFETY: The path is a C string.
        let file = from_err_ptr(unsafe {
            bindings::filp_open(path.as_char_ptr(), bindings::O_RDONLY as i32, 0)
        })?;
        // INVARIANT: The file was just opened.
        Ok(Self(NonNull::new(file).ok_or(EIO)?))
    }

    /// Reads from `at` on, and moves `at` behind that. Returns how many bytes of `bytes` were
    /// filled; 0 at the end of the file. Sleeps.
    fn read(&self, bytes: &mut [u8], at: &mut i64) -> Result<usize> {
        // SAFETY: By the type invariants the file is open; the slice is valid for writes.
        let len = unsafe {
            bindings::kernel_read(self.0.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len(), at)
        };
        match i32::try_from(len) {
            Ok(error @ ..0) => Err(to_result(error).err().unwrap_or(EIO)),
            _ => Ok(usize::try_from(len)?.min(bytes.len())),
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the file is ours. That it could not be written does not
        // matter, as it was not.
        unsafe { bindings::filp_close(self.0.as_ptr(), null_mut()) };
    }
}

/// Returns the contents of the file at `path`, as the current task sees it. Fails with `EFBIG` if
/// it has more than `max` bytes, with `ENOMEM`, and with the error of the file system.
///
/// # Context
///
/// Sleeps.
pub(crate) fn read(path: &CStr, max: usize) -> Result<VVec<u8>> {
    let file = File::open(path)?;
    // One more, to see whether there is one.
    let mut bytes = VVec::from_elem(0, max.checked_add(1).ok_or(EINVAL)?, GFP_KERNEL)?;
    let (mut len, mut at) = (0, 0);
    loop {
        match file.read(bytes.get_mut(len..).ok_or(EIO)?, &mut at)? {
            0 => break,
            count => len += count,
        }
    }
    if len > max {
        return Err(EFBIG);
    }
    bytes.truncate(len);
    Ok(bytes)
}
