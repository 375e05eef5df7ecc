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
    errno::ENOTCONN,
    sync::{
        new_irqsave_spinlock,
        with_reserves,
        without_io,
        Completion,
        IrqSaveSpinLock, //
    },
    timer::{
        Alarm,
        Ring, //
    },
    workqueue::OwnedQueue, //
};
use crate::client::{
    control::{
        Target,
        Watcher, //
    },
    host::Host,
    io::{
        disk,
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
    alarm: Option<Alarm<Bell>>,
    until: Option<Until>,
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
            shell: None,
            alarm: None,
            until: None,
        };
        let status = Status {
            state: State::Connecting,
            disk: None,
            login: None,
            failure: None,
            since: Instant::now(),
        };
        let params = Arc::new(params, GFP_KERNEL)?;
        let session = Arc::pin_init(
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
                work <- new_work!("Session::work"),
            }),
            GFP_KERNEL,
        )?;
        let alarm = Alarm::new(Bell(session.clone()))?;
        let keeper = Arc::new(Bell(session.clone()), GFP_KERNEL)?;
        let io = Io::new(session.params.policy, keeper)?;
        let shell = KBox::new(Shell::new(&session.params, io)?, GFP_KERNEL)?;
        {
            let mut running = session.running.lock();
            running.alarm = Some(alarm);
            running.shell = Some(shell);
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
    /// fails its I/O. In the user's task. May sleep.
    pub(crate) fn stop(self: &Arc<Self>, force: bool) -> Result<(), Failure> {
        if !force {
            // What the block layer still holds back is written now.
            self.take_disk(false)?;
        }
        self.ask(Some(Order::Disable), Until::AllGone)?;
        self.take_disk(true)?;
        let (shell, alarm) = {
            // Nobody waits for an answer that would not come.
            let _asking = self.asking.lock();
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

    /// Makes the disk appear. Runs in the user's task: what a kernel thread opens to read the
    /// partitions, it closes only later, and the disk would be busy until then. The workqueue stays
    /// free meanwhile to see to the paths.
    fn add_disk(self: &Arc<Self>) -> Result<(), Failure> {
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
            if !shell.put_disk(disk) {
                return Err(fail!(ENOTCONN, "the path was lost while the disk appeared"));
            }
        }
        // The state says that there is one when this returns.
        self.ask(None, Until::Now)
    }

    /// Takes the disk away, if it may be. Runs in the user's task, too: freeing the tags waits for work
    /// that memory reclaim must not wait for, as the workqueue may have to.
    fn take_disk(&self, force: bool) -> Result<(), Failure> {
        let shell = |running: &Running| running.shell.as_ref()?.disk().cloned();
        let Some(disk) = shell(&self.running.lock()) else {
            return Ok(());
        };
        // Both wait for who opens or freezes the disk, and these for I/O: the workqueue is to be free.
        match force {
            true => disk.mark_dead(),
            false => disk
                .claim()
                .map_err(|error| fail!(error, "the device is open"))?,
        }
        if let Some(shell) = &mut self.running.lock().shell {
            drop(shell.take_disk());
        }
        drop(disk);
        Ok(())
    }

    /// An epoch of a path is lost. Any context.
    fn lose(&self, id: PathId, epoch: Epoch) {
        if let Some(lost) = self.notes.lock().lost.get_mut(usize::from(id)) {
            *lost = (*lost).max(epoch);
        }
    }

    /// Tells what others may know.
    fn publish(&self, shell: &Shell) {
        let (state, failure, login) = shell.report();
        let changed = {
            let mut status = self.status.lock();
            status.failure = failure;
            status.login = login;
            let changed = core::mem::replace(&mut status.state, state) != state;
            if changed {
                status.since = Instant::now();
            }
            changed
        };
        if let (true, Some(disk)) = (changed, shell.disk()) {
            disk.announce(match state {
                State::Disabled => c"FARBLK_STATE=disabled",
                State::Connecting => c"FARBLK_STATE=connecting",
                State::Live => c"FARBLK_STATE=live",
                State::Reconnecting => c"FARBLK_STATE=reconnecting",
                State::Failed => c"FARBLK_STATE=failed",
                State::Stale => c"FARBLK_STATE=stale",
                State::Evicted => c"FARBLK_STATE=evicted",
            });
        }
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
        } = &mut *guard
        else {
            return;
        };
        let notes = Notes(&this.notes);
        let order = this.order.lock().take();
        without_io(|| shell.look(&notes, order));
        // A uevent takes memory, and I/O waits for this.
        with_reserves(|| this.publish(shell));
        if let Some(alarm) = alarm {
            match shell.sleep() {
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

impl Ring for Bell {
    fn ring(&self) {
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
