// SPDX-License-Identifier: GPL-2.0
//! `farblk events`: follows the states of maps, paths, exports and ports.

use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::clock::{self, IntervalTimer};
use crate::configfs::LastError;
use crate::error::Error;
use crate::output;

/// The time between two looks at the states.
const INTERVAL: Duration = Duration::from_millis(200);

/// An object with a state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    kind: &'static str,
    /// The map of a path.
    map: Option<String>,
    name: String,
    state: String,
    last_error: Option<LastError>,
}

impl Object {
    fn read(context: &Context, kind: &'static str, map: Option<&str>, folder: &Path) -> Vec<Self> {
        let configfs = &context.configfs;
        let read = |name: String| {
            let place = folder.join(&name);
            // One that was removed meanwhile has no state.
            Some(Self {
                kind,
                map: map.map(str::to_owned),
                state: configfs.attr(&place, "state")?,
                last_error: configfs.last_error(&place),
                name,
            })
        };
        let names = configfs.names(folder);
        names.into_iter().filter_map(read).collect()
    }

    fn is(&self, other: &Self) -> bool {
        (self.kind, &self.map, &self.name) == (other.kind, &other.map, &other.name)
    }
}

/// A change of the state of an object, schema `farblk.event/1`.
#[derive(Debug, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Event {
    schema: &'static str,
    /// When it was noticed.
    time: String,
    /// "map", "path", "export" or "port".
    kind: &'static str,
    /// The map of a path.
    map: Option<String>,
    name: String,
    /// The state before; `None` if the object was not there, or at the beginning.
    from: Option<String>,
    /// The state now; `None` if the object was removed.
    to: Option<String>,
    last_error: Option<LastError>,
}

impl Event {
    fn new(before: Option<&Object>, now: Option<&Object>, time: &str) -> Option<Self> {
        let object = now.or(before)?;
        let state = |object: &Object| object.state.clone();
        Some(Self {
            schema: "farblk.event/1",
            time: time.to_owned(),
            kind: object.kind,
            map: object.map.clone(),
            name: object.name.clone(),
            from: before.map(state),
            to: now.map(state),
            last_error: now.and_then(|object| object.last_error.clone()),
        })
    }

    /// "2026-11-23T22:40:01.123Z  map scratch  live -> reconnecting  last error: ..."
    fn line(&self) -> String {
        let name = match &self.map {
            Some(map) => format!("path {} of map {map}", self.name),
            None => format!("{} {}", self.kind, self.name),
        };
        let change = match (&self.from, &self.to) {
            (Some(from), Some(to)) => format!("{from} -> {}", output::state(to)),
            (None, Some(to)) => output::state(to),
            (_, None) => "removed".into(),
        };
        let mut line = format!("{}  {name}  {change}", self.time);
        if let Some(last) = &self.last_error {
            line += &format!("  last error: {}", last.text);
        }
        line
    }
}

/// The states when they were looked at last.
#[derive(Default)]
struct Follower {
    objects: Vec<Object>,
}

impl Follower {
    /// Looks at the states, and returns what has changed.
    fn look(&mut self, context: &Context) -> Vec<Event> {
        let configfs = &context.configfs;
        let mut objects = Object::read(context, "port", None, &configfs.path(&["ports"]));
        let exports = configfs.path(&["exports"]);
        objects.extend(Object::read(context, "export", None, &exports));
        for map in Object::read(context, "map", None, &configfs.path(&["maps"])) {
            let folder = configfs.path(&["maps", &map.name]).join("paths");
            let paths = Object::read(context, "path", Some(&map.name), &folder);
            // First why, and then what follows from it.
            objects.extend(paths);
            objects.push(map);
        }
        let time = clock::now();
        let before = std::mem::replace(&mut self.objects, objects);
        let mut events = Vec::new();
        for now in &self.objects {
            let old = before.iter().find(|old| old.is(now));
            if old.is_none_or(|old| old.state != now.state) {
                events.extend(Event::new(old, Some(now), &time));
            }
        }
        for old in &before {
            if !self.objects.iter().any(|now| now.is(old)) {
                events.extend(Event::new(Some(old), None, &time));
            }
        }
        events
    }
}

/// Runs `farblk events`. It ends when nobody reads it any more.
pub fn run(context: &Context) -> Result<(), Error> {
    super::refuse_dry_run(context, "events")?;
    context.configfs.require()?;
    let mut follower = Follower::default();
    let mut timer = IntervalTimer::new(INTERVAL);
    loop {
        for event in follower.look(context) {
            match context.output.is_json() {
                true => context.output.document(&event)?,
                false => context.output.line(&event.line())?,
            }
        }
        if !context.output.wait(timer.left()) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::tests::Host;

    /// What the events say, without their times.
    fn texts(events: &[Event]) -> Vec<String> {
        let text = |event: &Event| {
            crate::cmd::schema::check(&serde_json::to_string(event).expect("JSON"));
            let line = anstream::adapter::strip_str(&event.line()).to_string();
            line.split_once("  ").expect("a time").1.to_owned()
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn changes_are_told_once() {
        let host = Host::new("events");
        host.ok("port add --addr 10.9.0.2");
        host.ok("map 10.9.0.1/s");
        let context = host.context();
        let mut follower = Follower::default();
        assert_eq!(
            texts(&follower.look(&context)),
            ["port 1  listening", "path 0 of map s  live", "map s  live"]
        );
        assert!(follower.look(&context).is_empty());
        host.kernel.put("maps/s", "state", "reconnecting");
        host.kernel.put("maps/s/paths/0", "state", "waiting");
        let why = "ECONNREFUSED nobody listens on 10.9.0.1:7420";
        host.kernel.put("maps/s/paths/0", "last_error", why);
        assert_eq!(
            texts(&follower.look(&context)),
            [
                "path 0 of map s  live -> waiting  last error: nobody listens on 10.9.0.1:7420",
                "map s  live -> reconnecting"
            ]
        );
        host.kernel.put("maps/s", "state", "live");
        assert_eq!(
            texts(&follower.look(&context)),
            ["map s  reconnecting -> live"]
        );
        host.ok("unmap s");
        assert_eq!(
            texts(&follower.look(&context)),
            ["path 0 of map s  removed", "map s  removed"]
        );
    }
}
