// SPDX-License-Identifier: GPL-2.0

//! The client's side of a session: what becomes of the I/O of a map while its paths come and go.
//!
//! [`Machine`] owns all that is decided on the client: which path is connected when, how I/O is treated,
//! which verdicts end the map, which timers run, and what is still being drained. The code around it
//! reports what happened, one [`Event`] after the other, performs the [`Action`]s that follow in their
//! order, and keeps no state of its own that a decision depends on.
//!
//! Words that are used in this sense only:
//!
//! - *admission*: what the server says of itself and of the export when it lets a path in.
//! - *requeued*: a request that was in flight on a path that was lost, and has come back. *Replay* sends
//!   the requeued requests again.
//! - *proven*: a path on which something was answered since it came up. A server that lets the client in
//!   and breaks the connection again and again never proves a path, so I/O does not wait for ever.

#![forbid(unsafe_code)]

use super::clock::{lease_left_ms, Backoff, Beat, Delay, Heartbeat, Timer};
use super::{Epoch, PathId, PathState, State, Tenure, PATHS_MAX};

/// How long to wait for room when something could not be sent, unless there is news before, in ms.
const RESEND_MS: u32 = 10;

/// What the user wants of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long I/O waits for a path, in ms; `None` for ever.
    pub no_path_timeout_ms: Option<u32>,
    /// How often the server is asked whether it is there, in ms; 0 for never.
    pub heartbeat_ms: u32,
    /// The longest delay between two attempts to connect, in ms.
    pub reconnect_max_ms: u32,
}

/// What may change of an export while it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The server raises it with each change, for each instance of the export.
    pub number: u32,
    /// Bytes.
    pub size: u64,
    /// Whether the export may be written.
    pub writable: bool,
}

/// What a disk is made for, and every path of it has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The unit of addressing, in bytes.
    pub block_size: u32,
    /// The size of a slab in bytes, which no request crosses, if the export is of RAM.
    pub slab: Option<u32>,
    /// Hardware queues, and how many of them are polled.
    pub queues: u16,
    /// Of them, those that are polled.
    pub poll_queues: u16,
    /// Requests in flight per queue.
    pub depth: u16,
    /// Segments of a request.
    pub segments: u16,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Bytes of a read or write.
    pub max_io: u32,
    /// Bytes of a discard; 0 if there are none.
    pub max_discard: u32,
    /// Bytes of a write of zeroes; 0 if there are none.
    pub max_write_zeroes: u32,
    /// What was written may be lost until it is flushed.
    pub write_cache: bool,
    /// A write can be made to last by itself.
    pub fua: bool,
}

impl Limits {
    /// Whether a disk that was made for `disk` can do its I/O over a path with these limits; if not, what
    /// is in the way. Only what the disk cannot do without is compared: `io_opt` and the like are hints.
    pub fn fit(&self, disk: &Self) -> Result<(), &'static str> {
        let all = [
            (self.block_size == disk.block_size, "the block size differs"),
            (
                self.slab.is_some() == disk.slab.is_some(),
                "the kind of the export differs",
            ),
            (self.slab >= disk.slab, "the slabs are smaller"),
            (self.queues >= disk.queues, "there are fewer queues"),
            (
                self.queues - self.poll_queues.min(self.queues) == disk.queues - disk.poll_queues,
                "other queues are polled",
            ),
            (self.depth >= disk.depth, "the queues are shorter"),
            // Before what follows from it.
            (self.max_io >= disk.max_io, "requests are smaller"),
            (
                self.segments >= disk.segments,
                "requests have fewer segments",
            ),
            (
                self.segment_size >= disk.segment_size,
                "the segments of requests are smaller",
            ),
            (self.max_discard >= disk.max_discard, "discards are smaller"),
            (
                self.max_write_zeroes >= disk.max_write_zeroes,
                "writes of zeroes are smaller",
            ),
            (
                disk.write_cache || !self.write_cache,
                "the export has a write cache now",
            ),
            (self.fua || !disk.fua, "the export has no FUA any more"),
        ];
        match all.iter().find(|(fits, _)| !fits) {
            Some((_, why)) => Err(why),
            None => Ok(()),
        }
    }
}

