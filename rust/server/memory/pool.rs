// SPDX-License-Identifier: GPL-2.0

//! The memory for the data of commands: a pool for each export in use on an HCA, and the budget
//! that the pools of an HCA share.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_work,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
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
    dma::{
        DmaMemory,
        DmaPiece, //
    },
};
use crate::server::memory::{
    account::{
        Account,
        Charge, //
    },
    buddy,
    share, //
};

const _: () = assert!(buddy::CHUNK <= DmaMemory::MAX);
/// The interval at which the pool gives up chunks that it does not need, in ms.
const TRIM_MS: Msecs = 5000;

/// Receives the events of a pool. All of them may come in any context, with the pool's lock held.
pub(in crate::server) trait PoolEvents: Send + Sync + 'static {
    /// There may be memory now, or memory that can be done without is wanted back.
    fn memory_changed(&self);

    /// A client that had too much may have more now: see [`NoPiece::Quota`].
    fn quota_changed(&self);

    /// Some time has passed: what there was no memory for can be tried again.
    fn retry(&self);
}

/// Why there is no memory for a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum NoPiece {
    /// The pool is short of it: the poller has to stand in line.
    Short,
    /// The client has as much as it may have. The command has to wait until the client has less, or
    /// the pool has more.
    Quota,
}

/// The memory that the pools of an HCA may have together, and what they have.
///
/// Each pool has one chunk in any case, and gets further ones as [`share::may_grow`] says.
pub(in crate::server) struct Budget {
    /// The bytes that the pools may have. The first chunk of each, and the first receives of each
    /// connection, count, but are made in any case.
    size: usize,
    /// The bytes that the receives of all pools have.
    lasting: Atomic<usize>,
    /// The number of chunks that all pools have.
    chunks: Atomic<usize>,
    /// The number of pools.
    pools: Atomic<usize>,
}

impl Budget {
    /// Makes a budget of `size` bytes for pools to come. May sleep.
    pub(in crate::server) fn new(size: usize) -> Result<Arc<Self>> {
        let budget = Self {
            size,
            lasting: Atomic::new(0),
            chunks: Atomic::new(0),
            pools: Atomic::new(0),
        };
        Ok(Arc::new(budget, GFP_KERNEL)?)
    }

    /// Returns the number of chunks that there may be beside the memory of receives.
    fn chunks_max(&self) -> usize {
        share::chunks_max(self.size, self.lasting.load(Relaxed))
    }

    /// Returns true if a pool that has `count` chunks may add one. Any context.
    fn may_grow(&self, count: usize) -> bool {
        let (pools, used) = (self.pools.load(Relaxed), self.chunks.load(Relaxed));
        share::may_grow(count, pools, used, self.chunks_max())
    }

    /// Returns true if there are more chunks than there may be. Any context.
    fn is_exceeded(&self) -> bool {
        self.chunks.load(Relaxed) > self.chunks_max()
    }
}

/// A part of one of the sums of a budget, which the drop takes away again.
struct Counted {
    budget: Arc<Budget>,
    sum: fn(&Budget) -> &Atomic<usize>,
    count: usize,
}

impl Counted {
    /// Adds `count` to a sum. Also returns the sum.
    fn new(
        budget: &Arc<Budget>,
        sum: fn(&Budget) -> &Atomic<usize>,
        count: usize,
    ) -> (Self, usize) {
        let before = sum(budget).fetch_add(count, Relaxed);
        let counted = Self {
            budget: budget.clone(),
            sum,
            count,
        };
        (counted, before + count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.sum)(&self.budget).fetch_sub(self.count, Relaxed);
    }
}

/// Memory that is cut into pieces.
struct Chunk {
    memory: DmaMemory,
    map: buddy::Chunk,
    _counted: Counted,
}

/// A [`Chunk`] in an allocation of its own.
struct Held(KBox<Chunk>);

impl AsMut<buddy::Chunk> for Held {
    fn as_mut(&mut self) -> &mut buddy::Chunk {
        &mut self.0.map
    }
}

struct State {
    /// The chunks, with capacity for as many as there may be.
    free: buddy::Pool<KVVec<Option<Held>>>,
    /// Bytes of the pieces that are in use.
    used: usize,
    /// The fewest chunks that were all free at once since the last [`Pool::trim`].
    spare: usize,
    /// The last attempt to add a chunk failed. The next one is after the next [`Pool::trim`].
    refused: bool,
    /// The pollers that use the pool, by their number.
    pollers: KVec<Option<Arc<dyn PoolEvents>>>,
    /// The numbers of the pollers that wait, in order. There is capacity for all.
    line: KVec<usize>,
}

