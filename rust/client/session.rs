// SPDX-License-Identifier: GPL-2.0

//! The session of a map: one owner for its paths and its disk.
//!
//! What is to be done is decided by [`session::map`](crate::session::map); this performs it. Paths and
//! I/O change on the session's own ordered workqueue only. Callbacks, timers and the user leave a note
//! and enqueue the work; a user then waits for the answer. What takes long, connecting and draining,
//! is done by each path's [`Route`].

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, impl_has_work, new_mutex, new_work,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::alarm::{
    Alarm,
    Ring, //
};
use crate::block::mq::GenDisk;
use crate::client::{
    control::{
        Target,
        Watcher, //
    },
    disk::{
        self,
        Disk, //
    },
    io::{
        Io,
        Keeper,
        Policy,
        Queues, //
    },
    path::{
        Path,
        Shape, //
    },
    queue::Queue,
    route::{
        Outcome,
        Route, //
    },
};
use crate::debugfs::Show;
use crate::errno::{
    ENOTCONN,
    EPROTO,
    ESTALE, //
};
use crate::failure::{
    fail,
    Failure, //
};
use crate::host::Host;
use crate::proto::{
    Access,
    Event as Said,
    LoginReply,
    Malformed,
    Name,
    Query,
    Text,
    Uuid, //
};
use crate::session::{
    backoff::Backoff,
    map::{
        Action,
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
use crate::sync::{
    self,
    new_irqsave_spinlock,
    without_io,
    Completion,
    IrqSaveSpinLock, //
};
use crate::workqueue::OwnedQueue;

/// Late requests that wait to be looked after; there will be another occasion for the others.
const LATE_MAX: usize = 8;
/// Beats in the time of a heartbeat.
const BEATS: u64 = 4;
/// Silent beats that are stood if there is another path.
const PATIENCE: u8 = 5;
/// Silent beats that are stood if there is none: three heartbeats. Nothing is gained by giving up early.
const PATIENCE_ALONE: u8 = 12;
/// How long to wait for room when requests are sent again, unless one of them ends.
const RESEND_MS: u64 = 10;

/// What a map is to be.
pub(crate) struct Params {
    /// Who maps.
    pub(crate) host: Arc<Host>,
    /// The map's identity at the server.
    pub(crate) uuid: Uuid,
    /// Random for each time that the map is enabled; never 0.
    pub(crate) incarnation: u64,
    /// The export's name.
    pub(crate) export: Name,
    /// What is asked for.
    pub(crate) access: Access,
    /// Hardware queues; 0 for one per CPU.
    pub(crate) queues: u16,
    /// Hardware queues more, for I/O that is polled for.
    pub(crate) poll_queues: u16,
    /// Requests in flight per queue.
    pub(crate) depth: u16,
    /// Data to send with a command at most, in bytes.
    pub(crate) inline_size: u32,
    /// When a request is late.
    pub(crate) io_timeout_ms: u32,
    /// How long I/O waits for a path; `None` for ever.
    pub(crate) no_path_timeout_ms: Option<u32>,
    /// How often to ask whether the server is there; 0 for never.
    pub(crate) heartbeat_ms: u32,
    /// The longest time between two attempts to connect.
    pub(crate) reconnect_max_ms: u32,
    /// How requests choose among paths.
    pub(crate) policy: Policy,
    /// The only contents to accept.
    pub(crate) expect_instance: Option<Uuid>,
}

/// What others may know of a path.
#[derive(Clone, Copy)]
pub(crate) struct PathStatus {
    /// Where it stands.
    pub(crate) state: PathState,
    /// The RDMA device in use.
    pub(crate) device: Option<Text>,
    /// How long the server took for the last heartbeat, in ns.
    pub(crate) rtt_ns: u64,
    /// How often it came up again.
    pub(crate) reconnects: u64,
    /// When the next attempt will be made, in ms from now.
    pub(crate) next_try_ms: Option<u64>,
    /// Why it was lost, or could not be brought up; `None` while it is up.
    pub(crate) failure: Option<Failure>,
}

impl PathStatus {
    const NONE: Self = Self {
        state: PathState::Disabled,
        device: None,
        rtt_ns: 0,
        reconnects: 0,
        next_try_ms: None,
        failure: None,
    };
}

/// What others may know of a session.
#[derive(Clone, Copy)]
pub(crate) struct Status {
    /// Where it stands.
    pub(crate) state: State,
    /// The name of the disk, while there is one.
    pub(crate) disk: Option<Text>,
    /// What the server told of the export.
    pub(crate) login: Option<LoginReply>,
    /// Why I/O does not flow.
    pub(crate) failure: Option<Failure>,
}

/// What the user wants.
enum Order {
    /// The path is to be brought up, and stay so.
    Add(PathId, Arc<Route>),
    /// It is to be let go of.
    Remove(PathId),
    /// Everything is to be let go of; I/O fails.
    Disable,
}

/// When an order is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// At once.
    Now,
    /// When a path is up, or each has failed once.
    Up,
    /// When nothing is left of a path.
    Gone(PathId),
    /// When nothing is left of any path.
    AllGone,
}

/// What waits for the workqueue.
struct Notes {
    /// Epochs that were lost, by path; 0 for none.
    lost: [Epoch; PATHS_MAX],
    /// How the server broke the protocol, and in which epoch of a path.
    violated: Option<(PathId, Epoch, Malformed)>,
    /// Bit by bit, the paths on which the server may allow more commands.
    credited: u32,
    /// Requests that are late, by hardware queue and tag.
    late: [Option<(u16, u16)>; LATE_MAX],
}

impl Notes {
    const NONE: Self = Self {
        lost: [0; PATHS_MAX],
        violated: None,
        credited: 0,
        late: [None; LATE_MAX],
    };
}

/// One path, as the workqueue knows it.
struct Lane {
    route: Option<Arc<Route>>,
    path: Option<Path>,
    backoff: Backoff,
    pulse: Pulse,
    /// The next attempt, in ms since the session began.
    retry_at: Option<u64>,
    /// The end of the period in which something is to be heard.
    beat_at: Option<u64>,
    /// When the last question for life was asked, if it was not answered.
    asked: Option<Instant<Monotonic>>,
    /// Fences of other paths that are to be asked for, by path: up to which epoch, or 0.
    fences: [Epoch; PATHS_MAX],
    /// What the route has still to close.
    closing: u32,
    /// It was up before.
    was_up: bool,
    /// The last question for life, in ms since the session began.
    pinged_at: u64,
    /// The completions that were seen at the last beat.
    completions: u64,
    /// Something was heard since the last beat.
    heard: bool,
    /// A command that the server did not know of when it was asked.
    doubt: Option<Query>,
    /// An attempt has ended since the path was wanted.
    tried: bool,
    status: PathStatus,
}

impl Lane {
    const NONE: Self = Self {
        route: None,
        path: None,
        backoff: Backoff::new(),
        pulse: Pulse::new(),
        retry_at: None,
        beat_at: None,
        asked: None,
        fences: [0; PATHS_MAX],
        closing: 0,
        was_up: false,
        pinged_at: 0,
        completions: 0,
        heard: false,
        doubt: None,
        tried: false,
        status: PathStatus::NONE,
    };

    /// Has the route close a path, or an attempt.
    fn close(&mut self, epoch: Epoch, path: Option<Path>, leave: bool) {
        if let Some(route) = &self.route {
            self.closing += 1;
            route.close(epoch, path, leave);
        }
    }
}

/// What actions change.
struct Shell {
    /// As many as there can be paths; not on anybody's stack.
    lanes: KVec<Lane>,
    io: Arc<Io>,
    // Until the disk is gone, requests come.
    disk: Option<GenDisk<Disk>>,
    mode: Mode,
    /// When I/O has waited for long enough.
    expire_at: Option<u64>,
    /// When to look again whether there is room to send what had none.
    resend_at: Option<u64>,
    /// The map is being disabled.
    leaving: bool,
    /// The path that the disk was made for, or will be.
    shape: Option<Shape>,
}

/// What only the session's own workqueue touches, but for the disk, which the user's task adds and
/// removes.
struct Running {
    map: Map,
    /// `None` before the start and after the end.
    shell: Option<Shell>,
    alarm: Option<Alarm<Bell>>,
    until: Option<Until>,
}

/// A session.
#[pin_data]
pub(crate) struct Session {
    params: Arc<Params>,
    queue: OwnedQueue,
    began: Instant<Monotonic>,
    #[pin]
    notes: IrqSaveSpinLock<Notes>,
    #[pin]
    running: Mutex<Running>,
    #[pin]
    status: Mutex<Status>,
    #[pin]
    order: Mutex<Option<Order>>,
    /// One user at a time.
    #[pin]
    asking: Mutex<()>,
    /// The outcome of what the user asked for.
    #[pin]
    outcome: Mutex<Result<(), Failure>>,
    /// There is an outcome.
    #[pin]
    done: Completion,
    #[pin]
    work: Work<Session>,
}

impl_has_work! {
    impl HasWork<Self> for Session { self.work }
}

impl Session {
    /// Connects the paths and makes the disk appear once one is up; the others follow. Takes up to 5 s.
    /// In the user's task. May sleep.
    pub(crate) fn start(
        params: Params,
        targets: impl Iterator<Item = (PathId, Target)>,
    ) -> Result<Arc<Self>, Failure> {
        let queue = OwnedQueue::ordered(c"farblk_map")?;
        let running = Running {
            map: Map::new(),
            shell: None,
            alarm: None,
            until: None,
        };
        let status = Status {
            state: State::Connecting,
            disk: None,
            login: None,
            failure: None,
        };
        let params = Arc::new(params, GFP_KERNEL)?;
        let session = Arc::pin_init(
            pin_init!(Self {
                params,
                queue,
                began: Instant::now(),
                notes <- new_irqsave_spinlock!(Notes::NONE, "Session::notes"),
                running <- new_mutex!(running, "Session::running"),
                status <- new_mutex!(status, "Session::status"),
                order <- new_mutex!(None, "Session::order"),
                asking <- new_mutex!((), "Session::asking"),
                outcome <- new_mutex!(Ok(()), "Session::outcome"),
                done <- Completion::new(),
                work <- new_work!("Session::work"),
            }),
            GFP_KERNEL,
        )?;
        let alarm = Alarm::new(Bell(session.clone()))?;
        let keeper = Arc::new(Bell(session.clone()), GFP_KERNEL)?;
        let io = Io::new(session.params.policy, keeper)?;
        let mut lanes = KVec::with_capacity(PATHS_MAX, GFP_KERNEL)?;
        for _ in ids() {
            lanes.push(Lane::NONE, GFP_KERNEL)?;
        }
        {
            let mut running = session.running.lock();
            running.alarm = Some(alarm);
            running.shell = Some(Shell {
                lanes,
                io,
                disk: None,
                mode: Mode::Hold,
                expire_at: None,
                resend_at: None,
                leaving: false,
                shape: None,
            });
        }
        let outcome = session.bring_up(targets);
        match outcome {
            Ok(()) => Ok(session),
            Err(failure) => {
                session.stop(true)?;
                Err(failure)
            }
        }
    }

    fn bring_up(
        self: &Arc<Self>,
        targets: impl Iterator<Item = (PathId, Target)>,
    ) -> Result<(), Failure> {
        for (id, target) in targets {
            self.add_path(id, target)?;
        }
        self.ask(None, Until::Up)?;
        self.add_disk()
    }

    /// Brings a path up, and again whenever it is lost. Does not wait for it. May sleep.
    pub(crate) fn add_path(self: &Arc<Self>, id: PathId, target: Target) -> Result<(), Failure> {
        let io = match &self.running.lock().shell {
            Some(shell) => shell.io.clone(),
            None => return Err(ENOTCONN.into()),
        };
        let route = Route::new(id, target, &self.params, &io, self)?;
        self.ask(Some(Order::Add(id, route)), Until::Now)
    }

    /// Lets go of a path, and waits until nothing is left of it. May sleep.
    pub(crate) fn remove_path(self: &Arc<Self>, id: PathId) -> Result<(), Failure> {
        self.ask(Some(Order::Remove(id)), Until::Gone(id))
    }

    /// Takes the disk away and disconnects; `EBUSY` while the disk is open, unless `force`, which
    /// fails its I/O. In the user's task. May sleep.
    pub(crate) fn stop(self: &Arc<Self>, force: bool) -> Result<(), Failure> {
        if !force {
            // What the block layer still holds back is written now.
            self.take_disk(false)?;
        }
        self.ask(Some(Order::Disable), Until::AllGone)?;
        self.take_disk(true)?;
        let (shell, alarm) = {
            let mut running = self.running.lock();
            (running.shell.take(), running.alarm.take())
        };
        drop(alarm);
        drop(shell);
        Ok(())
    }

    /// What the session is at the moment. May sleep.
    pub(crate) fn status(&self) -> Status {
        *self.status.lock()
    }

    /// What a path is at the moment. May sleep.
    pub(crate) fn path_status(&self, id: PathId) -> PathStatus {
        let running = self.running.lock();
        let lane = |shell: &Shell| {
            let lane = shell.lanes.get(usize::from(id))?;
            Some(PathStatus {
                state: running.map.path_state(id),
                next_try_ms: lane.retry_at.map(|at| at.saturating_sub(self.now())),
                ..lane.status
            })
        };
        running
            .shell
            .as_ref()
            .and_then(lane)
            .unwrap_or(PathStatus::NONE)
    }

    /// Lets the workqueue look at what there is to be seen. Any context.
    pub(super) fn look(self: &Arc<Self>) {
        let _ = self.queue.enqueue(self.clone());
    }

    /// Lets the workqueue carry out an order, and waits for its answer.
    fn ask(self: &Arc<Self>, order: Option<Order>, until: Until) -> Result<(), Failure> {
        let _asking = self.asking.lock();
        self.done.reinit();
        *self.order.lock() = order;
        self.running.lock().until = Some(until);
        self.look();
        self.done.wait();
        *self.outcome.lock()
    }

    fn answer(&self, outcome: Result<(), Failure>) {
        *self.outcome.lock() = outcome;
        self.done.complete_all();
    }

    /// Milliseconds since the session began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0)
    }

    /// Makes the disk appear. Runs in the user's task: what a kernel thread opens to read the
    /// partitions, it closes only later, and the disk would be busy until then. The workqueue stays
    /// free meanwhile to see to the paths.
    fn add_disk(self: &Arc<Self>) -> Result<(), Failure> {
        let params = &self.params;
        let (shape, io) = {
            let running = self.running.lock();
            let shell = running.shell.as_ref().ok_or(ENOTCONN)?;
            (shell.shape.ok_or(ENOTCONN)?, shell.io.clone())
        };
        let disk = disk::create(&params.host, &shape, params.io_timeout_ms, io)
            .map_err(|error| fail!(error, "cannot create the disk"))?;
        self.status.lock().disk = disk.name().to_str().ok().map(Text::from);
        let mut running = self.running.lock();
        if let Running {
            map,
            shell: Some(shell),
            ..
        } = &mut *running
        {
            // What was said meanwhile.
            if let Some(login) = &self.status.lock().login {
                disk::resize(&disk, &login.extent);
            }
            if matches!(map.mode(), Mode::Hold | Mode::Replay) {
                disk.quiesce();
            }
            shell.disk = Some(disk);
        }
        drop(running);
        self.look();
        Ok(())
    }

    /// Takes the disk away, if it may be. Runs in the user's task, too: freeing the tags waits for work
    /// that memory reclaim must not wait for, as the workqueue may have to.
    fn take_disk(&self, force: bool) -> Result<(), Failure> {
        let disk = {
            let mut running = self.running.lock();
            let Some(shell) = &mut running.shell else {
                return Ok(());
            };
            match &shell.disk {
                Some(disk) if force => disk.mark_dead(),
                Some(disk) => disk
                    .claim()
                    .map_err(|error| fail!(error, "the device is open"))?,
                None => {}
            }
            shell.disk.take()
        };
        drop(disk);
        Ok(())
    }

    /// Takes note of an event and does what follows.
    fn step(&self, map: &mut Map, shell: &mut Shell, event: Event) {
        map.step(event, &mut |action| self.perform(shell, action));
    }

    fn perform(&self, shell: &mut Shell, action: Action) {
        let now = self.now();
        match action {
            Action::Connect(id, epoch, resume) => {
                if let Some(lane) = lane(shell, id) {
                    lane.retry_at = None;
                    if let Some(route) = &lane.route {
                        route.connect(epoch, resume);
                    }
                }
            }
            Action::Wait(id) => {
                let urgent = shell.mode != Mode::Flow;
                if let Some(lane) = lane(shell, id) {
                    // CAST: Any bits will do.
                    let random = sync::random_u64() as u32;
                    let ms = lane
                        .backoff
                        .next(self.params.reconnect_max_ms, urgent, random);
                    lane.retry_at = Some(now + u64::from(ms));
                }
            }
            Action::Close(id, epoch) => {
                let leaving = shell.leaving;
                shell.io.shut(id);
                if let Some(lane) = lane(shell, id) {
                    lane.beat_at = None;
                    lane.doubt = None;
                    lane.fences = [0; PATHS_MAX];
                    let path = lane.path.take();
                    lane.close(epoch, path, leaving);
                }
            }
            Action::Fence { via, path, epoch } => {
                let fence =
                    lane(shell, via).and_then(|lane| lane.fences.get_mut(usize::from(path)));
                if let Some(fence) = fence {
                    *fence = epoch;
                }
            }
            Action::Turn(mode) => self.turn(shell, mode),
            Action::Restarted => shell.io.server_restarted(),
        }
    }

    /// Treats I/O in another way from now on.
    fn turn(&self, shell: &mut Shell, mode: Mode) {
        shell.mode = mode;
        shell.io.turn(mode);
        match mode {
            Mode::Hold | Mode::Replay => {
                if let Some(disk) = &shell.disk {
                    disk.quiesce();
                }
                let timeout = self.params.no_path_timeout_ms.map(u64::from);
                if shell.expire_at.is_none() {
                    shell.expire_at = timeout.map(|ms| self.now().saturating_add(ms));
                }
            }
            Mode::Flow | Mode::Fail => {
                shell.expire_at = None;
                if let Some(disk) = &shell.disk {
                    disk.unquiesce();
                }
            }
        }
    }

    /// Asks for the fences that are to be had on a path. Whether all could be asked for.
    fn ask_for_fences(&self, map: &mut Map, shell: &mut Shell, id: PathId) -> bool {
        let Some(Lane {
            path: Some(path),
            fences,
            ..
        }) = lane(shell, id)
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
                    self.step(map, shell, Event::Lost(id, map.epoch(id)));
                    return true;
                }
            }
        }
        true
    }

    /// An epoch of a path is lost. Any context.
    fn lose(&self, id: PathId, epoch: Epoch) {
        if let Some(lost) = self.notes.lock().lost.get_mut(usize::from(id)) {
            *lost = (*lost).max(epoch);
        }
    }

    /// Carries out what the user wants.
    fn obey(self: &Arc<Self>, map: &mut Map, shell: &mut Shell, order: Order) {
        match order {
            Order::Add(id, route) => {
                if let Some(lane) = lane(shell, id) {
                    *lane = Lane {
                        route: Some(route),
                        ..Lane::NONE
                    };
                }
                self.step(map, shell, Event::Add(id));
            }
            Order::Remove(id) => self.step(map, shell, Event::Remove(id)),
            Order::Disable => {
                shell.leaving = true;
                self.step(map, shell, Event::Disable);
            }
        }
    }

    /// Hears of what a route has done.
    fn hear(&self, map: &mut Map, shell: &mut Shell, id: PathId, outcome: Outcome) {
        match outcome {
            Outcome::Connected(epoch, path) => self.welcome(map, shell, id, epoch, path),
            Outcome::Refused(epoch, failure) => {
                // Who was let in before and is not any more will not be again.
                let refused = match failure.error == EACCES && map.known().is_some() {
                    true => Refused::Evicted,
                    false => Refused::Transient,
                };
                if let Some(lane) = lane(shell, id) {
                    lane.tried = true;
                    lane.status.failure = Some(failure);
                }
                self.step(map, shell, Event::Refused(id, epoch, refused));
            }
            Outcome::Closed(epoch) => {
                let closing = match lane(shell, id) {
                    Some(lane) => {
                        lane.closing = lane.closing.saturating_sub(1);
                        lane.closing
                    }
                    None => 0,
                };
                if closing != 0 {
                    return;
                }
                let stranded = shell.io.has_stranded();
                self.step(map, shell, Event::Drained(id, epoch, stranded));
            }
        }
    }

    /// A path is connected.
    fn welcome(&self, map: &mut Map, shell: &mut Shell, id: PathId, epoch: Epoch, path: Path) {
        let fits = match &shell.shape {
            Some(shape) => path.fits(shape),
            None => Ok(()),
        };
        let wanted = map.epoch(id) == epoch && map.path_state(id) == PathState::Connecting;
        let login = path.login;
        let welcome = Welcome {
            export: u128::from_be_bytes(*login.export_uuid.as_bytes()),
            instance: u128::from_be_bytes(*login.instance.as_bytes()),
            volatile: login.geometry().is_some(),
            tenure: login.tenure,
        };
        let leaving = shell.leaving;
        let first = shell.shape.is_none();
        let device = Text::from(path.device().as_str());
        let period = self.period();
        let now = self.now();
        let shape = path.shape();
        let Some(lane) = lane(shell, id) else {
            return;
        };
        lane.tried = true;
        if !wanted || fits.is_err() {
            if let Err(failure) = fits {
                lane.status.failure = Some(failure);
            }
            if wanted {
                lane.path = Some(path);
                self.step(map, shell, Event::Lost(id, epoch));
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
            shell.shape = Some(shape);
        }
        if map.judge(&welcome).is_none() {
            self.open(shell, id, queues);
            self.status.lock().login = Some(login);
            if let Some(disk) = &shell.disk {
                disk::resize(disk, &login.extent);
            }
        }
        self.step(map, shell, Event::Connected(id, epoch, welcome));
    }

    /// Lets requests take a path, if they may flow.
    fn open(&self, shell: &Shell, id: PathId, queues: Arc<Queues>) {
        // Requests that come together on one path are posted together: they must not be spread over
        // more paths in the midst of that.
        let disk = shell.disk.as_ref().filter(|_| shell.mode == Mode::Flow);
        if let Some(disk) = disk {
            disk.quiesce();
        }
        shell.io.open(id, queues);
        if let Some(disk) = disk {
            disk.unquiesce();
        }
    }

    /// The server may have said something on a path.
    fn listen(&self, map: &mut Map, shell: &mut Shell, id: PathId) {
        loop {
            let Some(lane) = lane(shell, id) else {
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
                    return self.step(map, shell, Event::Lost(id, map.epoch(id)));
                }
            };
            lane.heard = true;
            match said {
                Said::Extent(extent) => {
                    if let Some(login) = &mut self.status.lock().login {
                        login.extent = extent;
                    }
                    if let Some(disk) = &shell.disk {
                        disk::resize(disk, &extent);
                    }
                }
                Said::Pong => {
                    if let Some(asked) = lane.asked.take() {
                        let ns = asked.elapsed().as_nanos();
                        lane.status.rtt_ns = u64::try_from(ns).unwrap_or(0);
                    }
                }
                Said::Fenced { path, epoch } => {
                    self.step(map, shell, Event::Fenced(path, epoch));
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
                    let doubt = (waits && !running).then_some(query);
                    if doubt.is_some() && lane.doubt == doubt {
                        lane.status.failure =
                            Some(fail!(EPROTO, "the server does not answer a command"));
                        return self.step(map, shell, Event::Lost(id, map.epoch(id)));
                    }
                    lane.doubt = doubt;
                }
            }
        }
    }

    /// A request is late: asks the server for it on the path that it took.
    fn look_after(&self, map: &mut Map, shell: &mut Shell, (queue, tag): (u16, u16)) {
        for id in ids() {
            let Some(Lane {
                path: Some(path),
                status,
                ..
            }) = lane(shell, id)
            else {
                continue;
            };
            let queues = path.queues.clone();
            let Some(connection) = queues.get(usize::from(queue)) else {
                continue;
            };
            let asked = match connection.waiting(tag) {
                Some(generation) => path.query(&Query {
                    queue,
                    tag,
                    generation,
                }),
                None if connection.has_commands() => Ok(()),
                // Nobody can be asked for it, and an HCA does not take so long.
                None if connection.in_flight() != 0 => Err(ETIMEDOUT),
                None => Ok(()),
            };
            drop(queues);
            if asked == Err(ETIMEDOUT) {
                *status = PathStatus {
                    failure: Some(fail!(ETIMEDOUT, "an RDMA request does not end")),
                    ..*status
                };
                self.step(map, shell, Event::Lost(id, map.epoch(id)));
            }
        }
    }

    /// How often to look whether something was heard, in ms.
    fn period(&self) -> Option<u64> {
        let ms = u64::from(self.params.heartbeat_ms);
        (ms != 0).then_some((ms / BEATS).max(1))
    }

    /// A period of a path is over.
    fn beat(&self, map: &mut Map, shell: &mut Shell, id: PathId) {
        let now = self.now();
        let others = ids().any(|other| other != id && map.is_up(other));
        let Some(lane) = lane(shell, id) else {
            return;
        };
        let Some(path) = &mut lane.path else {
            return;
        };
        let completions = path.queues.iter().map(Queue::completions).sum();
        let heard = lane.heard || completions != lane.completions;
        lane.completions = completions;
        lane.heard = false;
        lane.beat_at = self.period().map(|period| now + period);
        let patience = match others {
            true => PATIENCE,
            false => PATIENCE_ALONE,
        };
        if lane.pulse.beat(heard, patience) == Beat::Gone {
            lane.status.failure = Some(fail!(ETIMEDOUT, "the server does not answer any more"));
            return self.step(map, shell, Event::Lost(id, map.epoch(id)));
        }
        // The server wants to hear of this host now and then, too.
        let due = now.saturating_sub(lane.pinged_at) >= u64::from(self.params.heartbeat_ms);
        // If the last one is still on its way, it will do.
        if (due || !heard) && path.ping().is_ok() {
            lane.pinged_at = now;
            lane.asked.get_or_insert_with(Instant::now);
        }
    }

    /// What the user is told of a lost connection.
    fn lost(lane: &Lane) -> Failure {
        match &lane.route {
            Some(route) => fail!(ENOTCONN, "the connection to {} was lost", route.target.addr),
            None => ENOTCONN.into(),
        }
    }

    /// Looks at everything once.
    fn run_once(self: &Arc<Self>, map: &mut Map, shell: &mut Shell) {
        let notes = core::mem::replace(&mut *self.notes.lock(), Notes::NONE);
        let order = self.order.lock().take();
        if let Some(order) = order {
            self.obey(map, shell, order);
        }
        for id in ids() {
            while let Some(outcome) = lane(shell, id)
                .and_then(|lane| lane.route.clone())
                .and_then(|route| route.outcome())
            {
                self.hear(map, shell, id, outcome);
            }
            // Before the loss: there may be more to be said of it.
            self.listen(map, shell, id);
        }
        if let Some((id, epoch, malformed)) = notes.violated {
            if let Some(lane) = lane(shell, id).filter(|_| map.epoch(id) == epoch) {
                lane.status.failure =
                    Some(fail!(EPROTO, "the server broke the protocol: {malformed}"));
            }
            self.step(map, shell, Event::Lost(id, epoch));
        }
        for (id, lost) in ids().zip(notes.lost) {
            let epoch = lost.min(map.epoch(id));
            if epoch == 0 || lost < map.epoch(id) {
                continue;
            }
            if let Some(lane) = lane(shell, id) {
                if lane.path.is_some() && lane.status.failure.is_none() {
                    lane.status.failure = Some(Self::lost(lane));
                }
            }
            self.step(map, shell, Event::Lost(id, epoch));
        }
        for late in notes.late.iter().flatten() {
            self.look_after(map, shell, *late);
        }
        for id in ids() {
            let Some(lane) = lane(shell, id) else {
                continue;
            };
            if notes.credited & (1 << id) != 0 {
                if let Some(path) = &lane.path {
                    path.queues.iter().for_each(Queue::grow);
                }
            }
        }
        self.watch(map, shell);
    }

    /// Looks at the clock.
    fn watch(&self, map: &mut Map, shell: &mut Shell) {
        let now = self.now();
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now);
        for id in ids() {
            let Some(lane) = lane(shell, id) else {
                continue;
            };
            let (retry, beat) = (is_due(lane.retry_at), is_due(lane.beat_at));
            if retry {
                lane.retry_at = None;
                self.step(map, shell, Event::Retry(id));
            }
            if beat {
                self.beat(map, shell, id);
            }
        }
        shell.resend_at = None;
        for id in ids() {
            if !self.ask_for_fences(map, shell, id) {
                shell.resend_at = Some(now + RESEND_MS);
            }
        }
        if is_due(shell.expire_at) && shell.mode == Mode::Hold {
            self.step(map, shell, Event::Expired);
        }
        match shell.mode {
            Mode::Replay => match shell.io.resend() {
                true => self.step(map, shell, Event::Replayed),
                false => shell.resend_at = Some(now + RESEND_MS),
            },
            Mode::Fail => shell.io.fail_stranded(),
            Mode::Flow | Mode::Hold => {}
        }
    }

    /// When there is something to do by itself, in ms from now.
    fn sleep(&self, shell: &Shell) -> Option<u64> {
        let lanes = shell.lanes.iter();
        let lanes = lanes.flat_map(|lane| [lane.retry_at, lane.beat_at]);
        let expire_at = shell.expire_at.filter(|_| shell.mode == Mode::Hold);
        let own = [expire_at, shell.resend_at].into_iter();
        let next = Iterator::chain(lanes, own).flatten().min()?;
        Some(next.saturating_sub(self.now()))
    }

    /// Whether the user can be answered, and how.
    fn verdict(map: &Map, shell: &Shell, until: Until) -> Option<Result<(), Failure>> {
        let gone = |id| map.path_state(id) == PathState::Disabled;
        match until {
            Until::Now => Some(Ok(())),
            Until::Gone(id) => gone(id).then_some(Ok(())),
            Until::AllGone => ids().all(gone).then_some(Ok(())),
            Until::Up if shell.shape.is_some() => Some(Ok(())),
            Until::Up => {
                let mut wanted = shell.lanes.iter().filter(|lane| lane.route.is_some());
                if !wanted.clone().all(|lane| lane.tried) {
                    return None;
                }
                let failure = wanted.find_map(|lane| lane.status.failure);
                Some(Err(failure.unwrap_or(ENOTCONN.into())))
            }
        }
    }

    /// Tells what others may know.
    fn publish(&self, map: &Map, shell: &Shell) {
        let live = shell.disk.is_some();
        let state = match map.state() {
            state if live => state,
            State::Stale => State::Stale,
            _ => State::Connecting,
        };
        let failure = match state {
            State::Live => None,
            State::Stale => Some(fail!(
                ESTALE,
                "the contents are gone: the server has another instance of the export"
            )),
            _ => shell.lanes.iter().find_map(|lane| lane.status.failure),
        };
        let changed = {
            let mut status = self.status.lock();
            status.failure = failure;
            core::mem::replace(&mut status.state, state) != state
        };
        if let (true, Some(disk)) = (changed, &shell.disk) {
            let env = match state {
                State::Disabled => c"FARBLK_STATE=disabled",
                State::Connecting => c"FARBLK_STATE=connecting",
                State::Live => c"FARBLK_STATE=live",
                State::Reconnecting => c"FARBLK_STATE=reconnecting",
                State::Failed => c"FARBLK_STATE=failed",
                State::Stale => c"FARBLK_STATE=stale",
                State::Evicted => c"FARBLK_STATE=evicted",
            };
            disk.announce(env);
        }
    }
}

