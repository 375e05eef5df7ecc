// SPDX-License-Identifier: GPL-2.0
//! Addresses: `HOST[:PORT]` with IPv6 in brackets, `HOST[:PORT]/EXPORT`, `[SRC@]DST`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::error::{Code, Error};
use crate::program::{self, Outcome};
use crate::usage::Invalid;
use crate::{name, quote};

/// The port a server listens on when none is given.
pub const DEFAULT_PORT: u16 = 7420;

/// A host, by name or IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name or IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Parses `HOST`, `HOST:PORT`, `[IPV6]`, `[IPV6]:PORT` or a bare IPv6 address.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        require_no_url(text)?;
        require_no_zone(text)?;
        let split = text.rsplit_once(':').filter(|(host, port)| {
            host.parse::<Ipv6Addr>().is_ok() && port.parse().is_ok_and(|port: u16| port >= 1000)
        });
        if let Some((host, port)) = split {
            return Err(format!(
                "{text:?} may be an IPv6 address, or one with a port: write [{host}]:{port}, or \
                 [{text}] for the address"
            )
            .into());
        }
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self {
                host: text.to_owned(),
                port: DEFAULT_PORT,
            });
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest
                .split_once(']')
                .ok_or_else(|| format!("{text:?}: the ] is missing"))?;
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(format!("{host:?} is not an IPv6 address").into());
            }
            match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if port.is_empty() => (host, None),
                None => return Err(format!("{text:?}: expected :PORT after the ]").into()),
            }
        } else {
            match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(format!("{text:?}: write an IPv6 address in brackets").into());
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            }
        };
        let hostname = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = !host.starts_with('-') && host.chars().all(hostname);
        if host.is_empty() || !text.starts_with('[') && !is_name {
            return Err(format!("{text:?} is not HOST[:PORT]").into());
        }
        // No name ends in a number, but the name service takes "10.9.0" for 10.9.0.0.
        let last = host.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|c| c.is_ascii_digit()) && host.parse::<IpAddr>().is_err() {
            return Err(format!("{host:?} is not an IP address").into());
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(number @ 1..) if !port.starts_with('+') => number,
                _ => return Err(format!("{port:?} is not a port number").into()),
            },
        };
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// The address in numbers, without asking a name service.
    pub fn numeric(&self) -> Option<SocketAddr> {
        let ip: IpAddr = self.host.parse().ok()?;
        Some(SocketAddr::new(ip, self.port))
    }

    /// The address in numbers; of a name, the first address the name service gives.
    pub fn resolve(&self, what: &str) -> Result<SocketAddr, Error> {
        if let Some(address) = self.numeric() {
            return Ok(address);
        }
        let failed = |why: String| {
            Error::new(Code::Resolve, what, why).variables(&[("host", self.host.clone())])
        };
        // getaddrinfo(3) of a static program needs the name services of the C library that it was
        // built with; getent(1) uses those of this host.
        let text = match program::run("getent", &["ahosts", &self.host]) {
            Outcome::Text(text) => text,
            Outcome::Failed(why) if why.is_empty() => String::new(),
            Outcome::Failed(why) => return Err(failed(format!("getent: {why}"))),
            Outcome::Missing => return Err(failed("this host has no getent".into())),
        };
        let mut words = text.lines().flat_map(|line| line.split_whitespace().next());
        let ip = words.find_map(|word| parse_ip(word).ok());
        ip.map(|ip| SocketAddr::new(ip, self.port))
            .ok_or_else(|| failed(format!("{} has no address", self.host)))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        match self.port {
            DEFAULT_PORT => Ok(()),
            port => write!(f, ":{port}"),
        }
    }
}

/// Fails if the text is a URL, which cannot name the source address of a path.
fn require_no_url(text: &str) -> Result<(), Invalid> {
    let Some((_, rest)) = text.split_once("://") else {
        return Ok(());
    };
    let hint = match rest {
        "" => String::new(),
        rest => format!("# write {rest}"),
    };
    let why = format!("{text:?} is a URL, and farblk uses none: write HOST[:PORT]");
    Err(Invalid::new(why, hint))
}

