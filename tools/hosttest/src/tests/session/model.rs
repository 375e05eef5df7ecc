// SPDX-License-Identifier: GPL-2.0

//! A world for the model checker: clients, a server, its disk, and a network that may do anything.
//!
//! The decisions are those of the module: `session::map` and `session::export`. What is modelled here
//! is what the shells around them do, and what cannot be helped: messages are late without bound,
//! come in any order and twice; connections break on either side, whenever they like and unnoticed by the
//! other; both sides crash and come back. One block of the disk is enough: it holds the number of the
//! last write, and later writes have larger numbers.
//!
//! What is taken for granted of the transport: a command reaches the connection on which it was sent,
//! once, or never.

use crate::session::{
    flush::Flushes,
    map::{Action, Event, Failure, Map, Mode, Welcome},
    reservation::{Arrival, Claim, Custody, Fence, Member, Verdict},
    Epoch, PathId, Tenure,
};
use stateright::{Model, Property};

/// What a world is like, and how much may go wrong in it.
#[derive(Clone, Debug)]
pub struct Rules {
    pub kind: Kind,
    pub clients: usize,
    pub paths: u8,
    /// Operations that each client does, at most two of them at a time.
    pub jobs: Vec<Job>,
    /// Connections that break at the client, and at the server, while nothing is wrong.
    pub losses: u8,
    /// Messages that come twice.
    pub duplicates: u8,
    pub client_crashes: u8,
    pub server_crashes: u8,
    /// Times that a client waits for longer than its user wants.
    pub expiries: u8,
    /// Attempts to connect, per path.
    pub attempts: Epoch,
    /// How the machines are made worse, to see that it is noticed.
    pub flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What is written lasts.
    Block,
    /// What is written may be lost with a crash until it is flushed.
    CachedBlock,
    Ram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A client takes a path that was lost for fenced.
    NoFence,
    /// It asks for the fence, but does not wait for the answer.
    ReplayBeforeFence,
    /// The server lets any epoch in, and lets go of none.
    NoEpochs,
    /// The client does not look at the instance.
    NoInstance,
    /// The server does not look at the tenure.
    NoTenure,
    /// The server answers a fence while I/O of the path is under way.
    FenceInFlight,
    /// It does not mind that the server's cache is gone.
    NoVerifier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Job {
    Write,
    Read,
    Flush,
}

/// An operation of a client's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Op {
    job: Job,
    /// Write: what it writes, once it was sent. Read and flush: the newest write that was complete
    /// before it began.
    number: u8,
    place: Place,
    /// It was sent before, and then its path was lost.
    replay: bool,
    /// Of a flush, once it was sent.
    flush: u64,
    /// Writes up to this one: that they may be gone was told before it began.
    excused: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    /// Not on a path.
    Held,
    /// Of a path that was lost.
    Stranded,
    Sent(PathId, Epoch),
}

/// The client's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct End {
    client: u8,
    /// Of the client: one more after each crash.
    life: u8,
    path: PathId,
    epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Login(End, Option<Tenure>),
    Welcome(End, Entry),
    Refused(End, bool),
    /// On the connection of the server's, for a path up to an epoch.
    Fence(End, u16, PathId, Epoch),
    Fenced(End, PathId, Epoch),
    Command(End, u16, Op),
    /// With what was read.
    Response(End, Op, u8),
}

impl Message {
    fn to_client(self) -> Option<End> {
        match self {
            Self::Welcome(end, _) | Self::Refused(end, _) => Some(end),
            Self::Fenced(end, ..) | Self::Response(end, ..) => Some(end),
            Self::Login(..) | Self::Fence(..) | Self::Command(..) => None,
        }
    }
}

