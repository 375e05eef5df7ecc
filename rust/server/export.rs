// SPDX-License-Identifier: GPL-2.0

//! An enabled export: its contents, and the rules by which clients log in to it.

#![forbid(unsafe_code)]

mod exports;

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_work,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic,
        Msecs, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    periodic::{
        PeriodicHandler,
        PeriodicWork, //
    },
    ratelimit::RateLimit,
    sync::Completion,
    workqueue::OwnedQueue, //
};
use crate::link::{
    channel::Linked,
    failure::{
        fail,
        Failure, //
    },
    keys::Psk, //
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
        Backend,
        LastClose, //
    },
    block::adapter::ClientId,
    host::{
        Hosts,
        Unproven, //
    },
    loss::Loss,
    members::{
        HostKey,
        Members,
        Outcome, //
    },
    persistent::Joined,
    quota::AccountKey,
    scrub::{
        Answer,
        Scrub, //
    },
    session::{
        Dismissal,
        Session, //
    },
    spec::Spec,
    stats, //
};
use crate::session::reservation::{
    Granted,
    Terms,
    LOOK_MS, //
};

pub(super) use self::exports::Applicant;
pub(crate) use self::exports::Exports;

/// How long a login waits for the end of an older session before it checks that its own client
/// still waits, in ms.
const SUPERSEDE_MS: Msecs = 100;
/// How long a login waits until memory is overwritten before it is refused, and how often it looks:
/// a client waits longer for the answer.
const SCRUB_WAIT: Delta = Delta::from_secs(2);
const SCRUB_LOOK: Delta = Delta::from_millis(10);

/// Looks after an enabled export once in [`LOOK_MS`]: ends the sessions of clients that are silent,
/// or all while the export is unavailable, and tells clients when the block device was resized or
/// became read-only. No event of the block layer tells of that.
pub(crate) struct ExportMonitor(Arc<Export>);

impl PeriodicHandler for ExportMonitor {
    fn run(&self) {
        let export = &self.0;
        export.members.check();
        match &export.backend {
            // Each map waits for its paths, or fails, as it was made to.
            _ if export.unavailable().is_some() => {
                export
                    .members
                    .for_each(|session| session.end(Loss::Unavailable));
            }
            Backend::Block(block) if block.refresh() => {
                export.members.for_each(Session::notify);
            }
            _ => {}
        }
    }
}

/// An enabled export.
#[pin_data]
pub(crate) struct Export {
    /// The settings that it was enabled with.
    pub(crate) spec: Spec,
    /// Its contents.
    pub(crate) backend: Backend,
    /// The identity of this host when the export was enabled.
    pub(crate) server_id: Uuid,
    hosts: Arc<Hosts>,
    members: Arc<Members>,
    /// Who has the memory of an export of RAM.
    #[pin]
    scrub: Scrub,
    /// The number that logins show to `members`. It changes each time that the export is enabled,
    /// so that a login that found the export before is refused.
    opening: u64,
    stats: Arc<stats::Server>,
    closer: Arc<OwnedQueue>,
    /// Set when [`Export::close`] was called.
    closing: Atomic<u32>,
    /// Nothing is under way any more, and the backing device is flushed.
    closed: Arc<Completion>,
    #[pin]
    log_limit: RateLimit,
    #[pin]
    work: Work<Export>,
    #[pin]
    scrub_work: Work<Export, SCRUB>,
}

/// The number of the work item that overwrites memory.
const SCRUB: u64 = 1;

impl_has_work! {
    impl HasWork<Self> for Export { self.work }
    impl HasWork<Self, SCRUB> for Export { self.scrub_work }
}

impl Export {
    /// Makes the contents ready. Fails with `EINVAL` if they cannot have the protection that is
    /// set. Must run in the user's task. May sleep, and may take long:
    /// `allocated` is kept up to date with how many bytes of memory there are so far.
    pub(crate) fn new(
        spec: Spec,
        hosts: Arc<Hosts>,
        members: Arc<Members>,
        last_close: &Arc<LastClose>,
        (exports, server_id): (&Exports, Uuid),
        allocated: &Atomic<u64>,
    ) -> Result<Arc<Self>, Failure> {
        spec.check()?;
        let backend = Backend::new(&spec.source, spec.access, last_close, allocated)?;
        let terms = Terms {
            max_clients: spec.max_clients,
            lease_max_ms: spec.lease_max_ms,
        };
        let opening = members.open(backend.contents(), terms);
        let closed = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        Ok(Arc::pin_init(
            pin_init!(Self {
                spec,
                backend,
                server_id,
                hosts,
                members,
                scrub <- Scrub::new(),
                opening,
                stats: exports.stats.clone(),
                closer: exports.closer.clone(),
                closing: Atomic::new(0),
                closed,
                log_limit <- RateLimit::new(),
                work <- new_work!("Export::work"),
                scrub_work <- new_work!("Export::scrub_work"),
            }),
            GFP_KERNEL,
        )?)
    }

