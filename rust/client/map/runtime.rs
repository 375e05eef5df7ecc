// SPDX-License-Identifier: GPL-2.0

//! Runs one map: owns its paths and its disk, reports what happens to [`session::map`](crate::session::map),
//! and performs the actions that follow.
//!
//! All of it happens on the workqueue of the [`Session`](crate::client::map::owner::Session). Nothing is decided here.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::{
    errno::{
        ENOTCONN,
        EPROTO,
        ESTALE, //
    },
    sync, //
};
use crate::block::mq::GenDisk;
use crate::client::{
    io::{connection::Queue, disk::Disk, ledger::Io},
    map::{
        connect::{
            Outcome,
            Wanted, //
        },
        connected::Shape,
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
    Access,
    Event as Said,
    LoginReply,
    Text, //
};
use crate::session::{
    clock::{
        Delay,
        Timer, //
    },
    map::{
        Action,
        Config,
        End,
        Event,
        Extent,
        Failure as Refused,
        Farewell,
        Machine,
        Mode, //
    },
    Epoch,
    PathId,
    State,
    PATHS_MAX, //
};

/// Timers that may run at a time: two for each path, and those of the map.
const TIMERS: usize = 2 * PATHS_MAX + 4;
/// Events that one action or another may report at once: the machine asks for a ping and a fence per path
/// at most, and for one replay.
const REPORTS: usize = 2 * PATHS_MAX + 4;
/// Events of a server that one run of the work item looks at, per path: the other paths wait, too.
const EVENTS_MAX: usize = 16;

/// A map at work: what decides, and what is decided about.
pub(super) struct Shell {
    machine: Machine,
    parts: Parts,
    /// There may be more that a server said.
    unheard: bool,
}

/// What the machine's actions are performed on.
struct Parts {
    params: Arc<Params>,
    began: Instant<Monotonic>,
    /// As many as there can be paths; not on anybody's stack.
    lanes: KVec<Lane>,
    io: Arc<Io>,
    // Until the disk is gone, requests come.
    disk: Option<Arc<GenDisk<Disk>>>,
    /// The timers that run, and when they elapse, in ms since the session began.
    timers: KVec<(Timer, u64)>,
    /// What came of actions, for the machine.
    reports: KVec<Event>,
    /// What the disk was made from, or will be.
    shape: Option<Shape>,
    /// What the server told of the export.
    login: Option<LoginReply>,
}

impl Shell {
    /// No paths yet. May sleep.
    pub(super) fn new(params: &Arc<Params>, io: Arc<Io>) -> Result<Self> {
        let mut lanes = KVec::with_capacity(PATHS_MAX, GFP_KERNEL)?;
        for _ in ids() {
            lanes.push(Lane::NONE, GFP_KERNEL)?;
        }
        Ok(Self {
            machine: Machine::new(Config {
                no_path_timeout_ms: params.no_path_timeout_ms,
                heartbeat_ms: params.heartbeat_ms,
                reconnect_max_ms: params.reconnect_max_ms,
            }),
            parts: Parts {
                params: params.clone(),
                began: Instant::now(),
                lanes,
                io,
                disk: None,
                timers: KVec::with_capacity(TIMERS, GFP_KERNEL)?,
                reports: KVec::with_capacity(REPORTS, GFP_KERNEL)?,
                shape: None,
                login: None,
            },
            unheard: false,
        })
    }

    /// The I/O of the map.
    pub(super) fn io(&self) -> &Arc<Io> {
        &self.parts.io
    }

    /// What the disk has to keep to, once a path was up.
    pub(super) fn shape(&self) -> Option<&Shape> {
        self.parts.shape.as_ref()
    }

    /// The disk, while there is one.
    pub(super) fn disk(&self) -> Option<&Arc<GenDisk<Disk>>> {
        self.parts.disk.as_ref()
    }

    /// Takes note of a disk that has appeared. May sleep.
    pub(in crate::client) fn put_disk(&mut self, disk: Arc<GenDisk<Disk>>) {
        if matches!(self.machine.mode(), Mode::Hold | Mode::Replay) {
            disk.quiesce();
        }
        self.parts.disk = Some(disk);
        self.step(Event::Appeared);
    }

    /// What the user is to know of a map that is over: no server has confirmed that it let go of it.
    pub(in crate::client) fn untold(&self) -> Option<Failure> {
        match self.machine.farewell() {
            Farewell::Told => None,
            Farewell::Untold => Some(fail!(
                ENOTCONN,
                "the server could not be told: it keeps the map's place until its lease ends"
            )),
        }
    }

    /// Lets go of the disk, which is to be removed.
    pub(super) fn take_disk(&mut self) -> Option<Arc<GenDisk<Disk>>> {
        self.parts.disk.take()
    }

    /// What others may know of a path.
    pub(super) fn path_status(&self, id: PathId) -> PathStatus {
        let lane = self.parts.lanes.get(usize::from(id));
        lane.map_or(PathStatus::NONE, |lane| PathStatus {
            state: self.machine.path_state(id),
            next_try_ms: self.parts.left_ms(Timer::Retry(id)),
            ..lane.status
        })
    }

    /// Where the map stands, why I/O does not flow, and what the server told of the export.
    pub(super) fn report(&self) -> (State, Option<Failure>, Option<LoginReply>) {
        let state = self.machine.state();
        let failure = match state {
            State::Live if self.parts.io.has_lost_writes() => Some(fail!(
                EIO,
                "writes were lost with the server's cache: flushes fail until nobody has the disk open"
            )),
            State::Live => None,
            State::Stale => Some(
                match self.machine.known().is_some_and(|known| known.volatile) {
                    true => fail!(
                        ESTALE,
                        "the contents are gone: the server has another instance of the export"
                    ),
                    false => fail!(
                        ESTALE,
                        "the server has another export of this name: its UUID is not the same"
                    ),
                },
            ),
            _ => self.parts.lanes.iter().find_map(|lane| lane.status.failure),
        };
        (state, failure, self.parts.login)
    }

    /// Reports an event to the machine and performs what follows, with what comes of that.
    fn step(&mut self, event: Event) {
        let Self { machine, parts, .. } = self;
        let mut next = Some(event);
        while let Some(event) = next {
            machine.step(event, &mut |action| parts.perform(action));
            next = parts.reports.remove(0).ok();
        }
    }

    /// A path is lost, for all that is known of it.
    fn lose(&mut self, id: PathId, failure: Failure) {
        if let Some(lane) = self.parts.lane(id) {
            lane.status.failure = Some(failure);
        }
        self.step(Event::Lost(id, self.machine.epoch(id)));
    }

    /// Carries out what the user wants.
    fn obey(&mut self, order: Order) {
        match order {
            Order::Add(id, route) => {
                if let Some(lane) = self.parts.lane(id) {
                    *lane = Lane {
                        route: Some(route),
                        ..Lane::NONE
                    };
                    lane.status.since = Some(Instant::now());
                }
                self.step(Event::Add(id));
            }
            Order::Remove(id) => self.step(Event::Remove(id)),
            Order::Disable => self.step(Event::Disable),
        }
    }

    /// Reports what a route has done. `notes` as for [`Self::look`].
    fn hear(&mut self, id: PathId, outcome: Outcome, notes: &Notes<'_>) {
        match outcome {
            Outcome::Connected(epoch, path) => {
                let admission = path.admission();
                if let Some(lane) = self.parts.lane(id) {
                    lane.path = Some(path);
                }
                self.step(Event::Connected(id, epoch, admission));
            }
            Outcome::Refused(epoch, failure) => {
                let refused = match failure.error == EACCES {
                    true => Refused::Denied,
                    false => Refused::Transient,
                };
                if let Some(lane) = self.parts.lane(id) {
                    lane.status.failure = Some(failure);
                }
                self.step(Event::Refused(id, epoch, refused));
            }
            Outcome::Drained(epoch, how) => {
                let requeued = self.requeued(notes);
                self.step(Event::Drained {
                    path: id,
                    epoch,
                    how,
                    requeued,
                });
            }
            Outcome::Closed { told } => {
                let requeued = self.requeued(notes);
                self.step(Event::Closed {
                    path: id,
                    told,
                    requeued,
                });
            }
        }
    }

    /// Whether there are requeued requests. The machine has heard then of the loss of each of their
    /// paths: a queue pair that fails says so before it gives requests back.
    fn requeued(&mut self, notes: &Notes<'_>) -> bool {
        let requeued = self.parts.io.has_stranded();
        for (id, epoch) in ids().zip(notes.lost()) {
            self.broken(id, epoch);
        }
        requeued
    }

    /// The server may have said something on a path.
    fn listen(&mut self, id: PathId) {
        for _ in 0..EVENTS_MAX {
            let epoch = self.machine.epoch(id);
            let Some(lane) = self.parts.lane(id) else {
                return;
            };
            let Some(path) = &mut lane.path else {
                return;
            };
            let said = match path.event() {
                Ok(Some(said)) => said,
                Ok(None) => return,
                Err(failure) => return self.lose(id, failure),
            };
            lane.heard = true;
            match said {
                Said::Extent { number, extent } => {
                    let extent = Extent {
                        number,
                        size: extent.size,
                        writable: extent.access.writes(),
                    };
                    self.step(Event::Extent(id, epoch, extent));
                }
                Said::Pong => {
                    if let Some(asked) = lane.asked.take() {
                        let ns = asked.elapsed().as_nanos();
                        lane.status.rtt_ns = u64::try_from(ns).unwrap_or(0);
                    }
                    self.step(Event::Pong(id, epoch));
                }
                Said::Fenced { path, epoch } => self.step(Event::Fenced {
                    via: id,
                    path,
                    epoch,
                }),
            }
        }
        self.unheard = true;
    }

    /// A request of a hardware queue is late. A server that has a command answers it however long that
    /// takes, or the connection breaks. An RDMA READ or WRITE is nobody's business but the HCA's, and it
    /// completes in order: if nothing completed for as long as a request may take, the path is of no use.
    fn look_after(&mut self, queue: u16) {
        let now = self.parts.now();
        let timeout_ms = u64::from(self.parts.params.io_timeout_ms);
        for id in ids() {
            let stuck = self.parts.lane(id).is_some_and(|lane| {
                let queues = lane.path.as_ref().map(|path| &path.queues);
                let connection = queues.and_then(|queues| queues.get(usize::from(queue)));
                connection.is_some_and(|connection| connection.is_stuck(now, timeout_ms))
            });
            if stuck {
                self.lose(id, fail!(ETIMEDOUT, "an RDMA request does not end"));
            }
        }
    }

    /// A connection of an epoch of a path broke; epoch 0 for none.
    fn broken(&mut self, id: PathId, epoch: Epoch) {
        if epoch == 0 {
            return;
        }
        let is_up = self.machine.is_up(id) && epoch == self.machine.epoch(id);
        if let Some(lane) = self.parts.lane(id) {
            if is_up && lane.status.failure.is_none() {
                lane.status.failure = Some(lane.lost());
            }
        }
        self.step(Event::Lost(id, epoch));
    }

    /// Looks at what has happened, and at the clock. `notes` are what callbacks have left. May sleep, but
    /// neither for a server nor for I/O.
    pub(super) fn look(&mut self, notes: &Notes<'_>, order: Option<Order>) {
        if let Some(order) = order {
            self.obey(order);
        }
        self.unheard = false;
        for id in ids() {
            while let Some(outcome) = self.parts.outcome(id) {
                self.hear(id, outcome, notes);
            }
            // Before the loss: there may be more to be said of it.
            self.listen(id);
        }
        if let Some((id, epoch, malformed)) = notes.violated() {
            let is_current = self.machine.epoch(id) == epoch;
            if let Some(lane) = self.parts.lane(id).filter(|_| is_current) {
                lane.status.failure =
                    Some(fail!(EPROTO, "the server broke the protocol: {malformed}"));
            }
            self.broken(id, epoch);
        }
        for (id, epoch) in ids().zip(notes.lost()) {
            self.broken(id, epoch);
        }
        for queue in notes.late().into_iter().flatten() {
            self.look_after(queue);
        }
        let credited = notes.credited();
        for id in ids().filter(|id| credited & (1 << id) != 0) {
            if let Some(path) = self.parts.lane(id).and_then(|lane| lane.path.as_ref()) {
                path.queues.iter().for_each(Queue::grow);
            }
        }
        match self.machine.mode() {
            Mode::Replay => {
                let answered = self.parts.io.take_replay_answered();
                self.step(Event::ReplayEnded { answered });
            }
            Mode::Fail if self.parts.io.has_stranded() => self.step(Event::Requeued),
            Mode::Fail | Mode::Flow | Mode::Hold => {}
        }
        while let Some(timer) = self.parts.due() {
            let event = match timer {
                Timer::Heartbeat(id) => Event::Heartbeat(id, self.parts.has_heard(id)),
                timer => Event::Elapsed(timer),
            };
            self.step(event);
        }
    }

    /// When there is something to do by itself, in ms from now.
    pub(super) fn sleep(&self) -> Option<u64> {
        if self.unheard {
            return Some(0);
        }
        let next = self.parts.timers.iter().map(|(_, at)| *at).min()?;
        Some(next.saturating_sub(self.parts.now()))
    }

    /// Whether the user can be answered, and how.
    pub(super) fn verdict(&mut self, until: Until) -> Option<Result<(), Failure>> {
        match until {
            Until::Now => Some(Ok(())),
            Until::Gone(id) if self.machine.is_gone(id) => {
                if let Some(lane) = self.parts.lane(id) {
                    *lane = Lane::NONE;
                }
                Some(Ok(()))
            }
            Until::Gone(_) => None,
            Until::AllGone => ids().all(|id| self.machine.is_gone(id)).then_some(Ok(())),
            Until::Up if self.machine.end() == Some(End::Disabled) => Some(Err(ENOTCONN.into())),
            Until::Up if self.machine.known().is_some() => Some(Ok(())),
            Until::Up if !self.machine.all_tried() => None,
            Until::Up => {
                let mut lanes = self.parts.lanes.iter();
                let failure = lanes.find_map(|lane| lane.status.failure);
                Some(Err(failure.unwrap_or(ENOTCONN.into())))
            }
        }
    }
}

impl Parts {
    /// Milliseconds since the session began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0)
    }

    fn lane(&mut self, id: PathId) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(id))
    }

    fn outcome(&self, id: PathId) -> Option<Outcome> {
        self.lanes.get(usize::from(id))?.route.as_ref()?.outcome()
    }

    /// Milliseconds until a timer elapses, if it runs.
    fn left_ms(&self, timer: Timer) -> Option<u64> {
        let (_, at) = self.timers.iter().find(|(other, _)| *other == timer)?;
        Some(at.saturating_sub(self.now()))
    }

    /// A timer that has elapsed, which does not run any more.
    fn due(&mut self) -> Option<Timer> {
        let now = self.now();
        let index = self.timers.iter().position(|(_, at)| *at <= now)?;
        let (timer, _) = self.timers.remove(index).ok()?;
        Some(timer)
    }

    fn arm(&mut self, timer: Timer, delay: Delay) {
        // CAST: Any bits will do.
        let random = sync::random_u64() as u32;
        let jitter_ms = u64::from(random) % (u64::from(delay.jitter_ms) + 1);
        let at = self.now() + u64::from(delay.ms) + jitter_ms;
        match self.timers.iter_mut().find(|(other, _)| *other == timer) {
            Some((_, other)) => *other = at.min(*other),
            // Cannot fail: there is room for all timers that there are.
            None => drop(self.timers.push_within_capacity((timer, at))),
        }
    }

    fn report(&mut self, event: Event) {
        // Cannot fail: one step does not report more than there is room for.
        let _ = self.reports.push_within_capacity(event);
    }

    /// Whether anything was heard on a path since the last time.
    fn has_heard(&mut self, id: PathId) -> bool {
        let Some(lane) = self.lane(id) else {
            return false;
        };
        let Some(path) = &lane.path else {
            return false;
        };
        let completions = path.queues.iter().map(Queue::completions).sum();
        let heard = lane.heard || completions != lane.completions;
        lane.completions = completions;
        lane.heard = false;
        heard
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Arm(timer, delay) => self.arm(timer, delay),
            Action::Disarm(timer) => self.timers.retain(|(other, _)| *other != timer),
            Action::Connect {
                path,
                epoch,
                resume,
                urgent,
            } => {
                let queues = self.shape.map(|shape| shape.queues - shape.poll_queues);
                if let Some(route) = self.lane(path).and_then(|lane| lane.route.as_ref()) {
                    route.connect(Wanted {
                        epoch,
                        resume,
                        queues,
                        urgent,
                    });
                }
            }
            Action::Open(id) => self.open(id),
            Action::Close { path, epoch, leave } => {
                self.io.shut(path);
                if let Some(lane) = self.lane(path) {
                    lane.status.since = Some(Instant::now());
                    let path = lane.path.take();
                    if let Some(route) = &lane.route {
                        route.close(epoch, path, leave);
                    }
                }
            }
            Action::Blame(id, fault) => {
                if let Some(lane) = self.lane(id) {
                    lane.status.failure = Some(lane.blame(fault));
                }
            }
            Action::Ping(id) => {
                let Some(lane) = self.lane(id) else {
                    return;
                };
                // If the last one is still on its way, it will do.
                if lane.path.as_mut().is_some_and(|path| path.ping().is_ok()) {
                    lane.asked.get_or_insert_with(Instant::now);
                }
            }
            Action::Fence { via, path, epoch } => {
                let asked = match self.lane(via).and_then(|lane| lane.path.as_mut()) {
                    Some(on) => on.fence(path, epoch).map_err(|error| (error, on.epoch)),
                    None => Ok(()),
                };
                match asked {
                    Ok(()) => {}
                    Err((EAGAIN, _)) => self.report(Event::FenceNotSent(path)),
                    // That path is no better than the other.
                    Err((_, epoch)) => self.report(Event::Lost(via, epoch)),
                }
            }
            Action::SetMode(mode) => self.set_mode(mode),
            Action::Replay => {
                let done = self.io.resend();
                self.report(Event::Replayed { done });
            }
            Action::FailRequeued => self.io.fail_stranded(),
            Action::InstanceChanged => self.io.server_restarted(),
            Action::Resize(extent) => self.resize(&extent),
        }
    }

    /// Treats I/O in another way from now on.
    fn set_mode(&mut self, mode: Mode) {
        self.io.turn(mode);
        if let Some(disk) = &self.disk {
            match mode {
                Mode::Hold | Mode::Replay => disk.quiesce(),
                Mode::Flow | Mode::Fail => disk.unquiesce(),
            }
        }
    }

    /// Lets requests take a path.
    fn open(&mut self, id: PathId) {
        let Some(lane) = self.lanes.get_mut(usize::from(id)) else {
            return;
        };
        let Some(path) = &lane.path else {
            return;
        };
        lane.status.device = Some(Text::from(path.device().as_str()));
        lane.status.reconnects += u64::from(lane.was_up);
        lane.status.failure = None;
        lane.was_up = true;
        lane.asked = None;
        lane.heard = true;
        let queues = path.queues.clone();
        let shape = path.shape();
        let extent = self.login.map(|login| login.extent);
        self.login = Some(LoginReply {
            // The machine says what it is.
            extent: extent.unwrap_or(path.login.extent),
            ..path.login
        });
        self.shape.get_or_insert(shape);
        // Requests that come together on one path are posted together: they must not be spread over
        // more paths in the midst of that.
        let disk = self.disk.as_ref().filter(|_| self.io.flows());
        if let Some(disk) = disk {
            disk.quiesce();
        }
        self.io.open(id, queues);
        if let Some(disk) = disk {
            disk.unquiesce();
        }
    }

    /// The export has another size, or may be written or not. The disk is told when this is published.
    fn resize(&mut self, extent: &Extent) {
        if let Some(login) = &mut self.login {
            login.extent = crate::proto::Extent {
                size: extent.size,
                // Never more than was asked for.
                access: match extent.writable {
                    true => self.params.access,
                    false => Access::ReadOnly,
                },
            };
        }
    }
}

/// All paths that there can be.
fn ids() -> impl Iterator<Item = PathId> {
    (0..).take(PATHS_MAX)
}
