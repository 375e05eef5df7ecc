// SPDX-License-Identifier: GPL-2.0

//! Who gets the memory for commands, with the memory as `server/memory/pool.rs` has it.

use std::collections::{BTreeSet, VecDeque};

use crate::server::memory::{
    arbiter::{Account, Arbiter, Memory, Requester},
    buddy::{self, bytes_for, Chunk, Pool, CHUNK, PIECE_MIN},
    share::{may_hold, own_len, OWN_MIN},
};
use proptest::prelude::*;
use proptest::sample::Index;

type Chunks = Vec<Option<Box<Chunk>>>;

#[derive(Debug)]
enum Piece {
    Own(buddy::Piece),
    Common(buddy::Piece),
}

struct Pools {
    common: Pool<Chunks>,
    used: usize,
    owns: Vec<Option<Pool<Chunks>>>,
}

impl Memory for Pools {
    type Piece = Piece;

    fn take_own(&mut self, account: usize, len: usize) -> Option<Piece> {
        self.owns[account].as_mut()?.alloc(len).map(Piece::Own)
    }

    fn take_common(&mut self, len: usize) -> Option<Piece> {
        let piece = self.common.alloc(len)?;
        self.used += piece.bytes();
        Some(Piece::Common(piece))
    }

    fn left(&self) -> usize {
        self.common.count() * CHUNK - self.used
    }
}

fn pool(chunks: usize) -> Pool<Chunks> {
    let mut pool = Pool::new(vec![None; chunks]);
    for _ in 0..chunks {
        pool.add(Box::default()).unwrap();
    }
    pool
}

/// An account's own memory.
fn own(len: usize) -> Pool<Chunks> {
    let mut pool = pool(1);
    assert_eq!(pool.withhold(len), CHUNK - len);
    pool
}

/// The arbiter and its memory; a requester's poller has the requester's number.
struct World {
    arbiter: Arbiter<Vec<Option<Account>>, Vec<Option<Requester<Piece>>>>,
    memory: Pools,
    /// The account of each requester.
    accounts: Vec<usize>,
    /// The requesters that were told, and have not asked again.
    told: BTreeSet<usize>,
    /// What each account waits for, in order.
    lines: Vec<VecDeque<usize>>,
}

impl World {
    /// Common memory of `chunks`, and accounts with `own` bytes of their own, which have
    /// `requesters` each.
    fn new(chunks: usize, owns: &[usize], requesters: usize) -> Self {
        let mut arbiter = Arbiter::new(Vec::new(), Vec::new());
        let all = owns.len() * requesters;
        arbiter.widen_accounts(vec![None; owns.len()]);
        arbiter.widen_requesters((0..all).map(|_| None).collect());
        let accounts = (0..all).map(|index| index / requesters).collect::<Vec<_>>();
        for index in 0..owns.len() {
            assert_eq!(arbiter.add_account(), Some(index));
        }
        assert_eq!(arbiter.add_account(), None);
        for (index, account) in accounts.iter().enumerate() {
            assert_eq!(arbiter.add_requester(*account, index), Some(index));
        }
        assert_eq!(arbiter.add_requester(0, 0), None);
        let owns = owns.iter().map(|len| (*len > 0).then(|| own(*len)));
        let memory = Pools {
            common: pool(chunks),
            used: 0,
            owns: owns.collect(),
        };
        Self {
            arbiter,
            memory,
            accounts,
            told: BTreeSet::new(),
            lines: vec![VecDeque::new(); all / requesters],
        }
    }

    /// Notes who was told, which has to be the first of its account.
    fn note(&mut self, told: Vec<usize>) {
        for requester in told {
            assert!(self.told.insert(requester), "{requester} is told twice");
            let first = self.lines[self.accounts[requester]].pop_front();
            assert_eq!(first, Some(requester), "not the first one");
        }
    }

    fn ask(&mut self, requester: usize, len: usize) -> Option<Piece> {
        let (mut told, before) = (Vec::new(), self.arbiter.asked(requester));
        let ready = self.told.remove(&requester);
        let got = self
            .arbiter
            .ask(requester, len, &mut self.memory, &mut |poller| {
                told.push(poller)
            });
        assert!(!ready || got.is_some(), "told, and there is nothing");
        if got.is_none() && before.is_none() {
            self.lines[self.accounts[requester]].push_back(requester);
        }
        self.note(told);
        self.check();
        got
    }

    fn put(&mut self, requester: usize, piece: Piece) {
        let account = self.accounts[requester];
        let own = match piece {
            Piece::Own(piece) => {
                self.memory.owns[account].as_mut().unwrap().free(piece);
                Some(account)
            }
            Piece::Common(piece) => {
                self.memory.used -= piece.bytes();
                self.arbiter.discharge(account, piece.bytes());
                self.memory.common.free(piece);
                None
            }
        };
        self.serve(own);
    }

