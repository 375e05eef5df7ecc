// SPDX-License-Identifier: GPL-2.0

//! A map: an export of another host as a disk, over one or more paths.
//!
//! A [`Map`] owns an ordered workqueue with one work item. The state of the map changes there only:
//! the pure machine of [`session::map`] decides what to do, and [`MapRuntime`] performs it.
//! Callbacks post [`Events`] and schedule the work item. A task of the user leaves a command,
//! schedules the work item and waits for the result.
//!
//! What takes long is done elsewhere: each path has a [`Connector`] with a workqueue of its own,
//! and the disk is added and removed by the task of the user.
//!
//! [`session::map`]: crate::session::map

#![forbid(unsafe_code)]

mod connect;
mod runtime;
mod stats;
mod timers;

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        msecs_to_jiffies,
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    errno::{
        ECANCELED,
        ENOTCONN, //
    },
    ratelimit::RateLimit,
    sync::{
        fatal_signal_pending,
        with_reserves,
        Completion, //
    },
    timer::{
        new_timer,
        Timer,
        TimerHandler, //
    },
    workqueue::OwnedQueue, //
};
use crate::client::{
    events::{
        Events,
        Schedule, //
    },
    io::disk::{
        self,
        Disk,
        DiskChanges,
        PartitionScan,
        Shown, //
    },
    map::{
        connect::Connector,
        runtime::{
            MapCommand,
            MapRuntime,
            WaitFor, //
        },
    },
    params::Params,
    target::Target, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    LoginReply,
    Text, //
};
use crate::session::{
    PathId,
    State, //
};

pub(crate) use runtime::PathStatus;
pub(crate) use stats::Files;

/// Time that enabling a map takes at most, in ms. Connecting has timeouts of its own that fit in;
/// the scan for partitions has what is left.
const START_MS: u64 = 5000;
/// Time that the scan for partitions has in any case, in ms.
const SCAN_MIN_MS: u64 = 500;
/// Interval at which [`Map::stop`] warns that it still waits for the scan, in ms.
const SCAN_WARN_MS: u32 = 10_000;

/// The status of a map.
#[derive(Clone, Copy)]
pub(crate) struct Status {
    /// The state.
    pub(crate) state: State,
    /// The name of the disk, once there is one.
    pub(crate) disk: Option<Text>,
    /// The server's description of the export, once a path was up.
    pub(crate) login: Option<LoginReply>,
    /// Why I/O does not flow, or flushes fail.
    pub(crate) failure: Option<Failure>,
}

/// What only the work item uses, but for the disk, which the task of the user adds and removes.
struct Running {
    /// `None` before the start and after the end. It is boxed because it is large.
    runtime: Option<KBox<MapRuntime>>,
    /// Schedules the work item when the machine has set a timer.
    timer: Option<Pin<KBox<Timer<MapWork>>>>,
    /// The condition for the result that a task waits for.
    wait_for: Option<WaitFor>,
    /// The scan for the partitions of the disk.
    scan: Option<Arc<PartitionScan>>,
}

/// A map.
#[pin_data]
pub(crate) struct Map {
    params: Arc<Params>,
    queue: OwnedQueue,
    /// Shows on the disk what has changed.
    changes: Arc<DiskChanges>,
    #[pin]
    running: Mutex<Running>,
    #[pin]
    status: Mutex<Status>,
    /// The command that the work item is to execute.
    #[pin]
    command: Mutex<Option<MapCommand>>,
    /// Held by the task that waits for a result, so that there is one such task at a time.
    #[pin]
    waiting: Mutex<()>,
    /// The result of the last command.
    #[pin]
    result: Mutex<Result<(), Failure>>,
    /// Signalled when the result is there.
    #[pin]
    done: Completion,
    /// See [`Map::abort`].
    aborted: Atomic<bool>,
    #[pin]
    log_limit: RateLimit,
    #[pin]
    work: Work<Map>,
}

impl_has_work! {
    impl HasWork<Self> for Map { self.work }
}

