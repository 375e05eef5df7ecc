// SPDX-License-Identifier: GPL-2.0

//! All differences between the kernels that farblk is built for.
//!
//! Each item has the name and the meaning that the newest kernel gives it.

// UPSTREAM: upstream/tree/base/compat.rs takes the place of this file, without a patch: the kernel
// crate has what is left.

#![allow(unsafe_code)]

use crate::bindings;
use kernel::module_param::{
    ModuleParam,
    ModuleParamAccess, //
};

/// Returns the value of a module parameter.
#[cfg(not(kernel_7_2))]
pub(crate) fn param<T: ModuleParam + Copy>(param: &ModuleParamAccess<T>) -> T {
    param.value()
}

/// Returns the value of a module parameter.
#[cfg(kernel_7_2)]
pub(crate) fn param<T: ModuleParam + Copy>(param: &ModuleParamAccess<T>) -> T {
    *param.value()
}

/// Error codes.
pub(crate) mod errno {
    #[cfg(not(kernel_7_2))]
    pub(crate) use kernel::error::code::{
        EADDRINUSE,
        EADDRNOTAVAIL,
        EAFNOSUPPORT,
        EBADMSG,
        ECANCELED,
        ECONNREFUSED,
        ECONNRESET,
        EHOSTUNREACH,
        EKEYREJECTED,
        EMSGSIZE,
        ENETUNREACH,
        ENOKEY,
        ENOMEDIUM,
        ENOTCONN,
        EOPNOTSUPP,
        EPROTO,
        EPROTONOSUPPORT,
        EPROTOTYPE,
        ESHUTDOWN,
        ESTALE, //
    };

    #[cfg(kernel_7_2)]
    pub(crate) use v7_2::*;

    #[cfg(kernel_7_2)]
    mod v7_2 {
        use crate::bindings;
        use core::{
            mem::transmute,
            num::NonZeroI32, //
        };
        use kernel::{
            error::code::ETIMEDOUT,
            prelude::Error, //
        };

        /// The [`Error`] of a code of `errno.h`. The kernel crate has no constant way to it.
        const fn error(code: u32) -> Error {
            assert!(0 < code && code <= bindings::MAX_ERRNO);
            let Some(errno) = NonZeroI32::new(-(code as i32)) else {
                unreachable!()
            };
            // SAFETY: `Error` has one field, the errno as a `NonZeroI32`, and no room for more as
            // the sizes are equal. It is within `-MAX_ERRNO..0`, as the invariant of `Error` asks.
            unsafe { transmute::<NonZeroI32, Error>(errno) }
        }

        // An error that both have is the same.
        const _: () = assert!(matches!(error(bindings::ETIMEDOUT), ETIMEDOUT));

        macro_rules! codes {
            ($($code:ident)*) => {
                $(pub(crate) const $code: Error = error(bindings::$code);)*
            };
        }

        codes! {
            EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EBADMSG ECANCELED ECONNREFUSED ECONNRESET
            EHOSTUNREACH EKEYREJECTED EMSGSIZE ENETUNREACH ENOKEY ENOMEDIUM ENOTCONN EOPNOTSUPP
            EPROTO EPROTONOSUPPORT EPROTOTYPE ESHUTDOWN ESTALE
        }
    }
}

#[cfg(not(kernel_7_2))]
pub(crate) use pin_init::raw_try_init;

/// Initialises `slot`.
///
/// # Safety
///
/// `slot` is valid for writes, and does not move until it is dropped. On an error the caller does
/// not touch it.
#[cfg(kernel_7_2)]
pub(crate) unsafe fn raw_try_init<T, E>(
    slot: *mut T,
    init: impl pin_init::PinInit<T, E>,
) -> Result<(), E> {
    // SAFETY: By the safety requirements.
    unsafe { init.__pinned_init(slot) }
}

/// Returns how many bytes of the current bvec an iterator has passed.
#[cfg(not(kernel_7_2))]
#[inline(always)]
pub(crate) fn bi_offset(iter: bindings::bvec_iter) -> u32 {
    iter.bi_offset
}

/// Returns how many bytes of the current bvec an iterator has passed.
#[cfg(kernel_7_2)]
#[inline(always)]
pub(crate) fn bi_offset(iter: bindings::bvec_iter) -> u32 {
    iter.bi_bvec_done
}
