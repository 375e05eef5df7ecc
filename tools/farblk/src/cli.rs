// SPDX-License-Identifier: GPL-2.0
//! The command line.
//!
//! Long: it is what `--help` and the manual pages say, command by command in their order.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::addr::{self, Endpoint, PathSpec, Place, Target};
use crate::usage::Invalid;
use crate::{name, size};

/// Controls farblk, a remote block device over RDMA.
///
/// A server exports a block device, a file or RAM under a name. A client maps an export, and gets a
/// disk /dev/farblkN. The tool uses /sys/kernel/config/farblk and, for files, losetup; --dry-run
/// prints the shell commands that do the same.
#[derive(Debug, Parser)]
#[command(
    name = "farblk",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 ok, 1 other, 2 usage, 3 not found, 4 in use, 5 unreachable or timeout, \
    6 denied, 7 kernel module or feature missing, 8 partly done, 9 stale, 10 doctor warns, 11 doctor fails"
)]
pub struct Cli {
    /// The options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Form of the results
    #[arg(short = 'o', long = "output", global = true, value_enum, value_name = "FORM", default_value_t = Form::Table)]
    pub output: Form,
    /// Short for -o json; errors are then JSON on stderr
    #[arg(short = 'j', long, global = true)]
    pub json: bool,
    /// As -j, with results on several indented lines
    #[arg(short = 'p', long, global = true)]
    pub pretty: bool,
    /// Omit progress and confirmations
    #[arg(short = 'q', long, global = true)]
    pub quiet: bool,
    /// Print the shell commands, and change nothing
    #[arg(long, global = true)]
    pub dry_run: bool,
    /// Use /sys, /dev, /proc, /lib, /etc and /run below DIR
    #[arg(long, global = true, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    pub root: PathBuf,
    /// When to use colours; NO_COLOR is obeyed
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
    /// Manage the addresses on which this host listens (server)
    #[command(subcommand)]
    Port(Port),
    /// Manage the exports of this host (server)
    #[command(subcommand)]
    Export(Export),
    /// Ask a server which exports this host may use
    Discover(Discover),
    /// Measure round trips to a server, or reads and writes of a map
    Ping(Ping),
    /// Map an export as a disk; prints only the device on stdout
    Map(Map),
    /// Remove a mapped disk
    Unmap(Unmap),
    /// Accept that the contents of a mapped disk differ from before; prints only the device on
    /// stdout
    Remap(Remap),
    /// Give a map another key, or take its key away
    Rekey(Rekey),
    /// Manage the paths of a mapped disk to its server
    #[command(subcommand)]
    Path(Path),
    /// Make keys, by which a client and a server prove to each other who they are
    #[command(subcommand)]
    Key(Key),
    /// Show the mapped disks, their paths and their users
    List,
    /// Show all details of one mapped disk
    Show {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
    },
    /// Look for what is wrong with this host, or with its way to a server, and name the cure
    #[command(after_help = "Exit codes: 0 all is well, 10 a check warns, 11 a check fails")]
    Doctor(Doctor),
    /// Say what an error code, a check of doctor or a last_error means, and what to do
    Explain {
        /// The code, the check, or the words of a message; shows all if there are none
        #[arg(value_name = "CODE|CHECK|WORDS")]
        words: Vec<String>,
    },
    /// Write an archive for those who are asked for help; host names, addresses, UUIDs and keys are
    /// replaced
    Report {
        /// File to write [default: farblk-report-TIME.tar.gz in this folder]
        #[arg(long = "file", value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Show the JSON Schemas of the documents that -j prints
    #[command(subcommand)]
    Schema(Schema),
    /// Manage the files in /etc/farblk, which keep ports, exports and maps over a reboot
    #[command(subcommand)]
    Config(crate::cmd::config::Command),
    /// Show the I/O and the latencies of maps and exports
    Stats(Stats),
    /// Show the I/O and the latencies of maps and exports, again and again
    Top(Top),
    /// Show the changes of the states of maps, paths, exports and ports, until it is interrupted
    Events,
    /// Print the metrics of this host for a monitoring system (OpenMetrics)
    Metrics(Metrics),
    /// Try farblk on this host alone: an RDMA device in software, an export of RAM, and its disk
    Demo(Demo),
    /// Show the versions of the tool and of the module that is loaded
    Version,
    /// Print a completion script
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print what the udev rules have to know of a disk
    #[command(hide = true)]
    Udev {
        /// The disk: farblk0, /dev/farblk0
        #[arg(value_name = "DEVICE")]
        device: String,
    },
    /// Print which saved export has a disk, for the udev rules
    #[command(hide = true)]
    UdevExport {
        /// The disk: sda, /dev/sda
        #[arg(value_name = "DEVICE")]
        device: String,
        /// The links to it
        #[arg(value_name = "LINK")]
        links: Vec<String>,
    },
    /// Do a part of the work of a unit of systemd
    #[command(hide = true, subcommand)]
    Unit(Unit),
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Folder to write to
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// Looks for what is wrong, and changes nothing.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The server to check the way to, and an export that this host shall be admitted to
    #[arg(value_name = "HOST[:PORT][/EXPORT]", value_parser = Place::parse, value_hint = ValueHint::Hostname)]
    pub server: Option<Place>,
}

/// Shows the JSON Schemas of the documents that -j prints.
#[derive(Debug, Subcommand)]
pub enum Schema {
    /// Show the names of the schemas
    List,
    /// Print one schema
    Show {
        /// Name of the schema, with or without "farblk." and the version
        name: String,
    },
}

/// Manages the addresses on which this host listens.
#[derive(Debug, Subcommand)]
pub enum Port {
    /// Listen on an address
    Add {
        /// Name of the port [default: the next free number]
        #[arg(value_parser = name::parse_new)]
        name: Option<String>,
        /// IP address of an RDMA device of this host; an IPv6 address with a port is in brackets
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

/// Manages the exports of this host.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// Export a block device, a file or RAM of this host
    Create(Create),
    /// Show the exports
    List,
    /// Show one export with its hosts
    Show {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
    },
    /// Admit a host to an export
    Allow {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Name of the host (host_name in its /sys/kernel/config/farblk)
        #[arg(value_name = "HOST[:ro|rw]", value_parser = Allowed::parse)]
        host: Allowed,
        /// Admit the host for reading only; another spelling of HOST:ro
        #[arg(long)]
        ro: bool,
        /// Admit the host only under this identity (host_id in its /sys/kernel/config/farblk, after
        /// its first farblk command)
        #[arg(long, value_name = "UUID", value_parser = name::parse_uuid)]
        host_id: Option<String>,
        /// Admit the host only if it proves that it has the key in FILE; - for stdin
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        key_file: Option<PathBuf>,
    },
    /// Change the key that a host has to prove
    ///
    /// While a key is replaced, the host may prove either of two: the key and the next key. A host
    /// that has neither has to prove nothing.
    #[command(group = ArgGroup::new("change").required(true)
        .args(["key_file", "next_key_file", "promote", "remove_next", "remove"]))]
    Key {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Name of the host
        #[arg(value_parser = name::parse)]
        host: String,
        /// Replace the key by the one in FILE; - for stdin
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        key_file: Option<PathBuf>,
        /// Accept the key in FILE, too, until it is promoted or removed; - for stdin
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        next_key_file: Option<PathBuf>,
        /// Replace the key by the next key; the one that it was admits nobody any more
        #[arg(long)]
        promote: bool,
        /// Remove the next key
        #[arg(long)]
        remove_next: bool,
        /// Remove both keys: any host that shows the name of this one is admitted then
        #[arg(long)]
        remove: bool,
        /// Do it even if a map of the host is connected or expected to return, and cannot continue
        #[arg(long)]
        force: bool,
    },
    /// Remove a host from an export, and end its sessions
    Deny {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Name of the host
        #[arg(value_parser = name::parse)]
        host: String,
        /// Deny it even if a map of the host is connected or expected to return; what the host has
        /// not written yet is lost
        #[arg(long)]
        force: bool,
    },
    /// End the sessions of a host's maps, and give their places to others; the host's entry stays
    Evict {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Name of the host
        #[arg(value_parser = name::parse)]
        host: String,
        /// Evict it even if a map of the host is connected or expected to return; what the host has
        /// not written yet is lost
        #[arg(long)]
        force: bool,
    },
    /// Remove the persistent reservations of an export: all keys that its maps have registered, and
    /// what they have reserved
    Unreserve {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Remove them even if a map has reserved the export: maps that it has fenced may write
        /// again
        #[arg(long)]
        force: bool,
    },
    /// Stop offering an export and keep its settings; the contents of a RAM export are lost
    Disable {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Disable it even if clients are connected or expected to return; their I/O waits for the
        /// export, and then fails
        #[arg(long)]
        force: bool,
    },
    /// Offer an export that was disabled
    Enable {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
    },
    /// Take over the new size of a block device or file, or make a file larger
    Resize {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Make the file this large: a number of bytes, or with K, M, G, T, P, E
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        size: Option<u64>,
        /// Take over the size of a file that was cut off: clients lose what was behind it
        #[arg(long, conflicts_with = "size")]
        force: bool,
    },
    /// Remove an export; the contents of a RAM export are lost
    Rm {
        /// Name of the export
        #[arg(value_parser = name::parse)]
        name: String,
        /// Remove it even if clients are connected or expected to return; their I/O waits for the
        /// export, and then fails
        #[arg(long)]
        force: bool,
        /// Remove it from the files in /etc/farblk, too
        #[arg(long)]
        forget: bool,
    },
}

