// SPDX-License-Identifier: GPL-2.0

//! `maps/<name>/`: an export of another host as a disk.

#![forbid(unsafe_code)]

mod settings;

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::{
    configfs::{
        Attribute,
        Dependent,
        Group,
        GroupOperations,
        NewGroup,
        NoChild,
        PageWriter, //
    },
    errno::{
        ENOTCONN,
        ESTALE, //
    },
};
use crate::client::{
    host::Host,
    Map,
    MapFiles,
    Params,
    PathStatus,
    Policy,
    Status, //
};
use crate::config::{
    invalid,
    map::settings::{
        Path,
        Settings, //
    },
    new_name, parse,
    path::PathDirs,
    show, show_option,
    switch::{
        Phase,
        Switch, //
    },
};
use crate::link::{
    failure::{
        fail,
        Failure, //
    },
    keys::{
        KeySlot, //
        Psk,
    },
};
use crate::proto::{
    wire::{
        DEPTH_MAX,
        INLINE_MAX, //
    },
    Kind,
    LoginReply,
    Name,
    Uuid, //
};
use crate::session::{clock::HEARTBEAT_MAX_MS, State};

/// The accepted numbers of hardware queues.
const QUEUES: (u64, u64) = (0, 64);
/// The accepted depths of a hardware queue.
const DEPTH: (u64, u64) = (1, DEPTH_MAX as u64);
/// The accepted types of service.
const TOS: (u64, u64) = (0, u8::MAX as u64);
/// The accepted I/O timeouts, in ms: a tenth of a second to an hour.
const IO_TIMEOUT_MS: (u64, u64) = (100, 3_600_000);
/// The accepted times that I/O waits for a path, in ms: not at all to a day.
const NO_PATH_TIMEOUT_MS: (u64, u64) = (0, 86_400_000);
/// The accepted intervals of heartbeats, in ms: none, or up to a minute.
const HEARTBEAT_MS: (u64, u64) = (0, HEARTBEAT_MAX_MS as u64);
/// The accepted longest delays between attempts to connect, in ms: a tenth of a second to an hour.
const RECONNECT_MAX_MS: (u64, u64) = (100, 3_600_000);

/// `maps/`.
pub(super) struct Maps {
    host: Arc<Host>,
}

impl Maps {
    /// Makes the directory of the maps of `host`.
    pub(super) fn new(host: Arc<Host>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { host }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for Maps {
    type Child = MapDir;

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<MapDir>> {
        let settings = Settings::new(new_name(name)?);
        let host = group.host.clone();
        let name = settings.options.export;
        let uuid = host.map_uuid(&name);
        let key = Arc::pin_init(KeySlot::new(), GFP_KERNEL)?;
        let dir = Arc::pin_init(
            pin_init!(MapDir {
                name,
                host,
                uuid,
                key,
                switch <- Switch::new(settings),
            }),
            GFP_KERNEL,
        )?;
        let paths = NewGroup::new(PathDirs::new(dir.clone())?)?;
        NewGroup::new(dir)?.with_default(c"paths", paths)
    }
}

/// A running map, whose directory cannot be removed.
struct Running {
    // The files are dropped first, because they use the map.
    _files: Pin<KBox<MapFiles>>,
    map: Arc<Map>,
    _dependent: Dependent,
}

/// `maps/<name>/`.
#[pin_data]
pub(super) struct MapDir {
    name: Name,
    host: Arc<Host>,
    /// The identity of the map at the server.
    uuid: Uuid,
    key: Arc<KeySlot>,
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
        Attribute::rw(c"protection", Self::show_protection, Self::store_protection),
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
        Attribute::secret(c"key", Self::store_key),
        Attribute::ro(c"key_id", Self::show_key_id),
        Attribute::ro(c"gives_up_ms", Self::show_gives_up),
        Attribute::ro(c"last_error", Self::show_last_error),
        Attribute::ro(c"refusal", Self::show_refusal),
    ];
}

impl MapDir {
    /// Returns the status of the running map, if it runs. May sleep.
    pub(super) fn status(&self) -> Option<Status> {
        self.switch
            .running(|running| running.map(|running| running.map.status()))
    }

    /// Returns the status of a path, if the map runs and the path is enabled. May sleep.
    pub(super) fn path_status(&self, name: &Name) -> Option<PathStatus> {
        let id = self.switch.settings().find(name)?;
        Some(self.map()?.path_status(id))
    }

