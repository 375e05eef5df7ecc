// SPDX-License-Identifier: GPL-2.0
//! `farblk ping` against the model of the kernel.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::{Host, fs, hint};

fn value(host: &Host, line: &str) -> serde_json::Value {
    serde_json::from_str(&host.ok(line)).expect("JSON")
}

/// A host with the map "vol1", whose disk farblk0 has 64 KiB of `data`.
fn mapped(test: &str, data: &[u8]) -> Host {
    let host = Host::new(test);
    fs::write(
        host.root.join("dev/farblk0"),
        data.repeat(65536 / data.len()),
    )
    .expect("a disk");
    host.system.attr("farblk0", "size", "128");
    host.system
        .attr("farblk0", "queue/logical_block_size", "512");
    host.ok("map 10.9.0.1/vol1");
    host.kernel.take_log();
    host
}

#[test]
fn a_host_is_pinged_without_an_export() {
    let host = Host::new("ping");
    let text = host.ok("ping 10.9.0.1 -c 8 --source 10.9.0.2");
    assert!(
        text.starts_with("8 round trips  min 40.0 us  p50 43.0 us  p99 47.0 us  max 47.0 us\n"),
        "{text}"
    );
    assert!(host.kernel.objects().is_empty());
    let log = host.kernel.take_log().join("\n");
    for wanted in [
        "addr = 10.9.0.1:7420",
        "pings = 8",
        "interval_us = 10000",
        "source = 10.9.0.2",
    ] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    let json = value(&host, "-j ping 10.9.0.1:99 -c 8 -i 0");
    assert_eq!(json["schema"], "farblk.ping/2");
    assert_eq!(json["addr"], "10.9.0.1:99");
    assert_eq!(
        (&json["interval_us"], &json["complete"]),
        (&0.into(), &true.into())
    );
    let trips = &json["round_trips"];
    assert_eq!(
        (&trips["count"], &trips["max_ns"]),
        (&8.into(), &47_000.into())
    );
    for none in [
        &trips["size"],
        &json["read"],
        &json["write"],
        &json["map"],
        &json["device"],
    ] {
        assert!(none.is_null(), "{json}");
    }
}

#[test]
fn many_round_trips_are_measured_in_parts() {
    let host = Host::new("ping-parts");
    let json = value(&host, "-j ping 10.9.0.1 -c 300 -i 1ms");
    assert_eq!(json["round_trips"]["count"], 300);
    let log = host.kernel.take_log();
    let counts = log.iter().filter_map(|line| line.split_once("/pings = "));
    assert_eq!(counts.map(|(_, n)| n).collect::<Vec<_>>(), ["256", "44"]);
    let asked = log.iter().filter(|line| line.ends_with("enable = 1"));
    assert_eq!(asked.count(), 2);
    // The pauses are long enough to show each.
    host.err.take();
    host.ok("ping 10.9.0.1 -c 2 -i 251ms");
    assert_eq!(host.err.take().matches("40.0 us").count(), 2);
}

#[test]
fn a_failure_comes_after_what_was_measured() {
    let host = Host::new("ping-fails");
    let enable = format!("discover/tool-{}/enable", std::process::id());
    let why = "ECONNREFUSED nobody listens on 10.9.0.1:7420";
    host.kernel.refuse(&enable, "1", 111, why, 1);
    let failure = "cannot ping 10.9.0.1: nobody listens on 10.9.0.1:7420";
    assert_eq!(host.fails("ping 10.9.0.1"), ("F0203", 5, failure.into()));
    assert!(host.kernel.objects().is_empty());
    // A module that measures no round trips.
    let old = Host::new("ping-old");
    fs::create_dir_all(old.root.join("proc/self")).expect("a directory");
    old.kernel.forget("pings");
    assert_eq!(old.fails("ping 10.9.0.1").0, "F0402");
    assert!(old.kernel.objects().is_empty());
}

#[test]
fn a_map_is_read() {
    let host = mapped("ping-map", b"data");
    for map in [
        "vol1",
        "farblk0",
        "/dev/farblk0",
        "/dev/farblk/by-name/vol1",
    ] {
        let text = host.ok(&format!("ping {map} -c 8 -i 0"));
        assert!(text.starts_with("8 reads of 4.0 KiB  min "), "{text}");
        assert!(
            !text.contains("write") && !text.contains("round trip"),
            "{text}"
        );
    }
    let json = value(&host, "-j ping vol1 -c 4 -i 1ms --size 512");
    assert_eq!(
        (&json["map"], &json["device"]),
        (&"vol1".into(), &"/dev/farblk0".into())
    );
    let read = &json["read"];
    assert_eq!((&read["count"], &read["size"]), (&4.into(), &512.into()));
    for none in ["addr", "round_trips", "write"] {
        assert!(json[none].is_null(), "{none}: {json}");
    }
    assert!(host.kernel.take_log().is_empty());
    // With a port it is a host, whatever maps there are.
    host.kernel.take_log();
    assert_eq!(
        value(&host, "-j ping 10.9.0.1:7420 -c 1")["addr"],
        "10.9.0.1:7420"
    );
    // A larger block is the default.
    host.system
        .attr("farblk0", "queue/logical_block_size", "8192");
    assert_eq!(value(&host, "-j ping vol1 -c 1")["read"]["size"], 8192);
    assert_eq!(host.fails("ping vol1 --size 4K").0, "F0101");
    assert_eq!(host.fails("ping vol1 --size 128K").0, "F0101");
}