/// All paths that there can be.
fn ids() -> impl Iterator<Item = PathId> {
    (0..).take(PATHS_MAX)
}

fn lane(shell: &mut Shell, id: PathId) -> Option<&mut Lane> {
    shell.lanes.get_mut(usize::from(id))
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut guard = this.running.lock();
        let Running {
            map,
            shell: Some(shell),
            alarm,
            until,
        } = &mut *guard
        else {
            return;
        };
        without_io(|| {
            // What follows from one look may be due at once.
            loop {
                let mode = map.mode();
                this.run_once(map, shell);
                if map.mode() == mode {
                    break;
                }
            }
            this.publish(map, shell);
        });
        if let (Some(ms), Some(alarm)) = (this.sleep(shell), alarm) {
            alarm.set(u32::try_from(ms).unwrap_or(u32::MAX));
        }
        let verdict = until.and_then(|until| Self::verdict(map, shell, until));
        if verdict.is_some() {
            *until = None;
        }
        drop(guard);
        if let Some(verdict) = verdict {
            this.answer(verdict);
        }
    }
}

impl Show for Session {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.running.lock().shell {
            Some(shell) => shell.io.show(f),
            None => Ok(()),
        }
    }
}

/// Wakes a session: by its alarm, and by its requests.
struct Bell(Arc<Session>);

