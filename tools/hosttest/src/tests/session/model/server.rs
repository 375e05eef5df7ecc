// SPDX-License-Identifier: GPL-2.0

//! The server: what the code around its machine does, its administrator, and its disk.
//!
//! Long: each step reads and changes the state of one server, which has no part of its own to give.

use super::client::{Client, Op};
use super::network::{End, Entry, Message, Number};
use super::shared::Shared;
use super::{Elsewhere, Flaw, Job, Kind, Rules, Step, World};
use crate::session::flush::LastClose;
use crate::session::reservation::{
    Action, Admission, Decision, Granted, Login, Reason, Registration, Registrations, Reservation,
    SessionId, Terms,
};
use crate::session::{Epoch, PathId, ReservationKey};

/// The server's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Connection {
    pub(super) end: End,
    pub(super) number: Number,
    /// It is one of another server.
    pub(super) elsewhere: bool,
    /// The extent that the client was told of.
    pub(super) told: u8,
    /// The client has said that its map leaves.
    pub(super) leaves: bool,
    /// It takes no more commands and sends nothing.
    pub(super) killed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Members(Vec<Registration<u8>>);

impl Registrations for Members {
    type Host = u8;

    fn all(&self) -> &[Registration<u8>] {
        &self.0
    }

    fn all_mut(&mut self) -> &mut [Registration<u8>] {
        &mut self.0
    }

    fn push(&mut self, registration: Registration<u8>) {
        self.0.push(registration);
    }

    fn remove(&mut self, at: usize) {
        self.0.remove(at);
    }
}

/// What waits for a session to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    Login {
        end: End,
        resume: Option<ReservationKey>,
        since: u64,
    },
    Fence(End, Number, PathId, Epoch),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) instance: u8,
    pub(super) machine: Shared<Reservation<Members>>,
    /// What [`Reservation::open`] returned.
    opening: u64,
    /// The number of the export's extent.
    pub(super) extent: u8,
    pub(super) connections: Vec<Connection>,
    pub(super) running: Vec<(Number, Op)>,
    pub(super) pending: Vec<Pending>,
    /// Registrations whose lease runs.
    pub(super) leases: Vec<u64>,
    /// The last key that was given out.
    keys: u16,
    /// Logins so far, where epochs are not looked at.
    logins: u16,
    /// Bit by bit, the hosts that may only read; and those of them that have been told so: the
    /// administrator's write has returned.
    demoted: u8,
    pub(super) settled: u8,
    /// The last instance that was given out.
    instances: u8,
    /// The export is disabled, or about to be.
    pub(super) disabled: bool,
    /// Its sessions are told to end, as its device was flushed or not.
    pub(super) dismissed: Option<bool>,
    last_close: LastClose<(), u8>,
}

impl Server {
    pub(super) fn new(rules: &Rules, instance: u8, keys: u16) -> Self {
        let mut machine = Reservation::new(Members::default());
        let opening = machine.open(Self::terms(rules), true, 0);
        Self {
            instance,
            machine: Shared::new(machine),
            opening,
            extent: 1,
            connections: Vec::new(),
            running: Vec::new(),
            pending: Vec::new(),
            leases: Vec::new(),
            keys,
            logins: 0,
            demoted: 0,
            settled: 0,
            instances: instance,
            disabled: false,
            dismissed: None,
            last_close: LastClose::new(),
        }
    }

