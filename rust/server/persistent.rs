// SPDX-License-Identifier: GPL-2.0

//! The persistent reservations of an export: performs what [`Persistent`] decides.
//!
//! Each session has a [`Membership`] with the rights of its map, at which each command looks. A
//! session that loses a right is ended: the change is answered only when nothing of it can reach
//! the device any more.

#![forbid(unsafe_code)]

use core::ops::Deref;
use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
};

use crate::proto::{
    self,
    wire::REGISTRANTS_MAX,
    Name,
    Operation,
    ReservationType,
    Status,
    Uuid, //
};
use crate::server::{
    loss::Loss,
    members::HostKey,
    quota::AccountKey,
    session::Session, //
};
use crate::session::{
    persistent::{
        Answer,
        Nexus,
        Persistent,
        Request,
        Rights,
        Type, //
    },
    quota::Part,
};

/// How often a change looks whether the sessions that it has ended are over.
const LOOK: Delta = Delta::from_millis(5);

/// The bits of [`Member::rights`].
const READS: u32 = 1 << 0;
const WRITES: u32 = 1 << 1;

/// A map: its host, and its own UUID.
type MapKey = (HostKey, Uuid);

/// A session, and what its map may do.
struct Member {
    nexus: Nexus,
    session: Arc<Session>,
    rights: Atomic<u32>,
    /// Not 0 if the session was ended because its map lost a right, or its host is not admitted any
    /// more.
    fenced: Atomic<u32>,
}

/// A map that has registered a key, or has a session.
struct KnownMap {
    nexus: Nexus,
    key: MapKey,
    /// That of its host, when it logged in last.
    account: AccountKey,
}

struct Inner {
    machine: KBox<Persistent>,
    maps: KVec<KnownMap>,
    /// The number of the last map that got one.
    last: Nexus,
    members: KVec<Arc<Member>>,
}

impl Inner {
    /// Returns the number of a map whose host has this account.
    fn nexus(&mut self, key: MapKey, account: AccountKey) -> Result<Nexus> {
        if let Some(map) = self.maps.iter_mut().find(|map| map.key == key) {
            map.account = account;
            return Ok(map.nexus);
        }
        let (machine, members) = (&self.machine, &self.members);
        self.maps.retain(|map| {
            // With another number, a change that was made would be made again.
            machine.is_registered(map.nexus)
                || machine.remembers(map.nexus)
                || members.iter().any(|one| one.nexus == map.nexus)
        });
        let nexus = self.last.wrapping_add(1);
        let map = KnownMap {
            nexus,
            key,
            account,
        };
        self.maps.push(map, GFP_KERNEL)?;
        self.last = nexus;
        Ok(nexus)
    }

    /// Lets the machine carry out a request of a map.
    fn request(&mut self, nexus: Nexus, token: u32, request: Request) -> Answer {
        let account_of = |nexus| {
            let map = self.maps.iter().find(|map| map.nexus == nexus);
            map.map(|map| map.account)
        };
        let own = account_of(nexus);
        let part = own.map_or(Part::Quarter, |account| account.part());
        let of_account = |other| account_of(other) == own;
        let account = (part, of_account);
        self.machine.request(nexus, token, request, account)
    }

    /// Gives each session the rights that its map has now, and ends those that have lost one; but
    /// not those of `own`, which knows.
    fn update(&self, own: Option<Nexus>) {
        for member in &self.members {
            let now = bits(self.machine.rights(member.nexus));
            let before = member.rights.load(Relaxed);
            member.rights.store(now, Relaxed);
            if before & !now != 0 && Some(member.nexus) != own {
                member.fenced.store(1, Relaxed);
                member.session.end(Loss::Preempted);
            }
        }
    }

    /// Returns true if a session of another map than `own` still has to end because it has lost a
    /// right.
    fn has_fenced(&self, own: Nexus) -> bool {
        let mut others = self.members.iter().filter(|one| one.nexus != own);
        others.any(|one| one.fenced.load(Relaxed) != 0)
    }
}

/// The persistent reservations of an export. They live as long as the export has a directory.
#[pin_data]
pub(super) struct Reservations {
    #[pin]
    inner: Mutex<Inner>,
}

