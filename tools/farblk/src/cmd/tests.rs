// SPDX-License-Identifier: GPL-2.0
//! The commands against the model of the kernel.
//!
//! Long: one test after the other, most of which need ports, exports and maps together. Files of
//! their own have those with more than this host and its model.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{self, BufRead, Cursor, Write};
use std::path::PathBuf;
use std::rc::Rc;

use clap::Parser;

use super::{Context, run, schema};
use crate::cli::Cli;
use crate::configfs::fake::Fake;
use crate::configfs::{Configfs, Files, Job};
use crate::device::{self, Devices};
use crate::error::{Code, Error, is_shell};
use crate::output::Output;
use crate::usage;

mod config;
mod demo;
mod keys;
mod ping;
mod protection;
mod see;
mod units;
mod words;

/// A stream that can be read later.
#[derive(Clone, Default)]
struct Capture(Rc<RefCell<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Capture {
    fn take(&self) -> String {
        String::from_utf8(self.0.take()).expect("utf-8")
    }
}

/// The hints of an error, one on each line.
fn hint(error: &Error) -> String {
    error.hints().lines().join("\n")
}

/// A host with the model of the kernel; its /dev has farblk0.
pub(crate) struct Host {
    root: PathBuf,
    pub(crate) kernel: Fake,
    system: device::fake::Fake,
    out: Capture,
    err: Capture,
    /// The exit code of the last command that printed its result.
    exit: Cell<u8>,
}

impl Host {
    pub(crate) fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("farblk-test-{}-{test}", std::process::id()));
        fs::create_dir_all(root.join("dev")).expect("a directory");
        fs::write(root.join("dev/file"), "").expect("a file");
        let system = device::fake::Fake::new(&root);
        system.appear("farblk0", "259:0");
        Self {
            kernel: Fake::new(&root),
            system,
            root,
            out: Capture::default(),
            err: Capture::default(),
            exit: Cell::new(0),
        }
    }

    fn run(&self, line: &str) -> Result<(), Error> {
        self.answer(line, None)
    }

    /// Runs a command at a terminal, where `answer` is typed.
    fn answer(&self, line: &str, answer: Option<&'static str>) -> Result<(), Error> {
        let words = ["farblk"].into_iter().chain(line.split_whitespace());
        let words: Vec<_> = words.map(str::to_owned).collect();
        let cli = Cli::try_parse_from(&words).map_err(|e| usage::refused(&e, &words))?;
        let context = Context {
            root: self.root.clone(),
            configfs: Configfs::with(
                &self.root,
                cli.global.dry_run,
                Box::new(self.kernel.clone()),
            ),
            devices: Devices::with(&self.root, Box::new(self.system.clone())),
            output: Output::to(
                cli.global.json,
                cli.global.quiet,
                Box::new(self.out.clone()),
                Box::new(self.err.clone()),
                answer.map(|answer| Box::new(Cursor::new(answer)) as Box<dyn BufRead>),
            ),
            exit: Cell::new(0),
        };
        let result = run(&context, &cli.command);
        self.exit.set(context.exit.get());
        // Each of its hints is shell: Hints::new() sees to that.
        if let Err(error) = &result {
            schema::check(&serde_json::to_string(&error.document()).expect("JSON"));
        }
        result
    }

    /// Gives the host a machine ID.
    fn machine_id(&self, id: &str) {
        fs::create_dir_all(self.root.join("etc")).expect("a directory");
        fs::write(self.root.join("etc/machine-id"), format!("{id}\n")).expect("a file");
    }

    /// Runs a command that must succeed, and gives its stdout.
    pub(crate) fn ok(&self, line: &str) -> String {
        self.run(line)
            .unwrap_or_else(|error| panic!("{line}: {error:?}"));
        let text = anstream::adapter::strip_str(&self.out.take()).to_string();
        text.trim_end().to_owned()
    }

    /// Runs a command that must fail, and gives the code's name, the exit code and the text.
    fn fails(&self, line: &str) -> (&'static str, u8, String) {
        let error = self.run(line).expect_err(line);
        assert_eq!(self.out.take(), "", "{line}: stdout");
        (error.code.entry().name, error.exit(), error.to_string())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn port_add_numbers_and_is_idempotent() {
    let host = Host::new("port");
    assert_eq!(
        host.ok("port add --addr 10.9.0.1"),
        "port 1 listening on 10.9.0.1:7420 (rxe0)"
    );
    host.kernel.take_log();
    assert_eq!(
        host.ok("port add --addr 10.9.0.1:7420"),
        "port 1 already listening on 10.9.0.1:7420 (rxe0)"
    );
    assert!(host.kernel.take_log().is_empty());
    assert_eq!(
        host.ok("port add --addr [fd00::1]:99"),
        "port 2 listening on [fd00::1]:99 (rxe0)"
    );
    let (code, exit, text) = host.fails("port add 1 --addr 10.9.0.2");
    assert_eq!((code, exit), ("F0103", 1));
    assert!(text.contains("10.9.0.1:7420"), "{text}");
    assert_eq!(host.ok("port rm 1"), "removed port 1");
    assert_eq!(host.fails("port rm 1").1, 3);
    assert_eq!(host.kernel.objects(), ["ports/2"]);
}

#[test]
fn the_first_object_gives_the_host_a_lasting_id() {
    for line in [
        "port add --addr 10.9.0.1",
        "export create e --ram 1M",
        "map 10.9.0.1/m",
        "discover 10.9.0.1",
    ] {
        let host = Host::new("identity");
        host.kernel.put("", "host_id_source", "random");
        host.machine_id("0123456789abcdef0123456789abcdef");
        let script = host.ok(&format!("--dry-run {line}"));
        let id = "4f2950c6-d248-4765-99a1-e02573ae740d";
        let mut lines = script.lines();
        let file = host.root.join("etc/farblk/host_id");
        assert!(
            lines.next().is_some_and(|first| first.contains("(set -C ")
                && first.ends_with(&format!("> {})", file.display()))),
            "{script}"
        );
        assert!(
            lines
                .next()
                .is_some_and(|second| second.starts_with(&format!("echo {id} > "))
                    && second.ends_with("/farblk/host_id")),
            "{script}"
        );
        assert!(!file.exists());
        assert!(host.kernel.take_log().is_empty());
        host.ok(line);
        let log = host.kernel.take_log();
        assert_eq!(log[0], format!("host_id = {id}"), "{line}");
        assert_eq!(host.kernel.get("", "host_id").as_deref(), Some(id));
        // It is written once.
        host.ok("port add again --addr 10.9.0.2");
        assert_eq!(host.kernel.take_log()[0], "mkdir ports/again");
        // With an object, this host may be known to others under the identity that it has.
        host.kernel.put("", "host_id_source", "random");
        host.ok("port add third --addr 10.9.0.3");
        assert_eq!(host.kernel.take_log()[0], "mkdir ports/third");
    }
}

#[test]
fn an_id_that_somebody_wrote_stays() {
    let host = Host::new("identity-kept");
    host.machine_id("0123456789abcdef0123456789abcdef");
    let have = host.kernel.get("", "host_id");
    host.ok("map 10.9.0.1/m");
    assert_eq!(host.kernel.get("", "host_id"), have);
}

#[test]
fn a_host_without_a_machine_id_keeps_its_first_id() {
    let host = Host::new("identity-none");
    host.kernel.put("", "host_id_source", "random");
    let first = host.kernel.get("", "host_id").expect("an id");
    host.ok("map 10.9.0.1/m");
    assert_eq!(host.kernel.take_log()[0], format!("host_id = {first}"));
    assert!(!host.err.take().contains("warning"));
    let file = fs::read_to_string(host.root.join("etc/farblk/host_id"));
    assert_eq!(file.expect("a file"), format!("{first}\n"));
}

#[test]
fn an_id_that_cannot_be_kept_is_told_of() {
    let host = Host::new("identity-lost");
    host.kernel.put("", "host_id_source", "random");
    fs::create_dir_all(host.root.join("etc")).expect("a directory");
    let folder = host.root.join("etc/farblk");
    std::os::unix::fs::symlink("/nowhere/at/all", folder).expect("a link");
    host.ok("map 10.9.0.1/m");
    let said = host.err.take();
    assert!(said.contains("has no machine ID"), "{said}");
    assert!(said.contains("systemd-machine-id-setup\n"), "{said}");
}

#[test]
fn the_file_has_the_lasting_id() {
    let host = Host::new("identity-file");
    let file = host.root.join("etc/farblk/host_id");
    // Somebody has written one: it lasts, too.
    host.ok("port add --addr 10.9.0.1");
    let have = host.kernel.get("", "host_id").expect("an id");
    assert_eq!(
        fs::read_to_string(&file).expect("a file"),
        format!("{have}\n")
    );
    host.ok("port rm 1");
    // The module is loaded anew.
    let other = "44444444-4444-4444-8444-444444444444";
    host.kernel.put("", "host_id", other);
    host.kernel.put("", "host_id_source", "random");
    host.ok("port add --addr 10.9.0.1");
    assert_eq!(host.kernel.get("", "host_id"), Some(have));
    host.ok("port rm 1");
    host.kernel.put("", "host_id_source", "random");
    fs::write(&file, "nonsense\n").expect("a file");
    let (code, exit, text) = host.fails("port add --addr 10.9.0.1");
    assert_eq!((code, exit), ("F0501", 2));
    assert!(
        text.contains("host_id: \"nonsense\" is not a UUID"),
        "{text}"
    );
    assert!(host.kernel.objects().is_empty());
}

#[test]
fn a_copy_of_a_host_gets_another_id() {
    let host = Host::new("identity-copy");
    host.kernel.put("", "host_id_source", "random");
    host.machine_id("0123456789abcdef0123456789abcdef");
    host.ok("port add --addr 10.9.0.1");
    let first = host.kernel.get("", "host_id");
    host.ok("port rm 1");
    host.kernel.put("", "host_id_source", "random");
    host.machine_id("fedcba9876543210fedcba9876543210");
    host.err.take();
    host.ok("port add --addr 10.9.0.1");
    assert!(host.err.take().contains("was copied from another host"));
    let second = host.kernel.get("", "host_id").expect("an id");
    assert_ne!(Some(&second), first.as_ref());
    let file = fs::read_to_string(host.root.join("etc/farblk/host_id")).expect("a file");
    assert_eq!(file.lines().next(), Some(second.as_str()));
}

#[test]
fn a_port_that_lost_its_device_is_told_of() {
    let host = Host::new("port-error");
    host.ok("port add --addr 10.9.0.1");
    host.kernel.put("ports/1", "state", "error");
    let gone = "ENODEV the RDMA device was removed";
    host.kernel.put("ports/1", "last_error", gone);
    host.kernel.take_log();
    let error = host.run("port add --addr 10.9.0.1").expect_err("error");
    assert_eq!((error.code.entry().name, error.exit()), ("F0213", 7));
    assert_eq!(error.why, "port 1 is error: the RDMA device was removed");
    let returns = "# the port listens again by itself once its device and address are back";
    assert_eq!(hint(&error), returns);
    let list = host.ok("port list");
    let branches = format!("\n ├─ last error: the RDMA device was removed\n └─ hint: {returns}");
    assert!(list.ends_with(&branches), "{list}");
    // Of one whose removal was killed that is not so.
    let killed = "EINTR killed while 1 session(s) wait";
    host.kernel.put("ports/1", "last_error", killed);
    let error = host.run("port add --addr 10.9.0.1").expect_err("closing");
    assert!(hint(&error).starts_with("farblk port rm 1  # waits"));
    assert!(!host.ok("port list").contains("hint"));
    assert!(host.kernel.take_log().is_empty());
}

#[test]
fn what_was_made_goes_when_enabling_fails() {
    let host = Host::new("rollback");
    host.kernel.refuse(
        "ports/1/enable",
        "1",
        99,
        "EADDRNOTAVAIL 10.9.0.9 is not an address of this host",
        1,
    );
    let (code, exit, text) = host.fails("port add --addr 10.9.0.9");
    assert_eq!((code, exit), ("F0214", 1));
    assert_eq!(
        text,
        "cannot listen on 10.9.0.9:7420: 10.9.0.9 is not an address of this host"
    );
    host.kernel.refuse(
        "maps/vol1/enable",
        "1",
        111,
        "ECONNREFUSED nobody listens on 10.9.0.1:7420",
        1,
    );
    let (code, exit, text) = host.fails("map 10.9.0.1/vol1");
    assert_eq!((code, exit), ("F0203", 5));
    assert_eq!(
        text,
        "cannot map 10.9.0.1/vol1: nobody listens on 10.9.0.1:7420"
    );
    host.kernel.refuse("hosts/a/access", "ro", 22, "", 1);
    assert_eq!(
        host.fails("export create x --ram 1M --allow b --allow a:ro")
            .0,
        "F0106"
    );
    assert!(
        host.kernel.objects().is_empty(),
        "{:?}",
        host.kernel.objects()
    );
    assert!(!host.err.take().contains("warning"));
}

#[test]
fn a_port_that_cannot_listen_says_why() {
    let host = Host::new("port-why");
    host.ok("port add all --addr 0.0.0.0");
    let taken = "EADDRINUSE another RDMA listener has port 7420 at 10.9.0.1, or at all addresses";
    let refuse = |errno, words| host.kernel.refuse("ports/p/enable", "1", errno, words, 1);
    refuse(98, taken);
    let error = host.run("port add p --addr 10.9.0.1").expect_err("taken");
    let text = "cannot listen on 10.9.0.1:7420: another RDMA listener has port 7420 at 10.9.0.1, \
                or at all addresses";
    assert_eq!((error.code.entry().name, error.exit()), ("F0215", 4));
    assert_eq!(error.to_string(), text);
    assert_eq!(error.details, ["port all listens on 0.0.0.0:7420"]);
    assert!(hint(&error).starts_with("farblk port rm all  #"));
    // Not that of another port number or family, nor one that does not listen.
    host.ok("port rm all");
    host.ok("port add other --addr 0.0.0.0:7421");
    host.ok("port add six --addr ::");
    refuse(98, taken);
    let error = host.run("port add p --addr 10.9.0.1").expect_err("taken");
    assert!(error.details.is_empty());
    assert!(hint(&error).contains("rdma resource show cm_id"));
    let loopback = "EINVAL 127.0.0.1 is a loopback address, which RDMA takes for all addresses";
    refuse(22, loopback);
    let error = host.run("port add p --addr 127.0.0.1").expect_err("lo");
    assert_eq!((error.code.entry().name, error.exit()), ("F0106", 2));
    assert!(error.to_string().ends_with(&loopback[7..]));
    assert!(hint(&error).starts_with("rdma link  #"));
}

#[test]
fn what_a_command_was_refused_is_not_what_a_map_suffers() {
    let host = Host::new("refusal");
    host.ok("map 10.9.0.1/e");
    let refuse = || {
        let (code, _, text) = host.fails("path rm e 0");
        assert_eq!(code, "F0104");
        assert!(
            text.ends_with("the last path of a map that is enabled"),
            "{text}"
        );
    };
    refuse();
    assert!(!host.ok("list").contains("last error"));
    host.kernel.put("maps/e", "state", "reconnecting");
    let gone = "ECONNREFUSED nobody listens on 10.9.0.1:7420";
    for object in ["maps/e", "maps/e/paths/0"] {
        host.kernel.put(object, "last_error", gone);
    }
    refuse();
    for command in ["list", "show e", "list -j"] {
        let text = host.ok(command);
        assert!(text.contains("nobody listens"), "{text}");
        assert!(!text.contains("last path"), "{text}");
    }
    // A module without `refusal` has both in one.
    host.kernel.forget("refusal");
    host.kernel.refuse(
        "ports/1/enable",
        "1",
        19,
        "ENODEV no RDMA device has the address 10.9.0.9",
        1,
    );
    let text = host.fails("port add --addr 10.9.0.9").2;
    assert!(
        text.ends_with("no RDMA device has the address 10.9.0.9"),
        "{text}"
    );
}

#[test]
fn an_old_last_error_is_not_blamed() {
    let host = Host::new("old-error");
    host.kernel.refuse(
        "ports/1/enable",
        "1",
        98,
        "ENODEV something of yesterday",
        1,
    );
    let (code, exit, text) = host.fails("port add --addr 10.9.0.9");
    assert_eq!((code, exit), ("F0215", 4));
    assert!(!text.contains("yesterday"), "{text}");
}

#[test]
fn export_create_and_again() {
    let host = Host::new("export");
    let create = "export create scratch --ram 4G --allow node-b --allow node-c:ro";
    let summary = "ram, 4.0 GiB, one-sided, rw, allowed: node-b, node-c (ro)   VOLATILE: lost when this host stops";
    assert_eq!(host.ok(create), format!("export scratch: {summary}"));
    assert!(host.err.take().starts_with("allocating 4.0 GiB .. done ("));
    host.kernel.take_log();
    assert_eq!(
        host.ok(create),
        format!("export scratch exists already, with these settings: {summary}")
    );
    assert!(host.kernel.take_log().is_empty());
    for other in [
        "--ram 2G --allow node-b",
        "--ram 4G --allow node-d",
        "--ram 4G --allow-any-host",
        "--ram 4G --read-only",
    ] {
        let (code, exit, _) = host.fails(&format!("export create scratch {other}"));
        assert_eq!((code, exit), ("F0103", 1), "{other}");
    }
    assert!(host.kernel.take_log().is_empty());
    host.kernel.put("exports/scratch", "clients", "1");
    let (code, exit, text) = host.fails("export rm scratch");
    assert_eq!((code, exit), ("F0104", 4));
    assert_eq!(text, "cannot remove export scratch: 1 client is connected");
    host.kernel.put("exports/scratch", "clients", "0");
    host.kernel.put("exports/scratch", "clients_away", "2");
    assert_eq!(
        host.fails("export rm scratch").2,
        "cannot remove export scratch: 2 clients are away and expected to return"
    );
    assert!(
        host.ok("export show scratch")
            .contains("0 of at most 1, 2 away")
    );
    assert_eq!(
        host.ok("export rm scratch --force"),
        "removed export scratch"
    );
    assert!(host.kernel.objects().is_empty());
    assert_eq!(host.fails("export rm scratch").1, 3);
}

#[test]
fn export_allow_and_deny() {
    let host = Host::new("allow");
    host.ok("export create x --ram 1M");
    assert!(host.err.take().contains("farblk export allow x HOST"));
    host.ok("export allow x b --ro --host-id 6F0E8D52-0c7d-4a3b-9b0e-2f6f5d1c7a10");
    assert_eq!(
        host.kernel.get("exports/x/hosts/b", "access").as_deref(),
        Some("ro")
    );
    assert_eq!(
        host.kernel.get("exports/x/hosts/b", "host_id").as_deref(),
        Some("6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10")
    );
    for again in ["b --ro", "b:ro", "b:RO"] {
        let text = host.ok(&format!("export allow x {again}"));
        assert!(text.contains("exists already"), "{again}: {text}");
    }
    for bad in ["b:rw --ro", "b:readonly"] {
        let (code, exit, text) = host.fails(&format!("export allow x {bad}"));
        assert_eq!((code, exit), ("F0101", 2), "{bad}");
        assert!(text.contains("--ro"), "{text}");
    }
    assert_eq!(host.kernel.objects(), ["exports/x", "exports/x/hosts/b"]);
    assert!(
        host.ok("export allow x b")
            .ends_with("allowed: b   VOLATILE: lost when this host stops")
    );
    // The removal of the entry only begins to end the sessions.
    host.kernel.take_log();
    let denied = host.ok("export deny x b");
    assert!(denied.contains("allowed: nobody"));
    let both = |name: &str| {
        [
            format!("rmdir exports/{name}/hosts/b"),
            format!("exports/{name}/evict = b"),
        ]
    };
    assert_eq!(host.kernel.take_log(), both("x"));
    // As after a call that was killed while it waited.
    host.ok("export deny x b");
    assert_eq!(host.kernel.take_log(), ["exports/x/evict = b"]);
    let gone = "ENOENT evict: there is no map of host b";
    host.kernel.refuse("x/evict", "b", 2, gone, 1);
    let (_, code, error) = host.fails("export deny x b");
    assert!(error.contains("no entry for this host"), "{error}");
    assert_eq!(code, 3);
    assert_eq!(host.fails("export deny y b").1, 3);
    host.ok("export create scratch --ram 1M --allow b");
    let error = host.run("export rm scrathc").expect_err("a near miss");
    assert_eq!(hint(&error), "farblk export list  # did you mean scratch?");
    host.ok("export rm scratch");
    host.kernel.take_log();
    // There need not be a map of a host that has an entry.
    host.ok("export allow x b");
    host.kernel.refuse("x/evict", "b", 2, gone, 1);
    host.ok("export deny x b");
    host.ok("export allow x b");
    let busy = "EINTR killed while the device is busy";
    host.kernel.refuse("x/evict", "b", 4, busy, 1);
    host.fails("export deny x b");
    // Of an export for any host there need not be an entry.
    host.ok("export create any --ram 1M --allow-any-host --allow b");
    host.kernel.take_log();
    host.err.take();
    host.ok("export deny any c");
    assert_eq!(host.kernel.take_log(), ["exports/any/evict = c"]);
    assert!(host.err.take().contains("c may log in again"));
    host.kernel.refuse("any/evict", "b", 2, gone, 2);
    host.ok("export deny any b");
    assert_eq!(host.kernel.take_log(), both("any"));
    assert_eq!(host.fails("export deny any b").1, 3);
}

#[test]
fn export_deny_spares_clients() {
    let host = Host::new("deny-busy");
    host.ok("export create x --ram 1M --allow b --allow c");
    host.kernel.put("exports/x", "clients", "2");
    host.kernel.put("exports/x/hosts/b", "connected", "2");
    host.kernel.take_log();
    for (denied, why) in [
        ("b", Some("2 maps of this host are connected")),
        ("c", None),
    ] {
        for line in ["", "--dry-run "] {
            let result = host.run(&format!("{line}export deny x {denied}"));
            match why {
                None => result.expect("to deny a host without maps"),
                Some(why) => {
                    let error = result.expect_err("a map is connected");
                    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
                    assert_eq!(error.why, why);
                    assert!(hint(&error).contains("export deny x b --force  # or: "));
                    assert!(hint(&error).contains(" lost"));
                    assert!(host.kernel.take_log().is_empty());
                }
            }
        }
    }
    // Of a host without an entry the module does not count the maps.
    host.out.take();
    host.kernel.put("exports/x", "clients", "3");
    assert_eq!(host.fails("export deny x c").0, "F0104");
    host.kernel.put("exports/x", "clients", "2");
    host.kernel.put("exports/x/hosts/b", "connected", "0");
    host.kernel.put("exports/x", "clients", "0");
    host.kernel.put("exports/x", "clients_away", "1");
    assert_eq!(
        host.fails("export deny x b").2,
        "cannot deny b the use of x: 1 client is away and expected to return, perhaps of this host"
    );
    host.kernel.take_log();
    host.ok("export deny x b --force");
    let log = ["rmdir exports/x/hosts/b", "exports/x/evict = b"];
    assert_eq!(host.kernel.take_log(), log);
}

#[test]
fn exports_are_disabled_and_enabled() {
    let host = Host::new("export-switch");
    host.ok("export create x --ram 1M --allow b");
    host.kernel.take_log();
    host.kernel.put("exports/x", "clients", "1");
    let error = host.run("export disable x").expect_err("a client");
    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
    assert!(hint(&error).contains("export disable x --force  # or: "));
    assert!(hint(&error).contains("contents are lost"));
    assert!(host.kernel.take_log().is_empty());
    host.kernel.put("exports/x", "clients", "0");
    for log in [&["exports/x/enable = 0"][..], &[]] {
        assert_eq!(host.ok("export disable x"), "export x is disabled");
        assert_eq!(host.kernel.take_log(), log);
    }
    for log in [&["exports/x/enable = 1"][..], &[]] {
        assert_eq!(host.ok("export enable x"), "export x is online");
        assert_eq!(host.kernel.take_log(), log);
    }
    let json = host.ok("-j export disable x --force");
    assert!(json.starts_with(r#"{"schema":"farblk.export/1","changed":true,"#));
    host.kernel.refuse("exports/x/enable", "1", 12, "", 1);
    assert_eq!(host.fails("export enable x").0, "F0108");
    for line in ["disable y", "enable y", "evict y b"] {
        assert_eq!(host.fails(&format!("export {line}")).1, 3, "{line}");
    }
    host.system.disk("sdb");
    host.ok("export create d --device /dev/sdb");
    host.ok("export disable d");
    host.kernel.refuse("exports/d/enable", "1", 16, "", 1);
    assert_eq!(host.fails("export enable d").0, "F0107");
}

#[test]
fn export_evict() {
    let host = Host::new("evict");
    host.ok("export create x --ram 1M --allow b");
    host.kernel.put("exports/x/hosts/b", "connected", "1");
    host.kernel.put("exports/x", "clients", "1");
    host.kernel.take_log();
    let error = host.run("export evict x b").expect_err("a client");
    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
    assert!(hint(&error).contains("export evict x b --force  # or: "));
    assert!(host.kernel.take_log().is_empty());
    host.ok("export evict x b --force");
    assert_eq!(host.kernel.take_log(), ["exports/x/evict = b"]);
    assert_eq!(host.kernel.objects(), ["exports/x", "exports/x/hosts/b"]);
    let gone = "ENOENT evict: there is no map of host c";
    host.kernel.refuse("x/evict", "c", 2, gone, 1);
    assert_eq!(host.fails("export evict x c").1, 3);
}

#[test]
fn export_unreserve() {
    let host = Host::new("unreserve");
    host.ok("export create x --ram 1M --allow b");
    let keys = |text: &str| host.kernel.put("exports/x", "pr_registrants", text);
    host.kernel.take_log();
    let nobody = host.ok("export unreserve x");
    assert_eq!(nobody, "export x has no reservations");
    assert!(host.kernel.take_log().is_empty());
    assert!(!host.ok("export show x").contains("REGISTRANT"));
    keys("b 0x1f\n");
    assert_eq!(
        host.ok("export unreserve x"),
        "export x: removed 1 registrant"
    );
    assert_eq!(host.kernel.take_log(), ["exports/x/pr_clear = 1"]);
    // One that holds the export may have fenced others.
    keys("b 0x1f\nc 0xffffffffffffffff exclusive-access\n");
    assert!(host.ok("export show x").ends_with(
        "REGISTRANT  KEY                 RESERVATION\n  \
         b           0x1f                -\n  \
         c           0xffffffffffffffff  exclusive-access"
    ));
    for line in ["", "--dry-run "] {
        let line = format!("{line}export unreserve x");
        let error = host.run(&line).expect_err("it is reserved");
        assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
        assert_eq!(error.why, "c has reserved it: exclusive-access");
        assert!(hint(&error).starts_with("farblk export unreserve x --force  # "));
    }
    assert!(host.kernel.take_log().is_empty());
    let script = host.ok("--dry-run export unreserve x --force");
    assert!(
        script.starts_with("echo force > ") && script.ends_with("/exports/x/pr_clear"),
        "{script}"
    );
    let json = host.ok("-j export unreserve x --force");
    assert!(
        json.starts_with(r#"{"schema":"farblk.export/1","changed":true,"#)
            && json.ends_with(r#""registrants":[]}}"#),
        "{json}"
    );
    assert_eq!(host.kernel.take_log(), ["exports/x/pr_clear = force"]);
    // It is reserved after the tool has looked.
    keys("b 0x1f\n");
    let why = "EBUSY pr_clear: the export is reserved; force clears it";
    host.kernel.refuse("x/pr_clear", "1", 16, why, 1);
    let error = host.run("export unreserve x").expect_err("it is reserved");
    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
    assert_eq!(error.why, "a map has reserved it meanwhile");
    assert!(hint(&error).starts_with("farblk export unreserve x --force  # "));
    assert_eq!(host.fails("export unreserve y").1, 3);
    // A module without persistent reservations.
    host.kernel.forget("pr_registrants");
    host.ok("export create z --ram 1M --allow b");
    assert_eq!(host.fails("export unreserve z").0, "F0402");
}

#[test]
fn export_deny_as_shell() {
    let host = Host::new("denysh");
    host.ok("export create x --ram 1M --allow b");
    let script = host.ok("--dry-run export deny x b");
    let lines: Vec<_> = script.lines().collect();
    let [rmdir, evict] = lines[..] else {
        panic!("{script}");
    };
    assert!(
        rmdir.starts_with("rmdir ") && rmdir.ends_with("/hosts/b"),
        "{rmdir}"
    );
    assert!(
        evict.starts_with("echo b > ") && evict.contains("/evict || grep -q ^ENOENT "),
        "{evict}"
    );
    let again = host.ok("--dry-run export deny x c");
    assert!(again.trim_end().ends_with("/exports/x/evict"), "{again}");
}

#[test]
fn map_prints_only_the_device() {
    let host = Host::new("map");
    assert_eq!(
        host.ok("map 10.9.0.1/scratch --name s --queues 2"),
        "/dev/farblk0"
    );
    assert!(
        host.err
            .take()
            .starts_with("connecting to 10.9.0.1 .. live via rxe0, 4.0 GiB one-sided (")
    );
    host.kernel.take_log();
    assert_eq!(host.ok("map 10.9.0.1/scratch --name s"), "/dev/farblk0");
    assert_eq!(
        host.err.take(),
        "map s exists already, with these settings\n"
    );
    assert!(host.kernel.take_log().is_empty());
    for other in [
        "10.9.0.2/scratch",
        "10.9.0.1/vol1",
        "10.9.0.1/scratch --ro",
        "10.9.0.1/scratch --queues 3",
        "10.9.0.1/scratch --source 10.9.0.2",
        "10.9.0.1/scratch --path 10.9.1.1",
        "10.9.0.1/scratch --no-path-timeout forever",
    ] {
        let (code, exit, _) = host.fails(&format!("map {other} --name s"));
        assert_eq!((code, exit), ("F0103", 1), "{other}");
    }
    assert!(host.kernel.take_log().is_empty());
    assert_eq!(host.ok("unmap /dev/farblk0"), "unmapped s (farblk0)");
    assert_eq!(
        host.kernel.take_log(),
        [
            "maps/s/enable = 0",
            "maps/s/paths/0/enable = 0",
            "rmdir maps/s/paths/0",
            "rmdir maps/s"
        ]
    );
    assert_eq!(host.fails("unmap s").1, 3);
    assert_eq!(host.ok("unmap s --if-mapped"), "s is not mapped");
    assert_eq!(host.ok("-q unmap s --if-mapped"), "");
}

#[test]
fn a_node_that_is_not_the_device_is_refused() {
    let host = Host::new("node");
    host.system.attr("farblk0", "dev", "259:7");
    fs::write(host.root.join("dev/farblk0"), "").expect("a file");
    let error = host.run("map 10.9.0.1/s").expect_err("another device");
    assert_eq!((error.code.entry().name, error.exit()), ("F0110", 5));
    assert!(
        error.why.ends_with("dev/farblk0 is not its device node"),
        "{error}"
    );
    assert!(hint(&error).contains("\nfarblk unmap s  #"));
    assert_eq!(host.kernel.objects(), ["maps/s", "maps/s/paths/0"]);
}

#[test]
fn udev_is_waited_for() {
    let host = Host::new("udev-busy");
    host.ok("map 10.9.0.1/s");
    assert_eq!(host.system.take_log(), ["settle"]);
    // Another process may have made the map a moment ago.
    host.ok("map 10.9.0.1/s");
    assert_eq!(host.system.take_log(), ["settle"]);
    host.ok("map 10.9.0.1/t --dry-run");
    assert!(host.system.take_log().is_empty());
    host.system.with_busy_udev();
    let (code, exit, text) = host.fails("map 10.9.0.1/s");
    assert_eq!((code, exit), ("F0110", 5), "{text}");
    assert!(text.contains("udev is still busy"), "{text}");
}

/// The next command would use another disk by this name.
#[test]
fn a_map_is_there_when_its_name_is_its_own() {
    let host = Host::new("names");
    let names = host.root.join("dev/farblk/by-name");
    fs::create_dir_all(&names).expect("a directory");
    fs::create_dir_all(host.root.join("run/udev")).expect("a directory");
    fs::write(host.root.join("run/udev/control"), "").expect("a file");
    host.system.disk("sdb");
    host.ok("map 10.9.0.1/s");
    host.ends("config save", 0);
    let link = |disk: &str| {
        let _ = fs::remove_file(names.join("s"));
        std::os::unix::fs::symlink(format!("../../{disk}"), names.join("s")).expect("a link");
        host.system.link("dev/farblk/by-name/s", disk);
    };
    link("farblk0");
    host.ok("map 10.9.0.1/s");
    assert_eq!(host.ends("config restore", 0), "map s  unchanged");
    link("sdb");
    let text = host.ends("config restore --map s", 5);
    assert!(text.starts_with("map s  FAILED F0110: "), "{text}");
    let (code, _, text) = host.fails("map 10.9.0.1/s");
    assert_eq!(code, "F0110", "{text}");
    assert!(text.contains("still the name of another disk"), "{text}");
    let text = host.ends("config restore", 8);
    assert!(text.starts_with("map s  FAILED F0110: "), "{text}");
    // The map is gone, and its name is not.
    let (code, _, text) = host.fails("unmap s");
    assert_eq!(code, "F0110", "{text}");
    assert!(host.kernel.objects().is_empty());
    fs::remove_file(names.join("s")).expect("to remove it");
    host.ok("map 10.9.0.1/s");
    host.ok("unmap s");
}

#[test]
fn map_again_while_it_reconnects() {
    let host = Host::new("again");
    host.ok("map 10.9.0.1/s");
    host.kernel.take_log();
    for state in ["reconnecting", "failed", "connecting"] {
        host.kernel.put("maps/s", "state", state);
        let lost = "ENOTCONN the connection to 10.9.0.1:7420 was lost";
        host.kernel.put("maps/s", "last_error", lost);
        let (code, exit, text) = host.fails("map 10.9.0.1/s --wait 0");
        assert_eq!((code, exit), ("F0216", 5), "{state}");
        assert_eq!(
            text,
            format!(
                "cannot map 10.9.0.1/s: map s is {state}: the connection to 10.9.0.1:7420 was lost"
            )
        );
        assert_eq!(host.ok("--dry-run map 10.9.0.1/s"), "");
    }
    host.kernel.put("maps/s", "state", "closing");
    assert_eq!(host.fails("map 10.9.0.1/s --wait 0").0, "F0104");
    for (state, code) in [("stale", "F0301"), ("evicted", "F0302")] {
        host.kernel.put("maps/s", "state", state);
        let error = host.run("map 10.9.0.1/s").expect_err(state);
        assert_eq!((error.code.entry().name, error.exit()), (code, 9));
        assert!(
            hint(&error).contains("farblk remap s  # after umount; "),
            "{state}"
        );
    }
    assert!(host.kernel.take_log().is_empty());
    host.kernel.put("maps/s", "state", "disabled");
    assert_eq!(host.ok("map 10.9.0.1/s"), "/dev/farblk0");
    assert_eq!(host.kernel.take_log(), ["maps/s/enable = 1"]);
    assert_eq!(host.kernel.objects(), ["maps/s", "maps/s/paths/0"]);
}

#[test]
fn map_again_with_paths_added() {
    let host = Host::new("again-paths");
    host.ok("map 10.9.0.1/s");
    host.ok("path add s 10.9.1.1");
    host.kernel.take_log();
    assert_eq!(host.ok("map 10.9.0.1/s"), "/dev/farblk0");
    assert_eq!(host.ok("map 10.9.1.1/s --path 10.9.0.1"), "/dev/farblk0");
    assert!(host.kernel.take_log().is_empty());
    host.kernel.put("maps/s/paths/1", "enable", "0");
    host.ok("map 10.9.0.1/s");
    assert!(host.kernel.take_log().is_empty());
    host.ok("map 10.9.1.1/s");
    assert_eq!(host.kernel.take_log(), ["maps/s/paths/1/enable = 1"]);
}

#[test]
fn map_again_without_a_source() {
    let host = Host::new("again-source");
    host.ok("map 10.9.0.1/s --source 10.9.0.2");
    host.ok("path add s 10.9.1.2@10.9.1.1");
    host.kernel.take_log();
    for same in [
        "10.9.0.1/s",
        "10.9.0.1/s --source 10.9.0.2",
        "10.9.1.1/s",
        "10.9.0.1/s --path 10.9.1.1",
    ] {
        assert_eq!(host.ok(&format!("map {same}")), "/dev/farblk0", "{same}");
    }
    for other in [
        "10.9.0.1/s --source 10.9.0.3",
        "10.9.0.1/s --path 10.9.1.3@10.9.1.1",
        "10.9.0.1:1/s",
    ] {
        assert_eq!(host.fails(&format!("map {other}")).0, "F0103", "{other}");
    }
    assert!(host.kernel.take_log().is_empty());
}

#[test]
fn remap_accepts_new_contents() {
    let host = Host::new("remap");
    host.ok("map 10.9.0.1/s --expect-instance b71c0000-0000-4000-8000-000000000000");
    host.kernel.take_log();
    assert_eq!(host.ok("remap s"), "/dev/farblk0");
    assert!(host.kernel.take_log().is_empty());
    for state in ["reconnecting", "failed"] {
        host.kernel.put("maps/s", "state", state);
        assert_eq!(host.fails("remap s --yes").0, "F0216", "{state}");
    }
    host.kernel.put("maps/s", "state", "closing");
    assert_eq!(host.fails("remap s --yes").0, "F0104");
    let mode = host.kernel.get("maps/s", "mode").expect("mode");
    host.kernel.put("maps/s", "state", "stale");
    host.kernel.put("maps/s", "mode", "two_sided");
    host.err.take();
    host.answer("remap s", Some("\n")).expect_err("no");
    let err = host.err.take();
    assert!(err.contains("s: the server made the export anew"), "{err}");
    host.kernel.put("maps/s", "mode", &mode);
    host.kernel.put("maps/s", "state", "stale");
    host.err.take();
    let error = host.run("remap s").expect_err("nobody to ask");
    assert_eq!((error.code.entry().name, error.exit()), ("F0101", 2));
    assert_eq!(hint(&error), "farblk remap s --yes");
    let error = host.answer("remap s", Some("\n")).expect_err("no");
    assert_eq!((error.code.entry().name, error.exit()), ("F0301", 9));
    let err = host.err.take();
    assert!(err.contains("s: the old contents are GONE"), "{err}");
    assert!(err.ends_with("Accept the new contents? [y/N] "), "{err}");
    assert!(host.kernel.take_log().is_empty());
    let script = host.ok("--dry-run remap s");
    let script: Vec<_> = script
        .lines()
        .filter_map(|line| line.rsplit_once("farblk/"))
        .map(|(_, attribute)| attribute)
        .collect();
    assert_eq!(
        script,
        ["maps/s/enable", "maps/s/expect_instance", "maps/s/enable"]
    );
    host.answer("-q remap /dev/farblk0", Some("y\n"))
        .expect("remap");
    assert!(host.out.take().ends_with("/dev/farblk0\n"));
    assert!(host.err.take().contains("GONE"));
    assert_eq!(
        host.kernel.take_log(),
        [
            "maps/s/enable = 0",
            "maps/s/expect_instance = ",
            "maps/s/enable = 1"
        ]
    );
    host.kernel.put("maps/s", "state", "evicted");
    let json = host.ok("-j remap s --yes");
    assert!(
        json.starts_with(r#"{"schema":"farblk.map/1","changed":true,"#),
        "{json}"
    );
    assert!(host.err.take().contains("fsck"));
    assert_eq!(host.fails("remap none").1, 3);
    // What was disabled, but could not be enabled again, is no loss.
    host.kernel.put("maps/s", "state", "stale");
    let refused = "ECONNREFUSED nobody listens";
    host.kernel.refuse("maps/s/enable", "1", 111, refused, 2);
    for _ in 0..2 {
        assert_eq!(host.fails("remap s --yes").0, "F0203");
    }
    host.kernel.take_log();
    assert_eq!(host.ok("remap s"), "/dev/farblk0");
    assert_eq!(host.kernel.take_log(), ["maps/s/enable = 1"]);
    host.ok("path add s 10.9.1.1");
    host.kernel.put("maps/s", "state", "disabled");
    host.kernel.put("maps/s", "enable", "0");
    host.kernel.put("maps/s", "device", "");
    for path in ["0", "1"] {
        host.ok(&format!("path rm s {path}"));
    }
    let error = host.run("remap s").expect_err("no paths");
    assert_eq!(error.exit(), 2);
    assert!(hint(&error).starts_with("farblk path add s HOST"));
}

#[test]
fn remap_spares_a_disk_in_use() {
    let host = Host::new("remap-in-use");
    host.ok("map 10.9.0.1/s");
    host.kernel.put("maps/s", "state", "stale");
    host.kernel.take_log();
    for (path, text) in [
        ("sys/class/block/farblk0/dev", "259:0\n"),
        (
            "proc/self/mountinfo",
            "36 22 259:0 / /a\\040b;c rw - xfs /dev/farblk0 rw\n",
        ),
    ] {
        let path = host.root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    let error = host.run("remap s --yes").expect_err("in use");
    assert_eq!((error.code.entry().name, error.exit()), ("F0107", 4));
    assert_eq!(error.to_string(), "s is in use and was not remapped");
    assert_eq!(hint(&error), "umount '/a b;c'\nfarblk remap s");
    assert!(host.kernel.take_log().is_empty());
}

#[test]
fn paths_come_and_go() {
    let host = Host::new("path");
    host.ok("map 10.9.0.1/s");
    host.kernel.take_log();
    let added = "map s: path 1 added: 10.9.1.2 (rxe0) -> 10.9.1.1:7420, live";
    assert_eq!(host.ok("path add s 10.9.1.2@10.9.1.1"), added);
    assert_eq!(
        host.kernel.take_log(),
        [
            "mkdir maps/s/paths/1",
            "maps/s/paths/1/addr = 10.9.1.1:7420",
            "maps/s/paths/1/source = 10.9.1.2",
            "maps/s/paths/1/enable = 1",
        ]
    );
    for again in ["", " --name 1"] {
        assert_eq!(
            host.ok(&format!(
                "path add /dev/farblk0 10.9.1.1 --source 10.9.1.2{again}"
            )),
            added.replace("added", "exists already")
        );
    }
    assert!(host.kernel.take_log().is_empty());
    host.kernel.put("maps/s/paths/1", "enable", "0");
    assert_eq!(host.ok("path add s 10.9.1.2@10.9.1.1"), added);
    assert_eq!(host.kernel.take_log(), ["maps/s/paths/1/enable = 1"]);
    for (line, code, exit) in [
        ("s 10.9.1.3 --name 1", "F0103", 1),
        ("s 10.9.1.1 --name 1", "F0103", 1),
        ("s fd00::1@10.9.1.1", "F0101", 2),
        ("s 10.9.1.2@10.9.1.1 --source 10.9.1.2", "F0101", 2),
        ("none 10.9.1.1", "F0102", 3),
    ] {
        let (have, status, text) = host.fails(&format!("path add {line}"));
        assert_eq!((have, status), (code, exit), "{text}");
    }
    assert!(host.kernel.take_log().is_empty());
    // Another source is another path.
    host.ok("path add s 10.9.1.1 --name b");
    host.kernel.refuse(
        "paths/2/enable",
        "1",
        28,
        "ENOSPC a map has 8 paths at most",
        1,
    );
    let (code, _, text) = host.fails("path add s 10.9.2.1");
    assert_eq!(code, "F0108");
    assert_eq!(text, "cannot add a path to s: a map has 8 paths at most");
    assert_eq!(
        host.kernel.objects(),
        [
            "maps/s",
            "maps/s/paths/0",
            "maps/s/paths/1",
            "maps/s/paths/b"
        ]
    );
    host.kernel.take_log();
    assert_eq!(host.ok("path rm s 1"), "map s: removed path 1");
    assert_eq!(
        host.kernel.take_log(),
        ["maps/s/paths/1/enable = 0", "rmdir maps/s/paths/1"]
    );
    assert_eq!(
        host.ok("-j path rm s 0"),
        r#"{"schema":"farblk.removed/1","kind":"path","map":"s","name":"0","changed":true}"#
    );
    assert_eq!(host.fails("path rm s 0").1, 3);
    let error = host.run("path rm s b").expect_err("the last one");
    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
    assert_eq!(error.why, "the last path of a map that is enabled");
    assert!(hint(&error).contains("farblk unmap s"));
    assert_eq!(host.kernel.objects(), ["maps/s", "maps/s/paths/b"]);
}

#[test]
fn a_path_is_connected_anew() {
    let host = Host::new("reconnect");
    host.ok("map 10.9.0.1/s");
    host.ok("path add s 10.9.1.1");
    host.kernel.put("maps/s/paths/1", "state", "waiting");
    host.kernel.take_log();
    assert_eq!(
        host.ok("path reconnect s 1"),
        "map s: path 1 reconnected: rxe0 -> 10.9.1.1:7420, live"
    );
    let log = ["maps/s/paths/1/enable = 0", "maps/s/paths/1/enable = 1"];
    assert_eq!(host.kernel.take_log(), log);
    // Of a map with one path, or with one that is live, I/O would have none.
    host.kernel.put("maps/s/paths/1", "state", "waiting");
    let error = host
        .run("path reconnect s 0")
        .expect_err("the only live one");
    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
    assert!(host.kernel.take_log().is_empty());
    host.ok("path rm s 1");
    assert_eq!(host.fails("path reconnect s 0").1, 4);
    assert_eq!(host.fails("path reconnect s 1").1, 3);
    let json = r#"{"schema":"farblk.path/1","changed":true,"map":"s","path":{"name":"1","#;
    host.ok("path add s 10.9.1.1");
    assert!(host.ok("-j path reconnect s 1").starts_with(json));
}

#[test]
fn a_path_that_is_down_is_told_of() {
    let host = Host::new("path-down");
    host.ok("map 10.9.0.1/s");
    host.err.take();
    host.ok("path add s 10.9.1.1");
    host.kernel.put("maps/s/paths/1", "state", "waiting");
    host.kernel.put("maps/s/paths/1", "device", "");
    host.kernel.put("maps/s/paths/1", "next_try_ms", "4000");
    let refused = "ECONNREFUSED nobody listens on 10.9.1.1:7420";
    host.kernel.put("maps/s/paths/1", "last_error", refused);
    host.kernel.put("maps/s/paths/0", "rtt_ns", "3100");
    assert_eq!(
        host.ok("path add s 10.9.1.1"),
        "map s: path 1 exists already: 10.9.1.1:7420, waiting"
    );
    let err = anstream::adapter::strip_str(&host.err.take()).to_string();
    assert!(
        err.contains("path 1 is not up, and the kernel tries again: nobody listens on 10.9.1.1:7420\n  hint: farblk port list  # on the server:"),
        "{err}"
    );
    assert_eq!(
        host.ok("path list s"),
        "PATH  ADDRESS        SOURCE  DEVICE  STATE    RTT     RECONNECTS  NEXT TRY
0     10.9.0.1:7420  -       rxe0    live     3.1 us  0           -
1     10.9.1.1:7420  -       -       waiting  -       0           4.0 s
 ├─ last error: nobody listens on 10.9.1.1:7420
 └─ hint: farblk port list  # on the server: is the farblk module loaded there? is the port right?"
    );
    assert_eq!(
        host.ok("-j path list s"),
        r#"{"schema":"farblk.path-list/1","host":"node-b","map":"s","paths":[{"name":"0","addr":"10.9.0.1:7420","source":null,"device":"rxe0","state":"live","rtt_ns":3100,"reconnects":0,"next_try_ms":null,"last_error":null},{"name":"1","addr":"10.9.1.1:7420","source":null,"device":null,"state":"waiting","rtt_ns":null,"reconnects":0,"next_try_ms":4000,"last_error":{"errno":"ECONNREFUSED","text":"nobody listens on 10.9.1.1:7420","code":"F0203","hint":"farblk port list  # on the server: is the farblk module loaded there? is the port right?","hints":["farblk port list  # on the server: is the farblk module loaded there? is the port right?"]}}]}"#
    );
    host.kernel.take_log();
    let error = host.run("path rm s 0").expect_err("the only live one");
    assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
    assert!(hint(&error).contains("farblk path list s"));
    assert!(host.kernel.take_log().is_empty());
    let text = host.ok("list");
    assert!(text.contains("  live   1/2  "), "{text}");
    assert!(
        text.contains(
            "\n ├─ path 0  rxe0 -> 10.9.0.1:7420  live  rtt 3.1 us  reconnects 0
 ├─ path 1  10.9.1.1:7420  waiting  next try in 4.0 s  reconnects 0  last error: nobody listens on 10.9.1.1:7420
 └─ hint: farblk port list  # on the server:"
        ),
        "{text}"
    );
}

#[test]
fn the_states_of_a_map_have_hints() {
    let host = Host::new("states");
    host.ok("map 10.9.0.1/s");
    for (state, last_error, hints) in [
        (
            "reconnecting",
            "ECONNREFUSED nobody listens on 10.9.0.1:7420",
            ["farblk port list  # on the server", ""],
        ),
        (
            "failed",
            "EHOSTUNREACH no host answers at 10.9.0.1",
            [
                "# no path for 60 s (no_path_timeout): I/O fails until one is back\n",
                "hint: ip route get 10.9.0.1\n",
            ],
        ),
        (
            "stale",
            "ESTALE the contents are gone",
            ["farblk remap s  # after umount", ""],
        ),
        (
            "evicted",
            "EACCES the export was another's since",
            ["farblk remap s  # after umount", "fsck"],
        ),
        (
            "evicted",
            "EACCES the export does not admit this host",
            ["farblk export allow s node-b", "farblk remap s  # then"],
        ),
        (
            "reconnecting",
            "EBUSY in use by node-c, away for 33 s",
            ["lease runs out", "farblk export deny s node-c --force"],
        ),
        (
            "reconnecting",
            "EPROTO a newer connection of this path took its place",
            ["host_id", ""],
        ),
    ] {
        host.kernel.put("maps/s", "state", state);
        host.kernel.put("maps/s", "last_error", last_error);
        let text = host.ok("list");
        let (_, hint) = text
            .split_once("─ hint: ")
            .unwrap_or_else(|| panic!("{text}"));
        assert!(hints.iter().all(|part| hint.contains(part)), "{text}");
        let words = last_error.split_once(' ').expect("words").1;
        assert!(text.contains(&format!("last error: {words}")), "{text}");
    }
}

#[test]
fn show_has_it_all() {
    let host = Host::new("show");
    host.ok("map 10.9.0.1/s --no-path-timeout forever --heartbeat 500ms --reconnect-max 2s --policy round-robin");
    assert_eq!(
        host.ok("show farblk0"),
        "map s
  state            live
  device           /dev/farblk0
  export           10.9.0.1/s
  mode             one-sided
  size             4.0 GiB (4294967296 bytes)
  access           rw
  uuid             11111111-1111-1111-1111-111111111111
  instance         -
  key              -
  no-path timeout  forever
  gives up         -
  heartbeat        500 ms
  reconnect max    2 s
  policy           round-robin
  protection       none
  holders          -
  paths up         1/1
  reconnects       0
 └─ path 0  rxe0 -> 10.9.0.1:7420  live  reconnects 0"
    );
    assert!(
        host.ok("-j show s")
            .starts_with(r#"{"schema":"farblk.map/1","changed":false,"map":{"name":"s","#)
    );
    assert_eq!(host.fails("show none").1, 3);
    host.ok("map 10.9.0.1/scratch");
    let error = host.run("unmap scrach").expect_err("a near miss");
    assert_eq!(hint(&error), "farblk list  # did you mean scratch?");
}

#[test]
fn map_waits_for_the_server_only_while_unreachable() {
    let host = Host::new("wait");
    host.kernel
        .refuse("maps/s/enable", "1", 111, "ECONNREFUSED nobody listens", 1);
    assert_eq!(host.ok("map 10.9.0.1/s --wait 30s"), "/dev/farblk0");
    assert!(
        host.err
            .take()
            .contains("retry 1, giving up in 29 s: nobody listens\n")
    );
    host.ok("unmap s");
    host.kernel
        .refuse("maps/s/enable", "1", 13, "EACCES not admitted", 1);
    let (code, exit, _) = host.fails("map 10.9.0.1/s --wait 30s");
    assert_eq!((code, exit), ("F0204", 6));
    let away = "EBUSY in use by node-c, away for 33 s";
    host.kernel.refuse("maps/s/enable", "1", 16, away, 2);
    let error = host.run("map 10.9.0.1/s").expect_err("away");
    assert_eq!((error.code.entry().name, error.exit()), ("F0217", 4));
    assert!(hint(&error).contains("deny s node-c --force  # or, on the server: data that node-c "));
    host.ok("map 10.9.0.1/s --wait 30s");
    host.ok("unmap s");
    // Another process enables the same map.
    host.kernel.refuse("maps/s/enable", "1", 16, "", 2);
    assert_eq!(host.fails("map 10.9.0.1/s").0, "F0104");
    host.ok("map 10.9.0.1/s --wait 30s");
    host.ok("unmap s");
    let taken = "EBUSY in use by node-c";
    host.kernel.refuse("maps/s/enable", "1", 16, taken, 1);
    assert_eq!(host.fails("map 10.9.0.1/s --wait 30s").0, "F0209");
    assert!(host.kernel.objects().is_empty());
}

#[test]
fn unmap_spares_a_disk_in_use() {
    let host = Host::new("in-use");
    host.ok("map 10.9.0.1/scratch");
    host.kernel.refuse("maps/scratch/enable", "0", 16, "", 1000);
    host.kernel.take_log();
    let error = host.run("unmap scratch").expect_err("in use");
    assert_eq!((error.code.entry().name, error.exit()), ("F0107", 4));
    assert_eq!(error.to_string(), "scratch is in use and was not unmapped");
    assert_eq!(error.details.len(), 1);
    assert_eq!(
        host.ok("unmap scratch --force"),
        "unmapped scratch (farblk0)"
    );
    assert!(
        host.kernel
            .take_log()
            .contains(&"maps/scratch/enable = force".into())
    );
    // Also while another process enables it.
    host.ok("map 10.9.0.1/scratch");
    host.kernel.put("maps/scratch", "enable", "0");
    host.kernel.put("maps/scratch", "state", "connecting");
    host.kernel.take_log();
    host.ok("unmap scratch --force");
    let log = host.kernel.take_log();
    assert_eq!(log[0], "maps/scratch/enable = force");
}

#[test]
fn paths_of_a_map() {
    let host = Host::new("paths");
    let script = |line: &str| {
        let text = host.ok(&format!("--dry-run {line}"));
        let addresses = text
            .lines()
            .filter(|line| line.contains("/addr") || line.contains("/source"));
        addresses
            .map(|line| line.split(' ').nth(1).unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        script("map 10.0.0.1/s --source 10.0.0.2"),
        ["10.0.0.1:7420", "10.0.0.2"]
    );
    assert_eq!(
        script("map 10.0.0.1:1/s --path 10.1.0.2@10.1.0.1"),
        ["10.0.0.1:1", "10.1.0.1:7420", "10.1.0.2"]
    );
    assert_eq!(
        script("map 10.0.0.1/s --path 10.1.0.1 --path 10.0.0.2@10.0.0.1"),
        ["10.1.0.1:7420", "10.0.0.1:7420", "10.0.0.2"]
    );
    assert_eq!(host.fails("map 10.0.0.1/s --path fd00::2@10.1.0.1").1, 2);
    assert!(host.kernel.take_log().is_empty());
}

#[test]
fn discover_asks_page_by_page_and_cleans_up() {
    let host = Host::new("discover");
    let text = host.ok("discover 10.9.0.1");
    let names: Vec<_> = text
        .lines()
        .map(|line| line.split(' ').next().unwrap_or_default())
        .collect();
    assert_eq!(names, ["EXPORT", "e0", "e1", "e2"]);
    assert!(
        host.ok("-j discover 10.9.0.1")
            .starts_with(r#"{"schema":"farblk.discover/1","addr":"10.9.0.1:7420","#)
    );
    let name = format!("discover/tool-{}/enable", std::process::id());
    host.kernel
        .refuse(&name, "1", 110, "ETIMEDOUT no answer from 10.9.0.1", 1);
    let (code, exit, _) = host.fails("discover 10.9.0.1");
    assert_eq!((code, exit), ("F0205", 5));
    assert!(host.kernel.objects().is_empty());
    // Of processes that were killed, one with our number; one that runs; and another's.
    let own = format!("tool-{}", std::process::id());
    fs::create_dir_all(host.root.join("proc/self")).expect("a directory");
    fs::create_dir_all(host.root.join(format!("proc/{}", std::process::id())))
        .expect("a directory");
    fs::create_dir_all(host.root.join("proc/99999999")).expect("a directory");
    for name in [&own, "tool-7", "tool-99999999", "mine"] {
        let path = host
            .root
            .join("sys/kernel/config/farblk/discover")
            .join(name);
        Files::mkdir(&host.kernel, &path).expect("an object");
    }
    host.kernel.put("discover/tool-7", "enable", "1");
    host.ok("discover 10.9.0.1");
    let left = ["mine", "tool-99999999"];
    assert_eq!(
        host.kernel.objects(),
        left.map(|name| format!("discover/{name}"))
    );
}

#[test]
fn what_is_removed_meanwhile_is_no_missing_feature() {
    let host = Host::new("meanwhile");
    host.ok("map 10.9.0.1/s");
    let configfs = Configfs::with(&host.root, false, Box::new(host.kernel.clone()));
    let job = Job::new("cannot");
    let path = |parts: &[&str]| configfs.path(parts);
    let gone = [
        configfs.set(&path(&["maps", "t"]), "enable", "1", &job),
        configfs.mkdir(&path(&["maps", "t", "paths", "0"]), &job),
    ];
    for result in gone {
        assert_eq!(result.expect_err("gone").code, Code::NotFound);
    }
    let unknown = [
        configfs.set(&path(&["maps", "s"]), "new", "1", &job),
        configfs.mkdir(&path(&["news", "t"]), &job),
    ];
    for result in unknown {
        assert_eq!(result.expect_err("unknown").code, Code::NoFeature);
    }
}

#[test]
fn what_the_module_cannot_do_is_a_missing_feature() {
    let host = Host::new("feature");
    host.kernel.refuse("exports/x/kind", "ram", 95, "", 1);
    let (code, exit, _) = host.fails("export create x --ram 1M");
    assert_eq!((code, exit), ("F0402", 7));
}

#[test]
fn map_writes_what_it_was_asked_for() {
    let host = Host::new("map-options");
    host.ok("map 10.9.0.1/v --queues 2 --poll-queues 1 --depth 64 --inline-size 16K --io-timeout 10s --tos 104 \
        --no-path-timeout 2m --heartbeat 0 --reconnect-max 1500ms --policy round-robin");
    for (attribute, value) in [
        ("queues", "2"),
        ("poll_queues", "1"),
        ("depth", "64"),
        ("inline_size", "16384"),
        ("io_timeout_ms", "10000"),
        ("no_path_timeout_ms", "120000"),
        ("heartbeat_ms", "0"),
        ("reconnect_max_ms", "1500"),
        ("policy", "round-robin"),
        ("tos", "104"),
    ] {
        let have = host.kernel.get("maps/v", attribute);
        assert_eq!(have.as_deref(), Some(value), "{attribute}");
    }
    host.kernel.put("maps/v", "mode", "two_sided");
    assert!(host.ok("list").contains("  4.0 GiB  two-sided  live  "));
    for other in ["--poll-queues 2", "--inline-size 4K", "--io-timeout 9s"] {
        let (code, exit, _) = host.fails(&format!("map 10.9.0.1/v {other}"));
        assert_eq!((code, exit), ("F0103", 1), "{other}");
    }
    // Only enabling talks to the server.
    let addr = "10.9.0.1:7420";
    host.kernel.refuse("paths/0/addr", addr, 13, "", 1);
    assert_eq!(host.fails("map 10.9.0.1/w").0, "F0105");
    host.kernel.forget("poll_queues");
    let (code, exit, text) = host.fails("map 10.9.0.1/w --poll-queues 1");
    assert_eq!((code, exit), ("F0402", 7), "{text}");
}

#[test]
fn a_block_device_is_exported() {
    let host = Host::new("device");
    host.system.disk("sdb");
    host.system.disk("sdc");
    host.system.link("dev/disk/by-id/x", "sdb");
    let summary = "block, /dev/sdb, 1.0 GiB, two-sided, rw, allowed: node-b";
    let create = "export create vol1 --device /dev/sdb --allow node-b";
    assert_eq!(host.ok(create), format!("export vol1: {summary}"));
    assert_eq!(
        host.kernel.take_log(),
        [
            "mkdir exports/vol1",
            "exports/vol1/kind = block",
            "mkdir exports/vol1/hosts/node-b",
            "exports/vol1/hosts/node-b/access = rw",
            "exports/vol1/device_path = /dev/sdb",
            "exports/vol1/enable = 1",
        ]
    );
    // It is the same device under another name.
    for create in [create, "export create vol1 --device /dev/disk/by-id/x"] {
        assert_eq!(
            host.ok(create),
            format!("export vol1 exists already, with these settings: {summary}")
        );
    }
    for other in [
        "--device /dev/sdc",
        "--device /dev/sdb --read-only",
        "--ram 1G",
    ] {
        let error = host
            .run(&format!("export create vol1 {other}"))
            .expect_err(other);
        assert_eq!(
            (error.code.entry().name, error.exit()),
            ("F0103", 1),
            "{other}"
        );
        assert!(!hint(&error).contains("lost"), "{other}");
    }
    assert!(host.kernel.take_log().is_empty());
    assert_eq!(host.ok("export rm vol1"), "removed export vol1");
    host.ok("export create vol1 --device /dev/disk/by-id/x --read-only");
    let path = host.kernel.get("exports/vol1", "device_path");
    assert_eq!(path.as_deref(), Some("/dev/disk/by-id/x"));
    assert!(host.system.take_log().is_empty());
}

#[test]
fn an_export_whose_device_was_gone_is_enabled_again() {
    let host = Host::new("export-error");
    host.system.disk("sdb");
    let create = "export create x --device /dev/sdb";
    host.ok(create);
    host.kernel.put("exports/x", "state", "unavailable");
    host.kernel.take_log();
    let enable = ["exports/x/enable = 0", "exports/x/enable = 1"];
    host.kernel.refuse("exports/x/enable", "1", 6, "", 1);
    assert_eq!(host.fails(create).0, "F0111");
    assert_eq!(host.kernel.take_log(), enable);
    assert!(host.ok(create).starts_with("export x: block"));
    assert_eq!(host.kernel.take_log(), enable[1..]);
    for state in ["unavailable", "closing"] {
        host.kernel.put("exports/x", "state", state);
        host.ok(create);
        assert_eq!(host.kernel.take_log(), enable, "{state}");
    }
}

#[test]
fn a_device_that_cannot_be_exported_is_left_alone() {
    let host = Host::new("bad-device");
    for (device, code, exit) in [
        ("/dev/none", "F0111", 3),
        ("/dev/file", "F0112", 2),
        ("/proc/version", "F0112", 2),
        ("/none/such", "F0111", 3),
    ] {
        let (have, status, text) = host.fails(&format!("export create x --device {device}"));
        assert_eq!((have, status), (code, exit), "{text}");
        assert!(text.contains(device), "{text}");
    }
    host.system.disk("sdb");
    host.system.disk("sdb1");
    host.system.attr("sdb", "sdb1/partition", "1");
    host.system.attr("sdb", "sdb1/dev", "8:1");
    host.system.attr("sdb1", "ro", "1");
    assert_eq!(host.fails("export create x --device /dev/sdb1").0, "F0113");
    host.ok("--dry-run export create x --device /dev/sdb1 --read-only");
    host.system.attr("sdb1", "ro", "0");
    fs::create_dir_all(host.root.join("proc/self")).expect("a directory");
    let mounts = host.root.join("proc/self/mountinfo");
    fs::write(&mounts, "36 22 8:1 / /data rw - ext4 /dev/sdb1 rw\n").expect("a file");
    for device in ["/dev/sdb", "/dev/sdb1"] {
        let error = host
            .run(&format!("export create x --device {device} --read-only"))
            .expect_err(device);
        assert_eq!((error.code.entry().name, error.exit()), ("F0107", 4));
        assert_eq!(error.details, ["mounted: /data (ext4)"]);
        assert_eq!(hint(&error), "umount /data");
    }
    fs::write(&mounts, "").expect("a file");
    host.system.attr("sdb1", "holders/dm-0/x", "");
    assert_eq!(host.fails("export create x --device /dev/sdb1").0, "F0107");
    assert!(host.kernel.take_log().is_empty());
}

#[test]
fn what_the_kernel_says_of_a_device() {
    let host = Host::new("device-errno");
    host.system.disk("sdb");
    for (errno, code, exit) in [
        (16, "F0107", 4),
        (2, "F0111", 3),
        (19, "F0111", 3),
        (15, "F0112", 2),
        (13, "F0113", 6),
        (30, "F0113", 6),
        (12, "F0108", 1),
    ] {
        host.kernel.refuse("exports/x/enable", "1", errno, "", 1);
        let error = host
            .run("export create x --device /dev/sdb")
            .expect_err("refused");
        let found = (error.code.entry().name, error.exit());
        assert_eq!(found, (code, exit), "errno {errno}");
        assert!(!hint(&error).is_empty(), "errno {errno}");
        assert!(host.kernel.objects().is_empty(), "errno {errno}");
    }
    host.kernel
        .refuse("exports/x/enable", "1", 16, "EBUSY held by md0", 1);
    let text = host.fails("export create x --device /dev/sdb").2;
    assert_eq!(text, "cannot create export x: held by md0");
    let zram = host.root.join("sys/class/block/zram0");
    fs::create_dir_all(&zram).expect("a directory");
    fs::write(zram.join("backing_dev"), "/dev/sdb\n").expect("a file");
    host.kernel
        .refuse("exports/x/enable", "1", 16, "EBUSY /dev/sdb is in use", 1);
    let error = host
        .run("export create x --device /dev/sdb")
        .expect_err("in use");
    assert_eq!(
        error.details,
        ["used by: zram0, which writes pages back to it"]
    );
    // Only enabling opens the device.
    host.kernel
        .refuse("exports/x/device_path", "/dev/sdb", 13, "", 1);
    assert_eq!(host.fails("export create x --device /dev/sdb").0, "F0105");
}

#[test]
fn a_module_without_block_exports() {
    let host = Host::new("no-block");
    host.system.disk("sdb");
    host.kernel.forget("device_path");
    let file = host.root.join("disk");
    for backing in [
        "--device /dev/sdb",
        &format!("--file {} --size 1M", file.display()),
    ] {
        let (code, exit, _) = host.fails(&format!("export create x {backing}"));
        assert_eq!((code, exit), ("F0402", 7), "{backing}");
    }
    assert!(host.kernel.objects().is_empty() && host.system.take_log().is_empty());
    assert!(!file.exists());
    host.ok("export create x --ram 1M");
}

#[test]
fn a_file_is_exported_as_a_loop_device() {
    let host = Host::new("file");
    let file = host.root.join("disk");
    let shown = file.display();
    let create = format!("export create x --file {shown} --size 1M");
    let summary = format!("block, /dev/loop0 ({shown}), 1.0 GiB, two-sided, rw, allowed: nobody");
    assert_eq!(host.ok(&create), format!("export x: {summary}"));
    assert_eq!(fs::metadata(&file).expect("the file").len(), 1 << 20);
    let attach = format!("--find --show --loop-ref farblk --direct-io=on {shown}");
    assert_eq!(host.system.take_log(), [attach]);
    let path = host.kernel.get("exports/x", "device_path");
    assert_eq!(path.as_deref(), Some("/dev/loop0"));
    host.kernel.take_log();
    std::os::unix::fs::symlink("disk", host.root.join("link")).expect("a link");
    fs::hard_link(&file, host.root.join("hard")).expect("a link");
    for name in ["disk", "link", "hard"] {
        let other = host.root.join(name);
        let again = host.ok(&format!("export create x --file {}", other.display()));
        assert_eq!(
            again,
            format!("export x exists already, with these settings: {summary}")
        );
    }
    assert!(host.ok(&create).contains("exists already"));
    fs::write(host.root.join("other"), [0; 4096]).expect("a file");
    for other in [
        format!("--file {shown} --size 2M"),
        format!("--file {}/other", host.root.display()),
        format!("--file {shown} --read-only"),
    ] {
        let (code, exit, _) = host.fails(&format!("export create x {other}"));
        assert_eq!((code, exit), ("F0103", 1), "{other}");
    }
    assert!(host.kernel.take_log().is_empty() && host.system.take_log().is_empty());
    let json = format!(r#""mode":"two_sided","device":"/dev/loop0","file":"{shown}","#);
    assert!(host.ok("-j export show x").contains(&json));
    let text = host.ok("export show x");
    assert!(
        text.contains(&format!(
            "\n  device      /dev/loop0\n  file        {shown}\n"
        )),
        "{text}"
    );
    assert!(
        !text.contains("NUMA") && !text.contains("VOLATILE"),
        "{text}"
    );
    assert!(
        host.ok("export list")
            .contains(&format!("  /dev/loop0 ({shown})"))
    );
    assert_eq!(
        host.ok("export rm x"),
        "removed export x (/dev/loop0 detached)"
    );
    assert!(host.system.loops().is_empty() && file.exists());
    host.ok(&format!("export create x --file {shown} --read-only"));
    assert!(
        host.system
            .take_log()
            .pop()
            .is_some_and(|line| line.contains(" --read-only "))
    );
}

#[test]
fn a_loop_device_is_gone_when_its_export_is() {
    let host = Host::new("file-read");
    let create = format!(
        "export create x --file {}/disk --size 1M",
        host.root.display()
    );
    let has_file = || host.root.join("sys/class/block/loop0/loop").exists();
    host.ok(&create);
    host.system.take_log();
    host.system.with_readers(3);
    assert_eq!(
        host.ok("export rm x"),
        "removed export x (/dev/loop0 detached)"
    );
    assert_eq!(
        host.system.take_log(),
        ["--detach /dev/loop0", "settle", "settle", "settle"]
    );
    assert!(!has_file());
    // Somebody has it open for longer.
    host.ok(&create.replace(" --size 1M", ""));
    host.system.with_readers(u32::MAX);
    let (code, _, text) = host.fails("export rm x");
    assert_eq!(code, "F0107", "{text}");
    assert!(has_file() && host.kernel.objects().contains(&"exports/x".to_owned()));
    host.system.with_readers(0);
    host.ok("export rm x");
}

#[test]
fn unmap_waits_for_udev_and_names_who_else_has_the_disk() {
    let host = Host::new("unmap-busy");
    let busy = |times| host.kernel.refuse("maps/s/enable", "0", 16, "", times);
    host.ok("map 10.9.0.1/s");
    host.system.take_log();
    busy(2);
    host.ok("unmap s");
    assert_eq!(host.system.take_log(), ["settle", "settle"]);
    host.ok("map 10.9.0.1/s");
    for (path, text) in [
        ("proc/41/comm", "cat"),
        (
            "proc/41/mountinfo",
            "36 22 259:0 / /a\\040b rw - xfs /dev/farblk0 rw",
        ),
        ("sys/kernel/config/farblk/exports/e/enable", "1"),
        (
            "sys/kernel/config/farblk/exports/e/device_path",
            "/dev/farblk0",
        ),
        ("sys/kernel/config/farblk/exports/f/enable", "0"),
        (
            "sys/kernel/config/farblk/exports/f/device_path",
            "/dev/farblk0",
        ),
        (
            "sys/kernel/config/nvmet/subsystems/n/namespaces/1/enable",
            "1",
        ),
        (
            "sys/kernel/config/nvmet/subsystems/n/namespaces/1/device_path",
            "/dev/farblk0",
        ),
        (
            "sys/kernel/config/target/core/iblock_0/t/udev_path",
            "/dev/farblk0",
        ),
        ("sys/class/block/zram0/backing_dev", "/dev/farblk0"),
    ] {
        let path = host.root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, format!("{text}\n")).expect("a file");
    }
    for (process, namespace) in [("self", "mnt:[1]"), ("40", "mnt:[1]"), ("41", "mnt:[2]")] {
        let link = host.root.join("proc").join(process).join("ns/mnt");
        fs::create_dir_all(link.parent().expect("a parent")).expect("a directory");
        std::os::unix::fs::symlink(namespace, link).expect("a link");
    }
    busy(1000);
    let error = host.run("unmap s").expect_err("in use");
    assert_eq!(error.code, Code::InUse);
    assert_eq!(
        error.details,
        [
            "mounted: /a b (xfs), in the mount namespace of cat(41)",
            "exported: export e",
            "used by: nvmet, namespace 1 of n",
            "used by: backstore t of the SCSI target",
            "used by: zram0, which writes pages back to it",
        ]
    );
    let hints = hint(&error);
    assert!(
        hints.starts_with(
            "nsenter --target 41 --mount umount '/a b'\nfarblk export rm e\necho 0 > "
        ),
        "{hints}"
    );
}

#[test]
fn a_file_has_the_blocks_that_are_asked_for() {
    let host = Host::new("file-blocks");
    host.system.with_blocks_of(4096);
    let image = host.root.join("image");
    let mut bytes = vec![0; 16384];
    bytes[512..520].copy_from_slice(b"EFI PART");
    fs::write(&image, &bytes).expect("a file");
    let create = format!("export create x --file {}", image.display());
    host.ok(&create);
    let table = "has a partition table for blocks of 512 bytes, and clients, which see blocks of \
                 4096, find no partitions: --block-size 512 shows them";
    let text = host.err.take();
    assert!(text.contains(table), "{text}");
    let block_size = format!("{create} --block-size 512");
    let error = host.run(&block_size).expect_err("differs");
    assert_eq!(error.code.entry().name, "F0103");
    assert_eq!(error.details, ["block_size is 4096, not 512"]);
    host.ok(&format!("{create} --block-size 4096"));
    host.ok("export rm x");
    host.system.take_log();
    host.ok(&block_size);
    let log = host.system.take_log();
    assert!(log[0].contains(" --sector-size=512 "), "{log:?}");
    assert!(!host.err.take().contains("partition table"));
    // The kernel takes it from the device.
    assert!(
        !host
            .kernel
            .take_log()
            .iter()
            .any(|line| line.contains("block_size"))
    );
    let other = block_size.replace(" x ", " y ").replace("512", "1024");
    let (code, _, text) = host.fails(&other);
    assert_eq!(code, "F0103");
    assert!(
        text.contains("with blocks of 512 bytes, not 1024"),
        "{text}"
    );
    host.ok("export rm x");
    // Without a table nobody knows, and a file that is made has nothing in it yet.
    bytes[512] = 0;
    fs::write(&image, &bytes).expect("a file");
    host.ok(&create);
    assert!(host.err.take().contains("clients see blocks of 4096 bytes"));
    host.ok(&format!(
        "export create new --file {}/new --size 1M",
        host.root.display()
    ));
    assert!(!host.err.take().contains("blocks"));
    let usage = host.fails("export create z --device /dev/sdb --block-size 512");
    assert_eq!(usage.0, "F0101");
}

#[test]
fn a_misaligned_device_is_told_of() {
    let host = Host::new("misaligned");
    host.system.disk("sdb1");
    host.system.attr("sdb1", "alignment_offset", "3584");
    host.ok("export create x --device /dev/sdb1");
    let text = host.err.take();
    assert!(
        text.contains("/dev/sdb1 begins within a physical block"),
        "{text}"
    );
    host.system.attr("sdb1", "alignment_offset", "0");
    host.ok("export rm x");
    host.ok("export create x --device /dev/sdb1");
    assert!(!host.err.take().contains("physical block"));
}

#[test]
fn a_loop_device_of_somebody_else_is_used_and_stays() {
    let host = Host::new("foreign");
    let file = host.root.join("disk");
    fs::write(&file, [0; 8192]).expect("a file");
    let losetup = |options: &[&str]| {
        let words: Vec<_> = options.iter().map(std::ffi::OsStr::new).collect();
        let output = device::System::losetup(&host.system, &words).expect("losetup");
        assert!(output.status.success());
    };
    let shown = file.display().to_string();
    losetup(&["--find", "--read-only", &shown]);
    let create = format!("export create x --file {shown}");
    assert_eq!(host.fails(&create).0, "F0113");
    assert!(host.kernel.take_log().is_empty());
    host.ok(&format!("{create} --read-only"));
    assert!(
        host.err
            .take()
            .contains("/dev/loop0 is used without direct I/O")
    );
    assert_eq!(host.ok("export rm x"), "removed export x");
    losetup(&["--find", "--direct-io=on", &shown]);
    host.ok(&create);
    let path = host.kernel.get("exports/x", "device_path");
    assert_eq!(path.as_deref(), Some("/dev/loop1"));
    assert!(!host.err.take().contains("warning"));
    fs::create_dir_all(host.root.join("proc/self")).expect("a directory");
    let mounts = host.root.join("proc/self/mountinfo");
    fs::write(mounts, "36 22 7:1 / /data rw - ext4 /dev/loop1 rw\n").expect("a file");
    assert_eq!(host.fails(&create.replace(" x ", " y ")).0, "F0107");
    assert_eq!(host.ok("export rm x"), "removed export x");
    assert_eq!(host.system.loops().len(), 2);
}

#[test]
fn a_loop_device_with_two_exports_stays_for_the_other() {
    let host = Host::new("shared");
    let create = format!("--file {}/disk --size 1M --read-only", host.root.display());
    host.ok(&format!("export create x {create}"));
    host.ok(&format!("export create y {create}"));
    assert_eq!(host.ok("export rm x"), "removed export x");
    assert_eq!(host.system.loops().len(), 1);
    assert_eq!(
        host.ok("export rm y"),
        "removed export y (/dev/loop0 detached)"
    );
    assert!(host.system.loops().is_empty());
}

#[test]
fn what_was_made_of_a_file_goes_when_enabling_fails() {
    let host = Host::new("file-rollback");
    let file = host.root.join("disk");
    let create = format!("export create x --file {} --size 1M", file.display());
    host.kernel.refuse("exports/x/enable", "1", 12, "", 2);
    assert_eq!(host.fails(&create).0, "F0108");
    assert!(host.kernel.objects().is_empty() && host.system.loops().is_empty());
    assert!(!file.exists());
    fs::write(&file, vec![0; 1 << 20]).expect("a file");
    assert_eq!(host.fails(&create).0, "F0108");
    assert!(host.system.loops().is_empty() && file.exists());
    assert!(!host.err.take().contains("warning"));
}

/// Does what the first lines of a dry run say, as if the command was killed then.
fn begin(host: &Host, script: &str, lines: usize) {
    let files: &dyn Files = &host.kernel;
    let mut device = String::new();
    for line in script.lines().take(lines) {
        if let Some(path) = line.strip_prefix("mkdir ") {
            files.mkdir(path.as_ref()).expect(line);
        } else if let Some(path) = line.strip_prefix("rmdir ") {
            files.rmdir(path.as_ref()).expect(line);
        } else if let Some((value, path)) = line
            .strip_prefix("echo ")
            .and_then(|rest| rest.split_once(" > "))
        {
            let value = value.trim_matches('\'').replace("\"$loop\"", &device);
            files.write(path.as_ref(), &value).expect(line);
        } else if let Some(rest) = line.strip_prefix("truncate --size ") {
            let (size, path) = rest.split_once(' ').expect(line);
            let file = fs::File::create(path).expect(line);
            file.set_len(size.parse().expect(line)).expect(line);
        } else {
            let (_, command) = line.split_once("losetup ").expect(line);
            let words = command.trim_end_matches(')').split(' ');
            let words: Vec<_> = words.map(std::ffi::OsStr::new).collect();
            let output = device::System::losetup(&host.system, &words).expect(line);
            device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        }
    }
}

#[test]
fn a_command_for_exports_that_was_killed_can_be_run_again() {
    let host = Host::new("killed");
    host.system.disk("sdb");
    let file = host.root.join("disk");
    let backings = [
        "--ram 1M --block-size 512".to_owned(),
        "--device /dev/sdb --read-only".to_owned(),
        format!("--file {} --size 1M --allow-any-host", file.display()),
    ];
    for backing in &backings {
        let create = format!("export create x {backing} --allow b:ro --allow c --max-clients 2");
        let again = |lines: usize| {
            begin(&host, &host.ok(&format!("--dry-run {create}")), lines);
            host.kernel.take_log();
        };
        let lines = host.ok(&format!("--dry-run {create}")).lines().count();
        for killed in 1..=lines {
            again(killed);
            let text = host.ok(&create);
            assert!(
                text.contains("b (ro), c") || text.contains("any host") || text.contains("b, c")
            );
            assert_eq!(
                host.system.loops().len(),
                usize::from(file.exists()),
                "{text}"
            );
            assert_eq!(host.kernel.get("exports/x", "enable").as_deref(), Some("1"));
            assert_eq!(
                host.kernel.get("exports/x", "max_clients").as_deref(),
                Some("2")
            );
            let access = host.kernel.get("exports/x/hosts/b", "access");
            assert_eq!(access.as_deref(), Some("ro"));
            // A removal that was killed.
            let remove = host.ok("--dry-run export rm x");
            for killed in 0..remove.lines().count() {
                begin(&host, &remove, killed);
                host.ok("export rm x");
                assert!(host.system.loops().is_empty() && host.kernel.objects().is_empty());
                host.ok(&create);
            }
            host.ok("export rm x");
            let _ = fs::remove_file(&file);
            again(killed);
            host.ok("export rm x");
            assert!(host.system.loops().is_empty(), "{killed} of {create}");
            assert!(host.kernel.objects().is_empty());
            let _ = fs::remove_file(&file);
        }
    }
    // A file that was made has no size yet.
    fs::write(&file, "").expect("a file");
    host.ok(&format!("export create x {}", backings[2]));
    assert_eq!(fs::metadata(&file).expect("the file").len(), 1 << 20);
}

#[test]
fn an_export_that_another_command_began_is_left_alone() {
    let host = Host::new("half-made");
    host.system.disk("sdb");
    let file = host.root.join("disk");
    let other = host.root.join("other");
    fs::write(&other, [0; 4096]).expect("a file");
    let create = format!(
        "export create x --file {} --size 1M --allow b:ro --max-clients 2 \
         --uuid 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10",
        file.display()
    );
    let script = host.ok(&format!("--dry-run {create}"));
    // As far as the path of the file, and no further: there is no loop device.
    let lines = script.lines().count() - 3;
    begin(&host, &script, lines);
    host.kernel.take_log();
    for (arguments, difference) in [
        ("--ram 1M", "kind is \"block\", not \"ram\""),
        ("--device /dev/sdb", "device_path is "),
        (&format!("--file {}", other.display()), "device_path is "),
        ("--file FILE", "which is no block device"),
        ("--file FILE --read-only", "read_only is \"0\", not \"1\""),
        (
            "--file FILE --max-clients 3",
            "max_clients is \"2\", not \"3\"",
        ),
        (
            "--file FILE --uuid 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a11",
            "uuid is ",
        ),
    ] {
        let arguments = arguments.replace("FILE", &file.display().to_string());
        let error = host
            .run(&format!("export create x {arguments}"))
            .expect_err(&arguments);
        assert_eq!((error.code.entry().name, error.exit()), ("F0103", 1));
        let details = error.details.join("\n");
        assert!(details.contains(difference), "{arguments}: {details}");
        let removes = "farblk export rm x  # or remove that export: its maps become stale";
        assert!(hint(&error).contains(removes), "{}", hint(&error));
    }
    assert!(host.kernel.take_log().is_empty() && host.system.take_log().is_empty());
    host.ok(&create);
    let uuid = host.kernel.get("exports/x", "uuid");
    assert_eq!(
        uuid.as_deref(),
        Some("6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10")
    );
    // The same before there is a backing at all: nobody is admitted who was not asked for, or to
    // more.
    for began in [
        "--ram 1M --allow-any-host",
        "--ram 1M --read-only",
        "--ram 1M --allow b",
        "--ram 1M --allow c",
        "--ram 1M --allow b:ro --max-clients 2",
        "--ram 1M --allow b:ro --block-size 512",
        "--ram 1M --allow b:ro --ports first",
    ] {
        let script = host.ok(&format!("--dry-run export create y {began}"));
        begin(&host, &script, script.lines().count() - 2);
        host.kernel.take_log();
        let error = host.fails("export create y --ram 1M --allow b:ro");
        assert_eq!((error.0, error.1), ("F0103", 1), "{began}");
        assert!(host.kernel.take_log().is_empty());
        host.ok("export rm y");
    }
    // A shell has said which machine the host has to be.
    let create = "export create y --ram 1M --allow b:ro";
    let script = host.ok(&format!("--dry-run {create}"));
    begin(&host, &script, script.lines().count() - 2);
    host.kernel.put(
        "exports/y/hosts/b",
        "host_id",
        "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10",
    );
    assert_eq!(host.fails(create).0, "F0103");
}

#[test]
fn a_disabled_export_keeps_its_backing_and_its_uuid() {
    let host = Host::new("disabled");
    host.system.disk("sdb");
    host.system.disk("sdc");
    let file = |name: &str| {
        let path = host.root.join(name);
        fs::write(&path, [0; 4096]).expect("a file");
        path.display().to_string()
    };
    let (file, other) = (file("disk"), file("other"));
    for (backing, others) in [
        ("--ram 1M".to_owned(), vec!["--ram 2M", "--device /dev/sdb"]),
        (
            "--device /dev/sdb".to_owned(),
            vec!["--device /dev/sdc", "--ram 1M"],
        ),
        (
            format!("--file {file}"),
            vec!["--device /dev/sdb", "--file OTHER"],
        ),
    ] {
        host.ok(&format!("export create x {backing}"));
        host.kernel
            .put("exports/x", "uuid", "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10");
        host.ok("export disable x");
        host.kernel.take_log();
        host.system.take_log();
        for arguments in others {
            let arguments = arguments.replace("OTHER", &other);
            let error = host
                .run(&format!("export create x {arguments}"))
                .expect_err(&arguments);
            assert_eq!((error.code.entry().name, error.exit()), ("F0103", 1));
            assert!(!error.details.is_empty(), "{arguments}");
            assert!(!hint(&error).contains("lost"), "{}", hint(&error));
        }
        assert!(host.kernel.take_log().is_empty() && host.system.take_log().is_empty());
        host.ok(&format!("export create x {backing}"));
        let uuid = host.kernel.get("exports/x", "uuid");
        assert_eq!(
            uuid.as_deref(),
            Some("6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10")
        );
        host.ok("export rm x");
    }
}

#[test]
fn two_exports_with_one_uuid_are_refused() {
    let host = Host::new("twins");
    let uuid = "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10";
    let create = format!("export create a --ram 1M --uuid {uuid}");
    host.ok(&create);
    // It is the same export.
    host.ok(&create);
    let twin = create.replace(" a ", " b ");
    let refused = |line: &str| {
        host.kernel.take_log();
        let error = host.run(line).expect_err(line);
        assert_eq!((error.code.entry().name, error.exit()), ("F0103", 1));
        assert_eq!(error.why, "export a has the same uuid", "{line}");
        assert!(hint(&error).contains("farblk export rm a  #"), "{line}");
        assert!(host.kernel.take_log().is_empty(), "{line}");
    };
    refused(&twin);
    refused(&twin.replace(uuid, &uuid.to_uppercase()));
    host.ok("export disable a");
    refused(&twin);
    // A shell has given it the UUID.
    host.ok("export create b --ram 1M");
    host.ok("export disable b");
    host.kernel.put("exports/b", "uuid", uuid);
    refused("export enable b");
    refused("export create b --ram 1M");
    host.ok("export rm a");
    host.ok("export enable b");
}

#[test]
fn a_name_that_looks_like_an_option_can_be_removed_and_not_be_given() {
    let host = Host::new("dash");
    for line in [
        "port add --addr 10.9.0.1 -- -p1",
        "export create --ram 1M -- -e",
        "export create e --ram 1M --allow=-h",
        "map 10.9.0.1/e --name=-m",
        "map 10.9.0.1/-e",
    ] {
        let (code, exit, text) = host.fails(line);
        assert_eq!((code, exit), ("F0101", 2), "{line}");
        assert!(text.contains("does not begin with \"-\""), "{text}");
    }
    let error = host.run("map 10.9.0.1/-e").expect_err("no name");
    assert_eq!(hint(&error), "farblk map 10.9.0.1/-e --name NAME");
    assert!(host.kernel.take_log().is_empty());
    // A shell has made these.
    let base = host.root.join("sys/kernel/config/farblk");
    let files: &dyn Files = &host.kernel;
    for object in ["ports/-p", "exports/-e", "exports/-e/hosts/-h", "maps/-m"] {
        files.mkdir(&base.join(object)).expect(object);
    }
    host.kernel.put("exports/-e/hosts/-h", "connected", "1");
    host.kernel.put("exports/-e", "clients", "1");
    host.kernel.put("ports/-p", "addr", "10.9.0.1:7420");
    for (line, option) in [
        (
            "export deny -- -e -h",
            "farblk export deny --force -- -e -h",
        ),
        ("export rm -- -e", "farblk export rm --force -- -e"),
        ("remap -- -m", "farblk path add -- -m HOST"),
        ("path rm -- -m 1", "farblk path list -- -m"),
    ] {
        let error = host.run(line).expect_err(line);
        let hints = hint(&error);
        let found = hints
            .lines()
            .any(|line| line.split("  #").next() == Some(option));
        assert!(found, "{line}: {hints}");
        host.ok(option
            .trim_start_matches("farblk ")
            .replace("HOST", "10.9.0.1")
            .as_str());
    }
    host.ok("port rm -- -p");
    host.ok("unmap -- -m");
    assert!(host.kernel.objects().is_empty());
}

/// The link in /dev/farblk/by-name would be that of a partition of the map vol1.
#[test]
fn a_map_is_not_named_like_a_partition() {
    let host = Host::new("partition");
    for line in [
        "map 10.9.0.1/vol1-part1",
        "map 10.9.0.1/e --name vol1-part12",
    ] {
        let (code, exit, text) = host.fails(line);
        assert_eq!((code, exit), ("F0101", 2), "{line}");
        assert!(text.contains("named like a partition"), "{text}");
    }
    let error = host.run("map 10.9.0.1/vol1-part1").expect_err("no name");
    assert_eq!(hint(&error), "farblk map 10.9.0.1/vol1-part1 --name NAME");
    assert!(host.kernel.take_log().is_empty());
    host.ok("map 10.9.0.1/vol1-part1 --name vol1.part1");
    host.ok("export create vol1-part1 --ram 1M");
    // One that a shell has made is there, and can be used.
    let files: &dyn Files = &host.kernel;
    let base = host.root.join("sys/kernel/config/farblk");
    files.mkdir(&base.join("maps/old-part1")).expect("a map");
    host.ok("path add old-part1 10.9.0.1");
    host.ok("unmap old-part1");
}

#[test]
fn files_that_cannot_be_exported() {
    let host = Host::new("bad-file");
    fs::write(host.root.join("empty"), "").expect("a file");
    fs::write(host.root.join("small"), [0; 4096]).expect("a file");
    fs::write(host.root.join("large"), [0; 8192]).expect("a file");
    for (file, code, exit) in [
        ("none", "F0102", 3),
        ("none/such --size 1M", "F0102", 3),
        ("none --size 1000", "F0101", 2),
        ("none --size 0", "F0101", 2),
        ("empty", "F0106", 2),
        ("small --size 1M", "F0103", 1),
        ("large --size 4K", "F0103", 1),
        ("dev", "F0101", 2),
    ] {
        let root = host.root.display();
        let (have, status, text) = host.fails(&format!("export create x --file {root}/{file}"));
        assert_eq!((have, status), (code, exit), "{text}");
    }
    assert!(host.kernel.take_log().is_empty() && host.system.take_log().is_empty());
    assert!(!host.root.join("none").exists());
    host.system.without_losetup();
    for file in ["small", "none --size 1M"] {
        let (code, exit, _) = host.fails(&format!(
            "export create x --file {}/{file}",
            host.root.display()
        ));
        assert_eq!((code, exit), ("F0404", 7), "{file}");
    }
    assert!(host.kernel.objects().is_empty() && !host.root.join("none").exists());
}

#[test]
fn a_file_system_without_direct_io_is_told_of() {
    let host = Host::new("buffered");
    host.system.without_direct_io();
    host.ok(&format!(
        "export create x --file {}/disk --size 1M",
        host.root.display()
    ));
    assert!(host.err.take().contains("a file system without direct I/O"));
    assert_eq!(host.system.loops().len(), 1);
}

#[test]
fn exports_are_resized() {
    let host = Host::new("resize");
    let file = host.root.join("disk");
    host.system.disk("sdb");
    host.ok("export create d --device /dev/sdb");
    host.ok("export create r --ram 1M");
    host.ok(&format!(
        "export create f --file {} --size 1M",
        file.display()
    ));
    host.system.take_log();
    host.kernel.put("exports/f", "size", "2097152");
    let line = format!(
        "export f: block, /dev/loop0 ({}), 2.0 MiB, two-sided, rw, allowed: nobody",
        file.display()
    );
    assert_eq!(host.ok("export resize f --size 2M"), line);
    assert_eq!(fs::metadata(&file).expect("the file").len(), 2 << 20);
    assert_eq!(host.system.take_log(), ["--set-capacity /dev/loop0"]);
    assert_eq!(host.ok("export resize f"), line);
    assert_eq!(host.system.take_log(), ["--set-capacity /dev/loop0"]);
    // A file that was cut off meanwhile.
    let cut = fs::File::options().write(true).open(&file).expect("it");
    cut.set_len(1 << 20).expect("to cut it off");
    let (code, status, text) = host.fails("export resize f");
    assert_eq!((code, status), ("F0106", 2), "{text}");
    assert!(text.contains("clients were told 2.0 MiB"), "{text}");
    assert!(host.system.take_log().is_empty());
    host.fails("export resize f --size 2M --force");
    host.kernel.put("exports/f", "size", "1048576");
    host.ok("export resize f --force");
    assert_eq!(host.system.take_log(), ["--set-capacity /dev/loop0"]);
    cut.set_len(2 << 20).expect("to make it larger");
    host.kernel.put("exports/f", "size", "2097152");
    host.ok("export resize f");
    host.system.take_log();
    assert!(
        host.ok("-j export resize d")
            .starts_with(r#"{"schema":"farblk.export/1","changed":false,"#)
    );
    for (line, code, exit) in [
        ("f --size 1M", "F0106", 2),
        ("f --size 2000001", "F0101", 2),
        ("d --size 2G", "F0101", 2),
        ("r", "F0101", 2),
        ("r --size 2M", "F0101", 2),
        ("none", "F0102", 3),
    ] {
        let (have, status, text) = host.fails(&format!("export resize {line}"));
        assert_eq!((have, status), (code, exit), "{text}");
    }
    assert_eq!(fs::metadata(&file).expect("the file").len(), 2 << 20);
    assert!(host.system.take_log().is_empty());
}

#[test]
fn options_of_the_other_kind_are_refused() {
    let host = Host::new("kinds");
    host.system.disk("sdb");
    for options in [
        "",
        "--ram 1M --device /dev/sdb",
        "--device /dev/sdb --file /dev/sdb",
        "--ram 1M --size 1M",
        "--device /dev/sdb --size 1M",
        "--device /dev/sdb --numa 0",
        "--file /none --numa -1",
        "--device /dev/sdb --block-size 512",
    ] {
        let (code, exit, _) = host.fails(&format!("export create x {options}"));
        assert_eq!((code, exit), ("F0101", 2), "{options}");
    }
    assert!(host.kernel.take_log().is_empty());
}
