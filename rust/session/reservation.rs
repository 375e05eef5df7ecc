// SPDX-License-Identifier: GPL-2.0

//! The server's side of sessions: whom an export belongs to, and which epochs of a path are over.
//!
//! These are decisions only. The shell asks anew once it did what a decision calls for.

#![forbid(unsafe_code)]

use crate::session::{
    Epoch,
    PathId,
    Tenure,
    PATHS_MAX, //
};

/// Periods without a sign of life after which a client gives up a path.
const LATE: u64 = 3;
/// What an attempt to connect may take, in ms.
const ATTEMPT_MS: u64 = 5000;

/// What a client says of its map when it wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Random, for each time that the map is enabled.
    pub incarnation: u64,
    /// The tenure to resume; `None` if the map was never let in.
    pub resume: Option<Tenure>,
}

/// Whose an export was last, if one map at a time may have it. It outlives the export's being disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Custody {
    /// `None` if there was nobody since the server began.
    tenure: Option<Tenure>,
}

/// Whether a map may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is in: one more path, or one that is back.
    Join,
    /// It is back after it was enabled anew: the one that is in has to go first, with all its paths.
    Replace,
    /// It comes in, under this tenure.
    Admit(Tenure),
    /// Others are in.
    Busy,
    /// The export was another's since.
    Evicted,
}

impl Custody {
    /// Judges a claim. `incarnation` is that of the same map if it is in, `room` whether another map
    /// may come in, `fresh` a tenure that was never used.
    pub fn judge(
        &mut self,
        claim: &Claim,
        incarnation: Option<u64>,
        room: bool,
        fresh: Tenure,
    ) -> Verdict {
        let verdict = match (incarnation, claim.resume) {
            (Some(incarnation), _) if incarnation == claim.incarnation => Verdict::Join,
            (Some(_), None) => Verdict::Replace,
            (Some(_), Some(_)) => Verdict::Evicted,
            (None, Some(tenure)) if self.tenure.unwrap_or(tenure) != tenure => Verdict::Evicted,
            (None, _) if !room => Verdict::Busy,
            (None, Some(tenure)) => Verdict::Admit(tenure),
            (None, None) => Verdict::Admit(fresh),
        };
        if let Verdict::Admit(tenure) = verdict {
            self.tenure = Some(tenure);
        }
        verdict
    }

    /// Whether a resumed tenure is the one that the server knows; so is one that is not resumed, but given.
    pub fn remembers(&self, claim: &Claim) -> bool {
        claim.resume.is_none() || self.tenure == claim.resume
    }

    /// Nobody can resume what was; `fresh` is a tenure that was never used.
    pub fn revoke(&mut self, fresh: Tenure) {
        self.tenure = Some(fresh);
    }
}

/// How long a map without a path keeps its place at an export, in ms: as long as it holds I/O, and the time
/// in which it notices that a path is lost and gives up an attempt to connect. `None` is for ever.
pub fn lease_ms(no_path_timeout_ms: Option<u32>, heartbeat_ms: u32) -> Option<u64> {
    let late = LATE * u64::from(heartbeat_ms) + ATTEMPT_MS;
    no_path_timeout_ms.map(|held| u64::from(held) + late)
}

/// The longest lease that a server grants, in ms: one hour.
pub const LEASE_MAX_MS: u32 = 3_600_000;

/// The lease that a server grants who asks for this one.
pub fn granted_ms(lease: Option<u64>) -> u32 {
    lease
        .and_then(|ms| u32::try_from(ms).ok())
        .map_or(LEASE_MAX_MS, |ms| ms.clamp(1, LEASE_MAX_MS))
}

/// Whether a path may come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// It is up.
    Up,
    /// This epoch of it has to go first: its queue pairs are drained, its I/O is done.
    After(Epoch),
    /// The epoch is over.
    Over,
}

/// The answer to a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fence {
    /// Nothing of the path up to the epoch is there, nor will be.
    Done,
    /// This epoch of it has to go first.
    After(Epoch),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Path {
    /// Epochs up to this one do not come up any more.
    floor: Epoch,
    /// The one that is up, or still has something.
    live: Option<Epoch>,
}

/// A map that is in, with its paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Member {
    /// As in its [`Claim`].
    pub incarnation: u64,
    paths: [Path; PATHS_MAX],
}

impl Member {
    /// A map without a path.
    pub const fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            paths: [Path {
                floor: 0,
                live: None,
            }; PATHS_MAX],
        }
    }

    /// A path wants to come up.
    pub fn arrive(&mut self, path: PathId, epoch: Epoch) -> Arrival {
        let Some(path) = self.paths.get_mut(usize::from(path)) else {
            return Arrival::Over;
        };
        if epoch <= path.floor {
            return Arrival::Over;
        }
        if let Some(live) = path.live {
            return Arrival::After(live);
        }
        *path = Path {
            floor: epoch,
            live: Some(epoch),
        };
        Arrival::Up
    }

    /// A path is to be fenced up to an epoch.
    pub fn fence(&mut self, path: PathId, epoch: Epoch) -> Fence {
        let Some(path) = self.paths.get_mut(usize::from(path)) else {
            return Fence::Done;
        };
        path.floor = path.floor.max(epoch);
        match path.live {
            Some(live) if live <= epoch => Fence::After(live),
            _ => Fence::Done,
        }
    }

    /// Nothing of this epoch of the path is there any more.
    pub fn gone(&mut self, path: PathId, epoch: Epoch) {
        if let Some(path) = self.paths.get_mut(usize::from(path)) {
            if path.live == Some(epoch) {
                path.live = None;
            }
        }
    }

    /// The epochs that are there.
    pub fn live(&self) -> impl Iterator<Item = (PathId, Epoch)> + '_ {
        (0..)
            .zip(&self.paths)
            .filter_map(|(id, path)| Some((id, path.live?)))
    }
}
