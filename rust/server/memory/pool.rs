// SPDX-License-Identifier: GPL-2.0

//! The memory for the data of commands: a pool for each export in use on an HCA.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::Msecs,
    workqueue::{
        Work,
        WorkItem, //
    },
};

use crate::base::{
    periodic::{
        PeriodicHandler,
        PeriodicWork, //
    },
    sync::{
        new_irqsave_spinlock,
        IrqSaveSpinLock, //
    },
    workqueue::OwnedQueue, //
};
use crate::rdma::{
    device::Device,
    dma::DmaPiece, //
};
use crate::server::memory::{
    account::{
        Account,
        Requester, //
    },
    arbiter::{
        self,
        Arbiter, //
    },
    buddy,
    budget::{
        Budget,
        Counted,
        Lasting, //
    },
    pieces::{
        empty,
        Held,
        Memory,
        Own,
        Place, //
    },
    share::OWN_MIN,
};

/// The interval at which the pool gives up chunks that it does not need, in ms.
const TRIM_MS: Msecs = 5000;
/// Places for accounts, and for requesters, that are made at once.
const PLACES_AT_ONCE: usize = 16;

/// Receives the events of a pool. All of them may come in any context, with the pool's lock held.
pub(in crate::server) trait PoolEvents: Send + Sync + 'static {
    /// A connection of the poller may have memory now, or memory that can be done without is wanted
    /// back.
    fn memory_changed(&self);

    /// Some time has passed: what there was no memory for can be tried again.
    fn retry(&self);
}

struct State {
    arbiter: Arbiter<KVVec<Option<arbiter::Account>>, KVVec<Option<arbiter::Requester<Place>>>>,
    memory: Memory,
    /// The last attempt to add a chunk failed. The next one is after the next [`Pool::trim`].
    refused: bool,
    /// The pollers that use the pool, by their number.
    pollers: KVec<Option<Arc<dyn PoolEvents>>>,
}

impl State {
    /// Lets a requester ask for `len` bytes.
    fn ask(&mut self, requester: usize, len: usize) -> Option<Place> {
        let tell = &mut tell(&self.pollers);
        self.arbiter.ask(requester, len, &mut self.memory, tell)
    }

    /// Gives those that wait what there is now: after common memory has come back or was added, or
    /// own memory of `account`.
    fn serve(&mut self, account: Option<usize>) {
        let tell = &mut tell(&self.pollers);
        self.arbiter.serve(account, &mut self.memory, tell);
    }

    /// Takes back a piece that an account had, and serves those that wait.
    fn put(&mut self, account: usize, place: Place) {
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
    fn cancel(&mut self, account: usize, requester: usize) {
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

/// Memory that is mapped once for an HCA, and that all connections to one export on it share.
///
/// The pool always has one chunk, so that commands go on when the system has no memory to give, or
/// when other pools have used up the budget. When all of it is used, commands wait, and a worker
/// adds chunks. Chunks that were not needed for some seconds are freed.
///
/// Who gets memory is the decision of an [`Arbiter`], under the pool's lock. Memory comes back
/// under the same lock, and is given to those that wait at once: nobody can take it before they
/// have heard of it, and who is about to wait does not miss it.
#[pin_data]
pub(in crate::server) struct Pool {
    device: Arc<Device>,
    /// Among the pools of its budget.
    counted: Counted,
    #[pin]
    state: IrqSaveSpinLock<State>,
    /// Held while places for accounts and requesters, or own memory, are made.
    #[pin]
    making: Mutex<()>,
    /// The number of requesters that wait. While it is not 0, pollers give back memory that they
    /// can do without. Set with the lock held.
    waiting: Atomic<usize>,
    /// The workqueue on which chunks are added.
    grower: Arc<OwnedQueue>,
    #[pin]
    work: Work<Pool>,
}

impl_has_work! {
    impl HasWork<Self> for Pool { self.work }
}

/// The periodic work that lets a pool shrink.
pub(in crate::server) struct Trim(Arc<Pool>);

impl PeriodicHandler for Trim {
    fn run(&self) {
        let pool = &self.0;
        pool.trim();
        // Other pools may have left more of the budget.
        pool.change(|state| state.serve(None));
        for poller in pool.state.lock().pollers.iter().flatten() {
            poller.retry();
        }
    }
}

impl Pool {
    /// Makes a pool of one chunk near the HCA that may grow as its budget allows. May sleep.
    pub(in crate::server) fn new(
        device: &Arc<Device>,
        budget: &Arc<Budget>,
        grower: &Arc<OwnedQueue>,
    ) -> Result<Arc<Self>> {
        let state = State {
            arbiter: Arbiter::new(KVVec::new(), KVVec::new()),
            memory: Memory::new(budget)?,
            refused: false,
            pollers: KVec::new(),
        };
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                counted: Budget::count_pool(budget),
                state <- new_irqsave_spinlock!(state, "Pool::state"),
                making <- new_mutex!((), "Pool::making"),
                waiting: Atomic::new(0),
                grower: grower.clone(),
                work <- new_work!("Pool::work"),
            }),
            GFP_KERNEL,
        )?;
        this.add()?;
        Ok(this)
    }

