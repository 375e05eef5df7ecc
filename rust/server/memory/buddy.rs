// SPDX-License-Identifier: GPL-2.0

//! Cutting chunks of 1 MiB into pieces of 4 KiB to 1 MiB, and joining them again.
//!
//! Nothing here names a kernel type or touches the memory that it is about: the same source is
//! compiled into the module and into the host tests.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

/// Bytes of the smallest piece.
pub const PIECE_MIN: usize = 4 << 10;
/// Bytes of a chunk, which is the largest piece.
pub const CHUNK: usize = PIECE_MIN << ORDER_MAX;

/// Order of a whole chunk; a piece of order n is 2^n smallest ones.
const ORDER_MAX: u8 = 8;
/// Nodes of a chunk's tree: the root is 1, the children of n are 2n and 2n + 1; 0 is not used.
const NODES: usize = 2 << ORDER_MAX;
const ROOT: usize = 1;
/// The list of chunks that are all free.
const WHOLE: usize = ORDER_MAX as usize;
/// No chunk.
const NONE: u32 = u32::MAX;

/// The length of a piece that is asked for, in bytes: at least 1, and at most [`CHUNK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLen(usize);

impl PieceLen {
    /// That of the smallest piece.
    pub const MIN: Self = Self(PIECE_MIN);

    /// Makes the length of `len` bytes. `None` if there are no pieces of that length.
    pub const fn new(len: usize) -> Option<Self> {
        match len {
            1..=CHUNK => Some(Self(len)),
            _ => None,
        }
    }

    /// Returns the length.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Returns the bytes of the piece that it takes.
    pub const fn bytes(self) -> usize {
        PIECE_MIN << self.order()
    }

    /// Returns the order of the piece that it takes, at most [`ORDER_MAX`].
    const fn order(self) -> u8 {
        // CAST: No more than `ORDER_MAX`.
        self.0.div_ceil(PIECE_MIN).next_power_of_two().ilog2() as u8
    }
}

/// Which pieces of a chunk are free.
///
/// # Invariants
///
/// `room` of a node is 0 if no piece below it, or it itself, is free, else one more than the order
/// of the largest that is. Below a node that is a piece in use it is not kept up, but says that all
/// is free.
#[derive(Clone, Debug)]
pub struct Chunk {
    room: [u8; NODES],
    /// The neighbours in the list of chunks with the same room at the root.
    next: u32,
    prev: u32,
}

impl Chunk {
    /// Makes a chunk that is all free.
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

    /// Takes a piece of `order`, which must fit, and returns the index of its first smallest piece.
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

    /// Returns the number of nodes of the same order to the left of a node.
    fn index_in_row(node: usize, order: u8) -> usize {
        node - (1 << (ORDER_MAX - order))
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::new()
    }
}

/// A piece that is in use. Its drop does not give it back: see [`Pool::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Piece {
    chunk: u32,
    /// In smallest pieces; a multiple of 2^order.
    first: u16,
    order: u8,
}

impl Piece {
    /// Returns the index of its chunk.
    pub fn chunk(&self) -> usize {
        // CAST: a u32 fits a usize on every platform with RDMA.
        self.chunk as usize
    }

    /// Returns its first byte in the chunk, a multiple of [`Piece::bytes`].
    pub fn offset(&self) -> usize {
        usize::from(self.first) * PIECE_MIN
    }

    /// Returns its length, a power of two.
    pub fn bytes(&self) -> usize {
        PIECE_MIN << self.order
    }
}

/// A pool of pieces. Taking and giving back a piece takes some ten steps, however many chunks there
/// are.
///
/// `B` owns a chunk, and may own the memory that it is about: they come and go together.
///
/// One chunk can be *reserved*: its pieces come back to it, but only [`Pool::alloc_reserved`] takes
/// any. So a large piece comes together there, however many small ones others take meanwhile.
///
/// # Invariants
///
/// Every chunk with room is in the list of its room, unless it is `reserved`; the others are in
/// none. `whole` is the length of the list of those that are all free, and `count` the number of
/// all.
#[derive(Debug)]
pub struct Pool<C> {
    chunks: C,
    /// First chunk of each list; the index is one less than the room at its root.
    heads: [u32; ORDER_MAX as usize + 1],
    count: usize,
    whole: usize,
    /// The chunk that is reserved, or `NONE`.
    reserved: u32,
}

