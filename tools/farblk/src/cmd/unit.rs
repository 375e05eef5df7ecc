// SPDX-License-Identifier: GPL-2.0
//! `farblk unit`: what the units of systemd in `tools/units` run.
//!
//! A unit unmaps only a map that it has made. So it notes in `/run/farblk/maps` which directory of
//! configfs it found before it restored a map, and which one it has made. The kernel numbers these
//! directories: one that was removed and made again has another number.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;

use super::config::restore::{self, Missing};
use super::{Context, map};
use crate::cli::{self, Unit};
use crate::configfs::{Job, words};
use crate::error::{Code, Error};

/// The directory of the notes, below the root directory.
const NOTES: &str = "run/farblk/maps";
/// The pause between two attempts to restore what is missing on a server.
const RESTORE_PAUSE: Duration = Duration::from_secs(5);
/// The pause between two attempts to unmap a disk that is in use.
const UNMAP_PAUSE: Duration = Duration::from_millis(500);
/// The pause between two looks at maps, or at processes.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// What a unit has done, schema `farblk.unit/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    /// What the unit was told to do, "stop-map".
    task: &'static str,
    /// The objects that it changed.
    changed: &'a [String],
}

/// What a unit knows of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    /// The directory that was there before the unit restored the map.
    Before(Option<u64>),
    /// The directory that the unit has made.
    Made(u64),
}

impl Note {
    fn parse(text: &str) -> Option<Self> {
        match text.trim_end().split_once(' ')? {
            ("before", "none") => Some(Self::Before(None)),
            ("before", inode) => Some(Self::Before(Some(inode.parse().ok()?))),
            ("made", inode) => Some(Self::Made(inode.parse().ok()?)),
            _ => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Before(None) => "before none\n".into(),
            Self::Before(Some(inode)) => format!("before {inode}\n"),
            Self::Made(inode) => format!("made {inode}\n"),
        }
    }
}

/// Runs `farblk unit`.
pub fn run(context: &Context, unit: &Unit) -> Result<(), Error> {
    if context.configfs.is_dry_run() {
        return Err(Error::usage("a unit has no dry run").hint("farblk config restore --dry-run"));
    }
    match unit {
        Unit::StartMap { name } => start_map(context, name),
        Unit::StopMap { name, wait } => stop_map(context, name, *wait),
        Unit::GiveUp { after, within } => give_up(context, *after, *within),
        Unit::StartServer => start_server(context),
        Unit::StopServer { within } => stop_server(context, *within),
    }
}

/// Prints the result: `text`, and which objects the unit has changed.
fn report(
    context: &Context,
    task: &'static str,
    text: &str,
    changed: &[String],
) -> Result<(), Error> {
    let schema = "farblk.unit/1";
    context.output.result(
        text,
        &Document {
            schema,
            task,
            changed,
        },
    )
}

fn note_path(context: &Context, name: &str) -> PathBuf {
    context.root.join(NOTES).join(name)
}

/// Reads the note of a map. One that is not valid counts as none: the map is left alone then.
fn note(context: &Context, name: &str) -> Option<Note> {
    Note::parse(&fs::read_to_string(note_path(context, name)).ok()?)
}

fn write_note(context: &Context, name: &str, note: Note, job: &Job) -> Result<(), Error> {
    let path = note_path(context, name);
    fs::create_dir_all(context.root.join(NOTES))
        .and_then(|()| fs::write(&path, note.text()))
        .map_err(|e| job.error(Code::Io, format!("{}: {}", path.display(), words(&e))))
}

fn forget(context: &Context, name: &str) {
    // It is in a tmpfs; if it stays, it still tells the directory that the unit had made.
    let _ = fs::remove_file(note_path(context, name));
}

/// Returns the number of the map's directory in configfs, if there is one.
fn directory(context: &Context, name: &str) -> Option<u64> {
    let configfs = &context.configfs;
    configfs.inode(&configfs.path(&["maps", name]))
}

/// Returns true if the unit has made the map that is there.
fn is_ours(context: &Context, name: &str) -> bool {
    match (note(context, name), directory(context, name)) {
        (Some(Note::Made(made)), Some(there)) => made == there,
        _ => false,
    }
}

