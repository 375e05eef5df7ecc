// SPDX-License-Identifier: GPL-2.0

//! Memory for the data of commands.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};

use crate::buddy;
use crate::rdma::{
    device::Device,
    dma::{
        DmaMemory,
        DmaPiece, //
    },
};
use crate::server::poller::Poller;
use crate::sync::{
    new_irqsave_spinlock,
    IrqSaveSpinLock, //
};

struct State {
    free: buddy::Pool<KVVec<buddy::Chunk>>,
    /// The index is the completion vector.
    pollers: KVec<Option<Arc<Poller>>>,
    /// The completion vectors of those that wait, in order. There is room for all.
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

const _: () = assert!(buddy::CHUNK <= DmaMemory::MAX);

/// Memory of one HCA, mapped for it once, which all its connections share.
///
/// When it is used up, commands wait, and their pollers stand in line: who has been served goes to the
/// end, so that a large command is not overtaken for ever by small ones.
#[pin_data]
pub(super) struct Pool {
    chunks: KVec<DmaMemory>,
    #[pin]
    state: IrqSaveSpinLock<State>,
    /// Bytes that are not given back soon.
    lasting: Atomic<usize>,
    /// The length of the line: who has memory to spare gives it back.
    waiting: Atomic<usize>,
}

impl Pool {
    /// Allocates `size` bytes, rounded up to whole chunks, near the HCA. May sleep.
    pub(super) fn new(device: &Arc<Device>, size: usize) -> Result<Arc<Self>> {
        let count = size.div_ceil(buddy::CHUNK).max(1);
        let mut chunks = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut free = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let chunk = DmaMemory::alloc(device, DmaMemory::MAX, device.numa_node())?;
            chunks.push(chunk, GFP_KERNEL)?;
            free.push(buddy::Chunk::new(), GFP_KERNEL)?;
        }
        let vectors = usize::try_from(device.limits().num_comp_vectors)?;
        let mut pollers = KVec::with_capacity(vectors, GFP_KERNEL)?;
        for _ in 0..vectors {
            pollers.push(None, GFP_KERNEL)?;
        }
        let state = State {
            free: buddy::Pool::new(free),
            pollers,
            line: KVec::with_capacity(vectors, GFP_KERNEL)?,
        };
        Arc::pin_init(
            pin_init!(Self {
                chunks,
                state <- new_irqsave_spinlock!(state, "Pool::state"),
                lasting: Atomic::new(0),
                waiting: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Knows the poller of a completion vector, or no longer. May sleep.
    pub(super) fn set_poller(&self, vector: usize, poller: Option<Arc<Poller>>) {
        self.leave(vector);
        let past = {
            let mut state = self.state.lock();
            let place = state.pollers.get_mut(vector);
            place.map(|place| core::mem::replace(place, poller))
        };
        drop(past);
    }

    /// Memory for `len` bytes, at most [`buddy::CHUNK`]. `None` if there is none, or if others stand in
    /// line before the poller of `vector`. Any context.
    pub(super) fn get(self: &Arc<Self>, len: u32, vector: usize) -> Option<Piece> {
        let len = usize::try_from(len).ok()?;
        let place = {
            let mut state = self.state.lock();
            match state.line.first() {
                Some(first) if *first != vector => return None,
                _ => state.free.alloc(len)?,
            }
        };
        let chunk = self.chunks.get(place.chunk());
        let memory = chunk.and_then(|chunk| chunk.piece(place.offset(), len).ok());
        match memory {
            Some(memory) => Some(Piece {
                memory,
                place: Some(place),
                lasting: false,
                pool: self.clone(),
            }),
            None => {
                self.put(place);
                None
            }
        }
    }

    /// As [`Pool::get`], for memory that is not given back soon: at most half of all. Any context.
    pub(super) fn get_lasting(self: &Arc<Self>, len: u32, vector: usize) -> Option<Piece> {
        let half = self.chunks.len() * buddy::CHUNK / 2;
        let mut piece = self.get(len, vector)?;
        let lasting = self.lasting.fetch_add(piece.bytes(), Relaxed) + piece.bytes();
        piece.lasting = true;
        (lasting <= half).then_some(piece)
    }

    fn put(&self, place: buddy::Piece) {
        let mut state = self.state.lock();
        state.free.free(place);
        state.wake_first();
    }

    /// Whether somebody waits for memory. Any context.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// Puts the poller of `vector` in line, unless it is; it is woken when it is its turn. All are woken
    /// now, to give back what they can do without. Any context.
    pub(super) fn wait(&self, vector: usize) {
        let mut state = self.state.lock();
        if !state.line.contains(&vector) && state.line.push_within_capacity(vector).is_ok() {
            self.waiting.store(state.line.len(), Relaxed);
            for poller in state.pollers.iter().flatten() {
                poller.wake();
            }
        }
    }

    /// Takes the poller of `vector` out of the line, if it is in it. Any context.
    pub(super) fn leave(&self, vector: usize) {
        let mut state = self.state.lock();
        state.line.retain(|other| *other != vector);
        self.waiting.store(state.line.len(), Relaxed);
        state.wake_first();
    }
}

/// Memory of a [`Pool`], which gets it back when this drops. Any context.
pub(super) struct Piece {
    memory: DmaPiece,
    /// Always there until the drop.
    place: Option<buddy::Piece>,
    lasting: bool,
    pool: Arc<Pool>,
}

impl Piece {
    /// The bytes that it takes from the pool.
    fn bytes(&self) -> usize {
        self.place.as_ref().map_or(0, buddy::Piece::bytes)
    }

    /// Makes it `len` bytes long; it keeps what it takes from the pool. Any context.
    pub(super) fn fit(&mut self, len: u32) -> Result {
        if self.memory.len() == len {
            return Ok(());
        }
        let place = self.place.as_ref().ok_or(EINVAL)?;
        let len = usize::try_from(len)?;
        if len > place.bytes() {
            return Err(EINVAL);
        }
        let chunk = self.pool.chunks.get(place.chunk()).ok_or(EINVAL)?;
        self.memory = chunk.piece(place.offset(), len)?;
        Ok(())
    }

    /// Whether it takes the least that a pool has.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.bytes() == buddy::PIECE_MIN
    }

    /// The memory.
    #[inline]
    pub(super) fn memory(&self) -> &DmaPiece {
        &self.memory
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.lasting {
            self.pool.lasting.fetch_sub(self.bytes(), Relaxed);
        }
        if let Some(place) = self.place.take() {
            self.pool.put(place);
        }
    }
}
