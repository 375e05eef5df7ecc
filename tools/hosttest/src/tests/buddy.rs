// SPDX-License-Identifier: GPL-2.0

//! Pieces of chunks.

use crate::server::memory::buddy::{Chunk, Piece, PieceLen, Pool, CHUNK, PIECE_MIN};
use proptest::prelude::*;
use proptest::sample::Index;

type Chunks = Vec<Option<Box<Chunk>>>;

/// A pool of so many chunks, with a place for one more.
fn pool(chunks: usize) -> Pool<Chunks> {
    let mut pool = Pool::new(vec![None; chunks + 1]);
    for _ in 0..chunks {
        pool.add(Box::default()).unwrap();
    }
    pool
}

fn length(len: usize) -> PieceLen {
    PieceLen::new(len).unwrap()
}

/// As many pieces of `len` bytes as there are.
fn all(pool: &mut Pool<Chunks>, len: usize) -> Vec<Piece> {
    std::iter::from_fn(|| pool.alloc(length(len))).collect()
}

#[test]
fn sizes() {
    let mut pool = pool(1);
    for (len, rounded) in [
        (1, PIECE_MIN),
        (PIECE_MIN, PIECE_MIN),
        (PIECE_MIN + 1, 2 * PIECE_MIN),
        (3 * PIECE_MIN, 4 * PIECE_MIN),
        (CHUNK / 2, CHUNK / 2),
        (CHUNK / 2 + 1, CHUNK),
        (CHUNK, CHUNK),
    ] {
        let piece = pool.alloc(length(len)).unwrap();
        assert_eq!(
            (piece.chunk(), piece.offset(), piece.bytes()),
            (0, 0, rounded)
        );
        pool.free(piece);
    }
    for len in [0, CHUNK + 1, usize::MAX] {
        assert_eq!(PieceLen::new(len), None);
    }
    assert_eq!((length(1).get(), PieceLen::MIN.bytes()), (1, PIECE_MIN));
    assert_eq!((PIECE_MIN, CHUNK), (4096, 1 << 20));
}

#[test]
fn empty() {
    let mut pool = pool(0);
    assert_eq!(pool.alloc(length(1)), None);
    assert!(pool.remove().is_none());
    assert_eq!((pool.count(), pool.whole()), (0, 0));
}

/// Only chunks that are all free can be had back, and what they were does not matter to the next
/// ones.
#[test]
fn chunks_come_and_go() {
    let mut pool = pool(2);
    let piece = pool.alloc(length(1)).unwrap();
    assert_eq!((pool.count(), pool.whole()), (2, 1));
    let chunk = pool.remove().unwrap();
    assert!(pool.remove().is_none());
    assert!(pool.chunk_of(&piece).is_some());
    assert_eq!((pool.count(), pool.whole()), (1, 0));
    assert_eq!(pool.alloc(length(CHUNK)), None);
    pool.add(chunk).unwrap();
    pool.add(Box::default()).unwrap();
    assert!(pool.add(Box::default()).is_err());
    let whole = all(&mut pool, CHUNK);
    assert_eq!((whole.len(), pool.count(), pool.whole()), (2, 3, 0));
    whole.into_iter().for_each(|piece| pool.free(piece));
    pool.free(piece);
    assert_eq!(pool.whole(), 3);
    assert_eq!(std::iter::from_fn(|| pool.remove()).count(), 3);
    assert_eq!(pool.alloc(length(1)), None);
}

#[test]
fn every_byte_can_be_had_in_every_size() {
    let mut pool = pool(3);
    for shift in 12..=20 {
        let len = 1 << shift;
        let pieces = all(&mut pool, len);
        assert_eq!(pieces.len(), 3 * CHUNK / len);
        let mut places: Vec<_> = pieces.iter().map(|p| (p.chunk(), p.offset())).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), pieces.len());
        assert_eq!(pool.alloc(length(1)), None);
        // In an order in which no two neighbours come back together.
        let (odd, even): (Vec<_>, Vec<_>) = pieces
            .into_iter()
            .partition(|piece| piece.offset() / len % 2 == 1);
        for piece in odd.into_iter().chain(even) {
            pool.free(piece);
        }
    }
}

