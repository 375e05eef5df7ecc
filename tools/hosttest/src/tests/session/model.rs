// SPDX-License-Identifier: GPL-2.0

//! A world for the model checker: clients, a server, its disk, and a network that may do anything.
//!
//! The decisions are those of the module: `session::map` and `session::reservation`. What is
//! modelled here is what the code around them does, and what cannot be helped: messages are late
//! without bound, come in any order and twice; connections break on either side, whenever they like
//! and unnoticed by the other; both sides crash and come back. One block of the disk is enough: it
//! holds the number of the last write, and later writes have larger numbers.
//!
//! What is taken for granted of the transport: a command reaches the connection on which it was
//! sent, once, or never.

mod client;
mod network;
mod server;
mod shared;

use client::{Client, Op, Place};
use network::{End, Message, Number};
use server::Server;
use shared::Shared;

use crate::session::clock::Timer;
use crate::session::map::{Drained, Event, Mode};
use crate::session::{Epoch, PathId};
use stateright::{Model, Property};

/// What a world is like, and how much may go wrong in it.
#[derive(Clone, Debug)]
pub struct Rules {
    pub kind: Kind,
    pub clients: usize,
    pub paths: u8,
    /// Users that have a client's disk open, two at most.
    pub users: u8,
    /// Operations that each client does, at most two of them at a time.
    pub jobs: Vec<Job>,
    /// Connections that break at the client, and at the server, while nothing is wrong.
    pub losses: u8,
    /// Messages that come twice.
    pub duplicates: u8,
    pub client_crashes: u8,
    pub server_crashes: u8,
    /// Times that the export is disabled, with or without a flush of its device, and enabled again.
    /// The device loses its cache in between.
    pub closes: u8,
    /// Times that a client waits for longer than its user wants.
    pub expiries: u8,
    /// Maps that may have the export at a time.
    pub max_clients: u16,
    /// After a restart the administrator admits no host that shows no key until the leases are over
    /// that there were before.
    pub grace: bool,
    /// Whether the administrator may say that the first host may only read.
    pub demotion: bool,
    /// The last path leads to another server, which has an export of the same UUID.
    pub elsewhere: Option<Elsewhere>,
    /// A write may begin while one waits whose path was lost.
    pub overlap: bool,
    /// Times that a device does not drain a path.
    pub uncleans: u8,
    /// Changes of the extent of the export.
    pub resizes: u8,
    /// Paths that the user takes from a map, and gives back.
    pub removals: u8,
    /// Maps that the user disables.
    pub disables: u8,
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

/// What another server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    Admits,
    Denies,
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
    /// The server does not look at the reservation key.
    NoKey,
    /// The client does not look at which server it is.
    NoServerId,
    /// A path counts as none until its user's I/O was replayed on it: I/O expires beside it.
    ExpiryWithPath,
    /// The client takes extents in the order in which they arrive.
    NoExtentOrder,
    /// It takes a path for drained whose device says that it is not.
    UncleanIsClean,
    /// It does not mind that its lease is over.
    NoLease,
    /// The server answers a fence while I/O of the path is under way.
    FenceInFlight,
    /// It does not mind that the server's cache is gone.
    NoVerifier,
    /// The server tells hosts apart by what they say of themselves.
    OneHost,
    /// What the administrator says of a host holds for later logins only.
    LaterLogins,
    /// A server that began anew says that it remembers what is resumed.
    Remembers,
    /// It says so if the map has logged in since.
    RemembersSecond,
    /// The client believes that the server has flushed, whenever it hears of it.
    NoFlushedOrder,
    /// The server tells its clients that it has flushed although I/O is under way.
    FlushBeforeDrain,
    /// The server keeps the instance of an export although its device was not flushed when it was
    /// closed.
    NoFlushAtClose,
    /// Only the first flush fails after a loss.
    OneFlushFails,
    /// When the disk is closed a loss is forgotten that nobody has heard of.
    ForgottenAtClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Job {
    Write,
    Read,
    /// By the first user, as are writes and reads.
    Flush,
    /// By the second one, who has had the disk open from the beginning.
    OtherFlush,
    /// The first user closes the disk and opens it again.
    Reopen,
    /// The second user closes the disk.
    OtherClose,
}

impl Job {
    /// Returns true if a user flushes the disk.
    pub fn flushes(self) -> bool {
        matches!(self, Self::Flush | Self::OtherFlush)
    }

