// SPDX-License-Identifier: GPL-2.0

//! Who gets the memory for commands, with the memory as `server/memory/pool.rs` has it.

mod need;
mod own;
mod simulation;

use std::collections::{BTreeSet, VecDeque};

use crate::server::memory::{
    arbiter::{Account, Arbiter, Memory, Requester},
    buddy::{self, Chunk, PieceLen, Pool, CHUNK, PIECE_MIN},
    share::{may_hold, OWN_MIN},
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
    own_lens: Vec<usize>,
}

impl Memory for Pools {
    type Piece = Piece;

    fn fits_own(&self, account: usize, len: PieceLen) -> bool {
        len.bytes() <= self.own_lens[account]
    }

    fn take_own(&mut self, account: usize, len: PieceLen) -> Option<Piece> {
        self.owns[account].as_mut()?.alloc(len).map(Piece::Own)
    }

    fn take_common(&mut self, len: PieceLen) -> Option<Piece> {
        let piece = self.common.alloc(len)?;
        self.used += piece.bytes();
        Some(Piece::Common(piece))
    }

    fn take_reserved(&mut self, len: PieceLen) -> Option<Piece> {
        let piece = self.common.alloc_reserved(len)?;
        self.used += piece.bytes();
        Some(Piece::Common(piece))
    }

    fn reserve(&mut self) {
        self.common.reserve();
    }

    fn release(&mut self) {
        self.common.release();
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
    assert_eq!(pool.withhold(PieceLen::new(len).unwrap()), CHUNK - len);
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
    /// Who of each account waits, in order: for what fits its own memory, and for more.
    lines: Vec<[VecDeque<usize>; 2]>,
    /// What a call had too few steps for is done only when [`World::finish`] is called.
    lazy: bool,
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
        let own_lens = owns.to_vec();
        let owns = owns.iter().map(|len| (*len > 0).then(|| own(*len)));
        let memory = Pools {
            common: pool(chunks),
            used: 0,
            owns: owns.collect(),
            own_lens,
        };
        Self {
            arbiter,
            memory,
            accounts,
            told: BTreeSet::new(),
            lines: vec![Default::default(); all / requesters],
            lazy: false,
        }
    }

    /// Notes who was told, which has to be the first of a line.
    fn note(&mut self, told: Vec<usize>) {
        for requester in told {
            assert!(self.told.insert(requester), "{requester} is told twice");
            let mut lines = self.lines[self.accounts[requester]].iter_mut();
            let line = lines.find(|line| line.front() == Some(&requester));
            line.expect("not the first one").pop_front();
        }
    }

    /// The line that a requester waits in for so many bytes.
    fn line(&mut self, requester: usize, len: usize) -> &mut VecDeque<usize> {
        let account = self.accounts[requester];
        let fits = self.memory.fits_own(account, PieceLen::new(len).unwrap());
        &mut self.lines[account][usize::from(!fits)]
    }

    /// The account that has a reservation.
    fn owner(&self) -> Option<usize> {
        self.arbiter.owner().map(|owner| self.accounts[owner])
    }

    fn ask(&mut self, requester: usize, len: usize) -> Option<Piece> {
        let (mut told, before) = (Vec::new(), self.arbiter.asked(requester));
        let ready = self.told.remove(&requester);
        let got = self.arbiter.ask(
            requester,
            PieceLen::new(len).unwrap(),
            &mut self.memory,
            &mut |poller| told.push(poller),
        );
        assert!(!ready || got.is_some(), "told, and there is nothing");
        if got.is_none() && before.is_none() {
            self.line(requester, len).push_back(requester);
        }
        assert!(told.len() <= STEPS_MAX, "{} in one call", told.len());
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
        assert!(told.len() <= STEPS_MAX, "{} in one call", told.len());
        self.note(told);
        self.check();
    }

    fn cancel(&mut self, requester: usize) {
        self.told.remove(&requester);
        let account = self.accounts[requester];
        for line in &mut self.lines[account] {
            line.retain(|other| *other != requester);
        }
        match self.arbiter.cancel(requester) {
            Some(piece) => self.put(requester, piece),
            None => self.serve(Some(account)),
        }
        assert_eq!(self.arbiter.asked(requester), None);
    }

    /// Does what there were too few steps for, until that is all.
    fn finish(&mut self) {
        while self.arbiter.is_unfinished() {
            let mut told = Vec::new();
            self.arbiter
                .go_on(&mut self.memory, &mut |poller| told.push(poller));
            assert!(told.len() <= STEPS_MAX, "{} in one call", told.len());
            self.note(told);
        }
    }