impl Map {
    /// Makes a map that is not started. Fails with `ENOKEY` if the protection that the user asks
    /// for needs a key, and the map has none. May sleep.
    pub(crate) fn new(params: Params) -> Result<Arc<Self>, Failure> {
        params.key()?;
        let queue = OwnedQueue::ordered(&params.host.release, c"farblk_map")?;
        let changes = DiskChanges::new(params.name)?;
        let running = Running {
            runtime: None,
            timer: None,
            wait_for: None,
            scan: None,
        };
        let status = Status {
            state: State::Connecting,
            disk: None,
            login: None,
            failure: None,
        };
        let params = Arc::new(params, GFP_KERNEL)?;
        Ok(Arc::pin_init(
            pin_init!(Self {
                params,
                queue,
                changes,
                running <- new_mutex!(running, "Map::running"),
                status <- new_mutex!(status, "Map::status"),
                command <- new_mutex!(None, "Map::command"),
                waiting <- new_mutex!((), "Map::waiting"),
                result <- new_mutex!(Ok(()), "Map::result"),
                done <- Completion::new(),
                aborted: Atomic::new(false),
                log_limit <- RateLimit::new(),
                work <- new_work!("Map::work"),
            }),
            GFP_KERNEL,
        )?)
    }

    /// Connects the paths, and adds the disk once one of them is up; the other paths follow. If it
    /// fails, nothing of the map is left on this host. Fails with `EINTR` if the task is killed.
    /// Must be called once. Takes up to 5 s, and more only if the server grants many slabs. Sleeps.
    pub(crate) fn start(
        self: &Arc<Self>,
        targets: impl Iterator<Item = (PathId, Target)>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let timer = KBox::pin_init(new_timer!(MapWork(self.clone()), "Map::timer"), GFP_KERNEL)?;
        let events = Events::new(Arc::new(MapWork(self.clone()), GFP_KERNEL)?)?;
        let runtime = KBox::new(MapRuntime::new(&self.params, events)?, GFP_KERNEL)?;
        {
            let mut running = self.running.lock();
            running.timer = Some(timer);
            running.runtime = Some(runtime);
        }
        let Err(failure) = self.bring_up(targets, began) else {
            return Ok(());
        };
        let failure = match self.aborted.load(Relaxed) {
            true if fatal_signal_pending() => fail!(EINTR, "killed while it was being enabled"),
            true => fail!(ECANCELED, "it was disabled by force meanwhile"),
            false => failure,
        };
        Err(match self.stop(true)? {
            Some(_) => fail!(
                failure.error,
                "{}; the server keeps the map's place",
                failure.text
            ),
            None => failure,
        })
    }

    fn bring_up(
        self: &Arc<Self>,
        targets: impl Iterator<Item = (PathId, Target)>,
        began: Instant<Monotonic>,
    ) -> Result<(), Failure> {
        for (id, target) in targets {
            self.add_path(id, target)?;
        }
        self.execute(None, WaitFor::PathUp)?;
        let scan = self.add_disk()?;
        // The user expects the partitions to be there. If the server does not answer they come
        // later.
        let spent = u64::try_from(began.elapsed().as_millis()).unwrap_or(START_MS);
        let left = START_MS.saturating_sub(spent).max(SCAN_MIN_MS);
        let _ = scan.wait(u32::try_from(left).unwrap_or(u32::MAX));
        match self.aborted.load(Relaxed) {
            true => Err(ENOTCONN.into()),
            false => Ok(()),
        }
    }

    /// Adds a path: connects it, and connects it again whenever it is lost. Does not wait until it
    /// is connected. Fails with `ENOTCONN` if the map is not running. May sleep.
    pub(crate) fn add_path(self: &Arc<Self>, id: PathId, target: Target) -> Result<(), Failure> {
        let (multipath, events) = {
            let running = self.running.lock();
            let runtime = running.runtime.as_ref().ok_or(ENOTCONN)?;
            (runtime.multipath().clone(), runtime.events().clone())
        };
        let connector = Connector::new(id, target, self.params.clone(), multipath, events)?;
        self.execute(Some(MapCommand::AddPath(id, connector)), WaitFor::Nothing)
    }

    /// Removes a path, and waits until nothing is left of it. Fails with `ENOTCONN` if the map is
    /// not running. Sleeps.
    pub(crate) fn remove_path(self: &Arc<Self>, id: PathId) -> Result<(), Failure> {
        self.execute(Some(MapCommand::RemovePath(id)), WaitFor::PathGone(id))
    }

