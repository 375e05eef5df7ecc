// SPDX-License-Identifier: GPL-2.0

//! `exports/<name>/`: the exports that this host offers.
//!
//! Long: all files of one directory.

#![forbid(unsafe_code)]

use core::fmt::Write;

use kernel::prelude::*;
use kernel::{
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

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
    memory::NumaNode,
    periodic::PeriodicWork,
    sync, //
};
use crate::client::host::Host as ThisHost;
use crate::config::{
    host::HostDirs,
    invalid, new_name, parse, show, show_option,
    switch::{
        Phase,
        Switch, //
    },
};
use crate::link::failure::{
    fail,
    Failure, //
};
use crate::proto::{
    Access,
    BlockSize,
    Name,
    Uuid, //
};
use crate::server::{
    stats::ExportFiles,
    Export,
    ExportMonitor,
    Exports,
    HostKey,
    Hosts,
    LastClose,
    Members,
    Spec, //
};
use crate::session::reservation::{
    Admission,
    LEASE_MIN_MS, //
};

/// `exports/`.
pub(super) struct ExportDirs {
    exports: Arc<Exports>,
    this_host: Arc<ThisHost>,
}

impl ExportDirs {
    /// Makes the directory of the exports that `this_host` offers. May sleep.
    pub(super) fn new(exports: Arc<Exports>, this_host: Arc<ThisHost>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { exports, this_host }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for ExportDirs {
    type Child = ExportDir;

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<ExportDir>> {
        let name = new_name(name)?;
        let mut uuid = [0; 16];
        sync::random_bytes(&mut uuid);
        let spec = Spec::new(name, Uuid::from_random(uuid));
        let exports = group.exports.clone();
        let hosts = Hosts::new()?;
        let members = Members::new(exports.stats.clone())?;
        let last_close = LastClose::new()?;
        let dir = Arc::pin_init(
            try_pin_init!(ExportDir {
                name,
                exports,
                this_host: group.this_host.clone(),
                hosts,
                members,
                allocated: Atomic::new(0),
                last_close,
                switch <- Switch::new(spec),
            }),
            GFP_KERNEL,
        )?;
        let hosts = dir.hosts.clone();
        let new = NewGroup::new(dir.clone())?
            .with_default(c"hosts", NewGroup::new(HostDirs::new(dir)?)?)?;
        group.exports.define(name, hosts)?;
        Ok(new)
    }

    fn drop_item(_group: &Group<Self>, dir: &ExportDir) {
        dir.exports.undefine(&dir.name);
    }
}

/// How long disabling an export waits for the last reference to its device or memory, in ms.
const RELEASE_MS: u32 = 10_000;

/// An enabled export, with a reference that keeps its directory.
struct Running {
    _files: Option<Pin<KBox<ExportFiles>>>,
    _monitor: PeriodicWork<ExportMonitor>,
    export: Arc<Export>,
    _dependent: Dependent,
}

/// `exports/<name>/`.
#[pin_data]
pub(super) struct ExportDir {
    name: Name,
    exports: Arc<Exports>,
    this_host: Arc<ThisHost>,
    /// Its `hosts/`.
    pub(super) hosts: Arc<Hosts>,
    /// The maps that are registered. They stay known while the export is disabled.
    members: Arc<Members>,
    /// The bytes of memory that are allocated so far, while it is being enabled.
    allocated: Atomic<u64>,
    /// Remembers how its device was closed last.
    last_close: Arc<LastClose>,
    #[pin]
    switch: Switch<Spec, Running>,
}

#[vtable]
impl GroupOperations for ExportDir {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"kind", Self::show_kind, Self::store_kind),
        Attribute::rw(
            c"device_path",
            Self::show_device_path,
            Self::store_device_path,
        ),
        Attribute::rw(c"size", Self::show_size, Self::store_size),
        Attribute::rw(c"uuid", Self::show_uuid, Self::store_uuid),
        Attribute::rw(c"read_only", Self::show_read_only, Self::store_read_only),
        Attribute::rw(c"block_size", Self::show_block_size, Self::store_block_size),
        Attribute::rw(c"numa_node", Self::show_numa_node, Self::store_numa_node),
        Attribute::rw(
            c"ram_reserve",
            Self::show_ram_reserve,
            Self::store_ram_reserve,
        ),
        Attribute::rw(c"ports", Self::show_ports, Self::store_ports),
        Attribute::rw(c"allow_any_host", Self::show_any_host, Self::store_any_host),
        Attribute::rw(c"scrub", Self::show_scrub, Self::store_scrub),
        Attribute::rw(
            c"max_clients",
            Self::show_max_clients,
            Self::store_max_clients,
        ),
        Attribute::rw(c"lease_max_ms", Self::show_lease_max, Self::store_lease_max),
        Attribute::rw(c"protection", Self::show_protection, Self::store_protection),
        Attribute::private(
            c"registration",
            Self::show_registration,
            Self::store_registration,
        ),
        Attribute::wo(c"evict", Self::store_evict),
        Attribute::wo(c"pr_clear", Self::store_pr_clear),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"state", Self::show_state),
        Attribute::ro(c"allocated", Self::show_allocated),
        Attribute::ro(c"instance", Self::show_instance),
        Attribute::ro(c"clients", Self::show_clients),
        Attribute::ro(c"clients_away", Self::show_clients_away),
        Attribute::ro(c"pr_registrants", Self::show_pr_registrants),
        Attribute::ro(c"last_error", Self::show_last_error),
        Attribute::ro(c"refusal", Self::show_refusal),
    ];
}