/// Exports a block device, a file or RAM of this host.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("backing").required(true).args(["device", "file", "ram"]))]
pub struct Create {
    /// Name of the export
    #[arg(value_parser = name::parse_new)]
    pub name: String,
    /// Block device to export
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub device: Option<PathBuf>,
    /// File to export, through a loop device with direct I/O
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Size of the RAM to export: a number of bytes, or with K, M, G, T, P, E
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub ram: Option<u64>,
    /// Size of the file; a file that does not exist is made, sparse
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["device", "ram"])]
    pub size: Option<u64>,
    /// Admit a host; repeat the option for further hosts
    #[arg(long, value_name = "HOST[:ro|rw]", value_parser = Allowed::parse)]
    pub allow: Vec<Allowed>,
    /// Admit the host only if it proves that it has the key in FILE; - for stdin. Needs one --allow
    #[arg(long, value_name = "FILE", requires = "allow", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
    /// Admit every host that can reach a port
    #[arg(long)]
    pub allow_any_host: bool,
    /// Admit all hosts for reading only
    #[arg(long)]
    pub read_only: bool,
    /// Logical block size of a RAM export or a file: 512, 1024, 2048 or 4096 bytes [default: 4096,
    /// or that of the disk under the file]
    #[arg(long, value_name = "BYTES", value_parser = size::parse_block, conflicts_with = "device")]
    pub block_size: Option<u64>,
    /// NUMA node of the RAM; -1 for any
    #[arg(long, value_name = "NODE", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..),
        conflicts_with_all = ["device", "file"])]
    pub numa: Option<i32>,
    /// Number of maps that may use the export at a time
    #[arg(long, value_name = "N", value_parser = size::number::<1, 65535>)]
    pub max_clients: Option<u64>,
    /// Protect commands and data on their way; the maps need the same. Not for RAM; seal needs keys
    #[arg(long, value_enum)]
    pub protection: Option<Protection>,
    /// Let the next host find in the RAM what the one before has left there
    #[arg(long, conflicts_with_all = ["device", "file"])]
    pub no_scrub: bool,
    /// Lasting identity of the export [default: random]
    #[arg(long, value_parser = name::parse_uuid)]
    pub uuid: Option<String>,
    /// Ports of the export [default: all]
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', value_parser = name::parse)]
    pub ports: Vec<String>,
}