/// What the server says when it lets a path in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Admission {
    /// Identity of the server.
    pub server: u128,
    /// UUID of the export.
    pub export: u128,
    /// Identity of the export's contents (ram), or of what a volatile cache may hold of them (block).
    pub instance: u128,
    /// Whether the contents are gone with the instance.
    pub volatile: bool,
    /// Under which the export is this map's.
    pub tenure: Tenure,
    /// How long the map keeps its place without a path, in ms, from when the server notices that.
    pub lease_ms: u32,
    /// Whether the server remembered the tenure: it did not begin anew since, or was told.
    pub remembered: bool,
    /// The extent of the export.
    pub extent: Extent,
    /// What the path can do.
    pub limits: Limits,
}

/// Why an attempt to connect ended without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The next one may do better.
    Transient,
    /// The server does not let this map in, or not any more.
    Denied,
}

/// How a path was drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drained {
    /// All its requests have come back.
    Clean,
    /// The device did not do it: requests may come back until the path is closed.
    Unclean,
}

/// What happened. What is about an epoch of a path means nothing once that epoch is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The user wants a path.
    Add(PathId),
    /// The user does not want it any more.
    Remove(PathId),
    /// The user wants the map no more.
    Disable,
    /// The disk has appeared.
    Appeared,
    /// A timer other than [`Timer::Heartbeat`] has elapsed.
    Elapsed(Timer),
    /// [`Timer::Heartbeat`] of a path has elapsed; whether anything was heard on the path since the last
    /// time.
    Heartbeat(PathId, bool),
    /// A path is connected, and carried no I/O yet.
    Connected(PathId, Epoch, Admission),
    /// A path could not be connected; nothing of the attempt is left.
    Refused(PathId, Epoch, Failure),
    /// A path broke, or does not answer, or does not keep to the protocol.
    Lost(PathId, Epoch),
    /// The server has answered a ping on a path.
    Pong(PathId, Epoch),
    /// The server tells of the extent on a path.
    Extent(PathId, Epoch, Extent),
    /// What [`Action::Close`] asked for first: the path touches no memory any more, if it is clean.
    /// `requeued` says whether any requests of lost paths have come back and were not sent again.
    Drained {
        /// The path.
        path: PathId,
        /// Its epoch.
        epoch: Epoch,
        /// How it was drained.
        how: Drained,
        /// There are requeued requests.
        requeued: bool,
    },
    /// What [`Action::Close`] asked for: nothing of the path is left.
    Closed {
        /// The path.
        path: PathId,
        /// The server has heard that the map leaves.
        told: bool,
        /// There are requeued requests.
        requeued: bool,
    },
    /// The server said on a path, `via`, that no I/O of `path` up to `epoch` will reach the export.
    Fenced {
        /// The path on which that was said.
        via: PathId,
        /// The path that is fenced.
        path: PathId,
        /// Its last epoch that is.
        epoch: Epoch,
    },
    /// There was no room to send what [`Action::Fence`] asked for on a path.
    FenceNotSent(PathId),
    /// What [`Action::Replay`] came to.
    Replayed {
        /// Every requeued request was sent and is complete.
        done: bool,
    },
    /// A request that was replayed has ended; `answered` if the server answered it, else it was requeued.
    ReplayEnded {
        /// The server answered it.
        answered: bool,
    },
    /// A request came back and was requeued, while I/O fails.
    Requeued,
}

/// Why a path that was connected is let go of at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It leads to another server.
    OtherServer,
    /// It leads to another export of that name.
    OtherExport,
    /// The server says that the export is somebody else's, but the map has it on another path.
    OtherTenure,
    /// The attempt to connect began before another path learned what the server says now.
    Overtaken,
    /// The disk cannot do its I/O over it.
    Misfit(&'static str),
    /// It broke before it was up.
    Broken,
    /// The server did not answer any more.
    Silent,
}

/// What is to be done. The paths are those of the current epoch, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A timer is to run; if it runs already, whichever would elapse first counts.
    Arm(Timer, Delay),
    /// A timer is not to run any more.
    Disarm(Timer),
    /// Connect a path; ends with [`Event::Connected`] or [`Event::Refused`].
    Connect {
        /// The path.
        path: PathId,
        /// Its new epoch.
        epoch: Epoch,
        /// The tenure to resume, if the map was let in before.
        resume: Option<Tenure>,
        /// I/O waits for it.
        urgent: bool,
    },
    /// Let I/O take a path that was connected.
    Open(PathId),
    /// Let I/O take a path no more, and let go of the path, or of the attempt; ends with
    /// [`Event::Drained`] and then [`Event::Closed`].
    Close {
        /// The path.
        path: PathId,
        /// Its epoch.
        epoch: Epoch,
        /// Tell the server that the map leaves it.
        leave: bool,
    },
    /// A path is about to be closed for this reason.
    Blame(PathId, Fault),
    /// Send a ping on a path.
    Ping(PathId),
    /// Ask the server, on the first path, for a fence of the second one.
    Fence {
        /// The path to ask on; it is up.
        via: PathId,
        /// The path to fence.
        path: PathId,
        /// Its newest epoch that had I/O.
        epoch: Epoch,
    },
    /// Treat I/O in this way from now on.
    SetMode(Mode),
    /// Send the requeued requests again, as many as there is room for; ends with [`Event::Replayed`].
    Replay,
    /// End the requeued requests with an error.
    FailRequeued,
    /// The export has another instance than before: writes that are complete and not flushed may be
    /// gone. No path to the one before is left.
    InstanceChanged,
    /// The extent of the export is this now.
    Resize(Extent),
}

