// SPDX-License-Identifier: GPL-2.0

//! What went wrong: an errno for the caller and words for the person.

#![forbid(unsafe_code)]

use core::fmt;

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::Mutex, //
};

use crate::errno::{self, ENOTCONN};
use crate::proto::Text;

/// A failure that will be shown to somebody.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    /// What a system call returns.
    pub(crate) error: Error,
    /// The cause, in words; cut to [`Text`]'s size.
    pub(crate) text: Text,
}

impl Failure {
    /// A failure with its cause in words.
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

/// The `last_error` of an object: its newest failure, forgotten at the next success.
#[pin_data]
pub(crate) struct LastError {
    #[pin]
    failure: Mutex<Option<Failure>>,
}

impl LastError {
    /// No failure yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            failure <- new_mutex!(None, "LastError::failure"),
        })
    }

    /// Remembers how an operation ended and returns what its system call returns. May sleep.
    pub(crate) fn record<T>(&self, outcome: Result<T, Failure>) -> Result<T> {
        *self.failure.lock() = outcome.as_ref().err().copied();
        outcome.map_err(|failure| failure.error)
    }

    /// The newest failure. May sleep.
    pub(crate) fn get(&self) -> Option<Failure> {
        *self.failure.lock()
    }
}

/// `fail!(EINVAL, "words {}", x)`: a [`Failure`].
macro_rules! fail {
    ($error:expr, $($words:tt)*) => {
        $crate::failure::Failure::new($error, ::core::format_args!($($words)*))
    };
}
pub(crate) use fail;
