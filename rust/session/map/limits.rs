// SPDX-License-Identifier: GPL-2.0

//! What a disk is made for, and which paths can carry its I/O.

#![forbid(unsafe_code)]

/// What a disk is made for, and every path of it has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The unit of addressing, in bytes.
    pub block_size: u32,
    /// The size of a slab in bytes, which no request crosses, if the export is of RAM.
    pub slab: Option<u32>,
    /// Hardware queues, and how many of them are polled.
    pub queues: u16,
    /// Of them, those that are polled.
    pub poll_queues: u16,
    /// Requests in flight per queue.
    pub depth: u16,
    /// Segments of a request.
    pub segments: u16,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Bytes of a read or write.
    pub max_io: u32,
    /// The pages of a request may have gaps between them.
    pub gaps: bool,
    /// Bytes of a discard; 0 if there are none.
    pub max_discard: u32,
    /// Bytes of a write of zeroes; 0 if there are none.
    pub max_write_zeroes: u32,
    /// Bytes of a secure erase; 0 if there are none.
    pub max_secure_erase: u32,
    /// The unit of atomic writes in bytes, a power of two; 0 if there are none.
    pub atomic_unit_min: u32,
    /// Bytes of an atomic write, a power of two.
    pub atomic_unit_max: u32,
    /// What no atomic write crosses a multiple of in bytes, a power of two; 0 for none.
    pub atomic_boundary: u32,
    /// What was written may be lost until it is flushed.
    pub write_cache: bool,
    /// A write can be made to last by itself.
    pub fua: bool,
}

impl Limits {
    /// Whether a disk that was made for `disk` can do its I/O over a path with these limits; if
    /// not, what is in the way. Only what the disk cannot do without is compared: `io_opt` and the
    /// like are hints.
    pub fn fit(&self, disk: &Self) -> Result<(), &'static str> {
        let all = [
            (self.block_size == disk.block_size, "the block size differs"),
            (
                self.slab.is_some() == disk.slab.is_some(),
                "the kind of the export differs",
            ),
            (self.slab >= disk.slab, "the slabs are smaller"),
            (self.queues >= disk.queues, "there are fewer queues"),
            (
                self.queues - self.poll_queues.min(self.queues) == disk.queues - disk.poll_queues,
                "other queues are polled",
            ),
            (self.depth >= disk.depth, "the queues are shorter"),
            // The number of segments follows from it.
            (self.max_io >= disk.max_io, "requests are smaller"),
            (
                self.segments >= disk.segments,
                "requests have fewer segments",
            ),
            (
                self.gaps || !disk.gaps,
                "the pages of requests have no gaps between them",
            ),
            (
                self.segment_size >= disk.segment_size,
                "the segments of requests are smaller",
            ),
            (self.max_discard >= disk.max_discard, "discards are smaller"),
            (
                self.max_write_zeroes >= disk.max_write_zeroes,
                "writes of zeroes are smaller",
            ),
            (
                self.max_secure_erase >= disk.max_secure_erase,
                "secure erases are smaller",
            ),
            (self.fits_atomic(disk), "atomic writes are smaller"),
            (
                disk.write_cache || !self.write_cache,
                "the export has a write cache now",
            ),
            (self.fua || !disk.fua, "the export has no FUA any more"),
        ];
        match all.iter().find(|(fits, _)| !fits) {
            Some((_, why)) => Err(why),
            None => Ok(()),
        }
    }

    /// Whether each write that is atomic for the disk is so over a path with these limits.
    fn fits_atomic(&self, disk: &Self) -> bool {
        let boundary = |limits: &Self| match limits.atomic_boundary {
            0 => u32::MAX,
            boundary => boundary,
        };
        disk.atomic_unit_min == 0
            || self.atomic_unit_min != 0
                && self.atomic_unit_min <= disk.atomic_unit_min
                && self.atomic_unit_max >= disk.atomic_unit_max
                && boundary(self) >= boundary(disk)
    }
}
