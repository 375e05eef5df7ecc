// SPDX-License-Identifier: GPL-2.0
//! Keys of maps, and of hosts of exports.
//!
//! Long: most of it is one command after another, and what each has to say.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::secret::tests::{ID, OTHER, OTHER_ID, TEXT};

impl Host {
    /// Makes a file with a key in the folder of keys, and returns its path.
    pub(super) fn key(&self, name: &str, text: &str) -> String {
        let path = self.root.join("etc/farblk/keys").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, format!("{text}\n")).expect("a file");
        self.chmod(&path, 0o600);
        path.display().to_string()
    }

    fn chmod(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    }

    fn has(&self, object: &str, attribute: &str) -> Option<String> {
        let value = self.kernel.get(object, attribute);
        value.filter(|value| !value.is_empty())
    }

    fn mount(&self, text: &str) {
        for (path, text) in [
            ("sys/class/block/farblk0/dev", "259:0\n"),
            ("proc/self/mountinfo", text),
        ] {
            let path = self.root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
    }

    /// All that a user or a log sees of the commands before this call.
    fn all_output(&self) -> String {
        self.out.take() + &self.err.take()
    }
}

const HOST: &str = "exports/e/hosts/b";

/// Nothing that a command prints or fails with has a key.
#[track_caller]
fn keeps_secrets(text: &str) {
    for key in [TEXT, OTHER] {
        assert!(!text.contains(&key[8..20]), "{text}");
    }
}