    fn map(&self) -> Option<Arc<Map>> {
        self.switch
            .running(|running| running.map(|running| running.map.clone()))
    }

    /// Adds a path that was enabled. If the map runs, it begins to connect the path. May sleep.
    pub(super) fn add_path(
        &self,
        name: &Name,
        addr: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let path = Path::new(*name, addr, source);
        let (id, target, map) = self.switch.adjust(|settings, running| {
            let id = settings.add(path)?;
            let target = path.target(&self.host, settings.tos);
            Ok((id, target, running.map(|running| running.map.clone())))
        })?;
        match map.map_or(Ok(()), |map| map.add_path(id, target)) {
            // The map was disabled meanwhile. It takes the path when it is enabled, or has done so.
            Err(failure) if failure.error == ENOTCONN => Ok(()),
            added => added.inspect_err(|_| self.forget_path(name)),
        }
    }

    /// Removes a path that is being disabled. Nothing of it is left when this returns. Fails with
    /// `EBUSY` if it is the last path of a map that runs. May sleep.
    pub(super) fn remove_path(&self, name: &Name) -> Result<(), Failure> {
        let removing = self.switch.adjust(|settings, running| {
            let id = settings.remove(name, running.is_some())?;
            Ok(id.zip(running.map(|running| running.map.clone())))
        })?;
        if let Some((id, map)) = removing {
            // If the map does not run any more, nothing is left of its paths.
            let _ = map.remove_path(id);
            self.forget_path(name);
        }
        Ok(())
    }

    fn forget_path(&self, name: &Name) {
        self.switch.amend(|settings| settings.forget(name));
    }

    fn store_key(group: &Group<Self>, value: &str) -> Result {
        let key = Psk::parse(value).map_err(|error| fail!(error, "key: not a key of farblk"));
        group.key.set(group.switch.refusal.record(key)?);
        Ok(())
    }

    fn show_key_id(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.key.id())
    }

