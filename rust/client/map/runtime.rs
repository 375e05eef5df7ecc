// SPDX-License-Identifier: GPL-2.0

//! Runs one map: takes commands, outcomes and events, reports them to [`session::map`], and
//! performs the actions that follow on the [`Resources`] of the map: its paths, its disk and its
//! timers.
//!
//! All of it happens in the work item of the [`Map`](super::Map). Nothing is decided here.
//!
//! Long: the events and the actions of one machine are in one place.
//!
//! [`session::map`]: crate::session::map

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    fmt,
    sync::Arc,
    time::{
        BootTime,
        Instant, //
    },
};

use crate::base::{
    errno::{
        ENOTCONN,
        EPROTO,
        ESTALE, //
    },
    trace, //
};
use crate::client::{
    events::Events,
    io::{
        disk::{
            Disk,
            DiskLimits, //
        },
        multipath::Multipath,
        queue::IoQueue, //
    },
    map::{
        connect::{
            Attempt,
            ConnectedPath,
            Connector,
            Outcome, //
        },
        timers::Timers, //
    },
    params::Params,
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    self,
    Access,
    Event as ServerEvent,
    Kind,
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
        Failure as AttemptFailure,
        Farewell,
        Fault,
        Machine,
        Mode, //
    },
    Epoch,
    PathId,
    PathState,
    State,
    PATHS_MAX, //
};

/// Number of events of a server that one run of the work item handles, per path: the other paths
/// wait.
const SERVER_EVENTS_MAX: usize = 16;

/// Number of events that the actions of one step may report, at most: the machine asks for a ping
/// and a fence per path, and for one replay.
const REPORTS_MAX: usize = 2 * PATHS_MAX + 4;

/// The status of a path.
#[derive(Clone, Copy)]
pub(crate) struct PathStatus {
    /// The state.
    pub(crate) state: PathState,
    /// The RDMA device in use.
    pub(crate) device: Option<Text>,
    /// The time that the server took to answer the last ping, in ns.
    pub(crate) rtt_ns: u64,
    /// How often the path came up again.
    pub(crate) reconnects: u64,
    /// Time until the next attempt to connect, in ms.
    pub(crate) next_try_ms: Option<u64>,
    /// Why the path was lost, or could not be connected; `None` while it is up.
    pub(crate) failure: Option<Failure>,
}

impl PathStatus {
    /// The status of a path that is not part of the map.
    pub(in crate::client) const NONE: Self = Self {
        state: PathState::Disabled,
        device: None,
        rtt_ns: 0,
        reconnects: 0,
        next_try_ms: None,
        failure: None,
    };
}

/// One path of a map. Only the map's work item uses it.
struct Path {
    /// Connects and closes the path; `None` if it is not part of the map.
    connector: Option<Arc<Connector>>,
    /// The connections, while there are any.
    connected: Option<ConnectedPath>,
    /// The status. [`PathStatus::state`] and [`PathStatus::next_try_ms`] are filled in when it is
    /// read.
    status: PathStatus,
    /// When the last attempt to connect began.
    began: Option<Instant<BootTime>>,
    /// When a ping was sent, and the number of answers until the one to it.
    ping_sent: Option<(Instant<BootTime>, u32)>,
    /// The number of pings that the server has not answered.
    pings: u32,
    /// The path was up before.
    was_up: bool,
    /// The user removes the path.
    removed: bool,
    /// The server has sent an event since the last call of [`Self::has_heard`].
    heard: bool,
    /// The number of completions at the last call of [`Self::has_heard`].
    completions: u64,
}

impl Path {
    /// A path that is not part of the map.
    const NONE: Self = Self {
        connector: None,
        connected: None,
        status: PathStatus::NONE,
        began: None,
        ping_sent: None,
        pings: 0,
        was_up: false,
        removed: false,
        heard: false,
        completions: 0,
    };