impl Reservations {
    /// Makes those of an export that nobody has registered with. May sleep.
    pub(super) fn new() -> Result<Arc<Self>> {
        let inner = Inner {
            machine: KBox::new(Persistent::new(), GFP_KERNEL)?,
            maps: KVec::new(),
            last: 0,
            members: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self { inner <- new_mutex!(inner, "Reservations::inner") }),
            GFP_KERNEL,
        )
    }

    /// Forgets everything: what is exported is another device. There are no sessions. May sleep.
    pub(super) fn forget(&self) {
        *self.inner.lock().machine = Persistent::new();
    }

    /// Adds a session of a map, whose host has this account. May sleep.
    pub(super) fn join(
        self: &Arc<Self>,
        session: &Arc<Session>,
        map: MapKey,
        account: AccountKey,
    ) -> Result<Joined> {
        let mut inner = self.inner.lock();
        inner.members.reserve(1, GFP_KERNEL)?;
        let nexus = inner.nexus(map, account)?;
        let member = Arc::new(
            Member {
                nexus,
                session: session.clone(),
                rights: Atomic::new(bits(inner.machine.rights(nexus))),
                fenced: Atomic::new(0),
            },
            GFP_KERNEL,
        )?;
        let membership = Membership {
            reservations: self.clone(),
            member: member.clone(),
        };
        let membership = Arc::new(membership, GFP_KERNEL)?;
        // Cannot fail: the capacity was reserved above.
        let _ = inner.members.push_within_capacity(member);
        Ok(Joined(membership))
    }

    /// Removes the registrations of all hosts for which `admits` is false, and what they have
    /// reserved. Their sessions were told to end before: as long as something of these can reach
    /// the device, no change and no report is answered. A session of such a host that still logs in
    /// has no commands, and is judged when it is let in. May sleep.
    pub(super) fn withdraw(&self, admits: impl Fn(&HostKey) -> bool) {
        let mut inner = self.inner.lock();
        let Inner {
            machine,
            maps,
            members,
            ..
        } = &mut *inner;
        for KnownMap { nexus, key, .. } in maps.iter() {
            if !machine.is_registered(*nexus) || admits(&key.0) {
                continue;
            }
            machine.withdraw(|one| one == *nexus);
            for member in members.iter().filter(|one| one.nexus == *nexus) {
                if member.session.is_lost() {
                    member.fenced.store(1, Relaxed);
                }
            }
        }
        inner.update(None);
    }

    /// Removes all registrations and what is reserved. Without `force`, fails with `EBUSY` while
    /// something is reserved: the maps that are fenced could write again. May sleep.
    pub(super) fn clear(&self, force: bool) -> Result {
        let mut inner = self.inner.lock();
        if !force && inner.machine.reservation().is_some() {
            return Err(EBUSY);
        }
        inner.machine.withdraw(|_| true);
        inner.update(None);
        Ok(())
    }

    /// Visits the registrants: the name of the host, the key, and the type of the reservation if
    /// this one holds it. May sleep.
    pub(super) fn for_each_registrant(&self, mut visit: impl FnMut(&Name, u64, Option<Type>)) {
        let inner = self.inner.lock();
        for (nexus, key, held) in inner.machine.registrants() {
            let map = inner.maps.iter().find(|map| map.nexus == nexus);
            if let Some(map) = map {
                visit(&map.key.0.name, key, held);
            }
        }
    }

    /// Removes a session, of which nothing can reach the device any more. May sleep.
    fn leave(&self, member: &Arc<Member>) {
        let mut inner = self.inner.lock();
        inner.members.retain(|one| !Arc::ptr_eq(one, member));
    }
}

/// Keeps a session among those that may reach the device. Has to be dropped after the session's
/// connections were closed. The drop may sleep.
pub(super) struct Joined(Arc<Membership>);

impl Joined {
    /// Returns what the session's connections share.
    pub(super) fn membership(&self) -> &Arc<Membership> {
        &self.0
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.reservations.leave(&self.0.member);
    }
}

/// The part of a session in the persistent reservations of its export.
pub(super) struct Membership {
    reservations: Arc<Reservations>,
    member: Arc<Member>,
}

