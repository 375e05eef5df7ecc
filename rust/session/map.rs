// SPDX-License-Identifier: GPL-2.0

//! The client's side of a session: what becomes of the I/O of a map while its paths come and go.
//!
//! The shell tells what happened, one [`Event`] after the other, and performs the [`Action`]s that
//! follow, in their order.

#![forbid(unsafe_code)]

use super::{Epoch, PathId, PathState, State, Tenure, PATHS_MAX};

/// What stands behind a path, as the server said when it let the client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Welcome {
    /// UUID of the export.
    pub export: u128,
    /// Identity of the export's contents (ram), or of the server's life (block).
    pub instance: u128,
    /// Whether the contents are gone with the instance.
    pub volatile: bool,
    /// Under which the export is this map's.
    pub tenure: Tenure,
}

/// Why an attempt to connect ended without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The next one may do better.
    Transient,
    /// The server let go of the map for good.
    Evicted,
}

/// What happened. That of a path carries the epoch which it is about; of an epoch that is over it
/// means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The user wants a path.
    Add(PathId),
    /// The user does not want it any more.
    Remove(PathId),
    /// It is time for the next attempt.
    Retry(PathId),
    /// A path is up with all its connections, and carried no I/O yet.
    Connected(PathId, Epoch, Welcome),
    /// A path could not be brought up; nothing of the attempt is left.
    Refused(PathId, Epoch, Failure),
    /// A path broke, or does not answer.
    Lost(PathId, Epoch),
    /// A path that was closed touches no memory any more; whether it had requests in flight, which
    /// are neither complete nor on another path.
    Drained(PathId, Epoch, bool),
    /// The server said that nothing of the path's epochs up to this one will reach the export any
    /// more.
    Fenced(PathId, Epoch),
    /// Every request that [`Action::Replay`] sent is complete, and no path was lost meanwhile.
    Replayed,
    /// I/O waits for longer than the user wants.
    Expired,
    /// The user wants the map no more.
    Disable,
}

/// What the shell is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Connect a path, with the tenure to resume, if there was one.
    Connect(PathId, Epoch, Option<Tenure>),
    /// Try again later.
    Wait(PathId),
    /// Let go of a path, or of an attempt; ends with [`Event::Drained`].
    Close(PathId, Epoch),
    /// Ask the server, on the first path, for a fence of the second one.
    Fence {
        /// The path to ask on; it is up.
        via: PathId,
        /// The path to fence.
        path: PathId,
        /// Its newest epoch that had I/O.
        epoch: Epoch,
    },
    /// From now on the I/O is treated so.
    Turn(Mode),
    /// The server is another one than before: writes that are complete and not flushed may be gone. No
    /// path to the one before is left.
    Restarted,
}

/// How I/O is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It waits, and so do the requests of paths that were lost.
    Hold,
    /// The requests of paths that were lost are sent on paths that are up; all other I/O waits.
    Replay,
    /// It is sent on paths that are up.
    Flow,
    /// It fails, and so do the requests of paths that were lost.
    Fail,
}

/// Why a session can not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The contents of the export are not those that were there before.
    Stale,
    /// The export is somebody else's.
    Evicted,
    /// The user wants it so.
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    /// There is nothing, and nothing is to be.
    Off,
    /// To be connected.
    Due,
    /// To be connected later.
    Waiting,
    Connecting,
    Up,
    /// Its memory is still in use.
    Closing,
}

/// A path.
///
/// # Invariants
///
/// - `fenced <= epoch` and `used <= epoch`.
/// - While the path is up, `used == epoch` and `fenced == epoch - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Path {
    wanted: bool,
    link: Link,
    /// The last epoch that was given out; 0 for none.
    epoch: Epoch,
    /// The last one that may have carried I/O.
    used: Epoch,
    /// No I/O of this one and those before it will reach the export any more.
    fenced: Epoch,
    /// The path on which its fence was asked for.
    asked: Option<PathId>,
}

impl Path {
    const NONE: Self = Self {
        wanted: false,
        link: Link::Off,
        epoch: 0,
        used: 0,
        fenced: 0,
        asked: None,
    };

    /// Whether I/O that the client has given up may still reach the export.
    fn owes_fence(&self) -> bool {
        self.link != Link::Up && self.fenced < self.used
    }
}

/// The session of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    paths: [Path; PATHS_MAX],
    known: Option<Welcome>,
    end: Option<End>,
    mode: Mode,
    /// There are requests of paths that were lost.
    stranded: bool,
    /// I/O waited for too long, and did not flow since.
    expired: bool,
    /// The server is another one than that which I/O went to.
    restarted: bool,
}

impl Default for Map {
    fn default() -> Self {
        Self::new()
    }
}

