// SPDX-License-Identifier: GPL-2.0

//! Atomic writes: writes of which after a failure either all or nothing is on the device.

#![forbid(unsafe_code)]

use super::command::Span;
use super::export::BlockSize;

/// The limits of atomic writes, in bytes. All are 0 if there are none.
///
/// Those of a [`LoginReply`](super::LoginReply) that was read keep to what is said of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicLimits {
    /// Most in one atomic write: a multiple of [`Self::unit_min`], at most
    /// [`BlockLimits::max_io`](super::BlockLimits::max_io).
    pub max: u32,
    /// Unit of atomic writes: a power of two, not less than the logical block size. Each begins and
    /// ends at a multiple of it.
    pub unit_min: u32,
    /// Largest atomic write that a user may ask for: a power of two, from [`Self::unit_min`] to
    /// [`Self::max`].
    pub unit_max: u32,
    /// No atomic write crosses a multiple of this, a power of two that is not less than
    /// [`Self::max`]; 0 if there is no such limit.
    pub boundary: u32,
}

impl AtomicLimits {
    /// There are no atomic writes.
    pub const NONE: Self = Self {
        max: 0,
        unit_min: 0,
        unit_max: 0,
        boundary: 0,
    };

    /// Returns true if there are atomic writes.
    pub const fn is_some(&self) -> bool {
        self.max != 0
    }

    /// Returns the largest limits that promise no more than these, keep to what is said of the
    /// fields, and allow at most `max_io` bytes in one write; [`Self::NONE`] if there are none
    /// such.
    ///
    /// What is atomic up to a size is atomic up to any smaller size.
    pub fn within(self, block: BlockSize, max_io: u32) -> Self {
        let Self {
            unit_min, boundary, ..
        } = self;
        if !unit_min.is_power_of_two()
            || unit_min < block.get()
            || !self.unit_max.is_power_of_two()
            || !(boundary == 0 || boundary.is_power_of_two())
        {
            return Self::NONE;
        }
        let allowed = match boundary {
            0 => max_io,
            boundary => max_io.min(boundary),
        };
        // A multiple of a power of two.
        let max = self.max.min(allowed) & unit_min.wrapping_neg();
        let unit_max = match max.checked_ilog2() {
            Some(log) => self.unit_max.min(1 << log),
            None => 0,
        };
        if unit_max < unit_min {
            return Self::NONE;
        }
        Self {
            max,
            unit_min,
            unit_max,
            boundary,
        }
    }

    /// Returns true if the range can be written at once. It is within the address space, not empty,
    /// and not longer than [`Self::max`].
    pub fn allow(&self, span: Span) -> bool {
        let in_unit = u64::from(self.unit_min.wrapping_sub(1));
        let (offset, len) = (span.offset, u64::from(span.len));
        if !self.is_some() || (offset | len) & in_unit != 0 {
            return false;
        }
        match u64::from(self.boundary) {
            0 => true,
            // A power of two.
            boundary => (offset & (boundary - 1)) + len <= boundary,
        }
    }
}