#[test]
fn a_map_has_a_key_before_it_is_enabled() {
    let host = Host::new("key-map");
    let file = host.key("m.key", TEXT);
    let script = host.ok(&format!("--dry-run map 10.9.0.1/m --key-file {file}"));
    let line = format!("cat {file} > ");
    let at = |start: &str| {
        let mut lines = script.lines();
        lines.position(|line| line.starts_with(start) && !line.contains("/paths/"))
    };
    assert!(at(&line).expect(&script) < at("echo 1 > ").expect(&script));
    assert!(is_shell(&script));
    keeps_secrets(&script);
    assert_eq!(
        host.ok(&format!("map 10.9.0.1/m --key-file {file}")),
        "/dev/farblk0"
    );
    let log = host.kernel.take_log();
    let at = |line: String| log.iter().position(|have| *have == line).expect("a line");
    assert!(at(format!("maps/m/key = {TEXT}")) < at("maps/m/enable = 1".into()));
    let list = host.ok("list");
    assert!(list.contains(&format!(" ├─ key {ID}")) || list.ends_with(&format!(" └─ key {ID}")));
    assert!(
        host.ok("show m")
            .contains(&format!("\n  key              {ID}\n"))
    );
    assert!(host.ok("-j list").contains(&format!(r#""key_id":"{ID}""#)));
    // With the same key, and without any, it is the same map; with another one it is not.
    assert!(
        host.ok(&format!("-j map 10.9.0.1/m --key-file {file}"))
            .contains(r#""changed":false"#)
    );
    assert!(host.ok("-j map 10.9.0.1/m").contains(r#""changed":false"#));
    let other = host.key("other.key", OTHER);
    let error = host
        .run(&format!("map 10.9.0.1/m --key-file {other}"))
        .expect_err("differs");
    assert_eq!(error.code, Code::Differs);
    assert_eq!(
        error.details,
        [format!("key_id is {ID:?}, not {OTHER_ID:?}")]
    );
    assert!(
        hint(&error).contains("farblk rekey m --key-file FILE"),
        "{error:?}"
    );
    keeps_secrets(&format!("{error:?}{}", host.all_output()));
}

#[test]
fn a_file_that_is_not_closed_makes_no_map() {
    let host = Host::new("key-open");
    let file = host.key("m.key", TEXT);
    host.ok("export create e --ram 1M --allow b");
    host.kernel.take_log();
    for (mode, code) in [(0o640, "F0502"), (0o604, "F0502")] {
        host.chmod(Path::new(&file), mode);
        for line in [
            "map 10.9.0.1/m --key-file",
            "export create x --ram 1M --allow b --key-file",
            "export allow e c --key-file",
            "export key e b --key-file",
            "key id",
        ] {
            let error = host.run(&format!("{line} {file}")).expect_err(line);
            assert_eq!((error.code.entry().name, error.exit()), (code, 2), "{line}");
            assert!(
                hint(&error).starts_with(&format!("chmod 600 {file}")),
                "{error:?}"
            );
        }
    }
    // A key on the command line is refused, and not repeated.
    let error = host
        .run(&format!("map 10.9.0.1/m --key-file {TEXT}"))
        .expect_err("a key");
    assert_eq!(error.code, Code::BadKey);
    keeps_secrets(&format!("{error:?}"));
    let error = host.run(&format!("key new {TEXT}")).expect_err("a key");
    assert_eq!(error.code, Code::BadKey);
    keeps_secrets(&format!("{error:?}"));
    let error = host
        .run("map 10.9.0.1/m --key-file /none/at/all")
        .expect_err("no file");
    assert_eq!(error.code, Code::BadKey);
    assert!(
        error.why.ends_with("/none/at/all does not exist"),
        "{error:?}"
    );
    assert!(host.kernel.take_log().is_empty());
}

#[test]
fn a_module_without_keys_is_told_of() {
    let host = Host::new("key-old");
    let file = host.key("m.key", TEXT);
    host.kernel.forget("key_id");
    host.ok("export create e --ram 1M --allow b");
    host.ok("map 10.9.0.1/other");
    for line in [
        "map 10.9.0.1/m --key-file",
        "map 10.9.0.1/other --key-file",
        "rekey other --key-file",
        "export create x --ram 1M --allow b --key-file",
        "export allow e c --key-file",
        "export allow e b --key-file",
        "export key e b --key-file",
    ] {
        let (code, exit, text) = host.fails(&format!("{line} {file}"));
        assert_eq!((code, exit), ("F0402", 7), "{line}");
        assert!(
            text.contains("the module that is loaded has no keys"),
            "{text}"
        );
    }
    assert_eq!(
        host.kernel.objects(),
        [
            "exports/e",
            "exports/e/hosts/b",
            "maps/other",
            "maps/other/paths/0"
        ]
    );
}

#[test]
fn a_map_gets_another_key() {
    let host = Host::new("key-rekey");
    let (file, other) = (host.key("m.key", TEXT), host.key("other.key", OTHER));
    host.ok(&format!("map 10.9.0.1/m --key-file {file}"));
    host.kernel.take_log();
    let text = host.ok(&format!("rekey m --key-file {file}"));
    assert_eq!(text, format!("map m has the key {ID}"));
    assert!(host.kernel.take_log().is_empty());
    let script = host.ok(&format!("--dry-run rekey farblk0 --key-file {other}"));
    assert_eq!(script.lines().count(), 1, "{script}");
    // The disk may be in use: the module takes the key for the next connection.
    host.mount("36 22 259:0 / /data rw - xfs /dev/farblk0 rw\n");
    let text = host.ok(&format!("rekey farblk0 --key-file {other}"));
    assert_eq!(text, format!("map m has the key {OTHER_ID}"));
    assert_eq!(host.kernel.take_log(), [format!("maps/m/key = {OTHER}")]);
    assert_eq!(host.has("maps/m", "state").as_deref(), Some("live"));
    assert_eq!(host.ok("rekey m --remove"), "map m has no key");
    host.mount("");
    let script = host.ok("--dry-run rekey m --remove");
    assert_eq!(script, "");
    assert_eq!(host.fails("rekey none --remove").1, 3);
    assert_eq!(host.fails("rekey m").1, 2);
    keeps_secrets(&host.all_output());
}

#[test]
fn what_the_kernel_says_of_keys() {
    let host = Host::new("key-errors");
    let file = host.key("m.key", TEXT);
    for (errno, words, code) in [
        (126, "ENOKEY the server wants a key", "F0219"),
        (
            129,
            "EKEYREJECTED not admitted, or the key is wrong",
            "F0220",
        ),
        (
            129,
            "EKEYREJECTED the server did not prove that it has the key",
            "F0221",
        ),
    ] {
        host.kernel.refuse("maps/m/enable", "1", errno, words, 1);
        let line = format!("map 10.9.0.1/m --wait 30s --key-file {file}");
        let error = host.run(&line).expect_err(words);
        assert_eq!((error.code.entry().name, error.exit()), (code, 6));
        assert!(hint(&error).contains("  # on the server"), "{error:?}");
        assert!(host.kernel.objects().is_empty());
        keeps_secrets(&format!("{error:?}"));
    }
    host.ok(&format!("map 10.9.0.1/m --key-file {file}"));
    host.kernel.put("maps/m", "state", "reconnecting");
    host.kernel.put("maps/m/paths/0", "state", "waiting");
    for (words, code, cure) in [
        (
            "ENOKEY the server wants a key",
            "F0219",
            "farblk rekey m --key-file FILE",
        ),
        (
            "EKEYREJECTED not admitted, or the key is wrong",
            "F0220",
            "farblk export show m",
        ),
        (
            "EKEYREJECTED the server did not prove that it has the key",
            "F0221",
            "farblk export key m node-b --key-file FILE",
        ),
    ] {
        host.kernel.put("maps/m/paths/0", "last_error", words);
        let list = host.ok("list");
        assert!(list.contains(&format!("hint: {cure}  # on ")), "{list}");
        assert!(host.ok("-j list").contains(&format!(r#""code":"{code}""#)));
        let explained = host.ok(&format!("explain {words}"));
        assert!(explained.starts_with(code), "{explained}");
    }
}

#[test]
fn a_host_has_a_key_before_it_is_admitted() {
    let host = Host::new("key-host");
    let (file, other) = (host.key("b.key", TEXT), host.key("c.key", OTHER));
    let line = format!("export create e --ram 1M --allow b:ro --key-file {file}");
    assert!(host.ok(&line).contains("allowed: b (ro, key)"));
    let log = host.kernel.take_log();
    let at = |log: &[String], line: &str| {
        log.iter()
            .position(|have| have == line)
            .unwrap_or_else(|| panic!("{line} in {log:?}"))
    };
    assert!(at(&log, &format!("{HOST}/key = {TEXT}")) < at(&log, "exports/e/enable = 1"));
    assert!(host.ok(&line).contains("exists already"));
    let error = host
        .run(&format!(
            "export create e --ram 1M --allow b:ro --key-file {other}"
        ))
        .expect_err("another key");
    assert_eq!(
        error.details,
        [format!("host b: key_id is {ID:?}, not {OTHER_ID:?}")]
    );
    let two = format!("export create x --ram 1M --allow b --allow c --key-file {file}");
    let (code, _, text) = host.fails(&two);
    assert_eq!(code, "F0101");
    assert!(text.contains("each host has a key of its own"), "{text}");
    assert_eq!(
        host.fails(&format!("export create x --ram 1M --key-file {file}"))
            .1,
        2
    );

    host.ok(&format!("export allow e c --key-file {other}"));
    let log = host.kernel.take_log();
    let steps = [
        "mkdir exports/e/hosts/c".to_owned(),
        format!("exports/e/hosts/c/key = {OTHER}"),
        "exports/e/hosts/c/access = rw".to_owned(),
    ];
    assert_eq!(log, steps);
    // It can be repeated, also without the key; another key is the matter of another command.
    host.ok(&format!("export allow e c --key-file {other}"));
    host.ok("export allow e c");
    let error = host
        .run(&format!("export allow e c --key-file {file}"))
        .expect_err("another");
    assert_eq!(error.code, Code::Differs);
    assert!(
        hint(&error).contains("farblk export key e c --next-key-file"),
        "{error:?}"
    );
    assert!(host.kernel.take_log().is_empty());
    let shown = host.ok("export show e");
    let row = |name: &str, id: &str| {
        let mut rows = shown
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.any(|row| row.first() == Some(&name) && row[4..] == [id, "-"])
    };
    assert!(row("b", ID) && row("c", OTHER_ID), "{shown}");
    assert!(
        host.ok("-j export list")
            .contains(&format!(r#""key_id":"{ID}","key_next_id":null"#))
    );
    // A key is of no use beside hosts that need none.
    host.err.take();
    host.ok(&format!(
        "export create any --ram 1M --allow-any-host --allow b --key-file {file}"
    ));
    assert!(host.err.take().contains("export any admits any host"));
    keeps_secrets(&host.all_output());
}

#[test]
fn a_key_is_replaced_while_maps_use_it() {
    let host = Host::new("key-rotation");
    let (file, other) = (host.key("b.key", TEXT), host.key("b.next.key", OTHER));
    host.ok(&format!(
        "export create e --ram 1M --allow b --key-file {file}"
    ));
    host.kernel.put(HOST, "connected", "1");
    host.kernel.put("exports/e", "clients", "1");
    let ids = || (host.has(HOST, "key_id"), host.has(HOST, "key_next_id"));
    let some = |id: &str| Some(id.to_owned());
    // What would end the sessions of its maps is refused.
    host.kernel.take_log();
    for line in [
        format!("export key e b --key-file {other}"),
        "export key e b --remove".into(),
    ] {
        let error = host.run(&line).expect_err(&line);
        assert_eq!((error.code, error.exit()), (Code::Busy, 4), "{line}");
        assert!(hint(&error).starts_with("farblk export key e b --next-key-file FILE"));
    }
    assert_eq!(host.fails("export key e b --promote").1, 3);
    assert_eq!(
        host.fails(&format!("export key e b --next-key-file {file}"))
            .1,
        2
    );
    assert!(host.kernel.take_log().is_empty());

    let line = format!("export key e b --next-key-file {other}");
    let text = format!("export e: b has the key {ID}, and {OTHER_ID} as the next one");
    assert_eq!(host.ok(&line), text);
    assert_eq!(host.ok(&line), text);
    assert_eq!(
        host.kernel.take_log(),
        [format!("{HOST}/key_next = {OTHER}")]
    );
    assert_eq!(ids(), (some(ID), some(OTHER_ID)));
    let promote = "export key e b --promote";
    let script = host.ok(&format!("--dry-run {promote}"));
    assert!(
        script.starts_with(&format!("cat {other} > ")) && is_shell(&script),
        "{script}"
    );
    assert_eq!(
        host.ok(promote),
        format!("export e: b has the key {OTHER_ID}")
    );
    // The new key is one of the two all the time.
    let steps = [
        format!("{HOST}/key = {OTHER}"),
        format!("{HOST}/key_next = "),
    ];
    assert_eq!(host.kernel.take_log(), steps);
    assert_eq!(ids(), (some(OTHER_ID), None));
    assert_eq!(host.fails(promote).1, 3);

    // Without its file a key cannot be promoted, but given once more.
    let elsewhere = host.root.join("elsewhere");
    host.ok(&format!("export key e b --next-key-file {file}"));
    fs::rename(&file, &elsewhere).expect("to move it");
    let error = host.run(promote).expect_err("no file");
    assert_eq!(error.code, Code::BadKey);
    assert!(
        error.why.contains(&format!("has the next key, {ID}, ")),
        "{error:?}"
    );
    host.ok(&format!(
        "export key e b --key-file {}",
        elsewhere.display()
    ));
    assert_eq!(ids(), (some(ID), some(ID)));
    host.ok("export key e b --remove-next");
    assert_eq!(ids(), (some(ID), None));
    host.ok(&format!("export key e b --next-key-file {other}"));
    let error = host
        .run("export key e b --remove-next")
        .expect_err("connected");
    assert_eq!(error.code, Code::Busy);
    host.ok("export key e b --remove-next --force");
    assert_eq!(ids(), (some(ID), None));
    host.kernel.put(HOST, "connected", "0");
    host.kernel.put("exports/e", "clients", "0");
    host.ok(&format!("export key e b --next-key-file {other}"));
    let text = "export e: b has no key: any host that shows this name is admitted";
    assert_eq!(host.ok("export key e b --remove"), text);
    assert_eq!(ids(), (None, None));
    assert!(
        host.ok("-j export key e b --remove")
            .contains(r#""changed":false"#)
    );
    assert_eq!(
        host.fails(&format!("export key e b --next-key-file {other}"))
            .1,
        2
    );
    assert_eq!(host.fails("export key e c --remove").1, 3);
    assert_eq!(host.fails("export key x b --remove").1, 3);
    assert_eq!(host.fails("export key e b").1, 2);
    assert_eq!(host.fails("export key e b --remove --promote").1, 2);
    keeps_secrets(&host.all_output());
}

/// A file of a server that has one export, with a host that has a key.
fn server(key: &str) -> String {
    format!(
        "\n[export.e]\nram = \"1M\"\nuuid = \"6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10\"\n[export.e.hosts]\n\
         b = {{ access = \"rw\", key_file = {key:?} }}\n"
    )
}

#[test]
fn keys_are_saved_by_their_files() {
    let mut host = Host::new("key-saved");
    let (file, other) = (host.key("b.key", TEXT), host.key("m.key", OTHER));
    host.ok(&format!(
        "export create e --ram 1M --allow b --key-file {file} --uuid 6f0e8d52-0c7d-4a3b-9b0e-2f6f5d1c7a10"
    ));
    host.ok(&format!("map 10.9.0.1/m --key-file {other}"));
    host.ends("config save", 0);
    let text = host.file("server.toml");
    assert!(text.ends_with(&server("/etc/farblk/keys/b.key")), "{text}");
    let client =
        "[map.m]\nkey_file = \"/etc/farblk/keys/m.key\"\n[map.m.paths]\n0 = \"10.9.0.1\"\n";
    assert!(host.file("client.toml").ends_with(client));
    assert_eq!(host.ends("config diff", 0), "");
    assert_eq!(host.ends("config check", 0), "");
    let show = host.ends("config show --running", 0);
    assert!(
        show.contains("key_file = \"/etc/farblk/keys/b.key\"") && !show.contains('#'),
        "{show}"
    );

    host.reload();
    let script = host.ok("--dry-run config restore");
    assert!(
        script.contains(&format!("cat {file} > ")) && is_shell(&script),
        "{script}"
    );
    host.ends("config restore", 0);
    let log = host.kernel.take_log();
    let at = |line: &str| log.iter().position(|have| have == line).expect(line);
    assert!(at(&format!("{HOST}/key = {TEXT}")) < at(&format!("{HOST}/access = rw")));
    assert!(at(&format!("maps/m/key = {OTHER}")) < at("maps/m/enable = 1"));
    assert_eq!(
        host.ends("config restore", 0)
            .matches("  unchanged")
            .count(),
        2
    );
    assert!(host.kernel.take_log().is_empty());

    // The name that the file of settings has stays, wherever the key is.
    let elsewhere = host.root.join("secrets/b");
    fs::create_dir_all(host.root.join("secrets")).expect("a folder");
    fs::rename(&file, elsewhere).expect("to move it");
    host.write("server.toml", &server("/secrets/b"));
    assert_eq!(host.ends("config diff", 0), "");
    host.ends("config save", 0);
    assert!(host.file("server.toml").ends_with(&server("/secrets/b")));
    // A member that runs without its key, or with another one.
    host.ok("export key e b --remove");
    assert!(
        host.ends("config diff", 1)
            .ends_with("host b: key_file is unset, in the file \"/secrets/b\"")
    );
    let text = host.ends("config restore --server", 8);
    assert!(text.starts_with("export e  FAILED F0103"), "{text}");
    host.ok(&format!("export key e b --key-file {other}"));
    let diff = host.ends("config diff", 1);
    assert!(
        diff.contains("key_file is \"/etc/farblk/keys/m.key\", in the file"),
        "{diff}"
    );
    // One that is disabled gets the key, or loses it.
    host.ok("export disable e");
    host.ends("config restore --server", 0);
    assert_eq!(host.has(HOST, "key_id").as_deref(), Some(ID));
    host.ok("export disable e");
    host.write(
        "server.toml",
        &server("/x").replace(", key_file = \"/x\"", ""),
    );
    host.ends("config restore --server", 0);
    assert_eq!(host.has(HOST, "key_id"), None);
    keeps_secrets(&host.all_output());
}

#[test]
fn both_keys_of_a_rotation_are_saved() {
    let mut host = Host::new("key-both");
    let (file, other) = (host.key("b.key", TEXT), host.key("b.next.key", OTHER));
    host.ok(&format!(
        "export create e --ram 1M --allow b --key-file {file}"
    ));
    host.ok(&format!("export key e b --next-key-file {other}"));
    host.ends("config save", 0);
    let text = host.file("server.toml");
    let keys =
        "key_file = \"/etc/farblk/keys/b.key\", next_key_file = \"/etc/farblk/keys/b.next.key\" }";
    assert!(text.contains(keys), "{text}");
    host.reload();
    host.ends("config restore", 0);
    assert_eq!(host.has(HOST, "key_id").as_deref(), Some(ID));
    assert_eq!(host.has(HOST, "key_next_id").as_deref(), Some(OTHER_ID));
    // The next key takes over the name of the key.
    host.ok("export key e b --promote");
    fs::rename(&other, &file).expect("to replace it");
    host.ends("config save", 0);
    assert!(
        host.file("server.toml")
            .contains("{ access = \"rw\", key_file = \"/etc/farblk/keys/b.key\" }")
    );
}

#[test]
fn a_key_without_a_file_is_not_saved() {
    let host = Host::new("key-stdin");
    let file = host.key("m.key", TEXT);
    host.ok(&format!("map 10.9.0.1/m --key-file {file}"));
    host.ok(&format!(
        "export create e --ram 1M --allow b --key-file {file}"
    ));
    let kept = host.root.join("etc/m.key");
    fs::rename(&file, &kept).expect("to move it");
    host.err.take();
    let text = host.ends("config save", 8);
    assert_eq!(text, "nothing was written");
    assert!(!host.root.join("etc/farblk/server.toml").exists());
    let said = host.err.take();
    let why = format!("map m: the key {ID} cannot be saved: no file in /etc/farblk/keys has it");
    assert!(said.contains(&why), "{said}");
    assert!(
        said.contains(&format!("export e, host b: the key {ID} cannot be saved")),
        "{said}"
    );
    let show = host.ends("config show --running --map m", 0);
    assert!(
        show.ends_with(&format!("# {why}")) && !show.contains("key_file"),
        "{show}"
    );
    let diff = host.ends("config diff", 1);
    assert!(diff.contains("+ map m: runs"), "{diff}");
    assert_eq!(host.ends("map 10.9.0.1/m --persist", 8), "/dev/farblk0");
    assert!(host.err.take().contains("the map runs, but is not kept"));
    // With the file, its name can be kept.
    let line = format!("map 10.9.0.1/m --persist --key-file {}", kept.display());
    host.ends(&line, 0);
    assert!(
        host.file("client.d/m.toml")
            .contains("\nkey_file = \"/etc/m.key\"\n")
    );
    assert_eq!(host.ends("config diff", 1).lines().count(), 1);
    host.ends(&line, 0);
    // What a file has is not lost.
    let server = server("/etc/farblk/keys/none.key");
    host.write("server.toml", &server);
    let error = host.run("config save").expect_err("lost");
    assert!(
        error.details[0].ends_with("its key cannot be saved"),
        "{error:?}"
    );
    assert_eq!(host.file("server.toml"), server);
    // Nobody can say at boot what came from a pipe.
    let pipe = host.root.join("pipe");
    let made = std::process::Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(&pipe)
        .status();
    assert!(made.expect("mkfifo").success());
    let writer = pipe.clone();
    let writer = std::thread::spawn(move || fs::write(writer, OTHER));
    let line = format!("map 10.9.0.1/n --persist --key-file {}", pipe.display());
    let error = host.run(&line).expect_err("a pipe");
    writer.join().expect("a thread").expect("to write");
    assert_eq!(error.code, Code::Usage);
    assert!(
        hint(&error).contains("/etc/farblk/keys/NAME.key"),
        "{error:?}"
    );
    assert_eq!(host.kernel.get("maps/n", "export"), None);
}

#[test]
fn a_file_that_cannot_be_used_is_named_at_boot() {
    let host = Host::new("key-boot");
    let file = host.key("m.key", TEXT);
    host.write(
        "client.toml",
        "[map.m]\nkey_file = \"/etc/farblk/keys/m.key\"\npaths = { 0 = \"10.9.0.1\" }\n",
    );
    host.write("server.toml", &server("/etc/farblk/keys/m.key"));
    let both = |exit: u8, why: &str, cure: &str| {
        let text = host.ends("config restore", exit);
        for start in ["export e  FAILED F0502: ", "map m  FAILED F0502: "] {
            let line = text
                .lines()
                .find(|line| line.starts_with(start))
                .expect(&text);
            assert!(line.contains(why), "{line}");
        }
        assert!(text.contains(&format!("  hint: {cure}")), "{text}");
        assert!(host.kernel.objects().is_empty());
        let text = host.ends("config check", 1);
        assert_eq!(text.matches(": error: ").count(), 2, "{text}");
        assert!(
            text.contains(why) && text.contains(&format!("  hint: {cure}")),
            "{text}"
        );
        let text = host.ends("doctor", 11);
        assert!(
            text.contains(why) && text.contains(&format!("  fix: {cure}")),
            "{text}"
        );
        assert!(host.ends("-j doctor", 11).contains(r#""code":"F0502""#));
        keeps_secrets(&host.all_output());
    };
    host.chmod(Path::new(&file), 0o644);
    both(8, "m.key has the mode 0644", &format!("chmod 600 {file}"));
    host.key("m.key", &TEXT[..50]);
    both(8, "m.key is no whole key", "# copy the key again");
    host.key("m.key", &TEXT.replace("AAEC", "AAED"));
    both(8, "m.key is no key any more", "# copy the key again");
    fs::remove_file(&file).expect("a file");
    both(8, "m.key does not exist", &format!("farblk key new {file}"));
    let text = host.ends("config restore --map m", 2);
    assert!(text.starts_with("map m  FAILED F0502"), "{text}");
    let error = host.run("unit start-map m");
    assert!(error.is_ok() && host.exit.get() == 2, "{error:?}");

    // A key in place of the name of its file is refused, and not repeated.
    for (value, why) in [
        (TEXT, "is a key itself"),
        ("hunter2", "does not start with /"),
    ] {
        host.write(
            "client.toml",
            &format!("[map.m]\nkey_file = {value:?}\npaths = {{ 0 = \"a\" }}\n"),
        );
        host.write("server.toml", "");
        let text = host.ends("config check", 1) + &host.ends("config restore", 8);
        assert_eq!(text.matches(why).count(), 2, "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        keeps_secrets(&(text + &host.all_output()));
    }
    host.write(
        "client.toml",
        &format!("[map.m]\nkey = {TEXT:?}\npaths = {{ 0 = \"a\" }}\n"),
    );
    let text = host.ends("config check", 1);
    assert!(text.contains("key is not known"), "{text}");
    keeps_secrets(&text);
}

#[test]
fn check_tells_of_a_key_that_protects_nothing() {
    let host = Host::new("key-any");
    host.key("b.key", TEXT);
    let text = server("/etc/farblk/keys/b.key");
    host.write("server.toml", &text);
    assert_eq!(host.ends("config check", 0), "");
    host.write(
        "server.toml",
        &text.replace(
            "[export.e.hosts]",
            "allow_any_host = true\n[export.e.hosts]",
        ),
    );
    let said = host.ends("config check", 0);
    assert!(
        said.contains("warning: export e: admits any host"),
        "{said}"
    );
}

#[test]
fn doctor_looks_at_device_nodes_of_a_host_with_keys() {
    let host = Host::new("key-nodes");
    let nodes = host.root.join("dev/infiniband");
    fs::create_dir_all(&nodes).expect("a folder");
    for name in ["rdma_cm", "uverbs0", "issm0", "umad0"] {
        fs::write(nodes.join(name), "").expect("a file");
        host.chmod(&nodes.join(name), 0o666);
    }
    let keys = |text: String| {
        let is_key = |line: &&str| line.split_whitespace().nth(1) == Some("key");
        text.lines()
            .filter(is_key)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let doctor = || {
        host.run("doctor").expect("to look");
        anstream::adapter::strip_str(&host.out.take()).to_string()
    };
    assert!(keys(doctor()).is_empty());
    let file = host.key("a.key", TEXT);
    let text = doctor();
    let found = keys(text.clone());
    assert!(found[0].starts_with("ok    key"), "{text}");
    assert!(
        found[1].starts_with("warn  key") && found[1].contains("rdma_cm and uverbs0 in"),
        "{text}"
    );
    assert!(text.contains("fix: chmod o= "), "{text}");
    for name in ["rdma_cm", "uverbs0"] {
        host.chmod(&nodes.join(name), 0o660);
    }
    assert_eq!(keys(doctor()).len(), 1);
    // A key that came from a pipe counts, too.
    host.chmod(&nodes.join("uverbs0"), 0o666);
    host.ok(&format!("map 10.9.0.1/m --key-file {file}"));
    fs::remove_file(&file).expect("a file");
    let found = keys(doctor());
    assert!(
        found.len() == 1 && found[0].contains("can open uverbs0 in"),
        "{found:?}"
    );
    host.ok("unmap m");
    assert!(keys(doctor()).is_empty());
}

#[test]
fn keys_are_made() {
    let host = Host::new("key-new");
    let file = host.root.join("etc/farblk/keys/a.key");
    let line = format!("key new {}", file.display());
    assert_eq!(
        host.ok(&format!("--dry-run {line}")),
        format!("farblk {line}")
    );
    assert!(!file.exists());
    assert_eq!(host.ok(&line), "");
    let said = host.err.take();
    let id = host.ok(&format!("key id {}", file.display()));
    assert_eq!(said, format!("key id {id}, in {}\n", file.display()));
    let text = fs::read_to_string(&file).expect("a file");
    let error = host.run(&line).expect_err("it exists");
    assert_eq!((error.code, error.exit()), (Code::Differs, 1));
    assert_eq!(fs::read_to_string(&file).expect("a file"), text);
    let document = host.ok(&format!("-j key id {}", file.display()));
    assert!(document.contains(&format!(r#"{{"schema":"farblk.key/1","id":"{id}","path":"#)));
    // On stdout is the key, and nothing else.
    let key = host.ok("key new");
    let said = host.err.take();
    let id = crate::secret::tests::id(&key).expect("a key");
    assert_eq!(said, format!("key id {id}\n"));
    let (code, _, _) = host.fails("-j key new");
    assert_eq!(code, "F0101");
    let other = host.root.join("b.key");
    let document = host.ok(&format!("-j key new {}", other.display()));
    let text = fs::read_to_string(&other).expect("a file");
    assert!(
        !document.contains(&text[8..20]) && document.contains(r#""path":"#),
        "{document}"
    );
    let missing = host.root.join("none/c.key");
    let error = host
        .run(&format!("key new {}", missing.display()))
        .expect_err("no folder");
    assert!(hint(&error).starts_with("install -d -m 700 "), "{error:?}");
}
