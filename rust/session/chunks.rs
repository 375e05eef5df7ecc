// SPDX-License-Identifier: GPL-2.0

//! Memory for the data of commands, in chunks of 1 MiB: which of their pages are free.
//!
//! A buffer is 1, 2, 4 ... 256 pages of 4 KiB in a row, so that it is one segment for every device.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

/// Bytes of a page, which is the smallest buffer.
pub const PIECE_MIN: usize = 4 << 10;
/// Bytes of a chunk, which is the largest buffer.
pub const CHUNK: usize = 1 << 20;

const PAGES: usize = CHUNK / PIECE_MIN;
const WORD: usize = u64::BITS as usize;

/// The length of a buffer, in bytes: at least 1, and at most [`CHUNK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLen(usize);

impl PieceLen {
    /// Makes the length of `len` bytes. `None` if there are no buffers of that length.
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

    /// Returns the bytes of the pages that it takes.
    pub const fn bytes(self) -> usize {
        self.pages() * PIECE_MIN
    }

    const fn pages(self) -> usize {
        self.0.div_ceil(PIECE_MIN).next_power_of_two()
    }
}

/// Pages of a chunk that are in use. They have to be given back to that chunk.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Buffer {
    /// The index of the chunk; `None` for the reserved memory of an account.
    pub(super) chunk: Option<usize>,
    first: usize,
    pages: usize,
}

impl Buffer {
    /// Returns the offset of its first byte in the chunk.
    pub fn offset(&self) -> usize {
        self.first * PIECE_MIN
    }

    /// Returns its length in bytes.
    pub fn bytes(&self) -> usize {
        self.pages * PIECE_MIN
    }

    /// Returns true if it is of the memory that all accounts share.
    pub fn is_common(&self) -> bool {
        self.chunk.is_some()
    }
}

/// A chunk: `memory`, and which of its pages are in use.
#[derive(Debug)]
pub struct Chunk<B> {
    /// The memory.
    pub memory: B,
    /// A bit for each page.
    used: [u64; PAGES / WORD],
    /// Its bytes.
    len: usize,
    /// The number of pages that are free.
    free: usize,
    /// A buffer was taken since [`Chunks::remove_idle`] looked.
    busy: bool,
}

impl<B> Chunk<B> {
    /// Makes a chunk of `len` bytes, a power of two.
    pub fn new(memory: B, len: usize) -> Self {
        let free = (len / PIECE_MIN).min(PAGES);
        let missing = |word: usize| match free.saturating_sub(word * WORD) {
            WORD.. => 0,
            pages => u64::MAX << pages,
        };
        Self {
            memory,
            used: core::array::from_fn(missing),
            len,
            free,
            busy: true,
        }
    }

    /// Returns the bytes of the largest buffer when all is free.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Takes a buffer.
    pub fn take(&mut self, len: PieceLen) -> Option<Buffer> {
        let pages = len.pages();
        if pages > self.free {
            return None;
        }
        let first = self.find(pages)?;
        self.flip(first, pages);
        self.free -= pages;
        self.busy = true;
        Some(Buffer {
            chunk: None,
            first,
            pages,
        })
    }

    /// Takes back a buffer.
    pub fn put(&mut self, buffer: &Buffer) {
        self.flip(buffer.first, buffer.pages);
        self.free += buffer.pages;
    }

    /// Returns the first page of so many that are free, at a multiple of that number.
    fn find(&self, pages: usize) -> Option<usize> {
        if pages >= WORD {
            let mut rows = self.used.chunks(pages / WORD);
            let row = rows.position(|words| words.iter().all(|word| *word == 0));
            return row.map(|row| row * pages);
        }
        let mut words = self.used.iter().enumerate();
        words.find_map(|(index, used)| {
            // After each step a bit tells of twice as many pages from there on.
            let (mut free, mut row) = (!used, 1);
            while row < pages {
                free &= free >> row;
                row *= 2;
            }
            free &= u64::MAX / ((1 << pages) - 1);
            // CAST: at most 64.
            (free != 0).then(|| index * WORD + free.trailing_zeros() as usize)
        })
    }

