// SPDX-License-Identifier: GPL-2.0

//! Error codes of networking, and the names of all of them.
//!
//! C header: [`include/uapi/asm-generic/errno.h`](srctree/include/uapi/asm-generic/errno.h)\
//! C header: [`include/linux/errno.h`](srctree/include/linux/errno.h)

// UPSTREAM: upstream/tree/base/errno.rs takes the place of this file: kernel::error has the codes,
// and the names where the kernel has CONFIG_SYMBOLIC_ERRNAME.

#![allow(unsafe_code)]

use kernel::error::Error;

use crate::bindings;

pub(crate) use crate::base::compat::errno::{
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    EBADMSG,
    ECANCELED,
    ECONNREFUSED,
    ECONNRESET,
    EHOSTUNREACH,
    EKEYREJECTED,
    EMSGSIZE,
    ENAMETOOLONG,
    ENETUNREACH,
    ENOKEY,
    ENOTCONN,
    EOPNOTSUPP,
    EPROTO,
    EPROTONOSUPPORT,
    EPROTOTYPE,
    ESHUTDOWN,
    ESTALE, //
};

macro_rules! names {
    ($($code:ident)*) => {
        /// Returns the name of an error code, such as `"ECONNREFUSED"`; `"EUNKNOWN"` if it has
        /// none.
        pub(crate) fn name(error: Error) -> &'static str {
            match error.to_errno().unsigned_abs() {
                $(bindings::$code => stringify!($code),)*
                _ => "EUNKNOWN",
            }
        }
    };
}

names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP
    ENODATA ETIME ENOLINK ECOMM EPROTO EBADMSG EOVERFLOW EILSEQ EUSERS ENOTSOCK EDESTADDRREQ
    EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT
    EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET
    ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
    EALREADY EINPROGRESS ESTALE EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED
    EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON ERESTARTSYS
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_errno)]
mod tests {
    use super::*;
    use crate::kunit::check;
    use kernel::prelude::*;

    #[test]
    fn name_is_that_of_the_c_header() -> Result {
        for (error, text) in [
            (EPERM, "EPERM"),
            (ENOMEM, "ENOMEM"),
            (ECONNREFUSED, "ECONNREFUSED"),
            (ESTALE, "ESTALE"),
            (
                Error::from_errno(-(bindings::EADDRINUSE as i32)),
                "EADDRINUSE",
            ),
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
            (ENAMETOOLONG, bindings::ENAMETOOLONG),
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
