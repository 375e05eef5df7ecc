// SPDX-License-Identifier: GPL-2.0
//! The units of systemd, as far as they run further processes of the tool; and their files.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory with a tree like that of a host, with the module loaded.
struct Tree(PathBuf);

impl Tree {
    fn new(test: &str) -> Self {
        let tree = Self(std::env::temp_dir().join(format!("farblk-{}-{test}", std::process::id())));
        for directory in ["ports", "exports", "maps"] {
            fs::create_dir_all(tree.config(directory)).expect("a directory");
        }
        tree
    }

    fn config(&self, path: &str) -> PathBuf {
        self.0.join("sys/kernel/config/farblk").join(path)
    }

    fn export(&self, name: &str, state: &str) {
        let object = self.config("exports").join(name);
        fs::create_dir_all(object.join("hosts")).expect("a directory");
        let enable = if state == "disabled" { "0\n" } else { "1\n" };
        for (name, text) in [("state", state), ("enable", enable), ("clients", "1\n")] {
            fs::write(object.join(name), text).expect("a file");
        }
    }

    fn enabled(&self, name: &str) -> String {
        let file = self.config("exports").join(name).join("enable");
        fs::read_to_string(file).expect("a file").trim().to_owned()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farblk"));
        command.arg("--root").arg(&self.0);
        command
            .args(line.split_whitespace())
            .env_remove("SERVICE_RESULT");
        command
    }

