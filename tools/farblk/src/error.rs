// SPDX-License-Identifier: GPL-2.0
//! The errors of the tool: one table of codes, each with its exit code, its meaning and a hint.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

#[cfg(test)]
pub use hints::is_shell;
pub use hints::{Hints, fill_in};

mod hints;

/// The exit codes of the tool, as in the manual page.
pub mod exit {
    /// Something else went wrong, or an object exists with other settings.
    pub const OTHER: u8 = 1;
    /// The command line, or a value in it, is wrong.
    pub const USAGE: u8 = 2;
    /// The object does not exist.
    pub const NOT_FOUND: u8 = 3;
    /// The object is in use.
    pub const BUSY: u8 = 4;
    /// The other host cannot be reached, or does not answer in time.
    pub const UNREACHABLE: u8 = 5;
    /// Not allowed, here or by the server.
    pub const DENIED: u8 = 6;
    /// The kernel module, or a feature of it, is missing.
    pub const MISSING: u8 = 7;
    /// A part of the command was done.
    pub const PARTIAL: u8 = 8;
    /// The contents of the export are no longer those that were mapped.
    pub const STALE: u8 = 9;
}

/// The peer that the kernel uses when it enables an object. It decides about the cause of an errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Nobody.
    Nobody,
    /// Another host.
    Server,
    /// A block device of this host.
    Device,
}

/// One row of [`TABLE`].
pub struct Entry {
    /// The code's spelling in messages.
    pub name: &'static str,
    /// The exit code of a command that fails with it.
    pub exit: u8,
    /// The meaning in words, for a failure without a text of the kernel.
    pub meaning: &'static str,
    /// The remedies, one on each line, see [`Hints`]. `{key}` is replaced by the variable of that
    /// name, or by `KEY` if it is unknown.
    pub hint: &'static str,
}

macro_rules! table {
    ($($code:ident $name:literal $exit:ident $meaning:literal $hint:literal;)*) => {
        /// An error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $meaning] $code,)*
        }

        /// All error codes, in the order of [`Code`].
        pub const TABLE: &[Entry] = &[
            $(Entry { name: $name, exit: exit::$exit, meaning: $meaning, hint: $hint },)*
        ];
    };
}

