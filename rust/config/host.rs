// SPDX-License-Identifier: GPL-2.0

//! `exports/<export>/hosts/<name>/`: the hosts that may use an export.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::configfs::{
    Attribute,
    Group,
    GroupOperations,
    NewGroup,
    NoChild,
    PageWriter, //
};
use crate::config::{
    export::ExportDir,
    new_name,
    show,
    show_option, //
};
use crate::link::keys::Psk;
use crate::proto::{
    Access,
    Uuid, //
};
use crate::server::Host;

/// The access of a host that is not admitted, as it is before another one is written.
const NOT_ADMITTED: &str = "none";

/// `hosts/` of an export.
pub(super) struct HostDirs {
    export: Arc<ExportDir>,
}

impl HostDirs {
    /// Makes the directory of the hosts of `export`. May sleep.
    pub(super) fn new(export: Arc<ExportDir>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { export }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for HostDirs {
    type Child = HostDir;

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<HostDir>> {
        let host = Host::new(new_name(name)?)?;
        let dir = HostDir {
            host: host.clone(),
            export: group.export.clone(),
        };
        let new = NewGroup::new(Arc::new(dir, GFP_KERNEL)?)?;
        group.export.hosts.add(host)?;
        Ok(new)
    }

    /// Begins to end the sessions of the host, which is not admitted any more. Does not wait for
    /// that: configfs holds the lock of all its directories here, and the backing device may hang.
    fn drop_item(_group: &Group<Self>, dir: &HostDir) {
        dir.export.hosts.remove(&dir.host);
        dir.export.evict(|_| true);
    }
}

/// `hosts/<name>/`.
pub(super) struct HostDir {
    host: Arc<Host>,
    export: Arc<ExportDir>,
}

#[vtable]
impl GroupOperations for HostDir {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::private(c"host_id", Self::show_host_id, Self::store_host_id),
        Attribute::rw(c"access", Self::show_access, Self::store_access),
        Attribute::secret(c"key", Self::store_key),
        Attribute::ro(c"key_id", Self::show_key_id),
        Attribute::secret(c"key_next", Self::store_key_next),
        Attribute::ro(c"key_next_id", Self::show_key_next_id),
        Attribute::ro(c"connected", Self::show_connected),
    ];
}

impl HostDir {
    /// Ends the sessions that the settings do not allow any more. So when a write to a file of this
    /// directory succeeds, nothing of these can reach the export. May sleep, as long as the backing
    /// device takes; fails with `EINTR` if the task is killed.
    fn enforce(&self) -> Result {
        self.export.enforce().map_err(|failure| failure.error)
    }

    fn show_host_id(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.host.rule(|rule| rule.id))
    }

    fn store_host_id(group: &Group<Self>, value: &str) -> Result {
        let id = match value {
            "" => None,
            text => Some(text.parse::<Uuid>().map_err(|_| EINVAL)?),
        };
        group.host.set_rule(|rule| rule.id = id);
        group.enforce()
    }

    fn show_access(&self, page: &mut PageWriter<'_>) -> Result {
        match self.host.rule(|rule| rule.access) {
            Some(access) => show(page, access),
            None => show(page, NOT_ADMITTED),
        }
    }

    fn store_access(group: &Group<Self>, value: &str) -> Result {
        let access = match value {
            NOT_ADMITTED => None,
            word => Some(word.parse::<Access>().map_err(|_| EINVAL)?),
        };
        group.host.set_rule(|rule| rule.access = access);
        group.enforce()
    }

    fn store_key(group: &Group<Self>, value: &str) -> Result {
        let mut key = Psk::parse(value)?;
        group
            .host
            .set_rule(|rule| core::mem::swap(&mut rule.key, &mut key));
        group.enforce_keys()
    }

    fn show_key_id(&self, page: &mut PageWriter<'_>) -> Result {
        let id = self.host.rule(|rule| rule.key.as_ref().map(|key| key.id));
        show_option(page, id)
    }

    fn store_key_next(group: &Group<Self>, value: &str) -> Result {
        let mut key = Psk::parse(value)?;
        group
            .host
            .set_rule(|rule| core::mem::swap(&mut rule.key_next, &mut key));
        group.enforce_keys()
    }

    fn show_key_next_id(&self, page: &mut PageWriter<'_>) -> Result {
        let id = self
            .host
            .rule(|rule| rule.key_next.as_ref().map(|key| key.id));
        show_option(page, id)
    }

    /// Ends the sessions that have proved no key which the host may use now, as
    /// [`HostDir::enforce`] does. Their maps keep their places.
    fn enforce_keys(&self) -> Result {
        self.export.enforce_keys().map_err(|failure| failure.error)
    }

    fn show_connected(&self, page: &mut PageWriter<'_>) -> Result {
        let export = self.export.export();
        show(
            page,
            export.map_or(0, |export| export.clients_of(&self.host.name)),
        )
    }
}
