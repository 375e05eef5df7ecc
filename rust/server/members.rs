// SPDX-License-Identifier: GPL-2.0

//! The maps that are registered with an export, and their sessions: performs what
//! [`Reservation`] decides.

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
use crate::link::channel::Linked;
use crate::proto;
use crate::proto::{
    Fence,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::server::{
    backend::Contents,
    session::Session,
    stats, //
};
use crate::session::{
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
    Tenure, //
};

/// A host, as the administrator of an export tells hosts apart: an entry below `hosts/` is for a name, and
/// may be for one id alone. Who shows the id of another host under a name of its own is another host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostKey {
    /// The name that it shows.
    pub(crate) name: Name,
    /// The id that it shows.
    pub(crate) id: Uuid,
}

/// How a login goes on.
pub(super) enum Entry {
    /// The map is registered, and the path is up.
    In(Granted),
    /// This session, which was told to end, has to be over first.
    After(Arc<Session>),
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
        // Cannot fail: `Members::login` made room.
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
    /// Those of all registrations that are up, or still hold something.
    sessions: KVVec<Arc<Session>>,
    /// Those that run; there is room for one of each registration.
    leases: KVVec<Lease>,
    /// What was exported last.
    contents: Option<Contents>,
    /// Nobody was registered since the contents changed.
    changed: bool,
}

impl Inner {
    /// Has the machine decide something, and performs the actions.
    fn perform<R>(
        &mut self,
        stats: &stats::Server,
        decide: impl FnOnce(&mut Reservation<List>, &[Arc<Session>], &mut dyn FnMut(Action)) -> R,
    ) -> R {
        let (sessions, leases) = (&self.sessions, &mut self.leases);
        let find = |id| sessions.iter().find(|session| session.id() == id);
        decide(&mut self.machine, sessions, &mut |action| match action {
            Action::End(id) => {
                if let Some(session) = find(id) {
                    session.lose();
                }
            }
            Action::Retry(id) => {
                if let Some(session) = find(id) {
                    Session::notify(session);
                }
            }
            Action::Arm(number, ms) => {
                leases.retain(|lease| lease.number != number);
                // Cannot fail: `Members::login` made room for one of each registration.
                let _ = leases.push_within_capacity(Lease {
                    number,
                    since: Instant::now(),
                    ms,
                });
            }
            Action::Disarm(number) => leases.retain(|lease| lease.number != number),
            Action::CountTakeover => stats.takeovers.count(),
            Action::CountEviction => stats.evictions.count(),
            Action::CountSilence => stats.heartbeats_missed.count(),
        })
    }

    fn session(&self, id: u64) -> Option<Arc<Session>> {
        let found = self.sessions.iter().find(|session| session.id() == id);
        found.cloned()
    }

    /// Tells the machine which leases are over.
    fn lapse(&mut self) {
        for lease in self.leases.iter().filter(|lease| lease.is_over()) {
            self.machine.lapse(lease.number);
        }
    }

    /// Makes room for one more registration with one more session: nothing may fail once it is let in.
    fn reserve(&mut self) -> Result {
        self.machine.list_mut().0.reserve(1, GFP_KERNEL)?;
        self.sessions.reserve(1, GFP_KERNEL)?;
        let registrations = self.machine.registrations().len().saturating_add(1);
        let more = registrations.saturating_sub(self.leases.len());
        Ok(self.leases.reserve(more, GFP_KERNEL)?)
    }

