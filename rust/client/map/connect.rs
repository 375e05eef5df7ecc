// SPDX-License-Identifier: GPL-2.0

//! A way to a map's server: connects a path and drains it, on a workqueue of its own, so that one that
//! hangs does not hold up the others.

#![forbid(unsafe_code)]

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
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    sync::{
        with_reserves,
        without_io, //
    },
    workqueue::OwnedQueue, //
};
use crate::client::{
    control::{
        Target,
        Watcher, //
    },
    io::ledger::Io,
    map::{
        connected::{
            Attempt,
            Path, //
        },
        owner::{
            Params,
            PathWatcher,
            Session, //
        },
    },
};
use crate::link::failure::Failure;
use crate::session::{
    map::Drained,
    Epoch,
    PathId,
    Tenure, //
};

/// A server that I/O waits for is to be found soon when it comes back: the connection manager by itself asks
/// again after 4 s only. These are the bounds of how long an attempt waits for the first answer, in ms.
const PATIENCE_MIN_MS: u32 = 750;
const PATIENCE_MAX_MS: u32 = 4000;
/// How much longer than last time the first answer may take.
const PATIENCE_FACTOR: u32 = 4;
/// Attempts in vain after which it is doubled: the server may be there, and have become slower.
const PATIENCE_ATTEMPTS: u32 = 16;

/// An attempt to connect.
#[derive(Clone, Copy)]
pub(in crate::client) struct Wanted {
    /// The path's epoch.
    pub(in crate::client) epoch: Epoch,
    /// The tenure to resume.
    pub(in crate::client) resume: Option<Tenure>,
    /// Queues of the disk that are not polled, if there is one.
    pub(in crate::client) queues: Option<u16>,
    /// I/O waits for it.
    pub(in crate::client) urgent: bool,
}

/// What is to be done.
enum Job {
    Connect(Wanted),
    /// To wait until nothing of a path is under way any more; whether to tell the server that it is the
    /// end of the map.
    Close(Epoch, Option<Path>, bool),
}

/// What has been done.
pub(in crate::client) enum Outcome {
    /// The path carries no I/O yet.
    Connected(Epoch, Path),
    /// Nothing is left of the attempt.
    Refused(Epoch, Failure),
    /// Nothing of the path touches the memory of requests any more, if it is clean.
    Drained(Epoch, Drained),
    /// Nothing of it is left.
    Closed {
        /// The server has confirmed that the map leaves.
        told: bool,
    },
}

/// A way to the server.
#[pin_data]
pub(in crate::client) struct Route {
    id: PathId,
    /// Where the server is.
    pub(in crate::client) target: Target,
    params: Arc<Params>,
    io: Arc<Io>,
    session: Arc<Session>,
    queue: OwnedQueue,
    /// How long to wait for the first answer of an attempt, in ms: it depends on how long that took when
    /// it came.
    patience_ms: Atomic<u32>,
    /// Attempts in vain since it was.
    in_vain: Atomic<u32>,
    /// The last epoch that is not wanted any more.
    given_up: Atomic<u64>,
    #[pin]
    jobs: Mutex<KVec<Job>>,
    #[pin]
    outcomes: Mutex<KVec<Outcome>>,
    #[pin]
    work: Work<Route>,
}

impl_has_work! {
    impl HasWork<Self> for Route { self.work }
}

/// Jobs of a path that there are at a time, at most: an attempt to connect, the end of the attempt, and
/// that of the path that came of it nevertheless; each has two outcomes at most.
const JOBS: usize = 4;

