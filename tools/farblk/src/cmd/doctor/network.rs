// SPDX-License-Identifier: GPL-2.0
//! Checks of the RDMA devices of this host, and of the network interfaces below them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Check, Files};
use crate::configfs::NO_RDMA_DEVICE;
use crate::error::Code;
use crate::program::{self, Outcome};
use crate::quote;

/// What `farblk explain rdma` tells.
pub const EXPLAIN_RDMA: &str = "\
farblk needs an RDMA device: an adapter for InfiniBand or RoCE with its driver, or the software \
device rxe on any Ethernet interface, which needs no special hardware and is slower. An rxe device \
does not survive a reboot. On a port of a bridge or of a bond it gets no packets: these arrive at the \
bridge or bond. When a packet of its GSI queue pair cannot be sent, as under a firewall that drops \
what this host sends, rxe of the kernel fails that queue pair for good, and nobody can connect any \
more: delete the link and add it again. The counter send_err of `rdma statistic` grows then, but for \
other queue pairs, too; `rdma resource show qp` shows which one is in error.";
/// What `farblk explain link` tells.
pub const EXPLAIN_LINK: &str = "\
The port of the RDMA device must be ACTIVE. On Ethernet that needs its network interface to be up, \
with a cable or switch at the other end. On InfiniBand a port that stays in INIT has no subnet \
manager.";
/// What `farblk explain gid` tells.
pub const EXPLAIN_GID: &str = "\
A RoCE port is addressed by GIDs, which are made from the IP addresses of its network interface. \
There are two types: RoCE v2 is carried in UDP packets, RoCE v1 in Ethernet frames, which no router \
forwards. Hosts use RoCE v2 unless default_roce_mode in /sys/kernel/config/rdma_cm says otherwise, \
and both ends must use the same type.";
/// What `farblk explain mtu` tells.
pub const EXPLAIN_MTU: &str = "\
The MTU of the network interface decides about the size of RDMA packets: 1500 bytes give RDMA \
packets of 1024, 4200 bytes and more packets of 4096. Every hop on the way to the server must let \
packets of that size pass. If a switch or the other host takes smaller ones only, connections come \
up, but large reads and writes are lost. With a server, the check sends a packet of the full size \
that must not be split, and waits for the answer.";

/// What `farblk explain route` tells.
pub const EXPLAIN_ROUTE: &str = "\
Two interfaces in one subnet both answer when another host asks for the address of one of them \
(ARP), unless arp_ignore is set: the packets of a path may then arrive at the other interface, whose \
RDMA device does not know them. A route of the type blackhole, unreachable or prohibit drops what \
this host sends to other hosts of its own network, also its answers to clients.";

/// A port of an RDMA device.
#[derive(Debug)]
pub struct Port {
    /// "rxe0".
    pub device: String,
    /// "1".
    pub number: String,
    /// "ACTIVE".
    pub state: String,
    /// True if it is on Ethernet.
    pub is_ethernet: bool,
    /// True if it is software, whose packets netfilter sees.
    pub is_software: bool,
    /// The network interface, "" if it is not known.
    pub netdev: String,
    /// The addresses, each with the type of its GID, "RoCE v2".
    pub addresses: Vec<(IpAddr, String)>,
}

impl Port {
    fn name(&self) -> String {
        format!("{}/{}", self.device, self.number)
    }