impl State {
    /// Tells the first poller in line that there may be memory.
    fn wake_first(&self) {
        let first = self.line.first().and_then(|first| self.pollers.get(*first));
        if let Some(Some(poller)) = first {
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
/// The pollers of commands that wait stand in line. A poller that has got memory goes to the end,
/// so that small commands do not overtake a large one for ever.
#[pin_data]
pub(in crate::server) struct Pool {
    device: Arc<Device>,
    /// Among the pools of its budget.
    counted: Counted,
    #[pin]
    state: IrqSaveSpinLock<State>,
    /// The length of the line. While it is not 0, pollers give back memory that they can do
    /// without.
    waiting: Atomic<usize>,
    /// A command was refused memory because its client has too much. Set with the lock held.
    denied: Atomic<u32>,
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
        self.0.trim();
        if self.0.is_short() {
            self.0.grow();
        }
        let state = self.0.state.lock();
        for poller in state.pollers.iter().flatten() {
            poller.retry();
        }
        // Other pools may have left more of the budget.
        self.0.wake_denied(&state);
    }
}

impl Pool {
    /// Makes a pool of one chunk near the HCA that may grow as its budget allows. May sleep.
    pub(in crate::server) fn new(
        device: &Arc<Device>,
        budget: &Arc<Budget>,
        grower: &Arc<OwnedQueue>,
    ) -> Result<Arc<Self>> {
        let count = (budget.size / buddy::CHUNK).max(1);
        let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            places.push(None, GFP_KERNEL)?;
        }
        let state = State {
            free: buddy::Pool::new(places),
            used: 0,
            spare: 0,
            refused: false,
            pollers: KVec::new(),
            line: KVec::new(),
        };
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                counted: Counted::new(budget, |budget| &budget.pools, 1).0,
                state <- new_irqsave_spinlock!(state, "Pool::state"),
                waiting: Atomic::new(0),
                denied: Atomic::new(0),
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

    /// Adds a chunk. May sleep.
    fn add(&self) -> Result {
        let memory = DmaMemory::alloc(&self.device, buddy::CHUNK, self.device.numa_node())?;
        let chunk = Chunk {
            memory,
            map: buddy::Chunk::new(),
            _counted: Counted::new(self.budget(), |budget| &budget.chunks, 1).0,
        };
        let chunk = Held(KBox::new(chunk, GFP_KERNEL)?);
        let mut state = self.state.lock();
        let refused = state.free.add(chunk).err();
        state.wake_first();
        drop(state);
        refused.map_or(Ok(()), |_| Err(ENOSPC))
    }

    /// Lets the worker add chunks. Any context.
    fn grow(self: &Arc<Self>) {
        let _ = self.grower.enqueue::<Arc<Self>, 0>(self.clone());
    }

    /// Frees the chunks that were not needed since the last call, save for one, and those that it
    /// has beyond its budget.
    fn trim(&self) {
        loop {
            let chunk = {
                let mut state = self.state.lock();
                state.refused = false;
                let count = state.free.count();
                if count > 1 && (state.spare > 0 || self.budget().is_exceeded()) {
                    state.spare = state.spare.saturating_sub(1);
                    state.free.remove()
                } else {
                    None
                }
            };
            if chunk.is_none() {
                break;
            }
        }
        let mut state = self.state.lock();
        state.spare = state.free.whole();
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
        let mut line = KVec::with_capacity(number + 1, GFP_KERNEL)?;
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        // Cannot fail: both have the capacity for all pollers.
        for poller in state.pollers.drain_all() {
            let _ = pollers.push_within_capacity(poller);
        }
        for waiting in state.line.drain_all() {
            let _ = line.push_within_capacity(waiting);
        }
        let _ = pollers.push_within_capacity(Some(poller));
        core::mem::swap(&mut state.pollers, &mut pollers);
        core::mem::swap(&mut state.line, &mut line);
        Ok(())
    }

    /// Removes poller `number`. May sleep.
    pub(in crate::server) fn remove_poller(&self, number: usize) {
        self.leave(number);
        let removed = {
            let mut state = self.state.lock();
            let place = state.pollers.get_mut(number);
            place.and_then(Option::take)
        };
        drop(removed);
    }

    /// Returns memory for `len` bytes, at most [`buddy::CHUNK`], for a client with that account.
    /// There is none, too, if another poller than `number` is the first in line. Any context.
    pub(in crate::server) fn get(
        self: &Arc<Self>,
        len: u32,
        number: usize,
        account: &Arc<Account>,
    ) -> Result<Piece, NoPiece> {
        let len = usize::try_from(len).map_err(|_| NoPiece::Short)?;
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        let own = account.bytes();
        if own > 0 && !share::may_hold(own, len, self.left(state)) {
            self.denied.store(1, Relaxed);
            return Err(NoPiece::Quota);
        }
        if state.line.first().is_some_and(|first| *first != number) {
            return Err(NoPiece::Short);
        }
        let place = state.free.alloc(len).ok_or(NoPiece::Short)?;
        state.spare = state.spare.min(state.free.whole());
        let chunk = state.free.chunk_of(&place);
        match chunk.and_then(|chunk| chunk.0.memory.piece(place.offset(), len).ok()) {
            Some(memory) => {
                state.used += place.bytes();
                Ok(Piece {
                    memory,
                    charge: Some(Charge::new(account, place.bytes())),
                    place: Some(place),
                    pool: self.clone(),
                })
            }
            None => {
                state.free.free(place);
                Err(NoPiece::Short)
            }
        }
    }

    /// Returns the bytes that are free, with those by which the pool may grow.
    fn left(&self, state: &State) -> usize {
        let (budget, count) = (self.budget(), state.free.count());
        let (pools, used) = (budget.pools.load(Relaxed), budget.chunks.load(Relaxed));
        let more = share::growable(count, pools, used, budget.chunks_max());
        let chunks = count.saturating_add(more).saturating_mul(buddy::CHUNK);
        chunks.saturating_sub(state.used)
    }

    /// Tells all pollers, if a client had too much, that this may have changed.
    fn wake_denied(&self, state: &State) {
        if self.denied.load(Relaxed) != 0 {
            self.denied.store(0, Relaxed);
            for poller in state.pollers.iter().flatten() {
                poller.quota_changed();
            }
        }
    }

    /// Returns true if a client has too much. Any context.
    #[inline]
    pub(in crate::server) fn has_denied(&self) -> bool {
        self.denied.load(Relaxed) != 0
    }

    /// Returns `len` bytes of memory for receives, at most [`buddy::CHUNK`], if the budget allows
    /// it as [`share::may_last`] says; `first` if a connection has no receives yet. The memory is
    /// not cut from chunks, as it would keep them from being freed. Fails with `ENOMEM`. May sleep.
    pub(in crate::server) fn get_lasting(&self, len: usize, first: bool) -> Result<Lasting> {
        let memory = DmaMemory::alloc(&self.device, len, self.device.numa_node())?;
        let bytes = memory.len();
        let budget = self.budget();
        let (counted, all) = Counted::new(budget, |budget| &budget.lasting, bytes);
        match share::may_last(budget.size, all, first) {
            true => Ok(Lasting {
                memory,
                _counted: counted,
            }),
            false => Err(ENOMEM),
        }
    }

    fn put(&self, place: buddy::Piece) {
        let mut state = self.state.lock();
        state.used -= place.bytes();
        state.free.free(place);
        state.wake_first();
        self.wake_denied(&state);
    }

    /// Returns true if a poller waits for memory. Any context.
    #[inline]
    pub(in crate::server) fn is_short(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Puts poller `number` in line, unless it is in it. It is told when it is its turn. All
    /// pollers are told now, so that they give back what they can do without, and the pool grows if
    /// it may. Any context.
    pub(in crate::server) fn wait(self: &Arc<Self>, number: usize) {
        let mut state = self.state.lock();
        if !state.refused && self.budget().may_grow(state.free.count()) {
            self.grow();
        }
        if !state.line.contains(&number) && state.line.push_within_capacity(number).is_ok() {
            self.waiting.store(state.line.len(), Relaxed);
            for poller in state.pollers.iter().flatten() {
                poller.memory_changed();
            }
        }
    }

    /// Takes poller `number` out of the line, if it is in it. Any context.
    pub(in crate::server) fn leave(&self, number: usize) {
        let mut state = self.state.lock();
        state.line.retain(|other| *other != number);
        self.waiting.store(state.line.len(), Relaxed);
        state.wake_first();
    }
}

impl WorkItem for Pool {
    type Pointer = Arc<Self>;

    /// Adds chunks as long as pollers wait for memory.
    fn run(this: Arc<Self>) {
        while this.is_short() && this.budget().may_grow(this.state.lock().free.count()) {
            if this.add().is_err() {
                this.state.lock().refused = true;
                return;
            }
        }
    }
}

/// Memory for receives. It counts against the budget of the pool.
pub(in crate::server) struct Lasting {
    memory: DmaMemory,
    _counted: Counted,
}

impl Lasting {
    /// Returns the `len` bytes at `offset`.
    pub(in crate::server) fn piece(&self, offset: usize, len: usize) -> Result<DmaPiece> {
        self.memory.piece(offset, len)
    }
}

/// Memory of a [`Pool`], which gets it back when this drops. Any context.
pub(in crate::server) struct Piece {
    memory: DmaPiece,
    /// `None` while no command has it.
    charge: Option<Charge>,
    /// `None` only within the drop.
    place: Option<buddy::Piece>,
    pool: Arc<Pool>,
}

impl Piece {
    /// Returns the bytes that it takes from the pool.
    fn bytes(&self) -> usize {
        self.place.as_ref().map_or(0, buddy::Piece::bytes)
    }

    /// Makes it `len` bytes long. What it takes from the pool stays the same. Fails with `EINVAL`
    /// if that is less. Any context.
    pub(in crate::server) fn fit(&mut self, len: u32) -> Result {
        if usize::try_from(len)? > self.bytes() {
            return Err(EINVAL);
        }
        self.memory.resize(len)
    }

    /// Notes that no command has it. Any context.
    pub(in crate::server) fn discharge(&mut self) {
        self.charge = None;
    }

    /// Returns true if it takes the least that a pool gives.
    #[inline]
    pub(in crate::server) fn is_small(&self) -> bool {
        self.bytes() == buddy::PIECE_MIN
    }

    /// Returns the memory.
    #[inline]
    pub(in crate::server) fn memory(&self) -> &DmaPiece {
        &self.memory
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // The account first: the pool tells those that wait for it.
        self.charge = None;
        if let Some(place) = self.place.take() {
            self.pool.put(place);
        }
    }
}
