// SPDX-License-Identifier: GPL-2.0

//! The ports of devices.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use crate::rdma::device::Device;
use core::net::Ipv6Addr;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// What a port was like when it was asked: C's `struct ib_port_attr`.
///
/// See [`Device`] for an example.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    /// Packets can be sent and received (`IB_PORT_ACTIVE`).
    pub(crate) active: bool,
    /// The bytes that a packet of the port carries, at most.
    pub(crate) mtu: u32,
    /// The bytes that a message has, at most.
    pub(crate) max_msg_sz: u32,
    /// How many GIDs there may be, and so how many entries their table has.
    pub(crate) gid_tbl_len: u32,
    /// The same of the partition keys.
    pub(crate) pkey_tbl_len: u32,
}

impl Device {
    /// Returns how many ports the device has. They are numbered from 1.
    pub(crate) fn ports(&self) -> u32 {
        // SAFETY: By the type invariants the device is registered; the number does not change.
        unsafe { (*self.as_raw()).phys_port_cnt }
    }

    /// Asks a port what it is like. Fails with `EINVAL` if there is no such port, and with the
    /// device's error. May sleep.
    pub(crate) fn port(&self, number: u32) -> Result<Port> {
        let mut attr: bindings::ib_port_attr = pin_init::zeroed();
        // SAFETY: By the type invariants the device is registered; `attr` is valid for a write.
        to_result(unsafe { bindings::ib_query_port(self.as_raw(), number, &mut attr) })?;
        Ok(Port {
            active: attr.state == bindings::ib_port_state_IB_PORT_ACTIVE,
            mtu: mtu(attr.active_mtu),
            max_msg_sz: attr.max_msg_sz,
            gid_tbl_len: super::limit(attr.gid_tbl_len),
            pkey_tbl_len: attr.pkey_tbl_len.into(),
        })
    }

    /// Returns the GID at `index` of the table of a port, written as an IPv6 address: with RoCE it
    /// is one, where an IPv4 address is mapped; with InfiniBand it has the same form. Fails with
    /// `ENOENT` if there is none, and with `EINVAL` if the table has no such entry. Any context.
    pub(crate) fn gid(&self, port: u32, index: u32) -> Result<Ipv6Addr> {
        let mut gid = bindings::ib_gid { raw: [0; 16] };
        let index = i32::try_from(index)?;
        // SAFETY: By the type invariants the device is registered; `gid` is valid for a write.
        to_result(unsafe { bindings::rdma_query_gid(self.as_raw(), port, index, &mut gid) })?;
        // SAFETY: All variants of the union are plain bytes.
        Ok(Ipv6Addr::from(unsafe { gid.raw }))
    }

    /// Returns the partition key at `index` of the table of a port. Fails with the device's error
    /// if there is none. May sleep.
    pub(crate) fn pkey(&self, port: u32, index: u16) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: By the type invariants the device is registered; `pkey` is valid for a write.
        to_result(unsafe { bindings::ib_query_pkey(self.as_raw(), port, index, &mut pkey) })?;
        Ok(pkey)
    }
}

/// The bytes of an MTU of C's `enum ib_mtu`: 256 to 4096. A device that gives no such MTU has the
/// least.
fn mtu(mtu: bindings::ib_mtu) -> u32 {
    match mtu {
        2..=5 => 128 << mtu,
        _ => 256,
    }
}