/// Fails if the text is an IPv6 address that needs a zone, or has one: the number of an interface
/// lasts until the next boot, and the other host has other interfaces.
fn require_no_zone(text: &str) -> Result<(), String> {
    let ip = text.trim_start_matches('[').split(['%', ']']).next();
    let is_v6 = ip.and_then(|ip| ip.parse::<Ipv6Addr>().ok());
    match is_v6 {
        Some(ip) if text.contains('%') || ip.is_unicast_link_local() => Err(format!(
            "{text:?}: a link-local IPv6 address, or one with a zone, cannot be used; give both \
             hosts a global or unique local address (fd00::/8)"
        )),
        _ => Ok(()),
    }
}

/// Parses an address of this host to listen on: `IP[:PORT]`, no name.
pub fn parse_local(text: &str) -> Result<SocketAddr, Invalid> {
    Endpoint::parse(text)?
        .numeric()
        .ok_or_else(|| format!("{text:?}: an IP address is needed here, not a name").into())
}

/// An export to map: `HOST[:PORT]/EXPORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: Endpoint,
    /// The name of the export.
    pub export: String,
}

impl Target {
    /// Parses `HOST[:PORT]/EXPORT`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        require_no_url(text)?;
        let Some((server, export)) = text.rsplit_once('/') else {
            let server = Endpoint::parse(text)?;
            let shown = quote::word(&server.to_string());
            return Err(Invalid::new(
                format!("{text:?} names no export"),
                format!(
                    "farblk discover {shown}  # shows the exports of this server\n\
                     farblk map {}",
                    quote::word(&format!("{server}/EXPORT"))
                ),
            ));
        };
        Ok(Self {
            server: Endpoint::parse(server)?,
            export: name::parse(export)?,
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.export)
    }
}

/// A server, and perhaps one of its exports: `HOST[:PORT][/EXPORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The server.
    pub server: Endpoint,
    /// The name of the export.
    pub export: Option<String>,
}

impl Place {
    /// Parses `HOST[:PORT]` or `HOST[:PORT]/EXPORT`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if !text.contains('/') || text.contains("://") {
            let server = Endpoint::parse(text)?;
            return Ok(Self {
                server,
                export: None,
            });
        }
        let Target { server, export } = Target::parse(text)?;
        Ok(Self {
            server,
            export: Some(export),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.server.fmt(f)?;
        match &self.export {
            Some(export) => write!(f, "/{export}"),
            None => Ok(()),
        }
    }
}

/// Takes what `ping` measures: `HOST[:PORT]`, or a map by its name, device or UUID. Which of the
/// two it is depends on the maps that there are.
pub fn parse_pinged(text: &str) -> Result<String, Invalid> {
    if text.starts_with("/dev/") || name::parse(text).is_ok() {
        return Ok(text.to_owned());
    }
    if text.contains('/') {
        let target = quote::word(&Target::parse(text)?.to_string());
        return Err(Invalid::new(
            format!("{text:?} is an export: ping measures a server or a map"),
            format!("farblk map {target}\nfarblk ping MAP  # then, with the name of the map"),
        ));
    }
    Endpoint::parse(text).map(|_| text.to_owned())
}

/// A path as the user writes it: `[SRC@]DST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// The address of this host to use.
    pub source: Option<IpAddr>,
    /// The server's end.
    pub destination: Endpoint,
}

impl PathSpec {
    /// Parses `[SRC@]DST[:PORT]`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let (source, destination) = match text.split_once('@') {
            Some((source, destination)) => (Some(parse_ip(source)?), destination),
            None => (None, text),
        };
        Ok(Self {
            source,
            destination: Endpoint::parse(destination)?,
        })
    }
}