    /// Makes a path that `connector` connects.
    fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector: Some(connector),
            ..Self::NONE
        }
    }

    /// Begins an attempt to connect. May sleep, but does not wait for the outcome.
    fn connect(&mut self, attempt: Attempt) {
        self.began = Some(Instant::now());
        if let Some(connector) = &self.connector {
            connector.connect(attempt);
        }
    }

    /// Takes the oldest outcome of the connector. May sleep.
    fn take_outcome(&self) -> Option<Outcome> {
        self.connector.as_ref()?.take_outcome()
    }

    /// Begins to close the path, as [`Connector::close`]. May sleep, but does not wait for the
    /// outcomes.
    fn close(&mut self, epoch: Epoch, leave: bool) {
        let connected = self.connected.take();
        if let Some(connector) = &self.connector {
            connector.close(epoch, connected, leave);
        }
    }

    /// Notes that I/O takes the path.
    fn set_up(&mut self) {
        let device = self.connected.as_ref().map(ConnectedPath::device);
        self.status.device = device.map(|device| Text::from(device.as_str()));
        self.status.reconnects += u64::from(self.was_up);
        self.status.failure = None;
        self.was_up = true;
        self.ping_sent = None;
        self.pings = 0;
        self.heard = true;
    }

    /// Notes that the path is closed because of `fault`.
    fn set_fault(&mut self, fault: Fault) {
        self.status.failure = Some(match &self.connector {
            Some(connector) => closed(connector.target.addr, fault),
            None => ENOTCONN.into(),
        });
    }

    /// Notes that a connection was lost, unless the reason is known already.
    fn set_lost(&mut self) {
        if self.status.failure.is_none() {
            self.set_fault(Fault::Broken);
        }
    }

    /// Notes that the user removes the path.
    fn set_removed(&mut self) {
        self.removed = true;
    }

    /// Notes that the server has sent an event.
    fn set_heard(&mut self) {
        self.heard = true;
    }

    /// Returns true if the server has sent an event, or a work request has completed, since the
    /// last call.
    fn has_heard(&mut self) -> bool {
        let Some(connected) = &self.connected else {
            return false;
        };
        let completions = connected.queues.iter().map(IoQueue::completions).sum();
        let heard = self.heard || completions != self.completions;
        self.completions = completions;
        self.heard = false;
        heard
    }

    /// Sends a ping. May sleep, but does not wait for the answer.
    fn ping(&mut self) {
        // There may be memory by now that was not there when an answer gave credit.
        self.grow(false);
        let now = Instant::now();
        // If there is no buffer for it, earlier pings are still being sent, and they will do.
        if self
            .connected
            .as_mut()
            .is_some_and(|path| path.ping().is_ok())
        {
            self.pings = self.pings.saturating_add(1);
            self.ping_sent.get_or_insert((now, self.pings));
        }
    }

    /// Notes that the server has answered a ping. It answers them in their order. Returns when that
    /// ping was sent, unless it was not noted.
    fn pong(&mut self) -> Option<Instant<BootTime>> {
        self.pings = self.pings.saturating_sub(1);
        let (sent, answers) = self.ping_sent?;
        if answers > 1 {
            self.ping_sent = Some((sent, answers - 1));
            return None;
        }
        self.status.rtt_ns = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(0);
        self.ping_sent = None;
        Some(sent)
    }

    /// Returns true if a hardware queue has a late request, and makes no progress on this path. See
    /// [`IoQueue::is_stuck`].
    fn is_stuck(&self, hw_queue: u16, now: u64, timeout_ms: u64) -> bool {
        let connected = self.connected.as_ref();
        connected
            .and_then(|connected| connected.queues.get(usize::from(hw_queue)))
            .is_some_and(|queue| queue.is_stuck(now, timeout_ms))
    }

    /// Makes receives for the commands that the server allows in flight. See [`IoQueue::grow`]. May
    /// sleep.
    fn grow(&self, ask_again: bool) {
        if let Some(connected) = &self.connected {
            connected
                .queues
                .iter()
                .for_each(|queue| queue.grow(ask_again));
        }
    }
}

