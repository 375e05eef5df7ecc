// SPDX-License-Identifier: GPL-2.0

//! `enable`: settings that freeze while something runs.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::Mutex, //
};

use crate::base::{
    configfs::PageWriter,
    sync::Completion, //
};
use crate::config::{
    invalid,
    parse,
    show, //
};
use crate::link::failure::{
    fail,
    Failure,
    LastFailure, //
};

/// How long [`Switch::force_off`] waits for what another task does, in ms.
const FORCE_MS: u32 = 10_000;
/// How often it looks, in ms.
const FORCE_LOOK_MS: u32 = 100;

/// What `enable` of an object has started.
pub(crate) enum Phase<T> {
    /// Nothing: settings may change.
    Off,
    /// A task is turning it on, without the lock held; what it works on, if others may see that.
    Starting(Option<T>),
    /// A task is turning it off, without the lock held; what it works on, if others may see that.
    Stopping(Option<T>),
    /// It runs.
    On(T),
}

/// The settings `S` of an object, the running thing `T` made of them, and two failures: of the last
/// write, and of the last change between on and off.
#[pin_data]
pub(crate) struct Switch<S, T> {
    #[pin]
    inner: Mutex<(S, Phase<T>)>,
    /// Completed when a task has turned it on or off, or failed to.
    #[pin]
    settled: Completion,
    /// The `refusal` of the object: why the last write to one of its files was refused.
    #[pin]
    pub(crate) refusal: LastFailure,
    /// Why it could not be turned on or off, or what that has left behind. What the running thing
    /// suffers takes precedence in the `last_error` of the object.
    #[pin]
    pub(crate) last_error: LastFailure,
}

