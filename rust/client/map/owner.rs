// SPDX-License-Identifier: GPL-2.0

//! The session of a map: one owner for its paths and its disk.
//!
//! What is to be done is decided by [`session::map`](crate::session::map), and performed by a [`Shell`], on
//! the session's own ordered workqueue only. Callbacks, timers and the user leave a note and enqueue the
//! work; a user then waits for the answer. What takes long, connecting and draining, is done by each
//! path's [`Route`].

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
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

use crate::base::{
    debugfs::Show,
    errno::{
        ECANCELED,
        ENOTCONN, //
    },
    sync::{
        new_irqsave_spinlock,
        with_reserves,
        without_io,
        Completion,
        IrqSaveSpinLock, //
    },
    timer::{
        Timer,
        TimerHandler, //
    },
    workqueue::OwnedQueue, //
};
use crate::block::mq::GenDisk;
use crate::client::{
    control::{
        Target,
        Watcher, //
    },
    host::Host,
    io::{
        disk::{
            self,
            Disk,
            DiskChanges,
            PartitionScan, //
        },
        ledger::{
            Io,
            Keeper,
            Policy, //
        },
    },
    map::{
        connect::Route,
        path::PathStatus,
        runtime::Shell, //
    },
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    LoginReply,
    Malformed,
    Name,
    Text,
    Uuid, //
};
use crate::session::{
    Epoch,
    PathId,
    State,
    PATHS_MAX, //
};

/// Hardware queues with late requests that are remembered; the others are reported again.
const LATE_MAX: usize = 8;
/// How long a user waits for a map to come up, in ms. The attempts to connect have timeouts of their own,
/// and fit in; what is left of it may go into the scan for partitions.
const START_MS: u64 = 5000;
/// What the scan for partitions gets in any case, in ms.
const SCAN_MS: u64 = 500;
/// How often a stop says that it still waits for the scan, in ms.
const SCAN_REPORT_MS: u32 = 10_000;

/// What a map is to be.
pub(crate) struct Params {
    /// Who maps.
    pub(crate) host: Arc<Host>,
    /// The map's identity at the server.
    pub(crate) uuid: Uuid,
    /// Larger for each time that a map of this host is enabled; never 0.
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
    /// Since when it stands there.
    pub(crate) since: Instant<Monotonic>,
}

/// What the user wants.
pub(in crate::client) enum Order {
    /// The path is to be brought up, and stay so.
    Add(PathId, Arc<Route>),
    /// It is to be let go of.
    Remove(PathId),
    /// Everything is to be let go of; I/O fails.
    Disable,
}

/// When an order is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::client) enum Until {
    /// At once.
    Now,
    /// When a path is up, or each has failed once.
    Up,
    /// When nothing is left of a path.
    Gone(PathId),
    /// When nothing is left of any path.
    AllGone,
}

/// What callbacks have left for the work item.
struct Noted {
    /// Epochs that were lost, by path; 0 for none.
    lost: [Epoch; PATHS_MAX],
    /// How the server broke the protocol, and in which epoch of a path.
    violated: Option<(PathId, Epoch, Malformed)>,
    /// Bit by bit, the paths on which the server may allow more commands.
    credited: u32,
    /// Hardware queues with requests that are late.
    late: [Option<u16>; LATE_MAX],
}

impl Noted {
    const NOTHING: Self = Self {
        lost: [0; PATHS_MAX],
        violated: None,
        credited: 0,
        late: [None; LATE_MAX],
    };
}

/// What callbacks have left; each is told once.
pub(in crate::client) struct Notes<'a>(&'a IrqSaveSpinLock<Noted>);

impl Notes<'_> {
    /// Epochs that were lost, by path; 0 for none.
    pub(in crate::client) fn lost(&self) -> [Epoch; PATHS_MAX] {
        core::mem::take(&mut self.0.lock().lost)
    }

    /// How the server broke the protocol, and in which epoch of a path.
    pub(in crate::client) fn violated(&self) -> Option<(PathId, Epoch, Malformed)> {
        self.0.lock().violated.take()
    }

    /// Bit by bit, the paths on which the server may allow more commands.
    pub(in crate::client) fn credited(&self) -> u32 {
        core::mem::take(&mut self.0.lock().credited)
    }

    /// Hardware queues with requests that are late.
    pub(in crate::client) fn late(&self) -> [Option<u16>; LATE_MAX] {
        core::mem::take(&mut self.0.lock().late)
    }
}

