// SPDX-License-Identifier: GPL-2.0

//! Shares the memory for the data of commands between client hosts.
//!
//! An *account* is a host that has an entry, or all hosts together that have none. A *client* is a
//! host as far as the server can tell: by its entry, or by the address that it connects from. A
//! *requester* is one of its connections, which asks for the buffer of one command at a time. A
//! buffer comes from
//!
//! 1. the common memory, if its account does not wait for that, and no other one waits for it but
//!    such as have too much of it, and the account has not too much itself ([`may_hold`]);
//! 2. the reserved memory of the client, which no other client ever gets, if it is large enough
//!    when all of it is free. Otherwise, or if it is in use:
//! 3. The requester waits: in a queue of its client for reserved memory, or in one for common
//!    memory.
//!
//! So a command that fits the reserved memory of its client waits for nothing but commands of that
//! client. Accounts take turns at the common memory, and so do the clients of an account, with one
//! buffer each time, however many requesters they have; an account that has too much misses its
//! turn. The first account whose buffer is missing is *blocked*. Others in the queue may go on, but
//! not in the chunk where that buffer is soonest to come together: small commands that end do not
//! let a large one starve. A buffer that does not come back stops one chunk, and may stop a command
//! that waits for all of that chunk until it does.

// Long: all that decides who gets memory.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

use super::chunks::{
    Buffer,
    Chunk,
    Chunks,
    PieceLen, //
};

/// The most accounts, or requesters of a client, that one call looks at: interrupts are off
/// meanwhile. What these give back lets the next call go on.
const STEPS: usize = 32;
/// An account may hold at most this multiple of what remains free.
const LEFT_FACTOR: usize = 4;
/// The nodes that are the heads of lists: the accounts that wait for common memory, and the unused
/// nodes.
const QUEUE: usize = 0;
const UNUSED: usize = 1;

/// Returns true if an account that holds `held` bytes of common memory may have `len` more where
/// `free` are left, with those by which the memory may grow.
///
/// An account may have four fifths if it is alone, and each of two four ninths: one whose host does
/// not receive its answers leaves something to others. One buffer it may have in any case.
pub const fn may_hold(held: usize, len: usize, free: usize) -> bool {
    let left = free.saturating_sub(len).saturating_mul(LEFT_FACTOR);
    held == 0 || held.saturating_add(len) <= left
}

#[derive(Debug)]
struct Account {
    /// Bytes of common memory that its clients have.
    held: usize,
    /// The head of the list of its clients that wait for common memory.
    waiting: usize,
}

#[derive(Debug)]
struct Client<B> {
    account: usize,
    /// Bytes of common memory that it has.
    held: usize,
    reserved: Option<Chunk<B>>,
    /// The heads of the lists of its requesters that wait for common, or for reserved memory.
    for_common: usize,
    for_reserved: usize,
    /// The tick at which it began to wait for common memory, or had its last turn.
    since: u64,
}

#[derive(Debug)]
struct Requester {
    client: usize,
    /// The poller that is told when the buffer is there.
    poller: usize,
    asked: Asked,
}

/// What a requester has asked for.
#[derive(Debug)]
enum Asked {
    Nothing,
    /// It waits for so much.
    Waits(PieceLen),
    /// It was told that the buffer is there, and has not taken it yet.
    Ready(Buffer),
}

#[derive(Debug)]
enum Kind<B> {
    /// The head of a list, or unused.
    None,
    Account(Account),
    Client(Client<B>),
    Requester(Requester),
}

/// An account, a client or a requester, or the head of a list. What waits for common memory is in a
/// circular list: an account in the queue, a client in the list of its account, and a requester in
/// that of its client, as one is that waits for reserved memory.
#[derive(Debug)]
pub struct Node<B> {
    prev: usize,
    next: usize,
    kind: Kind<B>,
}

impl<B> Node<B> {
    /// The nodes that [`Accounts::new`] needs at least.
    pub const MIN: usize = UNUSED + 1;

    /// An unused node.
    pub const NEW: Self = Self {
        prev: 0,
        next: 0,
        kind: Kind::None,
    };
}

