// SPDX-License-Identifier: GPL-2.0

//! Who gets the memory for commands.

// Long: each rule of one module.

mod simulation;

use std::collections::{BTreeSet, VecDeque};

use crate::session::{
    account::{may_hold, Accounts, Node},
    budget::RESERVED_MIN,
    chunks::{Buffer, Chunk, Chunks, PieceLen, CHUNK, PIECE_MIN},
};
use proptest::prelude::*;
use proptest::sample::Index;

type List<T> = Vec<T>;

/// The accounts; a requester's poller has the requester's number.
struct World {
    accounts: Accounts<List<Option<Chunk<()>>>, List<Node<()>>>,
    /// The node, the number of the client and the node of that of each requester.
    requesters: Vec<(usize, usize, usize)>,
    reserved: Vec<usize>,
    /// What each requester has asked for and not got.
    asked: Vec<Option<usize>>,
    /// The requesters that were told, and have not asked again.
    told: BTreeSet<usize>,
    /// Who waits for reserved memory of each account, in order.
    queues: Vec<VecDeque<usize>>,
    /// The bytes that each account has of common memory.
    held: Vec<usize>,
}

/// The most requesters that one call gives something.
const STEPS_MAX: usize = 64;

impl World {
    /// Common memory of `chunks`, and accounts of one client with `reserved` bytes and `each`
    /// requesters.
    fn new(chunks: usize, reserved: &[usize], each: usize) -> Self {
        Self::with(chunks, reserved, each, false)
    }

    /// The same; with `strangers` all clients have the same account.
    fn with(chunks: usize, reserved: &[usize], each: usize, strangers: bool) -> Self {
        let mut common = Chunks::new((0..8.max(chunks)).map(|_| None).collect());
        (0..chunks).for_each(|_| common.add(()).unwrap());
        let nodes = |count| (0..count).map(|_| Node::NEW).collect::<Vec<_>>();
        let mut accounts = Accounts::new(common, nodes(Node::<()>::MIN));
        let mut requesters = Vec::new();
        let mut shared = None;
        for (index, len) in reserved.iter().enumerate() {
            let before = accounts.widen(nodes(accounts.nodes() + 5 + each));
            assert!(before.len() < accounts.nodes());
            let account = match shared {
                Some(account) if strangers => account,
                _ => accounts.add_account().unwrap(),
            };
            shared = Some(account);
            let client = accounts.add_client(account).unwrap();
            for _ in 0..each {
                let number = requesters.len();
                let node = accounts.add_requester(client, number).unwrap();
                requesters.push((node, index, client));
            }
            if *len > 0 {
                accounts.reserve(client, (), *len);
            }
        }
        Self {
            accounts,
            asked: vec![None; requesters.len()],
            requesters,
            reserved: reserved.to_vec(),
            told: BTreeSet::new(),
            queues: vec![VecDeque::new(); reserved.len()],
            held: vec![0; reserved.len()],
        }
    }

    fn waits(&self, requester: usize) -> bool {
        self.asked[requester].is_some() && !self.told.contains(&requester)
    }

    /// Notes who was told: of those that wait for reserved memory the first one.
    fn note(&mut self, told: Vec<usize>) {
        assert!(told.len() <= STEPS_MAX, "{} in one call", told.len());
        for requester in told {
            assert!(self.told.insert(requester), "{requester} is told twice");
            let queue = &mut self.queues[self.requesters[requester].1];
            if queue.contains(&requester) {
                assert_eq!(queue.pop_front(), Some(requester));
            }
        }
    }

    fn ask(&mut self, requester: usize, len: usize) -> Option<Buffer> {
        let (node, index, account) = self.requesters[requester];
        let before = self.asked[requester];
        let ready = self.told.remove(&requester);
        let mut told = Vec::new();
        let length = PieceLen::new(len).unwrap();
        let got = self
            .accounts
            .ask(node, length, &mut |poller| told.push(poller));
        assert!(!ready || got.is_some(), "told, and there is nothing");
        self.asked[requester] = got.is_none().then_some(len);
        if got.is_none() && before.is_none() && length.bytes() <= self.reserved[index] {
            self.queues[index].push_back(requester);
        }
        // It may be served with others that were aside.
        told.retain(|other| *other != requester);
        self.note(told);
        if let Some(buffer) = &got {
            self.held[index] += [0, buffer.bytes()][usize::from(buffer.is_common())];
            assert!(self.accounts.memory(account, buffer).is_some());
        }
        self.check();
        got
    }