    fn serve(&mut self, own: Option<usize>) {
        let mut told = Vec::new();
        self.arbiter
            .serve(own, &mut self.memory, &mut |poller| told.push(poller));
        self.note(told);
        self.check();
    }

    fn cancel(&mut self, requester: usize) {
        self.told.remove(&requester);
        let account = self.accounts[requester];
        self.lines[account].retain(|other| *other != requester);
        match self.arbiter.cancel(requester) {
            Some(piece) => self.put(requester, piece),
            None => self.serve(Some(account)),
        }
        assert_eq!(self.arbiter.asked(requester), None);
    }

    /// Nobody waits for what is there.
    fn check(&mut self) {
        let waiting = self.lines.iter().map(VecDeque::len).sum::<usize>();
        assert_eq!(self.arbiter.waiting(), waiting);
        let mut may = 0;
        for (account, line) in self.lines.iter().enumerate() {
            let Some(first) = line.front() else { continue };
            let len = self.arbiter.asked(*first).unwrap();
            let own = self.memory.take_own(account, len);
            assert!(own.is_none(), "{first} waits for own memory that is there");
            let held = self.arbiter.held(account);
            may += usize::from(may_hold(held, bytes_for(len), self.memory.left()));
        }
        assert_eq!(self.arbiter.is_short(), may > 0);
        let held = (0..self.lines.len()).map(|account| self.arbiter.held(account));
        assert_eq!(held.sum::<usize>(), self.memory.used);
    }
}

/// Hosts that never give anything back, whatever they ask for and however often, keep no command
/// waiting that fits the own memory of its account.
#[test]
fn own_memory_waits_for_nobody() {
    for len in [PIECE_MIN, OWN_MIN, 4 * OWN_MIN, CHUNK] {
        let mut world = World::new(4, &[OWN_MIN; 9], 16);
        for round in 0..16 {
            for host in 0..8 {
                let requester = host * 16 + round;
                // What they get is lost.
                let _ = world.ask(requester, len);
            }
            let good = 8 * 16;
            let piece = world.ask(good, OWN_MIN).expect("own memory");
            assert!(world.ask(good + 1, OWN_MIN).is_none() || len < CHUNK);
            world.put(good, piece);
            world.cancel(good + 1);
        }
    }
}

/// Hosts that hold nothing do not get the last bytes before one that waits for them, however often
/// they come.
#[test]
fn nobody_overtakes_in_common_memory() {
    let mut world = World::new(2, &[0; 3], 4);
    let mut held = [
        world.ask(0, CHUNK).unwrap(),
        world.ask(4, PIECE_MIN).unwrap(),
    ]
    .into_iter();
    // The third one needs a whole chunk. A small piece is in the way.
    assert!(world.ask(8, CHUNK).is_none());
    for _ in 0..10 {
        assert!(world.ask(5, PIECE_MIN).is_none());
        assert!(world.ask(1, PIECE_MIN).is_none());
        world.cancel(5);
        world.cancel(1);
    }
    assert!(world.ask(5, PIECE_MIN).is_none());
    world.put(0, held.next().unwrap());
    let got = world.ask(8, CHUNK).expect("the chunk is for who waits");
    let small = world.ask(5, PIECE_MIN).expect("it comes next");
    world.put(8, got);
    world.put(5, small);
    world.put(4, held.next().unwrap());
    assert_eq!(world.memory.common.whole(), 2);
}

/// Own memory can be had while a larger command of the same account waits, but only in order.
#[test]
fn an_account_has_one_line() {
    let mut world = World::new(1, &[OWN_MIN, OWN_MIN], 4);
    let all = world.ask(0, CHUNK).unwrap();
    assert!(world.ask(4, CHUNK).is_none());
    assert!(world.ask(5, PIECE_MIN).is_none());
    world.cancel(4);
    let piece = world.ask(5, PIECE_MIN).expect("nothing is before it");
    world.put(5, piece);
    world.put(0, all);
}

/// An account that was removed leaves its place to another one.
#[test]
fn places_are_used_again() {
    let mut world = World::new(1, &[OWN_MIN, OWN_MIN], 1);
    world.arbiter.remove_requester(0);
    world.arbiter.remove_account(0);
    assert_eq!(world.arbiter.add_account(), Some(0));
    assert_eq!(world.arbiter.add_requester(0, 7), Some(0));
    let old = world.arbiter.widen_accounts(vec![None; 4]);
    assert_eq!(old.len(), 2);
    assert_eq!(world.arbiter.add_account(), Some(2));
    assert!(world.ask(1, PIECE_MIN).is_some());
}

