// SPDX-License-Identifier: GPL-2.0

//! Scrubbing: the memory of an export of RAM is overwritten with zeroes before another host may use
//! it than the one that had it. A work item does that, and logins are refused until it is done.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Mutex, //
    }, //
};

use crate::proto::{
    Refusal,
    Refused, //
};
use crate::server::{
    backend::Ram,
    members::HostKey, //
};

/// Shift from bytes to the MiB of messages.
const MIB_SHIFT: u32 = 20;

/// What became of a host's wish for the memory.
pub(super) enum Answer {
    /// It is the host's.
    Taken,
    /// It is being overwritten. With `true` that has yet to begin: [`Scrub::run`] has to be called,
    /// in a task of its own.
    Wait(bool),
}

struct State {
    /// The host that the memory was last given to, if it has not been overwritten since.
    owner: Option<HostKey>,
    running: bool,
}

/// Who has the memory of an export, and whether it is being overwritten.
#[pin_data]
pub(super) struct Scrub {
    #[pin]
    state: Mutex<State>,
    /// The bytes that are overwritten.
    done: Atomic<usize>,
}

impl Scrub {
    /// Makes the state of memory that nobody has had.
    pub(super) fn new() -> impl PinInit<Self> {
        let state = State {
            owner: None,
            running: false,
        };
        pin_init!(Self {
            state <- new_mutex!(state, "Scrub::state"),
            done: Atomic::new(0),
        })
    }

    /// Gives the memory to a host that has been let in, if it is not being overwritten, nor has to
    /// be: another host had it, and `wanted` is true. No session of that host may be left. May
    /// sleep.
    pub(super) fn take(&self, ram: &Ram, host: &HostKey, wanted: bool) -> Answer {
        let mut state = self.state.lock();
        if state.running {
            return Answer::Wait(false);
        }
        if wanted && state.owner.is_some_and(|owner| owner != *host) {
            self.done.store(0, Relaxed);
            state.running = true;
            return Answer::Wait(true);
        }
        state.owner = Some(*host);
        ram.note_use();
        Answer::Taken
    }

    /// Overwrites the memory, as long as `goes_on` returns true. May sleep, and takes long.
    pub(super) fn run(&self, ram: &Ram, goes_on: impl Fn() -> bool) {
        let cleared = ram.clear(|done| {
            self.done.store(done, Relaxed);
            goes_on()
        });
        let mut state = self.state.lock();
        state.running = false;
        if cleared {
            state.owner = None;
        }
    }

    /// Returns true if the memory is being overwritten. May sleep.
    pub(super) fn is_running(&self) -> bool {
        self.state.lock().running
    }

    /// Returns what a client is told that logs in meanwhile. Any context.
    pub(super) fn busy(&self, ram: &Ram) -> Refused {
        Refused::new(
            Refusal::Busy,
            format_args!(
                "the memory is being overwritten: {} of {} MiB are done",
                self.done.load(Relaxed) >> MIB_SHIFT,
                ram.geometry.size() >> MIB_SHIFT
            ),
        )
    }
}
