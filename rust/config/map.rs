// SPDX-License-Identifier: GPL-2.0

//! `maps/<name>/`: another host's export as a disk.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    str::CString,
    sync::Arc, //
};

use crate::base::{
    configfs::{
        Attribute,
        Group,
        GroupOperations,
        NewGroup,
        NoChild,
        PageWriter,
        Pinned, //
    },
    debugfs::File,
    errno::ESTALE,
    net::Net,
};
use crate::client::{
    host::Host,
    Params,
    PathStatus,
    Policy,
    Session,
    Status,
    Target, //
};
use crate::config::{
    invalid,
    new_name,
    parse,
    path::PathDirs,
    show,
    show_option,
    switch::Switch, //
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    wire::{
        DEPTH_MAX,
        INLINE_MAX, //
    },
    Access,
    Kind,
    LoginReply,
    Name,
    Uuid, //
};
use crate::session::{
    PathId,
    State,
    PATHS_MAX, //
};

/// Hardware queues that can be asked for.
const QUEUES_MAX: u64 = 64;
/// I/O timeouts that can be asked for, in ms: a tenth of a second to an hour.
const IO_TIMEOUT_MS: (u64, u64) = (100, 3_600_000);
/// How long I/O can be asked to wait for a path, in ms: not at all to a day.
const NO_PATH_TIMEOUT_MS: (u64, u64) = (0, 86_400_000);
/// Heartbeats that can be asked for, in ms: none, or up to a minute.
const HEARTBEAT_MS: (u64, u64) = (0, 60_000);
/// Longest times between attempts to connect that can be asked for, in ms: a tenth of a second to an
/// hour.
const RECONNECT_MAX_MS: (u64, u64) = (100, 3_600_000);

/// `maps/`.
pub(super) struct Maps {
    host: Arc<Host>,
}

