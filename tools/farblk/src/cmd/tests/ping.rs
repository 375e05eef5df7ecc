// SPDX-License-Identifier: GPL-2.0
//! `farblk ping` against the model of the kernel.

use super::{Host, fs};
use crate::error::Code;

fn value(host: &Host, line: &str) -> serde_json::Value {
    serde_json::from_str(&host.ok(line)).expect("JSON")
}

#[test]
fn a_host_is_pinged_without_an_export() {
    let host = Host::new("ping");
    let text = host.ok("ping 10.9.0.1 -c 8");
    assert!(
        text.starts_with("SEND  8 round trips  min 40.0 us  p50 43.0 us  p99 47.0 us  max 47.0 us"),
        "{text}"
    );
    assert!(!text.contains("READ"), "{text}");
    assert!(host.kernel.objects().is_empty());
    let log = host.kernel.take_log().join("\n");
    assert!(!log.contains("discover/"), "{log}");
    for wanted in [
        "addr = 10.9.0.1:7420",
        "count = 8",
        "interval_us = 10000",
        "read = 0",
    ] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    let json = value(&host, "-j ping 10.9.0.1:99 -c 8");
    assert_eq!(json["schema"], "farblk.ping/1");
    assert_eq!(json["addr"], "10.9.0.1:99");
    assert_eq!(json["send"]["count"], 8);
    assert_eq!(json["complete"], true);
    assert!(json["read"].is_null() && json["export"].is_null());
}

#[test]
fn an_export_of_ram_is_read_too() {
    let host = Host::new("ping-export");
    let text = host.ok("ping 10.9.0.1/e2 -c 4 --source 10.9.0.2");
    assert!(
        text.contains("\nREAD  4 round trips  min 20.0 us"),
        "{text}"
    );
    let log = host.kernel.take_log().join("\n");
    assert_eq!(log.matches("source = 10.9.0.2").count(), 2, "{log}");
    assert!(!log.contains("maps"), "{log}");
    let json = value(&host, "-j ping 10.9.0.1/e2 -c 4");
    assert_eq!(
        (&json["export"], &json["read"]["count"]),
        (&"e2".into(), &4.into())
    );
    assert_eq!(
        host.fails("ping 10.9.0.1/e9"),
        (
            "F0206",
            3,
            "cannot ping 10.9.0.1/e9: 10.9.0.1 has no export \"e9\" that this host may use".into()
        )
    );
    assert!(host.kernel.objects().is_empty());
}

#[test]
fn more_is_measured_of_a_scratch_region() {
    let host = Host::new("ping-scratch");
    // Nobody asks what kind of export it is.
    let text = host.ok("ping 10.9.0.1/e2 -c 4 --op cas,write,faa --size 4K --depth 8 --polled");
    let log = host.kernel.take_log().join("\n");
    assert!(!log.contains("discover/"), "{log}");
    for wanted in [
        "export = e2",
        "size = 4096",
        "depth = 8",
        "polled = 1",
        "send = 0",
        "read = 0",
        "write = 1",
        "cas = 1",
        "faa = 1",
    ] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    assert!(
        text.starts_with(
            "WRITE  4 round trips  min 20.0 us  p50 21.0 us  p99 23.0 us  max 23.0 us  depth 8  100000/s\n"
        ),
        "{text}"
    );
    assert!(text.contains("\nCAS  4 round trips"), "{text}");
    assert!(text.contains("\nFAA  not available: "), "{text}");
    assert!(!text.contains("SEND") && !text.contains("READ"), "{text}");
    let json = value(
        &host,
        "-j ping 10.9.0.1/e2 -c 4 --op cas,write,faa --size 4K --depth 8",
    );
    assert_eq!(json["write"]["iops"], 100_000);
    assert_eq!(
        (&json["write"]["size"], &json["cas"]["size"]),
        (&4096.into(), &8.into())
    );
    assert_eq!(json["write"]["depth"], 8);
    assert_eq!(json["unavailable"], serde_json::json!(["faa"]));
    assert!(json["faa"].is_null() && json["send"].is_null() && json["polled"] == false);
    assert_eq!(json["complete"], true);
    // The batches are full ones, whatever the pause would be, and the rate is that of all of them.
    host.kernel.take_log();
    let json = value(
        &host,
        "-j ping 10.9.0.1/e2 -c 300 -i 1s --op read --size 8 --depth 2",
    );
    assert_eq!(json["read"]["count"], 300);
    assert_eq!(json["read"]["iops"], 100_000);
    let log = host.kernel.take_log().join("\n");
    assert!(log.contains("interval_us = 1000\n"), "{log}");
    // Nothing can be measured: that is no failure.
    let json = value(&host, "-j ping 10.9.0.1/e2 -c 4 --op faa");
    assert_eq!(json["unavailable"], serde_json::json!(["faa"]));
    assert_eq!(json["complete"], true);
    assert!(host.kernel.objects().is_empty());
}

