// SPDX-License-Identifier: GPL-2.0

//! Memory for the data of commands.

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
use crate::server::{
    block::poller::Poller,
    memory::buddy, //
};

const _: () = assert!(buddy::CHUNK <= DmaMemory::MAX);
/// How often the pool looks for memory that it can do without.
const TRIM_MS: Msecs = 5000;

/// Memory that is cut into pieces.
struct Chunk {
    memory: DmaMemory,
    map: buddy::Chunk,
}

/// A [`Chunk`], in a place of its own.
struct Held(KBox<Chunk>);

impl AsMut<buddy::Chunk> for Held {
    fn as_mut(&mut self) -> &mut buddy::Chunk {
        &mut self.0.map
    }
}

struct State {
    /// There is a place for every chunk that there may be.
    free: buddy::Pool<KVVec<Option<Held>>>,
    /// The fewest chunks that were all free at once since the last look.
    spare: usize,
    /// There was no memory for one more chunk at the last try; the next one is after the next look.
    refused: bool,
    /// The index is a poller's number.
    pollers: KVec<Option<Arc<Poller>>>,
    /// The numbers of those that wait, in order. There is room for all.
    line: KVec<usize>,
}

impl State {
    /// Tells whose turn it is that there may be memory now.
    fn wake_first(&self) {
        let first = self.line.first().and_then(|first| self.pollers.get(*first));
        if let Some(Some(poller)) = first {
            poller.wake();
        }
    }
}

/// Memory of one HCA, mapped for it once, which all its connections share.
///
/// It always has one chunk, so that commands go on whatever else the memory of the system is wanted for.
/// When it is used up, commands wait, and a worker adds chunks. Those that were not needed for some
/// seconds go again.
///
/// The pollers of commands that wait stand in line: who has been served goes to the end, so that a large
/// command is not overtaken for ever by small ones.
#[pin_data]
pub(in crate::server) struct Pool {
    device: Arc<Device>,
    /// Bytes that it may have.
    size: usize,
    #[pin]
    state: IrqSaveSpinLock<State>,
    /// Bytes that receives have.
    lasting: Atomic<usize>,
    /// The length of the line: who has memory to spare gives it back.
    waiting: Atomic<usize>,
    /// Where it grows.
    grower: Arc<OwnedQueue>,
    #[pin]
    work: Work<Pool>,
}

impl_has_work! {
    impl HasWork<Self> for Pool { self.work }
}

/// Lets a pool shrink.
pub(in crate::server) struct Trim(Arc<Pool>);

impl PeriodicHandler for Trim {
    fn run(&self) {
        self.0.trim();
        if self.0.is_short() {
            self.0.grow();
        }
        for poller in self.0.state.lock().pollers.iter().flatten() {
            poller.want_credit();
        }
    }
}

