// SPDX-License-Identifier: GPL-2.0

//! References to this module, those of the kernel crate.

#![allow(unsafe_code)]

use kernel::module::this_module;

pub(crate) use kernel::module::ModuleRef;

/// Takes a reference to this module, unless it is being unloaded. Any context.
pub(crate) fn try_get() -> Option<ModuleRef> {
    // SAFETY: It is this module. `CodeUsers` keeps it until the code that drops the result has
    // returned.
    unsafe { this_module::<crate::LocalModule>().try_get() }
}
