// SPDX-License-Identifier: GPL-2.0
//! What errors and hints say is so, and what they advise works.

use super::*;

#[test]
fn an_export_without_room_needs_no_command() {
    let host = Host::new("no-room");
    host.system.disk("sdb");
    let create = "export create x --device /dev/sdb";
    host.ok(create);
    host.kernel.put("exports/x", "state", "unavailable");
    host.kernel
        .put("exports/x", "last_error", "ENODEV its device has no room");
    host.system.attr("sdb", "size", "0");
    let error = host.run(create).expect_err("no room");
    assert_eq!(error.code, Code::Unavailable);
    let hints = hint(&error);
    assert!(
        hints.contains("# without room: it goes on by itself"),
        "{hints}"
    );
    assert!(hints.contains("# without its device: run "), "{hints}");
    let explained = host.ok("explain export");
    let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("has no room goes on by itself"), "{words}");
}

#[test]
fn a_map_that_was_killed_can_be_made_again() {
    let host = Host::new("map-killed");
    let make = "map 10.9.0.1/s --queues 2 --path 10.9.1.2@10.9.1.1";
    let script = host.ok(&format!("--dry-run {make}"));
    let lines = script.lines().count();
    for killed in 1..=lines {
        begin(&host, &script, killed);
        assert_eq!(host.ok(make), "/dev/farblk0", "{killed}");
        let value = |path: &str, name: &str| host.kernel.get(path, name).unwrap_or_default();
        assert_eq!(value("maps/s", "queues"), "2");
        assert_eq!(value("maps/s/paths/0", "addr"), "10.9.0.1:7420");
        assert_eq!(value("maps/s/paths/1", "source"), "10.9.1.2");
        assert_eq!(host.kernel.objects().len(), 3);
        host.ok("unmap s");
    }
    // One that another command began is left alone.
    for killed in 1..lines {
        for other in [
            "map 10.9.0.1/s --queues 3 --path 10.9.1.2@10.9.1.1",
            "map 10.9.0.1/t --name s --queues 2 --path 10.9.1.2@10.9.1.1",
            "map 10.9.0.3/s --queues 2 --path 10.9.1.2@10.9.1.1",
        ] {
            begin(&host, &script, killed);
            host.kernel.take_log();
            let differs = match host.run(other) {
                Ok(()) => false,
                Err(error) => {
                    assert_eq!(error.code, Code::Differs, "{killed}: {other}");
                    assert!(host.kernel.take_log().is_empty());
                    true
                }
            };
            // What was set so far may be as the other command wants it.
            let began = script.lines().take(killed).collect::<Vec<_>>().join("\n");
            let shows = match other {
                _ if other.contains("queues 3") => began.contains("echo 2 >"),
                _ if other.contains("/t ") => began.contains("echo s >"),
                _ => began.contains("10.9.0.1:7420"),
            };
            assert_eq!(differs, shows, "{killed}: {other}");
            host.out.take();
            host.ok("unmap s");
        }
    }
}

#[test]
fn what_was_killed_before_it_had_an_address_is_completed() {
    let host = Host::new("add-killed");
    host.ok("map 10.9.0.1/s");
    for line in ["port add p --addr 10.9.0.1", "path add s 10.9.1.1 --name b"] {
        let script = host.ok(&format!("--dry-run {line}"));
        begin(&host, &script, 1);
        host.ok(line);
    }
    let addr = |path: &str| host.kernel.get(path, "addr").unwrap_or_default();
    assert_eq!(addr("ports/p"), "10.9.0.1:7420");
    assert_eq!(addr("maps/s/paths/b"), "10.9.1.1:7420");
}

#[test]
fn a_name_that_another_process_takes_is_not_asked_for() {
    let host = Host::new("races");
    host.kernel.race("ports/1");
    host.ok("port add --addr 10.9.0.1");
    assert_eq!(host.kernel.objects(), ["ports/1", "ports/2"]);
    host.ok("map 10.9.0.1/s");
    host.kernel.race("maps/s/paths/1");
    host.ok("path add s 10.9.1.1");
    let addr = host.kernel.get("maps/s/paths/2", "addr");
    assert_eq!(addr.as_deref(), Some("10.9.1.1:7420"));
    // One that was asked for is the user's.
    host.kernel.race("ports/a");
    assert_eq!(host.fails("port add a --addr 10.9.0.3").0, "F0103");
}