    fn run(&self, line: &str, environment: &[(&str, &str)]) -> Output {
        let mut command = self.command(line);
        command
            .envs(environment.iter().copied())
            .output()
            .expect("to run")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn stopping_the_server_disables_every_export() {
    let tree = Tree::new("stop-server");
    tree.export("a", "online");
    tree.export("-b", "online");
    tree.export("c", "disabled");
    let output = tree.run("-j unit stop-server", &[("SERVICE_RESULT", "success")]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        r#"{"schema":"farblk.unit/1","task":"stop-server","changed":["-b","a"]}"#
    );
    assert_eq!(
        (tree.enabled("a"), tree.enabled("-b")),
        ("0".into(), "0".into())
    );
}

#[test]
fn one_export_that_fails_does_not_keep_the_others() {
    let tree = Tree::new("stop-failing");
    for name in ["a", "b", "c"] {
        tree.export(name, "online");
    }
    // It can be read, and nobody can write it.
    let enable = tree.config("exports/b/enable");
    fs::remove_file(&enable).expect("to remove it");
    symlink("/proc/sys/kernel/ostype", &enable).expect("a link");
    let output = tree.run("unit stop-server", &[]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("1 of 3 are left"), "{err}");
    assert!(err.contains("  b: exit status: "), "{err}");
    assert_eq!(
        (tree.enabled("a"), tree.enabled("c")),
        ("0".into(), "0".into())
    );
}

#[test]
fn one_export_that_hangs_does_not_keep_the_others() {
    let tree = Tree::new("stop-hanging");
    for name in ["a", "b", "c"] {
        tree.export(name, "online");
    }
    // Opening it takes for ever, as flushing a disk that does not answer.
    let enable = tree.config("exports/a/enable");
    fs::remove_file(&enable).expect("to remove it");
    let made = Command::new("mkfifo").arg(&enable).status();
    assert!(made.expect("mkfifo").success());
    let start = Instant::now();
    let output = tree.run("unit stop-server --within 10s", &[]);
    assert!(start.elapsed() < Duration::from_secs(45));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("1 of 3 are left"), "{err}");
    assert!(
        err.contains("  a: its device has not answered for 10s"),
        "{err}"
    );
    assert_eq!(
        (tree.enabled("b"), tree.enabled("c")),
        ("0".into(), "0".into())
    );
}

#[test]
fn a_unit_that_failed_does_not_stop_the_server() {
    let tree = Tree::new("stop-failed");
    tree.export("a", "online");
    let output = tree.run("unit stop-server", &[("SERVICE_RESULT", "exit-code")]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("the exports stay"), "{text}");
    assert_eq!(tree.enabled("a"), "1");
}

#[test]
fn the_server_is_ready_after_the_first_attempt() {
    for (test, file, want) in [
        ("complete", "", "all ports and exports are there"),
        ("partial", "bad = [", "some ports or exports are missing"),
    ] {
        let tree = Tree::new(&format!("start-{test}"));
        for (name, text) in [("host_id_source", "written"), ("host_name", "a")] {
            fs::write(tree.config(name), text).expect("a file");
        }
        let id = "33333333-3333-4333-8333-333333333333";
        fs::write(tree.config("host_id"), id).expect("a file");
        fs::create_dir_all(tree.0.join("etc/farblk")).expect("a directory");
        fs::write(tree.0.join("etc/farblk/server.toml"), file).expect("a file");
        let path = tree.0.join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let timeout = Some(Duration::from_secs(30));
        socket.set_read_timeout(timeout).expect("a timeout");
        let mut unit = tree.command("unit start-server");
        let unit = unit.env("NOTIFY_SOCKET", &path).stdout(Stdio::null());
        let mut unit = unit.stderr(Stdio::null()).spawn().expect("to run");
        let mut text = [0; 256];
        let length = socket.recv(&mut text).expect("to be told");
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        assert!(text.starts_with("READY=1\nSTATUS="), "{text}");
        assert!(text.contains(want), "{text}");
        // It ends when all is there, and goes on else.
        if file.is_empty() {
            assert!(unit.wait().expect("an exit code").success());
        } else {
            assert!(unit.try_wait().expect("a state").is_none());
            unit.kill().and_then(|()| unit.wait()).expect("to end it");
        }
    }
}

/// The commands in the units and rules are commands of the tool.
#[test]
fn the_files_name_commands_that_exist() {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut commands = Vec::new();
    for file in [
        "units/farblk-server.service",
        "units/farblk-map@.service",
        "units/farblk-shutdown.service",
        "udev/60-farblk.rules",
        "udev/64-farblk-exports.rules",
    ] {
        let text = fs::read_to_string(tools.join(file)).expect(file);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut words: Vec<String> = Vec::new();
        for line in lines {
            words.extend(line.split(['=', ' ', '"', '\'']).map(str::to_owned));
        }
        for window in words.windows(3) {
            if window[0].ends_with("farblk")
                && ["udev", "udev-export", "unit", "config"].contains(&&*window[1])
            {
                commands.push(window[1..].to_vec());
            }
        }
    }
    // Five of the units of server and map, one at shutdown, and four of the rules.
    assert!(commands.len() >= 10, "{commands:?}");
    let tree = Tree::new("names");
    for command in &commands {
        let line = match &*command[0] {
            udev if udev.starts_with("udev") => format!("{udev} --help"),
            "config" => "config restore --help".to_owned(),
            noun => format!("{noun} {} --help", command[1]),
        };
        assert!(tree.run(&line, &[]).status.success(), "{line}");
    }
}

fn unit(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../units");
    fs::read_to_string(file.join(name)).expect(name)
}

/// A file that is not valid may just be edited: units try again after every error.
#[test]
fn no_error_ends_the_attempts() {
    for name in ["farblk-map@.service", "farblk-server.service"] {
        let text = unit(name);
        assert!(text.contains("\nRestart=on-failure\n"), "{name}");
        assert!(!text.contains("RestartPreventExitStatus"), "{name}");
    }
}

/// A network device that does not appear holds up nothing: no target wants the unit, and so no job
/// waits for the device.
#[test]
fn soft_roce_waits_for_no_device() {
    let text = unit("farblk-rxe@.service");
    let wants: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("WantedBy="))
        .collect();
    assert_eq!(wants, ["WantedBy=sys-subsystem-net-devices-%i.device"]);
}

/// Soft-RoCE on br-lan is none on br, and that on eth0x1 none on eth0.1.
#[test]
fn soft_roce_leaves_its_own_device_alone_only() {
    let text = unit("farblk-rxe@.service");
    let (_, rest) = text.split_once("ExecStart=sh -c 'if ").expect("a command");
    let (test, _) = rest.split_once("; then").expect("a condition");
    let test = test.replace("$$", "$");
    for (name, found) in [
        ("br-lan", true),
        ("br", false),
        ("eth0.1", false),
        ("eth0x1", true),
    ] {
        let script = format!(
            "rdma() {{ echo 'link a/1 state ACTIVE netdev br-lan '; \
             echo 'link b/1 netdev eth0x1'; }}; {}",
            test.replace("%I", name)
        );
        let status = Command::new("sh").arg("-c").arg(&script).status();
        assert_eq!(status.expect("sh").success(), found, "{name}: {script}");
    }
}