impl<S: Clone + Unpin, T: Unpin> Switch<S, T> {
    /// Off, with `settings`.
    pub(crate) fn new(settings: S) -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- new_mutex!((settings, Phase::Off), "Switch::inner"),
            settled <- Completion::new(),
            refusal <- LastFailure::new(),
            last_error <- LastFailure::new(),
        })
    }

    /// A copy of the settings. May sleep.
    pub(crate) fn settings(&self) -> S {
        self.inner.lock().0.clone()
    }

    /// Changes one setting; refuses with `EBUSY` unless off. May sleep.
    pub(crate) fn set(&self, change: impl FnOnce(&mut S) -> Result<(), Failure>) -> Result {
        let outcome = self.try_set(change);
        self.refusal.record(outcome)
    }

    /// As [`Switch::set`], for a caller that records the failure elsewhere. May sleep.
    pub(crate) fn try_set(
        &self,
        change: impl FnOnce(&mut S) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        match inner.1 {
            Phase::Off => change(&mut inner.0),
            Phase::Starting(_) | Phase::Stopping(_) | Phase::On(_) => {
                Err(fail!(EBUSY, "cannot be changed while enabled"))
            }
        }
    }

    /// Changes what may be changed while it is on, and looks at what runs then; refuses with
    /// `EBUSY` while it is being turned on or off. May sleep.
    pub(crate) fn adjust<R>(
        &self,
        change: impl FnOnce(&mut S, Option<&T>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut inner = self.inner.lock();
        let (settings, phase) = &mut *inner;
        match phase {
            Phase::Off => change(settings, None),
            Phase::On(thing) => change(settings, Some(thing)),
            Phase::Starting(_) | Phase::Stopping(_) => Err(fail!(
                EBUSY,
                "cannot be changed while it is being enabled or disabled"
            )),
        }
    }

    /// Changes settings that what runs does not look at, in any phase. May sleep.
    pub(crate) fn amend(&self, change: impl FnOnce(&mut S)) {
        change(&mut self.inner.lock().0);
    }

    /// Looks at the phase, which does not change meanwhile. May sleep.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Phase<T>) -> R) -> R {
        look(&self.inner.lock().1)
    }

    /// Looks at the running thing. May sleep.
    pub(crate) fn running<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> R {
        self.look(|phase| match phase {
            Phase::On(thing) => look(Some(thing)),
            Phase::Off | Phase::Starting(_) | Phase::Stopping(_) => look(None),
        })
    }

    /// Shows `enable`: 1 until nothing is left of what runs. May sleep.
    pub(crate) fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        let enabled = self.look(|phase| matches!(phase, Phase::On(_) | Phase::Stopping(_)));
        show(page, u8::from(enabled))
    }

    /// What was written to `enable`. May sleep.
    pub(crate) fn wanted(&self, value: &str) -> Result<bool> {
        let wanted = parse::boolean(value).map_err(invalid("enable"));
        self.refusal.record(wanted)
    }

    /// Turns it on with `start`, which may take long; settings stay readable meanwhile. Does
    /// nothing if it is on; refuses with `EBUSY` while another task turns it on or off, or if a
    /// task that turned it off was killed and `closing` says that it still ends. May sleep.
    pub(crate) fn turn_on(
        &self,
        closing: impl FnOnce(&T) -> bool,
        start: impl FnOnce(S) -> Result<T, Failure>,
    ) -> Result {
        let settings = match self.begin_start(closing) {
            Ok(None) => return Ok(()),
            Ok(Some(settings)) => settings,
            Err(busy) => return self.refusal.record(Err(busy)),
        };
        self.last_error.record(Ok(()))?;
        match start(settings) {
            Ok(thing) => self.settle(Phase::On(thing), Ok(())),
            Err(failure) => self.settle(Phase::Off, Err(failure)),
        }
    }

    /// Turns it off with `stop`, which may take long. If `stop` fails, it gives the thing back,
    /// which then still runs, or nothing if it is off nevertheless. Does nothing if it is off;
    /// refuses with `EBUSY` while another task turns it on or off. May sleep.
    pub(crate) fn turn_off(
        &self,
        stop: impl FnOnce(T) -> Result<(), (Option<T>, Failure)>,
    ) -> Result {
        let thing = match self.begin_stop(|_| None) {
            Ok(None) => return Ok(()),
            Ok(Some(thing)) => thing,
            Err(busy) => return self.refusal.record(Err(busy)),
        };
        match stop(thing) {
            Ok(()) => self.settle(Phase::Off, Ok(())),
            Err((thing, failure)) => self.settle(thing.map_or(Phase::Off, Phase::On), Err(failure)),
        }
    }

    /// Begins to turn it on; `None` if it is on, and not `closing`.
    fn begin_start(&self, closing: impl FnOnce(&T) -> bool) -> Result<Option<S>, Failure> {
        let mut inner = self.inner.lock();
        match &inner.1 {
            Phase::On(thing) if closing(thing) => {
                return Err(fail!(EBUSY, "it is being disabled; write 0 to wait"));
            }
            Phase::On(_) => return Ok(None),
            Phase::Starting(_) | Phase::Stopping(_) => return Err(Self::busy()),
            Phase::Off => {}
        }
        inner.1 = Phase::Starting(None);
        self.settled.reinit();
        Ok(Some(inner.0.clone()))
    }

    /// Begins to turn it off, what others see meanwhile being `seen`; `None` if it is off.
    fn begin_stop(&self, seen: impl FnOnce(&T) -> Option<T>) -> Result<Option<T>, Failure> {
        let mut inner = self.inner.lock();
        match core::mem::replace(&mut inner.1, Phase::Stopping(None)) {
            Phase::On(thing) => {
                inner.1 = Phase::Stopping(seen(&thing));
                self.settled.reinit();
                Ok(Some(thing))
            }
            other => {
                let off = matches!(other, Phase::Off);
                inner.1 = other;
                if off {
                    Ok(None)
                } else {
                    Err(Self::busy())
                }
            }
        }
    }

    fn busy() -> Failure {
        fail!(EBUSY, "another task is enabling or disabling it")
    }

    /// Ends what a task has begun, and records the outcome. Another task that sees the new phase
    /// finds the reason for it in `last_error`.
    fn settle(&self, phase: Phase<T>, outcome: Result<(), Failure>) -> Result {
        // A refusal leaves it as it was. A task that is killed leaves it half-way.
        let is_as_it_was = matches!((&phase, &outcome),
            (Phase::On(_), Err(failure)) if failure.error != EINTR);
        if !is_as_it_was {
            let _ = self.last_error.record(outcome);
        }
        self.enter(phase);
        self.refusal.record(outcome)
    }

    /// Ends what a task has begun.
    fn enter(&self, phase: Phase<T>) {
        // Its last reference must be dropped before another task sees the new phase.
        let seen = core::mem::replace(&mut self.inner.lock().1, Phase::Stopping(None));
        drop(seen);
        let mut inner = self.inner.lock();
        inner.1 = phase;
        // With the lock held: the next task to begin makes it not done again.
        self.settled.complete_all();
    }
}