    /// Returns the most access that a host, which has proved the key `proven`, may have through
    /// `port`, or why it may not log in. May sleep.
    fn admit(
        &self,
        port: &Name,
        host: (&Name, &Uuid),
        proven: Option<&Psk>,
    ) -> Result<Access, Refused> {
        let spec = &self.spec;
        if !spec.ports.contain(port) {
            return Err(Refused::new(
                Refusal::NotOnPort,
                format_args!("{} is not exported on this port", spec.name),
            ));
        }
        match self.hosts.admit(host, proven, spec.access_of_any()) {
            Ok(Some(access)) => Ok(access.min(spec.access)),
            Ok(None) => Err(not_admitted(host.0, &spec.name)),
            Err(Unproven) if proven.is_none() => Err(Refusal::AuthRequired.into()),
            Err(Unproven) => Err(Refusal::AuthFailed.into()),
        }
    }

    /// Returns whether a login through `port`, on a session that has proved the key `proven`, may
    /// write at present, or why it is refused.
    ///
    /// A map that wrote before and may only read now is still let in if it does I/O by commands,
    /// just as it could have stayed when its device became read-only: each of its writes is
    /// refused. May sleep.
    pub(crate) fn check(
        &self,
        port: &Name,
        login: &Login,
        proven: Option<&Psk>,
    ) -> Result<bool, Refused> {
        let admitted = self.admit(port, (&login.host_name, &login.host_id), proven)?;
        // Only a host that is admitted learns what the protection is.
        // A key of another host, or of another export, is none here.
        let own = proven.is_some_and(|key| self.hosts.has_proved(&login.host_name, key));
        self.spec.agree(login.protection, own)?;
        if let Some(why) = self.unavailable() {
            return Err(Refused::new(
                Refusal::Unavailable,
                format_args!("the export is unavailable: {why}"),
            ));
        }
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

    /// Returns who answers for the memory of a client of `session` that is admitted as `host`: the
    /// host whose entry admits it, or all hosts at its address if none does. May sleep.
    pub(super) fn client_id(&self, session: &Session, host: (&Name, &Uuid)) -> ClientId {
        match self.hosts.access(host.0, host.1, None) {
            Some(_) => ClientId::Host(*host.0),
            None => ClientId::Source(*session.source()),
        }
    }

    /// Returns the account of `client`, whose session it is. May sleep.
    pub(super) fn account(&self, session: &Session, client: &ClientId) -> AccountKey {
        match client {
            ClientId::Host(name) => {
                let proven = session.proven();
                let proven = proven.is_some_and(|key| self.hosts.has_proved(name, &key));
                AccountKey::Host(*name, proven)
            }
            ClientId::Source(_) => AccountKey::Strangers,
        }
    }

    /// Adds a session of the map that logs in, of a host with this account, to the persistent
    /// reservations. May sleep.
    pub(super) fn join(
        &self,
        session: &Arc<Session>,
        login: &Login,
        account: AccountKey,
    ) -> Result<Joined> {
        let host = HostKey {
            name: login.host_name,
            id: login.host_id,
        };
        let persistent = self.members.persistent();
        persistent.join(session, (host, login.map_uuid), account)
    }

    /// Writes to the kernel log that a session of `host` ends, and why, as [`Session::loss`] says.
    /// Any context.
    pub(super) fn log_loss(&self, host: &Name, why: Option<Loss>) {
        let words = match why {
            None => Some("the connection was lost"),
            Some(why) => why.words(),
        };
        if let Some(words) = words.filter(|_| self.log_limit.allows()) {
            pr_warn!(
                "export {}: lost host {}: {words}\n",
                self.spec.name.as_str(),
                host.as_str()
            );
        }
    }

    /// Returns true if the map that logs in was evicted: it has to hear so, also if its
    /// host may not log in. May sleep.
    pub(super) fn has_evicted(&self, login: &Login) -> bool {
        self.members.have_evicted(login)
    }

    /// Lets `session` use the export as a path of its map, or says why not.
    ///
    /// `writes` is the result of [`Export::check`]: if that has changed meanwhile, the login is
    /// refused and the client tries again. When this returns, the sessions that the login
    /// supersedes have ended: those of an older epoch of the path, and of an earlier life of the
    /// map or of its host. Runs on the workqueue of the session. May sleep, as long as the backing
    /// device takes.
    pub(crate) fn attach(
        self: &Arc<Self>,
        session: &Arc<Session>,
        port: &Name,
        login: &Login,
        writes: bool,
    ) -> Result<Granted, Refused> {
        let mut order = (self.opening, self.members.admitted());
        // When the first wait for memory began: there may be several.
        let mut since = None;
        let host = HostKey {
            name: login.host_name,
            id: login.host_id,
        };
        loop {
            let proven = session.proven();
            let admit = || match self.check(port, login, proven.as_deref()) {
                Ok(now) if now != writes => Err(Refused::new(
                    Refusal::Internal,
                    format_args!("what {} may do changes just now", login.host_name),
                )),
                // Before a map that is away loses its place. One that resumes is judged first.
                Ok(false) if login.resume.is_none() && self.is_foreign(&host) => {
                    Err(Scrub::foreign())
                }
                checked => checked,
            };
            let past = match self.members.login(session, login, order, admit)? {
                Outcome::Granted(granted) => {
                    let answer = self.take_memory(&host, writes);
                    if matches!(answer, Answer::Taken) {
                        return Ok(granted);
                    }
                    // Nobody has the export until its memory is overwritten.
                    self.members.withdraw(session);
                    if matches!(answer, Answer::Foreign) {
                        return Err(Scrub::foreign());
                    }
                    self.await_scrub(session, *since.get_or_insert_with(Instant::now))?;
                    order = (self.opening, self.members.admitted());
                    continue;
                }
                Outcome::RetryAfter(past) => past,
            };
            while !past.is_over(SUPERSEDE_MS) && !session.is_lost() {}
            // The client has given up, or the server ends the session. A login that is judged again
            // must not register a map that has left meanwhile.
            if session.is_lost() {
                return Err(Refusal::Superseded.into());
            }
        }
    }

    /// Returns true if no host may find what another one wrote to memory.
    fn scrubs(&self) -> bool {
        self.spec.scrub && self.spec.max_clients == 1
    }

    /// Returns true if a host must not read the memory before it is overwritten. May sleep.
    fn is_foreign(&self, host: &HostKey) -> bool {
        self.scrubs() && self.scrub.is_foreign(host)
    }

    /// Gives a host that is let in the memory, or begins to overwrite it for this host. May sleep.
    fn take_memory(self: &Arc<Self>, host: &HostKey, writes: bool) -> Answer {
        let Backend::Ram(ram) = &self.backend else {
            return Answer::Taken;
        };
        let answer = self.scrub.take(ram, host, writes, self.scrubs());
        if matches!(answer, Answer::Wait(true)) {
            let _ = self.closer.enqueue::<Arc<Self>, SCRUB>(self.clone());
        }
        answer
    }

    /// Waits for a moment after `since` until the memory is overwritten, and fails if that takes
    /// longer, or if the session is to end. Sleeps.
    fn await_scrub(&self, session: &Session, since: Instant<Monotonic>) -> Result<(), Refused> {
        let Backend::Ram(ram) = &self.backend else {
            return Ok(());
        };
        while self.scrub.is_running() {
            let ends = session.is_lost() || session.is_draining() || self.is_closing();
            if ends || since.elapsed() > SCRUB_WAIT {
                return Err(self.scrub.busy(ram));
            }
            fsleep(SCRUB_LOOK);
        }
        match session.is_lost() {
            true => Err(Refusal::Superseded.into()),
            false => Ok(()),
        }
    }

    /// Releases the export. The queue pairs and memory regions of `session` must be gone; `leaving`
    /// if its client said that the map goes away. May sleep.
    pub(crate) fn detach(&self, session: &Session, leaving: bool) {
        self.members.left(session, leaving);
    }

    /// Notes that the client of `session` goes on: it may have been told that it is not remembered.
    /// May sleep.
    pub(crate) fn confirm(&self, session: &Session) {
        self.members.confirm(session);
    }

    /// Fences a path of `session`'s map: returns true if nothing that was sent on it up to an epoch
    /// can reach the export any more. Otherwise the session of the path is told to end, and
    /// `session` is notified when it has ended, and has to ask again. May sleep.
    pub(crate) fn fence(&self, session: &Session, fence: Fence) -> bool {
        let done = self.members.fence(session, fence);
        if done {
            self.stats.fences.count();
        }
        done
    }

    /// Looks after the export and its clients for as long as the result lives. May sleep.
    pub(crate) fn monitor(self: &Arc<Self>) -> Result<PeriodicWork<ExportMonitor>> {
        PeriodicWork::new(ExportMonitor(self.clone()), LOOK_MS)
    }

    /// Shows the counters of the export in debugfs for as long as the result lives, if its contents
    /// are a block device: I/O to memory does not pass the server. May sleep.
    pub(crate) fn files(&self, exports: &Exports) -> Result<Option<Pin<KBox<stats::ExportFiles>>>> {
        match &self.backend {
            Backend::Ram(_) => Ok(None),
            Backend::Block(block) => {
                stats::ExportFiles::new(&exports.dir, &self.spec.name, &block.stats).map(Some)
            }
        }
    }

    /// Refuses further logins, lets the commands that have begun be answered, flushes the backing
    /// device, tells the clients that, and ends all sessions: no acknowledged write depends on the
    /// device's cache afterwards, or the clients will hear of it.
    ///
    /// May sleep, as long as the backing device takes, unless the task is killed: then this fails
    /// with `EINTR`, a work item goes on, and another call waits for it.
    pub(crate) fn close(self: &Arc<Self>) -> Result<(), Failure> {
        if self.closing.xchg(1, Full) == 0 {
            let _ = self.closer.enqueue::<Arc<Self>, 0>(self.clone());
        }
        self.closed.wait_killable().map_err(|killed| {
            fail!(
                killed,
                "killed while the device is busy; no I/O begins any more; write 0 to wait"
            )
        })
    }

    /// Returns true if [`Export::close`] was called. Any context.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed) != 0
    }