impl ExportDir {
    /// Returns the export, while it is enabled. May sleep.
    pub(super) fn export(&self) -> Option<Arc<Export>> {
        self.switch
            .running(|running| running.map(|running| running.export.clone()))
    }

    /// Begins to end the sessions that the settings do not allow any more, and evicts the maps of
    /// all hosts for which `stays` is false. Waits for nothing; may sleep.
    pub(super) fn evict(&self, stays: impl Fn(&HostKey) -> bool) {
        self.renumber();
        let spec = self.switch.settings();
        // The sessions end by themselves.
        let _ = self.members.end_sessions(|host| match stays(host) {
            true => spec.admission(&self.hosts, host),
            false => Admission::None,
        });
    }

    /// Ends the sessions that the settings do not allow any more. When this returns, nothing of
    /// these, nor of the maps that were evicted before, can reach the export.
    ///
    /// May sleep, as long as the backing device takes, unless the task is killed: then this fails
    /// with `EINTR`, and the sessions go on ending.
    pub(super) fn enforce(&self) -> Result<(), Failure> {
        self.renumber();
        let spec = self.switch.settings();
        self.members
            .enforce(|host| spec.admission(&self.hosts, host))
    }

    /// Ends the sessions that have not proved a key of their host, if it has any or the export
    /// needs one. Waits as [`ExportDir::enforce`] does.
    pub(super) fn enforce_keys(&self) -> Result<(), Failure> {
        let needed = self.switch.settings().protection.needs_key();
        self.members.end_unproven(|host, proven| match needed {
            true => proven.is_some_and(|key| self.hosts.has_proved(host, key)),
            false => self.hosts.is_proven(host, proven),
        })
    }

    /// Gives the extent a new number: what clients may do with it has changed. May sleep.
    fn renumber(&self) {
        if let Some(export) = self.export() {
            export.backend.renumber();
        }
    }