/// Of things that one task may abort while another one turns them on or off.
impl<S: Clone + Unpin, T: Clone + Unpin> Switch<S, T> {
    /// As [`Switch::turn_on`], in two steps: what `make` returns can be aborted by
    /// [`Switch::force_off`] while `start` brings it up. `make` must not wait for I/O or for a
    /// server. May sleep.
    pub(crate) fn make_and_start(
        &self,
        make: impl FnOnce(&S) -> Result<T, Failure>,
        start: impl FnOnce(&T, &S) -> Result<(), Failure>,
    ) -> Result {
        let never_closing = |_: &T| false;
        self.turn_on(never_closing, |settings| {
            let thing = make(&settings)?;
            self.inner.lock().1 = Phase::Starting(Some(thing.clone()));
            start(&thing, &settings)?;
            Ok(thing)
        })
    }

    /// As [`Switch::turn_off`]; what is being turned off can be aborted by [`Switch::force_off`].
    /// `stop` may succeed and still return a failure for `last_error`. May sleep.
    pub(crate) fn stop(&self, stop: impl FnOnce(&T) -> Result<Option<Failure>, Failure>) -> Result {
        match self.begin_stop(|thing| Some(thing.clone())) {
            Ok(None) => Ok(()),
            Ok(Some(thing)) => self.end_stop(thing, stop),
            Err(busy) => self.refusal.record(Err(busy)),
        }
    }

    /// As [`Switch::stop`], also while another task turns it on or off: calls `abort`, which must
    /// make the other task end soon, and waits for that task. `abort` may be called more than once,
    /// and must not sleep. `EBUSY` if the other task does not end within 10 s. May sleep.
    pub(crate) fn force_off(
        &self,
        abort: impl Fn(&T),
        stop: impl FnOnce(&T) -> Result<Option<Failure>, Failure>,
    ) -> Result {
        let abort_and_show = |thing: &T| {
            // Other tasks may wait for it, as one that removes a path does.
            abort(thing);
            Some(thing.clone())
        };
        for _ in 0..FORCE_MS / FORCE_LOOK_MS {
            match self.begin_stop(abort_and_show) {
                // The task that has turned it off has left its reason.
                Ok(None) => return Ok(()),
                Ok(Some(thing)) => return self.end_stop(thing, stop),
                Err(_) => self.look(|phase| match phase {
                    Phase::Starting(Some(thing)) | Phase::Stopping(Some(thing)) => abort(thing),
                    _ => {}
                }),
            }
            let _ = self.settled.wait_timeout(FORCE_LOOK_MS);
        }
        self.refusal.record(Err(Self::busy()))
    }

    /// Stops `thing` after the phase has become `Stopping`. May sleep.
    fn end_stop(
        &self,
        thing: T,
        stop: impl FnOnce(&T) -> Result<Option<Failure>, Failure>,
    ) -> Result {
        match stop(&thing) {
            Ok(remark) => {
                drop(thing);
                let _ = self.last_error.record(remark.map_or(Ok(()), Err));
                self.enter(Phase::Off);
                self.refusal.record(Ok(()))
            }
            Err(failure) => self.settle(Phase::On(thing), Err(failure)),
        }
    }
}
