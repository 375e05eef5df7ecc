// SPDX-License-Identifier: GPL-2.0

//! Latency histograms with buckets that double in width.
//!
//! Nothing here names a kernel type: the same source is compiled into the module and into the host
//! tests.

#![forbid(unsafe_code)]

use core::fmt;

/// Number of buckets of a histogram.
pub const BUCKETS: usize = 32;
/// The first bucket counts the I/Os that took less than 2 to the power of this, in ns.
pub const FIRST_SHIFT: u32 = 10;

/// Returns the bucket of an I/O that took `ns`. Bucket 0 has those that took less than 1024 ns,
/// bucket `i` those that took at least `2^(9 + i)` and less than `2^(10 + i)` ns, and the last one
/// also all that took longer.
#[inline]
pub const fn bucket(ns: u64) -> usize {
    let bits = u64::BITS - (ns >> FIRST_SHIFT).leading_zeros();
    // CAST: At most 64.
    let bucket = bits as usize;
    if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    }
}

/// A copy of the counts of a histogram, or the sum of several histograms. It is displayed as the
/// counts in order, with one space between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram([u64; BUCKETS]);

impl Histogram {
    /// Makes a histogram that has counted nothing.
    pub const fn new() -> Self {
        Self([0; BUCKETS])
    }

    /// Adds the counts of another histogram, the first bucket first.
    pub fn add(&mut self, counts: impl Iterator<Item = u64>) {
        for (sum, count) in self.0.iter_mut().zip(counts) {
            *sum = sum.wrapping_add(count);
        }
    }

    /// Returns the number of I/Os in all buckets.
    pub fn total(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::wrapping_add)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, count) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{count}")?;
        }
        Ok(())
    }
}