#[test]
fn what_was_read_is_written_back() {
    let host = mapped("ping-write", b"0123456789abcdef");
    let node = host.root.join("dev/farblk0");
    let before = fs::read(&node).expect("a disk");
    host.system.take_log();
    let json = value(&host, "-j ping vol1 -c 16 -i 0 --write");
    assert_eq!(
        (&json["read"]["count"], &json["write"]["count"]),
        (&16.into(), &16.into())
    );
    assert_eq!(fs::read(&node).expect("a disk"), before);
    // udev is waited for before each look at who uses the disk, and looks at what was written.
    assert_eq!(host.system.take_log().len(), 3);
    let text = host.ok("ping vol1 -c 2 -i 0 --write --size 64K");
    assert!(text.contains("\n2 writes of 64.0 KiB  min "), "{text}");
}

#[test]
fn a_disk_that_is_used_is_not_written() {
    let host = mapped("ping-used", b"x");
    host.system.attr("farblk0", "ro", "1");
    let error = host.run("ping vol1 --write").expect_err("read-only");
    assert_eq!((error.code.entry().name, error.exit()), ("F0113", 6));
    assert_eq!(hint(&error), "farblk ping vol1  # without --write");
    host.ok("ping vol1 -c 1");
    host.system.attr("farblk0", "ro", "0");
    // Of somebody whom this process cannot see.
    host.system.with_held_disks();
    let error = host.run("ping vol1 --write").expect_err("held");
    assert_eq!((error.code.entry().name, error.exit()), ("F0107", 4));
    assert_eq!(error.to_string(), "vol1 is in use and was not written to");
    // Of a process that has it open, and did not say that nobody else may.
    has_open(&host.root, 41);
    let error = host.run("ping vol1 --write").expect_err("open");
    assert_eq!(error.details, ["open: 1 process: qemu(41)"]);
    // Of a mount.
    fs::create_dir_all(host.root.join("proc/self")).expect("a directory");
    let mount = "36 35 259:0 / /mnt rw - ext4 /dev/farblk0 rw\n";
    fs::write(host.root.join("proc/self/mountinfo"), mount).expect("a file");
    let error = host
        .run("--dry-run ping vol1 --write")
        .expect_err("mounted");
    assert!(
        error.details[0].starts_with("mounted: /mnt (ext4)"),
        "{:?}",
        error.details
    );
    let steps = "umount /mnt\nfarblk ping vol1  # or measure reads only";
    assert_eq!(hint(&error), steps);
    host.ok("ping vol1 -c 1");
}

/// A process qemu below `root` has farblk0 open.
fn has_open(root: &Path, pid: u32) {
    let process = root.join(format!("proc/{pid}"));
    fs::create_dir_all(process.join("fd")).expect("a directory");
    fs::write(process.join("comm"), "qemu\n").expect("a file");
    symlink("/dev/farblk0", process.join("fd/3")).expect("a link");
}

#[test]
fn a_disk_that_is_opened_meanwhile_is_not_written() {
    let host = mapped("ping-meanwhile", b"x");
    // Itself has it open, too.
    has_open(&host.root, 40);
    symlink("40", host.root.join("proc/self")).expect("a link");
    host.ok("ping vol1 --write -c 1");
    let root = host.root.clone();
    host.system.when_opened(move || has_open(&root, 41));
    let error = host.run("ping vol1 --write").expect_err("open");
    assert_eq!((error.code.entry().name, error.exit()), ("F0107", 4));
    assert_eq!(error.details, ["open: 1 process: qemu(41)"]);
    assert_eq!(host.out.take(), "");
}

