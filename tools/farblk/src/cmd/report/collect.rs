// SPDX-License-Identifier: GPL-2.0
//! What a report holds: files of the module, of /etc/farblk and of the system, and the output of
//! programs.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use super::redact::Redactor;
use crate::cli::Command;
use crate::cmd::{self, Context};
use crate::configfs::Configfs;
use crate::device::Devices;
use crate::error::{Error, holder};
use crate::output::Output;
use crate::program::{self, Outcome};

/// The file of the kernel log.
const KERNEL_LOG: &str = "kernel.txt";
/// The largest file that is taken whole, in bytes; of a larger one its start is.
const FILE_MAX: usize = 1 << 20;
/// How deep folders are read.
const DEPTH_MAX: u32 = 8;
/// The words of which a line of the kernel log has one. All are in small letters.
const KERNEL_WORDS: [&str; 12] = [
    "farblk",
    "rdma",
    "rxe",
    "infiniband",
    "ib_",
    "mlx",
    "irdma",
    "bnxt_re",
    "iw_cxgb",
    "siw",
    "qedr",
    "hung_task",
];

/// A file of the report, before secrets are replaced.
pub struct Item {
    /// Its name in the report.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Why something is missing.
    pub why: Option<String>,
}

impl Item {
    fn new(name: impl Into<String>, text: String) -> Self {
        Self {
            name: name.into(),
            text,
            why: None,
        }
    }

    fn missing(name: impl Into<String>, why: impl Into<String>) -> Self {
        let why = why.into();
        Self {
            name: name.into(),
            text: format!("not available: {why}\n"),
            why: Some(why),
        }
    }
}

/// Collects everything.
pub fn all(context: &Context) -> Vec<Item> {
    let root = &context.root;
    let mut items = vec![
        tree(
            root,
            "configfs.txt",
            &["sys/kernel/config/farblk", "sys/kernel/config/rdma_cm"],
        ),
        tree(root, "debugfs.txt", &["sys/kernel/debug/farblk"]),
        tree(
            root,
            "module.txt",
            &[
                "sys/module/farblk/version",
                "sys/module/farblk/srcversion",
                "sys/module/farblk/refcnt",
                "sys/module/farblk/taint",
                "sys/module/farblk/parameters",
            ],
        ),
        devices(root),
        system(root),
    ];
    for (name, command) in [
        ("version.json", Command::Version),
        ("list.json", Command::List),
        (
            "export-list.json",
            Command::Export(crate::cli::Export::List),
        ),
        ("port-list.json", Command::Port(crate::cli::Port::List)),
        (
            "doctor.json",
            Command::Doctor(crate::cli::Doctor { server: None }),
        ),
    ] {
        items.push(document(context, name, &command));
    }
    items.extend(settings(root));
    items.push(kernel_log());
    items.push(programs(
        "units.txt",
        &[
            &[
                "systemctl",
                "--no-pager",
                "--plain",
                "--all",
                "list-units",
                "farblk*",
            ],
            &[
                "systemctl",
                "--no-pager",
                "--full",
                "--lines=0",
                "status",
                "farblk*",
            ],
            &[
                "journalctl",
                "--no-pager",
                "--boot",
                "--lines=1000",
                "--unit=farblk*",
            ],
        ],
    ));
    items.push(programs(
        "network.txt",
        &[
            &["rdma", "link", "show"],
            &["rdma", "resource", "show"],
            &["ip", "-brief", "link"],
            &["ip", "-brief", "address"],
            &["ip", "route"],
        ],
    ));
    items
}

