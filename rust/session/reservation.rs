// SPDX-License-Identifier: GPL-2.0

//! The server's side of sessions: which maps are registered with an export, which of them it is reserved
//! for, and which epochs of their paths are over.
//!
//! A *registration* is what one map has at an export: its paths, and a place among `max_clients`. Its
//! *key* is what later logins of the map show to resume it. A map that has lost its last path is *away*;
//! its *lease* says for how long it keeps its place then. An export that one map at a time may have is
//! *reserved* for the key that was registered last. As with SCSI persistent reservations, another key
//! that comes back afterwards was preempted: its map is evicted.
//!
//! [`Reservation`] decides; it knows sessions by their number only. The code around it reports what
//! happened, performs each [`Action`], and asks again when a session that was in the way is over.

#![forbid(unsafe_code)]

use super::{clock::Silence, Epoch, PathId, Tenure, PATHS_MAX};

/// Heartbeats of a client after which it gives up a path on which nothing comes.
const MISSED_HEARTBEATS: u64 = 3;
/// The time that a client's attempt to connect may take, in ms.
const ATTEMPT_MS: u64 = 5000;
/// The key of all registrations with an export that several maps may have at a time.
const SHARED: Tenure = 1;

/// The period of [`Reservation::look`], in ms.
pub const LOOK_MS: u32 = 1000;
/// The longest lease that a server grants if its administrator does not say otherwise, in ms: one hour.
pub const LEASE_MAX_MS: u32 = 3_600_000;
/// The shortest one that he may want: below it a client could lose its place while it looks for the server.
pub const LEASE_MIN_MS: u32 = 10_000;

/// Names a session of the server; never 0, and never used again.
pub type SessionId = u64;

/// Returns the lease of a map that holds I/O for `no_path_timeout_ms`, `None` for ever: as long as that,
/// and the time in which the client notices that a path is lost and gives up an attempt to connect. It is
/// `most_ms` at most, whatever the client wants: of a client that is silent nobody knows whether it will
/// ever come back.
pub fn lease_ms(no_path_timeout_ms: Option<u32>, heartbeat_ms: u32, most_ms: u32) -> u32 {
    let late = MISSED_HEARTBEATS * u64::from(heartbeat_ms) + ATTEMPT_MS;
    no_path_timeout_ms
        .and_then(|held| u32::try_from(u64::from(held) + late).ok())
        .map_or(most_ms, |ms| ms.min(most_ms))
        .max(1)
}

/// What a login says of itself, and what the export's administrator says of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Login<H> {
    /// The session that logs in.
    pub session: SessionId,
    /// Its host, as the administrator tells hosts apart: one never takes the place of another.
    pub host: H,
    /// The map, among those of the host.
    pub map: u128,
    /// Random for each life of the host's kernel.
    pub boot: u64,
    /// Random for each time that the map is enabled.
    pub incarnation: u64,
    /// The key to resume; `None` if the map was never let in since it was enabled.
    pub resume: Option<Tenure>,
    /// Index of the path.
    pub path: PathId,
    /// Epoch of the path.
    pub epoch: Epoch,
    /// Whether the map wants to write.
    pub writes: bool,
    /// How long the map holds I/O without a path, in ms; `None` for ever.
    pub no_path_timeout_ms: Option<u32>,
    /// How often the client gives a sign of life, in ms; 0 if it promises none.
    pub heartbeat_ms: u32,
    /// The number of messages that the session has had so far.
    pub heard: u64,
}

/// What a login was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The key of the registration.
    pub key: Tenure,
    /// Whether the server knew the key that the login resumes.
    pub remembered: bool,
    /// The lease of the registration.
    pub lease_ms: u32,
}

/// Why a login is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The export is being disabled, or was enabled anew since the login came.
    Closed,
    /// The epoch of the path is over, or a newer life of the map or of its host is in.
    Superseded,
    /// Another map had the export since, or the administrator took it away.
    Evicted,
    /// As many maps are registered as may be; the number of the registration that is the oldest.
    Busy(u64),
}

