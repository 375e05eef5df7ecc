// SPDX-License-Identifier: GPL-2.0

//! The clients: what the code around the map's machine does.

use super::network::{End, Message};
use super::{index, Flaw, Job, Kind, Rules, World};
use crate::session::flush::Flushes;
use crate::session::map::{Action, Event, Failure, Map, Mode, Welcome};
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
    Stranded,
    Sent(PathId, Epoch),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) life: u8,
    pub(super) map: Map,
    pub(super) ops: Vec<Op>,
    /// Jobs that were begun.
    pub(super) begun: u8,
    /// Paths whose queue pairs are being drained.
    pub(super) closing: Vec<(PathId, Epoch)>,
    pub(super) waiting: Vec<PathId>,
    /// The server's names for the connections that are up.
    pub(super) up: Vec<(PathId, Epoch, u16)>,
    /// A write was complete since the last flush began.
    pub(super) dirty: bool,
    pub(super) flushes: Flushes,
    /// Another client wrote since this one was in.
    pub(super) overtaken: bool,
}

impl Client {
    pub(super) fn new(life: u8, begun: u8) -> Self {
        Self {
            life,
            map: Map::new(),
            ops: Vec::new(),
            begun,
            closing: Vec::new(),
            waiting: Vec::new(),
            up: Vec::new(),
            dirty: false,
            flushes: Flushes::new(),
            overtaken: false,
        }
    }

    pub(super) fn has(&self, end: &End) -> bool {
        self.life == end.life && self.map.epoch(end.path) == end.epoch
    }

    /// Whether its end of a connection is open.
    pub(super) fn expects(&self, end: &End) -> bool {
        self.has(end)
            && !self.closing.contains(&(end.path, end.epoch))
            && !self.waiting.contains(&end.path)
            && self.map.end().is_none()
    }

    pub(super) fn number_of(&self, path: PathId) -> Option<(Epoch, u16)> {
        let up = self.up.iter().find(|up| up.0 == path)?;
        Some((up.1, up.2))
    }
}

impl World {
    pub(super) fn enable(&mut self, rules: &Rules, client: usize) {
        for path in 0..rules.paths {
            self.tell(rules, client, Event::Add(path));
        }
    }

    /// The client's machine takes note of an event; its shell does what follows.
    pub(super) fn tell(&mut self, rules: &Rules, index: usize, event: Event) {
        let mut actions = Vec::new();
        self.clients[index]
            .map
            .step(event, &mut |action| actions.push(action));
        for action in actions {
            self.perform(rules, index, action);
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
        match action {
            Action::Connect(path, epoch, resume) => {
                self.post(Message::Login(end(path, epoch), resume));
            }
            Action::Wait(path) => self.clients[index].waiting.push(path),
            Action::Close(path, epoch) => {
                let client = &mut self.clients[index];
                client.up.retain(|up| up.0 != path);
                client.closing.push((path, epoch));
                client.closing.sort_unstable();
            }
            Action::Fence { via, path, epoch } => {
                let (at, number) = self.clients[index].number_of(via).expect("it is up");
                if rules.flaw != Some(Flaw::NoFence) {
                    self.post(Message::Fence(end(via, at), number, path, epoch));
                }
                if matches!(rules.flaw, Some(Flaw::NoFence | Flaw::ReplayBeforeFence)) {
                    self.tell(rules, index, Event::Fenced(path, epoch));
                }
            }
            Action::Turn(Mode::Fail) => {
                let client = &mut self.clients[index];
                client.ops.retain(|op| matches!(op.place, Place::Sent(..)));
            }
            Action::Turn(_) => {}
            Action::Restarted if rules.flaw == Some(Flaw::NoVerifier) => {}
            Action::Restarted => {
                let client = &mut self.clients[index];
                client.flushes.restarted(client.dirty);
            }
        }
    }

    pub(super) fn drained(&mut self, rules: &Rules, index: usize, path: PathId, epoch: Epoch) {
        let client = &mut self.clients[index];
        client.closing.retain(|closing| *closing != (path, epoch));
        let mut stranded = false;
        for op in &mut client.ops {
            if op.place == Place::Sent(path, epoch) {
                op.place = Place::Stranded;
                op.replay = true;
                stranded = true;
            }
        }
        let fails = client.map.mode() == Mode::Fail;
        if fails {
            client.ops.retain(|op| op.place != Place::Stranded);
        }
        let event = Event::Drained(path, epoch, stranded && !fails);
        self.tell(rules, index, event);
        self.replayed(rules, index);
    }

    /// Tells the machine if nothing is left to be replayed.
    pub(super) fn replayed(&mut self, rules: &Rules, index: usize) {
        let client = &self.clients[index];
        if client.map.mode() == Mode::Replay && !client.ops.iter().any(|op| op.replay) {
            self.tell(rules, index, Event::Replayed);
        }
    }

    /// A message comes to a client.
    pub(super) fn arrive(&mut self, rules: &Rules, message: Message, end: End) {
        let at = usize::from(end.client);
        match message {
            Message::Welcome(end, entry) => {
                let instance = match rules.flaw {
                    Some(Flaw::NoInstance) => 0,
                    _ => entry.instance,
                };
                let welcome = Welcome {
                    export: 7,
                    instance: instance.into(),
                    volatile: rules.kind == Kind::Ram,
                    tenure: entry.tenure,
                };
                let client = &mut self.clients[at];
                if client.up.iter().any(|up| up.0 == end.path) {
                    return;
                }
                // Before its machine says what it wants done on it.
                let up = (end.path, end.epoch, entry.number);
                client.up.push(up);
                client.up.sort_unstable();
                self.tell(rules, at, Event::Connected(end.path, end.epoch, welcome));
                let client = &mut self.clients[at];
                if !client.map.is_up(end.path) {
                    client.up.retain(|other| *other != up);
                }
            }
            Message::Refused(end, for_good) => {
                let failure = match for_good {
                    true => Failure::Evicted,
                    false => Failure::Transient,
                };
                self.tell(rules, at, Event::Refused(end.path, end.epoch, failure));
            }
            Message::Fenced(end, path, epoch) => {
                if self.clients[at].map.is_up(end.path) {
                    self.tell(rules, at, Event::Fenced(path, epoch));
                }
            }
            Message::Response(end, op, value) => {
                let place = Place::Sent(end.path, end.epoch);
                let ops = &mut self.clients[at].ops;
                let same = |other: &Op| {
                    (other.job, other.number, other.place) == (op.job, op.number, place)
                };
                let Some(found) = ops.iter().position(same) else {
                    return;
                };
                ops.remove(found);
                self.complete(rules, at, op, value);
                self.replayed(rules, at);
            }
            Message::Login(..) | Message::Fence(..) | Message::Command(..) => {}
        }
    }

    /// The user of a client sees that an operation is done.
    pub(super) fn complete(&mut self, rules: &Rules, at: usize, op: Op, value: u8) {
        match op.job {
            Job::Flush => self.clients[at].flushes.complete(op.flush),
            Job::Write | Job::Read => {}
        }
        match op.job {
            Job::Write => {
                self.complete = self.complete.max(op.number);
                self.clients[at].dirty = true;
            }
            Job::Read if value < op.number && rules.kind != Kind::CachedBlock => {
                self.wrong = Some("a read returned less than the newest complete write");
            }
            Job::Flush
                if rules.kind == Kind::CachedBlock
                    && self.stable < op.number
                    && op.excused < op.number =>
            {
                self.wrong = Some("a flush was complete, and a write before it does not last");
            }
            Job::Read | Job::Flush => {}
        }
    }
}
