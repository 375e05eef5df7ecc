// SPDX-License-Identifier: GPL-2.0
//! `farblk discover`: which exports of a server this host may use.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process;

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use super::export::{mode_of, mode_text};
use crate::cli::Discover;
use crate::configfs::{Job, Made};
use crate::error::{Code, Error, fill_in};
use crate::identity;
use crate::output::table;
use crate::size;

/// An export of a server, as it tells this host.
#[derive(Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What it is: "ram" or "block".
    pub kind: String,
    mode: Option<&'static str>,
    /// 0 while it is unavailable.
    pub size_bytes: u64,
    access: String,
    clients: u32,
    max_clients: u32,
    uuid: String,
}

/// The exports of a server, schema `farblk.discover/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    addr: String,
    exports: Vec<Entry>,
}

/// Number of exports that a server may have, as far as this tool goes. It bounds how long a server
/// that always tells of more keeps it busy.
const EXPORTS_MAX: usize = 1 << 16;

/// Parses the kernel's answer: "total N", then one export a line.
fn parse(text: &str) -> Option<(usize, Vec<Entry>)> {
    let mut lines = text.lines();
    let total = lines.next()?.strip_prefix("total ")?.trim().parse().ok()?;
    let entries = lines.filter(|line| !line.is_empty()).map(parse_entry);
    Some((total, entries.collect::<Option<_>>()?))
}

/// Parses "NAME KIND SIZE ACCESS CLIENTS MAX_CLIENTS UUID"; later kernels may add words.
fn parse_entry(line: &str) -> Option<Entry> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let kind = words.next()?.to_owned();
    Some(Entry {
        name,
        mode: mode_of(&kind),
        kind,
        size_bytes: words.next()?.parse().ok()?,
        access: words.next()?.to_owned(),
        clients: words.next()?.parse().ok()?,
        max_clients: words.next()?.parse().ok()?,
        uuid: words.next()?.to_owned(),
    })
}

/// The directory of the objects that ask a server.
const GROUP: &str = "discover";
/// The start of the names of the objects of this tool. The process ID follows.
const PREFIX: &str = "tool-";

/// Makes an object of this process in discover/, which is there for this command only. First
/// removes those of processes that were killed, as they would keep the module loaded.
pub fn make_own(context: &Context, made: &mut Made<'_>, job: &Job) -> Result<PathBuf, Error> {
    let configfs = &context.configfs;
    remove_leftovers(context);
    let name = match configfs.is_dry_run() {
        true => "tool".to_owned(),
        false => format!("{PREFIX}{}", process::id()),
    };
    let object = configfs.path(&[GROUP, &name]);
    made.mkdir(&object, job)?;
    Ok(object)
}

/// Removes the objects of processes that were killed.
fn remove_leftovers(context: &Context) {
    let configfs = &context.configfs;
    let processes = context.root.join("proc");
    if configfs.is_dry_run() || !processes.join("self").exists() {
        return;
    }
    let job = Job::new("cannot clean up");
    for name in configfs.names(&configfs.path(&[GROUP])) {
        let number = name.strip_prefix(PREFIX).and_then(|rest| rest.parse().ok());
        // This process has made none yet.
        let is_over =
            |number: u32| number == process::id() || !processes.join(number.to_string()).exists();
        if number.is_some_and(is_over) {
            let object = configfs.path(&[GROUP, &name]);
            // Another process may be about to do the same.
            let _ = configfs
                .disable(&object, &job)
                .and_then(|()| configfs.rmdir(&object, &job));
        }
    }
}

/// Fails if a server says that it has more exports than [`EXPORTS_MAX`].
fn require_countable(total: usize, job: &Job) -> Result<(), Error> {
    if total <= EXPORTS_MAX {
        return Ok(());
    }
    let why = format!("it tells of {total} exports, more than {EXPORTS_MAX}");
    Err(job.error(Code::Protocol, why))
}

/// Asks the server at `address` for its exports; a dry run gives none.
pub fn ask(
    context: &Context,
    address: SocketAddr,
    source: Option<IpAddr>,
    job: &Job,
) -> Result<Vec<Entry>, Error> {
    identity::settle(context, job)?;
    look(context, address, source, job)
}

