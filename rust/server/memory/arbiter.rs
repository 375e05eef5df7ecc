// SPDX-License-Identifier: GPL-2.0

//! Who gets the memory for commands.
//!
//! An *account* is a client host, as the server tells hosts apart. It may have *own* memory, which
//! no other account ever gets, and it shares the *common* memory with all of them. A *requester*
//! is a connection, which asks for the memory of one command at a time. What it cannot have now it
//! waits for: the requesters of an account wait in two lines, in the order in which they asked, and
//! the accounts with such lines wait in a line themselves.
//!
//! - One line has the requesters whose commands fit the own memory of the account, the other one
//!   those whose commands are larger. The first one of the former gets own memory as soon as it
//!   fits. So a command that is no larger than the own memory waits for nothing but commands of
//!   the same account that are no larger, either.
//! - Common memory is for the first one of the latter. If there is none, it is for the first one of
//!   the former, too.
//! - Common memory goes to the first account that may have more of it, as [`may_hold`] says: an
//!   account that has much of it leaves a reserve to those that have less. An account that got some
//!   goes to the end of the line.
//! - If a command does not fit, because the memory is used or fragmented, its account becomes the
//!   *owner* of a reservation: a part of the memory in which nobody else gets any more. So the
//!   command gets its memory when those that use that part let go of it, however much the others
//!   ask for meanwhile; and a piece that never comes back keeps only that part from the others.
//!   There is one owner at a time, until it has got the memory or does not want it any more. What
//!   it is to get counts as gone.
//! - One call does a bounded number of steps, as interrupts are off meanwhile. What it has not
//!   looked at is left to [`Arbiter::go_on`].
//! - [`Arbiter::elapse`] is the clock by which an account is known to wait for long, and not
//!   because of what it has itself: [`Arbiter::is_in_need`].
//!
//! Nothing here names a kernel type or touches the memory that it is about: the same source is
//! compiled into the module and into the host tests.

#![forbid(unsafe_code)]

mod line;

use core::ops::DerefMut;

pub use line::Account;

use line::{
    FITTING,
    LARGER, //
};

use super::{
    buddy::PieceLen,
    share::may_hold, //
};

/// No account, or no requester.
const NONE: usize = usize::MAX;

/// Steps of one call. In each, one account at most gets one piece.
const STEPS: usize = 32;

/// The memory that is given away.
pub trait Memory {
    /// A piece that is in use. Who drops it has to give it back first.
    type Piece;

    /// Returns true if an account has own memory that has room for `len` bytes when all is free.
    fn fits_own(&self, account: usize, len: PieceLen) -> bool;

    /// Takes `len` bytes of the own memory of an account, if there are any.
    fn take_own(&mut self, account: usize, len: PieceLen) -> Option<Self::Piece>;

    /// Takes `len` bytes of the common memory that is not reserved, if there are any.
    fn take_common(&mut self, len: PieceLen) -> Option<Self::Piece>;

    /// Takes `len` bytes of the common memory, reserved or not, if there are any.
    fn take_reserved(&mut self, len: PieceLen) -> Option<Self::Piece>;

    /// Reserves the part of the common memory in which a large piece is soonest to come together.
    fn reserve(&mut self);

    /// Ends the reservation, if there is one.
    fn release(&mut self);

    /// Returns the bytes of common memory that are free, with those by which it may grow.
    fn left(&self) -> usize;
}

/// What a requester has asked for.
#[derive(Clone, Debug)]
enum Asked<P> {
    /// Nothing, or it has got it.
    Nothing,
    /// So many bytes, which it waits for.
    Waits(PieceLen),
    /// So many bytes, which are there and which it has not taken yet.
    Ready(PieceLen, P),
}

/// A requester.
#[derive(Clone, Debug)]
pub struct Requester<P> {
    account: usize,
    /// Who is told when its memory is there.
    poller: usize,
    asked: Asked<P>,
    /// Which line of its account it is in, if it waits.
    line: usize,
    /// Its neighbours in that line.
    prev: usize,
    next: usize,
}

