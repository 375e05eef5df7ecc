// SPDX-License-Identifier: GPL-2.0
//! `farblk demo`: a server and a client on this host, over an RDMA device that is made for it.
//!
//! Everything that it makes has a name of its own, and goes at the end, however that comes. What
//! stays is what any command leaves in /etc/farblk: the identity of the host, and a registration.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::cli::{self, Cli};
use crate::configfs::{Configfs, Job};
use crate::device::{Buffer, Devices, IO_MAX};
use crate::error::{Code, Error};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::{quote, size};

mod pattern;

use pattern::{is_stamped, stamp};

/// The name of the port, the export and the map.
const NAME: &str = "farblk-demo";
/// The name of the network device and of the RDMA device on it.
const DEVICE: &str = "farblkdemo";
/// An address from the range for benchmarks (RFC 2544), which nobody routes.
const ADDRESS: &str = "198.18.74.20";
/// A GID of that address.
const GID: &str = "0000:0000:0000:0000:0000:ffff:c612:4a14";
/// The bytes of a small read.
const SMALL: usize = 4096;
/// How long a program may take.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a step of the removal is tried again: udev may look at a new disk for a moment.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the RDMA device may take to have its address.
const GID_TIMEOUT: Duration = Duration::from_secs(5);

/// What the demo has measured, schema `farblk.demo/1`.
#[derive(Default, JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    size_bytes: u64,
    /// Bytes per second of large writes.
    write_bytes_per_s: u64,
    /// Bytes per second of large reads; what was read is what had been written.
    read_bytes_per_s: u64,
    /// Small reads, one after the other.
    small_reads: u64,
    small_read_p50_ns: u64,
    small_read_p99_ns: u64,
}

/// A command: its words.
type Words = Vec<String>;

fn words(line: &str) -> Words {
    line.split(' ').map(str::to_owned).collect()
}

fn shown(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| quote::word(word)).collect();
    words.join(" ")
}

/// What the demo makes: where it appears below the root directory, and the commands that make it
/// and remove it. Each needs those before it.
struct Object {
    at: &'static str,
    make: Vec<Words>,
    remove: Words,
}

/// All objects, for a RAM export of `size` bytes and a host named `host`.
fn objects(size: u64, host: &str) -> Vec<Object> {
    let object = |at, make: &[String], remove: String| Object {
        at,
        make: make.iter().map(|line| words(line)).collect(),
        remove: words(&remove),
    };
    vec![
        object(
            "sys/class/net/farblkdemo",
            &[
                "modprobe dummy numdummies=0".into(),
                format!("ip link add {DEVICE} mtu 4300 type dummy"),
                format!("ip address add {ADDRESS}/32 dev {DEVICE}"),
                format!("ip link set {DEVICE} up"),
            ],
            format!("ip link delete {DEVICE}"),
        ),
        object(
            "sys/class/infiniband/farblkdemo",
            &[
                "modprobe rdma_rxe".into(),
                format!("rdma link add {DEVICE} type rxe netdev {DEVICE}"),
            ],
            format!("rdma link delete {DEVICE}"),
        ),
        object(
            "sys/kernel/config/farblk/ports/farblk-demo",
            &[format!("farblk port add {NAME} --addr {ADDRESS}")],
            format!("farblk port rm {NAME}"),
        ),
        object(
            "sys/kernel/config/farblk/exports/farblk-demo",
            &[format!(
                "farblk export create {NAME} --ram {size} --ports {NAME} --allow {host}"
            )],
            format!("farblk export rm {NAME} --force"),
        ),
        object(
            "sys/kernel/config/farblk/maps/farblk-demo",
            &[format!("farblk map {ADDRESS}/{NAME}")],
            format!("farblk unmap {NAME}"),
        ),
    ]
}

/// A demo that runs.
struct Demo<'a> {
    context: &'a Context,
    /// The same without JSON, for the commands of the tool.
    inner: Context,
    interrupt: Interrupt,
    job: Job,
    /// Where the objects are that this demo has made. Another demo, or anybody else, may have made
    /// one of the same name since it was looked for.
    own: RefCell<Vec<&'static str>>,
}

