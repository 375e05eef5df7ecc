// SPDX-License-Identifier: GPL-2.0

//! farblk: the disk or RAM of another host as a local block device, over RDMA.
//!
//! The modules form three floors. Floor 0 is generated. Floor 1 holds the safe abstractions: it is
//! the only hand-written code with `unsafe`, and knows nothing of farblk. Floor 2 is the driver,
//! and forbids `unsafe`. A module only calls modules of its own floor or below. `client` and
//! `server` do not use each other, and neither do `block` and `rdma`.

#![crate_name = "farblk"]
#![deny(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::{
    compat,
    debugfs::File,
    workqueue::ReleaseQueue, //
};
use crate::client::host::Host;
use crate::rdma::{
    client::{
        rdma_client,
        Client,
        Registration, //
    },
    device::Device, //
};
use crate::server::{
    quota::Accounts,
    stats::ServerCounters,
    Connections,
    Exports, //
};

// Floor 0: generated.
mod bindings;

// Floor 1: safe abstractions; the only ones that name `bindings`.
mod base;
#[cfg_attr(
    not(CONFIG_FARBLK_KUNIT_TEST),
    expect(dead_code, reason = "the tests use more of it than the driver yet")
)]
mod block;
#[cfg(farblk_examples)]
mod examples {
    include!("examples_generated.rs");
}
#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
mod kunit;
#[cfg(farblk_misuse)]
#[path = "rdma/misuse.rs"]
mod misuse;
#[cfg_attr(
    not(CONFIG_FARBLK_KUNIT_TEST),
    expect(dead_code, reason = "the tests use more of it than the driver yet")
)]
mod rdma;

// Floor 2: the driver.
pub mod client;
pub mod config;
pub mod link;
pub mod proto;
pub mod server;
pub mod session;
pub mod stats;

/// The version of the module.
const VERSION: &str = "0.1.0";
/// Number of retransmissions of a packet. Some HCAs interpret 7 as infinite.
const RETRY_COUNT: u8 = 6;

module! {
    type: Farblk,
    name: "farblk",
    authors: ["The farblk developers"],
    description: "Remote block device over RDMA",
    license: "GPL v2",
    params: {
        protocol_version: u16 {
            default: 0,
            description: "Protocol version to offer to servers; 0 for all that are spoken",
        },
        pool_size: u64 {
            default: 33_554_432,
            description: "Server memory for data of block exports, in bytes per RDMA device",
        },
        inline_size: u32 {
            default: 4096,
            description: "Largest write that the server takes with its command, in bytes",
        },
        poll_us: u32 {
            default: 0,
            description: "Longest time for which a server looks for commands before it sleeps, us",
        },
        remote_invalidate: u8 {
            default: 1,
            description: "Keys are invalidated by answers; 0 if a device says it can and cannot",
        },
        unsafe_devices: u8 {
            default: 0,
            description: "1 to use devices by which peers can read all memory: for tests",
        },
    },
}

/// The module. Its fields drop in this order: first the configfs tree, so that no new work begins,
/// then the RDMA devices, then the queue of deferred drops.
struct Farblk {
    _config: base::configfs::Subsystem,
    _connections: Pin<KBox<File<Connections>>>,
    _stats: Pin<KBox<File<ServerCounters>>>,
    _accounts: Pin<KBox<File<Accounts>>>,
    _client: Registration<Hcas>,
    _release: ReleaseQueue,
    // Callbacks may have let go of all that, and not have returned yet.
    _code: base::users::CodeUsers,
}

impl kernel::Module for Farblk {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // Also if what follows fails: locals drop in the reverse order.
        let code = base::users::CodeUsers;
        let release = ReleaseQueue::new(c"farblk_release")?;
        let client = Registration::new(Hcas, release.handle())?;
        let server_stats = server::stats::Server::new()?;
        let files = server::stats::Files::new();
        let devices = client.devices();
        let exports = Exports::new(
            devices,
            release.handle(),
            server_stats.clone(),
            files.exports,
        )?;
        let host = Host::new(devices, release.handle(), files.client, files.maps)?;
        let connections = Connections(exports.adapters.clone());
        let connections = files.server.read_only_file(c"connections", connections);
        let stats = files
            .server
            .read_only_file(c"counters", ServerCounters(server_stats));
        let accounts = Accounts(exports.quota.clone());
        let accounts = files.server.read_only_file(c"accounts", accounts);
        let accounts_memory = KBox::new_uninit(GFP_KERNEL)?;
        let connections_memory = KBox::new_uninit(GFP_KERNEL)?;
        let stats_memory = KBox::new_uninit(GFP_KERNEL)?;
        let config = config::register(host, exports)?;
        // From here on nothing can fail: a file that somebody has opened would use the memory of a
        // module that is gone.
        Ok(Self {
            _config: config,
            _connections: connections_memory.write_pin_init(connections)?,
            _stats: stats_memory.write_pin_init(stats)?,
            _accounts: accounts_memory.write_pin_init(accounts)?,
            _client: client,
            _release: release,
            _code: code,
        })
    }
}

/// The client of the RDMA core. It does nothing when a device is removed: the connection manager
/// tells every object that uses the device, and the object releases it.
struct Hcas;

rdma_client!(Hcas);

impl Client for Hcas {
    type OwnerModule = LocalModule;

    fn accepts(&self, device: &Device) -> bool {
        let exposes = device.quirks().exposes_memory();
        if !exposes || compat::param(&module_parameters::unsafe_devices) != 0 {
            return true;
        }
        pr_warn!(
            "{} is not used: by its driver peers can read all memory of this host\n",
            device.name()
        );
        false
    }

    fn remove(&self, _device: &Arc<Device>) {}
}
