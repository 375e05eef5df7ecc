// SPDX-License-Identifier: GPL-2.0

//! What [`session::map`](crate::session::map) decides is performed here: the paths of a map, its I/O and
//! its disk.
//!
//! All of it happens on the workqueue of the [`Session`](crate::client::map::owner::Session).

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::errno::{
    ENOTCONN,
    EPROTO,
    ESTALE, //
};
use crate::block::mq::GenDisk;
use crate::client::{
    io::{
        connection::Queue,
        disk::Disk,
        ledger::{
            Io,
            Queues, //
        },
    },
    map::{
        connect::{
            Outcome,
            Wanted, //
        },
        connected::{
            Path,
            Shape, //
        },
        owner::{
            Notes,
            Order,
            Params,
            Until, //
        },
        path::{
            Lane,
            PathStatus, //
        },
    },
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Event as Said,
    LoginReply,
    Query,
    Text, //
};
use crate::session::{
    doubt::Doubts,
    map::{
        Action,
        End,
        Event,
        Failure as Refused,
        Map,
        Mode,
        Welcome, //
    },
    pulse::{
        Beat,
        Pulse, //
    },
    Epoch,
    PathId,
    PathState,
    State,
    PATHS_MAX, //
};

/// Beats in the time of a heartbeat.
const BEATS: u64 = 4;
/// Silent beats that are stood if there is another path.
const PATIENCE: u8 = 5;
/// Silent beats that are stood if there is none: three heartbeats. Nothing is gained by giving up early.
const PATIENCE_ALONE: u8 = 12;
/// How long to wait for room when requests are sent again, unless one of them ends.
const RESEND_MS: u64 = 10;
/// What the server said by itself that one run of the work item looks at, per path: others wait, too.
const EVENTS_MAX: usize = 16;

/// The paths of a map, and what they are there for.
pub(in crate::client) struct Shell {
    params: Arc<Params>,
    began: Instant<Monotonic>,
    map: Map,
    /// As many as there can be paths; not on anybody's stack.
    lanes: KVec<Lane>,
    io: Arc<Io>,
    // Until the disk is gone, requests come.
    disk: Option<Arc<GenDisk<Disk>>>,
    mode: Mode,
    /// When I/O has waited for long enough.
    expire_at: Option<u64>,
    /// When to look again whether there is room to send what had none.
    resend_at: Option<u64>,
    /// The map is being disabled.
    leaving: bool,
    /// A server has confirmed that it let go of the map.
    told: bool,
    /// There may be more that a server said.
    unheard: bool,
    /// The path that the disk was made for, or will be.
    shape: Option<Shape>,
    /// What the server told of the export.
    login: Option<LoginReply>,
}

impl Shell {
    /// No paths yet. May sleep.
    pub(in crate::client) fn new(params: &Arc<Params>, io: Arc<Io>) -> Result<Self> {
        let mut lanes = KVec::with_capacity(PATHS_MAX, GFP_KERNEL)?;
        for _ in ids() {
            lanes.push(Lane::NONE, GFP_KERNEL)?;
        }
        Ok(Self {
            params: params.clone(),
            began: Instant::now(),
            map: Map::new(),
            lanes,
            io,
            disk: None,
            mode: Mode::Hold,
            expire_at: None,
            resend_at: None,
            leaving: false,
            told: false,
            unheard: false,
            shape: None,
            login: None,
        })
    }