impl Membership {
    /// Returns true if the map may do this at present. Any context.
    #[inline]
    pub(super) fn allows(&self, operation: &Operation) -> bool {
        let rights = self.member.rights.load(Relaxed);
        // Most often nothing is reserved.
        rights == READS | WRITES
            || match operation {
                Operation::Reserve { .. } | Operation::Report => true,
                Operation::Read { .. } => rights & READS != 0,
                _ => rights & WRITES != 0,
            }
    }

    /// Carries out a change, and waits until nothing can reach the device any more of those who may
    /// not do it any more. Returns `None` if this session is about to end before that: there must
    /// be no answer, and the client sends the change again. Sleeps, as long as the device takes.
    pub(super) fn change(&self, reserve: &proto::Reserve, token: u32) -> Option<Status> {
        let own = self.member.nexus;
        let answer = {
            let mut inner = self.inner().lock();
            // Its host may have been withdrawn: no command that is still under way may register the
            // map again. Pairs with `Reservations::withdraw()`, before which the session is lost.
            if self.member.session.is_lost() {
                return None;
            }
            let answer = inner.request(own, token, request(reserve));
            inner.update(Some(own));
            answer
        };
        // Also if this change did nothing, as it is sent again: the one that did may still wait.
        drop(self.await_fenced()?);
        Some(match answer {
            Answer::Done => Status::Ok,
            Answer::Conflict => Status::Reservation,
            Answer::Invalid => Status::Invalid,
            Answer::Full => Status::NoSpace,
        })
    }

    /// Waits until nothing of other maps can reach the device any more that they may not do any
    /// more, and returns the state as it is then, locked. Returns `None` if this session is about
    /// to end before that. Sleeps.
    fn await_fenced(&self) -> Option<impl Deref<Target = Inner> + '_> {
        loop {
            let inner = self.inner().lock();
            if !inner.has_fenced(self.member.nexus) {
                return Some(inner);
            }
            drop(inner);
            if self.member.session.is_lost() {
                return None;
            }
            fsleep(LOOK);
        }
    }

    /// Returns what is reserved, and who has registered. Others have lost what the reservation
    /// takes from them by then: nothing of theirs can reach the device any more. Returns `None` if
    /// this session is about to end before that is so. Sleeps, as long as the device takes.
    pub(super) fn report(&self) -> Option<proto::Report> {
        let inner = self.await_fenced()?;
        let mut report = proto::Report {
            generation: inner.machine.generation(),
            reservation: None,
            keys: [0; REGISTRANTS_MAX],
            count: 0,
        };
        report.reservation = inner.machine.reservation().and_then(|(key, kind)| {
            let kind = ReservationType::try_from(kind as u8).ok()?;
            Some((key, kind))
        });
        for (place, key) in report.keys.iter_mut().zip(inner.machine.keys()) {
            *place = key;
            report.count = report.count.saturating_add(1);
        }
        Some(report)
    }

    fn inner(&self) -> &Mutex<Inner> {
        &self.reservations.inner
    }
}

fn bits(rights: Rights) -> u32 {
    let bit = |has, bit| match has {
        true => bit,
        false => 0,
    };
    bit(rights.reads, READS) | bit(rights.writes, WRITES)
}

/// Returns a change as `session` has it.
fn request(reserve: &proto::Reserve) -> Request {
    match *reserve {
        proto::Reserve::Register {
            old,
            new,
            ignore_old,
        } => Request::Register {
            old,
            new,
            ignore_old,
        },
        proto::Reserve::Reserve { key, kind } => Request::Reserve {
            key,
            kind: to_type(kind),
        },
        proto::Reserve::Release { key, kind } => Request::Release {
            key,
            kind: to_type(kind),
        },
        proto::Reserve::Preempt { key, victim, kind } => Request::Preempt {
            key,
            victim,
            kind: to_type(kind),
        },
        proto::Reserve::Clear { key } => Request::Clear { key },
    }
}

fn to_type(kind: ReservationType) -> Type {
    match kind {
        ReservationType::WriteExclusive => Type::WriteExclusive,
        ReservationType::ExclusiveAccess => Type::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrants => Type::WriteExclusiveRegistrants,
        ReservationType::ExclusiveAccessRegistrants => Type::ExclusiveAccessRegistrants,
        ReservationType::WriteExclusiveAll => Type::WriteExclusiveAll,
        ReservationType::ExclusiveAccessAll => Type::ExclusiveAccessAll,
    }
}