/// How I/O is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It waits, and so do requeued requests.
    Hold,
    /// Requeued requests are sent on paths that are up; all other I/O waits.
    Replay,
    /// It is sent on paths that are up.
    Flow,
    /// It fails, and so do requeued requests.
    Fail,
}

/// Why a session can not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The contents of the export are not those that were there before.
    Stale,
    /// The export is somebody else's.
    Evicted,
    /// The user wants it so.
    Disabled,
}

/// Whether a server knows that a map which was disabled has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Farewell {
    /// It does, or it keeps no place for the map.
    Told,
    /// It could not be told: it keeps the map's place for the lease.
    Untold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    /// There is nothing, and nothing is to be.
    Off,
    /// To be connected.
    Due,
    /// To be connected later.
    Waiting,
    Connecting,
    Up,
    /// Its memory is still in use.
    Closing,
}

/// The state of a fence that a path owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ask {
    /// It was not asked for.
    None,
    /// It is to be asked for on this path as soon as there is room.
    Unsent(PathId),
    /// It was asked for on this path.
    Sent(PathId),
}

/// A path.
///
/// # Invariants
///
/// - `fenced <= epoch` and `used <= epoch`.
/// - While the path is up, `used == epoch` and `fenced == epoch - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Path {
    wanted: bool,
    link: Link,
    /// The last epoch that was given out; 0 for none.
    epoch: Epoch,
    /// The last one that may have carried I/O.
    used: Epoch,
    /// No I/O of this one and those before it will reach the export any more.
    fenced: Epoch,
    ask: Ask,
    /// The last epoch that broke, be it up or not.
    broken: Epoch,
    /// Something was answered on it since it came up.
    proven: bool,
    /// It was up since it is wanted.
    was_up: bool,
    /// An attempt has ended since it is wanted.
    tried: bool,
    /// The device did not drain it.
    unclean: bool,
    /// It leads to another server.
    foreign: bool,
    /// The tenure and the instance that the map knew when the attempt to connect began.
    asked: Option<(Tenure, u128)>,
    /// What was asked to be drained, and to be closed, and is not yet.
    draining: u8,
    closing: u8,
    backoff: Backoff,
    heartbeat: Heartbeat,
}

impl Path {
    const NONE: Self = Self {
        wanted: false,
        link: Link::Off,
        epoch: 0,
        used: 0,
        fenced: 0,
        ask: Ask::None,
        broken: 0,
        proven: false,
        was_up: false,
        tried: false,
        unclean: false,
        foreign: false,
        asked: None,
        draining: 0,
        closing: 0,
        backoff: Backoff::new(),
        heartbeat: Heartbeat::new(),
    };

    fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// Whether I/O that the client has given up may still reach the export.
    fn owes_fence(&self) -> bool {
        !self.is_up() && self.fenced < self.used
    }

    /// Whether requests that were sent on it may still be about to come back.
    fn owes_requests(&self) -> bool {
        self.unclean || self.link == Link::Closing && self.used == self.epoch
    }
}

/// The client's lease of its place at the server, while no path is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lease {
    /// A path is up, or none was.
    Kept,
    Running,
    /// The server may have given the place to another map.
    Over,
}

/// The session of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    config: Config,
    paths: [Path; PATHS_MAX],
    /// What the server said last.
    known: Option<Admission>,
    /// What the disk was made for, or will be.
    limits: Option<Limits>,
    end: Option<End>,
    mode: Mode,
    appeared: bool,
    /// There are requests of paths that were lost.
    requeued: bool,
    /// The expiry timer runs.
    expiry: bool,
    /// It has elapsed, and nothing has proven since that I/O gets through.
    expired: bool,
    lease: Lease,
    /// The resend timer runs.
    resend: bool,
    /// The instance is another one than that which I/O went to.
    restarted: bool,
    /// The server has heard that the map leaves.
    told: bool,
}