    /// Milliseconds since the session began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0)
    }

    /// The I/O of the map.
    pub(in crate::client) fn io(&self) -> &Arc<Io> {
        &self.io
    }

    /// What the disk has to keep to, once a path was up.
    pub(in crate::client) fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// The disk, while there is one.
    pub(in crate::client) fn disk(&self) -> Option<&Arc<GenDisk<Disk>>> {
        self.disk.as_ref()
    }

    /// Sees to a disk that has appeared. May sleep.
    pub(in crate::client) fn put_disk(&mut self, disk: Arc<GenDisk<Disk>>) {
        if matches!(self.mode, Mode::Hold | Mode::Replay) {
            disk.quiesce();
        }
        self.disk = Some(disk);
    }

    /// What the user is to know of a map that is over: no server has confirmed that it let go of it.
    pub(in crate::client) fn untold(&self) -> Option<Failure> {
        let keeps = self.login.is_some() && !self.told;
        keeps.then(|| {
            fail!(
                ENOTCONN,
                "the server could not be told: it keeps the map's place until its lease ends"
            )
        })
    }

    /// Lets go of the disk, which is to be removed.
    pub(in crate::client) fn take_disk(&mut self) -> Option<Arc<GenDisk<Disk>>> {
        self.disk.take()
    }

    /// What others may know of a path.
    pub(in crate::client) fn path_status(&self, id: PathId) -> PathStatus {
        let lane = self.lanes.get(usize::from(id));
        lane.map_or(PathStatus::NONE, |lane| PathStatus {
            state: self.map.path_state(id),
            next_try_ms: lane.retry_at.map(|at| at.saturating_sub(self.now())),
            ..lane.status
        })
    }

    /// Where the map stands, why I/O does not flow, and what the server told of the export.
    pub(in crate::client) fn report(&self) -> (State, Option<Failure>, Option<LoginReply>) {
        let state = match self.map.state() {
            state if self.disk.is_some() => state,
            State::Stale => State::Stale,
            _ => State::Connecting,
        };
        let failure = match state {
            State::Live => None,
            State::Stale => Some(match self.map.known().is_some_and(|known| known.volatile) {
                true => fail!(
                    ESTALE,
                    "the contents are gone: the server has another instance of the export"
                ),
                false => fail!(
                    ESTALE,
                    "the server has another export of this name: its UUID is not the same"
                ),
            }),
            _ => self.lanes.iter().find_map(|lane| lane.status.failure),
        };
        (state, failure, self.login)
    }

    /// Takes note of an event and does what follows.
    fn step(&mut self, event: Event) {
        let mut map = core::mem::take(&mut self.map);
        map.step(event, &mut |action| self.perform(action));
        self.map = map;
    }

    fn perform(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Connect(id, epoch, resume) => {
                let urgent = self.mode != Mode::Flow;
                let queues = self.shape.map(|shape| shape.queues - shape.poll_queues);
                if let Some(lane) = lane(&mut self.lanes, id) {
                    lane.retry_at = None;
                    if let Some(route) = &lane.route {
                        route.connect(Wanted {
                            epoch,
                            resume,
                            queues,
                            urgent,
                        });
                    }
                }
            }
            Action::Wait(id) => {
                let urgent = self.mode != Mode::Flow;
                if let Some(lane) = lane(&mut self.lanes, id) {
                    lane.retry_at = Some(now + lane.pause(&self.params, urgent));
                }
            }
            Action::Close(id, epoch) => {
                let leaving = self.leaving;
                self.io.shut(id);
                if let Some(lane) = lane(&mut self.lanes, id) {
                    lane.beat_at = None;
                    lane.doubts = Doubts::new();
                    lane.fences = [0; PATHS_MAX];
                    let path = lane.path.take();
                    lane.status.since = Some(Instant::now());
                    lane.close(epoch, path, leaving);
                }
            }
            Action::Fence { via, path, epoch } => {
                let fence = lane(&mut self.lanes, via)
                    .and_then(|lane| lane.fences.get_mut(usize::from(path)));
                if let Some(fence) = fence {
                    *fence = epoch;
                }
            }
            Action::Turn(mode) => self.turn(mode),
            Action::Restarted => self.io.server_restarted(),
        }
    }

    /// Treats I/O in another way from now on.
    fn turn(&mut self, mode: Mode) {
        self.mode = mode;
        self.io.turn(mode);
        match mode {
            Mode::Hold | Mode::Replay => {
                if let Some(disk) = &self.disk {
                    disk.quiesce();
                }
                if self.expire_at.is_none() {
                    self.expire_at = self.timeout().map(|ms| self.now().saturating_add(ms));
                }
                self.hurry();
            }
            Mode::Flow | Mode::Fail => {
                self.expire_at = None;
                if let Some(disk) = &self.disk {
                    disk.unquiesce();
                }
            }
        }
    }

    /// How long I/O waits, in ms.
    fn timeout(&self) -> Option<u64> {
        self.params.no_path_timeout_ms.map(u64::from)
    }

    /// I/O waits for paths that could wait until now.
    fn hurry(&mut self) {
        let now = self.now();
        for lane in &mut self.lanes {
            if let Some(at) = lane.retry_at {
                lane.retry_at = Some(at.min(now + lane.pause(&self.params, true)));
            }
        }
    }

    /// Asks for the fences that are to be had on a path. Whether all could be asked for.
    fn ask_for_fences(&mut self, id: PathId) -> bool {
        let Some(Lane {
            path: Some(path),
            fences,
            ..
        }) = lane(&mut self.lanes, id)
        else {
            return true;
        };
        for (other, fence) in ids().zip(fences) {
            if *fence == 0 {
                continue;
            }
            match path.fence(other, *fence) {
                Ok(()) => *fence = 0,
                Err(EAGAIN) => return false,
                Err(_) => {
                    // That path is no better than the other.
                    self.step(Event::Lost(id, self.map.epoch(id)));
                    return true;
                }
            }
        }
        true
    }

    /// Carries out what the user wants.
    fn obey(&mut self, order: Order) {
        match order {
            Order::Add(..) if self.leaving => {}
            Order::Add(id, route) => {
                if let Some(lane) = lane(&mut self.lanes, id) {
                    *lane = Lane {
                        route: Some(route),
                        ..Lane::NONE
                    };
                    lane.status.since = Some(Instant::now());
                }
                self.step(Event::Add(id));
            }
            Order::Remove(id) => self.step(Event::Remove(id)),
            Order::Disable if self.leaving => {}
            Order::Disable => {
                self.leaving = true;
                // The server keeps no place for a map that it has evicted.
                self.told |= self.map.end() == Some(End::Evicted);
                self.step(Event::Disable);
            }
        }
    }

    /// Hears of what a route has done.
    fn hear(&mut self, id: PathId, outcome: Outcome) {
        match outcome {
            Outcome::Connected(epoch, path) => self.welcome(id, epoch, path),
            Outcome::Refused(epoch, failure) => {
                // Who was let in before and is not any more will not be again.
                let refused = match failure.error == EACCES && self.map.known().is_some() {
                    true => Refused::Evicted,
                    false => Refused::Transient,
                };
                if let Some(lane) = lane(&mut self.lanes, id) {
                    lane.tried = true;
                    lane.status.failure = Some(failure);
                }
                self.step(Event::Refused(id, epoch, refused));
            }
            Outcome::Drained(epoch) => {
                let draining = match lane(&mut self.lanes, id) {
                    Some(lane) => {
                        lane.draining = lane.draining.saturating_sub(1);
                        lane.draining
                    }
                    None => 0,
                };
                if draining == 0 {
                    if self.mode == Mode::Fail {
                        self.io.fail_stranded();
                    }
                    let stranded = self.io.has_stranded();
                    self.step(Event::Drained(id, epoch, stranded));
                }
            }
            Outcome::Closed(told) => {
                self.told |= told;
                if let Some(lane) = lane(&mut self.lanes, id) {
                    lane.closing = lane.closing.saturating_sub(1);
                }
            }
        }
    }

    /// A path is connected.
    fn welcome(&mut self, id: PathId, epoch: Epoch, path: Path) {
        let fits = match &self.shape {
            Some(shape) => path.fits(shape),
            None => Ok(()),
        };
        let wanted =
            self.map.epoch(id) == epoch && self.map.path_state(id) == PathState::Connecting;
        let login = path.login;
        let welcome = Welcome {
            export: u128::from_be_bytes(*login.export_uuid.as_bytes()),
            instance: u128::from_be_bytes(*login.instance.as_bytes()),
            volatile: login.geometry().is_some(),
            tenure: login.tenure,
        };
        let leaving = self.leaving;
        let first = self.shape.is_none();
        let device = Text::from(path.device().as_str());
        let period = self.period();
        let now = self.now();
        let shape = path.shape();
        let Some(lane) = lane(&mut self.lanes, id) else {
            return;
        };
        lane.tried = true;
        let fits = match lane.lost == epoch {
            true => Err(Self::lost(lane)),
            false => fits,
        };
        if !wanted || fits.is_err() {
            if let Err(failure) = fits {
                lane.status.failure = Some(failure);
            }
            if wanted {
                lane.path = Some(path);
                self.step(Event::Lost(id, epoch));
            } else {
                // As far as the machine knows, it is being closed.
                lane.close(epoch, Some(path), leaving);
            }
            return;
        }
        lane.status.device = Some(device);
        lane.status.reconnects += u64::from(lane.was_up);
        lane.was_up = true;
        lane.status.failure = None;
        lane.backoff.reset();
        lane.pulse = Pulse::new();
        lane.asked = None;
        lane.heard = true;
        lane.beat_at = period.map(|period| now + period);
        let queues = path.queues.clone();
        lane.path = Some(path);
        if first {
            self.shape = Some(shape);
        }
        let known = self.map.known();
        let restarted = known.is_some_and(|known| known.instance != welcome.instance);
        // If I/O flows, to a server that is gone, it has to end before any goes to this one.
        let late = restarted && self.mode == Mode::Flow;
        if self.map.judge(&welcome).is_none() {
            if !late {
                self.open(id, queues.clone());
            }
            self.login = Some(login);
        }
        self.step(Event::Connected(id, epoch, welcome));
        if late && self.map.is_up(id) {
            self.open(id, queues);
        }
    }

    /// Lets requests take a path, if they may flow.
    fn open(&self, id: PathId, queues: Arc<Queues>) {
        // Requests that come together on one path are posted together: they must not be spread over
        // more paths in the midst of that.
        let disk = self.disk.as_ref().filter(|_| self.mode == Mode::Flow);
        if let Some(disk) = disk {
            disk.quiesce();
        }
        self.io.open(id, queues);
        if let Some(disk) = disk {
            disk.unquiesce();
        }
    }

    /// The server may have said something on a path.
    fn listen(&mut self, id: PathId) {
        for _ in 0..EVENTS_MAX {
            let Some(lane) = lane(&mut self.lanes, id) else {
                return;
            };
            let Some(path) = &mut lane.path else {
                return;
            };
            let said = match path.event() {
                Ok(Some(said)) => said,
                Ok(None) => return,
                Err(failure) => {
                    lane.status.failure = Some(failure);
                    return self.step(Event::Lost(id, self.map.epoch(id)));
                }
            };
            lane.heard = true;
            match said {
                Said::Extent(extent) => {
                    if let Some(login) = &mut self.login {
                        login.extent = extent;
                    }
                }
                Said::Pong => {
                    if let Some(asked) = lane.asked.take() {
                        let ns = asked.elapsed().as_nanos();
                        lane.status.rtt_ns = u64::try_from(ns).unwrap_or(0);
                    }
                }
                Said::Fenced { path, epoch } => {
                    self.step(Event::Fenced(path, epoch));
                }
                Said::Fate {
                    queue,
                    tag,
                    generation,
                    running,
                } => {
                    let query = Query {
                        queue,
                        tag,
                        generation,
                    };
                    let queues = &path.queues;
                    let queue = queues.get(usize::from(queue));
                    let waits = queue.and_then(|queue| queue.waiting(tag)) == Some(generation);
                    if !waits || running {
                        lane.doubts.settle(&query);
                    } else if lane.doubts.add(query) {
                        lane.status.failure =
                            Some(fail!(EPROTO, "the server does not answer a command"));
                        return self.step(Event::Lost(id, self.map.epoch(id)));
                    }
                }
            }
        }
        self.unheard = true;
    }

    /// A request is late: asks the server for it on the path that it took.
    fn look_after(&mut self, (queue, tag): (u16, u16)) {
        for id in ids() {
            let Some(Lane {
                path: Some(path),
                status,
                ..
            }) = lane(&mut self.lanes, id)
            else {
                continue;
            };
            let queues = path.queues.clone();
            let Some(connection) = queues.get(usize::from(queue)) else {
                continue;
            };
            connection.catch_up();
            let asked = match connection.waiting(tag) {
                Some(generation) => path.query(&Query {
                    queue,
                    tag,
                    generation,
                }),
                // Nobody can be asked for it, and an HCA does not take so long.
                None if connection.accesses(tag) => {
                    status.failure = Some(fail!(ETIMEDOUT, "an RDMA request does not end"));
                    Err(ETIMEDOUT)
                }
                None => Ok(()),
            };
            drop(queues);
            // If the question is not possible now, there will be another occasion.
            if asked == Err(ETIMEDOUT) {
                self.step(Event::Lost(id, self.map.epoch(id)));
            }
        }
    }

    /// How often to look whether something was heard, in ms.
    fn period(&self) -> Option<u64> {
        let ms = u64::from(self.params.heartbeat_ms);
        (ms != 0).then_some((ms / BEATS).max(1))
    }

    /// A period of a path is over.
    fn beat(&mut self, id: PathId) {
        let now = self.now();
        let period = self.period();
        let others = ids().any(|other| other != id && self.map.is_up(other));
        let Some(lane) = lane(&mut self.lanes, id) else {
            return;
        };
        let Some(path) = &mut lane.path else {
            return;
        };
        let completions = path.queues.iter().map(Queue::completions).sum();
        let heard = lane.heard || completions != lane.completions;
        lane.completions = completions;
        lane.heard = false;
        lane.beat_at = period.map(|period| now + period);
        let patience = match others {
            true => PATIENCE,
            false => PATIENCE_ALONE,
        };
        if lane.pulse.beat(heard, patience) == Beat::Gone {
            lane.status.failure = Some(fail!(ETIMEDOUT, "the server does not answer any more"));
            return self.step(Event::Lost(id, self.map.epoch(id)));
        }
        // The server wants to hear of this host now and then, too.
        let due = now.saturating_sub(lane.pinged_at) >= u64::from(self.params.heartbeat_ms);
        // If the last one is still on its way, it will do.
        if (due || !heard) && path.ping().is_ok() {
            lane.pinged_at = now;
            lane.asked.get_or_insert_with(Instant::now);
        }
    }

    /// An epoch of a path is lost; 0 for none.
    fn lose(&mut self, id: PathId, epoch: Epoch) {
        let Some(lane) = lane(&mut self.lanes, id) else {
            return;
        };
        lane.lost = lane.lost.max(epoch);
        // What becomes of an attempt, its own outcome tells: the server may have said why.
        if epoch == 0 || self.map.path_state(id) == PathState::Connecting {
            return;
        }
        if epoch == self.map.epoch(id) && lane.path.is_some() && lane.status.failure.is_none() {
            lane.status.failure = Some(Self::lost(lane));
        }
        self.step(Event::Lost(id, epoch));
    }

    /// What the user is told of a lost connection.
    fn lost(lane: &Lane) -> Failure {
        match &lane.route {
            Some(route) => fail!(ENOTCONN, "the connection to {} was lost", route.target.addr),
            None => ENOTCONN.into(),
        }
    }

    /// Looks at what has happened, and what follows from it and from the clock. May sleep, but neither for
    /// a server nor for I/O.
    pub(in crate::client) fn look(&mut self, notes: &Notes, order: Option<Order>) {
        if let Some(order) = order {
            self.obey(order);
        }
        self.unheard = false;
        for id in ids() {
            while let Some(outcome) = lane(&mut self.lanes, id)
                .and_then(|lane| lane.route.clone())
                .and_then(|route| route.outcome())
            {
                self.hear(id, outcome);
            }
            // Before the loss: there may be more to be said of it.
            self.listen(id);
        }
        if let Some((id, epoch, malformed)) = notes.violated {
            if let Some(lane) = lane(&mut self.lanes, id).filter(|_| self.map.epoch(id) == epoch) {
                lane.status.failure =
                    Some(fail!(EPROTO, "the server broke the protocol: {malformed}"));
            }
            self.lose(id, epoch);
        }
        for (id, lost) in ids().zip(notes.lost) {
            self.lose(id, lost);
        }
        for late in notes.late.iter().flatten() {
            self.look_after(*late);
        }
        for id in ids() {
            let Some(lane) = lane(&mut self.lanes, id) else {
                continue;
            };
            if notes.credited & (1 << id) != 0 {
                if let Some(path) = &lane.path {
                    path.queues.iter().for_each(Queue::grow);
                }
            }
        }
        // What follows may be due at once.
        loop {
            let mode = self.mode;
            self.watch();
            if self.mode == mode {
                break;
            }
        }
    }

    /// Looks at the clock.
    fn watch(&mut self) {
        let now = self.now();
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now);
        for id in ids() {
            let Some(lane) = lane(&mut self.lanes, id) else {
                continue;
            };
            let (retry, beat) = (is_due(lane.retry_at), is_due(lane.beat_at));
            if retry {
                lane.retry_at = None;
                self.step(Event::Retry(id));
            }
            if beat {
                self.beat(id);
            }
        }
        self.resend_at = None;
        for id in ids() {
            if !self.ask_for_fences(id) {
                self.resend_at = Some(now + RESEND_MS);
            }
        }
        if is_due(self.expire_at) && self.mode == Mode::Hold {
            self.step(Event::Expired);
        }
        match self.mode {
            Mode::Replay => match self.io.resend() {
                true => self.step(Event::Replayed),
                false => self.resend_at = Some(now + RESEND_MS),
            },
            Mode::Fail => self.io.fail_stranded(),
            Mode::Flow | Mode::Hold => {}
        }
    }

    /// When there is something to do by itself, in ms from now.
    pub(in crate::client) fn sleep(&self) -> Option<u64> {
        if self.unheard {
            return Some(0);
        }
        let lanes = self.lanes.iter();
        let lanes = lanes.flat_map(|lane| [lane.retry_at, lane.beat_at]);
        let expire_at = self.expire_at.filter(|_| self.mode == Mode::Hold);
        let own = [expire_at, self.resend_at].into_iter();
        let next = Iterator::chain(lanes, own).flatten().min()?;
        Some(next.saturating_sub(self.now()))
    }

    /// Whether the user can be answered, and how.
    pub(in crate::client) fn verdict(&mut self, until: Until) -> Option<Result<(), Failure>> {
        let gone = |id| {
            let lane = self.lanes.get(usize::from(id));
            let closed = lane.is_none_or(|lane| lane.closing == 0);
            closed && self.map.path_state(id) == PathState::Disabled
        };
        match until {
            Until::Now => Some(Ok(())),
            Until::Gone(id) if gone(id) => {
                if let Some(lane) = lane(&mut self.lanes, id) {
                    *lane = Lane::NONE;
                }
                Some(Ok(()))
            }
            Until::Gone(_) => None,
            Until::AllGone => ids().all(gone).then_some(Ok(())),
            Until::Up if self.leaving => Some(Err(ENOTCONN.into())),
            Until::Up if self.shape.is_some() => Some(Ok(())),
            Until::Up => {
                let mut wanted = self.lanes.iter().filter(|lane| lane.route.is_some());
                if !wanted.clone().all(|lane| lane.tried) {
                    return None;
                }
                let failure = wanted.find_map(|lane| lane.status.failure);
                Some(Err(failure.unwrap_or(ENOTCONN.into())))
            }
        }
    }
}

/// All paths that there can be.
fn ids() -> impl Iterator<Item = PathId> {
    (0..).take(PATHS_MAX)
}

fn lane(lanes: &mut [Lane], id: PathId) -> Option<&mut Lane> {
    lanes.get_mut(usize::from(id))
}
