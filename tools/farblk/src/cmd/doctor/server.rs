// SPDX-License-Identifier: GPL-2.0
//! Checks of the way to a server, and of what it offers to this host.

use std::net::{IpAddr, SocketAddr};

use super::firewall::ROCE_PORT;
use super::host::RELOAD;
use super::network::{self, Port};
use super::probe::{self, Answer};
use super::{Check, Files};
use crate::addr::Place;
use crate::cmd::{Context, discover, path};
use crate::configfs::Job;
use crate::error::{Code, Error, fill_in};
use crate::quote;

/// What `farblk explain server` tells.
pub const EXPLAIN: &str = "\
The server must answer at its address, its RDMA device must be reachable (UDP port 4791 for RoCE \
v2), and one of its ports must listen there: `farblk port list` on the server shows them. The check \
asks the server for its exports, as `farblk discover` does.";
/// What `farblk explain admission` tells.
pub const EXPLAIN_ADMISSION: &str = "\
A server shows a host the exports that admit it, and no others. An export admits the hosts that \
`farblk export allow` names, by the host_name in their /sys/kernel/config/farblk, or all hosts \
with --allow-any-host.";

/// Runs the checks.
pub fn check(context: &Context, files: &Files, ports: &[Port], wanted: &Place) -> Vec<Check> {
    let server = &wanted.server;
    let job = Job::new(format!("cannot ask {server}"))
        .connect()
        .variable("server", server.to_string())
        .variable("host", &server.host);
    let address = match server.resolve(&job.what) {
        Ok(address) => address,
        Err(error) => return vec![Check::error("server", &error)],
    };
    let job = job.variable("address", address.ip().to_string());
    if context.configfs.require().is_err() || !ports.iter().any(Port::is_active) {
        let why = format!("{server} was not asked: this host is not ready");
        return vec![Check::info("server", why)];
    }
    let mut checks = Vec::new();
    match discover::look(context, address, None, &job) {
        Ok(exports) => {
            let itself = match is_own(address.ip()) {
                true => ", which is this host",
                false => "",
            };
            checks.push(Check::ok("server", format!("{server} answers{itself}")));
            let names: Vec<_> = exports.iter().map(|entry| entry.name.as_str()).collect();
            checks.push(admission(context, wanted, address, &names));
            let gone = |entry: &&discover::Entry| {
                entry.size_bytes == 0 && wanted.export.as_ref() == Some(&entry.name)
            };
            checks.extend(
                exports
                    .iter()
                    .find(gone)
                    .map(|discover::Entry { name, .. }| {
                        Check::fail("server", format!("{server}/{name} is unavailable"))
                            .code(Code::Unavailable)
                            .cure_there(fill_in("farblk export show {name}", &[("name", name)]))
                    }),
            );
            checks.extend(mtu(files, ports, address.ip()));
        }
        Err(error) => checks.push(unreachable(context, files, address, &error)),
    }
    checks
}

/// Says whether the server admits this host to the export, or to any.
fn admission(context: &Context, wanted: &Place, address: SocketAddr, names: &[&str]) -> Check {
    let server = &wanted.server;
    let host = context.host_name().unwrap_or_else(|| "HOST".into());
    let allow = |export: &str| {
        let values = [("export", export), ("host", host.as_str())];
        fill_in("farblk export allow {export} {host}", &values)
    };
    match &wanted.export {
        Some(export) if names.contains(&export.as_str()) => {
            Check::ok("admission", format!("{server} admits {host} to {export}"))
        }
        Some(export) => {
            // A host that has not proved its key is not told of an export that wants it.
            if let Some(map) = live_map(context, address, export) {
                let text = format!("{server} admits {host} to {export}: map {map} is live");
                return Check::ok("admission", text);
            }
            let values = [("export", export.as_str()), ("host", host.as_str())];
            let show = "farblk export show {export}  # has {host} an entry with a key? then map it \
                with --key-file";
            let why = format!(
                "{server} has no export {export}, or does not admit {host} to it without a key"
            );
            Check::fail("admission", why)
                .code(Code::Denied)
                .cure_there(allow(export) + "\n" + &fill_in(show, &values))
        }
        None if names.is_empty() => {
            let why = format!("{server} has no export that {host} may use");
            Check::warn("admission", why)
                .code(Code::Denied)
                .cure_there(allow("EXPORT"))
        }
        None => {
            let text = format!("{server} admits {host} to {}", names.join(", "));
            Check::ok("admission", text)
        }
    }
}

/// Returns the name of a map of this export that is live.
fn live_map(context: &Context, address: SocketAddr, export: &str) -> Option<String> {
    let configfs = &context.configfs;
    let names = configfs.names(&configfs.path(&["maps"]));
    names.into_iter().find(|name| {
        let object = configfs.path(&["maps", name]);
        let is = |attribute: &str, value: &str| {
            configfs.attr(&object, attribute).as_deref() == Some(value)
        };
        let paths = path::read_all(context, &object);
        is("export", export)
            && is("state", "live")
            && paths.iter().any(|path| path.leads_to(address))
    })
}

