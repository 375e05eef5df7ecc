// SPDX-License-Identifier: GPL-2.0

//! The maps that have an export, with their paths.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic,
        Msecs, //
    },
};

use crate::link::channel::Linked;
use crate::proto::{
    Fence,
    Login,
    Name,
    Refusal,
    Refused,
    Uuid, //
};
use crate::server::{
    reservation::Keeper,
    session::Session,
    stats, //
};
use crate::session::{
    pulse::Silence,
    reservation::{
        granted_ms,
        lease_ms,
        Arrival,
        Claim,
        Fence as FenceVerdict,
        Member,
        Verdict, //
    },
    Epoch,
    PathId,
    Tenure,
    PATHS_MAX, //
};

/// How often somebody looks whether clients are still there.
pub(super) const LOOK_MS: Msecs = 1000;

/// A path that is up, or still has something.
struct Up {
    session: Arc<Session>,
    epoch: Epoch,
    silence: Silence,
}

/// A map that is in.
struct Client {
    /// How many came in before, and this one.
    number: u64,
    host_id: Uuid,
    host_name: Name,
    map_uuid: Uuid,
    /// The life of its host's kernel.
    boot: u64,
    tenure: Tenure,
    /// How long it keeps its place without a path, in milliseconds.
    lease: u32,
    member: Member,
    /// Those that `member` says are live; the index is the path.
    paths: [Option<Up>; PATHS_MAX],
    /// It said that it goes.
    leaving: bool,
    /// Since when it has no path.
    away: Option<Instant<Monotonic>>,
}

/// What a login is granted.
pub(crate) struct Granted {
    pub(super) tenure: Tenure,
    /// The server knew the tenure that the login resumes.
    pub(super) remembered: bool,
    /// How long the map keeps its place without a path.
    pub(super) lease_ms: u32,
}

/// How a login goes on.
pub(super) enum Entry {
    /// The map is in, and the path is up.
    In(Granted),
    /// This session, which was told to end, has to be over first.
    After(Arc<Session>),
}

/// The maps that have an export.
pub(super) struct Clients {
    /// Cleared once, when the export is being disabled.
    pub(super) open: bool,
    /// How many came in so far.
    admitted: u64,
    list: KVec<KBox<Client>>,
}

impl Client {
    fn new(number: u64, login: &Login) -> Self {
        Self {
            number,
            host_id: login.host_id,
            host_name: login.host_name,
            map_uuid: login.map_uuid,
            boot: login.boot,
            tenure: 0,
            lease: 0,
            member: Member::new(login.incarnation),
            paths: [const { None }; PATHS_MAX],
            leaving: false,
            away: None,
        }
    }

    /// The paths that are up.
    fn up(&self) -> impl Iterator<Item = &Up> {
        self.paths.iter().flatten()
    }

    fn is_here(&self) -> bool {
        self.up().next().is_some()
    }

    /// Milliseconds since it has lost its last path.
    fn away_ms(&self) -> Option<u64> {
        let ms = self.away.as_ref()?.elapsed().as_millis();
        Some(u64::try_from(ms).unwrap_or(0))
    }

    /// Whether another map may take its place.
    fn is_late(&self) -> bool {
        self.away_ms()
            .is_some_and(|away| away > u64::from(self.lease))
    }

    /// The path of a session.
    fn path_of(&self, session: &Session) -> Option<PathId> {
        let mut paths = (0..).zip(&self.paths);
        let of = |up: &Up| up.session.id() == session.id();
        paths.find_map(|(id, path)| path.as_ref().is_some_and(of).then_some(id))
    }

    fn path(&mut self, id: PathId) -> Option<&mut Option<Up>> {
        self.paths.get_mut(usize::from(id))
    }

    /// Tells a path to end. Returns its session, unless there is nothing to end.
    fn end(&mut self, id: PathId) -> Option<Arc<Session>> {
        let up = self.path(id)?.as_ref()?;
        up.session.lose();
        Some(up.session.clone())
    }

    /// Tells all paths to end. Returns one session of theirs, unless there is none left.
    fn end_all(&self) -> Option<Arc<Session>> {
        self.up().for_each(|up| up.session.lose());
        self.up().next().map(|up| up.session.clone())
    }

