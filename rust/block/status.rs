// SPDX-License-Identifier: GPL-2.0

//! The status of a request that has ended.
//!
//! C header: [`include/linux/blk_types.h`](srctree/include/linux/blk_types.h)

// UPSTREAM: upstream/tree/block/status.rs takes the place of this file, with patch 0010 of
// upstream/rust.

use crate::bindings;
use kernel::error::Error;

/// The status of a request: `BLK_STS_OK`, or a [`BlkError`].
pub(crate) type BlkResult<T = ()> = core::result::Result<T, BlkError>;

/// A `blk_status_t` other than `BLK_STS_OK`.
///
/// The values are asserted against the C ones in `rust/helpers/block.c`.
///
/// # Examples
///
/// ```
/// # use crate::block::{BlkError, BlkResult};
/// # use kernel::prelude::*;
/// /// Ends a write with what a file system has said.
/// fn status(written: Result<usize>, len: usize) -> BlkResult {
///     match written {
///         Ok(bytes) if bytes == len => Ok(()),
///         Ok(_) => Err(BlkError::IoError),
///         // For `ENOSPC` this is `BlkError::NoSpace`.
///         Err(error) => Err(error.into()),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlkError {
    /// The device does not support this operation (`EOPNOTSUPP`).
    NotSupported = 1,
    /// The device did not answer in time (`ETIMEDOUT`).
    Timeout = 2,
    /// A thinly provisioned device has no space left (`ENOSPC`).
    NoSpace = 3,
    /// The path to the device is lost; another path may still work (`ENOLINK`).
    Transport = 4,
    /// The device failed for good, on every path (`EREMOTEIO`).
    Target = 5,
    /// The device is reserved for another initiator (`EBADE`).
    ReservationConflict = 6,
    /// The medium has lost the data (`ENODATA`).
    Medium = 7,
    /// The data and its protection information disagree (`EILSEQ`).
    Protection = 8,
    /// A resource is used up (`ENOMEM`). As an answer of [`Operations::queue_rq`] it asks for the
    /// request to be queued again, see [`Refused`].
    ///
    /// [`Operations::queue_rq`]: super::mq::Operations::queue_rq
    /// [`Refused`]: super::mq::Refused
    Resource = 9,
    /// Any other error (`EIO`).
    IoError = 10,
    /// The request would have had to wait, and must not (`EAGAIN`).
    Again = 12,
    /// A resource is used up that requests in flight on this device hold (`EBUSY`). As an answer of
    /// [`Operations::queue_rq`] it asks for the request to be queued again, see [`Refused`].
    ///
    /// [`Operations::queue_rq`]: super::mq::Operations::queue_rq
    /// [`Refused`]: super::mq::Refused
    DevResource = 13,
    /// No more zones of the device may be open (`ETOOMANYREFS`).
    ZoneOpenResource = 14,
    /// No more zones of the device may be active (`EOVERFLOW`).
    ZoneActiveResource = 15,
    /// The device is off line (`ENODEV`).
    Offline = 16,
    /// The device could not finish within the duration limit of the command (`ETIME`).
    DurationLimit = 17,
    /// The request is not valid for the device (`EINVAL`).
    Invalid = 19,
}

impl BlkError {
    /// The C value.
    #[inline]
    pub(super) const fn as_raw(self) -> bindings::blk_status_t {
        self as bindings::blk_status_t
    }
}

/// Converts the status of a request to the C value.
#[inline]
pub(super) const fn to_blk_status(result: BlkResult) -> bindings::blk_status_t {
    match result {
        Ok(()) => bindings::BLK_STS_OK as bindings::blk_status_t,
        Err(err) => err.as_raw(),
    }
}

/// Returns the number of a status, 0 for success, as tracepoints show it.
pub(crate) const fn status_code(result: BlkResult) -> u8 {
    to_blk_status(result)
}

/// Converts the C status of a request or bio. A status without a name here, such as those that
/// layers of one device pass to each other, is [`BlkError::IoError`].
#[inline]
pub(super) const fn from_blk_status(status: bindings::blk_status_t) -> BlkResult {
    Err(match status {
        0 => return Ok(()),
        1 => BlkError::NotSupported,
        2 => BlkError::Timeout,
        3 => BlkError::NoSpace,
        4 => BlkError::Transport,
        5 => BlkError::Target,
        6 => BlkError::ReservationConflict,
        7 => BlkError::Medium,
        8 => BlkError::Protection,
        9 => BlkError::Resource,
        12 => BlkError::Again,
        13 => BlkError::DevResource,
        14 => BlkError::ZoneOpenResource,
        15 => BlkError::ZoneActiveResource,
        16 => BlkError::Offline,
        17 => BlkError::DurationLimit,
        19 => BlkError::Invalid,
        _ => BlkError::IoError,
    })
}

impl From<Error> for BlkError {
    fn from(err: Error) -> Self {
        // SAFETY: `errno_to_blk_status` only looks its argument up in a table.
        let status = unsafe { bindings::errno_to_blk_status(err.to_errno()) };
        from_blk_status(status).err().unwrap_or(BlkError::IoError)
    }
}

impl From<BlkError> for Error {
    fn from(err: BlkError) -> Self {
        // SAFETY: `blk_status_to_errno` only looks its argument up in a table.
        Error::from_errno(unsafe { bindings::blk_status_to_errno(err.as_raw()) })
    }
}

#[cfg(CONFIG_FARBLK_KUNIT_TEST)]
#[kernel::macros::kunit_tests(farblk_block_status)]
mod tests {
    use super::*;
    use crate::kunit::check;
    use kernel::prelude::*;

    #[test]
    fn status_is_the_same_there_and_back() -> Result {
        check!(from_blk_status(0) == Ok(()) && to_blk_status(Ok(())) == 0);
        // The C ones; 11 and 18 are between layers of one device.
        for raw in (1..20).filter(|raw| ![11, 18].contains(raw)) {
            check!(to_blk_status(from_blk_status(raw)) == raw);
        }
        for raw in [11, 18, 20, 255] {
            check!(from_blk_status(raw) == Err(BlkError::IoError));
        }
        Ok(())
    }

    #[test]
    fn status_is_the_error_of_the_c_table() -> Result {
        for (status, error) in [
            (BlkError::NotSupported, crate::base::errno::EOPNOTSUPP),
            (BlkError::NoSpace, ENOSPC),
            (BlkError::Resource, ENOMEM),
            (BlkError::Again, EAGAIN),
            (BlkError::Offline, ENODEV),
            (BlkError::Timeout, ETIMEDOUT),
            (BlkError::Invalid, EINVAL),
            (BlkError::IoError, EIO),
        ] {
            check!(Error::from(status) == error);
            check!(BlkError::from(error) == status);
        }
        Ok(())
    }
}
