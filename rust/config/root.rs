// SPDX-License-Identifier: GPL-2.0

//! `farblk/`: properties of the module and of this host.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::configfs::{
    Attribute,
    Group,
    GroupOperations,
    NewGroup,
    NoChild,
    PageWriter,
    Subsystem, //
};
use crate::client::host::{
    Host,
    IdSource, //
};
use crate::config::{
    discovery::Discoveries,
    export::ExportDirs,
    map::Maps,
    port::Ports,
    show, //
};
use crate::proto::{
    wire,
    Name,
    Uuid, //
};
use crate::server::Exports;

/// The data of `farblk/`.
struct Root {
    host: Arc<Host>,
}

/// Registers `farblk/` in configfs. May sleep.
pub(crate) fn register(host: Arc<Host>, exports: Arc<Exports>) -> Result<Subsystem> {
    let ports = Ports::new(exports.clone())?;
    let root = NewGroup::new(Arc::new(Root { host: host.clone() }, GFP_KERNEL)?)?
        .with_default(c"ports", NewGroup::new(ports)?)?
        .with_default(
            c"exports",
            NewGroup::new(ExportDirs::new(exports, host.clone())?)?,
        )?
        .with_default(c"maps", NewGroup::new(Maps::new(host.clone())?)?)?
        .with_default(c"discover", NewGroup::new(Discoveries::new(host)?)?)?;
    Subsystem::register(c"farblk", root)
}

#[vtable]
impl GroupOperations for Root {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::ro(c"version", Self::show_version),
        Attribute::ro(c"protocol", Self::show_protocol),
        Attribute::ro(c"features", Self::show_features),
        Attribute::private(c"host_id", Self::show_host_id, Self::store_host_id),
        Attribute::ro(c"host_id_source", Self::show_host_id_source),
        Attribute::rw(c"host_name", Self::show_host_name, Self::store_host_name),
    ];
}

impl Root {
    fn show_version(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, crate::VERSION)
    }

    fn show_protocol(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, wire::VERSION_MAX)
    }

    fn show_features(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, "ram block discover")
    }

    fn show_host_id(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.host.identity().id)
    }

    fn store_host_id(group: &Group<Self>, value: &str) -> Result {
        let id: Uuid = value.parse().map_err(|_| EINVAL)?;
        if id.is_nil() {
            return Err(EINVAL);
        }
        group.host.set_identity(|identity| {
            identity.id = id;
            identity.id_source = IdSource::Written;
        });
        Ok(())
    }

    fn show_host_id_source(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.host.identity().id_source.word())
    }

    fn show_host_name(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.host.identity().name)
    }

    fn store_host_name(group: &Group<Self>, value: &str) -> Result {
        let name = Name::new(value.as_bytes()).map_err(|_| EINVAL)?;
        group.host.set_identity(|identity| identity.name = name);
        Ok(())
    }
}
