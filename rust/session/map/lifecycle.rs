// SPDX-License-Identifier: GPL-2.0

//! The life of a path: it is connected, lost, drained, closed and connected again.

#![forbid(unsafe_code)]

use super::{
    action::{Action, End, Fault, Mode},
    admission::Admission,
    event::{Drained, Failure, Told},
    machine::{ids, Machine},
    path::{FenceRequest, Phase},
    rejection::Rejection,
};
use crate::session::{
    clock::{Delay, Heartbeat, KeepAlive, Timer},
    Epoch, PathId,
};

impl Machine {
    /// A period of a path's heartbeat is over. `heard` says whether anything came on the path in
    /// it.
    pub(super) fn heartbeat(&mut self, id: PathId, heard: bool, act: &mut impl FnMut(Action)) {
        let alone = !self.another_is_up(id);
        let heartbeat_ms = self.config.heartbeat_ms;
        let Some(path) = self.path_mut(id).filter(|path| path.is_up()) else {
            return;
        };
        let keep_alive = path.heartbeat.elapsed(heard, alone);
        let next_ms = path.heartbeat.period_ms(heartbeat_ms);
        match keep_alive {
            KeepAlive::Fine => {}
            KeepAlive::Ping => act(Action::Ping(id)),
            KeepAlive::TimedOut => {
                act(Action::Blame(id, Fault::Silent));
                return self.close(id, act);
            }
        }
        if let Some(ms) = next_ms {
            act(Action::Arm(Timer::Heartbeat(id), Delay::exactly(ms)));
        }
    }

    /// A path is connected: lets I/O take it, unless the server says what does not fit to the map,
    /// as [`Self::check`] found.
    pub(super) fn connected(
        &mut self,
        id: PathId,
        epoch: Epoch,
        admission: &Admission,
        checked: Result<(), Rejection>,
        act: &mut impl FnMut(Action),
    ) {
        let alone = !self.another_is_up(id);
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        path.tried = true;
        if !matches!(path.phase, Phase::Connecting | Phase::Closing) {
            return;
        }
        path.foreign = checked == Err(Rejection::Path(Fault::OtherServer));
        if path.phase == Phase::Closing {
            // What came of an attempt that is not wanted any more.
            return self.close(id, act);
        }
        if path.broken {
            act(Action::Blame(id, Fault::Broken));
            return self.close(id, act);
        }
        if let Err(Rejection::Path(fault)) = checked {
            act(Action::Blame(id, fault));
            return self.close(id, act);
        }
        // INVARIANT: It is the newest epoch, and the server let go of the older ones before it let
        // the client in.
        path.phase = Phase::Up;
        path.used = epoch;
        path.fenced = epoch.saturating_sub(1);
        path.fence = FenceRequest::None;
        path.proven = false;
        path.was_up = true;
        path.heartbeat = Heartbeat::new(alone);
        let heartbeat = path.heartbeat;
        if let Err(Rejection::Map(end)) = checked {
            if end == End::Evicted {
                act(Action::Blame(id, Fault::OtherReservation));
            }
            return self.finish(end, act);
        }
        let known = self.known.replace(*admission);
        self.limits.get_or_insert(admission.limits);
        let restarted = known.is_some_and(|known| known.instance != admission.instance);
        if restarted {
            self.restarted = true;
            // What still arrives on them was done by the server that is gone.
            for other in ids().filter(|other| *other != id) {
                if self.is_up(other) {
                    self.close(other, act);
                }
            }
        }
        match known {
            Some(known) if !restarted && !admission.extent.is_newer_than(&known.extent) => {
                // What was said on another path is newer.
                if let Some(now) = &mut self.known {
                    now.extent = known.extent;
                }
            }
            Some(known) if known.extent == admission.extent => {}
            _ => act(Action::Resize(admission.extent)),
        }
        act(Action::Open(id));
        // The answer proves the path if there is no I/O.
        act(Action::Ping(id));
        if let Some(ms) = heartbeat.period_ms(self.config.heartbeat_ms) {
            act(Action::Arm(Timer::Heartbeat(id), Delay::exactly(ms)));
        }
    }