    fn show_kind(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().source.kind)
    }

    fn store_kind(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.source.kind = value.parse().map_err(invalid("kind"))?;
            Ok(())
        })
    }

    fn show_device_path(&self, page: &mut PageWriter<'_>) -> Result {
        match self.switch.settings().source.device_path {
            Some(path) => {
                let path = path.to_str().map_err(|_| EINVAL)?;
                show(page, path)
            }
            None => show(page, ""),
        }
    }

    fn store_device_path(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.source.device_path = match value {
                "" => None,
                path if !path.starts_with('/') => {
                    return Err(fail!(EINVAL, "device_path: does not start with /"));
                }
                path => {
                    let path = CString::try_from_fmt(fmt!("{path}"))?;
                    Some(Arc::new(path, GFP_KERNEL)?)
                }
            };
            Ok(())
        })
    }

    fn show_size(&self, page: &mut PageWriter<'_>) -> Result {
        let size = match self.export() {
            Some(export) => export.backend.extent().size,
            None => self.switch.settings().source.size,
        };
        show(page, size)
    }

    fn store_size(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.source.size = parse::size(value).map_err(invalid("size"))?;
            Ok(())
        })
    }

    fn show_uuid(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().uuid)
    }

    fn store_uuid(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            let uuid: Uuid = value.parse().map_err(invalid("uuid"))?;
            if uuid.is_nil() {
                return Err(fail!(EINVAL, "uuid: all zero"));
            }
            spec.uuid = uuid;
            Ok(())
        })
    }

    fn show_read_only(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, u8::from(!self.switch.settings().access.writes()))
    }

    fn store_read_only(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.access = match parse::boolean(value).map_err(invalid("read_only"))? {
                true => Access::ReadOnly,
                false => Access::ReadWrite,
            };
            Ok(())
        })
    }

    fn show_block_size(&self, page: &mut PageWriter<'_>) -> Result {
        let block_size = match self.export() {
            Some(export) => export.backend.limits().logical_block_size,
            None => self
                .switch
                .settings()
                .source
                .block_size
                .unwrap_or(BlockSize::MAX),
        };
        show(page, block_size.get())
    }

    fn store_block_size(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            let bytes =
                parse::unsigned(value, 0, u32::MAX.into()).map_err(invalid("block_size"))?;
            spec.source.block_size = u32::try_from(bytes)
                .map_err(|_| fail!(EINVAL, "block_size: out of range"))
                .and_then(|bytes| BlockSize::try_from(bytes).map_err(invalid("block_size")))
                .map(Some)?;
            Ok(())
        })
    }

    fn show_numa_node(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().source.numa_node.as_raw())
    }

    fn store_numa_node(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            let node = parse::signed(value, -1, i32::MAX.into()).map_err(invalid("numa_node"))?;
            spec.source.numa_node = match node {
                -1 => Some(NumaNode::NO_NODE),
                _ => i32::try_from(node)
                    .ok()
                    .and_then(|node| NumaNode::new(node).ok()),
            }
            .filter(|node| node.is_online())
            .ok_or_else(|| fail!(EINVAL, "numa_node: there is no node {node}"))?;
            Ok(())
        })
    }

    fn show_ram_reserve(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().source.ram_reserve)
    }

    fn store_ram_reserve(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.source.ram_reserve = parse::size(value).map_err(invalid("ram_reserve"))?;
            Ok(())
        })
    }

    fn show_ports(&self, page: &mut PageWriter<'_>) -> Result {
        let ports = self.switch.settings().ports;
        if ports.names().next().is_none() {
            return show(page, "all");
        }
        for (index, name) in ports.names().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(page, "{separator}{name}").map_err(|_| EMSGSIZE)?;
        }
        show(page, "")
    }

    fn store_ports(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.ports = value.parse()?;
            Ok(())
        })
    }

    fn show_any_host(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, u8::from(self.switch.settings().allow_any_host))
    }

    fn store_any_host(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.allow_any_host = parse::boolean(value).map_err(invalid("allow_any_host"))?;
            Ok(())
        })?;
        // There are no sessions, but persistent registrations.
        group.evict(|_| true);
        Ok(())
    }

    fn show_scrub(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, u8::from(self.switch.settings().scrub))
    }

    fn store_scrub(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.scrub = parse::boolean(value).map_err(invalid("scrub"))?;
            Ok(())
        })
    }

    fn show_max_clients(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().max_clients)
    }

    fn store_max_clients(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            let count =
                parse::unsigned(value, 1, u16::MAX.into()).map_err(invalid("max_clients"))?;
            spec.max_clients = u16::try_from(count).unwrap_or(u16::MAX);
            Ok(())
        })
    }

    fn show_lease_max(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().lease_max_ms)
    }

    fn store_lease_max(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            let ms = parse::unsigned(value, LEASE_MIN_MS.into(), u32::MAX.into())
                .map_err(invalid("lease_max_ms"))?;
            spec.lease_max_ms = u32::try_from(ms).unwrap_or(u32::MAX);
            Ok(())
        })
    }

    fn show_protection(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.switch.settings().protection)
    }

    fn store_protection(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|spec| {
            spec.protection = value.parse().map_err(invalid("protection"))?;
            Ok(())
        })
    }

    fn show_registration(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.members.holder())
    }

    fn store_registration(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|_| {
            let key = match value {
                "" => None,
                text => {
                    let key = parse::unsigned(text, 1, u64::MAX);
                    Some(key.map_err(invalid("registration"))?)
                }
            };
            group.members.restore(key);
            Ok(())
        })
    }

    fn store_evict(group: &Group<Self>, value: &str) -> Result {
        let outcome = value.parse().map_err(invalid("evict")).and_then(|name| {
            if !group.members.has(&name) {
                return Err(fail!(ENOENT, "evict: there is no map of host {name}"));
            }
            // Only the maps that there are now: the host may map the export anew meanwhile.
            group.evict(|host| host.name != name);
            group.enforce()
        });
        group.switch.refusal.record(outcome)
    }

    fn store_pr_clear(group: &Group<Self>, value: &str) -> Result {
        let force = match value {
            "1" => Ok(false),
            "force" => Ok(true),
            _ => Err(fail!(EINVAL, "pr_clear: not 1 or force")),
        };
        let outcome = force.and_then(|force| {
            let cleared = group.members.clear_registrants(force);
            cleared.map_err(|busy| fail!(busy, "pr_clear: the export is reserved; force clears it"))
        });
        group.switch.refusal.record(outcome)
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        self.switch.show_enable(page)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        if !group.switch.wanted(value)? {
            return group.switch.turn_off(|running| {
                group.exports.offer(&group.name, None);
                if let Err(failure) = running.export.close() {
                    return Err((Some(running), failure));
                }
                let Running {
                    _files: files,
                    _monitor: monitor,
                    export,
                    _dependent: dependent,
                } = running;
                let released = export.backend.released();
                drop((files, monitor, export));
                // A connection that has just ended, or a task that looks at the export, may be the
                // last one that lets go of the device.
                let outcome = released.wait_timeout(RELEASE_MS);
                drop(dependent);
                outcome.map_err(|_| {
                    let failure =
                        fail!(EBUSY, "disabled, but its device or memory is still in use");
                    (None, failure)
                })
            });
        }
        let closing = |running: &Running| running.export.is_closing();
        group.switch.turn_on(closing, |spec| {
            let dependent = group.depend()?;
            let (hosts, members) = (group.hosts.clone(), group.members.clone());
            let server = (&*group.exports, group.this_host.identity().id);
            let allocated = &group.allocated;
            let export = Export::new(spec, hosts, members, &group.last_close, server, allocated)?;
            let monitor = export.monitor()?;
            let files = export.files(&group.exports)?;
            export.backend.begin();
            group.exports.offer(&group.name, Some(export.clone()));
            Ok(Running {
                _files: files,
                _monitor: monitor,
                export,
                _dependent: dependent,
            })
        })
    }

    fn show_state(&self, page: &mut PageWriter<'_>) -> Result {
        let state = self.switch.look(|phase| match phase {
            Phase::Off => "disabled",
            Phase::Starting(_) => "allocating",
            Phase::Stopping(_) => "closing",
            Phase::On(running) if running.export.is_closing() => "closing",
            Phase::On(running) if running.export.unavailable().is_some() => "unavailable",
            Phase::On(_) => "online",
        });
        show(page, state)
    }

    fn show_allocated(&self, page: &mut PageWriter<'_>) -> Result {
        let bytes = self.switch.look(|phase| match phase {
            Phase::Starting(_) => self.allocated.load(Relaxed),
            Phase::On(running) => running.export.backend.allocated(),
            Phase::Off | Phase::Stopping(_) => 0,
        });
        show(page, bytes)
    }

    fn show_instance(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.export().map(|export| export.backend.instance()))
    }

    fn show_clients(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.export().map_or(0, |export| export.clients()))
    }

    fn show_clients_away(&self, page: &mut PageWriter<'_>) -> Result {
        let away = self.export().map_or(0, |export| export.clients_away());
        show(page, away)
    }

    fn show_pr_registrants(&self, page: &mut PageWriter<'_>) -> Result {
        let mut written = Ok(());
        self.members.for_each_registrant(|host, key, held| {
            let line = match held {
                None => writeln!(page, "{host} {key:#x}"),
                Some(held) => writeln!(page, "{host} {key:#x} {}", held.word()),
            };
            written = written.and(line);
        });
        written.map_err(|_| EMSGSIZE)
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        let export = self.export().filter(|export| !export.is_closing());
        let why = export.and_then(|export| export.unavailable());
        let failure = why.map(|why| fail!(ENODEV, "{why}"));
        show_option(page, failure.or_else(|| self.switch.last_error.get()))
    }

    fn show_refusal(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.refusal.get())
    }
}
