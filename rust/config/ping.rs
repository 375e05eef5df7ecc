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
    PerTrip,
    PingRequest,
    RoundTrips,
    Trip,
    DEPTH_MAX,
    SEND_MAX,
    SEND_MIN,
    SIZE_MAX,
    SIZE_MIN, //
};
use crate::config::{
    invalid,
    new_name,
    parse,
    parse_source,
    show,
    show_option, //
};
use crate::link::{
    failure::{
        fail,
        Failure,
        LastError, //
    },
    keys::{
        KeySlot,
        Psk, //
    },
};
use crate::proto::{
    wire::PORT,
    Name, //
};
use crate::session::stranger::may_look_at_datagram;

/// The most round trips of one write to `enable`. As many numbers fit into one page.
const COUNT_MAX: u64 = 256;
// As many datagrams, and as many that come twice, are no reason for either side to end.
const _: () = assert!(may_look_at_datagram(2 * (COUNT_MAX as u32 + 1)));
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

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<Ping>> {
        new_name(name)?;
        let host = group.host.clone();
        let settings = Settings {
            addr: None,
            source: None,
            request: PingRequest {
                count: 10,
                interval_us: 10_000,
                trips: PerTrip::from_fn(|trip| trip == Trip::Send),
                export: None,
                size: 8,
                send_size: SEND_MIN,
                depth: 1,
                polled: false,
            },
        };
        let ping = Arc::pin_init(
            pin_init!(Ping {
                host,
                key <- KeySlot::new(),
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
    /// What both sides prove to have, if there is one.
    #[pin]
    key: KeySlot,
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
        Attribute::rw(c"export", Self::show_export, Self::store_export),
        Attribute::secret(c"key", Self::store_key),
        Attribute::ro(c"key_id", Self::show_key_id),
        Attribute::rw(c"size", Self::show_size, Self::store_size),
        Attribute::rw(c"send_size", Self::show_send_size, Self::store_send_size),
        Attribute::rw(c"depth", Self::show_depth, Self::store_depth),
        Attribute::rw(c"polled", Self::show_polled, Self::store_polled),
        Attribute::rw(c"send", Self::show_send, Self::store_send),
        Attribute::rw(c"read", Self::show_read, Self::store_read),
        Attribute::rw(c"write", Self::show_write, Self::store_write),
        Attribute::rw(c"cas", Self::show_cas, Self::store_cas),
        Attribute::rw(c"faa", Self::show_faa, Self::store_faa),
        Attribute::rw(c"send_ud", Self::show_send_ud, Self::store_send_ud),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"send_ns", Self::show_send_ns),
        Attribute::ro(c"read_ns", Self::show_read_ns),
        Attribute::ro(c"write_ns", Self::show_write_ns),
        Attribute::ro(c"cas_ns", Self::show_cas_ns),
        Attribute::ro(c"faa_ns", Self::show_faa_ns),
        Attribute::ro(c"send_ud_ns", Self::show_send_ud_ns),
        Attribute::ro(c"elapsed_ns", Self::show_elapsed_ns),
        Attribute::ro(c"lost", Self::show_lost),
        Attribute::ro(c"unavailable", Self::show_unavailable),
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

    fn show_export(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.settings.lock().request.export)
    }

    fn store_export(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            settings.request.export = match value {
                "" => None,
                name => Some(Name::new(name.as_bytes()).map_err(invalid("export"))?),
            };
            Ok(())
        })
    }

    fn store_key(group: &Group<Self>, value: &str) -> Result {
        group.key.set(Psk::parse(value)?);
        Ok(())
    }

    fn show_key_id(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.key.id())
    }

    fn show_size(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.settings.lock().request.size)
    }

    fn store_size(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            let size = parse::size(value).map_err(invalid("size"))?;
            settings.request.size = match u32::try_from(size) {
                Ok(size @ SIZE_MIN..=SIZE_MAX) => size,
                _ => return Err(fail!(EINVAL, "size: not from {SIZE_MIN} to {SIZE_MAX}")),
            };
            Ok(())
        })
    }

    fn show_send_size(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.settings.lock().request.send_size)
    }

    fn store_send_size(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            let size = parse::size(value).map_err(invalid("send_size"))?;
            settings.request.send_size = match u32::try_from(size) {
                Ok(size @ SEND_MIN..=SEND_MAX) => size,
                _ => {
                    return Err(fail!(
                        EINVAL,
                        "send_size: not from {SEND_MIN} to {SEND_MAX}"
                    ))
                }
            };
            Ok(())
        })
    }

    fn show_depth(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.settings.lock().request.depth)
    }

    fn store_depth(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            let depth = parse::unsigned(value, 1, DEPTH_MAX.into()).map_err(invalid("depth"))?;
            settings.request.depth = u16::try_from(depth).unwrap_or(1);
            Ok(())
        })
    }

    fn show_polled(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, u8::from(self.settings.lock().request.polled))
    }

    fn store_polled(group: &Group<Self>, value: &str) -> Result {
        group.set(|settings| {
            settings.request.polled = parse::boolean(value).map_err(invalid("polled"))?;
            Ok(())
        })
    }

    fn show_trip(&self, trip: Trip, page: &mut PageWriter<'_>) -> Result {
        show(page, u8::from(self.settings.lock().request.has(trip)))
    }

    fn store_trip(group: &Group<Self>, trip: Trip, value: &str) -> Result {
        group.set(|settings| {
            let wanted = parse::boolean(value).map_err(|why| fail!(EINVAL, "{trip}: {why}"))?;
            *settings.request.trips.of_mut(trip) = wanted;
            Ok(())
        })
    }

    fn show_send(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_trip(Trip::Send, page)
    }

    fn store_send(group: &Group<Self>, value: &str) -> Result {
        Self::store_trip(group, Trip::Send, value)
    }

    fn show_read(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_trip(Trip::Read, page)
    }

    fn store_read(group: &Group<Self>, value: &str) -> Result {
        Self::store_trip(group, Trip::Read, value)
    }

    fn show_write(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_trip(Trip::Write, page)
    }

    fn store_write(group: &Group<Self>, value: &str) -> Result {
        Self::store_trip(group, Trip::Write, value)
    }

    fn show_cas(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_trip(Trip::Cas, page)
    }

    fn store_cas(group: &Group<Self>, value: &str) -> Result {
        Self::store_trip(group, Trip::Cas, value)
    }

    fn show_faa(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_trip(Trip::Faa, page)
    }

    fn store_faa(group: &Group<Self>, value: &str) -> Result {
        Self::store_trip(group, Trip::Faa, value)
    }

    fn show_send_ud(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_trip(Trip::SendUd, page)
    }

    fn store_send_ud(group: &Group<Self>, value: &str) -> Result {
        Self::store_trip(group, Trip::SendUd, value)
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
        let pauses = u64::from(request.count) * u64::from(request.interval_us);
        if request.depth == 1 && pauses > PAUSES_MAX_US {
            return Err(fail!(EINVAL, "count times interval_us is more than 10 s"));
        }
        let needs_export = |trip: &Trip| request.has(*trip) && trip.needs_export();
        if let (Some(trip), None) = (Trip::ALL.into_iter().find(needs_export), request.export) {
            return Err(fail!(
                EINVAL,
                "{trip} needs an export, and export is not set"
            ));
        }
        let key = self.key.get();
        client::ping(&self.host, &target, key.as_deref(), &request, trips)
    }

    fn show_times(&self, trip: Trip, page: &mut PageWriter<'_>) -> Result {
        show_all(page, &self.trips.lock().of(trip).times)
    }

    fn show_send_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_times(Trip::Send, page)
    }

    fn show_read_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_times(Trip::Read, page)
    }

    fn show_write_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_times(Trip::Write, page)
    }

    fn show_cas_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_times(Trip::Cas, page)
    }

    fn show_faa_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_times(Trip::Faa, page)
    }

    fn show_send_ud_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.show_times(Trip::SendUd, page)
    }

    fn show_lost(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.trips.lock().of(Trip::SendUd).lost)
    }

    /// Shows a line for each kind that was measured.
    fn show_elapsed_ns(&self, page: &mut PageWriter<'_>) -> Result {
        let trips = self.trips.lock();
        let measured = Trip::ALL.map(|trip| (trip, trips.of(trip)));
        let mut measured = measured.iter().filter(|(_, one)| !one.times.is_empty());
        measured.try_for_each(|(trip, one)| show(page, format_args!("{trip} {}", one.elapsed)))
    }

    fn show_unavailable(&self, page: &mut PageWriter<'_>) -> Result {
        let trips = self.trips.lock();
        let mut all = Trip::ALL.into_iter();
        all.try_for_each(|trip| match trips.of(trip).unavailable {
            true => show(page, trip),
            false => Ok(()),
        })
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.last_error.get())
    }
}

/// Shows numbers, one on each line. No round trip that is waited for has more than ten digits, or
/// 12 the last ones of many that are under way at once, which still fits.
fn show_all(page: &mut PageWriter<'_>, numbers: &[u64]) -> Result {
    numbers.iter().try_for_each(|number| show(page, number))
}
