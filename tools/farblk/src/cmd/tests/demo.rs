// SPDX-License-Identifier: GPL-2.0
//! `farblk demo` against the model of the kernel: what it does not do there.

use super::{Host, fs, hint, is_shell};

#[test]
fn a_dry_run_is_shell_that_removes_what_it_makes() {
    let host = Host::new("demo-dry");
    let script = host.ok("--dry-run demo --ram 8M");
    assert!(is_shell(&script), "{script}");
    for (make, remove) in [
        ("ip link add farblkdemo", "ip link delete farblkdemo"),
        ("rdma link add farblkdemo", "rdma link delete farblkdemo"),
        ("farblk port add farblk-demo", "farblk port rm farblk-demo"),
        (
            "farblk export create farblk-demo --ram 8388608",
            "farblk export rm farblk-demo",
        ),
        (
            "farblk map 198.18.74.20/farblk-demo",
            "farblk unmap farblk-demo",
        ),
    ] {
        let at = |what: &str| {
            script
                .find(what)
                .unwrap_or_else(|| panic!("{what}: {script}"))
        };
        assert!(at(make) < at(remove), "{script}");
    }
    assert!(script.contains("--allow node-b"), "{script}");
    assert!(host.kernel.take_log().is_empty());
    for bad in ["--ram 0", "--ram 1K", "--ram 1025K", "--time 0", "x"] {
        assert_eq!(host.fails(&format!("--dry-run demo {bad}")).1, 2, "{bad}");
    }
}

#[test]
fn what_has_its_names_stays() {
    let host = Host::new("demo-names");
    // Below another root it makes nothing.
    assert_eq!(host.fails("demo").1, 2);
    host.ok("export create farblk-demo --ram 1M");
    host.kernel.take_log();
    fs::create_dir_all(host.root.join("sys/class/net/farblkdemo")).expect("a directory");
    let error = host.run("demo").expect_err("it exists");
    assert_eq!((error.code.entry().name, error.exit()), ("F0103", 1));
    assert!(
        error.why.contains(
            "/sys/class/net/farblkdemo and /sys/kernel/config/farblk/exports/farblk-demo exist"
        ),
        "{}",
        error.why
    );
    // The removal, last first.
    let hints = hint(&error);
    let lines: Vec<_> = hints.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "farblk export rm farblk-demo --force",
            "ip link delete farblkdemo"
        ]
    );
    assert!(host.kernel.take_log().is_empty());
    assert_eq!(host.kernel.objects(), ["exports/farblk-demo"]);
}
