// SPDX-License-Identifier: GPL-2.0
//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::addr::{self, Endpoint, PathSpec, Target};
use crate::{name, size};

/// Controls farblk, a remote block device over RDMA.
///
/// A server exports a block device, a file or memory under a name; a client maps an export as a disk
/// /dev/farblkN. The tool works through /sys/kernel/config/farblk and, for files, losetup; --dry-run
/// prints the commands that would do the same from a shell.
#[derive(Debug, Parser)]
#[command(
    name = "farblk",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 ok, 1 other, 2 usage, 3 not found, 4 in use, 5 unreachable or timeout, \
    6 denied, 7 kernel module or feature missing, 8 partly done, 9 stale"
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Form of the results
    #[arg(short = 'o', long = "output", global = true, value_enum, value_name = "FORM", default_value_t = Form::Table)]
    pub output: Form,
    /// The same as -o json; errors are JSON on stderr then
    #[arg(short = 'j', long, global = true)]
    pub json: bool,
    /// Print no progress and no confirmation
    #[arg(short = 'q', long, global = true)]
    pub quiet: bool,
    /// Print the shell commands that would do it, and change nothing
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// Use /sys, /dev and /proc below DIR
    #[arg(long, global = true, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
    /// Colour messages; NO_COLOR is obeyed
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    pub color: Color,
}

/// The form of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people
    Table,
    /// One JSON document on one line, with a "schema"
    Json,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Addresses this host listens on (server)
    #[command(subcommand)]
    Port(Port),
    /// What this host offers to others (server)
    #[command(subcommand)]
    Export(Export),
    /// Ask a server which exports this host may use
    Discover(Discover),
    /// Map an export as a disk; prints only the device on stdout
    Map(Map),
    /// Remove a mapped disk
    Unmap(Unmap),
    /// Accept that the contents of a mapped disk are others than before; prints only the device on
    /// stdout
    Remap(Remap),
    /// The ways of a mapped disk to its server
    #[command(subcommand)]
    Path(Path),
    /// Show the mapped disks, their paths and who uses them
    List,
    /// Show all of one mapped disk
    Show {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
    },
    /// Print a completion script
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Where to
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// Addresses this host listens on.
#[derive(Debug, Subcommand)]
pub enum Port {
    /// Listen on an address
    Add {
        /// Name of the port [default: the next free number]
        #[arg(value_parser = name::parse)]
        name: Option<String>,
        /// IP address of an RDMA device of this host; IPv6 with a port in brackets
        #[arg(long, value_name = "IP[:PORT]", value_parser = addr::parse_local)]
        addr: SocketAddr,
    },
    /// Show the ports
    List,
    /// Stop listening
    Rm {
        /// Name of the port
        #[arg(value_parser = name::parse)]
        name: String,
    },
}

/// What this host offers to others.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// Offer a block device, a file or memory of this host as a disk
    Create(Create),
    /// Show the exports
    List,
    /// Show one export with its hosts
    Show {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
    },
    /// Let a host use an export
    Allow {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Name of the host, as it calls itself
        #[arg(value_parser = name::parse)]
        host: String,
        /// Let it read only
        #[arg(long)]
        ro: bool,
        /// Admit the host only under this id (its /sys/kernel/config/farblk/host_id)
        #[arg(long, value_name = "UUID", value_parser = name::parse_uuid)]
        host_id: Option<String>,
    },
    /// No longer let a host use an export; ends its sessions
    Deny {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Name of the host
        #[arg(value_parser = name::parse)]
        host: String,
    },
    /// Take over the new size of a block device or file, or make a file larger
    Resize {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Make the file this large: bytes, or with K, M, G, T
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        size: Option<u64>,
    },
    /// Remove an export; the content of a RAM export is lost
    Rm {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Also when clients are connected or expected back; their I/O waits for it, then fails
        #[arg(long)]
        force: bool,
    },
}

/// Offer a block device, a file or memory of this host as a disk.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("backing").required(true).args(["device", "file", "ram"]))]
pub struct Create {
    /// Name of the export
    #[arg(value_parser = name::parse)]
    pub name: String,
    /// Block device to offer
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub device: Option<PathBuf>,
    /// File to offer, as a loop device with direct I/O
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Size of the memory to offer: bytes, or with K, M, G, T
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ram: Option<u64>,
    /// Size of the file; if it does not exist, it is made, without space of its own yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["device", "ram"])]
    pub size: Option<u64>,
    /// Let a host use it; several times for several hosts
    #[arg(long, value_name = "HOST[:ro|rw]", value_parser = Allowed::parse)]
    pub allow: Vec<Allowed>,
    /// Let every host use it that can reach a port
    #[arg(long)]
    pub allow_any_host: bool,
    /// Let nobody write
    #[arg(long)]
    pub read_only: bool,
    /// Logical block size of memory: 512, 1024, 2048 or 4096 bytes
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with_all = ["device", "file"])]
    pub block_size: Option<u64>,
    /// NUMA node to take the memory from; -1 for any
    #[arg(long, value_name = "NODE", allow_negative_numbers = true, conflicts_with_all = ["device", "file"])]
    pub numa: Option<i32>,
    /// How many clients may use it at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: Option<u32>,
    /// Identity of the disk [default: random]
    #[arg(long, value_parser = name::parse_uuid)]
    pub uuid: Option<String>,
    /// Ports to offer it on [default: all]
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = name::parse)]
    pub ports: Vec<String>,
}

/// A host that may use an export, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The host's name.
    pub host: String,
    /// Whether it may read only.
    pub read_only: bool,
}

