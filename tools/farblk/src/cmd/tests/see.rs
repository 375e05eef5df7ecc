// SPDX-License-Identifier: GPL-2.0
//! The commands that show the I/O, on fabricated counters.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

/// Buckets that are 0 but for some.
fn buckets(some: &[(usize, u64)]) -> String {
    let count = |bucket| some.iter().find(|(have, _)| *have == bucket);
    let counts = (0..32).map(|bucket| count(bucket).map_or("0".into(), |(_, n)| n.to_string()));
    counts.collect::<Vec<_>>().join(" ")
}

impl Host {
    fn counters_file(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn stats(&self, object: &str, text: &str) {
        self.counters_file(&format!("sys/kernel/debug/farblk/{object}/stats"), text);
    }

    fn latency(&self, object: &str, text: &str) {
        self.counters_file(&format!("sys/kernel/debug/farblk/{object}/latency"), text);
    }

    /// The map of [`Self::with_io`] has got `count` further reads, each of 3 us.
    pub(crate) fn more_reads(&self, count: u64) {
        let reads = 300 + count;
        self.stats(
            "maps/scratch",
            &format!("reads {reads}\nwrites 100\nread_bytes 9999999\nwrite_bytes 409600\n"),
        );
        let read = buckets(&[(2, 200), (4, 100)].map(|(bucket, n)| match bucket {
            2 => (2, n + count),
            _ => (bucket, n),
        }));
        self.latency("maps/scratch", &format!("read {read}\n"));
    }

    /// A host with a map and two exports, whose counters can be read.
    pub(crate) fn with_io(test: &str) -> Self {
        let host = Self::new(test);
        host.ok("port add main --addr 10.9.0.2");
        host.ok("map 10.9.0.1/scratch");
        host.kernel.put("maps/scratch", "mode", "one_sided");
        host.ok("export create ram --ram 1M");
        host.kernel.put("exports/ram", "kind", "ram");
        host.ok("export create vol --ram 1M");
        host.kernel.put("exports/vol", "kind", "block");
        host.stats(
            "maps/scratch",
            "reads 300\nwrites 100\nflushes 4\ndiscards 0\nwrite_zeroes 1\nread_bytes 1228800\n\
             write_bytes 409600\nerrors 0\nretries 2\none_sided 401\nin_flight 7\nreconnects 1\n\
             failovers 0\n",
        );
        let read = buckets(&[(2, 200), (4, 100)]);
        let none = buckets(&[]);
        host.latency(
            "maps/scratch",
            &format!(
                "read {read}\nwrite {}\nflush {none}\n",
                buckets(&[(3, 100)])
            ),
        );
        host.stats(
            "exports/vol",
            "reads 9\nwrites 1\nread_bytes 36864\nwrite_bytes 4096\nerrors 0\nin_flight 0\n",
        );
        host.latency("exports/vol", &format!("read {none}\n"));
        host.out.take();
        host.err.take();
        host
    }

    /// The context of a command that the test runs by itself.
    pub(crate) fn context(&self) -> Context {
        Context {
            root: self.root.clone(),
            configfs: Configfs::with(&self.root, false, Box::new(self.kernel.clone())),
            devices: Devices::with(&self.root, Box::new(self.system.clone())),
            output: Output::to(
                false,
                false,
                Box::new(self.out.clone()),
                Box::new(self.err.clone()),
                None,
            ),
            exit: Cell::new(0),
        }
    }

    /// The errors and warnings.
    fn said(&self) -> String {
        anstream::adapter::strip_str(&self.err.take()).to_string()
    }

    fn json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(line)).expect("JSON")
    }
}

/// The cells of each line; the columns are two blanks apart, or more.
fn cells(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        let cells = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    text.lines().map(cells).collect()
}