/// A host to admit, and its access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The host's name.
    pub host: String,
    /// True if the host may only read; `None` if the text does not say so.
    pub read_only: Option<bool>,
}

/// Words that somebody may write for an access, without the characters between their parts. A
/// host whose name ends in one of them would be admitted by mistake.
const ACCESS_WORDS: [&str; 11] = [
    "r",
    "w",
    "wr",
    "read",
    "write",
    "readonly",
    "readwrite",
    "rdonly",
    "rdwr",
    "writeonly",
    "none",
];

/// Returns true for a word such as "rx" or "rwx", with which other tools name an access.
fn is_mode(word: &str) -> bool {
    (1..=3).contains(&word.len()) && word.chars().all(|c| "rwox".contains(c))
}

impl Allowed {
    /// The access as configfs has it.
    pub fn access(&self) -> &'static str {
        match self.read_only {
            Some(true) => "ro",
            _ => "rw",
        }
    }

    fn parse(text: &str) -> Result<Self, Invalid> {
        let (host, word) = text.rsplit_once(':').unwrap_or((text, ""));
        let mut access = word.to_ascii_lowercase();
        access.retain(|c| !"._-".contains(c));
        let (host, read_only) = match access.as_str() {
            "ro" => (host, Some(true)),
            "rw" => (host, Some(false)),
            access if ACCESS_WORDS.contains(&access) || is_mode(access) => {
                return Err(format!(
                    "{word:?} is not an access: write {host}:ro or --ro for reading only, {host} for \
                     reading and writing"
                )
                .into());
            }
            _ => (text, None),
        };
        for address in [text, host] {
            if address.parse::<IpAddr>().is_ok() {
                return Err(Invalid::new(
                    format!("{address} is an address: a host is admitted by its host_name"),
                    "cat /sys/kernel/config/farblk/host_name  # on that host",
                ));
            }
        }
        Ok(Self {
            host: name::parse_new(host)?,
            read_only,
        })
    }
}