    fn put(&mut self, requester: usize, buffer: Buffer) {
        let (_, index, account) = self.requesters[requester];
        self.held[index] -= [0, buffer.bytes()][usize::from(buffer.is_common())];
        let mut told = Vec::new();
        let tell = &mut |poller| told.push(poller);
        self.accounts.put(account, &buffer, tell);
        self.note(told);
        self.check();
    }

    fn cancel(&mut self, requester: usize) {
        let (node, index, _) = self.requesters[requester];
        self.told.remove(&requester);
        self.asked[requester] = None;
        self.queues[index].retain(|other| *other != requester);
        let mut told = Vec::new();
        self.accounts.cancel(node, &mut |poller| told.push(poller));
        self.note(told);
        self.check();
    }

    fn grow(&mut self) {
        if self.accounts.common.add(()).is_ok() {
            let mut told = Vec::new();
            self.accounts.serve(None, &mut |poller| told.push(poller));
            self.note(told);
        }
    }

    /// Looks once more after those that wait, as the server does once a second.
    fn look(&mut self) {
        let mut told = Vec::new();
        self.accounts.serve(None, &mut |poller| told.push(poller));
        self.note(told);
    }

    /// What the accounts have is what is in use.
    fn check(&self) {
        let waiting = (0..self.requesters.len()).filter(|requester| self.waits(*requester));
        assert_eq!(self.accounts.waiting(), waiting.count());
        let all_taken = self.told.is_empty();
        let each = self.requesters.len() / self.held.len();
        let firsts = self.requesters.iter().step_by(each);
        for ((_, _, account), mine) in firsts.zip(&self.held) {
            let held = self.accounts.held(*account);
            assert!(held == *mine || (held > *mine && !all_taken));
        }
    }

    /// Lets all give back what they have, again and again, until nobody waits.
    fn end(&mut self, mut held: Vec<(usize, Buffer)>) {
        loop {
            for (requester, buffer) in core::mem::take(&mut held) {
                self.put(requester, buffer);
            }
            for requester in self.told.clone() {
                let len = self.asked[requester].unwrap();
                held.push((requester, self.ask(requester, len).unwrap()));
            }
            if held.is_empty() {
                break;
            }
        }
        assert_eq!(self.accounts.waiting(), 0);
        assert!(!self.accounts.is_in_need(usize::MAX));
        assert_eq!(
            self.accounts.common.free(),
            self.accounts.common.count() * CHUNK
        );
        for (account, len) in self.reserved.clone().into_iter().enumerate() {
            if len > 0 {
                let each = self.requesters.len() / self.reserved.len();
                let (requester, hog) = (account * each, (account + 1) % self.reserved.len());
                // However much others have.
                let mut hogs = Vec::new();
                for one in hog * each..(hog + 1) * each {
                    if hog != account {
                        hogs.extend(self.ask(one, CHUNK).map(|buffer| (one, buffer)));
                    }
                }
                let all = self.ask(requester, len).expect("the reserved memory");
                self.put(requester, all);
                hogs.into_iter()
                    .for_each(|(one, buffer)| self.put(one, buffer));
                (0..self.requesters.len()).for_each(|one| self.cancel(one));
            }
        }
    }
}

/// Hosts that never give anything back, whatever they ask for and however often, keep no command
/// waiting that fits the reserved memory of its account.
#[test]
fn reserved_memory_waits_for_nobody() {
    for len in [PIECE_MIN, RESERVED_MIN, 4 * RESERVED_MIN, CHUNK] {
        let mut world = World::new(4, &[RESERVED_MIN; 9], 16);
        for round in 0..16 {
            for host in 0..8 {
                // What they get is lost.
                let _ = world.ask(host * 16 + round, len);
            }
            let good = 8 * 16;
            let buffer = world.ask(good, RESERVED_MIN).expect("reserved memory");
            world.put(good, buffer);
        }
    }
}