/// How a login goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The path is up.
    Grant(Granted),
    /// This session was told to end; the login has to be judged again when it is over.
    After(SessionId),
    /// The login is refused.
    Refuse(Reason),
}

/// What the code around a [`Reservation`] is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Tell a session to end: its queue pairs, its I/O and its memory regions. Ends with
    /// [`Reservation::left`].
    End(SessionId),
    /// Have a session ask again for the fences that it waits for.
    Retry(SessionId),
    /// Start the lease of a registration, in ms; [`Reservation::lapse`] when it is over.
    Arm(u64, u32),
    /// Stop it.
    Disarm(u64),
    /// Count a map that took the place of one whose lease was over.
    CountTakeover,
    /// Count a map that was evicted by the administrator.
    CountEviction,
    /// Count a client from which nothing was heard for too long.
    CountSilence,
}

/// What the administrator says of a host now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It is not admitted, or any more.
    None,
    /// It may read.
    Read,
    /// It may read and write.
    Write,
}

impl Admission {
    /// Returns whether a map that wants to write, or not, may do so.
    pub const fn writes(self, wanted: bool) -> bool {
        wanted && matches!(self, Self::Write)
    }
}

/// A session that is up, or still holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Up {
    session: SessionId,
    epoch: Epoch,
    /// What the login wanted, and what it may.
    wanted: bool,
    writes: bool,
    silence: Silence,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Path {
    /// Epochs up to this one do not come up any more.
    floor: Epoch,
    up: Option<Up>,
}

/// What one map has at an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration<H> {
    number: u64,
    host: H,
    map: u128,
    boot: u64,
    incarnation: u64,
    key: Tenure,
    lease_ms: u32,
    /// The lease is over.
    lapsed: bool,
    /// Its client said that the map goes.
    leaving: bool,
    /// The administrator took it away: it ends with its last path.
    evicted: bool,
    /// The server knew of no reservation when the map was registered, without a key to resume.
    unknown: bool,
    paths: [Path; PATHS_MAX],
}

impl<H: Copy + PartialEq> Registration<H> {
    fn new(number: u64, key: Tenure, login: &Login<H>) -> Self {
        Self {
            number,
            host: login.host,
            map: login.map,
            boot: login.boot,
            incarnation: login.incarnation,
            key,
            lease_ms: 0,
            lapsed: false,
            leaving: false,
            evicted: false,
            unknown: false,
            paths: [Path { floor: 0, up: None }; PATHS_MAX],
        }
    }

    /// How many registrations there were before this one, and this one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Of its map: larger for each time that it is enabled.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Its host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns whether it has no path.
    pub fn is_away(&self) -> bool {
        self.up().next().is_none()
    }

    fn up(&self) -> impl Iterator<Item = &Up> {
        self.paths.iter().filter_map(|path| path.up.as_ref())
    }

    fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.up().map(|up| up.session)
    }

    fn path_of(&self, session: SessionId) -> Option<PathId> {
        let mut paths = (0..).zip(&self.paths);
        paths.find_map(|(id, path)| (path.up?.session == session).then_some(id))
    }

    /// Tells all sessions to end. Returns one of them, unless there is none left.
    fn end_all(&self, act: &mut impl FnMut(Action)) -> Option<SessionId> {
        self.sessions()
            .for_each(|session| act(Action::End(session)));
        self.sessions().next()
    }

    /// Lets a path come up, if nothing is in its way.
    fn arrive(
        &mut self,
        login: &Login<H>,
        writes: bool,
        act: &mut impl FnMut(Action),
    ) -> Result<(), Decision> {
        let path = self.paths.get_mut(usize::from(login.path));
        let path = path.ok_or(Decision::Refuse(Reason::Superseded))?;
        if login.epoch <= path.floor {
            return Err(Decision::Refuse(Reason::Superseded));
        }
        if let Some(up) = path.up {
            act(Action::End(up.session));
            return Err(Decision::After(up.session));
        }
        *path = Path {
            floor: login.epoch,
            up: Some(Up {
                session: login.session,
                epoch: login.epoch,
                wanted: login.writes,
                writes,
                silence: Silence::new(login.heartbeat_ms, LOOK_MS, login.heard),
            }),
        };
        Ok(())
    }
}