    /// Returns true if the port can be used.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// Reads the ports of all RDMA devices.
pub fn ports(files: &Files) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in files.names("sys/class/infiniband") {
        let base = format!("sys/class/infiniband/{device}");
        for number in files.names(&format!("{base}/ports")) {
            let port = format!("{base}/ports/{number}");
            let state = files.text(&format!("{port}/state"));
            let state = state.rsplit(": ").next().unwrap_or_default();
            let mut netdev = files.text(&format!("{base}/parent"));
            let is_software = !netdev.is_empty() || !files.exists(&format!("{base}/device"));
            let mut addresses = Vec::new();
            for gid in files.names(&format!("{port}/gids")) {
                let Some(address) = address(&files.text(&format!("{port}/gids/{gid}"))) else {
                    continue;
                };
                let kind = files.text(&format!("{port}/gid_attrs/types/{gid}"));
                if netdev.is_empty() {
                    netdev = files.text(&format!("{port}/gid_attrs/ndevs/{gid}"));
                }
                addresses.push((address, kind));
            }
            if netdev.is_empty() {
                let below = files.names(&format!("{base}/device/net"));
                netdev = below.into_iter().next().unwrap_or_default();
            }
            ports.push(Port {
                device: device.clone(),
                number: number.clone(),
                state: state.to_owned(),
                is_ethernet: files.text(&format!("{port}/link_layer")) == "Ethernet",
                is_software,
                netdev,
                addresses,
            });
        }
    }
    ports
}

/// Returns the IP address that a GID is made from. Link-local GIDs, which each port has, and empty
/// entries give `None`.
fn address(gid: &str) -> Option<IpAddr> {
    let ip: Ipv6Addr = gid.parse().ok()?;
    if ip.is_unspecified() || (ip.segments()[0] & 0xffc0) == 0xfe80 {
        return None;
    }
    Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
}

/// Returns the flags of a network interface (`IFF_UP` and others), 0 if there is none.
fn flags(files: &Files, netdev: &str) -> u32 {
    let text = files.text(&format!("sys/class/net/{netdev}/flags"));
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
}

/// Returns the network interfaces of Ethernet that can carry an rxe device: first those that are
/// up, and of these the adapters before what the kernel makes. Ports of a bond or of a bridge come
/// last: packets arrive at their master, which has the addresses.
fn interfaces(files: &Files) -> Vec<String> {
    let file = |name: &str, file: &str| files.text(&format!("sys/class/net/{name}/{file}"));
    let mut names = files.names("sys/class/net");
    names.retain(|name| name != "lo" && file(name, "type") == "1");
    names.sort_by_cached_key(|name| {
        // Some drivers do not tell the state of their link.
        let is_up = match file(name, "operstate").as_str() {
            "unknown" => flags(files, name) & 1 != 0,
            state => state == "up",
        };
        let is_adapter = files.exists(&format!("sys/class/net/{name}/device"));
        let has_master = files.exists(&format!("sys/class/net/{name}/master"));
        (has_master, !is_up, !is_adapter)
    });
    names
}

/// Checks the devices, their links, their addresses and their MTU.
pub fn check(files: &Files, ports: &[Port]) -> Vec<Check> {
    if ports.is_empty() {
        let interfaces = interfaces(files);
        let netdev = interfaces.first().map_or("NETDEV", String::as_str);
        let cure = format!(
            "rdma link add rxe0 type rxe netdev {}  # the software device; or load the driver of the adapter",
            quote::word(netdev)
        );
        let check = Check::fail("rdma", NO_RDMA_DEVICE);
        return vec![check.code(Code::NoDevice).cure(cure)];
    }
    let any_active = ports.iter().any(Port::is_active);
    let mut checks = Vec::new();
    let dead = match ports.iter().any(|port| port.is_software) {
        true => dead_devices(program::run("rdma", &["resource", "show", "qp"])),
        false => Vec::new(),
    };
    for port in ports {
        let name = port.name();
        let kind = match (port.is_software, port.is_ethernet) {
            (true, _) => "software",
            (false, true) => "RoCE",
            (false, false) => "InfiniBand",
        };
        let on = match port.netdev.as_str() {
            "" => String::new(),
            netdev => format!(" on {netdev}"),
        };
        checks.push(Check::ok("rdma", format!("{name}, {kind}{on}")));
        if !port.is_active() {
            checks.push(link(files, port, any_active));
            continue;
        }
        checks.push(Check::ok("link", format!("{name} is ACTIVE")));
        // Only rxe has this file.
        if files.exists(&format!("sys/class/infiniband/{}/parent", port.device)) {
            checks.extend(rxe(files, port, dead.contains(&port.device)));
        }
        if port.is_ethernet {
            checks.extend(gid(files, port));
            checks.extend(mtu(files, port));
        }
    }
    checks.extend(routing(files, ports));
    checks
}

