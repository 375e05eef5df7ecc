// SPDX-License-Identifier: GPL-2.0

//! The names of disks.
//!
//! C header: [`include/linux/idr.h`](srctree/include/linux/idr.h)

use crate::bindings;
use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    str::CString,
    sync::Arc,
    types::Opaque, //
};

/// The names of a driver's disks: a prefix and the lowest free number.
///
/// # Examples
///
/// ```
/// # use crate::block::mq::{DiskNames, GenDiskBuilder, Operations, TagSet};
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example<T>(tag_set: Arc<TagSet<T>>, data: T::QueueData) -> Result
/// # where T: Operations {
/// // For all disks of the driver: the first one is /dev/ram0, if there is no other.
/// let names = Arc::pin_init(DiskNames::new(c"ram"), GFP_KERNEL)?;
/// let disk = GenDiskBuilder::new().build_numbered(names, tag_set, data)?;
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// `ida` is initialised.
#[pin_data(PinnedDrop)]
pub(crate) struct DiskNames {
    #[pin]
    ida: Opaque<bindings::ida>,
    prefix: &'static CStr,
}

// SAFETY: C's ida locks itself, and belongs to no thread.
unsafe impl Send for DiskNames {}
// SAFETY: As above.
unsafe impl Sync for DiskNames {}

impl DiskNames {
    /// Creates names like `<prefix>0`.
    pub(crate) fn new(prefix: &'static CStr) -> impl PinInit<Self> {
        // INVARIANT: `ida_init` initialises it.
        pin_init!(Self {
            // SAFETY: `slot` is valid for writes, as `ffi_init` promises.
            ida <- Opaque::ffi_init(|slot| unsafe { bindings::ida_init(slot) }),
            prefix,
        })
    }
}

#[pinned_drop]
impl PinnedDrop for DiskNames {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariants; every `DiskIndex` holds a reference, so none is left.
        unsafe { bindings::ida_destroy(self.ida.get()) };
    }
}

/// The number of a disk; free again when dropped.
///
/// # Invariants
///
/// `index` is allocated in `names.ida`.
pub(super) struct DiskIndex {
    names: Arc<DiskNames>,
    index: u32,
}

impl DiskIndex {
    /// Takes the lowest free number. May sleep.
    pub(super) fn alloc(names: Arc<DiskNames>) -> Result<Self> {
        // SAFETY: By the type invariants of `DiskNames`.
        let ret = unsafe {
            bindings::ida_alloc_range(names.ida.get(), 0, c_int::MAX as u32, bindings::GFP_KERNEL)
        };
        to_result(ret)?;
        // INVARIANT: It is what was just allocated.
        Ok(Self {
            names,
            index: ret as u32,
        })
    }

    /// Writes the name, with a NUL behind it.
    pub(super) fn write_name(&self, name: &mut [kernel::ffi::c_char]) -> Result {
        let text = CString::try_from_fmt(fmt!("{}{}", self.names.prefix, self.index))?;
        let text = text.to_bytes_with_nul();
        name.get_mut(..text.len())
            .ok_or(EINVAL)?
            .copy_from_slice(text);
        Ok(())
    }
}

impl Drop for DiskIndex {
    fn drop(&mut self) {
        // SAFETY: By the type invariants.
        unsafe { bindings::ida_free(self.names.ida.get(), self.index) };
    }
}
