// SPDX-License-Identifier: GPL-2.0

//! Failures: an errno for the caller, and a text for the user.

#![forbid(unsafe_code)]

use core::fmt;

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::Mutex, //
};

use crate::base::errno::{
    self,
    ENOTCONN, //
};
use crate::proto::Text;

/// A failure of an operation, with its cause.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    /// The error that a system call returns.
    pub(crate) error: Error,
    /// The cause in words, cut to the size of a [`Text`].
    pub(crate) text: Text,
}

impl Failure {
    /// Makes a failure with its cause in words.
    pub(crate) fn new(error: Error, text: fmt::Arguments<'_>) -> Self {
        Self {
            error,
            text: Text::format(text),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = if error == ENOMEM {
            "out of memory"
        } else if error == EINTR {
            "interrupted"
        } else if error == ENOTCONN {
            "the connection was lost"
        } else if error == ETIMEDOUT {
            "no answer in time"
        } else {
            "the operation failed"
        };
        Self::new(error, format_args!("{text}"))
    }
}

impl From<kernel::alloc::AllocError> for Failure {
    fn from(_: kernel::alloc::AllocError) -> Self {
        ENOMEM.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", errno::name(self.error), self.text)
    }
}

/// The failure of the last operation of a kind, if it failed.
#[pin_data]
pub(crate) struct LastFailure {
    #[pin]
    failure: Mutex<Option<Failure>>,
}

impl LastFailure {
    /// Makes one without a failure.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            failure <- new_mutex!(None, "LastFailure::failure"),
        })
    }

    /// Records the outcome of an operation, and returns the result of its system call. May sleep.
    pub(crate) fn record<T>(&self, outcome: Result<T, Failure>) -> Result<T> {
        *self.failure.lock() = outcome.as_ref().err().copied();
        outcome.map_err(|failure| failure.error)
    }

    /// Returns the failure of the last operation. May sleep.
    pub(crate) fn get(&self) -> Option<Failure> {
        *self.failure.lock()
    }
}

/// Makes a [`Failure`]: `fail!(EINVAL, "words {}", x)`.
macro_rules! fail {
    ($error:expr, $($words:tt)*) => {
        $crate::link::failure::Failure::new($error, ::core::format_args!($($words)*))
    };
}
pub(crate) use fail;