    /// The words for an export that as many maps have as it takes.
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

/// The maps that are registered with an export. It lasts as long as the export has a directory.
#[pin_data]
pub(crate) struct Members {
    stats: Arc<stats::Server>,
    #[pin]
    inner: Mutex<Inner>,
}

impl Members {
    /// Nobody was registered yet, as far as this server knows.
    pub(crate) fn new(stats: Arc<stats::Server>) -> Result<Arc<Self>> {
        let inner = Inner {
            machine: Reservation::new(List(KVVec::new())),
            sessions: KVVec::new(),
            leases: KVVec::new(),
            contents: None,
            changed: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                stats,
                inner <- new_mutex!(inner, "Members::inner"),
            }),
            GFP_KERNEL,
        )
    }

    /// The export is enabled. Returns the number that its logins have to show. May sleep.
    pub(super) fn open(&self, contents: Contents, terms: Terms) -> u64 {
        let mut inner = self.inner.lock();
        let past = inner.contents.as_ref();
        let same = past.is_none_or(|past| contents.is_same(past));
        inner.contents = Some(contents);
        inner.changed |= !same;
        inner.machine.open(terms, same, fresh())
    }

    /// The key of the map that the export is reserved for, as far as this server knows. May sleep.
    pub(crate) fn holder(&self) -> Option<Tenure> {
        self.inner.lock().machine.holder()
    }

    /// Says which key the export is reserved for. May sleep.
    pub(crate) fn restore(&self, holder: Option<Tenure>) {
        self.inner.lock().machine.restore(holder);
    }

    /// How many registrations there were so far. May sleep.
    pub(super) fn admitted(&self) -> u64 {
        self.inner.lock().machine.admitted()
    }

    /// Lets a path of a map in, or tells what has to end for that; `order` as for [`Reservation::login`].
    /// `admit` says, with the lock held, whether the path may write. May sleep.
    pub(super) fn login(
        &self,
        session: &Arc<Session>,
        login: &proto::Login,
        order: (u64, u64),
        admit: impl FnOnce() -> Result<bool, Refused>,
    ) -> Result<Entry, Refused> {
        let mut inner = self.inner.lock();
        // What the administrator says changes first, and then what is in by then ends: nothing may come
        // in after that as if it had not changed.
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
        let decision = inner.perform(&self.stats, |machine, _, mut act| {
            machine.login(&login, order, writes, fresh(), &mut act)
        });
        match decision {
            Decision::Grant(granted) => {
                inner.changed = false;
                // Cannot fail: there is room.
                let _ = inner.sessions.push_within_capacity(session.clone());
                Ok(Entry::In(granted))
            }
            Decision::After(past) => match inner.session(past) {
                Some(past) => Ok(Entry::After(past)),
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

    /// Nothing of a session is there any more; `leaving` if the client said that the map goes. May sleep.
    pub(super) fn left(&self, session: &Session, leaving: bool) {
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, |machine, _, mut act| {
            machine.left(session.id(), leaving, &mut act)
        });
        inner.sessions.retain(|other| other.id() != session.id());
    }

    /// As [`Reservation::fence`]. May sleep.
    pub(super) fn fence(&self, session: &Session, fence: Fence) -> bool {
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, |machine, _, mut act| {
            machine.fence(session.id(), fence.path, fence.epoch, &mut act)
        })
    }

    /// Ends the sessions of clients from which nothing was heard for too long. Once in
    /// [`LOOK_MS`](crate::session::reservation::LOOK_MS). May sleep.
    pub(super) fn look(&self) {
        let mut inner = self.inner.lock();
        inner.lapse();
        inner.perform(&self.stats, |machine, sessions, mut act| {
            let heard = |id| {
                let session = sessions.iter().find(|session| session.id() == id);
                session.map_or(0, |session| session.heard())
            };
            machine.look(heard, &mut act)
        });
    }

    /// Ends what does not fit to what the administrator says now, and waits until nothing of it reaches
    /// the export any more. Not from the workqueue of a session. May sleep, as long as the backing takes.
    pub(crate) fn enforce(&self, rule: impl Fn(&HostKey) -> Admission) {
        loop {
            let past = {
                let mut inner = self.inner.lock();
                let past = inner.perform(&self.stats, |machine, _, mut act| {
                    machine.enforce(&rule, fresh(), &mut act)
                });
                past.and_then(|past| inner.session(past))
            };
            match past {
                Some(session) => session.end(),
                None => return,
            }
        }
    }

    /// Visits the sessions. May sleep.
    pub(super) fn for_each(&self, visit: impl FnMut(&Arc<Session>)) {
        self.inner.lock().sessions.iter().for_each(visit);
    }

    /// Admits no more, lets the commands that have begun be answered, and ends all sessions. May sleep, as
    /// long as the backing takes.
    pub(super) fn close(&self) {
        {
            let mut inner = self.inner.lock();
            inner.machine.close();
            inner.sessions.iter().for_each(Session::drain);
        }
        loop {
            let session = self.inner.lock().sessions.first().cloned();
            match session {
                Some(session) => session.retire(),
                None => break,
            }
        }
        let mut inner = self.inner.lock();
        inner.perform(&self.stats, |machine, _, mut act| machine.closed(&mut act));
    }

    /// How many have a path, of those whose host has this name, if one is given. May sleep.
    pub(super) fn count(&self, host: Option<&Name>) -> usize {
        let inner = self.inner.lock();
        inner
            .machine
            .count(|key| host.is_none_or(|host| key.name == *host))
    }

    /// How many have no path, and a place that nobody else may take yet. May sleep.
    pub(super) fn count_away(&self) -> usize {
        let mut inner = self.inner.lock();
        inner.lapse();
        inner.machine.count_away()
    }

    /// Returns whether a map of a host is registered. May sleep.
    pub(crate) fn has(&self, host: &Name) -> bool {
        let inner = self.inner.lock();
        let mut all = inner.machine.registrations().iter();
        all.any(|one| one.host().name == *host)
    }
}

/// A key that was never used; not 0, and not that of shared exports.
fn fresh() -> Tenure {
    sync::random_u64() | 2
}
