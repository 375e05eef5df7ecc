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