/// Who has memory, and who waits for it.
///
/// # Invariants
///
/// - The line of accounts has those with requesters in their lines, each of which waits, and no
///   others.
/// - `waiting` is the number of requesters that wait.
/// - `owner` is the requester that has a reservation, and waits as the first one of its line, or
///   `NONE`. Then nothing is reserved after the next call that has the memory.
/// - `waits` has the number of accounts in the line that wait since this tick, since the one
///   before, and for longer.
/// - If `unfinished` is not set, no first requester of a line waits for what fits the own memory of
///   its account, and no account for common memory that it may have and that is there. If it is,
///   `cursor` and those behind it may, and all if `again` is set.
#[derive(Debug)]
pub struct Arbiter<A, R> {
    accounts: A,
    requesters: R,
    /// The line of accounts.
    first: usize,
    last: usize,
    waiting: usize,
    owner: usize,
    /// The next account to look at.
    cursor: usize,
    unfinished: bool,
    again: bool,
    tick: u64,
    waits: [usize; 3],
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
            owner: NONE,
            cursor: NONE,
            unfinished: false,
            again: false,
            tick: 0,
            waits: [0; 3],
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
        *self.accounts.get_mut(id)? = Some(Account::new());
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
            line: LARGER,
            prev: NONE,
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
        self.owner().is_some()
    }

    /// Returns the requester for which memory is reserved.
    pub fn owner(&self) -> Option<usize> {
        (self.owner != NONE).then_some(self.owner)
    }

    /// Returns true if [`Arbiter::go_on`] has to be called, as a call had too few steps.
    pub fn is_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Lets the clock tick by which [`Arbiter::is_in_need`] knows who waits for long.
    pub fn elapse(&mut self) {
        let [now, before, long] = self.waits;
        // INVARIANT: All of them wait for one tick more.
        self.waits = [0, now, before + long];
        self.tick += 1;
    }

    /// Returns true if another account is in need of the `kept` bytes of common memory that this
    /// one has: it waits for memory, has got none since before the last tick but one, and has less
    /// than that. Who has as much itself waits because of what it wants, not because of this one.
    ///
    /// One call looks at the first [`STEPS`] accounts of the line of those that wait.
    pub fn is_in_need(&self, account: usize, kept: usize) -> bool {
        if self.waits[2] == 0 {
            return false;
        }
        let next = |at: &usize| Some(self.account(*at)?.next);
        let line = core::iter::successors(Some(self.first), next);
        let mut looked_at = line.take(STEPS).filter(|at| *at != account);
        looked_at.any(|at| {
            let waits = self.account(at);
            waits.is_some_and(|one| self.age(one.since) == 2 && one.held < kept)
        })
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
        len: PieceLen,
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
            self.serve(None, memory, tell);
        }
        let line = match memory.fits_own(account, len) {
            true => FITTING,
            false => LARGER,
        };
        let [fitting, larger] = self.account(account)?.lines;
        if line == FITTING && fitting.first == NONE {
            if let Some(piece) = memory.take_own(account, len) {
                return Some(piece);
            }
        }
        let is_next = larger.first == NONE && (line == LARGER || fitting.first == NONE);
        // It would come before accounts that were not looked at yet.
        if is_next && !self.unfinished {
            if let Some(piece) = self.take_common(account, len, memory) {
                return Some(piece);
            }
        }
        self.wait(id, account, (len, line));
        if is_next && !self.unfinished {
            self.reserve_for(account, memory);
        }
        None
    }

    /// Returns the length that a requester has asked for and not got.
    pub fn asked(&self, id: usize) -> Option<PieceLen> {
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
        if self.unfinished {
            self.again = true;
        } else {
            (self.cursor, self.unfinished) = (self.first, true);
        }
        let mut steps = STEPS;
        if let Some(account) = account {
            while steps > 0 && self.serve_own(account, memory, tell) {
                steps -= 1;
            }
            // If there were too few steps, it is looked at again as all the others are.
            self.again |= steps == 0;
        }
        self.walk(steps, memory, tell);
    }

    /// Does what the calls before had too few steps for, or a part of it: see
    /// [`Arbiter::is_unfinished`].
    pub fn go_on<M: Memory<Piece = P>>(&mut self, memory: &mut M, tell: &mut impl FnMut(usize)) {
        if self.unfinished {
            self.walk(STEPS, memory, tell);
        }
    }

    /// Serves the owner of the reservation, and then so many accounts from `cursor` on.
    fn walk<M: Memory<Piece = P>>(
        &mut self,
        mut steps: usize,
        memory: &mut M,
        tell: &mut impl FnMut(usize),
    ) {
        self.serve_owner(memory, tell);
        loop {
            if self.cursor == NONE {
                if !self.again {
                    self.unfinished = false;
                    return;
                }
                self.again = false;
                self.cursor = self.first;
            } else if steps == 0 {
                return;
            } else {
                steps -= 1;
                let at = self.cursor;
                self.cursor = self.account(at).map_or(NONE, |account| account.next);
                self.visit(at, memory, tell);
            }
        }
    }

    /// Gives the owner of the reservation its memory, if it is there by now.
    fn serve_owner<M: Memory<Piece = P>>(&mut self, memory: &mut M, tell: &mut impl FnMut(usize)) {
        let owner = self.owner;
        let Some((account, len)) = self.waits_for(owner) else {
            return memory.release();
        };
        let Some(piece) = memory.take_reserved(len) else {
            // Another part may be better by now.
            return memory.reserve();
        };
        memory.release();
        self.charge(account, len);
        self.supply(owner, account, len, piece, tell);
        // This is in a call of `serve()`, as memory has come back: all accounts are looked at from
        // here on, so that others get what was reserved and is left.
        self.move_to_end(account);
    }

    /// Gives an account what it may have now for one of its requesters.
    fn visit<M: Memory<Piece = P>>(
        &mut self,
        at: usize,
        memory: &mut M,
        tell: &mut impl FnMut(usize),
    ) {
        if self.serve_own(at, memory, tell) {
            if self.account(at).is_some_and(|account| !account.is_idle()) {
                // The next one may fit, too.
                self.cursor = at;
            }
            return;
        }
        let Some((id, len)) = self.next_of(at) else {
            return;
        };
        match self.take_common(at, len, memory) {
            Some(piece) => {
                self.supply(id, at, len, piece, tell);
                self.move_to_end(at);
            }
            None => self.reserve_for(at, memory),
        }
    }

    /// Gives the first requester of a line of an account own memory. Returns true if it fits.
    fn serve_own<M: Memory<Piece = P>>(
        &mut self,
        account: usize,
        memory: &mut M,
        tell: &mut impl FnMut(usize),
    ) -> bool {
        let Some(lines) = self.account(account).map(|one| one.lines) else {
            return false;
        };
        // When the larger ones came, the account may have had no own memory.
        for id in lines.map(|line| line.first) {
            let Some((_, len)) = self.waits_for(id) else {
                continue;
            };
            if let Some(piece) = memory.take_own(account, len) {
                let owned = self.owner == id;
                self.supply(id, account, len, piece, tell);
                if owned {
                    // INVARIANT: Nobody is the owner now.
                    memory.release();
                }
                return true;
            }
        }
        false
    }

    /// Takes `len` bytes of common memory that an account may have, and that are not reserved.
    fn take_common<M: Memory<Piece = P>>(
        &mut self,
        account: usize,
        len: PieceLen,
        memory: &mut M,
    ) -> Option<P> {
        let owns = self
            .waits_for(self.owner)
            .is_some_and(|owner| owner.0 == account);
        if owns || !self.may_have(account, len, memory) {
            return None;
        }
        let piece = memory.take_common(len)?;
        self.charge(account, len);
        Some(piece)
    }

    /// Makes the requester of an account that comes next, and whose command does not fit, the owner
    /// of the reservation, if the account may have the memory and nobody is.
    fn reserve_for<M: Memory<Piece = P>>(&mut self, account: usize, memory: &mut M) {
        if self.owner != NONE {
            return;
        }
        let Some((id, len)) = self.next_of(account) else {
            return;
        };
        if self.may_have(account, len, memory) {
            // INVARIANT: It waits.
            self.owner = id;
            memory.reserve();
        }
    }

    /// Returns true if an account may have `len` more bytes of common memory. What the owner of the
    /// reservation is to get counts as gone.
    fn may_have<M: Memory<Piece = P>>(&self, account: usize, len: PieceLen, memory: &M) -> bool {
        let owned = self.waits_for(self.owner);
        let owned = owned.map_or(0, |(_, len)| len.bytes());
        let left = memory.left().saturating_sub(owned);
        may_hold(self.held(account), len.bytes(), left)
    }

    /// Lets a requester of an account, the first one of its line, have `piece`. If it was the owner
    /// of the reservation, nobody is now.
    fn supply(
        &mut self,
        id: usize,
        account: usize,
        len: PieceLen,
        piece: P,
        tell: &mut impl FnMut(usize),
    ) {
        let was_next = self.next_of(account).is_some_and(|next| next.0 == id);
        self.unwait(id, account);
        if was_next {
            self.restart_wait(account);
        }
        if let Some(requester) = self.requester_mut(id) {
            requester.asked = Asked::Ready(len, piece);
            tell(requester.poller);
        }
    }

    fn charge(&mut self, account: usize, len: PieceLen) {
        if let Some(account) = self.account_mut(account) {
            account.held = account.held.saturating_add(len.bytes());
        }
    }

    /// Returns the account of a requester that waits, and for what it does.
    fn waits_for(&self, id: usize) -> Option<(usize, PieceLen)> {
        let requester = self.requesters.get(id)?.as_ref()?;
        match requester.asked {
            Asked::Waits(len) => Some((requester.account, len)),
            _ => None,
        }
    }

    /// Returns the requester of an account that comes next for common memory, and what it waits
    /// for.
    fn next_of(&self, account: usize) -> Option<(usize, PieceLen)> {
        let id = self.account(account)?.next_for_common();
        self.waits_for(id).map(|(_, len)| (id, len))
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