/// What only the session's own workqueue touches, but for the disk, which the user's task adds and
/// removes.
struct Running {
    /// `None` before the start and after the end. In a box: it is large.
    shell: Option<KBox<Shell>>,
    alarm: Option<Timer<Bell>>,
    until: Option<Until>,
    /// The scan for the disk's partitions, from when the disk is there.
    scan: Option<Arc<PartitionScan>>,
    /// What the disk shows.
    changes: DiskChanges,
}

/// A session.
#[pin_data]
pub(crate) struct Session {
    params: Arc<Params>,
    queue: OwnedQueue,
    #[pin]
    notes: IrqSaveSpinLock<Noted>,
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
    /// See [`Session::abort`].
    aborted: Atomic<bool>,
    #[pin]
    work: Work<Session>,
}

impl_has_work! {
    impl HasWork<Self> for Session { self.work }
}

impl Session {
    /// A session that has not begun. May sleep.
    pub(crate) fn new(params: Params) -> Result<Arc<Self>, Failure> {
        let queue = OwnedQueue::ordered(c"farblk_map")?;
        let running = Running {
            shell: None,
            alarm: None,
            until: None,
            scan: None,
            changes: DiskChanges::NONE,
        };
        let status = Status {
            state: State::Connecting,
            disk: None,
            login: None,
            failure: None,
            since: Instant::now(),
        };
        let params = Arc::new(params, GFP_KERNEL)?;
        Ok(Arc::pin_init(
            pin_init!(Self {
                params,
                queue,
                notes <- new_irqsave_spinlock!(Noted::NOTHING, "Session::notes"),
                running <- new_mutex!(running, "Session::running"),
                status <- new_mutex!(status, "Session::status"),
                order <- new_mutex!(None, "Session::order"),
                asking <- new_mutex!((), "Session::asking"),
                outcome <- new_mutex!(Ok(()), "Session::outcome"),
                done <- Completion::new(),
                aborted: Atomic::new(false),
                work <- new_work!("Session::work"),
            }),
            GFP_KERNEL,
        )?)
    }

    /// Connects the paths and makes the disk appear once one is up; the others follow. If it fails,
    /// nothing is left of it. To be called once, in the user's task. Takes up to 5 s. May sleep.
    pub(crate) fn start(
        self: &Arc<Self>,
        targets: impl Iterator<Item = (PathId, Target)>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let alarm = Timer::new(Bell(self.clone()))?;
        let keeper = Arc::new(Bell(self.clone()), GFP_KERNEL)?;
        let io = Io::new(self.params.policy, keeper)?;
        let shell = KBox::new(Shell::new(&self.params, io)?, GFP_KERNEL)?;
        {
            let mut running = self.running.lock();
            running.alarm = Some(alarm);
            running.shell = Some(shell);
        }
        let outcome = self.bring_up(targets, began);
        if outcome.is_err() {
            self.stop(true)?;
        }
        match self.aborted.load(Relaxed) {
            true => outcome.map_err(|_| fail!(ECANCELED, "it was disabled by force meanwhile")),
            false => outcome,
        }
    }

    fn bring_up(
        self: &Arc<Self>,
        targets: impl Iterator<Item = (PathId, Target)>,
        began: Instant<Monotonic>,
    ) -> Result<(), Failure> {
        for (id, target) in targets {
            self.add_path(id, target)?;
        }
        self.ask(None, Until::Up)?;
        let scan = self.add_disk()?;
        // The user expects the partitions to be there. If the server does not answer they come later.
        let spent = u64::try_from(began.elapsed().as_millis()).unwrap_or(START_MS);
        let left = START_MS.saturating_sub(spent).max(SCAN_MS);
        let _ = scan.wait(u32::try_from(left).unwrap_or(u32::MAX));
        match self.aborted.load(Relaxed) {
            true => Err(ENOTCONN.into()),
            false => Ok(()),
        }
    }

