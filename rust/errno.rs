// SPDX-License-Identifier: GPL-2.0

//! Error codes of networking, and the names of all of them.
//!
//! C header: [`include/uapi/asm-generic/errno.h`](srctree/include/uapi/asm-generic/errno.h)\
//! C header: [`include/linux/errno.h`](srctree/include/linux/errno.h)

#![allow(unsafe_code)]

use kernel::error::Error;

use crate::bindings;

pub(crate) use crate::compat::errno::{
    ECONNREFUSED,
    ECONNRESET,
    EHOSTUNREACH,
    ENAMETOOLONG,
    ENETUNREACH,
    ENOTCONN,
    EOPNOTSUPP,
    EPROTO,
    EPROTONOSUPPORT,
    ESHUTDOWN,
    ESTALE, //
};

macro_rules! names {
    ($($code:ident)*) => {
        /// The name of an error code, such as `"ECONNREFUSED"`; `"EUNKNOWN"` if it has none.
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
