// SPDX-License-Identifier: GPL-2.0

//! Worlds in which hosts compete for an export, or the administrator changes what they may do.

use super::{fails, holds, is_found, rules};
use crate::tests::session::model::{Flaw, Job, Kind, Rules};
use Job::{Read, Write};

/// A host that may only read from some point on.
fn demotion() -> Rules {
    Rules {
        demotion: true,
        losses: 1,
        ..rules(Kind::Block, 1, &[Write, Write])
    }
}

/// Two hosts, one of which takes the place of the other, comes and goes.
fn rivals() -> Rules {
    Rules {
        clients: 2,
        losses: 1,
        ..rules(Kind::Block, 1, &[Write, Write])
    }
}

#[test]
fn a_host_that_may_only_read_from_now_on() {
    holds(demotion());
}

#[test]
fn two_paths_of_such_a_host() {
    holds(Rules {
        attempts: 2,
        ..rules(Kind::Block, 2, &[Write]).demoted()
    });
}

impl Rules {
    fn demoted(self) -> Self {
        Self {
            demotion: true,
            ..self
        }
    }
}

#[test]
fn two_clients_and_a_client_that_crashes() {
    holds(Rules {
        client_crashes: 1,
        attempts: 2,
        ..rivals()
    });
}

#[test]
fn an_export_of_several_maps() {
    holds(Rules {
        clients: 2,
        max_clients: 2,
        client_crashes: 1,
        losses: 1,
        attempts: 2,
        ..rules(Kind::Block, 1, &[Read])
    });
}

#[test]
fn an_export_that_is_full() {
    holds(Rules {
        clients: 3,
        max_clients: 2,
        losses: 1,
        attempts: 2,
        ..rules(Kind::Block, 1, &[Read])
    });
}

#[test]
fn hosts_that_are_told_apart_by_their_word_are_found() {
    is_found(Flaw::OneHost, rivals());
}

#[test]
fn a_rule_for_later_logins_only_is_found() {
    is_found(Flaw::LaterLogins, demotion());
}

/// As sessions.rst says of a server that began anew twice.
fn two_restarts() -> Rules {
    Rules {
        server_crashes: 2,
        attempts: 3,
        ..forgetful()
    }
}

#[test]
fn two_restarts_within_one_lease_are_one_too_many() {
    fails(two_restarts());
}

#[test]
fn two_restarts_and_an_administrator_who_waits_for_the_leases() {
    holds(Rules {
        grace: true,
        ..two_restarts()
    });
}

/// Two hosts, and a server that forgets which of them had the export last.
fn forgetful() -> Rules {
    Rules {
        clients: 2,
        losses: 1,
        server_crashes: 1,
        attempts: 2,
        ..rules(Kind::Block, 1, &[Write])
    }
}

#[test]
fn a_missing_lease_is_found() {
    is_found(Flaw::NoLease, forgetful());
}

#[test]
fn a_server_that_pretends_to_remember_is_found() {
    is_found(Flaw::Remembers, forgetful());
}

/// A map may log in again before it hears that it was let in. So it may on a second path, but that
/// makes ten times as many worlds.
fn again() -> Rules {
    Rules {
        losses: 2,
        attempts: 3,
        ..forgetful()
    }
}

#[test]
fn a_map_that_hears_late_that_it_was_let_in() {
    holds(again());
}

#[test]
fn a_second_login_that_is_remembered_is_found() {
    is_found(Flaw::RemembersSecond, again());
}
