// SPDX-License-Identifier: GPL-2.0

//! Reasons why a connection could not be made.

use crate::base::errno::{
    ECONNREFUSED,
    EHOSTUNREACH, //
};
use crate::bindings;
use crate::rdma::cm::{
    shared::private_data,
    PrivateData, //
};
use kernel::{
    fmt,
    prelude::*,
    str::CStr, //
};

/// The reason why a connection could not be made.
///
/// # Examples
///
/// ```
/// # use crate::rdma::cm::{CmError, CmId, ConnParam};
/// # use kernel::prelude::*;
/// # fn example(id: &CmId, param: &ConnParam<'_>) -> Result {
/// match id.connect(param, 5_000) {
///     Ok(answer) => Ok(()),
///     // The server's program says why.
///     Err(CmError::Rejected { consumer: true, private_data, .. }) => {
///         pr_info!("refused for reason {:?}\n", private_data.first());
///         Err(EACCES)
///     }
///     // Another attempt, which needs another id, may find the server.
///     Err(error) => {
///         pr_info!("cannot connect: {}\n", error);
///         Err(error.to_error())
///     }
/// }
/// # }
/// ```
pub(crate) enum CmError {
    /// The peer, or its host, has rejected the request.
    Rejected {
        /// True if the peer's program has rejected it; false if none listens, or the host has
        /// rejected it.
        consumer: bool,
        /// True if no program listens.
        no_listener: bool,
        /// The reason in words, as the RDMA core has it.
        text: &'static str,
        /// The private data of the peer's program; empty if that has not rejected it.
        private_data: PrivateData,
    },
    /// The peer does not answer. Holds the status of the event: a negative error code, or 0.
    Unreachable(i32),
    /// The address could not be resolved to a device. Holds the status of the event.
    AddrError(i32),
    /// There is no route. Holds the status of the event.
    RouteError(i32),
    /// The time that the caller gave is over.
    Timeout,
    /// The device is being removed.
    DeviceRemoved,
    /// A function of this host failed, maybe before anything was sent.
    Errno(Error),
}

impl CmError {
    /// Returns the error of a rejection, whose private data fill `room`.
    ///
    /// # Safety
    ///
    /// `id` and `event` must be what the RDMA core called a handler with, for
    /// `RDMA_CM_EVENT_REJECTED`.
    pub(super) unsafe fn rejected(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
        room: PrivateData,
    ) -> Self {
        // SAFETY: The caller gives a valid event.
        let reason = unsafe { (*event).status };
        let mut len = 0;
        // SAFETY: The caller gives a valid id and event.
        let told = unsafe { !bindings::rdma_consumer_reject_data(id, event, &mut len).is_null() };
        // SAFETY: This event carries connection parameters.
        let data = unsafe { private_data(event) };
        // With iWARP the reason is an error code, which may be the wrong one (see `quirks`). But
        // data are always those of the peer's program.
        let consumer = told || (reason < 0 && !data.is_empty());
        let data = if consumer { data } else { &[] };
        // SAFETY: The id is valid, and the function returns a static string.
        let text = unsafe { CStr::from_char_ptr(bindings::rdma_reject_msg(id, reason)) };
        Self::Rejected {
            consumer,
            // InfiniBand and RoCE give a reason of the CM, iWARP an error code.
            no_listener: reason == bindings::ib_cm_rej_reason_IB_CM_REJ_INVALID_SERVICE_ID as i32
                || (reason == ECONNREFUSED.to_errno() && data.is_empty()),
            text: text.to_str().unwrap_or("?"),
            private_data: room.fill(data),
        }
    }

    /// Returns the error of a service that was not found, for a reason of C's
    /// `enum ib_cm_sidr_status`.
    pub(super) fn refused(status: i32, private_data: PrivateData) -> Self {
        // CAST: The core gives what came in a message: a byte.
        let (consumer, no_listener, text) = match status as u32 {
            bindings::ib_cm_sidr_status_IB_SIDR_UNSUPPORTED => (false, true, "no such service"),
            bindings::ib_cm_sidr_status_IB_SIDR_REJECT => (true, false, "the service refuses"),
            bindings::ib_cm_sidr_status_IB_SIDR_NO_QP => (false, false, "no queue pair"),
            bindings::ib_cm_sidr_status_IB_SIDR_REDIRECT => (false, false, "it is elsewhere"),
            _ => (false, false, "another version of the connection manager"),
        };
        Self::Rejected {
            consumer,
            no_listener,
            text,
            private_data,
        }
    }

    /// Returns the error as an error code.
    pub(crate) fn to_error(&self) -> Error {
        let status = |status: i32, otherwise| match status {
            -4095..=-1 => Error::from_errno(status),
            _ => otherwise,
        };
        match self {
            Self::Rejected { .. } => ECONNREFUSED,
            Self::Unreachable(code) | Self::AddrError(code) | Self::RouteError(code) => {
                status(*code, EHOSTUNREACH)
            }
            Self::Timeout => ETIMEDOUT,
            Self::DeviceRemoved => ENODEV,
            Self::Errno(error) => *error,
        }
    }
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { text, .. } => write!(f, "rejected: {}", text),
            Self::Unreachable(status) => write!(f, "the peer does not answer ({})", status),
            Self::AddrError(status) => write!(f, "no device for the address ({})", status),
            Self::RouteError(status) => write!(f, "no route ({})", status),
            Self::Timeout => f.write_str("timed out"),
            Self::DeviceRemoved => f.write_str("the device was removed"),
            Self::Errno(error) => write!(f, "failed ({})", error.to_errno()),
        }
    }
}
