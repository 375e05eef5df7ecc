// SPDX-License-Identifier: GPL-2.0

//! `enable`: settings that freeze while something runs.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::Mutex, //
};

use crate::base::configfs::PageWriter;
use crate::config::{
    invalid,
    parse,
    show,
    show_option, //
};
use crate::link::failure::{
    fail,
    Failure,
    LastError, //
};

/// What `enable` of an object has started.
enum Phase<T> {
    /// Nothing: settings may change.
    Off,
    /// Somebody is turning it on, without the lock held.
    Starting,
    /// Somebody is turning it off, without the lock held.
    Stopping,
    /// It runs.
    On(T),
}

/// The settings `S` of an object, the running thing `T` made of them, and the last failure of both.
#[pin_data]
pub(crate) struct Switch<S, T> {
    #[pin]
    inner: Mutex<(S, Phase<T>)>,
    /// The `last_error` of the object.
    #[pin]
    pub(crate) last_error: LastError,
}

impl<S: Clone + Unpin, T: Unpin> Switch<S, T> {
    /// Off, with `settings`.
    pub(crate) fn new(settings: S) -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_mutex!((settings, Phase::Off), "Switch::inner"),
            last_error <- LastError::new(),
        })
    }

    /// A copy of the settings. May sleep.
    pub(crate) fn settings(&self) -> S {
        self.inner.lock().0.clone()
    }

    /// Changes one setting; refuses with `EBUSY` unless off. May sleep.
    pub(crate) fn set(&self, change: impl FnOnce(&mut S) -> Result<(), Failure>) -> Result {
        let outcome = self.try_set(change);
        self.last_error.record(outcome)
    }

    /// As [`Switch::set`], for a caller that records the failure elsewhere. May sleep.
    pub(crate) fn try_set(
        &self,
        change: impl FnOnce(&mut S) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        match inner.1 {
            Phase::Off => change(&mut inner.0),
            Phase::Starting | Phase::Stopping | Phase::On(_) => {
                Err(fail!(EBUSY, "cannot be changed while enabled"))
            }
        }
    }

    /// Changes what may be changed while it is on, and looks at what runs then; refuses with `EBUSY`
    /// while it is being turned on or off. May sleep.
    pub(crate) fn adjust<R>(
        &self,
        change: impl FnOnce(&mut S, Option<&T>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut inner = self.inner.lock();
        let (settings, phase) = &mut *inner;
        match phase {
            Phase::Off => change(settings, None),
            Phase::On(thing) => change(settings, Some(thing)),
            Phase::Starting | Phase::Stopping => Err(fail!(
                EBUSY,
                "cannot be changed while it is being enabled or disabled"
            )),
        }
    }

    /// Changes settings that what runs does not look at, in any phase. May sleep.
    pub(crate) fn amend(&self, change: impl FnOnce(&mut S)) {
        change(&mut self.inner.lock().0);
    }

    /// Looks at the running thing. May sleep.
    pub(crate) fn running<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
        match &self.inner.lock().1 {
            Phase::On(thing) => look(Some(thing)),
            Phase::Off | Phase::Starting | Phase::Stopping => look(None),
        }
    }

    /// Shows `enable`. May sleep.
    pub(crate) fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.running(|thing| u8::from(thing.is_some())))
    }

    /// What was written to `enable`. May sleep.
    pub(crate) fn wanted(&self, value: &str) -> Result<bool> {
        let wanted = parse::boolean(value).map_err(invalid("enable"));
        self.last_error.record(wanted)
    }

    /// Shows `last_error`. May sleep.
    pub(crate) fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.last_error.get())
    }

    /// Whether somebody is turning it on just now. May sleep.
    pub(crate) fn starting(&self) -> bool {
        matches!(self.inner.lock().1, Phase::Starting)
    }

    /// Turns it on with `start`, which may take long; settings stay readable meanwhile. Does nothing
    /// if it is on. May sleep.
    pub(crate) fn turn_on(&self, start: impl FnOnce(S) -> Result<T, Failure>) -> Result {
        let settings = {
            let mut inner = self.inner.lock();
            match inner.1 {
                Phase::On(_) => return Ok(()),
                Phase::Starting | Phase::Stopping => return Err(EBUSY),
                Phase::Off => inner.1 = Phase::Starting,
            }
            inner.0.clone()
        };
        let (phase, outcome) = match start(settings) {
            Ok(thing) => (Phase::On(thing), Ok(())),
            Err(failure) => (Phase::Off, Err(failure)),
        };
        self.inner.lock().1 = phase;
        self.last_error.record(outcome)
    }

    /// Turns it off with `stop`, which may take long and gives the thing back if it cannot be
    /// stopped. Does nothing if it is off. May sleep.
    pub(crate) fn turn_off(&self, stop: impl FnOnce(T) -> Result<(), (T, Failure)>) -> Result {
        let thing = {
            let mut inner = self.inner.lock();
            match core::mem::replace(&mut inner.1, Phase::Stopping) {
                Phase::On(thing) => thing,
                other => {
                    let off = matches!(other, Phase::Off);
                    inner.1 = other;
                    return if off { Ok(()) } else { Err(EBUSY) };
                }
            }
        };
        let (phase, outcome) = match stop(thing) {
            Ok(()) => (Phase::Off, Ok(())),
            Err((thing, failure)) => (Phase::On(thing), Err(failure)),
        };
        self.inner.lock().1 = phase;
        self.last_error.record(outcome)
    }
}
