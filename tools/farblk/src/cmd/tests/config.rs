// SPDX-License-Identifier: GPL-2.0
//! `farblk config` against the model of the kernel.
//!
//! Long: one test after the other, on the files of one server and one client, which are below.

use std::path::Path;

use super::*;
use crate::cmd::config::restore::Missing;
use crate::saved::{self, Kind, Saved, Side};

impl Host {
    fn etc(&self, name: &str) -> PathBuf {
        self.root.join("etc/farblk").join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.etc(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    pub(super) fn file(&self, name: &str) -> String {
        fs::read_to_string(self.etc(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Runs a command that prints a result and ends with this exit code.
    pub(super) fn ends(&self, line: &str, exit: u8) -> String {
        let text = self.ok(line);
        assert_eq!(self.exit.get(), exit, "{line}: {text}");
        text
    }

    /// The module is loaded anew: all objects are gone.
    pub(super) fn reload(&mut self) {
        self.kernel = Fake::new(&self.root);
    }

    /// A server with a port and two exports, and a map on the same host.
    fn busy(&self) {
        self.system.disk("sdb");
        self.system.link("dev/disk/by-path/b", "sdb");
        for line in [
            "port add main --addr 10.9.0.1",
            "export create e --ram 4G --block-size 512 --allow b --allow node-c:ro --max-clients 2 \
             --uuid 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10",
            "export create disk --device /dev/disk/by-path/b --allow-any-host --ports main",
            "export allow disk x.y --host-id 2b1f0f4c-9a55-4d3a-8f0e-6f9d52f1c003",
            "map 10.9.0.2/vol --name m --no-path-timeout forever --io-timeout 90s --ro \
             --inline-size 0 --path [fd00::2]@[fd00::1]:99",
        ] {
            self.ok(line);
        }
        self.kernel.put(
            "exports/disk",
            "uuid",
            "8e3c1a04-5b52-4d0e-a7c7-0d9a4f1be222",
        );
        self.err.take();
        self.kernel.take_log();
    }
}

fn parsed(side: Side, text: &str) -> Saved {
    let mut saved = Saved::default();
    saved::parse(side, Path::new("/f.toml"), text, &mut saved);
    saved
}

fn problems(saved: &Saved) -> Vec<String> {
    saved
        .all_problems()
        .iter()
        .map(ToString::to_string)
        .collect()
}

const SERVER: &str = r#"
[port.main]
addr = "10.9.0.1"

[export.disk]
device = "/dev/disk/by-path/b"
uuid = "8e3c1a04-5b52-4d0e-a7c7-0d9a4f1be222"
ports = ["main"]
allow_any_host = true
[export.disk.hosts]
"x.y" = { access = "rw", host_id = "2b1f0f4c-9a55-4d3a-8f0e-6f9d52f1c003" }

[export.e]
ram = "4G"
uuid = "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10"
block_size = 512
max_clients = 2
[export.e.hosts]
b = "rw"
node-c = "ro"
"#;

const CLIENT: &str = r#"
[map.m]
export = "vol"
read_only = true
inline_size = 0
io_timeout = "90s"
no_path_timeout = "forever"
[map.m.paths]
0 = "10.9.0.2"
1 = "fd00::2@[fd00::1]:99"
"#;

#[test]
fn a_dry_run_of_save_prints_the_files() {
    let host = Host::new("config-save");
    host.busy();
    let server = host.etc("server.toml");
    let script = host.ok("--dry-run config save");
    assert!(script.contains(&format!("cat > {} <<'END OF FARBLK'", server.display())));
    assert!(
        script.contains(SERVER) && script.contains(CLIENT),
        "{script}"
    );
    assert!(is_shell(&script), "{script}");
    assert!(!server.exists());
}

#[test]
fn what_is_saved_is_restored() {
    let mut host = Host::new("config-round");
    host.busy();
    let (server, client) = (host.etc("server.toml"), host.etc("client.toml"));
    assert_eq!(
        host.ends("config save", 0),
        format!(
            "wrote {} (2 exports, 1 port)\nwrote {} (1 map)",
            server.display(),
            client.display()
        )
    );
    assert!(!host.err.take().contains("warning"));
    for (file, text) in [("server.toml", SERVER), ("client.toml", CLIENT)] {
        let body = host.file(file);
        let (_, body) = body.split_once(".1.\n").expect("a heading");
        assert_eq!(body, text, "{file}");
    }
    assert!(host.kernel.take_log().is_empty());
    assert_eq!(host.ends("config diff", 0), "");
    let text = host.ends("config save", 0);
    assert_eq!(text.matches("says so already").count(), 2, "{text}");
    assert_eq!(
        host.ends("config restore", 0)
            .matches("  unchanged")
            .count(),
        4
    );
    assert!(host.kernel.take_log().is_empty());

    host.reload();
    let id = host.kernel.get("", "host_id").expect("an id");
    host.kernel.put("", "host_id_source", "random");
    host.kernel
        .put("", "host_id", "44444444-4444-4444-8444-444444444444");
    let diff = host.ends("config diff", 1);
    assert_eq!(diff.lines().count(), 4, "{diff}");
    assert!(diff.contains(&format!(
        "- map m: in {}:4, but does not run",
        client.display()
    )));
    let script = host.ok("--dry-run config restore");
    assert!(script.contains("mkdir ") && is_shell(&script), "{script}");
    assert!(host.kernel.objects().is_empty());
    assert_eq!(
        host.ends("config restore", 0),
        "export disk  restored\nexport e  restored\nport main  restored\nmap m  restored"
    );
    let log = host.kernel.take_log();
    assert_eq!(log[0], format!("host_id = {id}"));
    assert_eq!(host.ends("config diff", 0), "");
    assert_eq!(
        host.ends("config restore", 0)
            .matches("  unchanged")
            .count(),
        4
    );
    assert!(host.kernel.take_log().is_empty());
    for (object, attr, value) in [
        (
            "exports/disk",
            "uuid",
            "8e3c1a04-5b52-4d0e-a7c7-0d9a4f1be222",
        ),
        ("exports/disk", "state", "online"),
        ("exports/disk/hosts/x.y", "access", "rw"),
        ("exports/e", "block_size", "512"),
        ("exports/e", "state", "online"),
        ("ports/main", "state", "listening"),
        ("maps/m", "no_path_timeout_ms", "-1"),
        ("maps/m", "access", "ro"),
        ("maps/m", "state", "live"),
        ("maps/m/paths/1", "addr", "[fd00::1]:99"),
        ("maps/m/paths/1", "source", "fd00::2"),
    ] {
        assert_eq!(
            host.kernel.get(object, attr).as_deref(),
            Some(value),
            "{object} {attr}"
        );
    }
    for (file, text) in [("server.toml", SERVER), ("client.toml", CLIENT)] {
        assert!(host.file(file).ends_with(text), "{file}");
    }
}

#[test]
fn a_restore_goes_on_after_an_error() {
    let host = Host::new("config-partial");
    host.write(
        "server.toml",
        "[port.1]\naddr = \"10.9.0.1\"\n[export.a]\ndevice = \"/dev/none\"\n[export.b]\nram = \"1M\"\n\
         [export.c]\nram = \"1M\"\ncolour = 1\n",
    );
    host.write("server.d/broken.toml", "[export.x\n");
    host.write("server.d/.hidden.toml", "nonsense");
    host.write(
        "client.toml",
        "[map.m]\npaths = { 0 = \"10.9.0.9\" }\n[map.n]\npaths = { 0 = \"10.9.0.1\" }\n",
    );
    host.kernel.refuse(
        "maps/m/enable",
        "1",
        111,
        "ECONNREFUSED nobody listens on 10.9.0.9:7420",
        1,
    );
    let text = host.ends("config restore", 8);
    let results: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with("  "))
        .collect();
    assert_eq!(results.len(), 7, "{text}");
    for (line, start) in results.iter().zip([
        "file /", // broken.toml
        "export a  FAILED F0111: /dev/none: ",
        "export b  restored",
        "export c  FAILED F0501: ",
        "port 1  restored",
        "map m  FAILED F0203: nobody listens on 10.9.0.9:7420",
        "map n  restored",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    assert!(
        text.contains("server.toml:9: colour is not known"),
        "{text}"
    );
    let want = ["exports/b", "maps/n", "maps/n/paths/0", "ports/1"];
    assert_eq!(host.kernel.objects(), want);
    // The rest must not be lost by saving now.
    let error = host.run("config save").expect_err("lost");
    assert_eq!((error.code.entry().name, error.exit()), ("F0103", 1));
    assert!(
        error
            .details
            .iter()
            .any(|line| line.starts_with("map m in ")),
        "{error:?}"
    );
    assert!(host.file("client.toml").contains("[map.m]"));
    // With JSON it is one document.
    let document = host.ends("-j config restore", 8);
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document["schema"], "farblk.config-restore/1");
    assert_eq!(document["items"][1]["code"], "F0111");
    // That call has restored the map.
    let text = host.ends("config restore --client", 0);
    assert_eq!(text, "map m  unchanged\nmap n  unchanged");
    // The other side is not written while a file of it cannot be read.
    assert_eq!(host.ends("config save --prune", 8).lines().count(), 1);
    assert_eq!(host.file("client.toml.1").lines().count(), 4);
    fs::remove_file(host.etc("server.d/broken.toml")).expect("a file");
    assert_eq!(host.ends("config save --prune", 0).lines().count(), 2);
}

#[test]
fn one_map_says_whether_to_retry() {
    let host = Host::new("config-map");
    host.write("client.d/m.toml", "[map.m]\npaths = { a = \"10.9.0.9\" }\n");
    for (errno, words, exit) in [
        (111, "ECONNREFUSED nobody listens on 10.9.0.9:7420", 5),
        (2, "ENOENT there is no such export", 5),
        (16, "EBUSY in use by c, away for 33 s", 5),
        (19, "ENODEV no RDMA device", 5),
        (99, "EADDRNOTAVAIL not here", 5),
        (13, "EACCES not admitted", 6),
        (93, "EPROTONOSUPPORT other version", 7),
    ] {
        host.kernel.refuse("maps/m/enable", "1", errno, words, 1);
        let text = host.ends("config restore --map m", exit);
        assert!(text.starts_with("map m  FAILED F0"), "{text}");
        assert!(host.kernel.objects().is_empty());
    }
    assert_eq!(host.ends("config restore --map m", 0), "map m  restored");
    assert_eq!(host.ends("config restore --map m", 0), "map m  unchanged");
    host.kernel.put("maps/m", "state", "reconnecting");
    assert_eq!(host.ends("config restore --map m", 0), "map m  unchanged");
    host.kernel.put("maps/m", "state", "stale");
    host.ends("config restore --map m", 9);
    host.kernel.put("maps/m", "state", "closing");
    host.ends("config restore --map m", 5);
    assert_eq!(host.fails("config restore --map n").1, 3);
    assert!(host.run("config restore --map m --server").is_err());
}

#[test]
fn what_runs_is_left_alone() {
    let host = Host::new("config-harmless");
    host.ok("export create e --ram 1M --allow b --uuid 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10");
    host.ok("map 10.9.0.1/m");
    let file = "[export.e]\nram = \"1M\"\nuuid = \"6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10\"\nhosts = { b = \"rw\" }\n";
    host.kernel.take_log();
    host.write("server.toml", &file.replace("1M", "2M"));
    let text = host.ends("config restore --server", 8);
    assert!(
        text.contains("F0103: it runs with other settings")
            && text.contains("ram is \"1M\", in the file \"2M\""),
        "{text}"
    );
    assert_eq!(
        host.ends("config diff", 1).lines().next(),
        Some("~ export e: ram is \"1M\", in the file \"2M\"")
    );
    assert!(host.kernel.take_log().is_empty());
    // What is added harms nobody.
    host.write("server.toml", &file.replace("\" }", "\", c = \"ro\" }"));
    assert_eq!(
        host.ends("config restore --server", 0),
        "export e  changed: host c added"
    );
    assert_eq!(
        host.kernel.get("exports/e/hosts/c", "access").as_deref(),
        Some("ro")
    );
    host.write(
        "client.toml",
        "[map.m]\npaths = { 0 = \"10.9.0.1\", 1 = \"10.9.0.2\" }\n",
    );
    assert_eq!(
        host.ends("config restore --client", 0),
        "map m  changed: path 1 added"
    );
    // Two exports with one identity would be one disk for their clients.
    host.write("server.toml", &file.replace("export.e", "export.f"));
    let text = host.ends("config restore --server", 8);
    assert!(text.contains("export e has the same uuid"), "{text}");
    assert!(host.kernel.get("exports/f", "kind").is_none());
    // One that is disabled gets all settings of the file.
    host.write("server.toml", file);
    host.ok("export disable e --force");
    host.kernel.put("exports/e", "max_clients", "7");
    host.kernel.put("exports/e/hosts/b", "access", "ro");
    assert_eq!(
        host.ends("config restore --server", 0),
        "export e  restored"
    );
    assert_eq!(
        host.kernel.get("exports/e", "max_clients").as_deref(),
        Some("1")
    );
    assert_eq!(
        host.kernel.get("exports/e/hosts/b", "access").as_deref(),
        Some("rw")
    );
    assert_eq!(
        host.kernel.get("exports/e", "state").as_deref(),
        Some("online")
    );
}

#[test]
fn a_disabled_object_gets_what_the_file_has_and_no_more() {
    let host = Host::new("config-members");
    host.ok("export create e --ram 1M --allow b --allow c:ro --allow d");
    host.ok("map 10.9.0.1/m --path 10.9.0.2");
    host.ends("config save", 0);
    let server = host.file("server.toml");
    host.write("server.toml", &server.replace("d = \"rw\"\n", ""));
    let client = host.file("client.toml");
    host.write("client.toml", &client.replace("1 = \"10.9.0.2\"\n", ""));
    // What runs is left alone: ending the I/O of a host is not for a restore.
    host.ends("config restore", 8);
    assert!(host.kernel.get("exports/e/hosts/d", "access").is_some());
    host.ok("export disable e");
    host.kernel.put("maps/m", "enable", "0");
    host.kernel.put("maps/m", "state", "disabled");
    host.kernel.take_log();
    let script = host.ok("--dry-run config restore");
    assert!(script.contains("\nrmdir ") && is_shell(&script), "{script}");
    assert_eq!(
        host.ends("config restore", 0),
        "export e  restored\nmap m  restored"
    );
    let log = host.kernel.take_log();
    let at = |line: &str| log.iter().position(|have| have == line).expect(line);
    assert!(at("rmdir exports/e/hosts/d") < at("exports/e/enable = 1"));
    assert!(at("maps/m/paths/1/enable = 0") < at("rmdir maps/m/paths/1"));
    assert!(at("rmdir maps/m/paths/1") < at("maps/m/enable = 1"));
    assert!(host.kernel.get("exports/e/hosts/c", "access").is_some());
    assert_eq!(host.ends("config diff", 0), "");
}

#[test]
fn the_unit_of_the_server_tries_again_only_what_failed() {
    let host = Host::new("config-missing");
    let context = host.context();
    let mut missing = Missing::new();
    let mut attempt = || {
        let more = missing.attempt(&context).expect("an attempt");
        let out = anstream::adapter::strip_str(&host.out.take()).to_string();
        let lines = out.lines().filter(|line| !line.starts_with("  "));
        let root = context.root.display().to_string();
        let lines: Vec<_> = lines.map(|line| line.replace(&root, "")).collect();
        (more, lines.join("|"), !more && !missing.differs)
    };
    host.write(
        "server.toml",
        "[port.1]\naddr = \"10.9.0.1\"\n[export.a]\ndevice = \"/dev/sdb\"\nallow_any_host = true\n\
         [export.b]\nram = \"1M\"\nhosts = { x = \"rw\", y = \"rw\" }\n\
         [export.c]\nram = \"1M\"\nallow_any_host = true\n",
    );
    host.write("server.d/d.toml", "[export.d\n");
    let (more, text, _) = attempt();
    assert!(more);
    assert!(
        text.contains("export a  FAILED F0111") && text.contains("file /etc"),
        "{text}"
    );
    for one in ["export b", "export c", "port 1"] {
        assert!(text.contains(&format!("{one}  restored")), "{text}");
    }
    // What an administrator does meanwhile stays.
    host.ok("export deny b y");
    host.ok("export disable c");
    host.ok("port rm 1");
    host.kernel.take_log();
    let (more, text, _) = attempt();
    assert!(more && text.contains("export a  FAILED"), "{text}");
    assert!(
        !text.contains("export b") && !text.contains("port 1"),
        "{text}"
    );
    assert!(!host.kernel.objects().contains(&"ports/1".to_owned()));
    assert!(host.kernel.get("exports/b/hosts/y", "access").is_none());
    // A file that was read before may be edited when the device is back.
    let server = host.file("server.toml");
    host.write("server.toml", "[export.a\n");
    host.system.disk("sdb");
    assert!(attempt().0);
    host.write("server.toml", &server);
    // The file that was not valid has objects that were never tried.
    host.write(
        "server.d/d.toml",
        "[export.d]\nram = \"1M\"\nallow_any_host = true\n",
    );
    let (more, text, complete) = attempt();
    assert_eq!(text, "export a  restored|export d  restored");
    assert!(!more && complete);
    host.ok("export rm b");
    host.ok("export rm d");
    assert_eq!(attempt(), (false, String::new(), true));
    let state = host.kernel.get("exports/c", "state");
    assert_eq!(state.as_deref(), Some("disabled"));
    let objects = ["exports/a", "exports/c"];
    assert_eq!(host.kernel.objects(), objects);
}

#[test]
fn what_runs_with_other_settings_is_not_tried_again() {
    let host = Host::new("config-other");
    let context = host.context();
    host.ok("export create e --ram 1M --allow b");
    host.write(
        "server.toml",
        "[export.e]\nram = \"2M\"\nhosts = { b = \"rw\" }\n",
    );
    let mut missing = Missing::new();
    assert!(!missing.attempt(&context).expect("an attempt"));
    assert!(missing.differs);
    assert!(host.out.take().contains("F0103"));
    // Nobody enables it again.
    host.ok("export disable e");
    assert!(!missing.attempt(&context).expect("an attempt"));
    assert_eq!(
        host.kernel.get("exports/e", "state").as_deref(),
        Some("disabled")
    );
    // What is taken out of the files is not waited for.
    host.write(
        "server.toml",
        "[export.f]\nfile = \"/none\"\nallow_any_host = true\n",
    );
    let mut missing = Missing::new();
    assert!(missing.attempt(&context).expect("an attempt"));
    host.write("server.toml", "");
    assert!(!missing.attempt(&context).expect("an attempt"));
}

#[test]
fn saving_keeps_enabled_what_a_failed_start_left_disabled() {
    let mut host = Host::new("config-disabled");
    host.ok("export create e --ram 1M --allow b");
    host.ends("config save", 0);
    let before = host.file("server.toml");
    host.ok("export disable e");
    assert!(
        host.ends("config diff", 1)
            .starts_with("~ export e: enabled is false")
    );
    let error = host.run("config save").expect_err("lost");
    assert_eq!((error.code.entry().name, error.exit()), ("F0103", 1));
    assert!(error.details[0].ends_with("is disabled now"), "{error:?}");
    assert!(hint(&error).contains("--prune"));
    assert_eq!(host.file("server.toml"), before);
    // An administrator who means it says so.
    host.ends("config save --prune", 0);
    assert!(
        host.err
            .take()
            .contains("export e is disabled, and is saved so")
    );
    host.ends("config save", 0);
    assert!(!host.err.take().contains("is disabled"));
    assert_eq!(host.ends("config restore", 0), "export e  unchanged");
    host.reload();
    assert_eq!(host.ends("config restore", 0), "export e  restored");
    assert_eq!(
        host.kernel.get("exports/e", "state").as_deref(),
        Some("disabled")
    );
    assert_eq!(host.ends("config diff", 0), "");
    // A new one is nobody's loss.
    host.ok("export create f --ram 1M --allow b");
    host.ok("export disable f");
    host.ends("config save", 0);
    assert!(host.err.take().contains("export f is disabled"));
}

#[test]
fn a_device_without_a_lasting_name_is_told_of() {
    let host = Host::new("config-lasting");
    host.system.disk("sdb");
    for name in ["block/8:0", "disk/by-diskseq/7", "disk/by-path/b"] {
        host.system.link(&format!("dev/{name}"), "sdb");
    }
    for name in [
        "sdb",
        "block/8:0",
        "disk/by-diskseq/7",
        "../dev/sdb",
        "/sdb",
    ] {
        let kernel = saved::running::is_kernel_name(&format!("/dev/{name}"));
        assert!(kernel, "{name}");
    }
    for name in ["disk/by-path/b", "mapper/a-b", "a/b"] {
        let kernel = saved::running::is_kernel_name(&format!("/dev/{name}"));
        assert!(!kernel, "{name}");
    }
    for name in ["sdb", "block/8:0", "disk/by-diskseq/7"] {
        host.ok(&format!("export create e --device /dev/{name} --allow b"));
        host.err.take();
        host.ends("config save --prune", 8);
        let err = host.err.take();
        let want = format!("export e: /dev/{name} may be another disk after a reboot");
        assert!(err.contains(&want), "{err}");
        let line = format!("device = \"/dev/{name}\"");
        assert!(host.file("server.toml").contains(&line));
        let check = host.ends("config check", 0);
        assert!(check.contains("may be another disk"), "{check}");
        // The administrator names it in the file, and another save keeps that.
        let text = host.file("server.toml").replace(name, "disk/by-path/b");
        host.write("server.toml", &text);
        host.ends("config save", 0);
        assert_eq!(host.file("server.toml"), text);
        assert_eq!(host.ends("config check", 0), "");
        host.ok("export rm e");
        fs::remove_file(host.etc("server.toml")).expect("a file");
    }
    host.ok("export create e --device /dev/block/8:0 --allow b");
    host.system.link("dev/disk/by-id/wwn-1", "sdb");
    let folder = host.root.join("dev/disk/by-id");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("wwn-1"), "").expect("a link");
    host.ends("config save --prune", 0);
    assert!(host.file("server.toml").contains("by-id/wwn-1"));
}

#[test]
fn a_loop_device_is_known_by_every_name() {
    let host = Host::new("config-loop-names");
    let file = host.root.join("disk.img");
    host.ok(&format!(
        "export create e --file {} --size 1M --allow b",
        file.display()
    ));
    for name in ["block/7:0", "disk/by-diskseq/3"] {
        host.system.link(&format!("dev/{name}"), "loop0");
        let path = format!("/dev/{name}");
        host.kernel.put("exports/e", "device_path", &path);
        host.ends("config save --prune", 0);
        let line = format!("file = \"{}\"", file.display());
        assert!(host.file("server.toml").contains(&line));
        let text = format!("[export.e]\ndevice = \"{path}\"\n");
        host.write("server.d/x.toml", &text.replace(".e]", ".x]"));
        let check = host.ends("config check", u8::from(name.starts_with("block")));
        assert!(check.contains("write file = \"PATH\""), "{check}");
        fs::remove_file(host.etc("server.d/x.toml")).expect("a file");
    }
}

#[test]
fn saving_beside_a_file_that_cannot_be_read_writes_nothing() {
    let host = Host::new("config-unreadable");
    host.ok("export create e --ram 1M --allow b");
    host.ok("export create f --ram 1M --allow b");
    host.ok("map 10.9.0.1/m");
    let text = "[export.e]\nram = \"1M\"\nhosts = { b = \"rw\" }\n";
    host.write("server.d/e.toml", &format!("{text}[port\n"));
    for option in ["", " --prune"] {
        host.err.take();
        let out = host.ends(&format!("config save{option}"), 8);
        assert!(out.contains("client.toml"), "{out}");
        let err = host.err.take();
        let want = format!("{} is not written: ", host.etc("server.toml").display());
        assert!(err.contains(&want) && err.contains("e.toml:4: "), "{err}");
        assert!(!host.etc("server.toml").exists());
    }
    host.write("server.d/e.toml", text);
    host.ends("config save", 0);
    assert!(host.file("server.toml").contains("[export.f]"));
    assert!(!host.file("server.toml").contains("[export.e]"));
    assert_eq!(host.ends("config diff", 0), "");
    host.write("client.d/m.toml", "[map.m\n");
    let before = host.file("client.toml");
    host.ok("map 10.9.0.1/n");
    host.ends("config save", 8);
    assert_eq!(host.file("client.toml"), before);
}

#[test]
fn saving_keeps_a_host_name_that_is_not_in_use_yet() {
    let mut host = Host::new("config-host-name");
    let node = host.root.join("proc/sys/kernel/hostname");
    fs::create_dir_all(node.parent().expect("a folder")).expect("a folder");
    fs::write(node, "node-b\n").expect("a file");
    host.kernel.put("", "host_name", "other");
    host.ok("map 10.9.0.1/m");
    host.ends("config save", 0);
    assert!(host.file("client.toml").contains("host_name = \"other\""));
    host.reload();
    host.ok("map 10.9.0.1/m");
    host.ends("config save", 0);
    assert!(host.file("client.toml").contains("host_name = \"other\""));
    assert!(host.err.take().contains("host_name other stays"));
    // The name of the node is no other one, and may stand in the file.
    let text = host.file("client.toml");
    host.write("client.toml", &text.replace("other", "node-b"));
    host.ends("config save", 0);
    assert!(!host.err.take().contains("warning"));
    assert!(host.file("client.toml").contains("host_name = \"node-b\""));
    host.ends("config save --prune", 0);
    assert!(!host.file("client.toml").contains("host_name"));
}

#[test]
fn a_file_is_restored_with_its_blocks() {
    let mut host = Host::new("config-file-blocks");
    let file = host.root.join("disk.img");
    let create = format!("export create e --file {} --size 1M", file.display());
    host.ok(&format!("{create} --block-size 512 --allow b"));
    host.ends("config save", 0);
    let saved = host.file("server.toml");
    assert!(saved.contains("\nblock_size = 512\n"), "{saved}");
    host.reload();
    host.system = device::fake::Fake::new(&host.root);
    host.system.with_blocks_of(4096);
    host.ends("config restore", 0);
    let log = host.system.take_log();
    assert!(log[0].contains(" --sector-size=512 "), "{log:?}");
    assert_eq!(host.ends("config diff", 0), "");
    // One that was saved without takes what the disk under it has; 4096 is no default of a file.
    host.write("server.toml", &saved.replace("block_size = 512\n", ""));
    assert_eq!(host.ends("config diff", 0), "");
    let other = saved.replace("block_size = 512\n", "block_size = 4096\n");
    host.write("server.toml", &other);
    let diff = host.ends("config diff", 1);
    assert!(
        diff.contains("block_size is 512, in the file \"4K\""),
        "{diff}"
    );
    let device = "[export.d]\ndevice = \"/dev/disk/by-id/x\"\nblock_size = 512\n";
    host.write("server.toml", device);
    assert!(
        host.ends("config check", 1)
            .contains("block_size is for ram")
    );
}

#[test]
fn a_file_is_restored_with_its_own_loop_device() {
    let mut host = Host::new("config-file");
    let file = host.root.join("disk.img");
    let create = format!(
        "export create e --file {} --size 1M --allow b",
        file.display()
    );
    host.ok(&create);
    let uuid = "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10";
    host.kernel.put("exports/e", "uuid", uuid);
    host.ends("config save", 0);
    assert!(
        host.file("server.toml")
            .contains(&format!("\nfile = \"{}\"\n", file.display()))
    );
    // After a reboot there is no loop device; one of another file has its number.
    host.reload();
    host.system = device::fake::Fake::new(&host.root);
    let other = host.root.join("other.img");
    fs::write(&other, [0; 4096]).expect("a file");
    host.ok(&format!("export create other --file {}", other.display()));
    assert_eq!(
        host.kernel.get("exports/other", "device_path").as_deref(),
        Some("/dev/loop0")
    );
    assert_eq!(host.ends("config restore", 0), "export e  restored");
    assert_eq!(
        host.kernel.get("exports/e", "device_path").as_deref(),
        Some("/dev/loop1")
    );
    assert_eq!(host.ends("config diff", 1).lines().count(), 1);
    // The kernel tells that the file was removed. No such name is saved.
    let shown = |text: &str| host.system.attr("loop1", "loop/backing_file", text);
    shown(&format!("{} (deleted)", file.display()));
    let error = host.run("config save").expect_err("a file without a name");
    assert_eq!(error.code, Code::Differs);
    assert!(error.details[0].contains("clients write on"), "{error:?}");
    host.err.take();
    host.ends("config save --prune", 8);
    let text = host.err.take();
    assert!(
        text.contains("/dev/loop1 was removed or replaced"),
        "{text}"
    );
    assert!(!host.file("server.toml").contains("(deleted)"));
    let text = host.ends("doctor", 11);
    assert!(text.contains("export e: its file"), "{text}");
    for line in ["export list", "export show e"] {
        let text = host.ok(line);
        assert!(
            text.contains("was removed or replaced: what clients write"),
            "{text}"
        );
    }
    shown(&file.display().to_string());
    host.ends("config save", 0);
    // A file that was replaced is another disk: it is not what the loop device has.
    fs::rename(&file, host.root.join("moved.img")).expect("to move it");
    fs::write(&file, [0; 4096]).expect("a file");
    let (code, _, text) = host.fails("config save");
    assert_eq!(code, "F0103", "{text}");
    assert!(host.file("server.toml").contains("[export.e]"));
    host.err.take();
    let text = host.ends("config save --prune", 8);
    assert!(text.contains("(1 export)"), "{text}");
    assert!(host.err.take().contains("cannot be saved: /dev/loop1"));
    let text = host.ends("config diff", 1);
    assert!(text.contains("export e"), "{text}");
}

#[test]
fn a_registration_outlives_a_planned_restart() {
    let mut host = Host::new("config-registration");
    let uuid = "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10";
    host.ok(&format!("export create e --ram 1M --allow b --uuid {uuid}"));
    host.ends("config save", 0);
    host.kernel.put("exports/e", "registration", "4711");
    host.ok("export disable e --force");
    assert_eq!(host.file("registrations"), format!("{uuid} 4711\n"));
    host.reload();
    // An attempt that fails does not use it up.
    host.kernel
        .refuse("exports/e/enable", "1", 12, "ENOMEM no memory", 1);
    host.ends("config restore", 8);
    assert_eq!(host.file("registrations"), format!("{uuid} 4711\n"));
    host.kernel.take_log();
    host.ends("config restore", 0);
    let log = host.kernel.take_log();
    let at = |line: &str| log.iter().position(|have| have == line);
    assert!(
        at("exports/e/registration = 4711")
            .is_some_and(|set| Some(set) < at("exports/e/enable = 1"))
    );
    assert_eq!(host.file("registrations"), "");
    // After a crash it is not written again.
    host.reload();
    host.ends("config restore", 0);
    assert_eq!(
        host.kernel.get("exports/e", "registration").as_deref(),
        Some("")
    );
    // Other commands that fail do not use it up either.
    for line in [
        format!("export create e --ram 1M --allow b --uuid {uuid}"),
        "export enable e".into(),
    ] {
        host.kernel.put("exports/e", "registration", "7");
        host.ok("export disable e --force");
        if line.contains("create") {
            host.ok("export rm e");
        }
        let written = format!("{uuid} 7\n");
        host.kernel
            .refuse("exports/e/enable", "1", 12, "ENOMEM no memory", 1);
        assert!(host.run(&line).is_err());
        host.out.take();
        assert_eq!(host.file("registrations"), written, "{line}");
        host.ok(&line);
        assert_eq!(host.file("registrations"), "", "{line}");
    }
    // One that was enabled again, or evicted, is forgotten.
    for line in ["export enable e", "export evict e b --force"] {
        host.kernel.put("exports/e", "registration", "7");
        host.ok("export disable e --force");
        assert_eq!(host.file("registrations"), format!("{uuid} 7\n"));
        host.ok(line);
        assert_eq!(host.file("registrations"), "", "{line}");
    }
}

#[test]
fn check_names_file_and_line() {
    let host = Host::new("config-check");
    assert_eq!(host.ends("config check", 0), "");
    host.write(
        "server.toml",
        "[export.e]\nram = \"4G\"\nmax_client = 2\nmax_clients = 0\n[exprot.x]\n[map.m]\n",
    );
    host.write(
        "client.toml",
        "[map.m]\npaths = { 0 = \"10.9.0.1\", 1 = 7 }\nheartbeat = \"5m\"\n[map.n]\n",
    );
    host.write(
        "client.d/x.toml",
        "\n\n[map.n]\npaths = { 0 = \"a b\" }\n= 3\n",
    );
    let text = host.ends("config check", 1);
    let root = host.etc("");
    let text = text.replace(&root.display().to_string(), "");
    for line in [
        "client.d/x.toml:5: error: ",
        "client.toml:2: error: path 1: expected a string or a table",
        "client.toml:3: error: heartbeat: \"5m\" is out of range: 0 s to 60 s are accepted",
        "client.toml:4: error: map n: has no path",
        "server.toml:3: error: max_client is not known; did you mean max_clients?",
        "server.toml:4: error: max_clients: 0 is out of range: 1 to 65535 are accepted",
        "server.toml:5: error: exprot is not known; did you mean export?",
        "server.toml:6: error: map belongs in client.toml",
    ] {
        assert!(
            text.lines().any(|have| have.starts_with(line)),
            "{line}\n{text}"
        );
    }
    assert_eq!(text.lines().count(), 8, "{text}");
    let document = host.ends("-j config check", 1);
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document["schema"], "farblk.config-check/1");
    assert_eq!(document["problems"].as_array().map(Vec::len), Some(8));
    assert_eq!(document["problems"][1]["line"], 2);
    // Warnings are no errors.
    fs::remove_file(host.etc("client.d/x.toml")).expect("a file");
    fs::remove_file(host.etc("client.toml")).expect("a file");
    host.write(
        "server.toml",
        "[export.e]\nfile = \"/none\"\n[port.-p]\naddr = \"10.9.0.1\"\n",
    );
    let text = host.ends("config check", 0);
    assert!(text.contains("warning: export e: has no uuid"), "{text}");
    assert!(
        text.contains("warning: port -p: \"-p\": a new name"),
        "{text}"
    );
    assert!(text.contains("/none does not exist now"), "{text}");
}

#[test]
fn bad_files_are_refused() {
    for (text, why) in [
        ("[export.e]\n", "one of ram, device and file is missing"),
        (
            "[export.e]\nram = 1\n",
            "1 is not a multiple of the block size 4096",
        ),
        ("[export.e]\nram = 0\n", "a disk cannot have 0 bytes"),
        (
            "[export.e]\nram = \"1M\"\nfile = \"/x\"\n",
            "has ram and file, but can have one",
        ),
        (
            "[export.e]\nfile = \"/x\"\nnuma_node = 0\n",
            "numa_node is for ram, not for file",
        ),
        ("[export.e]\nfile = \"x\"\n", "does not start with /"),
        ("[export.e]\nfile = \"/x\\ny\"\n", "is not one line"),
        (
            "[export.e]\ndevice = \"/dev/loop3\"\n",
            "may be another file after a reboot",
        ),
        (
            "[export.e]\nram = \"1M\"\nread_only = 1\n",
            "expected true or false, not integer",
        ),
        (
            "[export.e]\nram = true\n",
            "expected a size such as \"4G\", not boolean",
        ),
        (
            "[export.e]\nram = \"1M\"\nports = []\n",
            "1 to 8 ports, not 0",
        ),
        (
            "[export.e]\nram = \"1M\"\nhosts = [\"b\"]\n",
            "write hosts = { NAME = \"rw\" }",
        ),
        (
            "[export.e]\nram = \"1M\"\nhosts = { b = \"read\" }\n",
            "is none of rw, ro",
        ),
        (
            "[export.e]\nram = \"1M\"\nhosts = { b = {} }\n",
            "host b: access is missing",
        ),
        ("[export.e]\nram = \"1M\"\nuuid = \"1\"\n", "is not a UUID"),
        ("[export.\"a/b\"]\nram = \"1M\"\n", "cannot be in a name"),
        ("[port.1]\n", "addr is missing"),
        (
            "[port.1]\naddr = \"node-a\"\n",
            "an IP address is needed here",
        ),
        ("port = 1\n", "write [port.NAME]"),
        ("[port]\n1 = 1\n", "write [port.1]"),
        ("[port.1]\naddr = \"10.0.0.1\"\n[port.1]\n", "duplicate key"),
        (
            "[export.e]\nram = \"1M\"\nuuid = \"6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10\"\n[export.f]\nram = \"1M\"\nuuid = \"6F0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10\"\n",
            "has this uuid, too",
        ),
        ("a\u{0}b", ""),
    ] {
        let problems = problems(&parsed(Side::Server, text));
        assert!(
            problems.iter().any(|have| have.contains(why)),
            "{text}: {problems:?}"
        );
        assert!(problems[0].starts_with("/f.toml:"), "{problems:?}");
    }
    // An object in two files is neither of both.
    let mut saved = parsed(Side::Client, CLIENT);
    saved::parse(Side::Client, Path::new("/g.toml"), CLIENT, &mut saved);
    assert_eq!(
        problems(&saved),
        [
            "/f.toml:2: map m is in /g.toml:2, too",
            "/g.toml:2: map m is in /f.toml:2, too"
        ]
    );
}

#[test]
fn files_beside_the_saved_one_stay() {
    let host = Host::new("config-beside");
    host.ok("map 10.9.0.1/m");
    host.ok("map 10.9.0.1/n");
    host.write(
        "client.d/m.toml",
        "# mine\n[map.m]\npaths = { 0 = \"10.9.0.1\" }\n",
    );
    host.ends("config save", 0);
    assert!(!host.err.take().contains("warning"));
    assert!(!host.file("client.toml").contains("[map.m]"));
    assert!(host.file("client.toml").contains("[map.n]"));
    assert_eq!(host.ends("config diff", 0), "");
    host.write("client.d/m.toml", "[map.m]\npaths = { 0 = \"10.9.0.7\" }\n");
    host.ends("config save", 0);
    assert!(host.err.take().contains(": map m is not saved: it is in "));
    assert!(host.file("client.d/m.toml").contains("10.9.0.7"));
    // A command that was killed left this; nobody reads it.
    host.write(".client.toml.farblk-new", "[map.half");
    host.ends("config check", 0);
    host.ok("unmap n");
    host.ends("config save --prune", 0);
    assert!(host.file("client.toml.1").contains("[map.n]"));
    assert!(!host.etc(".client.toml.farblk-new").exists());
}

#[test]
fn show_is_what_save_writes() {
    let host = Host::new("config-show");
    host.busy();
    let text = host.ok("config show --running");
    let (ports_and_exports, maps) = text.split_once("[map.").expect("maps");
    let saved = parsed(Side::Server, ports_and_exports);
    assert_eq!((saved.objects.len(), problems(&saved)), (3, Vec::new()));
    let saved = parsed(Side::Client, &format!("[map.{maps}"));
    assert_eq!((saved.objects.len(), problems(&saved)), (1, Vec::new()));
    assert_eq!(host.ok("config show"), "");
    host.ends("config save", 0);
    let text = host.ok("config show");
    assert!(
        text.starts_with(&format!("# {}:", host.etc("server.toml").display())),
        "{text}"
    );
    let document = host.ok("-j config show");
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document["schema"], "farblk.config/1");
    assert_eq!(document["objects"].as_array().map(Vec::len), Some(4));
}

#[test]
fn the_examples_of_the_manual_are_valid() {
    let manual = include_str!("../../../../../Documentation/farblk-toml.rst");
    let mut blocks = Vec::new();
    let mut lines = manual.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with(".toml``::") {
            continue;
        }
        let mut block = String::new();
        while let Some(line) = lines.next_if(|line| line.is_empty() || line.starts_with("  ")) {
            block += &format!("{}\n", line.trim_start());
        }
        blocks.push((line.contains("server"), block));
    }
    assert_eq!(blocks.len(), 2);
    for (server, block) in blocks {
        let side = if server { Side::Server } else { Side::Client };
        let saved = parsed(side, &block);
        assert_eq!(problems(&saved), Vec::<String>::new());
        assert_eq!(saved.objects.len(), if server { 4 } else { 2 });
        // It reads back as it is written.
        let objects: Vec<_> = saved.objects.iter().collect();
        let again = parsed(side, &saved::render("", None, &objects));
        assert_eq!(problems(&again), Vec::<String>::new());
        for (one, other) in saved.objects.iter().zip(&again.objects) {
            assert!(one.says_as(other), "{one:?} {other:?}");
        }
    }
    for kind in [Kind::Port, Kind::Export, Kind::Map] {
        let members = kind.group().map_or(&[][..], saved::Group::keys);
        for key in kind.keys().iter().chain(members) {
            assert!(
                manual.contains(&format!("\n``{}``", key.name)),
                "{}",
                key.name
            );
        }
    }
}

#[test]
fn a_map_is_kept_and_forgotten() {
    let host = Host::new("config-persist");
    let script = host.ok("--dry-run map 10.9.0.1/m --persist");
    assert!(
        script
            .lines()
            .last()
            .is_some_and(|line| line.ends_with("client.d/m.toml")),
        "{script}"
    );
    assert!(!host.etc("client.d").exists());
    assert_eq!(
        host.ok("map 10.9.0.1/m --persist --no-path-timeout forever"),
        "/dev/farblk0"
    );
    let text = "\n[map.m]\nno_path_timeout = \"forever\"\n[map.m.paths]\n0 = \"10.9.0.1\"\n";
    assert!(host.file("client.d/m.toml").ends_with(text));
    let err = host.err.take();
    assert!(
        err.ends_with(&format!(
            "map m is kept in {}\n",
            host.etc("client.d/m.toml").display()
        )),
        "{err}"
    );
    // Again: nothing changes.
    host.ok("map 10.9.0.1/m --persist");
    assert!(!host.etc("client.d/m.toml.1").exists());
    // As the dry run has it.
    let shown = host.ok("config show --running --map m");
    assert_eq!(format!("\n{shown}\n"), text);
    let out = host.ok("unmap m");
    assert!(out.starts_with("unmapped m (farblk0); still in "), "{out}");
    // With other settings, the file has these. Its unit has to make the map, to stop it later.
    fs::create_dir_all(host.root.join("run/systemd/system")).expect("a folder");
    host.err.take();
    host.ok("map 10.9.0.1/m --persist --ro");
    let want = "hint: farblk unmap m && systemctl enable --now farblk-map@m.service";
    let err = anstream::adapter::strip_str(&host.err.take()).to_string();
    assert!(err.contains(want), "{err}");
    let wants = host.root.join("etc/systemd/system/remote-fs.target.wants");
    fs::create_dir_all(&wants).expect("a folder");
    fs::write(wants.join("farblk-map@m.service"), "").expect("a link");
    assert!(host.file("client.d/m.toml").contains("read_only = true"));
    assert!(host.file("client.d/m.toml.1").ends_with(text));
    let script = host.ok("--dry-run unmap m --forget");
    assert!(script.contains("\nmv ") && is_shell(&script), "{script}");
    let out = host.ok("unmap m --forget");
    assert!(
        out.starts_with("unmapped m (farblk0); removed from "),
        "{out}"
    );
    assert!(!host.etc("client.d/m.toml").exists());
    let want = "hint: systemctl disable --now farblk-map@m.service";
    let err = anstream::adapter::strip_str(&host.err.take()).to_string();
    assert!(err.contains(want), "{err}");
    assert_eq!(host.fails("unmap m --forget").1, 3);
    // One that is only in a file can be forgotten, too.
    host.write("client.d/x.toml", "[map.m]\npaths = { 0 = \"10.9.0.1\" }\n");
    assert!(
        host.ok("unmap m --forget")
            .starts_with("m is not mapped; removed from ")
    );
    assert_eq!(host.ends("config show", 0), "");
}

#[test]
fn forgetting_a_map_keeps_the_rest_of_the_file() {
    let host = Host::new("config-forget");
    let text = "# mine\nhost_name = \"b\"\n\n[map.m]  # one\npaths.0 = \"10.9.0.1\"\n\n# two\n\
        [map.\"m.x\"]\nexport = \"y\"\n[map.\"m.x\".paths]\n0 = \"10.9.0.1\"\n\n[map.mm]\npaths.0 = \"10.9.0.1\"\n";
    host.write("client.toml", text);
    host.ok("unmap m.x --forget");
    let rest = host.file("client.toml");
    assert_eq!(
        rest,
        text.split("[map.\"m.x\"]")
            .next()
            .expect("a part")
            .to_owned()
            + "[map.mm]\npaths.0 = \"10.9.0.1\"\n"
    );
    assert_eq!(host.file("client.toml.1"), text);
    host.ok("unmap m --forget");
    assert!(
        host.file("client.toml")
            .starts_with("# mine\nhost_name = \"b\"\n\n[map.mm]")
    );
    // In another form it is left to an editor.
    let text =
        "map = { m = { paths = { 0 = \"10.9.0.1\" } }, n = { paths = { 0 = \"10.9.0.1\" } } }\n";
    host.write("client.toml", text);
    assert_eq!(host.fails("unmap m --forget").0, "F0501");
    assert_eq!(host.file("client.toml"), text);
    // What somebody has written by hand stays.
    host.write("client.toml", "[map.n]\npaths = { 0 = \"10.9.0.7\" }\n");
    assert_eq!(host.ends("map 10.9.0.1/n --persist", 8), "/dev/farblk0");
    assert!(host.err.take().contains("the map runs, but is not kept"));
    assert!(!host.etc("client.d/n.toml").exists());
}

/// As boot.rst has it: RAM that is not what it was is refused, if the file says what it was.
#[test]
fn a_map_of_ram_is_restored_with_the_expected_contents_only() {
    let mut host = Host::new("config-instance");
    let instance = "b71c0000-0000-4000-8000-000000000000";
    host.ok(&format!(
        "map 10.9.0.1/m --persist --expect-instance {instance}"
    ));
    let line = format!("expect_instance = \"{instance}\"\n");
    assert!(host.file("client.d/m.toml").contains(&line));
    host.reload();
    host.ends("config restore --map m", 0);
    let have = host.kernel.get("maps/m", "expect_instance");
    assert_eq!(have.as_deref(), Some(instance));
    host.reload();
    let gone = "ESTALE the instance is gone";
    host.kernel.refuse("maps/m/enable", "1", 116, gone, 1);
    let text = host.ends("config restore --map m", 9);
    assert!(
        text.starts_with("map m  FAILED F0301: the instance is gone"),
        "{text}"
    );
    assert!(host.kernel.objects().is_empty());
    // The hint of F0301 is for a map that is there; remap knows what to do about one that is not.
    assert!(text.contains("hint: farblk remap m  #"), "{text}");
    let error = host.run("remap m").expect_err("no map");
    assert_eq!((error.code.entry().name, error.exit()), ("F0102", 3));
    let path = host.etc("client.d/m.toml");
    let (why, command) = (hint(&error), "\nfarblk config restore --map=m");
    let remove = format!("remove expect_instance of this map from {}", path.display());
    assert!(why.contains(&remove) && why.ends_with(command), "{why}");
    // A map that has a unit is made by that, which unmaps no other one.
    let wants = host.root.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).expect("a folder");
    fs::write(wants.join("farblk-map@m.service"), "").expect("a file");
    let why = hint(&host.run("remap m").expect_err("no map"));
    assert!(
        why.ends_with("\nsystemctl restart farblk-map@m.service"),
        "{why}"
    );
    let file = host.file("client.d/m.toml").replace(&line, "");
    host.write("client.d/m.toml", &file);
    assert_eq!(host.ends("config restore --map m", 0), "map m  restored");
}

