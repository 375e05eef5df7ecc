// SPDX-License-Identifier: GPL-2.0

//! The session of a map: one owner for its path and its disk.
//!
//! Both change on the session's own ordered workqueue only. The user's writes to `enable` and the
//! callbacks of connections leave a note and enqueue the work; a user then waits for the outcome.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt, impl_has_work, new_mutex, new_work,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
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
    path::Path, //
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
    LoginReply,
    Malformed,
    Name,
    Text,
    Uuid, //
};
use crate::session::{
    Event,
    State, //
};
use crate::sync::{
    new_irqsave_spinlock,
    Completion,
    IrqSaveSpinLock, //
};
use crate::workqueue::OwnedQueue;

/// What a map is to be.
#[derive(Clone)]
pub(crate) struct Params {
    /// Who maps.
    pub(crate) host: Arc<Host>,
    /// The map's identity at the server.
    pub(crate) uuid: Uuid,
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
    /// When a request is given up.
    pub(crate) io_timeout_ms: u32,
    /// The only contents to accept.
    pub(crate) expect_instance: Option<Uuid>,
    /// Where the server is.
    pub(crate) target: Target,
}

/// What others may know of a session.
#[derive(Clone, Copy)]
pub(crate) struct Status {
    /// Where it stands.
    pub(crate) state: State,
    /// The name of the disk, while there is one.
    pub(crate) disk: Option<Text>,
    /// The RDMA device in use.
    pub(crate) device: Option<Text>,
    /// What the server told of the export.
    pub(crate) login: Option<LoginReply>,
    /// Why it failed.
    pub(crate) failure: Option<Failure>,
}

/// What waits for the workqueue.
#[derive(Default)]
struct Notes {
    start: bool,
    stop: bool,
    lost: bool,
    /// How the server broke the protocol.
    violated: Option<Malformed>,
    arrived: bool,
    credited: bool,
}

/// What only the session's own workqueue touches, but for the disk, which the user's task adds and
/// removes.
struct Running {
    // Until the disk is gone, requests come to the path.
    disk: Option<GenDisk<Disk>>,
    path: Option<Path>,
}

/// A session.
#[pin_data]
pub(crate) struct Session {
    params: Params,
    queue: OwnedQueue,
    #[pin]
    notes: IrqSaveSpinLock<Notes>,
    #[pin]
    running: Mutex<Running>,
    #[pin]
    status: Mutex<Status>,
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
    /// Connects and makes the disk appear. Takes up to 5 s. May sleep.
    pub(crate) fn start(params: Params) -> Result<Arc<Self>, Failure> {
        let queue = OwnedQueue::ordered(c"farblk_map")?;
        let notes = Notes {
            start: true,
            ..Notes::default()
        };
        let running = Running {
            disk: None,
            path: None,
        };
        let status = Status {
            state: State::Disabled,
            disk: None,
            device: None,
            login: None,
            failure: None,
        };
        let session = Arc::pin_init(
            pin_init!(Self {
                params,
                queue,
                notes <- new_irqsave_spinlock!(notes, "Session::notes"),
                running <- new_mutex!(running, "Session::running"),
                status <- new_mutex!(status, "Session::status"),
                outcome <- new_mutex!(Ok(()), "Session::outcome"),
                done <- Completion::new(),
                work <- new_work!("Session::work"),
            }),
            GFP_KERNEL,
        )?;
        session.ask()?;
        if let Err(failure) = session.add_disk() {
            session.stop(true)?;
            return Err(failure);
        }
        Ok(session)
    }

    /// Takes the disk away and disconnects; `EBUSY` while the disk is open, unless `force`, which
    /// fails its I/O. May sleep.
    pub(crate) fn stop(self: &Arc<Self>, force: bool) -> Result<(), Failure> {
        self.remove_disk(force)?;
        self.notes.lock().stop = true;
        self.ask()
    }

    /// What the session is at the moment. May sleep.
    pub(crate) fn status(&self) -> Status {
        *self.status.lock()
    }

    /// Lets the workqueue look at the notes and waits for its answer.
    fn ask(self: &Arc<Self>) -> Result<(), Failure> {
        self.done.reinit();
        let _ = self.queue.enqueue(self.clone());
        self.done.wait();
        *self.outcome.lock()
    }

    fn answer(&self, outcome: Result<(), Failure>) {
        *self.outcome.lock() = outcome;
        self.done.complete_all();
    }

    /// Moves to the next state; an event without meaning changes nothing.
    fn step(&self, event: Event) {
        let mut status = self.status.lock();
        if let Some(state) = status.state.next(event) {
            status.state = state;
        }
    }

    /// Brings the path up.
    fn connect(self: &Arc<Self>, running: &mut Running) -> Result<(), Failure> {
        self.step(Event::Enable);
        let outcome = self.try_connect(running);
        if let Err(failure) = &outcome {
            self.step(match failure.error {
                ESTALE => Event::InstanceDiffers,
                _ => Event::Refused,
            });
        }
        outcome
    }

    fn try_connect(self: &Arc<Self>, running: &mut Running) -> Result<(), Failure> {
        let params = &self.params;
        let watcher: Arc<dyn Watcher> = Arc::new(Callback(self.clone()), GFP_KERNEL)?;
        let path = Path::connect(params, &params.target, 1, &watcher)?;
        {
            let mut status = self.status.lock();
            status.device = Some(Text::from(path.device().as_str()));
            status.login = Some(path.login);
        }
        running.path = Some(path);
        Ok(())
    }