/// What the actions of the machine are performed on.
struct Resources {
    params: Arc<Params>,
    /// One entry for each possible path. They are too large for a stack.
    paths: KVec<Path>,
    multipath: Arc<Multipath>,
    /// When the latest message was sent that the server has answered, a login or a ping, on any
    /// path, also one that was removed since: the server was there later than that.
    alive: Option<Instant<BootTime>>,
    /// The disk, which may have requests as long as it is here.
    disk: Option<Arc<Disk>>,
    timers: Timers,
    /// Events that actions report to the machine.
    reports: KVec<Event>,
    /// The limits of the disk, once a path was up.
    limits: Option<DiskLimits>,
    /// The server's description of the export, once a path was up.
    login: Option<LoginReply>,
    /// How often a path was up again, also one that was removed since.
    reconnects: u64,
    /// How often a path was lost while another one was up.
    failovers: u64,
}

impl Resources {
    /// Makes a map without paths. May sleep.
    fn new(params: &Arc<Params>, events: &Arc<Events>) -> Result<Self> {
        let mut paths = KVec::with_capacity(PATHS_MAX, GFP_KERNEL)?;
        for _ in 0..PATHS_MAX {
            paths.push(Path::NONE, GFP_KERNEL)?;
        }
        Ok(Self {
            params: params.clone(),
            paths,
            multipath: Multipath::new(params.options.policy, events.clone())?,
            alive: None,
            disk: None,
            timers: Timers::new()?,
            reports: KVec::with_capacity(REPORTS_MAX, GFP_KERNEL)?,
            limits: None,
            login: None,
            reconnects: 0,
            failovers: 0,
        })
    }