/// What a server says to a client that is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Entry {
    /// The server's name for the connection.
    number: u16,
    instance: u8,
    tenure: Tenure,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    life: u8,
    map: Map,
    ops: Vec<Op>,
    /// Jobs that were begun.
    begun: u8,
    /// Paths whose queue pairs are being drained.
    closing: Vec<(PathId, Epoch)>,
    waiting: Vec<PathId>,
    /// The server's names for the connections that are up.
    up: Vec<(PathId, Epoch, u16)>,
    /// A write was complete since the last flush began.
    dirty: bool,
    flushes: Flushes,
    /// Another client wrote since this one was in.
    overtaken: bool,
}

/// The server's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Connection {
    end: End,
    number: u16,
    tenure: Tenure,
    /// It takes no more commands and sends nothing.
    killed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    instance: u8,
    custody: Custody,
    members: Vec<(u8, Member, Tenure)>,
    connections: Vec<Connection>,
    running: Vec<(u16, Op)>,
    /// Logins and fences that wait for something to go.
    pending: Vec<Message>,
    fresh: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    clients: Vec<Client>,
    server: Server,
    network: Vec<Message>,
    /// What the block holds; for a cached one, what it holds in the cache.
    disk: u8,
    /// What would be left of it after a crash.
    stable: u8,
    /// The last write that was sent, and the newest that is complete.
    begun: u8,
    complete: u8,
    /// The newest write that a failed flush told of.
    excused: u8,
    losses: u8,
    duplicates: u8,
    client_crashes: u8,
    server_crashes: u8,
    expiries: u8,
    /// What should not have happened.
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Begin(u8),
    /// An operation goes out on a path.
    Send(u8, u8, PathId),
    Deliver(u8),
    Duplicate(u8),
    ClientLoses(u8, PathId),
    ServerLoses(u8),
    Drained(u8, u8),
    Retry(u8, u8),
    Expire(u8),
    /// The server's disk does what a command asks for.
    Execute(u8),
    Gone(u8),
    /// The server gives up a client that is away.
    Evict(u8),
    ClientCrash(u8),
    ServerCrash,
}

fn index(position: usize) -> u8 {
    position.try_into().unwrap()
}

impl Client {
    fn new(life: u8, begun: u8) -> Self {
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

    fn has(&self, end: &End) -> bool {
        self.life == end.life && self.map.epoch(end.path) == end.epoch
    }

    /// Whether its end of a connection is open.
    fn expects(&self, end: &End) -> bool {
        self.has(end)
            && !self.closing.contains(&(end.path, end.epoch))
            && !self.waiting.contains(&end.path)
            && self.map.end().is_none()
    }

    fn number_of(&self, path: PathId) -> Option<(Epoch, u16)> {
        let up = self.up.iter().find(|up| up.0 == path)?;
        Some((up.1, up.2))
    }
}

impl World {
    fn new(rules: &Rules) -> Self {
        let mut world = Self {
            clients: vec![Client::new(0, 0); rules.clients],
            server: Server::default(),
            network: Vec::new(),
            disk: 0,
            stable: 0,
            begun: 0,
            complete: 0,
            excused: 0,
            losses: rules.losses,
            duplicates: rules.duplicates,
            client_crashes: rules.client_crashes,
            server_crashes: rules.server_crashes,
            expiries: rules.expiries,
            wrong: None,
        };
        for client in 0..rules.clients {
            world.enable(rules, client);
        }
        world
    }

    /// Drops the messages that nobody can take any more.
    fn forget(&mut self) {
        let (clients, connections) = (&self.clients, &self.server.connections);
        let alive = |number| connections.iter().any(|c| c.number == number && !c.killed);
        let matters = |message: &Message| match *message {
            Message::Login(..) => true,
            Message::Fence(_, number, ..) | Message::Command(_, number, _) => alive(number),
            Message::Welcome(end, _)
            | Message::Refused(end, _)
            | Message::Fenced(end, ..)
            | Message::Response(end, ..) => clients[usize::from(end.client)].expects(&end),
        };
        self.network.retain(matters);
    }

    fn enable(&mut self, rules: &Rules, client: usize) {
        for path in 0..rules.paths {
            self.tell(rules, client, Event::Add(path));
        }
    }

