// SPDX-License-Identifier: GPL-2.0

//! The clients: what the code around the map's machine does, and its users.

use super::network::{End, Message, Number};
use super::shared::Shared;
use super::{index, Elsewhere, Flaw, Job, Kind, Rules, World};
use crate::session::clock::Timer;
use crate::session::flush::Flushes;
use crate::session::map::{
    self, Action, Admission, Config, Drained, Event, Extent, Failure, Limits, Machine, Mode, Told,
};
use crate::session::{Epoch, PathId};

/// An operation of a client's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Op {
    pub(super) job: Job,
    /// Write: what it writes, once it was sent. Read and flush: the newest write that was complete
    /// before it began.
    pub(super) number: u8,
    pub(super) place: Place,
    /// It was sent before, and then its path was lost.
    pub(super) replay: bool,
    /// Of a flush, once it was sent.
    pub(super) flush: u64,
    /// Writes up to this one: that they may be gone was told before it began.
    pub(super) excused: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    /// Not on a path.
    Held,
    /// Of a path that was lost.
    Requeued,
    Sent(PathId, Epoch),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) life: u8,
    pub(super) map: Shared<Machine>,
    pub(super) ops: Vec<Op>,
    /// Jobs that were begun.
    pub(super) begun: u8,
    /// Paths whose queue pairs are being drained, and whether the server is told that the map
    /// leaves.
    pub(super) closing: Vec<(PathId, Epoch, bool)>,
    /// Paths that were not drained, and are not closed.
    pub(super) unclean: Vec<(PathId, Epoch)>,
    pub(super) timers: Vec<Timer>,
    /// A path that is connected, and not open yet.
    incoming: Option<(PathId, Epoch, Number)>,
    /// The connection of a path that is connected to a server which does not remember the map,
    /// until it is pinged.
    forgotten: Option<Number>,
    /// The server's names for the connections that are up.
    pub(super) up: Vec<(PathId, Epoch, Number)>,
    /// Paths that are up and not proven, as far as the world knows; none if I/O does not expire.
    pub(super) unproven: Vec<PathId>,
    /// A write was complete since the last flush began.
    pub(super) dirty: bool,
    pub(super) flushes: Flushes,
    /// Users that have the disk open.
    pub(super) users: u8,
    /// Another client wrote since this one was in.
    pub(super) overtaken: bool,
    /// The client's lease has run out since a path was up.
    pub(super) lease_over: bool,
    /// The server has taken the client's place since the last login was sent by which a path is or
    /// was up; and bit by bit, since the last login of each path was sent.
    pub(super) outdated: bool,
    pub(super) outdated_logins: u8,
    /// The extent that the disk has, by its true number, and the instance that it is of.
    pub(super) extent: (u8, u128),
    /// Extents that came in.
    heard: u32,
}

impl Client {
    pub(super) fn new(rules: &Rules, life: u8, begun: u8) -> Self {
        Self {
            life,
            map: Shared::new(Machine::new(Config {
                no_path_timeout_ms: (rules.expiries > 0).then_some(1000),
                heartbeat_ms: 1000,
                reconnect_max_ms: 10_000,
            })),
            ops: Vec::new(),
            begun,
            closing: Vec::new(),
            unclean: Vec::new(),
            timers: Vec::new(),
            incoming: None,
            forgotten: None,
            up: Vec::new(),
            unproven: Vec::new(),
            dirty: false,
            flushes: Flushes::new(),
            users: rules.users,
            overtaken: false,
            lease_over: false,
            outdated: false,
            outdated_logins: 0,
            extent: (0, 0),
            heard: 0,
        }
    }

    pub(super) fn has(&self, end: &End) -> bool {
        self.life == end.life && self.map.epoch(end.path) == end.epoch
    }

    pub(super) fn is_waiting(&self, path: PathId) -> bool {
        self.timers.contains(&Timer::Retry(path))
    }

