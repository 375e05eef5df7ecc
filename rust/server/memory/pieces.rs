// SPDX-License-Identifier: GPL-2.0

//! The memory of a pool, cut into pieces: common memory, and the own memory of accounts.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::rdma::{
    device::Device,
    dma::{
        DmaMemory,
        DmaPiece, //
    },
};
use crate::server::memory::{
    arbiter,
    buddy::{
        self,
        PieceLen, //
    },
    budget::{
        Budget,
        Counted,
        Lasting, //
    },
};

const _: () = assert!(buddy::CHUNK <= DmaMemory::MAX);

/// Memory that is cut into pieces.
struct Chunk {
    memory: DmaMemory,
    map: buddy::Chunk,
    _counted: Counted,
}

/// A [`Chunk`] in an allocation of its own.
pub(super) struct Held(KBox<Chunk>);

impl Held {
    /// Makes a chunk, which counts against `budget`. May sleep.
    pub(super) fn new(device: &Arc<Device>, budget: &Arc<Budget>) -> Result<Self> {
        let chunk = Chunk {
            memory: DmaMemory::alloc(device, buddy::CHUNK, device.numa_node())?,
            map: buddy::Chunk::new(),
            _counted: Budget::count_chunk(budget),
        };
        Ok(Self(KBox::new(chunk, GFP_KERNEL)?))
    }
}

impl AsMut<buddy::Chunk> for Held {
    fn as_mut(&mut self) -> &mut buddy::Chunk {
        &mut self.0.map
    }
}

/// The own memory of an account, and its pieces.
pub(super) struct Own {
    pub(super) free: buddy::Pool<KVVec<Option<OwnChunk>>>,
    /// The offset of the memory in the chunk that the pieces are of: it may be less than a chunk.
    base: usize,
    memory: Lasting,
}

/// The chunk of [`Own`], in an allocation of its own.
pub(super) struct OwnChunk(KBox<buddy::Chunk>);

impl AsMut<buddy::Chunk> for OwnChunk {
    fn as_mut(&mut self) -> &mut buddy::Chunk {
        &mut self.0
    }
}

impl Own {
    /// Makes pieces of `memory`. May sleep.
    pub(super) fn new(memory: Lasting) -> Result<Self> {
        let len = PieceLen::new(memory.len()).ok_or(EINVAL)?;
        let mut free = buddy::Pool::new(empty(1)?);
        let chunk = KBox::new(buddy::Chunk::new(), GFP_KERNEL)?;
        free.add(OwnChunk(chunk)).map_err(|_| ENOSPC)?;
        Ok(Self {
            base: free.withhold(len),
            free,
            memory,
        })
    }
}

impl Own {
    /// Returns its size in bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }
}

/// Makes a list of `count` empty places. May sleep.
pub(super) fn empty<T>(count: usize) -> Result<KVVec<Option<T>>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(None, GFP_KERNEL)?;
    }
    Ok(places)
}

/// A piece that is in use, and what it is of.
pub(super) enum Place {
    /// Of the own memory of an account.
    Own(buddy::Piece),
    /// Of the common memory, and charged to an account.
    Common(buddy::Piece),
    /// Of the common memory, one that a poller keeps at hand. It is charged to nobody.
    Small(buddy::Piece),
}

impl Place {
    /// Returns the bytes that it has.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Own(piece) | Self::Common(piece) | Self::Small(piece) => piece.bytes(),
        }
    }
}

/// The memory of a pool, and which pieces are free.
pub(super) struct Memory {
    budget: Arc<Budget>,
    /// The chunks of the common memory, with capacity for as many as there may be.
    pub(super) free: buddy::Pool<KVVec<Option<Held>>>,
    /// Bytes of the pieces of common memory that are in use.
    used: usize,
    /// The fewest chunks that were all free at once since the pool was last trimmed.
    pub(super) spare: usize,
    /// The own memory of accounts, by their number.
    pub(super) own: KVVec<Option<Own>>,
}

impl Memory {
    /// Makes the memory of a pool that has none yet. May sleep.
    pub(super) fn new(budget: &Arc<Budget>) -> Result<Self> {
        Ok(Self {
            budget: budget.clone(),
            free: buddy::Pool::new(empty((budget.size / buddy::CHUNK).max(1))?),
            used: 0,
            spare: 0,
            own: KVVec::new(),
        })
    }

    /// Takes a piece of the common memory. Any context.
    pub(super) fn take_chunked(&mut self, len: PieceLen) -> Option<buddy::Piece> {
        let piece = self.free.alloc(len)?;
        Some(self.count(piece))
    }

    /// Counts a piece of the common memory that was taken just now.
    fn count(&mut self, piece: buddy::Piece) -> buddy::Piece {
        self.spare = self.spare.min(self.free.whole());
        self.used += piece.bytes();
        piece
    }

    /// Takes back a piece of the common memory. Any context.
    pub(super) fn put_chunked(&mut self, piece: buddy::Piece) {
        self.used -= piece.bytes();
        self.free.free(piece);
    }

    /// Returns the first `len` bytes of a piece that an account has. Any context.
    pub(super) fn piece(&self, account: usize, place: &Place, len: usize) -> Option<DmaPiece> {
        match place {
            Place::Own(piece) => {
                let own = self.own.get(account)?.as_ref()?;
                let offset = piece.offset().checked_sub(own.base)?;
                own.memory.piece(offset, len).ok()
            }
            Place::Common(piece) | Place::Small(piece) => {
                let chunk = self.free.chunk_of(piece)?;
                chunk.0.memory.piece(piece.offset(), len).ok()
            }
        }
    }
}

impl arbiter::Memory for Memory {
    type Piece = Place;

    fn fits_own(&self, account: usize, len: PieceLen) -> bool {
        let own = self.own.get(account).and_then(Option::as_ref);
        own.is_some_and(|own| len.bytes() <= own.len())
    }

    fn take_own(&mut self, account: usize, len: PieceLen) -> Option<Place> {
        let own = self.own.get_mut(account)?.as_mut()?;
        own.free.alloc(len).map(Place::Own)
    }

    fn take_common(&mut self, len: PieceLen) -> Option<Place> {
        self.take_chunked(len).map(Place::Common)
    }

    fn take_reserved(&mut self, len: PieceLen) -> Option<Place> {
        let piece = self.free.alloc_reserved(len)?;
        Some(Place::Common(self.count(piece)))
    }

    fn reserve(&mut self) {
        self.free.reserve();
        self.spare = self.spare.min(self.free.whole());
    }

    fn release(&mut self) {
        self.free.release();
    }

    fn left(&self) -> usize {
        let count = self.free.count();
        let chunks = count.saturating_add(self.budget.growable(count));
        let bytes = chunks.saturating_mul(buddy::CHUNK);
        bytes.saturating_sub(self.used)
    }
}
