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
    Show,
    READ_ONLY,
    ROOT_ONLY, //
};
use crate::client::{
    host::Host,
    map::Map, //
};
use crate::proto::Name;

/// The debugfs files of a map. They use the map, and are there until this is dropped, which sleeps.
pub(crate) struct Files {
    _connections: File<Connections>,
    _counters: File<Counters>,
    _latency: File<Latency>,
}

impl Files {
    /// Makes the files of the map `name` appear. May sleep.
    pub(crate) fn new(host: &Host, name: &Name, map: &Arc<Map>) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        let (client, maps) = (host.client_dir.subdir(&name)?, host.maps_dir.subdir(&name)?);
        let connections = Arc::new(Connections(map.clone()), GFP_KERNEL)?;
        let counters = Arc::new(Counters(map.clone()), GFP_KERNEL)?;
        let latency = Arc::new(Latency(map.clone()), GFP_KERNEL)?;
        Ok(Self {
            _connections: client.file(c"counters", ROOT_ONLY, connections),
            _counters: maps.file(c"stats", READ_ONLY, counters),
            _latency: maps.file(c"latency", READ_ONLY, latency),
        })
    }
}

/// Prints the counters of the connections that are up.
struct Connections(Arc<Map>);

impl Show for Connections {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

impl Show for Counters {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.running.lock().runtime {
            Some(runtime) => runtime.show_stats(f),
            None => Ok(()),
        }
    }
}

/// Prints the histograms of the map.
struct Latency(Arc<Map>);

impl Show for Latency {
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.running.lock().runtime {
            Some(runtime) => runtime.multipath().stats().totals().show_latency(f),
            None => Ok(()),
        }
    }
}
