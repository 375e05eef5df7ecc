// SPDX-License-Identifier: GPL-2.0

//! The settings of an export, and what they demand of those who use it.

#![forbid(unsafe_code)]

use kernel::prelude::*;

use crate::base::memory::{
    total_memory,
    NumaNode, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    Kind,
    Name,
    Protection,
    Refusal,
    Refused,
    Uuid, //
};
use crate::server::{
    backend::Source,
    host::Hosts,
    members::HostKey,
    ports::Ports, //
};
use crate::session::reservation::{
    Admission,
    LEASE_MAX_MS, //
};

/// The default `ram_reserve` is the host's memory divided by this, at most [`RESERVE_MAX`].
const RESERVED_PART: u64 = 16;
/// The largest default of `ram_reserve`, in bytes.
const RESERVE_MAX: u64 = 4 << 30;

/// The settings of an export.
#[derive(Clone)]
pub(crate) struct Spec {
    /// The name that clients ask for.
    pub(crate) name: Name,
    /// Its lasting identity.
    pub(crate) uuid: Uuid,
    /// What its contents are made of.
    pub(crate) source: Source,
    /// The most access that any host may have.
    pub(crate) access: Access,
    /// The ports through which it is offered.
    pub(crate) ports: Ports,
    /// True if a host without an entry is admitted.
    pub(crate) allow_any_host: bool,
    /// True if the memory is cleared when the only client is another host than the last one.
    pub(crate) scrub: bool,
    /// The number of maps that may use it at a time.
    pub(crate) max_clients: u16,
    /// The longest time that a map without a path keeps its place, in milliseconds.
    pub(crate) lease_max_ms: u32,
    /// The protection of the I/O, which each map has to ask for.
    pub(crate) protection: Protection,
}

impl Spec {
    /// Returns the settings of a new export.
    pub(crate) fn new(name: Name, uuid: Uuid) -> Self {
        Self {
            name,
            uuid,
            source: Source {
                kind: Kind::Ram,
                device_path: None,
                size: 0,
                block_size: None,
                numa_node: NumaNode::NO_NODE,
                ram_reserve: (total_memory() / RESERVED_PART).min(RESERVE_MAX),
            },
            access: Access::ReadWrite,
            ports: Ports::ALL,
            allow_any_host: false,
            scrub: true,
            max_clients: 1,
            lease_max_ms: LEASE_MAX_MS,
            protection: Protection::None,
        }
    }

    /// Fails with `EINVAL` if the contents cannot have the protection.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match (self.source.kind, self.protection) {
            (Kind::Block, _) | (_, Protection::None) => Ok(()),
            (Kind::Ram, _) => Err(fail!(
                EINVAL,
                "protection: hosts access the memory of a ram export directly, so it has to be none"
            )),
        }
    }

    /// Returns the access of hosts that have no entry, if they are admitted.
    pub(super) fn access_of_any(&self) -> Option<Access> {
        self.allow_any_host.then_some(Access::ReadWrite)
    }

    /// Returns what `hosts` and these settings allow a host, through any port. May sleep.
    pub(crate) fn admission(&self, hosts: &Hosts, host: &HostKey) -> Admission {
        match hosts.access(&host.name, &host.id, self.access_of_any()) {
            None => Admission::None,
            Some(access) if access.min(self.access).writes() => Admission::Write,
            Some(_) => Admission::Read,
        }
    }

    /// Returns why a map may not log in that asks for `protection`; `proven` says whether its
    /// session has proved a key.
    pub(super) fn agree(&self, protection: Protection, proven: bool) -> Result<(), Refused> {
        match self.protection {
            own if own.needs_key() && !proven => Err(Refusal::AuthRequired.into()),
            own if own != protection => Err(Refused::protection(own, protection)),
            _ => Ok(()),
        }
    }
}
