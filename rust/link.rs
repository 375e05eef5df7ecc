// SPDX-License-Identifier: GPL-2.0

//! What client and server share of a connection: the control channel and its keys, the cipher
//! of I/O connections, failures in words, status codes.

#![forbid(unsafe_code)]

pub(crate) mod channel;
pub(crate) mod cipher;
pub(crate) mod failure;
pub(crate) mod keys;
pub(crate) mod status;

use crate::base::compat;
use crate::rdma::device::Device;

/// Returns true if keys may be invalidated by messages over `device`: it can do so, and the
/// administrator does not know better. Any context.
pub(crate) fn may_invalidate(device: &Device) -> bool {
    device.takes_invalidations() && compat::param(&crate::module_parameters::remote_invalidate) != 0
}
