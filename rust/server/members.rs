// SPDX-License-Identifier: GPL-2.0

//! The maps that are registered with an export, and their sessions: performs what [`Reservation`]
//! decides.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::sync;
use crate::link::{
    channel::Linked,
    failure::{
        fail,
        Failure, //
    },
    keys::Psk,
};
use crate::proto;
use crate::proto::{
    Fence,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::server::{
    backend::ContentsId,
    loss::Loss,
    persistent::Reservations,
    session::{
        Dismissal,
        Session, //
    },
    stats, //
};
use crate::session::{
    persistent::Type,
    reservation::{
        Action,
        Admission,
        Decision,
        Granted,
        Login,
        Reason,
        Registration,
        Registrations,
        Reservation,
        Terms, //
    },
    ReservationKey, //
};

/// A host, as the administrator of an export tells hosts apart: an entry below `hosts/` is for a
/// name, and may be for one id alone. The same id under another name is another host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostKey {
    /// The name that the host sends.
    pub(crate) name: Name,
    /// The id that the host sends.
    pub(crate) id: Uuid,
}

/// The outcome of a login.
pub(super) enum Outcome {
    /// The map is registered, and the path is up.
    Granted(Granted),
    /// The login has to be repeated when this session, which was told to end, is over.
    RetryAfter(Arc<Session>),
}

/// The registrations, in memory that may be large.
struct List(KVVec<Registration<HostKey>>);

impl Registrations for List {
    type Host = HostKey;

    fn all(&self) -> &[Registration<HostKey>] {
        &self.0
    }

    fn all_mut(&mut self) -> &mut [Registration<HostKey>] {
        &mut self.0
    }

    fn push(&mut self, registration: Registration<HostKey>) {
        // Cannot fail: `Inner::reserve` reserved the capacity.
        let _ = self.0.push_within_capacity(registration);
    }

    fn remove(&mut self, at: usize) {
        let _ = self.0.remove(at);
    }
}

/// The lease of a registration that has no path.
struct Lease {
    number: u64,
    since: Instant<Monotonic>,
    ms: u32,
}

impl Lease {
    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0)
    }

    fn is_over(&self) -> bool {
        self.elapsed_ms() > u64::from(self.ms)
    }
}

struct Inner {
    machine: Reservation<List>,
    /// The sessions of all registrations that are up, or still hold something, in the order of
    /// their numbers: each is looked for in every [`Members::check`].
    sessions: KVVec<Arc<Session>>,
    /// The leases that run. There is capacity for one of each registration.
    leases: KVVec<Lease>,
    /// The identity of the contents that were exported last.
    contents: Option<ContentsId>,
    /// No map was registered since the contents changed.
    changed: bool,
}

impl Inner {
    /// Lets the machine decide, and performs its actions; `why` is why it ends sessions.
    fn perform<R>(
        &mut self,
        stats: &stats::Server,
        why: Loss,
        decide: impl FnOnce(&mut Reservation<List>, &[Arc<Session>], &mut dyn FnMut(Action)) -> R,
    ) -> R {
        let (sessions, leases) = (&self.sessions, &mut self.leases);
        let find = |id| find(sessions, id);
        decide(&mut self.machine, sessions, &mut |action| match action {
            Action::End(id) => {
                if let Some(session) = find(id) {
                    session.end(why);
                }
            }
            Action::Retry(id) => {
                if let Some(session) = find(id) {
                    Session::notify(session);
                }
            }
            Action::Arm(number, ms) => {
                leases.retain(|lease| lease.number != number);
                // Cannot fail: `Inner::reserve` reserved the capacity for one of each registration.
                let _ = leases.push_within_capacity(Lease {
                    number,
                    since: Instant::now(),
                    ms,
                });
            }
            Action::Disarm(number) => leases.retain(|lease| lease.number != number),
            Action::CountTakeover => stats.takeovers.count(),
            Action::CountEviction => stats.evictions.count(),
            Action::CountKeepAliveTimeout => stats.heartbeats_missed.count(),
        })
    }

    fn session(&self, id: u64) -> Option<Arc<Session>> {
        find(&self.sessions, id).cloned()
    }

    /// Reports to the machine which leases are over.
    fn lapse(&mut self) {
        for lease in self.leases.iter().filter(|lease| lease.is_over()) {
            self.machine.lapse(lease.number);
        }
    }

