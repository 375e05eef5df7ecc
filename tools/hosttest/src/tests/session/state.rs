// SPDX-License-Identifier: GPL-2.0

//! The states of a map.

use crate::session::{Event, State};
use Event::*;
use State::*;

const EVENTS: [Event; 6] = [Enable, Connected, Refused, InstanceDiffers, Lost, Disable];

/// Every legal move; all others change nothing.
const MOVES: [(State, Event, State); 10] = [
    (Disabled, Enable, Connecting),
    (Stale, Enable, Connecting),
    (Connecting, Connected, Live),
    (Connecting, Refused, Disabled),
    (Connecting, InstanceDiffers, Stale),
    (Connecting, Lost, Failed),
    (Live, Lost, Failed),
    (Live, Disable, Disabled),
    (Failed, Disable, Disabled),
    (Stale, Disable, Disabled),
];

#[test]
fn only_the_legal_moves() {
    for state in State::ALL {
        for event in EVENTS {
            let expected = MOVES
                .iter()
                .find(|(from, by, _)| (*from, *by) == (state, event))
                .map(|(_, _, to)| *to);
            assert_eq!(state.next(event), expected, "{state} {event:?}");
        }
    }
}

#[test]
fn every_state_leads_back_to_disabled() {
    for state in State::ALL {
        let mut reached = vec![state];
        let mut index = 0;
        while let Some(from) = reached.get(index).copied() {
            for to in EVENTS.iter().filter_map(|event| from.next(*event)) {
                if !reached.contains(&to) {
                    reached.push(to);
                }
            }
            index += 1;
        }
        assert!(reached.contains(&Disabled), "{state}");
    }
}