    /// Returns a path.
    fn path(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(id))
    }

    /// Notes why a path was lost, or could not be connected.
    fn set_failure(&mut self, id: PathId, failure: Failure) {
        if let Some(path) = self.path(id) {
            path.status.failure = Some(failure);
        }
    }

    /// Returns the failure of the first path that has one.
    fn first_failure(&self) -> Option<Failure> {
        self.paths.iter().find_map(|path| path.status.failure)
    }

    /// Takes the oldest event that an action has reported.
    fn take_report(&mut self) -> Option<Event> {
        self.reports.remove(0).ok()
    }

    fn report(&mut self, event: Event) {
        // Cannot fail: the capacity suffices for the reports of one step.
        let _ = self.reports.push_within_capacity(event);
    }

    /// Returns the time in ms since the last login or ping was sent that the server has answered;
    /// 0 if there was none.
    fn silent_ms(&self) -> u32 {
        let past_ms = self.alive.map_or(0, |alive| alive.elapsed().as_millis());
        u32::try_from(past_ms).unwrap_or(u32::MAX)
    }

    /// Notes that the server has answered a ping on a path.
    fn pong(&mut self, id: PathId) {
        let sent = self.path(id).and_then(Path::pong);
        self.note_alive(sent);
    }

    /// Notes that the server has answered a message that was sent at this time.
    fn note_alive(&mut self, sent: Option<Instant<BootTime>>) {
        let times = [self.alive, sent].into_iter().flatten();
        self.alive = times.min_by_key(|time| time.elapsed());
    }

    /// Performs an action. May sleep, but waits neither for a server nor for I/O.
    fn perform(&mut self, action: Action) {
        match action {
            Action::Arm(timer, delay) => self.timers.arm(timer, delay),
            Action::ArmLease(ms) => {
                let left_ms = ms.saturating_sub(self.silent_ms());
                self.timers.arm(Timer::Lease, Delay::exactly(left_ms));
            }
            Action::Disarm(timer) => self.timers.disarm(timer),
            Action::Connect {
                path,
                epoch,
                resume,
                urgent,
            } => {
                let disk = self.limits.as_ref().map(|limits| {
                    let interrupts = limits.queues - limits.poll_queues;
                    (interrupts, limits.poll_queues, limits.depth)
                });
                let attempt = Attempt {
                    epoch,
                    resume,
                    disk,
                    urgent,
                };
                if let Some(path) = self.path(path) {
                    path.connect(attempt);
                }
            }
            Action::Open(id) => self.open_path(id),
            Action::Close { path, epoch, leave } => {
                let shared = self.multipath.has_other_than(path);
                self.multipath.remove_path(path);
                if let Some(path) = self.path(path) {
                    path.close(epoch, leave);
                    let lost = !leave && !path.removed;
                    self.failovers += u64::from(lost && shared);
                }
            }
            Action::Blame(id, fault) => {
                if let Some(path) = self.path(id) {
                    path.set_fault(fault);
                }
            }
            Action::Ping(id) => {
                if let Some(path) = self.path(id) {
                    path.ping();
                }
            }
            Action::Fence { via, path, epoch } => self.fence(via, path, epoch),
            Action::SetMode(mode) => self.set_mode(mode),
            Action::Replay => {
                let done = self.multipath.replay();
                self.report(Event::Replayed { done });
            }
            Action::FailRequeued => self.multipath.fail_requeued(),
            Action::InstanceChanged => self.multipath.instance_changed(),
            Action::Flushed => self.multipath.server_flushed(),
            Action::Resize(extent) => self.resize(&extent),
        }
    }

    /// Asks on the path `via` that another one be fenced up to an epoch.
    fn fence(&mut self, via: PathId, path: PathId, epoch: Epoch) {
        let Some(on) = self.path(via).and_then(|path| path.connected.as_mut()) else {
            return;
        };
        let (sent, on_epoch) = (on.fence(path, epoch), on.epoch);
        trace::fence(|| {
            let error = sent.err().map_or(0, |error: Error| error.to_errno());
            (self.params.name.as_str(), via, path, epoch, error)
        });
        match sent {
            Ok(()) => {}
            Err(EAGAIN) => self.report(Event::FenceNotSent(path)),
            // The path that was to carry the message is broken, too.
            Err(_) => self.report(Event::Lost(via, on_epoch)),
        }
    }

    /// Sets how I/O is treated.
    fn set_mode(&mut self, mode: Mode) {
        // CAST: A small number.
        trace::mode(|| (self.params.name.as_str(), mode as u8));
        self.multipath.set_mode(mode);
        if let Some(disk) = &self.disk {
            match mode {
                Mode::Hold | Mode::Replay => {
                    disk.quiesce();
                    self.multipath.ring();
                }
                Mode::Flow | Mode::Fail => disk.unquiesce(),
            }
        }
    }

    /// Lets requests take a path.
    fn open_path(&mut self, id: PathId) {
        let Some(path) = self.paths.get_mut(usize::from(id)) else {
            return;
        };
        let Some(connected) = &path.connected else {
            return;
        };
        let queues = connected.queues.clone();
        let limits = connected.limits;
        self.reconnects += u64::from(path.was_up);
        path.set_up();
        let began = path.began;
        self.note_alive(began);
        let extent = self.login.map(|login| login.extent);
        self.login = Some(LoginReply {
            // The machine chooses the extent: see `Self::resize`.
            extent: extent.unwrap_or(limits.login.extent),
            ..limits.login
        });
        self.limits.get_or_insert(limits);
        self.multipath.add_path(id, queues);
    }

    /// Prints the counters of the map. May sleep.
    fn show_stats(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = self.multipath.totals();
        totals.show(f)?;
        writeln!(f, "retries {}", totals.retries)?;
        // Every read and write of an export of RAM is one-sided, and none of a block device.
        let one_sided = match self.login.map(|login| login.kind()) {
            Some(Kind::Ram) => totals.data_ios(),
            Some(Kind::Block) | None => 0,
        };
        writeln!(f, "one_sided {one_sided}")?;
        let in_flight = self.disk.as_ref().map_or(0, |disk| disk.in_flight());
        writeln!(f, "in_flight {in_flight}")?;
        writeln!(f, "reconnects {}", self.reconnects)?;
        writeln!(f, "failovers {}", self.failovers)
    }

    /// Notes the extent of the export. The disk changes when the state is published.
    fn resize(&mut self, extent: &Extent) {
        if let Some(login) = &mut self.login {
            login.extent = proto::Extent {
                size: extent.size,
                // Never more than what the user asked for.
                access: match extent.writable {
                    true => self.params.options.access,
                    false => Access::ReadOnly,
                },
            };
        }
    }
}