#[test]
fn datagrams_may_be_lost() {
    let host = Host::new("ping-ud");
    let text = host.ok("ping 10.9.0.1/e2 -c 8 --op send-ud --size 1K --depth 4");
    let log = host.kernel.take_log().join("\n");
    for wanted in [
        "export = e2",
        "size = 1024",
        "depth = 4",
        "send = 0",
        "send_ud = 1",
    ] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    assert!(
        text.starts_with("SEND UD  6 round trips  min 30.0 us"),
        "{text}"
    );
    assert!(text.contains("\nSEND UD  2 of 8 lost, 25%"), "{text}");
    let json = value(
        &host,
        "-j ping 10.9.0.1/e2 -c 300 --op send-ud,send --depth 2",
    );
    assert_eq!(
        json["send_ud"]["count"]
            .as_u64()
            .map(|count| count + json["lost"].as_u64().unwrap()),
        Some(300)
    );
    assert_eq!(
        (
            &json["send"]["count"],
            &json["lost"],
            &json["send_ud"]["size"]
        ),
        (&300.into(), &75.into(), &8.into())
    );
    assert_eq!(json["complete"], true);
    assert!(value(&host, "-j ping 10.9.0.1 -c 4")["lost"].is_null());
    // Each has a connection of its own, and none an answer.
    let error = host.run("ping 10.9.0.1/e2 -c 1 --op send-ud").unwrap_err();
    assert_eq!((error.code.entry().name, error.exit()), ("F0205", 5));
    assert_eq!(host.out.take(), "SEND UD  1 of 1 lost, 100%\n");
    let (code, exit, text) = host.fails("ping 10.9.0.1/e2 --op send-ud --size 4097");
    assert_eq!((code, exit), ("F0101", 2), "{text}");
    let enable = format!("ping/tool-{}/enable", std::process::id());
    let why =
        "EMSGSIZE a datagram is one packet: it has 1024 bytes at most between these two ports";
    host.kernel.refuse(&enable, "1", 90, why, 1);
    let (code, exit, text) = host.fails("ping 10.9.0.1/e2 --op send-ud --size 4K");
    assert_eq!((code, exit), ("F0106", 2), "{text}");
    assert!(text.contains("1024 bytes at most"), "{text}");
    assert!(host.kernel.objects().is_empty());
    let script = host.ok("--dry-run ping 10.9.0.1/e2 -c 3 --op send-ud");
    assert!(
        script.contains("/send_ud_ns ") && script.contains("/lost"),
        "{script}"
    );
    assert!(super::is_shell(&script), "{script}");
}

