// SPDX-License-Identifier: GPL-2.0

//! `maps/<map>/paths/<name>/`: a path of a map to its server.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::base::configfs::{
    Attribute,
    Dependent,
    Group,
    GroupOperations,
    NewGroup,
    NoChild,
    PageWriter, //
};
use crate::client::PathStatus;
use crate::config::{
    invalid,
    map::MapDir,
    new_name,
    parse,
    parse_source,
    show,
    show_option,
    switch::Switch, //
};
use crate::link::failure::fail;
use crate::proto::{
    wire::PORT,
    Name, //
};
use crate::session::PathState;

/// `paths/` of a map.
pub(super) struct PathDirs {
    map: Arc<MapDir>,
}

impl PathDirs {
    /// Makes the directory of the paths of `map`.
    pub(super) fn new(map: Arc<MapDir>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { map }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for PathDirs {
    type Child = PathDir;

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<PathDir>> {
        let name = new_name(name)?;
        let map = group.map.clone();
        let settings = Settings {
            addr: None,
            source: None,
        };
        let dir = Arc::pin_init(
            pin_init!(PathDir {
                name,
                map,
                switch <- Switch::new(settings),
            }),
            GFP_KERNEL,
        )?;
        NewGroup::new(dir)
    }
}

#[derive(Clone, Copy)]
struct Settings {
    addr: Option<SocketAddr>,
    source: Option<SocketAddr>,
}

/// `paths/<name>/`.
#[pin_data]
pub(super) struct PathDir {
    name: Name,
    map: Arc<MapDir>,
    #[pin]
    switch: Switch<Settings, Dependent>,
}

#[vtable]
impl GroupOperations for PathDir {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"addr", Self::show_addr, Self::store_addr),
        Attribute::rw(c"source", Self::show_source, Self::store_source),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"state", Self::show_state),
        Attribute::ro(c"device", Self::show_device),
        Attribute::ro(c"rtt_ns", Self::show_rtt),
        Attribute::ro(c"reconnects", Self::show_reconnects),
        Attribute::ro(c"next_try_ms", Self::show_next_try),
        Attribute::ro(c"last_error", Self::show_last_error),
        Attribute::ro(c"refusal", Self::show_refusal),
    ];
}

impl PathDir {
    fn show_addr(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.settings().addr)
    }

    fn store_addr(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.addr = Some(parse::socket_addr(value, PORT).map_err(invalid("addr"))?);
            Ok(())
        })
    }

    fn show_source(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(
            page,
            self.switch.settings().source.map(|source| source.ip()),
        )
    }

    fn store_source(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.source = parse_source(value)?;
            Ok(())
        })
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        self.switch.show_enable(page)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        if !group.switch.wanted(value)? {
            return group.switch.turn_off(|dependent| {
                group
                    .map
                    .remove_path(&group.name)
                    .map_err(|failure| (Some(dependent), failure))
            });
        }
        group.switch.turn_on(
            |_| false,
            |settings| {
                let addr = settings
                    .addr
                    .ok_or_else(|| fail!(EINVAL, "addr is not set"))?;
                let dependent = group.depend()?;
                group.map.add_path(&group.name, addr, settings.source)?;
                Ok(dependent)
            },
        )
    }

    /// Returns the status of the path, if the map and the path are enabled. May sleep.
    fn status(&self) -> Option<PathStatus> {
        self.map.path_status(&self.name)
    }

    fn show_state(&self, page: &mut PageWriter<'_>) -> Result {
        let state = self.status().map(|status| status.state);
        show(page, state.unwrap_or(PathState::Disabled))
    }

    fn show_device(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.status().and_then(|status| status.device))
    }

    fn show_rtt(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.status().map_or(0, |status| status.rtt_ns))
    }

    fn show_reconnects(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.status().map_or(0, |status| status.reconnects))
    }

    fn show_next_try(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.status().and_then(|status| status.next_try_ms))
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        let failure = self.status().and_then(|status| status.failure);
        show_option(page, failure.or_else(|| self.switch.last_error.get()))
    }

    fn show_refusal(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.refusal.get())
    }
}
