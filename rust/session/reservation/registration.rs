// SPDX-License-Identifier: GPL-2.0

//! What one map has at an export: its paths, and a place among `max_clients`.

#![forbid(unsafe_code)]

use super::{
    action::Action,
    login::{Decision, Login, Reason, SessionId},
};
use crate::session::{
    clock::{KeepAliveTimeout, Lease},
    Epoch, PathId, ReservationKey, PATHS_MAX,
};

/// The period of [`Reservation::look`](super::Reservation::look), in ms.
pub const LOOK_MS: u32 = 1000;

/// A session that is up, or still holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Up {
    pub(super) session: SessionId,
    pub(super) epoch: Epoch,
    /// What the login wanted, and what it may.
    pub(super) wanted: bool,
    pub(super) writes: bool,
    pub(super) keep_alive: KeepAliveTimeout,
    /// The client was told that it is not remembered, and has not said since that it goes on.
    pub(super) unconfirmed: bool,
}

/// What is known of one path of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Path {
    /// Epochs up to this one do not come up any more.
    pub(super) floor: Epoch,
    /// The session that is up.
    pub(super) up: Option<Up>,
}

/// Whether a map ends with its last path, and keeps no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leaving {
    No,
    /// Its client has logged out on a path.
    LoggedOut,
    /// The server has looked since: if another path of the map says something after that, the map
    /// has only given up one of its paths.
    Looked,
}

/// What one map has at an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Registration<H> {
    pub(super) number: u64,
    pub(super) host: H,
    pub(super) map: u128,
    pub(super) boot: u64,
    pub(super) incarnation: u64,
    pub(super) key: ReservationKey,
    pub(super) lease_ms: u32,
    /// It begins when the last path is lost, and ends when one is back, but for that of a map that
    /// is not confirmed.
    pub(super) lease: Lease,
    pub(super) leaving: Leaving,
    /// The administrator took it away: it ends with its last path.
    pub(super) evicted: bool,
    /// The server knew of no reservation when the map was registered, without a key to resume.
    pub(super) unknown: bool,
    pub(super) paths: [Path; PATHS_MAX],
}

impl<H: Copy + PartialEq> Registration<H> {
    pub(super) fn new(number: u64, key: ReservationKey, login: &Login<H>) -> Self {
        Self {
            number,
            host: login.host,
            map: login.map,
            boot: login.boot,
            incarnation: login.incarnation,
            key,
            lease_ms: 0,
            lease: Lease::Kept,
            leaving: Leaving::No,
            evicted: false,
            unknown: false,
            paths: [Path { floor: 0, up: None }; PATHS_MAX],
        }
    }

    /// Returns how many registrations there were up to this one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the incarnation of its map: larger for each time that the map is enabled.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns its host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns whether it has no path.
    pub fn is_away(&self) -> bool {
        self.up().next().is_none()
    }

    pub(super) fn up(&self) -> impl Iterator<Item = &Up> {
        self.paths.iter().filter_map(|path| path.up.as_ref())
    }

    pub(super) fn up_mut(&mut self) -> impl Iterator<Item = &mut Up> {
        self.paths.iter_mut().filter_map(|path| path.up.as_mut())
    }

    /// Returns the sessions of its paths that are up.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.up().map(|up| up.session)
    }

    pub(super) fn path_of(&self, session: SessionId) -> Option<PathId> {
        let mut paths = (0..).zip(&self.paths);
        paths.find_map(|(id, path)| (path.up?.session == session).then_some(id))
    }

    /// Ends the lease: the map is there.
    pub(super) fn keep(&mut self, act: &mut impl FnMut(Action)) {
        self.lease = Lease::Kept;
        act(Action::Disarm(self.number));
    }

    /// Tells all sessions to end. Returns one of them, unless there is none left.
    pub(super) fn end_all(&self, act: &mut impl FnMut(Action)) -> Option<SessionId> {
        self.sessions()
            .for_each(|session| act(Action::End(session)));
        self.sessions().next()
    }

    /// Lets a path come up, if nothing is in its way. It is lost if nothing is heard of the client
    /// for longer than that promised, or for `silent_max_ms` if it promised nothing.
    pub(super) fn open_path(
        &mut self,
        login: &Login<H>,
        silent_max_ms: u32,
        writes: bool,
        unconfirmed: bool,
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
                keep_alive: KeepAliveTimeout::new(
                    login.heartbeat_ms,
                    silent_max_ms,
                    LOOK_MS,
                    login.heard,
                ),
                unconfirmed,
            }),
        };
        Ok(())
    }
}

/// Where a [`Reservation`](super::Reservation) keeps its registrations, in their order.
pub trait Registrations {
    /// How the administrator tells hosts apart.
    type Host: Copy + PartialEq;

    /// All of them.
    fn all(&self) -> &[Registration<Self::Host>];
    /// All of them.
    fn all_mut(&mut self) -> &mut [Registration<Self::Host>];
    /// Adds one behind the others. There is room: it was made before
    /// [`Reservation::login`](super::Reservation::login) was asked.
    fn push(&mut self, registration: Registration<Self::Host>);
    /// Removes one; those behind it move up.
    fn remove(&mut self, at: usize);
}