/// What fits reserved memory does not wait for larger commands of the same account, which wait for
/// what others have.
#[test]
fn what_fits_waits_for_nothing_larger() {
    let mut world = World::new(1, &[RESERVED_MIN, RESERVED_MIN], 4);
    let all = world.ask(0, CHUNK).unwrap();
    assert!(world.ask(4, CHUNK).is_none());
    for _ in 0..10 {
        let buffer = world.ask(5, RESERVED_MIN).expect("reserved memory");
        // The next one waits for this one, and for nothing else.
        assert!(world.ask(6, PIECE_MIN).is_none());
        world.put(5, buffer);
        let buffer = world.ask(6, PIECE_MIN).expect("it is told");
        world.put(6, buffer);
    }
    world.put(0, all);
    let large = world.ask(4, CHUNK).expect("it came first");
    world.put(4, large);
    world.end(Vec::new());
}

/// A host that waits for its reserved memory gets common memory as soon as some of its own comes
/// back: it does not go on with the reserved memory alone.
#[test]
fn who_waits_for_reserved_memory_gets_common_memory() {
    let mut world = World::new(1, &[RESERVED_MIN; 2], 40);
    let hog = world.ask(0, CHUNK).unwrap();
    let mut held: Vec<_> = (40..80)
        .filter_map(|one| Some((one, world.ask(one, PIECE_MIN)?)))
        .collect();
    assert_eq!(held.len(), RESERVED_MIN / PIECE_MIN);
    world.put(0, hog);
    let (one, buffer) = held.pop().unwrap();
    world.put(one, buffer);
    assert_eq!(world.told.len(), 40 - RESERVED_MIN / PIECE_MIN);
    world.end(held);
}

/// Hosts that hold nothing do not get the last bytes before one that waits for them, however often
/// they come.
#[test]
fn nobody_overtakes_in_common_memory() {
    let mut world = World::new(2, &[0; 3], 4);
    let whole = world.ask(0, CHUNK).unwrap();
    let small = world.ask(4, PIECE_MIN).unwrap();
    // The third one needs a whole chunk.
    assert!(world.ask(8, CHUNK).is_none());
    for _ in 0..10 {
        assert!(world.ask(5, CHUNK / 2).is_none());
        world.cancel(5);
    }
    world.put(4, small);
    let got = world
        .ask(8, CHUNK)
        .expect("the chunk is for the one that waits");
    world.end(vec![(0, whole), (8, got)]);
}

/// A buffer that does not come back in each chunk, and a large command that they are in the way of,
/// keep nobody else from the rest of the memory; and the others, however often they come, do not
/// keep the large command from it when the buffers come back.
#[test]
fn a_stuck_buffer_stops_nobody_else() {
    let mut world = World::new(2, &[0; 4], 2);
    let stuck = world.ask(0, PIECE_MIN).unwrap();
    let half = world.ask(2, CHUNK / 2).unwrap();
    let other = world.ask(1, CHUNK / 2).unwrap();
    world.put(2, half);
    assert!(world.ask(4, CHUNK).is_none());
    for _ in 0..100 {
        let one = world.ask(6, RESERVED_MIN).expect("there is enough");
        world.put(6, one);
    }
    world.put(0, stuck);
    world.put(1, other);
    let large = world.ask(4, CHUNK).expect("it came together");
    world.end(vec![(4, large)]);
}

/// One that has too much gives way to all others, however many connections it waits with, and then
/// gets the rest.
#[test]
fn a_hog_gives_way() {
    let mut world = World::new(4, &[0, 0], 200);
    let mut held: Vec<_> = (0..200)
        .filter_map(|one| Some((one, world.ask(one, CHUNK / 4)?)))
        .collect();
    let most = 4 * CHUNK * 4 / 5;
    assert!((most - CHUNK / 4..=most).contains(&world.held[0]));
    held.push((200, world.ask(200, CHUNK / 2).expect("there is enough")));
    world.end(held);
}

