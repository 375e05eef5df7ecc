// SPDX-License-Identifier: GPL-2.0

//! The server's side of sessions: which maps are registered with an export, which of them it is
//! reserved for, and which epochs of their paths are over.
//!
//! A *registration* is what one map has at an export: its paths, and a place among `max_clients`.
//! Its *key* is what later logins of the map show to resume it. A map that has lost its last path
//! is *away*; its *lease* says for how long it keeps its place then. An export that one map at a
//! time may have is *reserved* for the key that was registered last. As with SCSI persistent
//! reservations, another key that comes back afterwards was preempted: its map is evicted.
//!
//! [`Reservation`] decides; it knows sessions by their number only. The code around it reports what
//! happened, performs each [`Action`], and asks again when a session that was in the way is over.

#![forbid(unsafe_code)]

mod action;
mod barred;
mod lease;
mod login;
mod registration;

pub use action::{Action, Admission};
pub use lease::{lease_ms, LEASE_MAX_MS, LEASE_MIN_MS};
pub use login::{Decision, Granted, Login, Reason, SessionId};
pub use registration::{Registration, Registrations, LOOK_MS};

use core::mem;

use super::{clock::Lease, Epoch, PathId, ReservationKey};
use barred::Barred;
use login::Life;
use registration::{Leaving, Up};

/// The key of all registrations with an export that several maps may have at a time.
const SHARED: ReservationKey = 1;

/// What an export is enabled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Maps that may be registered at a time. If that is one, the export is reserved for it. Else
    /// the export is shared: a login never evicts another map, and every map may resume its
    /// session.
    pub max_clients: u16,
    /// The longest lease to grant, in ms.
    pub lease_max_ms: u32,
}

/// The registrations of an export, and the key that it is reserved for, which survives disabling
/// the export.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reservation<L: Registrations> {
    /// `None` while the export is not enabled.
    terms: Option<Terms>,
    /// How often the export was enabled.
    openings: u64,
    /// The key that was registered last; `None` if the server knows of none since it began.
    holder: Option<ReservationKey>,
    /// The key for which the server took a map's word, and has not heard yet that the map goes on
    /// with it. Until then `holder` is `None`.
    unconfirmed: Option<ReservationKey>,
    /// The life of the map that was registered with it: host, map, boot and incarnation.
    holder_life: Option<Life<L::Host>>,
    /// The key of all maps while several may be registered; `None` as long as the contents stay the
    /// same since the server began: then every key is taken.
    shared_key: Option<ReservationKey>,
    /// Whose maps are not let in although their key fits, or they show none.
    barred: Barred<L::Host>,
    /// How many registrations there were so far.
    admitted: u64,
    list: L,
}

impl<L: Registrations> Reservation<L> {
    /// Returns the reservation of an export that is not enabled, and that no map had as far as this
    /// server knows. The list has to be empty.
    pub const fn new(list: L) -> Self {
        Self {
            terms: None,
            openings: 0,
            holder: None,
            unconfirmed: None,
            holder_life: None,
            shared_key: None,
            barred: Barred::new(),
            admitted: 0,
            list,
        }
    }

    /// Returns the list, so that the caller can make room in it.
    pub fn list_mut(&mut self) -> &mut L {
        &mut self.list
    }

    /// Returns how many registrations there were so far. A login that waits for others to end gives
    /// this number as it was when it came: a map that was registered later does not give way to it.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Returns the key that the export is reserved for, if the server knows of any and only one map
    /// may have it.
    pub fn holder(&self) -> Option<ReservationKey> {
        self.holder
    }

    /// Sets what [`Reservation::holder`] returns: the administrator of a server that began anew
    /// knows what it was before.
    pub fn restore(&mut self, holder: Option<ReservationKey>) {
        self.hold(holder, None);
    }

    /// Returns true if a map of this life of a host was evicted, and was not enabled anew since.
    pub fn has_evicted(&self, host: &L::Host, boot: u64, incarnation: u64) -> bool {
        self.barred.has(host, boot, incarnation)
    }

    /// Notes that the export is enabled, and returns a number that its logins have to show. No map
    /// may resume what it had of other contents (`same` is false), or from before several maps
    /// could write.
    pub fn open(&mut self, terms: Terms, same: bool, fresh: ReservationKey) -> u64 {
        if !same {
            self.shared_key = Some(fresh);
        }
        if !same || terms.max_clients > 1 {
            self.hold(Some(fresh), None);
        }
        self.terms = Some(terms);
        self.openings = self.openings.saturating_add(1);
        self.openings
    }