#[test]
fn stats_since_the_objects_were_enabled() {
    let host = Host::with_io("stats");
    let rows = cells(&host.ok("stats"));
    assert_eq!(
        rows[0][1..],
        [
            "KIND",
            "NAME",
            "STATE",
            "READS",
            "WRITES",
            "READ",
            "WRITTEN",
            "r us p50/p99/p99.9",
            "w us p50/p99/p99.9",
            "INFLT",
            "1-SIDED",
            "RETRIES"
        ]
    );
    assert_eq!(
        rows[1][1..],
        [
            "map",
            "scratch",
            "live",
            "300",
            "100",
            "1.2 MiB",
            "400.0 KiB",
            "3.6/16/16",
            "6.1/8.2/8.2",
            "7",
            "100%",
            "2"
        ]
    );
    // Nobody counts the I/O to an export of RAM: that is not 0.
    assert_eq!(rows[2][1..4], ["export", "ram", "online"]);
    assert!(rows[2][4..].iter().all(|cell| cell == "-"), "{rows:?}");
    assert_eq!(rows[3][1..6], ["export", "vol", "online", "9", "1"]);
    assert_eq!(host.said(), "");
    let one = cells(&host.ok("stats vol"));
    assert_eq!((one.len(), &*one[1][2]), (2, "vol"));
    assert_eq!(cells(&host.ok("stats farblk0"))[1][2], "scratch");
}

#[test]
fn stats_as_json() {
    let host = Host::with_io("stats-json");
    let document = host.json("-j stats");
    assert_eq!(document["schema"], "farblk.stats/1");
    assert_eq!(document["interval_s"], serde_json::Value::Null);
    let map = &document["objects"][0];
    assert_eq!(map["reads"], 300);
    assert_eq!(map["one_sided_share"], 1.0);
    assert_eq!(map["read_latency"]["count"], 300);
    assert_eq!(map["read_latency"]["p50_ns"], 3584);
    assert_eq!(map["flush_latency"]["p50_ns"], serde_json::Value::Null);
    assert_eq!(map["reads_per_s"], serde_json::Value::Null);
    let ram = &document["objects"][1];
    assert_eq!(
        (&ram["name"], &ram["mode"]),
        (&"ram".into(), &"one_sided".into())
    );
    assert_eq!(ram["reads"], serde_json::Value::Null);
}

#[test]
fn stats_of_intervals() {
    let host = Host::with_io("stats-interval");
    let text = host.ok("stats scratch 100ms 3");
    let rows = cells(&text);
    assert_eq!(rows.len(), 4, "{text}");
    assert_eq!(rows[0][4], "r/s");
    // Nothing happened.
    assert_eq!(rows[3][4..8], ["0.0", "0.0", "0.0", "0.0"]);
    assert_eq!(rows[3][8..], ["-", "-", "7", "-", "0"]);
    let lines = host.ok("-j stats 100ms 2");
    assert_eq!(lines.lines().count(), 2);
    let document: serde_json::Value =
        serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert!(document["interval_s"].as_f64().is_some_and(|s| s > 0.09));
    assert_eq!(document["objects"][0]["reads_per_s"], 0.0);
}

#[test]
fn list_and_show_tell_when_io_gives_up() {
    let host = Host::with_io("gives-up");
    assert!(!host.ok("list").contains("I/O waits"));
    assert!(host.ok("show scratch").contains("\n  gives up         -\n"));
    host.kernel.put("maps/scratch", "state", "reconnecting");
    host.kernel
        .put("maps/scratch", "no_path_timeout_ms", "60000");
    host.kernel.put("maps/scratch", "gives_up_ms", "58300");
    let text = host.ok("list");
    assert!(
        text.contains("─ I/O waits for a path, and gives up in 58.3 s"),
        "{text}"
    );
    let text = host.ok("show scratch");
    assert!(text.contains("\n  gives up         in 58.3 s\n"), "{text}");
    assert_eq!(host.json("-j list")["maps"][0]["gives_up_ms"], 58300);
    host.kernel.put("maps/scratch", "no_path_timeout_ms", "-1");
    host.kernel.put("maps/scratch", "gives_up_ms", "");
    let text = host.ok("list");
    assert!(text.contains("─ I/O waits for a path, for ever"), "{text}");
}