table! {
    Usage          "F0101" USAGE       "the command line is not valid" "farblk --help";
    NotFound       "F0102" NOT_FOUND   "no such object" "";
    Differs        "F0103" OTHER       "the object exists already, with other settings" "";
    Busy           "F0104" BUSY        "the object is in use" "";
    Permission     "F0105" DENIED      "not permitted" "# run it as root";
    BadValue       "F0106" USAGE       "the kernel does not accept this value" "";
    InUse          "F0107" BUSY        "the device is in use" "lsblk {device}  # is it mounted, or part of another device?\nfarblk export list  # is it exported already?";
    NoMemory       "F0108" OTHER       "out of memory" "# use a smaller size, or free memory: the pages of a RAM export are never swapped";
    Io             "F0109" OTHER       "reading or writing failed" "";
    NoDeviceNode   "F0110" UNREACHABLE "the device node did not appear" "# is devtmpfs mounted on /dev? is udevd running?\nfarblk unmap {map}  # removes the map, which stays otherwise";
    NoBlockDevice  "F0111" NOT_FOUND   "there is no such device" "lsblk";
    NotBlockDevice "F0112" USAGE       "the path is not a block device" "lsblk\n# a file is exported with --file";
    WriteProtected "F0113" DENIED      "the device is write-protected" "# export it with --read-only";
    Resolve        "F0201" UNREACHABLE "the host name cannot be resolved" "getent hosts {host}  # or give an IP address";
    Unreachable    "F0202" UNREACHABLE "no route, or the host is unreachable over RDMA" "ip route get {address}\nrdma link  # does the interface of that route have an RDMA device?";
    Refused        "F0203" UNREACHABLE "nobody listens there" "farblk port list  # on the server: is the farblk module loaded there? is the port right?";
    Denied         "F0204" DENIED      "the server does not admit this host" "\
        farblk export allow {export} {client}  # on the server, if it has no entry of this host\n\
        farblk export allow {export} {client} --host-id {host_id}  # or, on the server, if the entry \
        demands another host_id";
    TimedOut       "F0205" UNREACHABLE "no answer in time" "farblk doctor {server}  # is it up? does a firewall drop RoCE (UDP port 4791), or a switch large packets?";
    NoExport       "F0206" NOT_FOUND   "the server has no such export" "farblk discover {server}";
    ReadOnly       "F0207" DENIED      "the server gives read access only" "# map it with --ro\nfarblk export allow {export} {client}:rw  # or, on the server: let this host write, unless the export itself is read-only";
    Version        "F0208" MISSING     "the two hosts speak no common protocol version" "# load the same farblk release on both hosts";
    Taken          "F0209" BUSY        "the export is in use by another host" "farblk export show {export}  # on the server: which host has it? then unmap it on that host";
    ExportDown     "F0210" UNREACHABLE "the export is disabled on the server" "farblk export list  # on the server";
    Protocol       "F0211" OTHER       "the other host broke the protocol" "dmesg  # of both hosts; is the other one a farblk server of the same release?";
    Lost           "F0212" UNREACHABLE "the connection was lost" "# try again\nfarblk export list  # on the server\nfarblk port list  # on the server";
    NoDevice       "F0213" MISSING     "no RDMA device serves this address" "rdma link\nrdma link add rxe0 type rxe netdev NETDEV  # for tests without hardware";
    NotLocal       "F0214" OTHER       "the address is not an address of this host" "ip address";
    AddressTaken   "F0215" BUSY        "another program or port listens on the address" "farblk port list\nrdma resource show cm_id  # if it is none of these: which program listens there?";
    NoPath         "F0216" UNREACHABLE "no path to the server is up" "farblk list  # shows the reasons; the map reconnects by itself";
    Away           "F0217" BUSY        "the server keeps the export for a host that lost its connection" "# that host may return until its lease runs out: try again with --wait\nfarblk export deny {export} {holder} --force  # or, on the server: data that {holder} has not written yet is lost";
    Superseded     "F0218" UNREACHABLE "a newer connection replaced this one" "# the kernel tries again; if this repeats, two hosts may have one host_id:\ncat /sys/kernel/config/farblk/host_id";
    NoKey          "F0219" DENIED      "the server wants a key" "\
        farblk export show {export}  # on the server: has {client} an entry, and which key has it?\n\
        farblk export allow {export} {client}  # on the server, if it has no entry of this host\n\
        farblk export key {export} {client} --key-file FILE  # on the server, if it shall have another key\n\
        farblk rekey {map} --key-file FILE  # on this host, with a copy of that key";
    KeyRefused     "F0220" DENIED      "the server does not admit this host, or the key is wrong" "\
        farblk export show {export}  # on the server: has {client} an entry, and which key has it?\n\
        farblk key id FILE  # on this host: is it the same key?\n\
        farblk export allow {export} {client}  # on the server, if it has no entry of this host\n\
        farblk export key {export} {client} --key-file FILE  # on the server, if it shall have another key\n\
        farblk rekey {map} --key-file FILE  # on this host: gives the map another key";
    KeyUnproven    "F0221" DENIED      "the server did not prove that it has the key" "\
        farblk export show {export}  # on the server: has its entry of {client} the key of this map?\n\
        farblk export key {export} {client} --key-file FILE  # on the server: gives it that key";
    Crowded        "F0222" UNREACHABLE "too many ask the server at once" "# try again; if this repeats, somebody opens connections to the server and does not log in:\nfarblk metrics  # on the server: farblk_server_sent_away";
    Protection     "F0223" DENIED      "the export and the map differ in their protection" "\
        farblk unmap {map}  # on this host; then, as the export has it:\n\
        farblk map {server}/{export} --name {map} --protection {export_protection}\n\
        # or, on the server, as the map has it:\n\
        farblk export disable {export}\n\
        echo {map_protection} > /sys/kernel/config/farblk/exports/{export}/protection\n\
        farblk export enable {export}";
    Unavailable    "F0224" UNREACHABLE "the device of the export is gone, or has no room" "\
        farblk export show {export}  # on the server: its last error says which of the two\n\
        # without room: it goes on by itself once there is room again\n\
        # without its device: run its `farblk export create` again on the server when that is back";
    Stale          "F0301" STALE       "the export differs from before; the old contents of a RAM export are gone" "farblk remap {map}  # after umount; follow its advice";
    Evicted        "F0302" STALE       "another host had the export meanwhile" "farblk remap {map}  # after umount; then fsck: that host may have written to the disk";
    NoModule       "F0401" MISSING     "the farblk kernel module is not loaded" "modprobe farblk";
    NoFeature      "F0402" MISSING     "the loaded kernel module does not have this feature" "# do the tool and the module come from the same release?";
    Unparsable     "F0403" MISSING     "the tool does not understand the answer of the kernel" "# do the tool and the module come from the same release?";
    NoLosetup      "F0404" MISSING     "losetup of util-linux 2.40 or newer is needed for a file" "# install it: package util-linux, on Debian mount";
    NotInstalled   "F0405" MISSING     "the farblk kernel module is not installed for this kernel" "\
        apt install farblk-modules-{release}  # the package\n\
        make install KERNEL={release}  # or, in the sources of farblk";
    NoConfigfs     "F0406" MISSING     "configfs is not mounted" "mount -t configfs none /sys/kernel/config";
    Unsigned       "F0407" MISSING     "this kernel loads signed modules only, as Secure Boot demands" "# sign the module with a key that this host knows, or make your key known:\nmokutil --import KEY.der";
    BadFile        "F0501" USAGE       "a file in /etc/farblk is not valid" "farblk config check";
    BadKey         "F0502" USAGE       "a key, or the file that has it, cannot be used" "farblk key new FILE  # makes a key";
}