    /// Decides on a login of a host that is admitted; it was given `opening` by
    /// [`Reservation::open`], and `since` is what [`Reservation::admitted`] was when it came.
    /// `writes` is what it may do, `fresh` a key that was never used.
    pub fn login(
        &mut self,
        login: &Login<L::Host>,
        (opening, since): (u64, u64),
        writes: bool,
        fresh: ReservationKey,
        act: &mut impl FnMut(Action),
    ) -> Decision {
        let Some(terms) = self.terms.filter(|_| opening == self.openings) else {
            return Decision::Refuse(Reason::Closed);
        };
        match self.register(login, &terms, since, fresh, act) {
            Err(decision) => decision,
            Ok(at) => self.open_path(at, login, &terms, writes, act),
        }
    }

    /// Finds or makes the registration of a map. Returns its place.
    fn register(
        &mut self,
        login: &Login<L::Host>,
        terms: &Terms,
        since: u64,
        fresh: ReservationKey,
        act: &mut impl FnMut(Action),
    ) -> Result<usize, Decision> {
        if let Some(at) = self.find_own(login, since, act)? {
            return Ok(at);
        }
        // Also if it resumes nothing: so may the first attempt of a path of a map that was evicted.
        if self.has_evicted(&login.host, login.boot, login.incarnation) {
            return Err(Decision::Refuse(Reason::Evicted));
        }
        let shared = terms.max_clients > 1;
        let known = match login.resume {
            Some(key) if !shared => self.holder.map(|holder| holder == key),
            Some(key) => Some(self.shared_key.is_none_or(|shared| shared == key)),
            None => Some(true),
        };
        if known == Some(false) {
            return Err(Decision::Refuse(Reason::Evicted));
        }
        if self.list.all().len() >= usize::from(terms.max_clients) {
            let lapsed = self.position(|one| one.lease == Lease::Over && one.is_away());
            let Some(lapsed) = lapsed else {
                let first = self.list.all().first().map_or(0, Registration::number);
                return Err(Decision::Refuse(Reason::Busy(first)));
            };
            self.remove(lapsed, act);
            act(Action::CountTakeover);
        }
        // The map has the export, but this path of it does not know the key yet.
        let late = login.resume.is_none() && self.holder_life == Some(login.life());
        let key = match shared {
            true => login.resume.or(self.shared_key).unwrap_or(SHARED),
            false if late => self.holder.or(self.unconfirmed).unwrap_or(fresh),
            false => login.resume.unwrap_or(fresh),
        };
        self.admitted = self.admitted.saturating_add(1);
        let mut new = Registration::new(self.admitted, key, login);
        if !shared {
            new.unknown = login.resume.is_none() && self.holder.is_none();
            let unconfirmed = known.is_none() || late && self.unconfirmed.is_some();
            self.hold(Some(key), Some(login));
            if unconfirmed {
                self.unconfirmed = self.holder.take();
            }
        }
        self.list.push(new);
        Ok(self.list.all().len().saturating_sub(1))
    }

    /// Returns the place of the map that logs in, if it is registered. Removes earlier lives of it
    /// and of its host.
    fn find_own(
        &mut self,
        login: &Login<L::Host>,
        since: u64,
        act: &mut impl FnMut(Action),
    ) -> Result<Option<usize>, Decision> {
        // The kernel of an earlier boot of the host is gone, and its maps with it.
        let past = |one: &Registration<L::Host>| one.host == login.host && one.boot != login.boot;
        while let Some(at) = self.position(past) {
            let older = |one: &&Registration<L::Host>| past(one) && one.number <= since;
            for one in self.list.all().iter().filter(older) {
                one.end_all(act);
            }
            self.replace(at, since, act)?;
        }
        let own = |one: &Registration<L::Host>| one.host == login.host && one.map == login.map;
        let Some(at) = self.position(own) else {
            return Ok(None);
        };
        let Some(one) = self.list.all_mut().get_mut(at) else {
            return Ok(None);
        };
        let own = one.incarnation == login.incarnation && !one.evicted;
        match login.resume {
            // The map had the export from a server that is gone, and a path of it that did not
            // know that yet was the first to come back. As nobody else was known to have the
            // export since, the map judges by its lease, as if this path had been the first.
            Some(key) if own && one.unknown && one.key != key => {
                one.key = key;
                one.unknown = false;
                self.hold(None, Some(login));
                self.unconfirmed = Some(key);
                Ok(Some(at))
            }
            _ if own => Ok(Some(at)),
            Some(_) => Err(Decision::Refuse(Reason::Evicted)),
            // The login is late: the map was disabled and enabled since it was sent.
            None if login.incarnation < one.incarnation => {
                Err(Decision::Refuse(Reason::Superseded))
            }
            // The map was enabled anew. Which life of it is the newer one its incarnation tells, in
            // whatever order their logins waited for an earlier one.
            None => {
                let newer = login.incarnation > one.incarnation;
                let since = if newer { u64::MAX } else { since };
                self.replace(at, since, act).map(|()| None)
            }
        }
    }

