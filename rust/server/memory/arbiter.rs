// SPDX-License-Identifier: GPL-2.0

//! Who gets the memory for commands.
//!
//! An *account* is a client host, as the server tells hosts apart. It may have *own* memory, which
//! no other account ever gets, and it shares the *common* memory with all of them. A *requester*
//! is a connection, which asks for the memory of one command at a time. What it cannot have now it
//! waits for: the requesters of an account wait in a line, in the order in which they asked, and
//! the accounts with such a line wait in a line themselves.
//!
//! - The first requester of an account gets own memory as soon as it fits. So a command that is no
//!   larger than the own memory waits for nothing but commands of the same account.
//! - Common memory goes to the first account that may have more of it, as [`may_hold`] says: an
//!   account that has much of it leaves a reserve to those that have less. If that account's
//!   command does not fit, because the memory is used or fragmented, no other one gets common
//!   memory meanwhile. An account that got some goes to the end of the line.
//!
//! Nothing here names a kernel type or touches the memory that it is about: the same source is
//! compiled into the module and into the host tests.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

use super::{
    buddy::bytes_for,
    share::may_hold, //
};

/// No account, or no requester.
const NONE: usize = usize::MAX;

/// The memory that is given away.
pub trait Memory {
    /// A piece that is in use. Who drops it has to give it back first.
    type Piece;

    /// Takes `len` bytes of the own memory of an account, if there are any.
    fn take_own(&mut self, account: usize, len: usize) -> Option<Self::Piece>;

    /// Takes `len` bytes of the common memory, if there are any.
    fn take_common(&mut self, len: usize) -> Option<Self::Piece>;

    /// Returns the bytes of common memory that are free, with those by which it may grow.
    fn left(&self) -> usize;
}

/// An account.
#[derive(Clone, Debug)]
pub struct Account {
    /// The bytes of common memory that it has.
    held: usize,
    /// Its line of requesters.
    first: usize,
    last: usize,
    /// Its neighbours in the line of accounts. It is in there as long as a requester of it waits.
    prev: usize,
    next: usize,
}

/// What a requester has asked for.
#[derive(Clone, Debug)]
enum Asked<P> {
    /// Nothing, or it has got it.
    Nothing,
    /// So many bytes, which it waits for.
    Waits(usize),
    /// So many bytes, which are there and which it has not taken yet.
    Ready(usize, P),
}

/// A requester.
#[derive(Clone, Debug)]
pub struct Requester<P> {
    account: usize,
    /// Who is told when its memory is there.
    poller: usize,
    asked: Asked<P>,
    /// The one behind it in the line of its account.
    next: usize,
}

/// Who has memory, and who waits for it.
///
/// # Invariants
///
/// - The line of accounts has those with a line of requesters, each of which waits, and no others.
/// - `waiting` is the number of requesters that wait.
/// - No first requester of an account waits for what fits its own memory.
/// - `short` is set if an account may have more common memory, and does not get it.
#[derive(Debug)]
pub struct Arbiter<A, R> {
    accounts: A,
    requesters: R,
    /// The line of accounts.
    first: usize,
    last: usize,
    waiting: usize,
    short: bool,
}

