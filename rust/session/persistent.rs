// SPDX-License-Identifier: GPL-2.0

//! Persistent reservations: how the users of the hosts of a cluster fence each other from an
//! export, as with SCSI (SPC-4) and NVMe. The kernel's `linux/pr.h` has the names.
//!
//! They are of the users' making, and have nothing to do with the reservations of
//! [`reservation`](super::reservation), by which the server decides which map may log in at all.
//!
//! A *nexus* is one map: all of its paths and sessions. A *registrant* is a nexus that has
//! registered a key. One registrant, or all of them, may *hold* the export, which takes the right
//! to read or write from others. Registrations belong to the map, not to its paths: they stay when
//! the map loses its paths, or is disabled. They do not outlive the server, nor that the
//! administrator admits the host of the map: see [`Persistent::withdraw`].
//!
//! [`Persistent`] decides. The code around it looks up [`Persistent::rights`] of each session
//! whenever something has changed, and answers a request only when the commands have ended that
//! began with rights that their session has lost.

#![forbid(unsafe_code)]

use super::quota::Part;

/// Registrants of one export, at most.
pub const REGISTRANTS_MAX: usize = 32;

/// The number that the code around it has given a map, wherever its paths lead. No other map gets
/// the same one.
pub type Nexus = u64;

/// What a reservation takes from whom. The numbers are those of `enum pr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Type {
    /// Only the holder writes.
    WriteExclusive = 1,
    /// Only the holder reads and writes.
    ExclusiveAccess = 2,
    /// Only registrants write. One holds it.
    WriteExclusiveRegistrants = 3,
    /// Only registrants read and write. One holds it.
    ExclusiveAccessRegistrants = 4,
    /// Only registrants write. All hold it.
    WriteExclusiveAll = 5,
    /// Only registrants read and write. All hold it.
    ExclusiveAccessAll = 6,
}

impl Type {
    /// All types, in the order of the numbers.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];

    /// Returns its name, as `blkpr` has it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::WriteExclusive => "write-exclusive",
            Self::ExclusiveAccess => "exclusive-access",
            Self::WriteExclusiveRegistrants => "write-exclusive-reg-only",
            Self::ExclusiveAccessRegistrants => "exclusive-access-reg-only",
            Self::WriteExclusiveAll => "write-exclusive-all-regs",
            Self::ExclusiveAccessAll => "exclusive-access-all-regs",
        }
    }

    /// Returns true if others may still read.
    const fn lets_read(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll
        )
    }

    /// Returns true if all registrants may do what the holder may.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns true if all registrants hold it.
    const fn is_of_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }
}

/// What a nexus asks for. `key` is the one that it has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Registers the key `new` in place of `old`; 0 stands for no key.
    Register {
        /// The key that is registered now.
        old: u64,
        /// The key to register.
        new: u64,
        /// `old` does not matter.
        ignore_old: bool,
    },
    /// Reserves the export.
    Reserve {
        /// The key of the nexus.
        key: u64,
        /// What others may not.
        kind: Type,
    },
    /// Gives the reservation back.
    Release {
        /// The key of the nexus.
        key: u64,
        /// The type of the reservation.
        kind: Type,
    },
    /// Removes the registrations of another key, and takes over the reservation if that key holds
    /// it. With `victim` 0, all others are removed from a reservation that all hold.
    Preempt {
        /// The key of the nexus.
        key: u64,
        /// The key to remove.
        victim: u64,
        /// The type of the reservation that is taken over.
        kind: Type,
    },
    /// Removes the reservation and all registrations.
    Clear {
        /// The key of the nexus.
        key: u64,
    },
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It was done.
    Done,
    /// The nexus does not have that key, or another one holds the export; nothing has changed.
    Conflict,
    /// The request makes no sense as things are; nothing has changed.
    Invalid,
    /// There are [`REGISTRANTS_MAX`] registrants, or the account of the nexus has its part of them;
    /// nothing has changed.
    Full,
}

/// What a nexus may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// It may read.
    pub reads: bool,
    /// It may do all else: write, discard, erase and flush.
    pub writes: bool,
}

/// A nexus with its key, which is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Registrant {
    nexus: Nexus,
    key: u64,
}

/// Who holds the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    kind: Type,
    /// A registrant; `None` for all of them, of whom there is at least one.
    by: Option<Nexus>,
}

impl Held {
    fn new(kind: Type, nexus: Nexus) -> Self {
        let by = match kind.is_of_all() {
            true => None,
            false => Some(nexus),
        };
        Self { kind, by }
    }
}

/// The last request of a nexus that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DoneRequest {
    nexus: Nexus,
    token: u32,
    /// How many were done before it.
    number: u64,
}

