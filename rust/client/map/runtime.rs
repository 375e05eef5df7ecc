// SPDX-License-Identifier: GPL-2.0

//! Runs one map: takes commands, outcomes and events, reports them to [`session::map`], and lets
//! [`Resources`] perform the actions that follow.
//!
//! All of it happens in the work item of the [`Map`](super::Map). Nothing is decided here.
//!
//! [`session::map`]: crate::session::map

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    fmt,
    sync::Arc, //
};

use crate::base::errno::{
    ENOTCONN,
    EPROTO,
    ESTALE, //
};
use crate::client::{
    events::Events,
    io::{
        disk::{
            Disk,
            DiskLimits, //
        },
        multipath::Multipath, //
    },
    map::{
        connect::{
            Connector,
            Outcome, //
        },
        resources::{
            Path,
            PathStatus,
            Resources, //
        },
    },
    params::Params,
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Event as ServerEvent,
    LoginReply, //
};
use crate::session::{
    clock::Timer,
    map::{
        Config,
        End,
        Event,
        Extent,
        Failure as AttemptFailure,
        Farewell,
        Machine,
        Mode, //
    },
    Epoch,
    PathId,
    State,
    PATHS_MAX, //
};

/// Number of events of a server that one run of the work item handles, per path: the other paths
/// wait.
const SERVER_EVENTS_MAX: usize = 16;

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
    /// A server answers a command however long that takes, or the connection breaks. An RDMA READ
    /// or WRITE involves only the HCAs, and work requests complete in order: if none has completed
    /// for as long as a request may take, the path is of no use. Nor is it if a command was
    /// found to be answered, and the HCA has still not completed it after that time.
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
