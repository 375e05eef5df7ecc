// SPDX-License-Identifier: GPL-2.0

//! References to this module.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

// UPSTREAM: upstream/tree/base/module.rs takes the place of this file, with patch 0041 of
// upstream/rust.

#![allow(unsafe_code)]

use crate::bindings;
use kernel::ModuleMetadata;

/// A reference to this module, which is not unloaded as long as there is one.
///
/// The module may be unloaded while the last one is being dropped, by code of this module:
/// [`CodeUsers`](super::users::CodeUsers) keeps that until it has returned.
///
/// # Examples
///
/// ```
/// # use crate::base::module::{try_get, ModuleRef};
/// # use kernel::prelude::*;
/// /// What a function of this module is called for, also when all else has forgotten it.
/// struct Callback {
///     _module: ModuleRef,
/// }
///
/// # fn example() -> Result {
/// // Fails only if the module is just being unloaded, which waits for those who know it.
/// let callback = Callback {
///     _module: try_get::<crate::LocalModule>().ok_or(ENODEV)?,
/// };
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// The module has been taken once for it.
pub(crate) struct ModuleRef(());

/// Takes a reference to module `M`, which is this one, unless it is being unloaded. Any context.
// Callers name the module as they do in the series, where it is not always this one.
#[allow(clippy::extra_unused_type_parameters)]
pub(crate) fn try_get<M: ModuleMetadata>() -> Option<ModuleRef> {
    // SAFETY: `__this_module` is this module, which is loaded.
    if unsafe { bindings::try_module_get(&raw mut bindings::__this_module) } {
        // INVARIANT: It was just taken.
        Some(ModuleRef(()))
    } else {
        None
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours.
        unsafe { bindings::module_put(&raw mut bindings::__this_module) };
    }
}