#[test]
fn a_disk_below_a_loop_device_is_not_written() {
    let host = mapped("ping-loop", b"x");
    host.system.attr("farblk0/farblk0p1", "dev", "259:1");
    host.system.attr("farblk0/farblk0p1", "partition", "1");
    let over = |file| host.system.attr("loop7", "loop/backing_file", file);
    for file in ["/dev/farblk0", "/dev/farblk0p1"] {
        over(file);
        let error = host.run("ping vol1 --write").expect_err(file);
        assert_eq!((error.code.entry().name, error.exit()), ("F0107", 4));
        assert_eq!(error.details, ["used by: loop7"], "{file}");
        assert!(hint(&error).starts_with("losetup --detach /dev/loop7"));
    }
    let list = value(&host, "-j list");
    assert_eq!(list["maps"][0]["holders"][0]["name"], "loop7");
    for file in ["/srv/dev/farblk0", "/dev/farblk0p2", "/dev/file", ""] {
        over(file);
        host.ok("ping vol1 --write -c 1");
    }
}

#[test]
fn a_disk_with_another_map_is_not_written() {
    let host = mapped("ping-twice", b"x");
    host.ok("map 10.9.0.1/vol1 --name vol2");
    for line in ["ping vol1 --write", "--dry-run ping vol1 --write"] {
        let error = host.run(line).expect_err("there are two");
        assert_eq!((error.code.entry().name, error.exit()), ("F0104", 4));
        assert_eq!(error.why, "map vol2 has the same export");
        assert_eq!(hint(&error), "farblk unmap vol2");
    }
    host.ok("ping vol1 -c 1");
    // One that is not connected has no export.
    host.kernel.put("maps/vol2", "uuid", "");
    host.ok("ping vol1 --write -c 1");
}

#[test]
fn the_state_of_a_map_says_why_it_is_not_read() {
    let host = mapped("ping-state", b"x");
    let away = "ETIMEDOUT no answer";
    for (state, error, code, exit) in [
        ("stale", "ESTALE the contents are gone", "F0301", 9),
        (
            "evicted",
            "EACCES the export was another's since",
            "F0302",
            9,
        ),
        ("reconnecting", away, "F0216", 5),
        ("failed", away, "F0216", 5),
        ("disabled", "", "F0216", 5),
    ] {
        host.kernel.put("maps/vol1", "state", state);
        host.kernel.put("maps/vol1", "last_error", error);
        let (have, have_exit, text) = host.fails("ping vol1");
        assert_eq!((have, have_exit), (code, exit), "{state}");
        assert!(
            text.starts_with(&format!("cannot ping vol1: map vol1 is {state}")),
            "{text}"
        );
    }
    // It ends meanwhile, here at once: a node that is not there cannot be opened.
    host.kernel.put("maps/vol1", "state", "live");
    fs::remove_file(host.root.join("dev/farblk0")).expect("a disk");
    assert_eq!(host.fails("ping vol1").0, "F0109");
}

#[test]
fn what_is_neither_a_map_nor_a_host() {
    let host = mapped("ping-bad", b"x");
    let error = host.run("ping 10.9.0.1/e2").expect_err("an export");
    assert_eq!((error.code.entry().name, error.exit()), ("F0101", 2));
    assert_eq!(
        hint(&error),
        "farblk map 10.9.0.1/e2\nfarblk ping MAP  # then, with the name of the map"
    );
    let error = host.run("ping vol2.invalid").expect_err("no host");
    assert_eq!((error.code.entry().name, error.exit()), ("F0201", 5));
    assert!(hint(&error).ends_with("\nfarblk list  # shows the maps, if one was meant"));
    assert_eq!(host.fails("ping /dev/farblk9").0, "F0102");
    assert_eq!(host.fails("ping 7").0, "F0102");
    for bad in [
        "x://10.9.0.1",
        "10.9.0.1/",
        "10.9.0.1/a/b",
        "10.9.0.1:0",
        "10.9.0.1 --write",
        "10.9.0.1 --size 4K",
        "vol1 --source 10.9.0.2",
        "vol1 --size 4K --source 10.9.0.2",
        "vol1 --size 1000",
        "vol1 --size 2M",
        "vol1 -c 0",
        "vol1 -c 1000001",
        "vol1 -i 61m",
        "vol1 --op read",
    ] {
        assert_eq!(host.fails(&format!("--dry-run ping {bad}")).1, 2, "{bad}");
    }
}

#[test]
fn a_dry_run_is_shell() {
    let host = mapped("ping-dry", b"x");
    for (line, wanted) in [
        ("10.9.0.1 -c 10", "/discover/tool/enable; cat "),
        (
            "10.9.0.1 -c 300 -i 1ms",
            "\nfor i in $(seq 2); do echo 1 > ",
        ),
        ("vol1", "$(shuf -r -n 100 -i 0-15); do dd if=/dev/farblk0 "),
        ("vol1 --write -i 0", " of=/dev/farblk0 seek=$block "),
    ] {
        let script = host.ok(&format!("--dry-run ping {line}"));
        assert!(script.contains(wanted), "{script}");
        assert!(super::is_shell(&script), "{script}");
    }
    assert!(host.kernel.take_log().is_empty());
}
