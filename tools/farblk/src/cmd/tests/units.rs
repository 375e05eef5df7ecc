// SPDX-License-Identifier: GPL-2.0
//! What udev and the units of systemd run.

use std::fs;
use std::time::{Duration, Instant};

use super::Host;

#[test]
fn udev_finds_the_map_of_a_disk() {
    let host = Host::new("udev");
    assert_eq!(host.fails("udev farblk0").1, 3);
    host.ok("map 10.9.0.1/vol1 --name other");
    host.kernel.put("maps/other", "device", "farblk12");
    host.ok("map 10.9.0.1/vol1");
    let want =
        "FARBLK_MAP=vol1\nFARBLK_UUID=11111111-1111-1111-1111-111111111111\nFARBLK_STATE=live";
    for device in ["farblk0", "/dev/farblk0"] {
        assert_eq!(host.ok(&format!("udev {device}")), want);
    }
    assert!(host.ok("udev farblk12").starts_with("FARBLK_MAP=other\n"));
    assert_eq!(
        host.ok("-j udev farblk0"),
        r#"{"schema":"farblk.udev/1","disk":"farblk0","map":"vol1","uuid":"11111111-1111-1111-1111-111111111111","state":"live"}"#
    );
    // The kernel has not told the map its UUID yet.
    host.kernel.put("maps/vol1", "uuid", "");
    assert_eq!(
        host.ok("udev farblk0"),
        "FARBLK_MAP=vol1\nFARBLK_STATE=live"
    );
    let (code, exit, text) = host.fails("udev farblk1");
    assert_eq!((code, exit), ("F0102", 3), "{text}");
    for device in ["sda", "farblk", "../farblk0", "farblk0p1", "/dev/"] {
        assert_eq!(host.fails(&format!("udev {device}")).1, 3);
    }
}

/// What the unit of map vol1 does.
struct Unit<'a>(&'a Host);

impl<'a> Unit<'a> {
    /// One whose map is in a file.
    fn of(host: &'a Host) -> Self {
        host.write(
            "client.d/vol1.toml",
            "[map.vol1]\npaths = { 0 = \"10.9.0.1\" }\n",
        );
        Self(host)
    }

    /// Starts it; it finds the map, or maps the export.
    fn start(&self) -> String {
        self.0.ok("unit start-map vol1")
    }

    fn stop(&self) -> String {
        self.0.ok("unit stop-map vol1")
    }

    fn note(&self) -> Option<String> {
        fs::read_to_string(self.0.root.join("run/farblk/maps/vol1")).ok()
    }

    fn is_mapped(&self) -> bool {
        self.0.kernel.objects().contains(&"maps/vol1".to_owned())
    }
}

#[test]
fn a_unit_unmaps_the_map_that_it_made() {
    let host = Host::new("unit-made");
    let unit = Unit::of(&host);
    unit.start();
    let note = unit.note().expect("a note");
    assert!(note.starts_with("made "));
    // A process that is killed while it waits for udev has left its note.
    let settled = host.system.take_log().pop();
    assert_eq!(settled.as_deref(), Some(format!("settle {note}").trim()));
    // The unit is started once more while the map is there.
    unit.start();
    assert!(unit.stop().starts_with("unmapped vol1 (farblk0)"));
    assert!(!unit.is_mapped());
    assert_eq!(unit.note(), None);
    // It is stopped once more.
    assert!(unit.stop().contains("did not make map vol1"));
}

