// SPDX-License-Identifier: GPL-2.0
//! The tool as a user runs it, on a fabricated /sys, /dev and /proc.
//!
//! Long: most of it is what the tool prints, word for word.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::Value;
use snapbox::IntoData;
use snapbox::cmd::{Command, OutputAssert};
use snapbox::str;

/// A key, of the bytes 0 to 31, and its key id.
const KEY: &str = "farblk1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR";
const KEY_ID: &str = "13842382fdcc838d";

/// A directory with a tree like that of a host.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let tree =
            Self(std::env::temp_dir().join(format!("farblk-cli-{}-{number}", std::process::id())));
        fs::create_dir_all(&tree.0).expect("a directory");
        tree
    }

    /// A host with the module loaded.
    fn loaded() -> Self {
        let tree = Self::new();
        for directory in ["ports", "exports", "maps", "discover"] {
            fs::create_dir_all(tree.0.join("sys/kernel/config/farblk").join(directory))
                .expect("a directory");
        }
        tree.config("host_name", "node-b");
        tree
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn config(&self, path: &str, value: &str) {
        self.file(
            &format!("sys/kernel/config/farblk/{path}"),
            &format!("{value}\n"),
        );
    }

    /// A client with one live and one failed map.
    fn client() -> Self {
        let tree = Self::loaded();
        for (path, value) in [
            ("maps/scratch/export", "scratch"),
            ("maps/scratch/access", "rw"),
            ("maps/scratch/enable", "1"),
            ("maps/scratch/state", "live"),
            ("maps/scratch/device", "farblk0"),
            ("maps/scratch/uuid", "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10"),
            (
                "maps/scratch/instance",
                "b71c0000-0000-4000-8000-000000000000",
            ),
            ("maps/scratch/mode", "one_sided"),
            ("maps/scratch/size", "4294967296"),
            ("maps/scratch/last_error", ""),
            ("maps/scratch/no_path_timeout_ms", "-1"),
            ("maps/scratch/heartbeat_ms", "1000"),
            ("maps/scratch/reconnect_max_ms", "10000"),
            ("maps/scratch/policy", "min-inflight"),
            ("maps/scratch/paths/0/addr", "10.0.0.1:7420"),
            ("maps/scratch/paths/0/source", "10.0.0.2"),
            ("maps/scratch/paths/0/enable", "1"),
            ("maps/scratch/paths/0/state", "live"),
            ("maps/scratch/paths/0/device", "mlx5_0"),
            ("maps/scratch/paths/0/rtt_ns", "3100"),
            ("maps/scratch/paths/0/reconnects", "0"),
            ("maps/scratch/paths/0/next_try_ms", ""),
            ("maps/vol1/export", "vol1"),
            ("maps/vol1/access", "ro"),
            ("maps/vol1/enable", "1"),
            ("maps/vol1/state", "failed"),
            ("maps/vol1/device", ""),
            ("maps/vol1/size", "0"),
            ("maps/vol1/no_path_timeout_ms", "60000"),
            (
                "maps/vol1/last_error",
                "ECONNREFUSED nobody listens on [fd00::1]:99",
            ),
            ("maps/vol1/paths/0/addr", "[fd00::1]:99"),
            ("maps/vol1/paths/0/enable", "1"),
            ("maps/vol1/paths/0/state", "waiting"),
            ("maps/vol1/paths/0/rtt_ns", "0"),
            ("maps/vol1/paths/0/reconnects", "2"),
            ("maps/vol1/paths/0/next_try_ms", "9100"),
            (
                "maps/vol1/paths/0/last_error",
                "ECONNREFUSED nobody listens on [fd00::1]:99",
            ),
        ] {
            tree.config(path, value);
        }
        tree.file("sys/class/block/farblk0/dev", "259:0\n");
        tree.file("sys/class/block/farblk0/farblk0p1/dev", "259:1\n");
        tree.file("sys/class/block/farblk0/farblk0p1/partition", "1\n");
        tree.file("dev/farblk0", "");
        tree.file("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
        tree.file(
            "proc/self/mountinfo",
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 259:0 / /scratch rw,noatime shared:1 - xfs /dev/farblk0 rw\n",
        );
        for (pid, comm, link, target) in [
            (4121, "fio", "fd/3", "/scratch/file"),
            (3990, "bash", "cwd", "/scratch"),
            (1, "init", "cwd", "/"),
            (77, "cat", "fd/0", "/scratch2/file"),
        ] {
            tree.file(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
            let link = tree.0.join(format!("proc/{pid}/{link}"));
            fs::create_dir_all(link.parent().expect("a parent")).expect("a directory");
            symlink(target, link).expect("a link");
        }
        tree
    }

    /// A server with a RAM export.
    fn server() -> Self {
        let tree = Self::loaded();
        for (path, value) in [
            ("ports/1/addr", "10.0.0.1:7420"),
            ("ports/1/enable", "1"),
            ("ports/1/state", "listening"),
            ("ports/1/device", "mlx5_0"),
            ("ports/10/addr", "10.0.1.1:7420"),
            ("ports/10/enable", "0"),
            ("ports/10/state", "error"),
            (
                "ports/10/last_error",
                "EADDRNOTAVAIL 10.0.1.1 is not an address of this host",
            ),
            ("ports/2/addr", "[fd00::1]:7420"),
            ("ports/2/enable", "1"),
            ("ports/2/state", "listening"),
            ("exports/scratch/kind", "ram"),
            ("exports/scratch/size", "4294967296"),
            (
                "exports/scratch/uuid",
                "6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10",
            ),
            ("exports/scratch/read_only", "0"),
            ("exports/scratch/block_size", "512"),
            ("exports/scratch/numa_node", "-1"),
            ("exports/scratch/ports", "all"),
            ("exports/scratch/allow_any_host", "0"),
            ("exports/scratch/max_clients", "2"),
            ("exports/scratch/enable", "1"),
            ("exports/scratch/state", "online"),
            (
                "exports/scratch/instance",
                "b71c0000-0000-4000-8000-000000000000",
            ),
            ("exports/scratch/clients", "1"),
            ("exports/scratch/clients_away", "0"),
            ("exports/scratch/hosts/node-b/access", "rw"),
            ("exports/scratch/hosts/node-b/host_id", ""),
            ("exports/scratch/hosts/node-b/connected", "1"),
            ("exports/scratch/hosts/node-c/access", "ro"),
            ("exports/scratch/hosts/node-c/connected", "0"),
        ] {
            tree.config(path, value);
        }
        tree
    }

    /// A server with an export of a disk, one of a file, and a losetup(8) that tells of that file's
    /// loop device and writes down what else it is asked for.
    fn storage() -> Self {
        let tree = Self::server();
        for (name, path) in [
            ("vol1", "/dev/disk/by-id/wwn-0x5000"),
            ("vol2", "/dev/loop0"),
        ] {
            for (attribute, value) in [
                ("kind", "block"),
                ("device_path", path),
                ("size", "1073741824"),
                ("read_only", "0"),
                ("block_size", "512"),
                ("ports", "all"),
                ("allow_any_host", "1"),
                ("max_clients", "1"),
                ("enable", "1"),
                ("state", "online"),
                ("clients", "0"),
                ("clients_away", "0"),
            ] {
                tree.config(&format!("exports/{name}/{attribute}"), value);
            }
        }
        tree.config(
            "exports/vol1/pr_registrants",
            "node-b 0xa write-exclusive-reg-only\nnode-c 0xffffffffffffffff",
        );
        fs::create_dir_all(tree.0.join("sys/kernel/config/farblk/exports/vol2/hosts"))
            .expect("a directory");
        tree.file("disk", &"\0".repeat(8192));
        let file = fs::canonicalize(tree.0.join("disk")).expect("the file");
        tree.file(
            "sys/class/block/loop0/loop/backing_file",
            &format!("{}\n", file.display()),
        );
        tree.losetup(
            r#"case $1 in
--json) echo '{"loopdevices":[{"name":"/dev/loop0","ro":false,"dio":true,"offset":0,"sizelimit":0,"ref":"farblk"}]}' ;;
*) echo "losetup $*" >> log ;;
esac"#,
        );
        tree
    }

    /// Puts a program of that name before the real one.
    fn program(&self, name: &str, script: &str) {
        let path = format!("bin/{name}");
        self.file(&path, &format!("#!/bin/sh\n{script}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.0.join(path), mode).expect("a program");
    }

    fn losetup(&self, script: &str) {
        self.program("losetup", script);
    }

    /// `PATH`, with the programs of the tree first.
    fn programs(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}", self.0.join("bin").display())
    }

    /// Runs the tool in the tree with `--root .`, so that no output depends on where the tree is.
    fn run(&self, line: &str) -> OutputAssert {
        self.run_with(line, "")
    }

    /// The same, with this on stdin.
    fn run_with(&self, line: &str, stdin: &str) -> OutputAssert {
        let output = Command::new(snapbox::cmd::cargo_bin!("farblk"))
            .current_dir(&self.0)
            .stdin(stdin.to_owned())
            .env_remove("CLICOLOR_FORCE")
            .env("PATH", self.programs())
            .args(["--root", "."])
            .args(line.split_whitespace())
            .assert();
        validate(&output.get_output().stdout);
        validate(&output.get_output().stderr);
        output
    }
}

/// Fails if a stream has a JSON document that does not obey the schema that the tool shows for it,
/// or a hint that is no line of shell.
fn validate(stream: &[u8]) {
    let text = String::from_utf8_lossy(stream);
    for line in text.lines() {
        for start in [" hint: ", " fix: ", " fix, on the server: "] {
            if let Some((_, hint)) = line.split_once(start) {
                require_shell(hint);
            }
        }
    }
    let documents: Vec<Value> = match serde_json::from_str(&text) {
        Ok(whole) => vec![whole],
        Err(_) => text
            .lines()
            .filter(|line| line.starts_with(r#"{"schema""#))
            .map(|line| serde_json::from_str(line).expect(line))
            .collect(),
    };
    // A schema itself has no such member.
    for document in documents {
        hints_of(&document).into_iter().for_each(require_shell);
        let Some(name) = document["schema"].as_str() else {
            assert!(document["$schema"].is_string(), "{document}");
            continue;
        };
        let errors = match schema_of(name).validate(&document) {
            Ok(()) => continue,
            Err(error) => error.to_string(),
        };
        panic!("{document} does not obey {name}: {errors}");
    }
}

/// Returns the texts of each array "hints" in a document.
fn hints_of(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(values) => values.iter().flat_map(hints_of).collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, value)| match (name.as_str(), value) {
                ("hints", Value::Array(hints)) => hints.iter().filter_map(Value::as_str).collect(),
                _ => hints_of(value),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Fails if the shell cannot read the line.
fn require_shell(line: &str) {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.insert(line.to_owned()) {
        Command::new("bash")
            .args(["-n", "-c", line])
            .assert()
            .success();
    }
}

/// Returns what validates by the schema that `farblk schema show` prints.
fn schema_of(name: &str) -> Arc<Validator> {
    static KNOWN: Mutex<BTreeMap<String, Arc<Validator>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let output = Command::new(snapbox::cmd::cargo_bin!("farblk"))
            .args(["schema", "show", name])
            .assert()
            .success();
        let schema = serde_json::from_slice(&output.get_output().stdout).expect("a schema");
        Arc::new(jsonschema::draft202012::new(&schema).expect("a valid schema"))
    };
    known.entry(name.to_owned()).or_insert_with(make).clone()
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn list_is_a_tree() {
    let tree = Tree::client();
    tree.run("list").success().stderr_eq("").stdout_eq(str![[r#"
MAP      DEVICE   EXPORT             SIZE     MODE       STATE   PATHS  HOLDERS
scratch  farblk0  10.0.0.1/scratch   4.0 GiB  one-sided  live    1/1    /scratch (xfs)
 `- path 0  10.0.0.2 (mlx5_0) -> 10.0.0.1:7420  live  rtt 3.1 us  reconnects 0
vol1     -        [fd00::1]:99/vol1  -        -          failed  0/1    -
 |- path 0  [fd00::1]:99  waiting  next try in 9.1 s  reconnects 2  last error: nobody listens on [fd00::1]:99
 |- hint: # no path for 60 s (no_path_timeout): I/O fails until one is back
 `- hint: farblk port list  # on the server: is the farblk module loaded there? is the port right?

"#]]);
    tree.run("-j list")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r##"
{"schema":"farblk.list/1","host":"node-b","maps":[{"name":"scratch","device":"/dev/farblk0","export":"scratch","uuid":"6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10","instance":"b71c0000-0000-4000-8000-000000000000","size_bytes":4294967296,"mode":"one_sided","state":"live","read_only":false,"holders":[{"kind":"mount","path":"/scratch","fstype":"xfs"}],"key_id":null,"last_error":null,"no_path_timeout_ms":-1,"gives_up_ms":null,"heartbeat_ms":1000,"reconnect_max_ms":10000,"policy":"min-inflight","protection":null,"paths_live":1,"reconnects":0,"paths":[{"name":"0","addr":"10.0.0.1:7420","source":"10.0.0.2","device":"mlx5_0","state":"live","rtt_ns":3100,"reconnects":0,"next_try_ms":null,"last_error":null}]},{"name":"vol1","device":null,"export":"vol1","uuid":null,"instance":null,"size_bytes":0,"mode":null,"state":"failed","read_only":true,"holders":[],"key_id":null,"last_error":{"errno":"ECONNREFUSED","text":"nobody listens on [fd00::1]:99","code":"F0203","hint":"# no path for 60 s (no_path_timeout): I/O fails until one is back\nfarblk port list  # on the server: is the farblk module loaded there? is the port right?","hints":["# no path for 60 s (no_path_timeout): I/O fails until one is back","farblk port list  # on the server: is the farblk module loaded there? is the port right?"]},"no_path_timeout_ms":60000,"gives_up_ms":null,"heartbeat_ms":null,"reconnect_max_ms":null,"policy":null,"protection":null,"paths_live":0,"reconnects":2,"paths":[{"name":"0","addr":"[fd00::1]:99","source":null,"device":null,"state":"waiting","rtt_ns":null,"reconnects":2,"next_try_ms":9100,"last_error":{"errno":"ECONNREFUSED","text":"nobody listens on [fd00::1]:99","code":"F0203","hint":"farblk port list  # on the server: is the farblk module loaded there? is the port right?","hints":["farblk port list  # on the server: is the farblk module loaded there? is the port right?"]}}]}]}

"##]].raw());
    Tree::loaded().run("list").success().stdout_eq(str![[r#"
MAP  DEVICE  EXPORT  SIZE  MODE  STATE  PATHS  HOLDERS

"#]]);
}

#[test]
fn states_have_colours() {
    let tree = Tree::client();
    let text = |line: &str| {
        let output = tree.run(line).success();
        String::from_utf8_lossy(&output.get_output().stdout).into_owned()
    };
    let list = text("--color always list");
    for state in [
        "  \x1b[32mlive\x1b[0m    1/1 ",
        "  \x1b[1m\x1b[31mfailed\x1b[0m  0/1 ",
        ":7420  \x1b[32mlive\x1b[0m  rtt",
        "  \x1b[33mwaiting\x1b[0m  next",
    ] {
        assert!(list.contains(state), "{state:?} in {list}");
    }
    assert!(text("--color always show scratch").contains("\x1b[32mlive"));
    assert!(!text("list").contains('\x1b'));
}

#[test]
fn unmap_names_the_users() {
    let tree = Tree::client();
    tree.run("unmap scratch")
        .code(4)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0107]: scratch is in use and was not unmapped
  mounted: /scratch (xfs), 2 processes: bash(3990) fio(4121)
  hint: umount /scratch
  hint: farblk unmap scratch --force  # or: all I/O fails; data in flight is lost

"#]]);
    tree.run("-j unmap /dev/farblk0")
        .code(4)
        .stdout_eq("")
        .stderr_eq(str![[r##"
{"schema":"farblk.error/1","code":"F0107","exit":4,"what":"scratch is in use and was not unmapped","why":"","details":["mounted: /scratch (xfs), 2 processes: bash(3990) fio(4121)"],"hint":"umount /scratch\nfarblk unmap scratch --force  # or: all I/O fails; data in flight is lost","hints":["umount /scratch","farblk unmap scratch --force  # or: all I/O fails; data in flight is lost"]}

"##]].raw());
    tree.file(
        "proc/self/mountinfo",
        "36 22 259:0 / /my\\040data;reboot rw - xfs /dev/farblk0 rw\n",
    );
    tree.run("unmap scratch")
        .code(4)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0107]: scratch is in use and was not unmapped
  mounted: /my data;reboot (xfs)
  hint: umount '/my data;reboot'
  hint: farblk unmap scratch --force  # or: all I/O fails; data in flight is lost

"#]]);
    tree.file(
        "proc/swaps",
        "Filename Type\n/dev/farblk0p1 partition 1 0 -2\n",
    );
    tree.file("sys/class/block/farblk0/holders/dm-0/x", "");
    tree.file("proc/self/mountinfo", "");
    tree.run("unmap farblk0")
        .code(4)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0107]: scratch is in use and was not unmapped
  swap: /dev/farblk0p1
  used by: dm-0
  hint: swapoff /dev/farblk0p1
  hint: lsblk /dev/dm-0  # remove this device
  hint: farblk unmap scratch --force  # or: all I/O fails; data in flight is lost

"#]]);
    tree.run("unmap none")
        .code(3)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0102]: cannot unmap none: there is no map "none" on this host
  hint: farblk list

"#]]);
    tree.run("--dry-run unmap 6F0E8D52-0c7d-4a3b-9b0e-2f6f5d1c7a10 --force")
        .success()
        .stdout_eq(str![[r#"
echo force > ./sys/kernel/config/farblk/maps/scratch/enable
echo 0 > ./sys/kernel/config/farblk/maps/scratch/paths/0/enable
rmdir ./sys/kernel/config/farblk/maps/scratch/paths/0
rmdir ./sys/kernel/config/farblk/maps/scratch

"#]]);
}

#[test]
fn dry_run_of_paths() {
    let tree = Tree::client();
    tree.run("--dry-run path add scratch 10.0.1.2@10.0.1.1:99")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/maps/scratch/paths/1
echo 10.0.1.1:99 > ./sys/kernel/config/farblk/maps/scratch/paths/1/addr
echo 10.0.1.2 > ./sys/kernel/config/farblk/maps/scratch/paths/1/source
echo 1 > ./sys/kernel/config/farblk/maps/scratch/paths/1/enable

"#]]);
    tree.run("--dry-run path rm scratch 0")
        .success()
        .stdout_eq(str![[r#"
echo 0 > ./sys/kernel/config/farblk/maps/scratch/paths/0/enable
rmdir ./sys/kernel/config/farblk/maps/scratch/paths/0

"#]]);
    tree.config("maps/scratch/state", "stale");
    tree.file("proc/self/mountinfo", "");
    tree.run("--dry-run remap scratch")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
echo 0 > ./sys/kernel/config/farblk/maps/scratch/enable
echo 1 > ./sys/kernel/config/farblk/maps/scratch/enable

"#]]);
    tree.run("remap scratch").code(2).stdout_eq("").stderr_eq(str![[r#"
warning: scratch: the old contents are GONE: the disk will hold the present contents of the export, zeroes or data of other hosts. Make a new file system (mkfs); do not mount one that seems to be there
error[F0101]: cannot remap scratch: without a terminal, remap cannot ask
  hint: farblk remap scratch --yes

"#]]);
}

#[test]
fn server_lists() {
    let tree = Tree::server();
    tree.run("port list").success().stdout_eq(str![[r#"
PORT  ADDRESS         STATE      DEVICE
1     10.0.0.1:7420   listening  mlx5_0
2     [fd00::1]:7420  listening  -
10    10.0.1.1:7420   error      -
 |- last error: 10.0.1.1 is not an address of this host
 `- hint: # the port listens again by itself once its device and address are back

"#]]);
    tree.run("port list -j").success().stdout_eq(str![[r#"
{"schema":"farblk.port-list/1","host":"node-b","ports":[{"name":"1","addr":"10.0.0.1:7420","state":"listening","device":"mlx5_0","last_error":null},{"name":"2","addr":"[fd00::1]:7420","state":"listening","device":null,"last_error":null},{"name":"10","addr":"10.0.1.1:7420","state":"error","device":null,"last_error":{"errno":"EADDRNOTAVAIL","text":"10.0.1.1 is not an address of this host"}}]}

"#]]);
    tree.run("export list").success().stdout_eq(str![[r#"
EXPORT   TYPE  SIZE     MODE       ACCESS  STATE   CLIENTS  ALLOWED              DEVICE
scratch  ram   4.0 GiB  one-sided  rw      online  1/2      node-b, node-c (ro)  -

"#]]);
    tree.run("export list -o json")
        .success()
        .stdout_eq(str![[r#"
{"schema":"farblk.export-list/1","host":"node-b","exports":[{"name":"scratch","kind":"ram","mode":"one_sided","device":null,"file":null,"size_bytes":4294967296,"uuid":"6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10","instance":"b71c0000-0000-4000-8000-000000000000","read_only":false,"block_size":512,"numa_node":-1,"ports":"all","allow_any_host":false,"protection":null,"max_clients":2,"clients":1,"clients_away":0,"state":"online","last_error":null,"hosts":[{"name":"node-b","host_id":null,"access":"rw","connected":1,"key_id":null,"key_next_id":null},{"name":"node-c","host_id":null,"access":"ro","connected":0,"key_id":null,"key_next_id":null}],"registrants":[]}]}

"#]]);
    tree.run("export show scratch")
        .success()
        .stdout_eq(str![[r#"
export scratch   VOLATILE: lost when this host stops
  state       online
  type        ram, one-sided
  size        4.0 GiB (4294967296 bytes)
  access      rw
  block size  512
  NUMA node   any
  ports       all
  protection  -
  uuid        6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10
  instance    b71c0000-0000-4000-8000-000000000000
  clients     1 of at most 2
  allowed     node-b, node-c (ro)
  last error  none
  HOST    ACCESS  CONNECTED  HOST ID  KEY  NEXT KEY
  node-b  rw      1          -        -    -
  node-c  ro      0          -        -    -

"#]]);
    tree.run("export show nothing")
        .code(3)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0102]: cannot show the export: there is no export "nothing" on this host
  hint: farblk export list

"#]]);
}

#[test]
fn block_exports_are_listed() {
    let tree = Tree::storage();
    tree.run("export list").success().stdout_eq(str![[r#"
EXPORT   TYPE   SIZE     MODE       ACCESS  STATE   CLIENTS  ALLOWED              DEVICE
scratch  ram    4.0 GiB  one-sided  rw      online  1/2      node-b, node-c (ro)  -
vol1     block  1.0 GiB  two-sided  rw      online  0/1      any host             /dev/disk/by-id/wwn-0x5000
vol2     block  1.0 GiB  two-sided  rw      online  0/1      any host             /dev/loop0 ([..]/disk)

"#]]);
    tree.run("export show vol2").success().stdout_eq(str![[r#"
export vol2
  state       online
  type        block, two-sided
  device      /dev/loop0
  file        [..]/disk
  size        1.0 GiB (1073741824 bytes)
  access      rw
  block size  512
  ports       all
  protection  -
  uuid        -
  instance    -
  clients     0 of at most 1
  allowed     any host
  last error  none

"#]]);
    tree.run("-j export show vol1").success().stdout_eq(str![[r#"
{"schema":"farblk.export/1","changed":false,"export":{"name":"vol1","kind":"block","mode":"two_sided","device":"/dev/disk/by-id/wwn-0x5000","file":null,"size_bytes":1073741824,"uuid":null,"instance":null,"read_only":false,"block_size":512,"numa_node":null,"ports":"all","allow_any_host":true,"protection":null,"max_clients":1,"clients":0,"clients_away":0,"state":"online","last_error":null,"hosts":[],"registrants":[{"host":"node-b","key":"0xa","reservation":"write-exclusive-reg-only"},{"host":"node-c","key":"0xffffffffffffffff","reservation":null}]}}

"#]]);
}

#[test]
fn loop_devices_go_with_their_export() {
    let tree = Tree::storage();
    tree.run("export create vol2 --file disk --allow-any-host")
        .success()
        .stdout_eq(str![[r#"
export vol2 exists already, with these settings: block, /dev/loop0 ([..]/disk), 1.0 GiB, two-sided, rw, allowed: any host

"#]]);
    tree.run("--dry-run export resize vol2 --size 1M")
        .success()
        .stdout_eq(str![[r#"
truncate --size 1048576 [..]/disk
losetup --set-capacity /dev/loop0

"#]]);
    tree.run("--dry-run export rm vol2")
        .success()
        .stdout_eq(str![[r#"
echo 0 > ./sys/kernel/config/farblk/exports/vol2/enable
losetup --detach /dev/loop0
rmdir ./sys/kernel/config/farblk/exports/vol2

"#]]);
    assert!(!tree.0.join("log").exists());
    tree.run("export resize vol2 --size 1M").success();
    assert_eq!(
        fs::metadata(tree.0.join("disk")).expect("the file").len(),
        1 << 20
    );
    tree.losetup("echo 'losetup: /dev/loop0: no' >&2; exit 1");
    tree.run("export resize vol2 --force")
        .code(1)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0109]: cannot resize export vol2: losetup: /dev/loop0: no

"#]]);
    tree.losetup("echo \"losetup: unrecognized option '--loop-ref'\" >&2; exit 1");
    tree.run("export create vol3 --file disk")
        .code(7)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0404]: cannot create export vol3: losetup: unrecognized option '--loop-ref'
  hint: # install it: package util-linux, on Debian mount

"#]]);
    let log = fs::read_to_string(tree.0.join("log")).expect("the log");
    assert_eq!(log, "losetup --set-capacity /dev/loop0\n");
}

#[test]
fn dry_run_of_a_file_is_valid_shell() {
    let tree = Tree::new();
    tree.losetup("echo \"losetup $*\" >> log; echo /dev/loop3");
    let output = Command::new(snapbox::cmd::cargo_bin!("farblk"))
        .current_dir(&tree.0)
        .args(["--root", ".", "--dry-run", "export", "create", "x"])
        .args(["--file", "a disk", "--size", "1M", "--read-only"])
        .assert()
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/exports/x
echo block > ./sys/kernel/config/farblk/exports/x/kind
echo 1 > ./sys/kernel/config/farblk/exports/x/read_only
truncate --size 1048576 '[..]/a disk'
echo '[..]/a disk' > ./sys/kernel/config/farblk/exports/x/device_path
loop=$(losetup --find --show --loop-ref farblk --direct-io=on --read-only '[..]/a disk')
echo "$loop" > ./sys/kernel/config/farblk/exports/x/device_path
echo 1 > ./sys/kernel/config/farblk/exports/x/enable

"#]]);
    let script = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    let script = format!("set -e\nmkdir() {{ command mkdir -p \"$@\"; }}\n{script}");
    Command::new("sh")
        .current_dir(&tree.0)
        .env("PATH", tree.programs())
        .args(["-c", &script])
        .assert()
        .success();
    let path = tree
        .0
        .join("sys/kernel/config/farblk/exports/x/device_path");
    assert_eq!(fs::read_to_string(path).expect("the path"), "/dev/loop3\n");
    let file = fs::canonicalize(tree.0.join("a disk")).expect("the file");
    assert_eq!(fs::metadata(&file).expect("the file").len(), 1 << 20);
    let log = fs::read_to_string(tree.0.join("log")).expect("the log");
    let options = "--find --show --loop-ref farblk --direct-io=on --read-only";
    assert_eq!(log, format!("losetup {options} {}\n", file.display()));
}

#[test]
fn dry_run_needs_no_module_and_changes_nothing() {
    let tree = Tree::new();
    tree.run("--dry-run port add --addr 10.0.0.1")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/ports/1
echo 10.0.0.1:7420 > ./sys/kernel/config/farblk/ports/1/addr
echo 1 > ./sys/kernel/config/farblk/ports/1/enable

"#]]);
    tree.run("--dry-run port add lab --addr [fd00::1]")
        .success()
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/ports/lab
echo '[fd00::1]:7420' > ./sys/kernel/config/farblk/ports/lab/addr
echo 1 > ./sys/kernel/config/farblk/ports/lab/enable

"#]]);
    tree.run("--dry-run export create scratch --ram 4G --numa -1 --allow node-b --allow node-c:ro --ports 1,2")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/exports/scratch
echo ram > ./sys/kernel/config/farblk/exports/scratch/kind
echo -1 > ./sys/kernel/config/farblk/exports/scratch/numa_node
echo '1 2' > ./sys/kernel/config/farblk/exports/scratch/ports
mkdir ./sys/kernel/config/farblk/exports/scratch/hosts/node-b
echo rw > ./sys/kernel/config/farblk/exports/scratch/hosts/node-b/access
mkdir ./sys/kernel/config/farblk/exports/scratch/hosts/node-c
echo ro > ./sys/kernel/config/farblk/exports/scratch/hosts/node-c/access
echo 4294967296 > ./sys/kernel/config/farblk/exports/scratch/size
echo 1 > ./sys/kernel/config/farblk/exports/scratch/enable

"#]]);
    tree.run("--dry-run export allow scratch node-d --ro")
        .success()
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/exports/scratch/hosts/node-d
echo ro > ./sys/kernel/config/farblk/exports/scratch/hosts/node-d/access

"#]]);
    tree.run("--dry-run map 10.0.0.1/vol1 --name v --queues 2 --poll-queues 1 --depth 64 --inline-size 8K --io-timeout 10s --tos 104 --path 10.1.0.2@10.1.0.1")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/maps/v
echo vol1 > ./sys/kernel/config/farblk/maps/v/export
echo rw > ./sys/kernel/config/farblk/maps/v/access
echo 2 > ./sys/kernel/config/farblk/maps/v/queues
echo 1 > ./sys/kernel/config/farblk/maps/v/poll_queues
echo 64 > ./sys/kernel/config/farblk/maps/v/depth
echo 8192 > ./sys/kernel/config/farblk/maps/v/inline_size
echo 10000 > ./sys/kernel/config/farblk/maps/v/io_timeout_ms
echo 104 > ./sys/kernel/config/farblk/maps/v/tos
mkdir ./sys/kernel/config/farblk/maps/v/paths/0
echo 10.0.0.1:7420 > ./sys/kernel/config/farblk/maps/v/paths/0/addr
echo 1 > ./sys/kernel/config/farblk/maps/v/paths/0/enable
mkdir ./sys/kernel/config/farblk/maps/v/paths/1
echo 10.1.0.1:7420 > ./sys/kernel/config/farblk/maps/v/paths/1/addr
echo 10.1.0.2 > ./sys/kernel/config/farblk/maps/v/paths/1/source
echo 1 > ./sys/kernel/config/farblk/maps/v/paths/1/enable
echo 1 > ./sys/kernel/config/farblk/maps/v/enable

"#]]);
    tree.run("--dry-run discover 10.0.0.1")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/discover/tool
echo 10.0.0.1:7420 > ./sys/kernel/config/farblk/discover/tool/addr
echo 1 > ./sys/kernel/config/farblk/discover/tool/enable
cat ./sys/kernel/config/farblk/discover/tool/exports
rmdir ./sys/kernel/config/farblk/discover/tool

"#]]);
    tree.run("--dry-run -j port add --addr 10.0.0.1")
        .success()
        .stdout_eq(str![[r#"
{"schema":"farblk.dry-run/1","commands":["mkdir ./sys/kernel/config/farblk/ports/1","echo 10.0.0.1:7420 > ./sys/kernel/config/farblk/ports/1/addr","echo 1 > ./sys/kernel/config/farblk/ports/1/enable"]}

"#]]);
    assert_eq!(fs::read_dir(&tree.0).expect("the tree").count(), 0);
}

/// What configfs refuses is refused before anything is printed.
#[test]
fn dry_run_refuses_bad_values() {
    let tree = Tree::new();
    tree.file("sys/devices/system/node/node0/cpumap", "1\n");
    let numbers = [
        "-1",
        "-",
        "x",
        "1x",
        "0x10",
        "1.5",
        "1e3",
        "+1",
        "٣",
        "99999999999999999999999",
    ];
    let mut lines = Vec::new();
    for (option, bad) in [
        ("queues", &["65536", "65", "1000"][..]),
        ("poll-queues", &["65536", "65"]),
        ("depth", &["0", "1025", "4294967424"]),
        ("inline-size", &["16385", "4294971392"]),
        ("tos", &["256"]),
        (
            "io-timeout",
            &["0", "99ms", "3600001ms", "18446744073709551615ms"],
        ),
        (
            "no-path-timeout",
            &["-2", "-01", "86400001ms", "4295027296ms"],
        ),
        ("heartbeat", &["60001ms", "5m"]),
        ("reconnect-max", &["0", "99ms", "2h"]),
        ("policy", &["0", "min", "MIN-INFLIGHT", "min_inflight"]),
        ("protection", &["0", "crc32", "SEAL", "tls"]),
        (
            "expect-instance",
            &["x", "12345678-9abc-4def-8123-456789abcdef0"],
        ),
        ("source", &["x", "10.9.0.1:7420", "10.9.0"]),
        ("name", &[".e", "a/b", "é"]),
    ] {
        let of_numbers = match option {
            "inline-size" => &["-1", "x", "1x", "0x10", "+1", "1.5"][..],
            "policy" | "protection" | "expect-instance" | "source" | "name" => &[],
            // Of a time -1 is no end.
            "no-path-timeout" => &numbers[1..],
            _ => &numbers,
        };
        for value in bad.iter().chain(of_numbers) {
            lines.push(format!("map 10.9.0.1/e --{option} {value}"));
        }
    }
    for (option, bad) in [
        (
            "ram 1M --block-size",
            &["0", "256", "513", "8192", "65536", "-512", "4294967808"][..],
        ),
        (
            "ram 1M --numa",
            &["-2", "63", "1024", "4294967295", "9999999999"],
        ),
        ("ram 1M --max-clients", &["0", "65536", "4294967297"]),
        ("ram 1M --protection", &["seal", "crc32c", "0"]),
        (
            "ram",
            &[
                "0", "1000", "4097", "-1", "M", "8X", "1.5.5G", ".5G", "16E", "0.3K", "4GB",
            ],
        ),
        ("ram 512 --block-size", &["1024"]),
        (
            "ram 1M --uuid",
            &["x", "00000000-0000-0000-0000-000000000000"],
        ),
        ("ram 1M --ports", &[".p", "p/q", "1,2,3,4,5,6,7,8,9"]),
        ("ram 1M --allow", &[".p", "p/q", "b:r", "b:readonly"]),
    ] {
        lines.extend(
            bad.iter()
                .map(|value| format!("export create e --{option} {value}")),
        );
    }
    for bad in [
        "10.9.0",
        "10.9.0.256",
        "10.9.0.1:",
        "10.9.0.1:0",
        "10.9.0.1:65536",
        "10.9.0.1:-1",
        "[::1",
        "::1]:7420",
        "[fe80::1%eth0]:7420",
        "*",
        ":7420",
        "10.9.0.1:+1",
        "fd00::1:7420",
    ] {
        lines.push(format!("port add --addr {bad}"));
        lines.push(format!("map {bad}/e"));
        lines.push(format!("path add m {bad}"));
    }
    lines.push("port add --addr host.example".into());
    lines.push(format!("map 10.9.0.1/e{}", " --path 10.9.1.1".repeat(8)));
    for line in lines {
        let output = tree.run(&format!("--dry-run {line}"));
        let status = output.get_output().status.code();
        assert_eq!(status, Some(2), "{line}");
        output.stdout_eq("");
    }
    assert!(!tree.0.join("sys/kernel").exists());
}

#[test]
fn names_are_resolved_by_the_services_of_the_host() {
    let tree = Tree::new();
    tree.program(
        "getent",
        r#"[ "$*" = "ahosts node-a" ] || exit 2
echo "10.0.0.7        STREAM node-a"
echo "10.0.0.7        DGRAM"
echo "fd00::7         STREAM""#,
    );
    let output = tree.run("--dry-run map node-a:99/e").success();
    let script = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    assert!(script.contains("\necho 10.0.0.7:99 > "), "{script}");
    tree.run("-q --dry-run map node-b/e")
        .code(5)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0201]: cannot map node-b/e: node-b has no address
  hint: getent hosts node-b  # or give an IP address

"#]]);
}

#[test]
fn dry_run_sees_what_exists() {
    let tree = Tree::server();
    tree.run("--dry-run port add --addr 10.0.0.1")
        .success()
        .stdout_eq("");
    tree.run("--dry-run port add --addr 10.0.2.1")
        .success()
        .stdout_eq(str![[r#"
mkdir ./sys/kernel/config/farblk/ports/3
echo 10.0.2.1:7420 > ./sys/kernel/config/farblk/ports/3/addr
echo 1 > ./sys/kernel/config/farblk/ports/3/enable

"#]]);
    tree.run("--dry-run export rm scratch --force")
        .success()
        .stdout_eq(str![[r#"
echo 0 > ./sys/kernel/config/farblk/exports/scratch/enable
rmdir ./sys/kernel/config/farblk/exports/scratch/hosts/node-b
rmdir ./sys/kernel/config/farblk/exports/scratch/hosts/node-c
rmdir ./sys/kernel/config/farblk/exports/scratch

"#]]);
    tree.run("--dry-run export deny scratch node-c")
        .success()
        .stdout_eq(str![[r#"
rmdir ./sys/kernel/config/farblk/exports/scratch/hosts/node-c
echo node-c > ./sys/kernel/config/farblk/exports/scratch/evict || grep -q ^ENOENT ./sys/kernel/config/farblk/exports/scratch/refusal

"#]]);
}

#[test]
fn dry_run_is_valid_shell() {
    let tree = Tree::new();
    let root = tree.0.join("it's a root");
    let output = Command::new(snapbox::cmd::cargo_bin!("farblk"))
        .arg("--root")
        .arg(&root)
        .args(["--dry-run", "export", "create", "x", "--ram", "1M"])
        .args(["--ports", "1,2", "--numa", "-1", "--allow", "node-b:ro"])
        .assert()
        .success();
    let script = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    let script = format!("set -e\nmkdir() {{ command mkdir -p \"$@\"; }}\n{script}");
    Command::new("sh").args(["-c", &script]).assert().success();
    let export = root.join("sys/kernel/config/farblk/exports/x");
    for (attribute, value) in [
        ("size", "1048576\n"),
        ("ports", "1 2\n"),
        ("numa_node", "-1\n"),
        ("hosts/node-b/access", "ro\n"),
        ("enable", "1\n"),
    ] {
        let text = fs::read_to_string(export.join(attribute)).expect(attribute);
        assert_eq!(text, value, "{attribute}");
    }
}

#[test]
fn no_module() {
    let tree = Tree::new();
    for line in [
        "list",
        "port list",
        "export list",
        "map 10.0.0.1/x",
        "unmap x",
        "discover 10.0.0.1",
        "show x",
        "remap x",
        "path list x",
        "path add x 10.0.0.1",
        "path rm x 0",
    ] {
        tree.run(line).code(7).stdout_eq("").stderr_eq(str![[r#"
error[F0401]: the farblk kernel module is not loaded: ./sys/kernel/config/farblk does not exist
  hint: modprobe farblk

"#]]);
    }
}

#[test]
fn why_there_is_no_module() {
    let tree = Tree::new();
    tree.file("proc/sys/kernel/osrelease", "7.3.1-x\n");
    for dependencies in [None, Some("kernel/x/farblk_other.ko:\n")] {
        if let Some(text) = dependencies {
            tree.file("lib/modules/7.3.1-x/modules.dep", text);
        }
        tree.run("list").code(7).stderr_eq(str![[r#"
error[F0405]: the farblk kernel module is not installed for this kernel: the modules of kernel 7.3.1-x have no farblk
  hint: apt install farblk-modules-7.3.1-x  # the package
  hint: make install KERNEL=7.3.1-x  # or, in the sources of farblk

"#]]);
    }
    // A package for such a kernel cannot exist.
    let unfit = |release: &str, why: &str| {
        tree.file("proc/sys/kernel/osrelease", &format!("{release}\n"));
        let output = tree.run("list").code(7);
        let text = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        let error = format!(
            "error[F0405]: the farblk kernel module is not installed for this kernel: kernel {release} cannot run farblk: {why}\n"
        );
        assert!(text.starts_with(&error), "{text}");
        assert!(!text.contains("farblk-modules"), "{text}");
    };
    unfit("6.12.9+deb13-amd64", "it is older than 7.2");
    unfit("7.1.0", "it is older than 7.2");
    tree.file(
        "boot/config-7.10.0",
        "CONFIG_RUST_IS_AVAILABLE=y\n# CONFIG_RUST is not set\n",
    );
    unfit("7.10.0", "it was built without CONFIG_RUST");
    tree.file("proc/sys/kernel/osrelease", "7.3.1-x\n");
    tree.file("boot/config-7.3.1-x", "CONFIG_RUST=y\n");
    let module = "lib/modules/7.3.1-x/updates/farblk.ko";
    tree.file(
        "lib/modules/7.3.1-x/modules.dep",
        "kernel/x/ib_core.ko:\nupdates/farblk.ko: kernel/x/ib_core.ko\n",
    );
    tree.file(module, "ELF");
    let unloaded = || {
        let output = tree.run("list").code(7);
        let text = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(text.starts_with("error[F0401]: "), "{text}");
        assert!(text.contains("\n  hint: modprobe farblk\n"), "{text}");
        text
    };
    unloaded();
    for (file, text) in [
        ("sys/module/module/parameters/sig_enforce", "Y\n"),
        (
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        ),
    ] {
        tree.file(file, text);
        tree.run("list").code(7).stderr_eq(str![[r#"
error[F0407]: this kernel loads signed modules only, as Secure Boot demands: ./lib/modules/7.3.1-x/updates/farblk.ko is not signed
  hint: ./lib/modules/7.3.1-x/build/scripts/sign-file sha256 KEY.priv KEY.der ./lib/modules/7.3.1-x/updates/farblk.ko
  hint: mokutil --import KEY.der  # and reboot, unless this host knows the key

"#]]);
        tree.file(module, "ELF~Module signature appended~\n");
        // A key that the kernel does not know looks like a module that nobody has loaded.
        tree.run("list").code(7).stderr_eq(str![[r#"
error[F0401]: the farblk kernel module is not loaded: ./sys/kernel/config/farblk does not exist
  hint: modprobe farblk
  hint: mokutil --import KEY.der  # or, if modprobe says that the key was rejected: then reboot

"#]]);
        tree.file(module, "ELF");
        fs::remove_file(tree.0.join(file)).expect("a file");
    }
    // DKMS compresses what it has signed with its own key.
    tree.file("sys/module/module/parameters/sig_enforce", "Y\n");
    tree.file(
        "lib/modules/7.3.1-x/modules.dep",
        "updates/dkms/farblk.ko.xz:\n",
    );
    assert!(unloaded().contains("mokutil --import KEY.der  # or, "));
    tree.file("var/lib/dkms/mok.pub", "");
    assert!(unloaded().contains("mokutil --import ./var/lib/dkms/mok.pub  # or, "));
    fs::create_dir_all(tree.0.join("sys/module/farblk")).expect("a directory");
    tree.run("list").code(7).stderr_eq(str![[r#"
error[F0406]: configfs is not mounted: farblk is loaded, but ./sys/kernel/config/farblk does not exist
  hint: mount -t configfs none /sys/kernel/config

"#]]);
}

#[test]
fn schemas() {
    let tree = Tree::new();
    let output = tree.run("schema list").success().stderr_eq("");
    let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    assert!(text.starts_with("SCHEMA  "), "{text}");
    let names: Vec<_> = text
        .lines()
        .skip(1)
        .flat_map(|line| line.split(' ').next())
        .collect();
    assert!(names.contains(&"farblk.list/1"), "{text}");
    let output = tree.run("-j schema list").success();
    let list: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
    assert_eq!(list["schemas"].as_array().map(Vec::len), Some(names.len()));
    for name in names {
        let show = |line: &str| {
            let output = tree.run(&format!("{line} {name}")).success().stderr_eq("");
            String::from_utf8_lossy(&output.get_output().stdout).into_owned()
        };
        let (long, short) = (show("schema show"), show("-j schema show"));
        assert_eq!(
            (short.lines().count(), long.lines().count() > 10),
            (1, true)
        );
        let [long, short] = [long, short].map(|text| serde_json::from_str::<Value>(&text));
        let (long, short) = (long.expect("JSON"), short.expect("JSON"));
        assert_eq!((&long, long["title"].as_str()), (&short, Some(name)));
    }
    tree.run("schema show lst")
        .code(3)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0102]: cannot show the schema: there is no schema "lst"
  hint: farblk schema list

"#]]);
}

/// A host without the module, with one software device on eth0.
fn host_with_rxe() -> Tree {
    let tree = Tree::new();
    for (path, text) in [
        ("sys/class/infiniband/rxe0/parent", "eth0"),
        ("sys/class/net/eth0/mtu", "1500"),
        ("sys/class/net/eth0/flags", "0x1003"),
        ("sys/class/net/eth0/type", "1"),
        ("sys/class/net/eth0/operstate", "up"),
        ("sys/class/net/lo/type", "772"),
        ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE"),
        ("sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet"),
        (
            "sys/class/infiniband/rxe0/ports/1/gids/0",
            "fe80:0000:0000:0000:5054:00ff:fe12:3401",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gids/1",
            "0000:0000:0000:0000:0000:ffff:0a09:0001",
        ),
        (
            "sys/class/infiniband/rxe0/ports/1/gid_attrs/types/1",
            "RoCE v2",
        ),
        ("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw"),
    ] {
        tree.file(path, &format!("{text}\n"));
    }
    for directory in ["ports", "exports", "maps", "discover"] {
        fs::create_dir_all(tree.0.join("sys/kernel/config/farblk").join(directory))
            .expect("a directory");
    }
    tree.config("host_name", "node-b");
    tree.config("version", env!("CARGO_PKG_VERSION"));
    tree
}

#[test]
fn doctor_is_content() {
    let tree = host_with_rxe();
    tree.run("doctor")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
      CHECK     FINDING
ok    module    farblk [..] is loaded
ok    version   the tool and the module are [..]
ok    rdma      rxe0/1, software on eth0
ok    link      rxe0/1 is ACTIVE
ok    gid       10.9.0.1 has a RoCE v2 GID on rxe0/1
ok    mtu       eth0 has MTU 1500: RDMA packets of 1024 bytes; 4200 on every hop gives 4096
ok    firewall  no rule of this host drops RoCE (UDP port 4791)

"#]]);
    let output = tree.run("-j doctor").success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
    assert_eq!(
        (&document["result"], &document["exit"], &document["host"]),
        (&"ok".into(), &0.into(), &"node-b".into())
    );
    tree.run("--dry-run doctor").code(2).stdout_eq("");
}

#[test]
fn doctor_repeats_what_the_kernel_said() {
    let tree = host_with_rxe();
    fs::remove_dir_all(tree.0.join("sys/kernel/config/farblk")).expect("a folder");
    tree.file("proc/sys/kernel/osrelease", "7.3.1-x\n");
    tree.file("lib/modules/7.3.1-x/modules.dep", "updates/farblk.ko:\n");
    for (words, cure) in [
        (
            "disagrees about version of symbol module_layout",
            "make install KERNEL=7.3.1-x",
        ),
        (
            "loading of module with unavailable key is rejected",
            "modprobe farblk",
        ),
    ] {
        tree.program(
            "dmesg",
            &format!("echo '[ 1.5] farblk: {words}'; echo '[ 2.5] eth0: up'"),
        );
        let output = tree.run("doctor").code(11);
        let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
        assert!(
            text.contains(&format!("when it was to be loaded: {words}\n")),
            "{text}"
        );
        assert!(text.contains(cure), "{text}");
    }
}

/// Objects of the files that nobody has restored.
#[test]
fn doctor_misses_what_should_run() {
    let tree = host_with_rxe();
    tree.file("etc/farblk/server.toml", "[port.a]\naddr = \"10.9.0.1\"\n");
    tree.file(
        "etc/farblk/client.toml",
        "host_name = \"node-x\"\n[map.m]\nexport = \"e\"\n[map.m.paths.0]\naddr = \"10.9.0.2\"\n\
         [map.off]\nenabled = false\nexport = \"e\"\n[map.off.paths.0]\naddr = \"10.9.0.2\"\n",
    );
    let output = tree.run("doctor").code(11);
    let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    for want in [
        "FAIL  port      port a of ./etc/farblk/server.toml:1 does not run\n",
        "warn  map       map m of ./etc/farblk/client.toml:2 does not run\n",
        "fix: farblk config restore --map m\n",
        "servers know this host as node-b, and a file has host_name node-x\n",
    ] {
        assert!(text.contains(want), "{want:?}: {text}");
    }
    assert!(!text.contains("map off"), "{text}");
}

/// Each fault is named with its cure; `doctor` says no more of what was cured.
#[test]
fn doctor_names_faults() {
    let port = "sys/class/infiniband/rxe0/ports/1";
    let mode = "sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode";
    let fstab = "/dev/farblk/by-name/x /x ext4 noatime 0 2\n";
    type Fault<'a> = (&'a str, &'a dyn Fn(&Tree), u8, &'a str, &'a str);
    let flux = |tree: &Tree| {
        let heading = "Iface Destination Gateway Flags RefCnt Use Metric Mask";
        let route = |netdev: &str, network: [u8; 4], mask: [u8; 4]| {
            let number = |bytes| u32::from_ne_bytes(bytes);
            format!(
                "{netdev} {:08X} 00000000 0001 0 0 0 {:08X} 0 0 0\n",
                number(network),
                number(mask)
            )
        };
        let [net, all] = [[255, 255, 255, 0], [255; 4]];
        let routes = route("eth0", [10, 9, 0, 0], net)
            + &route("eth1", [10, 9, 0, 0], net)
            + &route("eth2", [10, 9, 1, 0], net)
            + &route("*", [10, 9, 0, 7], all)
            + &route("*", [10, 8, 0, 7], all);
        tree.file("proc/net/route", &format!("{heading}\n{routes}"));
        tree.file("proc/sys/net/ipv4/conf/all/arp_ignore", "0\n");
        tree.file("proc/sys/net/ipv4/conf/eth0/arp_ignore", "0\n");
    };
    let faults: [Fault; 15] = [
        (
            "GSI queue pair",
            &|tree| {
                tree.program(
                    "rdma",
                    "echo 'link rxe0/1 lqpn 1 type GSI state ERR sq-psn 0'",
                );
            },
            11,
            "the GSI queue pair of rxe0/1 is in error, since a packet could not be sent",
            "rdma link delete rxe0 && rdma link add rxe0 type rxe netdev eth0",
        ),
        (
            "bridge",
            &|tree| {
                tree.file("sys/class/net/eth0/brport/state", "3\n");
                symlink("../br0", tree.0.join("sys/class/net/eth0/master")).expect("a link");
            },
            11,
            "rxe0/1 is on eth0, a port of the bridge br0",
            "rdma link delete rxe0 && rdma link add rxe0 type rxe netdev br0",
        ),
        (
            "ARP",
            &flux,
            10,
            "eth0 and eth1 are both in 10.9.0.0/24",
            "sysctl -w net.ipv4.conf.all.arp_ignore=1",
        ),
        (
            "blackhole",
            &flux,
            10,
            "the route 10.9.0.7/32 of this host, in the network of eth0, drops packets",
            "ip route delete 10.9.0.7/32",
        ),
        (
            "iptables-legacy",
            &|tree| {
                tree.file("sys/module/x_tables/refcnt", "1\n");
                tree.file("proc/net/ip_tables_names", "filter\n");
                tree.program(
                    "iptables-save",
                    "echo '*filter'; echo ':INPUT ACCEPT [0:0]'",
                );
                tree.program(
                    "iptables-legacy-save",
                    "echo '*filter'; echo ':INPUT DROP [0:0]'",
                );
            },
            11,
            "the policy of chain INPUT of table filter (iptables-legacy) drops RoCE",
            "iptables-legacy -I INPUT -p udp --dport 4791 -j ACCEPT",
        ),
        (
            "name",
            &|tree| tree.file("proc/sys/kernel/hostname", "node-c\n"),
            10,
            "servers know this host as node-b, but its name is node-c",
            "echo node-c > /sys/kernel/config/farblk/host_name",
        ),
        (
            "module",
            &|tree| fs::remove_dir_all(tree.0.join("sys/kernel/config/farblk")).expect("a folder"),
            11,
            "FAIL  module    the farblk kernel module is not loaded: ./sys/kernel/config/farblk does not exist",
            "modprobe farblk",
        ),
        (
            "version",
            &|tree| tree.config("version", "9.9"),
            10,
            "the module that is loaded 9.9",
            "modprobe -r farblk && modprobe farblk",
        ),
        (
            "rdma",
            &|tree| fs::remove_dir_all(tree.0.join("sys/class/infiniband")).expect("a folder"),
            11,
            "this host has no RDMA device",
            "rdma link add rxe0 type rxe netdev eth0",
        ),
        (
            "link",
            &|tree| {
                tree.file(&format!("{port}/state"), "1: DOWN\n");
                tree.file("sys/class/net/eth0/flags", "0x1002\n");
            },
            11,
            "rxe0/1 is DOWN: its interface eth0 is switched off",
            "ip link set dev eth0 up",
        ),
        (
            "address",
            &|tree| tree.file(&format!("{port}/gids/1"), "\n"),
            11,
            "rxe0/1 has no GID of an IP address: eth0 has no address",
            "ip address add ADDRESS/LENGTH dev eth0",
        ),
        (
            "gid",
            &|tree| tree.file(mode, "IB/RoCE v1\n"),
            10,
            "connections over rxe0/1 use IB/RoCE v1",
            "echo 'RoCE v2' > ./sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode",
        ),
        (
            "firewall",
            &|tree| {
                tree.file("sys/module/x_tables/refcnt", "1\n");
                tree.program("iptables-save", "echo '*filter'; echo ':INPUT DROP [0:0]'");
            },
            11,
            "the policy of chain INPUT of table filter (iptables) drops RoCE (UDP port 4791)",
            "iptables -I INPUT -p udp --dport 4791 -j ACCEPT",
        ),
        (
            "fstab",
            &|tree| tree.file("etc/fstab", fstab),
            11,
            "line 1 of /etc/fstab (/x) lacks _netdev and nofail",
            "sed -i -E '1s/",
        ),
        (
            "map",
            &|tree| {
                for (name, value) in [
                    ("state", "failed"),
                    ("export", "vol1"),
                    ("last_error", "EACCES the export does not admit this host"),
                    ("paths/0/addr", "10.9.0.1:7420"),
                    ("paths/0/state", "waiting"),
                    (
                        "paths/0/last_error",
                        "EACCES the export does not admit this host",
                    ),
                ] {
                    tree.config(&format!("maps/vol1/{name}"), value);
                }
            },
            11,
            "map vol1 is failed: the export does not admit this host",
            "farblk export allow vol1 node-b",
        ),
    ];
    for (name, fault, code, finding, fix) in faults {
        let tree = host_with_rxe();
        fault(&tree);
        let output = tree.run("doctor").code(i32::from(code));
        let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
        assert!(text.contains(finding), "{name}: {text}");
        assert!(text.contains(fix), "{name}: {text}");
        let output = tree.run("-j doctor").code(i32::from(code));
        let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
        for check in document["checks"].as_array().expect("checks") {
            let is_bad = check["level"] == "fail" || check["level"] == "warn";
            let hints = check["hints"].as_array().map_or(0, Vec::len);
            assert_eq!(is_bad, hints > 0, "{name}: {check}");
        }
    }
}

#[test]
fn doctor_cures_fstab() {
    let tree = host_with_rxe();
    tree.file(
        "etc/fstab",
        "# comment\n/dev/sda1 / ext4 defaults 0 1\n  /dev/farblk/by-name/x\t/x  ext4 noatime,nofail 0 2\n\
         /dev/farblk/by-name/y /y ext4 noauto 0 0\nUUID=12-34 /z vfat _netdev\n",
    );
    fs::create_dir_all(tree.0.join("dev/disk/by-uuid")).expect("a folder");
    symlink("../../farblk3", tree.0.join("dev/disk/by-uuid/12-34")).expect("a link");
    let output = tree.run("-j doctor").code(11);
    let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
    let mut levels = Vec::new();
    for check in document["checks"].as_array().expect("checks") {
        if check["name"] == "fstab" {
            levels.push(check["level"].as_str().unwrap_or_default().to_owned());
            Command::new("sh")
                .current_dir(&tree.0)
                .args(["-c", check["hint"].as_str().expect("a hint")])
                .assert()
                .success();
        }
    }
    assert_eq!(levels, ["fail", "warn"]);
    let text = fs::read_to_string(tree.0.join("etc/fstab")).expect("fstab");
    assert!(
        text.contains("\n  /dev/farblk/by-name/x\t/x  ext4 noatime,nofail,_netdev 0 2\n"),
        "{text}"
    );
    assert!(
        text.contains("\nUUID=12-34 /z vfat _netdev,nofail\n"),
        "{text}"
    );
    let output = tree.run("doctor").success();
    let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    assert!(
        text.contains("3 file systems of farblk disks wait for the network"),
        "{text}"
    );
}

/// No option of a line for swap lets the host boot; its cures and those of crypttab hold.
#[test]
fn doctor_cures_swap_and_crypttab() {
    let tree = host_with_rxe();
    tree.file(
        "etc/fstab",
        "/dev/farblk/by-name/x-part2 none swap _netdev,nofail 0 0\n/dev/sda2 none swap sw 0 0\n\
         UUID=12-34 none swap sw 0 0\n/dev/mapper/secret none swap nofail 0 0\n",
    );
    tree.file(
        "etc/crypttab",
        "# name source key options\nsecret /dev/farblk/by-name/y /dev/urandom swap\n\
         plain /dev/farblk/by-name/z\nother /dev/sda3 none luks\n",
    );
    fs::create_dir_all(tree.0.join("dev/disk/by-uuid")).expect("a folder");
    symlink("../../farblk3p1", tree.0.join("dev/disk/by-uuid/12-34")).expect("a link");
    tree.config("maps/m/device", "farblk3");
    tree.config("maps/m/state", "live");
    tree.program("systemctl", "echo \"$*\" >>etc/enabled");
    let output = tree.run("-j doctor").code(11);
    let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
    let mut levels = Vec::new();
    for check in document["checks"].as_array().expect("checks") {
        if check["name"] == "fstab" {
            levels.push(check["level"].as_str().unwrap_or_default().to_owned());
            Command::new("sh")
                .current_dir(&tree.0)
                .env("PATH", tree.programs())
                .args(["-c", check["hint"].as_str().expect("a hint")])
                .assert()
                .success();
        }
    }
    assert_eq!(levels, ["fail"; 5]);
    let text = |path: &str| fs::read_to_string(tree.0.join(path)).expect(path);
    assert_eq!(
        text("etc/fstab"),
        "#/dev/farblk/by-name/x-part2 none swap _netdev,nofail 0 0\n/dev/sda2 none swap sw 0 0\n\
         #UUID=12-34 none swap sw 0 0\n/dev/mapper/secret none swap nofail,noauto 0 0\n",
    );
    assert_eq!(
        text("etc/crypttab"),
        "# name source key options\nsecret /dev/farblk/by-name/y /dev/urandom swap,_netdev,nofail\n\
         plain /dev/farblk/by-name/z none _netdev,nofail\nother /dev/sda3 none luks\n",
    );
    assert_eq!(
        text("etc/enabled"),
        "enable farblk-map@x farblk-swap@x\nenable farblk-map@m farblk-swap@m\n"
    );
    tree.run("doctor").success();
}

#[test]
fn doctor_repeats_what_dkms_lacked() {
    let tree = host_with_rxe();
    fs::remove_dir_all(tree.0.join("sys/kernel/config/farblk")).expect("a folder");
    tree.file("proc/sys/kernel/osrelease", "7.3.4-x\n");
    for (log, wanted) in [
        (
            "ok: rustc\nmissing: bindgen\n  fix: apt install bindgen\nresult: 1 missing\n",
            "FAIL  module    DKMS could not build farblk for 7.3.4-x: bindgen\n\
             \x20       fix: apt install bindgen\n\
             \x20       fix: dkms autoinstall --kernelver 7.3.4-x\n",
        ),
        (
            "ok: rustc\nresult: ready\nfailed: /var/lib/dkms/farblk/1/build/make.log says why\n",
            "FAIL  module    DKMS could not build farblk for 7.3.4-x: \
             /var/lib/dkms/farblk/1/build/make.log says why\n\
             \x20       fix: dkms autoinstall --kernelver 7.3.4-x\n",
        ),
    ] {
        tree.file("var/lib/farblk/dkms-7.3.4-x.log", log);
        let output = tree.run("doctor").code(11);
        let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
}

#[test]
fn explanations() {
    let tree = Tree::new();
    tree.run("explain F0203")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
F0203: nobody listens there (exit code 5)

  The RDMA device of the server answered that nothing listens at this address and port: the
  module is not loaded there, no port was added, or the port has another number.

  What to do:
    farblk port list  # on the server: is the farblk module loaded there? is the port right?

  Example:
    farblk port add --addr 10.0.0.1  # on the server

"#]]);
    let name = |line: &str| {
        let output = tree.run(&format!("-j explain {line}")).success();
        let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
        let topics = document["topics"].as_array().expect("topics");
        let names = topics
            .iter()
            .map(|topic| topic["name"].as_str().unwrap_or_default());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(name("f0401"), "F0401");
    assert_eq!(name("EACCES the export does not admit this host"), "F0204");
    assert_eq!(name("firewall"), "firewall");
    let all = name("");
    assert!(
        all.starts_with("F0101 ") && all.ends_with(" admission"),
        "{all}"
    );
    tree.run("explain F02O4")
        .code(3)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0102]: cannot explain it: nothing is known of "F02O4"
  hint: farblk explain F0204  # did you mean F0204?

"#]]);
}

/// The files of an archive.
fn unpack(path: &std::path::Path) -> BTreeMap<String, String> {
    let file = fs::File::open(path).expect("an archive");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("a text");
        let name = name.strip_prefix("farblk-report/").expect("the folder");
        files.insert(name.to_owned(), text);
    }
    files
}

#[test]
fn a_report_has_no_secrets() {
    let tree = Tree::server();
    let id = "2b1f0f4c-9a55-4d3a-8f0e-6f9d52f1c003";
    let machine = "0123456789abcdef0123456789abcdef";
    tree.config("host_id", id);
    tree.config("exports/scratch/registration", "1311768467294899695");
    tree.config("exports/scratch/hosts/node-c/host_id", id);
    // These have no entry.
    tree.config("exports/scratch/pr_registrants", "guest-1 0x1f");
    let lost = "export scratch: lost host guest-2:eth1: the connection was lost";
    let waits = "map m: no usable path, I/O waits: in use by guest-3, away for 3 s of 60 s";
    tree.config(
        "maps/m/last_error",
        "EBUSY in use by storage9, away for 3 s",
    );
    tree.config("maps/m/paths/0/addr", "[fd00::77]:7420");
    tree.file("proc/sys/kernel/hostname", "node-b\n");
    tree.file(
        "etc/hosts",
        "127.0.0.1 localhost\n10.0.0.9 backup.example.org backup # x\n",
    );
    tree.file("etc/farblk/host_id", &format!("{id}\n"));
    tree.file(
        "etc/farblk/server.d/node-d.toml",
        "# the password of node-x is geheim\n[export.vol1]\nram = \"1G\"\n[export.vol1.hosts]\nnode-d = \"rw\"\n",
    );
    tree.file(
        "etc/farblk/client.toml",
        "[map.data]\nexport = \"vol1\"\n[map.data.paths]\n0 = \"10.0.1.2@tango:7421\"\n",
    );
    tree.file("etc/farblk/client.d/bad.toml", "secret secret\n");
    // What is not farblk's stays where it is, and so do copies that an editor has made.
    tree.file("etc/farblk/node-c.pem", "-----BEGIN KEY-----\nZZZZ\n");
    tree.file("etc/farblk/client.d/x.toml~", "key = \"ZZZZ\"\n");
    tree.file("etc/farblk/server.toml.1", "[export.old]\nram = \"2G\"\n");
    tree.file("etc/farblk/keys/host_id", "ZZZZ\n");
    // Keys are not even taken from where they should not be.
    tree.file("etc/farblk/keys/vol1.key", &format!("{KEY}\n"));
    tree.file(
        "etc/farblk/client.d/key.toml",
        &format!("[map.k]\nkey_file = {KEY:?}\npaths = {{ 0 = \"10.0.0.1\" }}\n"),
    );
    tree.config("exports/scratch/hosts/node-c/key_id", KEY_ID);
    tree.config("maps/m/key", KEY);
    tree.file(
        "sys/kernel/debug/farblk/note",
        &format!("lost {KEY}, and {}\n", &KEY[..30]),
    );
    tree.file("etc/farblk/backup.toml", "key = \"ZZZZ\"\n");
    tree.file("etc/farblk/client.d/.draft.toml", "key = \"ZZZZ\"\n");
    tree.file(
        "etc/farblk/registrations",
        &format!("{id} 1311768467294899695\n"),
    );
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    for (file, text) in [
        ("state", "4: ACTIVE"),
        ("link_layer", "Ethernet"),
        ("gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        ("counters/port_rcv_data", "77123"),
    ] {
        tree.file(&format!("{port}/{file}"), &format!("{text}\n"));
    }
    tree.file(
        "sys/class/infiniband/mlx5_0/node_guid",
        "5254:00ff:fe12:3401\n",
    );
    tree.file(
        "sys/kernel/debug/farblk/server/counters",
        "logins 3\nhost node-b rkey=0x1f00ab at 0a000001\n",
    );
    tree.program("journalctl", "echo '-- No entries --'");
    tree.program(
        "dmesg",
        &format!(
            "echo '[1.0] usb 1-1: TANGO-USB'\necho '[2.0] farblk: 10.0.0.1 rdma://[fd00::77]:7420/x'\n\
             echo '[2.1] farblk: {lost}'\necho '[2.2] farblk: {waits}'\n\
             echo '[3.0] rxe0: {machine} 5254:00ff:fe12:3401 52:54:00:12:34:01'"
        ),
    );
    tree.program(
        "systemctl",
        "echo 'farblk-map@data.service loaded'; echo node-b.example.org",
    );
    tree.program("ip", "echo 'eth0 UP 10.0.0.1/24 fd00::77/64'");
    tree.program("rdma", "echo 'link mlx5_0/1 state ACTIVE netdev eth0'");
    let output = tree.run("report --file r.tar.gz").success().stderr_eq("");
    let printed = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    let path = tree.0.join("r.tar.gz");
    let mode = fs::metadata(&path)
        .expect("the archive")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = unpack(&path);
    let all = files
        .iter()
        .map(|(name, text)| format!("{name}\n{text}"))
        .collect::<Vec<_>>()
        .concat();
    let lower = format!("{all}{printed}").to_lowercase();
    for secret in [
        id,
        machine,
        "2b1f0f4c9a55",
        "1311768467294899695",
        "10.0.0.1",
        "10.0.1.",
        "fd00:",
        "0a00:0001",
        "0a000001",
        "node-b",
        "node-c",
        "node-d",
        "guest-",
        ":eth1",
        "storage9",
        "backup",
        "example.org",
        "tango",
        "geheim",
        "zzzz",
        "1f00ab",
        "5254:",
        "52:54",
        "6f0e8d52",
        "b71c0000",
        "secret secret",
        &KEY[8..20].to_lowercase(),
        "farblk1:",
    ] {
        assert!(!lower.contains(secret), "{secret} in {all}");
    }
    // What helps is there, and nothing is empty.
    for (name, text) in [
        ("README", "farblk report"),
        (
            "configfs.txt",
            "/sys/kernel/config/farblk/exports/scratch/kind = ram",
        ),
        ("debugfs.txt", "logins 3"),
        (
            "devices.txt",
            "mlx5_0/ports/1/counters/port_rcv_data = 77123",
        ),
        ("kernel.txt", "farblk: ip-"),
        ("units.txt", "farblk-map@data.service loaded"),
        ("network.txt", "link mlx5_0/1 state ACTIVE"),
        ("list.json", "\"schema\":\"farblk.list/1\""),
        ("export-list.json", "\"name\":\"scratch\""),
        ("doctor.json", "\"schema\":\"farblk.doctor/1\""),
        ("system.txt", "tool = "),
        ("etc/farblk/client.toml", "export = \"vol1\""),
        (
            "etc/farblk/client.d/bad.toml",
            "not available: it is no TOML",
        ),
        ("etc/farblk/host_id", "uuid-"),
        ("etc/farblk/registrations", "uuid-"),
        ("etc/farblk/server.toml.1", "ram = \"2G\""),
        ("other-files.txt", ".pem (25 bytes)"),
        ("other-files.txt", "/etc/farblk/client.d/x.toml~ (13 bytes)"),
        ("other-files.txt", "/etc/farblk/keys/host_id (5 bytes)"),
        ("other-files.txt", "/etc/farblk/keys/vol1.key (57 bytes)"),
        ("etc/farblk/client.d/key.toml", "key_file = \"key-"),
        ("export-list.json", KEY_ID),
    ] {
        assert!(
            files.get(name).is_some_and(|have| have.contains(text)),
            "{name}: {:?}",
            files.get(name)
        );
        assert!(
            printed.contains(name) || name.contains('/'),
            "{name} in {printed}"
        );
    }
    assert!(files.values().all(|text| !text.trim().is_empty()));
    // One token for one value, in all files.
    let token = files["etc/farblk/host_id"].trim().to_owned();
    assert_eq!(token.len(), "uuid-01234567".len());
    assert!(files["configfs.txt"].contains(&format!("farblk/host_id = {token}")));
    assert!(files["configfs.txt"].contains(&format!("/host_id = {token}\n")));
    // Another archive has other tokens, and none is written over.
    tree.run("report --file r.tar.gz").code(1).stdout_eq("");
    let output = tree.run("-j report --file s.tar.gz").success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
    assert!(
        document["redacted"]
            .as_u64()
            .is_some_and(|count| count > 10),
        "{document}"
    );
    let others = unpack(&tree.0.join("s.tar.gz"));
    assert_ne!(others["etc/farblk/host_id"].trim(), token);
    let names: Vec<_> = document["files"]
        .as_array()
        .expect("files")
        .iter()
        .collect();
    assert_eq!(names.len(), others.len());
}

/// What validates the documents in the guests agrees with what does so here.
#[test]
fn the_guests_validate_documents() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../selftests/schema.py");
    let tree = Tree::client();
    let faults = |document: &Value| {
        let name = document["schema"].as_str().expect("a schema");
        let schema = tree.run(&format!("schema show {name}")).success();
        tree.file(
            "schema",
            &String::from_utf8_lossy(&schema.get_output().stdout),
        );
        let output = Command::new("python3")
            .arg(script)
            .arg(tree.0.join("schema"))
            .stdin(document.to_string())
            .assert();
        let output = output.get_output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), said.is_empty(), "{said}");
        said
    };
    let document = |line: &str| -> Value {
        let output = tree.run(line);
        serde_json::from_slice(&output.get_output().stdout).expect(line)
    };
    for line in [
        "-j list",
        "-j doctor",
        "-j metrics",
        "-j stats",
        "-j explain",
        "-j version",
    ] {
        assert_eq!(faults(&document(line)), "", "{line}");
    }
    let list = document("-j list");
    let number = Value::from(1);
    for (place, value, said) in [
        ("/maps/0/state", None, "the document.maps[0] has no state\n"),
        (
            "/maps/0/paths/0/rtt_ns",
            None,
            "maps[0].paths[0] has no rtt_ns\n",
        ),
        (
            "/maps/0/name",
            Some(&number),
            "maps[0].name is 1, no string\n",
        ),
        (
            "/maps/0/more",
            Some(&number),
            "maps[0].more may not be there\n",
        ),
        (
            "/maps/0/size_bytes",
            Some(&Value::from(-1)),
            "is -1, which is out of range\n",
        ),
        (
            "/maps/0/holders/0/kind",
            Some(&Value::from("x")),
            "holders[0] fits to 0 of 3: ",
        ),
        (
            "/maps",
            Some(&Value::Null),
            "the document.maps is null, no array\n",
        ),
    ] {
        let mut wrong = list.clone();
        let (parent, name) = place.rsplit_once('/').expect("a place");
        let parent = wrong.pointer_mut(parent).and_then(Value::as_object_mut);
        let parent = parent.expect(place);
        match value {
            Some(value) => parent.insert(name.into(), value.clone()),
            None => parent.remove(name),
        };
        let have = faults(&wrong);
        assert!(have.contains(said), "{place}: {have}");
    }
}

#[test]
fn every_command_has_a_help() {
    let tree = Tree::new();
    for command in [
        "config", "stats", "top", "events", "metrics", "ping", "doctor", "report", "explain",
        "schema", "demo", "version",
    ] {
        let output = tree
            .run(&format!("{command} --help"))
            .success()
            .stderr_eq("");
        let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
        assert!(text.contains(&format!("Usage: farblk {command}")), "{text}");
    }
}

#[test]
fn versions() {
    let tree = Tree::new();
    tree.run("version")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
tool    [..]
module  - (the farblk kernel module is not loaded: ./sys/kernel/config/farblk does not exist)

"#]]);
    tree.run("-j version").success().stdout_eq(str![[r#"
{"schema":"farblk.version/1","tool":"[..]","module":null}

"#]]);
    for pretty in ["-p", "-j --pretty"] {
        tree.run(&format!("{pretty} version"))
            .success()
            .stderr_eq("")
            .stdout_eq(str![[r#"
{
  "schema": "farblk.version/1",
  "tool": "[..]",
  "module": null
}

"#]]);
    }
    let tree = Tree::loaded();
    tree.config("version", "0.1.0");
    tree.config("protocol", "3");
    tree.config("features", "ram block");
    tree.run("version")
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
tool    [..]
module  0.1.0, protocol 3, features: ram block

"#]]);
    tree.run("-j version").success().stdout_eq(str![[r#"
{"schema":"farblk.version/1","tool":"[..]","module":{"version":"0.1.0","protocol":3,"features":["ram","block"]}}

"#]]);
}

#[test]
fn usage_errors() {
    let tree = Tree::new();
    tree.run("map 10.0.0.1")
        .code(2)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0101]: invalid value '10.0.0.1' for '<HOST[:PORT]/EXPORT>': "10.0.0.1" names no export
  hint: farblk discover 10.0.0.1  # shows the exports of this server
  hint: farblk map 10.0.0.1/EXPORT

"#]]);
    tree.run("prices").code(2).stdout_eq("").stderr_eq(str![[r#"
error[F0101]: unrecognized subcommand 'prices'
  hint: farblk --help

"#]]);
    tree.run("port add 10.0.0.1")
        .code(2)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0101]: the following required arguments were not provided: --addr <IP[:PORT]>
  hint: farblk port add --addr 10.0.0.1

"#]]);
    tree.run("-j export create x --ram 4GB")
        .code(2)
        .stdout_eq("")
        .stderr_eq(str![[r#"
{"schema":"farblk.error/1","code":"F0101","exit":2,"what":"invalid value '4GB' for '--ram <SIZE>': \"4GB\" is not a size such as 4096, 512M or 1.5G","why":"","details":[],"hint":"farblk export create --help","hints":["farblk export create --help"]}

"#]].raw());
    for form in ["-qj", "-o json", "--output json"] {
        let output = tree
            .run(&format!("{form} export create ../x --ram 4G"))
            .code(2);
        let stderr = String::from_utf8_lossy(&output.get_output().stderr);
        assert!(
            stderr.starts_with(r#"{"schema":"farblk.error/1""#),
            "{form}: {stderr}"
        );
    }
    tree.run("export create ../x --ram 4G")
        .code(2)
        .stdout_eq("");
}

#[test]
fn the_kernels_words_are_shown() {
    // Writing to /dev/full gives ENOSPC, as a kernel would that has no memory.
    let tree = Tree::server();
    let enable = tree.0.join("sys/kernel/config/farblk/ports/10/enable");
    fs::remove_file(&enable).expect("a file");
    symlink("/dev/full", &enable).expect("a link");
    tree.config("ports/10/refusal", "ENOSPC no room on 10.0.1.1");
    tree.run("port add --addr 10.0.1.1")
        .code(1)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0108]: cannot listen on 10.0.1.1:7420: no room on 10.0.1.1
  hint: # use a smaller size, or free memory: the pages of a RAM export are never swapped

"#]]);
    tree.run("--color always port add --addr 10.0.1.1")
        .code(1)
        .stderr_eq(str![[r#"
[1m[31merror[F0108][0m: cannot listen on 10.0.1.1:7420: no room on 10.0.1.1
  [36mhint:[0m # use a smaller size, or free memory: the pages of a RAM export are never swapped

"#]]);
}

#[test]
fn nothing_half_made_is_left() {
    // Objects made in this tree have no attributes, so the first write fails.
    let tree = Tree::loaded();
    tree.run("port add --addr 10.0.1.1")
        .code(7)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0402]: cannot listen on 10.0.1.1:7420: ./sys/kernel/config/farblk/ports/1/addr does not exist
  hint: # do the tool and the module come from the same release?

"#]]);
    let ports = tree.0.join("sys/kernel/config/farblk/ports");
    assert_eq!(fs::read_dir(ports).expect("the ports").count(), 0);
}

#[test]
fn keys_from_files_and_from_stdin() {
    let tree = Tree::server();
    for (attribute, value) in [("key", ""), ("key_id", ""), ("key_next_id", KEY_ID)] {
        tree.config(&format!("exports/scratch/hosts/node-b/{attribute}"), value);
    }
    tree.run("key new a.key")
        .success()
        .stdout_eq("")
        .stderr_eq("key id [..], in a.key\n");
    let path = tree.0.join("a.key");
    let mode = |path: &PathBuf| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    let text = fs::read_to_string(&path).expect("a file");
    assert!(text.starts_with("farblk1:") && text.len() == 57, "{text}");
    tree.run("key new a.key")
        .code(1)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0103]: cannot make a key: a.key exists already
  hint: farblk key id a.key  # which key is in it?
  hint: farblk key new FILE  # or choose another file

"#]]);
    tree.run("key new none/a.key").code(1).stderr_eq(str![[r#"
error[F0109]: cannot make a key: the folder of none/a.key does not exist
  hint: install -d -m 700 none

"#]]);
    // One that is killed when it has made the file, and not written it, is in nobody's way.
    let killed = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 0; exec \"$0\" key new c.key"])
        .arg(env!("CARGO_BIN_EXE_farblk"))
        .current_dir(&tree.0)
        .output()
        .expect("sh");
    assert!(!killed.status.success(), "{killed:?}");
    tree.run("key new c.key").success();
    let names = fs::read_dir(&tree.0).expect("a folder").flatten();
    let names = names.filter(|name| name.file_name().to_string_lossy().contains("c.key"));
    assert_eq!(names.count(), 1);
    // The folder of keys is made, for root alone.
    tree.run("key new ./etc/farblk/keys/b.key").success();
    assert_eq!(mode(&tree.0.join("etc/farblk/keys")), 0o700);

    let key = tree.run("key new").success().stderr_eq("key id [..]\n");
    let key = String::from_utf8_lossy(&key.get_output().stdout).into_owned();
    assert!(key.starts_with("farblk1:") && key.len() == 57, "{key}");
    assert_ne!(key, text);
    let ids = |line: &str, key: &str| {
        let output = tree.run_with(line, key).success().stderr_eq("");
        String::from_utf8_lossy(&output.get_output().stdout).into_owned()
    };
    assert_eq!(ids("key id", KEY), format!("{KEY_ID}\n"));
    assert_eq!(ids("key id -", &format!("{KEY}\n")), format!("{KEY_ID}\n"));
    assert_eq!(
        ids("-j key id", KEY),
        format!("{{\"schema\":\"farblk.key/1\",\"id\":\"{KEY_ID}\",\"path\":null}}\n")
    );
    assert_eq!(ids("key id a.key", "").len(), 17);
    tree.run_with("key id", "hunter2\n")
        .code(2)
        .stdout_eq("")
        .stderr_eq(str![[r#"
error[F0502]: cannot tell the key id: stdin is no key: one begins with farblk1:
  hint: farblk key new FILE  # makes one

"#]]);
    tree.run_with("-q key new", "").success().stderr_eq("");
    tree.run_with("-j key new", "").code(2).stdout_eq("");
    tree.run("key id none").code(2).stderr_eq(str![[r#"
error[F0502]: cannot tell the key id: none does not exist
  hint: farblk key new none  # makes a key; or copy the one of the other host

"#]]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("a mode");
    tree.run("key id a.key").code(2).stderr_eq(str![[r#"
error[F0502]: cannot tell the key id: a.key has the mode 0640: others than its owner have access to the key
  hint: chmod 600 a.key  # and make another key if somebody may have read this one

"#]]);

    // What is written to the kernel is a line.
    let attribute = tree
        .0
        .join("sys/kernel/config/farblk/exports/scratch/hosts/node-b/key");
    let line = "export key scratch node-b --key-file -";
    tree.run_with(&format!("--dry-run {line}"), KEY)
        .success()
        .stdout_eq("cat > ./sys/kernel/config/farblk/exports/scratch/hosts/node-b/key\n");
    tree.run_with(line, KEY).success().stderr_eq("");
    assert_eq!(
        fs::read_to_string(attribute).expect("it"),
        format!("{KEY}\n")
    );
    // A map that nobody could make again at boot is not even made.
    tree.run_with("map 10.0.0.1/vol1 --persist --key-file -", KEY)
        .code(2)
        .stderr_eq(str![[r#"
error[F0101]: cannot map 10.0.0.1/vol1: --persist cannot keep this key: it came from no file that lasts, and no file in ./etc/farblk/keys has it
  hint: # write the key to /etc/farblk/keys/NAME.key, with the mode 600, and give that as --key-file

"#]]);
    // A module without keys.
    tree.run_with("export allow scratch node-c --key-file -", KEY)
        .code(7)
        .stderr_eq(str![[r#"
error[F0402]: cannot allow node-c to use scratch: the module that is loaded has no keys: it is older than this tool
  hint: # do the tool and the module come from the same release?

"#]]);
    for words in ["key", "key new", "key id", "rekey", "export key"] {
        tree.run(&format!("{words} --help")).success().stderr_eq("");
    }
}

/// An ordinary user may not read the identity, and it may be as it should.
#[test]
fn check_does_not_advise_what_it_cannot_see() {
    let tree = Tree::loaded();
    tree.file(
        "etc/farblk/host_id",
        "33333333-3333-4333-8333-333333333333\n",
    );
    let id = tree.0.join("etc/farblk/host_id");
    let is_root = fs::metadata(&id).expect("a file").uid() == 0;
    fs::set_permissions(
        &id,
        PermissionsExt::from_mode(if is_root { 0o600 } else { 0 }),
    )
    .expect("a mode");
    let tool = tree.0.join("farblk");
    fs::copy(env!("CARGO_BIN_EXE_farblk"), &tool).expect("the tool");
    let mut command = std::process::Command::new(&tool);
    command
        .args(["--root", ".", "config", "check"])
        .current_dir(&tree.0);
    if is_root {
        command.uid(65534).gid(65534);
    }
    let output = command.output().expect("to run it");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("host_id:1: warning: Permission denied"),
        "{output:?}"
    );
    assert!(text.contains("hint: # run it as root"), "{text}");
    assert!(!text.contains("rm "), "{text}");
    assert!(output.status.success(), "{text}");
}

#[test]
fn completions_and_manual_pages() {
    let tree = Tree::client();
    for shell in ["bash", "zsh", "fish"] {
        let script = tree.run(&format!("completions {shell}")).success();
        let script = String::from_utf8_lossy(&script.get_output().stdout).into_owned();
        assert!(script.contains("_FARBLK_COMPLETE="), "{shell}: {script}");
    }
    // What the script of fish asks for, with the root of the words that have been typed.
    let candidates = |line: &str| {
        let command = Command::new(snapbox::cmd::cargo_bin!("farblk")).current_dir(&tree.0);
        let words = line.split(' ');
        let command = command
            .env("_FARBLK_COMPLETE", "fish")
            .arg("--")
            .args(words);
        let found = command.assert().success().stderr_eq("");
        String::from_utf8_lossy(&found.get_output().stdout).into_owned()
    };
    assert_eq!(candidates("farblk --root . unmap s"), "scratch\tlive\n");
    let found = candidates("farblk --root . path rm scratch ");
    assert!(found.starts_with("0\n"), "{found}");
    assert!(candidates("farblk disc").starts_with("discover\t"));
    assert!(candidates("farblk map --policy r").starts_with("round-robin\t"));
    tree.run("man man8").success().stdout_eq("").stderr_eq("");
    for page in [
        "farblk.8",
        "farblk-map.8",
        "farblk-export-create.8",
        "farblk-export-resize.8",
        "farblk-path-add.8",
        "farblk-remap.8",
    ] {
        assert!(tree.0.join("man8").join(page).exists(), "{page}");
    }
}

/// A reader that goes away ends the command, also if there is nothing to print.
#[test]
fn events_end_quietly_when_their_reader_goes_away() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    let tree = Tree::client();
    let mut child = Command::new(env!("CARGO_BIN_EXE_farblk"))
        .arg("--root")
        .arg(&tree.0)
        .args(["-j", "events"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("farblk");
    let mut events = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut next = || events.next().expect("an event").expect("text");
    let first: Vec<_> = (0..4).map(|_| next()).collect();
    let all = first.join("\n");
    for line in &first {
        assert!(line.starts_with(r#"{"schema":"farblk.event/1","#), "{all}");
    }
    assert!(
        all.contains(r#""name":"scratch","from":null,"to":"live""#),
        "{all}"
    );
    tree.config("maps/scratch/state", "reconnecting");
    let change = next();
    let want = r#""name":"scratch","from":"live","to":"reconnecting""#;
    assert!(change.contains(want), "{change}");
    drop(events);
    let deadline = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = child.try_wait().expect("a status") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("the end");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("stderr");
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}