    pub(super) fn is_closing(&self, path: PathId) -> bool {
        self.closing.iter().any(|closing| closing.0 == path)
    }

    /// Whether its end of a connection is open.
    pub(super) fn expects(&self, end: &End) -> bool {
        self.has(end)
            && !self.is_closing(end.path)
            && !self.is_waiting(end.path)
            && self.map.end().is_none()
    }

    pub(super) fn number_of(&self, path: PathId) -> Option<(Epoch, Number)> {
        let up = self.up.iter().find(|up| up.0 == path)?;
        Some((up.1, up.2))
    }

    /// The server has flushed.
    fn flushed(&mut self) {
        self.flushes.flushed();
        self.dirty = false;
    }

    fn has_requeued(&self) -> bool {
        self.ops.iter().any(|op| op.place == Place::Requeued)
    }
}

impl World {
    pub(super) fn enable(&mut self, rules: &Rules, client: usize) {
        // What makes the disk appear is not in this world.
        self.tell(rules, client, Event::Appeared);
        for path in 0..rules.paths {
            self.tell(rules, client, Event::Add(path));
        }
    }

    /// The client's machine takes note of an event; the code around it does what follows.
    pub(super) fn tell(&mut self, rules: &Rules, index: usize, event: Event) {
        let event = match (event, rules.flaw) {
            // Its own word counts, and nothing that the server said.
            (Event::Pong(..), Some(Flaw::ExpiryWithPath)) => return,
            (Event::Elapsed(Timer::Lease), Some(Flaw::NoLease)) => return,
            (event, _) => event,
        };
        let mut actions = Vec::new();
        let before = self.clients[index].map.end();
        self.clients[index]
            .map
            .step(event, &mut |action| actions.push(action));
        for action in &actions {
            self.perform(rules, index, *action);
        }
        // Whether a path is proven makes a difference only if I/O expires. Then a pong is a step.
        for action in actions.iter().filter(|_| rules.expiries == 0) {
            if let Action::Ping(path) = *action {
                let epoch = self.clients[index].map.epoch(path);
                self.tell(rules, index, Event::Pong(path, epoch));
            }
        }
        let client = &self.clients[index];
        // One whose lease was over cannot know whether another map had the export meanwhile, unless
        // the server remembers.
        let evicted = before.is_none() && client.map.end() == Some(map::End::Evicted);
        if evicted && !client.lease_over && self.holds(index) {
            self.wrong = Some("a map was evicted that has the export");
        }
        let gone = rules.kind == Kind::Ram && self.server.instance > 0;
        if before.is_none() && client.map.end() == Some(map::End::Stale) && !gone {
            self.wrong = Some("a map is stale whose contents are there");
        }
    }