    /// Whose it is: 0 or 1.
    fn user(self) -> usize {
        usize::from(matches!(self, Self::OtherFlush | Self::OtherClose))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    clients: Vec<Shared<Client>>,
    server: Shared<Server>,
    network: Vec<Message>,
    /// What the block holds; for a cached one, what it holds in the cache.
    disk: u8,
    /// What would be left of it after a crash.
    stable: u8,
    /// The last write that was sent, and the newest that is complete.
    begun: u8,
    complete: u8,
    /// The newest write that a failed flush told of, by user.
    excused: [u8; 2],
    losses: u8,
    duplicates: u8,
    client_crashes: u8,
    server_crashes: u8,
    closes: u8,
    expiries: u8,
    uncleans: u8,
    resizes: u8,
    removals: u8,
    disables: u8,
    /// Bit by bit, the values that complete reads have returned.
    seen: u32,
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
    Drained(u8, u8, bool),
    /// The device is done with a path that was not drained.
    Closed(u8, u8),
    /// The server has answered on a path.
    Pong(u8, PathId),
    Elapse(u8, Timer),
    Remove(u8, PathId),
    Add(u8, PathId),
    Disable(u8),
    /// The extent of the export changes.
    Resize,
    /// The server tells of it on a connection.
    Announce(u8),
    /// The server's disk does what a command asks for.
    Execute(u8),
    Gone(u8),
    /// The lease of a client that is away is over.
    Lapse(u64),
    /// The administrator says that the host of a client may only read.
    Demote(u8),
    ClientCrash(u8),
    ServerCrash,
    /// The export is disabled: no more commands begin.
    Close,
    /// None is under way: its device is flushed, or not, and its sessions end.
    Dismiss(bool),
    /// The export is enabled again.
    Enable,
}

fn index(position: usize) -> u8 {
    position.try_into().unwrap()
}

impl World {
    fn new(rules: &Rules) -> Self {
        let mut world = Self {
            clients: vec![Shared::new(Client::new(rules, 0, 0)); rules.clients],
            server: Shared::new(Server::new(rules, 0, 0)),
            network: Vec::new(),
            disk: 0,
            stable: 0,
            begun: 0,
            complete: 0,
            excused: [0; 2],
            losses: rules.losses,
            duplicates: rules.duplicates,
            client_crashes: rules.client_crashes,
            server_crashes: rules.server_crashes,
            closes: rules.closes,
            expiries: rules.expiries,
            uncleans: rules.uncleans,
            resizes: rules.resizes,
            removals: rules.removals,
            disables: rules.disables,
            seen: 0,
            wrong: None,
        };
        for client in 0..rules.clients {
            world.enable(rules, client);
        }
        world.set_hashes();
        world
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
            let busy = |op: &Op| {
                let lost = |(path, epoch): &_| op.place == Place::Sent(*path, *epoch);
                let waits = op.replay || client.unclean.iter().any(lost);
                let same = Some(&op.job) == next && !(self.overlap && waits);
                let closes = matches!(next, Some(Job::Reopen | Job::OtherClose));
                closes || same || client.ops.len() > 1
            };
            if next.is_some() && !client.ops.iter().any(busy) {
                steps.push(Step::Begin(c));
            }
            for (o, op) in client.ops.iter().enumerate() {
                let goes = match op.place {
                    Place::Held => mode == Mode::Flow,
                    Place::Requeued => mode == Mode::Replay,
                    Place::Sent(..) => false,
                };
                for up in client.up.iter().filter(|_| goes) {
                    steps.push(Step::Send(c, index(o), up.0));
                }
            }
            for path in 0..self.paths {
                let epoch = client.map.epoch(path);
                if client.map.end().is_some() {
                    continue;
                }
                if world.removals > 0 && !client.map.is_gone(path) {
                    steps.push(Step::Remove(c, path));
                }
                if self.removals > 0 && client.map.is_gone(path) && epoch < self.attempts {
                    steps.push(Step::Add(c, path));
                }
                let gone = client.map.is_gone(path);
                if epoch == 0 || client.is_closing(path) || client.is_waiting(path) || gone {
                    continue;
                }
                if world.losses > 0 || !world.is_served(at, path, epoch) {
                    steps.push(Step::ClientLoses(c, path));
                }
            }
            for closing in 0..client.closing.len() {
                steps.push(Step::Drained(c, index(closing), true));
                if world.uncleans > 0 {
                    steps.push(Step::Drained(c, index(closing), false));
                }
            }
            for unclean in 0..client.unclean.len() {
                steps.push(Step::Closed(c, index(unclean)));
            }
            for path in &client.unproven {
                steps.push(Step::Pong(c, *path));
            }
            for timer in &client.timers {
                let elapses = match timer {
                    Timer::Retry(path) => client.map.epoch(*path) < self.attempts,
                    Timer::Expiry => world.expiries > 0,
                    Timer::Heartbeat(_) | Timer::Lease | Timer::SendRetry => true,
                };
                if elapses {
                    steps.push(Step::Elapse(c, *timer));
                }
            }
            if world.disables > 0 && client.map.end().is_none() {
                steps.push(Step::Disable(c));
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
            let runs = |(number, _): &(Number, Op)| *number == connection.number;
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
        for number in &world.server.leases {
            if self.clients > 1 && world.may_lapse(*number) {
                steps.push(Step::Lapse(*number));
            }
        }
        if self.demotion && world.server.settled == 0 {
            steps.push(Step::Demote(0));
        }
        if world.server_crashes > 0 {
            steps.push(Step::ServerCrash);
        }
        if world.resizes > 0 {
            steps.push(Step::Resize);
        }
        for (at, connection) in world.server.connections.iter().enumerate() {
            if !connection.killed && connection.told < world.server.extent {
                steps.push(Step::Announce(index(at)));
            }
        }
        if world.closes > 0 && !world.server.disabled {
            steps.push(Step::Close);
        }
        steps.extend(world.server.closing(self));
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Begin(c) => {
                let client: &mut Client = &mut world.clients[usize::from(c)];
                let job = self.jobs[usize::from(client.begun)];
                client.begun += 1;
                if matches!(job, Job::Reopen | Job::OtherClose) {
                    world.close_disk(self, usize::from(c), job);
                    world.set_hashes();
                    return Some(world);
                }
                let number = match job {
                    Job::Write => 0,
                    _ => world.complete,
                };
                // It fails at once.
                if client.map.mode() == Mode::Fail {
                    world.judge_failure(usize::from(c), true);
                } else {
                    client.ops.push(Op {
                        job,
                        number,
                        place: Place::Held,
                        replay: false,
                        flush: 0,
                        excused: world.excused[job.user()],
                    });
                }
            }
            Step::Send(c, o, path) => {
                let at = usize::from(c);
                let client: &mut Client = &mut world.clients[at];
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
                if op.job.flushes() {
                    let user = op.job.user();
                    if client.flushes.must_fail() {
                        if self.flaw == Some(Flaw::OneFlushFails) {
                            client.flushes.closed();
                        }
                        // It is told to the user instead of being sent.
                        client.ops.remove(usize::from(o));
                        world.excused[user] = world.complete;
                        world.replayed(self, at);
                        world.forget();
                        world.set_hashes();
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
            Step::Drained(c, at, clean) => {
                let how = match clean {
                    true => Drained::Clean,
                    false => Drained::Unclean,
                };
                world.uncleans -= u8::from(!clean);
                world.drained(self, usize::from(c), usize::from(at), how);
            }
            Step::Closed(c, at) => world.closed(self, usize::from(c), usize::from(at)),
            Step::Pong(c, path) => {
                let client: &mut Client = &mut world.clients[usize::from(c)];
                // The machine has reasons not to believe it as long as requests are to be replayed.
                if !client.ops.iter().any(|op| op.replay) {
                    client.unproven.retain(|other| *other != path);
                }
                let event = Event::Pong(path, client.map.epoch(path));
                world.tell(self, usize::from(c), event);
            }
            Step::Elapse(c, timer) => {
                let client: &mut Client = &mut world.clients[usize::from(c)];
                client.timers.retain(|other| *other != timer);
                match timer {
                    Timer::Expiry => world.expiries -= 1,
                    Timer::Lease => client.lease_over = true,
                    Timer::Retry(_) | Timer::Heartbeat(_) | Timer::SendRetry => {}
                }
                world.tell(self, usize::from(c), Event::Elapsed(timer));
            }
            Step::Remove(c, path) => {
                world.removals -= 1;
                world.tell(self, usize::from(c), Event::Remove(path));
            }
            Step::Add(c, path) => world.tell(self, usize::from(c), Event::Add(path)),
            Step::Disable(c) => {
                world.disables -= 1;
                world.tell(self, usize::from(c), Event::Disable);
            }
            Step::Resize => {
                world.resizes -= 1;
                world.server.extent += 1;
            }
            Step::Announce(at) => world.announce(usize::from(at)),
            Step::Execute(at) => world.execute(usize::from(at), self),
            Step::Gone(at) => world.gone(self, usize::from(at)),
            Step::Lapse(number) => world.lapse(number),
            Step::Demote(client) => world.demote(self, client),
            Step::ClientCrash(c) => {
                world.client_crashes -= 1;
                let at = usize::from(c);
                let client = &world.clients[at];
                world.clients[at] = Shared::new(Client::new(self, client.life + 1, client.begun));
                world.enable(self, at);
            }
            Step::ServerCrash => {
                world.server_crashes -= 1;
                world.crash_server(self);
            }
            Step::Close => {
                world.closes -= 1;
                world.disable_export();
            }
            Step::Dismiss(flushed) => world.dismiss(flushed),
            Step::Enable => world.enable_export(self),
        }
        world.forget();
        world.set_hashes();
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
                    let off = (0..rules.paths).all(|path| client.map.is_gone(path));
                    client.ops.is_empty() && (usize::from(client.begun) == rules.jobs.len() || off)
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
                            && (client.map.mode() == Mode::Flow || rules.disables > 0)
                            && (client.map.epoch(0) > 1 || rules.losses == 0)
                    };
                    world.clients.iter().any(|client| done(client))
                },
            ),
        ]
    }
}