    /// Marks pages as used that are free, or as free.
    fn flip(&mut self, first: usize, pages: usize) {
        let mask = match pages {
            WORD.. => u64::MAX,
            pages => ((1 << pages) - 1) << (first % WORD),
        };
        let words = self.used.iter_mut().skip(first / WORD);
        words
            .take(pages.div_ceil(WORD))
            .for_each(|word| *word ^= mask);
    }
}

/// The chunks that all accounts share.
#[derive(Debug)]
pub struct Chunks<C> {
    list: C,
    count: usize,
    /// One past the place of the last chunk: no more of the list is looked at.
    end: usize,
    /// Bytes in use.
    used: usize,
    /// No page is free in so many chunks at the beginning.
    full: usize,
    /// The chunk in which a large buffer is soonest to come together.
    best: usize,
}

impl<B, C: DerefMut<Target = [Option<Chunk<B>>]>> Chunks<C> {
    /// Makes no chunk, in a list of as many as there may ever be.
    pub fn new(list: C) -> Self {
        Self {
            list,
            count: 0,
            end: 0,
            used: 0,
            full: 0,
            best: 0,
        }
    }

    /// Adds a chunk. Gives its memory back if there is no room.
    pub fn add(&mut self, memory: B) -> Result<(), B> {
        let Some(index) = self.list.iter().position(Option::is_none) else {
            return Err(memory);
        };
        if let Some(place) = self.list.get_mut(index) {
            *place = Some(Chunk::new(memory, CHUNK));
        }
        self.count += 1;
        self.end = self.end.max(index + 1);
        self.full = self.full.min(index);
        Ok(())
    }

    /// Removes a chunk that is all free and was so since [`Chunks::start_idle`], or, with `any`,
    /// one that is all free. Returns its memory.
    pub fn remove_idle(&mut self, any: bool) -> Option<B> {
        let idle = |chunk: &Chunk<B>| chunk.free == PAGES && (any || !chunk.busy);
        let mut places = self.list.iter_mut().take(self.end).rev();
        let place = places.find(|place| place.as_ref().is_some_and(idle))?;
        let chunk = place.take()?;
        self.count -= 1;
        while self.end > 0 && self.free_of(self.end - 1).is_none() {
            self.end -= 1;
        }
        Some(chunk.memory)
    }

    /// Lets [`Chunks::remove_idle`] know which chunks are used from now on.
    pub fn start_idle(&mut self) {
        for chunk in self.list.iter_mut().take(self.end).flatten() {
            chunk.busy = false;
        }
    }

    /// Returns the number of chunks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the bytes that are free.
    pub fn free(&self) -> usize {
        self.count * CHUNK - self.used
    }

    /// Takes a buffer of the first chunk that has one, so that the last ones can go. With `spare`
    /// the chunk in which a large buffer is soonest to come together is left alone.
    pub fn take(&mut self, len: PieceLen, spare: bool) -> Option<Buffer> {
        let best = spare.then_some(self.best);
        let places = self.list.iter_mut().take(self.end).enumerate();
        let places = places.skip(self.full);
        let mut others = places.filter(|(index, _)| Some(*index) != best);
        let buffer = others.find_map(|(index, place)| {
            let buffer = place.as_mut()?.take(len)?;
            Some(Buffer {
                chunk: Some(index),
                ..buffer
            })
        })?;
        self.used += buffer.bytes();
        while self.free_of(self.full) == Some(0) {
            self.full += 1;
        }
        Some(buffer)
    }

    /// Takes back a buffer.
    pub fn put(&mut self, buffer: &Buffer) {
        let Some(index) = buffer.chunk else { return };
        if let Some(Some(chunk)) = self.list.get_mut(index) {
            chunk.put(buffer);
            self.used -= buffer.bytes();
        }
        self.full = self.full.min(index);
        if self.free_of(index) > self.free_of(self.best) {
            self.best = index;
        }
    }

    fn free_of(&self, index: usize) -> Option<usize> {
        self.list.get(index)?.as_ref().map(|chunk| chunk.free)
    }

    /// Returns the memory that a buffer is of.
    pub fn memory(&self, index: usize) -> Option<&B> {
        self.list.get(index)?.as_ref().map(|chunk| &chunk.memory)
    }
}