/// Restores a map, and notes whether the unit has made it.
fn start_map(context: &Context, name: &str) -> Result<(), Error> {
    let job = Job::new(format!("cannot note who made map {name}"));
    if !is_ours(context, name) {
        // What has no disk was left by an attempt that was killed. This one makes the disk.
        let map = context.configfs.path(&["maps", name]);
        let state = context.configfs.attr(&map, "state");
        let there = directory(context, name).filter(|_| state.as_deref() != Some("disabled"));
        write_note(context, name, Note::Before(there), &job)?;
    }
    restore::run(context, &restore::Arguments::of_unit(name))?;
    if context.exit.get() != 0 {
        return Ok(());
    }
    let text = match (note(context, name), directory(context, name)) {
        (Some(Note::Before(before)), Some(there)) if before != Some(there) => {
            write_note(context, name, Note::Made(there), &job)?;
            format!("map {name} is made by its unit")
        }
        _ if is_ours(context, name) => format!("map {name} is still there"),
        _ => format!("map {name} was there before: its unit leaves it alone"),
    };
    // What comes after the unit may use the links of the disk.
    let disk = context
        .configfs
        .attr(&context.configfs.path(&["maps", name]), "device");
    let job = Job::new(format!("cannot start map {name}"));
    let link = context.root.join("dev/farblk/by-name").join(name);
    match map::Names::new().wait(context, name, disk.as_deref(), &job) {
        // Others wait for the names of the disk that is there, and it has none of another disk.
        Err(error) if !link.exists() => context.output.warn(&error.why),
        waited => waited?,
    }
    // The document is that of the restore.
    match context.output.is_json() {
        true => Ok(()),
        false => context.output.line(&text),
    }
}

/// Unmaps a map that the unit has made. Waits while the disk is in use: a file system that is
/// mounted without `_netdev` may be unmounted at the same time.
fn stop_map(context: &Context, name: &str, wait: Duration) -> Result<(), Error> {
    if !is_ours(context, name) {
        forget(context, name);
        let text = format!("its unit did not make map {name}, and leaves it alone");
        return report(context, "stop-map", &text, &[]);
    }
    let unmap = cli::Unmap {
        map: name.to_owned(),
        force: false,
        if_mapped: true,
        forget: false,
    };
    let deadline = Instant::now() + wait;
    loop {
        match map::unmap(context, &unmap) {
            Err(error)
                if matches!(error.code, Code::InUse | Code::Busy) && Instant::now() < deadline =>
            {
                thread::sleep(UNMAP_PAUSE);
            }
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    forget(context, name);
    Ok(())
}

/// Fails the I/O of maps that units have made and whose server does not answer for `after`, until
/// none is left, or for as long as `within`. Called when the host shuts down: `umount` would wait
/// for such a server.
fn give_up(context: &Context, after: Duration, within: Duration) -> Result<(), Error> {
    let configfs = &context.configfs;
    let maps = configfs.path(&["maps"]);
    let deadline = Instant::now() + within;
    let mut away = BTreeMap::new();
    let mut ended = Vec::new();
    loop {
        let mut left = false;
        for name in configfs.names(&maps) {
            let object = maps.join(&name);
            let state = configfs.attr(&object, "state").unwrap_or_default();
            if state == "disabled" || !is_ours(context, &name) || ended.contains(&name) {
                continue;
            }
            left = true;
            if state == "live" {
                away.remove(&name);
                continue;
            }
            let since = *away.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() < after {
                continue;
            }
            context.output.warn(&format!(
                "map {name} is {state} and the host shuts down: its I/O fails now; what was not \
                 written is lost"
            ));
            let job = Job::new(format!("cannot end the I/O of map {name}"));
            if let Err(error) = configfs.set(&object, "enable", "force", &job) {
                context.output.warn(&error.to_string());
            }
            ended.push(name);
        }
        if !left || Instant::now() >= deadline {
            break;
        }
        thread::sleep(LOOK_PAUSE);
    }
    let text = match ended.as_slice() {
        [] => "no map had to be given up".into(),
        names => format!("gave up {}", names.join(" ")),
    };
    report(context, "give-up", &text, &ended)
}

/// This program, on the same root directory.
fn tool(context: &Context) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--root").arg(&context.root);
    Ok(command)
}

/// Restores the ports and exports, and tries again what failed until all is there. Tells systemd
/// after the first attempt, so that a device that is missing does not hold up the boot.
fn start_server(context: &Context) -> Result<(), Error> {
    let mut missing = Missing::new();
    let mut told = false;
    loop {
        match missing.attempt(context) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) if told => context.output.error(&error),
            Err(error) => return Err(error),
        }
        tell("READY=1\nSTATUS=some ports or exports are missing: trying again every 5 s");
        told = true;
        thread::sleep(RESTORE_PAUSE);
    }
    let text = match missing.differs {
        true => "some ports or exports were found with other settings than those in the files",
        false => "all ports and exports are there",
    };
    tell(&format!("READY=1\nSTATUS={text}"));
    report(context, "start-server", text, &[])
}