/// As admin.rst has it: a server whose module is replaced loses no map of a block export.
#[test]
fn the_module_of_a_server_is_replaced() {
    let mut host = Host::new("config-upgrade");
    host.system.disk("sdb");
    host.system.link("dev/disk/by-path/b", "sdb");
    host.ok("port add main --addr 10.9.0.1");
    host.ok("export create e --device /dev/disk/by-path/b --allow b");
    host.ends("config save", 0);
    host.kernel.put("exports/e", "registration", "4711");
    let uuid = "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10";
    host.kernel.put("exports/e", "uuid", uuid);
    host.ends("config save", 0);
    // The unit does so when it is stopped.
    host.ok("export disable e --force");
    host.kernel.put("exports/e", "clients_away", "1");
    assert_eq!(host.fails("export rm e").0, "F0104");
    host.ok("export rm e --force");
    host.ok("port rm main");
    assert!(host.kernel.objects().is_empty());
    host.reload();
    host.ends("config restore --server", 0);
    assert_eq!(host.kernel.get("exports/e", "uuid").as_deref(), Some(uuid));
    let key = host.kernel.get("exports/e", "registration");
    assert_eq!(key.as_deref(), Some("4711"));
    assert_eq!(
        host.kernel.get("ports/main", "state").as_deref(),
        Some("listening")
    );
}

