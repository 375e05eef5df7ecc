// SPDX-License-Identifier: GPL-2.0

//! The memory for the data of commands: a [`Pool`] for each export in use on an HCA, within the
//! [`Budget`] of that HCA. [`Accounts`] decides which connection gets it.

#![forbid(unsafe_code)]

mod budget;
pub mod overdue;
pub mod receives;

use kernel::prelude::*;
use kernel::{
    impl_has_work, new_mutex, new_work,
    sync::{
        atomic::{
            Atomic,
            Full,
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
pub(in crate::server) use crate::server::memory::budget::{
    Budget,
    PoolMemory, //
};
pub(in crate::server) use crate::session::chunks::{
    PieceLen,
    CHUNK,
    PIECE_MIN, //
};
use crate::session::{
    account::{
        Accounts,
        Node, //
    },
    budget::{
        reserved_len,
        RESERVED_MIN, //
    },
    chunks::{
        Buffer,
        Chunk,
        Chunks, //
    },
};
use budget::CountedPool;

/// The interval at which the pool looks after those that wait, in ms.
const LOOK_MS: Msecs = 1000;
/// Looks after which the pool gives up chunks that it does not need.
const TRIM_LOOKS: u32 = 5;

/// Receives the events of a pool. All of them may come in any context, with the pool's lock held.
pub(in crate::server) trait PoolEvents: Send + Sync + 'static {
    /// A connection of the poller may have memory now, or memory that can be done without is wanted
    /// back.
    fn memory_changed(&self);

    /// Some time has passed: what there was no memory for can be tried again, and memory that can
    /// be done without is to come back.
    fn retry(&self);
}

type PoolAccounts = Accounts<KVVec<Option<Chunk<PoolMemory>>>, KVVec<Node<PoolMemory>>>;

struct State {
    accounts: PoolAccounts,
    /// The last attempt to add a chunk failed. The next one is when the pool was trimmed.
    refused: bool,
    /// The pollers that use the pool, by their number.
    pollers: KVec<Option<Arc<dyn PoolEvents>>>,
}

/// Memory that is mapped once for an HCA, and that all connections to one export on it share.
///
/// The pool always has one chunk, so that commands go on when the system has no memory to give, or
/// when other pools have used up the budget. When all of it is used, commands wait, and a worker
/// adds chunks. Chunks that were not needed for some seconds are freed.
///
/// Memory that comes back is given to those that wait under the same lock: nobody can take it
/// before they have heard of it, nor can a connection miss it that is about to wait.
#[pin_data]
pub(in crate::server) struct Pool {
    device: Arc<Device>,
    budget: CountedPool,
    #[pin]
    state: IrqSaveSpinLock<State>,
    /// Held while nodes or reserved memory are made.
    #[pin]
    making: Mutex<()>,
    /// The number of requesters that wait. While it is not 0, pollers give back memory that they
    /// can do without. Set with `state` locked.
    waiting: Atomic<usize>,
    /// The account of all hosts without an entry.
    strangers: usize,
    /// The workqueue on which chunks are added.
    grower: Arc<OwnedQueue>,
    #[pin]
    work: Work<Pool>,
}

impl_has_work! {
    impl HasWork<Self> for Pool { self.work }
}

/// Makes `count` elements. May sleep.
fn list<T>(count: usize, element: impl Fn() -> T) -> Result<KVVec<T>> {
    let mut list = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        list.push(element(), GFP_KERNEL)?;
    }
    Ok(list)
}

impl Pool {
    /// Makes a pool of one chunk near the HCA that may grow as its budget allows. May sleep.
    pub(in crate::server) fn new(
        device: &Arc<Device>,
        budget: &Arc<Budget>,
        grower: &Arc<OwnedQueue>,
    ) -> Result<Arc<Self>> {
        let mut common = Chunks::new(list((budget.size / CHUNK).max(1), || None)?);
        let chunk = PoolMemory::chunk(device, budget)?;
        common.add(chunk).map_err(|_| ENOSPC)?;
        let nodes = list(8 * Node::<PoolMemory>::MIN, || Node::NEW)?;
        let mut accounts = Accounts::new(common, nodes);
        let strangers = accounts.add_account().ok_or(ENOSPC)?;
        let state = State {
            accounts,
            refused: false,
            pollers: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                budget: CountedPool::new(budget),
                state <- new_irqsave_spinlock!(state, "Pool::state"),
                making <- new_mutex!((), "Pool::making"),
                waiting: Atomic::new(0),
                strangers,
                grower: grower.clone(),
                work <- new_work!("Pool::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the budget that it shares with the other pools of the HCA.
    pub(in crate::server) fn budget(&self) -> &Arc<Budget> {
        &self.budget.0
    }

    /// Starts the periodic work of the pool. It stops when the result is dropped. May sleep.
    pub(in crate::server) fn monitor(self: &Arc<Self>) -> Result<PeriodicWork<PoolMonitor>> {
        let monitor = PoolMonitor {
            pool: self.clone(),
            looks: Atomic::new(0),
        };
        PeriodicWork::new(monitor, LOOK_MS)
    }

    /// Does `change` under the lock, with a function that tells a poller that a buffer is there. If
    /// a requester has begun to wait, and none did before, all pollers are told, so that they give
    /// back what they can do without. If more memory would help and the budget has some, a worker
    /// adds it. Any context.
    fn change<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut PoolAccounts, &mut dyn FnMut(usize)) -> R,
    ) -> R {
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        state.accounts.growable = self.growable(state) * CHUNK;
        let pollers = &state.pollers;
        let result = change(&mut state.accounts, &mut |poller| {
            if let Some(Some(poller)) = pollers.get(poller) {
                poller.memory_changed();
            }
        });
        let waiting = state.accounts.waiting();
        if waiting != self.waiting.load(Relaxed) && self.waiting.xchg(waiting, Full) == 0 {
            let pollers = pollers.iter().flatten();
            pollers.for_each(|poller| poller.memory_changed());
        }
        if self.wants_chunk(state) {
            let _ = self.grower.enqueue::<Arc<Self>, 0>(self.clone());
        }
        result
    }

    /// Returns the number of chunks that may be added: none while the system has no memory.
    fn growable(&self, state: &State) -> usize {
        if state.refused {
            0
        } else {
            self.budget().growable(state.accounts.common.count())
        }
    }

    /// Returns true if another chunk is needed, and may be added.
    fn wants_chunk(&self, state: &State) -> bool {
        state.accounts.wants_more && self.growable(state) > 0
    }

    /// Frees the chunks that were not needed since the last call, save for one, and those that it
    /// has beyond its budget.
    fn trim(&self) {
        loop {
            let chunk = {
                let mut state = self.state.lock();
                state.refused = false;
                state.accounts.wants_more = false;
                let common = &mut state.accounts.common;
                let exceeded = self.budget().is_exceeded();
                if common.count() > 1 {
                    common.remove_idle(exceeded)
                } else {
                    None
                }
            };
            if chunk.is_none() {
                break;
            }
        }
        self.state.lock().accounts.common.start_idle();
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
        // Filled under the lock, and what was there before is freed without it.
        let mut pollers = KVec::with_capacity(number + 1, GFP_KERNEL)?;
        let mut state = self.state.lock();
        if let Some(free) = state.pollers.get_mut(number) {
            *free = Some(poller);
            return Ok(());
        }
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

    /// Adds what `add` does, with more nodes if there are too few. May sleep.
    fn add_node(&self, add: impl Fn(&mut PoolAccounts) -> Option<usize>) -> Result<usize> {
        let _making = self.making.lock();
        let count = {
            let mut state = self.state.lock();
            if let Some(node) = add(&mut state.accounts) {
                return Ok(node);
            }
            state.accounts.nodes()
        };
        let nodes = list(2 * count, || Node::NEW)?;
        let mut state = self.state.lock();
        let before = state.accounts.widen(nodes);
        let added = add(&mut state.accounts);
        drop(state);
        drop(before);
        added.ok_or(ENOSPC)
    }

    /// Removes a node of which nothing is in use. Any context.
    fn remove_node(&self, node: usize) {
        let reserved = self.state.lock().accounts.remove(node);
        drop(reserved);
    }

    /// Returns memory for `len` bytes. If there is none yet, the poller of the requester is told
    /// when there is, and it has to ask again, or to cancel. Any context.
    pub(in crate::server) fn get(
        self: &Arc<Self>,
        len: PieceLen,
        requester: &Requester,
    ) -> Option<Piece> {
        let (client, id) = (requester.client.number, requester.number);
        let got = self.change(|accounts, mut tell| {
            let buffer = accounts.ask(id, len, &mut tell)?;
            let memory = accounts.memory(client, &buffer);
            let memory = memory.and_then(|memory| memory.piece(buffer.offset(), len.get()).ok());
            if memory.is_none() {
                // This cannot be: the buffer has as many bytes.
                accounts.put(client, &buffer, &mut tell);
            }
            Some((buffer, memory?))
        });
        let (buffer, memory) = got?;
        Some(Piece {
            memory,
            buffer,
            client: requester.client.clone(),
        })
    }

    /// Returns `len` bytes of memory for receives; `first` if a connection has no receives yet.
    /// Fails with `ENOMEM` if receives have too much. May sleep.
    pub(in crate::server) fn get_lasting(&self, len: usize, first: bool) -> Result<PoolMemory> {
        PoolMemory::lasting(&self.device, self.budget(), len, first)
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
        while this.wants_chunk(&this.state.lock()) {
            let Ok(chunk) = PoolMemory::chunk(&this.device, this.budget()) else {
                this.state.lock().refused = true;
                return;
            };
            let full = this.change(|accounts, mut tell| {
                let full = accounts.common.add(chunk).err();
                accounts.wants_more = false;
                accounts.serve(None, &mut tell);
                full
            });
            if full.is_some() {
                return;
            }
        }
    }
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
            pool.change(|accounts, mut tell| {
                accounts.elapse();
                // Other pools may have left more of the budget.
                accounts.serve(None, &mut tell);
            });
            // A connection may keep others waiting.
            for poller in pool.state.lock().pollers.iter().flatten() {
                poller.memory_changed();
            }
        }
        if self.looks.fetch_add(1, Relaxed) % TRIM_LOOKS == TRIM_LOOKS - 1 {
            pool.trim();
            for poller in pool.state.lock().pollers.iter().flatten() {
                poller.retry();
            }
        }
    }
}

/// What a client host has of a pool's memory. It is removed with the drop, which may sleep. Its
/// requesters and buffers refer to it.
pub(in crate::server) struct Client {
    pool: Arc<Pool>,
    number: usize,
    /// The account that it has for itself, if it has one.
    account: Option<usize>,
    /// Bytes of its reserved memory.
    reserved: Atomic<usize>,
}

impl Client {
    /// Makes a client that has nothing: with an account of its own, or with that of all hosts that
    /// have no entry. May sleep.
    pub(in crate::server) fn new(pool: &Arc<Pool>, has_entry: bool) -> Result<Arc<Self>> {
        let account = if has_entry {
            Some(pool.add_node(|accounts| accounts.add_account())?)
        } else {
            None
        };
        let shared = account.unwrap_or(pool.strangers);
        let number = pool.add_node(|accounts| accounts.add_client(shared));
        if let (Err(_), Some(account)) = (&number, account) {
            pool.remove_node(account);
        }
        let client = Self {
            pool: pool.clone(),
            number: number?,
            account,
            reserved: Atomic::new(0),
        };
        Ok(Arc::new(client, GFP_KERNEL)?)
    }

    /// Makes sure that it has reserved memory; less than it may have if memory is fragmented. May
    /// sleep.
    pub(in crate::server) fn reserve(&self) -> Result {
        let pool = &self.pool;
        let _making = pool.making.lock();
        if self.reserved.load(Relaxed) != 0 {
            return Ok(());
        }
        let all = pool.budget();
        let mut len = reserved_len(all.size, all.lasting.load(Relaxed));
        let memory = loop {
            match PoolMemory::lasting(&pool.device, all, len, true) {
                Err(_) if len > RESERVED_MIN => len /= 2,
                memory => break memory?,
            }
        };
        let len = memory.len();
        let mut state = pool.state.lock();
        state.accounts.reserve(self.number, memory, len);
        drop(state);
        self.reserved.store(len, Relaxed);
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.pool.remove_node(self.number);
        if let Some(account) = self.account {
            self.pool.remove_node(account);
        }
    }
}

/// A connection, as it asks for the memory of its commands: of one at a time.
pub(in crate::server) struct Requester {
    client: Arc<Client>,
    number: usize,
}

impl Requester {
    /// Makes a requester of a client, whose `poller` is told when its memory is there. May sleep.
    pub(in crate::server) fn new(client: &Arc<Client>, poller: usize) -> Result<Self> {
        let add = |accounts: &mut PoolAccounts| accounts.add_requester(client.number, poller);
        Ok(Self {
            number: client.pool.add_node(add)?,
            client: client.clone(),
        })
    }

    /// Returns the bytes of reserved memory of its client. Any context.
    pub(in crate::server) fn reserved(&self) -> usize {
        self.client.reserved.load(Relaxed)
    }

    /// Returns true if the reserved memory of its client has room for `len` bytes when all is free.
    /// Any context.
    #[inline]
    pub(in crate::server) fn fits_reserved(&self, len: PieceLen) -> bool {
        len.bytes() <= self.reserved()
    }

    /// Returns the bytes of common memory that its client has. Any context.
    pub(in crate::server) fn held(&self) -> usize {
        let state = self.client.pool.state.lock();
        state.accounts.held(self.client.number)
    }

    /// Returns true if another client is in need of the memory that its client has, as
    /// [`Accounts::is_in_need`] says. Any context.
    pub(in crate::server) fn keeps_from_others(&self) -> bool {
        let state = self.client.pool.state.lock();
        let held = state.accounts.held(self.client.number);
        state.accounts.is_in_need(held)
    }

    /// Forgets what it has asked for: the command has ended. Any context.
    pub(in crate::server) fn cancel(&self) {
        let pool = &self.client.pool;
        pool.change(|accounts, mut tell| accounts.cancel(self.number, &mut tell));
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.cancel();
        self.client.pool.remove_node(self.number);
    }
}

/// Memory of a [`Pool`], which gets it back when this drops. Any context.
pub(in crate::server) struct Piece {
    memory: DmaPiece,
    buffer: Buffer,
    /// The client that is charged with it.
    client: Arc<Client>,
}

impl Piece {
    /// Makes it `len` bytes long. What it takes from the pool stays the same. Fails with `EINVAL`
    /// if that is less. Any context.
    #[inline]
    pub(in crate::server) fn fit(&mut self, len: PieceLen) -> Result {
        if len.get() > self.buffer.bytes() {
            return Err(EINVAL);
        }
        self.memory.resize(u32::try_from(len.get())?)
    }

    /// Returns true if a connection may keep it for its next commands: it is small, and of common
    /// memory.
    #[inline]
    pub(in crate::server) fn is_small(&self) -> bool {
        self.buffer.is_common() && self.buffer.bytes() == PIECE_MIN
    }

    /// Returns the memory.
    #[inline]
    pub(in crate::server) fn memory(&self) -> &DmaPiece {
        &self.memory
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let client = self.client.number;
        let put = |accounts: &mut PoolAccounts, mut tell: &mut dyn FnMut(usize)| {
            accounts.put(client, &self.buffer, &mut tell);
        };
        self.client.pool.change(put);
    }
}