/// Only one that waits for long is in need, and only because of one that has more.
#[test]
fn need_is_known_after_two_ticks() {
    let mut world = World::new(2, &[0; 3], 4);
    let hog = world.ask(0, CHUNK).unwrap();
    let modest = world.ask(4, CHUNK / 2).unwrap();
    assert!(world.ask(1, CHUNK).is_none());
    for _ in 0..4 {
        // The hog waits, and is in need because of nobody.
        assert!(!world.accounts.is_in_need(CHUNK / 2) && !world.accounts.is_in_need(CHUNK));
        world.accounts.elapse();
    }
    assert!(world.ask(8, CHUNK).is_none());
    assert!(!world.accounts.is_in_need(CHUNK));
    world.accounts.elapse();
    world.accounts.elapse();
    assert!(world.accounts.is_in_need(1) && !world.accounts.is_in_need(0));
    world.cancel(8);
    assert!(!world.accounts.is_in_need(CHUNK));
    world.end(vec![(0, hog), (4, modest)]);
}

/// A client is in need though another one of its account waits before it with more connections than
/// one call looks at, and has more.
#[test]
fn a_client_is_in_need_because_of_another_one_of_its_account() {
    let mut world = World::with(1, &[0; 2], 40, true);
    let hog = world.ask(0, CHUNK).unwrap();
    for one in 1..40 {
        assert!(world.ask(one, CHUNK).is_none());
    }
    assert!(world.ask(40, CHUNK).is_none());
    world.accounts.elapse();
    assert!(!world.accounts.is_in_need(CHUNK));
    world.accounts.elapse();
    assert!(world.accounts.is_in_need(CHUNK) && !world.accounts.is_in_need(0));
    world.end(vec![(0, hog)]);
}

/// A client that has its turns is not in need, however many of its connections wait for long.
#[test]
fn a_client_that_has_turns_is_not_in_need() {
    let mut world = World::new(1, &[0; 2], 8);
    let hog = world.ask(0, CHUNK / 2).unwrap();
    let mut one = world.ask(8, CHUNK / 4).unwrap();
    for other in 9..16 {
        assert!(world.ask(other, CHUNK / 4).is_none());
    }
    for other in 9..15 {
        world.accounts.elapse();
        world.put(other - 1, one);
        one = world.ask(other, CHUNK / 4).expect("its turn");
        assert!(!world.accounts.is_in_need(CHUNK / 2));
    }
    for _ in 0..2 {
        world.accounts.elapse();
    }
    assert!(world.accounts.is_in_need(CHUNK / 2));
    world.end(vec![(0, hog), (14, one)]);
}

/// One that has too much and waits for more does not confine others to their reserved memory.
#[test]
fn a_hog_that_waits_leaves_the_rest_to_others() {
    let mut world = World::new(4, &[0, RESERVED_MIN], 100);
    let mut held: Vec<_> = (0..100)
        .filter_map(|one| Some((one, world.ask(one, CHUNK / 4)?)))
        .collect();
    assert!(world.accounts.waiting() > 0);
    for one in 100..100 + 2 * RESERVED_MIN / PIECE_MIN {
        let buffer = world.ask(one, PIECE_MIN).expect("there is enough");
        assert!(buffer.is_common());
        held.push((one, buffer));
    }
    world.end(held);
}

/// A large command waits until its account has nothing else, and small ones of that account, also
/// of other clients, do not overtake it.
#[test]
fn small_commands_do_not_overtake_a_large_one_of_their_account() {
    for strangers in [false, true] {
        let mut world = World::with(1, &[0, RESERVED_MIN], 3, strangers);
        let small = world.ask(0, PIECE_MIN).unwrap();
        assert!(world.ask(1, CHUNK).is_none());
        assert!(world.ask(2, PIECE_MIN).is_none());
        let other = world.ask(3, PIECE_MIN).expect("there is enough");
        assert_eq!(other.is_common(), !strangers);
        world.put(3, other);
        world.put(0, small);
        let large = world.ask(1, CHUNK).expect("it came first");
        world.end(vec![(1, large)]);
    }
}

