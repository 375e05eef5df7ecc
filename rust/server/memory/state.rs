// SPDX-License-Identifier: GPL-2.0

//! What the lock of a pool protects: its memory, and who gets and waits for it.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::server::memory::{
    arbiter::{
        self,
        Arbiter, //
    },
    buddy::PieceLen,
    pieces::{
        Memory,
        Place, //
    },
};

/// Receives the events of a pool. All of them may come in any context, with the pool's lock held.
pub(in crate::server) trait PoolEvents: Send + Sync + 'static {
    /// A connection of the poller may have memory now, or memory that can be done without is wanted
    /// back.
    fn memory_changed(&self);

    /// Some time has passed: what there was no memory for can be tried again.
    fn retry(&self);
}

/// Who waits for the memory of a pool, and who is told when it is there.
pub(super) struct State {
    pub(super) arbiter:
        Arbiter<KVVec<Option<arbiter::Account>>, KVVec<Option<arbiter::Requester<Place>>>>,
    pub(super) memory: Memory,
    /// The last attempt to add a chunk failed. The next one is when the pool was trimmed.
    pub(super) refused: bool,
    /// The pollers that use the pool, by their number.
    pub(super) pollers: KVec<Option<Arc<dyn PoolEvents>>>,
}

impl State {
    /// Lets a requester ask for `len` bytes.
    pub(super) fn ask(&mut self, requester: usize, len: PieceLen) -> Option<Place> {
        let tell = &mut tell(&self.pollers);
        self.arbiter.ask(requester, len, &mut self.memory, tell)
    }

    /// Gives those that wait what there is now: after common memory has come back or was added, or
    /// own memory of `account`.
    pub(super) fn serve(&mut self, account: Option<usize>) {
        let tell = &mut tell(&self.pollers);
        self.arbiter.serve(account, &mut self.memory, tell);
    }

    /// Does what there were too few steps for.
    pub(super) fn go_on(&mut self) {
        let tell = &mut tell(&self.pollers);
        self.arbiter.go_on(&mut self.memory, tell);
    }

    /// Takes back a piece that an account had, and serves those that wait.
    pub(super) fn put(&mut self, account: usize, place: Place) {
        match place {
            Place::Own(piece) => {
                if let Some(Some(own)) = self.memory.own.get_mut(account) {
                    own.free.free(piece);
                }
                return self.serve(Some(account));
            }
            Place::Common(piece) => {
                self.arbiter.discharge(account, piece.bytes());
                self.memory.put_chunked(piece);
            }
            Place::Small(piece) => self.memory.put_chunked(piece),
        }
        self.serve(None);
    }

    /// Forgets what a requester of an account has asked for, and serves those that wait.
    pub(super) fn cancel(&mut self, account: usize, requester: usize) {
        match self.arbiter.cancel(requester) {
            Some(place) => self.put(account, place),
            None => self.serve(Some(account)),
        }
    }
}

/// Returns what tells a poller that a requester's memory is there.
fn tell(pollers: &KVec<Option<Arc<dyn PoolEvents>>>) -> impl FnMut(usize) + '_ {
    |poller| {
        if let Some(Some(poller)) = pollers.get(poller) {
            poller.memory_changed();
        }
    }
}
