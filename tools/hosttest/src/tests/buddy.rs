// SPDX-License-Identifier: GPL-2.0

//! Pieces of chunks.

use crate::buddy::{Chunk, Piece, Pool, CHUNK, PIECE_MIN};
use proptest::prelude::*;
use proptest::sample::Index;

fn pool(chunks: usize) -> Pool<Vec<Chunk>> {
    Pool::new(vec![Chunk::new(); chunks])
}

/// As many pieces of `len` bytes as there are.
fn all(pool: &mut Pool<Vec<Chunk>>, len: usize) -> Vec<Piece> {
    std::iter::from_fn(|| pool.alloc(len)).collect()
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
        let piece = pool.alloc(len).unwrap();
        assert_eq!(
            (piece.chunk(), piece.offset(), piece.bytes()),
            (0, 0, rounded)
        );
        pool.free(piece);
    }
    for len in [0, CHUNK + 1, usize::MAX] {
        assert_eq!(pool.alloc(len), None);
    }
    assert_eq!((PIECE_MIN, CHUNK), (4096, 2 << 20));
}

#[test]
fn empty() {
    assert_eq!(pool(0).alloc(1), None);
}

#[test]
fn every_byte_can_be_had_in_every_size() {
    let mut pool = pool(3);
    for shift in 12..=21 {
        let len = 1 << shift;
        let pieces = all(&mut pool, len);
        assert_eq!(pieces.len(), 3 * CHUNK / len);
        let mut places: Vec<_> = pieces.iter().map(|p| (p.chunk(), p.offset())).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), pieces.len());
        assert_eq!(pool.alloc(1), None);
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
    let small: Vec<_> = (0..8).map(|_| pool.alloc(PIECE_MIN).unwrap()).collect();
    assert!(small.iter().all(|piece| piece.chunk() == small[0].chunk()));
    assert_eq!(all(&mut pool, CHUNK).len(), 3);
    // And within a chunk large pieces: the eight lie together.
    assert_eq!(all(&mut pool, CHUNK / 2).len(), 1);
    assert_eq!(all(&mut pool, CHUNK / 4).len(), 1);
    let rest = CHUNK / 4 - 8 * PIECE_MIN;
    let sizes = (13..=18).rev().map(|shift| 1 << shift);
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
    let full = pool.alloc(HALF).unwrap();
    assert_eq!(full.chunk(), 1);
    pool.free(halves[2].pop().unwrap());
    pool.free(full);
    // Chunk 0 is behind the two others.
    pool.free(halves[0].pop().unwrap());
    assert_eq!(all(&mut pool, HALF).len(), 4);
}

proptest! {
    /// Pieces never overlap, a piece is to be had if and only if a free one is large enough, and what
    /// comes back is whole again.
    #[test]
    fn as_a_model(
        chunks in 1usize..4,
        moves in prop::collection::vec((0u8..5, 1usize..=CHUNK, any::<Index>()), 0..300),
    ) {
        let mut pool = pool(chunks);
        let mut used = vec![vec![false; CHUNK / PIECE_MIN]; chunks];
        let mut pieces: Vec<Piece> = Vec::new();
        let span = |piece: &Piece| {
            let first = piece.offset() / PIECE_MIN;
            first..first + piece.bytes() / PIECE_MIN
        };
        for (what, len, which) in moves {
            if what < 3 {
                // Small ones mostly.
                let len = if what > 0 { (len >> 6).max(1) } else { len };
                let size = len.next_power_of_two().max(PIECE_MIN);
                let is_free = used.iter().any(|chunk| {
                    chunk
                        .chunks(size / PIECE_MIN)
                        .any(|piece| piece.iter().all(|used| !used))
                });
                let piece = pool.alloc(len);
                prop_assert_eq!(piece.is_some(), is_free);
                if let Some(piece) = piece {
                    prop_assert_eq!(piece.bytes(), size);
                    prop_assert_eq!(piece.offset() % size, 0);
                    prop_assert!(piece.offset() + size <= CHUNK);
                    for page in &mut used[piece.chunk()][span(&piece)] {
                        prop_assert!(!std::mem::replace(page, true));
                    }
                    pieces.push(piece);
                }
            } else if !pieces.is_empty() {
                let piece = pieces.swap_remove(which.index(pieces.len()));
                used[piece.chunk()][span(&piece)].fill(false);
                pool.free(piece);
            }
        }
        for piece in pieces {
            pool.free(piece);
        }
        prop_assert_eq!(all(&mut pool, CHUNK).len(), chunks);
    }
}