/// Tells systemd the state of the service, if it asked for that.
fn tell(text: &str) {
    if let Some(path) = env::var_os("NOTIFY_SOCKET") {
        // systemd ends a service that never gets through.
        let _ = send(&path, text);
    }
}

/// Sends a datagram to a socket of the file system, or to an abstract one, "@NAME".
fn send(path: &OsStr, text: &str) -> io::Result<usize> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(path),
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address?)
}

/// Disables all exports, which flushes their devices. All at the same time, each by a process of
/// its own: one whose device hangs does not hold up the others.
fn stop_server(context: &Context, within: Duration) -> Result<(), Error> {
    // systemd sets this for a service that has ended; one that failed did not stop the server.
    if let Some(result) = env::var("SERVICE_RESULT").ok().filter(|r| r != "success") {
        let text = format!("the unit ended with {result}: the exports stay");
        return report(context, "stop-server", &text, &[]);
    }
    let configfs = &context.configfs;
    let job = Job::new("cannot disable all exports");
    let exports = configfs.path(&["exports"]);
    let mut names = configfs.names(&exports);
    names.retain(|name| configfs.attr(&exports.join(name), "state").as_deref() != Some("disabled"));
    let mut failed = Vec::new();
    let mut running: Vec<(String, Child)> = Vec::new();
    for name in &names {
        let mut words = ["--quiet", "export", "disable", "--force", "--"].to_vec();
        words.push(name);
        match tool(context).and_then(|mut tool| tool.args(words).spawn()) {
            Ok(child) => running.push((name.clone(), child)),
            Err(e) => failed.push(format!("{name}: {e}")),
        }
    }
    let deadline = Instant::now() + within;
    while !running.is_empty() {
        running.retain_mut(|(name, child)| match child.try_wait() {
            Ok(None) if Instant::now() < deadline => true,
            Ok(None) => {
                failed.push(format!(
                    "{name}: its device has not answered for {within:?}"
                ));
                let _ = child.kill();
                false
            }
            Ok(Some(status)) if status.success() => false,
            Ok(Some(status)) => {
                failed.push(format!("{name}: {status}"));
                false
            }
            Err(e) => {
                failed.push(format!("{name}: {e}"));
                false
            }
        });
        thread::sleep(LOOK_PAUSE.min(deadline.saturating_duration_since(Instant::now())));
    }
    if !failed.is_empty() {
        let why = format!("{} of {} are left", failed.len(), names.len());
        let mut error = job.error(Code::Io, why).hint("farblk export list");
        error.details = failed;
        return Err(error);
    }
    let text = format!("disabled {} exports", names.len());
    report(context, "stop-server", &text, &names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes() {
        for note in [Note::Before(None), Note::Before(Some(7)), Note::Made(4711)] {
            assert_eq!(Note::parse(&note.text()), Some(note));
        }
        for wrong in [
            "", "made", "made x", "made -1", "before", "unmade 1", "made 1 2",
        ] {
            assert_eq!(Note::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn systemd_is_told() {
        let name = format!("farblk-notify-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        let _ = fs::remove_file(&path);
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a name");
        for (socket, address) in [
            (UnixDatagram::bind(&path), path.as_os_str().to_owned()),
            (
                UnixDatagram::bind_addr(&abstract_name),
                format!("@{name}").into(),
            ),
        ] {
            let socket = socket.expect("a socket");
            send(&address, "READY=1").expect("to send");
            let mut text = [0; 16];
            let length = socket.recv(&mut text).expect("to receive");
            assert_eq!(&text[..length], b"READY=1");
        }
        fs::remove_file(&path).expect("to clean up");
        assert!(send(path.as_os_str(), "READY=1").is_err());
    }
}