    /// How the end of the export goes on: its device is flushed, or not, when no command is under
    /// way, and it is enabled again when nothing is left of its sessions.
    pub(super) fn closing(&self, rules: &Rules) -> &'static [Step] {
        let drained = self.running.is_empty() || rules.flaw == Some(Flaw::FlushBeforeDrain);
        match self.dismissed {
            None if self.disabled && drained => &[Step::Dismiss(true), Step::Dismiss(false)],
            Some(_) if self.connections.is_empty() => &[Step::Enable],
            _ => &[],
        }
    }

    fn terms(rules: &Rules) -> Terms {
        Terms {
            max_clients: rules.max_clients,
            lease_max_ms: 1,
        }
    }

    /// The name of the connection at whose other end is `end`. There is one at most while the
    /// server lives and the export is enabled: an epoch of a path is let in once. (A login that
    /// comes twice would be let in again after its registration is gone. The worlds in which
    /// messages come twice have nothing that removes a registration.)
    fn number(&self, end: &End) -> Number {
        let epoch = u8::try_from(end.epoch).unwrap();
        let parts = [
            (self.instances, 3),
            (u8::try_from(self.opening).unwrap(), 3),
            (end.client, 2),
            (end.life, 3),
            (end.path, 2),
            (epoch, 4),
        ];
        parts.iter().fold(0, |number, (part, bits)| {
            assert!(*part < 1 << bits);
            (number << bits) | Number::from(*part)
        })
    }

    fn add(&mut self, connection: Connection) {
        let known = |other: &Connection| other.number == connection.number;
        assert!(!self.connections.iter().any(known));
        self.connections.push(connection);
        self.connections.sort_unstable();
    }

    /// Whether the machine is still about to let go of a connection, or waits for it.
    pub(super) fn waits_for(&self, end: &End) -> bool {
        self.pending.iter().any(|pending| match pending {
            Pending::Login { end: other, .. } => other == end,
            Pending::Fence(other, ..) => other == end,
        })
    }
}

/// Of an epoch that is let in whatever there is.
const ANY: Epoch = 1 << 32;

impl World {
    /// A message comes to the server.
    pub(super) fn serve(&mut self, rules: &Rules, message: Message) {
        match message {
            Message::Login(end, resume) => {
                let since = self.server.machine.admitted();
                self.login(rules, end, resume, since);
            }
            Message::Fence(end, number, path, epoch) => self.fence(rules, end, number, path, epoch),
            Message::Ping(_, number) => self.decide(None, |machine, mut act| {
                machine.confirm(number.into(), &mut act)
            }),
            Message::Command(_, number, op) => {
                let alive = |c: &Connection| c.number == number && !c.killed;
                // An export that is about to be disabled begins no more.
                if self.server.connections.iter().any(alive) && !self.server.disabled {
                    self.server.running.push((number, op));
                    self.server.running.sort_unstable();
                }
            }
            _ => {}
        }
    }

    /// How the server tells hosts apart.
    fn host(rules: &Rules, client: u8) -> u8 {
        match rules.flaw {
            // By what they say alone, and they all say the same.
            Some(Flaw::OneHost) => 0,
            _ => client,
        }
    }

    /// Has the machine decide something, and performs the actions.
    fn decide<R>(
        &mut self,
        on: Option<u8>,
        decide: impl FnOnce(&mut Reservation<Members>, &mut dyn FnMut(Action)) -> R,
    ) -> R {
        let mut actions = Vec::new();
        let decision = decide(&mut self.server.machine, &mut |action| actions.push(action));
        for action in actions {
            match action {
                Action::End(session) => {
                    let connections = &mut self.server.connections;
                    let of = |c: &&mut Connection| SessionId::from(c.number) == session;
                    if let Some(connection) = connections.iter_mut().find(of) {
                        connection.killed = true;
                        if on.is_some_and(|client| client != connection.end.client) {
                            self.wrong = Some("a host ended the session of another");
                        }
                    }
                }
                Action::Arm(number, _) => {
                    self.server.leases.retain(|other| *other != number);
                    self.server.leases.push(number);
                    self.server.leases.sort_unstable();
                }
                Action::Disarm(number) => self.server.leases.retain(|other| *other != number),
                // All that waits is judged again whenever something is over.
                Action::Retry(_) => {}
                Action::CountTakeover | Action::CountEviction | Action::CountKeepAliveTimeout => {}
            }
        }
        let mut all = self.server.machine.registrations().iter();
        let is_registered = |number: &u64| all.any(|one| one.number() == *number);
        // Both are in order.
        if !self.server.leases.iter().all(is_registered) {
            self.wrong = Some("a lease outlived its registration");
        }
        decision
    }

