// SPDX-License-Identifier: GPL-2.0

//! Many hosts over some time, of which some let go of nothing before they are given up.

use super::World;
use crate::server::memory::overdue::OVERDUE_MS;
use crate::session::{
    budget::RESERVED_MIN,
    chunks::{CHUNK, PIECE_MIN},
};

/// A small generator of numbers, so that a run can be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// Ticks after which the HCA gives up a host that is silent, and memory comes back.
const GIVEN_UP: usize = 300;
/// Ticks that a command of a good host takes, at most.
const TAKES: usize = 3;

/// Ticks of the arbiter's clock, which is one second.
const SECOND: usize = GIVEN_UP * 10 / 147;

/// Runs 24 hosts, of which the first `silent` let go of nothing before they are given up, and ask
/// again at once. Commands of good hosts are one of `lens`. Returns how long one of them waited.
/// With `overdue` the server ends who keeps memory for [`OVERDUE_MS`] that others are in need of.
/// With `strangers` all hosts have the same account.
fn longest_wait(
    silent: usize,
    lens: &[usize],
    ticks: usize,
    overdue: bool,
    strangers: bool,
) -> usize {
    const HOSTS: usize = 24;
    const EACH: usize = 4;
    let mut world = World::with(8, &[RESERVED_MIN; HOSTS], EACH, strangers);
    let mut numbers = Numbers(silent as u64);
    // Of each requester: since when it wants how much; what it has, and until when.
    let mut wants = vec![None; HOSTS * EACH];
    let mut has = (0..HOSTS * EACH).map(|_| None).collect::<Vec<_>>();
    let mut longest = 0;
    for now in 0..ticks {
        if overdue && now % SECOND == 0 {
            world.accounts.elapse();
            world.look();
            for (requester, has) in has.iter_mut().enumerate().take(silent * EACH) {
                let held = world.accounts.held(world.requesters[requester].2);
                if !world.accounts.is_in_need(held) {
                    continue;
                }
                if let Some((until, _)) = has {
                    let since = *until - GIVEN_UP;
                    if now - since >= SECOND * OVERDUE_MS as usize / 1000 {
                        *until = now;
                    }
                }
            }
        }
        for requester in 0..HOSTS * EACH {
            let is_silent = requester / EACH < silent;
            match has[requester].take() {
                Some((until, piece)) if until <= now => world.put(requester, piece),
                Some(still) => {
                    has[requester] = Some(still);
                    continue;
                }
                None => {}
            }
            let (since, len) = *wants[requester].get_or_insert_with(|| {
                let len = match is_silent {
                    true => [PIECE_MIN, RESERVED_MIN, CHUNK][numbers.below(3)],
                    false => lens[numbers.below(lens.len())],
                };
                (now, len)
            });
            if let Some(piece) = world.ask(requester, len) {
                wants[requester] = None;
                let takes = match is_silent {
                    true => GIVEN_UP,
                    false => 1 + numbers.below(TAKES),
                };
                has[requester] = Some((now + takes, piece));
                if !is_silent {
                    longest = longest.max(now - since);
                }
            }
        }
        if now % 16 == 0 {
            for (since, _) in wants.iter().skip(silent * EACH).flatten() {
                longest = longest.max(now - since);
            }
        }
    }
    longest
}

/// What fits the own memory of an account waits for the other commands of that account at most.
#[test]
fn silent_hosts_keep_only_themselves_waiting() {
    for silent in [0, 1, 8, 23] {
        let longest = longest_wait(
            silent,
            &[PIECE_MIN, RESERVED_MIN / 2, RESERVED_MIN],
            1500,
            false,
            false,
        );
        assert!(
            longest <= 4 * (TAKES + 1),
            "{longest} ticks, {silent} silent"
        );
    }
}

/// Nothing is starved if all give back what they have, however large it is.
#[test]
fn large_commands_are_not_starved() {
    let lens = [PIECE_MIN, RESERVED_MIN, CHUNK, CHUNK];
    let mut few = [2 * RESERVED_MIN; 16];
    few[0] = CHUNK;
    for lens in [&lens[..], &few] {
        let longest = longest_wait(0, lens, 5000, false, false);
        // Each round of the accounts takes no longer than that of single commands, in 8 chunks.
        assert!(longest <= 4 * 24 * (TAKES + 1), "{longest} ticks");
    }
}

/// A large command waits until hosts that are silent are given up, once for each that came before.
#[test]
fn large_commands_come_after_those_before() {
    let longest = longest_wait(8, &[PIECE_MIN, CHUNK], 8000, false, false);
    assert!(longest <= 8 * GIVEN_UP, "{longest} ticks");
}

/// The server does not let it wait so long: hosts that are silent lose what they have as soon as
/// others are in need, though they come back at once, and there are up to twice as many of them as
/// it takes to have all memory. So it is with hosts that have no entry.
#[test]
fn overdue_hosts_are_not_waited_for() {
    // The commands of an account go one by one. While each waits, each silent host has its turn
    // once, eight at the same time: it is overdue, and the next look but one finds that.
    const TURN: usize = 4 * (OVERDUE_MS as usize + 2000) * SECOND / 1000;
    let cases = [1, 8, 16].map(|silent| [(silent, false), (silent, true)]);
    for (silent, strangers) in cases.into_iter().flatten() {
        for lens in [&[PIECE_MIN, CHUNK][..], &[2 * RESERVED_MIN], &[CHUNK]] {
            let longest = |overdue| longest_wait(silent, lens, 5000, overdue, strangers);
            let [before, now] = [false, true].map(longest);
            println!("{silent} silent, {lens:?}: {now} ticks, not {before}; {SECOND} a second");
            assert!(
                now <= TURN * silent.div_ceil(8),
                "{now} ticks, {silent} silent, strangers: {strangers}"
            );
        }
    }
}
