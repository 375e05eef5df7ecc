// SPDX-License-Identifier: GPL-2.0

//! Writes that the server has acknowledged and may still hold in a volatile cache: what the client
//! knows of them, and how the server tells that it may have lost them.
//!
//! The server shows an *instance* of an export of a block device. Another instance means that
//! writes which were acknowledged and not flushed may be gone, as the write verifier of NFS does.
//! A server that is shut down in an orderly way flushes the device, and tells its clients that.
//! [`LastClose`] chooses the instance, [`Flushes`] draws the client's conclusions.

#![forbid(unsafe_code)]

/// The flushes of a map, by number: which of them covered a write, and which are complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flushes {
    begun: u64,
    /// The last flush that began after a write was complete.
    needed: u64,
    /// The last flush that is complete.
    complete: u64,
    /// Writes that were complete and not flushed are lost, and there may be users who have to hear
    /// of it.
    lost: bool,
    /// A flush has failed because of that.
    reported: bool,
}

impl Flushes {
    /// Returns the state of a map that nothing was written to.
    pub const fn new() -> Self {
        Self {
            begun: 0,
            needed: 0,
            complete: 0,
            lost: false,
            reported: false,
        }
    }

    /// Notes that the server has another instance: its cache may be gone. No request that the old
    /// instance may still answer is left. `dirty` as for [`Flushes::begin`].
    pub fn restarted(&mut self, dirty: bool) {
        if dirty || self.are_needed() {
            self.lost = true;
            self.reported = false;
        }
        self.needed = 0;
    }

    /// Notes that the server has flushed: all writes that are complete last.
    pub fn flushed(&mut self) {
        self.needed = 0;
    }

    /// Returns true if a flush must fail instead of being sent, be it a new one or one that is
    /// replayed.
    ///
    /// Everybody who has the disk open may have written what is lost, and has to hear of it, so all
    /// flushes fail until [`Flushes::closed`].
    pub fn must_fail(&mut self) -> bool {
        self.reported |= self.lost;
        self.lost
    }

    /// Returns true if writes are lost, and flushes fail because of that.
    pub fn have_lost(&self) -> bool {
        self.lost
    }

    /// Notes that nobody has the disk open any more. If nobody has heard of a loss until now, those
    /// who open the disk next will, as of an error in the page cache.
    pub fn closed(&mut self) {
        self.lost &= !self.reported;
        self.reported = false;
    }

    /// Notes that a flush begins, and returns its number. `dirty` tells whether a write was
    /// complete since the flush before it began.
    pub fn begin(&mut self, dirty: bool) -> u64 {
        self.begun = self.begun.saturating_add(1);
        if dirty {
            self.needed = self.begun;
        }
        self.begun
    }

    /// Notes that a flush is complete, and with it whatever those before it had to cover.
    pub fn complete(&mut self, number: u64) {
        self.complete = self.complete.max(number);
    }

    /// Returns true if a write was complete before a flush began that is not complete.
    pub fn are_needed(&self) -> bool {
        self.needed > self.complete
    }
}

/// How the device `D` of an export was closed last, and under which instance `I`. The server keeps
/// it while the export is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LastClose<D, I> {
    /// Nothing was lost with this device since it was exported as this instance.
    flushed: Option<(D, I)>,
}

impl<D, I: Copy> LastClose<D, I> {
    /// Returns what is known of an export that was never enabled.
    pub const fn new() -> Self {
        Self { flushed: None }
    }

    /// Chooses the instance for a device that was opened: the last one if `is_same` says that this
    /// is the device, and it was flushed when it was closed, else `fresh`.
    pub fn open(&self, is_same: impl FnOnce(&D) -> bool, fresh: I) -> I {
        match &self.flushed {
            Some((device, instance)) if is_same(device) => *instance,
            _ => fresh,
        }
    }

    /// Notes that clients may write to the device that was opened. The record is empty afterwards:
    /// a device that is not closed in an orderly way has lost its cache.
    pub fn begin(&mut self) {
        self.flushed = None;
    }

    /// Notes that a device is closed. `flushed` tells whether a flush has succeeded that began
    /// after the last write had ended.
    pub fn close(&mut self, device: D, instance: I, flushed: bool) {
        self.flushed = flushed.then_some((device, instance));
    }
}

impl<D, I: Copy> Default for LastClose<D, I> {
    fn default() -> Self {
        Self::new()
    }
}
