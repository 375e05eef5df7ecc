// SPDX-License-Identifier: GPL-2.0

//! Persistent reservations, against the words of SPC-4.

use crate::session::{persistent::*, quota::Part};
use proptest::prelude::*;

const BOTH: Rights = Rights {
    reads: true,
    writes: true,
};
const READS: Rights = Rights {
    reads: true,
    writes: false,
};
const NOTHING: Rights = Rights {
    reads: false,
    writes: false,
};

/// An export whose requests all have another token.
struct Export {
    machine: Persistent,
    token: u32,
}

/// No other nexus is of the same account.
const ALONE: (Part, fn(Nexus) -> bool) = (Part::Half, |_| false);

impl Export {
    /// One with these registrants: nexus 1 has the first key.
    fn with(keys: &[u64]) -> Self {
        let mut export = Self {
            machine: Persistent::new(),
            token: 0,
        };
        for (nexus, key) in (1..).zip(keys) {
            assert_eq!(export.register(nexus, 0, *key), Answer::Done);
        }
        export
    }

    fn ask(&mut self, nexus: Nexus, request: Request) -> Answer {
        self.token += 1;
        self.machine.request(nexus, self.token, request, ALONE)
    }

    fn register(&mut self, nexus: Nexus, old: u64, new: u64) -> Answer {
        let ignore_old = false;
        self.ask(
            nexus,
            Request::Register {
                old,
                new,
                ignore_old,
            },
        )
    }

    fn rights(&self, nexuses: [Nexus; 3]) -> [Rights; 3] {
        nexuses.map(|nexus| self.machine.rights(nexus))
    }

    fn keys(&self) -> Vec<u64> {
        self.machine.keys().collect()
    }
}

#[test]
fn numbers_are_those_of_the_wire() {
    use crate::proto::{wire, ReservationType};
    assert_eq!(REGISTRANTS_MAX, wire::REGISTRANTS_MAX);
    let numbers = |kind: Type| kind as u8;
    assert_eq!(
        Type::ALL.map(numbers),
        ReservationType::ALL.map(|kind| kind as u8)
    );
}

#[test]
fn rights_of_each_type() {
    for (kind, registrant, other) in [
        (Type::WriteExclusive, READS, READS),
        (Type::ExclusiveAccess, NOTHING, NOTHING),
        (Type::WriteExclusiveRegistrants, BOTH, READS),
        (Type::ExclusiveAccessRegistrants, BOTH, NOTHING),
        (Type::WriteExclusiveAll, BOTH, READS),
        (Type::ExclusiveAccessAll, BOTH, NOTHING),
    ] {
        let mut export = Export::with(&[10, 20]);
        assert_eq!(export.rights([1, 2, 3]), [BOTH; 3]);
        let reserve = |key| Request::Reserve { key, kind };
        assert_eq!(export.ask(3, reserve(30)), Answer::Conflict);
        assert_eq!(export.ask(1, reserve(20)), Answer::Conflict);
        assert_eq!(export.ask(1, reserve(10)), Answer::Done);
        assert_eq!(export.rights([1, 2, 3]), [BOTH, registrant, other]);
        // Again is fine for who holds it, another type is not.
        assert_eq!(export.ask(1, reserve(10)), Answer::Done);
        let all = kind as u8 >= 5;
        let second = if all { Answer::Done } else { Answer::Conflict };
        assert_eq!(export.ask(2, reserve(20)), second);
        for other in Type::ALL.into_iter().filter(|other| *other != kind) {
            let reserve = Request::Reserve {
                key: 10,
                kind: other,
            };
            assert_eq!(export.ask(1, reserve), Answer::Conflict);
            let release = Request::Release {
                key: 10,
                kind: other,
            };
            assert_eq!(export.ask(1, release), Answer::Invalid);
        }
        let key = if all { 0 } else { 10 };
        assert_eq!(export.machine.reservation(), Some((key, kind)));
        // A registrant that does not hold it releases nothing.
        if !all {
            assert_eq!(
                export.ask(2, Request::Release { key: 20, kind }),
                Answer::Done
            );
            assert_eq!(export.machine.reservation(), Some((10, kind)));
        }
        assert_eq!(
            export.ask(1, Request::Release { key: 10, kind }),
            Answer::Done
        );
        assert_eq!(export.machine.reservation(), None);
        assert_eq!(export.rights([1, 2, 3]), [BOTH; 3]);
        // Registrations and releases of nothing do not count.
        assert_eq!(export.machine.generation(), 2);
    }
}