/// Tells the redactor of the names and keys that this host knows.
pub fn secrets(context: &Context, items: &[Item], redactor: &mut Redactor) {
    let (root, configfs) = (&context.root, &context.configfs);
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    for path in [
        "proc/sys/kernel/hostname",
        "etc/hostname",
        "proc/sys/kernel/domainname",
    ] {
        redactor.host(&text(path));
    }
    context
        .host_name()
        .iter()
        .for_each(|name| redactor.host(name));
    for line in text("etc/hosts").lines() {
        let line = line.split('#').next().unwrap_or_default();
        let names = line.split_whitespace().skip(1);
        names
            .filter(|name| !name.starts_with("ip6-") && !name.starts_with("localhost"))
            .for_each(|name| redactor.host(name));
    }
    for name in configfs.names(&configfs.path(&["exports"])) {
        let object = configfs.path(&["exports", &name]);
        configfs
            .attr(&object, "registration")
            .iter()
            .for_each(|key| redactor.key(key));
        configfs
            .names(&object.join("hosts"))
            .iter()
            .for_each(|host| redactor.host(host));
        // Of hosts without an entry, too.
        let registrants = configfs.attr(&object, "pr_registrants").unwrap_or_default();
        registrants
            .lines()
            .filter_map(|line| line.split(' ').next())
            .for_each(|host| redactor.host(host));
        words(redactor, configfs.last_error(&object).map(|last| last.text));
    }
    for name in configfs.names(&configfs.path(&["ports"])) {
        address(
            redactor,
            &configfs
                .attr(&configfs.path(&["ports", &name]), "addr")
                .unwrap_or_default(),
        );
    }
    for name in configfs.names(&configfs.path(&["maps"])) {
        let object = configfs.path(&["maps", &name]);
        words(redactor, configfs.last_error(&object).map(|last| last.text));
        for path in configfs.names(&object.join("paths")) {
            let path = object.join("paths").join(path);
            for attribute in ["addr", "source"] {
                address(
                    redactor,
                    &configfs.attr(&path, attribute).unwrap_or_default(),
                );
            }
            words(redactor, configfs.last_error(&path).map(|last| last.text));
        }
    }
    let folder = root.join("etc/farblk");
    for file in files(&folder, DEPTH_MAX) {
        // Of others, such as those with keys, not even a copy is made in memory.
        if !is_farblk_toml(file.strip_prefix(&folder).unwrap_or(&file)) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        if let Ok(table) = text.parse::<toml::Table>() {
            table
                .iter()
                .for_each(|(key, value)| of_toml(redactor, key, value));
        }
    }
    for item in items.iter().filter(|item| item.name == KERNEL_LOG) {
        item.text
            .lines()
            .flat_map(logged)
            .for_each(|host| redactor.host(host));
    }
    for line in text("etc/farblk/registrations").lines() {
        line.split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| word.len() >= 4 && word.bytes().all(|c| c.is_ascii_hexdigit()))
            .for_each(|key| redactor.key(key));
    }
}

/// The hosts that a line of the kernel log names that the module has written.
fn logged(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split_once("farblk: ").map_or("", |(_, words)| words);
    let after = |before| {
        let (_, rest) = words.split_once(before)?;
        // A name may have a colon in it.
        let name = rest.split(' ').next()?;
        Some(name.trim_end_matches([':', ',']))
    };
    ["lost host ", "in use by "].into_iter().filter_map(after)
}

/// The host that the kernel names in the words of a last_error.
fn words(redactor: &mut Redactor, text: Option<String>) {
    text.as_deref()
        .and_then(holder)
        .into_iter()
        .for_each(|host| redactor.host(host));
}

/// The host or IP address of "SOURCE@HOST:PORT".
fn address(redactor: &mut Redactor, text: &str) {
    for part in text.split('@') {
        let part = part.split('/').next().unwrap_or_default();
        if let Ok(end) = crate::addr::Endpoint::parse(part) {
            redactor.host(&end.host);
        }
    }
}

/// The hosts in a file of settings: the keys of "hosts", and what addresses name.
fn of_toml(redactor: &mut Redactor, key: &str, value: &toml::Value) {
    match value {
        toml::Value::Table(table) => {
            for (name, value) in table {
                match key {
                    "hosts" => redactor.host(name),
                    "paths" => value
                        .as_str()
                        .into_iter()
                        .for_each(|text| address(redactor, text)),
                    _ => {}
                }
                of_toml(redactor, name, value);
            }
        }
        toml::Value::Array(values) => values
            .iter()
            .for_each(|value| of_toml(redactor, key, value)),
        toml::Value::String(text) => match key {
            "addr" | "source" | "paths" | "server" => address(redactor, text),
            "host" | "hosts" | "host_name" => redactor.host(text),
            _ => {}
        },
        toml::Value::Integer(number) if key == "registration" => redactor.key(&number.to_string()),
        _ => {}
    }
}

/// The files below a folder, in order; a file itself.
fn files(path: &Path, depth: u32) -> Vec<std::path::PathBuf> {
    // Links may lead anywhere.
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Vec::new();
    };
    if metadata.is_file() {
        return vec![path.to_owned()];
    }
    if !metadata.is_dir() || depth == 0 {
        return Vec::new();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
        .iter()
        .flat_map(|path| files(path, depth - 1))
        .collect()
}

