// SPDX-License-Identifier: GPL-2.0

//! The debugfs files with the counters of a map.

#![forbid(unsafe_code)]

use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};

use crate::base::debugfs::{
    File,
    Writer, //
};
use crate::client::{
    host::Host,
    map::Map, //
};
use crate::proto::Name;

/// The debugfs files of a map. They use the map, and are there until this is dropped, which sleeps.
#[pin_data]
pub(crate) struct Files {
    #[pin]
    _connections: File<Connections>,
    #[pin]
    _counters: File<Counters>,
    #[pin]
    _latency: File<Latency>,
}

impl Files {
    /// Makes the files of the map `name` appear. May sleep.
    pub(crate) fn new(host: &Host, name: &Name, map: &Arc<Map>) -> Result<Pin<KBox<Self>>> {
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        let (client, maps) = (host.client_dir.subdir(&name), host.maps_dir.subdir(&name));
        KBox::try_pin_init(
            try_pin_init!(Self {
                _connections <- client.read_only_file(c"counters", Connections(map.clone())),
                _counters <- maps.read_only_file(c"stats", Counters(map.clone())),
                _latency <- maps.read_only_file(c"latency", Latency(map.clone())),
            }),
            GFP_KERNEL,
        )
    }
}

/// Prints the counters of the queues that are up.
struct Connections(Arc<Map>);

impl Writer for Connections {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.running.lock().runtime {
            Some(runtime) => {
                writeln!(f, "forged {}", runtime.forged())?;
                runtime.multipath().show(f)
            }
            None => Ok(()),
        }
    }
}

/// Prints the counters of the map.
struct Counters(Arc<Map>);

impl Writer for Counters {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.running.lock().runtime {
            Some(runtime) => runtime.show_stats(f),
            None => Ok(()),
        }
    }
}

/// Prints the histograms of the map.
struct Latency(Arc<Map>);

impl Writer for Latency {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.running.lock().runtime {
            Some(runtime) => runtime.multipath().totals().show_latency(f),
            None => Ok(()),
        }
    }
}