/// Large commands of more accounts than one call looks at keep nobody from what is there.
#[test]
fn accounts_behind_many_that_fail_are_looked_at() {
    const MANY: usize = 100;
    let mut world = World::new(2, &[0; MANY + 3], 1);
    let stuck = world.ask(0, PIECE_MIN).unwrap();
    let half = world.ask(1, CHUNK / 2).unwrap();
    let other = world.ask(2, CHUNK / 2).unwrap();
    world.put(1, half);
    for one in 3..MANY + 2 {
        assert!(world.ask(one, CHUNK).is_none());
    }
    let mut got = world.ask(MANY + 2, PIECE_MIN);
    for _ in 0..MANY.div_ceil(STEPS_MAX / 2 - 1) {
        world.look();
        if world.told.contains(&(MANY + 2)) {
            got = world.ask(MANY + 2, PIECE_MIN);
        }
    }
    let got = got.expect("there is enough");
    // What is blocked still comes first.
    world.put(0, stuck);
    assert_eq!(world.told, BTreeSet::from([3]));
    world.end(vec![(2, other), (MANY + 2, got)]);
}

/// The clients of an account take turns, however many of their requesters wait.
#[test]
fn clients_of_an_account_take_turns() {
    let mut world = World::with(1, &[0; 3], 10, true);
    let all = world.ask(20, CHUNK).unwrap();
    for one in 0..11 {
        assert!(world.ask(one, CHUNK / 4).is_none());
    }
    world.put(20, all);
    assert_eq!(world.told, BTreeSet::from([0, 1, 10]));
    world.end(Vec::new());
}

/// Accounts take turns, however many of their requesters wait.
#[test]
fn accounts_take_turns() {
    let mut world = World::new(2, &[0; 3], 50);
    let mut held = vec![
        (0, world.ask(0, CHUNK).unwrap()),
        (100, world.ask(100, CHUNK).unwrap()),
    ];
    for one in 50..100 {
        assert!(world.ask(one, CHUNK / 4).is_none());
    }
    assert!(world.ask(101, CHUNK / 4).is_none());
    assert!(world.ask(1, CHUNK / 4).is_none());
    // What the others wait for does not come before this.
    let (one, whole) = held.pop().unwrap();
    world.put(one, whole);
    assert!(world.told.contains(&50) && world.told.contains(&101));
    world.end(held);
}

/// All clients of an account together have no more than its part, and a client that is kept out by
/// the others of its account has its reserved memory.
#[test]
fn clients_share_the_part_of_their_account() {
    let common = |chunks: usize| {
        let mut common = Chunks::new((0..chunks).map(|_| None).collect::<Vec<_>>());
        (0..chunks).for_each(|_| common.add(()).unwrap());
        common
    };
    let nodes = (0..64).map(|_| Node::NEW).collect::<Vec<_>>();
    let mut accounts = Accounts::new(common(4), nodes);
    let (strangers, host) = (
        accounts.add_account().unwrap(),
        accounts.add_account().unwrap(),
    );
    let tell = &mut |_| {};
    let len = PieceLen::new(CHUNK / 4).unwrap();
    let mut all = 0;
    for number in 0..8 {
        let client = accounts.add_client(strangers).unwrap();
        accounts.reserve(client, (), RESERVED_MIN);
        for _ in 0..2 {
            let requester = accounts.add_requester(client, number).unwrap();
            let got = accounts.ask(requester, len, tell);
            all += got.as_ref().map_or(0, Buffer::bytes);
        }
        let requester = accounts.add_requester(client, number).unwrap();
        let small = PieceLen::new(RESERVED_MIN).unwrap();
        let got = accounts.ask(requester, small, tell).expect("a guarantee");
        accounts.put(client, &got, tell);
    }
    assert!(all <= 4 * CHUNK * 4 / 5, "{all}");
    let client = accounts.add_client(host).unwrap();
    let requester = accounts.add_requester(client, 8).unwrap();
    assert!(accounts.ask(requester, len, tell).is_some());
}