impl Entry {
    /// The remedies, with words in capitals for what depends on the command.
    pub fn hints(&self) -> Hints {
        Hints::new(fill_in::<&str>(self.hint, &[]))
    }
}

impl Code {
    /// The row of the table.
    pub fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// The code for `errno`, the result of a write into configfs that made the kernel use `peer`.
    pub fn from_errno(errno: i32, peer: Peer) -> Code {
        let name = errno_name(errno);
        match (peer, name) {
            (Peer::Server, "EACCES") => return Code::Denied,
            (Peer::Server, "ENOENT") => return Code::NoExport,
            (Peer::Server, "EBUSY") => return Code::Taken,
            (Peer::Server, "ENXIO") => return Code::ExportDown,
            (Peer::Server, "EROFS") => return Code::ReadOnly,
            (Peer::Device, "EBUSY") => return Code::InUse,
            (Peer::Device, "ENOENT" | "ENODEV" | "ENXIO") => return Code::NoBlockDevice,
            (Peer::Device, "ENOTBLK") => return Code::NotBlockDevice,
            (Peer::Device, "EACCES" | "EROFS") => return Code::WriteProtected,
            _ => {}
        }
        match name {
            "EPERM" | "EACCES" => Code::Permission,
            "ENOENT" => Code::NotFound,
            "EEXIST" => Code::Differs,
            "EBUSY" | "ENOTEMPTY" | "ECANCELED" => Code::Busy,
            "EINVAL" | "ERANGE" | "E2BIG" | "ENAMETOOLONG" | "EMSGSIZE" => Code::BadValue,
            "ENOMEM" | "ENOSPC" => Code::NoMemory,
            "ENETUNREACH" | "EHOSTUNREACH" => Code::Unreachable,
            "ECONNREFUSED" => Code::Refused,
            "ETIMEDOUT" => Code::TimedOut,
            "EPROTONOSUPPORT" => Code::Version,
            "EPROTOTYPE" => Code::Protection,
            "EPROTO" | "EBADMSG" => Code::Protocol,
            "ECONNRESET" | "ECONNABORTED" | "ENOTCONN" | "EPIPE" | "ESHUTDOWN" => Code::Lost,
            "ENODEV" => Code::NoDevice,
            "EADDRNOTAVAIL" => Code::NotLocal,
            "EADDRINUSE" => Code::AddressTaken,
            "ENOMEDIUM" => Code::Unavailable,
            "ESTALE" => Code::Stale,
            "ENOKEY" => Code::NoKey,
            "EAGAIN" => Code::Crowded,
            "EKEYREJECTED" => Code::KeyRefused,
            "EOPNOTSUPP" | "ENOSYS" => Code::NoFeature,
            _ => Code::Io,
        }
    }