/// What a file in client.d has is left there.
#[test]
fn the_name_of_the_host_is_kept_in_its_file() {
    let mut host = Host::new("config-host-name");
    host.ok("map 10.9.0.2/m");
    host.write("client.d/name.toml", "host_name = \"x\"\n");
    host.reload();
    host.ok("map 10.9.0.2/m");
    host.ends("config save", 0);
    assert!(!host.file("client.toml").contains("host_name"));
    // Also while it is in use.
    host.ends("config restore", 0);
    host.ends("config save", 0);
    assert!(!host.file("client.toml").contains("host_name"));
    host.write(
        "client.d/a.toml",
        "[map.m-part1]\nexport = \"e\"\npaths = { 0 = \"10.9.0.2\" }\n",
    );
    let check = host.ends("config check", 0);
    assert!(check.contains("named like a partition"), "{check}");
}

#[test]
fn a_host_has_one_identity() {
    let host = Host::new("config-identity");
    host.ok("port add --addr 10.9.0.1");
    host.ends("config save", 0);
    let first = host.file("host_id");
    let other = "44444444-4444-4444-8444-444444444444";
    host.kernel.put("", "host_id", other);
    let diff = host.ends("config diff", 1);
    let text = format!(
        "~ host node-b: host_id is {other}, in the file {}",
        first.trim_end()
    );
    assert_eq!(diff, text);
    // Other commands do not touch it.
    host.ok("map 10.9.0.2/m");
    assert_eq!(host.file("host_id"), first);
    host.err.take();
    host.ends("config save", 0);
    assert!(
        host.err
            .take()
            .contains("the host_id that this host has now")
    );
    assert_eq!(host.file("host_id"), format!("{other}\n"));
    assert_eq!(host.file("host_id.1"), first);
    assert_eq!(host.ends("config diff", 0), "");
}

