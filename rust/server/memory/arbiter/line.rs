// SPDX-License-Identifier: GPL-2.0

//! The line of the accounts that wait, and the lines of the requesters of each: who is the next
//! one, and for how long they have waited.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

use super::{
    Arbiter,
    Asked,
    PieceLen,
    Requester,
    NONE, //
};

/// A line of requesters of an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) first: usize,
    last: usize,
}

impl Line {
    const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };
}

/// The line of those whose commands fit the own memory of their account, and that of the others.
pub(super) const FITTING: usize = 0;
pub(super) const LARGER: usize = 1;

/// An account.
#[derive(Clone, Debug)]
pub struct Account {
    /// The bytes of common memory that it has.
    pub(super) held: usize,
    /// Its lines of requesters: [`FITTING`] and [`LARGER`].
    pub(super) lines: [Line; 2],
    /// Its neighbours in the line of accounts. It is in there as long as a requester of it waits.
    prev: usize,
    pub(super) next: usize,
    /// The tick since which its requesters wait, and that which comes next for common memory has
    /// got nothing.
    pub(super) since: u64,
}

impl Account {
    /// Makes an account that has nothing.
    pub(super) fn new() -> Self {
        Self {
            held: 0,
            lines: [Line::EMPTY; 2],
            prev: NONE,
            next: NONE,
            since: 0,
        }
    }

    /// Returns true if none of its requesters waits.
    pub(super) fn is_idle(&self) -> bool {
        self.lines.iter().all(|line| line.first == NONE)
    }

    /// Returns the requester that comes next for common memory, or `NONE`.
    pub(super) fn next_for_common(&self) -> usize {
        let [fitting, larger] = self.lines;
        match larger.first {
            NONE => fitting.first,
            first => first,
        }
    }
}

impl<P, A, R> Arbiter<A, R>
where
    A: DerefMut<Target = [Option<Account>]>,
    R: DerefMut<Target = [Option<Requester<P>>]>,
{
    /// Puts a requester at the end of a line of its account.
    pub(super) fn wait(&mut self, id: usize, at: usize, (len, line): (PieceLen, usize)) {
        let Some(account) = self.account_mut(at) else {
            return;
        };
        let was_idle = account.is_idle();
        let Some(ends) = account.lines.get_mut(line) else {
            return;
        };
        let last = core::mem::replace(&mut ends.last, id);
        if last == NONE {
            ends.first = id;
        } else if let Some(last) = self.requester_mut(last) {
            last.next = id;
        }
        if was_idle {
            self.link(at);
        }
        if let Some(requester) = self.requester_mut(id) {
            requester.asked = Asked::Waits(len);
            requester.line = line;
            (requester.prev, requester.next) = (last, NONE);
        }
        self.waiting += 1;
    }

    /// Takes a requester, which waits until now, out of the line of its account. If it was the
    /// owner of the reservation, nobody is any more.
    pub(super) fn unwait(&mut self, id: usize, at: usize) {
        let requester = self.requester_mut(id);
        let Some((line, prev, next)) = requester.map(|one| (one.line, one.prev, one.next)) else {
            return;
        };
        if let Some(prev) = self.requester_mut(prev) {
            prev.next = next;
        }
        if let Some(next) = self.requester_mut(next) {
            next.prev = prev;
        }
        let Some(account) = self.account_mut(at) else {
            return;
        };
        if let Some(ends) = account.lines.get_mut(line) {
            if prev == NONE {
                ends.first = next;
            }
            if next == NONE {
                ends.last = prev;
            }
        }
        let idle = account.is_idle();
        self.waiting -= 1;
        if self.owner == id {
            // INVARIANT: The next call that has the memory ends the reservation.
            self.owner = NONE;
        }
        if idle {
            self.unlink(at);
        }
    }

    /// Puts an account at the end of the line of accounts.
    pub(super) fn link(&mut self, id: usize) {
        let last = core::mem::replace(&mut self.last, id);
        match self.account_mut(last) {
            Some(last) => last.next = id,
            None => self.first = id,
        }
        let tick = self.tick;
        if let Some(account) = self.account_mut(id) {
            (account.prev, account.next, account.since) = (last, NONE, tick);
        }
        self.waits[0] += 1;
        if self.unfinished && self.cursor == NONE {
            // INVARIANT: It is looked at, too.
            self.cursor = id;
        }
    }

    /// Takes an account out of the line of accounts.
    pub(super) fn unlink(&mut self, id: usize) {
        let Some(Account {
            prev, next, since, ..
        }) = self.account(id).cloned()
        else {
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
        if self.cursor == id {
            self.cursor = next;
        }
        self.forget_wait(since);
    }

    /// Puts an account that is in the line of accounts at its end.
    pub(super) fn move_to_end(&mut self, id: usize) {
        if self.account(id).is_some_and(|account| !account.is_idle()) {
            self.unlink(id);
            self.link(id);
        }
    }

    /// Notes that an account has got something, if it is in the line of accounts.
    pub(super) fn restart_wait(&mut self, id: usize) {
        let tick = self.tick;
        let Some(account) = self.account_mut(id).filter(|one| !one.is_idle()) else {
            return;
        };
        let since = core::mem::replace(&mut account.since, tick);
        self.forget_wait(since);
        self.waits[0] += 1;
    }

    /// Counts one less of those that wait since a tick.
    pub(super) fn forget_wait(&mut self, since: u64) {
        let age = self.age(since);
        if let Some(count) = self.waits.get_mut(age) {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns the place of a tick in `waits`.
    pub(super) fn age(&self, since: u64) -> usize {
        match self.tick - since {
            0 => 0,
            1 => 1,
            _ => 2,
        }
    }
}
