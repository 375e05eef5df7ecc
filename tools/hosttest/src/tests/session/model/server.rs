// SPDX-License-Identifier: GPL-2.0

//! The server: what the code around its machine does, and its disk.

use super::client::Op;
use super::network::{End, Entry, Message};
use super::{Flaw, Job, Kind, Rules, World};
use crate::session::reservation::{Arrival, Claim, Custody, Fence, Member, Verdict};
use crate::session::{Epoch, PathId, Tenure};

/// The server's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Connection {
    pub(super) end: End,
    pub(super) number: u16,
    pub(super) tenure: Tenure,
    /// It takes no more commands and sends nothing.
    pub(super) killed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) instance: u8,
    pub(super) custody: Custody,
    pub(super) members: Vec<(u8, Member, Tenure)>,
    pub(super) connections: Vec<Connection>,
    pub(super) running: Vec<(u16, Op)>,
    /// Logins and fences that wait for something to go.
    pub(super) pending: Vec<Message>,
    pub(super) fresh: u16,
}

impl World {
    /// A message comes to the server.
    pub(super) fn serve(&mut self, rules: &Rules, message: Message) {
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

    pub(super) fn fresh(&mut self) -> u16 {
        self.server.fresh += 1;
        self.server.fresh
    }

    pub(super) fn kill(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in &mut self.server.connections {
            connection.killed |= which(connection);
        }
    }

    pub(super) fn login(&mut self, rules: &Rules, end: End, resume: Option<Tenure>) {
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

    pub(super) fn fence(
        &mut self,
        rules: &Rules,
        end: End,
        number: u16,
        path: PathId,
        epoch: Epoch,
    ) {
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
    pub(super) fn gone(&mut self, rules: &Rules, at: usize) {
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

    pub(super) fn crash_server(&mut self, rules: &Rules) {
        let old = std::mem::take(&mut self.server);
        self.server.instance = old.instance + 1;
        self.server.fresh = old.fresh;
        match rules.kind {
            Kind::Block => {}
            Kind::CachedBlock => self.disk = self.stable,
            Kind::Ram => (self.disk, self.stable) = (0, 0),
        }
    }
}