/// Asks a server for its exports.
#[derive(Debug, Args)]
pub struct Discover {
    /// The server
    #[arg(value_name = "HOST[:PORT]", value_parser = Endpoint::parse, value_hint = ValueHint::Hostname)]
    pub server: Endpoint,
    /// IP address of this host to use
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip)]
    pub source: Option<IpAddr>,
}

/// Measures round trips to a server, or reads and writes of a map.
#[derive(Debug, Args)]
pub struct Ping {
    /// The server, for messages to its module and back; or a map by its name, its device (farblkN,
    /// /dev/farblkN) or its UUID, for reads of its disk, one at a time. What names a map is one,
    /// unless it has a port
    #[arg(value_name = "HOST[:PORT]|MAP", value_parser = addr::parse_pinged)]
    pub target: String,
    /// Number of round trips, or of reads and of writes
    #[arg(short = 'c', long, value_name = "COUNT", default_value = "100", value_parser = size::number::<1, 1_000_000>)]
    pub count: u64,
    /// Pause after each: 0, 1ms, 500ms, 2s
    #[arg(short = 'i', long, value_name = "INTERVAL", default_value = "10ms", value_parser = size::duration::<0, 3_600_000>)]
    pub interval: Duration,
    /// Measure writes, too: write back what was read. Refused while this host uses the disk; no
    /// other host may use the export meanwhile, or what it writes may be lost
    #[arg(long)]
    pub write: bool,
    /// Bytes of each read and write, up to 1M [default: 4096, or the logical block size if that is
    /// larger]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_io)]
    pub size: Option<u64>,
    /// IP address of this host to use; only for a server
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip, conflicts_with_all = ["write", "size"])]
    pub source: Option<IpAddr>,
}

/// Tries farblk on this host alone.
///
/// Makes a network device without a network, an RDMA device on it in software (rxe), a port, an
/// export of RAM and a map of it; writes and reads the disk; and removes all of it, also after an
/// error or Ctrl-C. It prints each command that it runs. What stays is the identity of this host in
/// /etc/farblk/host_id, which the first command on a host makes, the line of the export in
/// /etc/farblk/registrations, and the modules dummy and rdma_rxe, which stay loaded.
#[derive(Debug, Args)]
pub struct Demo {
    /// Size of the RAM to export: a number of bytes, or with K, M, G
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse_demo)]
    pub ram: u64,
    /// How long to read small blocks: 500ms, 5s
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = size::duration::<100, 3_600_000>)]
    pub time: Duration,
}