impl Maps {
    /// Maps of `host`.
    pub(super) fn new(host: Arc<Host>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { host }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for Maps {
    type Child = MapDir;

    fn make_child(group: &Group<Self>, name: &str) -> Result<NewGroup<MapDir>> {
        let settings = Settings {
            export: new_name(name)?,
            access: Access::ReadWrite,
            queues: 0,
            poll_queues: 0,
            depth: 128,
            inline_size: 4096,
            tos: 0,
            io_timeout_ms: 30_000,
            no_path_timeout_ms: Some(60_000),
            heartbeat_ms: 1000,
            reconnect_max_ms: 10_000,
            policy: Policy::MinInflight,
            expect_instance: None,
            paths: [None; PATHS_MAX],
        };
        let host = group.host.clone();
        let name = settings.export;
        let uuid = host.map_uuid(&name);
        let dir = Arc::pin_init(
            pin_init!(MapDir {
                name,
                host,
                uuid,
                switch <- Switch::new(settings),
            }),
            GFP_KERNEL,
        )?;
        let paths = NewGroup::new(PathDirs::new(dir.clone())?)?;
        NewGroup::new(dir)?.with_default(c"paths", paths)
    }
}

/// An enabled path: its name, the server's address, and the local one.
#[derive(Clone, Copy)]
struct Path {
    name: Name,
    addr: SocketAddr,
    source: Option<SocketAddr>,
    /// It is being disabled: it holds its index until the session has let go of it.
    leaving: bool,
}

impl Path {
    fn target(&self, tos: u8) -> Target {
        Target {
            net: Net::current(),
            addr: self.addr,
            source: self.source,
            tos,
        }
    }
}

#[derive(Clone, Copy)]
struct Settings {
    export: Name,
    access: Access,
    queues: u16,
    poll_queues: u16,
    depth: u16,
    inline_size: u32,
    tos: u8,
    io_timeout_ms: u32,
    no_path_timeout_ms: Option<u32>,
    heartbeat_ms: u32,
    reconnect_max_ms: u32,
    policy: Policy,
    expect_instance: Option<Uuid>,
    /// The enabled paths; the index is what the session knows them by.
    paths: [Option<Path>; PATHS_MAX],
}

impl Settings {
    fn find(&self, name: &Name) -> Option<usize> {
        let is_it = |path: &Option<Path>| path.as_ref().is_some_and(|path| path.name == *name);
        self.paths.iter().position(is_it)
    }

    /// The enabled paths, as a session takes them.
    fn targets(&self) -> impl Iterator<Item = (PathId, Target)> + '_ {
        let tos = self.tos;
        let paths = (0..).zip(&self.paths);
        paths
            .filter_map(|(id, path)| Some((id, path.as_ref().filter(|path| !path.leaving)?)))
            .map(move |(id, path)| (id, path.target(tos)))
    }
}

/// A session, whose directory stays.
struct Running {
    // The file drops first: it looks into the session.
    _counters: File<Session>,
    session: Arc<Session>,
    _pinned: Pinned,
}

/// `maps/<name>/`.
#[pin_data]
pub(super) struct MapDir {
    name: Name,
    host: Arc<Host>,
    /// What the server knows the map by.
    uuid: Uuid,
    #[pin]
    switch: Switch<Settings, Arc<Running>>,
}

#[vtable]
impl GroupOperations for MapDir {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"export", Self::show_export, Self::store_export),
        Attribute::rw(c"access", Self::show_access, Self::store_access),
        Attribute::rw(c"queues", Self::show_queues, Self::store_queues),
        Attribute::rw(
            c"poll_queues",
            Self::show_poll_queues,
            Self::store_poll_queues,
        ),
        Attribute::rw(c"depth", Self::show_depth, Self::store_depth),
        Attribute::rw(
            c"inline_size",
            Self::show_inline_size,
            Self::store_inline_size,
        ),
        Attribute::rw(c"tos", Self::show_tos, Self::store_tos),
        Attribute::rw(
            c"io_timeout_ms",
            Self::show_io_timeout,
            Self::store_io_timeout,
        ),
        Attribute::rw(
            c"no_path_timeout_ms",
            Self::show_no_path_timeout,
            Self::store_no_path_timeout,
        ),
        Attribute::rw(c"heartbeat_ms", Self::show_heartbeat, Self::store_heartbeat),
        Attribute::rw(
            c"reconnect_max_ms",
            Self::show_reconnect_max,
            Self::store_reconnect_max,
        ),
        Attribute::rw(c"policy", Self::show_policy, Self::store_policy),
        Attribute::rw(
            c"expect_instance",
            Self::show_expected,
            Self::store_expected,
        ),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"state", Self::show_state),
        Attribute::ro(c"device", Self::show_device),
        Attribute::ro(c"uuid", Self::show_uuid),
        Attribute::ro(c"instance", Self::show_instance),
        Attribute::ro(c"mode", Self::show_mode),
        Attribute::ro(c"size", Self::show_size),
        Attribute::ro(c"last_error", Self::show_last_error),
    ];
}

impl MapDir {
    /// What the session is, while there is one. May sleep.
    pub(super) fn status(&self) -> Option<Status> {
        self.switch
            .running(|running| running.map(|running| running.session.status()))
    }

    /// The state in a word. May sleep.
    pub(super) fn state(&self) -> State {
        let stale = |failure: &Failure| failure.error == ESTALE;
        if let Some(status) = self.status() {
            status.state
        } else if self.switch.starting() {
            State::Connecting
        } else if self.switch.last_error.get().as_ref().is_some_and(stale) {
            State::Stale
        } else {
            State::Disabled
        }
    }

    /// What the session knows of a path, if that is enabled. May sleep.
    pub(super) fn path_status(&self, name: &Name) -> Option<PathStatus> {
        let id = PathId::try_from(self.switch.settings().find(name)?).ok()?;
        let session = self.session()?;
        Some(session.path_status(id))
    }

    fn session(&self) -> Option<Arc<Session>> {
        self.switch
            .running(|running| running.map(|running| running.session.clone()))
    }

    /// A path of the map was enabled. It is brought up at once if the map is enabled. May sleep.
    pub(super) fn add_path(
        &self,
        name: &Name,
        addr: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let path = Path {
            name: *name,
            addr,
            source,
            leaving: false,
        };
        let (id, target, session) = self.switch.adjust(|settings, running| {
            let free = settings.paths.iter().position(Option::is_none);
            let id = free.ok_or_else(|| fail!(ENOSPC, "a map has {PATHS_MAX} paths at most"))?;
            if let Some(place) = settings.paths.get_mut(id) {
                *place = Some(path);
            }
            let target = path.target(settings.tos);
            Ok((id, target, running.map(|running| running.session.clone())))
        })?;
        let Some(session) = session else {
            return Ok(());
        };
        let id = PathId::try_from(id).map_err(Error::from)?;
        session
            .add_path(id, target)
            .inspect_err(|_| self.forget_path(name))
    }