#[test]
fn depth_is_that_which_can_be_had() {
    let host = Host::new("ping-depth");
    let json = value(&host, "-j ping 10.9.0.1 -c 4 --op send,read --depth 8");
    assert_eq!(
        (&json["send"]["depth"], &json["read"]["depth"]),
        (&4.into(), &1.into())
    );
    assert_eq!(
        (&json["send"]["size"], &json["read"]["size"]),
        (&8.into(), &0.into())
    );
    assert!(json["read"]["iops"].is_null());
    // No message has so many bytes.
    let json = value(&host, "-j ping 10.9.0.1/e2 -c 4 --size 60K");
    assert_eq!(json["read"]["size"], 61_440);
    assert!(json["send"].is_null());
}

#[test]
fn a_message_has_a_size() {
    let host = Host::new("ping-size");
    // Nobody has to admit this host for it.
    for line in ["10.9.0.1 --size 1K", "10.9.0.1 --op send --size 1K"] {
        let json = value(&host, &format!("-j ping {line} -c 4"));
        assert_eq!(
            (&json["send"]["size"], &json["send"]["count"]),
            (&1024.into(), &4.into())
        );
        let log = host.kernel.take_log().join("\n");
        assert!(
            log.contains("send_size = 1024") && !log.contains("export = "),
            "{log}"
        );
    }
    let json = value(&host, "-j ping 10.9.0.1/e2 -c 4 --size 4080");
    assert_eq!(
        (&json["send"]["size"], &json["read"]["size"]),
        (&4080.into(), &4080.into())
    );
    let log = host.kernel.take_log().join("\n");
    for wanted in ["/size = 4080", "/send_size = 4080"] {
        assert!(log.contains(wanted), "{wanted}: {log}");
    }
    host.ok("ping 10.9.0.1 -c 4 --size 8");
    let log = host.kernel.take_log().join("\n");
    assert!(!log.contains("size = "), "{log}");
}

#[test]
fn a_key_is_proved_for_a_scratch_region() {
    let host = Host::new("ping-key");
    let file = host.key("a", crate::secret::tests::TEXT);
    host.ok(&format!(
        "ping 10.9.0.1/e2 -c 1 --op write --key-file {file}"
    ));
    let log = host.kernel.take_log();
    assert!(log.iter().any(|line| line.contains("/key = ")), "{log:?}");
}

#[test]
fn what_is_new_needs_an_export() {
    let host = Host::new("ping-needs");
    for bad in [
        "--op write",
        "--op read,faa",
        "--op cas",
        "--op send-ud",
        "--op send,read --size 8",
    ] {
        let (code, exit, text) = host.fails(&format!("ping 10.9.0.1 {bad}"));
        assert_eq!((code, exit), ("F0101", 2), "{bad}: {text}");
    }
    for bad in [
        "--op x",
        "--size 0",
        "--size 60.5K",
        "--size 61441",
        "--depth 0",
        "--depth 33",
    ] {
        assert_eq!(host.fails(&format!("ping 10.9.0.1/e2 {bad}")).1, 2, "{bad}");
    }
    for (line, hint) in [
        (
            "10.9.0.1 --op send --size 4K",
            "10.9.0.1/EXPORT --op read,write --size 4096",
        ),
        (
            "10.9.0.1 --size 4081",
            "10.9.0.1/EXPORT --op read,write --size 4081",
        ),
        (
            "10.9.0.1/e2 --op send,faa --size 60K",
            "10.9.0.1/e2 --op read,write --size 61440",
        ),
        (
            "10.9.0.1/e2 --op cas --size 8K",
            "10.9.0.1/e2 --op write --size 8192",
        ),
    ] {
        let error = host.run(&format!("ping {line}")).unwrap_err();
        assert_eq!((error.code, error.exit()), (Code::Usage, 2), "{line}");
        let is_told = error.why.contains("4080 bytes at most") || error.why.contains("CAS and FAA");
        assert!(is_told, "{error:?}");
        assert_eq!(super::hint(&error), format!("farblk ping {hint}"));
    }
    assert!(host.kernel.objects().is_empty());
    let script = host.ok("--dry-run ping 10.9.0.1/e2 -c 3 --op cas,read --depth 2");
    for wanted in ["/cas; ", "/cas\n", "/read_ns ", "/cas_ns ", "/elapsed_ns"] {
        let found = script.contains(wanted) || wanted.starts_with("/cas");
        assert!(found, "{wanted}: {script}");
    }
    assert!(super::is_shell(&script), "{script}");
}