/// Maps an export as a disk.
#[derive(Debug, Args)]
pub struct Map {
    /// Export to map; an IPv6 address is in brackets
    #[arg(value_name = "HOST[:PORT]/EXPORT", value_parser = Target::parse)]
    pub target: Target,
    /// Name of the map, not like that of a partition, such as a-part1 [default: the export's name]
    #[arg(long, value_parser = name::parse)]
    pub name: Option<String>,
    /// Map the export for reading only
    #[arg(long)]
    pub ro: bool,
    /// Number of hardware queues; 0 for one per CPU, up to the limit of the RDMA device
    #[arg(long, value_name = "N", value_parser = size::number::<0, 64>)]
    pub queues: Option<u64>,
    /// Number of additional hardware queues for polled I/O
    #[arg(long, value_name = "N", value_parser = size::number::<0, 64>)]
    pub poll_queues: Option<u64>,
    /// Number of requests in flight per hardware queue
    #[arg(long, value_name = "N", value_parser = size::number::<1, 1024>)]
    pub depth: Option<u64>,
    /// Up to this size, data of a block export is sent with the command or its response; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = size::parse_inline)]
    pub inline_size: Option<u64>,
    /// Ask the server about a request that takes longer than this: 500ms, 30s, 2m
    #[arg(long, value_name = "DURATION", value_parser = size::duration::<100, 3_600_000>)]
    pub io_timeout: Option<Duration>,
    /// How long I/O waits while no path is up, before it fails: 0, 30s, 2m, 1h or forever
    #[arg(
        long,
        value_name = "DURATION",
        allow_negative_numbers = true,
        value_parser = size::parse_patience
    )]
    pub no_path_timeout: Option<i64>,
    /// Longest time between two checks of a path; 0 turns the checks off
    #[arg(long, value_name = "DURATION", value_parser = size::duration::<0, 60_000>)]
    pub heartbeat: Option<Duration>,
    /// Longest time between two attempts to connect
    #[arg(long, value_name = "DURATION", value_parser = size::duration::<100, 3_600_000>)]
    pub reconnect_max: Option<Duration>,
    /// How to select the path of a request
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Protect commands and data on their way, as the export does; seal needs --key-file
    #[arg(long, value_enum)]
    pub protection: Option<Protection>,
    /// Type of service of the packets, for congestion control
    #[arg(long, value_name = "N", value_parser = size::number::<0, 255>)]
    pub tos: Option<u64>,
    /// IP address of this host to use
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip, conflicts_with = "path")]
    pub source: Option<IpAddr>,
    /// A further path; one to HOST itself replaces the default path. Repeat the option for more
    #[arg(long, value_name = "[SRC@]DST[:PORT]", value_parser = PathSpec::parse)]
    pub path: Vec<PathSpec>,
    /// Refuse the export unless it has this instance
    #[arg(long, value_name = "UUID", value_parser = name::parse_uuid)]
    pub expect_instance: Option<String>,
    /// Prove to the server that this host has the key in FILE, and let it prove the same; - for
    /// stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
    /// Try again for this long if the server cannot be reached, or keeps the export for a client
    /// that has lost its connection: 500ms, 30s, 2m, 1h
    #[arg(long, value_name = "DURATION", value_parser = size::parse_duration)]
    pub wait: Option<Duration>,
    /// Keep the map over a reboot, in /etc/farblk/client.d
    #[arg(long)]
    pub persist: bool,
}

/// Accepts that the contents of a mapped disk differ from before.
#[derive(Debug, Args)]
pub struct Remap {
    /// The map's name, its device (farblkN, /dev/farblkN) or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Do not ask; required without a terminal
    #[arg(long, short = 'y')]
    pub yes: bool,
}

/// Gives a map another key.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true).args(["key_file", "remove"]))]
pub struct Rekey {
    /// The map's name, its device (farblkN, /dev/farblkN) or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Prove to the server that this host has the key in FILE, and let it prove the same; - for
    /// stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
    /// Take the key away: neither side proves anything
    #[arg(long)]
    pub remove: bool,
}