    /// Nobody waits for what is there.
    fn check(&mut self) {
        let waiting = self.lines.iter().flatten().map(VecDeque::len);
        assert_eq!(self.arbiter.waiting(), waiting.sum::<usize>());
        if self.lazy {
            return;
        }
        self.finish();
        let owner = self.arbiter.owner();
        let asked = |requester: usize| self.arbiter.asked(requester).unwrap();
        let reserved = owner.map(asked);
        let left = self.memory.left();
        let left = left.saturating_sub(reserved.map_or(0, PieceLen::bytes));
        if let Some(len) = reserved {
            assert!(self.memory.take_reserved(len).is_none());
        }
        for (account, lines) in self.lines.iter().enumerate() {
            let firsts = lines.iter().filter_map(|line| line.front());
            for len in firsts.clone().map(|first| asked(*first)) {
                let own = self.memory.take_own(account, len);
                assert!(own.is_none(), "{account} waits for own memory");
            }
            // The larger ones come first.
            let Some(len) = firsts.last().map(|first| asked(*first)) else {
                continue;
            };
            let owns = owner.is_some_and(|owner| self.accounts[owner] == account);
            if !owns && may_hold(self.arbiter.held(account), len.bytes(), left) {
                assert!(owner.is_some(), "nothing comes together for {account}");
                assert!(self.memory.take_common(len).is_none());
            }
        }
        assert_eq!(self.arbiter.is_short(), owner.is_some());
        let held = (0..self.lines.len()).map(|account| self.arbiter.held(account));
        assert_eq!(held.sum::<usize>(), self.memory.used);
    }
}

/// The most pieces that one call gives away: one in each step, and one to the owner.
const STEPS_MAX: usize = 33;

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

/// A piece that does not come back in each chunk, and a large command that they are in the way of,
/// keep nobody else from the rest of the memory; and the others, however often they come, do not
/// keep the large command from it when the pieces come back.
#[test]
fn a_stuck_piece_stops_nobody_else() {
    let mut world = World::new(2, &[0; 4], 2);
    let mut stuck = vec![world.ask(0, PIECE_MIN).unwrap()];
    let half = world.ask(2, CHUNK / 2).unwrap();
    stuck.push(world.ask(1, CHUNK / 2).unwrap());
    world.put(2, half);
    assert!(world.ask(4, CHUNK).is_none());
    for _ in 0..100 {
        let one = world.ask(6, OWN_MIN).expect("there is enough");
        world.put(6, one);
    }
    assert_eq!(world.owner(), Some(2));
    let other = world.ask(6, OWN_MIN).unwrap();
    for piece in stuck {
        world.put(0, piece);
    }
    let large = world.ask(4, CHUNK).expect("it came together");
    world.put(4, large);
    world.put(6, other);
    assert_eq!(world.memory.common.whole(), 2);
}

/// A reservation ends with the command that it was made for.
#[test]
fn who_does_not_wait_has_no_reservation() {
    let mut world = World::new(1, &[0; 3], 2);
    let piece = world.ask(0, PIECE_MIN).unwrap();
    assert!(world.ask(2, CHUNK).is_none());
    assert!(world.ask(3, PIECE_MIN).is_none());
    assert!(world.ask(4, PIECE_MIN).is_none());
    assert_eq!(world.owner(), Some(1));
    world.cancel(2);
    assert_eq!(world.owner(), None);
    let others = [3, 4].map(|requester| (requester, world.ask(requester, PIECE_MIN).unwrap()));
    for (requester, other) in others {
        world.put(requester, other);
    }
    world.put(0, piece);
}

/// Who waits behind many others that may not have memory now is found, too, and one call does not
/// look at all of them.
#[test]
fn a_call_does_a_bounded_number_of_steps() {
    const MANY: usize = 500;
    let mut world = World::new(1, &[0; MANY], 2);
    let all = world.ask(0, CHUNK).unwrap();
    for account in 1..MANY {
        assert!(world.ask(2 * account, PIECE_MIN).is_none());
    }
    let mut told = Vec::new();
    world.memory.used = 0;
    let Piece::Common(piece) = all else { panic!() };
    world.arbiter.discharge(0, CHUNK);
    world.memory.common.free(piece);
    world
        .arbiter
        .serve(None, &mut world.memory, &mut |poller| told.push(poller));
    assert!(told.len() <= STEPS_MAX && world.arbiter.is_unfinished());
    // Another one may not come before those that were not looked at.
    let mut tell = |poller| told.push(poller);
    let got = world
        .arbiter
        .ask(1, PieceLen::MIN, &mut world.memory, &mut tell);
    assert!(got.is_none());
    world.line(1, PIECE_MIN).push_back(1);
    world.note(told);
    world.finish();
    // One chunk has 256 pieces.
    assert_eq!(world.told.len(), CHUNK / PIECE_MIN);
    assert!(!world.told.contains(&1));
    world.check();
}

