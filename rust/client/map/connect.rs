// SPDX-License-Identifier: GPL-2.0

//! Connects one path of a map to its server, and closes it.
//!
//! Both may take long. A [`Connector`] does them on a workqueue of its own, so that a path that
//! hangs does not hold up the others, and keeps the outcomes until the map's work item takes them.
//! What it connects is a [`ConnectedPath`]: the control connection and the queues.
//!
//! Long: how a path comes and how it goes is one story.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    cpu::nr_cpu_ids,
    impl_has_work, new_mutex, new_work,
    page::PAGE_SIZE,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        UniqueArc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    errno::{
        ENOTCONN,
        ESTALE, //
    },
    sync::{
        with_reserves,
        without_io, //
    },
    workqueue::OwnedQueue, //
};
use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    events::{
        Events,
        PathEvents, //
    },
    io::{
        bounces::Bounces,
        disk::DiskLimits,
        multipath::{
            Multipath,
            Queues, //
        },
        queue::{
            DataPath,
            IoLimits,
            IoQueue,
            QueueConfig, //
        },
        slabs::Slabs, //
    },
    params::Params,
    target::{
        Shown,
        Target, //
    },
};
use crate::link::{
    channel::Side,
    cipher::Cipher,
    failure::{
        fail,
        Failure, //
    },
    may_invalidate, //
};
use crate::proto::{
    self,
    Backing,
    Event,
    Fence,
    Login,
    LoginReply,
    Ping, //
};
use crate::rdma::device::{
    Device,
    Name as DeviceName, //
};
use crate::session::{
    map::{
        Admission,
        Drained,
        Extent,
        Told, //
    },
    Epoch,
    PathId,
    ReservationKey, //
};

/// Bounds of the time that an attempt waits for the first answer of the server while I/O waits for
/// the path, in ms. The connection manager repeats its request after 4 s only, which is too late
/// for a server that comes back in the meantime.
const FIRST_ANSWER_MIN_MS: u32 = 750;
const FIRST_ANSWER_MAX_MS: u32 = 4000;
/// The first answer may take this many times as long as it took when the path was connected last.
const FIRST_ANSWER_FACTOR: u32 = 4;
/// Number of failed attempts after which that time is doubled: the server may have become slower.
const FIRST_ANSWER_ATTEMPTS: u32 = 16;

/// How long an attempt that has failed waits for the answer to its logout, in ms.
const LOGOUT_TIMEOUT_MS: u32 = 500;

/// How long a map that leaves waits for the answer to its logout, in ms. A task that forces the end
/// waits for it, then up to 5 s for the device to drain the path, and some 20 ms for each of 64
/// queue pairs that do not drain: all that takes less than 10 s.
const FAREWELL_TIMEOUT_MS: u32 = 2_000;

/// How long I/O waits for queues whose server may miss the first command, in ms.
const SETTLE_MS: i64 = 20;

/// Number of jobs of a path at a time, at most: an attempt to connect, the end of that attempt, and
/// the end of the path that came of it nevertheless. Each has two outcomes at most.
const JOBS_MAX: usize = 4;

/// A path that is connected.
pub(in crate::client) struct ConnectedPath {
    // The queues are dropped before the control connection, which ends the session on the server.
    /// The queues.
    pub(in crate::client) queues: Arc<Queues>,
    control: ControlConnection,
    /// The epoch of the path.
    pub(in crate::client) epoch: Epoch,
    /// What the path can do for a disk.
    pub(in crate::client) limits: DiskLimits,
    /// The time that the server took for its first answer, in ms.
    first_answer_ms: u32,
}

impl ConnectedPath {
    /// Returns what `session::map` has to know of the server, the export and the path.
    pub(in crate::client) fn admission(&self) -> Admission {
        let login = &self.limits.login;
        Admission {
            server: login.server(),
            export: u128::from_be_bytes(*login.export_uuid.as_bytes()),
            instance: u128::from_be_bytes(*login.instance.as_bytes()),
            volatile: login.geometry().is_some(),
            reservation_key: login.reservation_key,
            lease_ms: login.lease_ms,
            remembered: login.remembered,
            extent: Extent {
                number: login.extent_number,
                size: login.extent.size,
                writable: login.extent.access.writes(),
            },
            limits: self.limits.to_compare(),
        }
    }

