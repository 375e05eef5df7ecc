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