#[test]
fn registrations() {
    let mut export = Export::with(&[10, 10]);
    assert_eq!(export.keys(), [10, 10]);
    assert_eq!(export.register(1, 0, 11), Answer::Conflict);
    assert_eq!(export.register(3, 10, 11), Answer::Conflict);
    assert_eq!(export.register(1, 10, 11), Answer::Done);
    assert_eq!(export.register(3, 0, 0), Answer::Done);
    assert_eq!(export.machine.generation(), 3);
    let forced = |new| Request::Register {
        old: 99,
        new,
        ignore_old: true,
    };
    assert_eq!(export.ask(1, forced(12)), Answer::Done);
    assert_eq!(export.ask(3, forced(30)), Answer::Done);
    assert_eq!(export.keys(), [12, 10, 30]);
    assert_eq!(export.ask(3, forced(0)), Answer::Done);
    assert_eq!(export.register(2, 10, 0), Answer::Done);
    assert_eq!(export.keys(), [12]);
    for nexus in 2..=REGISTRANTS_MAX as Nexus {
        assert_eq!(export.register(nexus, 0, 5), Answer::Done);
    }
    let generation = export.machine.generation();
    assert_eq!(export.register(100, 0, 5), Answer::Full);
    assert_eq!(export.machine.generation(), generation);
    assert_eq!(export.register(1, 12, 13), Answer::Done);
}

#[test]
fn a_reservation_goes_with_its_holder() {
    let reserve = |kind| Request::Reserve { key: 10, kind };
    let mut export = Export::with(&[10, 20]);
    export.ask(1, reserve(Type::WriteExclusiveRegistrants));
    assert_eq!(export.register(1, 10, 0), Answer::Done);
    assert_eq!(export.machine.reservation(), None);
    // That of all goes with the last one.
    let mut export = Export::with(&[10, 20]);
    export.ask(1, reserve(Type::WriteExclusiveAll));
    assert_eq!(export.register(1, 10, 0), Answer::Done);
    assert_eq!(export.rights([1, 2, 3]), [READS, BOTH, READS]);
    assert_eq!(export.register(2, 20, 0), Answer::Done);
    assert_eq!(export.machine.reservation(), None);
    // A new key of the holder is still the holder's.
    let mut export = Export::with(&[10]);
    export.ask(1, reserve(Type::ExclusiveAccess));
    assert_eq!(export.register(1, 10, 11), Answer::Done);
    assert_eq!(
        export.machine.reservation(),
        Some((11, Type::ExclusiveAccess))
    );
}

#[test]
fn preempting() {
    let kind = Type::WriteExclusiveRegistrants;
    let preempt = |key, victim, kind| Request::Preempt { key, victim, kind };
    // The holder, and another one with the same key.
    let mut export = Export::with(&[10, 20, 10, 30]);
    export.ask(1, Request::Reserve { key: 10, kind });
    assert_eq!(export.ask(5, preempt(50, 10, kind)), Answer::Conflict);
    assert_eq!(export.ask(2, preempt(20, 99, kind)), Answer::Conflict);
    assert_eq!(export.ask(2, preempt(20, 0, kind)), Answer::Invalid);
    assert_eq!(
        export.ask(2, preempt(20, 10, Type::ExclusiveAccess)),
        Answer::Done
    );
    assert_eq!(export.keys(), [20, 30]);
    assert_eq!(
        export.machine.reservation(),
        Some((20, Type::ExclusiveAccess))
    );
    assert_eq!(export.rights([1, 2, 4]), [NOTHING, BOTH, NOTHING]);
    // One that does not hold it loses its registration, and nothing else changes.
    assert_eq!(export.ask(2, preempt(20, 30, kind)), Answer::Done);
    assert_eq!(export.keys(), [20]);
    assert_eq!(
        export.machine.reservation(),
        Some((20, Type::ExclusiveAccess))
    );
    // The holder changes the type, and stays registered.
    assert_eq!(export.ask(2, preempt(20, 20, kind)), Answer::Done);
    assert_eq!(export.machine.reservation(), Some((20, kind)));
    assert_eq!(export.keys(), [20]);
    // Without a reservation only registrations go.
    let mut export = Export::with(&[10, 20]);
    assert_eq!(export.ask(1, preempt(10, 20, kind)), Answer::Done);
    assert_eq!(
        (export.keys(), export.machine.reservation()),
        (vec![10], None)
    );
    // Of those that all hold, 0 names all others.
    let mut export = Export::with(&[10, 20, 30]);
    let all = Type::ExclusiveAccessAll;
    export.ask(1, Request::Reserve { key: 10, kind: all });
    assert_eq!(export.ask(2, preempt(20, 30, kind)), Answer::Done);
    assert_eq!(export.machine.reservation(), Some((0, all)));
    assert_eq!(export.ask(2, preempt(20, 0, kind)), Answer::Done);
    assert_eq!(export.machine.reservation(), Some((20, kind)));
    assert_eq!(export.keys(), [20]);
}

