// SPDX-License-Identifier: GPL-2.0

//! Who gets a place for a connection of which nobody knows yet whose it is.

use crate::session::half_open::{
    Answer, ConnectionId, HalfOpen, Known, Place, Source, PLACES_MAX, SOURCES_MAX,
};
use proptest::prelude::*;
use std::collections::HashMap;

/// There was a free place.
const IN: Answer = Answer::Enter(None);

type List = HalfOpen<Vec<Option<Place>>, Vec<Option<Known>>>;

fn list() -> List {
    HalfOpen::new(vec![None; PLACES_MAX], vec![None; SOURCES_MAX])
}

fn source(number: u16) -> Source {
    let mut source = [0; 24];
    source[..2].copy_from_slice(&number.to_le_bytes());
    source
}

/// Has a client of that source log in.
fn log_in(list: &mut List, number: u16, now: u64) {
    assert_eq!(list.ask(1 << 60, &source(number), true, now), IN);
    list.log_in(1 << 60, now);
}

#[test]
fn one_client_needs_no_cookie() {
    let mut list = list();
    for id in 0..1000 {
        assert_eq!(list.ask(id, &source(1), false, id), IN);
        assert_eq!(list.count(), 1);
        list.leave(id);
    }
}

#[test]
fn invented_sources_get_a_quarter_and_harm_nobody() {
    let mut list = list();
    for id in 0..2000 {
        let answer = list.ask(id, &source(id as u16), false, id * 5);
        assert_eq!(answer == IN, id < 16, "{id}");
    }
    // One of those that were invented is there, and receives the cookie.
    assert_eq!(list.ask(5000, &source(7), false, 10_000), Answer::Again);
    assert_eq!(list.ask(5000, &source(7), true, 10_000), IN);
    list.log_in(5000, 10_000);
    assert_eq!(list.count(), 16);
}

#[test]
fn who_names_another_source_takes_nothing_of_it() {
    let mut list = list();
    for id in 0..1000 {
        list.ask(id, &source(1), false, 0);
    }
    for id in 1000..1004 {
        assert_eq!(list.ask(id, &source(1), true, 0), IN);
    }
}

#[test]
fn who_stays_for_long_gives_way() {
    let mut list = list();
    for id in 0..8 {
        assert_eq!(list.ask(id, &source(1), true, id * 100), IN);
    }
    // None is a second old.
    assert_eq!(list.ask(8, &source(1), true, 900), Answer::Again);
    assert_eq!(list.ask(8, &source(1), true, 1000), Answer::Enter(Some(0)));
    // It is leaving, and is not asked to do so twice.
    assert_eq!(list.count(), 8);
    assert_eq!(list.ask(9, &source(1), true, 1001), Answer::Again);
    assert_eq!(list.ask(9, &source(1), true, 1100), Answer::Enter(Some(1)));
    list.leave(0);
    // Another source does not care.
    assert_eq!(list.ask(10, &source(2), true, 1101), IN);
    assert_eq!(list.count(), 9);
}

#[test]
fn few_leave_at_a_time() {
    let mut list = list();
    for id in 0..48 {
        assert_eq!(list.ask(id, &source(id as u16), true, 0), IN);
    }
    for id in 0..32 {
        // There is an entry for each of 32 more.
        let answer = list.ask(100 + id, &source(100 + id as u16), true, 1000);
        assert_eq!(answer, Answer::Enter(Some(id)));
    }
    assert_eq!(list.ask(200, &source(200), true, 1000), Answer::Again);
    list.leave(3);
    assert_eq!(
        list.ask(200, &source(200), true, 1000),
        Answer::Enter(Some(32))
    );
}

#[test]
fn known_sources_have_places_of_their_own() {
    let mut list = list();
    log_in(&mut list, 500, 0);
    let mut id = 0;
    for number in 0..100 {
        for _ in 0..8 {
            list.ask(id, &source(number), true, 1);
            id += 1;
        }
    }
    assert_eq!(list.count(), 48);
    assert_eq!(list.ask(id, &source(101), true, 1), Answer::Again);
    for more in 0..16 {
        assert_eq!(list.ask(id + more, &source(500), true, 1), IN);
    }
    assert_eq!(list.ask(id + 16, &source(500), true, 1), Answer::Again);
    // It has as many as it may have: one of its own has to go.
    assert_eq!(
        list.ask(id + 16, &source(500), true, 2000),
        Answer::Enter(Some(id))
    );
}

