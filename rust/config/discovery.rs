// SPDX-License-Identifier: GPL-2.0

//! `discover/<name>/`: the list of exports of a server, and the way there and back.

#![forbid(unsafe_code)]

use core::fmt::Write;
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
    Pings,
    INTERVAL_MAX_US,
    PINGS_MAX, //
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
    LastFailure, //
};
use crate::proto::{
    wire::PORT,
    ListEntry, //
};

/// `discover/`.
pub(super) struct Discoveries {
    host: Arc<Host>,
}

impl Discoveries {
    /// Makes the directory of the discoveries of `host`.
    pub(super) fn new(host: Arc<Host>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { host }, GFP_KERNEL)?)
    }
}

#[vtable]
impl GroupOperations for Discoveries {
    type Child = Discovery;

    fn make_group(group: &Group<Self>, name: &str) -> Result<NewGroup<Discovery>> {
        new_name(name)?;
        let host = group.host.clone();
        let question = Question {
            addr: None,
            source: None,
            first: 0,
            pings: Pings {
                count: 0,
                interval_us: 10_000,
            },
        };
        let discovery = Arc::pin_init(
            pin_init!(Discovery {
                host,
                question <- new_mutex!(question, "Discovery::question"),
                answer <- new_mutex!(None, "Discovery::answer"),
                times <- new_mutex!(KVec::new(), "Discovery::times"),
                refusal <- LastFailure::new(),
                last_error <- LastFailure::new(),
            }),
            GFP_KERNEL,
        )?;
        NewGroup::new(discovery)
    }
}

#[derive(Clone, Copy)]
struct Question {
    addr: Option<SocketAddr>,
    source: Option<SocketAddr>,
    /// Index of the first export to list.
    first: u32,
    pings: Pings,
}

/// `discover/<name>/`. Writing 1 to `enable` asks the server. `enable` is on only during the write.
#[pin_data]
pub(super) struct Discovery {
    host: Arc<Host>,
    #[pin]
    question: Mutex<Question>,
    /// The exports in the last reply, and their total number at the server.
    #[pin]
    answer: Mutex<Option<(KVec<ListEntry>, u32)>>,
    /// The round trips that were measured last, in ns.
    #[pin]
    times: Mutex<KVec<u64>>,
    #[pin]
    refusal: LastFailure,
    /// Why the server was not asked, or did not answer, the last time.
    #[pin]
    last_error: LastFailure,
}

#[vtable]
impl GroupOperations for Discovery {
    type Child = NoChild;

    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::rw(c"addr", Self::show_addr, Self::store_addr),
        Attribute::rw(c"source", Self::show_source, Self::store_source),
        Attribute::rw(c"first", Self::show_first, Self::store_first),
        Attribute::rw(c"pings", Self::show_pings, Self::store_pings),
        Attribute::rw(
            c"interval_us",
            Self::show_interval_us,
            Self::store_interval_us,
        ),
        Attribute::rw(c"enable", Self::show_enable, Self::store_enable),
        Attribute::ro(c"exports", Self::show_exports),
        Attribute::ro(c"rtt_ns", Self::show_rtt_ns),
        Attribute::ro(c"state", Self::show_state),
        Attribute::ro(c"last_error", Self::show_last_error),
        Attribute::ro(c"refusal", Self::show_refusal),
    ];
}

impl Discovery {
    fn set(&self, change: impl FnOnce(&mut Question) -> Result<(), Failure>) -> Result {
        let outcome = change(&mut self.question.lock());
        self.refusal.record(outcome)
    }