#[test]
fn nodes_are_used_again() {
    let mut world = World::new(1, &[RESERVED_MIN], 1);
    let (requester, _, client) = world.requesters[0];
    assert_eq!(world.accounts.remove(requester), None);
    assert_eq!(world.accounts.remove(client), Some(()));
    let account = world.accounts.add_account().unwrap();
    assert_eq!(world.accounts.add_client(account), None);
    let other = world.accounts.add_account().unwrap();
    assert_eq!(world.accounts.add_account(), None);
    assert_eq!(world.accounts.remove(account), None);
    assert_eq!(world.accounts.add_client(other), None);
    assert_eq!(world.accounts.remove(other), None);
    let account = world.accounts.add_account().unwrap();
    assert_eq!(world.accounts.remove(account), None);
}

/// Lets each of some clients take all that it may, in buffers of `len`, of a pool of `size`.
fn take(clients: &mut [usize], len: usize, size: usize) {
    let mut idle = 0;
    for index in (0..clients.len()).cycle() {
        let free = size - clients.iter().sum::<usize>();
        if free >= len && may_hold(clients[index], len, free) {
            clients[index] += len;
            idle = 0;
        } else if idle < clients.len() {
            idle += 1;
        } else {
            return;
        }
    }
}

#[test]
fn clients_that_give_nothing_back_leave_something() {
    for size in [2 * CHUNK, 8 * CHUNK, 64 * CHUNK] {
        for len in [4 << 10, 64 << 10, 256 << 10] {
            for count in 1..=8 {
                let mut clients = vec![0; count];
                take(&mut clients, len, size);
                let taken: usize = clients.iter().sum();
                // But for one buffer of each, which is given in any case.
                let most = size * 4 * count / (4 * count + 1) + len * count;
                assert!(taken <= most, "{clients:?} of {size}");
                // One alone is not kept from most of it.
                assert!(
                    count > 1 || taken + len > size * 3 / 4 - len * 4,
                    "{taken} of {size}"
                );
                // One that comes then has room for a command, if anybody has.
                assert!(size - taken < len || may_hold(0, len, size - taken));
            }
        }
    }
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
    let len = prop_oneof![Just(PIECE_MIN), Just(RESERVED_MIN), Just(CHUNK), 1..CHUNK];
    let step = prop_oneof![
        4 => (any::<Index>(), len).prop_map(|(index, len)| Step::Ask(index, len)),
        4 => any::<Index>().prop_map(Step::Put),
        1 => any::<Index>().prop_map(Step::Cancel),
        1 => Just(Step::Grow),
        1 => Just(Step::Elapse),
    ];
    proptest::collection::vec(step, 1..300)
}

proptest! {
    /// Whatever comes in whatever order: everybody who gets something is told once, all who wait
    /// get theirs when the others let go, and in the end all of the memory is there again.
    #[test]
    fn all_get_theirs(
        steps in steps(),
        chunks in 1usize..4,
        many in 1usize..40,
        strangers in any::<bool>(),
    ) {
        const EACH: usize = 3;
        let reserved = [0, RESERVED_MIN, RESERVED_MIN, CHUNK].repeat(many.div_ceil(4));
        let mut world = World::with(chunks, &reserved, EACH, strangers);
        let requesters = world.requesters.len();
        let mut held: Vec<(usize, Buffer)> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(index, len) => {
                    let requester = index.index(requesters);
                    let len = world.asked[requester].unwrap_or(len);
                    held.extend(world.ask(requester, len).map(|buffer| (requester, buffer)));
                }
                Step::Put(_) if held.is_empty() => {}
                Step::Put(index) => {
                    let (requester, buffer) = held.swap_remove(index.index(held.len()));
                    world.put(requester, buffer);
                }
                Step::Cancel(index) => world.cancel(index.index(requesters)),
                Step::Elapse => world.accounts.elapse(),
                Step::Grow => world.grow(),
            }
        }
        world.end(held);
    }
}