/// The disk of a map and a partition of another map have no link in common.
#[test]
fn no_map_has_the_link_of_a_partition() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../udev/60-farblk.rules");
    let text = fs::read_to_string(file).expect("the rules");
    let mut lines = text.lines();
    let line = lines.find(|line| line.contains("SYMLINK+=\"farblk/by-name/"));
    let start = "ENV{FARBLK_MAP}!=\"";
    let (_, rest) = line
        .and_then(|line| line.split_once(start))
        .expect("a condition");
    let patterns = rest.split('"').next().unwrap_or_default();
    // The kernel has up to 256 partitions of a disk.
    let digit = "[0-9]";
    let want: Vec<_> = (1..=3)
        .map(|n| format!("*-part{}", digit.repeat(n)))
        .collect();
    assert_eq!(patterns.split('|').collect::<Vec<_>>(), want);
}

/// What is on the disk of a map is stopped before its unit: systemd stops in the reverse order.
#[test]
fn what_uses_a_map_stops_before_it() {
    let text = unit("farblk-map@.service");
    let before: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("Before="))
        .flat_map(str::split_whitespace)
        .collect();
    // The first unmounts file systems with _netdev, the second stops LVM and md.
    assert_eq!(before, ["remote-fs-pre.target", "blk-availability.service"]);
}

/// A map whose server is away is tried again at its own pace: what it wants does not start it.
#[test]
fn swap_does_not_start_its_map() {
    let text = unit("farblk-swap@.service");
    let has = |start: &str| text.lines().any(|line| line.starts_with(start));
    for pulls in ["Requires=", "Requisite=", "BindsTo=", "Wants=", "Upholds="] {
        assert!(!has(pulls), "{pulls}");
    }
    for line in ["PartOf", "After", "WantedBy"] {
        assert!(has(&format!("{line}=farblk-map@%i.service")), "{line}");
    }
}

/// The links of a disk may be gone before its swap space is, and its node, too: then the unit gives
/// back what it has begun to use, or fails.
#[test]
fn swap_is_given_back_without_its_links() {
    let root = std::env::temp_dir().join(format!("farblk-swap-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a folder");
    let text = unit("farblk-swap@.service").replace("\\\n", "");
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix("ExecStop=sh -c '"));
    let folder = format!("{}/", root.display());
    let command = command
        .expect("a command")
        .trim_end_matches('\'')
        .replace("$$", "$")
        .replace("%i", "m")
        .replace("/run/farblk/", &folder)
        .replace("/proc/swaps", &format!("{folder}swaps"));
    let stop = |swaps: &str, status: u8| {
        std::fs::write(root.join("swap-m"), "/dev/farblk1\n/dev/farblk1p2\n").expect("a file");
        std::fs::write(root.join("swaps"), swaps).expect("a file");
        let program = format!("swapoff() {{ echo \"off $1\"; return {status}; }}\n{command}");
        let done = std::process::Command::new("sh")
            .args(["-c", &program])
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&done.stdout).replace('\n', ";");
        (done.status.success(), said)
    };
    let line = |name: &str| format!("{name} partition 1 0 -2\n");
    assert_eq!(stop("Filename Type\n", 0), (true, String::new()));
    let both = line("/dev/farblk1") + &line("/dev/farblk1p2") + &line("/dev/farblk12");
    let said = "off /dev/farblk1;off /dev/farblk1p2;".to_owned();
    assert_eq!(stop(&both, 0), (true, said));
    let deleted = line("/dev/farblk1\\040(deleted)");
    assert_eq!(stop(&deleted, 0), (true, "off /dev/farblk1;".to_owned()));
    assert!(!stop(&deleted, 1).0);
    // Another disk, with a longer name.
    assert_eq!(stop(&line("/dev/farblk12"), 0), (true, String::new()));
    std::fs::remove_dir_all(&root).expect("to clean up");
}