fn start_of(bytes: &[u8]) -> String {
    let end = bytes.len().min(FILE_MAX);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// One line for each attribute of some folders: "PATH = VALUE".
fn tree(root: &Path, name: &str, folders: &[&str]) -> Item {
    let mut text = String::new();
    let mut failed = None;
    for folder in folders {
        for file in files(&root.join(folder), DEPTH_MAX) {
            let path = file.strip_prefix(root).unwrap_or(&file).display();
            match fs::read(&file) {
                Ok(bytes) => {
                    let value = start_of(&bytes);
                    match value.trim_end() {
                        value if value.contains('\n') => text += &format!("/{path}:\n{value}\n"),
                        value => text += &format!("/{path} = {value}\n"),
                    }
                }
                // Some attributes can only be written.
                Err(e)
                    if e.kind() == io::ErrorKind::PermissionDenied && folder.contains("config") => {
                }
                Err(e) => text += &format!("/{path}: {e}\n"),
            }
        }
        if let Err(e) = fs::read_dir(root.join(folder)) {
            if e.kind() == io::ErrorKind::PermissionDenied {
                failed = Some(format!("/{folder}: {e}"));
            }
        }
    }
    match (text.is_empty(), failed) {
        (true, None) => Item::missing(name, format!("/{} does not exist", folders[0])),
        (true, Some(why)) => Item::missing(name, why),
        (false, why) => Item {
            why,
            ..Item::new(name, text)
        },
    }
}

/// The ports of the RDMA devices, with their counters.
fn devices(root: &Path) -> Item {
    let folder = root.join("sys/class/infiniband");
    let mut text = String::new();
    let names = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let device = folder.join(&name);
        let read = |path: &Path| {
            fs::read(path)
                .map(|bytes| start_of(&bytes))
                .unwrap_or_default()
        };
        for attribute in [
            "node_type",
            "fw_ver",
            "hca_type",
            "board_id",
            "parent",
            "node_guid",
        ] {
            let value = read(&device.join(attribute));
            if !value.is_empty() {
                text += &format!(
                    "{}/{attribute} = {}\n",
                    name.to_string_lossy(),
                    value.trim_end()
                );
            }
        }
        for file in files(&device.join("ports"), 4) {
            let value = read(&file);
            let value = value.trim_end();
            // There are hundreds of empty entries.
            let is_empty = value.chars().all(|c| "0:".contains(c));
            if !is_empty {
                let path = file.strip_prefix(&folder).unwrap_or(&file).display();
                text += &format!("{path} = {value}\n");
            }
        }
    }
    match text.is_empty() {
        true => Item::missing("devices.txt", "this host has no RDMA device"),
        false => Item::new("devices.txt", text),
    }
}

/// The kernel and the distribution.
fn system(root: &Path) -> Item {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut text = format!("tool = {}\n", env!("CARGO_PKG_VERSION"));
    for (name, path) in [
        ("kernel", "proc/sys/kernel/osrelease"),
        ("build", "proc/sys/kernel/version"),
        ("tainted", "proc/sys/kernel/tainted"),
        ("uptime", "proc/uptime"),
    ] {
        text += &format!("{name} = {}\n", read(path).trim());
    }
    let wanted = |line: &&str| {
        ["PRETTY_NAME=", "MemTotal:", "MemAvailable:"]
            .iter()
            .any(|word| line.starts_with(word))
    };
    let modules = |line: &&str| KERNEL_WORDS.iter().any(|word| line.contains(word));
    for (path, keep) in [
        ("etc/os-release", &wanted as &dyn Fn(&&str) -> bool),
        ("proc/meminfo", &wanted),
        ("proc/modules", &modules),
    ] {
        let file = read(path);
        let lines = file.lines().filter(|line| keep(line));
        text.extend(lines.map(|line| format!("{line}\n")));
    }
    Item::new("system.txt", text)
}

/// Returns true for a file, below /etc/farblk, that `config restore` reads, or the one before it.
fn is_farblk_toml(path: &Path) -> bool {
    let parts: Option<Vec<_>> = path.iter().map(|part| part.to_str()).collect();
    match parts.as_deref() {
        Some(["server.toml" | "server.toml.1" | "client.toml" | "client.toml.1"]) => true,
        Some(["server.d" | "client.d", name]) => {
            !name.starts_with('.') && (name.ends_with(".toml") || name.ends_with(".toml.1"))
        }
        _ => false,
    }
}