    /// A path of the map was disabled: nothing of it is left when this returns. The last one of a map
    /// that is enabled stays. May sleep.
    pub(super) fn remove_path(&self, name: &Name) -> Result<(), Failure> {
        let leaving = self.switch.adjust(|settings, running| {
            let Some(id) = settings.find(name) else {
                return Ok(None);
            };
            let stays = |path: &Path| !path.leaving && path.name != *name;
            let last = !settings.paths.iter().flatten().any(stays);
            if last && running.is_some() {
                return Err(fail!(EBUSY, "the last path of a map that is enabled"));
            }
            let place = settings.paths.get_mut(id);
            match (place, running) {
                (Some(Some(path)), Some(running)) => {
                    path.leaving = true;
                    Ok(Some((id, running.session.clone())))
                }
                (Some(place), None) => {
                    *place = None;
                    Ok(None)
                }
                _ => Ok(None),
            }
        })?;
        if let Some((id, session)) = leaving {
            // If the session is over, so are its paths.
            let _ = session.remove_path(PathId::try_from(id).map_err(Error::from)?);
            self.forget_path(name);
        }
        Ok(())
    }

    fn forget_path(&self, name: &Name) {
        self.switch.amend(|settings| {
            let id = settings.find(name);
            if let Some(place) = id.and_then(|id| settings.paths.get_mut(id)) {
                *place = None;
            }
        });
    }