    /// Returns the next event that the server has sent, if there is one. May sleep, but does not
    /// wait for the server.
    pub(in crate::client) fn event(&mut self) -> Result<Option<Event>, Failure> {
        self.control.event()
    }

    /// Asks the server for a fence of another path. Gives `EAGAIN` if there is no buffer for the
    /// message. May sleep, but does not wait for the answer.
    pub(in crate::client) fn fence(&mut self, path: PathId, epoch: Epoch) -> Result {
        let fence = Fence { path, epoch };
        self.control
            .post(|sequence, buf| fence.encode(sequence, buf))
    }

    /// Sends a ping, which the server has to answer. Gives `EAGAIN` if there is no buffer for the
    /// message. May sleep, but does not wait for the answer.
    pub(in crate::client) fn ping(&mut self) -> Result {
        self.control
            .post(|sequence, buf| Ping.encode(sequence, buf))
    }

    /// Returns the name of the RDMA device.
    pub(in crate::client) fn device(&self) -> DeviceName {
        self.control.channel().pd().device().name()
    }

    /// Tells the server that the map leaves. May sleep.
    fn log_out(&mut self) -> Told {
        let deadline = Deadline::start().sooner(FAREWELL_TIMEOUT_MS);
        let server = self.limits.login.server();
        self.control.log_out(server, deadline)
    }

    /// Ends all requests with an error. If the result is clean, nothing touches their memory any
    /// more; otherwise the other requests come back when the path is dropped. May sleep.
    fn drain(&self) -> Drained {
        // All connections fail before the first is waited for, so that the HCA has one time to
        // drain all of them. Nothing is said by the control connection any more.
        self.control.channel().fail();
        self.queues.iter().for_each(IoQueue::fail);
        let drained = self.queues.iter().map(IoQueue::drain);
        match drained.fold(Ok(()), Result::and) {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Unclean,
        }
    }
}

/// An attempt to connect a path.
#[derive(Clone, Copy)]
pub(in crate::client) struct Attempt {
    /// The epoch that the path will have.
    pub(in crate::client) epoch: Epoch,
    /// The registration of the map at the server, if the map had a path before.
    pub(in crate::client) resume: Option<ReservationKey>,
    /// What the disk has, if there is one: hardware queues with interrupts, polled ones, and
    /// requests in flight of each.
    pub(in crate::client) disk: Option<(u16, u16, u16)>,
    /// I/O waits for the path.
    pub(in crate::client) urgent: bool,
}

/// A job for the work item of a connector.
enum Job {
    Connect(Attempt),
    Close {
        epoch: Epoch,
        path: Option<ConnectedPath>,
        /// Whether to tell the server that the map leaves.
        leave: bool,
    },
}

/// The outcome of a job of a connector.
pub(in crate::client) enum Outcome {
    /// The path is connected. It carries no I/O yet.
    Connected(Epoch, ConnectedPath),
    /// The attempt failed, and nothing is left of it.
    Failed(Epoch, Failure),
    /// The path was drained. If it is clean, nothing touches the memory of its requests any more.
    Drained(Epoch, Drained),
    /// Nothing is left of the path.
    Closed {
        /// Whether the server has confirmed that the map leaves.
        told: Told,
    },
}

