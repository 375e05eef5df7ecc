// SPDX-License-Identifier: GPL-2.0

//! A tag of an I/O connection: which command it names, and how the server answered that command.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

use crate::proto::{Delivery, Malformed, Response, Status};

/// The phase of a tag without a command in flight.
const FREE: u64 = 0;
/// The phase of a tag whose command is in flight.
const POSTED: u64 = 1;
/// The phase of a tag whose command was answered. The status is in the bits above.
const ANSWERED: u64 = 2;
const PHASE: u64 = 0xffff;
const STATUS_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 32;

/// A tag in one word: its phase, the status of the answer, and the generation of its command.
/// Sending and both completions change it by a compare-and-exchange of the whole word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// Makes a free tag. `generation` may be any number, best a random one.
    pub const fn new(generation: u32) -> Self {
        Self::pack(generation, 0, FREE)
    }

    /// Makes a tag of the word that [`Tag::word`] returned.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns the tag as a word.
    pub const fn word(self) -> u64 {
        self.0
    }

    const fn pack(generation: u32, status: u16, phase: u64) -> Self {
        Self(((generation as u64) << GENERATION_SHIFT) | ((status as u64) << STATUS_SHIFT) | phase)
    }

    const fn generation(self) -> u32 {
        // CAST: the upper half.
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// Returns the tag after a command has been posted, and the generation for the command, which
    /// is one more than that of the last command with this tag.
    #[must_use]
    pub const fn post(self) -> (Self, u32) {
        let generation = self.generation().wrapping_add(1);
        (Self::pack(generation, 0, POSTED), generation)
    }

    /// Returns the tag after `response` has come.
    ///
    /// Fails if the server broke the protocol; then the connection has to go.
    pub fn respond(self, response: &Response) -> Result<Self, Malformed> {
        self.answer(self.generation() == response.generation, response.status)
    }

    /// Returns the tag after the data of a read have come. Fails as [`Self::respond`].
    pub fn deliver(self, delivery: &Delivery) -> Result<Self, Malformed> {
        let generation = self.generation() & Delivery::GENERATION;
        self.answer(generation == delivery.generation, Status::Ok)
    }

    fn answer(self, matches: bool, status: Status) -> Result<Self, Malformed> {
        match self.0 & PHASE {
            _ if !matches => Err(Malformed("a response to a command that is not in flight")),
            POSTED => Ok(Self::pack(self.generation(), status.code(), ANSWERED)),
            ANSWERED => Err(Malformed("a second response to a command")),
            _ => Err(Malformed("a response to a command that is not in flight")),
        }
    }

    /// Returns the tag after its command has ended, and the status of the answer, if there was one.
    #[must_use]
    pub fn finish(self) -> (Self, Option<Status>) {
        // CAST: bits 16 to 31.
        let code = (self.0 >> STATUS_SHIFT) as u16;
        let status = match self.0 & PHASE {
            ANSWERED => Status::try_from(code).ok(),
            _ => None,
        };
        (Self::pack(self.generation(), 0, FREE), status)
    }
}
