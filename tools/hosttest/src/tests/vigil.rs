// SPDX-License-Identifier: GPL-2.0

//! For how long a poller looks for commands, by what it has learned.

use crate::server::block::vigil::Vigil;
use proptest::prelude::*;

const US: u64 = 1000;

fn after(limit_us: u32, pauses_us: impl IntoIterator<Item = u64>) -> Vigil {
    let mut vigil = Vigil::new(limit_us);
    for pause in pauses_us {
        vigil.note(pause * US);
    }
    vigil
}

#[test]
fn without_a_limit_it_never_looks_on() {
    assert!(!Vigil::new(0).is_on());
    assert_eq!(after(0, [0; 100]).patience_ns(), 0);
    assert_eq!(after(0, [u64::MAX / US]).patience_ns(), 0);
}

#[test]
fn it_sleeps_at_once_until_it_has_learned() {
    assert!(Vigil::new(20).is_on());
    assert_eq!(Vigil::new(20).patience_ns(), 0);
    assert_eq!(after(20, [1000; 50]).patience_ns(), 0);
}

/// A stream of single commands is noticed after some of them.
#[test]
fn it_looks_on_while_commands_come_in_close_together() {
    let vigil = after(20, [8; 8]);
    assert!((16 * US..=20 * US).contains(&vigil.patience_ns()));
    let vigil = after(20, [1; 40]);
    assert!((2 * US..=3 * US).contains(&vigil.patience_ns()));
}

/// What was learned in a busy hour does not hold for long, nor what was learned in a quiet one.
#[test]
fn it_learns_anew_within_some_commands() {
    let mut vigil = after(20, [2; 1000]);
    assert!(vigil.patience_ns() > 0);
    for _ in 0..4 {
        vigil.note(3_600_000_000 * US);
    }
    assert_eq!(vigil.patience_ns(), 0);
    for _ in 0..8 {
        vigil.note(2 * US);
    }
    assert!(vigil.patience_ns() > 0);
}

proptest! {
    #[test]
    fn it_never_looks_on_for_longer_than_the_limit(
        limit_us in 0..=10_000_u32,
        pauses in proptest::collection::vec(any::<u64>(), 0..100),
    ) {
        let mut vigil = Vigil::new(limit_us);
        for pause in pauses {
            vigil.note(pause);
            prop_assert!(vigil.patience_ns() <= u64::from(limit_us) * US);
        }
    }
}
