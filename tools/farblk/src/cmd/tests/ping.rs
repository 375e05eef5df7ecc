// SPDX-License-Identifier: GPL-2.0
//! `farblk ping` against the model of the kernel.

use super::{Host, fs};

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