#[test]
fn top_as_plain_text() {
    let host = Host::with_io("top");
    // A test has no terminal.
    for line in ["top -b -n 2 -d 100ms", "top -n 2 -d 100ms"] {
        let text = host.ok(line);
        let tables: Vec<_> = text.split("\n\n").collect();
        assert_eq!(tables.len(), 2, "{text}");
        let rows = cells(tables[1]);
        assert_eq!(rows[0][..2], ["farblk top", "node-b"]);
        assert_eq!(rows[0][3], "1 map, 2 exports");
        assert_eq!(rows[1][..3], ["TIME", "KIND", "NAME"]);
        // Those of which nothing is known come last.
        assert_eq!(rows.len(), 5, "{text}");
        assert_eq!(rows[4][2], "ram");
    }
    let document = host.json("-j top -n 1 -d 100ms");
    assert_eq!(document["schema"], "farblk.stats/1");
    assert_eq!(host.fails("--dry-run top").0, "F0101");
    assert_eq!(host.fails("--dry-run events").0, "F0101");
    assert_eq!(host.fails("top -n 0").0, "F0101");
}

#[test]
fn stats_of_nothing_or_of_something_else() {
    let host = Host::with_io("stats-wrong");
    for (line, code, words) in [
        ("stats nobody", "F0102", "no map or export \"nobody\""),
        ("stats 50ms", "F0101", "out of range"),
        ("stats scratch x", "F0101", "\"x\" is not a duration"),
        ("stats scratch 1 0", "F0101", "\"0\""),
        ("stats 1 2 3", "F0101", "no map or export \"1\""),
        ("--dry-run stats", "F0101", "changes nothing"),
        ("--dry-run metrics", "F0101", "changes nothing"),
    ] {
        let (have, _, text) = host.fails(line);
        assert_eq!(have, code, "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
}

#[test]
fn without_debugfs_the_block_layer_is_asked() {
    let host = Host::with_io("stats-no-debugfs");
    fs::remove_dir_all(host.root.join("sys/kernel/debug")).expect("a directory");
    host.counters_file(
        "sys/block/farblk0/stat",
        "  11 0 16 0 22 0 32 0 3 0 0 5 0 40 0 1 0\n",
    );
    let rows = cells(&host.ok("stats scratch"));
    assert_eq!(
        rows[1][3..],
        [
            "live", "11", "22", "8.0 KiB", "16.0 KiB", "-", "-", "3", "-", "-"
        ]
    );
    let said = host.said();
    assert!(said.contains("sys/kernel/debug does not exist"), "{said}");
    fs::create_dir_all(host.root.join("sys/kernel/debug")).expect("a directory");
    host.ok("stats");
    let said = host.said();
    assert!(said.contains("debugfs is not mounted"), "{said}");
    assert!(said.contains("hint: mount -t debugfs none /sys/kernel/debug"));
    fs::create_dir_all(host.root.join("sys/kernel/debug/farblk/client")).expect("a directory");
    host.ok("stats");
    let said = host.said();
    assert!(said.contains("the loaded kernel module has none"), "{said}");
    // The module's counters are another thing: metrics leaves them out.
    let text = host.ok("metrics");
    assert!(text.contains("\nfarblk_counters_readable 0\n"), "{text}");
    assert!(text.contains("\nfarblk_map_state{"), "{text}");
    assert!(!text.contains("farblk_map_reads"), "{text}");
}

#[test]
fn garbage_in_the_counters_is_said_once() {
    let host = Host::with_io("stats-garbage");
    host.stats("maps/scratch", "reads x\nwrites 5\n");
    host.latency("maps/scratch", "read 1 2 3\n");
    let text = host.ok("stats scratch 100ms 3");
    assert_eq!(text.lines().count(), 4);
    let said = host.said();
    assert_eq!(said.matches("\"x\" is no number").count(), 1, "{said}");
    assert_eq!(said.matches("3 buckets, not 32").count(), 1, "{said}");
    let row = &cells(&host.ok("stats scratch"))[1];
    assert_eq!(row[4..6], ["-", "5"]);
}

/// Runs the checker of the kselftests; gives the number of values, or what is wrong.
fn check(text: &str) -> Result<u32, String> {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../selftests/openmetrics.py"
    );
    let mut child = Command::new("python3")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(text.as_bytes()).expect("a reader");
    drop(stdin);
    let output = child.wait_with_output().expect("an end");
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout).parse().expect("a number")),
        false => Err(text(&output.stderr)),
    }
}

