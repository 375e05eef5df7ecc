// SPDX-License-Identifier: GPL-2.0

//! Fences: a client asks on one path that the server ends another one.

#![forbid(unsafe_code)]

use super::login::path;
use super::message::{header, write, NoRoom};
use super::refusal::Malformed;
use super::wire;
use core::mem::size_of;

/// A client asks that no request of a path, up to an epoch, reaches the export any more. The server
/// answers by an [`Event::Fenced`](super::Event::Fenced), when this is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Index of the path; less than [`PATHS_MAX`](wire::PATHS_MAX).
    pub path: u8,
    /// The last epoch of the path that ends.
    pub epoch: u64,
}

impl Fence {
    /// Writes the message into `buf` and returns its length.
    pub fn encode(&self, sequence: u32, buf: &mut [u8]) -> Result<usize, NoRoom> {
        self.encode_as(wire::FENCE, sequence, buf)
    }

    pub(super) fn encode_as(
        &self,
        kind: u16,
        sequence: u32,
        buf: &mut [u8],
    ) -> Result<usize, NoRoom> {
        let wire = wire::Fence {
            header: header(kind, sequence, size_of::<wire::Fence>()),
            epoch: self.epoch.into(),
            path: self.path,
            reserved: [0; 7],
        };
        write(&wire, buf)
    }

    pub(super) fn from_wire(wire: &wire::Fence) -> Result<Self, Malformed> {
        Ok(Self {
            path: path(wire.path)?,
            epoch: wire.epoch.get(),
        })
    }
}