/// Parses an IP address; IPv6 with or without brackets.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    require_no_zone(text)?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse()
        .map_err(|_| format!("{text:?} is not an IP address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (text, host, port) in [
            ("10.9.0.1", "10.9.0.1", 7420),
            ("10.9.0.1:99", "10.9.0.1", 99),
            ("node-a.lan:1", "node-a.lan", 1),
            ("[fd00::1]", "fd00::1", 7420),
            ("[fd00::1]:99", "fd00::1", 99),
            ("fd00::1", "fd00::1", 7420),
            ("fd00::2:1", "fd00::2:1", 7420),
            ("[fd00::1:7420]", "fd00::1:7420", 7420),
            ("fd00:1:2:3:4:5:6:7420", "fd00:1:2:3:4:5:6:7420", 7420),
        ] {
            let want = Endpoint {
                host: host.into(),
                port,
            };
            assert_eq!(Endpoint::parse(text), Ok(want), "{text}");
        }
        for bad in [
            "",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "10.9.0",
            "10.9.0.256",
            "7",
            "a:b:c",
            "[fd00::1",
            "[fd00::1]x",
            "[a]",
            "a b",
            "[]",
            "a/b",
            "a@b",
            "fd00::1:7420",
            "fd00::1:17420",
            "fe80::1",
            "[fe80::1]:99",
            "x://a",
        ] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn zones_are_refused_in_words() {
        for text in [
            "fe80::1",
            "[fe80::1]",
            "fe80::1%eth0",
            "[fe80::1%2]:99",
            "[fd00::1%eth0]",
        ] {
            let why = Endpoint::parse(text).unwrap_err().to_string();
            assert!(why.contains("with a zone"), "{why}");
            assert!(PathSpec::parse(&format!("{text}@10.9.0.1")).is_err());
        }
        let why = parse_ip("fe80::1%eth0").unwrap_err();
        assert!(why.contains("with a zone"), "{why}");
        assert!(
            !parse_ip("10.9.0.1%eth0")
                .unwrap_err()
                .contains("zone, cannot")
        );
    }

    #[test]
    fn endpoints_print_as_typed() {
        for text in [
            "10.9.0.1",
            "10.9.0.1:99",
            "[fd00::1]",
            "[fd00::1]:99",
            "node-a",
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn targets_and_paths() {
        let target = Target::parse("[fd00::1]:99/vol1").unwrap();
        assert_eq!(target.to_string(), "[fd00::1]:99/vol1");
        for bad in ["vol1", "/vol1", "a/", "a/b/c", "a/.x"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        let path = PathSpec::parse("[fd00::2]@[fd00::1]:99").unwrap();
        assert_eq!(path.source, Some("fd00::2".parse().unwrap()));
        assert_eq!(path.destination.port, 99);
        assert_eq!(PathSpec::parse("10.0.0.1").unwrap().source, None);
        assert!(PathSpec::parse("name@10.0.0.1").is_err());
    }

    #[test]
    fn places() {
        for text in [
            "node-a",
            "[fd00::1]:99",
            "10.9.0.1/vol1",
            "[fd00::1]:99/vol1",
        ] {
            let place = Place::parse(text).unwrap();
            assert_eq!(place.to_string(), text);
            assert_eq!(place.export.is_some(), text.contains('/'));
        }
        for bad in ["", "/", "/vol1", "a/", "a/b/c", "x://a", "x://a/b", "a:0/b"] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_can_be_pinged() {
        for text in [
            "node-a",
            "[fd00::1]:99",
            "fd00::1",
            "vol1",
            "7",
            "/dev/farblk0",
        ] {
            assert_eq!(parse_pinged(text), Ok(text.to_owned()));
        }
        for bad in [
            "", "/", "/vol1", "a/", "a/b", "a/b/c", "x://a", "x://a/b", "[a",
        ] {
            assert!(parse_pinged(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn listening_needs_a_number() {
        assert_eq!(
            parse_local("10.9.0.1").unwrap().to_string(),
            "10.9.0.1:7420"
        );
        assert!(parse_local("node-a").is_err());
    }
}
