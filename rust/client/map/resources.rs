// SPDX-License-Identifier: GPL-2.0

//! What a map consists of: its paths, its disk and its timers. The actions of the machine are
//! performed on it.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    fmt,
    sync::Arc,
    time::{
        BootTime,
        Instant,
        Monotonic, //
    },
};

use crate::base::{
    errno::{
        ENOTCONN,
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
        queue::Queue, //
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
        Event,
        Extent,
        Fault,
        Mode, //
    },
    Epoch,
    PathId,
    PathState,
    PATHS_MAX, //
};

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
    /// When the path was added or closed last; `None` if it is not part of the map.
    pub(crate) since: Option<Instant<Monotonic>>,
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
        since: None,
    };
}

/// One path of a map. Only the map's work item uses it.
pub(super) struct Path {
    /// Connects and closes the path; `None` if it is not part of the map.
    connector: Option<Arc<Connector>>,
    /// The connections, while there are any.
    pub(super) connected: Option<ConnectedPath>,
    /// The status. [`PathStatus::state`] and [`PathStatus::next_try_ms`] are filled in when it is
    /// read.
    pub(super) status: PathStatus,
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
    pub(super) const NONE: Self = Self {
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
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector: Some(connector),
            status: PathStatus {
                since: Some(Instant::now()),
                ..PathStatus::NONE
            },
            ..Self::NONE
        }
    }

    /// Begins an attempt to connect. May sleep, but does not wait for the outcome.
    pub(super) fn connect(&mut self, attempt: Attempt) {
        self.began = Some(Instant::now());
        if let Some(connector) = &self.connector {
            connector.connect(attempt);
        }
    }

    /// Takes the oldest outcome of the connector. May sleep.
    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        self.connector.as_ref()?.take_outcome()
    }

    /// Begins to close the path, as [`Connector::close`]. May sleep, but does not wait for the
    /// outcomes.
    pub(super) fn close(&mut self, epoch: Epoch, leave: bool) {
        self.status.since = Some(Instant::now());
        let connected = self.connected.take();
        if let Some(connector) = &self.connector {
            connector.close(epoch, connected, leave);
        }
    }

    /// Notes that I/O takes the path.
    pub(super) fn set_up(&mut self) {
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
    pub(super) fn set_fault(&mut self, fault: Fault) {
        self.status.failure = Some(match &self.connector {
            Some(connector) => closed(connector.target.addr, fault),
            None => ENOTCONN.into(),
        });
    }

    /// Notes that a connection was lost, unless the reason is known already.
    pub(super) fn set_lost(&mut self) {
        if self.status.failure.is_none() {
            self.set_fault(Fault::Broken);
        }
    }

    /// Notes that the user removes the path.
    pub(super) fn set_removed(&mut self) {
        self.removed = true;
    }

    /// Notes that the server has sent an event.
    pub(super) fn set_heard(&mut self) {
        self.heard = true;
    }

    /// Returns true if the server has sent an event, or a work request has completed, since the
    /// last call.
    pub(super) fn has_heard(&mut self) -> bool {
        let Some(connected) = &self.connected else {
            return false;
        };
        let completions = connected.queues.iter().map(Queue::completions).sum();
        let heard = self.heard || completions != self.completions;
        self.completions = completions;
        self.heard = false;
        heard
    }

    /// Sends a ping. May sleep, but does not wait for the answer.
    pub(super) fn ping(&mut self) {
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
    /// [`Queue::is_stuck`].
    pub(super) fn is_stuck(&self, hw_queue: u16, now: u64, timeout_ms: u64) -> bool {
        let connected = self.connected.as_ref();
        connected
            .and_then(|connected| connected.queues.get(usize::from(hw_queue)))
            .is_some_and(|queue| queue.is_stuck(now, timeout_ms))
    }

    /// Makes receives for the commands that the server allows in flight. See [`Queue::grow`]. May
    /// sleep.
    pub(super) fn grow(&self, ask_again: bool) {
        if let Some(connected) = &self.connected {
            connected
                .queues
                .iter()
                .for_each(|queue| queue.grow(ask_again));
        }
    }
}

/// What the actions of the machine are performed on.
pub(super) struct Resources {
    pub(super) params: Arc<Params>,
    /// One entry for each possible path. They are too large for a stack.
    pub(super) paths: KVec<Path>,
    pub(super) multipath: Arc<Multipath>,
    /// When the latest message was sent that the server has answered, a login or a ping, on any
    /// path, also one that was removed since: the server was there later than that.
    alive: Option<Instant<BootTime>>,
    /// The disk, which may have requests as long as it is here.
    pub(super) disk: Option<Arc<Disk>>,
    pub(super) timers: Timers,
    /// Events that actions report to the machine.
    reports: KVec<Event>,
    /// The limits of the disk, once a path was up.
    pub(super) limits: Option<DiskLimits>,
    /// The server's description of the export, once a path was up.
    pub(super) login: Option<LoginReply>,
    /// How often a path was up again, also one that was removed since.
    reconnects: u64,
    /// How often a path was lost while another one was up.
    failovers: u64,
}

impl Resources {
    /// Makes a map without paths. May sleep.
    pub(super) fn new(params: &Arc<Params>, events: &Arc<Events>) -> Result<Self> {
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
    pub(super) fn path(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(id))
    }

    /// Notes why a path was lost, or could not be connected.
    pub(super) fn set_failure(&mut self, id: PathId, failure: Failure) {
        if let Some(path) = self.path(id) {
            path.status.failure = Some(failure);
        }
    }

    /// Returns the failure of the first path that has one.
    pub(super) fn first_failure(&self) -> Option<Failure> {
        self.paths.iter().find_map(|path| path.status.failure)
    }

    /// Takes the oldest event that an action has reported.
    pub(super) fn take_report(&mut self) -> Option<Event> {
        self.reports.remove(0).ok()
    }

    fn report(&mut self, event: Event) {
        // Cannot fail: the capacity suffices for the reports of one step.
        let _ = self.reports.push_within_capacity(event);
    }

    /// Returns the time in ms since the last login or ping was sent that the server has answered;
    /// 0 if there was none.
    pub(super) fn silent_ms(&self) -> u32 {
        let past_ms = self.alive.map_or(0, |alive| alive.elapsed().as_millis());
        u32::try_from(past_ms).unwrap_or(u32::MAX)
    }

    /// Notes that the server has answered a ping on a path.
    pub(super) fn pong(&mut self, id: PathId) {
        let sent = self.path(id).and_then(Path::pong);
        self.note_alive(sent);
    }

    /// Notes that the server has answered a message that was sent at this time.
    fn note_alive(&mut self, sent: Option<Instant<BootTime>>) {
        let times = [self.alive, sent].into_iter().flatten();
        self.alive = times.min_by_key(|time| time.elapsed());
    }

    /// Performs an action. May sleep, but waits neither for a server nor for I/O.
    pub(super) fn perform(&mut self, action: Action) {
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
                let limits = self.limits.as_ref();
                let attempt = Attempt {
                    epoch,
                    resume,
                    hw_queues: limits
                        .map(|limits| (limits.queues - limits.poll_queues, limits.poll_queues)),
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
                Mode::Hold | Mode::Replay => disk.quiesce(),
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
    pub(super) fn show_stats(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