    /// Lets a path of a registration come up.
    fn open_path(
        &mut self,
        at: usize,
        login: &Login<L::Host>,
        terms: &Terms,
        writes: bool,
        act: &mut impl FnMut(Action),
    ) -> Decision {
        let unconfirmed = self.unconfirmed;
        let Some(one) = self.list.all_mut().get_mut(at) else {
            return Decision::Refuse(Reason::Closed);
        };
        let silent_max_ms = terms.lease_max_ms;
        let opened = one.open_path(login, silent_max_ms, writes, unconfirmed.is_some(), act);
        if let Err(decision) = opened {
            return decision;
        }
        one.lease_ms = lease_ms(
            login.no_path_timeout_ms,
            login.heartbeat_ms,
            terms.lease_max_ms,
        );
        one.leaving = Leaving::No;
        // A map that has lost the export long ago, and logs in again and again, but never goes on,
        // must not keep out the one that has it.
        if unconfirmed != Some(one.key) {
            one.keep(act);
        }
        Decision::Grant(Granted {
            key: one.key,
            remembered: unconfirmed.is_none(),
            lease_ms: one.lease_ms,
        })
    }

    /// Reserves the export for a key, and for the life of the map that logs in with it.
    fn hold(&mut self, key: Option<ReservationKey>, login: Option<&Login<L::Host>>) {
        self.holder = key;
        self.unconfirmed = None;
        self.holder_life = login.map(Login::life);
    }

    fn position(&self, which: impl Fn(&Registration<L::Host>) -> bool) -> Option<usize> {
        self.list.all().iter().position(which)
    }

    /// Removes a registration in whose place another life of its map or host comes. If it has
    /// paths, these are told to end first.
    fn replace(
        &mut self,
        at: usize,
        since: u64,
        act: &mut impl FnMut(Action),
    ) -> Result<(), Decision> {
        match self.list.all().get(at) {
            Some(one) if one.number > since => return Err(Decision::Refuse(Reason::Superseded)),
            Some(one) => match one.end_all(act) {
                Some(session) => return Err(Decision::After(session)),
                None => self.remove(at, act),
            },
            None => {}
        }
        Ok(())
    }

    /// Removes a registration, and ends its lease: that of a map that is not confirmed may run
    /// although a path is up.
    fn remove(&mut self, at: usize, act: &mut impl FnMut(Action)) {
        if let Some(one) = self.list.all().get(at) {
            act(Action::Disarm(one.number));
            self.list.remove(at);
        }
    }

    /// Notes that a session is over: nothing of it reaches the export any more. `leaving` tells
    /// whether its client has logged out.
    pub fn left(&mut self, session: SessionId, leaving: bool, act: &mut impl FnMut(Action)) {
        let of = |one: &Registration<L::Host>| one.path_of(session).is_some();
        let Some(at) = self.position(of) else {
            return;
        };
        let Some(one) = self.list.all_mut().get_mut(at) else {
            return;
        };
        for path in &mut one.paths {
            path.up = path.up.filter(|up| up.session != session);
        }
        if leaving {
            one.leaving = Leaving::LoggedOut;
        }
        if !one.is_away() {
            // The other sessions of the map may wait for this one to answer a fence.
            one.sessions().for_each(|other| act(Action::Retry(other)));
        } else if one.leaving != Leaving::No || one.evicted {
            self.remove(at, act);
        } else if one.lease == Lease::Kept {
            one.lease = Lease::Running;
            act(Action::Arm(one.number, one.lease_ms));
        }
    }

    /// Takes back the grant of a login, of which the client was not told. If the map has no other
    /// path, it keeps no place; else it goes on, and the same login may come again.
    pub fn withdraw(&mut self, session: SessionId, act: &mut impl FnMut(Action)) {
        let of = |one: &Registration<L::Host>| one.path_of(session).is_some();
        let Some(one) = self.list.all_mut().iter_mut().find(|one| of(one)) else {
            return;
        };
        let mut granted = one.paths.iter_mut();
        let granted = granted.find(|path| path.up.is_some_and(|up| up.session == session));
        if let Some(path) = granted {
            path.floor = path.floor.saturating_sub(1);
        }
        let others = one.sessions().any(|other| other != session);
        self.left(session, !others, act);
    }

    /// Notes that the client of a session goes on. If it was told on this session that it is not
    /// remembered, it was away for less than its lease, and the server remembers it from now on.
    pub fn confirm(&mut self, session: SessionId, act: &mut impl FnMut(Action)) {
        let of = |one: &&mut Registration<L::Host>| one.path_of(session).is_some();
        let Some(one) = self.list.all_mut().iter_mut().find(of) else {
            return;
        };
        let up = one.up_mut().find(|up| up.session == session);
        if up.is_none_or(|up| !mem::take(&mut up.unconfirmed)) {
            return;
        }
        one.keep(act);
        if self.unconfirmed == Some(one.key) {
            self.holder = self.unconfirmed.take();
        }
    }