    /// Reserves capacity for one more registration with one more session: nothing may fail once the
    /// machine has admitted it.
    fn reserve(&mut self) -> Result {
        self.machine.list_mut().0.reserve(1, GFP_KERNEL)?;
        self.sessions.reserve(1, GFP_KERNEL)?;
        let registrations = self.machine.registrations().len().saturating_add(1);
        let more = registrations.saturating_sub(self.leases.len());
        Ok(self.leases.reserve(more, GFP_KERNEL)?)
    }

    /// Returns the refusal of an export that has `max_clients` maps; registration `number` was
    /// first.
    fn busy(&self, number: u64) -> Refused {
        let mut all = self.machine.registrations().iter();
        let Some(first) = all.find(|one| one.number() == number) else {
            return Refusal::Busy.into();
        };
        let host = &first.host().name;
        match self.leases.iter().find(|lease| lease.number == number) {
            None => Refused::new(Refusal::Busy, format_args!("in use by {host}")),
            Some(lease) => Refused::new(
                Refusal::Busy,
                format_args!(
                    "in use by {host}, away for {} s of {} s",
                    lease.elapsed_ms() / 1000,
                    lease.ms / 1000
                ),
            ),
        }
    }
}

/// The maps that are registered with an export. Lives as long as the export has a directory.
#[pin_data]
pub(crate) struct Members {
    stats: Arc<stats::Server>,
    /// By which maps fence each other.
    persistent: Arc<Reservations>,
    #[pin]
    inner: Mutex<Inner>,
}