    fn show_addr(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.question.lock().addr)
    }

    fn store_addr(group: &Group<Self>, value: &str) -> Result {
        group.set(|question| {
            question.addr = Some(parse::socket_addr(value, PORT).map_err(invalid("addr"))?);
            Ok(())
        })
    }

    fn show_source(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.question.lock().source.map(|source| source.ip()))
    }

    fn store_source(group: &Group<Self>, value: &str) -> Result {
        group.set(|question| {
            question.source = parse_source(value)?;
            Ok(())
        })
    }

    fn show_first(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.question.lock().first)
    }

    fn store_first(group: &Group<Self>, value: &str) -> Result {
        group.set(|question| {
            let first = parse::unsigned(value, 0, u32::MAX.into()).map_err(invalid("first"))?;
            question.first = u32::try_from(first).unwrap_or(u32::MAX);
            Ok(())
        })
    }

    fn show_pings(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.question.lock().pings.count)
    }

    fn store_pings(group: &Group<Self>, value: &str) -> Result {
        group.set(|question| {
            let count = parse::unsigned(value, 0, PINGS_MAX.into()).map_err(invalid("pings"))?;
            question.pings.count = u16::try_from(count).unwrap_or(PINGS_MAX);
            Ok(())
        })
    }

    fn show_interval_us(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, self.question.lock().pings.interval_us)
    }

    fn store_interval_us(group: &Group<Self>, value: &str) -> Result {
        group.set(|question| {
            let us = parse::unsigned(value, 0, INTERVAL_MAX_US.into());
            let us = us.map_err(invalid("interval_us"))?;
            question.pings.interval_us = u32::try_from(us).unwrap_or(INTERVAL_MAX_US);
            Ok(())
        })
    }

    fn show_enable(&self, page: &mut PageWriter<'_>) -> Result {
        show(page, 0)
    }

    fn store_enable(group: &Group<Self>, value: &str) -> Result {
        let enable = parse::boolean(value).map_err(invalid("enable"));
        if !group.refusal.record(enable)? {
            return Ok(());
        }
        let mut times = KVec::new();
        let outcome = group.ask(&mut times);
        let (answer, outcome) = match outcome {
            Ok(answer) => (Some(answer), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        *group.answer.lock() = answer;
        *group.times.lock() = times;
        let _ = group.last_error.record(outcome);
        group.refusal.record(outcome)
    }

    fn ask(&self, times: &mut KVec<u64>) -> Result<(KVec<ListEntry>, u32), Failure> {
        let question = *self.question.lock();
        let addr = question
            .addr
            .ok_or_else(|| fail!(EINVAL, "addr is not set"))?;
        let target = self.host.target(addr, question.source, 0);
        client::discover(&self.host, &target, question.first, question.pings, times)
    }

    /// Shows `total N`, then a line for each export, as many as fit. The reader asks for the others
    /// by `first`.
    fn show_exports(&self, page: &mut PageWriter<'_>) -> Result {
        let answer = self.answer.lock();
        let Some((entries, total)) = answer.as_ref() else {
            return Ok(());
        };
        writeln!(page, "total {total}").map_err(|_| EMSGSIZE)?;
        for entry in entries {
            if page.remaining() < LINE_MAX {
                break;
            }
            writeln!(
                page,
                "{} {} {} {} {} {} {}",
                entry.name,
                entry.kind,
                entry.size,
                entry.access,
                entry.clients,
                entry.max_clients,
                entry.uuid
            )
            .map_err(|_| EMSGSIZE)?;
        }
        Ok(())
    }

    /// Shows the round trips, oldest first, each on a line.
    fn show_rtt_ns(&self, page: &mut PageWriter<'_>) -> Result {
        self.times.lock().iter().try_for_each(|ns| show(page, ns))
    }

    fn show_state(&self, page: &mut PageWriter<'_>) -> Result {
        let state = match self.answer.lock().is_some() {
            true => "answered",
            false => "disabled",
        };
        show(page, state)
    }

    fn show_last_error(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.last_error.get())
    }

    fn show_refusal(&self, page: &mut PageWriter<'_>) -> Result {
        show_option(page, self.refusal.get())
    }
}

/// Maximum length of the line of an export: name, kind, three numbers, size and UUID.
const LINE_MAX: usize = 160;
