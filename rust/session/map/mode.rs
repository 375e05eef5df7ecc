// SPDX-License-Identifier: GPL-2.0

//! How I/O is treated, as it follows from the paths.

#![forbid(unsafe_code)]

use super::{
    action::{Action, Mode},
    machine::{ids, Machine},
    path::{Path, Phase},
};
use crate::session::{clock::Timer, PathId};

impl Machine {
    /// Notes that something was answered on the paths that are up and that `which` chooses.
    pub(super) fn prove(&mut self, which: impl Fn(PathId, &Path) -> bool) {
        for (id, path) in ids().zip(&mut self.paths) {
            if path.is_up() && !path.proven && which(id, path) {
                path.proven = true;
                path.backoff.reset();
            }
        }
    }

    /// Returns true if I/O does not wait for a path, nor for a device that does not give requests
    /// back.
    pub(super) fn gets_through(&self) -> bool {
        let proven = self.paths.iter().any(|path| path.is_up() && path.proven);
        proven && !self.paths.iter().any(|path| path.unclean)
    }

    /// Has I/O treated as it has to be, if that is not so yet, and requeued requests with it.
    pub(super) fn set_mode(&mut self, act: &mut impl FnMut(Action)) {
        let mode = self.required_mode();
        let changed = mode != self.mode;
        if changed {
            if matches!(mode, Mode::Replay | Mode::Flow) && self.restarted {
                self.restarted = false;
                // A server without a volatile cache has lost nothing.
                if self.limits.is_none_or(|limits| limits.write_cache) {
                    act(Action::InstanceChanged);
                }
            }
            self.mode = mode;
            act(Action::SetMode(mode));
        }
        match mode {
            Mode::Fail if changed || self.requeued => {
                self.requeued = false;
                act(Action::FailRequeued);
            }
            Mode::Replay if changed => act(Action::Replay),
            Mode::Hold if changed => self.reconnect_soon(act),
            _ => {}
        }
    }

    /// Connects sooner the paths that could wait until now: I/O waits for them.
    fn reconnect_soon(&mut self, act: &mut impl FnMut(Action)) {
        let max_ms = self.config.reconnect_max_ms;
        for (id, path) in ids().zip(&mut self.paths) {
            if path.phase == Phase::Waiting {
                let delay = path.backoff.next(max_ms, true);
                act(Action::Arm(Timer::Retry(id), delay));
            }
        }
    }

    /// Returns how I/O has to be treated.
    fn required_mode(&self) -> Mode {
        let up = self.paths.iter().any(Path::is_up);
        let fenced = !self.paths.iter().any(Path::owes_fence);
        let back = !self.paths.iter().any(Path::owes_requests);
        match () {
            () if self.end.is_some() => Mode::Fail,
            () if up && fenced && back && self.requeued => Mode::Replay,
            () if up && fenced && back => Mode::Flow,
            () if self.expired => Mode::Fail,
            () => Mode::Hold,
        }
    }
}
