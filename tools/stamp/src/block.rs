// SPDX-License-Identifier: GPL-2.0
//! The content of a block: its number, the number of the write, the writer, and a checksum.

/// Bytes of a block. Nothing is checked for less.
pub const SIZE: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"farstamp");
const CHECKSUM: usize = 4;
const HEADER: usize = 5;

/// The identity of a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stamp {
    /// The block's index.
    pub block: u64,
    /// Which write of this block it is, from 1.
    pub generation: u64,
    /// The run that wrote it.
    pub run: u64,
}

/// The result of checking a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    /// As one write left it.
    Stamp(Stamp),
    /// Nothing but zeroes.
    Zeroes,
    /// Neither: parts of two writes, or no block of ours.
    Torn,
}

/// The next number of a sequence that looks random; never twice the same before all were.
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A word of a block of [`SIZE`] bytes.
fn word(block: &[u8], index: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&block[index * 8..][..8]);
    u64::from_le_bytes(bytes)
}

fn set_word(block: &mut [u8], index: usize, word: u64) {
    block[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
}

fn checksum(block: &[u8]) -> u64 {
    let mut sum = 0u64;
    for index in 0..SIZE / 8 {
        if index != CHECKSUM {
            sum = (sum.rotate_left(5) ^ word(block, index)).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
    sum
}

/// Fills a block of [`SIZE`] bytes. All of it depends on the stamp.
pub fn fill(block: &mut [u8], stamp: Stamp) {
    let mut state = stamp.run ^ stamp.block.rotate_left(40) ^ stamp.generation.rotate_left(20);
    set_word(block, 0, MAGIC);
    set_word(block, 1, stamp.block);
    set_word(block, 2, stamp.generation);
    set_word(block, 3, stamp.run);
    for index in HEADER..SIZE / 8 {
        set_word(block, index, random(&mut state));
    }
    set_word(block, CHECKSUM, checksum(block));
}

/// Looks at a block of [`SIZE`] bytes.
pub fn look(block: &[u8]) -> Found {
    if word(block, 0) == MAGIC && word(block, CHECKSUM) == checksum(block) {
        Found::Stamp(Stamp {
            block: word(block, 1),
            generation: word(block, 2),
            run: word(block, 3),
        })
    } else if block.iter().all(|byte| *byte == 0) {
        Found::Zeroes
    } else {
        Found::Torn
    }
}
