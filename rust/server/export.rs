// SPDX-License-Identifier: GPL-2.0

//! An enabled export and the sessions that use it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    BlockSize,
    Geometry,
    Kind,
    ListEntry,
    ListRequest,
    Login,
    Malformed,
    Name,
    Refusal,
    Refused,
    SlabShift,
    Uuid, //
};
use crate::scatterlist::PageChunks;
use crate::server::{
    host::Hosts,
    session::Session, //
};
use crate::{
    stats,
    sync, //
};

/// Largest slab: a grant, a memory region and a unit of eviction.
const SLAB_SHIFT_MAX: u32 = 26;
/// Chunks a slab may have: a memory region has a page for each, and not every HCA takes more.
const SLAB_CHUNKS_SHIFT: u32 = 8;

/// The names of the ports that lead to an export; without a name, all of them.
#[derive(Clone, Copy)]
pub(crate) struct Ports(pub(crate) [Option<Name>; Ports::MAX]);

impl Ports {
    /// Ports that can be named.
    pub(crate) const MAX: usize = 8;

    /// Every port.
    pub(crate) const ALL: Self = Self([None; Self::MAX]);

    /// The names, if not all ports are meant.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().flatten()
    }

    fn contain(&self, port: &Name) -> bool {
        self.names().next().is_none() || self.names().any(|name| name == port)
    }
}

/// What an export is to be.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    /// The name that clients ask for.
    pub(crate) name: Name,
    /// Its lasting identity.
    pub(crate) uuid: Uuid,
    /// Bytes.
    pub(crate) size: u64,
    /// What anybody may do at most.
    pub(crate) access: Access,
    /// Logical block size.
    pub(crate) block_size: BlockSize,
    /// Where its memory comes from; -1 for anywhere.
    pub(crate) numa_node: i32,
    /// The ports that lead to it.
    pub(crate) ports: Ports,
    /// Whether a host without an entry is admitted.
    pub(crate) allow_any_host: bool,
    /// Sessions at a time.
    pub(crate) max_clients: u16,
}

/// Who uses an export.
struct Client {
    session: Arc<Session>,
    host_id: Uuid,
    host_name: Name,
    map_uuid: Uuid,
}

struct Clients {
    /// Cleared once, when the export is being disabled.
    open: bool,
    list: KVec<Client>,
}

/// An enabled export of RAM.
#[pin_data]
pub(crate) struct Export {
    /// What it was asked to be.
    pub(crate) spec: Spec,
    /// Random for each allocation: other contents, other instance.
    pub(crate) instance: Uuid,
    /// Its size and slabs.
    pub(crate) geometry: Geometry,
    /// Its contents.
    pub(crate) memory: Arc<PageChunks>,
    hosts: Arc<Hosts>,
    #[pin]
    clients: Mutex<Clients>,
}

impl Export {
    /// Allocates and zeroes the memory. May sleep, and takes long.
    pub(crate) fn new(spec: Spec, hosts: Arc<Hosts>) -> Result<Arc<Self>, Failure> {
        let block = u64::from(spec.block_size.get());
        if spec.size == 0 || spec.size % block != 0 {
            return Err(fail!(
                EINVAL,
                "size {} is not a positive multiple of the block size {block}",
                spec.size
            ));
        }
        let memory = usize::try_from(spec.size)
            .ok()
            .and_then(allocation)
            .ok_or(EINVAL)
            .and_then(|size| PageChunks::alloc(size, spec.numa_node))
            .map_err(|error| {
                fail!(
                    error,
                    "cannot allocate {} bytes on NUMA node {}",
                    spec.size,
                    spec.numa_node
                )
            })?;
        let shift = (memory.chunk_size().ilog2() + SLAB_CHUNKS_SHIFT).min(SLAB_SHIFT_MAX);
        let geometry = u8::try_from(shift)
            .map_err(|_| Malformed("the chunks are too large"))
            .and_then(SlabShift::try_from)
            .and_then(|shift| Geometry::new(spec.size, shift))
            .map_err(|Malformed(why)| fail!(EINVAL, "{why}"))?;
        let mut instance = [0; 16];
        sync::random_bytes(&mut instance);
        let clients = Clients {
            open: true,
            list: KVec::new(),
        };
        Ok(Arc::pin_init(
            pin_init!(Self {
                spec,
                instance: Uuid::from_random(instance),
                geometry,
                memory,
                hosts,
                clients <- new_mutex!(clients, "Export::clients"),
            }),
            GFP_KERNEL,
        )?)
    }

    /// What a host that comes through `port` may do at most. May sleep.
    fn admit(&self, port: &Name, name: &Name, id: &Uuid) -> Result<Access, Refused> {
        let spec = &self.spec;
        if !spec.ports.contain(port) {
            return Err(Refused::new(
                Refusal::NotOnPort,
                format_args!("{} is not exported on this port", spec.name),
            ));
        }
        let any = spec.allow_any_host.then_some(Access::ReadWrite);
        let Some(access) = self.hosts.admit(name, id).or(any) else {
            return Err(Refused::new(
                Refusal::NotAdmitted,
                format_args!("host {name} is not admitted to {}", spec.name),
            ));
        };
        Ok(access.min(spec.access))
    }