    pub(super) fn perform(&mut self, rules: &Rules, index: usize, action: Action) {
        let life = self.clients[index].life;
        let end = |path, epoch| End {
            client: self::index(index),
            life,
            path,
            epoch,
        };
        let client: &mut Client = &mut self.clients[index];
        match action {
            // Connections break whenever they like, not only when a heartbeat misses something.
            Action::Arm(Timer::Heartbeat(_), _) => {}
            // Whether a lease is over makes a difference only if somebody else may come.
            Action::ArmLease(_) if rules.clients == 1 => {}
            // The lease of the server was over, so this one is.
            Action::ArmLease(_) if client.outdated => {
                client.lease_over = true;
                self.tell(rules, index, Event::Elapsed(Timer::Lease));
            }
            Action::ArmLease(_) => {
                client.timers.push(Timer::Lease);
                client.timers.sort_unstable();
            }
            Action::Arm(timer, _) => {
                if !client.timers.contains(&timer) {
                    client.timers.push(timer);
                    client.timers.sort_unstable();
                }
            }
            Action::Disarm(timer) => client.timers.retain(|other| *other != timer),
            Action::Connect {
                path,
                epoch,
                resume,
                ..
            } => {
                client.outdated_logins &= !(1 << path);
                self.post(Message::Login(end(path, epoch), resume));
            }
            Action::Open(path) => {
                let incoming = client.incoming.take().expect("it has connected");
                assert_eq!(incoming.0, path);
                client.up.push(incoming);
                client.up.sort_unstable();
                if rules.expiries > 0 {
                    client.unproven.push(path);
                    client.unproven.sort_unstable();
                }
                client.lease_over = false;
                client.outdated &= client.outdated_logins & (1 << path) != 0;
                let known = client.map.known().expect("it is known");
                if client.extent.1 != known.instance {
                    // It may look the same as that of the instance before.
                    client.extent = (u8::try_from(known.extent.size).unwrap(), known.instance);
                }
            }
            // A pong takes a step of its own where it matters. To pings on other connections the
            // machine of the server does nothing.
            Action::Ping(path) => {
                if let (Some((at, _)), Some(on)) = (client.number_of(path), client.forgotten.take())
                {
                    self.post(Message::Ping(end(path, at), on));
                }
            }
            Action::Blame(..) => {}
            Action::Close { path, epoch, leave } => {
                client.up.retain(|up| up.0 != path);
                client.unproven.retain(|other| *other != path);
                client.closing.push((path, epoch, leave));
                client.closing.sort_unstable();
            }
            Action::Fence { via, path, epoch } => {
                let (at, number) = client.number_of(via).expect("it is up");
                if rules.flaw != Some(Flaw::NoFence) {
                    self.post(Message::Fence(end(via, at), number, path, epoch));
                }
                if matches!(rules.flaw, Some(Flaw::NoFence | Flaw::ReplayBeforeFence)) {
                    self.tell(rules, index, Event::Fenced { via, path, epoch });
                }
            }
            Action::SetMode(Mode::Fail) => {
                let failed = client.ops.iter().any(|op| op.place == Place::Held);
                client.ops.retain(|op| op.place != Place::Held);
                self.judge_failure(index, failed);
            }
            Action::FailRequeued => {
                let failed = client.has_requeued();
                client.ops.retain(|op| op.place != Place::Requeued);
                self.judge_failure(index, failed);
            }
            // What is sent again is sent one by one.
            Action::SetMode(_) | Action::Replay => {}
            Action::InstanceChanged if rules.flaw == Some(Flaw::NoVerifier) => {}
            Action::InstanceChanged => {
                client.flushes.restarted(client.dirty);
                client.dirty = false;
            }
            Action::Flushed => client.flushed(),
            Action::Resize(extent) => {
                let extent = u8::try_from(extent.size).unwrap();
                let instance = client.map.known().expect("it is known").instance;
                if client.extent.1 == instance && extent < client.extent.0 {
                    self.wrong = Some("an older extent took the place of a newer one");
                }
                self.clients[index].extent = (extent, instance);
            }
        }
    }

    /// A user closes the disk, and the first one opens it again.
    pub(super) fn close_disk(&mut self, rules: &Rules, index: usize, job: Job) {
        let client: &mut Client = &mut self.clients[index];
        client.users -= 1;
        if client.users == 0 {
            if rules.flaw == Some(Flaw::ForgottenAtClose) {
                let _ = client.flushes.must_fail();
            }
            client.flushes.closed();
        }
        if job == Job::Reopen {
            client.users += 1;
            // Who opens a disk need not hear of what somebody has heard of.
            self.excused[0] = self.excused[0].max(self.excused[1]);
        }
    }

    /// Some I/O has failed. It may if the map is at its end, or no path is up that works.
    pub(super) fn judge_failure(&mut self, index: usize, failed: bool) {
        let client = &self.clients[index];
        let works = |up: &(PathId, Epoch, Number)| !client.unproven.contains(&up.0);
        let way = client.up.iter().any(works) && client.unclean.is_empty();
        if failed && client.map.end().is_none() && way {
            self.wrong = Some("I/O failed while a path was up");
        }
    }