impl Map {
    /// A map without a path, whose I/O waits.
    pub const fn new() -> Self {
        Self {
            paths: [Path::NONE; PATHS_MAX],
            known: None,
            end: None,
            mode: Mode::Hold,
            stranded: false,
            expired: false,
            restarted: false,
        }
    }

    /// How I/O is treated.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it can not go on, if so.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// What the server said last.
    pub fn known(&self) -> Option<&Welcome> {
        self.known.as_ref()
    }

    /// What the user is to know of it, once it was live.
    pub fn state(&self) -> State {
        match (self.end, self.mode) {
            (Some(End::Stale), _) => State::Stale,
            (Some(End::Evicted), _) => State::Evicted,
            (Some(End::Disabled), _) => State::Disabled,
            (None, Mode::Flow | Mode::Replay) => State::Live,
            (None, Mode::Hold) => State::Reconnecting,
            (None, Mode::Fail) => State::Failed,
        }
    }

    /// What the user is to know of a path.
    pub fn path_state(&self, path: PathId) -> PathState {
        match self.path(path).map_or(Link::Off, |path| path.link) {
            Link::Off => PathState::Disabled,
            Link::Due | Link::Connecting => PathState::Connecting,
            Link::Waiting => PathState::Waiting,
            Link::Up => PathState::Live,
            Link::Closing => PathState::Closing,
        }
    }

    /// Whether a path is up.
    pub fn is_up(&self, path: PathId) -> bool {
        self.path(path).is_some_and(|path| path.link == Link::Up)
    }

    /// The newest epoch of a path; 0 for none.
    pub fn epoch(&self, path: PathId) -> Epoch {
        self.path(path).map_or(0, |path| path.epoch)
    }

    /// Takes note of an event and tells what is to be done, in this order.
    pub fn step(&mut self, event: Event, act: &mut impl FnMut(Action)) {
        match event {
            Event::Add(id) => self.add(id),
            Event::Remove(id) => self.remove(id, act),
            Event::Retry(id) => self.retry(id),
            Event::Connected(id, epoch, welcome) => self.connected(id, epoch, &welcome, act),
            Event::Refused(id, epoch, failure) => self.refused(id, epoch, failure, act),
            Event::Lost(id, epoch) => self.lost(id, epoch, act),
            Event::Drained(id, epoch, stranded) => self.drained(id, epoch, stranded, act),
            Event::Fenced(id, epoch) => self.fenced(id, epoch),
            Event::Replayed => self.stranded &= self.mode != Mode::Replay,
            Event::Expired => self.expired |= self.mode == Mode::Hold,
            Event::Disable => self.finish(End::Disabled, act),
        }
        self.connect(act);
        self.ask(act);
        self.turn(act);
    }

    fn path(&self, id: PathId) -> Option<&Path> {
        self.paths.get(usize::from(id))
    }

    /// The path, if the epoch is its newest.
    fn newest(&mut self, id: PathId, epoch: Epoch) -> Option<&mut Path> {
        let path = self.paths.get_mut(usize::from(id))?;
        (path.epoch == epoch).then_some(path)
    }

    fn add(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(usize::from(id)) {
            path.wanted = true;
            if path.link == Link::Off {
                path.link = Link::Due;
            }
        }
    }

    fn remove(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let Some(path) = self.paths.get_mut(usize::from(id)) else {
            return;
        };
        path.wanted = false;
        match path.link {
            Link::Due | Link::Waiting => path.link = Link::Off,
            Link::Connecting | Link::Up => self.close(id, act),
            Link::Off | Link::Closing => {}
        }
    }

    fn retry(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(usize::from(id)) {
            if path.link == Link::Waiting {
                path.link = Link::Due;
            }
        }
    }

    /// Why a session cannot go on with what stands behind a path, if so.
    pub fn judge(&self, welcome: &Welcome) -> Option<End> {
        match self.known {
            Some(known) if known.export != welcome.export => Some(End::Stale),
            Some(known) if known.tenure != welcome.tenure => Some(End::Evicted),
            Some(known) if known.instance != welcome.instance => {
                welcome.volatile.then_some(End::Stale)
            }
            _ => None,
        }
    }

    fn connected(
        &mut self,
        id: PathId,
        epoch: Epoch,
        welcome: &Welcome,
        act: &mut impl FnMut(Action),
    ) {
        let known = self.known;
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        if path.link != Link::Connecting {
            return;
        }
        // INVARIANT: It is the newest epoch, and the server let go of the older ones before it let
        // the client in.
        path.link = Link::Up;
        path.used = epoch;
        path.fenced = epoch.saturating_sub(1);
        path.asked = None;
        let restarted = known.is_some_and(|known| known.instance != welcome.instance);
        if let Some(end) = self.judge(welcome) {
            return self.finish(end, act);
        }
        self.known = Some(*welcome);
        if restarted {
            self.restarted = true;
            // What still arrives on them was done by the server that is gone.
            for other in (0..).take(PATHS_MAX).filter(|other| *other != id) {
                if self.is_up(other) {
                    self.close(other, act);
                }
            }
        }
    }

