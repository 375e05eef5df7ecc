// SPDX-License-Identifier: GPL-2.0

//! References to this module.
//!
//! C header: [`include/linux/module.h`](srctree/include/linux/module.h)

// UPSTREAM: kernel::ThisModule needs references to a module. Then this file goes.

#![allow(unsafe_code)]

use crate::bindings;
use kernel::prelude::*;

/// A reference to this module, which is not unloaded as long as there is one.
///
/// # Examples
///
/// ```
/// # use crate::base::module::ModuleRef;
/// # use kernel::prelude::*;
/// /// What a function of this module is called for, also when all else has forgotten it.
/// struct Callback {
///     _module: ModuleRef,
/// }
///
/// # fn example() -> Result {
/// // Fails only if the module is just being unloaded, which waits for those who know it.
/// let callback = Callback {
///     _module: ModuleRef::get()?,
/// };
/// # Ok(())
/// # }
/// ```
///
/// # Invariants
///
/// The module has been taken once for it.
pub(crate) struct ModuleRef(());

impl ModuleRef {
    /// Takes a reference. Fails with `ENODEV` if the module is just being unloaded. Any context.
    pub(crate) fn get() -> Result<Self> {
        // SAFETY: `__this_module` is this module, which is loaded.
        match unsafe { bindings::try_module_get(&raw mut bindings::__this_module) } {
            // INVARIANT: It was just taken.
            true => Ok(Self(())),
            false => Err(ENODEV),
        }
    }
}

impl Drop for ModuleRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the reference is ours.
        unsafe { bindings::module_put(&raw mut bindings::__this_module) };
    }
}