/// Runs `farblk demo`.
pub fn run(context: &Context, arguments: &cli::Demo) -> Result<(), Error> {
    let configfs = &context.configfs;
    let job = Job::new("cannot run the demo");
    let host = context.host_name().unwrap_or_else(|| "HOST".into());
    let objects = objects(arguments.ram, &host);
    if configfs.is_dry_run() {
        script(configfs, &objects);
        return Ok(());
    }
    configfs.require()?;
    refuse_existing(context, &objects)?;
    if context.root != Path::new("/") {
        let why = "it makes network devices, which are those of this host whatever --root says";
        return Err(Error::usage(format!("{}: {why}", job.what)).hint("farblk --dry-run demo"));
    }
    let interrupt = Interrupt::take().map_err(|e| job.error(Code::Io, e.to_string()))?;
    let silent = context.output.is_json();
    let inner = Context {
        root: context.root.clone(),
        configfs: Configfs::new(&context.root, false),
        devices: Devices::new(&context.root),
        output: match silent {
            true => Output::to(
                false,
                true,
                Box::new(std::io::sink()),
                Box::new(std::io::sink()),
                None,
            ),
            false => Output::new(false, false),
        },
        exit: Cell::default(),
    };
    let demo = Demo {
        context,
        inner,
        interrupt,
        job,
        own: RefCell::default(),
    };
    demo.refuse_address()?;
    let outcome = demo.perform(&objects, arguments);
    let removed = demo.remove(&objects);
    let document = match (outcome, removed) {
        (Ok(document), Ok(())) => document,
        (Err(error), Ok(())) => return Err(error),
        (Ok(_), Err(error)) => return Err(error),
        (Err(first), Err(error)) => {
            context.output.error(&first);
            return Err(error);
        }
    };
    match (silent, document) {
        (_, None) => {
            context.output.note("ended by a signal; nothing is left");
            Ok(())
        }
        (true, Some(document)) => context.output.document(&document),
        (false, Some(_)) => context.output.line("nothing of the demo is left"),
    }
}

/// Refuses if something has a name that the demo would use: it may be another's, or of a demo that
/// was killed.
fn refuse_existing(context: &Context, objects: &[Object]) -> Result<(), Error> {
    let exists = |object: &&Object| {
        let path = context.root.join(object.at);
        context.configfs.exists(&path) || fs::symlink_metadata(path).is_ok()
    };
    let found: Vec<_> = objects.iter().filter(exists).collect();
    if found.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = found
        .iter()
        .map(|object| format!("/{}", object.at))
        .collect();
    let why = format!(
        "{} exist{} already",
        names.join(" and "),
        if found.len() == 1 { "s" } else { "" }
    );
    let remove = found.iter().rev().map(|object| shown(&object.remove));
    let hint: Vec<_> = ["# if a demo runs, wait for its end; if one was killed:".to_owned()]
        .into_iter()
        .chain(remove)
        .collect();
    Err(Error::new(Code::Differs, "cannot run the demo", why).hint(hint.join("\n")))
}

/// Writes down the commands of a dry run.
fn script(configfs: &Configfs, objects: &[Object]) {
    for object in objects {
        for make in &object.make {
            configfs.record(|| shown(make));
        }
    }
    let device = format!("/dev/$(cat /sys/kernel/config/farblk/maps/{NAME}/device)");
    configfs.record(|| {
        format!(
            "dd if=/dev/urandom of={device} bs=1M oflag=direct || true  # until the disk is full"
        )
    });
    configfs.record(|| format!("dd if={device} of=/dev/null bs=1M iflag=direct"));
    for target in [ADDRESS, NAME] {
        configfs.record(|| format!("farblk ping {target}"));
    }
    for object in objects.iter().rev() {
        configfs.record(|| shown(&object.remove));
    }
}