/// What the owner of the reservation is to get counts as gone: the others leave as much to each
/// other as if it had that already.
#[test]
fn what_is_reserved_counts_as_gone() {
    let mut world = World::new(2, &[0; 4], 2);
    // A piece is in the way in each chunk, and half of each is free.
    let mut stuck = vec![world.ask(0, PIECE_MIN).unwrap()];
    let half = world.ask(2, CHUNK / 2).unwrap();
    stuck.push(world.ask(1, CHUNK / 2).unwrap());
    world.put(2, half);
    assert!(world.ask(4, CHUNK).is_none());
    assert_eq!(world.owner(), Some(2));
    let quarter = world.ask(6, CHUNK / 4).expect("it has nothing yet");
    // As much is free beside the reservation, but less is left than it would have.
    let left = world.memory.left();
    assert!(may_hold(CHUNK / 4, CHUNK / 4, left));
    assert!(!may_hold(CHUNK / 4, CHUNK / 4, left - CHUNK));
    assert!(world.ask(7, CHUNK / 4).is_none());
    for piece in stuck {
        world.put(0, piece);
    }
    let large = world.ask(4, CHUNK).expect("it came together");
    let other = world.ask(7, CHUNK / 4).expect("there is enough for both");
    for (requester, piece) in [(4, large), (6, quarter), (7, other)] {
        world.put(requester, piece);
    }
    assert_eq!(world.memory.common.whole(), 2);
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

#[derive(Clone, Debug)]
enum Step {
    Ask(Index, usize),
    Put(Index),
    Cancel(Index),
    Grow,
    Elapse,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![Just(PIECE_MIN), Just(OWN_MIN), Just(CHUNK), 1..CHUNK];
    let step = prop_oneof![
        4 => (any::<Index>(), len).prop_map(|(index, len)| Step::Ask(index, len)),
        4 => any::<Index>().prop_map(Step::Put),
        1 => any::<Index>().prop_map(Step::Cancel),
        1 => Just(Step::Grow),
        1 => Just(Step::Elapse),
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
                    let asked = world.arbiter.asked(requester);
                    let len = asked.map_or(len, PieceLen::get);
                    held.extend(world.ask(requester, len).map(|piece| (requester, piece)));
                }
                Step::Put(_) if held.is_empty() => {}
                Step::Put(index) => {
                    let (requester, piece) = held.swap_remove(index.index(held.len()));
                    world.put(requester, piece);
                }
                Step::Cancel(index) => world.cancel(index.index(requesters)),
                Step::Elapse => world.arbiter.elapse(),
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
                let len = world.arbiter.asked(requester).unwrap().get();
                let piece = world.ask(requester, len).unwrap();
                held.push((requester, piece));
            }
        }
        prop_assert_eq!(world.arbiter.waiting(), 0);
        world.arbiter.elapse();
        world.arbiter.elapse();
        prop_assert!((0..4).all(|account| !world.arbiter.is_in_need(account, CHUNK)));
        prop_assert_eq!(world.owner(), None);
        prop_assert_eq!(world.memory.common.whole(), world.memory.common.count());
        prop_assert_eq!(world.memory.used, 0);
    }

    /// The same with more accounts than one call looks at, while calls come before that is made up
    /// for.
    #[test]
    fn nobody_is_forgotten_among_many(
        steps in proptest::collection::vec((0u8..8, any::<Index>(), 1..CHUNK), 1..600),
        chunks in 1usize..4,
    ) {
        const MANY: usize = 120;
        let owns: Vec<_> = (0..MANY).map(|account| [0, OWN_MIN][account % 2]).collect();
        let mut world = World::new(chunks, &owns, 2);
        world.lazy = true;
        let mut held: Vec<(usize, Piece)> = Vec::new();
        for (what, index, len) in steps {
            match what {
                0..5 => {
                    let requester = index.index(2 * MANY);
                    let asked = world.arbiter.asked(requester);
                    // Small ones mostly.
                    let len = asked.map_or((len >> (3 * (what & 1))).max(1), PieceLen::get);
                    held.extend(world.ask(requester, len).map(|piece| (requester, piece)));
                }
                5 => world.cancel(index.index(2 * MANY)),
                6 if !held.is_empty() => {
                    let (requester, piece) = held.swap_remove(index.index(held.len()));
                    world.put(requester, piece);
                }
                _ => {
                    let mut told = Vec::new();
                    let tell = &mut |poller| told.push(poller);
                    world.arbiter.go_on(&mut world.memory, tell);
                    world.note(told);
                }
            }
        }
        world.lazy = false;
        world.check();
        loop {
            for (requester, piece) in core::mem::take(&mut held) {
                world.put(requester, piece);
            }
            let told = world.told.clone();
            if told.is_empty() {
                break;
            }
            for requester in told {
                let len = world.arbiter.asked(requester).unwrap().get();
                held.push((requester, world.ask(requester, len).unwrap()));
            }
        }
        prop_assert_eq!(world.arbiter.waiting(), 0);
        prop_assert_eq!(world.memory.common.whole(), world.memory.common.count());
    }
}