/// LVM and md of a server may take a disk on which a client has made theirs. The udev rules ask
/// which disks are for clients.
#[test]
fn a_disk_of_an_export_is_the_clients() {
    let mut host = Host::new("config-grabbed");
    host.system.disk("sdb");
    host.system.link("dev/disk/by-path/b", "sdb");
    let file = host.root.join("e.img");
    fs::write(&file, [0; 4096]).expect("a file");
    let ask = |host: &Host, words: &str| host.ok(&format!("udev-export {words}"));
    assert_eq!(ask(&host, "sdb /dev/disk/by-path/b"), "");
    host.ok("export create e --device /dev/disk/by-path/b --allow b");
    host.ok(&format!(
        "export create f --file {} --allow b",
        file.display()
    ));
    host.ends("config save", 0);
    assert_eq!(
        ask(&host, "sdb /dev/disk/by-id/x /dev/disk/by-path/b"),
        "FARBLK_EXPORT=e"
    );
    assert_eq!(ask(&host, "sdc /dev/disk/by-path/c"), "");
    assert_eq!(ask(&host, "loop0"), "FARBLK_EXPORT=f");
    assert_eq!(ask(&host, "loop1"), "");
    // What this host is told to use itself is none of a client's: not the disk, and no partition.
    let links = "/dev/disk/by-path/b /dev/disk/by-uuid/1-2";
    for (file, text) in [
        (
            "etc/fstab",
            "# a comment\nUUID=1-2 /srv ext4 defaults 0 2\n",
        ),
        ("etc/fstab", "/dev/disk/by-path/b none swap sw 0 0\n"),
        ("etc/crypttab", "srv UUID=\"1-2\" none luks\n"),
        ("proc/cmdline", "quiet root=UUID=1-2 ro\n"),
    ] {
        let path = host.root.join(file);
        let before = fs::read_to_string(&path).ok();
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        assert_eq!(
            ask(&host, &format!("sdb {links}")),
            "FARBLK_EXPORT=",
            "{text}"
        );
        match before {
            Some(before) => fs::write(&path, before).expect("a file"),
            None => fs::remove_file(&path).expect("to remove it"),
        }
    }
    assert_eq!(ask(&host, &format!("sdb {links}")), "FARBLK_EXPORT=e");
    // A name that another disk may have after a reboot, and an export that is not to run.
    for text in [
        "device = \"/dev/sdk\"",
        "device = \"/dev/disk/by-path/k\"\nenabled = false",
    ] {
        host.write("server.d/k.toml", &format!("[export.k]\n{text}\n"));
        assert_eq!(ask(&host, "sdk /dev/disk/by-path/k"), "", "{text}");
    }
    fs::remove_file(host.etc("server.d/k.toml")).expect("a file");
    // By a link that the rules would take away.
    let uuid = "/dev/disk/by-uuid/1";
    host.write(
        "server.d/u.toml",
        &format!("[export.u]\ndevice = \"{uuid}\"\n"),
    );
    assert_eq!(ask(&host, &format!("sdd {uuid}")), "");
    fs::remove_file(host.etc("server.d/u.toml")).expect("a file");
    let text = host.ends("doctor", 11);
    assert!(!text.contains("does not run"), "{text}");
    // After a reboot, LVM of this host has its partition, and md the disk.
    host.reload();
    for (path, text) in [
        ("sdb1/partition", "1"),
        ("sdb1/dev", "8:1"),
        ("sdb1/holders/dm-0", ""),
        ("holders/md127", ""),
    ] {
        host.system.attr("sdb", path, text);
    }
    host.system.attr("dm-0", "dm/uuid", "LVM-abc");
    host.system.attr("dm-0", "dm/name", "my--vg-data");
    let text = host.ends("doctor", 11);
    for want in [
        "export e of ",
        "does not run; used by: md127; used by: dm-0 (LV my-vg/data)\n",
        "fix: mdadm --stop /dev/md127\n",
        "fix: vgchange --activate n my-vg\n",
        "fix: farblk config restore --server",
        "export f of ",
    ] {
        assert!(text.contains(want), "{want:?}: {text}");
    }
    let text = host.ends("config restore", 8);
    assert!(
        text.contains("vgchange --activate n my-vg"),
        "{text}: {}",
        host.err.take()
    );
}