    fn login(&mut self, rules: &Rules, end: End, resume: Option<ReservationKey>, since: u64) {
        match Self::leads_elsewhere(rules, end.path) {
            // The map is at the first server that lets it in: that is to be the other one.
            Some(_) if self.clients[usize::from(end.client)].map.known().is_none() => {
                return self.post(Message::Refused(end, false));
            }
            Some(Elsewhere::Denies) => return self.post(Message::Refused(end, true)),
            Some(Elsewhere::Admits) => return self.admit_elsewhere(end, resume),
            None => {}
        }
        let host = Self::host(rules, end.client);
        if rules.grace && resume.is_none() && self.lease_of_another(end.client) {
            return self.post(Message::Refused(end, false));
        }
        // A map that may only read does not come in with what it has to write.
        if self.server.demoted & (1 << end.client) != 0 {
            return self.post(Message::Refused(end, false));
        }
        if rules.flaw == Some(Flaw::NoKey) {
            // It believes whatever is resumed, and says that it remembers.
            self.server.machine.restore(resume);
        }
        let life = u64::from(end.life) + 1;
        let number = self.server.number(&end);
        self.server.logins += u16::from(rules.flaw == Some(Flaw::NoEpochs));
        let login = Login {
            session: number.into(),
            host,
            map: end.client.into(),
            // With one path it is the host that crashes, with more it is the map that is enabled
            // anew.
            boot: match rules.paths {
                1 => 16 * u64::from(end.client) + life,
                _ => u64::from(end.client),
            },
            incarnation: life,
            resume,
            path: end.path,
            epoch: match rules.flaw {
                Some(Flaw::NoEpochs) => ANY + u64::from(self.server.logins),
                _ => end.epoch,
            },
            writes: true,
            no_path_timeout_ms: None,
            heartbeat_ms: 0,
            heard: 0,
        };
        let own = |one: &Registration<u8>| (*one.host(), one.incarnation()) == (host, life);
        let again = self.server.machine.registrations().iter().any(own);
        let pretends = match rules.flaw {
            Some(Flaw::Remembers) => true,
            Some(Flaw::RemembersSecond) => again,
            _ => false,
        };
        let order = (self.server.opening, since);
        let fresh = ReservationKey::from(self.server.keys + 1);
        let decision = self.decide(Some(end.client), |machine, mut act| {
            machine.login(&login, order, true, fresh, &mut act)
        });
        match decision {
            Decision::Refuse(Reason::Evicted) => self.post(Message::Refused(end, true)),
            Decision::Refuse(_) => self.post(Message::Refused(end, false)),
            Decision::After(session) if rules.flaw == Some(Flaw::NoEpochs) => {
                self.decide(None, |machine, mut act| {
                    machine.left(session, false, &mut act)
                });
                self.login(rules, end, resume, since);
            }
            Decision::After(_) => {
                self.server
                    .pending
                    .push(Pending::Login { end, resume, since });
            }
            Decision::Grant(granted) => {
                let Granted {
                    key, remembered, ..
                } = granted;
                let entry = Entry {
                    number,
                    server: 0,
                    extent: self.server.extent,
                    instance: self.server.instance,
                    reservation_key: key,
                    remembered: remembered || pretends,
                };
                self.server.keys += u16::from(key == fresh);
                self.server.add(Connection {
                    end,
                    number: entry.number,
                    elsewhere: false,
                    told: entry.extent,
                    leaves: false,
                    killed: false,
                });
                self.post(Message::Welcome(end, entry));
            }
        }
    }

    /// Whether the server knows of no map, and another client may have had the export from one of
    /// the servers before, and have its lease yet.
    fn lease_of_another(&self, client: u8) -> bool {
        // It was let in, and has not heard of it.
        let is_in = |at: usize| {
            let to = |message: &Message| match message {
                Message::Welcome(end, _) => usize::from(end.client) == at,
                _ => false,
            };
            self.network.iter().any(to)
        };
        let had = |(at, one): (usize, &Shared<Client>)| {
            let has = one.map.known().is_some() && one.map.end().is_none() && !one.lease_over;
            at != usize::from(client) && (has || is_in(at))
        };
        let knows = self.server.machine.holder().is_some();
        self.server.instance > 0 && !knows && self.clients.iter().enumerate().any(had)
    }