impl Members {
    /// Makes the list of an export that no map was ever registered with, as far as this server
    /// knows.
    pub(crate) fn new(stats: Arc<stats::Server>) -> Result<Arc<Self>> {
        let inner = Inner {
            machine: Reservation::new(List(KVVec::new())),
            sessions: KVVec::new(),
            leases: KVVec::new(),
            contents: None,
            changed: false,
        };
        Arc::pin_init(
            try_pin_init!(Self {
                stats,
                persistent: Reservations::new()?,
                inner <- new_mutex!(inner, "Members::inner"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins to admit logins. Returns the number that they have to show. May sleep.
    pub(super) fn open(&self, contents: ContentsId, terms: Terms) -> u64 {
        let mut inner = self.inner.lock();
        let past = inner.contents.as_ref();
        let same = past.is_none_or(|past| contents.is_same(past));
        inner.contents = Some(contents);
        inner.changed |= !same;
        if !same {
            self.persistent.forget();
        }
        inner.machine.open(terms, same, fresh())
    }

    /// Returns the persistent reservations.
    pub(super) fn persistent(&self) -> &Arc<Reservations> {
        &self.persistent
    }

    /// Returns the key of the map that the export is reserved for, as far as this server knows. May
    /// sleep.
    pub(crate) fn holder(&self) -> Option<ReservationKey> {
        self.inner.lock().machine.holder()
    }

    /// Sets the key that the export is reserved for. May sleep.
    pub(crate) fn restore(&self, holder: Option<ReservationKey>) {
        self.inner.lock().machine.restore(holder);
    }

    /// Returns true if the map that logs in was evicted. May sleep.
    pub(super) fn have_evicted(&self, login: &proto::Login) -> bool {
        let host = HostKey {
            name: login.host_name,
            id: login.host_id,
        };
        let inner = self.inner.lock();
        inner
            .machine
            .has_evicted(&host, login.boot, login.incarnation)
    }

    /// Returns the number of registrations so far. May sleep.
    pub(super) fn admitted(&self) -> u64 {
        self.inner.lock().machine.admitted()
    }

    /// Admits a path of a map, or tells which session has to end first; `order` is that of
    /// [`Reservation::login`]. `admit` says, with the lock held, whether the path may write. May
    /// sleep.
    pub(super) fn login(
        &self,
        session: &Arc<Session>,
        login: &proto::Login,
        order: (u64, u64),
        admit: impl FnOnce() -> Result<bool, Refused>,
    ) -> Result<Outcome, Refused> {
        let mut inner = self.inner.lock();
        // An administrator changes the rule first and then ends the sessions that it does not
        // allow. So the rule is read under the lock: no session that it does not allow can come in
        // after that.
        let writes = admit()?;
        inner
            .reserve()
            .map_err(|_| Refused::from(Refusal::NoMemory))?;
        inner.lapse();
        let login = Login {
            session: session.id(),
            host: HostKey {
                name: login.host_name,
                id: login.host_id,
            },
            map: u128::from_be_bytes(*login.map_uuid.as_bytes()),
            boot: login.boot,
            incarnation: login.incarnation,
            resume: login.resume,
            path: login.path,
            epoch: login.epoch,
            writes: login.access.writes(),
            no_path_timeout_ms: login.no_path_timeout_ms,
            heartbeat_ms: login.heartbeat_ms,
            heard: session.heard(),
        };
        let decision = inner.perform(&self.stats, Loss::Replaced, |machine, _, mut act| {
            machine.login(&login, order, writes, fresh(), &mut act)
        });
        match decision {
            Decision::Grant(granted) => {
                inner.changed = false;
                // Cannot fail: the capacity was reserved above.
                let _ = inner.sessions.push_within_capacity(session.clone());
                let before = |other: &Arc<Session>| other.id() < session.id();
                let at = inner.sessions.partition_point(before);
                if let Some(behind) = inner.sessions.get_mut(at..) {
                    behind.rotate_right(1);
                }
                Ok(Outcome::Granted(granted))
            }
            Decision::After(past) => match inner.session(past) {
                Some(past) => Ok(Outcome::RetryAfter(past)),
                None => Err(Refusal::Internal.into()),
            },
            Decision::Refuse(Reason::Closed) => Err(Refusal::ExportDisabled.into()),
            Decision::Refuse(Reason::Superseded) => Err(Refusal::Superseded.into()),
            Decision::Refuse(Reason::Evicted) if inner.changed => Err(Refused::new(
                Refusal::Evicted,
                format_args!("what is exported is another device since"),
            )),
            Decision::Refuse(Reason::Evicted) => Err(Refusal::Evicted.into()),
            Decision::Refuse(Reason::Busy(number)) => Err(inner.busy(number)),
        }
    }

    /// Removes a session that holds nothing of the export any more; `leaving` if its client said
    /// that the map goes away. May sleep.
    pub(super) fn left(&self, session: &Session, leaving: bool) {
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, Loss::Replaced, |machine, _, mut act| {
            machine.left(session.id(), leaving, &mut act)
        });
        inner.sessions.retain(|other| other.id() != session.id());
    }

    /// Takes back what a login of `session` was granted, like [`Reservation::withdraw`]. May sleep.
    pub(super) fn withdraw(&self, session: &Session) {
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, Loss::Replaced, |machine, _, mut act| {
            machine.withdraw(session.id(), &mut act)
        });
        inner.sessions.retain(|other| other.id() != session.id());
    }

    /// Notes what [`Reservation::confirm`] does. May sleep.
    pub(super) fn confirm(&self, session: &Session) {
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, Loss::Replaced, |machine, _, mut act| {
            machine.confirm(session.id(), &mut act)
        });
    }

    /// Fences a path like [`Reservation::fence`]. May sleep.
    pub(super) fn fence(&self, session: &Session, fence: Fence) -> bool {
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, Loss::Replaced, |machine, _, mut act| {
            machine.fence(session.id(), fence.path, fence.epoch, &mut act)
        })
    }

    /// Ends the sessions of clients whose keep-alive timeout has expired. Called once in
    /// [`LOOK_MS`](crate::session::reservation::LOOK_MS). May sleep.
    pub(super) fn check(&self) {
        let mut inner = self.inner.lock();
        inner.lapse();
        inner.perform(&self.stats, Loss::Silent, |machine, sessions, mut act| {
            let heard = |id| find(sessions, id).map_or(0, |session| session.heard());
            machine.look(heard, &mut act)
        });
    }

    /// Ends the sessions that `rule` does not allow, evicts the maps of hosts that it does not
    /// admit, and removes their persistent reservations. Returns one of the sessions that are still
    /// to end, among them those of maps that were evicted before. Does not wait for their end; may
    /// sleep.
    pub(crate) fn end_sessions(
        &self,
        rule: impl Fn(&HostKey) -> Admission,
    ) -> Option<Arc<Session>> {
        let mut inner = self.inner.lock();
        let past = inner.perform(&self.stats, Loss::Denied, |machine, _, mut act| {
            machine.enforce(&rule, fresh(), &mut act)
        });
        // With the lock held: a map that logs in after that is one that is admitted, and what it
        // reserves is its own.
        self.persistent
            .withdraw(|host| rule(host) != Admission::None);
        past.and_then(|past| inner.session(past))
    }

    /// Ends the sessions that `rule` does not allow, and waits until nothing of them, nor of the
    /// maps that were evicted before, can reach the export any more. Logins must have to keep to
    /// `rule` already, or it would not end.
    ///
    /// Must not be called from the workqueue of a session. May sleep, as long as the backing device
    /// takes, unless the task is killed: then this fails with `EINTR`, the sessions go on ending,
    /// and another call waits for them.
    pub(crate) fn enforce(&self, rule: impl Fn(&HostKey) -> Admission) -> Result<(), Failure> {
        while let Some(session) = self.end_sessions(&rule) {
            session.wait_over().map_err(|killed| {
                fail!(
                    killed,
                    "killed while the device is busy; its I/O may still land; write again to wait"
                )
            })?;
        }
        Ok(())
    }

    /// Ends the sessions of hosts for which `proves` says that the key which they have proved is
    /// not enough any more. Their maps keep their places, and may come back with another key. Waits
    /// as [`Members::enforce`] does.
    pub(crate) fn end_unproven(
        &self,
        proves: impl Fn(&Name, Option<&Psk>) -> bool,
    ) -> Result<(), Failure> {
        while let Some(session) = self.find_unproven(&proves) {
            session.wait_over().map_err(|killed| {
                fail!(
                    killed,
                    "killed while the device is busy; its I/O may still land; write again to wait"
                )
            })?;
        }
        Ok(())
    }

    /// Tells all of these sessions to end, and returns one of them.
    fn find_unproven(&self, proves: impl Fn(&Name, Option<&Psk>) -> bool) -> Option<Arc<Session>> {
        let inner = self.inner.lock();
        let mut found = None;
        for registration in inner.machine.registrations() {
            let host = &registration.host().name;
            let sessions = registration.sessions().filter_map(|id| inner.session(id));
            for session in sessions.filter(|session| !proves(host, session.proven().as_deref())) {
                session.end(Loss::Denied);
                found = Some(session);
            }
        }
        found
    }

    /// Visits the sessions. May sleep.
    pub(super) fn for_each(&self, visit: impl FnMut(&Arc<Session>)) {
        self.inner.lock().sessions.iter().for_each(visit);
    }

    /// Refuses further logins, lets the commands that have begun be answered, flushes with `flush`,
    /// which tells how that went, and ends all sessions. May sleep, as long as the backing device
    /// takes.
    pub(super) fn close(&self, flush: impl FnOnce() -> Dismissal) {
        self.inner.lock().machine.close();
        // No session is added any more, and one that ends has drained.
        loop {
            self.for_each(Session::drain);
            match self.find(|session| !session.is_drained()) {
                Some(session) => session.await_drained(),
                None => break,
            }
        }
        let how = flush();
        self.for_each(|session| session.dismiss(how));
        while let Some(session) = self.find(|_| true) {
            session.await_end();
        }
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, Loss::Replaced, |machine, _, mut act| {
            machine.closed(&mut act)
        });
    }

