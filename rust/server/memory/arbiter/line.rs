// SPDX-License-Identifier: GPL-2.0

//! The line of the accounts that wait, and that of the requesters of each: who is the next one, and
//! for how long they have waited.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

use super::{
    Account,
    Arbiter,
    Asked,
    PieceLen,
    Requester,
    NONE, //
};

impl<P, A, R> Arbiter<A, R>
where
    A: DerefMut<Target = [Option<Account>]>,
    R: DerefMut<Target = [Option<Requester<P>>]>,
{
    /// Puts a requester at the end of the line of its account.
    pub(super) fn wait(&mut self, id: usize, account: usize, len: PieceLen) {
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
        if let Some(requester) = self.requester_mut(id) {
            requester.asked = Asked::Waits(len);
            (requester.prev, requester.next) = (last, NONE);
        }
        self.waiting += 1;
    }

    /// Takes a requester, which waits until now, out of the line of its account. If it was what the
    /// owner of the reservation waits for, nobody is the owner any more.
    pub(super) fn unwait(&mut self, id: usize, account: usize) {
        let Some((prev, next)) = self.requester_mut(id).map(|one| (one.prev, one.next)) else {
            return;
        };
        if let Some(prev) = self.requester_mut(prev) {
            prev.next = next;
        }
        if let Some(next) = self.requester_mut(next) {
            next.prev = prev;
        }
        let Some(line) = self.account_mut(account) else {
            return;
        };
        if prev == NONE {
            line.first = next;
        }
        if next == NONE {
            line.last = prev;
        }
        let empty = line.first == NONE;
        self.waiting -= 1;
        if prev == NONE && self.owner == account {
            // INVARIANT: The next call that has the memory ends the reservation.
            self.owner = NONE;
        }
        if empty {
            self.unlink(account);
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
        if self.first_of(id).is_some() {
            self.unlink(id);
            self.link(id);
        }
    }

    /// Notes that an account has got something, if it is in the line of accounts.
    pub(super) fn restart_wait(&mut self, id: usize) {
        let tick = self.tick;
        let Some(account) = self.account_mut(id).filter(|one| one.first != NONE) else {
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
