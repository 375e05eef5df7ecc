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
    /// It has what another host wrote, and the host may only read.
    Foreign,
}

struct State {
    /// The host that could write to the memory last, if it has not been overwritten since.
    owner: Option<HostKey>,
    running: bool,
}

impl State {
    fn is_foreign(&self, host: &HostKey) -> bool {
        self.owner.is_some_and(|owner| owner != *host)
    }
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

    /// Returns true if the memory has what another host wrote than this one. May sleep.
    pub(super) fn is_foreign(&self, host: &HostKey) -> bool {
        self.state.lock().is_foreign(host)
    }

    /// Gives the memory to a host that has been let in, and `writes` or may only read. It does not
    /// get what another host wrote, if `wanted`: that has to be overwritten first, and a host that
    /// may only read must not be able to destroy it. No session of that host may be left. May
    /// sleep.
    pub(super) fn take(&self, ram: &Ram, host: &HostKey, writes: bool, wanted: bool) -> Answer {
        let mut state = self.state.lock();
        if state.running {
            return Answer::Wait(false);
        }
        if wanted && state.is_foreign(host) {
            if !writes {
                return Answer::Foreign;
            }
            self.done.store(0, Relaxed);
            state.running = true;
            return Answer::Wait(true);
        }
        if writes {
            state.owner = Some(*host);
            ram.note_use();
        }
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

    /// Returns what a client is told that may only read what another host wrote. Any context.
    pub(super) fn foreign() -> Refused {
        Refused::new(
            Refusal::Busy,
            format_args!(
                "the memory has what another host wrote: only a map that may write can have it \
                 cleared"
            ),
        )
    }

    /// Returns what a client is told that logs in meanwhile. Any context.
    pub(super) fn busy(&self, ram: &Ram) -> Refused {
        Refused::new(
            Refusal::Busy,
            format_args!(
                "the memory is being overwritten: {} of {} MiB are done",
                self.done.load(Relaxed) >> MIB_SHIFT,
                ram.size >> MIB_SHIFT
            ),
        )
    }
}