/// Returns the words for a path to `addr` that is closed because of `fault`.
fn closed(addr: SocketAddr, fault: Fault) -> Failure {
    match fault {
        Fault::OtherServer => fail!(
            ESTALE,
            "{addr} is another server than the one that the map is at"
        ),
        Fault::OtherExport => fail!(
            ESTALE,
            "{addr} has another export of this name: its UUID is not the same"
        ),
        Fault::OtherReservation => fail!(
            EACCES,
            "{addr} does not remember this map: another one may have had the export"
        ),
        Fault::Overtaken => fail!(
            EAGAIN,
            "the attempt began before the server began anew; it is tried again"
        ),
        Fault::Misfit(why) => fail!(EINVAL, "{why}: the disk needs it; map it anew"),
        Fault::Broken => fail!(ENOTCONN, "the connection to {addr} was lost"),
        Fault::Silent => fail!(ETIMEDOUT, "the server does not answer any more"),
    }
}

/// A command of the user.
pub(super) enum MapCommand {
    /// Add a path: connect it, and connect it again whenever it is lost.
    AddPath(PathId, Arc<Connector>),
    /// Remove a path.
    RemovePath(PathId),
    /// Close all paths for ever. I/O fails.
    Disable,
}

/// The condition under which the user's command is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// None: it is complete when the machine has heard of it.
    Nothing,
    /// A path is up, or each path has failed once.
    PathUp,
    /// Nothing is left of the path.
    PathGone(PathId),
    /// Nothing is left of any path.
    AllPathsGone,
}

/// A map that is enabled: the machine that decides, and what it decides about.
pub(super) struct MapRuntime {
    machine: Machine,
    resources: Resources,
    events: Arc<Events>,
    /// A server may have sent more events than the last run of the work item handled.
    more_server_events: bool,
}

impl MapRuntime {
    /// Makes a map without paths. May sleep.
    pub(super) fn new(params: &Arc<Params>, events: Arc<Events>) -> Result<Self> {
        Ok(Self {
            machine: Machine::new(Config {
                no_path_timeout_ms: params.options.no_path_timeout_ms,
                heartbeat_ms: params.options.heartbeat_ms,
                reconnect_max_ms: params.options.reconnect_max_ms,
            }),
            resources: Resources::new(params, &events)?,
            events,
            more_server_events: false,
        })
    }

    /// Returns the block driver.
    pub(super) fn multipath(&self) -> &Arc<Multipath> {
        &self.resources.multipath
    }

    /// Returns the mailbox.
    pub(super) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Returns the limits of the disk, once a path was up.
    pub(super) fn limits(&self) -> Option<&DiskLimits> {
        self.resources.limits.as_ref()
    }

    /// Returns the disk, while it is installed.
    pub(super) fn disk(&self) -> Option<&Arc<Disk>> {
        self.resources.disk.as_ref()
    }

    /// Installs the disk, which has just been added. May sleep.
    pub(super) fn install_disk(&mut self, disk: Arc<Disk>) {
        // The mode may have changed since the disk was added, and its requests have begun.
        if matches!(self.machine.mode(), Mode::Hold | Mode::Replay) {
            disk.quiesce();
            self.multipath().ring();
        }
        self.resources.disk = Some(disk);
        self.step(Event::Appeared);
    }