    /// A path of it wants to come up.
    fn arrive(
        &mut self,
        session: &Arc<Session>,
        login: &Login,
        remembered: bool,
    ) -> Result<Entry, Refused> {
        match self.member.arrive(login.path, login.epoch) {
            Arrival::Over => Err(Refusal::Superseded.into()),
            Arrival::After(_) => match self.end(login.path) {
                Some(past) => Ok(Entry::After(past)),
                None => Err(Refusal::Internal.into()),
            },
            Arrival::Up => {
                let up = Up {
                    session: session.clone(),
                    epoch: login.epoch,
                    silence: Silence::new(login.heartbeat_ms, LOOK_MS, session.heard()),
                };
                if let Some(path) = self.path(login.path) {
                    *path = Some(up);
                }
                self.lease = granted_ms(lease_ms(login.no_path_timeout_ms, login.heartbeat_ms));
                self.host_name = login.host_name;
                self.leaving = false;
                self.away = None;
                Ok(Entry::In(Granted {
                    tenure: self.tenure,
                    remembered,
                    lease_ms: self.lease,
                }))
            }
        }
    }
}

impl Clients {
    /// Nobody, and the door is open.
    pub(super) fn new() -> Self {
        Self {
            open: true,
            admitted: 0,
            list: KVec::new(),
        }
    }

    /// How many came in so far.
    pub(super) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Lets a path of a map in, or tells what has to end for that. `since` is what [`Clients::admitted`]
    /// was when the login came: who came later does not give way to it.
    pub(super) fn enter(
        &mut self,
        session: &Arc<Session>,
        login: &Login,
        since: u64,
        (keeper, max, stats): (&Keeper, u16, &stats::Server),
    ) -> Result<Entry, Refused> {
        if !self.open {
            return Err(Refusal::ExportDisabled.into());
        }
        loop {
            // The kernel that they belonged to is gone.
            let past =
                |client: &Client| client.host_id == login.host_id && client.boot != login.boot;
            if let Some(at) = self.position(past) {
                let past = self.list.iter().filter(|client| past(client));
                past.filter(|client| client.number <= since)
                    .for_each(|client| drop(client.end_all()));
                match self.replace(at, since)? {
                    Some(past) => return Ok(Entry::After(past)),
                    None => continue,
                }
            }
            let at = self.position(|client| {
                client.host_id == login.host_id && client.map_uuid == login.map_uuid
            });
            let claim = Claim {
                incarnation: login.incarnation,
                resume: login.resume,
            };
            let incarnation = at.and_then(|at| Some(self.list.get(at)?.member.incarnation));
            let full = self.list.len() >= usize::from(max);
            let late = self.position(Client::is_late).filter(|_| full);
            // Nothing may fail once it is let in.
            let no_memory = |_| Refused::from(Refusal::NoMemory);
            self.list.reserve(1, GFP_KERNEL).map_err(no_memory)?;
            let new = Client::new(self.admitted + 1, login);
            let mut new = KBox::new(new, GFP_KERNEL).map_err(no_memory)?;
            let (verdict, remembered) = keeper.judge(&claim, incarnation, !full || late.is_some());
            let at = match verdict {
                Verdict::Evicted => return Err(Refusal::Evicted.into()),
                Verdict::Busy => return Err(self.busy()),
                Verdict::Replace => match self.replace(at.unwrap_or(0), since)? {
                    Some(past) => return Ok(Entry::After(past)),
                    None => continue,
                },
                Verdict::Join => at.unwrap_or(0),
                Verdict::Admit(tenure) => {
                    if let Some(late) = late {
                        let _ = self.list.remove(late);
                        stats.takeovers.count();
                    }
                    self.admitted += 1;
                    new.tenure = tenure;
                    // There is room.
                    let _ = self.list.push_within_capacity(new);
                    self.list.len() - 1
                }
            };
            let client = self.list.get_mut(at);
            let client = client.ok_or(Refused::from(Refusal::Internal))?;
            return client.arrive(session, login, remembered);
        }
    }

    fn position(&self, which: impl Fn(&Client) -> bool) -> Option<usize> {
        self.list.iter().position(|client| which(client))
    }