/// Where a [`Reservation`] keeps its registrations, in their order.
pub trait Registrations {
    /// How the administrator tells hosts apart.
    type Host: Copy + PartialEq;

    /// All of them.
    fn all(&self) -> &[Registration<Self::Host>];
    /// All of them.
    fn all_mut(&mut self) -> &mut [Registration<Self::Host>];
    /// Adds one behind the others. There is room: it was made before [`Reservation::login`] was asked.
    fn push(&mut self, registration: Registration<Self::Host>);
    /// Removes one; those behind it move up.
    fn remove(&mut self, at: usize);
}

/// What an export is enabled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// Maps that may be registered at a time. If that is one the export is reserved for it; else
    /// nobody is evicted by another, and every map resumes what it had.
    pub max_clients: u16,
    /// The longest lease to grant, in ms.
    pub lease_max_ms: u32,
}

/// The registrations of an export, and whom it is reserved for. The latter outlives that the export is
/// disabled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reservation<L: Registrations> {
    /// `None` while the export is not enabled.
    terms: Option<Terms>,
    /// How often the export was enabled.
    openings: u64,
    /// The key that was registered last; `None` if the server knows of none since it began.
    holder: Option<Tenure>,
    /// The life of the map that was registered with it: host, map, boot and incarnation.
    holder_life: Option<(L::Host, u128, u64, u64)>,
    /// The key of all maps while several may be registered; `None` as long as the contents stay the same
    /// since the server began: then every key is taken.
    shared_key: Option<Tenure>,
    /// How many registrations there were so far.
    admitted: u64,
    list: L,
}

impl<L: Registrations> Reservation<L> {
    /// Of an export that is not enabled, and was nobody's as far as this server knows. The list is empty.
    pub const fn new(list: L) -> Self {
        Self {
            terms: None,
            openings: 0,
            holder: None,
            holder_life: None,
            shared_key: None,
            admitted: 0,
            list,
        }
    }

    /// The list, to make room in it.
    pub fn list_mut(&mut self) -> &mut L {
        &mut self.list
    }

    /// How many registrations there were so far. A login that waits for others to end gives this number
    /// as it was when it came: who was registered later does not give way to it.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// The key that the export is reserved for, if the server knows of any and only one map may have it.
    pub fn holder(&self) -> Option<Tenure> {
        self.holder
    }

    /// Sets what [`Reservation::holder`] returns: the administrator of a server that began anew knows
    /// what it was before.
    pub fn restore(&mut self, holder: Option<Tenure>) {
        self.hold(holder, None);
    }

