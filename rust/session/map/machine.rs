// SPDX-License-Identifier: GPL-2.0

//! The machine of a map: what it keeps, what others may ask of it, and how it takes an event.

#![forbid(unsafe_code)]

use super::{
    action::{Action, End, Farewell, Mode},
    admission::{Admission, Extent},
    event::Event,
    limits::Limits,
    path::{Path, Phase},
};
use crate::session::{
    clock::{Lease, Timer},
    Epoch, PathId, PathState, State, PATHS_MAX,
};

/// What the user wants of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long I/O waits for a path, in ms; `None` for ever.
    pub no_path_timeout_ms: Option<u32>,
    /// How often the server is asked whether it is there, in ms; 0 for never.
    pub heartbeat_ms: u32,
    /// The longest delay between two attempts to connect, in ms.
    pub reconnect_max_ms: u32,
}

/// The session of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub(super) config: Config,
    pub(super) paths: [Path; PATHS_MAX],
    /// What the server said last.
    pub(super) known: Option<Admission>,
    /// What the disk was made for, or will be.
    pub(super) limits: Option<Limits>,
    pub(super) end: Option<End>,
    pub(super) mode: Mode,
    /// The disk has appeared.
    pub(super) appeared: bool,
    /// There are requests of paths that were lost.
    pub(super) requeued: bool,
    /// The timer [`Timer::Expiry`] runs.
    pub(super) expiry: bool,
    /// It has elapsed, and nothing has proven since that I/O gets through.
    pub(super) expired: bool,
    /// While it runs, the timer [`Timer::Lease`] does.
    pub(super) lease: Lease,
    /// The timer [`Timer::SendRetry`] runs.
    pub(super) send_retry: bool,
    /// The instance is another one than that which I/O went to.
    pub(super) restarted: bool,
    /// The server has heard that the map leaves.
    pub(super) told: bool,
    /// A server that has let the map in did not confirm that the map leaves.
    pub(super) unanswered: bool,
}

