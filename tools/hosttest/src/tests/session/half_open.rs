// SPDX-License-Identifier: GPL-2.0

//! Who gets a place for a connection of which nobody knows yet whose it is.

use crate::session::half_open::{
    Answer, ConnectionId, HalfOpen, Known, Place, Source, PLACES_MAX, SOURCES_MAX,
};
use proptest::prelude::*;
use std::collections::HashMap;

type List = HalfOpen<Vec<Option<Place>>, Vec<Option<Known>>>;

fn list() -> List {
    HalfOpen::new(vec![None; PLACES_MAX], vec![None; SOURCES_MAX])
}

fn source(number: u16) -> Source {
    let mut source = [0; 16];
    source[..2].copy_from_slice(&number.to_le_bytes());
    source
}

/// Has a client of that source admitted.
fn admit(list: &mut List, number: u16, now: u64) {
    assert_eq!(list.ask(1 << 60, &source(number), true, now), Answer::Enter);
    list.admit(1 << 60, now);
}

#[test]
fn one_client_needs_no_cookie() {
    let mut list = list();
    for id in 0..1000 {
        assert_eq!(list.ask(id, &source(1), false, id), Answer::Enter);
        assert_eq!(list.count(), 1);
        list.leave(id);
    }
}

#[test]
fn invented_sources_get_a_quarter_and_harm_nobody() {
    let mut list = list();
    for id in 0..2000 {
        let answer = list.ask(id, &source(id as u16), false, id * 5);
        assert_eq!(answer == Answer::Enter, id < 16, "{id}");
    }
    // One of those that were invented is there, and receives the cookie.
    assert_eq!(
        list.ask(5000, &source(7), false, 10_000),
        Answer::Again(None)
    );
    assert_eq!(list.ask(5000, &source(7), true, 10_000), Answer::Enter);
    list.admit(5000, 10_000);
    assert_eq!(list.count(), 16);
}

#[test]
fn who_names_another_source_takes_nothing_of_it() {
    let mut list = list();
    for id in 0..1000 {
        list.ask(id, &source(1), false, 0);
    }
    for id in 1000..1004 {
        assert_eq!(list.ask(id, &source(1), true, 0), Answer::Enter);
    }
}

#[test]
fn who_stays_for_long_gives_way() {
    let mut list = list();
    for id in 0..8 {
        assert_eq!(list.ask(id, &source(1), true, id * 100), Answer::Enter);
    }
    // None is a second old.
    assert_eq!(list.ask(8, &source(1), true, 900), Answer::Again(None));
    assert_eq!(list.ask(8, &source(1), true, 1000), Answer::Again(Some(0)));
    list.leave(0);
    assert_eq!(list.ask(8, &source(1), true, 1001), Answer::Enter);
    // Another source does not care.
    assert_eq!(list.ask(9, &source(2), true, 1001), Answer::Enter);
}

#[test]
fn known_sources_have_places_of_their_own() {
    let mut list = list();
    admit(&mut list, 500, 0);
    let mut id = 0;
    for number in 0..100 {
        for _ in 0..8 {
            list.ask(id, &source(number), true, 1);
            id += 1;
        }
    }
    assert_eq!(list.count(), 48);
    assert_eq!(list.ask(id, &source(101), true, 1), Answer::Again(None));
    for more in 0..16 {
        assert_eq!(list.ask(id + more, &source(500), true, 1), Answer::Enter);
    }
    assert_eq!(
        list.ask(id + 16, &source(500), true, 1),
        Answer::Again(None)
    );
    assert_eq!(
        list.ask(id + 16, &source(500), true, 2000),
        Answer::Again(Some(0))
    );
}

#[test]
fn a_source_has_a_rate() {
    let mut list = list();
    admit(&mut list, 2, 0);
    for (number, factor) in [(1, 1), (2, 8)] {
        let mut entered = 0;
        for ms in 0..10_000 {
            if list.ask(ms, &source(number), true, ms) == Answer::Enter {
                list.leave(ms);
                entered += 1;
            }
        }
        let most = (32 + 10 * 32) * factor;
        assert!(
            (most - 32 * factor..=most).contains(&entered),
            "{entered} of {most}"
        );
    }
}

#[test]
fn a_known_source_is_not_forgotten_for_strangers() {
    let mut list = list();
    admit(&mut list, 60_000, 0);
    for number in 0..10_000 {
        let id = u64::from(number);
        list.ask(id, &source(number), true, id);
        list.leave(id);
    }
    for id in 0..48 {
        assert_eq!(list.ask(id, &source(60_000), true, 20_000), Answer::Enter);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u16, bool),
    Admit(usize),
    Leave(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..20u16, any::<bool>()).prop_map(|(source, cookie)| Step::Ask(source, cookie)),
        1 => any::<usize>().prop_map(Step::Admit),
        2 => any::<usize>().prop_map(Step::Leave),
        2 => (0..3000u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Nobody has two places, no source has more than it may, and who is to end is here.
    #[test]
    fn places_are_counted(steps in prop::collection::vec(step(), 1..400)) {
        let mut list = list();
        let mut here: HashMap<ConnectionId, (u16, u64)> = HashMap::new();
        let mut known = Vec::new();
        let (mut now, mut id) = (0, 0);
        let nth = |here: &HashMap<ConnectionId, (u16, u64)>, n: usize| {
            let mut ids: Vec<_> = here.keys().copied().collect();
            ids.sort();
            (!ids.is_empty()).then(|| ids[n % ids.len()])
        };
        for step in steps {
            match step {
                Step::Ask(number, cookie) => {
                    id += 1;
                    let own = here.values().filter(|(source, _)| *source == number).count();
                    match list.ask(id, &source(number), cookie, now) {
                        Answer::Enter => {
                            prop_assert!(cookie || here.len() < 16 && own < 4);
                            prop_assert!(known.contains(&number) || own < 8);
                            here.insert(id, (number, now));
                        }
                        Answer::Again(Some(end)) => {
                            let (_, since) = here[&end];
                            prop_assert!(cookie && now - since >= 1000);
                        }
                        Answer::Again(None) => {}
                    }
                }
                Step::Admit(n) => if let Some(id) = nth(&here, n) {
                    list.admit(id, now);
                    known.push(here.remove(&id).unwrap().0);
                },
                Step::Leave(n) => if let Some(id) = nth(&here, n) {
                    list.leave(id);
                    here.remove(&id);
                },
                Step::Wait(ms) => now += ms,
            }
            prop_assert_eq!(list.count(), here.len());
            prop_assert!(here.len() <= PLACES_MAX);
        }
    }
}
