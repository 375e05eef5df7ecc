// SPDX-License-Identifier: GPL-2.0

//! All exports of this host.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
};

use super::Export;
use crate::base::{
    debugfs::Dir,
    workqueue::{
        OwnedQueue,
        ReleaseHandle, //
    }, //
};
use crate::link::keys::Psk;
use crate::proto::{
    auth::KeyId,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::rdma::client::Devices;
use crate::server::{
    block::adapter::Adapters,
    host::Hosts,
    quota::Quota,
    stats, //
};

/// How many sessions of strangers are served at the same time. None of them waits for anybody.
const STRANGERS_WORKERS: u32 = 8;

/// What a client names when it asks for something of an export.
pub(in crate::server) struct Applicant<'a> {
    /// The name of the export.
    pub(in crate::server) export: &'a Name,
    /// The name and the UUID of the client's host.
    pub(in crate::server) host: (&'a Name, &'a Uuid),
}

/// All exports by name, enabled or not.
#[pin_data]
pub(crate) struct Exports {
    /// The RDMA devices.
    pub(in crate::server) devices: Arc<Devices>,
    /// What drops workqueues.
    pub(in crate::server) release: ReleaseHandle,
    /// The counters of the server.
    pub(crate) stats: Arc<stats::Server>,
    /// What client hosts have of what is there for all of them.
    pub(crate) quota: Arc<Quota>,
    /// What the server has on RDMA devices.
    pub(crate) adapters: Arc<Adapters>,
    /// The debugfs directory of the exports.
    pub(super) dir: Dir,
    /// The workqueue on which exports are closed, and memory is overwritten.
    pub(super) closer: Arc<OwnedQueue>,
    /// The workqueue of all sessions whose clients are not admitted.
    pub(in crate::server) strangers: Arc<OwnedQueue>,
    #[pin]
    list: Mutex<KVec<Entry>>,
}

/// An export that was created.
struct Entry {
    name: Name,
    hosts: Arc<Hosts>,
    /// It admitted every host when it was enabled last.
    allow_any_host: bool,
    /// `None` unless it is enabled.
    export: Option<Arc<Export>>,
}

impl Exports {
    /// Makes an empty list. Exports show themselves in the debugfs directory `dir`.
    pub(crate) fn new(
        devices: &Arc<Devices>,
        release: &ReleaseHandle,
        stats: Arc<stats::Server>,
        dir: Dir,
    ) -> Result<Arc<Self>> {
        let (quota, adapters) = (Quota::new()?, Adapters::new(release)?);
        let closer = Arc::new(OwnedQueue::unbound(release, c"farblk_close")?, GFP_KERNEL)?;
        let strangers = OwnedQueue::limited(release, c"farblk_strangers", STRANGERS_WORKERS)?;
        let strangers = Arc::new(strangers, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                devices: devices.clone(),
                release: release.clone(),
                stats,
                quota,
                adapters,
                dir,
                closer,
                strangers,
                list <- new_mutex!(KVec::new(), "Exports::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds an export that was created, and admits `hosts`. May sleep.
    pub(crate) fn define(&self, name: Name, hosts: Arc<Hosts>) -> Result {
        let entry = Entry {
            name,
            hosts,
            // Nobody knows yet: a map whose export is being made anew has to come again.
            allow_any_host: true,
            export: None,
        };
        Ok(self.list.lock().push(entry, GFP_KERNEL)?)
    }

    /// Returns the key of that name, of any host of any export. May sleep.
    pub(in crate::server) fn key(&self, id: KeyId) -> Option<Arc<Psk>> {
        let list = self.list.lock();
        list.iter().find_map(|entry| entry.hosts.key(id))
    }

    /// Returns true if the host of `applicant` has proved a key which it needs for the export that
    /// it names, also if that is not enabled. May sleep.
    pub(in crate::server) fn has_proved(&self, applicant: &Applicant<'_>, proven: &Psk) -> bool {
        let list = self.list.lock();
        let entry = list.iter().find(|entry| entry.name == *applicant.export);
        entry.is_some_and(|entry| entry.hosts.has_proved(applicant.host.0, proven))
    }

    /// Returns true if a host of an export needs a key. May sleep.
    pub(in crate::server) fn have_keys(&self) -> bool {
        let list = self.list.lock();
        list.iter().any(|entry| entry.hosts.have_keys())
    }

    /// Returns true if there are exports, and the host of `applicant` is admitted to none of them,
    /// whatever it has proved. May sleep.
    pub(in crate::server) fn refuse(&self, applicant: &Applicant<'_>) -> bool {
        let list = self.list.lock();
        let (name, id) = applicant.host;
        let admits =
            |entry: &Entry| entry.allow_any_host || entry.hosts.access(name, id, None).is_some();
        !list.is_empty() && !list.iter().any(admits)
    }

    /// Removes the name of an export that was removed. May sleep.
    pub(crate) fn undefine(&self, name: &Name) {
        self.list.lock().retain(|entry| entry.name != *name);
    }

    /// Offers an export to clients, or withdraws the offer. May sleep.
    pub(crate) fn offer(&self, name: &Name, export: Option<Arc<Export>>) {
        let mut list = self.list.lock();
        if let Some(entry) = list.iter_mut().find(|entry| entry.name == *name) {
            if let Some(export) = &export {
                entry.allow_any_host = export.spec.allow_any_host;
            }
            entry.export = export;
        }
    }

    /// Returns the enabled export `name`, or why there is none. May sleep.
    pub(crate) fn find(&self, name: &Name) -> Result<Arc<Export>, Refused> {
        let list = self.list.lock();
        match list.iter().find(|entry| entry.name == *name) {
            Some(Entry {
                export: Some(export),
                ..
            }) => Ok(export.clone()),
            Some(_) => Err(Refused::new(
                Refusal::ExportDisabled,
                format_args!("export {name} is not enabled"),
            )),
            None => Err(Refused::new(
                Refusal::NoSuchExport,
                format_args!("there is no export {name}"),
            )),
        }
    }

    /// Visits the enabled exports in the order of their creation. May sleep.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Export)) {
        let list = self.list.lock();
        list.iter()
            .filter_map(|entry| entry.export.as_ref())
            .for_each(|export| visit(export));
    }
}
