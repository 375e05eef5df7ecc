// SPDX-License-Identifier: GPL-2.0
//! `farblk port`: the addresses this host listens on.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Context, Removed};
use crate::addr;
use crate::cli;
use crate::configfs::{Job, LastError, Made};
use crate::error::{Code, Error, Peer, fill_in};
use crate::identity;
use crate::output::table;

/// The hint for a port that was listening and lost its device or address.
const RETURNS: &str = "# the port listens again by itself once its device and address are back";

/// The hint for a loopback address.
const NO_LOOPBACK: &str = "\
    rdma link  # which interface has an RDMA device?\n\
    ip address  # listen on an address of that interface; 0.0.0.0 is for all";

/// A port.
#[derive(JsonSchema, Serialize)]
struct Port {
    name: String,
    addr: Option<String>,
    state: Option<String>,
    device: Option<String>,
    last_error: Option<LastError>,
}

impl Port {
    /// Returns true if the module makes the port listen again by itself. It does not if a task that
    /// disabled the port was killed.
    fn returns(&self) -> bool {
        let is_killed = |last: &LastError| last.errno == "EINTR";
        self.state.as_deref() == Some("error") && !self.last_error.as_ref().is_some_and(is_killed)
    }
}

/// A port, schema `farblk.port/1`.
#[derive(JsonSchema, Serialize)]
pub struct PortDocument<'a> {
    schema: &'static str,
    changed: bool,
    port: &'a Port,
}

/// The ports of this host, schema `farblk.port-list/1`.
#[derive(JsonSchema, Serialize)]
pub struct ListDocument {
    schema: &'static str,
    host: Option<String>,
    ports: Vec<Port>,
}

/// Runs `farblk port`.
pub fn run(context: &Context, command: &cli::Port) -> Result<(), Error> {
    context.configfs.require()?;
    match command {
        cli::Port::Add { name, addr } => add(context, name.as_deref(), *addr),
        cli::Port::List => list(context),
        cli::Port::Rm { name } => remove(context, name),
    }
}

fn read(context: &Context, name: &str) -> Port {
    let object = context.configfs.path(&["ports", name]);
    Port {
        name: name.to_owned(),
        addr: context.configfs.attr(&object, "addr"),
        state: context.configfs.attr(&object, "state"),
        device: context.configfs.attr(&object, "device"),
        last_error: context.configfs.last_error(&object),
    }
}

/// Returns true if the port `name` has the address `addr`.
fn listens_on(context: &Context, name: &str, addr: SocketAddr) -> bool {
    let text = context
        .configfs
        .attr(&context.configfs.path(&["ports", name]), "addr");
    text.is_some_and(|text| addr::parse_local(&text) == Ok(addr))
}

fn add(context: &Context, wanted: Option<&str>, addr: SocketAddr) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot listen on {addr}"));
    // A command that was killed has left a port without an address.
    let is_new = |name: &String| {
        let object = configfs.path(&["ports", name]);
        configfs.attr(&object, "addr").is_none() && !configfs.flag(&object, "enable")
    };
    let names = configfs.names(&configfs.path(&["ports"]));
    let existing = match wanted {
        Some(name) => names.iter().find(|have| *have == name && !is_new(have)),
        None => names.iter().find(|have| listens_on(context, have, addr)),
    };
    if let Some(name) = existing {
        let object = configfs.path(&["ports", name]);
        if !listens_on(context, name, addr) {
            let have = configfs.attr(&object, "addr").unwrap_or_default();
            return Err(job
                .error(
                    Code::Differs,
                    format!("port {name} exists already, on {have}"),
                )
                .hint(fill_in(
                    "# choose another name\nfarblk port rm {name}  # or remove that port",
                    &[("name", name)],
                )));
        }
        let changed = !configfs.flag(&object, "enable");
        if changed {
            enable(context, name, addr, &job)?;
        }
        if !configfs.is_dry_run() {
            require_listening(context, name, &job)?;
        }
        return report(context, name, changed);
    }
    let name = match wanted {
        Some(name) => name.to_owned(),
        None => (1u32..)
            .map(|number| number.to_string())
            .find(|number| !names.contains(number))
            .unwrap_or_default(),
    };
    let object = configfs.path(&["ports", &name]);
    identity::settle(context, &job)?;
    let mut made = Made::new(configfs, &context.output);
    if !names.contains(&name) {
        match made.mkdir(&object, &job) {
            // Another command has taken the number since.
            Err(error) if error.code == Code::Differs && wanted.is_none() => {
                return add(context, wanted, addr);
            }
            result => result?,
        }
    }
    configfs.set(&object, "addr", &addr.to_string(), &job)?;
    enable(context, &name, addr, &job)?;
    made.keep();
    report(context, &name, true)
}