/// Connects and closes one path of a map.
#[pin_data]
pub(in crate::client) struct Connector {
    id: PathId,
    /// The address of the server.
    pub(in crate::client) target: Target,
    params: Arc<Params>,
    multipath: Arc<Multipath>,
    events: Arc<Events>,
    queue: OwnedQueue,
    /// The time that an urgent attempt waits for the first answer, in ms.
    first_answer_ms: Atomic<u32>,
    /// Number of urgent attempts that failed since that time was set.
    failed: Atomic<u32>,
    /// The last epoch that was closed.
    closed: Atomic<u64>,
    /// The last epoch that was closed and told to leave; set before `closed`.
    left: Atomic<u64>,
    /// Whether the server has confirmed that the map leaves, after the last attempt had failed.
    #[pin]
    told: Mutex<Told>,
    /// The bounce buffers, if the I/O of the map has a protection, or a device needed them.
    #[pin]
    bounces: Mutex<Option<Arc<Bounces>>>,
    #[pin]
    jobs: Mutex<KVec<Job>>,
    #[pin]
    outcomes: Mutex<KVec<Outcome>>,
    #[pin]
    work: Work<Connector>,
}

impl_has_work! {
    impl HasWork<Self> for Connector { self.work }
}

impl Connector {
    /// Makes a connector for path `id` of a map. Its connections carry the requests of `multipath`,
    /// and post to `events`. May sleep.
    pub(in crate::client) fn new(
        id: PathId,
        target: Target,
        params: Arc<Params>,
        multipath: Arc<Multipath>,
        events: Arc<Events>,
    ) -> Result<Arc<Self>> {
        let queue = OwnedQueue::ordered(&params.host.release, c"farblk_path")?;
        let jobs = KVec::with_capacity(JOBS_MAX, GFP_KERNEL)?;
        let outcomes = KVec::with_capacity(2 * JOBS_MAX, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                id,
                target,
                params,
                multipath,
                events,
                queue,
                first_answer_ms: Atomic::new(FIRST_ANSWER_MAX_MS),
                failed: Atomic::new(0),
                closed: Atomic::new(0),
                left: Atomic::new(0),
                told <- new_mutex!(Told::NotNeeded, "Connector::told"),
                bounces <- new_mutex!(None, "Connector::bounces"),
                jobs <- new_mutex!(jobs, "Connector::jobs"),
                outcomes <- new_mutex!(outcomes, "Connector::outcomes"),
                work <- new_work!("Connector::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins to connect the path. The outcome is [`Outcome::Connected`] or [`Outcome::Failed`].
    /// May sleep, but does not wait for the outcome.
    pub(in crate::client) fn connect(self: &Arc<Self>, attempt: Attempt) {
        self.begin(Job::Connect(attempt));
    }

    /// Begins to drain and close the path, if it is connected, and ends an attempt to connect
    /// `epoch`. With `leave`, tells the server that the map leaves. The outcomes are
    /// [`Outcome::Drained`] and then [`Outcome::Closed`]. May sleep, but does not wait for the
    /// outcomes.
    pub(in crate::client) fn close(
        self: &Arc<Self>,
        epoch: Epoch,
        path: Option<ConnectedPath>,
        leave: bool,
    ) {
        if leave {
            self.left.store(epoch, Relaxed);
        }
        self.closed.store(epoch, Release);
        self.begin(Job::Close { epoch, path, leave });
    }

    /// Takes the oldest outcome. May sleep.
    pub(in crate::client) fn take_outcome(&self) -> Option<Outcome> {
        let mut outcomes = self.outcomes.lock();
        outcomes.remove(0).ok()
    }

    fn begin(self: &Arc<Self>, job: Job) {
        // Cannot fail: the capacity suffices for all jobs at a time.
        let _ = self.jobs.lock().push_within_capacity(job);
        let _ = self.queue.enqueue(self.clone());
    }

    fn end(&self, outcome: Outcome) {
        // Cannot fail: the capacity suffices for the outcomes of all jobs.
        let _ = self.outcomes.lock().push_within_capacity(outcome);
        self.events.wake();
    }

    fn perform(&self, job: Job) {
        match job {
            Job::Connect(attempt) => self.end(match self.try_connect(&attempt) {
                Ok(path) => Outcome::Connected(attempt.epoch, path),
                Err(failure) => Outcome::Failed(attempt.epoch, failure),
            }),
            Job::Close {
                epoch,
                mut path,
                leave,
            } => {
                // The logout comes first: a server that loses a connection before it keeps the
                // map's place.
                let told = match &mut path {
                    Some(path) if leave => path.log_out(),
                    None if leave => *self.told.lock(),
                    _ => Told::NotNeeded,
                };
                let how = path.as_ref().map_or(Drained::Clean, ConnectedPath::drain);
                // I/O need not wait until the HCA has destroyed the queue pairs.
                self.end(Outcome::Drained(epoch, how));
                drop(path);
                self.end(Outcome::Closed { told });
            }
        }
    }

    /// Makes one attempt to connect, and adapts the time that the next one waits for the first
    /// answer.
    fn try_connect(&self, attempt: &Attempt) -> Result<ConnectedPath, Failure> {
        let first_answer_ms = self.first_answer_ms.load(Relaxed);
        let path = self.connect_path(
            attempt,
            match attempt.urgent {
                true => first_answer_ms,
                false => FIRST_ANSWER_MAX_MS,
            },
        );
        let failed = match &path {
            Ok(_) => 0,
            Err(_) => {
                (self.failed.load(Relaxed) + u32::from(attempt.urgent)) % FIRST_ANSWER_ATTEMPTS
            }
        };
        self.failed.store(failed, Relaxed);
        let next_ms = match &path {
            Ok(path) => path.first_answer_ms.saturating_mul(FIRST_ANSWER_FACTOR),
            Err(_) if failed == 0 && attempt.urgent => first_answer_ms.saturating_mul(2),
            Err(_) => first_answer_ms,
        };
        self.first_answer_ms.store(
            next_ms.clamp(FIRST_ANSWER_MIN_MS, FIRST_ANSWER_MAX_MS),
            Relaxed,
        );
        path
    }

    /// Fails if the epoch was closed meanwhile.
    fn check_wanted(&self, attempt: &Attempt) -> Result<(), Failure> {
        match self.closed.load(Acquire) >= attempt.epoch {
            true => Err(fail!(ENOTCONN, "the path is not wanted any more")),
            false => Ok(()),
        }
    }

    /// Returns the deadline of the next step. If the map was up before, no user waits for the
    /// attempt, and each step has the whole time: one lost message, or many connections, do not
    /// make it fail.
    fn next_deadline(&self, attempt: &Attempt, deadline: Deadline) -> Result<Deadline, Failure> {
        self.check_wanted(attempt)?;
        Ok(match attempt.resume {
            Some(_) => Deadline::start(),
            None => deadline,
        })
    }

    /// Connects the control connection, logs in, connects the queues, and asks for the slabs. May
    /// sleep.
    fn connect_path(
        &self,
        attempt: &Attempt,
        first_answer_ms: u32,
    ) -> Result<ConnectedPath, Failure> {
        let (options, epoch) = (&self.params.options, attempt.epoch);
        *self.told.lock() = Told::NotNeeded;
        let events = PathEvents::new(&self.events, self.id, epoch);
        let deadline = Deadline::start();
        let key = self.params.key()?;
        let mut control = ControlConnection::connect(
            &self.target,
            epoch,
            Some(events),
            key.as_deref(),
            deadline.sooner(first_answer_ms),
        )?;
        let first_answer_ms = deadline.spent();
        let device = control.channel().pd().device().clone();
        let vectors = device.limits().num_comp_vectors;
        let hw_queues = match (attempt.disk, options.queues) {
            (Some((count, ..)), _) => count,
            (None, 0) => u16::try_from(nr_cpu_ids().min(vectors)).unwrap_or(u16::MAX),
            (None, count) => count,
        }
        .max(1);
        // After the login nothing may fail without a logout.
        let queues = UniqueArc::<Queues>::new_uninit(GFP_KERNEL)?;
        let login = self.login(attempt, hw_queues, &device);
        let login = control.call(
            self.next_deadline(attempt, deadline)?,
            |sequence, buf| login.encode(sequence, buf),
            |bytes, sequence| LoginReply::parse(bytes, sequence, &login),
        )?;
        control.set_granted(login.limits.logical_block_size, login.extent.access);
        let mut io = Queues::new();
        match self.connect_io(attempt, &mut control, &mut io, &login, hw_queues, deadline) {
            Ok(limits) => Ok(ConnectedPath {
                queues: queues.write(io).into(),
                control,
                epoch,
                limits,
                first_answer_ms,
            }),
            Err(failure) => {
                // The map may never come back, and the server keeps a place for it since the login.
                // A map that is live on another path, or was, needs the place.
                if !self.multipath.was_up() || self.left.load(Relaxed) >= epoch {
                    let deadline = Deadline::start().sooner(LOGOUT_TIMEOUT_MS);
                    *self.told.lock() = control.log_out(login.server(), deadline);
                }
                // All fail before the first is dropped: see [`ConnectedPath::drain`].
                control.channel().fail();
                io.iter().for_each(IoQueue::fail);
                Err(failure)
            }
        }
    }

    /// Returns the login that asks for `hw_queues` queues with interrupts, over `device`.
    fn login(&self, attempt: &Attempt, hw_queues: u16, device: &Device) -> Login {
        let (identity, options) = (&self.params.identity, &self.params.options);
        // The server may have granted less than the options say, and the disk needs no more.
        let (polled, depth) = match attempt.disk {
            Some((_, polled, depth)) => (polled, depth),
            None => (options.poll_queues, options.depth),
        };
        // A command and its data, which may begin anywhere in a page, are one work request.
        let inline_max = device.limits().max_send_sge.saturating_sub(2) * PAGE_SIZE as u32;
        Login {
            host_id: identity.id,
            host_name: identity.name,
            boot: self.params.host.boot,
            map_uuid: self.params.uuid,
            incarnation: self.params.incarnation,
            path: self.id,
            epoch: attempt.epoch,
            resume: attempt.resume,
            export: options.export,
            access: options.access,
            queues: hw_queues.saturating_add(polled),
            depth,
            inline_size: options.inline_size.min(inline_max),
            protection: options.protection,
            remote_invalidate: may_invalidate(device),
            no_path_timeout_ms: options.no_path_timeout_ms,
            heartbeat_ms: options.heartbeat_ms,
        }
    }

    /// Connects the queues, and asks for the slabs; `queues` has also those that failed. May sleep.
    fn connect_io(
        &self,
        attempt: &Attempt,
        control: &mut ControlConnection,
        queues: &mut Queues,
        login: &LoginReply,
        hw_queues: u16,
        deadline: Deadline,
    ) -> Result<DiskLimits, Failure> {
        let (options, epoch) = (&self.params.options, attempt.epoch);
        // If the map was up before, `session::map` compares the instance with the one that it
        // knows.
        let expected = options.expect_instance.filter(|_| attempt.resume.is_none());
        if let Some(expected) = expected.filter(|id| *id != login.instance) {
            return Err(fail!(
                ESTALE,
                "instance {expected} is gone; the export is now {}",
                login.instance
            ));
        }
        let (data_path, depth) = match (login.backing, login.terms()) {
            (Backing::Block { depth, credit, .. }, Some(terms)) => {
                (DataPath::Commands(terms, credit), depth)
            }
            _ => (DataPath::OneSided, options.depth),
        };
        self.multipath
            .reserve(usize::from(login.queues) * usize::from(depth))?;
        let mut config = QueueConfig {
            target: &self.target,
            pd: control.channel().pd(),
            depth,
            data_path,
            events: PathEvents::new(&self.events, self.id, epoch),
            owner: &self.multipath,
            deadline,
            protection: options.protection,
            bounces: self.bounces(control.channel().pd().device())?,
        };
        // If the server granted fewer queues than the login asked for, fewer are polled.
        let interrupted = hw_queues.min(login.queues);
        let mut count = login.queues;
        for hw_queue in 0..login.queues {
            config.deadline = self.next_deadline(attempt, config.deadline)?;
            let queue = (hw_queue, hw_queue >= interrupted);
            let connected = self.connect_queue((&config, epoch), control, queues, login, queue);
            match connected {
                // One of the devices has no queue pair to give, or no memory for one. A map that
                // has no disk yet makes do with what it has; a disk keeps the queues that it has.
                Ok(Err(_)) if hw_queue > 0 && attempt.disk.is_none() => {
                    queues.truncate(usize::from(hw_queue));
                    count = hw_queue;
                    break;
                }
                Ok(connected) => connected?,
                Err(failure) => return Err(failure),
            }
        }
        let interrupted = interrupted.min(count);
        if let Some(geometry) = login.geometry() {
            // The server registers them by one of the queues. They have deadlines of their
            // own.
            let slabs = Slabs::collect(control, geometry, || self.check_wanted(attempt))?;
            let slabs = Arc::new(slabs, GFP_KERNEL)?;
            queues.iter_mut().for_each(|queue| queue.set_slabs(&slabs));
        }
        let device = control.channel().pd().device();
        if device.quirks().misses_first_message() {
            // On these queues nobody would notice.
            fsleep(Delta::from_millis(SETTLE_MS));
        }
        Ok(DiskLimits {
            login: *login,
            queues: count,
            poll_queues: count - interrupted,
            depth,
            numa_node: device.numa_node(),
            max_segment_size: device.limits().dma_max_seg_size,
            // There is at least one queue: the parser does not accept a login without.
            io: queues.first().map_or(IoLimits::NOTHING, IoQueue::limits),
        })
    }

    /// Connects queue `hw_queue`, and adds it to `queues`, where it stays if it has failed. The
    /// inner error is that there is no memory for it on one of the hosts. May sleep.
    fn connect_queue(
        &self,
        (config, epoch): (&QueueConfig<'_>, Epoch),
        control: &ControlConnection,
        queues: &mut Queues,
        login: &LoginReply,
        (hw_queue, polled): (u16, bool),
    ) -> Result<Result<(), Failure>, Failure> {
        let (queue, id) = match IoQueue::new(config, hw_queue, polled) {
            Err(failure) if failure.error == ENOMEM => return Ok(Err(failure)),
            made => made?,
        };
        queues.push(queue, GFP_KERNEL)?;
        // Only here: if it fails, the queue fails with the others, so that all of them are drained
        // in the same time.
        if let Some(queue) = queues.last() {
            queue.prepare()?;
        }
        let request = proto::Connection::Io {
            session: login.session,
            queue: hw_queue,
        };
        let shown = match control.channel().tickets() {
            Some(tickets) => Shown::Ticket(tickets),
            None => Shown::Nothing,
        };
        let connected = self
            .target
            .connect(&id, (request, epoch), shown, config.deadline);
        let connected = match connected.map_err(Failure::from) {
            Err(failure) if failure.error == ENOMEM => return Ok(Err(failure)),
            connected => connected?,
        };
        let tickets = control.channel().tickets();
        let tickets = tickets.map(|tickets| (tickets, &connected.request, &connected.reply));
        let cipher = Cipher::new(self.params.options.protection, Side::Client, tickets)?;
        if let Some(queue) = queues.last() {
            if let Some(cipher) = cipher {
                queue.set_cipher(cipher);
            }
            queue.set_up();
        }
        Ok(Ok(()))
    }

    /// Returns the bounce buffers, if queues over `device` need any. May sleep.
    fn bounces(&self, device: &Device) -> Result<Option<Arc<Bounces>>> {
        if !self.params.options.protection.is_on() && !device.loses_offsets() {
            return Ok(None);
        }
        let mut bounces = self.bounces.lock();
        if bounces.is_none() {
            *bounces = Some(Bounces::new(device.numa_node())?);
        }
        Ok(bounces.clone())
    }
}

impl WorkItem for Connector {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let Ok(job) = this.jobs.lock().remove(0) else {
                return;
            };
            match &job {
                // No I/O waits for the first path of a map.
                Job::Connect(Attempt { resume: None, .. }) => without_io(|| this.perform(job)),
                // I/O waits for this job, and memory reclaim may wait for that I/O.
                _ => with_reserves(|| this.perform(job)),
            }
        }
    }
}
