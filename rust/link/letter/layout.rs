// SPDX-License-Identifier: GPL-2.0

//! How the letters of a queue pair lie in memory.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests, which know pages of all sizes.

#![forbid(unsafe_code)]

/// What pieces are multiples of that a device writes at the same time, so that they share no cache
/// line.
const APART: usize = 128;

/// How letters lie in pages. These are cut into pieces of one size, of which each body has one.
/// Headers are shorter, and several share a piece: with large pages, those of bodies have room for
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The bytes of a piece.
    piece: usize,
    /// The bytes from one header to the next.
    header: usize,
    bodies: usize,
    /// How many pieces have headers.
    headers: usize,
    /// How many pieces are in a page.
    in_a_page: usize,
}

impl Layout {
    /// Returns how `count` letters lie in pages of `page` bytes, whose bodies have `body` bytes,
    /// and the headers before them `header`. Returns `None` if a page is shorter than one of them.
    pub fn new(count: u16, (header, body): (usize, usize), page: usize) -> Option<Self> {
        let header = header.max(1).checked_next_multiple_of(APART)?;
        let piece = body.max(header).checked_next_multiple_of(APART)?;
        let bodies = usize::from(count);
        Some(Self {
            piece,
            header,
            bodies,
            headers: bodies.div_ceil(piece / header),
            in_a_page: page.checked_div(piece).filter(|&pieces| pieces > 0)?,
        })
    }

    /// Returns the bytes of a piece.
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// Returns the bytes from one header to the next in a piece.
    pub fn header(&self) -> usize {
        self.header
    }

    /// Returns how many pieces have headers.
    pub fn headers(&self) -> usize {
        self.headers
    }

    /// Returns how many pieces there are.
    pub fn pieces(&self) -> usize {
        self.bodies.saturating_add(self.headers)
    }

    /// Returns how many pages there are.
    pub fn pages(&self) -> usize {
        self.pieces().div_ceil(self.in_a_page)
    }
}