    fn show_export(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.export)
    }

    fn store_export(group: &Group<Self>, value: &str) -> Result {
        let value = Name::new(value.as_bytes()).map_err(invalid("export"));
        store(group, value, |settings| &mut settings.options.export)
    }

    fn show_access(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.access)
    }

    fn store_access(group: &Group<Self>, value: &str) -> Result {
        let value = value.parse().map_err(invalid("access"));
        store(group, value, |settings| &mut settings.options.access)
    }

    fn show_queues(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.queues)
    }

    fn store_queues(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, QUEUES, "queues");
        store(group, value, |settings| &mut settings.options.queues)
    }

    fn show_poll_queues(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.poll_queues)
    }

    fn store_poll_queues(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, QUEUES, "poll_queues");
        store(group, value, |settings| &mut settings.options.poll_queues)
    }

    fn show_inline_size(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.inline_size)
    }

    fn store_inline_size(group: &Group<Self>, value: &str) -> Result {
        let size = parse::size(value).map_err(invalid("inline_size"));
        let value = size.and_then(|size| match u32::try_from(size) {
            Ok(size @ ..=INLINE_MAX) => Ok(size),
            _ => Err(fail!(EINVAL, "inline_size: more than {INLINE_MAX}")),
        });
        store(group, value, |settings| &mut settings.options.inline_size)
    }

    fn show_depth(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.depth)
    }

    fn store_depth(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, DEPTH, "depth");
        store(group, value, |settings| &mut settings.options.depth)
    }

    fn show_protection(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.protection)
    }

    fn store_protection(group: &Group<Self>, value: &str) -> Result {
        let value = value.parse().map_err(invalid("protection"));
        store(group, value, |settings| &mut settings.options.protection)
    }

    fn show_tos(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().tos)
    }

    fn store_tos(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, TOS, "tos");
        store(group, value, |settings| &mut settings.tos)
    }

    fn show_io_timeout(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.io_timeout_ms)
    }

    fn store_io_timeout(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, IO_TIMEOUT_MS, "io_timeout_ms");
        store(group, value, |settings| &mut settings.options.io_timeout_ms)
    }

    fn show_no_path_timeout(&self, page: &mut PageWriter<'_>) -> Result {
        match self.switch.settings().options.no_path_timeout_ms {
            Some(ms) => show(page, ms),
            None => show(page, -1),
        }
    }

    fn store_no_path_timeout(group: &Group<Self>, value: &str) -> Result {
        let value = match value {
            "-1" => Ok(None),
            ms => number(ms, NO_PATH_TIMEOUT_MS, "no_path_timeout_ms").map(Some),
        };
        store(group, value, |settings| {
            &mut settings.options.no_path_timeout_ms
        })
    }

    fn show_heartbeat(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.heartbeat_ms)
    }

    fn store_heartbeat(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, HEARTBEAT_MS, "heartbeat_ms");
        store(group, value, |settings| &mut settings.options.heartbeat_ms)
    }

    fn show_reconnect_max(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.reconnect_max_ms)
    }

    fn store_reconnect_max(group: &Group<Self>, value: &str) -> Result {
        let value = number(value, RECONNECT_MAX_MS, "reconnect_max_ms");
        store(group, value, |settings| {
            &mut settings.options.reconnect_max_ms
        })
    }

    fn show_policy(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().options.policy.as_str())
    }

    fn store_policy(group: &Group<Self>, value: &str) -> Result {
        let value = Policy::parse(value)
            .ok_or_else(|| fail!(EINVAL, "policy: neither min-inflight nor round-robin"));
        store(group, value, |settings| &mut settings.options.policy)
    }

    fn show_expected(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.settings().options.expect_instance)
    }

    fn store_expected(group: &Group<Self>, value: &str) -> Result {
        let value = match value {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(invalid("expect_instance")),
        };
        store(group, value, |settings| {
            &mut settings.options.expect_instance
        })
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        self.switch.show_enable(page)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        let (enable, force) = group.switch.refusal.record(match value {
            "0" => Ok((false, false)),
            "1" => Ok((true, false)),
            "force" => Ok((false, true)),
            _ => Err(fail!(EINVAL, "enable: not 0, 1 or force")),
        })?;
        match (enable, force) {
            (true, _) => {}
            (false, false) => return group.switch.stop(|running| running.map.stop(false)),
            (false, true) => {
                return group.switch.force_off(
                    |running| running.map.abort(),
                    |running| running.map.stop(true),
                )
            }
        }
        let make = |settings: &Settings| {
            if settings.targets(&group.host).next().is_none() {
                return Err(fail!(EINVAL, "no path is enabled"));
            }
            let dependent = group.depend()?;
            let map = Map::new(Params {
                host: group.host.clone(),
                identity: group.host.identity(),
                name: group.name,
                uuid: group.uuid,
                incarnation: group.host.next_incarnation(),
                key: group.key.clone(),
                options: settings.options,
            })?;
            let running = Running {
                _files: MapFiles::new(&group.host, &group.name, &map)?,
                map,
                _dependent: dependent,
            };
            Ok(Arc::new(running, GFP_KERNEL)?)
        };
        group.switch.make_and_start(make, |running, settings| {
            running.map.start(settings.targets(&group.host))
        })
    }

    fn show_state(&self, page: &mut PageWriter<'_>) -> Result {
        let state = self.switch.look(|phase| match phase {
            Phase::On(running) => running.map.status().state.as_str(),
            Phase::Starting(_) => State::Connecting.as_str(),
            Phase::Stopping(_) => "closing",
            Phase::Off => match self.switch.last_error.get() {
                Some(failure) if failure.error == ESTALE => State::Stale.as_str(),
                _ => State::Disabled.as_str(),
            },
        });
        show(page, state)
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

    fn show_gives_up(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.map().and_then(|map| map.gives_up_ms()))
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        let failure = self.status().and_then(|status| status.failure);
        show_option(page, failure.or_else(|| self.switch.last_error.get()))
    }

    fn show_refusal(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.refusal.get())
    }
}

/// Stores the value of a setting, unless the map is enabled. May sleep.
fn store<T>(
    group: &Group<MapDir>,
    value: Result<T, Failure>,
    setting: impl FnOnce(&mut Settings) -> &mut T,
) -> Result {
    group.switch.set(|settings| {
        *setting(settings) = value?;
        Ok(())
    })
}

/// Parses a number within `min` and `max`, which fit in a `T`.
fn number<T: TryFrom<u64>>(
    value: &str,
    (min, max): (u64, u64),
    attribute: &str,
) -> Result<T, Failure> {
    let number = parse::unsigned(value, min, max).map_err(invalid(attribute))?;
    T::try_from(number).map_err(|_| EINVAL.into())
}
