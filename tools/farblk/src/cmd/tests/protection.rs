// SPDX-License-Identifier: GPL-2.0
//! The protection of exports and maps.

use super::*;
use crate::secret::tests::TEXT;

#[test]
fn both_sides_are_given_their_protection() {
    let host = Host::new("protect");
    host.system.disk("sdb");
    let file = host.key("m.key", TEXT);
    for word in ["none", "crc32c", "seal"] {
        let create = format!(
            "export create e --device /dev/sdb --allow b --key-file {file} --protection {word}"
        );
        let map = format!("map 10.9.0.1/e --key-file {file} --protection {word}");
        for (line, object) in [(&create, "exports/e"), (&map, "maps/e")] {
            let script = host.ok(&format!("--dry-run {line}"));
            assert!(script.contains(&format!("echo {word} > ")), "{script}");
            host.ok(line);
            let have = host.kernel.get(object, "protection");
            assert_eq!(have.as_deref(), Some(word), "{line}");
            // It may be left out then, and must not be another one.
            host.ok(line.split(" --protection").next().expect("a line"));
            let other = if word == "seal" { "crc32c" } else { "seal" };
            let other = line.replace(word, other);
            assert_eq!(host.fails(&other).0, "F0103", "{other}");
        }
        let shown = format!("  protection  {word}\n");
        assert!(host.ok("export show e").contains(&shown));
        let shown = format!("  protection       {word}\n");
        assert!(host.ok("show e").contains(&shown));
        let member = format!(r#""protection":"{word}""#);
        for line in ["-j export list", "-j list"] {
            assert!(host.ok(line).contains(&member), "{line}");
        }
        let branch = format!("─ protection {word}\n");
        assert_eq!(host.ok("list").contains(&branch), word != "none");
        host.ok("unmap e");
        host.ok("export rm e");
    }
    assert_eq!(host.fails("map 10.9.0.1/e --protection crc32").1, 2);
}

#[test]
fn ram_is_not_protected() {
    let host = Host::new("protect-ram");
    for word in ["crc32c", "seal"] {
        let (code, exit, text) =
            host.fails(&format!("export create e --ram 1M --protection {word}"));
        assert_eq!((code, exit), ("F0101", 2), "{text}");
        assert!(text.contains("hosts access the RAM"), "{text}");
    }
    host.ok("export create e --ram 1M --protection none");
}

#[test]
fn a_sealed_export_wants_keys_of_its_hosts() {
    let host = Host::new("protect-keys");
    host.system.disk("sdb");
    host.ok("export create e --device /dev/sdb --allow b --protection seal");
    let hint = "farblk export key e b --key-file FILE";
    let said = host.err.take();
    assert!(said.contains(hint), "{said}");
}

const DIFFERS: &str = "EPROTOTYPE the export has protection=seal, the map protection=crc32c";

#[test]
fn what_would_make_both_agree() {
    let host = Host::new("protect-differs");
    let on_server = [
        "farblk export disable e",
        "echo crc32c > /sys/kernel/config/farblk/exports/e/protection",
        "farblk export enable e",
    ];
    host.kernel.refuse("maps/m/enable", "1", 91, DIFFERS, 1);
    let line = "map 10.9.0.1/e --name m --protection crc32c";
    let error = host.run(line).expect_err("another protection");
    assert_eq!((error.code.entry().name, error.exit()), ("F0223", 6));
    let here = "farblk map 10.9.0.1/e --protection seal --key-file FILE  # as the export has it";
    let hints = error.hints();
    assert_eq!(hints.lines()[0], here);
    assert!(hints.lines().ends_with(&on_server.map(str::to_owned)));
    assert!(host.kernel.objects().is_empty());
    // A map that was let in before, and connects again.
    host.ok(line);
    host.kernel.put("maps/m", "state", "reconnecting");
    host.kernel.put("maps/m/paths/0", "state", "waiting");
    host.kernel.put("maps/m/paths/0", "last_error", DIFFERS);
    let list = host.ok("list");
    for hint in [
        "farblk unmap m  # on this host; then, as the export has it:",
        "farblk map 10.9.0.1/e --name m --protection seal",
    ]
    .iter()
    .chain(&on_server)
    {
        assert!(list.contains(&format!("hint: {hint}")), "{hint}\n{list}");
    }
    assert!(host.ok("-j list").contains(r#""code":"F0223""#));
    for (words, code) in [
        (DIFFERS, "F0223"),
        (
            "ENOKEY protection=seal needs a key, and the map has none",
            "F0219",
        ),
    ] {
        let explained = host.ok(&format!("explain {words}"));
        assert!(explained.starts_with(code), "{explained}");
    }
}

#[test]
fn it_is_saved_and_restored() {
    let mut host = Host::new("protect-save");
    host.system.disk("sdb");
    host.system.link("dev/disk/by-path/b", "sdb");
    let file = host.key("m.key", TEXT);
    host.ok(&format!(
        "export create e --device /dev/disk/by-path/b --allow b --key-file {file} --protection seal"
    ));
    host.ok(&format!(
        "map 10.9.0.1/e --key-file {file} --protection seal"
    ));
    host.ok("map 10.9.0.1/f --protection crc32c");
    host.ok("map 10.9.0.1/g --protection none");
    host.ok("config save");
    let (server, client) = (host.file("server.toml"), host.file("client.toml"));
    assert_eq!(server.matches("\nprotection = \"seal\"\n").count(), 1);
    assert_eq!(client.matches("\nprotection = \"seal\"\n").count(), 1);
    assert_eq!(client.matches("\nprotection = \"crc32c\"\n").count(), 1);
    assert_eq!(client.matches("protection").count(), 2, "{client}");
    host.reload();
    host.ok("config restore");
    for (object, word) in [
        ("exports/e", "seal"),
        ("maps/e", "seal"),
        ("maps/f", "crc32c"),
        ("maps/g", "none"),
    ] {
        let have = host.kernel.get(object, "protection");
        assert_eq!(have.as_deref(), Some(word), "{object}");
    }
}

#[test]
fn check_finds_what_cannot_be_protected() {
    let host = Host::new("protect-check");
    host.write(
        "server.toml",
        "[export.e]\nram = \"4M\"\nprotection = \"crc32c\"\n\
         [export.f]\nfile = \"/none\"\nprotection = \"seal\"\nhosts = { b = \"rw\" }\n\
         [export.g]\nram = \"4M\"\nprotection = \"none\"\n\
         [export.h]\nfile = \"/none\"\nprotection = \"sealed\"\n",
    );
    host.write(
        "client.toml",
        "[map.m]\npaths = { 0 = \"10.9.0.1\" }\nprotection = \"seal\"\n",
    );
    let text = host.ends("config check", 1);
    for line in [
        "error: export e: protection is not for ram, but for device and file",
        "warning: export f: host b has no key, and protection = \"seal\" needs one: write key_file",
        "error: protection: ",
        "error: map m: protection = \"seal\" needs a key: write key_file",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("export g: protection"), "{text}");
}