impl<P, A, R> Arbiter<A, R>
where
    A: DerefMut<Target = [Option<Account>]>,
    R: DerefMut<Target = [Option<Requester<P>>]>,
{
    /// Makes an arbiter for as many accounts and requesters as these have elements, all `None`.
    pub fn new(accounts: A, requesters: R) -> Self {
        Self {
            accounts,
            requesters,
            first: NONE,
            last: NONE,
            waiting: 0,
            short: false,
        }
    }

    /// Moves the accounts to `places`, which are at least as many. Returns the places before.
    pub fn widen_accounts(&mut self, mut places: A) -> A {
        move_all(&mut self.accounts, &mut places);
        core::mem::replace(&mut self.accounts, places)
    }

    /// Moves the requesters to `places`, which are at least as many. Returns the places before.
    pub fn widen_requesters(&mut self, mut places: R) -> R {
        move_all(&mut self.requesters, &mut places);
        core::mem::replace(&mut self.requesters, places)
    }

    /// Adds an account that has nothing. `None` if there is no place.
    pub fn add_account(&mut self) -> Option<usize> {
        let id = self.accounts.iter().position(Option::is_none)?;
        *self.accounts.get_mut(id)? = Some(Account {
            held: 0,
            first: NONE,
            last: NONE,
            prev: NONE,
            next: NONE,
        });
        Some(id)
    }

    /// Removes an account that has nothing, and no requesters.
    pub fn remove_account(&mut self, id: usize) {
        if let Some(place) = self.accounts.get_mut(id) {
            *place = None;
        }
    }

    /// Adds a requester of an account, whose `poller` is told when its memory is there. `None` if
    /// there is no place.
    pub fn add_requester(&mut self, account: usize, poller: usize) -> Option<usize> {
        let id = self.requesters.iter().position(Option::is_none)?;
        *self.requesters.get_mut(id)? = Some(Requester {
            account,
            poller,
            asked: Asked::Nothing,
            next: NONE,
        });
        Some(id)
    }

    /// Returns the number of places for requesters.
    pub fn places(&self) -> usize {
        self.requesters.len()
    }

    /// Removes a requester for which [`Arbiter::cancel`] was called.
    pub fn remove_requester(&mut self, id: usize) {
        if let Some(place) = self.requesters.get_mut(id) {
            *place = None;
        }
    }

    /// Returns the number of requesters that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns true if more common memory would let a requester go on.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Returns the bytes of common memory that an account has.
    pub fn held(&self, account: usize) -> usize {
        self.account(account).map_or(0, |account| account.held)
    }

    /// Returns the memory of `len` bytes for which a requester has asked, now or before. Otherwise
    /// it waits, and `tell` gets its poller as soon as the memory is there; then the requester has
    /// to ask again. One that has asked for another length before has to cancel that first.
    pub fn ask<M: Memory<Piece = P>>(
        &mut self,
        id: usize,
        len: usize,
        memory: &mut M,
        tell: &mut impl FnMut(usize),
    ) -> Option<P> {
        let requester = self.requesters.get_mut(id)?.as_mut()?;
        let account = requester.account;
        match core::mem::replace(&mut requester.asked, Asked::Nothing) {
            Asked::Nothing => {}
            Asked::Ready(_, piece) => return Some(piece),
            waits => {
                requester.asked = waits;
                return None;
            }
        }
        if self.waiting > 0 {
            // Other pools may have left more of the memory since.
            self.serve_common(memory, tell);
        }
        let (held, first) = self.account(account).map(|one| (one.held, one.first))?;
        if first == NONE {
            if let Some(piece) = memory.take_own(account, len) {
                return Some(piece);
            }
            let bytes = bytes_for(len);
            if !self.short && may_hold(held, bytes, memory.left()) {
                if let Some(piece) = memory.take_common(len) {
                    self.charge(account, bytes);
                    return Some(piece);
                }
            }
        }
        self.wait(id, account, len);
        self.serve_common(memory, tell);
        None
    }

    /// Returns the length that a requester has asked for and not got.
    pub fn asked(&self, id: usize) -> Option<usize> {
        match self.requesters.get(id)?.as_ref()?.asked {
            Asked::Nothing => None,
            Asked::Waits(len) | Asked::Ready(len, _) => Some(len),
        }
    }

    /// Forgets what a requester has asked for. Returns its memory if that is there, which has to be
    /// given back. Otherwise [`Arbiter::serve`] has to be called: others may go on now.
    pub fn cancel(&mut self, id: usize) -> Option<P> {
        let requester = self.requesters.get_mut(id)?.as_mut()?;
        let account = requester.account;
        match core::mem::replace(&mut requester.asked, Asked::Nothing) {
            Asked::Nothing => None,
            Asked::Ready(_, piece) => Some(piece),
            Asked::Waits(_) => {
                self.unwait(id, account);
                None
            }
        }
    }

    /// Notes that an account has given back `bytes` of common memory. [`Arbiter::serve`] has to be
    /// called afterwards.
    pub fn discharge(&mut self, account: usize, bytes: usize) {
        if let Some(account) = self.account_mut(account) {
            account.held = account.held.saturating_sub(bytes);
        }
    }

    /// Gives those that wait what there is now, and tells their pollers. Called when common memory
    /// has come back or was added, or, with its `account`, own memory.
    pub fn serve<M: Memory<Piece = P>>(
        &mut self,
        account: Option<usize>,
        memory: &mut M,
        tell: &mut impl FnMut(usize),
    ) {
        if let Some(account) = account {
            self.serve_own(account, memory, tell);
        }
        self.serve_common(memory, tell);
    }

    /// Gives the first requesters of an account own memory.
    fn serve_own<M: Memory<Piece = P>>(
        &mut self,
        account: usize,
        memory: &mut M,
        tell: &mut impl FnMut(usize),
    ) {
        while let Some((first, len)) = self.first_of(account) {
            let Some(piece) = memory.take_own(account, len) else {
                return;
            };
            self.supply(first, account, len, piece, tell);
        }
    }

    /// Gives accounts common memory, in their order.
    fn serve_common<M: Memory<Piece = P>>(&mut self, memory: &mut M, tell: &mut impl FnMut(usize)) {
        self.short = false;
        let mut at = self.first;
        while let Some((first, len)) = self.first_of(at) {
            let bytes = bytes_for(len);
            if !may_hold(self.held(at), bytes, memory.left()) {
                at = self.account(at).map_or(NONE, |account| account.next);
                continue;
            }
            let Some(piece) = memory.take_common(len) else {
                // INVARIANT: It may have it, and does not get it.
                self.short = true;
                return;
            };
            self.charge(at, bytes);
            self.supply(first, at, len, piece, tell);
            if self.first_of(at).is_some() {
                self.unlink(at);
                self.link(at);
                self.serve_own(at, memory, tell);
            }
            // Less is left, and another account is the first.
            at = self.first;
        }
    }

    /// Lets the first requester of an account have `piece`.
    fn supply(
        &mut self,
        id: usize,
        account: usize,
        len: usize,
        piece: P,
        tell: &mut impl FnMut(usize),
    ) {
        self.unwait(id, account);
        if let Some(requester) = self.requester_mut(id) {
            requester.asked = Asked::Ready(len, piece);
            tell(requester.poller);
        }
    }

    fn charge(&mut self, account: usize, bytes: usize) {
        if let Some(account) = self.account_mut(account) {
            account.held = account.held.saturating_add(bytes);
        }
    }

    /// Returns the first requester in the line of an account, and what it waits for.
    fn first_of(&self, account: usize) -> Option<(usize, usize)> {
        let first = self.account(account)?.first;
        match self.requesters.get(first)?.as_ref()?.asked {
            Asked::Waits(len) => Some((first, len)),
            _ => None,
        }
    }

    /// Puts a requester at the end of the line of its account.
    fn wait(&mut self, id: usize, account: usize, len: usize) {
        let Some(requester) = self.requester_mut(id) else {
            return;
        };
        requester.asked = Asked::Waits(len);
        requester.next = NONE;
        let Some(line) = self.account_mut(account) else {
            return;
        };
        let last = core::mem::replace(&mut line.last, id);
        if last == NONE {
            line.first = id;
            self.link(account);
        } else if let Some(last) = self.requester_mut(last) {
            last.next = id;
        }
        self.waiting += 1;
    }

    /// Takes a requester out of the line of its account.
    fn unwait(&mut self, id: usize, account: usize) {
        let next = self.requester_mut(id).map_or(NONE, |one| one.next);
        let mut before = NONE;
        let mut at = self.account(account).map_or(NONE, |line| line.first);
        while at != id && at != NONE {
            before = at;
            at = self.requester_mut(at).map_or(NONE, |one| one.next);
        }
        if at == NONE {
            return;
        }
        if let Some(before) = self.requester_mut(before) {
            before.next = next;
        }
        let Some(line) = self.account_mut(account) else {
            return;
        };
        if before == NONE {
            line.first = next;
        }
        if next == NONE {
            line.last = before;
        }
        let empty = line.first == NONE;
        self.waiting -= 1;
        if empty {
            self.unlink(account);
        }
    }

    /// Puts an account at the end of the line of accounts.
    fn link(&mut self, id: usize) {
        let last = core::mem::replace(&mut self.last, id);
        match self.account_mut(last) {
            Some(last) => last.next = id,
            None => self.first = id,
        }
        if let Some(account) = self.account_mut(id) {
            (account.prev, account.next) = (last, NONE);
        }
    }

    /// Takes an account out of the line of accounts.
    fn unlink(&mut self, id: usize) {
        let Some((prev, next)) = self.account(id).map(|one| (one.prev, one.next)) else {
            return;
        };
        match self.account_mut(prev) {
            Some(prev) => prev.next = next,
            None => self.first = next,
        }
        match self.account_mut(next) {
            Some(next) => next.prev = prev,
            None => self.last = prev,
        }
    }

    fn account(&self, id: usize) -> Option<&Account> {
        self.accounts.get(id)?.as_ref()
    }

    fn account_mut(&mut self, id: usize) -> Option<&mut Account> {
        self.accounts.get_mut(id)?.as_mut()
    }

    fn requester_mut(&mut self, id: usize) -> Option<&mut Requester<P>> {
        self.requesters.get_mut(id)?.as_mut()
    }
}

/// Moves all elements to the places of the same index.
fn move_all<T>(from: &mut [Option<T>], to: &mut [Option<T>]) {
    for (from, to) in from.iter_mut().zip(to) {
        *to = from.take();
    }
}