    /// Makes the disk appear. Runs in the user's task: what a kernel thread opens to read the
    /// partitions, it closes only later, and the disk would be busy until then. The workqueue stays
    /// free meanwhile to notice that the connection is lost.
    fn add_disk(self: &Arc<Self>) -> Result<(), Failure> {
        let params = &self.params;
        let mut queues = KVec::new();
        let plan = {
            let running = self.running.lock();
            let path = running.path.as_ref().ok_or_else(|| self.lost())?;
            for queue in &path.queues {
                queues.push(queue.clone(), GFP_KERNEL)?;
            }
            disk::Plan {
                login: path.login,
                poll_queues: path.poll_queues,
                depth: path.depth,
                io_timeout_ms: params.io_timeout_ms,
                max_segment_size: path.max_segment_size(),
            }
        };
        let watcher = Arc::new(Callback(self.clone()), GFP_KERNEL)?;
        let disk = disk::create(&params.host, &plan, queues, watcher)
            .map_err(|error| fail!(error, "cannot create the disk"))?;
        self.status.lock().disk = disk.name().to_str().ok().map(Text::from);
        {
            let mut running = self.running.lock();
            // What was said meanwhile.
            if let Some(path) = &running.path {
                disk::resize(&disk, &path.login.extent);
            }
            running.disk = Some(disk);
        }
        self.step(Event::Connected);
        match self.status().state {
            State::Live => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// What the user is told of a lost connection.
    fn lost(&self) -> Failure {
        let addr = self.params.target.addr;
        fail!(ENOTCONN, "the connection to {addr} was lost")
    }

    /// The server may have said what became of the export.
    fn news(&self, running: &mut Running) -> Result<(), Failure> {
        let Some(path) = &mut running.path else {
            return Ok(());
        };
        if let Some(extent) = path.news()? {
            if let Some(login) = &mut self.status.lock().login {
                login.extent = extent;
            }
            if let Some(disk) = &running.disk {
                disk::resize(disk, &extent);
            }
        }
        Ok(())
    }

    /// The connection broke: all I/O fails from now on, and the device is let go of.
    fn fail(&self, running: &mut Running, why: Failure) {
        let Some(path) = running.path.take() else {
            return;
        };
        {
            let mut status = self.status.lock();
            status.failure = Some(why);
            status.device = None;
        }
        self.step(Event::Lost);
        path.close();
    }

    /// Takes the disk away, if it may be. Runs in the user's task, too: freeing the tags waits for work
    /// that memory reclaim must not wait for, as the workqueue may have to.
    fn remove_disk(&self, force: bool) -> Result<(), Failure> {
        let disk = {
            let mut running = self.running.lock();
            match &running.disk {
                Some(disk) if force => {
                    if let Some(path) = &running.path {
                        path.close();
                    }
                    disk.mark_dead();
                }
                Some(disk) => disk
                    .claim()
                    .map_err(|error| fail!(error, "the device is open"))?,
                None => {}
            }
            running.disk.take()
        };
        drop(disk);
        Ok(())
    }

    /// Disconnects, once there is no disk.
    fn disconnect(&self, running: &mut Running) {
        if let Some(mut path) = running.path.take() {
            path.logout();
        }
        self.step(Event::Disable);
    }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let notes = core::mem::take(&mut *this.notes.lock());
        let mut running = this.running.lock();
        if notes.start {
            let outcome = this.connect(&mut running);
            this.answer(outcome);
        }
        if notes.arrived {
            if let Err(failure) = this.news(&mut running) {
                // Of a connection that broke there is more to be said.
                match notes.lost || this.notes.lock().lost {
                    true => this.fail(&mut running, this.lost()),
                    false => this.fail(&mut running, failure),
                }
            }
        }
        if notes.credited {
            let queues = running.path.iter().flat_map(|path| &path.queues);
            queues.for_each(|queue| queue.grow());
        }
        if let Some(malformed) = notes.violated {
            let failure = fail!(EPROTO, "the server broke the protocol: {malformed}");
            this.fail(&mut running, failure);
        }
        if notes.lost {
            this.fail(&mut running, this.lost());
        }
        if notes.stop {
            this.disconnect(&mut running);
            this.answer(Ok(()));
        }
    }
}

impl Show for Session {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.running.lock();
        let queues = running.path.iter().flat_map(|path| &path.queues);
        for (index, queue) in queues.enumerate() {
            write!(f, "queue {} ", index)?;
            queue.show(f)?;
        }
        Ok(())
    }
}

/// What callbacks know of a session.
struct Callback(Arc<Session>);

impl Callback {
    fn note(&self, what: impl FnOnce(&mut Notes)) {
        what(&mut self.0.notes.lock());
        let _ = self.0.queue.enqueue(self.0.clone());
    }
}

impl Watcher for Callback {
    fn lost(&self) {
        self.note(|notes| notes.lost = true);
    }

    fn violated(&self, what: Malformed) {
        self.note(|notes| notes.violated = Some(what));
    }

    fn arrived(&self) {
        self.note(|notes| notes.arrived = true);
    }

    fn credited(&self) {
        self.note(|notes| notes.credited = true);
    }
}