#[test]
fn a_unit_leaves_other_maps_alone() {
    let host = Host::new("unit-other");
    let unit = Unit::of(&host);
    // The map was there before.
    host.ok("map 10.9.0.1/vol1");
    unit.start();
    assert!(unit.stop().contains("did not make map vol1"));
    assert!(unit.is_mapped());
    // Somebody has unmapped the unit's map, and mapped the export anew.
    host.ok("unmap vol1");
    unit.start();
    host.ok("unmap vol1");
    host.ok("map 10.9.0.1/vol1");
    assert!(unit.stop().contains("did not make map vol1"));
    assert!(unit.is_mapped());
    host.ok("unmap vol1");
    // An attempt failed, and somebody mapped the export before the next one.
    host.write("client.d/vol1.toml", "");
    host.fails("unit start-map vol1");
    assert_eq!(unit.note().as_deref(), Some("before none\n"));
    let unit = Unit::of(&host);
    host.ok("map 10.9.0.1/vol1");
    unit.start();
    assert!(unit.stop().contains("did not make map vol1"));
    assert!(unit.is_mapped());
    // A note that cannot be read is none.
    unit.start();
    fs::write(host.root.join("run/farblk/maps/vol1"), "made").expect("a note");
    assert!(unit.stop().contains("did not make map vol1"));
    assert!(unit.is_mapped());
}

#[test]
fn a_unit_owns_the_map_that_a_killed_attempt_has_left() {
    let host = Host::new("unit-killed");
    let unit = Unit::of(&host);
    // The process was killed before the map had a disk.
    host.ok("map 10.9.0.1/vol1");
    host.kernel.put("maps/vol1", "enable", "0");
    host.kernel.put("maps/vol1", "state", "disabled");
    host.kernel.put("maps/vol1", "device", "");
    assert_eq!(
        unit.start(),
        "map vol1  restored\nmap vol1 is made by its unit"
    );
    // So it is given up, and stopped.
    host.kernel.put("maps/vol1", "state", "reconnecting");
    assert_eq!(host.ok("unit give-up --after 0"), "gave up vol1");
    assert!(unit.stop().starts_with("unmapped vol1"));
    assert!(!unit.is_mapped());
}

#[test]
fn a_unit_waits_while_the_disk_is_in_use() {
    let host = Host::new("unit-busy");
    let unit = Unit::of(&host);
    unit.start();
    let busy = "EBUSY the device is open";
    host.kernel.refuse("maps/vol1/enable", "0", 16, busy, 1000);
    let (code, exit, _) = host.fails("unit stop-map vol1 --wait 2s");
    assert_eq!((code, exit), ("F0107", 4));
    assert!(unit.is_mapped());
    // The note stays: another stop unmaps it.
    assert!(unit.note().is_some_and(|note| note.starts_with("made ")));
}

#[test]
fn only_maps_of_units_without_a_server_are_given_up() {
    let host = Host::new("unit-give-up");
    let unit = Unit::of(&host);
    assert_eq!(host.ok("unit give-up"), "no map had to be given up");
    host.ok("map 10.9.0.1/hand --name hand");
    host.kernel.put("maps/hand", "state", "reconnecting");
    assert_eq!(host.ok("unit give-up"), "no map had to be given up");
    unit.start();
    host.kernel.take_log();
    // Live: it is looked at until the end.
    let start = Instant::now();
    host.ok("unit give-up --after 0 --within 500ms");
    assert!(start.elapsed() >= Duration::from_millis(500));
    // Away, but not for long.
    host.kernel.put("maps/vol1", "state", "reconnecting");
    host.ok("unit give-up --after 1h --within 500ms");
    assert!(host.kernel.take_log().is_empty());
    let text = host.ok("-j unit give-up --after 500ms");
    assert_eq!(
        text,
        r#"{"schema":"farblk.unit/1","task":"give-up","changed":["vol1"]}"#
    );
    assert!(host.err.take().contains("map vol1 is reconnecting"));
    assert_eq!(host.kernel.take_log(), ["maps/vol1/enable = force"]);
    let hand = host.kernel.get("maps/hand", "state");
    assert_eq!(hand.as_deref(), Some("reconnecting"));
    // The unit then removes what is left.
    unit.stop();
    assert!(!unit.is_mapped());
}

#[test]
fn units_have_no_dry_run() {
    let host = Host::new("unit-dry");
    for task in [
        "start-map m",
        "stop-map m",
        "give-up",
        "start-server",
        "stop-server",
    ] {
        assert_eq!(host.fails(&format!("--dry-run unit {task}")).1, 2);
    }
    assert_eq!(host.fails("unit stop-map a/b").1, 2);
}
