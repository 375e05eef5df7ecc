// SPDX-License-Identifier: GPL-2.0

//! An enabled export and the sessions that use it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        atomic::Atomic,
        Arc,
        Mutex, //
    },
    time::Msecs,
};

use crate::base::periodic::{
    Tick,
    Ticker, //
};
use crate::link::{
    channel::Linked,
    failure::Failure, //
};
use crate::proto::{
    Access,
    Fence,
    ListEntry,
    ListRequest,
    Login,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::server::{
    backend::{
        self,
        Backend,
        Source, //
    },
    block::adapter::Adapters,
    host::Hosts,
    members::{
        Entry,
        HostKey,
        Members, //
    },
    session::Session,
    stats, //
};
use crate::session::reservation::{
    Admission,
    Granted,
    Terms,
    LOOK_MS, //
};

/// How long a login waits for the end of what is in its way before it looks whether its client still does.
const PATIENCE_MS: Msecs = 100;

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
    /// Maps that may have it at a time.
    pub(crate) max_clients: u16,
    /// The longest time that a map without a path keeps its place, in milliseconds.
    pub(crate) lease_max_ms: u32,
}

impl Spec {
    /// What `hosts` and the export's settings say of a host, through whichever port it comes. May sleep.
    pub(crate) fn admission(&self, hosts: &Hosts, host: &HostKey) -> Admission {
        let any = self.allow_any_host.then_some(Access::ReadWrite);
        match hosts.admit(&host.name, &host.id).or(any) {
            None => Admission::None,
            Some(access) if access.min(self.access).writes() => Admission::Write,
            Some(_) => Admission::Read,
        }
    }
}

/// What looks whether clients are still there, and after a block device, which may be resized, or become
/// read-only: nobody tells of it.
pub(crate) struct Watch(Arc<Export>);

impl Tick for Watch {
    fn tick(&self) {
        let export = &self.0;
        export.members.look();
        match &export.backend {
            Backend::Block(block) if block.look() => {
                export.members.for_each(Session::notify);
            }
            _ => {}
        }
    }
}

/// An enabled export.
pub(crate) struct Export {
    /// What it was asked to be.
    pub(crate) spec: Spec,
    /// Its contents.
    pub(crate) backend: Backend,
    /// Of this host, as it was when the export was enabled.
    pub(crate) server_id: Uuid,
    hosts: Arc<Hosts>,
    members: Arc<Members>,
    /// What logins to this export show to `members`: who found it before it was enabled anew is late.
    opening: u64,
    stats: Arc<stats::Server>,
}

impl Export {
    /// Makes the contents ready. In the user's task. May sleep, and may take long: `allocated` tells how
    /// many bytes of memory there are so far.
    pub(crate) fn new(
        spec: Spec,
        hosts: Arc<Hosts>,
        members: Arc<Members>,
        (exports, server_id): (&Exports, Uuid),
        allocated: &Atomic<u64>,
    ) -> Result<Arc<Self>, Failure> {
        let backend = Backend::new(&spec.source, spec.access, exports.boot, allocated)?;
        let terms = Terms {
            max_clients: spec.max_clients,
            lease_max_ms: spec.lease_max_ms,
        };
        let opening = members.open(backend.contents(), terms);
        Ok(Arc::new(
            Self {
                spec,
                backend,
                server_id,
                hosts,
                members,
                opening,
                stats: exports.stats.clone(),
            },
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

    /// Returns whether who comes through `port` may write, or why it may not log in, as things are now. A
    /// map that is back and may only read now goes on so if it does I/O by commands, as it could have
    /// stayed when its device became read-only: each write is refused. May sleep.
    pub(crate) fn check(&self, port: &Name, login: &Login) -> Result<bool, Refused> {
        let admitted = self.admit(port, &login.host_name, &login.host_id)?;
        let (access, stays) = match (login.resume, &self.backend) {
            (Some(_), backend) => (admitted, matches!(backend, Backend::Block(_))),
            (None, backend) => (admitted.min(backend.extent().access), false),
        };
        match login.access.writes() && !access.writes() {
            true if !stays => Err(Refused::new(
                Refusal::ReadOnly,
                format_args!("{} is read-only for {}", self.spec.name, login.host_name),
            )),
            refused => Ok(login.access.writes() && !refused),
        }
    }

    /// Lets `session` use the export as a path of its map, or says why not. Returns what is granted, if
    /// the path may write as `writes` says; who asked may have been told otherwise meanwhile, and has to
    /// ask anew. What it takes the place of has ended by then: an older epoch of the path, another life
    /// of the map or of its host. On the workqueue of the session. May sleep, as long as the backing takes.
    pub(crate) fn attach(
        &self,
        session: &Arc<Session>,
        port: &Name,
        login: &Login,
        writes: bool,
    ) -> Result<Granted, Refused> {
        let order = (self.opening, self.members.admitted());
        loop {
            let admit = || match self.check(port, login) {
                Ok(now) if now != writes => Err(Refused::new(
                    Refusal::Internal,
                    format_args!("what {} may do changes just now", login.host_name),
                )),
                checked => checked,
            };
            let past = match self.members.login(session, login, order, admit)? {
                Entry::In(granted) => return Ok(granted),
                Entry::After(past) => past,
            };
            while !past.is_over(PATIENCE_MS) {
                // The client has given up, or is told to.
                if session.is_lost() {
                    return Err(Refusal::Superseded.into());
                }
            }
        }
    }

    /// `session` no longer touches the export: its queue pairs and memory regions are gone; `leaving` if
    /// its client said that the map goes. May sleep.
    pub(crate) fn detach(&self, session: &Session, leaving: bool) {
        self.members.left(session, leaving);
    }

    /// Whether nothing of a path of `session`'s map, up to an epoch, will reach the export any more. If
    /// not, it is told to end, and `session` will be notified and has to ask anew. May sleep.
    pub(crate) fn fence(&self, session: &Session, fence: Fence) -> bool {
        let done = self.members.fence(session, fence);
        if done {
            self.stats.fences.count();
        }
        done
    }

    /// Looks after the export and its clients, as long as the result lives. May sleep.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<Ticker<Watch>> {
        Ticker::new(Watch(self.clone()), LOOK_MS)
    }

    /// Admits no more, lets the commands that have begun be answered, and ends all sessions. May sleep, as
    /// long as the backing takes.
    pub(crate) fn close(&self) {
        self.members.close();
    }

    /// Whether the contents are gone for good.
    pub(crate) fn is_dead(&self) -> bool {
        match &self.backend {
            Backend::Ram(_) => false,
            Backend::Block(block) => block.is_dead(),
        }
    }

    /// Maps that have a path at the moment. May sleep.
    pub(crate) fn clients(&self) -> usize {
        self.members.count(None)
    }

    /// Maps without one that are expected back. May sleep.
    pub(crate) fn clients_away(&self) -> usize {
        self.members.count_away()
    }

    /// Those of one host that have a path. May sleep.
    pub(crate) fn clients_of(&self, host: &Name) -> usize {
        self.members.count(Some(host))
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