/// Makes keys.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make a key from 256 random bits, and write it to a file or to stdout
    New {
        /// New file, which only its owner may read [default: stdout]
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Print the key id of a key, which names it and does not tell it
    Id {
        /// The file that has the key; - for stdin
        #[arg(value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// Manages the paths of a mapped disk to its server.
#[derive(Debug, Subcommand)]
pub enum Path {
    /// Add a path; it is connected at once if the map is enabled
    Add(PathAdd),
    /// Show the paths of a map
    List {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
    },
    /// Connect a path anew, now; I/O continues on the others
    Reconnect {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
        /// Name of the path
        #[arg(value_parser = name::parse)]
        name: String,
    },
    /// Remove a path; I/O continues on the others
    Rm {
        /// The map's name, its device or its UUID
        #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
        map: String,
        /// Name of the path
        #[arg(value_parser = name::parse)]
        name: String,
    },
}

/// Adds a path to a map.
#[derive(Debug, Args)]
pub struct PathAdd {
    /// The map's name, its device or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Another address of the same server
    #[arg(value_name = "[SRC@]DST[:PORT]", value_parser = PathSpec::parse)]
    pub path: PathSpec,
    /// IP address of this host to use; another spelling of SRC@
    #[arg(long, value_name = "IP", value_parser = addr::parse_ip)]
    pub source: Option<IpAddr>,
    /// Name of the path [default: the next free number]
    #[arg(long, value_parser = name::parse_new)]
    pub name: Option<String>,
}

/// Does a part of the work of a unit of systemd.
#[derive(Debug, Subcommand)]
pub enum Unit {
    /// Restore a map, and note whether the unit has made it
    StartMap {
        /// Name of the map
        #[arg(value_parser = name::parse)]
        name: String,
    },
    /// Unmap a map that the unit has made
    StopMap {
        /// Name of the map
        #[arg(value_parser = name::parse)]
        name: String,
        /// How long to wait while the disk is in use
        #[arg(long, value_name = "DURATION", value_parser = size::parse_duration, default_value = "60s")]
        wait: Duration,
    },
    /// Fail the I/O of maps that units have made and whose server is away, at shutdown
    GiveUp {
        /// How long a server has to be away
        #[arg(long, value_name = "DURATION", value_parser = size::parse_duration, default_value = "40s")]
        after: Duration,
        /// How long to look for such maps
        #[arg(long, value_name = "DURATION", value_parser = size::parse_duration, default_value = "75s")]
        within: Duration,
    },
    /// Restore ports and exports until all are there; tell systemd after the first attempt
    StartServer,
    /// Disable all exports
    StopServer {
        /// How long to wait for their devices
        #[arg(long, value_name = "DURATION", value_parser = size::parse_duration, default_value = "60s")]
        within: Duration,
    },
}

/// How to select the path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// The path with the fewest requests in flight
    MinInflight,
    /// Each path in turn
    RoundRobin,
}

/// How commands and data are protected on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protection {
    /// By what the network has
    None,
    /// By checksums, which find accidental changes
    Crc32c,
    /// By encryption and authentication with a key
    Seal,
}

/// Removes a mapped disk.
#[derive(Debug, Args)]
pub struct Unmap {
    /// The map's name, its device (farblkN, /dev/farblkN) or its UUID
    #[arg(value_name = "MAP", value_hint = ValueHint::FilePath)]
    pub map: String,
    /// Remove it even if it is in use; all I/O fails, and data in flight is lost
    #[arg(long)]
    pub force: bool,
    /// Succeed even if there is no such map
    #[arg(long)]
    pub if_mapped: bool,
    /// Remove it from the files in /etc/farblk, too
    #[arg(long)]
    pub forget: bool,
}

/// Shows the I/O and the latencies of maps and exports.
#[derive(Debug, Args)]
pub struct Stats {
    /// The map's name, its device or its UUID, or the export's name [default: all]
    #[arg(value_name = "MAP|EXPORT")]
    pub name: Option<String>,
    /// Show the I/O of each interval of this length: 500ms, 1, 30s, 2m [default: show once the I/O
    /// since each map or export was enabled]
    #[arg(value_name = "INTERVAL")]
    pub interval: Option<String>,
    /// End after so many intervals
    #[arg(value_name = "COUNT")]
    pub count: Option<String>,
}

/// Shows the I/O and the latencies of maps and exports, again and again.
#[derive(Debug, Args)]
pub struct Top {
    /// Print plain text, one table after the other; so it does without a terminal, too
    #[arg(long, short = 'b')]
    pub batch: bool,
    /// End after so many tables
    #[arg(long, short = 'n', value_name = "N", value_parser = size::number::<1, 1_000_000_000>)]
    pub count: Option<u64>,
    /// Time between two tables: 500ms, 1, 30s, 2m
    #[arg(long, short = 'd', value_name = "INTERVAL", default_value = "1s", value_parser = size::duration::<100, 3_600_000>)]
    pub interval: Duration,
}

/// Prints the metrics of this host for a monitoring system.
#[derive(Debug, Args)]
pub struct Metrics {
    /// Write them to PATH instead, which never has only a part of them; for the textfile collector
    /// of node_exporter
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
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
        assert_eq!(allowed("b"), Ok(("b".into(), None)));
        for read_only in ["b:ro", "b:RO", "b:r-o"] {
            assert_eq!(allowed(read_only), Ok(("b".into(), Some(true))));
        }
        assert_eq!(allowed("b:rw"), Ok(("b".into(), Some(false))));
        for name in ["b:1", "b:7:rack", "ro"] {
            assert_eq!(allowed(name), Ok((name.into(), None)));
        }
        for bad in [":ro", "b:r", "b:Read", "b:read-only", "b:READ_WRITE"] {
            assert!(allowed(bad).is_err(), "{bad}");
        }
        assert!(allowed("b:read").unwrap_err().to_string().contains("--ro "));
    }
}
