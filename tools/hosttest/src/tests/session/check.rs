// SPDX-License-Identifier: GPL-2.0

//! Every world that the model checker can reach.

mod reservation;

use super::model::{Elsewhere, Flaw, Job, Kind, Rules};
use stateright::{Checker, HasDiscoveries, Model};

fn rules(kind: Kind, paths: u8, jobs: &[Job]) -> Rules {
    Rules {
        kind,
        clients: 1,
        paths,
        users: 1,
        jobs: jobs.to_vec(),
        losses: 0,
        duplicates: 0,
        client_crashes: 0,
        server_crashes: 0,
        closes: 0,
        expiries: 0,
        max_clients: 1,
        grace: false,
        demotion: false,
        elsewhere: None,
        overlap: false,
        uncleans: 0,
        resizes: 0,
        removals: 0,
        disables: 0,
        attempts: 3,
        flaw: None,
    }
}

/// Nothing is wrong in any state. Depth first, as few states wait to be looked at then.
fn holds(rules: Rules) {
    let start = std::time::Instant::now();
    let checker = rules.clone().checker().threads(2).spawn_dfs().join();
    let seconds = start.elapsed().as_secs_f32();
    eprintln!("{} states, {seconds:.1} s", checker.unique_state_count());
    if !checker.discoveries().is_empty() {
        // The shortest way there is easier to read.
        rules.checker().spawn_bfs().join().assert_properties();
    }
    checker.assert_properties();
}

/// The checker finds what is wrong with flawed machines.
fn is_found(flaw: Flaw, rules: Rules) {
    fails(Rules {
        flaw: Some(flaw),
        ..rules
    });
}

/// The checker finds something wrong.
fn fails(rules: Rules) {
    let start = std::time::Instant::now();
    let flaw = rules.flaw;
    let found = ["nothing is wrong", "what is complete is there"];
    let checker = rules
        .checker()
        .finish_when(HasDiscoveries::AnyOf(found.into()))
        .threads(2)
        .spawn_dfs()
        .join();
    let seconds = start.elapsed().as_secs_f32();
    let states = checker.unique_state_count();
    eprintln!("{flaw:?}: {states} states, {seconds:.1} s");
    let is_found = found.iter().any(|name| checker.discovery(name).is_some());
    assert!(is_found, "{flaw:?} is not found");
}

use Job::{Flush, OtherClose, OtherFlush, Read, Reopen, Write};

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
fn two_users_and_a_cache() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush, OtherFlush, Flush]);
    holds(Rules {
        users: 2,
        server_crashes: 2,
        ..rules
    });
}

#[test]
fn users_that_close_a_disk_with_a_cache() {
    let jobs = [Write, OtherFlush, Reopen, Flush, OtherClose, Reopen, Flush];
    holds(Rules {
        users: 2,
        server_crashes: 2,
        ..rules(Kind::CachedBlock, 1, &jobs)
    });
    let jobs = [Write, Reopen, Flush, Reopen, Flush];
    holds(Rules {
        server_crashes: 2,
        ..rules(Kind::CachedBlock, 1, &jobs)
    });
}

#[test]
fn an_export_that_is_disabled_and_enabled() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush, Write, Flush]);
    holds(Rules {
        closes: 2,
        attempts: 4,
        ..rules
    });
}

#[test]
fn an_export_that_is_disabled_and_crashes() {
    let rules = rules(Kind::CachedBlock, 2, &[Write, Flush]);
    holds(Rules {
        closes: 1,
        server_crashes: 1,
        attempts: 2,
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
        attempts: 2,
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
fn a_missing_key_is_found() {
    is_found(
        Flaw::NoKey,
        Rules {
            clients: 2,
            losses: 2,
            attempts: 2,
            ..rules(Kind::Block, 1, &[Write])
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

#[test]
fn a_path_to_another_server() {
    for elsewhere in [Elsewhere::Admits, Elsewhere::Denies] {
        holds(Rules {
            elsewhere: Some(elsewhere),
            losses: 1,
            attempts: 2,
            ..rules(Kind::Block, 2, &[Write, Read])
        });
    }
}

#[test]
fn two_paths_and_impatience() {
    holds(Rules {
        losses: 2,
        expiries: 1,
        attempts: 2,
        ..rules(Kind::Block, 2, &[Write, Read])
    });
}

#[test]
fn a_device_that_does_not_drain() {
    holds(Rules {
        losses: 1,
        uncleans: 1,
        overlap: true,
        attempts: 2,
        ..rules(Kind::Block, 2, &[Write, Read, Write])
    });
}

#[test]
fn an_export_that_is_resized() {
    holds(Rules {
        losses: 1,
        resizes: 2,
        server_crashes: 1,
        attempts: 2,
        ..rules(Kind::Block, 2, &[])
    });
}

#[test]
fn paths_that_are_removed_and_a_map_that_is_disabled() {
    holds(Rules {
        removals: 1,
        disables: 1,
        attempts: 2,
        ..rules(Kind::Block, 2, &[Write])
    });
}

#[test]
fn a_missing_server_id_is_found() {
    is_found(
        Flaw::NoServerId,
        Rules {
            elsewhere: Some(Elsewhere::Admits),
            ..rules(Kind::Block, 2, &[Write, Read])
        },
    );
}

#[test]
fn an_expiry_beside_a_path_is_found() {
    is_found(
        Flaw::ExpiryWithPath,
        Rules {
            losses: 1,
            expiries: 1,
            attempts: 2,
            ..rules(Kind::Block, 2, &[Write, Read])
        },
    );
}

#[test]
fn a_missing_order_of_extents_is_found() {
    is_found(
        Flaw::NoExtentOrder,
        Rules {
            resizes: 1,
            ..rules(Kind::Block, 2, &[])
        },
    );
}

#[test]
fn a_drain_that_is_taken_for_clean_is_found() {
    is_found(
        Flaw::UncleanIsClean,
        Rules {
            losses: 1,
            uncleans: 1,
            overlap: true,
            attempts: 2,
            ..rules(Kind::Block, 2, &[Write, Read, Write])
        },
    );
}

#[test]
fn a_missing_flush_at_close_is_found() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush]);
    is_found(Flaw::NoFlushAtClose, Rules { closes: 1, ..rules });
}

#[test]
fn a_flush_before_the_last_command_is_found() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush]);
    is_found(
        Flaw::FlushBeforeDrain,
        Rules {
            closes: 1,
            server_crashes: 1,
            ..rules
        },
    );
}

#[test]
fn a_flush_of_an_earlier_opening_is_found() {
    let rules = rules(Kind::CachedBlock, 2, &[Write, Flush]);
    is_found(
        Flaw::NoFlushedOrder,
        Rules {
            closes: 1,
            server_crashes: 1,
            attempts: 2,
            ..rules
        },
    );
}

#[test]
fn a_loss_that_is_told_once_is_found() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Flush, OtherFlush]);
    is_found(
        Flaw::OneFlushFails,
        Rules {
            users: 2,
            server_crashes: 1,
            ..rules
        },
    );
}

#[test]
fn a_loss_that_is_forgotten_is_found() {
    let rules = rules(Kind::CachedBlock, 1, &[Write, Reopen, Flush]);
    is_found(
        Flaw::ForgottenAtClose,
        Rules {
            server_crashes: 1,
            ..rules
        },
    );
}