impl Pool {
    /// A pool of one chunk near the HCA that may grow to `size` bytes. May sleep.
    pub(in crate::server) fn new(
        device: &Arc<Device>,
        size: usize,
        grower: &Arc<OwnedQueue>,
    ) -> Result<Arc<Self>> {
        let count = (size / buddy::CHUNK).max(1);
        let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            places.push(None, GFP_KERNEL)?;
        }
        let state = State {
            free: buddy::Pool::new(places),
            spare: 0,
            refused: false,
            pollers: KVec::new(),
            line: KVec::new(),
        };
        let this = Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                size,
                state <- new_irqsave_spinlock!(state, "Pool::state"),
                lasting: Atomic::new(0),
                waiting: Atomic::new(0),
                grower: grower.clone(),
                work <- new_work!("Pool::work"),
            }),
            GFP_KERNEL,
        )?;
        this.add()?;
        Ok(this)
    }

    /// What lets it shrink as long as it exists. May sleep.
    pub(in crate::server) fn trimmer(self: &Arc<Self>) -> Result<PeriodicWork<Trim>> {
        PeriodicWork::new(Trim(self.clone()), TRIM_MS)
    }

    /// Adds a chunk. May sleep.
    fn add(&self) -> Result {
        let memory = DmaMemory::alloc(&self.device, buddy::CHUNK, self.device.numa_node())?;
        let chunk = Chunk {
            memory,
            map: buddy::Chunk::new(),
        };
        let chunk = Held(KBox::new(chunk, GFP_KERNEL)?);
        let mut state = self.state.lock();
        let refused = state.free.add(chunk).err();
        state.wake_first();
        drop(state);
        refused.map_or(Ok(()), |_| Err(ENOSPC))
    }

    /// Has the worker add chunks. Any context.
    fn grow(self: &Arc<Self>) {
        let _ = self.grower.enqueue::<Arc<Self>, 0>(self.clone());
    }

    /// The chunks that it may have: what receives leave of it.
    fn chunks_max(&self) -> usize {
        let lasting = self.lasting.load(Relaxed);
        (self.size.saturating_sub(lasting) / buddy::CHUNK).max(1)
    }

    /// Gives up the chunks that nobody has needed since the last time, but for one, and what it has more
    /// than it may.
    fn trim(&self) {
        loop {
            let chunk = {
                let mut state = self.state.lock();
                state.refused = false;
                let count = state.free.count();
                if count > 1 && (state.spare > 0 || count > self.chunks_max()) {
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

    /// The number of the next poller. Any context.
    pub(in crate::server) fn next_number(&self) -> usize {
        let state = self.state.lock();
        let free = state.pollers.iter().position(Option::is_none);
        free.unwrap_or(state.pollers.len())
    }

    /// Knows a poller by `number`, that of [`Pool::next_number`]. Not twice at a time. May sleep.
    pub(in crate::server) fn add_poller(&self, number: usize, poller: Arc<Poller>) -> Result {
        if let Some(free) = self.state.lock().pollers.get_mut(number) {
            *free = Some(poller);
            return Ok(());
        }
        let mut pollers = KVec::with_capacity(number + 1, GFP_KERNEL)?;
        let mut line = KVec::with_capacity(number + 1, GFP_KERNEL)?;
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        // There is room for all.
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

    /// Knows poller `number` no longer. May sleep.
    pub(in crate::server) fn remove_poller(&self, number: usize) {
        self.leave(number);
        let past = {
            let mut state = self.state.lock();
            let place = state.pollers.get_mut(number);
            place.and_then(Option::take)
        };
        drop(past);
    }

    /// Memory for `len` bytes, at most [`buddy::CHUNK`]. `None` if there is none, or if others stand in
    /// line before poller `number`. Any context.
    pub(in crate::server) fn get(self: &Arc<Self>, len: u32, number: usize) -> Option<Piece> {
        let len = usize::try_from(len).ok()?;
        let mut state = self.state.lock();
        let state: &mut State = &mut state;
        if state.line.first().is_some_and(|first| *first != number) {
            return None;
        }
        let place = state.free.alloc(len)?;
        state.spare = state.spare.min(state.free.whole());
        let chunk = state.free.chunk_of(&place);
        match chunk.and_then(|chunk| chunk.0.memory.piece(place.offset(), len).ok()) {
            Some(memory) => Some(Piece {
                memory,
                place: Some(place),
                pool: self.clone(),
            }),
            None => {
                state.free.free(place);
                None
            }
        }
    }

    /// Memory for receives, `len` bytes, at most [`buddy::CHUNK`]: all of them have half of what the pool
    /// may have at most. It is not cut from chunks, which it would keep from being free. May sleep.
    pub(in crate::server) fn get_lasting(self: &Arc<Self>, len: usize) -> Result<Lasting> {
        let memory = DmaMemory::alloc(&self.device, len, self.device.numa_node())?;
        let bytes = memory.len();
        let lasting = Lasting {
            memory,
            pool: self.clone(),
        };
        let all = self.lasting.fetch_add(bytes, Relaxed) + bytes;
        match all <= self.size / 2 {
            true => Ok(lasting),
            false => Err(ENOMEM),
        }
    }

    fn put(&self, place: buddy::Piece) {
        let mut state = self.state.lock();
        state.free.free(place);
        state.wake_first();
    }

    /// Whether somebody waits for memory. Any context.
    #[inline]
    pub(in crate::server) fn is_short(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Puts poller `number` in line, unless it is; it is woken when it is its turn. All are woken
    /// now, to give back what they can do without, and there will be more memory, if it can be. Any
    /// context.
    pub(in crate::server) fn wait(self: &Arc<Self>, number: usize) {
        let mut state = self.state.lock();
        if !state.refused && state.free.count() < self.chunks_max() {
            self.grow();
        }
        if !state.line.contains(&number) && state.line.push_within_capacity(number).is_ok() {
            self.waiting.store(state.line.len(), Relaxed);
            for poller in state.pollers.iter().flatten() {
                poller.wake();
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

    /// Adds chunks as long as somebody waits for memory.
    fn run(this: Arc<Self>) {
        while this.is_short() && this.state.lock().free.count() < this.chunks_max() {
            if this.add().is_err() {
                this.state.lock().refused = true;
                return;
            }
        }
    }
}

/// Memory for receives, which counts as the pool's.
pub(in crate::server) struct Lasting {
    memory: DmaMemory,
    pool: Arc<Pool>,
}

impl Lasting {
    /// The `len` bytes at `offset`.
    pub(in crate::server) fn piece(&self, offset: usize, len: usize) -> Result<DmaPiece> {
        self.memory.piece(offset, len)
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        self.pool.lasting.fetch_sub(self.memory.len(), Relaxed);
    }
}

/// Memory of a [`Pool`], which gets it back when this drops. Any context.
pub(in crate::server) struct Piece {
    memory: DmaPiece,
    /// Always there until the drop.
    place: Option<buddy::Piece>,
    pool: Arc<Pool>,
}

impl Piece {
    /// The bytes that it takes from the pool.
    fn bytes(&self) -> usize {
        self.place.as_ref().map_or(0, buddy::Piece::bytes)
    }

    /// Makes it `len` bytes long; it keeps what it takes from the pool. Any context.
    pub(in crate::server) fn fit(&mut self, len: u32) -> Result {
        if usize::try_from(len)? > self.bytes() {
            return Err(EINVAL);
        }
        self.memory.resize(len)
    }

    /// Whether it takes the least that a pool has.
    #[inline]
    pub(in crate::server) fn is_small(&self) -> bool {
        self.bytes() == buddy::PIECE_MIN
    }

    /// The memory.
    #[inline]
    pub(in crate::server) fn memory(&self) -> &DmaPiece {
        &self.memory
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.pool.put(place);
        }
    }
}
