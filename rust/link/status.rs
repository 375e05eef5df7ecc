// SPDX-License-Identifier: GPL-2.0

//! How a command ended, in the words of the wire and of the block layer.

#![forbid(unsafe_code)]

use crate::block::{
    BlkError,
    BlkResult, //
};
use crate::proto::Status;

/// What the server says of how its backing ended.
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

/// What the client tells its block layer.
impl From<Status> for BlkResult {
    #[inline]
    fn from(status: Status) -> Self {
        Err(match status {
            Status::Ok => return Ok(()),
            Status::IoError => BlkError::IoError,
            Status::NotSupported => BlkError::NotSupported,
            Status::Invalid => BlkError::Invalid,
            // As the end of a local disk. It became smaller a moment ago.
            Status::OutOfRange => BlkError::IoError,
            // As a write-protected SCSI disk: no path is better.
            Status::ReadOnly => BlkError::Target,
            Status::NoSpace => BlkError::NoSpace,
            Status::Medium => BlkError::Medium,
            Status::Protection => BlkError::Protection,
            Status::Target => BlkError::Target,
            Status::Timeout => BlkError::Timeout,
            // The server's own way to its backing: with [`BlkError::Transport`] a path of this map is lost.
            Status::Transport => BlkError::IoError,
            Status::Reservation => BlkError::ReservationConflict,
            Status::Resource => BlkError::Resource,
            Status::Offline => BlkError::Offline,
        })
    }
}
