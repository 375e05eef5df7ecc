// SPDX-License-Identifier: GPL-2.0

//! Accounts and requesters of a [`Pool`], as an [`Arbiter`](super::arbiter::Arbiter) knows them.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

use crate::server::memory::{
    buddy::{
        PieceLen,
        PIECE_MIN, //
    },
    pool::Pool, //
};

/// The small pieces that an account may have which are not charged to it: as many as a poller keeps
/// at hand.
const SMALL_MAX: usize = 32;

/// What a client host has of a pool's memory for commands. It is removed with the drop, which may
/// sleep. No requester and no piece of memory of it may be left then, as each refers to it.
pub(in crate::server) struct Account {
    pub(super) pool: Arc<Pool>,
    pub(super) number: usize,
    /// The number of small pieces that are not charged to it.
    small: Atomic<usize>,
    /// The bytes of its own memory.
    own: Atomic<usize>,
}

impl Account {
    /// Makes an account that has nothing. May sleep.
    pub(in crate::server) fn new(pool: &Arc<Pool>) -> Result<Arc<Self>> {
        let number = pool.add_account()?;
        let account = Self {
            pool: pool.clone(),
            number,
            small: Atomic::new(0),
            own: Atomic::new(0),
        };
        Ok(Arc::new(account, GFP_KERNEL)?)
    }

    /// Makes sure that it has own memory. May sleep.
    pub(in crate::server) fn make_own(&self) -> Result {
        self.pool.make_own(self.number)?;
        self.own.store(self.pool.own(self.number), Relaxed);
        Ok(())
    }

    /// Returns the bytes of common memory that it has. Any context.
    fn kept(&self) -> usize {
        let small = self.small.load(Relaxed) * PIECE_MIN;
        self.pool.held(self.number) + small
    }

    /// Counts one more small piece. Returns false if there are too many. Any context.
    pub(super) fn add_small(&self) -> bool {
        let added = self.small.fetch_add(1, Relaxed) < SMALL_MAX;
        if !added {
            self.remove_small();
        }
        added
    }

    /// Counts one small piece less. Any context.
    pub(super) fn remove_small(&self) {
        self.small.fetch_sub(1, Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.pool.remove_account(self.number);
    }
}

/// A connection, as it asks for the memory of its commands: of one at a time.
pub(in crate::server) struct Requester {
    pub(super) account: Arc<Account>,
    pub(super) number: usize,
    /// It waits for memory.
    waits: Atomic<u32>,
}

impl Requester {
    /// Makes a requester of an account, whose `poller` is told when its memory is there. May sleep.
    pub(in crate::server) fn new(account: &Arc<Account>, poller: usize) -> Result<Self> {
        Ok(Self {
            number: account.pool.add_requester(account.number, poller)?,
            account: account.clone(),
            waits: Atomic::new(0),
        })
    }

    /// Returns true if it has asked for memory and not got it. Any context.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waits.load(Relaxed) != 0
    }

    /// Notes whether it waits for memory. Any context.
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits.into(), Relaxed);
    }

    /// Returns the bytes of own memory of its account. Any context.
    pub(in crate::server) fn own(&self) -> usize {
        self.account.own.load(Relaxed)
    }

    /// Returns true if the own memory of its account has room for `len` bytes when all is free. Any
    /// context.
    #[inline]
    pub(in crate::server) fn fits_own(&self, len: PieceLen) -> bool {
        len.bytes() <= self.own()
    }

    /// Returns the bytes of common memory that its account has. Any context.
    pub(in crate::server) fn kept(&self) -> usize {
        self.account.kept()
    }

    /// Returns true if another account is in need of the memory that its account has, as
    /// [`Arbiter::is_in_need`](super::arbiter::Arbiter::is_in_need) says. Any context.
    pub(in crate::server) fn keeps_from_others(&self) -> bool {
        let account = &self.account;
        account.pool.is_in_need(account.number, account.kept())
    }

    /// Forgets what it has asked for: the command has ended. Any context.
    pub(in crate::server) fn cancel(&self) {
        self.account.pool.cancel(self);
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.account.pool.remove_requester(self);
    }
}