#[test]
fn a_map_that_cannot_be_kept_runs() {
    let host = Host::new("not-kept");
    fs::create_dir_all(host.root.join("etc")).expect("a folder");
    // Nothing can be written there, not even by root.
    std::os::unix::fs::symlink("/proc/self", host.root.join("etc/farblk")).expect("a link");
    assert_eq!(host.ok("map 10.9.0.1/s --persist"), "/dev/farblk0");
    assert_eq!(host.exit.get(), 8);
    let said = anstream::adapter::strip_str(&host.err.take()).to_string();
    assert!(said.contains("the map runs, but is not kept: "), "{said}");
    assert!(!said.contains("cannot map"), "{said}");
}

#[test]
fn a_file_that_cannot_be_written_is_no_map() {
    let host = Host::new("full");
    for (errno, advice) in [(28, "df "), (122, "df "), (30, "findmnt --target ")] {
        let e = io::Error::from_raw_os_error(errno);
        let path = std::path::Path::new("/srv/a b/farblk.prom");
        let error = crate::durable::failed(&e, path, &Job::new("cannot write"));
        assert_eq!(error.code, Code::Io);
        assert!(hint(&error).starts_with(&format!("{advice}'/srv/a b'")));
    }
    let error = host
        .run("metrics --file /proc/farblk.prom")
        .expect_err("no such file");
    assert!(!hint(&error).contains("--ro"), "{}", hint(&error));
}