/// The registrants of an export and its reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Persistent {
    registrants: [Option<Registrant>; REGISTRANTS_MAX],
    held: Option<Held>,
    generation: u32,
    /// Each registrant has its place here from its registration on.
    done: [Option<DoneRequest>; REGISTRANTS_MAX],
    /// How many requests were done.
    count: u64,
}

impl Persistent {
    /// Returns the state of an export that nobody has registered with.
    pub const fn new() -> Self {
        Self {
            registrants: [None; REGISTRANTS_MAX],
            held: None,
            generation: 0,
            done: [None; REGISTRANTS_MAX],
            count: 0,
        }
    }

    /// Returns how often the registrations have changed; it wraps.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the keys of all registrants.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.registrants.iter().flatten().map(|one| one.key)
    }

    /// Returns all registrants with their keys, and the type of the reservation if they hold it.
    pub fn registrants(&self) -> impl Iterator<Item = (Nexus, u64, Option<Type>)> + '_ {
        self.registrants.iter().flatten().map(|one| {
            let held = self.held.filter(|_| self.holds(one.nexus));
            (one.nexus, one.key, held.map(|held| held.kind))
        })
    }

    /// Returns the key of the holder, 0 if all registrants hold the export, and the type.
    pub fn reservation(&self) -> Option<(u64, Type)> {
        let held = self.held?;
        let key = held.by.and_then(|nexus| self.key_of(nexus));
        Some((key.unwrap_or(0), held.kind))
    }

    /// Returns true if a nexus has registered a key.
    pub fn is_registered(&self, nexus: Nexus) -> bool {
        self.key_of(nexus).is_some()
    }

    /// Returns true if a request of a nexus that was done is remembered: it may be sent again.
    pub fn remembers(&self, nexus: Nexus) -> bool {
        self.done.iter().flatten().any(|last| last.nexus == nexus)
    }

    /// Returns what a nexus may do.
    pub fn rights(&self, nexus: Nexus) -> Rights {
        let all = Rights {
            reads: true,
            writes: true,
        };
        let Some(held) = self.held else { return all };
        let registered = self.key_of(nexus).is_some();
        match self.holds(nexus) || registered && held.kind.admits_registrants() {
            true => all,
            false => Rights {
                reads: held.kind.lets_read(),
                writes: false,
            },
        }
    }

    /// Carries out a request. `account` is the part of the registrants that the account of this
    /// nexus may have, and says which nexuses are of that. `token` tells the request from earlier
    /// ones of this nexus, which has one
    /// request under way at a time: one that was done and is sent again, because its answer was
    /// lost, is not done twice. One that changed nothing is as good as new. What a nexus that is
    /// registered no more has done is forgotten when others that have registered since need all
    /// places.
    pub fn request(
        &mut self,
        nexus: Nexus,
        token: u32,
        request: Request,
        account: (Part, impl Fn(Nexus) -> bool),
    ) -> Answer {
        let mut last = self.done.iter().flatten();
        if last.any(|last| last.nexus == nexus && last.token == token) {
            return Answer::Done;
        }
        let was_registered = self.is_registered(nexus);
        let answer = self.carry_out(nexus, request, account);
        // Who is no registrant and did not become one has changed nothing.
        if answer == Answer::Done && (was_registered || self.is_registered(nexus)) {
            self.remember(nexus, token);
        }
        answer
    }

    /// Removes registrants that `goes` chooses, and the reservation if they held it: the
    /// administrator does not admit them any more, or clears the export.
    pub fn withdraw(&mut self, goes: impl Fn(Nexus) -> bool) {
        if self.remove(|one| goes(one.nexus)) != 0 {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    fn carry_out(
        &mut self,
        nexus: Nexus,
        request: Request,
        account: (Part, impl Fn(Nexus) -> bool),
    ) -> Answer {
        let key = match request {
            Request::Register {
                old,
                new,
                ignore_old,
            } => return self.register(nexus, (!ignore_old).then_some(old), new, account),
            Request::Reserve { key, .. }
            | Request::Release { key, .. }
            | Request::Preempt { key, .. }
            | Request::Clear { key } => key,
        };
        if self.key_of(nexus) != Some(key) {
            return Answer::Conflict;
        }
        match request {
            Request::Register { .. } => Answer::Invalid,
            Request::Reserve { kind, .. } => match self.held {
                None => {
                    self.held = Some(Held::new(kind, nexus));
                    Answer::Done
                }
                Some(held) if held.kind == kind && self.holds(nexus) => Answer::Done,
                Some(_) => Answer::Conflict,
            },
            Request::Release { kind, .. } => match self.held {
                Some(held) if self.holds(nexus) && held.kind != kind => Answer::Invalid,
                Some(_) if self.holds(nexus) => {
                    self.held = None;
                    Answer::Done
                }
                _ => Answer::Done,
            },
            Request::Preempt { victim, kind, .. } => self.preempt(nexus, victim, kind),
            Request::Clear { .. } => {
                self.remove(|_| true);
                self.generation = self.generation.wrapping_add(1);
                Answer::Done
            }
        }
    }

    fn register(
        &mut self,
        nexus: Nexus,
        old: Option<u64>,
        new: u64,
        account: (Part, impl Fn(Nexus) -> bool),
    ) -> Answer {
        let own = self.key_of(nexus);
        if old.is_some_and(|old| old != own.unwrap_or(0)) {
            return Answer::Conflict;
        }
        let registrant = Registrant { nexus, key: new };
        match (own, new) {
            // There is nothing to remove.
            (None, 0) => return Answer::Done,
            (Some(_), 0) => {
                self.remove(|one| one.nexus == nexus);
            }
            (Some(_), _) => {
                let mut all = self.registrants.iter_mut().flatten();
                if let Some(one) = all.find(|one| one.nexus == nexus) {
                    *one = registrant;
                }
            }
            (None, _) => {
                let (part, of_account) = account;
                let all = self.registrants.iter().flatten();
                let own = all.filter(|one| of_account(one.nexus)).count();
                // CAST: To types that are no smaller.
                if own as u64 >= part.of(REGISTRANTS_MAX as u64) {
                    return Answer::Full;
                }
                match self.registrants.iter_mut().find(|place| place.is_none()) {
                    Some(place) => *place = Some(registrant),
                    None => return Answer::Full,
                }
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Answer::Done
    }

    fn preempt(&mut self, nexus: Nexus, victim: u64, kind: Type) -> Answer {
        let takes_over = match self.held {
            None => false,
            Some(Held { by: None, .. }) => victim == 0,
            Some(Held { by: Some(by), .. }) => self.key_of(by) == Some(victim),
        };
        if takes_over {
            // Who preempts a key that is its own, too, stays registered.
            self.remove(|one| one.nexus != nexus && (victim == 0 || one.key == victim));
            self.held = Some(Held::new(kind, nexus));
        } else if victim == 0 {
            return Answer::Invalid;
        } else if self.remove(|one| one.key == victim) == 0 {
            return Answer::Conflict;
        }
        self.generation = self.generation.wrapping_add(1);
        Answer::Done
    }

    /// Removes registrants, and the reservation if they held it. Returns how many there were.
    fn remove(&mut self, goes: impl Fn(&Registrant) -> bool) -> usize {
        let mut count = 0;
        for place in &mut self.registrants {
            if place.as_ref().is_some_and(&goes) {
                *place = None;
                count += 1;
            }
        }
        let is_held = match self.held {
            None => false,
            Some(Held { by: None, .. }) => self.registrants.iter().any(Option::is_some),
            Some(Held { by: Some(by), .. }) => self.key_of(by).is_some(),
        };
        if !is_held {
            self.held = None;
        }
        count
    }

    fn remember(&mut self, nexus: Nexus, token: u32) {
        let is_own = |place: &Option<DoneRequest>| place.is_some_and(|last| last.nexus == nexus);
        let own = self.done.iter().position(is_own);
        let place = own.or_else(|| self.done.iter().position(Option::is_none));
        let place = place.or_else(|| {
            let places = self.done.iter().enumerate();
            let all = places.filter_map(|(place, last)| Some((place, (*last)?)));
            // There is one: the registrants are this one and fewer than there are places.
            let others = all.filter(|(_, last)| !self.is_registered(last.nexus));
            others
                .min_by_key(|(_, last)| last.number)
                .map(|(place, _)| place)
        });
        let number = self.count;
        if let Some(place) = place.and_then(|place| self.done.get_mut(place)) {
            *place = Some(DoneRequest {
                nexus,
                token,
                number,
            });
            self.count = self.count.wrapping_add(1);
        }
    }

    /// Returns the key of a registrant.
    fn key_of(&self, nexus: Nexus) -> Option<u64> {
        let mut all = self.registrants.iter().flatten();
        all.find(|one| one.nexus == nexus).map(|one| one.key)
    }

    /// Returns true if this nexus holds the export, alone or with all registrants.
    fn holds(&self, nexus: Nexus) -> bool {
        match self.held {
            None => false,
            Some(Held { by: None, .. }) => self.key_of(nexus).is_some(),
            Some(Held { by: Some(by), .. }) => by == nexus,
        }
    }
}

impl Default for Persistent {
    fn default() -> Self {
        Self::new()
    }
}
