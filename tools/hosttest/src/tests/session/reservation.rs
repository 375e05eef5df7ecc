// SPDX-License-Identifier: GPL-2.0

//! What the model of the worlds does not go through: the administrator, and exports of several
//! maps.

use crate::session::reservation::{
    Action, Admission, Decision, Granted, Login, Reason, Registration, Registrations, Reservation,
    Terms,
};

#[derive(Clone, Default)]
struct List(Vec<Registration<&'static str>>);

impl Registrations for List {
    type Host = &'static str;

    fn all(&self) -> &[Registration<&'static str>] {
        &self.0
    }

    fn all_mut(&mut self) -> &mut [Registration<&'static str>] {
        &mut self.0
    }

    fn push(&mut self, registration: Registration<&'static str>) {
        self.0.push(registration);
    }

    fn remove(&mut self, at: usize) {
        self.0.remove(at);
    }
}

/// A reservation, its actions, and the number that logins show.
struct Server {
    machine: Reservation<List>,
    actions: Vec<Action>,
    opening: u64,
}

const FRESH: u64 = 100;

impl Server {
    fn new(max_clients: u16) -> Self {
        let mut server = Self {
            machine: Reservation::new(List::default()),
            actions: Vec::new(),
            opening: 0,
        };
        server.open(max_clients, true);
        server
    }

    fn open(&mut self, max_clients: u16, same: bool) {
        let terms = Terms {
            max_clients,
            lease_max_ms: 20_000,
        };
        self.opening = self.machine.open(terms, same, FRESH + 1);
    }

    fn login(&mut self, login: &Login<&'static str>) -> Decision {
        let order = (self.opening, self.machine.admitted());
        let actions = &mut self.actions;
        let mut act = |action| actions.push(action);
        self.machine.login(
            login,
            order,
            login.writes,
            10 * FRESH + login.session,
            &mut act,
        )
    }

    fn granted(&mut self, login: &Login<&'static str>) -> Granted {
        match self.login(login) {
            Decision::Grant(granted) => granted,
            other => panic!("{other:?}"),
        }
    }

    fn left(&mut self, session: u64, leaving: bool) {
        let actions = &mut self.actions;
        self.machine
            .left(session, leaving, &mut |action| actions.push(action));
    }

    fn withdraw(&mut self, session: u64) {
        let actions = &mut self.actions;
        self.machine
            .withdraw(session, &mut |action| actions.push(action));
    }

    fn confirm(&mut self, session: u64) {
        let actions = &mut self.actions;
        self.machine
            .confirm(session, &mut |action| actions.push(action));
    }

    /// Looks, when each session has had so many messages.
    fn look(&mut self, heard: u64) {
        let actions = &mut self.actions;
        self.machine
            .look(|_| heard, &mut |action| actions.push(action));
    }

    fn enforce(&mut self, rule: impl Fn(&&'static str) -> Admission) -> Option<u64> {
        let actions = &mut self.actions;
        let mut act = |action| actions.push(action);
        self.machine.enforce(rule, FRESH + 2, &mut act)
    }
}

fn login(host: &'static str, session: u64) -> Login<&'static str> {
    Login {
        session,
        host,
        map: 1,
        boot: 1,
        incarnation: 1,
        resume: None,
        path: 0,
        epoch: session,
        writes: true,
        no_path_timeout_ms: None,
        heartbeat_ms: 0,
        heard: 0,
    }
}

fn resumed(host: &'static str, session: u64, key: u64) -> Login<&'static str> {
    Login {
        resume: Some(key),
        ..login(host, session)
    }
}

const EVICTED: Decision = Decision::Refuse(Reason::Evicted);

#[test]
fn the_lease_begins_with_the_last_path() {
    let mut server = Server::new(1);
    let granted = server.granted(&login("a", 1));
    assert_eq!(granted.lease_ms, 20_000);
    let second = Login {
        path: 1,
        ..login("a", 2)
    };
    server.granted(&second);
    server.actions.clear();
    server.left(1, false);
    assert_eq!(server.actions, [Action::Retry(2)]);
    // It is not away: a timer that elapses late is none of its.
    server.machine.lapse(1);
    server.left(2, false);
    assert_eq!(server.actions.last(), Some(&Action::Arm(1, 20_000)));
    let busy = Decision::Refuse(Reason::Busy(1));
    assert_eq!(server.login(&login("b", 3)), busy);
    server.machine.lapse(1);
    server.granted(&login("b", 3));
    assert_eq!(server.login(&resumed("a", 4, granted.key)), EVICTED);
}

/// `Members` has room for one of each registration.
#[test]
fn the_lease_ends_with_the_registration() {
    let mut server = Server::new(1);
    server.granted(&login("a", 1));
    server.left(1, false);
    server.machine.lapse(1);
    server.actions.clear();
    server.granted(&login("b", 2));
    assert!(server.actions.contains(&Action::Disarm(1)));
}

/// The lease of a map that is not confirmed runs on while a path is up.
#[test]
fn the_lease_of_an_unconfirmed_map_ends_with_the_registration() {
    for (leaving, admission) in [(true, Admission::Write), (false, Admission::None)] {
        let mut server = Server::new(1);
        assert!(!server.granted(&resumed("b", 1, 7)).remembered);
        server.left(1, false);
        server.granted(&resumed("b", 2, 7));
        server.enforce(|_| admission);
        assert_eq!(server.actions.first(), Some(&Action::Arm(1, 20_000)));
        assert!(!server.actions.contains(&Action::Disarm(1)));
        server.left(2, leaving);
        assert!(server.machine.registrations().is_empty());
        assert_eq!(server.actions.last(), Some(&Action::Disarm(1)));
    }
}

#[test]
fn a_map_that_leaves_keeps_no_place() {
    let mut server = Server::new(1);
    server.granted(&login("a", 1));
    server.left(1, true);
    assert!(server.machine.registrations().is_empty());
    server.granted(&login("b", 2));
}

/// The client is told of a grant later, or not at all.
#[test]
fn a_grant_that_is_taken_back_leaves_nothing() {
    let mut server = Server::new(1);
    server.granted(&login("a", 1));
    server.withdraw(1);
    assert!(server.machine.registrations().is_empty());
    server.granted(&login("b", 2));
}

#[test]
fn a_grant_that_is_taken_back_leaves_another_path_and_its_lease() {
    let second = Login {
        path: 1,
        ..login("a", 2)
    };
    let mut server = Server::new(1);
    server.granted(&login("a", 1));
    server.granted(&second);
    server.withdraw(1);
    // The same login comes again.
    server.granted(&login("a", 1));
    server.withdraw(1);
    server.actions.clear();
    server.left(2, false);
    assert!(matches!(server.actions[..], [Action::Arm(1, _)]));
    assert_eq!(server.machine.registrations().len(), 1);
}

/// It is the same message if a path was to come up and could not, as if the map leaves.
#[test]
fn a_map_that_goes_on_after_its_logout_keeps_its_place() {
    let second = Login {
        path: 1,
        ..login("a", 2)
    };
    let begin = || {
        let mut server = Server::new(1);
        server.granted(&login("a", 1));
        server.granted(&second);
        server.left(2, true);
        server
    };
    let keeps = |mut server: Server| {
        server.left(1, false);
        server.machine.count_away() == 1
    };
    assert!(!keeps(begin()));
    // What came before the look may have come before the logout.
    let mut server = begin();
    server.look(1);
    server.look(1);
    assert!(!keeps(server));
    let mut server = begin();
    server.look(1);
    server.look(2);
    assert!(keeps(server));
    let mut server = begin();
    server.granted(&Login {
        session: 3,
        epoch: 3,
        ..second
    });
    server.left(3, false);
    assert!(keeps(server));
}

#[test]
fn who_is_evicted_does_not_come_back() {
    let mut server = Server::new(1);
    let key = server.granted(&login("a", 1)).key;
    let evict = |_: &&'static str| Admission::None;
    assert_eq!(server.enforce(evict), Some(1));
    // Nor before its sessions are over.
    assert_eq!(server.login(&resumed("a", 2, key)), EVICTED);
    server.left(1, false);
    assert_eq!(server.enforce(evict), None);
    assert_eq!(server.login(&resumed("a", 3, key)), EVICTED);
    assert_eq!(server.login(&login("a", 4)), EVICTED);
    server.granted(&Login {
        incarnation: 2,
        ..login("a", 5)
    });
    let evictions = |action: &&Action| **action == Action::CountEviction;
    assert_eq!(server.actions.iter().filter(evictions).count(), 1);
}

#[test]
fn who_is_evicted_from_a_shared_export_does_not_come_back() {
    let mut server = Server::new(3);
    let key = server.granted(&login("a", 1)).key;
    let other = server.granted(&login("b", 2));
    let evict_a = |host: &&'static str| match *host {
        "a" => Admission::None,
        _ => Admission::Write,
    };
    assert_eq!(server.enforce(evict_a), Some(1));
    assert_eq!(server.login(&resumed("a", 3, key)), EVICTED);
    server.left(1, false);
    assert_eq!(server.enforce(evict_a), None);
    assert_eq!(server.login(&resumed("a", 3, key)), EVICTED);
    // Nor by the first attempt of its second path.
    let second = Login {
        path: 1,
        ..login("a", 3)
    };
    assert_eq!(server.login(&second), EVICTED);
    // Nor when the export is enabled anew, with the same contents.
    server.left(2, false);
    server.machine.close();
    server.machine.closed(&mut |_| {});
    server.open(3, true);
    assert_eq!(server.login(&resumed("a", 4, key)), EVICTED);
    assert_eq!(server.granted(&resumed("b", 5, other.key)).key, other.key);
    // A map that was enabled since is another one, and so is one of another boot.
    let anew = Login {
        incarnation: 2,
        ..login("a", 6)
    };
    let key = server.granted(&anew).key;
    server.left(6, false);
    let back = Login {
        session: 7,
        epoch: 7,
        resume: Some(key),
        ..anew
    };
    server.granted(&back);
    server.left(7, true);
    server.granted(&Login {
        boot: 2,
        ..resumed("a", 8, key)
    });
}

/// The server remembers a few hosts. If more were evicted, it lets none resume that has no place.
#[test]
fn nobody_who_was_evicted_is_let_in_for_want_of_memory() {
    let hosts = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut server = Server::new(20);
    let stays = server.granted(&login("stays", 50)).key;
    for (session, host) in (1..).zip(hosts) {
        server.granted(&login(host, session));
    }
    let rule = |host: &&'static str| match *host {
        "stays" => Admission::Write,
        _ => Admission::None,
    };
    assert!(server.enforce(rule).is_some());
    for (session, host) in (1..).zip(hosts) {
        server.left(session, false);
        assert_eq!(server.login(&resumed(host, session + 20, stays)), EVICTED);
    }
    // Who has a place keeps it.
    server.left(50, false);
    server.granted(&resumed("stays", 51, stays));
}

#[test]
fn sessions_end_that_may_do_more_or_less_than_they_are_to() {
    let mut server = Server::new(2);
    server.granted(&login("a", 1));
    let reader = Login {
        writes: false,
        ..login("b", 2)
    };
    server.granted(&reader);
    assert_eq!(server.enforce(|_| Admission::Write), None);
    assert_eq!(server.enforce(|_| Admission::Read), Some(1));
    server.left(1, false);
    assert_eq!(server.enforce(|_| Admission::Read), None);
    assert_eq!(server.machine.count(|_| true), 1);
    assert_eq!(server.machine.count_away(), 1);
}

#[test]
fn what_the_server_remembers() {
    let mut server = Server::new(1);
    // It began anew: it takes the map's word, and says so.
    let granted = server.granted(&resumed("a", 1, 7));
    assert_eq!((granted.key, granted.remembered), (7, false));
    assert_eq!(server.machine.holder(), None);
    // The map may not have heard that, or mind it: only that it goes on proves that it had the
    // export.
    let second = Login {
        path: 1,
        ..resumed("a", 2, 7)
    };
    assert!(!server.granted(&second).remembered);
    server.left(2, false);
    server.left(1, false);
    assert!(!server.granted(&resumed("a", 3, 7)).remembered);
    assert_eq!(server.machine.holder(), None);
    server.left(3, true);
    // So another one may prove that it had it.
    assert!(!server.granted(&resumed("b", 4, 9)).remembered);
    server.confirm(4);
    assert_eq!(server.login(&resumed("a", 5, 7)), EVICTED);
    server.left(4, true);
    assert!(server.granted(&resumed("b", 6, 9)).remembered);
    server.left(6, true);
    assert_eq!(server.login(&resumed("a", 7, 7)), EVICTED);
    server.machine.restore(Some(7));
    assert!(server.granted(&resumed("a", 8, 7)).remembered);
    server.left(8, true);
    assert_eq!(server.login(&resumed("a", 3, 8)), EVICTED);
    // It is told.
    server.machine.restore(Some(8));
    assert_eq!(server.login(&resumed("a", 4, 7)), EVICTED);
    assert!(server.granted(&resumed("a", 5, 8)).remembered);
    server.left(5, true);
    // Other contents, and those that several could write, are nobody's.
    for (max_clients, same) in [(1, false), (2, true)] {
        server.machine.restore(Some(8));
        server.open(max_clients, same);
        server.open(1, true);
        assert_eq!(server.login(&resumed("a", 6, 8)), EVICTED);
    }
}

/// It says nothing on the path that came up without a key: the map has not been told there.
#[test]
fn only_the_session_that_was_told_confirms() {
    let mut server = Server::new(1);
    assert!(server.granted(&login("a", 1)).remembered);
    let second = Login {
        path: 1,
        ..resumed("a", 2, 7)
    };
    assert!(!server.granted(&second).remembered);
    server.confirm(1);
    assert_eq!(server.machine.holder(), None);
    server.confirm(2);
    assert_eq!(server.machine.holder(), Some(7));
    // The administrator's word comes between.
    let mut server = Server::new(1);
    server.granted(&resumed("b", 1, 7));
    server.left(1, false);
    assert!(!server.granted(&resumed("b", 2, 7)).remembered);
    server.machine.restore(Some(7));
    server.actions.clear();
    server.confirm(2);
    assert_eq!(server.actions, [Action::Disarm(1)]);
    server.confirm(2);
    assert_eq!(server.actions.len(), 1);
    assert_eq!(server.machine.holder(), Some(7));
}

#[test]
fn who_found_the_export_before_it_was_enabled_anew_is_late() {
    let mut server = Server::new(1);
    let order = (server.opening, 0);
    server.machine.close();
    server.open(1, true);
    let decision = server
        .machine
        .login(&login("a", 1), order, true, FRESH, &mut |_| {});
    assert_eq!(decision, Decision::Refuse(Reason::Closed));
}

/// Two lives of a map wait for a session of an earlier one, and the older one is woken first.
#[test]
fn the_newer_life_wins_even_if_the_other_waited_longer() {
    let mut server = Server::new(1);
    let life = |incarnation, session| Login {
        incarnation,
        ..login("a", session)
    };
    server.granted(&life(1, 1));
    let early = (server.opening, server.machine.admitted());
    assert_eq!(server.login(&life(2, 2)), Decision::After(1));
    assert_eq!(server.login(&life(3, 3)), Decision::After(1));
    server.left(1, false);
    server.granted(&life(2, 2));
    let mut act = |_| {};
    let newer = life(3, 3);
    let mut again = |server: &mut Server| {
        let machine = &mut server.machine;
        machine.login(&newer, early, true, 10 * FRESH + 3, &mut act)
    };
    assert_eq!(again(&mut server), Decision::After(2));
    server.left(2, false);
    assert!(matches!(again(&mut server), Decision::Grant(_)));
    // The older one is late, however often it asks.
    let machine = &mut server.machine;
    let older = machine.login(&life(2, 4), early, true, 10 * FRESH + 4, &mut |_| {});
    assert_eq!(older, Decision::Refuse(Reason::Superseded));
}

#[test]
fn several_maps_evict_nobody() {
    let mut server = Server::new(2);
    let one = server.granted(&login("a", 1));
    let other = server.granted(&resumed("b", 2, 9));
    assert_eq!((other.key, other.remembered), (9, true));
    server.left(1, false);
    assert_eq!(server.granted(&resumed("a", 3, one.key)).key, one.key);
    assert_eq!(
        server.login(&login("c", 4)),
        Decision::Refuse(Reason::Busy(1))
    );
}

/// After a restart of the server a map comes first that lost the export before, and none of its
/// attempts gets beyond the login.
#[test]
fn a_map_that_is_never_confirmed_does_not_keep_out_the_owner() {
    let mut server = Server::new(1);
    let busy = Decision::Refuse(Reason::Busy(1));
    for session in 1..5 {
        assert!(!server.granted(&resumed("b", session, 7)).remembered);
        assert_eq!(server.login(&resumed("a", 10, 9)), busy);
        server.left(session, false);
        assert_eq!(server.login(&resumed("a", 10, 9)), busy);
    }
    // The lease counts from the first time that it went away.
    assert_eq!(server.actions, [Action::Arm(1, 20_000)]);
    let mut goes_on = server.machine.clone();
    // It may elapse while an attempt is under way.
    server.granted(&resumed("b", 5, 7));
    server.machine.lapse(1);
    assert_eq!(server.login(&resumed("a", 10, 9)), busy);
    server.left(5, false);
    assert!(!server.granted(&resumed("a", 11, 9)).remembered);
    server.confirm(11);
    assert_eq!(server.login(&resumed("b", 12, 7)), EVICTED);
    // Once it is confirmed it has the whole lease.
    goes_on.lapse(1);
    server.machine = goes_on;
    server.granted(&resumed("b", 5, 7));
    server.actions.clear();
    server.confirm(5);
    assert_eq!(server.actions, [Action::Disarm(1)]);
    server.actions.clear();
    server.left(5, false);
    assert_eq!(server.actions, [Action::Arm(1, 20_000)]);
    assert_eq!(server.login(&login("c", 10)), busy);
}

#[test]
fn an_owner_comes_in_after_a_map_that_was_not_confirmed_is_evicted() {
    let mut server = Server::new(1);
    assert!(!server.granted(&resumed("b", 1, 7)).remembered);
    server.left(1, false);
    let rule = |host: &&'static str| match *host {
        "b" => Admission::None,
        _ => Admission::Write,
    };
    assert_eq!(server.enforce(rule), None);
    assert_eq!(server.login(&resumed("b", 2, 7)), EVICTED);
    assert!(!server.granted(&resumed("a", 3, 9)).remembered);
    server.confirm(3);
    assert_eq!(server.machine.holder(), Some(9));
    assert_eq!(server.login(&resumed("b", 4, 7)), EVICTED);
}