/// Puts a file below the root directory of a host.
fn put(host: &Host, path: &str, text: &str) {
    let path = host.root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

#[test]
fn doctor_knows_of_a_map_of_the_export() {
    let host = Host::new("doctor-map");
    put(
        &host,
        "sys/class/infiniband/rxe0/ports/1/state",
        "4: ACTIVE",
    );
    // The server shows no export that wants a key of this host.
    let not_shown = host.ok("doctor 127.0.0.1/vol1");
    let allow = "on the server: farblk export allow vol1 node-b";
    assert!(not_shown.contains(allow), "{not_shown}");
    let key = "farblk export show vol1  # has node-b an entry with a key?";
    assert!(not_shown.contains(key), "{not_shown}");
    host.ok("map 127.0.0.1/vol1 --name m");
    let mapped = host.ok("doctor 127.0.0.1/vol1");
    let admits = "127.0.0.1 admits node-b to vol1: map m is live";
    assert!(mapped.contains(admits), "{mapped}");
    assert!(!mapped.contains("export allow"), "{mapped}");
    // The map of another export, or one without a path, says nothing of this one.
    assert!(host.ok("doctor 127.0.0.1/vol2").contains("export allow"));
    host.kernel.put("maps/m", "state", "failed");
    assert!(host.ok("doctor 127.0.0.1/vol1").contains("export allow"));
}

#[test]
fn a_host_without_an_rdma_device_says_so() {
    let host = Host::new("no-rdma");
    fs::create_dir_all(host.root.join("sys/class/infiniband")).expect("a folder");
    let refuse = |attribute: &str| {
        let words = "EHOSTUNREACH no host answers at 10.9.0.1";
        host.kernel.refuse(attribute, "1", 113, words, 1);
    };
    let name = format!("tool-{}/enable", std::process::id());
    for (line, attribute) in [
        ("map 10.9.0.1/e", "maps/e/enable"),
        ("discover 10.9.0.1", name.as_str()),
        ("ping 10.9.0.1", name.as_str()),
    ] {
        refuse(attribute);
        let error = host.run(line).expect_err(line);
        assert_eq!((error.code, error.exit()), (Code::NoDevice, 7), "{line}");
        assert!(
            error.why.contains("this host has no RDMA device"),
            "{error}"
        );
    }
    // With one, it is as the kernel says.
    put(
        &host,
        "sys/class/infiniband/rxe0/ports/1/state",
        "4: ACTIVE",
    );
    refuse("maps/e/enable");
    let error = host.run("map 10.9.0.1/e").expect_err("no answer");
    assert_eq!(error.why, "no host answers at 10.9.0.1");
}

#[test]
fn a_host_whose_name_cannot_be_used_is_told_of() {
    let host = Host::new("localhost");
    let long = "a".repeat(64);
    put(&host, "proc/sys/kernel/hostname", &format!("{long}\n"));
    host.kernel.put("", "host_name", "localhost");
    host.kernel.put("", "host_id_source", "random");
    host.machine_id("0123456789abcdef0123456789abcdef");
    host.ok("map 10.9.0.1/e");
    let said = host.err.take();
    let why = format!("servers know this host as localhost: its name {long} is not a name");
    assert!(said.contains(&why), "{said}");
    let cure = "> /sys/kernel/config/farblk/host_name";
    assert!(said.contains(cure), "{said}");
    assert!(host.ok("doctor").contains("warn  name"));
    host.kernel.put("", "host_name", "node-b");
    assert!(!host.ok("doctor").contains("  name "));
}

#[test]
fn what_wants_a_key_may_want_an_entry() {
    let host = Host::new("wants-key");
    for (errno, words) in [
        (126, "ENOKEY the server wants a key"),
        (129, "EKEYREJECTED not admitted, or the key is wrong"),
    ] {
        host.kernel.refuse("maps/e/enable", "1", errno, words, 1);
        let error = host.run("map 10.9.0.1/e").expect_err(words);
        let hints = hint(&error);
        for line in [
            "farblk export allow e node-b  # on the server, if it has no entry of this host",
            "farblk export key e node-b --key-file FILE  # on the server, ",
            "farblk map 10.9.0.1/e --key-file FILE  # ",
        ] {
            assert!(hints.contains(line), "{words}: {hints}");
        }
    }
    host.ok("map 10.9.0.1/e --name m");
    host.kernel.put("maps/m", "state", "reconnecting");
    let wants = "ENOKEY the server wants a key";
    host.kernel.put("maps/m", "last_error", wants);
    let list = host.ok("list");
    assert!(
        list.contains("farblk export allow e node-b  # on "),
        "{list}"
    );
    assert!(
        list.contains("farblk export key e node-b --key-file FILE"),
        "{list}"
    );
}

#[test]
fn the_way_out_of_a_sealed_export_is_a_key() {
    let host = Host::new("sealed");
    let said = |line: &str| {
        host.err.take();
        host.system.disk("sdb");
        host.ok(line);
        host.err.take()
    };
    let create = "export create e --device /dev/sdb --protection seal";
    let allow = "farblk export allow e HOST --key-file FILE  # ";
    let text = said(create);
    assert!(text.contains(allow), "{text}");
    let text = said("export allow e b");
    assert!(
        text.contains("farblk export key e b --key-file FILE  # "),
        "{text}"
    );
    host.ok("export rm e");
    // A host without an entry has no key.
    let text = said(&format!("{create} --allow-any-host"));
    assert!(text.contains(allow), "{text}");
}

#[test]
fn a_zoned_disk_is_not_exported() {
    let host = Host::new("zoned");
    host.system.disk("sdb");
    host.system.attr("sdb", "queue/zoned", "host-managed");
    let error = host
        .run("export create e --device /dev/sdb")
        .expect_err("zoned");
    assert_eq!((error.code, error.exit()), (Code::BadValue, 2));
    assert_eq!(
        error.why,
        "/dev/sdb is a zoned disk, and these cannot be exported"
    );
    assert!(!hint(&error).contains("release"), "{}", hint(&error));
    host.system.attr("sdb", "queue/zoned", "none");
    host.ok("export create e --device /dev/sdb");
}

#[test]
fn hints_can_be_run() {
    let host = Host::new("commands");
    // `ip route get` takes no name.
    let words = "EHOSTUNREACH no host answers at 127.0.0.1";
    host.kernel.refuse("maps/e/enable", "1", 113, words, 1);
    let error = host.run("map localhost/e").expect_err("no answer");
    let hints = hint(&error);
    assert!(
        hints.starts_with("ip route get 127.0.0.1\n") || hints.starts_with("ip route get ::1\n"),
        "{hints}"
    );
    // What has a file is a loop device.
    put(&host, "srv/disk", &"x".repeat(4096));
    host.kernel.refuse("exports/f/enable", "1", 16, "", 1);
    let line = format!("export create f --file {}/srv/disk", host.root.display());
    let error = host.run(&line).expect_err("in use");
    assert!(
        hint(&error).starts_with("lsblk /dev/loop0  #"),
        "{}",
        hint(&error)
    );
    // A host may have an entry that demands another identity.
    let denied = "EACCES the export does not admit this host";
    host.kernel.refuse("maps/e/enable", "1", 13, denied, 1);
    let error = host.run("map 10.9.0.1/e").expect_err("denied");
    let id = host.kernel.get("", "host_id").expect("an id");
    let own = format!("farblk export allow e node-b --host-id {id}  # or, ");
    assert!(hint(&error).contains(&own), "{}", hint(&error));
}

#[test]
fn what_is_no_name_of_a_host_is_not_admitted() {
    let host = Host::new("no-host");
    host.ok("export create e --ram 1M");
    for (wrong, why) in [
        ("node:rx", "\"rx\" is not an access: write node:ro"),
        ("node:rwx", "\"rwx\" is not an access"),
        ("node:WO", "\"WO\" is not an access"),
        (
            "10.9.0.2",
            "10.9.0.2 is an address: a host is admitted by its host_name",
        ),
        ("10.9.0.2:ro", "10.9.0.2 is an address"),
        ("fd00::2", "fd00::2 is an address"),
        ("fd00::2:rw", "fd00::2 is an address"),
    ] {
        for line in ["export create f --ram 1M --allow", "export allow e"] {
            let error = host.run(&format!("{line} {wrong}")).expect_err(wrong);
            assert_eq!(error.code, Code::Usage);
            assert!(error.to_string().contains(why), "{wrong}: {error}");
            if why.ends_with("host_name") {
                let cure = "cat /sys/kernel/config/farblk/host_name  # on that host";
                assert_eq!(hint(&error), cure);
            }
        }
    }
    assert_eq!(host.kernel.objects(), ["exports/e"]);
    for right in ["b:1", "b:7:rack", "row", "10.9.0", "node-10.9.0.2"] {
        host.ok(&format!("export allow e {right}"));
    }
}

#[test]
fn the_root_disk_cannot_be_exported() {
    let host = Host::new("root-disk");
    host.system.disk("sda");
    put(
        &host,
        "proc/self/mountinfo",
        "22 1 8:0 / / rw - ext4 /dev/sda rw\n",
    );
    let error = host
        .run("export create e --device /dev/sda")
        .expect_err("in use");
    assert_eq!((error.code, error.exit()), (Code::InUse, 4));
    let why = "the root file system of this host is on /dev/sda, which cannot be exported";
    assert_eq!(error.why, why);
    assert!(!hint(&error).contains("umount"), "{}", hint(&error));
}

#[test]
fn a_disk_that_vanishes_is_not_pinged() {
    let host = Host::new("ping-gone");
    host.ok("map 10.9.0.1/s");
    for line in ["ping s --dry-run", "ping s"] {
        let error = host.run(line).expect_err(line);
        assert_eq!((error.code, error.exit()), (Code::NoPath, 5), "{error}");
        assert_eq!(error.why, "/dev/farblk0 is gone");
    }
}

#[test]
fn what_does_not_answer_may_lose_large_packets() {
    let host = Host::new("large");
    let words = "ETIMEDOUT no answer from 10.9.0.1:7420";
    host.kernel.refuse("maps/e/enable", "1", 110, words, 1);
    let error = host.run("map 10.9.0.1/e").expect_err("no answer");
    let lines = hint(&error);
    assert!(lines.starts_with("farblk doctor 10.9.0.1  # "), "{lines}");
    assert!(lines.contains("large packets"), "{lines}");
}

#[test]
fn an_export_is_forgotten() {
    let host = Host::new("export-forget");
    host.ok("export create e --ram 1M --allow b");
    host.ok("export create f --ram 1M --allow b");
    host.ok("config save");
    let file = host.root.join("etc/farblk/server.toml");
    let text = || fs::read_to_string(&file).expect("a file");
    let out = host.ok("export rm e");
    assert!(out.contains("; still in "), "{out}");
    // One that is only in the file can be forgotten, too.
    let out = host.ok("export rm e --forget");
    assert!(
        out.starts_with("export e is not there; removed from "),
        "{out}"
    );
    assert!(!text().contains("[export.e]") && text().contains("[export.f]"));
    host.ok("config save");
    let script = host.ok("--dry-run export rm f --forget");
    assert!(
        is_shell(&script) && script.contains("# remove [export.f] from "),
        "{script}"
    );
    let out = host.ok("export rm f --forget");
    assert!(out.starts_with("removed export f; removed from "), "{out}");
    assert!(!text().contains("export.f"));
    assert_eq!(host.fails("export rm f --forget").1, 3);
}

#[test]
fn the_odd_tail_of_a_file_is_told_of() {
    let host = Host::new("tail");
    put(&host, "disk", &"x".repeat(4096 + 100));
    host.ok(&format!(
        "export create e --file {}/disk",
        host.root.display()
    ));
    let said = host.err.take();
    assert!(
        said.contains("its last 100 bytes are no whole block"),
        "{said}"
    );
    put(&host, "even", &"x".repeat(4096 + 512));
    host.ok(&format!(
        "export create f --file {}/even",
        host.root.display()
    ));
    assert!(!host.err.take().contains("whole block"));
}

#[test]
fn numbers_in_names_are_in_their_order() {
    let host = Host::new("order");
    for name in ["e10", "e2", "e1", "10", "9", "e2x", "e02", "f"] {
        host.ok(&format!("export create {name} --ram 1M"));
    }
    let list = host.ok("export list");
    let names: Vec<_> = list
        .lines()
        .skip(1)
        .map(|line| line.split(' ').next())
        .collect();
    let want = ["9", "10", "e1", "e02", "e2", "e2x", "e10", "f"].map(Some);
    assert_eq!(names, want);
}

#[test]
fn another_map_of_the_same_host_is_named() {
    let host = Host::new("own-map");
    host.ok("map 10.9.0.1/e --name first");
    host.kernel
        .refuse("maps/second/enable", "1", 16, "EBUSY in use by node-b", 1);
    let error = host
        .run("map 10.9.0.1/e --name second")
        .expect_err("in use");
    assert_eq!((error.code, error.exit()), (Code::Taken, 4));
    assert_eq!(error.why, "this host has it already: map first");
    assert!(
        hint(&error).starts_with("farblk show first"),
        "{}",
        hint(&error)
    );
    host.kernel
        .refuse("maps/second/enable", "1", 16, "EBUSY in use by node-c", 1);
    let error = host
        .run("map 10.9.0.1/e --name second")
        .expect_err("in use");
    assert_eq!(error.why, "in use by node-c");
}

#[test]
fn show_fails_where_it_prints_an_error() {
    let host = Host::new("show-error");
    put(
        &host,
        "etc/farblk/server.toml",
        "[export.e]\nram = \"1X\"\n",
    );
    assert!(host.ends("config show", 1).contains("# "), "an error");
    host.ends("-j config show", 1);
    put(
        &host,
        "etc/farblk/server.toml",
        "[export.e]\nram = \"1M\"\n",
    );
    host.ends("config show", 0);
}

#[test]
fn there_are_several_words_for_ever() {
    let host = Host::new("infinity");
    for word in ["forever", "infinity", "-1"] {
        host.ok(&format!("map 10.9.0.1/e --no-path-timeout {word}"));
        let value = host.kernel.get("maps/e", "no_path_timeout_ms");
        assert_eq!(value.as_deref(), Some("-1"), "{word}");
        host.ok("unmap e");
    }
    assert_eq!(host.fails("map 10.9.0.1/e --no-path-timeout -2").1, 2);
}

#[test]
fn a_map_that_is_kept_now_has_changed_something() {
    let host = Host::new("kept-now");
    let changed = |line: &str| {
        let text = host.ok(line);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["changed"] == true
    };
    assert!(changed("-j map 10.9.0.1/e"));
    assert!(!changed("-j map 10.9.0.1/e"));
    assert!(changed("-j map 10.9.0.1/e --persist"));
    assert!(!changed("-j map 10.9.0.1/e --persist"));
    assert!(host.root.join("etc/farblk/client.d/e.toml").exists());
}
