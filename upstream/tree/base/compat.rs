// SPDX-License-Identifier: GPL-2.0

//! What differs between kernels, as this one has it.

use kernel::module_param::{
    ModuleParam,
    ModuleParamAccess, //
};

/// Returns the value of a module parameter.
pub(crate) fn param<T: ModuleParam + Copy>(param: &ModuleParamAccess<T>) -> T {
    param.value()
}

/// Error codes.
pub(crate) mod errno {
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
        ENOTCONN,
        EOPNOTSUPP,
        EPROTO,
        EPROTONOSUPPORT,
        EPROTOTYPE,
        ESHUTDOWN,
        ESTALE, //
    };
}