impl<B: AsMut<Chunk> + 'static, C: DerefMut<Target = [Option<B>]>> Pool<C> {
    /// Makes an empty pool for as many chunks as `places` has elements.
    pub fn new(mut places: C) -> Self {
        places.iter_mut().for_each(|place| *place = None);
        Self {
            chunks: places,
            heads: [NONE; ORDER_MAX as usize + 1],
            count: 0,
            whole: 0,
            reserved: NONE,
        }
    }

    /// Adds a chunk, which becomes all free. Gives it back if there is no place for it.
    pub fn add(&mut self, mut chunk: B) -> Result<(), B> {
        let mut places = (0..NONE).zip(self.chunks.iter_mut());
        let Some((index, place)) = places.find(|(_, place)| place.is_none()) else {
            return Err(chunk);
        };
        *chunk.as_mut() = Chunk::new();
        *place = Some(chunk);
        self.count += 1;
        self.link(index);
        Ok(())
    }

    /// Withholds the beginning of the only chunk, which is all free, so that a piece of `len` bytes
    /// is left, or of the next power of two. Returns the offset of that piece.
    pub fn withhold(&mut self, len: PieceLen) -> usize {
        let mut withheld = 0;
        while withheld < CHUNK - len.bytes() {
            // The left half of what is left; it is never given back.
            let half = PieceLen::new((CHUNK - withheld) / 2);
            match half.and_then(|half| self.alloc(half)) {
                Some(piece) => withheld += piece.bytes(),
                None => break,
            }
        }
        withheld
    }

    /// Removes a chunk that is all free and not reserved, if there is one.
    pub fn remove(&mut self) -> Option<B> {
        let index = *self.heads.last().filter(|head| **head != NONE)?;
        self.unlink(index);
        self.count -= 1;
        // CAST: a u32 fits a usize on every platform with RDMA.
        self.chunks.get_mut(index as usize)?.take()
    }

    /// Returns the number of chunks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of chunks that are all free.
    pub fn whole(&self) -> usize {
        self.whole
    }

    /// Returns the chunk of a piece. It stays as long as the piece is in use.
    pub fn chunk_of(&self, piece: &Piece) -> Option<&B> {
        self.chunks.get(piece.chunk())?.as_ref()
    }

    /// Takes a piece of at least `len` bytes, of the smallest size that does, if there is one
    /// outside of the reserved chunk.
    pub fn alloc(&mut self, len: PieceLen) -> Option<Piece> {
        let order = len.order();
        // The chunk with the tightest fit, so that whole chunks stay whole.
        let mut fitting = self.heads.iter().skip(order.into());
        let index = *fitting.find(|head| **head != NONE)?;
        self.take_from(index, order)
    }

    /// Takes a piece as [`Pool::alloc`] does, or of the reserved chunk.
    pub fn alloc_reserved(&mut self, len: PieceLen) -> Option<Piece> {
        match self.list(self.reserved) {
            Some(list) if list >= len.order().into() => self.take_from(self.reserved, len.order()),
            _ => self.alloc(len),
        }
    }

    /// Reserves the chunk with the largest free piece, if any has one. The chunk that is reserved
    /// already stays so if none has a larger one.
    pub fn reserve(&mut self) {
        let Some(list) = self.heads.iter().rposition(|head| *head != NONE) else {
            return;
        };
        if self.list(self.reserved).is_some_and(|own| own >= list) {
            return;
        }
        let index = self.heads.get(list).copied().unwrap_or(NONE);
        self.unlink(index);
        // INVARIANT: It is in no list, and what was reserved before is in that of its room.
        let before = core::mem::replace(&mut self.reserved, index);
        self.link(before);
    }

    /// Ends the reservation, if there is one.
    pub fn release(&mut self) {
        let before = core::mem::replace(&mut self.reserved, NONE);
        self.link(before);
    }

    /// Takes a piece of `order`, which must fit, of a chunk.
    fn take_from(&mut self, index: u32, order: u8) -> Option<Piece> {
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
        let place = self.chunks.get_mut(index as usize)?;
        place.as_mut().map(B::as_mut)
    }

    /// Returns the index of the list for chunks with the room of this one.
    fn list(&mut self, index: u32) -> Option<usize> {
        let room = self.chunk(index)?.room(ROOT);
        usize::from(room).checked_sub(1)
    }

    /// Puts a chunk that is in no list into that of its room, if it has any and is not reserved.
    fn link(&mut self, index: u32) {
        if index == self.reserved {
            return;
        }
        let Some(list) = self.list(index) else {
            return;
        };
        let Some(head) = self.heads.get_mut(list) else {
            return;
        };
        // INVARIANT: It is in the list from here on.
        self.whole += usize::from(list == WHOLE);
        let next = core::mem::replace(head, index);
        if let Some(chunk) = self.chunk(index) {
            (chunk.prev, chunk.next) = (NONE, next);
        }
        if let Some(next) = self.chunk(next) {
            next.prev = index;
        }
    }

    /// Takes a chunk out of the list of its room, if it has any and is not reserved.
    fn unlink(&mut self, index: u32) {
        if index == self.reserved {
            return;
        }
        // Without room it is in no list, and what it says about its neighbours is of the past.
        let Some(list) = self.list(index) else {
            return;
        };
        let Some((prev, next)) = self.chunk(index).map(|chunk| (chunk.prev, chunk.next)) else {
            return;
        };
        // INVARIANT: It is in the list no longer.
        self.whole -= usize::from(list == WHOLE);
        if let Some(next) = self.chunk(next) {
            next.prev = prev;
        }
        if let Some(prev) = self.chunk(prev) {
            prev.next = next;
        } else if let Some(head) = self.heads.get_mut(list) {
            *head = next;
        }
    }
}