    /// Removes a map in whose place another life of it comes; if it has paths, these are told to end, and
    /// one of their sessions is returned.
    fn replace(&mut self, at: usize, since: u64) -> Result<Option<Arc<Session>>, Refused> {
        let client = self.list.get(at).ok_or(Refused::from(Refusal::Internal))?;
        if client.number > since {
            return Err(Refusal::Superseded.into());
        }
        let past = client.end_all();
        if past.is_none() {
            let _ = self.list.remove(at);
        }
        Ok(past)
    }

    /// Refuses one more, and says because of whom.
    fn busy(&self) -> Refused {
        let Some(client) = self.list.first() else {
            return Refusal::Busy.into();
        };
        let host = &client.host_name;
        match client.away_ms() {
            None => Refused::new(Refusal::Busy, format_args!("in use by {host}")),
            Some(ms) => Refused::new(
                Refusal::Busy,
                format_args!("in use by {host}, away for {} s", ms / 1000),
            ),
        }
    }

    /// Nothing of a session is there any more; `leaving` if the client said that the map goes.
    pub(super) fn leave(&mut self, session: &Session, leaving: bool) {
        let at = self.position(|client| client.path_of(session).is_some());
        let Some(client) = at.and_then(|at| self.list.get_mut(at)) else {
            return;
        };
        let Some(id) = client.path_of(session) else {
            return;
        };
        if let Some(up) = client.path(id).and_then(Option::take) {
            client.member.gone(id, up.epoch);
        }
        client.leaving |= leaving;
        if client.is_here() {
            // They may have been asked for a fence.
            return client.up().for_each(|up| Session::notify(&up.session));
        }
        client.away = Some(Instant::now());
        if client.leaving {
            let _ = at.map(|at| self.list.remove(at));
        }
    }

    /// A session asks for a fence. Whether it is there; if not yet, what is in its way was told to end,
    /// and the session will be notified.
    pub(super) fn fence(&mut self, session: &Session, fence: Fence) -> bool {
        let at = self.position(|client| client.path_of(session).is_some());
        let Some(client) = at.and_then(|at| self.list.get_mut(at)) else {
            return false;
        };
        match client.member.fence(fence.path, fence.epoch) {
            FenceVerdict::Done => true,
            FenceVerdict::After(_) => {
                client.end(fence.path);
                false
            }
        }
    }

    /// Ends the sessions of clients from which nothing was heard for too long. Once in [`LOOK_MS`].
    pub(super) fn look(&mut self, stats: &stats::Server) {
        let paths = self.list.iter_mut().flat_map(|client| &mut client.paths);
        for up in paths.flatten() {
            if up.silence.look(up.session.heard()) {
                stats.heartbeats_missed.count();
                up.session.lose();
            }
        }
    }

    /// The sessions.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &Arc<Session>> {
        let ups = self.list.iter().flat_map(|client| client.up());
        ups.map(|up| &up.session)
    }

    /// Lets go of maps whose host is not `admitted` any more. Those with paths have these told to end, and
    /// one of their sessions is returned.
    pub(super) fn evict(
        &mut self,
        admitted: impl Fn(&Name, &Uuid) -> bool,
        (keeper, stats): (&Keeper, &stats::Server),
    ) -> Option<Arc<Session>> {
        let past = |client: &Client| !admitted(&client.host_name, &client.host_id);
        while let Some(at) = self.position(|client| past(client) && !client.is_here()) {
            let _ = self.list.remove(at);
            keeper.revoke();
            stats.evictions.count();
        }
        let past = self.list.iter().filter(|client| past(client));
        past.filter_map(|client| client.end_all()).last()
    }

    /// How many have a path, of those whose host has this name, if one is given.
    pub(super) fn count(&self, host: Option<&Name>) -> usize {
        let here = self.list.iter().filter(|client| client.is_here());
        here.filter(|client| host.is_none_or(|host| client.host_name == *host))
            .count()
    }

    /// How many have no path, and a place that nobody else may take yet.
    pub(super) fn count_away(&self) -> usize {
        let away = |client: &&KBox<Client>| !client.is_here() && !client.is_late();
        self.list.iter().filter(away).count()
    }
}
