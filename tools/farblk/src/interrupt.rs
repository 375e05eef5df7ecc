// SPDX-License-Identifier: GPL-2.0
//! Signals that end a command early: it finishes what it is about, and removes what it has made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// How often a command that sleeps looks whether there was a signal.
const LOOK: Duration = Duration::from_millis(50);

/// Tells whether SIGINT, SIGTERM or SIGHUP has come. They do not end the process any more.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals from now on.
    pub fn take() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register(signal, came.clone())?;
        }
        Ok(Self(came))
    }

    /// Returns true if a signal has come.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps for `time`, or until a signal comes.
    pub fn sleep(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.came() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK));
        }
    }
}