/// The files of /etc/farblk that are farblk's, without their comments, which may hold anything; of
/// others, such as keys, only their names and sizes; and what DKMS left.
fn settings(root: &Path) -> Vec<Item> {
    let mut items = Vec::new();
    let mut others = String::new();
    let folder = root.join("etc/farblk");
    for file in files(&folder, DEPTH_MAX) {
        let path = file.strip_prefix(root).unwrap_or(&file).display();
        let name = path.to_string();
        let is_toml = is_farblk_toml(file.strip_prefix(&folder).unwrap_or(&file));
        let own = ["host_id", "registrations"].map(|name| folder.join(name));
        if !is_toml && !own.contains(&file) {
            let size = fs::metadata(&file).map_or(0, |metadata| metadata.len());
            // Not "x.key: 57", which looks like a key.
            others += &format!("/{name} ({size} bytes)\n");
            continue;
        }
        items.push(match fs::read(&file) {
            Err(e) => Item::missing(name, e.to_string()),
            Ok(bytes) => {
                let text = start_of(&bytes);
                match text.parse::<toml::Table>() {
                    Ok(table) if is_toml => Item::new(name, table.to_string()),
                    Err(e) if is_toml => {
                        Item::missing(name, format!("it is no TOML: {}", e.message()))
                    }
                    _ => Item::new(name, text),
                }
            }
        });
    }
    if !others.is_empty() {
        items.push(Item::new("other-files.txt", others));
    }
    for file in files(&root.join("var/lib/farblk"), 1) {
        let path = file.strip_prefix(root).unwrap_or(&file).display();
        let text = fs::read(&file).map(|bytes| start_of(&bytes));
        items.push(Item::new(path.to_string(), text.unwrap_or_default()));
    }
    items
}

/// The lines of the kernel log that concern RDMA: of the journal, else of the kernel itself.
fn kernel_log() -> Item {
    let sources: [&[&str]; 2] = [
        &[
            "journalctl",
            "--no-pager",
            "--dmesg",
            "--boot",
            "--output=short-monotonic",
            "--no-hostname",
        ],
        &["dmesg"],
    ];
    let mut whys = Vec::new();
    for source in sources {
        match program::run(source[0], &source[1..]) {
            Outcome::Text(text) => {
                let is_wanted = |line: &&str| {
                    let line = line.to_lowercase();
                    KERNEL_WORDS.iter().any(|word| line.contains(word))
                };
                let lines: String = text.split_inclusive('\n').filter(is_wanted).collect();
                if !lines.is_empty() {
                    return Item::new(KERNEL_LOG, lines);
                }
                whys.push(format!("{} has no line about it", source[0]));
            }
            Outcome::Failed(why) => whys.push(format!("{}: {why}", source[0])),
            Outcome::Missing => whys.push(format!("there is no {}", source[0])),
        }
    }
    Item::missing(KERNEL_LOG, whys.join("; "))
}

/// The output of some programs.
fn programs(name: &str, lines: &[&[&str]]) -> Item {
    let mut text = String::new();
    let mut whys = Vec::new();
    for line in lines {
        text += &format!("$ {}\n", line.join(" "));
        match program::run(line[0], &line[1..]) {
            Outcome::Text(output) => text += &output,
            Outcome::Failed(why) => text += &format!("failed: {why}\n"),
            Outcome::Missing => {
                text += "there is no such program\n";
                whys.push(format!("there is no {}", line[0]));
            }
        }
    }
    whys.dedup();
    Item {
        why: (!whys.is_empty()).then(|| whys.join("; ")),
        ..Item::new(name, text)
    }
}

/// A stream that can be read later.
#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The JSON document of a command that only looks, or its error.
fn document(context: &Context, name: &str, command: &Command) -> Item {
    let (out, err) = (Buffer::default(), Buffer::default());
    let inner = Context {
        root: context.root.clone(),
        configfs: Configfs::new(&context.root, false),
        devices: Devices::new(&context.root),
        output: Output::to(true, false, Box::new(out.clone()), Box::new(err), None),
        exit: Cell::new(0),
    };
    let result: Result<(), Error> = cmd::run(&inner, command);
    match result {
        Ok(()) => Item::new(name, start_of(&out.0.borrow())),
        Err(error) => Item::missing(name, error.to_string()),
    }
}