/// The accounts, their memory, and the common memory.
#[derive(Debug)]
pub struct Accounts<C, N> {
    /// The common memory.
    pub common: Chunks<C>,
    /// The bytes by which the common memory may grow.
    pub growable: usize,
    /// More common memory would have been of use. Only the caller resets it.
    pub wants_more: bool,
    nodes: N,
    waiting: usize,
    /// Other accounts than those that have too much wait for common memory, or may do so.
    contended: bool,
    tick: u64,
}

impl<B: 'static, C, N> Accounts<C, N>
where
    C: DerefMut<Target = [Option<Chunk<B>>]>,
    N: DerefMut<Target = [Node<B>]>,
{
    /// Makes no account. `nodes`, at least [`Node::MIN`], are unused.
    pub fn new(common: Chunks<C>, nodes: N) -> Self {
        let mut this = Self {
            common,
            growable: 0,
            wants_more: false,
            nodes,
            waiting: 0,
            contended: false,
            tick: 0,
        };
        this.init(0);
        this
    }

    /// Moves everything to `nodes`, of which there are more. Returns the nodes before.
    pub fn widen(&mut self, nodes: N) -> N {
        let mut before = core::mem::replace(&mut self.nodes, nodes);
        for (from, to) in before.iter_mut().zip(self.nodes.iter_mut()) {
            core::mem::swap(from, to);
        }
        self.init(before.len());
        before
    }

    /// Puts the nodes from `first` on into the list of those that are unused.
    fn init(&mut self, first: usize) {
        for node in first..self.nodes.len() {
            self.link(node, node);
            if node > UNUSED {
                self.append(UNUSED, node);
            }
        }
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Adds an account that has nothing. `None` if too few nodes are unused.
    pub fn add_account(&mut self) -> Option<usize> {
        self.add(|[waiting]| Kind::Account(Account { held: 0, waiting }))
    }

    /// Adds a client of an account that has nothing. `None` if too few nodes are unused.
    pub fn add_client(&mut self, account: usize) -> Option<usize> {
        self.add(|[for_common, for_reserved]| {
            Kind::Client(Client {
                account,
                held: 0,
                reserved: None,
                for_common,
                for_reserved,
                since: 0,
            })
        })
    }

    /// Adds a requester of a client, whose `poller` is told when its buffer is there. `None` if no
    /// node is unused.
    pub fn add_requester(&mut self, client: usize, poller: usize) -> Option<usize> {
        self.add(|[]| {
            Kind::Requester(Requester {
                client,
                poller,
                asked: Asked::Nothing,
            })
        })
    }

    /// Adds what is made with the heads of so many lists.
    fn add<const LISTS: usize>(
        &mut self,
        kind: impl FnOnce([usize; LISTS]) -> Kind<B>,
    ) -> Option<usize> {
        let node = self.first(UNUSED)?;
        let (mut heads, mut last) = ([node; LISTS], node);
        for head in &mut heads {
            last = self.behind(UNUSED, last)?;
            *head = last;
        }
        heads.iter().for_each(|head| self.unlink(*head));
        self.unlink(node);
        self.nodes.get_mut(node)?.kind = kind(heads);
        Some(node)
    }

    /// Removes an account that has no clients, a client that has no requesters and no buffers, or a
    /// requester that has asked for nothing. Returns the reserved memory of a client.
    pub fn remove(&mut self, node: usize) -> Option<B> {
        self.append(UNUSED, node);
        let kind = &mut self.nodes.get_mut(node)?.kind;
        match core::mem::replace(kind, Kind::None) {
            Kind::Account(account) => {
                self.append(UNUSED, account.waiting);
                None
            }
            Kind::Client(client) => {
                self.append(UNUSED, client.for_common);
                self.append(UNUSED, client.for_reserved);
                client.reserved.map(|chunk| chunk.memory)
            }
            _ => None,
        }
    }

    /// Gives a client reserved memory of `len` bytes.
    pub fn reserve(&mut self, client: usize, memory: B, len: usize) {
        if let Some(client) = self.client_mut(client) {
            client.reserved = Some(Chunk::new(memory, len));
        }
    }

    /// Returns the memory that a buffer of a client is of.
    pub fn memory(&self, client: usize, buffer: &Buffer) -> Option<&B> {
        match buffer.chunk {
            Some(chunk) => self.common.memory(chunk),
            None => Some(&self.client(client)?.reserved.as_ref()?.memory),
        }
    }

    /// Returns the number of requesters that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the bytes of common memory that a client has.
    pub fn held(&self, client: usize) -> usize {
        self.client(client).map_or(0, |client| client.held)
    }

    /// Advances the clock of [`Accounts::is_in_need`].
    pub fn elapse(&mut self) {
        self.tick += 1;
    }

    /// Returns true if a client which holds less than `held` bytes of common memory has waited for
    /// its turn at that for two ticks. One that holds as much is blocked by its own demand.
    pub fn is_in_need(&self, held: usize) -> bool {
        let clients = |account| self.list(self.account(account).map(|account| account.waiting));
        // Only one account has several clients: that of all hosts without an entry.
        let mut clients = self
            .list(Some(QUEUE))
            .take(STEPS)
            .flat_map(|account| clients(account).take(STEPS))
            .take(2 * STEPS)
            .filter_map(|client| self.client(client));
        clients.any(|client| self.tick - client.since >= 2 && client.held < held)
    }

    /// Returns the buffer of `len` bytes that a requester has asked for. If there is none yet,
    /// `tell` gets its poller when there is, and the requester has to ask again.
    pub fn ask(
        &mut self,
        id: usize,
        len: PieceLen,
        tell: &mut impl FnMut(usize),
    ) -> Option<Buffer> {
        let client = self.requester(id)?.client;
        match self.take_ready(id) {
            Some(buffer) if buffer.bytes() == len.bytes() => return Some(buffer),
            // It was for another command.
            Some(buffer) => self.put(client, &buffer, tell),
            None if self.waits(id).is_some() => return None,
            None => {}
        }
        let Client {
            account,
            ref reserved,
            for_common,
            for_reserved,
            ..
        } = *self.client(client)?;
        let fits = reserved
            .as_ref()
            .is_some_and(|chunk| len.bytes() <= chunk.bytes());
        let list = if fits { for_reserved } else { for_common };
        if self.first(list).is_none() {
            if let Some(buffer) = self.take(client, len) {
                return Some(buffer);
            }
        }
        self.requester_mut(id)?.asked = Asked::Waits(len);
        self.append(list, id);
        self.waiting += 1;
        if !fits {
            if !self.is_linked(client) {
                let tick = self.tick;
                self.client_mut(client)?.since = tick;
                self.append(self.account(account)?.waiting, client);
            }
            if !self.is_linked(account) {
                self.append(QUEUE, account);
            }
            // The accounts before this one may be blocked, or have too much by now.
            self.serve(None, tell);
        }
        self.take_ready(id)
    }

    /// Forgets what a requester has asked for.
    pub fn cancel(&mut self, id: usize, tell: &mut impl FnMut(usize)) {
        let Some(Requester { client, asked, .. }) = self.requester_mut(id) else {
            return;
        };
        let client = *client;
        match core::mem::replace(asked, Asked::Nothing) {
            Asked::Nothing => {}
            Asked::Ready(buffer) => self.put(client, &buffer, tell),
            Asked::Waits(..) => {
                self.unlink(id);
                self.waiting -= 1;
                self.unlink_idle(client);
                self.serve(Some(client), tell);
            }
        }
    }

    /// Takes back a buffer of a client.
    pub fn put(&mut self, client: usize, buffer: &Buffer, tell: &mut impl FnMut(usize)) {
        if buffer.is_common() {
            self.common.put(buffer);
            self.charge(client, |held| held.saturating_sub(buffer.bytes()));
        } else if let Some(reserved) = self.reserved(client) {
            reserved.put(buffer);
        }
        if self.waiting > 0 {
            self.serve(Some(client), tell);
        }
    }

    /// Gives common memory, and reserved memory of `client`, to requesters that wait for it, and
    /// tells their pollers.
    pub fn serve(&mut self, client: Option<usize>, tell: &mut impl FnMut(usize)) {
        let mut left = self.left();
        // The length of the smallest buffer that is missing: no larger one can be had.
        let (mut blocked, mut missing) = (None, usize::MAX);
        let mut next = self.first(QUEUE);
        // What failed need not be tried again: there is only less of the memory.
        let mut last = self.nodes.get(QUEUE).map(|queue| queue.prev);
        let mut steps = 0..STEPS;
        while let Some(account) = next.filter(|_| steps.next().is_some()) {
            next = self
                .behind(QUEUE, account)
                .filter(|_| last != Some(account));
            let Some((id, client, len)) = self.first_waiting(account) else {
                continue;
            };
            let held = self.account(account).map_or(0, |account| account.held);
            if !may_hold(held, len.bytes(), left) {
                self.append(QUEUE, account);
                continue;
            }
            let buffer = if len.bytes() < missing {
                self.take_common(client, len, blocked.is_some())
            } else {
                None
            };
            if let Some(buffer) = buffer {
                left = left.saturating_sub(buffer.bytes());
                self.supply(id, buffer, tell);
                self.end_turn(client, account);
                if self.is_linked(account) {
                    last = Some(account);
                    next = next.or(last);
                }
            } else {
                missing = missing.min(len.bytes());
                if blocked.is_none() {
                    left = left.saturating_sub(len.bytes());
                }
                blocked = blocked.or(Some(account));
            }
        }
        self.contended = blocked.is_some() || next.is_some();
        if let (Some(next), Some(blocked)) = (next, blocked) {
            // The next call goes on there. The blocked account stays the first one.
            self.append(next, QUEUE);
            self.append(next, blocked);
        }
        let Some(client) = client else { return };
        for _ in 0..STEPS {
            let first = self.client(client).map(|client| client.for_reserved);
            let first = first.and_then(|list| self.first(list));
            let Some((id, len)) = first.and_then(|id| Some((id, self.waits(id)?))) else {
                break;
            };
            let Some(buffer) = self.take(client, len) else {
                break;
            };
            self.supply(id, buffer, tell);
        }
    }

    /// Takes a buffer for a client: of the common memory, if its account may have that now, or of
    /// its reserved memory.
    fn take(&mut self, client: usize, len: PieceLen) -> Option<Buffer> {
        let account = self.client(client)?.account;
        let held = self.account(account)?.held;
        let free = !self.contended && !self.is_linked(account);
        if free && may_hold(held, len.bytes(), self.left()) {
            if let Some(buffer) = self.take_common(client, len, false) {
                return Some(buffer);
            }
        }
        self.reserved(client)?.take(len)
    }

    /// Takes common memory for a client. With `spare` one chunk is left alone.
    fn take_common(&mut self, client: usize, len: PieceLen, spare: bool) -> Option<Buffer> {
        let buffer = self.common.take(len, spare);
        match &buffer {
            Some(buffer) => self.charge(client, |held| held + buffer.bytes()),
            None => self.wants_more = true,
        }
        buffer
    }

    /// Changes the bytes of common memory that a client, and so its account, has.
    fn charge(&mut self, client: usize, change: impl Fn(usize) -> usize) {
        let Some(client) = self.client_mut(client) else {
            return;
        };
        client.held = change(client.held);
        let account = client.account;
        if let Some(account) = self.account_mut(account) {
            account.held = change(account.held);
        }
    }

    /// Lets a requester have the buffer for which it waits.
    fn supply(&mut self, id: usize, buffer: Buffer, tell: &mut impl FnMut(usize)) {
        self.unlink(id);
        self.waiting -= 1;
        if let Some(requester) = self.requester_mut(id) {
            requester.asked = Asked::Ready(buffer);
            tell(requester.poller);
        }
    }

    /// Returns the bytes of common memory that are free, or may be added.
    fn left(&self) -> usize {
        self.common.free().saturating_add(self.growable)
    }

    /// Takes the buffer of which a requester was told.
    fn take_ready(&mut self, id: usize) -> Option<Buffer> {
        let asked = &mut self.requester_mut(id)?.asked;
        match core::mem::replace(asked, Asked::Nothing) {
            Asked::Ready(buffer) => Some(buffer),
            other => {
                *asked = other;
                None
            }
        }
    }

    /// Returns the length that a requester waits for.
    fn waits(&self, id: usize) -> Option<PieceLen> {
        match self.requester(id)?.asked {
            Asked::Waits(len) => Some(len),
            _ => None,
        }
    }

    /// Returns the requester of an account whose turn at common memory is next, its client and the
    /// length that it waits for.
    fn first_waiting(&self, account: usize) -> Option<(usize, usize, PieceLen)> {
        let client = self.first(self.account(account)?.waiting)?;
        let id = self.first(self.client(client)?.for_common)?;
        Some((id, client, self.waits(id)?))
    }

    /// Lets others have their turns at common memory before this client and its account.
    fn end_turn(&mut self, client: usize, account: usize) {
        let tick = self.tick;
        if let Some(client) = self.client_mut(client) {
            client.since = tick;
        }
        if let Some(waiting) = self.account(account).map(|account| account.waiting) {
            self.append(waiting, client);
        }
        self.append(QUEUE, account);
        self.unlink_idle(client);
    }

    /// Takes a client and its account out of their lists if none of their requesters waits for
    /// common memory.
    fn unlink_idle(&mut self, client: usize) {
        let Some(Client {
            account,
            for_common,
            ..
        }) = self.client(client)
        else {
            return;
        };
        let account = *account;
        if self.first(*for_common).is_none() {
            self.unlink(client);
        }
        if self.first_waiting(account).is_none() {
            self.unlink(account);
        }
    }

    fn account(&self, node: usize) -> Option<&Account> {
        match &self.nodes.get(node)?.kind {
            Kind::Account(account) => Some(account),
            _ => None,
        }
    }

    fn account_mut(&mut self, node: usize) -> Option<&mut Account> {
        match &mut self.nodes.get_mut(node)?.kind {
            Kind::Account(account) => Some(account),
            _ => None,
        }
    }

    fn client(&self, node: usize) -> Option<&Client<B>> {
        match &self.nodes.get(node)?.kind {
            Kind::Client(client) => Some(client),
            _ => None,
        }
    }

    fn client_mut(&mut self, node: usize) -> Option<&mut Client<B>> {
        match &mut self.nodes.get_mut(node)?.kind {
            Kind::Client(client) => Some(client),
            _ => None,
        }
    }

    fn reserved(&mut self, client: usize) -> Option<&mut Chunk<B>> {
        self.client_mut(client)?.reserved.as_mut()
    }

    fn requester(&self, node: usize) -> Option<&Requester> {
        match &self.nodes.get(node)?.kind {
            Kind::Requester(requester) => Some(requester),
            _ => None,
        }
    }

    fn requester_mut(&mut self, node: usize) -> Option<&mut Requester> {
        match &mut self.nodes.get_mut(node)?.kind {
            Kind::Requester(requester) => Some(requester),
            _ => None,
        }
    }

    /// Returns the first node of the list with that head.
    fn first(&self, head: usize) -> Option<usize> {
        self.behind(head, head)
    }

    /// Returns true if a node is in a list, or the head of one that is not empty.
    fn is_linked(&self, node: usize) -> bool {
        self.first(node).is_some()
    }

    /// Returns the nodes of the list with that head.
    fn list(&self, head: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        let behind = move |node: &usize| self.behind(head?, *node);
        core::iter::successors(head.and_then(|head| self.first(head)), behind)
    }

    /// Returns the node behind another one in the list with that head.
    fn behind(&self, head: usize, node: usize) -> Option<usize> {
        let next = self.nodes.get(node)?.next;
        (next != head).then_some(next)
    }

    /// Makes two nodes neighbours.
    fn link(&mut self, prev: usize, next: usize) {
        if let Some(node) = self.nodes.get_mut(prev) {
            node.next = next;
        }
        if let Some(node) = self.nodes.get_mut(next) {
            node.prev = prev;
        }
    }

    /// Moves a node to the end of a list.
    fn append(&mut self, head: usize, node: usize) {
        self.unlink(node);
        let last = self.nodes.get(head).map_or(head, |head| head.prev);
        self.link(last, node);
        self.link(node, head);
    }

    /// Takes a node out of its list, if it is in one.
    fn unlink(&mut self, node: usize) {
        if let Some(Node { prev, next, .. }) = self.nodes.get(node) {
            let (prev, next) = (*prev, *next);
            self.link(prev, next);
            self.link(node, node);
        }
    }
}