    /// Removes the disk and closes all paths. With `force` the I/O of an open disk fails; otherwise
    /// `stop` fails with `EBUSY` if the disk is open. Returns what the user has to know although
    /// the map is over. One task at a time may call this. Sleeps, for as long as paths take to
    /// close.
    pub(crate) fn stop(self: &Arc<Self>, force: bool) -> Result<Option<Failure>, Failure> {
        if !force {
            let disk = self.disk();
            // The last close has written what was cached, so there is no other I/O than the scan's.
            if disk.is_some_and(|disk| disk.claim().is_err()) {
                return Err(fail!(EBUSY, "the device is open"));
            }
        }
        self.execute(Some(MapCommand::Disable), WaitFor::AllPathsGone)?;
        self.remove_disk();
        let (runtime, timer) = {
            // No task waits for a result, which would not come any more.
            let _waiting = self.waiting.lock();
            let mut running = self.running.lock();
            (running.runtime.take(), running.timer.take())
        };
        let untold = runtime.as_ref().and_then(|runtime| runtime.untold());
        drop(timer);
        drop(runtime);
        Ok(untold)
    }

    /// Fails all I/O and closes all paths, for ever, so that a [`Map::start`] or [`Map::stop`] that
    /// runs in another task ends soon. Such a `start` fails with `ECANCELED`. Does not wait. Any
    /// context.
    pub(crate) fn abort(self: &Arc<Self>) {
        self.aborted.store(true, Relaxed);
        self.schedule();
    }

    /// Returns the status of the map. May sleep.
    pub(crate) fn status(&self) -> Status {
        *self.status.lock()
    }

    /// Returns the status of a path. May sleep.
    pub(crate) fn path_status(&self, id: PathId) -> PathStatus {
        let running = self.running.lock();
        let runtime = running.runtime.as_ref();
        runtime.map_or(PathStatus::NONE, |runtime| runtime.path_status(id))
    }

    /// Returns the milliseconds until the I/O of a map without a path fails; `None` if it flows,
    /// has failed already or waits for ever. May sleep.
    pub(crate) fn gives_up_ms(&self) -> Option<u64> {
        let running = self.running.lock();
        running.runtime.as_ref()?.gives_up_ms()
    }

    /// Schedules the work item. Any context.
    fn schedule(self: &Arc<Self>) {
        let _ = self.queue.enqueue(self.clone());
    }

    /// Lets the work item execute a command, and waits for the result. Fails with `ENOTCONN` if the
    /// map is not running. If the task is killed while it waits for a path, the map is aborted.
    /// Sleeps.
    fn execute(
        self: &Arc<Self>,
        command: Option<MapCommand>,
        wait_for: WaitFor,
    ) -> Result<(), Failure> {
        let _waiting = self.waiting.lock();
        {
            let mut running = self.running.lock();
            if running.runtime.is_none() {
                return Err(ENOTCONN.into());
            }
            self.done.reinit();
            *self.command.lock() = command;
            running.wait_for = Some(wait_for);
        }
        self.schedule();
        // What else is waited for ends soon by itself, and nothing may stay behind.
        if wait_for == WaitFor::PathUp && self.done.wait_killable().is_err() {
            self.abort();
        }
        // It may take as long as the device needs for the end of many queue pairs.
        self.done.wait_io();
        *self.result.lock()
    }

    fn complete(&self, result: Result<(), Failure>) {
        *self.result.lock() = result;
        self.done.complete_all();
    }

    fn disk(&self) -> Option<Arc<Disk>> {
        self.running.lock().runtime.as_ref()?.disk().cloned()
    }

    /// Adds the disk, and begins to scan for its partitions. Runs in the task of the user, because
    /// it allocates, and the work item must deal with the paths meanwhile. Does not wait for I/O.
    /// May sleep.
    fn add_disk(self: &Arc<Self>) -> Result<Arc<PartitionScan>, Failure> {
        let params = &self.params;
        let (limits, multipath) = {
            let running = self.running.lock();
            let runtime = running.runtime.as_ref().ok_or(ENOTCONN)?;
            (
                *runtime.limits().ok_or(ENOTCONN)?,
                runtime.multipath().clone(),
            )
        };
        let disk = disk::create(
            &params.host,
            &limits,
            params.options.io_timeout_ms,
            multipath,
        )
        .and_then(|disk| Ok(Arc::new(disk, GFP_KERNEL)?))
        .map_err(|error| fail!(error, "cannot create the disk"))?;
        self.status.lock().disk = disk.name().to_str().ok().map(Text::from);
        if let Some(runtime) = &mut self.running.lock().runtime {
            runtime.install_disk(disk.clone());
        }
        // The published state says that there is a disk when this returns.
        self.execute(None, WaitFor::Nothing)?;
        // udev handles events in their order: it must know of the map before its partitions come.
        self.changes.show_now();
        let scan = PartitionScan::begin(&params.host, disk)?;
        self.running.lock().scan = Some(scan.clone());
        Ok(scan)
    }