/// Makes a port listen on `addr`; an error says which other port listens there.
fn enable(context: &Context, name: &str, addr: SocketAddr, job: &Job) -> Result<(), Error> {
    let object = context.configfs.path(&["ports", name]);
    let result = context.configfs.set(&object, "enable", "1", job);
    result.map_err(|error| match error.code {
        Code::BadValue if addr.ip().is_loopback() => error.hint(NO_LOOPBACK),
        Code::AddressTaken => match listens_beside(context, addr) {
            Some(other) => {
                let at = other.addr.unwrap_or_default();
                let hint = "farblk port rm {name}  # unless it shall stay: ends what came in by it";
                error
                    .detail(format!("port {} listens on {at}", other.name))
                    .hint(fill_in(hint, &[("name", &other.name)]))
            }
            None => error,
        },
        _ => error,
    })
}

/// The port that keeps others from `addr`.
fn listens_beside(context: &Context, addr: SocketAddr) -> Option<Port> {
    let names = context.configfs.names(&context.configfs.path(&["ports"]));
    let mut ports = names.iter().map(|name| read(context, name));
    ports.find(|port| {
        let Some(Ok(at)) = port.addr.as_deref().map(addr::parse_local) else {
            return false;
        };
        let is_everywhere = at.ip().is_unspecified() || addr.ip().is_unspecified();
        let meets = at.ip() == addr.ip() || is_everywhere && at.is_ipv4() == addr.is_ipv4();
        port.state.as_deref() == Some("listening") && at.port() == addr.port() && meets
    })
}

/// Fails if the port does not listen, with its reason.
fn require_listening(context: &Context, name: &str, job: &Job) -> Result<(), Error> {
    let port = read(context, name);
    let state = port.state.as_deref().unwrap_or("unknown");
    if state == "listening" {
        return Ok(());
    }
    let (code, words) = match &port.last_error {
        Some(last) => (
            Code::from_words(&last.errno, &last.text, Peer::Nobody),
            format!(": {}", last.text),
        ),
        None => (Code::NoDevice, String::new()),
    };
    let error = job.error(code, format!("port {name} is {state}{words}"));
    Err(match state {
        "error" if port.returns() => error.hint(RETURNS),
        "error" => error.hint(fill_in(
            "farblk port rm {name}  # waits for what still uses the port; then add it again",
            &[("name", name)],
        )),
        _ => error,
    })
}

fn report(context: &Context, name: &str, changed: bool) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Ok(());
    }
    let port = read(context, name);
    let verb = if changed {
        "listening"
    } else {
        "already listening"
    };
    let mut text = format!(
        "port {name} {verb} on {}",
        port.addr.as_deref().unwrap_or("-")
    );
    if let Some(device) = &port.device {
        text += &format!(" ({device})");
    }
    context.output.result(
        &text,
        &PortDocument {
            schema: "farblk.port/1",
            changed,
            port: &port,
        },
    )
}

fn list(context: &Context) -> Result<(), Error> {
    let names = context.configfs.names(&context.configfs.path(&["ports"]));
    let ports: Vec<Port> = names.iter().map(|name| read(context, name)).collect();
    if context.output.is_json() {
        let host = context.host_name();
        return context.output.document(&ListDocument {
            schema: "farblk.port-list/1",
            host,
            ports,
        });
    }
    let cell = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows: Vec<_> = ports
        .iter()
        .map(|port| {
            vec![
                port.name.clone(),
                cell(&port.addr),
                cell(&port.state),
                cell(&port.device),
            ]
        })
        .collect();
    let mut lines = table(&["PORT", "ADDRESS", "STATE", "DEVICE"], &rows).into_iter();
    lines
        .next()
        .map_or(Ok(()), |heading| context.output.line(&heading))?;
    for (line, port) in lines.zip(&ports) {
        context.output.line(&line)?;
        let last = port.last_error.iter();
        let mut branches: Vec<_> = last
            .map(|last| format!("last error: {}", last.text))
            .collect();
        if port.returns() {
            branches.push(format!("hint: {RETURNS}"));
        }
        context.output.branches(&branches)?;
    }
    Ok(())
}

fn remove(context: &Context, name: &str) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new(format!("cannot remove port {name}"));
    let object = configfs.path(&["ports", name]);
    if !configfs.exists(&object) {
        return Err(context.not_found(&job.what, "port", name));
    }
    configfs.disable(&object, &job)?;
    configfs.rmdir(&object, &job)?;
    if configfs.is_dry_run() {
        return Ok(());
    }
    context.output.result(
        &format!("removed port {name}"),
        &Removed::new("port", name, true),
    )
}