/// The RDMA devices whose GSI queue pair, by which all connections are made, is in error. rxe
/// leaves it so when a packet cannot be sent, until the link is made anew.
fn dead_devices(shown: Outcome) -> Vec<String> {
    let Outcome::Text(text) = shown else {
        return Vec::new();
    };
    let is_dead = |line: &&str| line.contains(" type GSI state ERR");
    let device = |line: &str| Some(line.strip_prefix("link ")?.split_once('/')?.0.to_owned());
    text.lines().filter(is_dead).filter_map(device).collect()
}

/// Says why an rxe device that is active gets no packets, or sends none.
fn rxe(files: &Files, port: &Port, is_dead: bool) -> Option<Check> {
    let name = port.name();
    let anew = |netdev: &str| {
        let device = quote::word(&port.device);
        let netdev = quote::word(netdev);
        format!("rdma link delete {device} && rdma link add {device} type rxe netdev {netdev}")
    };
    let netdev = format!("sys/class/net/{}", port.netdev);
    let kind = [("brport", "bridge"), ("bonding_slave", "bond")]
        .iter()
        .find(|(folder, _)| files.exists(&format!("{netdev}/{folder}")));
    let master = fs::read_link(files.path(&format!("{netdev}/master"))).unwrap_or_default();
    let master = master.file_name().unwrap_or_default().to_string_lossy();
    if let Some((_, kind)) = kind {
        let why = format!(
            "{name} is on {}, a port of the {kind} {master}: packets arrive at {master} instead",
            port.netdev
        );
        return Some(Check::fail("rdma", why).cure(anew(&master)));
    }
    let why = format!(
        "the GSI queue pair of {name} is in error, since a packet could not be sent: nobody can \
         connect any more"
    );
    let cure = anew(&port.netdev) + "  # maps and ports come back by themselves";
    is_dead.then(|| Check::fail("rdma", why).code(Code::TimedOut).cure(cure))
}

/// A route of IPv4 without a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route<'a> {
    /// The interface; "*" of one that drops packets.
    netdev: &'a str,
    network: u32,
    mask: u32,
}

impl Route<'_> {
    /// Parses a line of /proc/net/route, whose addresses are numbers in the order of the CPU.
    fn parse(line: &str) -> Option<Route<'_>> {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |index: usize| {
            let number = u32::from_str_radix(words.get(index)?, 16).ok()?;
            Some(u32::from_be_bytes(number.to_ne_bytes()))
        };
        (number(2)? == 0).then_some(Route {
            netdev: words[0],
            network: number(1)?,
            mask: number(7)?,
        })
    }

    fn has(&self, ip: Ipv4Addr) -> bool {
        u32::from(ip) & self.mask == self.network
    }

    /// "10.9.0.0/24"
    fn prefix(&self) -> String {
        format!(
            "{}/{}",
            Ipv4Addr::from(self.network),
            self.mask.count_ones()
        )
    }
}

/// Returns the route of this host that drops the packets to an address.
pub fn dropping_route(files: &Files, ip: IpAddr) -> Option<String> {
    let IpAddr::V4(ip) = ip else {
        return None;
    };
    let text = files.text("proc/net/route");
    let routes = text.lines().filter_map(Route::parse);
    let found = routes.filter(|route| route.netdev == "*" && route.has(ip));
    found
        .max_by_key(|route| route.mask)
        .map(|route| route.prefix())
}