    /// Notes that the lease of a registration is over: another map may have its place.
    pub fn lapse(&mut self, number: u64) {
        for one in self.list.all_mut() {
            if one.number == number && one.lease == Lease::Running {
                one.lease = Lease::Over;
            }
        }
    }

    /// A session asks that a path of its map be fenced up to an epoch. Returns whether nothing of
    /// the path reaches the export any more. If not, what is in the way was told to end, and
    /// [`Action::Retry`] follows.
    pub fn fence(
        &mut self,
        session: SessionId,
        path: PathId,
        epoch: Epoch,
        act: &mut impl FnMut(Action),
    ) -> bool {
        let of = |one: &&mut Registration<L::Host>| one.path_of(session).is_some();
        let Some(one) = self.list.all_mut().iter_mut().find(of) else {
            return false;
        };
        let Some(path) = one.paths.get_mut(usize::from(path)) else {
            return true;
        };
        path.floor = path.floor.max(epoch);
        match path.up {
            Some(up) if up.epoch <= epoch => {
                act(Action::End(up.session));
                false
            }
            _ => true,
        }
    }

    /// Ends the sessions of clients from which nothing was heard for too long; `heard` is how many
    /// messages a session has had. To be called once in [`LOOK_MS`].
    pub fn look(&mut self, heard: impl Fn(SessionId) -> u64, act: &mut impl FnMut(Action)) {
        for one in self.list.all_mut() {
            let mut news = false;
            for up in one.up_mut() {
                if up.keep_alive.look(heard(up.session)) {
                    act(Action::CountKeepAliveTimeout);
                    act(Action::End(up.session));
                }
                news |= up.keep_alive.has_heard();
            }
            one.leaving = match one.leaving {
                Leaving::No => Leaving::No,
                Leaving::Looked if news => Leaving::No,
                Leaving::LoggedOut | Leaving::Looked => Leaving::Looked,
            };
        }
    }

    /// Ends what does not fit to what the administrator says now: registrations of hosts that are
    /// not admitted, which cannot be resumed, and sessions that may do more or less than they are
    /// to. Returns one of these sessions; nothing of the kind is left when none is returned.
    /// `fresh` is a key that was never used.
    pub fn enforce(
        &mut self,
        rule: impl Fn(&L::Host) -> Admission,
        fresh: ReservationKey,
        act: &mut impl FnMut(Action),
    ) -> Option<SessionId> {
        let mut past = None;
        let mut at = 0;
        while let Some(one) = self.list.all_mut().get_mut(at) {
            let admission = rule(&one.host);
            let evicted = one.evicted || admission == Admission::None;
            if evicted && !one.evicted {
                one.evicted = true;
                if self.barred.add(one) {
                    // Nobody can tell any more who else was evicted: only maps that have a place go
                    // on.
                    self.shared_key = Some(fresh);
                }
                // A map that was not confirmed may not be the one that had the export: that may
                // come yet.
                if self.unconfirmed.take() != Some(one.key) {
                    self.holder = Some(fresh);
                }
                self.holder_life = None;
                act(Action::CountEviction);
            }
            let over = |up: &&Up| evicted || admission.writes(up.wanted) != up.writes;
            for up in one.up().filter(over) {
                past = Some(up.session);
                act(Action::End(up.session));
            }
            match one.evicted && one.is_away() {
                true => self.remove(at, act),
                false => at = at.saturating_add(1),
            }
        }
        past
    }

    /// Notes that the export is being disabled: no login is granted any more. The caller ends the
    /// sessions.
    pub fn close(&mut self) {
        self.terms = None;
    }

    /// Notes that the export is disabled and no session is left: no map has a place any more.
    pub fn closed(&mut self, act: &mut impl FnMut(Action)) {
        while !self.list.all().is_empty() {
            self.remove(0, act);
        }
    }

    /// Returns the registrations.
    pub fn registrations(&self) -> &[Registration<L::Host>] {
        self.list.all()
    }

    /// Returns how many of the maps whose host `host` chooses have a path.
    pub fn count(&self, host: impl Fn(&L::Host) -> bool) -> usize {
        let here = self.list.all().iter().filter(|one| !one.is_away());
        here.filter(|one| host(&one.host)).count()
    }

    /// Returns how many maps have no path, and a place that no other map may take yet.
    pub fn count_away(&self) -> usize {
        let away = |one: &&Registration<L::Host>| one.is_away() && one.lease != Lease::Over;
        self.list.all().iter().filter(away).count()
    }
}