    fn post(&mut self, message: Message) {
        if !self.network.contains(&message) {
            self.network.push(message);
            self.network.sort_unstable();
        }
    }

    /// The client's machine takes note of an event; its shell does what follows.
    fn tell(&mut self, rules: &Rules, index: usize, event: Event) {
        let mut actions = Vec::new();
        self.clients[index]
            .map
            .step(event, &mut |action| actions.push(action));
        for action in actions {
            self.perform(rules, index, action);
        }
    }

    fn perform(&mut self, rules: &Rules, index: usize, action: Action) {
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

    fn drained(&mut self, rules: &Rules, index: usize, path: PathId, epoch: Epoch) {
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
    fn replayed(&mut self, rules: &Rules, index: usize) {
        let client = &self.clients[index];
        if client.map.mode() == Mode::Replay && !client.ops.iter().any(|op| op.replay) {
            self.tell(rules, index, Event::Replayed);
        }
    }

    /// A message comes to a client.
    fn arrive(&mut self, rules: &Rules, message: Message, end: End) {
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
    fn complete(&mut self, rules: &Rules, at: usize, op: Op, value: u8) {
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

    /// A message comes to the server.
    fn serve(&mut self, rules: &Rules, message: Message) {
        match message {
            Message::Login(end, resume) => self.login(rules, end, resume),
            Message::Fence(end, number, path, epoch) => self.fence(rules, end, number, path, epoch),
            Message::Command(_, number, op) => {
                let alive = |c: &Connection| c.number == number && !c.killed;
                if self.server.connections.iter().any(alive) {
                    self.server.running.push((number, op));
                    self.server.running.sort_unstable();
                }
            }
            _ => {}
        }
    }

    fn fresh(&mut self) -> u16 {
        self.server.fresh += 1;
        self.server.fresh
    }

    fn kill(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in &mut self.server.connections {
            connection.killed |= which(connection);
        }
    }

    fn login(&mut self, rules: &Rules, end: End, resume: Option<Tenure>) {
        let claim = Claim {
            incarnation: end.life.into(),
            resume,
        };
        let member = self.server.members.iter().position(|m| m.0 == end.client);
        let incarnation = member.map(|at| self.server.members[at].1.incarnation);
        let room = self.server.members.is_empty();
        let fresh = Tenure::from(self.server.fresh + 1);
        let mut custody = match rules.flaw {
            Some(Flaw::NoTenure) => Custody::default(),
            _ => self.server.custody,
        };
        let verdict = custody.judge(&claim, incarnation, room, fresh);
        self.server.custody = custody;
        let wait = Message::Login(end, resume);
        let at = match verdict {
            Verdict::Evicted => return self.post(Message::Refused(end, true)),
            Verdict::Busy => return self.post(Message::Refused(end, false)),
            Verdict::Replace => {
                self.kill(|c| c.end.client == end.client);
                let member = member.expect("it is to be replaced");
                if self.server.members[member].1.live().next().is_none() {
                    self.server.members.remove(member);
                    return self.login(rules, end, resume);
                }
                return self.server.pending.push(wait);
            }
            Verdict::Join => member.expect("it is joined"),
            Verdict::Admit(tenure) => {
                if tenure == fresh {
                    self.fresh();
                }
                let member = Member::new(end.life.into());
                self.server.members.push((end.client, member, tenure));
                self.server.members.len() - 1
            }
        };
        let arrival = match rules.flaw {
            Some(Flaw::NoEpochs) => Arrival::Up,
            _ => self.server.members[at].1.arrive(end.path, end.epoch),
        };
        match arrival {
            Arrival::Over => self.post(Message::Refused(end, false)),
            Arrival::After(epoch) => {
                self.kill(|c| {
                    (c.end.client, c.end.path, c.end.epoch) == (end.client, end.path, epoch)
                });
                self.server.pending.push(wait);
            }
            Arrival::Up => {
                let tenure = self.server.members[at].2;
                let entry = Entry {
                    number: self.fresh(),
                    instance: self.server.instance,
                    tenure,
                };
                self.server.connections.push(Connection {
                    end,
                    number: entry.number,
                    tenure,
                    killed: false,
                });
                self.post(Message::Welcome(end, entry));
            }
        }
    }

    fn fence(&mut self, rules: &Rules, end: End, number: u16, path: PathId, epoch: Epoch) {
        let alive = |c: &Connection| c.number == number && !c.killed;
        if !self.server.connections.iter().any(alive) {
            return;
        }
        let Some(member) = self.server.members.iter_mut().find(|m| m.0 == end.client) else {
            return;
        };
        let answer = Message::Fenced(end, path, epoch);
        match member.1.fence(path, epoch) {
            Fence::Done => self.post(answer),
            Fence::After(live) => {
                self.kill(|c| (c.end.client, c.end.path, c.end.epoch) == (end.client, path, live));
                if rules.flaw == Some(Flaw::FenceInFlight) {
                    return self.post(answer);
                }
                self.server
                    .pending
                    .push(Message::Fence(end, number, path, epoch));
            }
        }
    }

    /// Nothing of a connection is there any more; what waited for something may go on.
    fn gone(&mut self, rules: &Rules, at: usize) {
        let Connection { end, .. } = self.server.connections.remove(at);
        if let Some(member) = self.server.members.iter_mut().find(|m| m.0 == end.client) {
            if member.1.incarnation == u64::from(end.life) {
                member.1.gone(end.path, end.epoch);
            }
        }
        for message in std::mem::take(&mut self.server.pending) {
            self.serve(rules, message);
        }
    }

    fn execute(&mut self, at: usize, rules: &Rules) {
        let (number, mut op) = self.server.running.remove(at);
        let mut connections = self.server.connections.iter();
        let connection = *connections
            .find(|c| c.number == number)
            .expect("it waits for it");
        let End {
            client: writer,
            life,
            ..
        } = connection.end;
        let client = &self.clients[usize::from(writer)];
        let overtaken = client.life == life && client.overtaken && rules.server_crashes == 0;
        match op.job {
            Job::Write => {
                if overtaken {
                    self.wrong = Some("a client wrote that had lost the export to another");
                }
                if op.number < self.complete {
                    self.wrong = Some("an older write landed on a newer one that was complete");
                }
                for (other, client) in self.clients.iter_mut().enumerate() {
                    client.overtaken |=
                        other != usize::from(writer) && client.map.known().is_some();
                }
                self.disk = op.number;
                if rules.kind != Kind::CachedBlock {
                    self.stable = self.disk;
                }
            }
            Job::Flush => self.stable = self.disk,
            Job::Read => {}
        }
        op.replay = false;
        if !connection.killed {
            self.post(Message::Response(connection.end, op, self.disk));
        }
    }

    fn crash_server(&mut self, rules: &Rules) {
        let old = std::mem::take(&mut self.server);
        self.server.instance = old.instance + 1;
        self.server.fresh = old.fresh;
        match rules.kind {
            Kind::Block => {}
            Kind::CachedBlock => self.disk = self.stable,
            Kind::Ram => (self.disk, self.stable) = (0, 0),
        }
    }

    /// A path of a client leads to a connection that the server has.
    fn is_served(&self, client: usize, path: PathId, epoch: Epoch) -> bool {
        let end = End {
            client: index(client),
            life: self.clients[client].life,
            path,
            epoch,
        };
        let to = |message: &Message| match message {
            Message::Login(to, _) => *to == end,
            other => other.to_client() == Some(end),
        };
        let alive = |c: &Connection| c.end == end && !c.killed;
        self.server.connections.iter().any(alive)
            || self.server.pending.iter().any(to)
            || self.network.iter().any(to)
    }

    /// The client has this connection, too.
    fn is_wanted(&self, connection: &Connection) -> bool {
        let end = connection.end;
        self.clients[usize::from(end.client)].expects(&end)
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.wrong.is_some() {
            return;
        }
        for (at, client) in world.clients.iter().enumerate() {
            let c = index(at);
            let mode = client.map.mode();
            let next = self.jobs.get(usize::from(client.begun));
            let busy = |op: &Op| Some(&op.job) == next || client.ops.len() > 1;
            if next.is_some() && !client.ops.iter().any(busy) {
                steps.push(Step::Begin(c));
            }
            for (o, op) in client.ops.iter().enumerate() {
                let goes = match op.place {
                    Place::Held => mode == Mode::Flow,
                    Place::Stranded => mode == Mode::Replay,
                    Place::Sent(..) => false,
                };
                for up in client.up.iter().filter(|_| goes) {
                    steps.push(Step::Send(c, index(o), up.0));
                }
            }
            for path in 0..self.paths {
                let epoch = client.map.epoch(path);
                let closing = client.closing.contains(&(path, epoch));
                let waiting = client.waiting.contains(&path);
                if epoch == 0 || closing || waiting || client.map.end().is_some() {
                    continue;
                }
                if world.losses > 0 || !world.is_served(at, path, epoch) {
                    steps.push(Step::ClientLoses(c, path));
                }
            }
            for closing in 0..client.closing.len() {
                steps.push(Step::Drained(c, index(closing)));
            }
            for (waiting, path) in client.waiting.iter().enumerate() {
                if client.map.epoch(*path) < self.attempts {
                    steps.push(Step::Retry(c, index(waiting)));
                }
            }
            if world.expiries > 0 && mode == Mode::Hold && !client.ops.is_empty() {
                steps.push(Step::Expire(c));
            }
            if world.client_crashes > 0 {
                steps.push(Step::ClientCrash(c));
            }
        }
        for (at, _) in world.network.iter().enumerate() {
            steps.push(Step::Deliver(index(at)));
            if world.duplicates > 0 {
                steps.push(Step::Duplicate(index(at)));
            }
        }
        for (at, connection) in world.server.connections.iter().enumerate() {
            let runs = |(number, _): &(u16, Op)| *number == connection.number;
            if connection.killed {
                if !world.server.running.iter().any(runs) {
                    steps.push(Step::Gone(index(at)));
                }
            } else if world.losses > 0 || !world.is_wanted(connection) {
                steps.push(Step::ServerLoses(index(at)));
            }
        }
        for at in 0..world.server.running.len() {
            steps.push(Step::Execute(index(at)));
        }
        for (at, (client, member, _)) in world.server.members.iter().enumerate() {
            // A server that remembers may do it at any time. One that may crash waits for longer than
            // the client would hold its I/O, and believe in a connection.
            let welcome =
                |m: &Message| matches!(m, Message::Welcome(end, _) if end.client == *client);
            let late = world.network.iter().any(welcome);
            let client = &world.clients[usize::from(*client)];
            let given_up = client.map.mode() == Mode::Fail && client.up.is_empty() && !late
                || u64::from(client.life) != member.incarnation
                || self.server_crashes == 0;
            if self.clients > 1 && member.live().next().is_none() && given_up {
                steps.push(Step::Evict(index(at)));
            }
        }
        if world.server_crashes > 0 {
            steps.push(Step::ServerCrash);
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Begin(c) => {
                let client = &mut world.clients[usize::from(c)];
                let job = self.jobs[usize::from(client.begun)];
                client.begun += 1;
                let number = match job {
                    Job::Write => 0,
                    Job::Read | Job::Flush => world.complete,
                };
                // It fails at once.
                if client.map.mode() != Mode::Fail {
                    client.ops.push(Op {
                        job,
                        number,
                        place: Place::Held,
                        replay: false,
                        flush: 0,
                        excused: world.excused,
                    });
                }
            }
            Step::Send(c, o, path) => {
                let at = usize::from(c);
                let client = &mut world.clients[at];
                let (epoch, number) = client.number_of(path)?;
                let op = &mut client.ops[usize::from(o)];
                op.place = Place::Sent(path, epoch);
                if op.job == Job::Write && op.number == 0 {
                    world.begun += 1;
                    op.number = world.begun;
                }
                let end = End {
                    client: c,
                    life: client.life,
                    path,
                    epoch,
                };
                if op.job == Job::Flush {
                    if client.flushes.has_to_fail(0, op.replay) {
                        // It is told to the user instead of being sent.
                        client.ops.remove(usize::from(o));
                        world.excused = world.complete;
                        world.replayed(self, at);
                        world.forget();
                        return Some(world);
                    }
                    op.flush = client.flushes.begin(client.dirty);
                    client.dirty = false;
                }
                let op = *op;
                world.post(Message::Command(end, number, op));
            }
            Step::Deliver(at) | Step::Duplicate(at) => {
                let message = world.network[usize::from(at)];
                match step {
                    Step::Duplicate(_) if matches!(message, Message::Command(..)) => return None,
                    Step::Duplicate(_) => world.duplicates -= 1,
                    _ => drop(world.network.remove(usize::from(at))),
                }
                match message.to_client() {
                    Some(end) => world.arrive(self, message, end),
                    None => world.serve(self, message),
                }
            }
            Step::ClientLoses(c, path) => {
                let at = usize::from(c);
                let epoch = world.clients[at].map.epoch(path);
                if world.is_served(at, path, epoch) {
                    world.losses -= 1;
                }
                world.tell(self, at, Event::Lost(path, epoch));
            }
            Step::ServerLoses(at) => {
                let connection = world.server.connections[usize::from(at)];
                if world.is_wanted(&connection) {
                    world.losses -= 1;
                }
                world.server.connections[usize::from(at)].killed = true;
            }
            Step::Drained(c, at) => {
                let at_client = usize::from(c);
                let (path, epoch) = world.clients[at_client].closing[usize::from(at)];
                world.drained(self, at_client, path, epoch);
            }
            Step::Retry(c, at) => {
                let path = world.clients[usize::from(c)]
                    .waiting
                    .remove(usize::from(at));
                world.tell(self, usize::from(c), Event::Retry(path));
            }
            Step::Expire(c) => {
                world.expiries -= 1;
                world.tell(self, usize::from(c), Event::Expired);
            }
            Step::Execute(at) => world.execute(usize::from(at), self),
            Step::Gone(at) => world.gone(self, usize::from(at)),
            Step::Evict(at) => {
                world.server.members.remove(usize::from(at));
            }
            Step::ClientCrash(c) => {
                world.client_crashes -= 1;
                let at = usize::from(c);
                let client = &world.clients[at];
                world.clients[at] = Client::new(client.life + 1, client.begun);
                world.enable(self, at);
            }
            Step::ServerCrash => {
                world.server_crashes -= 1;
                world.crash_server(self);
            }
        }
        world.forget();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is wrong", |_, world: &World| world.wrong.is_none()),
            Property::always(
                "what is complete is there",
                |rules: &Rules, world: &World| {
                    let lost = rules.kind == Kind::Ram && world.server.instance > 0;
                    rules.kind == Kind::CachedBlock || lost || world.disk >= world.complete
                },
            ),
            Property::eventually("all is done", |rules: &Rules, world: &World| {
                let done = |client: &Client| {
                    client.ops.is_empty() && usize::from(client.begun) == rules.jobs.len()
                };
                let tired = |client: &Client| {
                    (0..rules.paths).any(|path| client.map.epoch(path) >= rules.attempts)
                };
                world.wrong.is_some()
                    || world
                        .clients
                        .iter()
                        .all(|client| done(client) || tired(client))
            }),
            Property::sometimes(
                "if paths are lost, all is done yet",
                |rules: &Rules, world: &World| {
                    let done = |client: &Client| {
                        client.ops.is_empty()
                            && usize::from(client.begun) == rules.jobs.len()
                            && client.map.mode() == Mode::Flow
                            && (client.map.epoch(0) > 1 || rules.losses == 0)
                    };
                    world.clients.iter().any(done)
                },
            ),
        ]
    }
}
