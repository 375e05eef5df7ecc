// SPDX-License-Identifier: GPL-2.0

//! The timers of a map: which of them run, and what follows when one has elapsed.

#![forbid(unsafe_code)]

use super::{
    action::{Action, Mode},
    machine::Machine,
    path::{Path, Phase},
};
use crate::session::clock::{Delay, Lease, Timer};

impl Machine {
    /// A timer has elapsed. One that was stopped meanwhile means nothing.
    pub(super) fn elapsed(&mut self, timer: Timer, act: &mut impl FnMut(Action)) {
        match timer {
            Timer::Retry(id) => {
                if let Some(path) = self
                    .path_mut(id)
                    .filter(|path| path.phase == Phase::Waiting)
                {
                    path.phase = Phase::Due;
                }
            }
            Timer::Expiry if self.expiry => {
                self.expiry = false;
                self.expired = true;
            }
            Timer::Lease if self.lease == Lease::Running => self.lease = Lease::Over,
            Timer::SendRetry if self.send_retry => {
                self.send_retry = false;
                if self.mode == Mode::Replay {
                    act(Action::Replay);
                }
            }
            Timer::Expiry | Timer::Lease | Timer::SendRetry | Timer::Heartbeat(_) => {}
        }
    }

    /// Lets the timers run that have to, and no other ones.
    pub(super) fn run_timers(&mut self, act: &mut impl FnMut(Action)) {
        let live = self.known.is_some() && self.end.is_none();
        let up = self.paths.iter().any(Path::is_up);
        let waits = live && !self.expired && !self.gets_through();
        match self.config.no_path_timeout_ms.filter(|_| waits) {
            // The first path after all were lost may be about to be proven.
            Some(0) if up && !self.paths.iter().any(|path| path.unclean) => {}
            Some(0) => {
                self.expired = true;
                self.set_mode(act);
            }
            Some(ms) if !self.expiry => {
                self.expiry = true;
                act(Action::Arm(Timer::Expiry, Delay::exactly(ms)));
            }
            None if self.expiry => {
                self.expiry = false;
                act(Action::Disarm(Timer::Expiry));
            }
            _ => {}
        }
        match (self.lease, self.known) {
            (Lease::Kept, Some(known)) if live && !up => {
                self.lease = Lease::Running;
                // The server's lease begins when it notices the loss. It was there when the client
                // sent the last message that it answered. A map without heartbeats may have sent
                // none for a long time, and cannot go by that.
                act(match self.config.heartbeat_ms {
                    0 => Action::Arm(Timer::Lease, Delay::exactly(known.lease_ms)),
                    _ => Action::ArmLease(known.lease_ms),
                });
            }
            (Lease::Running, _) if up || !live => {
                self.lease = Lease::Kept;
                act(Action::Disarm(Timer::Lease));
            }
            (Lease::Over, _) if up || !live => self.lease = Lease::Kept,
            _ => {}
        }
    }
}
