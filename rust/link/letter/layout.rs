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
/// Headers are no longer, and several share a piece where they fit: with large pages, those of
/// bodies have room for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    piece: usize,
    header: usize,
    headers: usize,
    pieces: usize,
    pages: usize,
}

impl Layout {
    /// Returns how `count` letters lie in pages of `page` bytes, whose bodies have `body` bytes,
    /// and the headers before them `header`. Returns `None` if a page is shorter than one of them.
    pub fn new(count: u16, (header, body): (usize, usize), page: usize) -> Option<Self> {
        let header = apart(header.max(1))?;
        let piece = apart(body.max(header))?;
        let headers = ceil(count.into(), piece.checked_div(header)?)?;
        let pieces = headers.checked_add(count.into())?;
        Some(Self {
            piece,
            header,
            headers,
            pieces,
            pages: ceil(pieces, page.checked_div(piece)?)?,
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
        self.pieces
    }

    /// Returns how many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }
}

/// Rounds up to a multiple of [`APART`], which is a power of two.
fn apart(len: usize) -> Option<usize> {
    Some(len.checked_add(APART - 1)? & !(APART - 1))
}

/// Returns how many groups of `each` make `count`. Returns `None` if `each` is 0.
fn ceil(count: usize, each: usize) -> Option<usize> {
    count.checked_add(each.checked_sub(1)?)?.checked_div(each)
}