#[test]
fn clearing() {
    let mut export = Export::with(&[10, 20]);
    let kind = Type::ExclusiveAccess;
    export.ask(1, Request::Reserve { key: 10, kind });
    assert_eq!(export.ask(2, Request::Clear { key: 10 }), Answer::Conflict);
    assert_eq!(export.ask(3, Request::Clear { key: 0 }), Answer::Conflict);
    assert_eq!(export.ask(2, Request::Clear { key: 20 }), Answer::Done);
    assert_eq!(
        (export.keys(), export.machine.reservation()),
        (vec![], None)
    );
    assert_eq!(export.rights([1, 2, 3]), [BOTH; 3]);
}

#[test]
fn withdrawing() {
    let mut export = Export::with(&[10, 20, 30]);
    let kind = Type::WriteExclusive;
    export.ask(2, Request::Reserve { key: 20, kind });
    // One that does not hold it.
    export.machine.withdraw(|nexus| nexus == 1);
    assert_eq!(export.keys(), [20, 30]);
    assert_eq!(export.machine.reservation(), Some((20, kind)));
    assert_eq!(export.machine.generation(), 4);
    // The holder, and one that has not registered.
    export.machine.withdraw(|nexus| nexus == 2 || nexus == 9);
    assert_eq!(export.keys(), [30]);
    assert_eq!(export.machine.reservation(), None);
    assert_eq!(export.rights([1, 2, 3]), [BOTH; 3]);
    assert_eq!(export.machine.generation(), 5);
    export.machine.withdraw(|nexus| nexus != 3);
    assert_eq!(export.machine.generation(), 5);
    // It has to register anew.
    let reserve = Request::Reserve { key: 20, kind };
    assert_eq!(export.ask(2, reserve), Answer::Conflict);
    assert_eq!(export.register(2, 0, 20), Answer::Done);
    assert_eq!(export.ask(2, reserve), Answer::Done);
    // The administrator needs no key.
    export.machine.withdraw(|_| true);
    assert!(export.keys().is_empty());
    assert_eq!(export.machine.reservation(), None);
    // Each place is free again.
    for nexus in 1..=REGISTRANTS_MAX as Nexus {
        assert_eq!(export.register(nexus, 0, 5), Answer::Done);
    }
}

#[test]
fn an_account_leaves_places_to_others() {
    for (part, count) in [(Part::Half, 16), (Part::Quarter, 8)] {
        let mut export = Export::with(&[]);
        let register = Request::Register {
            old: 0,
            new: 1,
            ignore_old: true,
        };
        // The maps of the account have even numbers.
        let is_even = |nexus: Nexus| nexus % 2 == 0;
        let mut ask = |nexus: Nexus| {
            let of_account = move |other| is_even(other) == is_even(nexus);
            let token = u32::try_from(nexus).unwrap();
            export
                .machine
                .request(nexus, token, register, (part, of_account))
        };
        for nexus in 1..=count {
            assert_eq!(ask(2 * nexus), Answer::Done);
        }
        assert_eq!(ask(100), Answer::Full);
        // One that is registered is done before, and another account finds a place.
        assert_eq!(ask(2), Answer::Done);
        assert_eq!(ask(1), Answer::Done);
    }
}

#[test]
fn registrants_with_what_they_hold() {
    for (kind, word) in Type::ALL.into_iter().zip([
        "write-exclusive",
        "exclusive-access",
        "write-exclusive-reg-only",
        "exclusive-access-reg-only",
        "write-exclusive-all-regs",
        "exclusive-access-all-regs",
    ]) {
        let mut export = Export::with(&[10, 20]);
        export.ask(2, Request::Reserve { key: 20, kind });
        let all = word.ends_with("all-regs");
        let registrants: Vec<_> = export.machine.registrants().collect();
        let first = Some(kind).filter(|_| all);
        assert_eq!(registrants, [(1, 10, first), (2, 20, Some(kind))]);
        assert_eq!(kind.word(), word);
    }
}

