// SPDX-License-Identifier: GPL-2.0

//! What went wrong: an errno for the caller and words for the person.

#![forbid(unsafe_code)]

use core::fmt;

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::Mutex,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::base::errno::{
    self,
    ENOTCONN, //
};
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
    failure: Mutex<Option<(Failure, Instant<Monotonic>)>>,
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
        let failure = outcome.as_ref().err();
        *self.failure.lock() = failure.map(|failure| (*failure, Instant::now()));
        outcome.map_err(|failure| failure.error)
    }

    /// The newest failure. May sleep.
    pub(crate) fn get(&self) -> Option<Failure> {
        self.failure.lock().map(|(failure, _)| failure)
    }

    /// The newest failure, unless what runs is in trouble for less long: then `trouble`, and since when.
    /// May sleep.
    pub(crate) fn get_or(&self, trouble: Option<(Failure, Instant<Monotonic>)>) -> Option<Failure> {
        let own = *self.failure.lock();
        match (own, trouble) {
            (Some((failure, at)), Some((_, since))) if (at - since).as_nanos() >= 0 => {
                Some(failure)
            }
            (own, trouble) => Some(trouble.or(own)?.0),
        }
    }
}

/// `fail!(EINVAL, "words {}", x)`: a [`Failure`].
macro_rules! fail {
    ($error:expr, $($words:tt)*) => {
        $crate::link::failure::Failure::new($error, ::core::format_args!($($words)*))
    };
}
pub(crate) use fail;
