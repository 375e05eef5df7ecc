// SPDX-License-Identifier: GPL-2.0

//! Receives of a shared receive queue.

use crate::server::memory::receives::Receives;
use proptest::prelude::*;

#[test]
fn no_more_is_promised_than_there_is_room_for() {
    let mut receives = Receives::new(48, 16);
    assert_eq!(receives.promise(16), Some(32));
    assert_eq!(receives.available(), 16);
    assert_eq!(receives.promise(17), None);
    assert_eq!(receives.promise(16), Some(16));
    assert_eq!(receives.promise(1), None);
    receives.withdraw(16);
    // They are there still.
    assert_eq!(receives.promise(16), Some(0));
    assert_eq!(Receives::new(8, 16).promise(0), None);
    assert_eq!(Receives::new(8, 16).available(), 0);
    assert_eq!(receives.promise(u32::MAX), None);
}

#[test]
fn surplus_goes_when_it_comes_back() {
    let mut receives = Receives::new(64, 4);
    assert_eq!(receives.promise(8), Some(12));
    assert!(receives.keep());
    receives.withdraw(2);
    assert_eq!([receives.keep(), receives.keep()], [false, false]);
    assert!(receives.keep());
    assert_eq!(receives.promise(2), Some(2));
}

#[test]
fn what_could_not_be_made_is_made_for_the_next_one() {
    let mut receives = Receives::new(64, 4);
    assert_eq!(receives.promise(8), Some(12));
    // Two promises at a time, and the first one fails.
    assert_eq!(receives.promise(8), Some(8));
    receives.lose(5);
    receives.withdraw(8);
    assert_eq!(receives.promise(8), Some(5));
}

#[test]
fn what_may_be_missing_is_not_counted_on() {
    let mut receives = Receives::new(48, 16);
    assert_eq!(receives.promise(16), Some(32));
    receives.withdraw(16);
    receives.miss();
    assert_eq!(receives.available(), 31);
    assert_eq!(receives.promise(16), Some(1));
}

proptest! {
    /// Whatever happens in whatever order, there are as many receives as are promised, and no more
    /// than the queue takes.
    #[test]
    fn never_dry_and_never_over_full(
        spare in 0u32..20,
        moves in prop::collection::vec((0u8..7, 0u32..40), 0..200),
    ) {
        const MOST: u32 = 100;
        let mut receives = Receives::new(MOST, spare);
        // Receives in the queue or at work, and those that callers are about to make, each for its
        // promise.
        let (mut there, mut making, mut promises) = (0, Vec::new(), Vec::new());
        // Those that are lost and take room, and how often that was possible.
        let (mut lost, mut missed) = (0, 0);
        for (what, number) in moves {
            match what {
                0 | 1 => {
                    let promised: u32 = promises.iter().chain(making.iter().map(|(p, _)| p)).sum();
                    let missing = receives.promise(number);
                    prop_assert_eq!(missing.is_some(), promised + spare + number + missed <= MOST);
                    making.extend(missing.map(|missing| (number, missing)));
                }
                2 if !making.is_empty() => {
                    let (promise, missing) = making.remove(number as usize % making.len());
                    there += missing;
                    promises.push(promise);
                }
                3 if !making.is_empty() => {
                    let (promise, missing) = making.remove(number as usize % making.len());
                    let failed = number.min(missing);
                    there += missing - failed;
                    receives.lose(failed);
                    receives.withdraw(promise);
                }
                4 if !promises.is_empty() => {
                    receives.withdraw(promises.remove(number as usize % promises.len()));
                }
                5 if promises.iter().any(|promise| *promise > 0) => {
                    let place = promises.iter().position(|promise| *promise > 0);
                    receives.withdraw(promises.remove(place.unwrap_or(0)));
                    receives.miss();
                    missed += 1;
                    lost += number % 2;
                    there -= number % 2;
                }
                6 if there > 0 => there -= u32::from(!receives.keep()),
                _ => {}
            }
            let made: u32 = making.iter().map(|(_, missing)| missing).sum();
            prop_assert!(there + made + lost <= MOST);
            let promised: u32 = promises.iter().sum();
            prop_assert!(promises.is_empty() || there >= promised);
        }
    }
}