    fn show_export(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().export)
    }

    fn store_export(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.export = Name::new(value.as_bytes()).map_err(invalid("export"))?;
            Ok(())
        })
    }

    fn show_access(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().access)
    }

    fn store_access(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.access = value.parse().map_err(invalid("access"))?;
            Ok(())
        })
    }

    fn show_queues(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().queues)
    }

    fn store_queues(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            let queues = parse::unsigned(value, 0, QUEUES_MAX).map_err(invalid("queues"))?;
            settings.queues = u16::try_from(queues).unwrap_or(0);
            Ok(())
        })
    }

    fn show_poll_queues(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().poll_queues)
    }

    fn store_poll_queues(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            let queues = parse::unsigned(value, 0, QUEUES_MAX).map_err(invalid("poll_queues"))?;
            settings.poll_queues = u16::try_from(queues).unwrap_or(0);
            Ok(())
        })
    }

    fn show_inline_size(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().inline_size)
    }

    fn store_inline_size(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            let size = parse::size(value).map_err(invalid("inline_size"))?;
            settings.inline_size = u32::try_from(size)
                .ok()
                .filter(|size| *size <= INLINE_MAX)
                .ok_or_else(|| fail!(EINVAL, "inline_size: more than {INLINE_MAX}"))?;
            Ok(())
        })
    }

    fn show_depth(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().depth)
    }

    fn store_depth(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            let depth = parse::unsigned(value, 1, DEPTH_MAX.into()).map_err(invalid("depth"))?;
            settings.depth = u16::try_from(depth).unwrap_or(1);
            Ok(())
        })
    }

    fn show_tos(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().tos)
    }

    fn store_tos(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            let tos = parse::unsigned(value, 0, u8::MAX.into()).map_err(invalid("tos"))?;
            settings.tos = u8::try_from(tos).unwrap_or(0);
            Ok(())
        })
    }

    fn show_io_timeout(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().io_timeout_ms)
    }

    fn store_io_timeout(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.io_timeout_ms = milliseconds(value, IO_TIMEOUT_MS, "io_timeout_ms")?;
            Ok(())
        })
    }

    fn show_no_path_timeout(&self, page: &mut PageWriter<'_>) -> Result {
        match self.switch.settings().no_path_timeout_ms {
            Some(ms) => show(page, ms),
            None => show(page, -1),
        }
    }

    fn store_no_path_timeout(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.no_path_timeout_ms = match value {
                "-1" => None,
                ms => Some(milliseconds(ms, NO_PATH_TIMEOUT_MS, "no_path_timeout_ms")?),
            };
            Ok(())
        })
    }

    fn show_heartbeat(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().heartbeat_ms)
    }

    fn store_heartbeat(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.heartbeat_ms = milliseconds(value, HEARTBEAT_MS, "heartbeat_ms")?;
            Ok(())
        })
    }

    fn show_reconnect_max(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().reconnect_max_ms)
    }

    fn store_reconnect_max(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.reconnect_max_ms = milliseconds(value, RECONNECT_MAX_MS, "reconnect_max_ms")?;
            Ok(())
        })
    }

    fn show_policy(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().policy.as_str())
    }

    fn store_policy(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.policy = Policy::parse(value)
                .ok_or_else(|| fail!(EINVAL, "policy: neither min-inflight nor round-robin"))?;
            Ok(())
        })
    }

    fn show_expected(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.settings().expect_instance)
    }

    fn store_expected(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.expect_instance = match value {
                "" => None,
                text => Some(text.parse().map_err(invalid("expect_instance"))?),
            };
            Ok(())
        })
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        self.switch.show_enable(page)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        let (enable, force) = group.switch.last_error.record(match value {
            "0" => Ok((false, false)),
            "1" => Ok((true, false)),
            "force" => Ok((false, true)),
            _ => Err(fail!(EINVAL, "enable: not 0, 1 or force")),
        })?;
        match (enable, force) {
            (true, _) => {}
            (false, false) => return group.switch.stop(|running| running.session.stop(false)),
            (false, true) => {
                return group.switch.force_off(
                    |running| running.session.abort(),
                    |running| running.session.stop(true),
                )
            }
        }
        let make = |settings: &Settings| {
            if settings.targets().next().is_none() {
                return Err(fail!(EINVAL, "no path is enabled"));
            }
            let pinned = group.pin()?;
            let session = Session::new(Params {
                host: group.host.clone(),
                uuid: group.uuid,
                incarnation: group.host.next_incarnation(),
                export: settings.export,
                access: settings.access,
                queues: settings.queues,
                poll_queues: settings.poll_queues,
                depth: settings.depth,
                inline_size: settings.inline_size,
                io_timeout_ms: settings.io_timeout_ms,
                no_path_timeout_ms: settings.no_path_timeout_ms,
                heartbeat_ms: settings.heartbeat_ms,
                reconnect_max_ms: settings.reconnect_max_ms,
                policy: settings.policy,
                expect_instance: settings.expect_instance,
            })?;
            let name = CString::try_from_fmt(fmt!("{}", group.name.as_str()))?;
            let dir = group.host.counters.subdir(&name)?;
            let running = Running {
                _counters: dir.file(c"counters", session.clone()),
                session,
                _pinned: pinned,
            };
            Ok(Arc::new(running, GFP_KERNEL)?)
        };
        group.switch.make_and_start(make, |running, settings| {
            running.session.start(settings.targets())
        })
    }

    fn show_state(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.state())
    }

    fn show_device(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.status().and_then(|status| status.disk))
    }

    fn show_uuid(&self, page: &mut PageWriter<'_>) -> Result {
        let login = self.status().and_then(|status| status.login);
        show_option(page, login.map(|login| login.export_uuid))
    }

    fn show_instance(&self, page: &mut PageWriter<'_>) -> Result {
        let login = self.status().and_then(|status| status.login);
        show_option(page, login.map(|login| login.instance))
    }

    fn show_mode(&self, page: &mut PageWriter<'_>) -> Result {
        let login = self.status().and_then(|status| status.login);
        let mode = |login: LoginReply| match login.kind() {
            Kind::Ram => "one_sided",
            Kind::Block => "two_sided",
        };
        show_option(page, login.map(mode))
    }

    fn show_size(&self, page: &mut PageWriter<'_>) -> Result {
        let login = self.status().and_then(|status| status.login);
        show(page, login.map_or(0, |login| login.extent.size))
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        let trouble = self
            .status()
            .and_then(|status| Some((status.failure?, status.since)));
        show_option(page, self.switch.last_error.get_or(trouble))
    }
}

/// A time in ms within `min` and `max`.
fn milliseconds(value: &str, (min, max): (u64, u64), what: &str) -> Result<u32, Failure> {
    let ms = parse::unsigned(value, min, max).map_err(invalid(what))?;
    Ok(u32::try_from(ms).unwrap_or(u32::MAX))
}