#[test]
fn what_is_sent_again_is_done_once() {
    let mut machine = Persistent::new();
    let register = Request::Register {
        old: 0,
        new: 10,
        ignore_old: false,
    };
    assert_eq!(machine.request(1, 7, register, ALONE), Answer::Done);
    assert_eq!(machine.request(1, 7, register, ALONE), Answer::Done);
    assert_eq!(machine.generation(), 1);
    // Another nexus may have the same token.
    assert_eq!(machine.request(2, 7, register, ALONE), Answer::Done);
    assert_eq!(machine.generation(), 2);
    assert_eq!(machine.request(1, 8, register, ALONE), Answer::Conflict);
    assert_eq!(machine.request(1, 8, register, ALONE), Answer::Conflict);
    // However many others ask in between for what they do not get.
    for nexus in 3..=3 * REGISTRANTS_MAX as Nexus {
        machine.request(nexus, 1, Request::Clear { key: 1 }, ALONE);
        machine.request(
            nexus,
            2,
            Request::Register {
                new: 0,
                old: 0,
                ignore_old: true,
            },
            ALONE,
        );
        assert!(!machine.remembers(nexus));
    }
    assert_eq!(machine.request(2, 7, register, ALONE), Answer::Done);
    assert_eq!(machine.generation(), 2);
}

#[test]
fn what_was_done_is_remembered_while_there_is_a_place() {
    const ALL: Nexus = REGISTRANTS_MAX as Nexus;
    let mut export = Export::with(&[10, 20]);
    let token = export.token;
    let kind = Type::WriteExclusive;
    let preempt = Request::Preempt {
        key: 10,
        victim: 20,
        kind,
    };
    assert_eq!(export.ask(1, preempt), Answer::Done);
    let register = Request::Register {
        old: 0,
        new: 20,
        ignore_old: false,
    };
    // One host comes and goes, under as many names as it likes: it takes its own places alone.
    for nexus in 3..=ALL {
        assert_eq!(export.register(nexus, 0, 30), Answer::Done);
        assert_eq!(export.register(nexus, 30, 0), Answer::Done);
    }
    let before = export.machine.clone();
    assert_eq!(
        export.machine.request(2, token, register, ALONE),
        Answer::Done
    );
    assert_eq!(export.machine, before);
    // The next one needs a place: the one that has waited longest goes, but for registrants.
    assert!(export.machine.remembers(1) && export.machine.remembers(2));
    assert_eq!(export.register(ALL + 1, 0, 30), Answer::Done);
    assert!(export.machine.remembers(1) && !export.machine.remembers(2));
    for nexus in ALL + 2..=3 * ALL {
        assert_eq!(export.register(nexus, 0, 30), Answer::Done);
        assert_eq!(export.register(nexus, 30, 0), Answer::Done);
        for nexus in [1, ALL + 1, nexus] {
            assert!(export.machine.remembers(nexus));
        }
    }
}

/// The same in other words: lists of nexus and key.
#[derive(Clone, Debug, Default)]
struct Model {
    registrants: Vec<(Nexus, u64)>,
    /// The type, and who holds it if not all do.
    held: Option<(Type, Option<Nexus>)>,
    generation: u32,
}

impl Model {
    fn key(&self, nexus: Nexus) -> u64 {
        let mut all = self.registrants.iter();
        all.find(|(other, _)| *other == nexus)
            .map_or(0, |(_, key)| *key)
    }

    fn drop_all(&mut self, goes: impl Fn(Nexus, u64) -> bool) -> bool {
        let before = self.registrants.len();
        self.registrants.retain(|(nexus, key)| !goes(*nexus, *key));
        let is_held = |(_, by): &(Type, Option<Nexus>)| match by {
            Some(nexus) => self.key(*nexus) != 0,
            None => !self.registrants.is_empty(),
        };
        self.held = self.held.filter(is_held);
        self.registrants.len() != before
    }

    fn hold(&mut self, kind: Type, nexus: Nexus) {
        self.held = Some((kind, Some(nexus).filter(|_| (kind as u8) < 5)));
    }

    fn is_holder(&self, nexus: Nexus) -> bool {
        self.held
            .is_some_and(|(_, by)| by.map_or(self.key(nexus) != 0, |by| by == nexus))
    }