    /// The code for a failure of which the kernel gave the errno's name and words: what a server
    /// says has more causes than errnos.
    pub fn from_words(errno: &str, words: &str, peer: Peer) -> Code {
        match (peer, errno) {
            (Peer::Server, "EACCES") if words == EVICTED => Code::Evicted,
            (Peer::Server, "EPROTO") if words == SUPERSEDED => Code::Superseded,
            (_, "EKEYREJECTED") if words == UNPROVEN => Code::KeyUnproven,
            (Peer::Server, "EBUSY") if holder(words).is_some() && words.contains(AWAY) => {
                Code::Away
            }
            // Those that do not come from the server: a setting of an enabled object was written.
            (Peer::Server, "EBUSY") if holder(words).is_none() && words != FULL => Code::Busy,
            _ => Code::from_errno(errno_number(errno), peer),
        }
    }
}

/// The text of the server for a map whose export another map had meanwhile.
const EVICTED: &str = "the export was another's since";
/// The text of the server for a connection of a path that has a newer one.
const SUPERSEDED: &str = "a newer connection of this path took its place";
/// The text of the server for an export in use, if it does not name a host.
const FULL: &str = "the export has as many clients as it takes";
/// The text of the module for a server that has another key than the map, or none.
const UNPROVEN: &str = "the server did not prove that it has the key";
/// The texts of the server before the protection of its export, and between that and the map's.
const PROTECTIONS: (&str, &str) = ("the export has protection=", ", the map protection=");
/// The text before the name of the host that uses the export.
const HOLDER: &str = "in use by ";
/// The text between that name and the time since the host has lost its connection.
const AWAY: &str = ", away for ";

/// The host that has the export, in the words of the server.
pub fn holder(words: &str) -> Option<&str> {
    let host = words.strip_prefix(HOLDER)?;
    host.split(AWAY).next()
}

/// The protection of the export, and that of the map, in the words of the server.
pub fn protections(words: &str) -> Option<(&str, &str)> {
    let (before, between) = PROTECTIONS;
    words.strip_prefix(before)?.split_once(between)
}

