// SPDX-License-Identifier: GPL-2.0

//! A tag of a client's I/O queue: what is still to come before its request is complete.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

use crate::proto::{Malformed, Response, Status};

/// What is to be done about a request after something happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Nothing: something else is to come.
    Wait,
    /// Post a LOCAL_INV of its memory's key, whose end is [`Tag::invalidated`].
    Invalidate,
    /// Complete it: the tag is free.
    Complete(Status),
}

/// The key by which the server reaches the memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// There is none, or it is invalid.
    Invalid,
    Valid,
    /// A LOCAL_INV is under way.
    Invalidating,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flight {
    sent: bool,
    key: Key,
    /// That of the response, once there is one.
    status: Option<Status>,
}

/// A tag, free or of a request in flight.
///
/// A request is complete only when all of these have come: its response, which says how it ended; the
/// end of its own SEND, up to which the HCA may read its memory to send it again; and the end of its
/// memory's key, up to which the server may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    generation: u32,
    flight: Option<Flight>,
}

impl Tag {
    /// A free tag; `generation` is any number, best a random one.
    pub const fn new(generation: u32) -> Self {
        Self {
            generation,
            flight: None,
        }
    }

    /// Whether there is no request.
    pub const fn is_free(&self) -> bool {
        self.flight.is_none()
    }

    /// A command is about to be posted, with a key for the server if `key`. Returns the generation for
    /// it, which no request of this tag had for long; `None` if the tag is not free.
    #[must_use]
    pub fn post(&mut self, key: bool) -> Option<u32> {
        if self.flight.is_some() {
            return None;
        }
        self.generation = self.generation.wrapping_add(1);
        self.flight = Some(Flight {
            sent: false,
            key: if key { Key::Valid } else { Key::Invalid },
            status: None,
        });
        Some(self.generation)
    }

    /// A response to this tag came, and with it the invalidation of the request's key if `invalidated`.
    ///
    /// An error means that the server does not keep to the protocol: the connection has to go.
    pub fn respond(&mut self, response: &Response, invalidated: bool) -> Result<Next, Malformed> {
        let flight = match &mut self.flight {
            Some(flight) if response.generation == self.generation => flight,
            _ => return Err(Malformed("a response to a command that is not in flight")),
        };
        if flight.status.is_some() {
            return Err(Malformed("a second response to a command"));
        }
        if invalidated && flight.key != Key::Valid {
            return Err(Malformed("a response invalidates what is not valid"));
        }
        flight.status = Some(response.status);
        match flight.key {
            Key::Valid if !invalidated => {
                flight.key = Key::Invalidating;
                return Ok(Next::Invalidate);
            }
            Key::Valid => flight.key = Key::Invalid,
            _ => {}
        }
        Ok(self.next())
    }

    /// The SEND of the command is over.
    pub fn sent(&mut self) -> Next {
        if let Some(flight) = &mut self.flight {
            flight.sent = true;
        }
        self.next()
    }

    /// The LOCAL_INV that [`Next::Invalidate`] asked for is over.
    pub fn invalidated(&mut self) -> Next {
        if let Some(flight) = &mut self.flight {
            flight.key = Key::Invalid;
        }
        self.next()
    }

    /// Gives the request up: it was not posted after all, or its connection is gone, with nothing more
    /// to come from either. Returns whether there was one.
    pub fn cancel(&mut self) -> bool {
        self.flight.take().is_some()
    }

    fn next(&mut self) -> Next {
        match self.flight {
            Some(Flight {
                sent: true,
                key: Key::Invalid,
                status: Some(status),
            }) => {
                self.flight = None;
                Next::Complete(status)
            }
            _ => Next::Wait,
        }
    }
}