/// Asks the server as [`ask`] does, under the identity that this host has now.
pub fn look(
    context: &Context,
    address: SocketAddr,
    source: Option<IpAddr>,
    job: &Job,
) -> Result<Vec<Entry>, Error> {
    let configfs = &context.configfs;
    let mut made = Made::new(configfs, &context.output);
    let object = make_own(context, &mut made, job)?;
    configfs.set(&object, "addr", &address.to_string(), job)?;
    if let Some(source) = source {
        configfs.set(&object, "source", &source.to_string(), job)?;
    }
    let mut exports: Vec<Entry> = Vec::new();
    loop {
        configfs.set(&object, "enable", "1", job)?;
        let Some(text) = configfs.read(&object, "exports", job)? else {
            break;
        };
        let (total, page) =
            parse(&text).ok_or_else(|| job.error(Code::Unparsable, format!("{text:?}")))?;
        require_countable(total, job)?;
        let more = !page.is_empty();
        exports.extend(page);
        if !more || exports.len() >= total {
            break;
        }
        configfs.disable(&object, job)?;
        configfs.set(&object, "first", &exports.len().to_string(), job)?;
    }
    made.remove(job)?;
    Ok(exports)
}

/// Runs `farblk discover`.
pub fn run(context: &Context, arguments: &Discover) -> Result<(), Error> {
    let configfs = &context.configfs;
    configfs.require()?;
    let server = arguments.server.to_string();
    let job = Job::new(format!("cannot ask {server} for its exports"))
        .connect()
        .variable("server", &server)
        .variable("host", &arguments.server.host);
    let address = arguments.server.resolve(&job.what)?;
    let job = job.variable("address", address.ip().to_string());
    let exports = ask(context, address, arguments.source, &job)?;
    if configfs.is_dry_run() {
        return Ok(());
    }
    if context.output.is_json() {
        let addr = address.to_string();
        return context.output.document(&Document {
            schema: "farblk.discover/1",
            addr,
            exports,
        });
    }
    let row = |entry: &Entry| {
        vec![
            entry.name.clone(),
            entry.kind.clone(),
            match entry.size_bytes {
                0 => "unavailable".into(),
                bytes => size::human(bytes),
            },
            entry.mode.map(mode_text).unwrap_or_default(),
            entry.access.clone(),
            format!("{}/{}", entry.clients, entry.max_clients),
        ]
    };
    let rows: Vec<_> = exports.iter().map(row).collect();
    if rows.is_empty() {
        let client = context.host_name().unwrap_or("HOST".into());
        context
            .output
            .note(&format!("{server} has no export that this host may use"));
        context.output.hint(fill_in(
            "farblk export allow EXPORT {client}  # on the server",
            &[("client", client)],
        ));
    }
    table(
        &["EXPORT", "TYPE", "SIZE", "MODE", "ACCESS", "CLIENTS"],
        &rows,
    )
    .iter()
    .try_for_each(|line| context.output.line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn countless_exports() {
        let job = Job::new("cannot ask");
        assert!(require_countable(EXPORTS_MAX, &job).is_ok());
        let error = require_countable(EXPORTS_MAX + 1, &job).unwrap_err();
        assert_eq!(error.why, "it tells of 65537 exports, more than 65536");
    }

    #[test]
    fn answers() {
        let (total, entries) =
            parse("total 2\nvol1 block 512 rw 1 4 u1\nscratch ram 4294967296 ro 0 1 u2 new\n")
                .unwrap();
        assert_eq!((total, entries.len()), (2, 2));
        assert_eq!(
            (&*entries[1].name, entries[1].mode),
            ("scratch", Some("one_sided"))
        );
        assert_eq!(parse("total 0\n"), Some((0, Vec::new())));
        assert_eq!(
            (&*entries[0].kind, entries[0].mode),
            ("block", Some("two_sided"))
        );
        for bad in [
            "",
            "total\n",
            "total x\n",
            "total 1\nvol1 block\n",
            "vol1 ram 1 rw 0 1 u",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
