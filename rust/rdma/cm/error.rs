// SPDX-License-Identifier: GPL-2.0

//! Why there is no connection.

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

/// Why there is no connection.
pub(crate) enum CmError {
    /// The peer, or its host, refused.
    Rejected {
        /// Whether the peer's program refused; if not, none listens, or its host refused.
        consumer: bool,
        /// Whether no program listens.
        no_listener: bool,
        /// The reason as text.
        text: &'static str,
        /// What the peer's program said.
        private_data: PrivateData,
    },
    /// The peer does not answer; with the status of the event, a negative error code or 0.
    Unreachable(i32),
    /// The address was not resolved to a device, likewise.
    AddrError(i32),
    /// No route was found, likewise.
    RouteError(i32),
    /// No end within the time given.
    Timeout,
    /// The device goes away.
    DeviceRemoved,
    /// This host failed, maybe before it even started.
    Errno(Error),
}

impl CmError {
    /// # Safety
    ///
    /// Both must be what the RDMA core called a handler with, for `RDMA_CM_EVENT_REJECTED`.
    pub(super) unsafe fn rejected(
        id: *mut bindings::rdma_cm_id,
        event: *mut bindings::rdma_cm_event,
    ) -> Self {
        // SAFETY: The caller gives a valid event.
        let reason = unsafe { (*event).status };
        let mut len = 0;
        // SAFETY: The caller gives a valid id and event.
        let data = unsafe { bindings::rdma_consumer_reject_data(id, event, &mut len) };
        let consumer = !data.is_null();
        let data = if consumer {
            // SAFETY: This event carries connection parameters.
            match PrivateData::copy_from(unsafe { private_data(event) }) {
                Ok(data) => data,
                Err(error) => return error,
            }
        } else {
            PrivateData::empty()
        };
        // SAFETY: The id is valid, and the function returns a static string.
        let text = unsafe { CStr::from_char_ptr(bindings::rdma_reject_msg(id, reason)) };
        Self::Rejected {
            consumer,
            // InfiniBand and RoCE give a reason of the CM, iWARP an error code.
            no_listener: reason == bindings::ib_cm_rej_reason_IB_CM_REJ_INVALID_SERVICE_ID as i32
                || reason == ECONNREFUSED.to_errno(),
            text: text.to_str().unwrap_or("?"),
            private_data: data,
        }
    }

    /// The error as an error code.
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