    fn refused(
        &mut self,
        id: PathId,
        epoch: Epoch,
        failure: Failure,
        act: &mut impl FnMut(Action),
    ) {
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        if path.link != Link::Connecting {
            return;
        }
        path.link = Link::Waiting;
        match failure {
            Failure::Transient => act(Action::Wait(id)),
            Failure::Evicted => self.finish(End::Evicted, act),
        }
    }

    fn lost(&mut self, id: PathId, epoch: Epoch, act: &mut impl FnMut(Action)) {
        if let Some(Path {
            link: Link::Connecting | Link::Up,
            ..
        }) = self.newest(id, epoch)
        {
            self.close(id, act);
        }
    }

    fn drained(&mut self, id: PathId, epoch: Epoch, stranded: bool, act: &mut impl FnMut(Action)) {
        let over = self.end.is_some();
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        if path.link != Link::Closing {
            return;
        }
        path.link = match path.wanted && !over {
            true => Link::Waiting,
            false => Link::Off,
        };
        if path.link == Link::Waiting {
            act(Action::Wait(id));
        }
        self.stranded |= stranded;
    }

    fn fenced(&mut self, id: PathId, epoch: Epoch) {
        let Some(path) = self.paths.get_mut(usize::from(id)) else {
            return;
        };
        if path.owes_fence() && epoch <= path.used {
            path.fenced = path.fenced.max(epoch);
        }
        if !path.owes_fence() {
            path.asked = None;
        }
    }

    /// Lets go of a path that is up or about to be.
    fn close(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let Some(path) = self.paths.get_mut(usize::from(id)) else {
            return;
        };
        path.link = Link::Closing;
        // Before the path is let go of, so that none of its I/O can be given to it any more.
        self.turn(act);
        act(Action::Close(id, self.epoch(id)));
        // What was asked on it will not be answered.
        for path in &mut self.paths {
            if path.asked == Some(id) {
                path.asked = None;
            }
        }
    }

    /// There is no way on.
    fn finish(&mut self, end: End, act: &mut impl FnMut(Action)) {
        self.end = Some(end);
        for id in (0..).take(PATHS_MAX) {
            match self.path(id).map(|path| path.link) {
                Some(Link::Connecting | Link::Up) => self.close(id, act),
                Some(Link::Due | Link::Waiting) => {
                    if let Some(path) = self.paths.get_mut(usize::from(id)) {
                        path.link = Link::Off;
                    }
                }
                _ => {}
            }
        }
    }

    /// Connects the paths that are to be.
    fn connect(&mut self, act: &mut impl FnMut(Action)) {
        if self.end.is_some() {
            return;
        }
        let tenure = self.known.map(|known| known.tenure);
        for (id, path) in (0..).zip(&mut self.paths) {
            if path.link == Link::Due {
                path.link = Link::Connecting;
                path.epoch = path.epoch.saturating_add(1);
                act(Action::Connect(id, path.epoch, tenure));
            }
        }
    }

    /// Has the paths fenced that owe it, if there is one to ask on.
    fn ask(&mut self, act: &mut impl FnMut(Action)) {
        let up = (0..)
            .zip(&self.paths)
            .find(|(_, path)| path.link == Link::Up);
        let Some((via, _)) = up else {
            return;
        };
        for (id, path) in (0..).zip(&mut self.paths) {
            if path.owes_fence() && path.asked.is_none() {
                path.asked = Some(via);
                act(Action::Fence {
                    via,
                    path: id,
                    epoch: path.used,
                });
            }
        }
    }

    fn turn(&mut self, act: &mut impl FnMut(Action)) {
        let mode = self.treatment();
        if mode == Mode::Fail {
            self.stranded = false;
        }
        if mode == Mode::Flow {
            self.expired = false;
        }
        if mode != self.mode {
            if matches!(mode, Mode::Replay | Mode::Flow) && self.restarted {
                self.restarted = false;
                act(Action::Restarted);
            }
            self.mode = mode;
            act(Action::Turn(mode));
        }
    }

    /// How I/O has to be treated.
    fn treatment(&self) -> Mode {
        let up = self.paths.iter().any(|path| path.link == Link::Up);
        let fenced = !self.paths.iter().any(Path::owes_fence);
        // A path that is being closed is about to strand its requests.
        let drained = !self
            .paths
            .iter()
            .any(|path| path.link == Link::Closing && path.used == path.epoch);
        match () {
            () if self.end.is_some() => Mode::Fail,
            () if up && fenced && drained && self.stranded => Mode::Replay,
            () if up && fenced && drained => Mode::Flow,
            () if self.expired => Mode::Fail,
            () => Mode::Hold,
        }
    }
}