/// Checks the routes of the networks that RDMA ports are in.
fn routing(files: &Files, ports: &[Port]) -> Vec<Check> {
    let text = files.text("proc/net/route");
    let routes: Vec<_> = text.lines().filter_map(Route::parse).collect();
    let is_of_port = |route: &&Route<'_>| {
        let mut ports = ports.iter().filter(|port| port.is_ethernet);
        route.mask != 0 && ports.any(|port| port.netdev == route.netdev)
    };
    let arp_ignore = |netdev: &str| {
        let file = format!("proc/sys/net/ipv4/conf/{netdev}/arp_ignore");
        files.text(&file).parse::<u32>().ok()
    };
    let mut checks = Vec::new();
    let mut told = Vec::new();
    for own in routes.iter().filter(is_of_port) {
        for other in &routes {
            let is_within = other.mask >= own.mask && other.network & own.mask == own.network;
            if !is_within || other.netdev == own.netdev || told.contains(&(other, own)) {
                continue;
            }
            told.push((own, other));
            let (netdev, prefix) = (own.netdev, other.prefix());
            if other.netdev == "*" {
                let why = format!(
                    "the route {prefix} of this host, in the network of {netdev}, drops packets"
                );
                let cure = format!("ip route delete {prefix}");
                checks.push(Check::warn("route", why).cure(cure));
                continue;
            }
            let all = arp_ignore("all");
            let ignored = |netdev: &str| all.max(arp_ignore(netdev));
            let is_open = [netdev, other.netdev].map(ignored).contains(&Some(0));
            if other.mask == own.mask && is_open {
                let why = format!(
                    "{netdev} and {} are both in {prefix}, and each answers for the address of the \
                     other (arp_ignore is 0)",
                    other.netdev
                );
                let cure =
                    "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2";
                checks.push(Check::warn("route", why).cure(cure));
            }
        }
    }
    checks
}

/// Says why a port is not active. Another port may do.
fn link(files: &Files, port: &Port, any_active: bool) -> Check {
    let name = port.name();
    let netdev = &port.netdev;
    let flags = flags(files, netdev);
    let (why, cure) = if netdev.is_empty() {
        let why = format!("{name} is {}", port.state);
        (
            why,
            "ibstat  # INIT: there is no subnet manager; DOWN: is there a cable?".to_owned(),
        )
    } else if flags & 1 == 0 {
        let why = format!(
            "{name} is {}: its interface {netdev} is switched off",
            port.state
        );
        (why, format!("ip link set dev {} up", quote::word(netdev)))
    } else {
        let why = format!(
            "{name} is {}: its interface {netdev} has no carrier",
            port.state
        );
        let cure = format!(
            "ip -details link show dev {}  # is there a cable, and a switch at its end?",
            quote::word(netdev)
        );
        (why, cure)
    };
    match any_active {
        true => Check::warn("link", why).cure(cure),
        false => Check::fail("link", why).code(Code::NoDevice).cure(cure),
    }
}

/// Checks that the port has an address, and that rdma_cm uses RoCE v2.
fn gid(files: &Files, port: &Port) -> Vec<Check> {
    let name = port.name();
    if port.addresses.is_empty() {
        let why = format!(
            "{name} has no GID of an IP address: {} has no address",
            port.netdev
        );
        let cure = format!(
            "ip address add ADDRESS/LENGTH dev {}",
            quote::word(&port.netdev)
        );
        return vec![Check::fail("gid", why).code(Code::NoDevice).cure(cure)];
    }
    let mode_file = format!(
        "sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_mode",
        port.device, port.number
    );
    let mode = files.text(&mode_file);
    if !mode.is_empty() && mode != "RoCE v2" {
        let why = format!("connections over {name} use {mode}, and other hosts RoCE v2 by default");
        let cure = format!("echo 'RoCE v2' > {}", quote::path(&files.path(&mode_file)));
        return vec![Check::warn("gid", why).cure(cure)];
    }
    let v2 = |(_, kind): &&(IpAddr, String)| kind == "RoCE v2";
    match port.addresses.iter().find(v2) {
        Some((address, kind)) => vec![Check::ok(
            "gid",
            format!("{address} has a {kind} GID on {name}"),
        )],
        None => {
            let (address, kind) = &port.addresses[0];
            let why = format!(
                "{address} has only a {kind} GID on {name}, which no router forwards and a host with \
                 RoCE v2 does not hear"
            );
            vec![Check::warn("gid", why).cure(
                "rdma dev show  # can the adapter or its firmware do RoCE v2? if not, set the other host to v1",
            )]
        }
    }
}

