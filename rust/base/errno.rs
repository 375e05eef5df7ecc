// SPDX-License-Identifier: GPL-2.0

//! Error codes of networking, and the names of all of them.
//!
//! C header: [`include/uapi/asm-generic/errno.h`](srctree/include/uapi/asm-generic/errno.h)\
//! C header: [`include/linux/errno.h`](srctree/include/linux/errno.h)

use kernel::error::Error;

pub(crate) use crate::base::compat::errno::{
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

/// Returns the name of an error code, such as `"ECONNREFUSED"`; `"EUNKNOWN"` if it has none, or if
/// this kernel has no names (`CONFIG_SYMBOLIC_ERRNAME`).
pub(crate) fn name(error: Error) -> &'static str {
    error
        .name()
        .and_then(|name| name.to_str().ok())
        .unwrap_or("EUNKNOWN")
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_errno)]
mod tests {
    use super::*;
    use crate::{
        bindings,
        kunit::check, //
    };
    use kernel::prelude::*;

    #[test]
    fn name_is_that_of_the_c_header() -> Result {
        for (error, text) in [
            (EPERM, "EPERM"),
            (ENOMEM, "ENOMEM"),
            (ECONNREFUSED, "ECONNREFUSED"),
            (ESTALE, "ESTALE"),
            (EADDRINUSE, "EADDRINUSE"),
            (Error::from_errno(-(bindings::MAX_ERRNO as i32)), "EUNKNOWN"),
        ] {
            check!(name(error) == text);
        }
        Ok(())
    }

    #[test]
    fn code_is_that_of_the_c_header() -> Result {
        for (error, code) in [
            (ECONNREFUSED, bindings::ECONNREFUSED),
            (ECONNRESET, bindings::ECONNRESET),
            (EHOSTUNREACH, bindings::EHOSTUNREACH),
            (ENETUNREACH, bindings::ENETUNREACH),
            (ENOTCONN, bindings::ENOTCONN),
            (EOPNOTSUPP, bindings::EOPNOTSUPP),
            (EPROTO, bindings::EPROTO),
            (EPROTONOSUPPORT, bindings::EPROTONOSUPPORT),
            (ESHUTDOWN, bindings::ESHUTDOWN),
            (ESTALE, bindings::ESTALE),
        ] {
            check!(error.to_errno().unsigned_abs() == code);
        }
        Ok(())
    }
}