    /// Removes the disk, whose I/O fails since all paths are gone. Runs in the task of the user:
    /// freeing the tags waits for work that memory reclaim must not wait for, while memory reclaim
    /// may wait for the work item. Sleeps.
    fn remove_disk(&self) {
        let (disk, scan) = {
            let mut running = self.running.lock();
            let runtime = running.runtime.as_ref();
            (
                runtime.and_then(|runtime| runtime.disk().cloned()),
                running.scan.take(),
            )
        };
        let Some(disk) = disk else {
            return;
        };
        self.changes.end();
        // This waits for file systems, which wait for I/O, which the work item has to end.
        disk.mark_dead();
        while scan
            .as_ref()
            .is_some_and(|scan| scan.wait(SCAN_WARN_MS).is_err())
        {
            pr_warn!("a read of the partition table does not end\n");
        }
        if let Some(runtime) = &mut self.running.lock().runtime {
            drop(runtime.remove_disk());
        }
        drop(disk);
    }

    /// Publishes the state of the map in [`Status`], and soon on the disk. Returns the time in ms
    /// after which this must be called again, if it must.
    fn publish(&self, runtime: &MapRuntime) -> Option<u64> {
        let (state, failure, login) = runtime.report();
        let before = {
            let mut status = self.status.lock();
            status.failure = failure;
            status.login = login;
            core::mem::replace(&mut status.state, state)
        };
        if before != state {
            self.log(before, state, failure);
        }
        let login = login?;
        let shown = Shown {
            extent: login.extent,
            state,
            uuid: login.export_uuid,
        };
        let host = &self.params.host;
        self.changes.show(host, runtime.disk()?, shown)
    }
}

impl Map {
    /// Writes to the kernel log what has become of the I/O of a map that was up.
    fn log(&self, before: State, now: State, failure: Option<Failure>) {
        let news = match (before, now) {
            (_, State::Reconnecting) => "no usable path, I/O waits",
            (_, State::Failed) => "no usable path, I/O fails",
            (_, State::Evicted) => "evicted, I/O fails",
            (_, State::Stale) => "stale, I/O fails",
            (State::Reconnecting | State::Failed, State::Live) => "a path is up again",
            (_, State::Connecting | State::Live | State::Disabled) => return,
        };
        if !self.log_limit.allows() {
            return;
        }
        let name = self.params.name;
        match failure {
            Some(failure) => pr_warn!("map {}: {news}: {}\n", name.as_str(), failure.text.as_str()),
            None if now == State::Live => pr_info!("map {}: {news}\n", name.as_str()),
            None => pr_warn!("map {}: {news}\n", name.as_str()),
        }
    }
}

impl WorkItem for Map {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut guard = this.running.lock();
        let Running {
            runtime: Some(runtime),
            timer,
            wait_for,
            ..
        } = &mut *guard
        else {
            return;
        };
        let command = this.command.lock().take();
        let command = match this.aborted.load(Relaxed) {
            // This takes the place of any other command.
            true => Some(MapCommand::Disable),
            false => command,
        };
        // I/O waits for this work item, and memory may not become free before that I/O has ended.
        with_reserves(|| runtime.run(command));
        let publish_in = this.publish(runtime);
        if let Some(timer) = timer {
            match Iterator::chain(runtime.next_run_ms().into_iter(), publish_in).min() {
                Some(ms) => timer.start(msecs_to_jiffies(u32::try_from(ms).unwrap_or(u32::MAX))),
                None => timer.clear(),
            }
        }
        let result = wait_for.and_then(|wait_for| runtime.result(wait_for));
        if result.is_some() {
            *wait_for = None;
        }
        drop(guard);
        if let Some(result) = result {
            this.complete(result);
        }
    }
}

/// Schedules the work item of a map, for its timer and its mailbox.
struct MapWork(Arc<Map>);

impl Schedule for MapWork {
    fn schedule(&self) {
        self.0.schedule();
    }
}

impl TimerHandler for MapWork {
    fn expired(&self) {
        self.0.schedule();
    }
}