    fn fence(&mut self, rules: &Rules, end: End, number: Number, path: PathId, epoch: Epoch) {
        let alive = |c: &Connection| c.number == number && !c.killed;
        if !self.server.connections.iter().any(alive) {
            return;
        }
        if Self::leads_elsewhere(rules, end.path).is_some() {
            // It has no such path, and says so.
            return self.post(Message::Fenced(end, path, epoch));
        }
        let done = self.decide(None, |machine, mut act| {
            machine.fence(number.into(), path, epoch, &mut act)
        });
        match done || rules.flaw == Some(Flaw::FenceInFlight) {
            true => self.post(Message::Fenced(end, path, epoch)),
            false => {
                let pending = Pending::Fence(end, number, path, epoch);
                self.server.pending.push(pending);
            }
        }
    }

    /// Nothing of a connection is there any more; what waited for something may go on.
    pub(super) fn gone(&mut self, rules: &Rules, at: usize) {
        let Connection {
            number,
            elsewhere,
            leaves,
            ..
        } = self.server.connections.remove(at);
        if elsewhere {
            return;
        }
        self.decide(None, |machine, mut act| {
            machine.left(number.into(), leaves, &mut act)
        });
        for pending in std::mem::take(&mut self.server.pending) {
            match pending {
                Pending::Login { end, resume, since } => self.login(rules, end, resume, since),
                Pending::Fence(end, number, path, epoch) => {
                    self.fence(rules, end, number, path, epoch);
                }
            }
        }
        self.enforce(rules);
    }

    /// The administrator writes that a host may only read.
    pub(super) fn demote(&mut self, rules: &Rules, client: u8) {
        self.server.demoted |= 1 << client;
        self.enforce(rules);
    }

    /// Ends what does not fit to what the administrator said. When nothing of that is left, the
    /// write of the administrator returns.
    fn enforce(&mut self, rules: &Rules) {
        let demoted = self.server.demoted;
        if demoted == self.server.settled {
            return;
        }
        if rules.flaw == Some(Flaw::LaterLogins) {
            self.server.settled = demoted;
            return;
        }
        let fresh = ReservationKey::from(self.server.keys + 1);
        let left = self.decide(None, |machine, mut act| {
            let rule = |host: &u8| match demoted & (1 << host) {
                0 => Admission::Write,
                _ => Admission::Read,
            };
            machine.enforce(rule, fresh, &mut act)
        });
        if left.is_none() {
            self.server.settled = demoted;
        }
    }

    /// Whether the lease of a registration may be over. A server's lease begins when it notices
    /// that the map has no path any more, and the client's, which is as long, when it sent the last
    /// message that was answered: that is earlier. Of the time only this is taken for granted.
    pub(super) fn may_lapse(&self, number: u64) -> bool {
        let mut all = self.server.machine.registrations().iter();
        let Some(one) = all.find(|one| one.number() == number) else {
            return false;
        };
        let client = &self.clients[usize::from(*one.host())];
        client.lease_over || one.incarnation() != u64::from(client.life) + 1
    }

    pub(super) fn lapse(&mut self, number: u64) {
        self.server.leases.retain(|other| *other != number);
        self.server.machine.lapse(number);
        let mut all = self.server.machine.registrations().iter();
        let one = all.find(|one| one.number() == number).expect("it is away");
        let at = usize::from(*one.host());
        if one.incarnation() == u64::from(self.clients[at].life) + 1 {
            // So much time has gone by since each of its logins.
            self.clients[at].outdated = true;
            self.clients[at].outdated_logins = u8::MAX;
        }
    }

