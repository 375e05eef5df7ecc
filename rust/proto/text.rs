// SPDX-License-Identifier: GPL-2.0

//! A short text that travels with a refusal.

#![forbid(unsafe_code)]

use super::refusal::Malformed;
use super::wire::TEXT_SIZE;
use core::fmt;

/// One line of at most [`TEXT_SIZE`] bytes of UTF-8.
///
/// Writing never fails: a text that does not fit is cut at a character boundary. Control characters
/// become `?`, so that a peer cannot forge lines in a log; so do those that change the order in
/// which others are shown, and those that are not seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// Zero beyond `len`.
    bytes: [u8; TEXT_SIZE],
    len: usize,
    /// True after text was cut off. Later writes are then ignored.
    full: bool,
}

impl Text {
    /// Makes an empty text.
    pub const fn new() -> Self {
        Self {
            bytes: [0; TEXT_SIZE],
            len: 0,
            full: false,
        }
    }

    /// Formats `args`, cut to [`TEXT_SIZE`].
    pub fn format(args: fmt::Arguments<'_>) -> Self {
        let mut text = Self::new();
        // If a `Display` fails, the part that it has written is the best text available.
        let _ = fmt::Write::write_fmt(&mut text, args);
        text
    }

    /// Returns the text as a string.
    pub fn as_str(&self) -> &str {
        self.bytes
            .get(..self.len)
            .and_then(|bytes| core::str::from_utf8(bytes).ok())
            .unwrap_or("")
    }

    /// Returns true if there is no text.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Parses the text in the first `len` bytes of `bytes`.
    pub(super) fn from_wire(bytes: &[u8; TEXT_SIZE], len: u16) -> Result<Self, Malformed> {
        let used = bytes
            .get(..usize::from(len))
            .ok_or(Malformed("the text is longer than its field"))?;
        let string = core::str::from_utf8(used).map_err(|_| Malformed("the text is not UTF-8"))?;
        let mut text = Self::new();
        text.push_str(string);
        Ok(text)
    }

    /// Returns the field, with zeroes after the text, and the length of the text.
    pub(super) fn to_wire(self) -> ([u8; TEXT_SIZE], u16) {
        // CAST: `len` is at most `TEXT_SIZE`.
        (self.bytes, self.len as u16)
    }

    fn push_str(&mut self, string: &str) {
        for c in string.chars() {
            let c = if is_plain(c) { c } else { '?' };
            let mut utf8 = [0; 4];
            let utf8 = c.encode_utf8(&mut utf8).bytes();
            let end = self.len + utf8.len();
            match self.bytes.get_mut(self.len..end) {
                Some(room) if !self.full => {
                    for (to, from) in room.iter_mut().zip(utf8) {
                        *to = from;
                    }
                    self.len = end;
                }
                _ => {
                    self.full = true;
                    return;
                }
            }
        }
    }
}

/// Returns true unless a character controls how others are shown (Unicode's categories Cc, Zl and
/// Zp, and of Cf those that change the direction of text or have no width).
fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

impl From<&str> for Text {
    fn from(string: &str) -> Self {
        let mut text = Self::new();
        text.push_str(string);
        text
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, string: &str) -> fmt::Result {
        self.push_str(string);
        Ok(())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