#[test]
fn who_has_most_gives_way() {
    let mut list = list();
    for number in [1, 2, 3, 4, 5] {
        log_in(&mut list, number, 0);
    }
    for id in 0..48 {
        // 16 each of the sources 1, 2 and 3.
        assert_eq!(list.ask(id, &source(1 + id as u16 / 16), true, id), IN);
    }
    for id in 48..56 {
        assert_eq!(list.ask(id, &source(4), true, id), IN);
    }
    for id in 56..64 {
        assert_eq!(list.ask(id, &source(5), true, id), IN);
    }
    // A source that is not known takes nothing from one that is.
    assert_eq!(list.ask(64, &source(9), true, 5000), Answer::Again);
    let mut taken = Vec::new();
    for id in 64..70 {
        match list.ask(id, &source(5), true, 5000) {
            Answer::Enter(Some(end)) => taken.push(end / 16),
            other => panic!("{other:?}"),
        }
    }
    // Now it has as many as each of them.
    assert_eq!(list.ask(70, &source(5), true, 5000), Answer::Again);
    taken.sort();
    // Those with 16 places lost some, and the one with eight none.
    assert_eq!(taken, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn strangers_give_way_to_known_sources() {
    let mut list = list();
    for number in 1..=4 {
        log_in(&mut list, number, 0);
    }
    for id in 0..8 {
        assert_eq!(list.ask(id, &source(9), true, 100), IN);
    }
    for id in 8..64 {
        assert_eq!(list.ask(id, &source(1 + id as u16 % 4), true, id), IN);
    }
    for (id, end) in (64..72).zip(0..8) {
        let answer = list.ask(id, &source(4), true, 5000);
        match answer {
            Answer::Enter(Some(one)) if list.count() == 64 && one < 8 => assert_eq!(one, end),
            // Source 4 has 16 then, and gives one of its own.
            Answer::Enter(Some(one)) => assert_eq!(one % 4, 3),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_source_has_a_rate() {
    let mut list = list();
    log_in(&mut list, 2, 0);
    for (number, factor) in [(1, 1), (2, 8)] {
        let mut entered = 0;
        for ms in 0..10_000 {
            if list.ask(ms, &source(number), true, ms) == IN {
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
    log_in(&mut list, 60_000, 0);
    for number in 0..10_000 {
        let id = u64::from(number);
        list.ask(id, &source(number), true, id);
        list.leave(id);
    }
    for id in 0..16 {
        assert_eq!(list.ask(id, &source(60_000), true, 20_000), IN);
    }
}

#[test]
fn a_source_that_is_in_use_is_not_forgotten_for_many_that_were() {
    let mut list = list();
    log_in(&mut list, 60_000, 0);
    for number in 0..1000 {
        let id = u64::from(number);
        log_in(&mut list, number, id);
        if number == 990 {
            // Its connection is lost, and comes again.
            list.know(&source(60_000), id);
        }
    }
    for id in 0..9 {
        assert_eq!(list.ask(id, &source(60_000), true, 20_000), IN);
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
        let (mut known, mut leaving) = (Vec::new(), Vec::new());
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
                        IN => {
                            prop_assert!(cookie || here.len() < 16 && own < 4);
                            let most = if known.contains(&number) { 16 } else { 8 };
                            prop_assert!(own < most);
                            here.insert(id, (number, now));
                        }
                        Answer::Enter(Some(end)) => {
                            let (of, since) = here.remove(&end).unwrap();
                            prop_assert!(cookie && now - since >= 1000);
                            prop_assert!(
                                of == number || known.contains(&number) || !known.contains(&of)
                            );
                            leaving.push(end);
                            here.insert(id, (number, now));
                        }
                        Answer::Again => {}
                    }
                }
                Step::Admit(n) => if let Some(id) = nth(&here, n) {
                    list.log_in(id, now);
                    known.push(here.remove(&id).unwrap().0);
                },
                Step::Leave(n) => if let Some(id) = nth(&here, n) {
                    list.leave(id);
                    here.remove(&id);
                },
                Step::Wait(ms) => {
                    now += ms;
                    for id in leaving.drain(..) {
                        list.leave(id);
                    }
                }
            }
            prop_assert_eq!(list.count(), here.len());
            prop_assert!(here.len() <= 64 && here.len() + leaving.len() <= PLACES_MAX);
        }
    }
}