#[test]
fn whole_chunks_stay_whole() {
    let mut pool = pool(4);
    let small: Vec<_> = (0..8)
        .map(|_| pool.alloc(length(PIECE_MIN)).unwrap())
        .collect();
    assert!(small.iter().all(|piece| piece.chunk() == small[0].chunk()));
    assert_eq!(all(&mut pool, CHUNK).len(), 3);
    // And within a chunk large pieces: the eight lie together.
    assert_eq!(all(&mut pool, CHUNK / 2).len(), 1);
    assert_eq!(all(&mut pool, CHUNK / 4).len(), 1);
    let rest = CHUNK / 4 - 8 * PIECE_MIN;
    let sizes = (13..=17).rev().map(|shift| 1 << shift);
    let had: usize = sizes.map(|len| all(&mut pool, len).len() * len).sum();
    assert_eq!(had, rest);
}

/// A chunk that was full has forgotten its neighbours of before.
#[test]
fn full_chunks_leave_the_others_alone() {
    const HALF: usize = CHUNK / 2;
    let mut pool = pool(3);
    let mut halves: [Vec<Piece>; 3] = Default::default();
    for half in all(&mut pool, HALF) {
        halves[half.chunk()].push(half);
    }
    pool.free(halves[0].pop().unwrap());
    pool.free(halves[1].pop().unwrap());
    // The one before chunk 0, which is full then.
    let full = pool.alloc(length(HALF)).unwrap();
    assert_eq!(full.chunk(), 1);
    pool.free(halves[2].pop().unwrap());
    pool.free(full);
    // Chunk 0 is behind the two others.
    pool.free(halves[0].pop().unwrap());
    assert_eq!(all(&mut pool, HALF).len(), 4);
}

/// A reserved chunk gets its pieces back, and gives none away but to whom it is reserved for.
#[test]
fn a_reserved_chunk_comes_together() {
    let mut pool = pool(2);
    let small = pool.alloc(length(1)).unwrap();
    let large = pool.alloc(length(CHUNK)).unwrap();
    pool.reserve();
    assert_eq!(pool.alloc(length(1)), None);
    assert_eq!(pool.alloc_reserved(length(CHUNK)), None);
    let half = pool.alloc_reserved(length(CHUNK / 2)).unwrap();
    assert_eq!(half.chunk(), small.chunk());
    pool.free(half);
    pool.free(small);
    // It is not one to be removed now.
    assert_eq!((pool.count(), pool.whole()), (2, 0));
    assert!(pool.remove().is_none());
    let whole = pool.alloc_reserved(length(CHUNK)).unwrap();
    pool.free(whole);
    pool.release();
    assert_eq!(pool.whole(), 1);
    pool.free(large);
    assert_eq!(all(&mut pool, CHUNK).len(), 2);
}

/// The reservation moves to a chunk that has a larger free piece, and only then.
#[test]
fn the_better_chunk_is_reserved() {
    let mut pool = pool(2);
    let mut pages: [Vec<Piece>; 2] = Default::default();
    for page in all(&mut pool, PIECE_MIN) {
        pages[page.chunk()].push(page);
    }
    // Nothing can be reserved where nothing is free.
    pool.reserve();
    assert_eq!(pool.alloc_reserved(length(1)), None);
    pool.free(pages[0].pop().unwrap());
    pool.reserve();
    assert_eq!(pool.alloc(length(1)), None);
    pool.free(pages[1].pop().unwrap());
    pool.reserve();
    // That of chunk 0 is as good.
    let page = pool.alloc(length(1)).unwrap();
    assert_eq!(page.chunk(), 1);
    pool.free(page);
    // All of chunk 1, and so two that lie together.
    pages[1].drain(..).for_each(|page| pool.free(page));
    pool.reserve();
    assert_eq!(all(&mut pool, PIECE_MIN).len(), 1);
    assert!(pool.alloc_reserved(length(CHUNK)).is_some());
}

/// Places for chunks in the model.
const PLACES: usize = 4;

/// A chunk that can be told from the others.
struct Numbered(usize, Chunk);

impl AsMut<Chunk> for Numbered {
    fn as_mut(&mut self) -> &mut Chunk {
        &mut self.1
    }
}