    /// Brings a path up, and again whenever it is lost. Does not wait for it. May sleep.
    pub(crate) fn add_path(self: &Arc<Self>, id: PathId, target: Target) -> Result<(), Failure> {
        let io = match &self.running.lock().shell {
            Some(shell) => shell.io().clone(),
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
    /// fails its I/O. Returns what the user should know of a session that is over nevertheless. To be
    /// called by one task at a time, the user's. May sleep, for as long as paths need to be closed.
    pub(crate) fn stop(self: &Arc<Self>, force: bool) -> Result<Option<Failure>, Failure> {
        if !force {
            let disk = self.disk();
            // What was cached was written when the disk was closed: no I/O is left but our own.
            if disk.is_some_and(|disk| disk.claim().is_err()) {
                return Err(fail!(EBUSY, "the device is open"));
            }
        }
        self.ask(Some(Order::Disable), Until::AllGone)?;
        self.remove_disk();
        let (shell, alarm) = {
            // Nobody waits for an answer that would not come.
            let _asking = self.asking.lock();
            let mut running = self.running.lock();
            (running.shell.take(), running.alarm.take())
        };
        let untold = shell.as_ref().and_then(|shell| shell.untold());
        drop(alarm);
        drop(shell);
        Ok(untold)
    }

    /// Fails all I/O and closes all paths, for ever, so that a [`Session::start`] or [`Session::stop`]
    /// that another task is in ends soon; a `start` with `ECANCELED`. Does not wait for it. Any context.
    pub(crate) fn abort(self: &Arc<Self>) {
        self.aborted.store(true, Relaxed);
        self.look();
    }

    /// What the session is at the moment. May sleep.
    pub(crate) fn status(&self) -> Status {
        *self.status.lock()
    }

    /// What a path is at the moment. May sleep.
    pub(crate) fn path_status(&self, id: PathId) -> PathStatus {
        let running = self.running.lock();
        let shell = running.shell.as_ref();
        shell.map_or(PathStatus::NONE, |shell| shell.path_status(id))
    }

    /// Lets the workqueue look at what there is to be seen. Any context.
    pub(in crate::client) fn look(self: &Arc<Self>) {
        let _ = self.queue.enqueue(self.clone());
    }

    /// Lets the workqueue carry out an order, and waits for its answer. `ENOTCONN` if the session is
    /// over.
    fn ask(self: &Arc<Self>, order: Option<Order>, until: Until) -> Result<(), Failure> {
        let _asking = self.asking.lock();
        {
            let mut running = self.running.lock();
            if running.shell.is_none() {
                return Err(ENOTCONN.into());
            }
            self.done.reinit();
            *self.order.lock() = order;
            running.until = Some(until);
        }
        self.look();
        self.done.wait();
        *self.outcome.lock()
    }

    fn answer(&self, outcome: Result<(), Failure>) {
        *self.outcome.lock() = outcome;
        self.done.complete_all();
    }

    fn disk(&self) -> Option<Arc<GenDisk<Disk>>> {
        self.running.lock().shell.as_ref()?.disk().cloned()
    }

    /// Makes the disk appear, and begins to look for its partitions. Runs in the user's task, as it takes
    /// memory; the workqueue stays free meanwhile to see to the paths. Waits for no I/O.
    fn add_disk(self: &Arc<Self>) -> Result<Arc<PartitionScan>, Failure> {
        let params = &self.params;
        let (shape, io) = {
            let running = self.running.lock();
            let shell = running.shell.as_ref().ok_or(ENOTCONN)?;
            (*shell.shape().ok_or(ENOTCONN)?, shell.io().clone())
        };
        let disk = disk::create(&params.host, &shape, params.io_timeout_ms, io)
            .and_then(|disk| Ok(Arc::new(disk, GFP_KERNEL)?))
            .map_err(|error| fail!(error, "cannot create the disk"))?;
        self.status.lock().disk = disk.name().to_str().ok().map(Text::from);
        if let Some(shell) = &mut self.running.lock().shell {
            shell.put_disk(disk.clone());
        }
        // The state says that there is one when this returns.
        self.ask(None, Until::Now)?;
        let scan = PartitionScan::begin(&params.host, disk)?;
        self.running.lock().scan = Some(scan.clone());
        Ok(scan)
    }

    /// Takes the disk away, whose I/O fails since all paths are gone. Runs in the user's task, too: freeing
    /// the tags waits for work that memory reclaim must not wait for, as the workqueue may have to.
    fn remove_disk(&self) {
        let (disk, scan) = {
            let mut running = self.running.lock();
            let shell = running.shell.as_ref();
            (
                shell.and_then(|shell| shell.disk().cloned()),
                running.scan.take(),
            )
        };
        let Some(disk) = disk else {
            return;
        };
        // This waits for file systems, which wait for I/O, which the workqueue has to end.
        disk.mark_dead();
        while scan
            .as_ref()
            .is_some_and(|scan| scan.wait(SCAN_REPORT_MS).is_err())
        {
            pr_warn!("a read of the partition table does not end\n");
        }
        if let Some(shell) = &mut self.running.lock().shell {
            drop(shell.take_disk());
        }
        drop(disk);
    }

    /// An epoch of a path is lost. Any context.
    fn lose(&self, id: PathId, epoch: Epoch) {
        if let Some(lost) = self.notes.lock().lost.get_mut(usize::from(id)) {
            *lost = (*lost).max(epoch);
        }
    }

    /// Tells what others may know. Returns the time in ms after which it has to be called again, if any.
    fn publish(&self, shell: &Shell, changes: &mut DiskChanges) -> Option<u64> {
        let (state, failure, login) = shell.report();
        {
            let mut status = self.status.lock();
            status.failure = failure;
            status.login = login;
            if core::mem::replace(&mut status.state, state) != state {
                status.since = Instant::now();
            }
        }
        changes.show(shell.disk()?, login?.extent, state)
    }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut guard = this.running.lock();
        let Running {
            shell: Some(shell),
            alarm,
            until,
            changes,
            ..
        } = &mut *guard
        else {
            return;
        };
        let notes = Notes(&this.notes);
        let order = match this.aborted.load(Relaxed) {
            // Whatever else was wanted.
            true => {
                this.order.lock().take();
                Some(Order::Disable)
            }
            false => this.order.lock().take(),
        };
        without_io(|| shell.look(&notes, order));
        // A uevent takes memory, and I/O waits for this.
        let publish_in = with_reserves(|| this.publish(shell, changes));
        if let Some(alarm) = alarm {
            match Iterator::chain(shell.sleep().into_iter(), publish_in).min() {
                Some(ms) => alarm.set(u32::try_from(ms).unwrap_or(u32::MAX)),
                None => alarm.clear(),
            }
        }
        let verdict = until.and_then(|until| shell.verdict(until));
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
            Some(shell) => shell.io().show(f),
            None => Ok(()),
        }
    }
}

/// Wakes a session: by its alarm, and by its requests.
struct Bell(Arc<Session>);

impl TimerHandler for Bell {
    fn expired(&self) {
        self.0.look();
    }
}

impl Keeper for Bell {
    fn late(&self, queue: u16) {
        {
            let late = &mut self.0.notes.lock().late;
            if !late.contains(&Some(queue)) {
                if let Some(place) = late.iter_mut().find(|place| place.is_none()) {
                    *place = Some(queue);
                }
            }
        }
        self.0.look();
    }

    fn resent(&self) {
        self.0.look();
    }

    fn stranded(&self) {
        self.0.look();
    }
}

/// What callbacks of a connection know of the session.
pub(in crate::client) struct PathWatcher {
    session: Arc<Session>,
    id: PathId,
    epoch: Epoch,
}

impl PathWatcher {
    /// Watches an epoch of a path.
    pub(in crate::client) fn new(session: &Arc<Session>, id: PathId, epoch: Epoch) -> Self {
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
        // There is room for one such word, and no path may stay for want of it.
        self.lost();
    }

    fn arrived(&self) {
        self.session.look();
    }

    fn credited(&self) {
        self.session.notes.lock().credited |= 1 << self.id;
        self.session.look();
    }
}