#[test]
fn metrics_are_openmetrics() {
    let host = Host::with_io("metrics");
    let text = host.ok("metrics") + "\n";
    assert!(check(&text).expect("OpenMetrics") > 150, "{text}");
    for line in [
        "farblk_module_loaded 1",
        "farblk_counters_readable 1",
        "farblk_map_state{map=\"scratch\",state=\"live\"} 1",
        "farblk_map_state{map=\"scratch\",state=\"failed\"} 0",
        "farblk_map_reads_total{map=\"scratch\"} 300",
        "farblk_map_read_bytes_total{map=\"scratch\"} 1228800",
        "farblk_map_in_flight{map=\"scratch\"} 7",
        "farblk_export_reads_total{export=\"vol\"} 9",
        "farblk_port_state{port=\"main\",state=\"listening\"} 1",
        "farblk_map_latency_seconds_bucket{le=\"0.000004096\",map=\"scratch\",operation=\"read\"} 200",
        "farblk_map_latency_seconds_bucket{le=\"+Inf\",map=\"scratch\",operation=\"read\"} 300",
        "farblk_map_latency_seconds_count{map=\"scratch\",operation=\"read\"} 300",
    ] {
        assert!(text.lines().any(|have| have == line), "{line}: {text}");
    }
    // Nobody counts the I/O to an export of RAM.
    assert!(!text.contains("_total{export=\"ram\"}"), "{text}");
    let document = host.json("-j metrics");
    assert_eq!(document["schema"], "farblk.metrics/1");
    assert_eq!(document["families"][0]["samples"][0]["value"], 1);
    assert_eq!(host.said(), "");
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let host = Host::with_io("metrics-wrong");
    let text = host.ok("metrics") + "\n";
    for (old, new) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\n\n"),
        ("# EOF\n", "\n# EOF\n"),
        ("_reads_total{", "_reads{"),
        ("farblk_map_reads counter", "farblk_map_reads info"),
        ("seconds_bucket{le=\"+Inf\"", "seconds_bucket{le=\"0.1\""),
        (
            "seconds_count{map=\"scratch\",operation=\"read\"} 300",
            "seconds_count{map=\"scratch\",operation=\"read\"} 9",
        ),
        ("state=\"live\"", "state=\"failed\""),
        ("map=\"scratch\"", "map=\"scr\"atch\""),
        ("# HELP farblk_map_reads ", "# HELP farblk_map_reads_ "),
        (
            "_reads_total{map=\"scratch\"} 300",
            "_reads_total{map=\"scratch\"} -300",
        ),
        (
            "_reads_total{map=\"scratch\"} 300",
            "_reads_total{map=\"scratch\"} 300 1795473601",
        ),
        (
            "# UNIT farblk_map_read_bytes bytes",
            "# UNIT farblk_map_read_bytes seconds",
        ),
    ] {
        assert!(text.contains(old), "{old}");
        assert!(
            check(&text.replacen(old, new, 1)).is_err(),
            "{old} -> {new}"
        );
    }
}

#[test]
fn metrics_in_a_file() {
    let host = Host::with_io("metrics-file");
    let path = host.root.join("farblk.prom");
    let text = host.ok("metrics") + "\n";
    let line = format!("metrics --file {}", path.display());
    assert!(host.ok(&line).starts_with("wrote "));
    assert_eq!(fs::read_to_string(&path).expect("a file"), text);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(&path).expect("a file").permissions(),
    );
    assert_eq!(mode & 0o777, 0o644);
    // It is replaced, and nothing else stays in the folder, not even what a killed one has left.
    fs::write(host.root.join("farblk.prom.farblk-4194305.new"), "half").expect("a file");
    host.kernel.put("maps/scratch", "state", "failed");
    let document = host.json(&format!("-j {line}"));
    assert_eq!(document["schema"], "farblk.written/1");
    assert!(document["samples"].as_u64().is_some_and(|n| n > 150));
    let new = fs::read_to_string(&path).expect("a file");
    assert!(new.contains("state=\"failed\"} 1"), "{new}");
    let others = fs::read_dir(&host.root).expect("a folder").flatten();
    let others = others.filter(|entry| entry.file_name().to_string_lossy().contains(".new"));
    assert_eq!(others.count(), 0);
    let (code, exit, text) = host.fails(&format!("metrics --file {}/none/f", host.root.display()));
    assert_eq!((code, exit), ("F0102", 3), "{text}");
    let (_, _, text) = host.fails(&format!("metrics --file {}/..", host.root.display()));
    assert!(text.contains("no file name"), "{text}");
}