#[test]
fn many_round_trips_are_measured_in_parts() {
    let host = Host::new("ping-parts");
    let json = value(&host, "-j ping 10.9.0.1 -c 300 -i 1ms");
    assert_eq!(json["send"]["count"], 300);
    let log = host.kernel.take_log();
    let counts: Vec<_> = log
        .iter()
        .filter_map(|line| line.split_once("/count = "))
        .collect();
    assert_eq!(
        counts.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        ["256", "44"]
    );
    assert_eq!(
        log.iter()
            .filter(|line| line.ends_with("enable = 1"))
            .count(),
        2
    );
}

#[test]
fn a_failure_comes_after_what_was_measured() {
    let host = Host::new("ping-fails");
    let enable = format!("ping/tool-{}/enable", std::process::id());
    host.kernel.refuse(
        &enable,
        "1",
        111,
        "ECONNREFUSED nobody listens on 10.9.0.1:7420",
        1,
    );
    let (code, exit, text) = host.fails("ping 10.9.0.1");
    assert_eq!((code, exit), ("F0203", 5));
    assert_eq!(
        text,
        "cannot ping 10.9.0.1: nobody listens on 10.9.0.1:7420"
    );
    assert!(host.kernel.objects().is_empty());
    // A module that does not know what is new.
    let old = Host::new("ping-older");
    for name in [
        "export",
        "size",
        "send_size",
        "depth",
        "polled",
        "send",
        "write",
        "unavailable",
    ] {
        old.kernel.forget(name);
    }
    assert!(old.ok("ping 10.9.0.1/e2 -c 4").contains("READ  4 round"));
    for more in [
        "--op write",
        "--op read",
        "--size 4K",
        "--op send --size 1K",
        "--depth 2",
        "--polled",
    ] {
        let line = format!("ping 10.9.0.1/e2 {more}");
        assert_eq!(old.fails(&line).0, "F0402", "{more}");
    }
    // A module that does not know it.
    let old = Host::new("ping-old");
    fs::create_dir_all(old.root.join("proc/self")).expect("a directory");
    old.kernel.forget("interval_us");
    assert_eq!(old.fails("ping 10.9.0.1").0, "F0402");
    assert!(old.kernel.objects().is_empty());
}

#[test]
fn values_are_checked_and_a_dry_run_is_shell() {
    let host = Host::new("ping-dry");
    for bad in ["-c 0", "-c 1000001", "-i 0", "-i 61m", "-c x", "--source x"] {
        assert_eq!(
            host.fails(&format!("--dry-run ping 10.9.0.1 {bad}")).1,
            2,
            "{bad}"
        );
    }
    for bad in ["x://10.9.0.1", "10.9.0.1/", "10.9.0.1/a/b", "10.9.0.1/.x"] {
        assert_eq!(host.fails(&format!("--dry-run ping {bad}")).1, 2, "{bad}");
    }
    let script = host.ok("--dry-run ping 10.9.0.1 -c 10");
    assert!(script.contains("/ping/tool/enable; cat "), "{script}");
    assert!(super::is_shell(&script), "{script}");
    let script = host.ok("--dry-run ping 10.9.0.1/e0 -c 300 -i 1ms");
    assert!(
        script.contains("\nfor i in $(seq 2); do echo 1 > "),
        "{script}"
    );
    assert!(script.contains("/discover/tool/enable"), "{script}");
    assert!(super::is_shell(&script), "{script}");
    assert!(host.kernel.take_log().is_empty());
}
