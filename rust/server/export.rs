// SPDX-License-Identifier: GPL-2.0

//! An enabled export and the sessions that use it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
    time::Msecs,
};

use crate::channel::Linked;
use crate::failure::Failure;
use crate::proto::{
    Access,
    ListEntry,
    ListRequest,
    Login,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::server::{
    adapter::Adapters,
    backend::{
        self,
        Backend,
        Source, //
    },
    host::Hosts,
    session::Session, //
};
use crate::stats;
use crate::ticker::{
    Tick,
    Ticker, //
};

/// How often the backing of a block export is looked at.
const WATCH_MS: Msecs = 1000;

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
#[derive(Clone)]
pub(crate) struct Spec {
    /// The name that clients ask for.
    pub(crate) name: Name,
    /// Its lasting identity.
    pub(crate) uuid: Uuid,
    /// What its contents are.
    pub(crate) source: Source,
    /// What anybody may do at most.
    pub(crate) access: Access,
    /// The ports that lead to it.
    pub(crate) ports: Ports,
    /// Whether a host without an entry is admitted.
    pub(crate) allow_any_host: bool,
    /// Sessions at a time.
    pub(crate) max_clients: u16,
}

/// What looks after a block device that may be resized, or become read-only: nobody tells of it.
pub(crate) struct Watch(Arc<Export>);

impl Tick for Watch {
    fn tick(&self) {
        let Backend::Block(block) = &self.0.backend else {
            return;
        };
        if block.look() {
            for client in &self.0.clients.lock().list {
                Session::notify(&client.session);
            }
        }
    }
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

/// An enabled export.
#[pin_data]
pub(crate) struct Export {
    /// What it was asked to be.
    pub(crate) spec: Spec,
    /// Its contents.
    pub(crate) backend: Backend,
    hosts: Arc<Hosts>,
    #[pin]
    clients: Mutex<Clients>,
}

impl Export {
    /// Makes the contents ready. In the user's task. May sleep, and may take long.
    pub(crate) fn new(spec: Spec, hosts: Arc<Hosts>, boot: Uuid) -> Result<Arc<Self>, Failure> {
        let backend = Backend::new(&spec.source, spec.access, boot)?;
        let clients = Clients {
            open: true,
            list: KVec::new(),
        };
        Ok(Arc::pin_init(
            pin_init!(Self {
                spec,
                backend,
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
        let possible = self.backend.extent().access;
        Ok(access.min(spec.access).min(possible))
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

    /// Looks after the backing of the export, as long as the result lives. May sleep.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<Option<Ticker<Watch>>> {
        match self.backend {
            Backend::Ram(_) => Ok(None),
            Backend::Block(_) => Ticker::new(Watch(self.clone()), WATCH_MS).map(Some),
        }
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

    /// Whether the contents are gone for good.
    pub(crate) fn is_dead(&self) -> bool {
        match &self.backend {
            Backend::Ram(_) => false,
            Backend::Block(block) => block.is_dead(),
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
            size: self.backend.extent().size,
            kind: self.backend.kind(),
            access,
            clients: u16::try_from(self.clients()).unwrap_or(u16::MAX),
            max_clients: self.spec.max_clients,
        })
    }
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
    /// Random for each load of the module.
    pub(crate) boot: Uuid,
    /// What it has on RDMA devices.
    pub(crate) adapters: Arc<Adapters>,
    #[pin]
    list: Mutex<KVec<(Name, Option<Arc<Export>>)>>,
}

impl Exports {
    /// None yet.
    pub(crate) fn new(stats: Arc<stats::Server>) -> Result<Arc<Self>> {
        let adapters = Adapters::new()?;
        Arc::pin_init(
            pin_init!(Self {
                stats,
                boot: backend::random_uuid(),
                adapters,
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