    /// The export is enabled. Returns a number that its logins have to show. Nobody resumes what he had
    /// of other contents, which those are if not the `same`, or from before several maps could write.
    pub fn open(&mut self, terms: Terms, same: bool, fresh: Tenure) -> u64 {
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

    /// Judges a login of a host that is admitted; it was given `opening` by [`Reservation::open`], and
    /// `since` is what [`Reservation::admitted`] was when it came. `writes` is what it may do, `fresh` a
    /// key that was never used.
    pub fn login(
        &mut self,
        login: &Login<L::Host>,
        (opening, since): (u64, u64),
        writes: bool,
        fresh: Tenure,
        act: &mut impl FnMut(Action),
    ) -> Decision {
        let Some(terms) = self.terms.filter(|_| opening == self.openings) else {
            return Decision::Refuse(Reason::Closed);
        };
        match self.register(login, &terms, since, fresh, act) {
            Err(decision) => decision,
            Ok((at, remembered)) => self.arrive(at, remembered, login, &terms, writes, act),
        }
    }

    /// Finds or makes the registration of a map. Returns its place and whether the server knew its key.
    fn register(
        &mut self,
        login: &Login<L::Host>,
        terms: &Terms,
        since: u64,
        fresh: Tenure,
        act: &mut impl FnMut(Action),
    ) -> Result<(usize, bool), Decision> {
        // The kernel that they belonged to is gone.
        let past = |one: &Registration<L::Host>| one.host == login.host && one.boot != login.boot;
        while let Some(at) = self.position(past) {
            let older = |one: &&Registration<L::Host>| past(one) && one.number <= since;
            for one in self.list.all().iter().filter(older) {
                one.end_all(act);
            }
            self.replace(at, since, act)?;
        }
        let own = |one: &Registration<L::Host>| one.host == login.host && one.map == login.map;
        if let Some(at) = self.position(own) {
            let Some(one) = self.list.all_mut().get_mut(at) else {
                return Err(Decision::Refuse(Reason::Closed));
            };
            let own = one.incarnation == login.incarnation && !one.evicted;
            match login.resume {
                // The map had the export from a server that is gone, and a path of it that did not know
                // that yet was the first to come back. As nobody else was known to have the export since,
                // the map judges by its lease, as if this path had been the first.
                Some(key) if own && one.unknown && one.key != key => {
                    one.key = key;
                    one.unknown = false;
                    self.hold(Some(key), Some(login));
                    return Ok((at, false));
                }
                _ if own => return Ok((at, true)),
                Some(_) => return Err(Decision::Refuse(Reason::Evicted)),
                // A login of the past that was late.
                None if login.incarnation < one.incarnation => {
                    return Err(Decision::Refuse(Reason::Superseded));
                }
                // The map was enabled anew.
                None => self.replace(at, since, act)?,
            }
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
            let lapsed = self.position(|one| one.lapsed && one.is_away());
            let Some(lapsed) = lapsed else {
                let first = self.list.all().first().map_or(0, Registration::number);
                return Err(Decision::Refuse(Reason::Busy(first)));
            };
            self.list.remove(lapsed);
            act(Action::CountTakeover);
        }
        let key = match shared {
            true => login.resume.or(self.shared_key).unwrap_or(SHARED),
            // A path of the holder that did not know its key yet.
            false if login.resume.is_none() && self.holder_life == Some(life(login)) => {
                self.holder.unwrap_or(fresh)
            }
            false => login.resume.unwrap_or(fresh),
        };
        self.admitted = self.admitted.saturating_add(1);
        let mut new = Registration::new(self.admitted, key, login);
        if !shared {
            new.unknown = login.resume.is_none() && self.holder.is_none();
            self.hold(Some(key), Some(login));
        }
        self.list.push(new);
        Ok((self.list.all().len().saturating_sub(1), known.is_some()))
    }

    fn arrive(
        &mut self,
        at: usize,
        remembered: bool,
        login: &Login<L::Host>,
        terms: &Terms,
        writes: bool,
        act: &mut impl FnMut(Action),
    ) -> Decision {
        let Some(one) = self.list.all_mut().get_mut(at) else {
            return Decision::Refuse(Reason::Closed);
        };
        if let Err(decision) = one.arrive(login, writes, act) {
            return decision;
        }
        one.lease_ms = lease_ms(
            login.no_path_timeout_ms,
            login.heartbeat_ms,
            terms.lease_max_ms,
        );
        one.leaving = false;
        one.lapsed = false;
        act(Action::Disarm(one.number));
        Decision::Grant(Granted {
            key: one.key,
            remembered,
            lease_ms: one.lease_ms,
        })
    }

    /// Reserves the export for a key, and for the life of the map that logs in with it.
    fn hold(&mut self, key: Option<Tenure>, login: Option<&Login<L::Host>>) {
        self.holder = key;
        self.holder_life = login.map(life);
    }

    fn position(&self, which: impl Fn(&Registration<L::Host>) -> bool) -> Option<usize> {
        self.list.all().iter().position(which)
    }

    /// Removes a registration in whose place another life of its map or host comes. If it has paths,
    /// these are told to end first.
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
                None => act(Action::Disarm(one.number)),
            },
            None => return Ok(()),
        }
        self.list.remove(at);
        Ok(())
    }

    /// A session is over: nothing of it reaches the export any more. `leaving` if its client said that the
    /// map goes.
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
        one.leaving |= leaving;
        if !one.is_away() {
            // They may have been asked for a fence.
            one.sessions().for_each(|other| act(Action::Retry(other)));
        } else if one.leaving || one.evicted {
            self.list.remove(at);
        } else {
            act(Action::Arm(one.number, one.lease_ms));
        }
    }

    /// The lease of a registration is over: another map may have its place.
    pub fn lapse(&mut self, number: u64) {
        for one in self.list.all_mut() {
            one.lapsed |= one.number == number && one.is_away();
        }
    }

    /// A session asks that a path of its map be fenced up to an epoch. Returns whether nothing of the path
    /// reaches the export any more. If not, what is in the way was told to end, and [`Action::Retry`]
    /// follows.
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
        let paths = self.list.all_mut().iter_mut();
        let paths = paths.flat_map(|one| &mut one.paths);
        for up in paths.filter_map(|path| path.up.as_mut()) {
            if up.silence.look(heard(up.session)) {
                act(Action::CountSilence);
                act(Action::End(up.session));
            }
        }
    }

    /// Ends what does not fit to what the administrator says now: registrations of hosts that are not
    /// admitted, which cannot be resumed, and sessions that may do more or less than they are to. Returns
    /// one of these sessions; nothing of the kind is left when none is returned. `fresh` is a key that was
    /// never used.
    pub fn enforce(
        &mut self,
        rule: impl Fn(&L::Host) -> Admission,
        fresh: Tenure,
        act: &mut impl FnMut(Action),
    ) -> Option<SessionId> {
        let mut past = None;
        let mut at = 0;
        while let Some(one) = self.list.all_mut().get_mut(at) {
            let admission = rule(&one.host);
            let evicted = one.evicted || admission == Admission::None;
            if evicted && !one.evicted {
                one.evicted = true;
                self.holder = Some(fresh);
                self.holder_life = None;
                act(Action::CountEviction);
            }
            let over = |up: &&Up| evicted || admission.writes(up.wanted) != up.writes;
            for up in one.up().filter(over) {
                past = Some(up.session);
                act(Action::End(up.session));
            }
            match one.evicted && one.is_away() {
                true => {
                    act(Action::Disarm(one.number));
                    self.list.remove(at);
                }
                false => at = at.saturating_add(1),
            }
        }
        past
    }

    /// The export is being disabled: nobody logs in any more. The sessions are ended by who calls this.
    pub fn close(&mut self) {
        self.terms = None;
    }

    /// The export is disabled, and no session is left: no map has a place any more.
    pub fn closed(&mut self, act: &mut impl FnMut(Action)) {
        while let Some(one) = self.list.all().first() {
            act(Action::Disarm(one.number));
            self.list.remove(0);
        }
    }

    /// The registrations.
    pub fn registrations(&self) -> &[Registration<L::Host>] {
        self.list.all()
    }

    /// How many have a path, of those whose host is such.
    pub fn count(&self, host: impl Fn(&L::Host) -> bool) -> usize {
        let here = self.list.all().iter().filter(|one| !one.is_away());
        here.filter(|one| host(&one.host)).count()
    }

    /// How many have no path, and a place that nobody else may take yet.
    pub fn count_away(&self) -> usize {
        let away = |one: &&Registration<L::Host>| one.is_away() && !one.lapsed;
        self.list.all().iter().filter(away).count()
    }
}

/// The life of the map that logs in.
fn life<H: Copy>(login: &Login<H>) -> (H, u128, u64, u64) {
    (login.host, login.map, login.boot, login.incarnation)
}