    fn find(&self, which: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        let inner = self.inner.lock();
        inner.sessions.iter().find(|one| which(one)).cloned()
    }

    /// Returns the number of maps that have a path; of one host if `host` is given. May sleep.
    pub(super) fn count(&self, host: Option<&Name>) -> usize {
        let inner = self.inner.lock();
        inner
            .machine
            .count(|key| host.is_none_or(|host| key.name == *host))
    }

    /// Returns the number of maps that have no path and whose lease is not over. May sleep.
    pub(super) fn count_away(&self) -> usize {
        let mut inner = self.inner.lock();
        inner.lapse();
        inner.machine.count_away()
    }

    /// Returns whether a map of a host is registered, or has a persistent registration. May sleep.
    pub(crate) fn has(&self, host: &Name) -> bool {
        let inner = self.inner.lock();
        let mut all = inner.machine.registrations().iter();
        let mut found = all.any(|one| one.host().name == *host);
        self.for_each_registrant(|name, _, _| found |= name == host);
        found
    }

    /// Visits the registrants of the persistent reservations, as
    /// [`Reservations::for_each_registrant`] does. May sleep.
    pub(crate) fn for_each_registrant(&self, visit: impl FnMut(&Name, u64, Option<Type>)) {
        self.persistent.for_each_registrant(visit);
    }

    /// Removes all persistent registrations, as [`Reservations::clear`] does. May sleep.
    pub(crate) fn clear_registrants(&self, force: bool) -> Result {
        self.persistent.clear(force)
    }
}

/// Returns a key that was never used; neither 0 nor the key of shared exports.
fn fresh() -> ReservationKey {
    sync::random_u64() | 2
}

/// Returns the session with a number, of those that are in the order of their numbers.
fn find(sessions: &[Arc<Session>], id: u64) -> Option<&Arc<Session>> {
    let at = sessions.binary_search_by_key(&id, |session| session.id());
    sessions.get(at.ok()?)
}
