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
    arbiter::Arbiter,
    buddy::{
        self,
        PieceLen, //
    },
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
    state::{
        PoolEvents,
        State, //
    },
};

/// The interval at which the pool looks after those that wait, in ms.
const LOOK_MS: Msecs = 1000;
/// Looks after which the pool gives up chunks that it does not need.
const TRIM_LOOKS: u32 = 5;
/// Places for accounts, and for requesters, that are made at once.
const PLACES_AT_ONCE: usize = 16;

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

/// The periodic work that looks after those that wait, and lets a pool shrink.
pub(in crate::server) struct PoolMonitor {
    pool: Arc<Pool>,
    looks: Atomic<u32>,
}

impl PeriodicHandler for PoolMonitor {
    fn run(&self) {
        let pool = &self.pool;
        if pool.is_short() {
            pool.change(|state| {
                state.arbiter.elapse();
                // Other pools may have left more of the budget.
                state.serve(None);
                // A connection may keep others waiting.
                let pollers = state.pollers.iter().flatten();
                pollers.for_each(|poller| poller.memory_changed());
            });
        }
        if self.looks.fetch_add(1, Relaxed) % TRIM_LOOKS == TRIM_LOOKS - 1 {
            pool.trim();
            for poller in pool.state.lock().pollers.iter().flatten() {
                poller.retry();
            }
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

    /// Starts the periodic work of the pool. It stops when the result is dropped. May sleep.
    pub(in crate::server) fn monitor(self: &Arc<Self>) -> Result<PeriodicWork<PoolMonitor>> {
        let monitor = PoolMonitor {
            pool: self.clone(),
            looks: Atomic::new(0),
        };
        PeriodicWork::new(monitor, LOOK_MS)
    }

    /// Does `change` under the lock, and then what follows from who waits: if the first one does,
    /// all pollers are told, so that they give back what they can do without; the pool grows if it
    /// may and that helps; and a worker goes on with what there were too few steps for. Any
    /// context.
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
        if self.wants_chunk(state) || state.arbiter.is_unfinished() {
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

    /// Returns the bytes of own memory of an account. Any context.
    pub(super) fn own(&self, account: usize) -> usize {
        let state = self.state.lock();
        let own = state.memory.own.get(account).and_then(Option::as_ref);
        own.map_or(0, Own::len)
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

    /// Returns the bytes of common memory that are charged to an account. Any context.
    pub(super) fn held(&self, account: usize) -> usize {
        self.state.lock().arbiter.held(account)
    }

    /// Returns true if another account is in need of the `kept` bytes of common memory that this
    /// one has, as [`Arbiter::is_in_need`] says. Any context.
    pub(super) fn is_in_need(&self, account: usize, kept: usize) -> bool {
        self.state.lock().arbiter.is_in_need(account, kept)
    }

    /// Returns memory for `len` bytes. If there is none yet, the poller of the requester is told
    /// when there is, and it has to ask again, or to cancel. Any context.
    pub(in crate::server) fn get(
        self: &Arc<Self>,
        len: PieceLen,
        requester: &Requester,
    ) -> Option<Piece> {
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
            match state.memory.piece(account, &place, len.get()) {
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
        let place = Place::Small(state.memory.take_chunked(PieceLen::MIN)?);
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

    /// Does what there were too few steps for, some at a time, and adds chunks as long as that
    /// helps those that wait.
    fn run(this: Arc<Self>) {
        // If that is not all, it is enqueued again.
        this.change(State::go_on);
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
    pub(in crate::server) fn fit(&mut self, len: PieceLen) -> Result {
        if len.get() > self.place.as_ref().map_or(0, Place::bytes) {
            return Err(EINVAL);
        }
        self.memory.resize(u32::try_from(len.get())?)
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