    /// Returns the budget that it shares with the other pools of the HCA.
    pub(in crate::server) fn budget(&self) -> &Arc<Budget> {
        &self.counted.budget
    }

    /// Starts the periodic work that lets the pool shrink. It stops when the result is dropped. May
    /// sleep.
    pub(in crate::server) fn trimmer(self: &Arc<Self>) -> Result<PeriodicWork<Trim>> {
        PeriodicWork::new(Trim(self.clone()), TRIM_MS)
    }

    /// Does `change` under the lock, and then what follows from who waits: if the first one does,
    /// all pollers are told, so that they give back what they can do without; and the pool grows if
    /// it may and that helps. Any context.
    fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let result = change(state);
        let waiting = state.arbiter.waiting();
        if waiting != self.waiting.load(Relaxed) {
            let before = self.waiting.xchg(waiting, Relaxed);
            if before == 0 {
                let pollers = state.pollers.iter().flatten();
                pollers.for_each(|poller| poller.memory_changed());
            }
        }
        if self.wants_chunk(state) {
            let _ = self.grower.enqueue::<Arc<Self>, 0>(self.clone());
        }
        result
    }

    /// Returns true if another chunk is needed, and may be added.
    fn wants_chunk(&self, state: &State) -> bool {
        let count = state.memory.free.count();
        state.arbiter.is_short() && !state.refused && self.budget().may_grow(count)
    }

    /// Adds a chunk. May sleep.
    fn add(self: &Arc<Self>) -> Result {
        let chunk = Held::new(&self.device, self.budget())?;
        let refused = self.change(|state| {
            let refused = state.memory.free.add(chunk).err();
            state.serve(None);
            refused
        });
        refused.map_or(Ok(()), |_| Err(ENOSPC))
    }

    /// Frees the chunks that were not needed since the last call, save for one, and those that it
    /// has beyond its budget.
    fn trim(&self) {
        loop {
            let chunk = {
                let mut state = self.state.lock();
                state.refused = false;
                let memory = &mut state.memory;
                if memory.free.count() > 1 && (memory.spare > 0 || self.budget().is_exceeded()) {
                    memory.spare = memory.spare.saturating_sub(1);
                    memory.free.remove()
                } else {
                    None
                }
            };
            if chunk.is_none() {
                break;
            }
        }
        let mut state = self.state.lock();
        state.memory.spare = state.memory.free.whole();
    }

    /// Returns a number for the next poller. Any context.
    pub(in crate::server) fn next_number(&self) -> usize {
        let state = self.state.lock();
        let free = state.pollers.iter().position(Option::is_none);
        free.unwrap_or(state.pollers.len())
    }

    /// Adds a poller with the `number` that [`Pool::next_number`] returned. Calls must not be
    /// concurrent. May sleep.
    pub(in crate::server) fn add_poller(
        &self,
        number: usize,
        poller: Arc<dyn PoolEvents>,
    ) -> Result {
        if let Some(free) = self.state.lock().pollers.get_mut(number) {
            *free = Some(poller);
            return Ok(());
        }
        let mut pollers = KVec::with_capacity(number + 1, GFP_KERNEL)?;
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        // Cannot fail: there is capacity for all pollers.
        for poller in state.pollers.drain_all() {
            let _ = pollers.push_within_capacity(poller);
        }
        let _ = pollers.push_within_capacity(Some(poller));
        core::mem::swap(&mut state.pollers, &mut pollers);
        Ok(())
    }

    /// Removes poller `number`. May sleep.
    pub(in crate::server) fn remove_poller(&self, number: usize) {
        let removed = {
            let mut state = self.state.lock();
            let place = state.pollers.get_mut(number);
            place.and_then(Option::take)
        };
        drop(removed);
    }

    /// Adds an account, and returns its number. May sleep.
    pub(super) fn add_account(&self) -> Result<usize> {
        let _making = self.making.lock();
        let (added, places) = {
            let mut state = self.state.lock();
            (state.arbiter.add_account(), state.memory.own.len())
        };
        if let Some(added) = added {
            return Ok(added);
        }
        let (accounts, mut own) = (
            empty(places + PLACES_AT_ONCE)?,
            empty(places + PLACES_AT_ONCE)?,
        );
        let mut state = self.state.lock();
        let accounts = state.arbiter.widen_accounts(accounts);
        for (before, place) in state.memory.own.iter_mut().zip(own.iter_mut()) {
            *place = before.take();
        }
        core::mem::swap(&mut state.memory.own, &mut own);
        let added = state.arbiter.add_account();
        drop(state);
        // The places before, which are empty, are freed without the lock.
        drop((accounts, own));
        added.ok_or(ENOSPC)
    }

    /// Makes sure that an account has own memory; less than it may have if memory is fragmented.
    /// May sleep.
    pub(super) fn make_own(self: &Arc<Self>, account: usize) -> Result {
        let _making = self.making.lock();
        let has_own = |state: &State| matches!(state.memory.own.get(account), Some(Some(_)));
        if has_own(&self.state.lock()) {
            return Ok(());
        }
        let budget = self.budget();
        let mut len = budget.own_len();
        let memory = loop {
            match Lasting::alloc(&self.device, budget, len, true) {
                Err(_) if len > OWN_MIN => len /= 2,
                memory => break memory?,
            }
        };
        let own = Own::new(memory)?;
        self.change(|state| {
            if let Some(place) = state.memory.own.get_mut(account) {
                *place = Some(own);
            }
            state.serve(Some(account));
        });
        Ok(())
    }

    /// Removes an account of which nothing is in use. May sleep.
    pub(super) fn remove_account(&self, account: usize) {
        let mut state = self.state.lock();
        state.arbiter.remove_account(account);
        let own = state.memory.own.get_mut(account);
        let own = own.and_then(Option::take);
        drop(state);
        drop(own);
    }

    /// Adds a requester of an account, whose `poller` is told when its memory is there. May sleep.
    pub(super) fn add_requester(&self, account: usize, poller: usize) -> Result<usize> {
        let _making = self.making.lock();
        let (added, places) = {
            let mut state = self.state.lock();
            let added = state.arbiter.add_requester(account, poller);
            (added, state.arbiter.places())
        };
        if let Some(added) = added {
            return Ok(added);
        }
        let requesters = empty(places + PLACES_AT_ONCE)?;
        let mut state = self.state.lock();
        let requesters = state.arbiter.widen_requesters(requesters);
        let added = state.arbiter.add_requester(account, poller);
        drop(state);
        // The places before, which are empty, are freed without the lock.
        drop(requesters);
        added.ok_or(ENOSPC)
    }

    /// Forgets what a requester has asked for. Any context.
    pub(super) fn cancel(self: &Arc<Self>, requester: &Requester) {
        let (account, number) = (requester.account.number, requester.number);
        self.change(|state| state.cancel(account, number));
        requester.set_waits(false);
    }

    /// Removes a requester. Any context.
    pub(super) fn remove_requester(self: &Arc<Self>, requester: &Requester) {
        let (account, number) = (requester.account.number, requester.number);
        self.change(|state| {
            state.cancel(account, number);
            state.arbiter.remove_requester(number);
        });
    }

    /// Returns memory for `len` bytes, at most [`buddy::CHUNK`]. If there is none yet, the poller
    /// of the requester is told when there is, and it has to ask again, or to cancel. Any context.
    pub(in crate::server) fn get(
        self: &Arc<Self>,
        len: u32,
        requester: &Requester,
    ) -> Option<Piece> {
        let len = usize::try_from(len).ok()?;
        let (account, number) = (requester.account.number, requester.number);
        let piece = self.change(|state| {
            if state
                .arbiter
                .asked(number)
                .is_some_and(|asked| asked != len)
            {
                state.cancel(account, number);
            }
            let place = state.ask(number, len)?;
            match state.memory.piece(account, &place, len) {
                Some(memory) => Some((memory, place)),
                // Cannot be: the piece has `len` bytes.
                None => {
                    state.put(account, place);
                    None
                }
            }
        });
        requester.set_waits(piece.is_none());
        let (memory, place) = piece?;
        Some(Piece {
            memory,
            place: Some(place),
            account: Some(requester.account.clone()),
            pool: self.clone(),
        })
    }

    /// Returns a small piece that is charged to nobody, if no requester waits, nor does this one,
    /// and its account does not have too many: one that `at_hand` returns, or another one. Any
    /// context.
    pub(in crate::server) fn get_small(
        self: &Arc<Self>,
        requester: &Requester,
        at_hand: impl FnOnce() -> Option<Piece>,
    ) -> Option<Piece> {
        let account = &requester.account;
        if self.is_short() || requester.waits() || !account.add_small() {
            return None;
        }
        match at_hand().or_else(|| self.new_small()) {
            Some(mut piece) => {
                piece.account = Some(account.clone());
                Some(piece)
            }
            None => {
                account.remove_small();
                None
            }
        }
    }

    /// Takes a small piece of the common memory, if no requester waits.
    fn new_small(self: &Arc<Self>) -> Option<Piece> {
        let mut state = self.state.lock();
        if state.arbiter.waiting() > 0 {
            return None;
        }
        let place = Place::Small(state.memory.take_chunked(buddy::PIECE_MIN)?);
        let Some(memory) = state.memory.piece(0, &place, buddy::PIECE_MIN) else {
            // Cannot be: the piece has as many bytes.
            state.put(0, place);
            return None;
        };
        drop(state);
        Some(Piece {
            memory,
            place: Some(place),
            account: None,
            pool: self.clone(),
        })
    }

    /// Returns `len` bytes of memory for receives, as [`Lasting::alloc`] does; `first` if a
    /// connection has no receives yet. May sleep.
    pub(in crate::server) fn get_lasting(&self, len: usize, first: bool) -> Result<Lasting> {
        Lasting::alloc(&self.device, self.budget(), len, first)
    }

    /// Returns true if a requester waits for memory. Any context.
    #[inline]
    pub(in crate::server) fn is_short(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }
}

