// SPDX-License-Identifier: GPL-2.0

//! Cutting chunks of 2 MiB into pieces of 4 KiB to 2 MiB, and joining them again.
//!
//! Nothing here names a kernel type or touches the memory that it is about: the same source is compiled
//! into the module and into the host tests.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

/// Bytes of the smallest piece.
pub const PIECE_MIN: usize = 4 << 10;
/// Bytes of a chunk, which is the largest piece.
pub const CHUNK: usize = PIECE_MIN << ORDER_MAX;

/// Order of a whole chunk; a piece of order n is 2^n smallest ones.
const ORDER_MAX: u8 = 9;
/// Nodes of a chunk's tree: the root is 1, the children of n are 2n and 2n + 1; 0 is not used.
const NODES: usize = 2 << ORDER_MAX;
const ROOT: usize = 1;
/// No chunk.
const NONE: u32 = u32::MAX;

/// Which pieces of a chunk are free.
///
/// # Invariants
///
/// `room` of a node is 0 if no piece below it, or it itself, is free, else one more than the order of
/// the largest that is. Below a node that is a piece in use it is not kept up, but says that all is free.
#[derive(Clone, Debug)]
pub struct Chunk {
    room: [u8; NODES],
    /// The list of chunks with the same room at the root.
    next: u32,
    prev: u32,
}

impl Chunk {
    /// A chunk that is all free.
    pub const fn new() -> Self {
        let mut room = [0; NODES];
        let mut node = ROOT;
        while node < NODES {
            // CAST: less than `ORDER_MAX`. INVARIANT: Every node is free as a whole.
            room[node] = ORDER_MAX + 1 - node.ilog2() as u8;
            node += 1;
        }
        Self {
            room,
            next: NONE,
            prev: NONE,
        }
    }

    fn room(&self, node: usize) -> u8 {
        self.room.get(node).copied().unwrap_or(0)
    }

    /// Takes a piece of `order`, for which there is room; returns the index of its first smallest piece.
    fn take(&mut self, order: u8) -> u16 {
        let mut node = ROOT;
        for _ in order..ORDER_MAX {
            let (left, right) = (self.room(2 * node), self.room(2 * node + 1));
            // The tighter fit, so that large pieces stay whole.
            let to_the_right = left <= order || (right > order && right < left);
            node = 2 * node + usize::from(to_the_right);
        }
        self.set(node, 0, order);
        // CAST: less than 2^ORDER_MAX.
        (Self::index_in_row(node, order) << order) as u16
    }

    /// Puts back a piece of `order`.
    fn put(&mut self, first: u16, order: u8) {
        let row = 1 << (ORDER_MAX - order);
        self.set(row + (usize::from(first) >> order), order + 1, order);
    }

    /// Changes the room of a node of `order`, and of those above it.
    fn set(&mut self, mut node: usize, mut room: u8, order: u8) {
        for order in order..=ORDER_MAX {
            if let Some(place) = self.room.get_mut(node) {
                *place = room;
            }
            let sibling = self.room(node ^ 1);
            // INVARIANT: Two free halves are one free whole.
            room = match room == order + 1 && sibling == room {
                true => order + 2,
                false => room.max(sibling),
            };
            node /= 2;
        }
    }

    /// How many nodes of its order are to the left of a node.
    fn index_in_row(node: usize, order: u8) -> usize {
        node - (1 << (ORDER_MAX - order))
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::new()
    }
}

/// A piece that is in use. It is not given back by itself: see [`Pool::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Piece {
    chunk: u32,
    /// In smallest pieces; a multiple of 2^order.
    first: u16,
    order: u8,
}

impl Piece {
    /// The chunk that it is of.
    pub fn chunk(&self) -> usize {
        // CAST: a u32 fits a usize on every platform with RDMA.
        self.chunk as usize
    }

    /// First byte in the chunk: a multiple of [`Piece::bytes`].
    pub fn offset(&self) -> usize {
        usize::from(self.first) * PIECE_MIN
    }

    /// Length: a power of two.
    pub fn bytes(&self) -> usize {
        PIECE_MIN << self.order
    }
}

/// A pool of pieces. It has all it needs from the start, and taking and giving back a piece takes some
/// ten steps, however many chunks there are.
///
/// # Invariants
///
/// Every chunk with room is in the list of its room, the others in none.
#[derive(Debug)]
pub struct Pool<C> {
    chunks: C,
    /// First chunk of each list; the index is one less than the room at its root.
    heads: [u32; ORDER_MAX as usize + 1],
}

impl<C: DerefMut<Target = [Chunk]>> Pool<C> {
    /// A pool of as many chunks as `chunks` has room for, all of them free.
    pub fn new(chunks: C) -> Self {
        let mut pool = Self {
            chunks,
            heads: [NONE; ORDER_MAX as usize + 1],
        };
        for index in (0..NONE).take(pool.chunks.len()) {
            if let Some(chunk) = pool.chunk(index) {
                *chunk = Chunk::new();
            }
            pool.link(index);
        }
        pool
    }

    /// Takes a piece of at least `len` bytes, of the smallest size that does. `None` if there is none,
    /// or if `len` is 0 or more than [`CHUNK`].
    pub fn alloc(&mut self, len: usize) -> Option<Piece> {
        if len == 0 || len > CHUNK {
            return None;
        }
        // CAST: no more than `ORDER_MAX`.
        let order = len.div_ceil(PIECE_MIN).next_power_of_two().ilog2() as u8;
        // The chunk with the tightest fit, so that whole chunks stay whole.
        let mut fitting = self.heads.iter().skip(order.into());
        let index = *fitting.find(|head| **head != NONE)?;
        self.unlink(index);
        let first = self.chunk(index)?.take(order);
        self.link(index);
        Some(Piece {
            chunk: index,
            first,
            order,
        })
    }

    /// Gives back a piece of this pool.
    pub fn free(&mut self, piece: Piece) {
        self.unlink(piece.chunk);
        if let Some(chunk) = self.chunk(piece.chunk) {
            chunk.put(piece.first, piece.order);
        }
        self.link(piece.chunk);
    }

    fn chunk(&mut self, index: u32) -> Option<&mut Chunk> {
        // CAST: a u32 fits a usize on every platform with RDMA.
        self.chunks.get_mut(index as usize)
    }

    /// The head of the list that a chunk is in or belongs into.
    fn head(&mut self, index: u32) -> Option<&mut u32> {
        let room = self.chunk(index)?.room(ROOT);
        self.heads.get_mut(usize::from(room).checked_sub(1)?)
    }

    /// Puts a chunk that is in no list into that of its room, if it has any.
    fn link(&mut self, index: u32) {
        let Some(head) = self.head(index) else {
            return;
        };
        let next = core::mem::replace(head, index);
        if let Some(chunk) = self.chunk(index) {
            (chunk.prev, chunk.next) = (NONE, next);
        }
        if let Some(next) = self.chunk(next) {
            next.prev = index;
        }
    }

    /// Takes a chunk out of the list of its room, if it has any.
    fn unlink(&mut self, index: u32) {
        // Without room it is in no list, and what it says about its neighbours is of the past.
        if self.head(index).is_none() {
            return;
        }
        let Some((prev, next)) = self.chunk(index).map(|chunk| (chunk.prev, chunk.next)) else {
            return;
        };
        if let Some(next) = self.chunk(next) {
            next.prev = prev;
        }
        if let Some(prev) = self.chunk(prev) {
            prev.next = next;
        } else if let Some(head) = self.head(index) {
            *head = next;
        }
    }
}