impl Allowed {
    fn parse(text: &str) -> Result<Self, String> {
        let (host, read_only) = match text.rsplit_once(':') {
            Some((host, "ro")) => (host, true),
            Some((host, "rw")) => (host, false),
            _ => (text, false),
        };
        Ok(Self {
            host: name::parse(host)?,
            read_only,
        })
    }
}

/// Ask a server for its exports.
#[derive(Debug, Args)]
pub struct Discover {
    /// The server
    #[arg(value_name = "HOST[:PORT]", value_parser = Endpoint::parse, value_hint = ValueHint::Hostname)]
    pub server: Endpoint,
    /// IP address of this host to use
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip)]
    pub source: Option<IpAddr>,
}

/// Map an export as a disk.
#[derive(Debug, Args)]
pub struct Map {
    /// What to map; an IPv6 address in brackets
    #[arg(value_name = "HOST[:PORT]/EXPORT", value_parser = Target::parse)]
    pub target: Target,
    /// Name of the map [default: the export's name]
    #[arg(long, value_parser = name::parse)]
    pub name: Option<String>,
    /// Map it for reading only
    #[arg(long)]
    pub ro: bool,
    /// Number of queues; 0 for one per CPU as far as the server grants
    #[arg(long, value_name = "N")]
    pub queues: Option<u32>,
    /// Queues more, for I/O that is polled for
    #[arg(long, value_name = "N")]
    pub poll_queues: Option<u32>,
    /// Requests in flight per queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: Option<u32>,
    /// Most data of a block export that travel with the command or its answer; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub inline_size: Option<u64>,
    /// Ask the server what became of a request that takes longer: 500ms, 30s, 2m
    #[arg(long, value_name = "DURATION", value_parser = size::parse_duration)]
    pub io_timeout: Option<Duration>,
    /// How long I/O waits while no path is up, before it fails: 0, 30s, 2m, 1h or forever
    #[arg(long, value_name = "DURATION", value_parser = size::parse_patience)]
    pub no_path_timeout: Option<i64>,
    /// How often to ask the server whether it is there, at least; 0 for never
    #[arg(long, value_name = "DURATION", value_parser = size::parse_duration)]
    pub heartbeat: Option<Duration>,
    /// The longest time between two attempts to connect
    #[arg(long, value_name = "DURATION", value_parser = size::parse_duration)]
    pub reconnect_max: Option<Duration>,
    /// How requests choose among the paths
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Type of service of the packets, for congestion control
    #[arg(long, value_name = "N")]
    pub tos: Option<u8>,
    /// IP address of this host to use
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip, conflicts_with = "path")]
    pub source: Option<IpAddr>,
    /// A further path; one to HOST itself replaces the default path. Several times for several paths
    #[arg(long, value_name = "[SRC@]DST[:PORT]", value_parser = PathSpec::parse)]
    pub path: Vec<PathSpec>,
    /// Refuse any other contents than those with this instance id
    #[arg(long, value_name = "UUID", value_parser = name::parse_uuid)]
    pub expect_instance: Option<String>,
    /// Try again for this long while the server cannot be reached, or keeps the export for a host that
    /// lost its connection: 500ms, 30s, 2m, 1h
    #[arg(long, value_name = "DURATION", value_parser = size::parse_duration)]
    pub wait: Option<Duration>,
}

/// Accept that the contents of a mapped disk are others than before.
#[derive(Debug, Args)]
pub struct Remap {
    /// The map's name, its device (farblkN, /dev/farblkN) or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Do not ask; needed where there is no terminal
    #[arg(long, short = 'y')]
    pub yes: bool,
}

/// The ways of a mapped disk to its server.
#[derive(Debug, Subcommand)]
pub enum Path {
    /// Add a path; it is connected at once if the map is
    Add(PathAdd),
    /// Show the paths of a map
    List {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
    },
    /// Remove a path; I/O goes on over the others
    Rm {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
        /// Name of the path
        #[arg(value_parser = name::parse)]
        name: String,
    },
}

/// Add a path to a map.
#[derive(Debug, Args)]
pub struct PathAdd {
    /// The map's name, its device or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Another address of the same server
    #[arg(value_name = "[SRC@]DST[:PORT]", value_parser = PathSpec::parse)]
    pub path: PathSpec,
    /// IP address of this host to use, another way to write SRC
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip)]
    pub source: Option<IpAddr>,
    /// Name of the path [default: the next free number]
    #[arg(long, value_parser = name::parse)]
    pub name: Option<String>,
}

/// How requests choose among the paths of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// The path with the fewest requests in flight
    MinInflight,
    /// One path after the other
    RoundRobin,
}

/// Remove a mapped disk.
#[derive(Debug, Args)]
pub struct Unmap {
    /// The map's name, its device (farblkN, /dev/farblkN) or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Also when it is in use; all I/O fails, data in flight is lost
    #[arg(long)]
    pub force: bool,
    /// Succeed when there is no such map
    #[arg(long)]
    pub if_mapped: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn allowed_hosts() {
        let allowed = |text| Allowed::parse(text).map(|a| (a.host, a.read_only));
        assert_eq!(allowed("b"), Ok(("b".into(), false)));
        assert_eq!(allowed("b:ro"), Ok(("b".into(), true)));
        assert_eq!(allowed("b:rw"), Ok(("b".into(), false)));
        assert_eq!(allowed("b:1"), Ok(("b:1".into(), false)));
        assert!(allowed(":ro").is_err());
    }
}
