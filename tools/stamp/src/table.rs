// SPDX-License-Identifier: GPL-2.0
//! The possible contents of each block.
//!
//! One write at a time is under way to a block, so its generations follow one another. A write that
//! failed may have been done, or not, and that is settled before any later I/O: once a read that
//! began after the failure has returned an older generation, the failed one must never appear.

use std::fmt;

use crate::block::{Found, Stamp};

/// Why a block is not what it may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wrong {
    /// Older than a write that was complete when the read began.
    Lost,
    /// Older than what a read had returned before this one began.
    Reverted,
    /// A write that failed, and that a read since did not find, was done after all.
    Ghost,
    /// Another block's, or of a write that nobody sent.
    Alien,
    /// No block as one write left it, and nobody was writing it: disks promise no more than that.
    Torn,
}

impl Wrong {
    /// Each with its name.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Lost, "lost"),
        (Self::Reverted, "reverted"),
        (Self::Ghost, "ghost"),
        (Self::Alien, "alien"),
        (Self::Torn, "torn"),
    ];
}

/// The state of a block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Entry {
    /// Generation of the newest write that was sent.
    sent: u64,
    /// That of the newest that was complete.
    complete: u64,
    /// The newest that a read returned.
    seen: u64,
    /// Those above `floor()` and up to this one were not done.
    dead: u64,
    /// The newest write is under way.
    writing: bool,
}

impl Entry {
    /// Nothing older may be read.
    fn floor(&self) -> u64 {
        self.complete.max(self.seen)
    }
}

/// The state of a block when a read began.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    entry: Entry,
}

/// A block that is not what it may be.
#[derive(Clone, Copy, Debug)]
pub struct Violation {
    /// The block's index.
    pub block: u64,
    /// In which way.
    pub wrong: Wrong,
    found: Found,
    before: Entry,
    sent: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            block,
            wrong,
            found,
            before,
            sent,
        } = self;
        write!(
            f,
            "block {block}: {wrong:?}: read {found:?}; when the read began: complete {}, seen {}, not done up to {}, \
             sent {}; when it ended: sent {sent}",
            before.complete, before.seen, before.dead, before.sent
        )
    }
}

/// All blocks of a disk.
#[derive(Debug, Eq, PartialEq)]
pub struct Table {
    run: u64,
    entries: Vec<Entry>,
}

impl Table {
    /// A disk of that many blocks, of which a run has written none. `run` tells its writes from
    /// others'.
    pub fn new(run: u64, blocks: usize) -> Self {
        Self {
            run,
            entries: vec![Entry::default(); blocks],
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.entries.len()
    }

    /// Begins a write of some blocks and gives their stamps; or does not, if one of them is being
    /// written.
    pub fn begin_write(
        &mut self,
        first: usize,
        count: usize,
    ) -> Option<impl Iterator<Item = Stamp> + '_> {
        let run = self.run;
        let entries = self.entries.get_mut(first..first.checked_add(count)?)?;
        if entries.iter().any(|entry| entry.writing) {
            return None;
        }
        Some(
            entries
                .iter_mut()
                .zip(first as u64..)
                .map(move |(entry, block)| {
                    entry.sent += 1;
                    entry.writing = true;
                    Stamp {
                        block,
                        generation: entry.sent,
                        run,
                    }
                }),
        )
    }

    /// The write is complete, or it failed and nobody knows whether it was done.
    pub fn end_write(&mut self, first: usize, count: usize, complete: bool) {
        for entry in &mut self.entries[first..first + count] {
            entry.writing = false;
            if complete {
                entry.complete = entry.sent;
            }
        }
    }

    /// To be asked for each block when a read begins.
    pub fn begin_read(&self, block: usize) -> Before {
        Before {
            entry: self.entries[block],
        }
    }

    /// Checks the content that a read returned.
    ///
    /// # Errors
    ///
    /// It must not be there.
    pub fn end_read(
        &mut self,
        block: usize,
        before: Before,
        found: Found,
    ) -> Result<(), Violation> {
        let (run, entry, before) = (self.run, &mut self.entries[block], before.entry);
        let sent = entry.sent;
        let wrong = |wrong| {
            Err(Violation {
                block: block as u64,
                wrong,
                found,
                before,
                sent,
            })
        };
        let generation = match found {
            Found::Stamp(stamp) if stamp.block != block as u64 => return wrong(Wrong::Alien),
            Found::Stamp(stamp) if stamp.run == run => stamp.generation,
            // What was there before the run.
            _ if before.floor() == 0 && before.sent == 0 && entry.sent == 0 => 0,
            Found::Stamp(_) => return wrong(Wrong::Alien),
            Found::Torn if before.writing || sent > before.sent => return Ok(()),
            Found::Torn => return wrong(Wrong::Torn),
            Found::Zeroes => 0,
        };
        if generation < before.complete {
            return wrong(Wrong::Lost);
        }
        if generation < before.seen {
            return wrong(Wrong::Reverted);
        }
        if generation > before.floor() && generation <= before.dead {
            return wrong(Wrong::Ghost);
        }
        if generation > sent {
            return wrong(Wrong::Alien);
        }
        entry.seen = entry.seen.max(generation);
        // Writes that had ended when the read began.
        let ended = before.sent - u64::from(before.writing);
        entry.dead = entry.dead.max(ended);
        Ok(())
    }

    /// All that must be known to go on later; nothing is under way.
    pub fn save(&self) -> Vec<u8> {
        let words = self
            .entries
            .iter()
            .flat_map(|entry| [entry.sent, entry.complete, entry.seen, entry.dead]);
        std::iter::once(self.run)
            .chain(words)
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// Restores the state from the output of [`Self::save`].
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let run = words.next()?;
        let mut entries = Vec::new();
        while let Some(sent) = words.next() {
            let (complete, seen, dead) = (words.next()?, words.next()?, words.next()?);
            entries.push(Entry {
                sent,
                complete,
                seen,
                dead,
                writing: false,
            });
        }
        (bytes.len() % 8 == 0).then_some(Self { run, entries })
    }
}