    fn ask(&mut self, nexus: Nexus, request: Request) -> Answer {
        let own = self.key(nexus);
        let (key, done) = match request {
            Request::Register {
                old,
                new,
                ignore_old,
            } => {
                if !ignore_old && old != own {
                    return Answer::Conflict;
                }
                if own == 0 && new == 0 {
                    return Answer::Done;
                }
                if own == 0 && self.registrants.len() == REGISTRANTS_MAX {
                    return Answer::Full;
                }
                if new == 0 {
                    self.drop_all(|other, _| other == nexus);
                } else {
                    self.registrants.retain(|(other, _)| *other != nexus);
                    self.registrants.push((nexus, new));
                }
                self.generation += 1;
                return Answer::Done;
            }
            Request::Reserve { key, kind } => (
                key,
                match self.held {
                    None => Some(Answer::Done),
                    Some((held, _)) if held == kind && self.is_holder(nexus) => Some(Answer::Done),
                    Some(_) => Some(Answer::Conflict),
                },
            ),
            Request::Release { key, kind } => (
                key,
                match self.held {
                    Some((held, _)) if self.is_holder(nexus) && held != kind => {
                        Some(Answer::Invalid)
                    }
                    _ => Some(Answer::Done),
                },
            ),
            Request::Preempt { key, .. } | Request::Clear { key } => (key, None),
        };
        if own == 0 || own != key {
            return Answer::Conflict;
        }
        match (request, done) {
            (Request::Reserve { kind, .. }, Some(Answer::Done)) if self.held.is_none() => {
                self.hold(kind, nexus);
            }
            (Request::Release { .. }, Some(Answer::Done)) if self.is_holder(nexus) => {
                self.held = None;
            }
            (Request::Clear { .. }, _) => {
                self.drop_all(|_, _| true);
                self.generation += 1;
            }
            (Request::Preempt { victim, kind, .. }, _) => {
                let holder = self.held.and_then(|(_, by)| by);
                let is_of_all = matches!(self.held, Some((_, None)));
                if is_of_all && victim == 0 {
                    self.drop_all(|other, _| other != nexus);
                    self.hold(kind, nexus);
                } else if holder.is_some_and(|holder| self.key(holder) == victim) {
                    self.drop_all(|other, key| other != nexus && key == victim);
                    self.hold(kind, nexus);
                } else if victim == 0 {
                    return Answer::Invalid;
                } else if !self.drop_all(|_, key| key == victim) {
                    return Answer::Conflict;
                }
                self.generation += 1;
            }
            _ => {}
        }
        done.unwrap_or(Answer::Done)
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let key = || 0u64..4;
    let kind = || prop::sample::select(&Type::ALL[..]);
    prop_oneof![
        3 => (key(), key(), any::<bool>()).prop_map(|(old, new, ignore_old)| Request::Register {
            old,
            new,
            ignore_old
        }),
        2 => (key(), kind()).prop_map(|(key, kind)| Request::Reserve { key, kind }),
        1 => (key(), kind()).prop_map(|(key, kind)| Request::Release { key, kind }),
        2 => (key(), key(), kind())
            .prop_map(|(key, victim, kind)| Request::Preempt { key, victim, kind }),
        1 => key().prop_map(|key| Request::Clear { key }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn as_in_the_standard(
        requests in prop::collection::vec(
            (0..5 as Nexus, any_request(), any::<bool>(), prop::option::weighted(0.05, 0..5 as Nexus)),
            0..60,
        )
    ) {
        let mut machine = Persistent::new();
        let mut model = Model::default();
        for (token, (nexus, request, again, withdrawn)) in (0..).zip(requests) {
            if let Some(withdrawn) = withdrawn {
                machine.withdraw(|nexus| nexus == withdrawn);
                if model.drop_all(|nexus, _| nexus == withdrawn) {
                    model.generation += 1;
                }
            }
            let answer = machine.request(nexus, token, request, ALONE);
            prop_assert_eq!(answer, model.ask(nexus, request));
            if again {
                let before = machine.clone();
                prop_assert_eq!(machine.request(nexus, token, request, ALONE), answer);
                prop_assert_eq!(&machine, &before);
            }
            prop_assert_eq!(machine.generation(), model.generation);
            let registered = model.registrants.iter().all(|one| machine.remembers(one.0));
            prop_assert!(registered);
            let mut keys: Vec<_> = machine.keys().collect();
            let mut expected: Vec<_> = model.registrants.iter().map(|one| one.1).collect();
            keys.sort();
            expected.sort();
            prop_assert_eq!(keys, expected);
            let held = model.held.map(|(kind, by)| (by.map_or(0, |by| model.key(by)), kind));
            prop_assert_eq!(machine.reservation(), held);
            for nexus in 0..6 {
                let is_registrant = model.key(nexus) != 0;
                let rights = match model.held {
                    None => BOTH,
                    Some(_) if model.is_holder(nexus) => BOTH,
                    Some((kind, _)) if kind as u8 >= 3 && is_registrant => BOTH,
                    Some((kind, _)) if kind as u8 % 2 == 1 => READS,
                    Some(_) => NOTHING,
                };
                prop_assert_eq!(machine.rights(nexus), rights);
                prop_assert_eq!(machine.is_registered(nexus), is_registrant);
            }
        }
    }
}