    /// Takes the disk, which is about to be removed.
    pub(super) fn remove_disk(&mut self) -> Option<Arc<Disk>> {
        self.resources.disk.take()
    }

    /// Returns what the user has to know of a map that is over, if its server was not told.
    pub(super) fn untold(&self) -> Option<Failure> {
        match self.machine.farewell() {
            Farewell::Told => None,
            Farewell::Untold => Some(fail!(
                ENOTCONN,
                "the server could not be told: it keeps the map's place until its lease ends"
            )),
        }
    }

    /// Returns how many answers and data had a wrong check. Any context.
    pub(super) fn forged(&self) -> u64 {
        self.events.forged()
    }

    /// Prints the counters of the map. May sleep.
    pub(super) fn show_stats(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.resources.show_stats(f)
    }

    /// Returns the status of a path.
    pub(super) fn path_status(&self, id: PathId) -> PathStatus {
        let path = self.resources.paths.get(usize::from(id));
        path.map_or(PathStatus::NONE, |path| PathStatus {
            state: self.machine.path_state(id),
            next_try_ms: self.resources.timers.left_ms(Timer::Retry(id)),
            ..path.status
        })
    }

    /// Returns the milliseconds until I/O that waits for a path fails, if any may wait and will.
    pub(super) fn gives_up_ms(&self) -> Option<u64> {
        self.resources.timers.left_ms(Timer::Expiry)
    }

    /// Returns the state of the map, why I/O does not flow, and the server's description of the
    /// export.
    pub(super) fn report(&self) -> (State, Option<Failure>, Option<LoginReply>) {
        let state = self.machine.state();
        let failure = match state {
            State::Live if self.multipath().has_lost_writes() => Some(fail!(
                EIO,
                "writes were lost with the server's cache: flushes fail until nobody has the disk open"
            )),
            State::Live => None,
            State::Stale => {
                let known = self.machine.known();
                Some(match known.is_some_and(|known| known.volatile) {
                    true => fail!(
                        ESTALE,
                        "the contents are gone: the server has another instance of the export"
                    ),
                    false => fail!(
                        ESTALE,
                        "the server has another export of this name: its UUID is not the same"
                    ),
                })
            }
            _ => self.resources.first_failure(),
        };
        (state, failure, self.resources.login)
    }

    /// Reports an event to the machine, performs the actions that follow, and reports what comes of
    /// those.
    fn step(&mut self, event: Event) {
        let Self {
            machine, resources, ..
        } = self;
        let mut next = Some(event);
        while let Some(event) = next {
            machine.step(event, &mut |action| resources.perform(action));
            next = resources.take_report();
        }
    }