    /// Lets `session` use the export, or says why not. A session of the same map is ended first: it
    /// is the past of this one. May sleep.
    pub(crate) fn attach(
        &self,
        session: Arc<Session>,
        port: &Name,
        login: &Login,
    ) -> Result<Access, Refused> {
        let access = self.admit(port, &login.host_name, &login.host_id)?;
        if login.access.writes() && !access.writes() {
            return Err(Refused::new(
                Refusal::ReadOnly,
                format_args!("{} is read-only for {}", self.spec.name, login.host_name),
            ));
        }
        loop {
            let past = {
                let mut clients = self.clients.lock();
                if !clients.open {
                    return Err(Refusal::ExportDisabled.into());
                }
                let past = clients.list.iter().find(|client| {
                    client.host_id == login.host_id && client.map_uuid == login.map_uuid
                });
                match past {
                    Some(client) => client.session.clone(),
                    None if clients.list.len() >= usize::from(self.spec.max_clients) => {
                        return Err(busy(&self.spec.name, clients.list.first()));
                    }
                    None => {
                        let client = Client {
                            session,
                            host_id: login.host_id,
                            host_name: login.host_name,
                            map_uuid: login.map_uuid,
                        };
                        clients
                            .list
                            .push(client, GFP_KERNEL)
                            .map_err(|_| Refused::from(Refusal::NoMemory))?;
                        return Ok(login.access);
                    }
                }
            };
            past.end();
        }
    }

    /// `session` no longer touches the export: its queue pairs and memory regions are gone. May
    /// sleep.
    pub(crate) fn detach(&self, session: &Session) {
        self.clients
            .lock()
            .list
            .retain(|client| client.session.id() != session.id());
    }

    /// Ends all sessions and admits no more. May sleep.
    pub(crate) fn close(&self) {
        self.clients.lock().open = false;
        self.end_sessions(|_| true);
    }

    /// Ends the sessions of hosts that are no longer admitted. May sleep.
    pub(crate) fn evict(&self) {
        self.end_sessions(|client| {
            !self.spec.allow_any_host
                && self
                    .hosts
                    .admit(&client.host_name, &client.host_id)
                    .is_none()
        });
    }

    fn end_sessions(&self, which: impl Fn(&Client) -> bool) {
        loop {
            let session = {
                let clients = self.clients.lock();
                let client = clients.list.iter().find(|client| which(client));
                client.map(|client| client.session.clone())
            };
            match session {
                Some(session) => session.end(),
                None => return,
            }
        }
    }

    /// Sessions at the moment. May sleep.
    pub(crate) fn clients(&self) -> usize {
        self.clients.lock().list.len()
    }

    /// Sessions of one host at the moment. May sleep.
    pub(crate) fn clients_of(&self, host: &Name) -> usize {
        let clients = self.clients.lock();
        clients
            .list
            .iter()
            .filter(|client| client.host_name == *host)
            .count()
    }

    /// What a host may know of the export: `None` if it could not log in. May sleep.
    pub(crate) fn entry(&self, port: &Name, request: &ListRequest) -> Option<ListEntry> {
        let access = self
            .admit(port, &request.host_name, &request.host_id)
            .ok()?;
        Some(ListEntry {
            name: self.spec.name,
            uuid: self.spec.uuid,
            size: self.spec.size,
            kind: Kind::Ram,
            access,
            clients: u16::try_from(self.clients()).unwrap_or(u16::MAX),
            max_clients: self.spec.max_clients,
        })
    }
}

/// Bytes to allocate for `size` bytes: so many that the last chunk is no smaller than the others,
/// because the smallest chunk is the page size of the memory regions.
fn allocation(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(match size > PageChunks::CHUNK {
        true => PageChunks::CHUNK,
        false => PAGE_SIZE,
    })
}

fn busy(export: &Name, user: Option<&Client>) -> Refused {
    match user {
        Some(client) => Refused::new(
            Refusal::Busy,
            format_args!("{export} is in use by {}", client.host_name),
        ),
        None => Refusal::Busy.into(),
    }
}

/// All exports by name, enabled or not.
#[pin_data]
pub(crate) struct Exports {
    /// What the server did.
    pub(crate) stats: Arc<stats::Server>,
    #[pin]
    list: Mutex<KVec<(Name, Option<Arc<Export>>)>>,
}

impl Exports {
    /// None yet.
    pub(crate) fn new(stats: Arc<stats::Server>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                stats,
                list <- new_mutex!(KVec::new(), "Exports::list"),
            }),
            GFP_KERNEL,
        )
    }

    /// Somebody created the export `name`. May sleep.
    pub(crate) fn define(&self, name: Name) -> Result {
        Ok(self.list.lock().push((name, None), GFP_KERNEL)?)
    }

    /// Somebody removed the export `name`. May sleep.
    pub(crate) fn undefine(&self, name: &Name) {
        self.list.lock().retain(|(other, _)| other != name);
    }

    /// Makes an export known to clients, or no longer. May sleep.
    pub(crate) fn offer(&self, name: &Name, export: Option<Arc<Export>>) {
        let mut list = self.list.lock();
        if let Some(slot) = list.iter_mut().find(|(other, _)| other == name) {
            slot.1 = export;
        }
    }

    /// The enabled export `name`, or why there is none. May sleep.
    pub(crate) fn find(&self, name: &Name) -> Result<Arc<Export>, Refused> {
        let list = self.list.lock();
        match list.iter().find(|(other, _)| other == name) {
            Some((_, Some(export))) => Ok(export.clone()),
            Some((_, None)) => Err(Refused::new(
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
        for (_, export) in self.list.lock().iter() {
            if let Some(export) = export {
                visit(export);
            }
        }
    }
}
