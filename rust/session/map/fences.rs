// SPDX-License-Identifier: GPL-2.0

//! The fences that paths owe: asked for on a path that is up, as soon as there is room.

#![forbid(unsafe_code)]

use super::{
    action::Action,
    machine::{ids, Machine},
    path::FenceRequest,
};
use crate::session::{
    clock::{Delay, Timer},
    Epoch, PathId,
};

/// How long to wait for room when something could not be sent, unless there is news before, in ms.
const SEND_RETRY_MS: u32 = 10;

impl Machine {
    /// The server said that no I/O of a path up to an epoch will reach the export.
    pub(super) fn fenced(&mut self, id: PathId, epoch: Epoch) {
        let Some(path) = self.path_mut(id) else {
            return;
        };
        if path.owes_fence() && epoch <= path.used {
            path.fenced = path.fenced.max(epoch);
        }
        if !path.owes_fence() {
            path.fence = FenceRequest::None;
        }
    }

    /// There was no room to send a request for the fence of a path.
    pub(super) fn fence_not_sent(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        if let Some(path) = self.path_mut(id) {
            if let FenceRequest::Sent(via) = path.fence {
                path.fence = FenceRequest::Unsent(via);
                self.arm_send_retry(act);
            }
        }
    }

    /// Lets the timer run after which what could not be sent is tried again.
    pub(super) fn arm_send_retry(&mut self, act: &mut impl FnMut(Action)) {
        if !self.send_retry {
            self.send_retry = true;
            act(Action::Arm(Timer::SendRetry, Delay::exactly(SEND_RETRY_MS)));
        }
    }

    /// Asks for the fences that paths owe, on the first path that is up.
    pub(super) fn request_fences(&mut self, act: &mut impl FnMut(Action)) {
        let Some(via) = ids().find(|id| self.is_up(*id)) else {
            return;
        };
        for (id, path) in ids().zip(&mut self.paths) {
            if !path.owes_fence() {
                continue;
            }
            match path.fence {
                FenceRequest::None => {}
                FenceRequest::Unsent(_) if !self.send_retry => {}
                FenceRequest::Unsent(_) | FenceRequest::Sent(_) => continue,
            }
            path.fence = FenceRequest::Sent(via);
            act(Action::Fence {
                via,
                path: id,
                epoch: path.used,
            });
        }
    }
}