impl Machine {
    /// A map without a path, whose I/O waits.
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            paths: [Path::NONE; PATHS_MAX],
            known: None,
            limits: None,
            end: None,
            mode: Mode::Hold,
            appeared: false,
            requeued: false,
            expiry: false,
            expired: false,
            lease: Lease::Kept,
            send_retry: false,
            restarted: false,
            told: false,
            unanswered: false,
        }
    }

    /// How I/O is treated.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the session cannot go on, if so.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// What the server said last.
    pub fn known(&self) -> Option<&Admission> {
        self.known.as_ref()
    }

    /// What the disk has to keep to, once a path was up.
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_ref()
    }

    /// Whether the client takes its place at the server for lost, if that does not remember it.
    pub fn lease_is_over(&self) -> bool {
        self.lease == Lease::Over
    }

    /// What the user is to know of it.
    pub fn state(&self) -> State {
        match (self.end, self.mode) {
            (Some(End::Stale), _) => State::Stale,
            _ if !self.appeared => State::Connecting,
            (Some(End::Evicted), _) => State::Evicted,
            (Some(End::Disabled), _) => State::Disabled,
            (None, Mode::Flow | Mode::Replay) => State::Live,
            (None, Mode::Hold) => State::Reconnecting,
            (None, Mode::Fail) => State::Failed,
        }
    }

    /// What the user is to know of a path.
    pub fn path_state(&self, id: PathId) -> PathState {
        match self.path(id).map_or(Phase::Off, |path| path.phase) {
            Phase::Off => PathState::Disabled,
            Phase::Due | Phase::Connecting => PathState::Connecting,
            Phase::Waiting => PathState::Waiting,
            Phase::Up => PathState::Live,
            Phase::Closing => PathState::Closing,
        }
    }

    /// Whether a path is up.
    pub fn is_up(&self, id: PathId) -> bool {
        self.path(id).is_some_and(Path::is_up)
    }

    /// The newest epoch of a path; 0 for none.
    pub fn epoch(&self, id: PathId) -> Epoch {
        self.path(id).map_or(0, |path| path.epoch)
    }

    /// Whether nothing is left of a path, and nothing is to be.
    pub fn is_gone(&self, id: PathId) -> bool {
        self.path(id)
            .is_none_or(|path| path.phase == Phase::Off && path.closing == 0)
    }

    /// Whether each path that is wanted was tried once, if none of them was up.
    pub fn all_tried(&self) -> bool {
        let mut wanted = self.paths.iter().filter(|path| path.wanted);
        wanted.all(|path| path.tried)
    }

    /// Whether the server knows that the map has left, once nothing is left of it.
    pub fn farewell(&self) -> Farewell {
        // A server may have let the map in although no path of it ever was up.
        match !self.told && (self.known.is_some() || self.unanswered) {
            true => Farewell::Untold,
            false => Farewell::Told,
        }
    }

    /// Takes note of an event and tells what is to be done, in this order.
    pub fn step(&mut self, event: Event, act: &mut impl FnMut(Action)) {
        match event {
            Event::Add(id) => self.add(id),
            Event::Remove(id) => self.remove(id, act),
            Event::Disable => self.finish(End::Disabled, act),
            Event::Appeared => self.appeared = true,
            Event::Elapsed(timer) => self.elapsed(timer, act),
            Event::Heartbeat(id, heard) => self.heartbeat(id, heard, act),
            Event::Connected {
                path,
                epoch,
                admission,
                silent_ms,
            } => {
                let checked = self.check(path, &admission, silent_ms);
                self.connected(path, epoch, &admission, checked, act);
            }
            Event::Refused(id, epoch, failure) => self.refused(id, epoch, failure, act),
            Event::Lost(id, epoch) => self.lost(id, epoch, act),
            // While requests wait to be replayed only their answers prove anything: the control
            // connection may work, and the I/O connections fail at once.
            Event::Pong(id, epoch) if !self.requeued => {
                self.prove(|at, path| at == id && path.epoch == epoch)
            }
            Event::Pong(..) => {}
            Event::Extent(id, epoch, extent) => self.extent(id, epoch, extent, act),
            Event::Flushed {
                path,
                epoch,
                instance,
                number,
            } => self.flushed(path, epoch, (instance, number), act),
            Event::Drained {
                path,
                epoch,
                how,
                requeued,
            } => {
                self.requeued |= requeued;
                self.drained(path, epoch, how, act);
            }
            Event::Closed {
                path,
                told,
                requeued,
            } => {
                self.requeued |= requeued;
                self.closed(path, told);
            }
            Event::Fenced { via, path, epoch } if self.is_up(via) => self.fenced(path, epoch),
            Event::Fenced { .. } => {}
            Event::FenceNotSent(id) => self.fence_not_sent(id, act),
            Event::Replayed { done } if self.mode == Mode::Replay => match done {
                true => {
                    self.requeued = false;
                    self.prove(|_, _| true);
                }
                false => self.arm_send_retry(act),
            },
            Event::ReplayEnded { answered } => {
                // Also while I/O is held, as another path is not fenced yet, or fails: this path
                // works.
                if answered {
                    self.prove(|_, _| true);
                }
                if self.mode == Mode::Replay {
                    act(Action::Replay);
                }
            }
            Event::Replayed { .. } => {}
            Event::Requeued if self.mode == Mode::Fail => act(Action::FailRequeued),
            Event::Requeued => {}
        }
        self.connect(act);
        self.request_fences(act);
        self.expired &= !self.gets_through();
        self.set_mode(act);
        self.run_timers(act);
    }

    /// A path, if there can be one of this number.
    pub(super) fn path(&self, id: PathId) -> Option<&Path> {
        self.paths.get(usize::from(id))
    }

    /// As [`Self::path`].
    pub(super) fn path_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(id))
    }

    /// The path, if the epoch is its newest.
    pub(super) fn newest(&mut self, id: PathId, epoch: Epoch) -> Option<&mut Path> {
        self.path_mut(id).filter(|path| path.epoch == epoch)
    }

    /// Returns whether a path other than this one is up.
    pub(super) fn another_is_up(&self, id: PathId) -> bool {
        ids().any(|other| other != id && self.is_up(other))
    }

    /// The user wants a path.
    fn add(&mut self, id: PathId) {
        let over = self.end.is_some();
        if let Some(path) = self.path_mut(id) {
            if path.wanted {
                return;
            }
            path.wanted = true;
            path.tried = false;
            path.was_up = false;
            path.backoff.reset();
            if path.phase == Phase::Off && !over {
                path.phase = Phase::Due;
            }
        }
    }

    /// The user does not want a path any more.
    fn remove(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let Some(path) = self.path_mut(id) else {
            return;
        };
        path.wanted = false;
        match path.phase {
            Phase::Due => path.phase = Phase::Off,
            Phase::Waiting => {
                path.phase = Phase::Off;
                act(Action::Disarm(Timer::Retry(id)));
            }
            Phase::Connecting | Phase::Up => self.close(id, act),
            Phase::Off | Phase::Closing => {}
        }
    }

    /// The server tells of the extent on a path. What it said later, on whichever path, counts.
    fn extent(&mut self, id: PathId, epoch: Epoch, extent: Extent, act: &mut impl FnMut(Action)) {
        let is_current = self
            .newest(id, epoch)
            .is_some_and(|path| path.phase == Phase::Up);
        let known = self.known.as_mut().filter(|_| is_current);
        if let Some(known) = known.filter(|known| extent.is_newer_than(&known.extent)) {
            known.extent = extent;
            act(Action::Resize(extent));
        }
    }

    /// The server tells on a path that it has flushed. If the export was enabled again since, and
    /// another path is connected to it, that says nothing of what was written on that one.
    fn flushed(
        &mut self,
        id: PathId,
        epoch: Epoch,
        (instance, number): (u128, u32),
        act: &mut impl FnMut(Action),
    ) {
        let is_current = self
            .newest(id, epoch)
            .is_some_and(|path| path.phase == Phase::Up);
        if !is_current {
            return;
        }
        // What an instance before this one may have lost was not flushed by it.
        let known = self.known.as_ref().filter(|_| !self.restarted);
        if known.is_some_and(|known| known.instance == instance && !known.extent.is_after(number)) {
            act(Action::Flushed);
        }
        // The server waits for the answer.
        act(Action::Ping(id));
    }

    /// The session cannot go on: closes all paths.
    pub(super) fn finish(&mut self, end: End, act: &mut impl FnMut(Action)) {
        // What the user wants comes before what the server says.
        if self.end != Some(End::Disabled) {
            self.end = Some(end);
        }
        // The server keeps no place for a map that it has evicted.
        self.told |= end == End::Evicted;
        for id in ids() {
            match self.path(id).map(|path| path.phase) {
                Some(Phase::Connecting | Phase::Up) => self.close(id, act),
                Some(Phase::Due | Phase::Waiting) => {
                    if let Some(path) = self.path_mut(id) {
                        path.phase = Phase::Off;
                    }
                    act(Action::Disarm(Timer::Retry(id)));
                }
                _ => {}
            }
        }
    }

    /// Connects the paths that are to be connected.
    fn connect(&mut self, act: &mut impl FnMut(Action)) {
        if self.end.is_some() {
            return;
        }
        let known = self
            .known
            .map(|known| (known.reservation_key, known.instance));
        let urgent = self.mode != Mode::Flow;
        for (id, path) in ids().zip(&mut self.paths) {
            if path.phase == Phase::Due {
                path.phase = Phase::Connecting;
                path.foreign = false;
                path.asked = known;
                path.epoch = path.epoch.saturating_add(1);
                act(Action::Connect {
                    path: id,
                    epoch: path.epoch,
                    resume: known.map(|(key, _)| key),
                    urgent,
                });
            }
        }
    }
}

/// All paths that there can be.
pub(super) fn ids() -> impl Iterator<Item = PathId> {
    (0..).take(PATHS_MAX)
}