#[test]
fn metrics_without_the_module() {
    let host = Host::with_io("metrics-no-module");
    let cli = Cli::try_parse_from(["farblk", "metrics"]).expect("a command line");
    let context = Context {
        configfs: Configfs::new(&host.root, false),
        ..host.context()
    };
    run(&context, &cli.command).expect("metrics");
    let text = host.out.take();
    assert!(text.contains("\nfarblk_module_loaded 0\n"), "{text}");
    assert!(check(&text).is_ok(), "{text}");
    assert!(host.said().contains("modprobe farblk"));
}

/// The names of metrics in a text.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| word.starts_with("farblk_"));
    names.map(str::to_owned).collect()
}

/// The metrics that the rules may use.
fn known_names() -> BTreeSet<String> {
    let host = Host::with_io("metrics-names");
    host.kernel.put("maps/scratch", "gives_up_ms", "1000");
    host.kernel.put("maps/scratch/paths/0", "rtt_ns", "3100");
    host.counters_file(
        "sys/kernel/debug/farblk/server/counters",
        "logins 1\ntakeovers 2\nevictions 3\nviolations 4\nforgeries 0\nforged 0\nsent_away 0\n\
         heartbeats_missed 0\noverdue 0\nfences 0\n",
    );
    let text = host.ok("metrics");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned())
        .collect()
}

fn monitoring(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../monitoring")
        .join(name);
    fs::read_to_string(path).expect("a file")
}

#[test]
fn the_alert_rules_fit_to_the_metrics() {
    let rules = monitoring("farblk-alerts.yml");
    let known = known_names();
    let states = [
        "reconnecting",
        "failed",
        "stale",
        "evicted",
        "live",
        "error",
        "unavailable",
        "disabled",
    ];
    let mut alerts: Vec<(String, String)> = Vec::new();
    for line in rules.lines().filter(|line| !line.trim().starts_with('#')) {
        assert!(!line.contains('\t'), "{line}");
        if let Some(name) = line.strip_prefix("      - alert: ") {
            alerts.push((name.to_owned(), String::new()));
        } else if let Some((_, rule)) = alerts.last_mut() {
            *rule += &format!("{line}\n");
        }
    }
    assert!(alerts.len() >= 8, "{}", alerts.len());
    let names: BTreeSet<_> = alerts.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), alerts.len(), "each has a name of its own");
    for (name, rule) in &alerts {
        let value = |key: &str| {
            let found = rule.lines().find_map(|line| line.trim().strip_prefix(key));
            found
                .unwrap_or_else(|| panic!("{name} has no {key}"))
                .trim()
                .to_owned()
        };
        let expr = value("expr:");
        let used = names_in(&expr);
        assert!(!used.is_empty(), "{name}: {expr}");
        assert!(
            used.is_subset(&known),
            "{name}: {:?}",
            used.difference(&known)
        );
        for state in expr
            .split("state=~\"")
            .skip(1)
            .chain(expr.split("state=\"").skip(1))
        {
            let state = state.split('"').next().unwrap_or_default();
            assert!(
                state.split('|').all(|word| states.contains(&word)),
                "{name}: {state}"
            );
        }
        let balance = |open, close| expr.matches(open).count() == expr.matches(close).count();
        assert!(
            balance('(', ')') && balance('{', '}') && balance('[', ']'),
            "{name}: {expr}"
        );
        assert!(
            ["warning", "critical"].contains(&&*value("severity:")),
            "{name}"
        );
        for key in ["summary:", "description:"] {
            let text = value(key);
            assert!(
                text.starts_with('\'') && text.ends_with('\''),
                "{name}: {text}"
            );
        }
        assert!(value("for:").ends_with(['s', 'm', 'h']), "{name}");
    }
}

#[test]
fn the_dashboard_fits_to_the_metrics() {
    let text = monitoring("farblk-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let known = known_names();
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() >= 10, "{}", panels.len());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expr = target["expr"].as_str().expect("an expression");
            let used = names_in(expr);
            assert!(!used.is_empty(), "{title}: {expr}");
            assert!(used.is_subset(&known), "{title}: {expr}");
            let balance = |open, close| expr.matches(open).count() == expr.matches(close).count();
            assert!(balance('(', ')') && balance('{', '}'), "{title}: {expr}");
        }
    }
}