    /// An attempt to connect a path has failed.
    pub(super) fn refused(
        &mut self,
        id: PathId,
        epoch: Epoch,
        failure: Failure,
        act: &mut impl FnMut(Action),
    ) {
        let alone = !self.another_is_up(id);
        let urgent = self.mode != Mode::Flow;
        let max_ms = self.config.reconnect_max_ms;
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        path.tried = true;
        if path.phase != Phase::Connecting {
            return;
        }
        path.phase = Phase::Waiting;
        path.broken = false;
        let delay = path.backoff.next(max_ms, urgent);
        // A server that let the map in on this path before, and does not any more, will not do so
        // again.
        let evicted = failure == Failure::Denied && path.was_up && alone;
        act(Action::Arm(Timer::Retry(id), delay));
        if evicted {
            self.finish(End::Evicted, act);
        }
    }

    /// A path broke.
    pub(super) fn lost(&mut self, id: PathId, epoch: Epoch, act: &mut impl FnMut(Action)) {
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        match path.phase {
            // The attempt's own end says more.
            Phase::Connecting => path.broken = true,
            Phase::Up => self.close(id, act),
            Phase::Off | Phase::Due | Phase::Waiting | Phase::Closing => {}
        }
    }

    /// A path is drained, as well as its device does that.
    pub(super) fn drained(
        &mut self,
        id: PathId,
        epoch: Epoch,
        how: Drained,
        act: &mut impl FnMut(Action),
    ) {
        let Some(path) = self.newest(id, epoch) else {
            return;
        };
        path.draining = path.draining.saturating_sub(1);
        // A path of which nothing was used has nothing to come back.
        path.unclean |= how == Drained::Unclean && path.used == path.epoch;
        if path.draining != 0 || path.phase != Phase::Closing {
            return;
        }
        self.released(id, act);
    }

    /// Nothing is left of a path; `told` says whether a server has heard on it that the map leaves.
    pub(super) fn closed(&mut self, id: PathId, told: Told) {
        let over = self.end.is_some();
        let Some(path) = self.path_mut(id) else {
            return;
        };
        path.closing = path.closing.saturating_sub(1);
        if path.closing == 0 {
            path.unclean = false;
        }
        if !over {
            return;
        }
        match told {
            Told::NotNeeded => {}
            Told::NoAnswer => self.unanswered = true,
            // The path may lead to another server than that of the map.
            Told::Server(server) => {
                self.told |= self.known.is_none_or(|known| known.server == server);
            }
        }
    }

    /// Nothing of a path's newest epoch is in the way of the next one.
    fn released(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let over = self.end.is_some();
        let urgent = self.mode != Mode::Flow;
        let max_ms = self.config.reconnect_max_ms;
        let Some(path) = self.path_mut(id) else {
            return;
        };
        if !path.wanted || over {
            path.phase = Phase::Off;
            return;
        }
        path.phase = Phase::Waiting;
        let delay = path.backoff.next(max_ms, urgent);
        act(Action::Arm(Timer::Retry(id), delay));
    }

    /// Lets go of a path that is up or about to be, or of what came of an attempt that was given
    /// up.
    pub(super) fn close(&mut self, id: PathId, act: &mut impl FnMut(Action)) {
        let over = self.end.is_some();
        let Some(path) = self.path_mut(id) else {
            return;
        };
        let leave = over || path.foreign;
        if path.is_up() {
            act(Action::Disarm(Timer::Heartbeat(id)));
        }
        path.phase = Phase::Closing;
        path.broken = false;
        path.proven = false;
        path.draining = path.draining.saturating_add(1);
        path.closing = path.closing.saturating_add(1);
        let epoch = path.epoch;
        // Before the path is let go of, so that none of its I/O can be given to it any more.
        self.set_mode(act);
        act(Action::Close {
            path: id,
            epoch,
            leave,
        });
        // What was asked on it will not be answered.
        for path in &mut self.paths {
            match path.fence {
                FenceRequest::Sent(via) | FenceRequest::Unsent(via) if via == id => {
                    path.fence = FenceRequest::None;
                }
                _ => {}
            }
        }
    }
}
