// SPDX-License-Identifier: GPL-2.0

//! Error codes of networking, and the names of all of them.

use kernel::error::Error;

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

/// Returns the name of an error code, such as `"ECONNREFUSED"`; `"EUNKNOWN"` if it has none.
pub(crate) fn name(error: Error) -> &'static str {
    let name = error.name().and_then(|name| name.to_str().ok());
    name.unwrap_or("EUNKNOWN")
}
