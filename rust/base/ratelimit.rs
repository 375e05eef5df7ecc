// SPDX-License-Identifier: GPL-2.0

//! How often something is written to the kernel log.
//!
//! C header: [`include/linux/ratelimit.h`](srctree/include/linux/ratelimit.h)

#![allow(unsafe_code)]

use kernel::{
    prelude::*,
    types::Opaque, //
};

use crate::bindings;

/// Allows as many lines as `printk_ratelimited()` does: 10 in 5 s. If more were wanted, the kernel
/// log says later how many are missing.
///
/// # Examples
///
/// ```
/// # use crate::base::ratelimit::RateLimit;
/// # use kernel::{prelude::*, sync::Arc};
/// # fn example() -> Result {
/// let limit = Arc::pin_init(RateLimit::new(), GFP_KERNEL)?;
/// if limit.allows() {
///     pr_warn!("it has happened again\n");
/// }
/// # Ok(())
/// # }
/// ```
#[pin_data]
pub(crate) struct RateLimit {
    #[pin]
    state: Opaque<bindings::ratelimit_state>,
}

// SAFETY: A `struct ratelimit_state` may be used by any task.
unsafe impl Send for RateLimit {}
// SAFETY: A `struct ratelimit_state` has its own lock.
unsafe impl Sync for RateLimit {}

impl RateLimit {
    /// Creates an initialiser of a limit of which nothing is used up.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- Opaque::ffi_init(|slot: *mut bindings::ratelimit_state| {
                // SAFETY: `slot` is valid for writes.
                unsafe { bindings::ratelimit_default_init(slot) }
            }),
        })
    }

    /// Returns true if one more line may be written now. Any context.
    pub(crate) fn allows(&self) -> bool {
        // SAFETY: The state is initialised and in place while `self` is borrowed. The name is a
        // string, which is printed before this returns.
        unsafe { bindings::___ratelimit(self.state.get(), c"farblk".as_char_ptr()) != 0 }
    }
}