impl WorkItem for Pool {
    type Pointer = Arc<Self>;

    /// Adds chunks as long as that helps those that wait.
    fn run(this: Arc<Self>) {
        loop {
            let wants_chunk = this.wants_chunk(&this.state.lock());
            if !wants_chunk {
                return;
            }
            if this.add().is_err() {
                this.state.lock().refused = true;
                return;
            }
        }
    }
}

/// Memory of a [`Pool`], which gets it back when this drops. Any context.
pub(in crate::server) struct Piece {
    memory: DmaPiece,
    /// `None` only within the drop.
    place: Option<Place>,
    /// `None` while a poller keeps it at hand.
    account: Option<Arc<Account>>,
    pool: Arc<Pool>,
}

impl Piece {
    /// Makes it `len` bytes long. What it takes from the pool stays the same. Fails with `EINVAL`
    /// if that is less. Any context.
    pub(in crate::server) fn fit(&mut self, len: u32) -> Result {
        if usize::try_from(len)? > self.place.as_ref().map_or(0, Place::bytes) {
            return Err(EINVAL);
        }
        self.memory.resize(len)
    }

    /// Notes that no command has it, and returns true, if it is one that a poller keeps at hand.
    /// Any context.
    pub(in crate::server) fn release(&mut self) -> bool {
        let is_small = matches!(self.place, Some(Place::Small(_)));
        if is_small {
            if let Some(account) = self.account.take() {
                account.remove_small();
            }
        }
        is_small
    }

    /// Returns the memory.
    #[inline]
    pub(in crate::server) fn memory(&self) -> &DmaPiece {
        &self.memory
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.release();
        let account = self.account.as_ref().map_or(0, |account| account.number);
        if let Some(place) = self.place.take() {
            self.pool.change(|state| state.put(account, place));
        }
    }
}