impl Demo<'_> {
    /// Prints a command before it is run.
    fn print(&self, words: &[String]) -> Result<(), Error> {
        match self.context.output.is_json() {
            true => Ok(()),
            false => self.context.output.line(&format!("# {}", shown(words))),
        }
    }

    /// Runs a command: of this tool within this process, so that a signal does not end it.
    fn run(&self, command: &[String]) -> Result<String, Error> {
        match command.first().map(String::as_str) {
            Some("farblk") => {
                let cli = Cli::try_parse_from(command)
                    .map_err(|e| self.job.error(Code::Usage, e.to_string()))?;
                super::run(&self.inner, &cli.command)?;
                Ok(String::new())
            }
            _ => self.program(command),
        }
    }

    /// Runs a program, and gives what it prints.
    fn program(&self, command: &[String]) -> Result<String, Error> {
        let [program, arguments @ ..] = command else {
            return Ok(String::new());
        };
        let failed = |why: String| {
            let package = if program == "modprobe" {
                "kmod"
            } else {
                "iproute2"
            };
            let error = self
                .job
                .error(Code::Io, format!("{}: {why}", shown(command)));
            error.hint(format!(
                "{}  # says more; the package is {package}",
                shown(command)
            ))
        };
        // Ctrl-C is for this process, which removes what the program made.
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let end = Instant::now() + PROGRAM_TIMEOUT;
        let status = loop {
            match child.try_wait().map_err(|e| failed(e.to_string()))? {
                Some(status) => break status,
                None if Instant::now() > end => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let why = format!("no end after {} s", PROGRAM_TIMEOUT.as_secs());
                    let mut error = failed(why);
                    error.code = Code::TimedOut;
                    return Err(error);
                }
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        let (mut out, mut err) = (String::new(), String::new());
        // What these programs print fits into a pipe.
        if let Some(pipe) = &mut child.stdout {
            let _ = pipe.take(1 << 16).read_to_string(&mut out);
        }
        if let Some(pipe) = &mut child.stderr {
            let _ = pipe.take(1 << 16).read_to_string(&mut err);
        }
        match status.success() {
            true => Ok(out),
            false => Err(failed(err.lines().next().unwrap_or("it failed").to_owned())),
        }
    }

    /// Refuses if the address belongs to a device already.
    fn refuse_address(&self) -> Result<(), Error> {
        let command = words(&format!("ip -oneline address show to {ADDRESS}/32"));
        match self.program(&command)?.lines().next() {
            None => Ok(()),
            Some(line) => {
                let why = format!("a device has the address {ADDRESS} already: {line}");
                Err(self.job.error(Code::Differs, why).hint(shown(&command)))
            }
        }
    }

    /// Makes everything, and works with the disk; `None` if a signal came.
    fn perform(
        &self,
        objects: &[Object],
        arguments: &cli::Demo,
    ) -> Result<Option<Document>, Error> {
        for object in objects {
            for make in &object.make {
                if self.interrupt.came() {
                    return Ok(None);
                }
                self.print(make)?;
                self.make(object, make)?;
            }
            if object.at.contains("infiniband") && !self.wait_for_gid(object)? {
                return Ok(None);
            }
        }
        let map = self.context.configfs.path(&["maps", NAME]);
        let disk = self.context.configfs.attr(&map, "device");
        let disk = disk.unwrap_or_default();
        let size: u64 = self.context.configfs.number(&map, "size").unwrap_or(0);
        if size != arguments.ram {
            let why = format!("/dev/{disk} has {size} bytes");
            return Err(self.job.error(Code::Io, why));
        }
        let Some(document) = self.work(&disk, size, arguments.time)? else {
            return Ok(None);
        };
        for target in [ADDRESS, NAME] {
            let ping = words(&format!("farblk ping {target}"));
            self.print(&ping)?;
            self.run(&ping)?;
            if self.interrupt.came() {
                return Ok(None);
            }
        }
        Ok(Some(document))
    }

    /// Runs a command that makes an object, or a part of it, and notes whether the object is new.
    fn make(&self, object: &Object, command: &[String]) -> Result<(), Error> {
        let is_there = || fs::symlink_metadata(self.context.root.join(object.at)).is_ok();
        let was_there = is_there();
        let result = self.run(command);
        // A program that fails has made nothing, unless it was too slow. A command of this tool
        // that fails may leave what it has made.
        let may_be_own = match &result {
            Ok(_) => true,
            Err(error) => command[0] == "farblk" || error.code == Code::TimedOut,
        };
        if !was_there && is_there() && may_be_own {
            self.own.borrow_mut().push(object.at);
        }
        result.map(drop)
    }

    /// Waits until the RDMA device has its address; false if a signal came.
    fn wait_for_gid(&self, object: &Object) -> Result<bool, Error> {
        let gids = self.context.root.join(object.at).join("ports/1/gids");
        let has_gid = || {
            let mut entries = fs::read_dir(&gids).into_iter().flatten().flatten();
            entries
                .any(|entry| fs::read_to_string(entry.path()).is_ok_and(|text| text.trim() == GID))
        };
        let end = Instant::now() + GID_TIMEOUT;
        while !has_gid() {
            if self.interrupt.came() {
                return Ok(false);
            }
            if Instant::now() > end {
                return Err(self.job.error(
                    Code::NoDevice,
                    format!("{DEVICE} does not take the address {ADDRESS}"),
                ));
            }
            self.interrupt.sleep(Duration::from_millis(50));
        }
        Ok(true)
    }

    /// Fills the disk, reads it back, and reads small blocks for `time`.
    fn work(&self, name: &str, size: u64, time: Duration) -> Result<Option<Document>, Error> {
        let failed = |e: std::io::Error| self.job.error(Code::Io, format!("/dev/{name}: {e}"));
        let disk = self.context.devices.open(name, true).map_err(failed)?;
        let mut buffer = Buffer::new();
        let mut document = Document {
            schema: "farblk.demo/1",
            size_bytes: size,
            ..Document::default()
        };
        let chunks = size / IO_MAX as u64;
        for writes in [true, false] {
            let start = Instant::now();
            for chunk in 0..chunks {
                if self.interrupt.came() {
                    return Ok(None);
                }
                let at = chunk * IO_MAX as u64;
                let data = buffer.get(IO_MAX);
                if writes {
                    stamp(data, chunk);
                    disk.write_all_at(data, at).map_err(failed)?;
                } else {
                    data.fill(0);
                    disk.read_exact_at(data, at).map_err(failed)?;
                    if !is_stamped(data, chunk) {
                        let why = format!("/dev/{name} has other data at {at} than were written");
                        return Err(self.job.error(Code::Io, why));
                    }
                }
            }
            let rate = ((chunks * IO_MAX as u64) as f64 / start.elapsed().as_secs_f64()) as u64;
            let (what, place) = match writes {
                true => ("wrote", &mut document.write_bytes_per_s),
                false => ("read back, and compared,", &mut document.read_bytes_per_s),
            };
            *place = rate;
            self.say(format!(
                "{what} {}: {}/s",
                size::human(chunks * IO_MAX as u64),
                size::human(rate)
            ))?;
        }
        let mut times: Vec<u64> = Vec::new();
        let end = Instant::now() + time;
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        while Instant::now() < end && times.len() < 1 << 24 {
            if self.interrupt.came() {
                return Ok(None);
            }
            // xorshift64: it need not be good.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random % (size / SMALL as u64) * SMALL as u64;
            let start = Instant::now();
            disk.read_exact_at(buffer.get(SMALL), at).map_err(failed)?;
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        times.sort_unstable();
        let of = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1);
            times.get(rank - 1).copied().unwrap_or(0)
        };
        document.small_reads = times.len() as u64;
        (document.small_read_p50_ns, document.small_read_p99_ns) = (of(50), of(99));
        let human = |ns| size::human_duration(Duration::from_nanos(ns));
        self.say(format!(
            "read {} blocks of 4 KiB, one after the other: p50 {}, p99 {}",
            times.len(),
            human(of(50)),
            human(of(99))
        ))?;
        Ok(Some(document))
    }

    /// A line for people.
    fn say(&self, text: String) -> Result<(), Error> {
        match self.context.output.is_json() {
            true => Ok(()),
            false => self.context.output.line(&text),
        }
    }

    /// Removes what this demo has made, last first. If a step fails, names what is left: the others
    /// would take away what that one needs.
    fn remove(&self, objects: &[Object]) -> Result<(), Error> {
        let own = self.own.borrow();
        let is_there = |object: &Object| {
            own.contains(&object.at)
                && fs::symlink_metadata(self.context.root.join(object.at)).is_ok()
        };
        for (index, object) in objects.iter().enumerate().rev() {
            if !is_there(object) {
                continue;
            }
            // Also if nobody can read it.
            let _ = self.print(&object.remove);
            let end = Instant::now() + REMOVE_TIMEOUT;
            while let Err(error) = self.run(&object.remove) {
                if !is_there(object) {
                    // It was removed, although not all was said.
                    break;
                }
                if Instant::now() > end {
                    let left = objects[..=index]
                        .iter()
                        .rev()
                        .filter(|object| is_there(object));
                    let hint: Vec<_> = left.map(|object| shown(&object.remove)).collect();
                    return Err(Error::new(
                        Code::Busy,
                        "cannot remove all of the demo",
                        error.to_string(),
                    )
                    .hint(hint.join("\n")));
                }
                thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit() {
        // A network device has at most 15 characters.
        assert!(DEVICE.len() <= 15);
        for object in objects(1 << 20, "host") {
            assert!(object.at.ends_with(DEVICE) || object.at.ends_with(NAME));
            for command in object.make.iter().chain([&object.remove]) {
                if command[0] == "farblk" {
                    assert!(Cli::try_parse_from(command).is_ok(), "{}", shown(command));
                }
            }
        }
        let ip: std::net::Ipv4Addr = ADDRESS.parse().unwrap();
        let [a, b, c, d] = ip.octets();
        assert!(GID.ends_with(&format!("ffff:{a:02x}{b:02x}:{c:02x}{d:02x}")));
    }
}