    /// Handles all that has happened: a command of the user, outcomes, events of the servers and of
    /// the mailbox, and timers. May sleep, but waits neither for a server nor for I/O.
    pub(super) fn run(&mut self, command: Option<MapCommand>) {
        if let Some(command) = command {
            self.execute(command);
        }
        self.more_server_events = false;
        // A server that lets the map in after its lease has to remember it.
        if let Some(lease) = self.resources.timers.take_lease() {
            self.step(Event::Elapsed(lease));
        }
        // What was answered on a path that was lost since proves nothing about the next one.
        if self.machine.mode() != Mode::Replay && self.multipath().take_replay_answered() {
            self.step(Event::ReplayEnded { answered: true });
        }
        for id in ids() {
            while let Some(outcome) = self.resources.path(id).and_then(|path| path.take_outcome()) {
                self.handle_outcome(id, outcome);
            }
            // This comes before the loss of the path, as the server may have said why.
            self.handle_server_events(id);
        }
        if let Some((id, epoch, malformed)) = self.events.take_violation() {
            if self.machine.epoch(id) == epoch {
                let failure = fail!(EPROTO, "the server broke the protocol: {malformed}");
                self.resources.set_failure(id, failure);
            }
            self.handle_lost(id, epoch);
        }
        self.handle_lost_paths();
        for hw_queue in self.events.take_late().into_iter().flatten() {
            self.handle_late(hw_queue);
        }
        // If memory is missing, the next ping is the next occasion. Without pings it is the next
        // answer.
        let ask_again = self.resources.params.options.heartbeat_ms == 0;
        let credited = self.events.take_credited();
        for id in ids().filter(|id| credited & (1 << id) != 0) {
            if let Some(path) = self.resources.path(id) {
                path.grow(ask_again);
            }
        }
        match self.machine.mode() {
            Mode::Replay => {
                let answered = self.multipath().take_replay_answered();
                self.step(Event::ReplayEnded { answered });
            }
            Mode::Fail if self.multipath().has_requeued() => self.step(Event::Requeued),
            Mode::Fail | Mode::Flow | Mode::Hold => {}
        }
        // Those that are armed meanwhile wait for the next time, however short they are.
        let now = self.resources.timers.now();
        while let Some(timer) = self.resources.timers.take_elapsed(now) {
            let event = match timer {
                Timer::Heartbeat(id) => {
                    let path = self.resources.path(id);
                    Event::Heartbeat(id, path.is_some_and(Path::has_heard))
                }
                timer => Event::Elapsed(timer),
            };
            self.step(event);
        }
    }

    fn execute(&mut self, command: MapCommand) {
        match command {
            MapCommand::AddPath(id, connector) => {
                if let Some(path) = self.resources.path(id) {
                    *path = Path::new(connector);
                }
                self.step(Event::Add(id));
            }
            MapCommand::RemovePath(id) => {
                if let Some(path) = self.resources.path(id) {
                    path.set_removed();
                }
                self.step(Event::Remove(id));
            }
            MapCommand::Disable => self.step(Event::Disable),
        }
    }

    fn handle_outcome(&mut self, id: PathId, outcome: Outcome) {
        match outcome {
            Outcome::Connected(epoch, connected) => {
                let admission = connected.admission();
                let silent_ms = self.resources.silent_ms();
                if let Some(path) = self.resources.path(id) {
                    path.connected = Some(connected);
                }
                self.step(Event::Connected {
                    path: id,
                    epoch,
                    admission,
                    silent_ms,
                });
            }
            Outcome::Failed(epoch, failure) => {
                let kind = match failure.error == EACCES {
                    true => AttemptFailure::Denied,
                    false => AttemptFailure::Transient,
                };
                self.resources.set_failure(id, failure);
                self.step(Event::Refused(id, epoch, kind));
            }
            Outcome::Drained(epoch, how) => {
                let requeued = self.has_requeued();
                self.step(Event::Drained {
                    path: id,
                    epoch,
                    how,
                    requeued,
                });
            }
            Outcome::Closed { told } => {
                let requeued = self.has_requeued();
                self.step(Event::Closed {
                    path: id,
                    told,
                    requeued,
                });
            }
        }
    }

    /// Returns true if there are requeued requests. The machine has heard of the loss of each of
    /// their paths when this returns: a queue pair reports that it has failed before it gives
    /// requests back.
    fn has_requeued(&mut self) -> bool {
        let requeued = self.multipath().has_requeued();
        self.handle_lost_paths();
        requeued
    }