impl Machine {
    /// A map without a path, whose I/O waits.
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            paths: [Path::NONE; PATHS_MAX],
            known: None,
            limits: None,
            end: None,
            mode: Mode::Hold,
            appeared: false,
            requeued: false,
            expiry: false,
            expired: false,
            lease: Lease::Kept,
            resend: false,
            restarted: false,
            told: false,
        }
    }

    /// How I/O is treated.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it can not go on, if so.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// What the server said last.
    pub fn known(&self) -> Option<&Admission> {
        self.known.as_ref()
    }

    /// What the disk has to keep to, once a path was up.
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_ref()
    }

    /// Whether the client takes its place at the server for lost, if that does not remember it.
    pub fn lease_is_over(&self) -> bool {
        self.lease == Lease::Over
    }

    /// What the user is to know of it.
    pub fn state(&self) -> State {
        match (self.end, self.mode) {
            (Some(End::Stale), _) => State::Stale,
            _ if !self.appeared => State::Connecting,
            (Some(End::Evicted), _) => State::Evicted,
            (Some(End::Disabled), _) => State::Disabled,
            (None, Mode::Flow | Mode::Replay) => State::Live,
            (None, Mode::Hold) => State::Reconnecting,
            (None, Mode::Fail) => State::Failed,
        }
    }

    /// What the user is to know of a path.
    pub fn path_state(&self, id: PathId) -> PathState {
        match self.path(id).map_or(Link::Off, |path| path.link) {
            Link::Off => PathState::Disabled,
            Link::Due | Link::Connecting => PathState::Connecting,
            Link::Waiting => PathState::Waiting,
            Link::Up => PathState::Live,
            Link::Closing => PathState::Closing,
        }
    }

    /// Whether a path is up.
    pub fn is_up(&self, id: PathId) -> bool {
        self.path(id).is_some_and(Path::is_up)
    }

    /// The newest epoch of a path; 0 for none.
    pub fn epoch(&self, id: PathId) -> Epoch {
        self.path(id).map_or(0, |path| path.epoch)
    }

    /// Whether nothing is left of a path, and nothing is to be.
    pub fn is_gone(&self, id: PathId) -> bool {
        self.path(id)
            .is_none_or(|path| path.link == Link::Off && path.closing == 0)
    }

    /// Whether each path that is wanted was tried once, if none of them was up.
    pub fn all_tried(&self) -> bool {
        let mut wanted = self.paths.iter().filter(|path| path.wanted);
        wanted.all(|path| path.tried)
    }

    /// Whether the server knows that the map has left, once nothing is left of it.
    pub fn farewell(&self) -> Farewell {
        match self.known.is_none() || self.told {
            true => Farewell::Told,
            false => Farewell::Untold,
        }
    }

    /// Takes note of an event and tells what is to be done, in this order.
    pub fn step(&mut self, event: Event, act: &mut impl FnMut(Action)) {
        match event {
            Event::Add(id) => self.add(id),
            Event::Remove(id) => self.remove(id, act),
            Event::Disable => self.finish(End::Disabled, act),
            Event::Appeared => self.appeared = true,
            Event::Elapsed(timer) => self.elapsed(timer, act),
            Event::Heartbeat(id, heard) => self.beat(id, heard, act),
            Event::Connected(id, epoch, admission) => self.connected(id, epoch, &admission, act),
            Event::Refused(id, epoch, failure) => self.refused(id, epoch, failure, act),
            Event::Lost(id, epoch) => self.lost(id, epoch, act),
            // While requests wait to be replayed only their answers prove anything: the control
            // connection may work, and the I/O connections fail at once.
            Event::Pong(id, epoch) if !self.requeued => {
                self.prove(|at, path| at == id && path.epoch == epoch)
            }
            Event::Pong(..) => {}
            Event::Extent(id, epoch, extent) => self.extent(id, epoch, extent, act),
            Event::Drained {
                path,
                epoch,
                how,
                requeued,
            } => {
                self.requeued |= requeued;
                self.drained(path, epoch, how, act);
            }
            Event::Closed {
                path,
                told,
                requeued,
            } => {
                self.requeued |= requeued;
                self.closed(path, told);
            }
            Event::Fenced { via, path, epoch } if self.is_up(via) => self.fenced(path, epoch),
            Event::Fenced { .. } => {}
            Event::FenceNotSent(id) => self.fence_not_sent(id, act),
            Event::Replayed { done } if self.mode == Mode::Replay => match done {
                true => {
                    self.requeued = false;
                    self.prove(|_, _| true);
                }
                false => self.arm_resend(act),
            },
            Event::ReplayEnded { answered } => {
                // Also while I/O is held, as another path is not fenced yet, or fails: this path works.
                if answered {
                    self.prove(|_, _| true);
                }
                if self.mode == Mode::Replay {
                    act(Action::Replay);
                }
            }
            Event::Replayed { .. } => {}
            Event::Requeued if self.mode == Mode::Fail => act(Action::FailRequeued),
            Event::Requeued => {}
        }
        self.connect(act);
        self.ask(act);
        self.expired &= !self.gets_through();
        self.set_mode(act);
        self.run_clocks(act);
    }

    fn path(&self, id: PathId) -> Option<&Path> {
        self.paths.get(usize::from(id))
    }

    fn path_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.get_mut(usize::from(id))
    }

    /// The path, if the epoch is its newest.
    fn newest(&mut self, id: PathId, epoch: Epoch) -> Option<&mut Path> {
        self.path_mut(id).filter(|path| path.epoch == epoch)
    }

    fn another_is_up(&self, id: PathId) -> bool {
        ids().any(|other| other != id && self.is_up(other))
    }

    fn add(&mut self, id: PathId) {
        let over = self.end.is_some();
        if let Some(path) = self.path_mut(id) {
            if path.wanted {
                return;
            }
            path.wanted = true;
            path.tried = false;
            path.was_up = false;
            path.backoff.reset();
            if path.link == Link::Off && !over {
                path.link = Link::Due;
            }
        }
    }

    fn remove(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let Some(path) = self.path_mut(id) else {
            return;
        };
        path.wanted = false;
        match path.link {
            Link::Due => path.link = Link::Off,
            Link::Waiting => {
                path.link = Link::Off;
                act(Action::Disarm(Timer::Retry(id)));
            }
            Link::Connecting | Link::Up => self.close(id, act),
            Link::Off | Link::Closing => {}
        }
    }

    fn elapsed(&mut self, timer: Timer, act: &mut impl FnMut(Action)) {
        match timer {
            Timer::Retry(id) => {
                if let Some(path) = self.path_mut(id).filter(|path| path.link == Link::Waiting) {
                    path.link = Link::Due;
                }
            }
            Timer::Expiry if self.expiry => {
                self.expiry = false;
                self.expired = true;
            }
            Timer::Lease if self.lease == Lease::Running => self.lease = Lease::Over,
            Timer::Resend if self.resend => {
                self.resend = false;
                if self.mode == Mode::Replay {
                    act(Action::Replay);
                }
            }
            Timer::Expiry | Timer::Lease | Timer::Resend | Timer::Heartbeat(_) => {}
        }
    }

    fn beat(&mut self, id: PathId, heard: bool, act: &mut impl FnMut(Action)) {
        let alone = !self.another_is_up(id);
        let heartbeat_ms = self.config.heartbeat_ms;
        let Some(path) = self.path_mut(id).filter(|path| path.is_up()) else {
            return;
        };
        let beat = path.heartbeat.beat(heard, alone);
        match beat {
            Beat::Fine => {}
            Beat::Ping => act(Action::Ping(id)),
            Beat::Gone => {
                act(Action::Blame(id, Fault::Silent));
                return self.close(id, act);
            }
        }
        if let Some(ms) = Heartbeat::period_ms(heartbeat_ms) {
            act(Action::Arm(Timer::Heartbeat(id), Delay::exactly(ms)));
        }
    }

    /// What is to be done about a path that leads to what `admission` says: `None` if I/O may take it.
    fn judge(&self, id: PathId, admission: &Admission) -> Option<Verdict> {
        let known = self.known.as_ref()?;
        // Another server proves nothing about the one that the map is at.
        if known.server != admission.server {
            return Some(Verdict::Path(Fault::OtherServer));
        }
        // What the server said before it said what the map knows, but came later, is no news.
        let now = (known.tenure, known.instance);
        let asked = self.path(id).and_then(|path| path.asked);
        if asked != Some(now) && (admission.tenure, admission.instance) != now {
            return Some(Verdict::Path(Fault::Overtaken));
        }
        let (fault, end) = if known.export != admission.export {
            (Fault::OtherExport, End::Stale)
        } else if known.instance != admission.instance && admission.volatile {
            // The same server says that the contents are gone: no other path can lead to them.
            return Some(Verdict::Map(End::Stale));
        } else if known.tenure != admission.tenure
            || self.lease == Lease::Over && !admission.remembered
        {
            (Fault::OtherTenure, End::Evicted)
        } else {
            let fit = self
                .limits
                .map_or(Ok(()), |disk| admission.limits.fit(&disk));
            return fit.err().map(|why| Verdict::Path(Fault::Misfit(why)));
        };
        Some(match self.another_is_up(id) {
            true => Verdict::Path(fault),
            false => Verdict::Map(end),
        })
    }

    fn connected(
        &mut self,
        id: PathId,
        epoch: Epoch,
        admission: &Admission,
        act: &mut impl FnMut(Action),
    ) {
        let verdict = self.judge(id, admission);
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        path.tried = true;
        match path.link {
            Link::Connecting => {}
            // What came of an attempt that is not wanted any more.
            Link::Closing => return self.close(id, act),
            Link::Off | Link::Due | Link::Waiting | Link::Up => return,
        }
        if path.broken == epoch {
            act(Action::Blame(id, Fault::Broken));
            return self.close(id, act);
        }
        if let Some(Verdict::Path(fault)) = verdict {
            path.foreign = fault == Fault::OtherServer;
            act(Action::Blame(id, fault));
            return self.close(id, act);
        }
        // INVARIANT: It is the newest epoch, and the server let go of the older ones before it let
        // the client in.
        path.link = Link::Up;
        path.used = epoch;
        path.fenced = epoch.saturating_sub(1);
        path.ask = Ask::None;
        path.proven = false;
        path.was_up = true;
        path.heartbeat = Heartbeat::new();
        if let Some(Verdict::Map(end)) = verdict {
            return self.finish(end, act);
        }
        let known = self.known.replace(*admission);
        self.limits.get_or_insert(admission.limits);
        let restarted = known.is_some_and(|known| known.instance != admission.instance);
        if restarted {
            self.restarted = true;
            // What still arrives on them was done by the server that is gone.
            for other in ids().filter(|other| *other != id) {
                if self.is_up(other) {
                    self.close(other, act);
                }
            }
        }
        match known {
            Some(known) if !restarted && known.extent.number >= admission.extent.number => {
                // What was said on another path is newer.
                if let Some(now) = &mut self.known {
                    now.extent = known.extent;
                }
            }
            Some(known) if known.extent == admission.extent => {}
            _ => act(Action::Resize(admission.extent)),
        }
        act(Action::Open(id));
        // The answer proves the path if there is no I/O.
        act(Action::Ping(id));
        if let Some(ms) = Heartbeat::period_ms(self.config.heartbeat_ms) {
            act(Action::Arm(Timer::Heartbeat(id), Delay::exactly(ms)));
        }
    }

    fn refused(
        &mut self,
        id: PathId,
        epoch: Epoch,
        failure: Failure,
        act: &mut impl FnMut(Action),
    ) {
        let alone = !self.another_is_up(id);
        let urgent = self.mode != Mode::Flow;
        let max_ms = self.config.reconnect_max_ms;
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        path.tried = true;
        if path.link != Link::Connecting {
            return;
        }
        path.link = Link::Waiting;
        let delay = path.backoff.next(max_ms, urgent);
        // Who was let in here before and is not any more will not be again.
        let evicted = failure == Failure::Denied && path.was_up && alone;
        act(Action::Arm(Timer::Retry(id), delay));
        if evicted {
            self.finish(End::Evicted, act);
        }
    }

    fn lost(&mut self, id: PathId, epoch: Epoch, act: &mut impl FnMut(Action)) {
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        match path.link {
            // The attempt's own end says more.
            Link::Connecting => path.broken = epoch,
            Link::Up => self.close(id, act),
            Link::Off | Link::Due | Link::Waiting | Link::Closing => {}
        }
    }

    /// I/O gets through on the paths that are up and of which `which` says so.
    fn prove(&mut self, which: impl Fn(PathId, &Path) -> bool) {
        for (id, path) in ids().zip(&mut self.paths) {
            if path.is_up() && !path.proven && which(id, path) {
                path.proven = true;
                path.backoff.reset();
            }
        }
    }

    /// Whether I/O does not wait for a path, nor for a device that does not give requests back.
    fn gets_through(&self) -> bool {
        let proven = self.paths.iter().any(|path| path.is_up() && path.proven);
        proven && !self.paths.iter().any(|path| path.unclean)
    }

    fn extent(&mut self, id: PathId, epoch: Epoch, extent: Extent, act: &mut impl FnMut(Action)) {
        let is_current = self
            .newest(id, epoch)
            .is_some_and(|path| path.link == Link::Up);
        let known = self.known.as_mut().filter(|_| is_current);
        if let Some(known) = known.filter(|known| known.extent.number < extent.number) {
            known.extent = extent;
            act(Action::Resize(extent));
        }
    }

    fn drained(&mut self, id: PathId, epoch: Epoch, how: Drained, act: &mut impl FnMut(Action)) {
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        path.draining = path.draining.saturating_sub(1);
        // A path of which nothing was used has nothing to come back.
        path.unclean |= how == Drained::Unclean && path.used == path.epoch;
        if path.draining != 0 || path.link != Link::Closing {
            return;
        }
        self.released(id, act);
    }

    fn closed(&mut self, id: PathId, told: bool) {
        let over = self.end.is_some();
        let Some(path) = self.path_mut(id) else {
            return;
        };
        path.closing = path.closing.saturating_sub(1);
        if path.closing == 0 {
            path.unclean = false;
        }
        let counts = told && over && !path.foreign;
        self.told |= counts;
    }

    /// Nothing of a path's newest epoch is in the way of the next one.
    fn released(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let over = self.end.is_some();
        let urgent = self.mode != Mode::Flow;
        let max_ms = self.config.reconnect_max_ms;
        let Some(path) = self.path_mut(id) else {
            return;
        };
        if !path.wanted || over {
            path.link = Link::Off;
            return;
        }
        path.link = Link::Waiting;
        let delay = path.backoff.next(max_ms, urgent);
        act(Action::Arm(Timer::Retry(id), delay));
    }

    fn fenced(&mut self, id: PathId, epoch: Epoch) {
        let Some(path) = self.path_mut(id) else {
            return;
        };
        if path.owes_fence() && epoch <= path.used {
            path.fenced = path.fenced.max(epoch);
        }
        if !path.owes_fence() {
            path.ask = Ask::None;
        }
    }

    fn fence_not_sent(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        if let Some(path) = self.path_mut(id) {
            if let Ask::Sent(via) = path.ask {
                path.ask = Ask::Unsent(via);
                self.arm_resend(act);
            }
        }
    }

    fn arm_resend(&mut self, act: &mut impl FnMut(Action)) {
        if !self.resend {
            self.resend = true;
            act(Action::Arm(Timer::Resend, Delay::exactly(RESEND_MS)));
        }
    }

    /// Lets go of a path that is up or about to be, or of what came of an attempt that was given up.
    fn close(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let over = self.end.is_some();
        let Some(path) = self.path_mut(id) else {
            return;
        };
        let leave = over || path.foreign;
        if path.is_up() {
            act(Action::Disarm(Timer::Heartbeat(id)));
        }
        path.link = Link::Closing;
        path.proven = false;
        path.draining = path.draining.saturating_add(1);
        path.closing = path.closing.saturating_add(1);
        let epoch = path.epoch;
        // Before the path is let go of, so that none of its I/O can be given to it any more.
        self.set_mode(act);
        act(Action::Close {
            path: id,
            epoch,
            leave,
        });
        // What was asked on it will not be answered.
        for path in &mut self.paths {
            if matches!(path.ask, Ask::Sent(via) | Ask::Unsent(via) if via == id) {
                path.ask = Ask::None;
            }
        }
    }

    /// There is no way on.
    fn finish(&mut self, end: End, act: &mut impl FnMut(Action)) {
        // The user's word is the last one.
        if self.end != Some(End::Disabled) {
            self.end = Some(end);
        }
        // The server keeps no place for a map that it has evicted.
        self.told |= end == End::Evicted;
        for id in ids() {
            match self.path(id).map(|path| path.link) {
                Some(Link::Connecting | Link::Up) => self.close(id, act),
                Some(Link::Due | Link::Waiting) => {
                    if let Some(path) = self.path_mut(id) {
                        path.link = Link::Off;
                    }
                    act(Action::Disarm(Timer::Retry(id)));
                }
                _ => {}
            }
        }
    }

    /// Connects the paths that are to be.
    fn connect(&mut self, act: &mut impl FnMut(Action)) {
        if self.end.is_some() {
            return;
        }
        let known = self.known.map(|known| (known.tenure, known.instance));
        let urgent = self.mode != Mode::Flow;
        for (id, path) in ids().zip(&mut self.paths) {
            if path.link == Link::Due {
                path.link = Link::Connecting;
                path.foreign = false;
                path.asked = known;
                path.epoch = path.epoch.saturating_add(1);
                act(Action::Connect {
                    path: id,
                    epoch: path.epoch,
                    resume: known.map(|(tenure, _)| tenure),
                    urgent,
                });
            }
        }
    }

    /// Has the paths fenced that owe it, if there is one to ask on, and room.
    fn ask(&mut self, act: &mut impl FnMut(Action)) {
        let Some(via) = ids().find(|id| self.is_up(*id)) else {
            return;
        };
        for (id, path) in ids().zip(&mut self.paths) {
            if !path.owes_fence() {
                continue;
            }
            match path.ask {
                Ask::None => {}
                Ask::Unsent(_) if !self.resend => {}
                Ask::Unsent(_) | Ask::Sent(_) => continue,
            }
            path.ask = Ask::Sent(via);
            act(Action::Fence {
                via,
                path: id,
                epoch: path.used,
            });
        }
    }

    fn set_mode(&mut self, act: &mut impl FnMut(Action)) {
        let mode = self.treatment();
        let changed = mode != self.mode;
        if changed {
            if matches!(mode, Mode::Replay | Mode::Flow) && self.restarted {
                self.restarted = false;
                act(Action::InstanceChanged);
            }
            self.mode = mode;
            act(Action::SetMode(mode));
        }
        match mode {
            Mode::Fail if changed || self.requeued => {
                self.requeued = false;
                act(Action::FailRequeued);
            }
            Mode::Replay if changed => act(Action::Replay),
            Mode::Hold if changed => self.hurry(act),
            _ => {}
        }
    }

    /// I/O waits for paths that could wait until now.
    fn hurry(&mut self, act: &mut impl FnMut(Action)) {
        let max_ms = self.config.reconnect_max_ms;
        for (id, path) in ids().zip(&mut self.paths) {
            if path.link == Link::Waiting {
                let delay = path.backoff.next(max_ms, true);
                act(Action::Arm(Timer::Retry(id), delay));
            }
        }
    }

    /// How I/O has to be treated.
    fn treatment(&self) -> Mode {
        let up = self.paths.iter().any(Path::is_up);
        let fenced = !self.paths.iter().any(Path::owes_fence);
        let back = !self.paths.iter().any(Path::owes_requests);
        match () {
            () if self.end.is_some() => Mode::Fail,
            () if up && fenced && back && self.requeued => Mode::Replay,
            () if up && fenced && back => Mode::Flow,
            () if self.expired => Mode::Fail,
            () => Mode::Hold,
        }
    }

    /// Lets the timers run that have to, and no other ones.
    fn run_clocks(&mut self, act: &mut impl FnMut(Action)) {
        let live = self.known.is_some() && self.end.is_none();
        let up = self.paths.iter().any(Path::is_up);
        let waits = live && !self.expired && !self.gets_through();
        match self.config.no_path_timeout_ms.filter(|_| waits) {
            // The first path after all were lost may be about to be proven.
            Some(0) if up && !self.paths.iter().any(|path| path.unclean) => {}
            Some(0) => {
                self.expired = true;
                self.set_mode(act);
            }
            Some(ms) if !self.expiry => {
                self.expiry = true;
                act(Action::Arm(Timer::Expiry, Delay::exactly(ms)));
            }
            None if self.expiry => {
                self.expiry = false;
                act(Action::Disarm(Timer::Expiry));
            }
            _ => {}
        }
        match (self.lease, self.known) {
            (Lease::Kept, Some(known)) if live && !up => {
                self.lease = Lease::Running;
                let ms = lease_left_ms(known.lease_ms, self.config.heartbeat_ms);
                act(Action::Arm(Timer::Lease, Delay::exactly(ms)));
            }
            (Lease::Running, _) if up || !live => {
                self.lease = Lease::Kept;
                act(Action::Disarm(Timer::Lease));
            }
            (Lease::Over, _) if up || !live => self.lease = Lease::Kept,
            _ => {}
        }
    }
}

/// What a connected path is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is of no use; the map is not touched by that.
    Path(Fault),
    /// It proves that the map cannot go on.
    Map(End),
}

/// All paths that there can be.
fn ids() -> impl Iterator<Item = PathId> {
    (0..).take(PATHS_MAX)
}