impl Route {
    /// A way that nobody goes yet. May sleep.
    pub(in crate::client) fn new(
        id: PathId,
        target: Target,
        params: &Arc<Params>,
        io: &Arc<Io>,
        session: &Arc<Session>,
    ) -> Result<Arc<Self>> {
        let queue = OwnedQueue::ordered(c"farblk_path")?;
        let jobs = KVec::with_capacity(JOBS, GFP_KERNEL)?;
        let outcomes = KVec::with_capacity(2 * JOBS, GFP_KERNEL)?;
        let (params, io, session) = (params.clone(), io.clone(), session.clone());
        Arc::pin_init(
            pin_init!(Self {
                id,
                target,
                params,
                io,
                session,
                queue,
                patience_ms: Atomic::new(PATIENCE_MAX_MS),
                in_vain: Atomic::new(0),
                given_up: Atomic::new(0),
                jobs <- new_mutex!(jobs, "Route::jobs"),
                outcomes <- new_mutex!(outcomes, "Route::outcomes"),
                work <- new_work!("Route::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Connects; ends with [`Outcome::Connected`] or [`Outcome::Refused`]. May sleep, but not for it.
    pub(in crate::client) fn connect(self: &Arc<Self>, wanted: Wanted) {
        self.begin(Job::Connect(wanted));
    }

    /// Drains and closes; ends with [`Outcome::Drained`] and [`Outcome::Closed`]. May
    /// sleep, but not for it.
    pub(in crate::client) fn close(
        self: &Arc<Self>,
        epoch: Epoch,
        path: Option<Path>,
        leave: bool,
    ) {
        self.given_up.store(epoch, Relaxed);
        self.begin(Job::Close(epoch, path, leave));
    }

    /// What has been done since the last look, in its order. May sleep.
    pub(in crate::client) fn outcome(&self) -> Option<Outcome> {
        let mut outcomes = self.outcomes.lock();
        outcomes.remove(0).ok()
    }

    fn begin(self: &Arc<Self>, job: Job) {
        // There is room for all that there are.
        let _ = self.jobs.lock().push_within_capacity(job);
        let _ = self.queue.enqueue(self.clone());
    }

    fn end(&self, outcome: Outcome) {
        let _ = self.outcomes.lock().push_within_capacity(outcome);
        self.session.look();
    }

    fn perform(self: &Arc<Self>, job: Job) {
        match job {
            Job::Connect(wanted) => self.end(match self.try_connect(wanted) {
                Ok(path) => Outcome::Connected(wanted.epoch, path),
                Err(failure) => Outcome::Refused(wanted.epoch, failure),
            }),
            Job::Close(epoch, mut path, leave) => {
                let leaves = path.as_mut().filter(|_| leave);
                let told = leaves.is_some_and(Path::logout);
                let how = path.as_ref().map_or(Drained::Clean, Path::drain);
                // An HCA may take its time to destroy what is drained.
                self.end(Outcome::Drained(epoch, how));
                drop(path);
                self.end(Outcome::Closed { told });
            }
        }
    }

    fn try_connect(self: &Arc<Self>, wanted: Wanted) -> Result<Path, Failure> {
        let watcher = PathWatcher::new(&self.session, self.id, wanted.epoch);
        let patience_ms = self.patience_ms.load(Relaxed);
        let watcher: Arc<dyn Watcher> = Arc::new(watcher, GFP_KERNEL)?;
        let attempt = Attempt {
            params: &self.params,
            target: &self.target,
            id: self.id,
            wanted,
            watcher,
            io: &self.io,
            given_up: &|| self.given_up.load(Relaxed) >= wanted.epoch,
            patience_ms: match wanted.urgent {
                true => patience_ms,
                false => PATIENCE_MAX_MS,
            },
        };
        let path = Path::connect(&attempt);
        let in_vain = match &path {
            Ok(_) => 0,
            Err(_) => (self.in_vain.load(Relaxed) + u32::from(wanted.urgent)) % PATIENCE_ATTEMPTS,
        };
        self.in_vain.store(in_vain, Relaxed);
        let patience = match &path {
            Ok(path) => path.answer_ms.saturating_mul(PATIENCE_FACTOR),
            Err(_) if in_vain == 0 && wanted.urgent => patience_ms.saturating_mul(2),
            Err(_) => patience_ms,
        };
        self.patience_ms
            .store(patience.clamp(PATIENCE_MIN_MS, PATIENCE_MAX_MS), Relaxed);
        path
    }
}

impl WorkItem for Route {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let Ok(job) = this.jobs.lock().remove(0) else {
                return;
            };
            match &job {
                // No I/O waits for it yet.
                Job::Connect(Wanted { resume: None, .. }) => without_io(|| this.perform(job)),
                // I/O waits for this, and memory may wait for I/O.
                _ => with_reserves(|| this.perform(job)),
            }
        }
    }
}
