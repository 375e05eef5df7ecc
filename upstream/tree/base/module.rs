// SPDX-License-Identifier: GPL-2.0

//! References to modules, those of the kernel crate.

#![allow(unsafe_code)]

use kernel::{
    module::this_module,
    ModuleMetadata, //
};

pub(crate) use kernel::module::ModuleRef;

/// Takes a reference to module `M`, unless it is being unloaded. Any context.
pub(crate) fn try_get<M: ModuleMetadata>() -> Option<ModuleRef> {
    // SAFETY: `M` is the module of the caller. `CodeUsers` keeps that until the code that drops the
    // result has returned.
    unsafe { this_module::<M>().try_get() }
}