impl Ring for Bell {
    fn ring(&self) {
        self.0.look();
    }
}

impl Keeper for Bell {
    fn late(&self, queue: u16, tag: u16) {
        {
            let mut notes = self.0.notes.lock();
            let late = &mut notes.late;
            if let Some(place) = late.iter_mut().find(|place| place.is_none()) {
                *place = Some((queue, tag));
            }
        }
        self.0.look();
    }

    fn resent(&self) {
        self.0.look();
    }
}

/// What callbacks of a connection know of the session.
pub(super) struct PathWatcher {
    session: Arc<Session>,
    id: PathId,
    epoch: Epoch,
}

impl PathWatcher {
    /// Watches an epoch of a path.
    pub(super) fn new(session: &Arc<Session>, id: PathId, epoch: Epoch) -> Self {
        Self {
            session: session.clone(),
            id,
            epoch,
        }
    }
}

impl Watcher for PathWatcher {
    fn lost(&self) {
        self.session.lose(self.id, self.epoch);
        self.session.look();
    }

    fn violated(&self, what: Malformed) {
        self.session.notes.lock().violated = Some((self.id, self.epoch, what));
        self.session.look();
    }

    fn arrived(&self) {
        self.session.look();
    }

    fn credited(&self) {
        self.session.notes.lock().credited |= 1 << self.id;
        self.session.look();
    }
}
