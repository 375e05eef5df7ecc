// SPDX-License-Identifier: GPL-2.0

//! Conversion of the status of a command between the wire and the block layer.

#![forbid(unsafe_code)]

use crate::block::{
    BlkError,
    BlkResult, //
};
use crate::proto::Status;

/// Converts the result of the backing to the status that the server sends.
impl From<BlkResult> for Status {
    #[inline]
    fn from(result: BlkResult) -> Self {
        let Err(error) = result else {
            return Self::Ok;
        };
        match error {
            BlkError::NotSupported => Self::NotSupported,
            BlkError::Timeout | BlkError::DurationLimit => Self::Timeout,
            BlkError::NoSpace => Self::NoSpace,
            BlkError::Transport => Self::Transport,
            BlkError::Target => Self::Target,
            BlkError::ReservationConflict => Self::Reservation,
            BlkError::Medium => Self::Medium,
            BlkError::Protection => Self::Protection,
            BlkError::Resource | BlkError::DevResource | BlkError::Again => Self::Resource,
            BlkError::Offline => Self::Offline,
            BlkError::Invalid => Self::Invalid,
            _ => Self::IoError,
        }
    }
}

/// Converts the status that the client received to the result for its block layer.
impl From<Status> for BlkResult {
    #[inline]
    fn from(status: Status) -> Self {
        Err(match status {
            Status::Ok => return Ok(()),
            Status::IoError => BlkError::IoError,
            Status::NotSupported => BlkError::NotSupported,
            Status::Invalid => BlkError::Invalid,
            // A local disk fails with this error, too. The export became smaller a moment ago.
            Status::OutOfRange => BlkError::IoError,
            // A write-protected SCSI disk fails with this error, too: another path would not help.
            Status::ReadOnly => BlkError::Target,
            Status::NoSpace => BlkError::NoSpace,
            Status::Medium => BlkError::Medium,
            Status::Protection => BlkError::Protection,
            Status::Target => BlkError::Target,
            Status::Timeout => BlkError::Timeout,
            // The server has lost its backing. [`BlkError::Transport`] would mean that a path of
            // this map is lost.
            Status::Transport => BlkError::IoError,
            Status::Reservation => BlkError::ReservationConflict,
            Status::Resource => BlkError::Resource,
            Status::Offline => BlkError::Offline,
        })
    }
}
