// SPDX-License-Identifier: GPL-2.0

//! A tag of a client's I/O queue: which command it names now, and how that was answered.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

use crate::proto::{Delivery, Malformed, Response, Status};

/// Nothing is in flight.
const FREE: u64 = 0;
/// A command is in flight.
const POSTED: u64 = 1;
/// It was answered; the status is above.
const ANSWERED: u64 = 2;
const PHASE: u64 = 0xffff;
const STATUS_SHIFT: u32 = 16;
const GENERATION_SHIFT: u32 = 32;

/// A tag, free or of a command in flight, in one word: whoever changes it replaces the word as a whole,
/// if it is still the one that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    /// A free tag; `generation` is any number, best a random one.
    pub const fn new(generation: u32) -> Self {
        Self::pack(generation, 0, FREE)
    }

    /// The tag of the word that [`Tag::word`] gave.
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The tag as a word.
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

    /// A command is about to be posted: the tag then, and the generation for the command, which none of
    /// this tag had for long. What was before it is forgotten.
    #[must_use]
    pub const fn post(self) -> (Self, u32) {
        let generation = self.generation().wrapping_add(1);
        (Self::pack(generation, 0, POSTED), generation)
    }

    /// A response to this tag came: the tag then.
    ///
    /// An error means that the server does not keep to the protocol: the connection has to go.
    pub fn respond(self, response: &Response) -> Result<Self, Malformed> {
        self.answer(self.generation() == response.generation, response.status)
    }

    /// The data of a read with this tag came: the tag then. As [`Self::respond`].
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

    /// The command is over: the tag then, and how it was answered, if it was.
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
