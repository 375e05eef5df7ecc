// SPDX-License-Identifier: GPL-2.0

//! Stands in for the module's `block`, which needs a kernel: as much of `rust/block/status.rs` as
//! `rust/link/status.rs` names.

pub(crate) type BlkResult<T = ()> = Result<T, BlkError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only the tests make them all"))]
pub(crate) enum BlkError {
    NotSupported,
    Timeout,
    NoSpace,
    Transport,
    Target,
    ReservationConflict,
    Medium,
    Protection,
    Resource,
    IoError,
    Again,
    DevResource,
    Offline,
    DurationLimit,
    Invalid,
}