proptest! {
    /// Pieces never overlap, a piece is to be had if and only if a free one is large enough, and
    /// what comes back is whole again, while chunks come and go.
    #[test]
    fn as_a_model(
        chunks in 1usize..4,
        moves in prop::collection::vec((0u8..10, 1usize..=CHUNK, any::<Index>()), 0..300),
    ) {
        let mut pool = Pool::new((0..PLACES).map(|_| None).collect::<Vec<_>>());
        // The chunks by place: a number, and the pages in use.
        let mut used: [Option<(usize, Vec<bool>)>; PLACES] = Default::default();
        let mut numbers = 0..;
        let mut add = |pool: &mut Pool<Vec<Option<Numbered>>>, used: &mut [Option<_>]| {
            let number = numbers.next().unwrap();
            let place = used.iter_mut().find(|place| place.is_none());
            let added = pool.add(Numbered(number, Chunk::new())).is_ok();
            assert_eq!(added, place.is_some());
            if let Some(place) = place {
                *place = Some((number, vec![false; CHUNK / PIECE_MIN]));
            }
        };
        for _ in 0..chunks {
            add(&mut pool, &mut used);
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let mut reserves = false;
        let span = |piece: &Piece| {
            let first = piece.offset() / PIECE_MIN;
            first..first + piece.bytes() / PIECE_MIN
        };
        for (what, len, which) in moves {
            if what < 3 {
                // Small ones mostly.
                let len = if what > 0 { (len >> 6).max(1) } else { len };
                let size = len.next_power_of_two().max(PIECE_MIN);
                let is_free = used.iter().flatten().any(|(_, pages)| {
                    pages
                        .chunks(size / PIECE_MIN)
                        .any(|piece| piece.iter().all(|used| !used))
                });
                let open = pool.alloc(length(len));
                let piece = open.or_else(|| pool.alloc_reserved(length(len)));
                prop_assert_eq!(piece.is_some(), is_free);
                if let Some(piece) = piece {
                    prop_assert_eq!(piece.bytes(), size);
                    prop_assert_eq!(piece.offset() % size, 0);
                    prop_assert!(piece.offset() + size <= CHUNK);
                    let (number, pages) = used[piece.chunk()].as_mut().unwrap();
                    prop_assert_eq!(pool.chunk_of(&piece).unwrap().0, *number);
                    for page in &mut pages[span(&piece)] {
                        prop_assert!(!std::mem::replace(page, true));
                    }
                    pieces.push(piece);
                }
            } else if what < 5 && !pieces.is_empty() {
                let piece = pieces.swap_remove(which.index(pieces.len()));
                used[piece.chunk()].as_mut().unwrap().1[span(&piece)].fill(false);
                pool.free(piece);
            } else if what == 5 {
                add(&mut pool, &mut used);
            } else if what == 6 {
                let whole = |place: &Option<(_, Vec<bool>)>| {
                    place.as_ref().is_some_and(|(_, pages)| pages.iter().all(|used| !used))
                };
                let removed = pool.remove().map(|chunk| chunk.0);
                let least = usize::from(reserves);
                let count = used.iter().filter(|place| whole(place)).count();
                prop_assert!(removed.is_some() || count <= least);
                prop_assert!(removed.is_none() || count > 0);
                if let Some(number) = removed {
                    let is_it = |place: &&mut Option<(usize, _)>| {
                        place.as_ref().is_some_and(|place| place.0 == number)
                    };
                    let place = used.iter_mut().find(is_it).unwrap();
                    prop_assert!(whole(place));
                    *place = None;
                }
            }
            if what == 7 || what == 8 {
                pool.reserve();
                reserves = true;
            } else if what == 9 {
                pool.release();
                reserves = false;
            }
            let whole = used.iter().flatten().filter(|(_, pages)| pages.iter().all(|used| !used));
            let whole = whole.count();
            let least = whole - usize::from(reserves).min(whole);
            prop_assert!((least..=whole).contains(&pool.whole()));
            prop_assert_eq!(pool.count(), used.iter().flatten().count());
        }
        for piece in pieces {
            pool.free(piece);
        }
        pool.release();
        let whole = std::iter::from_fn(|| pool.alloc(length(CHUNK))).count();
        prop_assert_eq!(whole, used.iter().flatten().count());
    }
}
