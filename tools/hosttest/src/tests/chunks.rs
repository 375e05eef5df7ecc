// SPDX-License-Identifier: GPL-2.0

//! Which pages of a chunk are free.

use crate::session::chunks::{Buffer, Chunk, Chunks, PieceLen, CHUNK, PIECE_MIN};
use proptest::prelude::*;

fn length(len: usize) -> PieceLen {
    PieceLen::new(len).unwrap()
}

/// So many chunks, with room for one more.
fn chunks(count: usize) -> Chunks<Vec<Option<Chunk<()>>>> {
    let mut chunks = Chunks::new((0..=count).map(|_| None).collect());
    (0..count).for_each(|_| chunks.add(()).unwrap());
    chunks
}

#[test]
fn sizes() {
    let mut chunk = Chunk::new((), CHUNK);
    for (len, rounded) in [
        (1, PIECE_MIN),
        (PIECE_MIN + 1, 2 * PIECE_MIN),
        (3 * PIECE_MIN, 4 * PIECE_MIN),
        (CHUNK / 2, CHUNK / 2),
        (CHUNK / 2 + 1, CHUNK),
    ] {
        let buffer = chunk.take(length(len)).unwrap();
        assert_eq!((buffer.offset(), buffer.bytes()), (0, rounded));
        assert_eq!(length(len).bytes(), rounded);
        chunk.put(&buffer);
    }
    for len in [0, CHUNK + 1, usize::MAX] {
        assert_eq!(PieceLen::new(len), None);
    }
}

#[test]
fn every_byte_can_be_had_in_every_size() {
    for size in (12..=20).map(|shift| 1 << shift) {
        let mut chunk = Chunk::new((), size);
        for len in (12..=20).map(|shift| 1 << shift) {
            let mut buffers: Vec<_> = std::iter::from_fn(|| chunk.take(length(len))).collect();
            let offsets: Vec<_> = buffers.iter().map(Buffer::offset).collect();
            assert_eq!(
                offsets,
                (0..size)
                    .step_by(len)
                    .filter(|_| len <= size)
                    .collect::<Vec<_>>()
            );
            // In an order in which no two neighbours come back together.
            buffers.sort_by_key(|buffer| (buffer.offset() / len % 2, buffer.offset()));
            buffers.iter().for_each(|buffer| chunk.put(buffer));
        }
    }
}

/// Small buffers lie together, so that the last chunks can go; but not one that is in use or was
/// since the last look.
#[test]
fn idle_chunks_go() {
    let mut chunks = chunks(3);
    assert!(chunks.add(()).is_ok());
    assert!(chunks.add(()).is_err());
    let small: Vec<_> = (0..300)
        .map(|_| chunks.take(length(1), false).unwrap())
        .collect();
    assert!(chunks.remove_idle(false).is_none());
    chunks.start_idle();
    assert_eq!(std::iter::from_fn(|| chunks.remove_idle(false)).count(), 2);
    assert_eq!(chunks.count(), 2);
    small.iter().for_each(|buffer| chunks.put(buffer));
    assert!(chunks.remove_idle(false).is_some());
    assert_eq!(std::iter::from_fn(|| chunks.remove_idle(true)).count(), 1);
    assert_eq!(chunks.free(), 0);
    assert!(chunks.take(length(1), false).is_none());
    chunks.add(()).unwrap();
    assert!(chunks.take(length(CHUNK), false).is_some());
}

/// A chunk takes the first place that is empty, and is found there.
#[test]
fn places_are_used_again() {
    let mut chunks = chunks(3);
    let [a, b, c] = [(); 3].map(|()| chunks.take(length(CHUNK), false).unwrap());
    for (buffer, count) in [(&a, 2), (&b, 1)] {
        chunks.put(buffer);
        assert!(chunks.remove_idle(true).is_some() && chunks.remove_idle(true).is_none());
        assert!(chunks.take(length(1), false).is_none());
        assert_eq!((chunks.count(), chunks.free()), (count, 0));
    }
    chunks.add(()).unwrap();
    let first = chunks.take(length(CHUNK), false).unwrap();
    chunks.put(&c);
    assert!(chunks.remove_idle(true).is_some());
    assert!(chunks.take(length(1), false).is_none());
    for count in 2..=4 {
        chunks.add(()).unwrap();
        assert_eq!(chunks.count(), count);
        let _ = chunks.take(length(CHUNK), false).unwrap();
    }
    assert!(chunks.add(()).is_err());
    chunks.put(&first);
    assert!(chunks.take(length(CHUNK), false).is_some());
}

/// The chunk that is left alone is one that has most.
#[test]
fn a_chunk_is_left_alone() {
    let mut chunks = chunks(2);
    let [a, b] = [(); 2].map(|()| chunks.take(length(CHUNK), false).unwrap());
    chunks.put(&b);
    let quarters: Vec<_> = (0..4)
        .map(|_| chunks.take(length(CHUNK / 4), false).unwrap())
        .collect();
    chunks.put(&quarters[2]);
    assert!(chunks.take(length(1), true).is_none());
    chunks.put(&a);
    assert!(chunks.take(length(CHUNK), true).is_none());
    assert!(chunks.take(length(1), true).is_some());
    assert!(chunks.take(length(CHUNK), false).is_some());
}

proptest! {
    /// Buffers never overlap, and come back to one whole.
    #[test]
    fn no_page_is_used_twice(
        steps in proptest::collection::vec((any::<bool>(), 1..CHUNK, any::<usize>()), 1..300),
    ) {
        let mut chunk = Chunk::new((), CHUNK);
        let mut held: Vec<Buffer> = Vec::new();
        for (take, len, at) in steps {
            // Small ones mostly.
            let len = length((len >> (at % 9)).max(1));
            match take || held.is_empty() {
                true => {
                    let free = |first: usize| {
                        held.iter().all(|other| {
                            let end = other.offset() + other.bytes();
                            end <= first || first + len.bytes() <= other.offset()
                        })
                    };
                    let wanted = (0..CHUNK).step_by(len.bytes()).find(|first| free(*first));
                    let buffer = chunk.take(len);
                    prop_assert_eq!(buffer.as_ref().map(Buffer::offset), wanted);
                    held.extend(buffer);
                }
                false => chunk.put(&held.swap_remove(at % held.len())),
            }
        }
        held.iter().for_each(|buffer| chunk.put(buffer));
        prop_assert!(chunk.take(length(CHUNK)).is_some());
    }
}
