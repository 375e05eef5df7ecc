// SPDX-License-Identifier: GPL-2.0

//! `ports/<name>/`: an address on which the server listens.

#![forbid(unsafe_code)]

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
    net::Net,
    periodic::PeriodicWork, //
};
use crate::config::{
    invalid, new_name, parse, show, show_option,
    switch::{
        Phase,
        Switch, //
    },
};
use crate::link::failure::fail;
use crate::proto::{
    wire::PORT,
    Name, //
};
use crate::server::{
    Exports,
    Port,
    PortMonitor, //
};

/// `ports/`.
pub(super) struct Ports {
    exports: Arc<Exports>,
}

impl Ports {
    /// Makes the directory of the ports that offer `exports`. May sleep.
    pub(super) fn new(exports: Arc<Exports>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { exports }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for Ports {
    type Child = PortDir;

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<PortDir>> {
        let name = new_name(name)?;
        let exports = group.exports.clone();
        let dir = Arc::pin_init(
            try_pin_init!(PortDir {
                name,
                exports,
                switch <- Switch::new(Settings { addr: None }),
            }),
            GFP_KERNEL,
        )?;
        NewGroup::new(dir)
    }
}

#[derive(Clone)]
struct Settings {
    addr: Option<SocketAddr>,
}

/// A listening port, with a reference that keeps its directory.
struct Running {
    _monitor: PeriodicWork<PortMonitor>,
    port: Arc<Port>,
    _dependent: Dependent,
}

/// `ports/<name>/`.
#[pin_data]
pub(super) struct PortDir {
    name: Name,
    exports: Arc<Exports>,
    #[pin]
    switch: Switch<Settings, Running>,
}

#[vtable]
impl GroupOperations for PortDir {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"addr", Self::show_addr, Self::store_addr),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"state", Self::show_state),
        Attribute::ro(c"device", Self::show_device),
        Attribute::ro(c"last_error", Self::show_last_error),
        Attribute::ro(c"refusal", Self::show_refusal),
    ];
}

impl PortDir {
    fn show_addr(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.settings().addr)
    }

    fn store_addr(group: &Group<Self>, value: &str) -> Result {
        group.switch.set(|settings| {
            settings.addr = Some(parse::socket_addr(value, PORT).map_err(invalid("addr"))?);
            Ok(())
        })
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        self.switch.show_enable(page)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        if !group.switch.wanted(value)? {
            return group.switch.turn_off(|running| {
                let closed = running.port.close();
                closed.map_err(|failure| (Some(running), failure))
            });
        }
        let closing = |running: &Running| running.port.is_closing();
        group.switch.turn_on(closing, |settings| {
            let addr = settings
                .addr
                .ok_or_else(|| fail!(EINVAL, "addr is not set"))?;
            let dependent = group.depend()?;
            let port = Port::new(group.name, Net::current(), addr, group.exports.clone())?;
            let monitor = port.monitor()?;
            // This comes last: once it has succeeded, sessions come in.
            port.listen()?;
            Ok(Running {
                _monitor: monitor,
                port,
                _dependent: dependent,
            })
        })
    }

    fn show_state(&self, page: &mut PageWriter<'_>) -> Result {
        let state = self.switch.look(|phase| match phase {
            Phase::Off | Phase::Starting(_) => "disabled",
            Phase::Stopping(_) => "closing",
            Phase::On(running) if running.port.is_closing() => "closing",
            Phase::On(running) if running.port.failure().is_some() => "error",
            Phase::On(_) => "listening",
        });
        show(page, state)
    }

    fn show_device(&self, page: &mut PageWriter<'_>) -> Result {
        self.switch.running(
            |running| match running.and_then(|running| running.port.device()) {
                Some(device) => show(page, device.as_str()),
                None => show(page, ""),
            },
        )
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        let failure = self
            .switch
            .running(|running| running.and_then(|running| running.port.failure()));
        show_option(page, failure.or_else(|| self.switch.last_error.get()))
    }

    fn show_refusal(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.switch.refusal.get())
    }
}