    /// Handles the events that the server has sent on a path.
    fn handle_server_events(&mut self, id: PathId) {
        for _ in 0..SERVER_EVENTS_MAX {
            let epoch = self.machine.epoch(id);
            let Some(path) = self.resources.path(id) else {
                return;
            };
            let Some(connected) = &mut path.connected else {
                return;
            };
            let event = match connected.event() {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(failure) => return self.close_path(id, failure),
            };
            path.set_heard();
            match event {
                ServerEvent::Extent { number, extent } => {
                    let extent = Extent {
                        number,
                        size: extent.size,
                        writable: extent.access.writes(),
                    };
                    self.step(Event::Extent(id, epoch, extent));
                }
                ServerEvent::Flushed { instance, number } => self.step(Event::Flushed {
                    path: id,
                    epoch,
                    instance: u128::from_be_bytes(*instance.as_bytes()),
                    number,
                }),
                ServerEvent::Pong => {
                    self.resources.pong(id);
                    self.step(Event::Pong(id, epoch));
                }
                ServerEvent::Fenced { path, epoch } => self.step(Event::Fenced {
                    via: id,
                    path,
                    epoch,
                }),
            }
        }
        self.more_server_events = true;
    }

    /// Handles a late request of a hardware queue.
    ///
    /// A server answers a command however long that takes, or the connection breaks, which the HCA
    /// is made to find out. An RDMA READ or WRITE involves only the HCAs, and work requests
    /// complete in order: if none has completed for as long as a request may take, the path is of
    /// no use. Nor is it if a command was found to be answered, and the HCA has still not completed
    /// it after that time.
    fn handle_late(&mut self, hw_queue: u16) {
        let now = self.resources.timers.now();
        let timeout_ms = self.resources.params.options.io_timeout_ms.into();
        for id in ids() {
            let path = self.resources.path(id);
            if path.is_some_and(|path| path.is_stuck(hw_queue, now, timeout_ms)) {
                self.close_path(id, fail!(ETIMEDOUT, "a work request does not end"));
            }
        }
    }

    /// Reports the newest epoch of a path as lost, because of `failure`.
    fn close_path(&mut self, id: PathId, failure: Failure) {
        self.resources.set_failure(id, failure);
        self.step(Event::Lost(id, self.machine.epoch(id)));
    }

    fn handle_lost_paths(&mut self) {
        for (id, epoch) in ids().zip(self.events.take_lost()) {
            self.handle_lost(id, epoch);
        }
    }

    /// Handles the loss of a connection of an epoch of a path; 0 for none.
    fn handle_lost(&mut self, id: PathId, epoch: Epoch) {
        if epoch == 0 {
            return;
        }
        let is_up = self.machine.is_up(id) && epoch == self.machine.epoch(id);
        if let Some(path) = self.resources.path(id).filter(|_| is_up) {
            path.set_lost();
        }
        self.step(Event::Lost(id, epoch));
    }

    /// Returns the time in ms after which the work item must run again by itself, if it must.
    pub(super) fn next_run_ms(&self) -> Option<u64> {
        match self.more_server_events {
            true => Some(0),
            false => self.resources.timers.next_ms(),
        }
    }

    /// Returns the result of the user's command, if it is complete.
    pub(super) fn result(&mut self, wait_for: WaitFor) -> Option<Result<(), Failure>> {
        match wait_for {
            WaitFor::Nothing => Some(Ok(())),
            WaitFor::PathGone(id) if self.machine.is_gone(id) => {
                if let Some(path) = self.resources.path(id) {
                    *path = Path::NONE;
                }
                Some(Ok(()))
            }
            WaitFor::PathGone(_) => None,
            WaitFor::AllPathsGone => ids().all(|id| self.machine.is_gone(id)).then_some(Ok(())),
            WaitFor::PathUp if self.machine.end() == Some(End::Disabled) => {
                Some(Err(ENOTCONN.into()))
            }
            WaitFor::PathUp if self.machine.known().is_some() => Some(Ok(())),
            WaitFor::PathUp if !self.machine.all_tried() => None,
            WaitFor::PathUp => {
                let failure = self.resources.first_failure();
                Some(Err(failure.unwrap_or(ENOTCONN.into())))
            }
        }
    }
}

/// Returns the ids of all possible paths.
fn ids() -> impl Iterator<Item = PathId> {
    (0..).take(PATHS_MAX)
}