/// The errno values the kernel module gives, as Linux numbers them (asm-generic).
const ERRNO: &[(i32, &str)] = &[
    (1, "EPERM"),
    (2, "ENOENT"),
    (5, "EIO"),
    (6, "ENXIO"),
    (7, "E2BIG"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (15, "ENOTBLK"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (19, "ENODEV"),
    (22, "EINVAL"),
    (28, "ENOSPC"),
    (30, "EROFS"),
    (32, "EPIPE"),
    (34, "ERANGE"),
    (36, "ENAMETOOLONG"),
    (38, "ENOSYS"),
    (39, "ENOTEMPTY"),
    (71, "EPROTO"),
    (74, "EBADMSG"),
    (90, "EMSGSIZE"),
    (91, "EPROTOTYPE"),
    (93, "EPROTONOSUPPORT"),
    (95, "EOPNOTSUPP"),
    (98, "EADDRINUSE"),
    (99, "EADDRNOTAVAIL"),
    (101, "ENETUNREACH"),
    (103, "ECONNABORTED"),
    (104, "ECONNRESET"),
    (107, "ENOTCONN"),
    (108, "ESHUTDOWN"),
    (110, "ETIMEDOUT"),
    (111, "ECONNREFUSED"),
    (113, "EHOSTUNREACH"),
    (116, "ESTALE"),
    (123, "ENOMEDIUM"),
    (125, "ECANCELED"),
    (126, "ENOKEY"),
    (129, "EKEYREJECTED"),
];

/// The name of an errno value, "" when this tool does not know it.
pub fn errno_name(errno: i32) -> &'static str {
    ERRNO
        .iter()
        .find(|(number, _)| *number == errno)
        .map_or("", |(_, name)| name)
}

/// Returns true if `name` is that of an errno value.
pub fn is_errno(name: &str) -> bool {
    errno_number(name) != 0
}

/// The errno value of that name, 0 when this tool does not know it.
fn errno_number(name: &str) -> i32 {
    ERRNO
        .iter()
        .find(|(_, known)| *known == name)
        .map_or(0, |(number, _)| *number)
}

/// An error: what failed, why, and a remedy.
#[derive(Debug)]
pub struct Error {
    /// The code; it decides the exit code.
    pub code: Code,
    /// What failed, for example "cannot map 10.0.0.1/vol1".
    pub what: String,
    /// Why; empty when `what` says it all.
    pub why: String,
    /// Further lines, for example who holds a device.
    pub details: Vec<String>,
    remedies: Remedies,
}

/// The source of the remedies of an error.
#[derive(Debug)]
enum Remedies {
    /// The table; with the values of its `{key}`s.
    Table(Vec<(&'static str, String)>),
    /// The place of the error.
    Own(String),
}

impl Error {
    /// An error with the reason `why`.
    pub fn new(code: Code, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            code,
            what: what.into(),
            why: why.into(),
            details: Vec::new(),
            remedies: Remedies::Table(Vec::new()),
        }
    }

    /// A wrong command line.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Code::Usage, what, "")
    }

    /// Says what to do instead of what the table says, one remedy on each line.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.remedies = Remedies::Own(hint.into());
        self
    }

    /// Adds a line.
    pub fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    /// Gives the values of the hint's `{key}`s.
    pub fn variables(mut self, variables: &[(&'static str, String)]) -> Self {
        if let Remedies::Table(values) = &mut self.remedies {
            values.extend_from_slice(variables);
        }
        self
    }

    /// The remedies.
    pub fn hints(&self) -> Hints {
        Hints::new(match &self.remedies {
            Remedies::Table(values) => fill_in(self.code.entry().hint, values),
            Remedies::Own(hint) => hint.clone(),
        })
    }

    /// The exit code.
    pub fn exit(&self) -> u8 {
        self.code.entry().exit
    }

    /// The error as a JSON document, schema `farblk.error/1`.
    pub fn document(&self) -> Document {
        Document {
            schema: "farblk.error/1",
            code: self.code.entry().name,
            exit: self.exit(),
            what: self.what.clone(),
            why: self.why.clone(),
            details: self.details.clone(),
            hints: self.hints(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if !self.why.is_empty() {
            write!(f, ": {}", self.why)?;
        }
        Ok(())
    }
}

/// An error on stderr when the output is JSON, schema `farblk.error/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    code: &'static str,
    exit: u8,
    what: String,
    why: String,
    details: Vec<String>,
    #[serde(flatten)]
    hints: Hints,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_order() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert!(index == 0 || TABLE[index - 1].name < entry.name);
            assert!((1..=9).contains(&entry.exit));
        }
    }

    #[test]
    fn errno_depends_on_who_said_it() {
        let codes = |errno| {
            [Peer::Nobody, Peer::Server, Peer::Device].map(|peer| Code::from_errno(errno, peer))
        };
        assert_eq!(
            codes(13),
            [Code::Permission, Code::Denied, Code::WriteProtected]
        );
        assert_eq!(codes(16), [Code::Busy, Code::Taken, Code::InUse]);
        assert_eq!(codes(30), [Code::Io, Code::ReadOnly, Code::WriteProtected]);
        assert_eq!(codes(111), [Code::Refused; 3]);
        assert_eq!(codes(9999), [Code::Io; 3]);
    }

    #[test]
    fn exit_codes_of_the_manual() {
        for (errno, code, exit) in [
            (111, "F0203", 5),
            (113, "F0202", 5),
            (101, "F0202", 5),
            (110, "F0205", 5),
            (2, "F0206", 3),
            (13, "F0204", 6),
            (30, "F0207", 6),
            (93, "F0208", 7),
            (16, "F0209", 4),
            (6, "F0210", 5),
            (71, "F0211", 1),
            (116, "F0301", 9),
            (126, "F0219", 6),
            (129, "F0220", 6),
            (91, "F0223", 6),
            (123, "F0224", 5),
        ] {
            let entry = Code::from_errno(errno, Peer::Server).entry();
            assert_eq!((entry.name, entry.exit), (code, exit), "errno {errno}");
        }
        for (errno, code, exit) in [
            (16, "F0107", 4),
            (2, "F0111", 3),
            (19, "F0111", 3),
            (6, "F0111", 3),
            (15, "F0112", 2),
            (13, "F0113", 6),
            (30, "F0113", 6),
            (22, "F0106", 2),
        ] {
            let entry = Code::from_errno(errno, Peer::Device).entry();
            assert_eq!((entry.name, entry.exit), (code, exit), "errno {errno}");
        }
    }

    #[test]
    fn a_server_says_more_than_an_errno() {
        let code = |errno, words| Code::from_words(errno, words, Peer::Server);
        assert_eq!(code("EBUSY", "in use by node-c"), Code::Taken);
        assert_eq!(code("EBUSY", FULL), Code::Taken);
        assert_eq!(code("EBUSY", "in use by c, away for 33 s"), Code::Away);
        assert_eq!(code("EBUSY", "the device is open"), Code::Busy);
        assert_eq!(code("EACCES", EVICTED), Code::Evicted);
        assert_eq!(code("EACCES", "not admitted"), Code::Denied);
        assert_eq!(code("EPROTO", SUPERSEDED), Code::Superseded);
        assert_eq!(code("EPROTO", "malformed reply"), Code::Protocol);
        assert_eq!(code("EKEYREJECTED", UNPROVEN), Code::KeyUnproven);
        let refused = "not admitted, or the key is wrong";
        assert_eq!(code("EKEYREJECTED", refused), Code::KeyRefused);
        assert_eq!(code("ENOKEY", "the server wants a key"), Code::NoKey);
        assert_eq!(code("EWHAT", ""), Code::Io);
        let differs = "the export has protection=seal, the map protection=none";
        assert_eq!(code("EPROTOTYPE", differs), Code::Protection);
        assert_eq!(protections(differs), Some(("seal", "none")));
        assert_eq!(protections("the export has protection=seal"), None);
        assert_eq!(holder("in use by c, away for 33 s"), Some("c"));
        assert_eq!(holder("in use by node-c"), Some("node-c"));
        assert_eq!(holder(FULL), None);
    }

    #[test]
    fn the_words_are_those_of_the_module() {
        let refusals = include_str!("../../../rust/proto/refusal.rs");
        let clients = include_str!("../../../rust/server/members.rs");
        for words in [EVICTED, SUPERSEDED, FULL] {
            assert!(refusals.contains(&format!("{words:?}")), "{words}");
        }
        let (before, between) = PROTECTIONS;
        assert!(refusals.contains(&format!("\"{before}{{export}}{between}{{map}}\"")));
        let control = include_str!("../../../rust/client/target.rs");
        assert!(control.contains(&format!("{UNPROVEN:?}")));
        assert!(clients.contains(&format!("\"{HOLDER}{{host}}{AWAY}")));
        assert!(clients.contains(&format!("\"{HOLDER}{{host}}\"")));
    }

    #[test]
    fn hints_are_filled_in() {
        let variables = [("export", "vol1".into()), ("host", "x".into())];
        let error = Error::new(Code::Denied, "cannot map", "no").variables(&variables);
        let hint =
            "farblk export allow vol1 CLIENT  # on the server, if it has no entry of this host";
        assert_eq!(error.hints().lines()[0], hint);
        let map = [("map", "a {map};b".into())];
        let error = Error::new(Code::NoDeviceNode, "cannot map", "no").variables(&map);
        assert!(error.hints().lines()[1].starts_with("farblk unmap 'a {map};b'  #"));
    }

    #[test]
    fn hints_are_shell() {
        for entry in TABLE {
            for line in entry.hint.lines() {
                assert!(is_shell(&line.replace(['{', '}'], "")), "{line}");
            }
        }
        assert!(!is_shell("umount /data   or   (stop)"));
    }
}