/// Checks whether packets of the full size arrive.
fn mtu(files: &Files, ports: &[Port], ip: IpAddr) -> Option<Check> {
    let (netdev, mtu) = network::interface_of(files, ports, probe::source(ip)?)?;
    // A host that does not answer small ones tells nothing.
    if probe::ask(ip, None) != Answer::Alive {
        let why = format!(
            "{ip} does not answer datagrams: whether packets of {mtu} bytes arrive is not known"
        );
        return Some(Check::info("mtu", why));
    }
    if probe::ask(ip, Some(mtu)) == Answer::Alive {
        return Some(Check::ok(
            "mtu",
            format!("packets of {mtu} bytes reach {ip}"),
        ));
    }
    let fits = [4200, 1500]
        .into_iter()
        .find(|size| *size < mtu && probe::ask(ip, Some(*size)) == Answer::Alive);
    let netdev = quote::word(netdev);
    let cure = match fits {
        Some(fits) => format!("ip link set dev {netdev} mtu {fits}  # or let all hops take {mtu}"),
        None => format!("ip link set dev {netdev} mtu 1500  # or less, until packets arrive"),
    };
    let why = format!(
        "packets of {mtu} bytes, the MTU of {netdev}, do not reach {ip}: a hop takes smaller ones only"
    );
    Some(Check::fail("mtu", why).cure(cure))
}

/// Returns true if packets to `ip` do not leave this host.
fn is_own(ip: IpAddr) -> bool {
    probe::source(ip) == Some(ip)
}

/// Says that this host sends nothing to `ip`.
fn no_route(files: &Files, ip: IpAddr, error: &Error) -> Check {
    let (why, cure) = match network::dropping_route(files, ip) {
        Some(route) => (
            format!("the route {route} of this host drops the packets to {ip}"),
            format!("ip route delete {route}"),
        ),
        None => (
            format!("this host has no route to {ip}"),
            format!("ip route get {ip}  # then add a route"),
        ),
    };
    Check::fail("server", why).code(error.code).cure(cure)
}

/// Says why a server could not be asked.
fn unreachable(context: &Context, files: &Files, address: SocketAddr, error: &Error) -> Check {
    let ip = address.ip();
    let why = error.why.clone();
    match error.code {
        Code::Refused | Code::Unreachable | Code::TimedOut | Code::Lost if is_own(ip) => {
            let why = format!("{ip} is an address of this host, which has asked itself: {why}");
            let cure = format!(
                "ip address show to {ip}  # if another host is meant, one of the two needs another \
                 address"
            );
            Check::fail("server", why).code(error.code).cure(cure)
        }
        Code::Refused => Check::fail("server", why)
            .code(error.code)
            .cure_there(format!(
                "farblk port add --addr {}",
                quote::word(&address.to_string())
            )),
        Code::Unreachable | Code::TimedOut | Code::Lost => silent(files, ip, error),
        Code::Version => Check::fail("version", why)
            .code(error.code)
            .cure(versions(context, error)),
        Code::Permission => Check::info(
            "server",
            format!("{ip} was not asked: {why}; run it as root"),
        ),
        _ if probe::ask(ip, None) == Answer::NoRoute => no_route(files, ip, error),
        _ => Check::error("server", error),
    }
}

/// Says why nothing comes back over RDMA.
fn silent(files: &Files, ip: IpAddr, error: &Error) -> Check {
    let check = |why: String| Check::fail("server", why).code(error.code);
    match probe::ask(ip, None) {
        Answer::NoRoute => no_route(files, ip, error),
        Answer::Silent => {
            let cure = format!(
                "ip neighbour show to {ip}  # is the server up? REACHABLE: then a firewall drops packets"
            );
            check(format!("{ip} answers neither RDMA nor UDP: {}", error.why)).cure(cure)
        }
        Answer::Alive => match probe::ask_port(ip, ROCE_PORT, None) {
            Answer::Alive => {
                let cure = "farblk doctor  # names what is wrong with its RDMA device";
                check(format!(
                    "{ip} is up, but takes no RoCE (UDP port {ROCE_PORT})"
                ))
                .cure_there(cure)
            }
            _ => {
                let why = format!(
                    "{ip} is up, but RoCE (UDP port {ROCE_PORT}) gets lost, there or on the way: {}",
                    error.why
                );
                Check::fail("server", why).code(error.code).cure_there(
                    "farblk doctor  # names the rule if its firewall drops it, and what else \
                         keeps it silent",
                )
            }
        },
    }
}

/// The remedy for hosts without a common version of the protocol. A client that offers fewer
/// versions than it speaks was loaded with a parameter.
fn versions(context: &Context, error: &Error) -> String {
    let configfs = &context.configfs;
    let newest: Option<u32> = configfs.number(&configfs.path(&[]), "protocol");
    let offered = error.why.split_once("client ").and_then(|(_, rest)| {
        let (_, rest) = rest.split_once(" to ")?;
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse::<u32>()
            .ok()
    });
    match (newest, offered) {
        (Some(newest), Some(offered)) if offered < newest => {
            format!(
                "{RELOAD} protocol_version=0  # all maps, exports and ports removed: it was loaded with protocol_version={offered}"
            )
        }
        _ => "farblk version  # on both hosts; then install the newer release on the other one"
            .into(),
    }
}