    /// Returns why nobody can use the export, if so: its device was removed, or has no room at the
    /// moment. Any context.
    pub(crate) fn unavailable(&self) -> Option<&'static str> {
        match &self.backend {
            Backend::Ram(_) => None,
            Backend::Block(block) => block.unavailable(),
        }
    }

    /// Returns the number of maps that have a path at the moment. May sleep.
    pub(crate) fn clients(&self) -> usize {
        self.members.count(None)
    }

    /// Returns the number of maps that have no path and may come back. May sleep.
    pub(crate) fn clients_away(&self) -> usize {
        self.members.count_away()
    }

    /// Returns the number of maps of one host that have a path. May sleep.
    pub(crate) fn clients_of(&self, host: &Name) -> usize {
        self.members.count(Some(host))
    }

    /// Returns what a host is told when it lists exports; `None` if it could not log in. May sleep.
    pub(crate) fn entry(
        &self,
        port: &Name,
        request: &ListRequest,
        proven: Option<&Psk>,
    ) -> Option<ListEntry> {
        let access = self
            .admit(port, (&request.host_name, &request.host_id), proven)
            .ok()?;
        Some(ListEntry {
            name: self.spec.name,
            uuid: self.spec.uuid,
            size: match self.unavailable() {
                Some(_) => 0,
                None => self.backend.extent().size,
            },
            kind: self.backend.kind(),
            access,
            clients: u16::try_from(self.clients()).unwrap_or(u16::MAX),
            max_clients: self.spec.max_clients,
        })
    }
}

impl WorkItem<SCRUB> for Export {
    type Pointer = Arc<Self>;

    /// Overwrites the memory. An export that is closed does that anyway.
    fn run(this: Arc<Self>) {
        if let Backend::Ram(ram) = &this.backend {
            this.scrub.run(ram, || !this.is_closing());
        }
    }
}

impl WorkItem for Export {
    type Pointer = Arc<Self>;

    /// Closes the export.
    fn run(this: Arc<Self>) {
        this.members.close(|| match this.backend.close() {
            true => Dismissal::Flushed,
            false => Dismissal::Unflushed,
        });
        this.backend.clear();
        let closed = this.closed.clone();
        // The task that waits releases the backing device: this must not be the last reference.
        drop(this);
        closed.complete_all();
    }
}

/// Returns what a host is told that may not use an export, or not learn whether there is one.
pub(super) fn not_admitted(host: &Name, export: &Name) -> Refused {
    Refused::new(
        Refusal::NotAdmitted,
        format_args!("host {host} is not admitted to {export}"),
    )
}
