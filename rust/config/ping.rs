// SPDX-License-Identifier: GPL-2.0

//! `ping/<name>/`: round trips to a server.

#![forbid(unsafe_code)]

use core::net::SocketAddr;

use kernel::prelude::*;
use kernel::{
    new_mutex,
    sync::{
        Arc,
        Mutex, //
    },
};

use crate::base::configfs::{
    Attribute,
    Group,
    GroupOperations,
    NewGroup,
    NoChild,
    PageWriter, //
};
use crate::client::{
    self,
    host::Host,
    PingRequest,
    RoundTrips, //
};
use crate::config::{
    invalid,
    new_name,
    parse,
    parse_source,
    show,
    show_option, //
};
use crate::link::failure::{
    fail,
    Failure,
    LastError, //
};
use crate::proto::wire::PORT;

/// The most round trips of one write to `enable`. As many numbers fit into one page.
const COUNT_MAX: u64 = 256;
/// The least pause between two of them, in microseconds: 1000 pings a second do a server no harm.
const INTERVAL_MIN_US: u64 = 1_000;
/// The longest pause.
const INTERVAL_MAX_US: u64 = 1_000_000;
/// All pauses of one write to `enable`, at most: a server ends a connection without a login.
const PAUSES_MAX_US: u64 = 10_000_000;

/// `ping/`.
pub(super) struct Pings {
    host: Arc<Host>,
}

impl Pings {
    /// Makes the directory of the pings of `host`.
    pub(super) fn new(host: Arc<Host>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { host }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for Pings {
    type Child = Ping;

    fn make_child(group: &Group<Self>, name: &str) -> Result<NewGroup<Ping>> {
        new_name(name)?;
        let host = group.host.clone();
        let settings = Settings {
            addr: None,
            source: None,
            request: PingRequest {
                count: 10,
                interval_us: 10_000,
                read: false,
            },
        };
        let ping = Arc::pin_init(
            pin_init!(Ping {
                host,
                settings <- new_mutex!(settings, "Ping::settings"),
                trips <- new_mutex!(RoundTrips::default(), "Ping::trips"),
                last_error <- LastError::new(),
            }),
            GFP_KERNEL,
        )?;
        NewGroup::new(ping)
    }
}

#[derive(Clone, Copy)]
struct Settings {
    addr: Option<SocketAddr>,
    source: Option<SocketAddr>,
    request: PingRequest,
}

/// `ping/<name>/`. Writing 1 to `enable` measures. `enable` is on only during the write.
#[pin_data]
pub(super) struct Ping {
    host: Arc<Host>,
    #[pin]
    settings: Mutex<Settings>,
    /// What the last write to `enable` has measured.
    #[pin]
    trips: Mutex<RoundTrips>,
    #[pin]
    last_error: LastError,
}

#[vtable]
impl GroupOperations for Ping {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"addr", Self::show_addr, Self::store_addr),
        Attribute::rw(c"source", Self::show_source, Self::store_source),
        Attribute::rw(c"count", Self::show_count, Self::store_count),
        Attribute::rw(c"interval_us", Self::show_interval, Self::store_interval),
        Attribute::rw(c"read", Self::show_read, Self::store_read),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"send_ns", Self::show_send_ns),
        Attribute::ro(c"read_ns", Self::show_read_ns),
        Attribute::ro(c"last_error", Self::show_last_error),
    ];
}

impl Ping {
    fn set(&self, change: impl FnOnce(&mut Settings) -> Result<(), Failure>) -> Result {
        let outcome = change(&mut self.settings.lock());
        self.last_error.record(outcome)
    }

    fn show_addr(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.settings.lock().addr)
    }

    fn store_addr(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            settings.addr = Some(parse::socket_addr(value, PORT).map_err(invalid("addr"))?);
            Ok(())
        })
    }

    fn show_source(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.settings.lock().source.map(|source| source.ip()))
    }

    fn store_source(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            settings.source = parse_source(value)?;
            Ok(())
        })
    }

    fn show_count(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.settings.lock().request.count)
    }

    fn store_count(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            let count = parse::unsigned(value, 1, COUNT_MAX).map_err(invalid("count"))?;
            settings.request.count = u32::try_from(count).unwrap_or(1);
            Ok(())
        })
    }

    fn show_interval(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.settings.lock().request.interval_us)
    }

    fn store_interval(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            let interval = parse::unsigned(value, INTERVAL_MIN_US, INTERVAL_MAX_US)
                .map_err(invalid("interval_us"))?;
            settings.request.interval_us = u32::try_from(interval).unwrap_or(u32::MAX);
            Ok(())
        })
    }

    fn show_read(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, u8::from(self.settings.lock().request.read))
    }

    fn store_read(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            settings.request.read = parse::boolean(value).map_err(invalid("read"))?;
            Ok(())
        })
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, 0)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        let enable = parse::boolean(value).map_err(invalid("enable"));
        if !group.last_error.record(enable)? {
            return Ok(());
        }
        let mut trips = RoundTrips::default();
        let outcome = group.measure(&mut trips);
        *group.trips.lock() = trips;
        group.last_error.record(outcome)
    }

    fn measure(&self, trips: &mut RoundTrips) -> Result<(), Failure> {
        let Settings {
            addr,
            source,
            request,
        } = *self.settings.lock();
        let addr = addr.ok_or_else(|| fail!(EINVAL, "addr is not set"))?;
        let target = self.host.target(addr, source, 0);
        if u64::from(request.count) * u64::from(request.interval_us) > PAUSES_MAX_US {
            return Err(fail!(EINVAL, "count times interval_us is more than 10 s"));
        }
        client::ping(&target, &request, trips)
    }

    fn show_send_ns(&self, page: &mut PageWriter<'_>) -> Result {
        show_all(page, &self.trips.lock().send)
    }

    fn show_read_ns(&self, page: &mut PageWriter<'_>) -> Result {
        show_all(page, &self.trips.lock().read)
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.last_error.get())
    }
}

/// Shows numbers, one on each line. No round trip that is waited for has more than ten digits.
fn show_all(page: &mut PageWriter<'_>, numbers: &[u64]) -> Result {
    numbers.iter().try_for_each(|number| show(page, number))
}
