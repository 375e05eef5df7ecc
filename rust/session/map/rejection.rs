// SPDX-License-Identifier: GPL-2.0

//! Whether I/O may take a path that is connected, and if not, whether the map can go on.

#![forbid(unsafe_code)]

use super::{
    action::{End, Fault},
    admission::Admission,
    machine::Machine,
};
use crate::session::{clock::Lease, PathId};

/// Why I/O may not take a path that is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The path is of no use; the map goes on without it.
    Path(Fault),
    /// The path proves that the map cannot go on.
    Map(End),
}

impl Machine {
    /// Compares what the server says on a path with what it said before. Fails if I/O may not take
    /// the path.
    ///
    /// The server was not heard of for `silent_ms`. If that is the whole lease, the lease is over
    /// even if its timer does not run, as a path counts as up that is dead: so it is after the host
    /// was suspended. For a map without heartbeats the time says nothing.
    pub(super) fn check(
        &self,
        id: PathId,
        admission: &Admission,
        silent_ms: u32,
    ) -> Result<(), Rejection> {
        let Some(known) = self.known.as_ref() else {
            return Ok(());
        };
        let overdue = self.config.heartbeat_ms != 0 && silent_ms >= known.lease_ms;
        // Another server proves nothing about the one that the map is at.
        if known.server != admission.server {
            return Err(Rejection::Path(Fault::OtherServer));
        }
        // What the server said before it said what the map knows, but came later, is no news.
        let now = (known.reservation_key, known.instance);
        let asked = self.path(id).and_then(|path| path.asked);
        if asked != Some(now) && (admission.reservation_key, admission.instance) != now {
            return Err(Rejection::Path(Fault::Overtaken));
        }
        let (fault, end) = if known.export != admission.export {
            (Fault::OtherExport, End::Stale)
        } else if known.instance != admission.instance && admission.volatile {
            // The same server says that the contents are gone: no other path can lead to them.
            return Err(Rejection::Map(End::Stale));
        } else if known.reservation_key != admission.reservation_key
            || (self.lease == Lease::Over || overdue) && !admission.remembered
        {
            (Fault::OtherReservation, End::Evicted)
        } else {
            let fit = self
                .limits
                .map_or(Ok(()), |disk| admission.limits.fit(&disk));
            return fit.map_err(|why| Rejection::Path(Fault::Misfit(why)));
        };
        Err(match self.another_is_up(id) {
            true => Rejection::Path(fault),
            false => Rejection::Map(end),
        })
    }
}