    /// A path is drained, as clean as that goes.
    pub(super) fn drained(&mut self, rules: &Rules, index: usize, at: usize, how: Drained) {
        let client: &mut Client = &mut self.clients[index];
        let (path, epoch, leave) = client.closing.remove(at);
        let told = match leave {
            true => self
                .log_out(index, path, epoch)
                .map_or(Told::NoAnswer, Told::Server),
            false => Told::NotNeeded,
        };
        match how {
            Drained::Clean => self.requeue(index, path, epoch),
            Drained::Unclean => self.clients[index].unclean.push((path, epoch)),
        }
        let client = &self.clients[index];
        let event = Event::Drained {
            path,
            epoch,
            how: match rules.flaw {
                Some(Flaw::UncleanIsClean) => Drained::Clean,
                _ => how,
            },
            requeued: client.has_requeued(),
        };
        self.tell(rules, index, event);
        if how == Drained::Clean {
            let closed = Event::Closed {
                path,
                told,
                requeued: self.clients[index].has_requeued(),
            };
            self.tell(rules, index, closed);
        }
        self.replayed(rules, index);
    }

    /// The device is done with a path that it did not drain.
    pub(super) fn closed(&mut self, rules: &Rules, index: usize, at: usize) {
        let (path, epoch) = self.clients[index].unclean.remove(at);
        self.requeue(index, path, epoch);
        let event = Event::Closed {
            path,
            told: Told::NotNeeded,
            requeued: self.clients[index].has_requeued(),
        };
        self.tell(rules, index, event);
        self.replayed(rules, index);
    }

    /// The requests of a path come back.
    fn requeue(&mut self, index: usize, path: PathId, epoch: Epoch) {
        for op in &mut self.clients[index].ops {
            if op.place == Place::Sent(path, epoch) {
                op.place = Place::Requeued;
                op.replay = true;
            }
        }
    }

    /// Tells the machine if nothing is left to be replayed.
    pub(super) fn replayed(&mut self, rules: &Rules, index: usize) {
        let client: &mut Client = &mut self.clients[index];
        if client.map.mode() == Mode::Replay && !client.ops.iter().any(|op| op.replay) {
            client.unproven.clear();
            self.tell(rules, index, Event::Replayed { done: true });
        }
    }

    /// A message comes to a client.
    pub(super) fn arrive(&mut self, rules: &Rules, message: Message, end: End) {
        let at = usize::from(end.client);
        match message {
            Message::Welcome(end, entry) => {
                let client: &mut Client = &mut self.clients[at];
                if client.up.iter().any(|up| up.0 == end.path) {
                    return;
                }
                client.incoming = Some((end.path, end.epoch, entry.number));
                client.forgotten = (!entry.remembered).then_some(entry.number);
                let admission = Admission {
                    server: match rules.flaw {
                        Some(Flaw::NoServerId) => 0,
                        _ => entry.server.into(),
                    },
                    export: 7,
                    instance: match rules.flaw {
                        Some(Flaw::NoInstance) => 0,
                        _ => entry.instance.into(),
                    },
                    volatile: rules.kind == Kind::Ram,
                    reservation_key: entry.reservation_key,
                    lease_ms: 1000,
                    remembered: entry.remembered,
                    extent: self.extent(rules, at, entry.extent),
                    limits: LIMITS,
                };
                let client: &mut Client = &mut self.clients[at];
                let overdue = client.outdated && rules.flaw != Some(Flaw::NoLease);
                client.lease_over |= overdue;
                let connected = Event::Connected {
                    path: end.path,
                    epoch: end.epoch,
                    admission,
                    silent_ms: match overdue {
                        true => u32::MAX,
                        false => 0,
                    },
                };
                self.tell(rules, at, connected);
                self.clients[at].incoming = None;
                self.clients[at].forgotten = None;
            }
            Message::Refused(end, for_good) => {
                let failure = match for_good {
                    true => Failure::Denied,
                    false => Failure::Transient,
                };
                self.tell(rules, at, Event::Refused(end.path, end.epoch, failure));
            }
            Message::Fenced(end, path, epoch) => {
                let event = Event::Fenced {
                    via: end.path,
                    path,
                    epoch,
                };
                self.tell(rules, at, event);
            }
            Message::Extent(end, number) => {
                let extent = self.extent(rules, at, number);
                self.tell(rules, at, Event::Extent(end.path, end.epoch, extent));
            }
            Message::Flushed(end, instance, number) => {
                let event = match rules.flaw {
                    // The event of whichever opening counts.
                    Some(Flaw::NoFlushedOrder) => None,
                    _ => Some(Event::Flushed {
                        path: end.path,
                        epoch: end.epoch,
                        instance: instance.into(),
                        number: number.into(),
                    }),
                };
                match event {
                    Some(event) => self.tell(rules, at, event),
                    None => self.clients[at].flushed(),
                }
            }
            Message::Response(end, op, value) => {
                let place = Place::Sent(end.path, end.epoch);
                let client: &mut Client = &mut self.clients[at];
                let same = |other: &Op| {
                    (other.job, other.number, other.place) == (op.job, op.number, place)
                };
                let Some(found) = client.ops.iter().position(same) else {
                    return;
                };
                let replay = client.ops.remove(found).replay;
                self.complete(rules, at, op, value);
                if replay {
                    self.clients[at].unproven.clear();
                    self.tell(rules, at, Event::ReplayEnded { answered: true });
                }
                self.replayed(rules, at);
            }
            Message::Login(..) | Message::Ping(..) | Message::Fence(..) | Message::Command(..) => {}
        }
    }

