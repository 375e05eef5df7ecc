// SPDX-License-Identifier: GPL-2.0

//! This host: its identity, and the numbers of its disks.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

use crate::base::{
    debugfs::Dir,
    net::{
        self,
        Net, //
    },
    sync,
    workqueue::{
        OwnedQueue,
        ReleaseHandle, //
    }, //
};
use crate::block::mq::DiskNames;
use crate::client::Target;
use crate::proto::{
    Name,
    Uuid, //
};
use crate::rdma::client::Devices;

/// The identity of this host, as other hosts see it.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    /// The UUID: random at load, until somebody writes a lasting one.
    pub(crate) id: Uuid,
    /// The source of `id`.
    pub(crate) id_source: IdSource,
    /// The name by which exports admit this host: the node name at load.
    pub(crate) name: Name,
}

/// The source of a host id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdSource {
    /// The module made the id at load. It changes with the next load.
    Random,
    /// Somebody wrote the id to `host_id`.
    Written,
}

impl IdSource {
    /// Returns the word that configfs shows.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Written => "written",
        }
    }
}

/// This host.
#[pin_data]
pub(crate) struct Host {
    #[pin]
    identity: Mutex<Identity>,
    /// Random for each load of the module; never 0.
    pub(crate) boot: u64,
    /// How often maps were enabled.
    incarnations: Atomic<u64>,
    /// The RDMA devices.
    devices: Arc<Devices>,
    /// What drops workqueues.
    pub(in crate::client) release: ReleaseHandle,
    /// Numbers of the disks: farblk0, farblk1 and so on.
    pub(crate) disk_names: Arc<DiskNames>,
    /// The debugfs directory of the counters of connections.
    pub(in crate::client) client_dir: Dir,
    /// The debugfs directory of the counters of maps.
    pub(in crate::client) maps_dir: Dir,
    /// Scans disks for partitions, and tells user space of changes of disks. No item waits for
    /// another, and no I/O waits for an item.
    pub(crate) disk_work: OwnedQueue,
}

impl Host {
    /// Makes a host with the name of the node and a random id. May sleep.
    pub(crate) fn new(
        devices: &Arc<Devices>,
        release: &ReleaseHandle,
        client_dir: Dir,
        maps_dir: Dir,
    ) -> Result<Arc<Self>> {
        let mut id = [0; 16];
        sync::random_bytes(&mut id);
        let identity = Identity {
            id: Uuid::from_random(id),
            id_source: IdSource::Random,
            name: net::nodename()
                .ok()
                .and_then(|name| Name::new(name.to_bytes()).ok())
                .map_or_else(|| Name::new(b"localhost").map_err(|_| EINVAL), Ok)?,
        };
        let disk_work = OwnedQueue::unbound(release, c"farblk_disk")?;
        let disk_names = Arc::pin_init(DiskNames::new(c"farblk"), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                identity <- new_mutex!(identity, "Host::identity"),
                boot: sync::random_u64() | 1,
                incarnations: Atomic::new(0),
                devices: devices.clone(),
                release: release.clone(),
                disk_names,
                client_dir,
                maps_dir,
                disk_work,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the way to a server, in the network namespace of the current task. Any context.
    pub(crate) fn target(&self, addr: SocketAddr, source: Option<SocketAddr>, tos: u8) -> Target {
        Target {
            devices: self.devices.clone(),
            net: Net::current(),
            addr,
            source,
            tos,
        }
    }

    /// Returns a number for a map that is enabled: larger than all before it, never 0. Any context.
    pub(crate) fn next_incarnation(&self) -> u64 {
        self.incarnations.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Returns the UUID of the map `name`, as servers see it. A map that is removed and made again
    /// has the same one until the module is unloaded. Any context.
    pub(crate) fn map_uuid(&self, name: &Name) -> Uuid {
        // FNV-1a with 128 bits.
        let hash = |hash: u128, byte: &u8| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        };
        let basis = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        let boot = self.boot.to_be_bytes();
        let boot = boot.iter().fold(basis, hash);
        let hash = name.as_str().as_bytes().iter().fold(boot, hash);
        Uuid::from_random(hash.to_be_bytes())
    }

    /// Returns the identity that a login sends. May sleep.
    pub(crate) fn identity(&self) -> Identity {
        *self.identity.lock()
    }

    /// Changes the identity for later logins. May sleep.
    pub(crate) fn set_identity(&self, change: impl FnOnce(&mut Identity)) {
        change(&mut self.identity.lock())
    }
}