/// Tells the RDMA path MTU that the MTU of the interface allows. Headers take up to 80 bytes.
fn mtu(files: &Files, port: &Port) -> Option<Check> {
    let mtu: u32 = files
        .text(&format!("sys/class/net/{}/mtu", port.netdev))
        .parse()
        .ok()?;
    let path = [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|path| path + 80 <= mtu)?;
    let more = match path < 4096 {
        true => "; 4200 on every hop gives 4096",
        false => "",
    };
    Some(Check::ok(
        "mtu",
        format!(
            "{} has MTU {mtu}: RDMA packets of {path} bytes{more}",
            port.netdev
        ),
    ))
}

/// Returns the name and the MTU of the interface with this address.
pub fn interface_of<'a>(files: &Files, ports: &'a [Port], ip: IpAddr) -> Option<(&'a str, u32)> {
    let has = |port: &&Port| port.addresses.iter().any(|(address, _)| *address == ip);
    let port = ports.iter().find(has)?;
    let mtu = files.text(&format!("sys/class/net/{}/mtu", port.netdev));
    Some((&port.netdev, mtu.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn devices_whose_queue_pair_is_in_error() {
        let text = "link rxe0/1 lqpn 1 type GSI state ERR sq-psn 0 comm [ib_core]\n\
                    link rxe1/1 lqpn 1 type GSI state RTS sq-psn 4 comm [ib_core]\n\
                    link rxe2/1 lqpn 17 rqpn 18 type RC state ERR comm [farblk]\n";
        assert_eq!(dead_devices(Outcome::Text(text.into())), ["rxe0"]);
        assert!(dead_devices(Outcome::Missing).is_empty());
    }

    #[test]
    fn the_best_interface_for_rxe_comes_first() {
        let root = std::env::temp_dir().join(format!("farblk-netdevs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (name, kind, state, flags, is_adapter) in [
            ("bond0", "1", "up", "0x1003", false),
            ("br0", "1", "up", "0x1003", false),
            ("eno1", "1", "up", "0x1803", true),
            ("eth0", "1", "down", "0x1002", true),
            ("eth1", "1", "up", "0x1003", true),
            ("ib0", "32", "up", "0x1003", true),
            ("ifb0", "1", "down", "0x82", false),
            ("lo", "772", "unknown", "0x9", false),
            ("tap0", "1", "unknown", "0x1002", false),
            ("vec0", "1", "unknown", "0x1003", true),
        ] {
            let folder = root.join("sys/class/net").join(name);
            fs::create_dir_all(&folder).expect("a directory");
            for (file, text) in [("type", kind), ("operstate", state), ("flags", flags)] {
                fs::write(folder.join(file), text).expect("a file");
            }
            if is_adapter {
                fs::create_dir(folder.join("device")).expect("a directory");
            }
        }
        symlink("../bond0", root.join("sys/class/net/eno1/master")).expect("a link");
        assert_eq!(
            interfaces(&Files(&root)),
            [
                "eth1", "vec0", "bond0", "br0", "eth0", "ifb0", "tap0", "eno1"
            ]
        );
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn addresses_of_gids() {
        let mapped = "0000:0000:0000:0000:0000:ffff:0a09:0001";
        assert_eq!(address(mapped), Some(Ipv4Addr::new(10, 9, 0, 1).into()));
        assert_eq!(address("fe80:0000:0000:0000:5054:00ff:fe12:3401"), None);
        assert_eq!(address("0000:0000:0000:0000:0000:0000:0000:0000"), None);
        let global = "fd00:0000:0000:0000:0000:0000:0000:0001";
        assert_eq!(address(global), "fd00::1".parse().ok());
        assert_eq!(address(""), None);
    }
}
