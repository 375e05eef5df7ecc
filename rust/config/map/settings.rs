// SPDX-License-Identifier: GPL-2.0

//! The settings of a map, and its enabled paths.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;

use crate::client::{
    host::Host,
    Options,
    Policy,
    Target, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    Name,
    Protection, //
};
use crate::session::{
    PathId,
    PATHS_MAX, //
};

/// An enabled path: its name, the address of the server, and the local address.
#[derive(Clone, Copy)]
pub(super) struct Path {
    name: Name,
    addr: SocketAddr,
    source: Option<SocketAddr>,
    /// The path is being removed. It keeps its index until nothing is left of it.
    removing: bool,
}

impl Path {
    /// Returns a path to `addr`.
    pub(super) fn new(name: Name, addr: SocketAddr, source: Option<SocketAddr>) -> Self {
        Self {
            name,
            addr,
            source,
            removing: false,
        }
    }

    /// Returns the path as a map of `host` takes it, in the network namespace of the current task.
    pub(super) fn target(&self, host: &Host, tos: u8) -> Target {
        host.target(self.addr, self.source, tos)
    }
}

/// The settings of a map.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// What a map is made with.
    pub(super) options: Options,
    /// Type of service of the packets.
    pub(super) tos: u8,
    /// The enabled paths. The index is the [`PathId`].
    paths: [Option<Path>; PATHS_MAX],
}

impl Settings {
    /// Returns the settings of a new map of the export `export`.
    pub(super) fn new(export: Name) -> Self {
        Self {
            options: Options {
                export,
                access: Access::ReadWrite,
                queues: 0,
                poll_queues: 0,
                depth: 128,
                inline_size: 4096,
                protection: Protection::None,
                io_timeout_ms: 30_000,
                no_path_timeout_ms: Some(60_000),
                heartbeat_ms: 1000,
                reconnect_max_ms: 10_000,
                policy: Policy::MinInflight,
                expect_instance: None,
            },
            tos: 0,
            paths: [None; PATHS_MAX],
        }
    }

    fn position(&self, wanted: impl Fn(&Option<Path>) -> bool) -> Option<PathId> {
        PathId::try_from(self.paths.iter().position(wanted)?).ok()
    }

    fn set(&mut self, id: PathId, path: Option<Path>) {
        if let Some(place) = self.paths.get_mut(usize::from(id)) {
            *place = path;
        }
    }

    /// Returns the id of an enabled path.
    pub(super) fn find(&self, name: &Name) -> Option<PathId> {
        self.position(|path| path.as_ref().is_some_and(|path| path.name == *name))
    }

    /// Returns the enabled paths, as a map of `host` takes them.
    pub(super) fn targets<'a>(
        &'a self,
        host: &'a Host,
    ) -> impl Iterator<Item = (PathId, Target)> + 'a {
        let tos = self.tos;
        let paths = (0..).zip(&self.paths);
        paths
            .filter_map(|(id, path)| Some((id, path.as_ref().filter(|path| !path.removing)?)))
            .map(move |(id, path)| (id, path.target(host, tos)))
    }

    /// Adds an enabled path, and returns its id. Fails with `ENOSPC` if there are as many as a map
    /// can have.
    pub(super) fn add(&mut self, path: Path) -> Result<PathId, Failure> {
        let id = self
            .position(Option::is_none)
            .ok_or_else(|| fail!(ENOSPC, "a map has {PATHS_MAX} paths at most"))?;
        self.set(id, Some(path));
        Ok(id)
    }

    /// Removes a path, or, if a map runs that has to close it, marks it as being removed and
    /// returns its id. Fails with `EBUSY` if it is the last path of a map that runs.
    pub(super) fn remove(&mut self, name: &Name, runs: bool) -> Result<Option<PathId>, Failure> {
        let Some(id) = self.find(name) else {
            return Ok(None);
        };
        if !runs {
            self.set(id, None);
            return Ok(None);
        }
        let stays = |path: &Path| !path.removing && path.name != *name;
        if !self.paths.iter().flatten().any(stays) {
            return Err(fail!(EBUSY, "the last path of a map that is enabled"));
        }
        if let Some(Some(path)) = self.paths.get_mut(usize::from(id)) {
            path.removing = true;
        }
        Ok(Some(id))
    }

    /// Forgets a path of which nothing is left.
    pub(super) fn forget(&mut self, name: &Name) {
        if let Some(id) = self.find(name) {
            self.set(id, None);
        }
    }
}