#[test]
fn own_memory_within_the_budget() {
    assert_eq!(own_len(32 * CHUNK, 0), CHUNK);
    assert_eq!(own_len(32 * CHUNK, 16 * CHUNK), OWN_MIN);
    assert_eq!(own_len(0, usize::MAX), OWN_MIN);
    for size in 2..100 {
        let (size, mut lasting) = (size * CHUNK, 0);
        while own_len(size, lasting) > OWN_MIN {
            assert!(own_len(size, lasting).is_power_of_two());
            lasting += own_len(size, lasting);
            assert!(lasting <= size / 2);
        }
    }
}

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

/// Runs 24 hosts, of which the first `silent` let go of nothing before they are given up, and ask
/// again at once. Commands of good hosts are one of `lens`. Returns how long one of them waited.
fn longest_wait(silent: usize, lens: &[usize], ticks: usize) -> usize {
    const HOSTS: usize = 24;
    const EACH: usize = 4;
    let mut world = World::new(8, &[OWN_MIN; HOSTS], EACH);
    let mut numbers = Numbers(silent as u64);
    // Of each requester: since when it wants how much; what it has, and until when.
    let mut wants = vec![None; HOSTS * EACH];
    let mut has = (0..HOSTS * EACH).map(|_| None).collect::<Vec<_>>();
    let mut longest = 0;
    for now in 0..ticks {
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
                    true => [PIECE_MIN, OWN_MIN, CHUNK][numbers.below(3)],
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
        let longest = longest_wait(silent, &[PIECE_MIN, OWN_MIN / 2, OWN_MIN], 1500);
        assert!(
            longest <= 4 * (TAKES + 1),
            "{longest} ticks, {silent} silent"
        );
    }
}

/// Nothing is starved if all give back what they have, however large it is.
#[test]
fn large_commands_are_not_starved() {
    let longest = longest_wait(0, &[PIECE_MIN, OWN_MIN, CHUNK, CHUNK], 5000);
    // Each round of the accounts takes no longer than that of single commands, in 8 chunks.
    assert!(longest <= 4 * 24 * (TAKES + 1), "{longest} ticks");
}

/// A large command waits until hosts that are silent are given up, once for each that came before.
#[test]
fn large_commands_come_after_those_before() {
    let longest = longest_wait(8, &[PIECE_MIN, CHUNK], 8000);
    assert!(longest <= 8 * GIVEN_UP, "{longest} ticks");
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Index, usize),
    Put(Index),
    Cancel(Index),
    Grow,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![Just(PIECE_MIN), Just(OWN_MIN), Just(CHUNK), 1..CHUNK];
    let step = prop_oneof![
        4 => (any::<Index>(), len).prop_map(|(index, len)| Step::Ask(index, len)),
        4 => any::<Index>().prop_map(Step::Put),
        1 => any::<Index>().prop_map(Step::Cancel),
        1 => Just(Step::Grow),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// Whatever comes in whatever order: nobody waits for what is there, everybody who gets
    /// something is told once, and in the end all of the memory is there again.
    #[test]
    fn nobody_waits_for_what_is_there(steps in steps(), chunks in 1usize..4) {
        const EACH: usize = 3;
        let mut world = World::new(chunks, &[0, OWN_MIN, OWN_MIN, CHUNK], EACH);
        let requesters = world.accounts.len();
        world.memory.common = {
            // With places for more.
            let mut pool = Pool::new(vec![None; 8]);
            for _ in 0..chunks {
                pool.add(Box::default()).unwrap();
            }
            pool
        };
        let mut held: Vec<(usize, Piece)> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(index, len) => {
                    let requester = index.index(requesters);
                    let len = world.arbiter.asked(requester).unwrap_or(len);
                    held.extend(world.ask(requester, len).map(|piece| (requester, piece)));
                }
                Step::Put(_) if held.is_empty() => {}
                Step::Put(index) => {
                    let (requester, piece) = held.swap_remove(index.index(held.len()));
                    world.put(requester, piece);
                }
                Step::Cancel(index) => world.cancel(index.index(requesters)),
                Step::Grow => {
                    let _ = world.memory.common.add(Box::default());
                    world.serve(None);
                }
            }
        }
        // All who wait get theirs when the others let go.
        loop {
            for (requester, piece) in core::mem::take(&mut held) {
                world.put(requester, piece);
            }
            let told = world.told.clone();
            if told.is_empty() {
                break;
            }
            for requester in told {
                let len = world.arbiter.asked(requester).unwrap();
                let piece = world.ask(requester, len).unwrap();
                held.push((requester, piece));
            }
        }
        prop_assert_eq!(world.arbiter.waiting(), 0);
        prop_assert_eq!(world.memory.common.whole(), world.memory.common.count());
        prop_assert_eq!(world.memory.used, 0);
    }
}
