// SPDX-License-Identifier: GPL-2.0

//! Every world that the model checker can reach.

use super::model::{Flaw, Job, Kind, Rules};
use stateright::{Checker, Model};

fn rules(kind: Kind, paths: u8, jobs: &[Job]) -> Rules {
    Rules {
        kind,
        clients: 1,
        paths,
        jobs: jobs.to_vec(),
        losses: 0,
        duplicates: 0,
        client_crashes: 0,
        server_crashes: 0,
        expiries: 0,
        max_clients: 1,
        demotion: false,
        attempts: 3,
        flaw: None,
    }
}

fn holds(rules: Rules) {
    let checker = rules.checker().threads(2).spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The checker finds what is wrong with flawed machines.
fn is_found(flaw: Flaw, rules: Rules) {
    let checker = Rules {
        flaw: Some(flaw),
        ..rules
    }
    .checker()
    .threads(2)
    .spawn_bfs()
    .join();
    eprintln!("{flaw:?}: {} states", checker.unique_state_count());
    assert!(
        checker.discovery("nothing is wrong").is_some()
            || checker.discovery("what is complete is there").is_some(),
        "{flaw:?} is not found"
    );
}

use Job::{Flush, Read, Write};

#[test]
fn one_path() {
    holds(Rules {
        losses: 2,
        duplicates: 1,
        ..rules(Kind::Block, 1, &[Write, Read, Write])
    });
}

#[test]
fn one_path_and_crashes() {
    let rules = rules(Kind::Block, 1, &[Write, Write]);
    holds(Rules {
        losses: 1,
        client_crashes: 1,
        server_crashes: 1,
        ..rules
    });
}

#[test]
fn one_path_and_impatience() {
    let rules = rules(Kind::Block, 1, &[Write, Write, Read]);
    holds(Rules {
        losses: 2,
        expiries: 1,
        ..rules
    });
}

#[test]
fn a_cache() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush, Write, Flush]);
    holds(Rules {
        losses: 1,
        server_crashes: 2,
        ..rules
    });
}

#[test]
fn flushes_together() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush, Flush]);
    holds(Rules {
        server_crashes: 1,
        ..rules
    });
}

#[test]
fn two_paths_and_a_cache() {
    let rules = rules(Kind::CachedBlock, 2, &[Write, Flush]);
    holds(Rules {
        losses: 1,
        server_crashes: 1,
        attempts: 2,
        ..rules
    });
}

#[test]
fn ram() {
    let rules = rules(Kind::Ram, 1, &[Write, Read, Write]);
    holds(Rules {
        losses: 1,
        server_crashes: 1,
        ..rules
    });
}

#[test]
fn two_paths() {
    holds(Rules {
        losses: 2,
        attempts: 2,
        ..rules(Kind::Block, 2, &[Write, Read, Write])
    });
}

#[test]
fn two_clients() {
    let rules = rules(Kind::Block, 1, &[Write, Write]);
    holds(Rules {
        clients: 2,
        losses: 2,
        ..rules
    });
}

#[test]
fn two_clients_and_a_crash() {
    let rules = rules(Kind::Block, 1, &[Write, Write]);
    holds(Rules {
        clients: 2,
        losses: 1,
        expiries: 1,
        server_crashes: 1,
        ..rules
    });
}

#[test]
fn two_paths_and_a_crash_of_the_client() {
    let rules = rules(Kind::Block, 2, &[Write, Write]);
    holds(Rules {
        client_crashes: 1,
        attempts: 1,
        ..rules
    });
}

#[test]
fn two_paths_and_a_crash_of_the_server() {
    let rules = rules(Kind::Block, 2, &[Write, Write]);
    holds(Rules {
        losses: 1,
        server_crashes: 1,
        attempts: 2,
        ..rules
    });
}

#[test]
fn two_paths_of_ram() {
    let rules = rules(Kind::Ram, 2, &[Write, Read]);
    holds(Rules {
        losses: 1,
        expiries: 1,
        server_crashes: 1,
        attempts: 2,
        ..rules
    });
}

#[test]
fn a_missing_fence_is_found() {
    is_found(
        Flaw::NoFence,
        Rules {
            losses: 1,
            ..rules(Kind::Block, 2, &[Write, Write])
        },
    );
}

#[test]
fn an_early_replay_is_found() {
    is_found(
        Flaw::ReplayBeforeFence,
        Rules {
            losses: 1,
            ..rules(Kind::Block, 2, &[Write, Write])
        },
    );
}

#[test]
fn missing_epochs_are_found() {
    is_found(
        Flaw::NoEpochs,
        Rules {
            losses: 1,
            ..rules(Kind::Block, 1, &[Write, Write])
        },
    );
}

#[test]
fn a_fence_in_flight_is_found() {
    is_found(
        Flaw::FenceInFlight,
        Rules {
            losses: 1,
            ..rules(Kind::Block, 2, &[Write, Write])
        },
    );
}

#[test]
fn a_missing_instance_is_found() {
    let rules = rules(Kind::Ram, 1, &[Write, Read]);
    is_found(
        Flaw::NoInstance,
        Rules {
            server_crashes: 1,
            ..rules
        },
    );
}

#[test]
fn a_missing_tenure_is_found() {
    let rules = rules(Kind::Block, 1, &[Write, Write]);
    is_found(
        Flaw::NoTenure,
        Rules {
            clients: 2,
            losses: 2,
            ..rules
        },
    );
}

#[test]
fn a_missing_verifier_is_found() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush]);
    is_found(
        Flaw::NoVerifier,
        Rules {
            server_crashes: 1,
            ..rules
        },
    );
}