    pub(super) fn execute(&mut self, at: usize, rules: &Rules) {
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
        if connection.elsewhere {
            self.wrong = Some("I/O reached another server");
        }
        let client = &self.clients[usize::from(writer)];
        let overtaken = client.life == life && client.overtaken && rules.max_clients == 1;
        match op.job {
            Job::Write => {
                if overtaken {
                    self.wrong = Some("a client wrote that had lost the export to another");
                }
                if self.server.settled & (1 << writer) != 0 {
                    self.wrong = Some("a client wrote that may only read");
                }
                let newer = self.complete > op.number && rules.max_clients == 1;
                // Of writes that are under way together either may be the last, but none twice.
                if newer && (!rules.overlap || self.seen & (1 << op.number) != 0) {
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
            Job::Flush | Job::OtherFlush => self.stable = self.disk,
            _ => {}
        }
        op.replay = false;
        if !connection.killed || rules.flaw == Some(Flaw::FlushBeforeDrain) {
            self.post(Message::Response(connection.end, op, self.disk));
        }
    }

    /// Another server lets a client in. It knows of no reservation key, and believes what is
    /// resumed.
    fn admit_elsewhere(&mut self, end: End, resume: Option<ReservationKey>) {
        let entry = Entry {
            number: self.server.number(&end),
            server: 1,
            instance: 99,
            extent: 1,
            reservation_key: resume.unwrap_or(99),
            remembered: true,
        };
        self.server.add(Connection {
            end,
            number: entry.number,
            elsewhere: true,
            told: u8::MAX,
            leaves: false,
            killed: false,
        });
        self.post(Message::Welcome(end, entry));
    }

    /// A client says on a path that it leaves. Returns true if the server has heard that.
    pub(super) fn log_out(&mut self, client: usize, path: PathId, epoch: Epoch) -> Option<u128> {
        let life = self.clients[client].life;
        let of = |c: &&Connection| {
            usize::from(c.end.client) == client
                && (c.end.life, c.end.path, c.end.epoch) == (life, path, epoch)
                && !c.killed
        };
        let connection = self.server.connections.iter().find(of)?;
        let (number, server) = (connection.number, connection.elsewhere);
        for connection in &mut self.server.connections {
            if connection.number == number {
                connection.killed = true;
                connection.leaves = true;
            }
        }
        Some(server.into())
    }

    /// Whether a client has the export, as far as the server goes.
    pub(super) fn holds(&self, client: usize) -> bool {
        let life = u64::from(self.clients[client].life) + 1;
        let mut all = self.server.machine.registrations().iter();
        all.any(|one| usize::from(*one.host()) == client && one.incarnation() == life)
    }

    /// Tells of the extent on a connection.
    pub(super) fn announce(&mut self, at: usize) {
        let extent = self.server.extent;
        let connection = &mut self.server.connections[at];
        connection.told = extent;
        let end = connection.end;
        self.post(Message::Extent(end, extent));
    }

    pub(super) fn crash_server(&mut self, rules: &Rules) {
        let (demoted, settled) = (self.server.demoted, self.server.settled);
        self.server = Shared::new(Server::new(
            rules,
            self.server.instances + 1,
            self.server.keys,
        ));
        (self.server.demoted, self.server.settled) = (demoted, settled);
        match rules.kind {
            Kind::Block => {}
            Kind::CachedBlock => self.disk = self.stable,
            Kind::Ram => (self.disk, self.stable) = (0, 0),
        }
    }

    /// The export is being disabled: nobody logs in any more, and no command begins.
    pub(super) fn disable_export(&mut self) {
        self.server.disabled = true;
        self.server.machine.close();
    }

    /// The device of an export that is being disabled was flushed or not, and all sessions end.
    pub(super) fn dismiss(&mut self, flushed: bool) {
        let server: &mut Server = &mut self.server;
        server.dismissed = Some(flushed);
        let (instance, number) = (server.instance, server.extent);
        let mut told = Vec::new();
        for connection in &mut server.connections {
            if !connection.elsewhere && !connection.killed {
                connection.killed = true;
                told.push(connection.end);
            }
        }
        if flushed {
            self.stable = self.disk;
            for end in told {
                self.post(Message::Flushed(end, instance, number));
            }
        }
    }

    /// The device of an export that is disabled loses its cache; then it is opened again. Nobody
    /// keeps a place, but whose the export was last is remembered.
    pub(super) fn enable_export(&mut self, rules: &Rules) {
        self.disk = self.stable;
        self.decide(None, |machine, mut act| machine.closed(&mut act));
        let server: &mut Server = &mut self.server;
        let flushed = server.dismissed.take() == Some(true);
        let recorded = flushed || rules.flaw == Some(Flaw::NoFlushAtClose);
        server.last_close.close((), server.instance, recorded);
        let fresh = server.instances + 1;
        server.instance = server.last_close.open(|()| true, fresh);
        server.last_close.begin();
        server.instances = server.instances.max(server.instance);
        server.disabled = false;
        server.extent += 1;
        let terms = Server::terms(rules);
        server.opening = server.machine.open(terms, true, (server.keys + 1).into());
        server.keys += 1;
    }
}
