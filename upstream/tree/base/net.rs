// SPDX-License-Identifier: GPL-2.0

//! Network namespaces, socket addresses and the name of this host.

#![allow(unsafe_code)]

use kernel::{
    prelude::*,
    str::CString, //
};

use crate::bindings;

pub(crate) use kernel::net::{
    namespace::Net,
    sockaddr::SockaddrStorage, //
};

/// Returns the name of this host in the UTS namespace of the current task. Fails with `ENOMEM`. May
/// sleep.
pub(crate) fn nodename() -> Result<CString> {
    // `__NEW_UTS_LEN` and the NUL.
    let mut buffer = [0u8; 65];
    // SAFETY: `buffer` is valid for writes of its length, which is not zero.
    unsafe { bindings::current_nodename(buffer.as_mut_ptr().cast(), buffer.len()) };
    let name = CStr::from_bytes_until_nul(&buffer).map_err(|_| EINVAL)?;
    Ok(CString::try_from(name)?)
}