    /// An extent as a client takes it; its size tells its true number.
    fn extent(&mut self, rules: &Rules, at: usize, number: u8) -> Extent {
        let client: &mut Client = &mut self.clients[at];
        Extent {
            number: match rules.flaw {
                // In the order in which they arrive.
                Some(Flaw::NoExtentOrder) => {
                    client.heard += 1;
                    client.heard
                }
                _ => number.into(),
            },
            size: number.into(),
            writable: true,
        }
    }

    /// The user of a client sees that an operation is done.
    pub(super) fn complete(&mut self, rules: &Rules, at: usize, op: Op, value: u8) {
        match op.job {
            Job::Flush | Job::OtherFlush => self.clients[at].flushes.complete(op.flush),
            // It only matters if writes may overlap.
            Job::Read if rules.overlap => self.seen |= 1 << value,
            _ => {}
        }
        match op.job {
            Job::Write => {
                self.complete = self.complete.max(op.number);
                // What a disk without a cache has forgotten makes no difference.
                self.clients[at].dirty = rules.kind == Kind::CachedBlock;
            }
            Job::Read if value < op.number && rules.kind != Kind::CachedBlock => {
                self.wrong = Some("a read returned less than the newest complete write");
            }
            Job::Flush | Job::OtherFlush
                if rules.kind == Kind::CachedBlock
                    && self.stable < op.number
                    && op.excused < op.number =>
            {
                self.wrong = Some("a flush was complete, and a write before it does not last");
            }
            _ => {}
        }
    }

    /// Whether a path of the client leads to another server.
    pub(super) fn leads_elsewhere(rules: &Rules, path: PathId) -> Option<Elsewhere> {
        rules.elsewhere.filter(|_| path + 1 == rules.paths)
    }
}

/// What all paths can do.
const LIMITS: Limits = Limits {
    block_size: 512,
    slab: None,
    queues: 1,
    poll_queues: 0,
    depth: 1,
    segments: 1,
    segment_size: 4096,
    max_io: 4096,
    gaps: true,
    max_discard: 0,
    max_write_zeroes: 0,
    max_secure_erase: 0,
    atomic_unit_min: 0,
    atomic_unit_max: 0,
    atomic_boundary: 0,
    write_cache: true,
    fua: false,
};
